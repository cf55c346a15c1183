"""Index expressions are what they stand for, however they are rewritten."""

from __future__ import annotations

import itertools
import math
from typing import Any

import sympy
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jitpy.schedule.index import Axis, Index, Quotient, Remainder, flatten, of, unflatten
from jitpy.schedule.memory import Scratch


def value(index: Index, at: dict[Axis, int]) -> int:
    """The index at a point, as compiled code finds it: division is towards zero."""
    total = index.const
    for atom, coefficient in index.terms:
        if isinstance(atom, Axis):
            inner = at[atom]
        elif isinstance(atom, Remainder):
            inner = int(math.fmod(value(atom.index, at), atom.divisor))
        else:
            assert isinstance(atom, Quotient)
            inner = math.trunc(value(atom.index, at) / atom.divisor)
        total += coefficient * inner
    return total


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("+*/%-~"), st.integers(1, 12)), max_size=6), st.integers(2, 6), st.integers(2, 6)
)
def test_arithmetic(operations: list[tuple[str, int]], m: int, n: int) -> None:
    """What is divided is not negative; parts of it may be. `~` is a flip: the index from the other end."""
    a, b = Axis(m), Axis(n)
    index: Any = of(a) * n + of(b)
    numbers = {(i, j): i * n + j for i, j in itertools.product(range(m), range(n))}
    for sign, k in operations:
        if sign == "+":
            index = index + of(b) * k + 1
            numbers = {(i, j): number + j * k + 1 for (i, j), number in numbers.items()}
        elif sign == "-":
            index = index - of(a)
            numbers = {(i, j): number - i for (i, j), number in numbers.items()}
        elif sign == "~":
            top = max(numbers.values())
            index = top - index
            numbers = {point: top - number for point, number in numbers.items()}
        else:
            assume(sign == "*" or min(numbers.values()) >= 0)
            index = {"*": index * k, "/": index // k, "%": index % k}[sign]
            numbers = {point: {"*": number * k, "/": number // k, "%": number % k}[sign]
                       for point, number in numbers.items()}
        for (i, j), number in numbers.items():
            assert value(index, {a: i, b: j}) == number


def test_recombination() -> None:
    a, b, c = Axis(4), Axis(6), Axis(5)
    flat = of(a) * 30 + of(b) * 5 + of(c)
    assert unflatten(flat, (4, 6, 5)) == (of(a), of(b), of(c))
    assert (flat // 7) * 7 + flat % 7 == flat
    split = of(b) // 3, of(b) % 3
    assert flatten(split, (3, 1)) == of(b)


def test_symbolic_sizes() -> None:
    s, t = sympy.symbols("s t", integer=True, positive=True)
    a, b = Axis(s), Axis(t)
    flat = of(a) * t + of(b)
    assert flat // t == of(a) and flat % t == of(b)
    assert unflatten(flat, (s, t)) == (of(a), of(b))


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 9), st.integers(0, 4)), max_size=20))
def test_scratch_never_overlaps(requests: list[tuple[int, int, int]]) -> None:
    scratch = Scratch()
    placed = [scratch.place(size, first, first + length) for size, first, length in requests]
    for x, y in itertools.combinations(placed, 2):
        together = x.first <= y.last and y.first <= x.last
        assert not together or x.offset + x.size <= y.offset or y.offset + y.size <= x.offset
    assert all(r.offset + r.size <= scratch.size and r.offset % 64 == 0 for r in placed)
