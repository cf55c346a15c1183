"""Tensors that eager's autograd keeps of an op: found by running the op on meta tensors and watching what it saves
(on zeros where the values tell the sizes of results).

Eager refuses to run a backward pass when a tensor that it kept was changed in place meanwhile. In a functional graph
nothing changes, so whoever stands for eager has to know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .algebra import sympy
from .graph import Node, map_nodes
from .interrupts import CaptureMode
from .op import NotCovered
from .ops.nn import attention_kernel
from .ops.oracle import CPU, META, SAMPLES, ask, at_hints, fake_tensor, filled, spec_of
from .ops.quiet import without_compiler_import
from .ops.table import get, normalize
from .sizes import SizeEnv
from .spec import ScalarSpec, Spec, TensorSpec
from .trees import tree_map


@dataclass(frozen=True, slots=True)
class Saves:
    """The tensors that autograd keeps of a node.

    operands   positions among `dict.fromkeys(node.input_nodes())` of those whose memory it keeps, in the order in which
               it keeps them, and a backward pass asks for them
    results    positions of the results whose memory it keeps
    anything   whether it keeps any tensor, be it one that only the op knows
    makers     for each result the name of its grad_fn, None where it has none
    """

    operands: tuple[int, ...]
    results: frozenset[int]
    anything: bool
    makers: tuple[str | None, ...]


#: elements that a call may have which is tried on a CPU
_FEW = 1 << 16


@dataclass(frozen=True, slots=True)
class _Operand:
    """Among a call's arguments: the operand by this number."""

    number: int


def saved_by(sizes: SizeEnv, node: Node) -> Saves | None:
    """The tensors that autograd keeps for a node's backward pass; None where the op does not run on these."""
    sources = list(dict.fromkeys(node.input_nodes()))
    if node.op.keeps_all is not None:
        parts = node.spec if isinstance(node.spec, tuple) else (node.spec,)
        makers = tuple(node.op.keeps_all if isinstance(part, TensorSpec) and part.requires_grad else None
                       for part in parts)
        return Saves(tuple(range(len(sources))), frozenset(range(len(parts))), True, makers)
    specs = [_at_hints(sizes, source.spec) for source in sources]
    target, *arguments = _call_behind(sizes, node)
    call = _at_hints(sizes, map_nodes(arguments, lambda source: _Operand(sources.index(source))))
    if not isinstance(node.op.target, torch._ops.OpOverload):
        return _find(target, specs, call)  # it may be another function by the same name
    return ask(("saves", node.op.name), (specs, call), lambda: _find(target, specs, call))


def _find(target: Any, specs: list[Any], call: list[Any], device: torch.device = META) -> Saves | None:
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(tensor.untyped_storage()._cdata, len(kept))
        return tensor

    def is_kept(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.untyped_storage()._cdata in kept

    try:
        operands = [_operand(spec, device) for spec in specs]
        args, kwargs = _given(call, operands, device)
        with (
            without_compiler_import(),
            torch.enable_grad(),
            torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
            _Shapes() if device is META else contextlib.nullcontext(),  # type: ignore[no-untyped-call]
        ):
            result = target(*args, **kwargs)
            results = result if isinstance(result, (tuple, list)) else (result,)
            anything = bool(kept) or _has_number((*args, *kwargs.values())) and _runs_once(results, operands)
    except Exception:
        # sizes of results that depend on values
        tensors = [spec for spec in specs if isinstance(spec, TensorSpec)]
        if device is META and all(spec.device.type == "cpu" for spec in tensors) and \
                sum(spec.numel for spec in tensors) <= _FEW:
            return _find(target, specs, call, CPU)
        return None
    return Saves(
        tuple(sorted((i for i, operand in enumerate(operands) if is_kept(operand)),
                     key=lambda i: kept[operands[i].untyped_storage()._cdata])),
        frozenset(i for i, value in enumerate(results) if is_kept(value)),
        anything,
        tuple(
            value.grad_fn.name() if isinstance(value, torch.Tensor) and value.grad_fn is not None else None
            for value in results
        ),
    )


class _Shapes(CaptureMode):
    """Answers for torch's shape functions where the op table has a rule: many of those are Python, and import sympy to
    add two tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        op = get(func)
        if op.infer is not None and op.is_pure and not op.is_view and op.aliasing is None:
            specs, named = normalize(op, args, kwargs)
            try:
                return _made(op.infer(_ENV, *_specs_of(specs), **_specs_of(named)))
            except NotCovered:
                pass
        return func(*args, **kwargs)


_ENV = SizeEnv()


def _specs_of(value: Any) -> Any:
    """Arguments with a spec for each tensor."""
    return tree_map(lambda leaf: spec_of(leaf).with_(requires_grad=False)
                    if isinstance(leaf, torch.Tensor) else leaf, value)


def _made(spec: Spec) -> Any:
    """Tensors without memory by their specs."""
    if isinstance(spec, tuple):
        return tuple(map(_made, spec))
    if not isinstance(spec, TensorSpec):
        raise NotCovered("no tensor")
    return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device="meta")


def _has_number(values: tuple[Any, ...]) -> bool:
    return any(isinstance(value, (int, float, complex)) for value in values)


def _runs_once(results: Sequence[Any], operands: Iterable[Any]) -> bool:
    """Whether autograd refuses a second pass through an op: it keeps the 2 of `x * 2` as a tensor, of which hooks on
    saved tensors are not told."""
    made = [value for value in results if isinstance(value, torch.Tensor) and value.grad_fn is not None]
    wanted = [value for value in operands if isinstance(value, torch.Tensor) and value.requires_grad]
    if not made or not wanted:
        return False
    ones = [torch.empty_like(value) for value in made]
    torch.autograd.grad(made, wanted, ones, allow_unused=True)
    try:
        torch.autograd.grad(made, wanted, ones, allow_unused=True)
    except RuntimeError:
        return True
    return False


def _call_behind(sizes: SizeEnv, node: Node) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The op that eager calls: for attention the kernel that it picks by the device, which meta tensors do not tell."""
    if node.op.name == "aten.scaled_dot_product_attention.default":
        args, kwargs = normalize(node.op, node.args, node.kwargs)
        kernel = attention_kernel(sizes, *args, **kwargs)
        if kernel is not None:
            return get(kernel[0]).target, *kernel[1:]
    return node.op.target, node.args, node.kwargs


def _at_hints(sizes: SizeEnv, value: Any) -> Any:
    """Arguments and specs with the sizes of the traced call."""

    def known(leaf: Any) -> Any:
        if isinstance(leaf, TensorSpec):
            return at_hints(sizes, leaf)
        if isinstance(leaf, sympy.Basic):
            return sizes.hint(leaf)
        return leaf.kind if isinstance(leaf, ScalarSpec) else leaf

    return tree_map(known, value)


def _operand(spec: Any, device: torch.device) -> Any:
    if isinstance(spec, tuple):
        return [_operand(part, device) for part in spec]
    if isinstance(spec, TensorSpec):
        return filled(spec, 0) if device is CPU else fake_tensor(spec, device)
    return SAMPLES.get(spec)


def _given(value: Any, operands: list[Any], device: torch.device) -> Any:
    """Arguments with operands in their places, on another device."""
    return tree_map(lambda leaf: operands[leaf.number] if isinstance(leaf, _Operand) else
                    device if isinstance(leaf, torch.device) else leaf, value)


__all__ = ["Saves", "saved_by"]
