"""Scalar expressions: what a kernel computes for one element.

An `Expr` is an interned node of a DAG: equal expressions are the same object, so that common subexpressions cost
nothing. `dtype` is the type computed in: 16-bit floats are computed in float32 and only stored as 16 bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from ..ir.op import NotCovered
from ..ir.spec import Dim
from .index import Axis, Index

BOOL = torch.bool
INT = torch.int64
FLOAT = torch.float32
DOUBLE = torch.float64

#: Floats of 8 bits. Kernels of some devices convert and move them.
FLOAT8 = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})

#: Dtypes with native code, and the dtypes that they are computed in. Values of others (complex, quantised) stay with
#: eager.
COMPUTE_DTYPES = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.int8: torch.int8,
    torch.int16: torch.int16,
    torch.int32: torch.int32,
    torch.int64: torch.int64,
    torch.uint8: torch.uint8,
    torch.bool: torch.bool,
    **dict.fromkeys(FLOAT8, torch.float32),
}

#: Relative cost of an operation; 1 is an addition.
COST = {
    "truediv": 4,
    "sqrt": 4,
    "rsqrt": 6,
    "floordiv": 8,
    "mod": 10,
    "fmod": 20,
    "remainder": 20,
    "exp": 12,
    "log": 14,
    "sin": 14,
    "cos": 14,
    "tanh": 18,
    "erf": 18,
    "sigmoid": 16,
    "pow": 30,
    "drawn_below": 30,
    "drawn_uniform": 100,
    "drawn_normal": 130,
}
_FREE = ("const", "load", "index", "size", "reduced", "cast", "cell", "behind")
_MATH = {
    "exp2",
    "expm1",
    "log2",
    "log10",
    "log1p",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "erfc",
    "atan2",
    "hypot",
    "erfinv",
    "lgamma",
    "digamma",
    "cbrt",
}
COST.update(dict.fromkeys(_MATH, 30))


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that elements of `dtype` are computed in. Raises NotCovered for dtypes without native code."""
    found = COMPUTE_DTYPES.get(dtype)
    if found is None:
        raise NotCovered(f"computing in {dtype}")
    return found


class Expr:
    """One operation on scalars.

    op      'const' (attr: value), 'load' (attr: (buffer, Index); args: an optional condition), 'index' (attr: Index),
            'size' (attr: Dim), 'reduced' (attr: (Reduction, part)), or the name of a primitive
    axes    the loop axes that the value depends on
    cost    rough work of computing it once, operands included
    name    of the graph's node whose value it is, if any
    """

    __slots__ = ("op", "args", "dtype", "attr", "axes", "cost", "number", "name")

    def __init__(
        self, op: str, args: tuple[Expr, ...], dtype: torch.dtype, attr: Any, axes: frozenset[Axis], number: int
    ) -> None:
        self.op = op
        self.args = args
        self.dtype = dtype
        self.attr = attr
        self.axes = axes
        self.cost: int = min(100000, sum(a.cost for a in args) + (0 if op in _FREE else COST.get(op, 1)))
        self.number = number
        self.name = ""

    @property
    def order(self) -> tuple[int, int]:
        """Where it stands among the atoms of an `Index`."""
        return (2, self.number)

    def bounds(self) -> tuple[Dim, Dim] | None:
        return None

    def all_axes(self) -> frozenset[Axis]:
        return self.axes

    def __repr__(self) -> str:
        if self.op == "const":
            return repr(self.attr)
        inner = [repr(a) for a in self.args]
        if self.attr is not None:
            inner.append(repr(self.attr))
        return f"{self.op}({', '.join(inner)})"


def walk(roots: Iterable[Expr]) -> list[Expr]:
    """Every expression below `roots`, operands first, each once."""
    seen: set[Expr] = set()
    result: list[Expr] = []
    stack: list[tuple[Expr, bool]] = [(root, False) for root in reversed(list(roots))]
    while stack:
        expr, ready = stack.pop()
        if ready:
            result.append(expr)
            continue
        if expr in seen:
            continue
        seen.add(expr)
        stack.append((expr, True))
        for child in reversed(children(expr)):
            if child not in seen:
                stack.append((child, False))
    return result


