"""Scalar expressions as Triton text.

Triton promotes Python numbers to the other operand's type in arithmetic and comparisons, but not in `tl.where` and in
calls: there constants are written with their type.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import torch

from ...ir.op import NotCovered
from ...schedule.expr import FLOAT8, Expr
from ..kernel_writer import OPERATORS

#: Triton's names of dtypes.
TYPES = {
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.int8: "tl.int8",
    torch.int16: "tl.int16",
    torch.int32: "tl.int32",
    torch.int64: "tl.int64",
    torch.uint8: "tl.uint8",
    torch.bool: "tl.int1",
    torch.float8_e4m3fn: "tl.float8e4nv",
    torch.float8_e5m2: "tl.float8e5",
}
#: The types of a kernel's parameters.
SIGNATURE = {dtype: name[3:].replace("bfloat", "bf").replace("float", "fp").replace("uint", "u").replace("int", "i")
             for dtype, name in TYPES.items()}

#: Functions by their name in CUDA's math library: what eager's kernels call.
_LIBRARY = {
    name: name
    for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
        "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma", "cbrt", "atan2", "hypot", "pow",
        "fmod", "copysign", "trunc",
    )
} | {"round": "rint"}  # fmt: skip
_PROPAGATE = "propagate_nan=tl.PropagateNan.ALL"


def closed(text: str) -> str:
    """The text in brackets, unless it is a name, a number or a call, which need none as an operand."""
    if re.fullmatch(r"[\w.]+", text):
        return text
    if not re.match(r"[\w.]+\(", text) or not text.endswith(")"):
        return f"({text})"
    depth = 0
    for k, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0 and char == ")" and k + 1 < len(text) and text[k + 1] != ".":
            return f"({text})"
        if depth == 0 and char == " ":
            return f"({text})"
    return text


def literal(value: Any, dtype: torch.dtype) -> str:
    """A constant as a Python number."""
    if dtype is torch.bool:
        return "True" if value else "False"
    if dtype.is_floating_point:
        value = float(value)
        if math.isnan(value):
            return 'float("nan")'
        if math.isinf(value):
            return 'float("inf")' if value > 0 else 'float("-inf")'
    return repr(value)


def typed(value: Any, dtype: torch.dtype) -> str:
    """A constant of a Triton type, as an argument."""
    if dtype is torch.float32 and (value == 0 or not math.isfinite(value) or 1.2e-38 <= abs(value) <= 3.4e38):
        return literal(value, dtype)  # Triton's own choice
    if dtype is torch.int32 or dtype is torch.bool:
        return literal(value, dtype)
    return tensor(value, dtype)


def tensor(value: Any, dtype: torch.dtype) -> str:
    """A constant as a tensor of a Triton type."""
    return f"tl.full([], {literal(value, dtype)}, {TYPES[dtype]})"


class ExprPrinter:
    """The text of one operation, its operands being named already.

    ref     how an expression that is no constant is mentioned
    short   whether all that matters are floats of 16 bits: functions then need to be right to some 20 bits only, and
            their shortest form keeps kernels from being bound by arithmetic
    """

    def __init__(self, ref: Callable[[Expr], str], short: bool = False) -> None:
        self._ref = ref
        self.short = short

    def operand(self, expr: Expr) -> str:
        """An operand of an operator: Triton gives a number the other operand's type."""
        return closed(literal(expr.attr, expr.dtype) if expr.op == "const" else self._ref(expr))

    def argument(self, expr: Expr) -> str:
        """An argument of a call: its type must be right by itself."""
        return typed(expr.attr, expr.dtype) if expr.op == "const" else self._ref(expr)

    def tensor(self, expr: Expr) -> str:
        """An operand that is a tensor, for its methods."""
        return closed(tensor(expr.attr, expr.dtype) if expr.op == "const" else self._ref(expr))

    def value(self, expr: Expr) -> str:
        """The text that computes `expr`. Raises NotCovered for operations that Triton lacks."""
        op, args = expr.op, expr.args
        dtype = args[0].dtype
        constant = all(a.op == "const" for a in args)
        texts = [tensor(a.attr, a.dtype) if constant else self.operand(a) for a in args]
        if op == "cast":
            return cast(self.tensor(args[0]), args[0].dtype, expr.dtype)
        if op == "round_to":
            if expr.attr in FLOAT8:
                facts, beyond = torch.finfo(expr.attr), torch.tensor(1e9).to(expr.attr).item()
                numbers = round(-math.log2(facts.eps)), facts.tiny, facts.max, literal(beyond, expr.attr)
                return f"round_float8({self.argument(args[0])}, {', '.join(map(str, numbers))})"
            return f"{rounded(self.tensor(args[0]), expr.attr)}.to({TYPES[expr.dtype]})"
        if op == "behind":
            return self.tensor(args[0])
        if op == "where":
            return f"tl.where({self.argument(args[0])}, {self.argument(args[1])}, {self.argument(args[2])})"
        if op in ("lt", "le", "gt", "ge") and dtype is torch.bool:
            texts = [f"{self.tensor(a)}.to(tl.int32)" for a in args]
        if op in OPERATORS:
            return f"{texts[0]} {OPERATORS[op]} {texts[1]}"
        if op in ("maximum", "minimum"):
            nan = f", {_PROPAGATE}" if dtype.is_floating_point else ""
            return f"tl.{op}({self.argument(args[0])}, {self.argument(args[1])}{nan})"
        if op in ("fmax", "fmin"):
            return f"tl.{'maximum' if op == 'fmax' else 'minimum'}({self.argument(args[0])}, {self.argument(args[1])})"
        arguments, tables = [self.argument(a) for a in args], _tables(dtype)
        if self.short and dtype is torch.float32:
            if op == "truediv" and args[1].op == "const" and 1e-30 < abs(args[1].attr) < 1e30:
                return f"{texts[0]} * {closed(repr(1 / args[1].attr))}"
            if _is_swish(expr):
                return f"libdevice.fast_dividef({arguments[0]}, {arguments[1]})"
            tables = _SHORT, *tables
        template = next((table[op] for table in tables if op in table), None)
        if template is None or dtype not in TYPES:
            raise NotCovered(f"{op} of {dtype} has no Triton text")
        named = {f"x{k}": text for k, text in enumerate(texts)} | {f"t{k}": text for k, text in enumerate(arguments)}
        return template.format(**named, all=", ".join(arguments), type=TYPES[dtype], zero=typed(0, dtype),
                               closed=closed(texts[0]), bits=8 * dtype.itemsize)


