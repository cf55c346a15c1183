"""A compiled forward graph with compiled backward graphs, made differentiable for torch's autograd engine.

    call = make_differentiable(forward, spec)
    outputs = call(*inputs)                    # a tuple; the differentiable ones have a grad_fn

One call is one node of autograd's graph. What eager promises of its many nodes holds for the one: saved tensors are
checked for changes in place, offered to saved-tensor hooks and freed behind the backward pass; gradients that nobody
needs are not computed, and those that do not exist are None.

Double backward. A backward pass that must be differentiable itself (`create_graph=True`) is run op by op under torch's
autograd, on the saved values. These need their histories back: saved inputs and outputs have them, and a saved
intermediate ('extra') is made an output of a second node, whose backward pass is that of the forward graph with the
intermediates as its results. Since that is again a function of the saved values and of gradients, the same mechanism
gives derivatives of every order; nothing is kept for it in passes that never ask.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from jitpy.runtime.native_build import NativeUnavailable, load_native

#: `(gradients of the wanted inputs, None where there is none)` of `(*saved values, *defined gradients)`
Backward = Callable[..., Sequence[torch.Tensor | None]]


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """How a forward executable and its backward passes fit together.

    n_inputs      inputs of the forward executable: tensors and Python numbers
    n_outputs     it returns so many outputs for the user, then the *extras*: values to save that are neither input nor
                  output (tensors or Python numbers). No output is an input, or a view of one, or of another output.
    saved         what backward passes take, in this order: ('input', i), ('output', i) or ('extra', i).
                  Inputs and outputs are checked for changes in place, and a changed one is an error, as in eager: so
                  those that eager's own nodes do not save should not be saved either (or be saved as an 'extra' copy).
    grad_outputs  positions of the outputs that are differentiable; the others are marked non-differentiable
    grad_inputs   positions of the inputs that get gradients
    backward      `(defined, wanted) -> Backward`. Bit j of `defined`: the gradient of grad_outputs[j] is there, and is
                  passed, in order, behind the saved values. Bit k of `wanted`: the gradient of grad_inputs[k] is to be
                  returned, in order. Called once per pair of masks, in the thread of the backward pass; the node keeps
                  what it returns.
                  A gradient returned may be a tensor that was passed; it must not be a *view* of a saved value.
    double        the same for a backward pass that must be differentiable: the Backward consists of eager ops, run with
                  grad mode on, whose derivatives torch knows. None: a second derivative is an error.
    hidden        positions of the extras that carry gradients (intermediates that require grad). Their gradients are
                  further bits of `defined`, behind those of grad_outputs, for `backward` and `double` alike.
    watched       inputs and outputs that eager saves and this node does not: changing one in place is eager's error
    under, over   which of the nodes that eager would have made free something when they run, as bit masks over those
                  nodes: those that lie under grad_outputs[j], and those that lie over grad_inputs[k]. Eager refuses a
                  second run of one of them. Empty: each output and input counts as connected with all.
    name          `grad_fn.name()`
    """

    n_inputs: int
    n_outputs: int
    saved: tuple[tuple[str, int], ...]
    grad_outputs: tuple[int, ...]
    grad_inputs: tuple[int, ...]
    backward: Callable[[int, int], Backward]
    double: Callable[[int, int], Backward] | None = None
    hidden: tuple[int, ...] = ()
    watched: tuple[tuple[str, int], ...] = ()
    under: tuple[int, ...] = ()
    over: tuple[int, ...] = ()
    name: str = "JitBackward"

    def __post_init__(self) -> None:
        for kind, i in (*self.saved, *self.watched):
            limit = {"input": self.n_inputs, "output": self.n_outputs, "extra": None}[kind]
            if i < 0 or limit is not None and i >= limit:
                raise ValueError(f"there is no {kind} {i}")
        if not all(0 <= i < self.n_outputs for i in self.grad_outputs) or not self.grad_outputs:
            raise ValueError(f"grad_outputs are not outputs: {self.grad_outputs}")
        if not all(0 <= i < self.n_inputs for i in self.grad_inputs):
            raise ValueError(f"grad_inputs are not inputs: {self.grad_inputs}")


def make_differentiable(forward: Callable[..., tuple[Any, ...]], spec: NodeSpec) -> Callable[..., tuple[Any, ...]]:
    """`call(*inputs) -> outputs`, of which `spec.grad_outputs` have a history where a grad input requires grad."""
    try:
        native = load_native("runtime")
    except NativeUnavailable:
        return PythonDifferentiable(forward, spec)
    return native.Differentiable(forward, spec)


@dataclass(slots=True)
class _Variants:
    """The backward passes that were asked for, by masks."""

    spec: NodeSpec
    plain: dict[tuple[int, int], Backward] = field(default_factory=dict)
    double: dict[tuple[int, int], Backward] = field(default_factory=dict)

    def get(self, defined: int, wanted: int, differentiable: bool) -> Backward:
        found = self.double if differentiable else self.plain
        variant = found.get((defined, wanted))
        if variant is None:
            make = self.spec.double if differentiable else self.spec.backward
            if make is None:
                raise RuntimeError(f"{self.spec.name} cannot be differentiated twice")
            variant = found[defined, wanted] = make(defined, wanted)
        return variant


class PythonDifferentiable:
    """The node as a `torch.autograd.Function`: what runs where the native one cannot be built.

    It holds the inputs that get gradients until the backward pass, since Python cannot give a tensor a history, and
    frees all that it saved at once.
    """

    def __init__(self, forward: Callable[..., tuple[Any, ...]], spec: NodeSpec) -> None:
        self.forward = forward
        self.spec = spec
        self.variants = _Variants(spec)
        self.function = type(spec.name.removesuffix("Backward") or spec.name, (_Compiled,), {})

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        if len(inputs) != self.spec.n_inputs:
            raise TypeError(f"this function takes {self.spec.n_inputs} positional arguments, got {len(inputs)}")
        if not any(inputs[i].requires_grad for i in self.spec.grad_inputs):
            return tuple(self.forward(*inputs)[:self.spec.n_outputs])
        with torch.enable_grad():  # whether a gradient is needed was decided when the graph was made
            return self.function.apply(self, *inputs)


class _Compiled(torch.autograd.Function):
    """One call: `apply(differentiable, *inputs)`."""

    @staticmethod
    def forward(ctx: Any, node: PythonDifferentiable, *inputs: Any) -> tuple[Any, ...]:
        spec = node.spec
        results = node.forward(*inputs)
        outputs, extras = results[:spec.n_outputs], results[spec.n_outputs:]
        values = [{"input": inputs, "output": outputs, "extra": extras}[kind][i] for kind, i in spec.saved]
        ctx.node = node
        ctx.numbers = [None if isinstance(value, torch.Tensor) else value for value in values]
        ctx.save_for_backward(*(value for value in values if isinstance(value, torch.Tensor)))
        ctx.roots = tuple(inputs[i] for i in spec.grad_inputs)
        ctx.watched = [_Watched({"input": inputs, "output": outputs}[kind][i]) for kind, i in spec.watched]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(output for i, output in enumerate(outputs)
                                      if i not in spec.grad_outputs and isinstance(output, torch.Tensor)))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        node = ctx.node
        spec = node.spec
        for watched in ctx.watched:
            watched.check()
        saved = iter(ctx.saved_tensors if None in ctx.numbers else ())
        values = [next(saved) if number is None else number for number in ctx.numbers]
        wanted = [ctx.needs_input_grad[1 + i] for i in spec.grad_inputs]
        given = [grads[i] for i in spec.grad_outputs]
        found = _gradients(node, values, ctx.roots, given, wanted, 0)
        result: list[torch.Tensor | None] = [None] * (1 + spec.n_inputs)
        for i, grad in zip(spec.grad_inputs, found, strict=True):
            result[1 + i] = grad
        return tuple(result)


class _Hidden(torch.autograd.Function):
    """Gives saved intermediates their histories: `apply(node, values, n_roots, *roots, *intermediates)`."""

    @staticmethod
    def forward(ctx: Any, node: PythonDifferentiable, values: list[Any], n_roots: int,
                *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.node = node
        ctx.roots = tensors[:n_roots]
        outputs = tuple(tensor.detach() for tensor in tensors[n_roots:])
        ctx.values = values
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        n_roots = len(ctx.roots)
        wanted = list(ctx.needs_input_grad[3:3 + n_roots])
        found = _gradients(ctx.node, ctx.values, ctx.roots, grads, wanted, len(ctx.node.spec.grad_outputs))
        return (None, None, None, *found, *(None for _ in grads))


def _gradients(node: PythonDifferentiable, values: list[Any], roots: tuple[torch.Tensor, ...],
               grads: Sequence[torch.Tensor | None], wanted: Sequence[bool],
               first_bit: int) -> list[torch.Tensor | None]:
    """One gradient, or None, for each root. `grads` are those of the outputs whose bits start at `first_bit`."""
    defined = [grad for grad in grads if grad is not None]
    if not defined or not any(wanted):
        return [None] * len(wanted)
    differentiable = torch.is_grad_enabled()
    variant = node.variants.get(_mask(grad is not None for grad in grads) << first_bit, _mask(wanted), differentiable)
    if differentiable:
        values = _with_histories(node, values, roots)
    found = iter(variant(*values, *defined))
    return [next(found) if needed else None for needed in wanted]


def _with_histories(node: PythonDifferentiable, values: list[Any], roots: tuple[torch.Tensor, ...]) -> list[Any]:
    """The saved values with hidden intermediates as outputs of a node of their own."""
    spec = node.spec
    places = [spec.saved.index(("extra", i)) for i in spec.hidden]
    if not places:
        return values
    result = list(values)
    histories = _Hidden.apply(node, values, len(roots), *roots, *(values[place] for place in places))
    for place, value in zip(places, histories, strict=True):
        result[place] = value
    return result


def _mask(bits: Any) -> int:
    return sum(1 << i for i, bit in enumerate(bits) if bit)


class _Watched:
    """A tensor that must not have changed in place when the backward pass runs, and is not kept for that."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = weakref.ref(tensor)
        self.version = tensor._version

    def check(self) -> None:
        """Raises eager's RuntimeError."""
        tensor = self.tensor()
        if tensor is not None and tensor._version != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; "
                f"expected version {self.version} instead.")


__all__ = ["Backward", "NodeSpec", "PythonDifferentiable", "make_differentiable"]
