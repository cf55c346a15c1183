"""Numbers that the graph computes: `.item()` and its relatives, and Python arithmetic on the results."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from jitpy.ir import Node, Op, ScalarSpec
from jitpy.ir.ops.oracle import SAMPLES

from ....ir.algebra import sympy
from ..known_numbers import known_result, pinned_arguments, real_power
from ..known_tensors import known_number
from ..traced import GraphBuilder, TracedScalar, TracedTensor, Uncapturable

_aten = torch.ops.aten
_Base = torch._C.TensorBase

_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.neg,
    operator.pos, operator.abs, operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge,
    operator.and_, operator.or_, operator.xor, operator.invert, operator.not_, operator.lshift, operator.rshift,
    operator.pow, float, int, bool, complex, abs, min, max, round,
    math.sqrt, math.exp, math.log, math.log2, math.log10, math.log1p, math.expm1, math.sin, math.cos, math.tan,
    math.tanh, math.atan, math.atan2, math.hypot, math.floor, math.ceil, math.pow, math.fabs, math.isnan, math.isinf,
    math.isfinite,
)


def _op_name(function: Callable[..., Any]) -> str:
    return f"py.{'math.' if function.__module__ == 'math' else ''}{function.__name__.strip('_')}"


#: The operations that a question about a flag may be made of; see `Op.is_question`.
_QUESTIONS = frozenset({bool, int, float, operator.mod, operator.not_, operator.eq, operator.ne, operator.lt,
                        operator.le, operator.gt, operator.ge})
_OPS: dict[Any, Op] = {fn: Op(_op_name(fn), fn, kind="host", is_question=fn in _QUESTIONS) for fn in _FUNCTIONS}


REAL_POWER = Op("py.real_pow", real_power, kind="host")


def record_scalar_op(builder: GraphBuilder, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """See `GraphBuilder.scalar_op`. Where a function cannot be part of the graph (the type of its result depends on the
    numbers, it raises), known numbers are taken at their values and the result is a plain number; otherwise
    Uncapturable."""
    hint = builder.sizes.hint
    try:
        known = known_result(function, args, hint)
        return TracedScalar(_scalar_node(builder, function, args), known)
    except (Uncapturable, ArithmeticError, ValueError, TypeError):
        if not all(_is_known(arg) for arg in args):
            raise
    name = getattr(function, "__name__", str(function))
    what = f"{name}() of a number, {builder.loc}"
    numbers = [builder.sizes.specialize(a, what) if isinstance(a, sympy.Basic) else a for a in args]
    numbers = pinned_arguments(builder, numbers, what) or numbers
    try:
        return function(*numbers)
    except Exception as error:
        raise Uncapturable("exception", f"{name}: {error}") from error


def _is_known(arg: Any) -> bool:
    return arg.known is not None if type(arg) is TracedScalar else type(arg) in SAMPLES or isinstance(arg, sympy.Basic)


def _scalar_node(builder: GraphBuilder, function: Callable[..., Any], args: tuple[Any, ...]) -> Node:
    op = _OPS.get(function)
    name = getattr(function, "__name__", str(function))
    if op is None:
        raise Uncapturable("unsupported_call", f"{name} of a number that the graph computes")
    samples = []
    for arg in args:
        if isinstance(arg, TracedScalar):
            samples.append(SAMPLES[arg.kind])
        elif type(arg) in SAMPLES:
            samples.append(arg)
        elif isinstance(arg, sympy.Basic):
            samples.append(SAMPLES[int])
        else:
            raise Uncapturable(
                "unsupported_call", f"{name} of a number that the graph computes and a {type(arg).__name__}"
            )
    kinds = {type(s) for s in samples}
    if function is operator.pow and not _real_power(args) and kinds <= {int, float} and float in kinds:
        op = REAL_POWER
    elif function is operator.pow and not _real_power(args) or function in (min, max) and len(kinds) > 1:
        raise Uncapturable("unsupported_call", f"the type of {name}'s result depends on the numbers")
    try:
        kind = type(function(*samples))
    except (TypeError, ZeroDivisionError, ValueError) as error:
        raise Uncapturable("exception", str(error)) from error
    return builder.graph.add(
        op, builder.to_node(args), {}, ScalarSpec(kind), builder.loc, grad_enabled=builder.state.grad_enabled
    )


def _real_power(args: tuple[Any, ...]) -> bool:
    """A power whose type does not depend on the numbers: a non-negative int as exponent (the type is the base's), or a
    positive float as base (it is a float)."""
    if len(args) != 2:
        return False
    base, exponent = args
    return type(exponent) is int and exponent >= 0 or type(base) is float and base > 0


def kind_of(dtype: torch.dtype) -> type:
    """The Python type of an element."""
    if dtype is torch.bool:
        return bool
    if dtype.is_floating_point:
        return float
    return complex if dtype.is_complex else int


def item(builder: GraphBuilder, self: TracedTensor) -> Any:
    """`self.item()`: a number that the graph computes, or one that is known already."""
    if not builder.sizes.equal(self.spec.numel, 1, "item()"):
        raise Uncapturable("exception", f"item() of {builder.sizes.hint(self.spec.numel)} elements")
    node = builder.node(self)
    known = known_number(builder.sizes, node)
    if known is not None:
        return known
    if self.dtype is torch.uint64:
        raise Uncapturable("unsupported_value", "a number of a uint64 tensor: kernels take those of int64")
    found = builder.items.get(node)
    if found is None:
        found = builder.record(_aten.item.default, (self,), {}, ScalarSpec(kind_of(self.dtype)))
        builder.put(builder.items, node, found)
    return found


def _number(kind: type) -> Callable[..., Any]:
    def handler(builder: GraphBuilder, self: TracedTensor) -> Any:
        if not builder.sizes.equal(self.spec.numel, 1, f"{kind.__name__}()"):
            raise Uncapturable("exception", f"{kind.__name__}() of a tensor of several elements")
        found = item(builder, self)
        if type(found) in SAMPLES:
            try:
                return kind(found)
            except (TypeError, ValueError, OverflowError) as error:
                raise Uncapturable("exception", f"{kind.__name__}(): {error}") from None
        is_kind = kind is (found.kind if type(found) is TracedScalar else int)
        return found if is_kind else record_scalar_op(builder, kind, (found,))

    return handler


def _truth(builder: GraphBuilder, self: TracedTensor) -> Any:
    return _number(bool)(builder, self)


def _as_index(builder: GraphBuilder, self: TracedTensor) -> Any:
    dtype = self.dtype
    if dtype.is_floating_point or dtype.is_complex or not builder.sizes.equal(self.spec.numel, 1, "an index"):
        raise Uncapturable("exception", "an index that is no integer tensor of a single element")
    return _number(int)(builder, self)


#: Elements of a tensor that `tolist()` makes numbers of.
_LIST_LIMIT = 1024


def _tolist(builder: GraphBuilder, self: TracedTensor) -> Any:
    if builder.state.transforms:
        raise Uncapturable("transform", "tolist() in a function that is transformed")
    shape = self.shape
    if not all(type(s) is int for s in shape):
        raise Uncapturable("dynamic_shape", "tolist() of a tensor with symbolic sizes")
    if self.spec.numel > _LIST_LIMIT:
        raise Uncapturable("unsupported_call", f"tolist() of {self.spec.numel} elements")
    if not shape:
        return item(builder, self)
    return [_tolist(builder, builder.record(_aten.select.int, (self, 0, i), {})) for i in range(shape[0])]


def _is_nonzero(builder: GraphBuilder, input: TracedTensor) -> Any:
    return _truth(builder, input)


scalar_methods: dict[Any, Callable[..., Any]] = {
    _Base.item: item,
    _Base.__float__: _number(float),
    _Base.__int__: _number(int),
    _Base.__complex__: _number(complex),
    _Base.__bool__: _truth,
    _Base.__index__: _as_index,
    _Base.tolist: _tolist,
    _Base.is_nonzero: _is_nonzero,
    torch.is_nonzero: _is_nonzero,
}
for _name, _fn in (("__long__", _number(int)), ("__nonzero__", _truth)):
    if hasattr(_Base, _name):
        scalar_methods[getattr(_Base, _name)] = _fn