def order(roots: list[Expr], available: dict[Expr, str]) -> list[Expr]:
    """The expressions that must be computed for `roots` beyond what is available, operands first. Constants need
    nothing."""
    seen: set[Expr] = set()
    result: list[Expr] = []
    stack: list[tuple[Expr, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        expr, ready = stack.pop()
        if ready:
            result.append(expr)
            continue
        if expr in seen or expr in available or expr.op == "const":
            continue
        seen.add(expr)
        stack.append((expr, True))
        stack.extend((child, False) for child in reversed(children(expr)))
    return result


def children(expr: Expr) -> list[Expr]:
    """The operands, those inside index expressions included."""
    found = list(expr.args)
    index = index_of(expr)
    if index is not None:
        found.extend(index_expressions(index))
    return found


def index_of(expr: Expr) -> Index | None:
    """The index expression that a load or an index value holds."""
    if expr.op == "load":
        return expr.attr[1]
    return expr.attr if expr.op == "index" else None


def index_expressions(index: Index) -> list[Expr]:
    """Scalar expressions that occur as atoms of an index."""
    found: list[Expr] = []
    for atom, _ in index.terms:
        if isinstance(atom, Expr):
            found.append(atom)
        elif not isinstance(atom, Axis):
            found.extend(index_expressions(atom.index))
    return found


_NO_AXES: frozenset[Axis] = frozenset()


class ScalarBuilder:
    """Makes expressions, one method per primitive; Python numbers take the other operand's dtype.

    Operands of one call have one dtype: callers cast. Comparisons return bool. Float semantics are eager's: NaN goes
    through maximum and minimum, nothing is reassociated; integers wrap, `floordiv` and `mod` round as Python does.
    """

    def __init__(self) -> None:
        self._table: dict[Any, Expr] = {}

    if TYPE_CHECKING:  # the operations in `_METHODS`
        def __getattr__(self, name: str) -> Any: ...

    def make(self, op: str, args: tuple[Expr, ...], dtype: torch.dtype, attr: Any = None) -> Expr:
        if attr.__class__ is float:
            key: Any = (op, args, dtype, attr.hex())  # -0.0 is not 0.0, and NaN is itself
        else:
            key = (op, args, dtype, attr.__class__, attr)
        found = self._table.get(key)
        if found is None:
            axes = _NO_AXES
            for arg in args:
                if arg.axes is not axes:
                    axes = axes | arg.axes if axes else arg.axes
            index = attr[1] if op == "load" else attr if op == "index" else None
            if index is not None:
                axes = axes.union(index.all_axes())
            found = self._table[key] = Expr(op, args, dtype, attr, axes, len(self._table))
        return found

    # leaves

    def const(self, value: Any, dtype: torch.dtype) -> Expr:
        if dtype.is_floating_point:
            value = float(value)
            if dtype is torch.float32 and math.isfinite(value):
                value = _to_float32(value)
        elif dtype is BOOL:
            value = bool(value)
        else:
            value = wrap_integer(int(value), dtype)
        return self.make("const", (), dtype, value)

    def index(self, index: Index) -> Expr:
        """The value of an index expression, as int64."""
        if not index.terms and type(index.const) is int:
            return self.const(index.const, INT)
        if not index.const and len(index.terms) == 1 and index.terms[0][1] == 1 and isinstance(index.terms[0][0], Expr):
            return index.terms[0][0]
        return self.make("index", (), INT, index)

    def size(self, size: Dim, dtype: torch.dtype = INT) -> Expr:
        """A size as a number."""
        if isinstance(size, (int, float)):
            return self.const(size, dtype)
        return self.cast(self.make("size", (), INT, size), dtype)

    def load(self, buffer: Any, index: Index, dtype: torch.dtype, mask: Expr | None = None) -> Expr:
        return self.make("load", () if mask is None else (mask,), dtype, (buffer, index))

    # conversions

    def cast(self, x: Expr, dtype: torch.dtype) -> Expr:
        """`static_cast` as eager has it; a float becomes a bool by `x != 0`."""
        if x.dtype is dtype:
            return x
        if x.op == "const" and (
            not isinstance(x.attr, float)
            or dtype.is_floating_point
            or dtype is BOOL
            or math.isfinite(x.attr)
            and abs(x.attr) < 2**31
        ):
            return self.const(x.attr, dtype)
        if dtype is BOOL:
            return self.ne(x, 0)
        return self.make("cast", (x,), dtype)

    def round_to(self, x: Expr, dtype: torch.dtype) -> Expr:
        """A float32 rounded to what `dtype` (of 16 or 8 bits) can hold; nothing to do for what was stored as such."""
        if x.op == "load" and x.attr[0].dtype is dtype or x.op == "round_to" and x.attr is dtype:
            return x
        if x.op == "const":
            return self.const(torch.tensor(x.attr, dtype=dtype).item(), x.dtype)
        return self.make("round_to", (x,), x.dtype, dtype)

    # primitives

    def _lift(self, args: tuple[Any, ...]) -> tuple[Expr, ...]:
        dtype = None
        for arg in args:
            if isinstance(arg, Expr):
                dtype = arg.dtype
                break
        assert dtype is not None, "a primitive needs an expression among its operands"
        return tuple(a if isinstance(a, Expr) else self.const(a, dtype) for a in args)

    def _prim(self, op: str, *args: Any) -> Expr:
        operands = self._lift(args)
        dtype = operands[0].dtype
        assert all(a.dtype is dtype for a in operands), f"{op} of {[a.dtype for a in operands]}"
        return self.make(op, operands, dtype)

    def _test(self, op: str, *args: Any) -> Expr:
        operands = self._lift(args)
        assert all(a.dtype is operands[0].dtype for a in operands), f"{op} of {[a.dtype for a in operands]}"
        return self.make(op, operands, BOOL)

    def add(self, a: Any, b: Any) -> Expr:
        a, b = self._lift((a, b))
        if a.dtype is BOOL:
            return self.logical_or(a, b)
        if not a.dtype.is_floating_point:  # x + 0.0 would turn -0.0 into 0.0
            if _is_const(a, 0):
                return b
            if _is_const(b, 0):
                return a
        return self._prim("add", a, b)

    def mul(self, a: Any, b: Any) -> Expr:
        a, b = self._lift((a, b))
        if a.dtype is BOOL:
            return self.logical_and(a, b)
        if _is_const(b, 1):
            return a
        if _is_const(a, 1):
            return b
        return self._prim("mul", a, b)

    def truediv(self, a: Any, b: Any) -> Expr:
        """Divided by a power of two: the product with its reciprocal, which is the same number."""
        a, b = self._lift((a, b))
        if b.op == "const" and math.frexp(b.attr)[0] in (0.5, -0.5) and 2.0**-100 < abs(b.attr) < 2.0**100:
            return self.mul(a, 1.0 / b.attr)
        return self._prim("truediv", a, b)

    def relu(self, x: Expr) -> Expr:
        return self.where(self.lt(x, 0), 0, x)  # keeps -0.0 and NaN

    def _divide(self, op: str, a: Any, b: Any) -> Expr:
        a, b = self._lift((a, b))
        if not a.dtype.is_floating_point and not (b.op == "const" and b.attr not in (0, -1)):
            raise NotCovered("integer division by what may be 0, which eager reports")
        return self._prim(op, a, b)

    def pow(self, a: Any, b: Any) -> Expr:
        """Integer powers by constants are products; eager keeps a constant exponent of a float32 in float64."""
        kept = b
        a, b = self._lift((a, b))
        if not a.dtype.is_floating_point:
            if b.op != "const" or not 0 <= b.attr <= 8:
                raise NotCovered("integer power")
            result = self.const(1, a.dtype)
            for _ in range(b.attr):
                result = self.mul(result, a)
            return result
        if a.dtype is FLOAT and isinstance(kept, float) and b.attr != kept:
            return self.cast(self._prim("pow", self.cast(a, DOUBLE), self.const(kept, DOUBLE)), FLOAT)
        return self._prim("pow", a, b)

    def shift_left(self, a: Any, b: Any) -> Expr:
        """0 for shifts by negative or too large amounts."""
        a, b = self._lift((a, b))
        outside = self._no_shift(a.dtype, b)
        return self.where(outside, 0, self._prim("shift_left", a, self.where(outside, 0, b)))

    def shift_right(self, a: Any, b: Any) -> Expr:
        """The sign (0, or -1 for negative numbers) for shifts by negative or too large amounts."""
        a, b = self._lift((a, b))
        outside = self._no_shift(a.dtype, b)
        if a.dtype.is_signed:
            return self._prim("shift_right", a, self.where(outside, a.dtype.itemsize * 8 - 1, b))
        return self.where(outside, 0, self._prim("shift_right", a, self.where(outside, 0, b)))

    def _no_shift(self, dtype: torch.dtype, amount: Expr) -> Expr:
        bits = dtype.itemsize * 8
        if amount.op == "const":
            return self.const(not 0 <= amount.attr < bits, BOOL)
        too_large = self.ge(amount, bits)
        return self.logical_or(self.lt(amount, 0), too_large) if dtype.is_signed else too_large

    def ne(self, a: Any, b: Any) -> Expr:
        a, b = self._lift((a, b))
        return a if a.dtype is BOOL and _is_const(b, 0) else self._test("ne", a, b)

    def _of_float(self, op: str, x: Expr) -> Expr:
        return self._prim(op, x) if x.dtype.is_floating_point else x

    def _of_bool(self, op: str, *args: Any) -> Expr:
        operands = self._lift(args)
        return getattr(self, _BOOLEAN[op])(*operands) if operands[0].dtype is BOOL else self._prim(op, *operands)

    def _question(self, op: str, x: Expr) -> Expr:
        """Whether a float is so; all integers are finite."""
        return self._test(op, x) if x.dtype.is_floating_point else self.const(op == "isfinite", BOOL)

    def abs(self, x: Expr) -> Expr:
        return x if x.dtype in (BOOL, torch.uint8) else self._prim("abs", x)

    def sign(self, x: Expr) -> Expr:
        return x if x.dtype is BOOL else self._prim("sign", x)

    def signbit(self, x: Expr) -> Expr:
        if x.dtype.is_floating_point:
            return self._test("signbit", x)
        return self.lt(x, 0) if x.dtype.is_signed and x.dtype is not BOOL else self.const(False, BOOL)

    def where(self, condition: Expr, a: Any, b: Any) -> Expr:
        a, b = self._lift((a, b))
        assert a.dtype is b.dtype, f"where of {a.dtype} and {b.dtype}"
        if condition.op == "const":
            return a if condition.attr else b
        if a is b:
            return a
        return self.make("where", (condition, a, b), a.dtype)

    def logical_and(self, a: Expr, b: Expr) -> Expr:
        if a.op == "const":
            return b if a.attr else a
        if b.op == "const":
            return a if b.attr else b
        return self.make("logical_and", (a, b), BOOL)

    def logical_or(self, a: Expr, b: Expr) -> Expr:
        if a.op == "const":
            return a if a.attr else b
        if b.op == "const":
            return b if b.attr else a
        return self.make("logical_or", (a, b), BOOL)

    def logical_not(self, a: Expr) -> Expr:
        if a.op == "const":
            return self.const(not a.attr, BOOL)
        return self.make("logical_not", (a,), BOOL)


#: operations that are others of truth values
_BOOLEAN = {"maximum": "logical_or", "minimum": "logical_and", "bitwise_and": "logical_and", "bitwise_or": "logical_or",
            "bitwise_xor": "ne", "bitwise_not": "logical_not"}
#: the method that makes an operation of each of these names. `floordiv` rounds down, `round` to even; `mod` has the
#: sign of the divisor, `fmod` that of the dividend.
_METHODS = {
    **dict.fromkeys((
        "sub", "atan2", "hypot", "copysign", "neg", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt",
        "rsqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf",
        "erfc", "sigmoid", "reciprocal", "lgamma",
    ), ScalarBuilder._prim),
    **dict.fromkeys(("eq", "lt", "le", "gt", "ge"), ScalarBuilder._test),
    **dict.fromkeys(("floordiv", "mod", "fmod"), ScalarBuilder._divide),
    **dict.fromkeys(("floor", "ceil", "trunc", "round"), ScalarBuilder._of_float),
    **dict.fromkeys(("isnan", "isinf", "isfinite"), ScalarBuilder._question),
    **dict.fromkeys(_BOOLEAN, ScalarBuilder._of_bool),
}


def _named(method: Any, name: str) -> Any:
    def call(self: ScalarBuilder, *args: Any) -> Expr:
        return method(self, name, *args)

    return call


for _name, _method in _METHODS.items():
    setattr(ScalarBuilder, _name, _named(_method, _name))


def _is_const(value: Any, number: int) -> bool:
    if isinstance(value, Expr):
        return value.op == "const" and value.attr == number
    return value == number


def _to_float32(value: float) -> float:
    import ctypes

    return ctypes.c_float(value).value


def wrap_integer(value: int, dtype: torch.dtype) -> int:
    """The value modulo the range of an integer dtype."""
    bits = dtype.itemsize * 8
    value &= (1 << bits) - 1
    if dtype.is_signed and value >> (bits - 1):
        value -= 1 << bits
    return value
