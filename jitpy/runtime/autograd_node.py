"""A compiled forward graph with compiled backward graphs, made differentiable for torch's autograd engine.

    call = make_differentiable(forward, spec)
    outputs = call(*inputs)                    # a tuple; the differentiable ones have a grad_fn

One call is one node of autograd's graph. Eager's promises for its many nodes hold for the one: saved tensors are
checked for changes in place, offered to saved-tensor hooks and freed behind the backward pass; gradients that nobody
needs are not computed, and those that do not exist are None.

Double backward. A backward pass that must be differentiable itself (`create_graph=True`) runs the forward graph again,
op by op under torch's autograd, from the inputs, and takes the gradients of that: eager's own derivatives of every
order, and eager's errors. The price is one eager forward pass, and that the inputs are held until the backward pass
frees the rest. The other way, giving saved intermediates their histories back, needs no inputs, but a second set of
derivative rules that must agree with eager's. A graph all of whose passes had to be differentiable is soon called as
eager ops from the start, so that it costs what it costs without jitpy.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch.utils.hooks import RemovableHandle

from jitpy.ir.ops.quiet import without_saved_tensor_hooks
from jitpy.ir.spec import contiguous_stride
from jitpy.runtime import beside_dynamo
from jitpy.runtime.native_build import load_native, load_or_none

#: `(gradients of the wanted inputs, None where there is none)` of `(*saved values, *defined gradients)`. A tensor may
#: be returned as it was passed, but not a view of a saved value.
Backward = Callable[..., Sequence[torch.Tensor | None]]


@dataclass(frozen=True, slots=True)
class BackwardPass:
    """A Backward in parts, which the native node puts together without Python.

    run       `(*saved values, *defined gradients) -> those gradients that are there`
    layouts   for each defined gradient the strides in which `run` takes it, or `-1 - axis` for each axis, from the
              outermost to the innermost of memory without gaps; None means row-major. Gradients that come in
              other strides, or that are no plain dense tensors, are copied. Empty: `run` takes them as they come.
    present   for each wanted gradient whether there is one; None: all
    """

    run: Callable[..., Sequence[torch.Tensor | None]]
    layouts: tuple[tuple[int, ...] | None, ...] = ()
    present: tuple[bool, ...] | None = None

    def __call__(self, *values: Any) -> Sequence[torch.Tensor | None]:
        if self.layouts:
            first = len(values) - len(self.layouts)
            grads = (_laid_out(grad, stride) for grad, stride in zip(values[first:], self.layouts, strict=True))
            values = (*values[:first], *grads)
        results = self.run(*values)
        if self.present is None:
            return results
        rest = iter(results)
        return [next(rest) if there else None for there in self.present]


def _laid_out(grad: torch.Tensor, stride: tuple[int, ...] | None) -> torch.Tensor:
    grad = grad.resolve_conj().resolve_neg()
    if stride and stride[0] < 0:
        stride = _strides_of_order(grad.shape, stride)
    if stride is None and not grad._is_zerotensor():
        return grad.contiguous()
    if stride is not None and grad.stride() == stride and not grad._is_zerotensor():
        return grad
    shape = contiguous_stride(grad.shape) if stride is None else stride
    return torch.empty_strided(grad.shape, shape, dtype=grad.dtype, device=grad.device).copy_(grad)


def _strides_of_order(shape: torch.Size, order: tuple[int, ...]) -> tuple[int, ...]:
    inner = contiguous_stride(tuple([shape[-1 - axis] for axis in order]))
    return tuple([inner[order.index(-1 - axis)] for axis in range(len(shape))])


@dataclass(frozen=True, slots=True)
class Paths:
    """Which parts of a graph a pass runs through, for those of eager's nodes that save something, which are numbered.

    Eager's nodes free what they saved when they have run, and refuse to run again; others run as often as one likes. A
    pass from some outputs to some inputs runs the nodes that lie between them.

    under  for each of grad_outputs the nodes that lie under it, as a bit mask
    over   for each of grad_inputs the nodes that lie over it
    needs  for each saved value, for each of grad_outputs: the grad_inputs (a bit mask) whose gradients from this output
           cannot be computed without the value
    savers   for each saved value the nodes that save it too, as a bit mask: they check it whether they read it or not
    watched  for each watched tensor the nodes that save it
    """

    under: tuple[int, ...]
    over: tuple[int, ...]
    needs: tuple[tuple[int, ...], ...]
    savers: tuple[int, ...]
    watched: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """How a forward executable and its backward passes fit together.

    n_inputs      inputs of the forward executable: tensors and Python numbers
    n_outputs     it returns so many outputs for the user, then the *extras*: values to save that are neither input nor
                  output (tensors or Python numbers). No output is an input, or a view of one, or of another output.
    saved         what backward passes take, in this order: ('input', i), ('data', i), ('output', i) or ('extra', i).
                  Inputs and outputs are checked for changes in place, and a changed one is an error, as in eager: so
                  those that eager's own nodes do not save should not be saved either (or be saved as an 'extra' copy).
                  The `.data` of an input is not checked.
    written       inputs that get a history with the value that the forward executable writes into them. These values
                  count as outputs behind the others, but are not returned.
    grad_outputs  positions of the outputs that are differentiable; the others are marked non-differentiable
    grad_inputs   positions of the inputs that get gradients
    backward      `(defined, wanted) -> Backward`. Bit j of `defined`: the gradient of grad_outputs[j] is there, and is
                  passed, in order, behind the saved values. Bit k of `wanted`: the gradient of grad_inputs[k] is to be
                  returned, in order. Called once per pair of masks, and once more where results must repeat
                  (`torch.use_deterministic_algorithms`), in the thread of the backward pass; the node keeps what it
                  returns: any Backward; a BackwardPass costs least.
    eager         `() -> run`, where `run(*inputs) -> outputs` is the forward graph as eager ops under torch's autograd;
                  its results are all outputs, and it changes no input. For passes that must be differentiable, and for
                  gradients that kernels cannot take (of `is_grads_batched`, sparse ones, subclasses). None: those are
                  errors.
    linear        `(defined, wanted) -> Backward` as eager ops, for such passes that come when everything was freed: no
                  value is kept for what they run through, and they compute the gradients from gradients alone
    kept          positions of the inputs that `run` reads, but for those that the forward executable changes
    copies        for those `(position, number of the extra)`: it returns them as they were
    random        whether the forward graph draws random numbers: `run` then starts from the same state of generators
    generators    those that it draws from besides torch's own
    changes       whether the forward executable changes inputs, so that `run` cannot stand for it
    watched       inputs and outputs that eager saves, ('input', i, text) or ('output', i, text): changing one in place
                  is eager's error, which calls it `text` (kind, sizes and maker; empty: as it is at the call)
    paths         what eager would free and refuse, for passes over some outputs or inputs only; called when the first
                  such pass comes. None: every pass frees everything.
    name          `grad_fn.name()`
    """

    n_inputs: int
    n_outputs: int
    saved: tuple[tuple[str, int], ...]
    grad_outputs: tuple[int, ...]
    grad_inputs: tuple[int, ...]
    backward: Callable[[int, int], Backward]
    eager: Callable[[], Callable[..., Sequence[Any]]] | None = None
    linear: Callable[[int, int], Backward] | None = None
    kept: tuple[int, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()
    random: bool = False
    generators: tuple[torch.Generator, ...] = ()
    changes: bool = False
    watched: tuple[tuple[str, int, str], ...] = ()
    paths: Callable[[], Paths] | None = None
    name: str = "JitBackward"
    written: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not all(0 <= i < self.n_inputs for i in (*self.kept, *(i for i, _ in self.copies))):
            raise ValueError(f"there are no such inputs: {self.kept}, {self.copies}")
        n_outputs = self.n_outputs + len(self.written)
        for kind, i in (*self.saved, *(place[:2] for place in self.watched)):
            limit = {"input": self.n_inputs, "data": self.n_inputs, "output": n_outputs, "extra": None}[kind]
            if i < 0 or limit is not None and i >= limit:
                raise ValueError(f"there is no {kind} {i}")
        if not all(0 <= i < n_outputs for i in self.grad_outputs) or not self.grad_outputs:
            raise ValueError(f"grad_outputs are not outputs: {self.grad_outputs}")
        if not all(0 <= i < self.n_inputs for i in (*self.grad_inputs, *self.written)):
            raise ValueError(f"grad_inputs are not inputs: {self.grad_inputs}")


def has_nodes() -> bool:
    """Whether there can be such nodes: they are native code."""
    return load_or_none("runtime") is not None


def make_differentiable(forward: Callable[..., tuple[Any, ...]], spec: NodeSpec) -> Callable[..., tuple[Any, ...]]:
    """`call(*inputs) -> outputs`, of which `spec.grad_outputs` have a history where a grad input requires grad."""
    return load_native("runtime").Differentiable(forward, spec)  # type: ignore[no-any-return]


def accumulation_has_hooks(leaf: torch.Tensor) -> bool:
    """Whether hooks were put on the node that adds gradients to `leaf.grad`; removed ones count. Only C++ sees them:
    False where the native runtime cannot be built."""
    native = load_or_none("runtime")
    return native is not None and native.accumulation_has_hooks(leaf)


def forget_history(view: torch.Tensor) -> None:
    """A view was made before what it shows got a history: autograd finds its own when it is next asked, and until then
    it counts as a leaf, which nobody may write to under grad mode. Without native code the view has its history at
    once."""
    if has_nodes():
        load_native("runtime").forget_history(view)


def write_test() -> Callable[[torch.Tensor], bool]:
    """Guard: autograd lets an in-place operation change a tensor, and give it a history. It is neither a leaf that
    requires grad nor a view of one, nor one of several views made at once, nor a view made under no_grad (of whatever
    that was: autograd asks how the view was made). And its history is that of the memory, to which autograd adds what
    it writes: a view that one operation on lists has written twice keeps the one from in between. Nor has its base got
    one that it has yet to get: until then autograd takes it for a leaf. And a view shows the memory of its base:
    `.data = ...` may have given it another. Only C++ sees all of this: without native code no view takes writes."""
    native = load_or_none("runtime")
    return _owner_takes_writes if native is None else native.takes_writes  # type: ignore[no-any-return]


def _owner_takes_writes(tensor: torch.Tensor) -> bool:
    return tensor._base is None and not (tensor.requires_grad and tensor.is_leaf)


def eager_of(spec: NodeSpec) -> Callable[..., Sequence[Any]]:
    """The forward graph as eager ops."""
    if spec.eager is None:
        raise RuntimeError(f"{spec.name} cannot be differentiated twice")
    return spec.eager()


def eager_gradients(run: Callable[..., Sequence[Any]], spec: NodeSpec, inputs: Sequence[Any], state: Any,
                    grads: Sequence[torch.Tensor | None], wanted: Sequence[bool]) -> list[torch.Tensor | None]:
    """The gradients of the wanted grad inputs by torch's autograd, differentiable where grad mode is on.

    run: see NodeSpec.eager. inputs: its arguments, with their histories. state: of the random generators at the forward
    pass, where the graph is random. grads: one for each of spec.grad_outputs. wanted: one for each of spec.grad_inputs.
    """
    create_graph = torch.is_grad_enabled()
    targets = [i for i, needed in zip(spec.grad_inputs, wanted, strict=True) if needed]
    with torch.enable_grad():
        # hooks of the inputs belong to the pass that runs now, not to the one inside
        arguments = [torch.ops.aten.alias(value) if isinstance(value, torch.Tensor) and value.requires_grad else value
                     for value in inputs]
        if state is None:
            results = run(*arguments)
        else:
            with _random_state_of(state):
                results = run(*arguments)
    pairs = [(results[i], grad) for i, grad in zip(spec.grad_outputs, grads, strict=True) if grad is not None]
    return list(torch.autograd.grad([result for result, _ in pairs], [arguments[i] for i in targets],
                                    [grad for _, grad in pairs], create_graph=create_graph, allow_unused=True))


def linear_gradients(spec: NodeSpec, defined: int, wanted: int, values: Sequence[Any],
                     grads: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """The gradients of the wanted grad inputs by `spec.linear`. values: what is kept, None where it was freed."""
    assert spec.linear is not None
    return list(spec.linear(defined, wanted)(*values, *[grad for grad in grads if grad is not None]))


#: States of the CPU's generator, of those of all GPUs, and of others.
RandomState = tuple[torch.Tensor, list[torch.Tensor], list[tuple[torch.Generator, torch.Tensor]]]


def random_state(generators: Sequence[torch.Generator] = ()) -> RandomState:
    """The state of all default generators, and of these."""
    of_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return torch.get_rng_state(), of_gpus, [(generator, generator.get_state()) for generator in generators]


def set_random_state(state: RandomState) -> None:
    """Put generators back into a state."""
    of_cpu, of_gpus, others = state
    torch.set_rng_state(of_cpu)
    if of_gpus:
        torch.cuda.set_rng_state_all(of_gpus)
    for generator, before in others:
        generator.set_state(before)


@contextlib.contextmanager
def _random_state_of(state: RandomState) -> Iterator[None]:
    now = random_state([generator for generator, _ in state[2]])
    set_random_state(state)
    try:
        yield
    finally:
        set_random_state(now)


def describe(tensor: torch.Tensor) -> str:
    """A tensor as eager's error names it."""
    maker = f", which is output {tensor.output_nr} of {tensor.grad_fn.name()}," if tensor.grad_fn is not None else ""
    return f"[{type_name(tensor.dtype, tensor.device)} {list(tensor.shape)}]{maker}"


