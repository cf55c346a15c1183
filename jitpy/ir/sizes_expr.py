"""Size expressions: floor division and modulo, evaluation on ints, and printing as Python and as C."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from .algebra import sympy
from .spec import Dim


def floordiv(a: Dim, b: Dim) -> Dim:
    """Python's floor division on sizes. ZeroDivisionError for a constant divisor of 0.

    The caller has made sure, by `SizeEnv.decide`, that a symbolic divisor is not 0: `n // n` is 1.
    """
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 0:
        raise ZeroDivisionError(f"{a} // 0")
    a, b = sympy.sympify(a), sympy.sympify(b)
    from .divisions import FloorDiv

    whole = _divided(a, b)
    return simplify(FloorDiv(expand(a), b) if whole is None else whole)


def mod(a: Dim, b: Dim) -> Dim:
    """Python's modulo on sizes, under the same condition as `floordiv`."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if b == 0:
        raise ZeroDivisionError(f"{a} % 0")
    a, b = sympy.sympify(a), sympy.sympify(b)
    from .divisions import Modulo

    return 0 if _divided(a, b) is not None else simplify(Modulo(expand(a), b))


def simplify(expr: Dim) -> Dim:
    """An int wherever the expression is one."""
    if isinstance(expr, int):
        return expr
    return int(expr) if expr.is_Integer else expr


def expand(expr: sympy.Expr) -> sympy.Expr:
    """Products of sums multiplied out; returns at once where there are none."""
    if expr.is_Symbol or expr.is_Integer or not _has_product_of_sums(expr):
        return expr
    return sympy.expand_mul(sympy.expand_multinomial(expr))


def _has_product_of_sums(expr: sympy.Basic) -> bool:
    if expr.is_Add:
        return any(_has_product_of_sums(arg) for arg in expr.args)
    if expr.is_Mul:
        return any(arg.is_Add or _has_product_of_sums(arg) for arg in expr.args)
    return bool(expr.is_Pow and expr.base.is_Add)


