"""Size expressions and the size environment against plain integers."""

from __future__ import annotations

import ctypes
import itertools
import math
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from jitpy.ir import SizeEnv
from jitpy.ir.divisions import FloorDiv, Modulo
from jitpy.ir.sizes import c_text, evaluate, floordiv, mod, python_text, size_function

NAMES = ("a", "b", "c")
A, B, C = (sympy.Symbol(n, integer=True, positive=True) for n in NAMES)
SYMBOLS = (A, B, C)


def expressions() -> st.SearchStrategy[Any]:
    """Pairs of an expression and a Python function of (a, b, c) that computes it plainly."""
    leaf = st.one_of(
        st.integers(-4, 12).map(lambda n: (n, lambda a, b, c: n)),
        st.sampled_from(range(3)).map(lambda i: (SYMBOLS[i], lambda *v: v[i])),
    )

    def extend(children: Any) -> Any:
        def binary(fn: Any) -> Any:
            return st.tuples(children, children).map(
                lambda p: (fn(p[0][0], p[1][0]), lambda a, b, c: fn(p[0][1](a, b, c), p[1][1](a, b, c))))

        divisor = st.one_of(st.integers(1, 6).map(lambda n: (n, lambda a, b, c: n)),
                            st.sampled_from(range(3)).map(lambda i: (SYMBOLS[i], lambda *v: v[i])))

        def divided(symbolic: Any, plain: Any) -> Any:
            return st.tuples(children, divisor).map(
                lambda p: (symbolic(p[0][0], p[1][0]), lambda a, b, c: plain(p[0][1](a, b, c), p[1][1](a, b, c))))

        return st.one_of(binary(lambda x, y: x + y), binary(lambda x, y: x - y), binary(lambda x, y: x * y),
                         divided(floordiv, lambda x, y: x // y), divided(mod, lambda x, y: x % y))

    return st.recursive(leaf, extend, max_leaves=8)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(expressions(), st.lists(st.tuples(*[st.integers(1, 40)] * 3), min_size=3, max_size=3))
def test_expressions_mean_what_python_means(pair: Any, points: list[tuple[int, int, int]]) -> None:
    expr, plain = pair
    text = compile(python_text(expr), "expr", "eval")
    fill = size_function([expr], SYMBOLS)
    for point in points:
        expected = plain(*point)
        values = dict(zip(SYMBOLS, point, strict=True))
        assert evaluate(expr, values) == expected
        assert eval(text, dict(zip(NAMES, point, strict=True))) == expected
        assert fill(point) == [expected]
        if not isinstance(expr, int):
            assert int(expr.subs(values)) == expected


@settings(max_examples=120, deadline=None, derandomize=True)
@given(expressions(), st.tuples(*[st.tuples(st.integers(1, 12), st.integers(0, 6))] * 3))
def test_bounds_hold(pair: Any, ranges: Any) -> None:
    env = SizeEnv()
    symbols = [env.new_symbol(low, None, None, low, low + width) for low, width in ranges]
    expr, plain = pair
    if isinstance(expr, int):
        return
    expr = expr.xreplace(dict(zip(SYMBOLS, symbols, strict=True)))
    low, high = env.bounds(expr)
    for point in itertools.product(*(sorted({lo, lo + w // 2, lo + w}) for lo, w in ranges)):
        assert low <= plain(*point) <= high, (expr, point)


RELATIONS = (sympy.Eq, sympy.Ne, sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(RELATIONS), expressions(), expressions()), min_size=1, max_size=5),
       st.tuples(*[st.integers(2, 6)] * 3))
def test_answers_hold_wherever_the_recorded_relations_do(questions: Any, hints: Any) -> None:
    """The point of it all: sizes that fulfil what was recorded get the same answers."""
    env = SizeEnv()
    symbols = [env.new_symbol(hint, None, None, 2, 8) for hint in hints]
    rename = dict(zip(SYMBOLS, symbols, strict=True))
    answers = []
    for relation, (left, f), (right, g) in questions:
        left, right = (e if isinstance(e, int) else e.xreplace(rename) for e in (left, right))
        left, right = sympy.sympify(left), sympy.sympify(right)
        answers.append((relation, f, g, env.decide(relation(left, right, evaluate=False))))
    holds = size_function(env.relations, symbols)
    plain = {sympy.Eq: int.__eq__, sympy.Ne: int.__ne__, sympy.Lt: int.__lt__, sympy.Le: int.__le__,
             sympy.Gt: int.__gt__, sympy.Ge: int.__ge__}
    assert all(holds(hints))
    for point in itertools.product((2, 3, 5, 6, 8), repeat=3):
        if all(holds(point)):
            for relation, f, g, answer in answers:
                assert plain[relation](f(*point), g(*point)) == answer, (env.relations, point)


def test_what_is_certain_is_not_recorded() -> None:
    env = SizeEnv()
    n = env.new_symbol(5, "x", 0)
    assert not env.equal(n, 1) and env.equal(n + n, 2 * n) and env.less(0, n) and env.less_equal(2, n)
    assert env.decide(sympy.Ge(n * 4, 8)) and not env.decide(sympy.Lt(n, 0))
    assert not env.equal(2 * n + 1, 4 * n) and env.relations == []


def test_equal_symbols_unify() -> None:
    env = SizeEnv()
    n, m, k = (env.new_symbol(6, "x", i) for i in range(3))
    assert env.equal(n, m, "here") and env.reasons == ["here"]
    assert env.canonical(m * 2 + n) == 3 * n
    assert env.equal(m * k, n * k) and env.known(sympy.Eq(m, n)) is True
    assert env.equal(k + 1, 7) and env.canonical(k + n) == n + 6
    assert env.equal(n, k) and env.canonical(m) == 6 and type(env.canonical(m)) is int
    assert len(env.relations) == 3


def test_inequalities_narrow_ranges() -> None:
    env = SizeEnv()
    n = env.new_symbol(10, "x", 0)
    assert env.less(4, n) and env.bounds(n)[0] == 5
    assert env.less(2, n) and not env.equal(n, 3) and len(env.relations) == 1
    assert env.less(2 * n, 32) and env.bounds(n) == (5, 15)
    assert not env.equal(n, 5) and env.bounds(n) == (6, 15)
    assert len(env.relations) == 3


def test_one_value_left_is_that_value() -> None:
    env = SizeEnv()
    n = env.new_symbol(10, "x", 0)
    assert env.less(9, n) and env.less(n, 11) and env.canonical(n * 2) == 20


def test_rollback_forgets() -> None:
    env = SizeEnv()
    n, m = env.new_symbol(4, "x", 0), env.new_symbol(4, "x", 1)
    env.less(3, n)
    mark = env.checkpoint()
    assert env.equal(n, m) and env.specialize(n, "why") == 4
    assert env.canonical(n + m) == 8
    env.rollback(mark)
    assert env.canonical(m) == m and len(env.relations) == len(env.reasons) == 1
    assert env.known(sympy.Eq(n, m)) is None and env.bounds(n) == (4, math.inf)
    env.rollback(env.checkpoint())
    env.rollback(0)
    assert env.relations == [] and env.bounds(n) == (2, math.inf)


def test_connectives() -> None:
    env = SizeEnv()
    n, m = env.new_symbol(4, "x", 0), env.new_symbol(9, "x", 1)
    assert env.decide(sympy.And(n < 5, m > 5)) and len(env.relations) == 2
    assert env.decide(sympy.Or(sympy.Eq(n, 7), m > 5))
    assert env.decide(sympy.Not(sympy.Eq(m, 20)))
    assert env.known(sympy.And(n < 5, m > 5)) is True and env.known(sympy.Or(n > 5, m < 5)) is False


def test_what_is_no_relation_is_refused() -> None:
    env = SizeEnv()
    n = env.new_symbol(4, "x", 0)
    with pytest.raises(TypeError, match="relation"):
        env.decide(n + 1)


def test_division_cancels() -> None:
    assert floordiv(6 * A, 3) == 2 * A and floordiv(A * B, B) == A and floordiv(A * (B + 1), B + 1) == A
    assert floordiv(4 * A + 3, 4) == A and mod(4 * A + 3, 4) == 3 and mod(A * B + C, B) == mod(C, B)
    assert floordiv(floordiv(A, 2), 3) == floordiv(A, 6) and floordiv(6 * A, 4) == floordiv(3 * A, 2)
    assert type(floordiv(A * 3, A)) is int and type(mod(A * 3, A)) is int
    assert isinstance(floordiv(A, 2), FloorDiv) and isinstance(mod(A, 2), Modulo)
    for function in (floordiv, mod):
        with pytest.raises(ZeroDivisionError):
            function(A, 0)


def test_texts() -> None:
    assert python_text(floordiv(A - 1, 2) * 3 + 1) == "3 * ((a - 1) // 2) + 1"
    assert str(floordiv(A, 2)) == "(a // 2)" and eval(str(floordiv(A, 2) * 2 + 1), {"a": 5}) == 5
    assert python_text(sympy.Eq(A * B, 12)) == "a * b == 12"
    assert c_text(floordiv(A, B)) == "a / b" and c_text(A ** 2) == "a * a"
    assert "?" in c_text(mod(A - B, C)) and "!=" in c_text(floordiv(A - B, 2))
    assert c_text(sympy.Integer(2) ** 40 + A) == "a + INT64_C(1099511627776)"
    assert python_text(sympy.floor(A / 2)) == "a // 2" and python_text(sympy.Max(A, B)) == "max(a, b)"
    assert python_text(A, {A: "x.size(0)"}) == "x.size(0)"
    with pytest.raises(TypeError):
        c_text(A / 2)
    with pytest.raises(TypeError):
        evaluate(sympy.sin(A), {A: 1})


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")
def test_c_text_computes_the_same(tmp_path: Path) -> None:
    free = sympy.Symbol("n", integer=True)
    exprs = [floordiv(free, 4), mod(free, 4), floordiv(free - 5, 3), mod(5 - free, 3), floordiv(free, B), mod(free, B),
             floordiv(A * 3 + 1, B) * 2 - mod(A, 7), sympy.Max(A, B, free), sympy.Min(A, free), sympy.ceiling(A / 4),
             sympy.floor(free / 3), sympy.Eq(A, B), sympy.And(A < B, free > 0), sympy.Abs(free), -A - free]
    names = (free, A, B)
    lines = [f"  out[{i}] = {c_text(e)};" for i, e in enumerate(exprs)]
    source = tmp_path / "sizes.c"
    source.write_text("#include <stdint.h>\nvoid f(int64_t n, int64_t a, int64_t b, int64_t* out) {\n"
                      + "\n".join(lines) + "\n}\n")
    library = tmp_path / "sizes.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-o", library, source], check=True)
    function = ctypes.CDLL(str(library)).f
    function.argtypes = [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    out = (ctypes.c_int64 * len(exprs))()
    for point in itertools.product((-7, -4, -1, 0, 2, 9), (1, 4, 5), (1, 3, 8)):
        function(*point, out)
        expected = [int(evaluate(e, dict(zip(names, point, strict=True)))) for e in exprs]
        assert list(out) == expected, point


def test_questions_are_cheap() -> None:
    env = SizeEnv()
    n, m = env.new_symbol(12, "x", 0), env.new_symbol(7, "x", 1)
    start = time.perf_counter()
    for i in range(200):
        env.equal(n * (m + i), m * n + i * n)
        env.equal(floordiv(n * 8 + i, 4) + m, i)
    assert (time.perf_counter() - start) / 400 < 5e-3


def test_division_of_sums() -> None:
    n, m = sympy.symbols("n m", integer=True, positive=True)
    part = floordiv(m - 1, 4)
    assert floordiv(128 * n * part + 128 * n, 8 * n * (part + 1)) == 16
    assert mod(128 * n * part + 128 * n, 8 * n * (part + 1)) == 0
    assert floordiv(n * n - 1, n - 1) == n + 1
    inexact = floordiv(n * m + n + 1, m + 1)
    assert [int(inexact.subs({n: a, m: b})) for a in (1, 5) for b in (1, 7)] == [1, 1, 5, 5]