def type_name(dtype: torch.dtype, device: torch.device) -> str:
    """A kind of tensors as eager's error names it."""
    name = torch.empty(0, dtype=dtype).type().removeprefix("torch.").removesuffix("Tensor")
    if dtype not in _WITH_CLASSES:
        return f"{device.type.upper()}{name}Type"
    return f"torch.{name}Tensor" if device.type == "cpu" else f"torch.{device.type}.{name}Tensor"


#: the dtypes that had classes of their own once, which errors name
_WITH_CLASSES = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32,
                           torch.float64})


#: Eager's error for one of several views, made at once, that it is to read after its memory was written to.
REFUSED_VIEW = (
    "is a view and its base or another view of its base has been modified inplace. This view is the output of a "
    "function that returns multiple views. Such functions do not allow the output views to be modified inplace. You "
    "should replace the inplace operation by an out-of-place one."
)


def watch_change(result: torch.Tensor, seen: torch.Tensor, text: str | torch.Tensor) -> None:
    """Have the backward pass of the op that made `result` raise eager's error where `seen` was changed in place since.

    text: how the error names the tensor that the op keeps, or that tensor.
    """
    if result.grad_fn is None:
        return
    name = text if isinstance(text, str) else describe(text)
    with torch.no_grad():
        same = seen.detach()
    expected = same._version

    def check(grads: Any) -> None:
        if same._version != expected:
            raise_changed(name, same._version, expected)

    handle = result.grad_fn.register_prehook(check)
    if RemovableHandle.next_id == handle.id + 1:  # programs see the numbers of their hooks: this one takes none
        RemovableHandle.next_id = handle.id


