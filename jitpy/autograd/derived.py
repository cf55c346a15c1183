"""Rules derived from torch's own autograd: an op is run once on meta tensors, and the ATen calls of its forward and its
backward pass are written down.

A composite op becomes the calls that it is made of (`expand_by_recording`); an op that autograd knows itself keeps its
place, and its backward calls are replayed on the graph's nodes (`derived_rule`). Recordings are kept by op and
arguments; those with symbolic sizes by the capture whose symbols these are.
"""

from __future__ import annotations

from typing import Any

import torch

from ..ir import ops
from ..ir.algebra import sympy
from ..ir.builder import Builder
from ..ir.graph import Node
from ..ir.op import NotCovered, Op, Uncapturable
from ..ir.ops import symbolic, to_specs
from ..ir.ops.fake_tensors import (
    Constant,
    FakeTensor,
    Tape,
    Template,
    make_fake,
    tensors_of,
)
from ..ir.ops.oracle import META, Ref, ask, mentions_symbols, references, spec_of
from ..ir.ops.quiet import without_compiler_import
from ..ir.ops.registered import has_python_gradient
from ..ir.sizes import SizeEnv
from ..ir.spec import TensorSpec
from ..ir.trees import tree_leaves, tree_map
from .pullback import Pullback

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


def _record_forward(tape: Tape, op: Op, args: Any, kwargs: Any) -> Any:
    return op.target(*args, **kwargs)


# -- ops that autograd knows ------------------------------------------------------------------------------------------


#: Shadows have no values to look at: for determinants torch would take the formula for singular matrices, whose own
#: derivative is not defined where singular values are equal.
_BY_VALUES = frozenset({"aten._linalg_det.default"})
#: Their kernels return the workspace that their gradients read only where autograd records them.
_BY_GRAD_MODE = frozenset({"aten.mkldnn_rnn_layer.default"})


def derived_rule(p: Pullback, *values: Any, **kwargs: Any) -> tuple[Any, ...]:
    """The gradient rule of an op without one of its own: see `rules`."""
    node = p.node
    count = len(node.spec) if isinstance(node.spec, tuple) else 1
    grads, args = values[:count], values[count:]
    defined = tuple(grad is not None for grad in grads)
    wanted = tuple(p.needs(n) for n in _tensors((args, kwargs)))
    create_graph = p.create_graph
    if node.op.name in _BY_GRAD_MODE:
        raise NotCovered(f"{node.op}: its kernel returns a workspace only where autograd records it")
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


def _record_backward(defined: tuple[bool, ...], wanted: tuple[bool, ...], create_graph: bool, tape: Tape, op: Op,
                     args: Any, kwargs: Any) -> Any:
    if has_python_gradient(op.target):  # type: ignore[arg-type]
        raise NotCovered(f"{op}: its gradient is Python of the program's")
    inputs = tensors_of((args, kwargs))
    with torch.enable_grad():
        result = op.target(*args, **kwargs)
    results = result if isinstance(result, (tuple, list)) else (result,)
    # what the forward call made counts as given
    tape.start_again([*inputs, *tensors_of(results)])
    outputs, grads = [], []
    for value, there in zip(results, defined, strict=True):
        if there:
            if not isinstance(value, torch.Tensor) or not value.requires_grad:
                raise NotCovered(f"{op}: a gradient of a result that does not require grad")
            outputs.append(value)
            with torch._C._DisableTorchDispatch():
                spec = spec_of(value).with_(requires_grad=create_graph)
                grads.append(make_fake(spec, True, symbolic.environment(value)))
            tape.number(grads[-1])
    tape.inputs = len(tape.values)
    targets = [t for t, needed in zip(inputs, wanted, strict=True) if needed]
    found = iter(torch.autograd.grad(outputs, targets, grads, create_graph=create_graph, allow_unused=True))
    if any(record.facts.overload is torch.ops.aten._linalg_check_errors.default for record in tape.template.records):
        raise NotCovered("torch looks whether its gradient can be computed")
    return [next(found) if needed else None for needed in wanted]


# -- recording --------------------------------------------------------------------------------------------------------


def _recording(kind: Any, env: SizeEnv, node: Node, args: Any, kwargs: Any, record: Any) -> Template:
    op = node.op
    if not isinstance(op.target, torch._ops.OpOverload) or not op.is_pure:
        raise NotCovered(f"no gradient rule for {op}")
    spec_args, spec_kwargs = to_specs(args), dict(zip(kwargs, to_specs(kwargs.values()), strict=True))
    on_symbols = mentions_symbols((*spec_args, *spec_kwargs.values()))

    def answer() -> Template | NotCovered:
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


def _run(op: Op, args: Any, kwargs: Any, record: Any, env: SizeEnv | None) -> Template | NotCovered:
    """`env`: where the sizes are symbolic."""
    inputs: list[FakeTensor] = []

    def convert(value: Any) -> Any:
        if type(value) is TensorSpec:
            inputs.append(make_fake(value.with_(device=META), True, env))
            return inputs[-1]
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
                tape = Tape(inputs, saves=True)
                with tape:
                    result = record(tape, op, call_args, call_kwargs)
                if tape.was_asked:
                    raise NotCovered("torch asks whether tensors are equal")
                recording = tape.finish(result, tape.refer)
                _check(recording, tape.inputs)
                return recording
    except (NotCovered, Uncapturable) as reason:
        return NotCovered(f"{op}: {reason}")
    except Exception as error:  # whatever torch's own code raises for meta tensors: there is no rule then
        return NotCovered(f"{op} on meta tensors: {type(error).__name__}: {error}")
    finally:
        torch._C._set_grad_enabled(before)


def _check(recording: Template, given: int) -> None:
    """NotCovered for calls that are no nodes: writes, unless into memory that nobody else sees, which make new values
    (`t_` and the like make views), and tensors that torch made of Python data."""
    shared = set(range(given))
    for record in recording.records:
        facts = record.facts
        if facts.is_view or facts.inplace_view:
            shared.update((*record.results, *references((record.args, record.kwargs))))
        if facts.mutated and (
                facts.returns != facts.mutated or facts.outs or facts.functional is None
                or not isinstance(record.spec, TensorSpec)
                or not facts.inplace_view and not shared.isdisjoint(record.results)):
            raise NotCovered(f"{facts.overload} writes to its arguments, or to memory that others see")
        if any(isinstance(leaf, Constant) for leaf in tree_leaves((record.args, record.kwargs))):
            raise NotCovered("a tensor that no recorded call made")


def _replay(b: Builder, recording: Template, values: dict[int, Node], device: torch.device | None) -> None:
    """Add the calls of a recording; `values` gets their results."""

    def fill(value: Any) -> Any:
        if isinstance(value, Ref):
            return values[value.index]
        return device if isinstance(value, torch.device) else value

    for record in recording.records:
        facts = record.facts
        if not facts.returns:
            continue  # a check
        args, kwargs = facts.functional_call(*tree_map(fill, (record.args, record.kwargs)))
        kwargs.pop("pin_memory", None)
        made = b.call(ops.get(facts.functional or facts.overload), *args, **kwargs)
        several = isinstance(record.spec, tuple)
        parts = [b.getitem(made, i) for i, spec in enumerate(record.spec) if spec is not None] if several else [made]
        values.update(zip(record.results, parts, strict=True))


def _tensors(value: Any) -> list[Node]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Node) and isinstance(leaf.spec, TensorSpec)]
