"""Scalar expressions and index expressions as C++ text."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ...ir.spec import Dim
from ...schedule.expr import Expr
from ...schedule.index import Axis, Index, Remainder, of
from ...schedule.values import Value
from ..kernel_writer import OPERATORS, sum_of
from .halves import SMALL
from .prelude import TYPES

_SIMPLE = {
    **{op: f"{{0}} {sign} {{1}}" for op, sign in OPERATORS.items()},
    "truediv": "{0} / {1}",
    "truncdiv": "{0} / {1}",
    "neg": "-{0}",
    "where": "{0} ? {1} : {2}",
    "behind": "{0}",
    "logical_not": "!{0}",
    "bitwise_not": "~{0}",
    "isnan": "{0} != {0}",
    "maximum": "pick_max<{T}>({0}, {1})",
    "minimum": "pick_min<{T}>({0}, {1})",
    "reciprocal": "1 / {0}",
    "sign": "({T})(({0} > 0) - ({0} < 0))",
}
_INTEGER = {
    "abs": "{0} < 0 ? -{0} : {0}",
    "fmod": "{0} % {1}",
    "floordiv": "floor_div(({T}){0}, ({T}){1})",
    "mod": "floor_mod(({T}){0}, ({T}){1})",
    "relu": "{0} > 0 ? {0} : 0",
}
_FLOAT = {
    "isinf": "__builtin_fabs{f}({0}) == __builtin_inf{f}()",
    "isfinite": "__builtin_fabs{f}({0}) < __builtin_inf{f}()",
    "abs": "__builtin_fabs{f}({0})",
    "sqrt": "__builtin_sqrt{f}({0})",
    "rsqrt": "1 / __builtin_sqrt{f}({0})",
    "floor": "__builtin_floor{f}({0})",
    "ceil": "__builtin_ceil{f}({0})",
    "trunc": "__builtin_trunc{f}({0})",
    "round": "__builtin_rint{f}({0})",
    "fmod": "fmod_f{bits}({0}, {1})",
    "floordiv": "floor_div_f{bits}({0}, {1})",
    "mod": "floor_mod_f{bits}({0}, {1})",
    "copysign": "__builtin_copysign{f}({0}, {1})",
    "fmax": "({0} >= {1}) | ({1} != {1}) ? {0} : {1}",
    "fmin": "({0} <= {1}) | ({1} != {1}) ? {0} : {1}",
    "signbit": "__builtin_bit_cast(int{bits}_t, {0}) < 0",
    "sigmoid": "1 / (1 + exp(-{0}))",
}
#: float32 functions with a definition of their own.
_FLOAT32 = {"exp": "exp_f32({0})", "log": "log_f32({0})", "erf": "erf_f32({0})", "sigmoid": "1 / (1 + exp_f32(-{0}))"}


def literal(value: Any, dtype: torch.dtype) -> str:
    """A constant as text whose C++ type is that of the dtype: templates deduce theirs from it."""
    if dtype is torch.bool:
        return "true" if value else "false"
    if dtype.is_floating_point:
        suffix = "f" if dtype is torch.float32 else ""
        if math.isnan(value):
            return f'__builtin_nan{suffix}("")'
        if math.isinf(value):
            return f"{'-' if value < 0 else ''}__builtin_inf{suffix}()"
        text = f"{value:.9g}" if suffix else repr(float(value))
        text = text if any(c in text for c in ".e") else text + ".0"
        return f"({text}{suffix})" if text[0] == "-" else text + suffix
    if dtype is torch.int64:
        return f"INT64_C({value})" if value > -(2**63) else "INT64_MIN"
    text = f"({value})" if value < 0 else str(value)
    return text if dtype is torch.int32 else f"({TYPES[dtype]}){text}"


def _is_number(expr: Expr) -> bool:
    """Whether the value is known, and no NaN."""
    return expr.op == "const" and expr.attr == expr.attr


class ExprPrinter:
    """Prints the expressions of one kernel. `size` gives the text of a size, `load` that of a memory access.

    Choices among floats are printed without a branch. Of `relu(x) > 0` GCC would make two ways, as it knows the answer
    on one of them, and no vectors. Nor does it of choices whose condition is one for all lanes of the `vector` axis.
    """

    def __init__(
        self, size: Callable[[Dim], str], load: Callable[[Any, str], str], vector: Axis | None = None
    ) -> None:
        self.size = size
        self.load = load
        self.vector = vector
        #: names of quotients that are known to stay the same where the text stands, by index and divisor
        self.quotients: dict[tuple[Index, Dim], str] = {}

    def ref(self, expr: Expr, names: dict[Expr, str]) -> str:
        """How a computed expression is mentioned."""
        if expr.op == "const":
            return literal(expr.attr, expr.dtype)
        return names[expr]

    def index(self, index: Index, names: dict[Expr, str]) -> str:
        """An index expression."""
        return sum_of(((self._atom(atom, names), step) for atom, step in index.terms), index.const, self.size)

    def _atom(self, atom: Any, names: dict[Expr, str]) -> str:
        if isinstance(atom, Axis):
            return atom.name
        if isinstance(atom, Expr):
            text = self.ref(atom, names)
            return text if atom.dtype is torch.int64 else f"(int64_t){text}"
        inner, divisor = self.index(atom.index, names), self.size(atom.divisor)
        quotient = self.quotients.get((atom.index, atom.divisor))
        if quotient is not None:
            return f"({inner} - {quotient} * {divisor})" if isinstance(atom, Remainder) else quotient
        return f"(({inner}) {'%' if isinstance(atom, Remainder) else '/'} {divisor})"

    def value(self, expr: Expr, names: dict[Expr, str]) -> str:
        """The text that computes `expr` from its operands."""
        op = expr.op
        if op == "load":
            return self._load(expr, names)
        if op == "index":
            return self.index(expr.attr, names)
        if op == "size":
            return self.size(expr.attr)
        args = [self.ref(a, names) for a in expr.args]
        if op == "cast":
            return cast_text(args[0], expr.args[0].dtype, expr.dtype)
        if op == "round_to":
            return f"round_{SMALL[expr.attr]}({args[0]})"
        if op == "check":
            if len(args) == 3:
                return f"{args[2]} ? {args[0]} : 0"
            return args[0]
        if op == "where" and (self._is_for_all_lanes(expr) or expr.dtype.is_floating_point):
            return args[1] if _is_the_load(expr) else _choice(expr.dtype, *args)
        kind = expr.args[0].dtype if op != "where" else expr.dtype
        if op in ("maximum", "minimum") and kind.is_floating_point and _is_number(expr.args[1]):
            # keeps a NaN of the first operand
            return _choice(kind, f"{args[1]} {'>' if op == 'maximum' else '<'} {args[0]}", args[1], args[0])
        suffix = "f" if kind is torch.float32 else ""
        pattern = (
            suffix and _FLOAT32.get(op) or _SIMPLE.get(op) or (_FLOAT if kind.is_floating_point else _INTEGER).get(op)
        )
        if op in ("shift_left",) and pattern and kind.is_signed:
            return f"({TYPES[kind]})((u{TYPES[kind]}){args[0]} << {args[1]})"
        if pattern is not None:
            return pattern.format(*args, f=suffix, T=TYPES[kind], bits=8 * kind.itemsize)
        return f"{op}{suffix}({', '.join(args)})"

    def _load(self, expr: Expr, names: dict[Expr, str]) -> str:
        value, index = expr.attr
        if not expr.args:
            return self.load(value, self.index(index, names))
        condition = self.ref(expr.args[0], names)
        if index.within(_extent(value)):
            text = self.load(value, self.index(index, names))
            return f"{condition} & {text}" if expr.dtype is torch.bool else _choice(expr.dtype, condition, text, "0")
        place = self._of_lane(expr)
        if place is None:
            return f"{condition} ? {self.load(value, self.index(index, names))} : 0"
        shared = f"(-(int64_t){condition} & ({self.index(index - place, names)}))"
        text = self.load(value, f"{shared} + {self.index(place, names)}")
        return _choice(expr.dtype, condition, text, "0")

    def _is_for_all_lanes(self, expr: Expr) -> bool:
        """Whether the condition of a choice does not depend on the lane, while what is chosen does."""
        if expr.dtype is torch.bool or self.vector not in expr.axes:
            return False
        return expr.args[0].op != "const" and self.vector not in expr.args[0].axes

    def _of_lane(self, expr: Expr) -> Index | None:
        """The part of a place in memory that depends on the lane, if that alone is a place of the value too."""
        if self.vector is None or not self._is_for_all_lanes(expr):
            return None
        value, index = expr.attr
        step = index.coefficient(self.vector)
        if step is None:
            return None
        place = of(self.vector) * step
        return place if place.within(_extent(value)) else None


def _extent(value: Value) -> Dim:
    """How many places there are from the first element of a value to its last."""
    return 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride, strict=True))


def _is_the_load(expr: Expr) -> bool:
    """Whether a choice is between what its condition lets a load take, and the 0 that this gives otherwise."""
    condition, chosen, other = expr.args
    return (chosen.op == "load" and chosen.args == (condition,)
            and other.op == "const" and other.attr == 0 and math.copysign(1, other.attr) == 1)


def _choice(dtype: torch.dtype, condition: str, chosen: str, other: str) -> str:
    """`condition ? chosen : other` in bits."""
    return f"choose<{TYPES[dtype]}, int{8 * dtype.itemsize}_t>({condition}, {chosen}, {other})"


def cast_text(text: str, source: torch.dtype, target: torch.dtype) -> str:
    """A conversion as eager does it on this kind of machine."""
    if source is torch.bool and target.is_floating_point:  # of which GCC makes vectors, beside operands of all widths
        return _choice(target, text, literal(1.0, target), literal(0.0, target))
    if source.is_floating_point and target in (torch.int8, torch.int16):
        return f"({TYPES[target]})whole<int32_t>({text})"
    if source.is_floating_point and target is torch.uint8:
        return f"(uint8_t)whole<int64_t>({text})"
    if source.is_floating_point and target in (torch.int32, torch.int64):
        return f"whole<{TYPES[target]}>({text})"
    return f"({TYPES[target]}){text}"


__all__ = ["ExprPrinter", "cast_text", "literal"]