def divide_terms(a: sympy.Expr, b: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """`a == whole * b + rest`, with every term of a that b divides in `whole`."""
    whole: list[sympy.Expr] = []
    rest: list[sympy.Expr] = []
    for term in a.args if a.is_Add else (a,):
        quotient = _divide_term(term, b)
        (rest if quotient is None else whole).append(term if quotient is None else quotient)
    return sympy.Add(*whole), sympy.Add(*rest)


def _divide_term(term: sympy.Expr, b: sympy.Expr) -> sympy.Expr | None:
    """The integer `term / b` where b divides it factor by factor, else None."""
    c, factors = term.as_coeff_Mul()
    d, divisors = b.as_coeff_Mul()
    if not (c.is_Integer and d.is_Integer) or d == 0 or int(c) % int(d):
        return None
    coefficient = sympy.Integer(int(c) // int(d))
    if divisors == 1:
        return coefficient * factors
    powers = dict(factors.as_powers_dict())
    for base, exponent in divisors.as_powers_dict().items():
        left = powers.get(base, 0) - exponent
        if not left.is_Integer or left < 0:
            return None
        powers[base] = left
    return sympy.Mul(coefficient, *(sympy.Pow(base, exponent) for base, exponent in powers.items()))


def _divided(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr | None:
    """`a / b` where b divides a as a polynomial, else None."""
    whole = _divide_term(a, b)
    if whole is not None or not b.has(sympy.Add):
        return whole
    a, b = expand(a), expand(b)
    if not a.is_Add:
        return None
    # Divisions inside stand as symbols: `(n*(m//2) + n) // (m//2 + 1)` is n.
    symbols = {part: sympy.Dummy() for part in a.atoms(sympy.Function) | b.atoms(sympy.Function)}
    try:
        quotient, rest = sympy.div(a.xreplace(symbols), b.xreplace(symbols), domain=sympy.ZZ)
    except sympy.PolynomialError:
        return None
    return None if rest != 0 else quotient.xreplace({symbol: part for part, symbol in symbols.items()})


def is_multiple(expr: Dim, factor: int) -> bool:
    """Is a size a multiple of `factor` whatever its symbols are? False where it is not plain to see."""
    return expr % factor == 0 if isinstance(expr, int) else content(expr, factor) == factor


def content(a: sympy.Expr, start: int) -> int:
    """The greatest common divisor of `start` and all integer coefficients of a."""
    for term in a.args if a.is_Add else (a,):
        coefficient = term.as_coeff_Mul()[0]
        if not coefficient.is_Integer:
            return 1
        start = math.gcd(start, int(coefficient))
    return start


def divide_by(a: sympy.Expr, factor: int) -> sympy.Expr:
    terms = [term.as_coeff_Mul() for term in (a.args if a.is_Add else (a,))]
    return sympy.Add(*(sympy.Integer(int(c) // factor) * rest for c, rest in terms))


def evaluate(expr: Any, values: Mapping[sympy.Symbol, int]) -> Any:
    """The value of a size expression or relation, exactly: an int, a bool, or a float where it is no integer.

    KeyError names a symbol without a value.
    """
    result = _evaluate(expr, values)
    if isinstance(result, Fraction):
        return int(result) if result.denominator == 1 else float(result)
    return result


def _evaluate(expr: Any, values: Mapping[sympy.Symbol, int]) -> Any:
    if isinstance(expr, (int, float)):
        return expr
    if expr.is_Symbol:
        return values[expr]
    if expr.is_Integer:
        return int(expr)
    if expr.is_Rational:
        return Fraction(int(expr.p), int(expr.q))
    if expr.is_Float:
        return float(expr)
    args = [_evaluate(arg, values) for arg in expr.args]
    if expr.is_Add:
        return sum(args[1:], args[0])
    if expr.is_Mul:
        return math.prod(args)
    if expr.is_Pow:
        base, exponent = args
        return Fraction(base) ** exponent if isinstance(exponent, int) and exponent < 0 else base ** exponent
    function = _FUNCTIONS.get(type(expr).__name__)
    if function is None:
        raise TypeError(f"no size expression: {expr} ({type(expr).__name__})")
    return function(*args)


#: by the name of an expression's class
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "FloorDiv": lambda a, b: a // b,
    "Modulo": lambda a, b: a % b,
    "Mod": lambda a, b: a % b,
    "floor": math.floor,
    "ceiling": math.ceil,
    "Max": max,
    "Min": min,
    "Abs": abs,
    "Equality": lambda a, b: a == b,
    "Unequality": lambda a, b: a != b,
    "StrictLessThan": lambda a, b: a < b,
    "LessThan": lambda a, b: a <= b,
    "StrictGreaterThan": lambda a, b: a > b,
    "GreaterThan": lambda a, b: a >= b,
    "And": lambda *args: all(args),
    "Or": lambda *args: any(args),
    "Not": lambda a: not a,
    "BooleanTrue": lambda: True,
    "BooleanFalse": lambda: False,
}

_RELATIONS = {
    "Equality": "==", "Unequality": "!=", "StrictLessThan": "<", "LessThan": "<=", "StrictGreaterThan": ">",
    "GreaterThan": ">=",
}


def python_text(expr: Any, names: Mapping[sympy.Symbol, str] | None = None, enclosed: bool = False,
                exact: bool = False) -> str:
    """A size expression or relation as a Python expression; `names` renames symbols. `enclosed`: in parentheses unless
    it is one word, a call or a number. `exact`: quotients are a `Fraction`. TypeError for what has no text."""
    printer = _Printer(names or {}, c=False, exact=exact)
    return printer.text(expr) if enclosed else printer.top(expr)


def c_text(expr: Any, names: Mapping[sympy.Symbol, str] | None = None, total: bool = False) -> str:
    """A size expression or relation as a C expression on `int64_t`, with Python's floor division and modulo. With
    `total`, what is divided by 0 is 0: for sizes whose checks come after them.

    Overflow is not looked for: sizes of tensors that exist do not overflow. Raises TypeError for what has no integer
    meaning.
    """
    return _Printer(names or {}, c=True, total=total).top(expr)


class _Printer:
    """Both languages agree but for division, min, max, and the logical words."""

    def __init__(self, names: Mapping[sympy.Symbol, str], c: bool, total: bool = False, exact: bool = False) -> None:
        self.names = names
        self.c = c
        self.total = total
        self.exact = exact

    def top(self, expr: Any) -> str:
        text = self.text(expr)
        return text[1:-1] if _enclosed(text) else text

    def text(self, expr: Any) -> str:
        """The expression, in parentheses unless it is one word, a call or a number."""
        if isinstance(expr, bool):
            return (("1" if expr else "0") if self.c else str(expr))
        if isinstance(expr, int) or expr.is_Integer:
            value = int(expr)
            if self.c:
                number = f"INT64_C({value})" if abs(value) >= 2**31 else str(value)
            else:
                number = str(value)
            return number if value >= 0 else f"({number})"
        if expr is sympy.true or expr is sympy.false:
            return (("1" if expr else "0") if self.c else str(bool(expr)))
        if expr.is_Symbol:
            return self.names.get(expr, expr.name)
        if expr.is_Add:
            return self.sum(expr)
        if expr.is_Mul:
            if all(not (arg.is_Pow and arg.exp.is_negative) and (arg.is_Integer or not arg.is_Rational)
                   for arg in expr.args):
                return "(" + self.product(expr) + ")"
            return self.fraction(expr)
        if expr.is_Pow and expr.exp.is_Integer and expr.exp > 0:
            base = self.text(expr.base)
            return "(" + " * ".join([base] * int(expr.exp)) + ")"
        kind = type(expr).__name__
        if kind == "FloorDiv":
            return self.unless_zero(expr.args[1], self.divide(*expr.args))
        if kind in ("Modulo", "Mod"):
            return self.unless_zero(expr.args[1], self.modulo(*expr.args))
        if isinstance(expr, sympy.floor):
            return self.divide(*sympy.together(expr.args[0]).as_numer_denom())
        if isinstance(expr, sympy.ceiling):
            above, below = sympy.together(expr.args[0]).as_numer_denom()
            return f"(-{self.divide(-above, below)})"
        if isinstance(expr, (sympy.Max, sympy.Min)):
            return self.extreme(expr)
        if isinstance(expr, sympy.Abs):
            inner = self.text(expr.args[0])
            return f"({inner} < 0 ? -{inner} : {inner})" if self.c else f"abs({inner})"
        if kind in _RELATIONS:
            return f"({self.top(expr.lhs)} {_RELATIONS[kind]} {self.top(expr.rhs)})"
        if isinstance(expr, (sympy.And, sympy.Or)):
            word = {(True, True): "&&", (True, False): "||", (False, True): "and", (False, False): "or"}[
                self.c, isinstance(expr, sympy.And)]
            return "(" + f" {word} ".join(sorted(self.text(arg) for arg in expr.args)) + ")"
        if isinstance(expr, sympy.Not):
            return f"(!{self.text(expr.args[0])})" if self.c else f"(not {self.text(expr.args[0])})"
        return self.fraction(expr)

    def sum(self, expr: sympy.Add) -> str:
        text = ""
        for term in expr.as_ordered_terms():
            part = self.top(term) if term.is_Mul and not term.as_coeff_Mul()[0].is_negative else self.text(term)
            if term.as_coeff_Mul()[0].is_negative:
                positive = -term
                part = self.top(positive) if positive.is_Mul else self.text(positive)
                text += f" - {part}" if text else f"-{part}"
            else:
                text += f" + {part}" if text else part
        return f"({text})"

    def product(self, expr: sympy.Mul) -> str:
        coefficient, rest = expr.as_coeff_Mul()
        factors = [self.text(arg) for arg in rest.as_ordered_factors()]
        if coefficient == -1:
            return "-" + " * ".join(factors)
        return " * ".join(factors if coefficient == 1 else [self.text(coefficient), *factors])

    def unless_zero(self, divisor: sympy.Expr, quotient: str) -> str:
        if not self.total or divisor.is_nonzero:
            return quotient
        text = self.text(divisor)
        return f"({text} == 0 ? 0 : {quotient})" if self.c else f"(0 if {text} == 0 else {quotient})"

    def divide(self, a: sympy.Expr, b: sympy.Expr) -> str:
        if b == 1:
            return self.text(a)
        x, y = self.text(a), self.text(b)
        if not self.c:
            return f"({x} // {y})"
        if a.is_nonnegative and b.is_positive:
            return f"({x} / {y})"
        return f"({x} / {y} - ({x} % {y} != 0 && ({x} < 0) != ({y} < 0)))"

    def modulo(self, a: sympy.Expr, b: sympy.Expr) -> str:
        x, y = self.text(a), self.text(b)
        if not self.c or (a.is_nonnegative and b.is_positive):
            return f"({x} % {y})"
        return f"({x} % {y} + ({x} % {y} != 0 && ({x} < 0) != ({y} < 0) ? {y} : 0))"

    def extreme(self, expr: sympy.Expr) -> str:
        parts = sorted(self.text(arg) for arg in expr.args)
        largest = isinstance(expr, sympy.Max)
        if not self.c:
            return f"{'max' if largest else 'min'}({', '.join(parts)})"
        text = parts[0]
        for part in parts[1:]:
            text = f"({text} {'>' if largest else '<'} {part} ? {text} : {part})"
        return text

    def fraction(self, expr: sympy.Basic) -> str:
        """A quotient that need not be whole: Python only."""
        if self.c or not isinstance(expr, sympy.Expr):
            raise TypeError(f"no integer size expression: {expr} ({type(expr).__name__})")
        if expr.is_Float:
            return repr(float(expr))
        above, below = expr.as_numer_denom()
        if below == 1:
            raise TypeError(f"no size expression: {expr} ({type(expr).__name__})")
        if self.exact:
            return f"Fraction({self.text(above)}, {self.text(below)})"
        return f"({self.text(above)} / {self.text(below)})"


def _enclosed(text: str) -> bool:
    """Whether the first parenthesis closes at the very end."""
    if not (text.startswith("(") and text.endswith(")")):
        return False
    depth = 0
    for i, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0 and i < len(text) - 1:
            return False
    return True


def size_function(exprs: Iterable[Dim], symbols: Sequence[sympy.Symbol]) -> Callable[[tuple[int, ...]], list[int]]:
    """A Python function from the symbols' values (in the order of `symbols`) to the list of the expressions' values.
    A quotient by 0 is 0."""
    names = {symbol: f"v[{i}]" for i, symbol in enumerate(symbols)}
    body = ", ".join(_Printer(names, c=False, total=True).top(expr) for expr in exprs)
    namespace: dict[str, Any] = {}
    exec(compile(f"def sizes(v):\n    return [{body}]\n", "<jitpy sizes>", "exec"), namespace)
    return namespace["sizes"]