def raise_replaced() -> NoReturn:
    """`tensor.data = ...` has given a leaf that a node keeps other sizes, strides or another dtype, for which there is
    no compiled code."""
    raise RuntimeError("the data of one of the variables needed for gradient computation has been replaced by one of "
                       "another shape, layout or dtype since the forward pass")


def raise_changed(text: str, version: int, expected: int) -> NoReturn:
    """Raises what eager raises where a saved tensor was changed in place; `text` is how `describe` names it, or the
    whole error."""
    if text.endswith(REFUSED_VIEW):
        raise RuntimeError(text)
    if not _names_whole_makers():
        text = re.sub(r"Backward\d*,$", ",", text)
    hint = "Hint: the backtrace further above shows the operation that failed to compute its gradient. The variable " \
           "in question was changed in there or anywhere later. Good luck!" if torch.is_anomaly_enabled() else \
           "Hint: enable anomaly detection to find the operation that failed to compute its gradient, with " \
           "torch.autograd.set_detect_anomaly(True, check_nan=False)."
    raise RuntimeError("one of the variables needed for gradient computation has been modified by an inplace "
                       f"operation: {text} is at version {version}; expected version {expected} instead. {hint}")


@functools.cache
def _names_whole_makers() -> bool:
    """Whether this torch's error says `TanhBackward0`, and not `Tanh`."""
    with torch.enable_grad(), torch.autograd.set_detect_anomaly(False), without_saved_tensor_hooks():
        result = torch.zeros((), requires_grad=True).tanh()
        result.detach().zero_()
        try:
            result.backward()
        except RuntimeError as error:
            return "TanhBackward" in str(error)
    return True


__all__ = ["Backward", "BackwardPass", "NodeSpec", "Paths", "make_differentiable", "watch_change"]


beside_dynamo.hide_all(globals())
