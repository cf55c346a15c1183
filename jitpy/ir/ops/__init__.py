"""The op table: one definition per op, everything else derived from torch.

op = get("aten.add.Tensor")                       # or get(torch.ops.aten.add.Tensor)
spec = infer(op, env, (x, 2), {})                 # x a Node or a Spec
aliasing(op, env, (x, shape), {})                 # 'view', 'copy' or 'self'
"""

from __future__ import annotations

from typing import Any

from ..graph import Node
from ..op import NotCovered, Op
from ..sizes import SizeEnv, simplify
from ..spec import Spec, TensorSpec
from . import (  # noqa: F401
    activations,
    backward,
    casts,
    convolutions,
    data_sizes,
    factories,
    facts,
    fourier,
    indexing,
    matmul,
    nn,
    norm_backward,
    parts,
    philox,
    pointwise,
    random_state,
    recurrent,
    reductions,
    reshapes,
    resize,
    strided,
    terms,
    views,
)
from .derived import derive, makes_new_memory
from .functional import functional_of
from .pointwise import operand_dtypes
from .promotion import is_differentiable
from .table import Invalid, define, defined_names, get, normalize

__all__ = [
    "aliasing",
    "define",
    "defined_names",
    "functional_of",
    "get",
    "infer",
    "normalize",
    "operand_dtypes",
]


def infer(
    op: Op,
    env: SizeEnv,
    args: tuple[Any, ...] | list[Any],
    kwargs: dict[str, Any] | None = None,
    grad_enabled: bool = True,
) -> Spec:
    """The spec of `op(*args, **kwargs)`: shape, strides, dtype, device, and whether eager's result requires grad.

    `args` hold Nodes or Specs where tensors go, Python constants, and sizes (int or sympy). The hand-written rule
    answers if there is one, else the op itself, run on meta tensors. Raises what eager would raise for these
    arguments, and `NotCovered` where the result cannot be known before the op runs (its size depends on data).
    """
    specs, kwspecs = _specs(op, args, kwargs)
    rule = op.infer
    suspicious = False
    if rule is not None:
        try:
            result = tidy(rule(env, *specs, **kwspecs))
        except NotCovered as reason:
            suspicious = isinstance(reason, Invalid)
        else:
            if grad_enabled and (_requires_grad(specs) or kwspecs and _requires_grad(kwspecs.values())):
                differentiable = op.differentiable
                if differentiable is True:
                    return _with_grad(result)
                if differentiable:
                    return tuple(_with_grad(r) if d else r for r, d in zip(result, differentiable, strict=True))  # type: ignore[arg-type]
            return result
    return derive(op, env, tuple(specs), kwspecs, grad_enabled, suspicious).spec


def aliasing(op: Op, env: SizeEnv, args: tuple[Any, ...] | list[Any], kwargs: dict[str, Any] | None = None) -> str:
    """The relation of the op's result to its inputs: 'self' (the very input), 'view' (shares its memory) or 'copy'."""
    rule = op.aliasing
    if rule is None and op.infer is not None:
        return "view" if op.is_view else "copy"
    if rule is None and makes_new_memory(op.target):
        return "copy"
    specs, kwspecs = _specs(op, args, kwargs)
    if rule is not None:
        try:
            return rule(env, *specs, **kwspecs)
        except NotCovered:
            pass
    return derive(op, env, tuple(specs), kwspecs).aliasing


def _specs(op: Op, args: Any, kwargs: dict[str, Any] | None) -> tuple[list[Any], dict[str, Any]]:
    if not kwargs:
        return to_specs(args), {}
    args, kwargs = normalize(op, args, kwargs)
    return to_specs(args), {k: to_spec(v) for k, v in kwargs.items()}


def to_specs(values: Any) -> list[Any]:
    """The arguments with every Node replaced by its spec."""
    result = []
    for value in values:
        kind = type(value)
        if kind is Node:
            value = value.spec
        elif kind is tuple or kind is list:
            value = to_spec(value)
        result.append(value)
    return result


def to_spec(value: Any) -> Any:
    """As `to_specs`, for one argument."""
    kind = type(value)
    if kind is Node:
        return value.spec
    if (kind is tuple or kind is list) and value:
        return kind(to_specs(value))
    return value


def _requires_grad(specs: Any) -> bool:
    for spec in specs:
        kind = type(spec)
        if kind is TensorSpec:
            if spec.requires_grad:
                return True
        elif (kind is tuple or kind is list) and _requires_grad(spec):
            return True
    return False


def tidy(spec: Spec) -> Spec:
    """The same with every size an int that is one (`s0 - (s0 - 1)` is sympy's 1)."""
    if type(spec) is TensorSpec:
        for size in (*spec.shape, *spec.stride, spec.offset):
            if not isinstance(size, int) and size.is_Integer:
                shape, stride = tuple(map(simplify, spec.shape)), tuple(map(simplify, spec.stride))
                return spec.with_(shape=shape, stride=stride, offset=simplify(spec.offset))
        return spec
    return tuple(map(tidy, spec)) if type(spec) is tuple else spec


def _with_grad(spec: Spec) -> Spec:
    if type(spec) is TensorSpec:
        if spec.requires_grad or not is_differentiable(spec.dtype):
            return spec
        return TensorSpec(spec.dtype, spec.shape, spec.stride, spec.device, True, spec.offset)
    if type(spec) is tuple:
        return tuple(_with_grad(s) for s in spec)
    return spec
