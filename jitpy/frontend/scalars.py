"""Python arithmetic on numbers that the graph computes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jitpy.ir import Op, ScalarSpec

from .traced import TracedScalar, Uncapturable

if TYPE_CHECKING:
    from .recorder import Recorder

#: Functions whose result type on ints, floats and bools is that of a sample.
_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.neg,
    operator.pos, operator.abs, operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge,
    operator.and_, operator.or_, operator.xor, operator.invert, operator.not_, operator.lshift, operator.rshift,
    operator.pow, float, int, bool, abs, min, max, round, divmod,
)

_OPS: dict[Any, Op] = {
    fn: Op(f"py.{fn.__name__.strip('_')}", fn, kind="host") for fn in _FUNCTIONS if fn is not divmod}

#: Sample values: no zero, so that division works.
_SAMPLES = {int: 3, float: 1.5, bool: True, complex: 1.5 + 0.5j}


def record_scalar_op(recorder: Recorder, function: Callable[..., Any], args: tuple[Any, ...]) -> TracedScalar:
    """See `Recorder.scalar_op`. Uncapturable for functions whose result type depends on values."""
    op = _OPS.get(function)
    if op is None:
        raise Uncapturable("unsupported_call", f"{getattr(function, '__name__', function)} of a number that the graph computes")
    samples = []
    for arg in args:
        if isinstance(arg, TracedScalar):
            samples.append(_SAMPLES[arg.kind])
        elif type(arg) in _SAMPLES:
            samples.append(arg)
        else:
            raise Uncapturable("unsupported_call", f"arithmetic of a number that the graph computes and a {type(arg).__name__}")
    kinds = {type(s) for s in samples}
    if function is operator.pow and kinds - {float} or function in (min, max) and len(kinds) > 1:
        raise Uncapturable("unsupported_call", "the type of the result depends on the numbers")
    try:
        kind = type(function(*samples))
    except TypeError as error:
        raise Uncapturable("exception", str(error)) from error
    node = recorder.graph.add(op, recorder.to_node(args), {}, ScalarSpec(kind), recorder.loc,
                              grad_enabled=recorder.state.grad_enabled)
    return TracedScalar(node)
