"""Rules derived from torch's own autograd: an op is run once on meta tensors, and the ATen calls of its forward and its
backward pass are written down.

A composite op becomes the calls that it is made of (`expand_by_recording`); an op that autograd knows itself keeps its
place, and its backward calls are replayed on the graph's nodes (`derived_rule`). Recordings are kept by op and
arguments; those with symbolic sizes by the capture whose symbols these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..ir import ops
from ..ir.algebra import sympy
from ..ir.builder import Builder
from ..ir.graph import Node
from ..ir.interrupts import CaptureMode
from ..ir.op import NotCovered, Op
from ..ir.ops import symbolic, to_specs
from ..ir.ops.functional import functional_of
from ..ir.ops.oracle import META, Ref, ask, fake_tensor, mentions_symbols, needed
from ..ir.ops.quiet import without_compiler_import
from ..ir.ops.registered import has_python_gradient
from ..ir.sizes import SizeEnv
from ..ir.spec import TensorSpec
from ..ir.trees import tree_leaves, tree_map
from .pullback import Pullback


@dataclass(slots=True)
class Record:
    """One ATen call. `results` are the numbers of its results; None where it has none."""

    overload: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[int | None, ...]
    multiple: bool


@dataclass(slots=True)
class Recording:
    """The calls of an op, and what it returned, in terms of `Ref`s. Values 0, 1, ... are the op's tensor arguments,
    then (in a backward recording) its results and their gradients."""

    records: list[Record] = field(default_factory=list)
    result: Any = None


#: kinds of arguments that a recording depends on as they are
_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.layout, torch.memory_format)


# -- composite ops ----------------------------------------------------------------------------------------------------


def is_composite(op: Op) -> bool:
    """Whether torch implements the op by other ops, above autograd."""
    target = op.target
    return isinstance(target, torch._ops.OpOverload) and torch._C._dispatch_has_kernel_for_dispatch_key(
        target.name(), "CompositeImplicitAutograd")


def is_complex(node: Node) -> bool:
    """Whether a node takes or makes complex numbers: torch's own formulas know where these are conjugated."""
    return any(_has_complex(n.spec) for n in (node, *node.input_nodes()))


def _has_complex(spec: Any) -> bool:
    return any(isinstance(part, TensorSpec) and part.dtype.is_complex for part in tree_leaves(spec))