def rounded(text: str, dtype: torch.dtype) -> str:
    """A float32 as a float of fewer bits. The GPU's own conversions to 8 bits never overflow."""
    if dtype in FLOAT8 and _overflows(dtype):
        return f"to_{TYPES[dtype][3:]}({text})"
    return f"{closed(text)}.to({TYPES[dtype]})"


@functools.cache
def _overflows(dtype: torch.dtype) -> bool:
    """Whether too large numbers become no numbers, as torch converts them: since 2.13 it depends on the dtype."""
    return not torch.tensor(1e9).to(dtype).float().isfinite()


def cast(text: str, source: torch.dtype, target: torch.dtype) -> str:
    """A conversion as eager's kernels do it."""
    text = closed(text)
    if source.is_floating_point and target in (torch.int8, torch.int16):
        return f"{text}.to(tl.int32).to({TYPES[target]})"
    if source.is_floating_point and target is torch.uint8:
        return f"{text}.to(tl.int64).to(tl.uint8)"
    return f"{text}.to({TYPES[target]})"


def _is_swish(expr: Expr) -> bool:
    """Whether it is x / (1 + exp(-x)): a divisor of at least 1, and too large only where the quotient is nothing."""
    if expr.op != "truediv" or expr.args[1].op != "add":
        return False
    x, (one, exp) = expr.args[0], expr.args[1].args
    if one.op != "const" or one.attr != 1 or exp.op != "exp":
        return False
    return exp.args[0].op == "neg" and exp.args[0].args[0] is x


#: texts of operations on float32 that is to be right to some 20 bits. `x0`, `x1` are operands of operators, `t0`, `t1`
#: and `all` are arguments of calls; `type` is the operands' type in Triton.
_SHORT = {
    "exp": "libdevice.fast_expf({t0})", "truediv": "{x0} / {x1}", "reciprocal": "1.0 / {x0}",
    "sigmoid": "libdevice.fast_dividef(1.0, 1.0 + libdevice.fast_expf({x0} * -1.0))",
    "erf": "erf_short({t0})", "tanh": "tanh_short({t0})",
}
_SIGN = "({x0} > 0).to({type}) - ({x0} < 0).to({type})"
#: the same for all floats, and those that differ for float32
_FLOAT = {
    **{op: f"libdevice.{name}({{all}})" for op, name in _LIBRARY.items()},
    "truediv": "{x0} / {x1}", "reciprocal": "1.0 / {x0}", "sigmoid": "1.0 / (1.0 + libdevice.exp({x0} * -1.0))",
    "sqrt": "tl.sqrt({t0})", "rsqrt": "libdevice.rsqrt({t0})",
    "neg": "{x0} * -1.0",  # Triton's `-x` is 0 - x, which is no -0.0
    "abs": "tl.abs({t0})", "floor": "tl.floor({t0})", "ceil": "tl.ceil({t0})", "isnan": "{x0} != {x0}",
    "isinf": 'tl.abs({t0}) == float("inf")', "isfinite": 'tl.abs({t0}) < float("inf")',
    "signbit": "{closed}.to(tl.int{bits}, bitcast=True) < 0", "sign": _SIGN,
    "mod": "floor_mod({t0}, {t1})", "floordiv": "floor_div({t0}, {t1})",
}
_FLOAT32 = {
    "truediv": "tl.div_rn({t0}, {t1})", "reciprocal": "tl.div_rn(1.0, {t0})",
    "sigmoid": "tl.div_rn(1.0, 1.0 + libdevice.exp({x0} * -1.0))", "sqrt": "tl.sqrt_rn({t0})",
    "floordiv": "floor_div_f32({t0}, {t1})",
}
#: the same for integers, those that differ where they have no sign, and for bytes
_INTEGER = {
    "neg": "-{x0}", "abs": "tl.abs({t0})", "bitwise_not": "~{x0}", "logical_not": "~{x0}", "sign": _SIGN,
    "floordiv": "floor_div_int({t0}, {t1})", "truncdiv": "{x0} // {x1}", "mod": "floor_mod_int({t0}, {t1})",
    "fmod": "{x0} % {x1}", "relu": "tl.maximum({t0}, {zero})",
    "float_of_bits": "{closed}.to(tl.float32, bitcast=True)",
}
_UNSIGNED = {"neg": "(0 - {x0}).to({type})", "floordiv": "{x0} // {x1}", "mod": "{x0} % {x1}"}
_BYTE = {"bitwise_not": "{x0} ^ 255"}


def _tables(dtype: torch.dtype) -> tuple[dict[str, str], ...]:
    """Where the text of an operation is found, the first ones first."""
    if dtype.is_floating_point:
        return (_FLOAT32, _FLOAT) if dtype is torch.float32 else (_FLOAT,)
    if dtype.is_signed:
        return (_INTEGER,)
    return (_BYTE, _UNSIGNED, _INTEGER) if dtype is torch.uint8 else (_UNSIGNED, _INTEGER)
