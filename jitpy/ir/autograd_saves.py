"""What eager's autograd keeps of an op: found by running the op on meta tensors and watching what it saves
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
from .ops.quiet import without_compiler_import
from .ops.table import get, normalize
from .sizes import SizeEnv
from .spec import ScalarSpec, Spec, TensorSpec

#: numbers that stand for those that are known at run time only
_SAMPLES = {int: 3, float: 1.5, bool: True, complex: 1.5 + 0.5j}


@dataclass(frozen=True, slots=True)
class Saves:
    """What autograd keeps of a node.

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


_FOUND: dict[Any, Saves | None] = {}
_MOST = 4096
#: elements that a call may have which is tried on a CPU
_FEW = 1 << 16


def saved_by(sizes: SizeEnv, node: Node) -> Saves | None:
    """What autograd keeps for a node's backward pass; None where the op does not run on these."""
    sources = list(dict.fromkeys(node.input_nodes()))
    key: Any = (
        node.op.name,
        tuple(_spec_key(sizes, source.spec) for source in sources),
        _key(sizes, (node.args, sorted(node.kwargs.items())), sources),
    )
    if not isinstance(node.op.target, torch._ops.OpOverload):
        return _ask(sizes, node, sources)  # it may be another function by the same name
    if key not in _FOUND:
        if len(_FOUND) >= _MOST:
            _FOUND.clear()
        _FOUND[key] = _ask(sizes, node, sources)
    return _FOUND[key]


def _ask(sizes: SizeEnv, node: Node, sources: list[Node], device: str = "meta") -> Saves | None:
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(tensor.untyped_storage()._cdata, len(kept))
        return tensor

    def is_kept(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.untyped_storage()._cdata in kept

    try:
        stand_ins = {source: _stand_in(sizes, source.spec, device) for source in sources}
        target, *arguments = _call_behind(sizes, node)
        args, kwargs = (_plain(sizes, map_nodes(value, stand_ins.__getitem__), device) for value in arguments)
        with (
            without_compiler_import(),
            torch.enable_grad(),
            torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
            _Shapes() if device == "meta" else contextlib.nullcontext(),  # type: ignore[no-untyped-call]
        ):
            result = target(*args, **kwargs)
            results = result if isinstance(result, (tuple, list)) else (result,)
            anything = bool(kept) or _has_number((*args, *kwargs.values())) and _runs_once(results, stand_ins.values())
    except Exception:
        # sizes of results that depend on values
        specs = [source.spec for source in sources if isinstance(source.spec, TensorSpec)]
        if device == "meta" and all(spec.device.type == "cpu" for spec in specs) and \
                sum(sizes.hint(spec.numel) for spec in specs) <= _FEW:
            return _ask(sizes, node, sources, "cpu")
        return None
    return Saves(
        tuple(sorted((i for i, source in enumerate(sources) if is_kept(stand_ins[source])),
                     key=lambda i: kept[stand_ins[sources[i]].untyped_storage()._cdata])),
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
    if isinstance(value, torch.Tensor):
        return TensorSpec(value.dtype, tuple(value.shape), value.stride(), value.device)
    if isinstance(value, (tuple, list)):
        return type(value)(map(_specs_of, value))
    if isinstance(value, dict):
        return {key: _specs_of(part) for key, part in value.items()}
    return value


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
    """What eager calls: for attention the kernel that it picks by the device, which meta tensors do not tell."""
    if node.op.name == "aten.scaled_dot_product_attention.default":
        args, kwargs = normalize(node.op, node.args, node.kwargs)
        kernel = attention_kernel(sizes, *args, **kwargs)
        if kernel is not None:
            return get(kernel[0]).target, *kernel[1:]
    return node.op.target, node.args, node.kwargs


def _stand_in(sizes: SizeEnv, spec: Spec, device: str) -> Any:
    if isinstance(spec, tuple):
        return [_stand_in(sizes, part, device) for part in spec]
    if isinstance(spec, ScalarSpec):
        return _SAMPLES[spec.kind]
    if not isinstance(spec, TensorSpec):
        return None
    tensor = torch.empty_strided(sizes.hints(spec.shape), sizes.hints(spec.stride), dtype=spec.dtype, device=device)
    if device != "meta":
        tensor.untyped_storage().fill_(0)  # type: ignore[attr-defined]
    return tensor.requires_grad_(spec.requires_grad)


def _plain(sizes: SizeEnv, value: Any, device: str) -> Any:
    """Sizes as ints, and another device."""
    if isinstance(value, sympy.Basic):
        return sizes.hint(value)
    if isinstance(value, torch.device):
        return torch.device(device)
    if isinstance(value, (tuple, list)):
        return type(value)(_plain(sizes, part, device) for part in value)
    if isinstance(value, dict):
        return {key: _plain(sizes, part, device) for key, part in value.items()}
    return value


def _spec_key(sizes: SizeEnv, spec: Spec) -> Any:
    if isinstance(spec, tuple):
        return tuple(_spec_key(sizes, part) for part in spec)
    if not isinstance(spec, TensorSpec):
        return spec.kind if isinstance(spec, ScalarSpec) else None
    return (spec.dtype, tuple(sizes.hints(spec.shape)), tuple(sizes.hints(spec.stride)), spec.requires_grad,
            spec.device.type)


def _key(sizes: SizeEnv, value: Any, sources: list[Node]) -> Any:
    """Arguments as something to look up by: nodes by their numbers."""
    if isinstance(value, Node):
        return "node", sources.index(value)
    if isinstance(value, (tuple, list)):
        return type(value), *(_key(sizes, part, sources) for part in value)
    if isinstance(value, sympy.Basic):
        return sizes.hint(value)
    if isinstance(value, slice):
        return "slice", *(_key(sizes, part, sources) for part in (value.start, value.stop, value.step))
    return type(value), repr(value)


__all__ = ["Saves", "saved_by"]