def expand_by_recording(b: Builder, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The calls that a composite op makes, as nodes; returns its result, a node or a tuple of nodes."""
    recording = _recording(("forward", None), b.env, node, args, kwargs, _record_forward)
    values: dict[int, Node] = dict(enumerate(_tensors((args, kwargs))))
    _replay(b, recording, values, node.tensor.device if isinstance(node.spec, TensorSpec) else None)
    result = recording.result
    if isinstance(result, Ref):
        return values[result.index]
    if isinstance(result, (tuple, list)) and all(isinstance(r, Ref) for r in result):
        return tuple(values[r.index] for r in result)
    raise NotCovered(f"the result of {node.op}")


def _record_forward(tape: _Tape, op: Op, args: Any, kwargs: Any) -> Any:
    return tape.refer(op.target(*args, **kwargs))


# -- ops that autograd knows ------------------------------------------------------------------------------------------


#: Shadows have no values to look at: for determinants torch would take the formula for singular matrices, whose own
#: derivative is not defined where singular values are equal.
_BY_VALUES = frozenset({"aten._linalg_det.default"})


def derived_rule(p: Pullback, *values: Any, **kwargs: Any) -> tuple[Any, ...]:
    """The gradient rule of an op without one of its own: see `rules`."""
    node = p.node
    count = len(node.spec) if isinstance(node.spec, tuple) else 1
    grads, args = values[:count], values[count:]
    defined = tuple(grad is not None for grad in grads)
    wanted = tuple(p.needs(n) for n in _tensors((args, kwargs)))
    create_graph = p.create_graph
    if create_graph and node.op.name in _BY_VALUES:
        raise NotCovered(f"{node.op}: torch looks at values to choose the formula of gradients with a history")
    recording = _recording(("backward", defined, wanted, create_graph), p.env, node, args, kwargs,
                           lambda *call: _record_backward(defined, wanted, create_graph, *call))
    specs = node.spec if isinstance(node.spec, tuple) else (node.spec,)
    tensors = _tensors((args, kwargs))
    parts = [n for n in ([p.part(k) for k in range(count)] if isinstance(node.spec, tuple) else [node])]
    given = [grad for grad in grads if grad is not None]
    values_by_number = dict(enumerate([*tensors, *(n for n, s in zip(parts, specs, strict=True)
                                                   if isinstance(s, TensorSpec)), *given]))
    device = next(s.device for s in specs if isinstance(s, TensorSpec))
    _replay(p, recording, values_by_number, device)
    found = iter(recording.result)

    def gradient(argument: Any) -> Any:
        if isinstance(argument, Node) and isinstance(argument.spec, TensorSpec):
            ref = next(found)
            return None if ref is None else values_by_number[ref.index]
        if isinstance(argument, (tuple, list)):
            return [gradient(a) for a in argument]
        return None

    result = tuple(gradient(a) for a in args)
    if any(ref is not None for ref in found):
        raise NotCovered("the gradient of a keyword argument")
    return result


def _record_backward(defined: tuple[bool, ...], wanted: tuple[bool, ...], create_graph: bool, tape: _Tape, op: Op,
                     args: Any, kwargs: Any) -> Any:
    if has_python_gradient(op.target):  # type: ignore[arg-type]
        raise NotCovered(f"{op}: its gradient is Python of the program's")
    inputs = _meta_tensors((args, kwargs))
    with torch.enable_grad():
        result = op.target(*args, **kwargs)
    results = result if isinstance(result, (tuple, list)) else (result,)
    # what the forward call made counts as given
    tape.start_again([*inputs, *(r for r in results if isinstance(r, torch.Tensor))])
    outputs, grads = [], []
    for value, there in zip(results, defined, strict=True):
        if there:
            if not isinstance(value, torch.Tensor) or not value.requires_grad:
                raise NotCovered(f"{op}: a gradient of a result that does not require grad")
            outputs.append(value)
            with torch._C._DisableTorchDispatch():
                grad = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=META,
                                           requires_grad=create_graph)
            grads.append(tape.take(grad))
    targets = [t for t, needed in zip(inputs, wanted, strict=True) if needed]
    found = iter(torch.autograd.grad(outputs, targets, grads, create_graph=create_graph, allow_unused=True))
    if any(record.overload is torch.ops.aten._linalg_check_errors.default for record in tape.records):
        raise NotCovered("torch looks whether its gradient can be computed")
    return [None if not needed or (grad := next(found)) is None else tape.refer(grad) for needed in wanted]


# -- recording --------------------------------------------------------------------------------------------------------


def _recording(kind: Any, env: SizeEnv, node: Node, args: Any, kwargs: Any, record: Any) -> Recording:
    op = node.op
    if not isinstance(op.target, torch._ops.OpOverload) or not op.is_pure:
        raise NotCovered(f"no gradient rule for {op}")
    spec_args, spec_kwargs = to_specs(args), dict(zip(kwargs, to_specs(kwargs.values()), strict=True))
    on_symbols = mentions_symbols((*spec_args, *spec_kwargs.values()))

    def answer() -> Recording | NotCovered:
        mark = env.checkpoint()
        found = _run(op, spec_args, spec_kwargs, record, env if on_symbols else None)
        if on_symbols and env.pinned_since(mark):
            found = NotCovered(f"{op}: a derived gradient rule that takes known sizes only")
        if on_symbols and isinstance(found, NotCovered):
            env.rollback(mark)
        return found

    found = ask(("recording", kind, op.name), (spec_args, spec_kwargs), answer, env if on_symbols else None)
    if isinstance(found, NotCovered):
        raise found
    return found


def _run(op: Op, args: Any, kwargs: Any, record: Any, env: SizeEnv | None) -> Recording | NotCovered:
    """`env`: where the sizes are symbolic."""
    inputs: list[torch.Tensor] = []

    def convert(value: Any) -> Any:
        if type(value) is TensorSpec:
            tensor = fake_tensor(value, META) if env is None else symbolic.fake_tensor(env, value)
            inputs.append(tensor)
            return tensor
        if isinstance(value, torch.device):
            return META
        if env is not None and isinstance(value, sympy.Basic):
            return symbolic.number(env, value)
        if value is None or isinstance(value, _PLAIN):
            return value
        raise NotCovered(f"{op} with an argument of type {type(value).__name__}")

    before = torch.is_grad_enabled()
    try:
        with torch._C.DisableTorchFunction(), torch._C._DisableAutocast(), without_compiler_import():
            torch._C._set_grad_enabled(True)
            with symbolic.shapes(env, op.name):
                call_args, call_kwargs = tree_map(convert, (tuple(args), kwargs))
                tape = _Tape(inputs)
                with tape:
                    result = record(tape, op, call_args, call_kwargs)
        return Recording(needed(tape.records, result, _is_random), result)
    except NotCovered as reason:
        return NotCovered(f"{op}: {reason}")
    except Exception as error:  # whatever torch's own code raises for meta tensors: there is no rule then
        return NotCovered(f"{op} on meta tensors: {type(error).__name__}: {error}")
    finally:
        torch._C._set_grad_enabled(before)


class _Tape(CaptureMode):
    """Writes down the ATen calls made on meta tensors, in functional form."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.records: list[Record] = []
        self.values: list[torch.Tensor] = []
        self.numbers: dict[int, int] = {}
        #: tensors that autograd wrapped to save them, with what they were
        self.detached: list[tuple[torch.Tensor, torch.Tensor]] = []
        #: storages that are given, or that views of ours show: nothing may be written there
        self.shared: set[int] = set()
        self.start_again(inputs)

    def start_again(self, inputs: Sequence[torch.Tensor]) -> None:
        """Forget the calls so far; these tensors are what the rest is computed from."""
        self.records, self.values, self.numbers, self.shared = [], [], {}, set()
        for tensor in inputs:
            self.take(tensor)
        for saved, source in self.detached:
            number = self.numbers.get(id(source))
            if number is not None:
                self.numbers[id(saved)] = number

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        """Number a tensor that is given."""
        self._number(tensor)
        self.shared.add(tensor.untyped_storage()._cdata)
        return tensor

    def _number(self, tensor: torch.Tensor) -> int:
        number = self.numbers[id(tensor)] = len(self.values)
        self.values.append(tensor)
        return number

    def refer(self, value: Any) -> Any:
        return tree_map(self._leaf, value)

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            number = self.numbers.get(id(value))
            if number is None:
                raise NotCovered("a tensor that no recorded call made")
            return Ref(number)
        if isinstance(value, torch.Generator):
            raise NotCovered("a generator")
        if isinstance(value, torch.SymInt):
            return symbolic.dim_of(value)
        if isinstance(value, (torch.SymFloat, torch.SymBool)):
            raise NotCovered("a number computed from sizes")
        return value

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = self.taken_apart(func, args, kwargs)
        if found is not NotImplemented:
            return found
        if torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags:
            raise NotCovered(f"{func} depends on the data")
        if func is torch.ops.aten.detach.default and id(args[0]) in self.numbers:
            # autograd wraps what it saved; the same value to us
            result = func(*args)
            self.numbers[id(result)] = self.numbers[id(args[0])]
            self.detached.append((result, args[0]))
            return result
        if func is torch.ops.aten._efficientzerotensor.default:
            func = torch.ops.aten.zeros.default
        if func is torch.ops.aten._conj.default and not isinstance(args[0], torch.Tensor):
            func, args, kwargs = torch.ops.aten.full.default, ([], args[0].conjugate()), {"dtype": torch.complex128}
        if func._schema.is_mutable:
            return self._write(func, args, kwargs)
        given, named = self.refer((args, kwargs))
        result = func(*args, **kwargs)
        self._record(func, given, named, result)
        return result

    def _record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        multiple = isinstance(result, (tuple, list))
        numbers: list[int | None] = []
        for value in result if multiple else (result,):
            if isinstance(value, torch.Tensor):
                if id(value) in self.numbers:
                    raise NotCovered(f"{func} returns its argument")
                numbers.append(self._number(value))
            elif value is None:
                numbers.append(None)
            else:
                raise NotCovered(f"{func} returns a {type(value).__name__}")
        if any(r.alias_info is not None for r in func._schema.returns):
            self.shared.update(t.untyped_storage()._cdata for t in _meta_tensors(result))
        self.records.append(Record(func, tuple(args), kwargs, tuple(numbers), multiple))

    def _write(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A write into memory that nobody else sees makes a new value; `t_` and the like make a view."""
        functional = functional_of(func)
        target = args[0] if args else None
        if functional.mutated != (0,) or not functional.keeps and func._schema.arguments[0].is_out or \
                functional.results != (None,) or not isinstance(target, torch.Tensor):
            raise NotCovered(f"{func} writes to its arguments")
        if functional.inplace_view:
            self.shared.add(target.untyped_storage()._cdata)
        elif target.untyped_storage()._cdata in self.shared:
            raise NotCovered(f"{func} writes to memory that others see")
        names = self.refer((args if functional.keeps else args[1:], kwargs))
        if functional.inplace_view or not symbolic.has_symbols((args, kwargs)):  # torch's code in Python writes nowhere
            func(*args, **kwargs)
        number = self._number(target)
        self.records.append(Record(functional.op.target, tuple(names[0]), names[1], (number,), False))
        return target


def _is_random(record: Record) -> bool:
    return torch.Tag.nondeterministic_seeded in record.overload.tags


def _replay(b: Builder, recording: Recording, values: dict[int, Node], device: torch.device | None) -> None:
    """Add the calls of a recording; `values` gets their results."""

    def fill(value: Any) -> Any:
        if isinstance(value, Ref):
            return values[value.index]
        if isinstance(value, torch.device):
            return device
        return value

    for record in recording.records:
        args, kwargs = tree_map(fill, (record.args, record.kwargs))
        if kwargs.get("pin_memory") is not None:
            kwargs.pop("pin_memory")
        made = b.call(ops.get(record.overload), *args, **kwargs)
        if not record.multiple:
            assert record.results[0] is not None
            values[record.results[0]] = made
            continue
        for index, number in enumerate(record.results):
            if number is not None:
                values[number] = b.getitem(made, index)


def _tensors(value: Any) -> list[Node]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Node) and isinstance(leaf.spec, TensorSpec)]


def _meta_tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
