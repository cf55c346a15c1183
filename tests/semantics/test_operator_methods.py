"""Operators of classes derived from numbers, texts and containers: which methods are asked, in which order, with which
operands, and what is said where nobody answers. PYTEST_DONT_REWRITE: cases run as written."""

from __future__ import annotations

import collections
import enum
import operator
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy
from tests.semantics.harness import case, make_test


class S(str):
    pass


class I(int):  # noqa: E742
    pass


class Reflected(str):
    def __radd__(self, other):
        return "Reflected", type(other).__name__


class Plus(str):
    def __add__(self, other):
        return super().__add__(other)


class Other:
    def __add__(self, other):
        return "add", type(other).__name__, str(other)

    def __radd__(self, other):
        return "radd", type(other).__name__, str(other)

    def __rmod__(self, other):
        return "rmod"


class Times(int):
    def __rmul__(self, other):
        return "Times", type(other).__name__


class Letter(str, enum.Enum):
    A = "a"


class InPlace(tuple):
    def __iadd__(self, other):
        return "iadd", other


class Sequence(list):
    def __add__(self, other):
        return "add", other


def vec():
    return torch.randn(3)


def attempt(function, *args):
    try:
        return function(*args)
    except TypeError as error:
        return str(error)


@case(lambda: (vec(), Other()), breaks=())
def texts_join_texts_only(x, o):
    return (x + 1, attempt(operator.add, S("a"), o), attempt(operator.add, Reflected("a"), o),
            S("a") + Reflected("b"), "a" + Reflected("b"), Reflected("a") + "b",
            attempt(operator.add, Reflected("a"), 1), attempt(operator.iadd, Reflected("a"), o), Letter.A + o)


@case(lambda: (vec(), Other()))
def what_a_text_refuses_is_not_asked(x, o):
    return x + 1, attempt(operator.add, Plus("a"), o), Plus("a") + "b"


@case(lambda: (vec(), Other(), I(2)), breaks=())
def methods_are_given_the_objects(x, o, i):
    return x + 1, o + i, i + o, o + Letter.A, o + S("a"), o + 1.5, S("a") + o


@case(lambda: (vec(), S("abc")), lambda: (vec(), S("")), lambda: (vec(), S("a%%")), lambda: (vec(), Letter.A))
def texts_without_a_place(x, s):
    filled = s % {}
    return x + 1, type(filled).__name__, filled is s, s % (), s % [], attempt(operator.mod, s, 1), attempt(
        operator.mod, s, Other())


@case(lambda: (vec(), I(2)), lambda: (vec(), 2), lambda: (vec(), True), lambda: (vec(), Times(2)), breaks=())
def numbers_of_classes_do_not_become_sequences(x, i):
    found = []
    for sequence in ([1], (1,), "a", b"a", S("a")):
        found += [attempt(operator.imul, i, sequence), attempt(operator.mul, i, sequence),
                  attempt(operator.mul, sequence, i)]
    return x + 1, found


@case(lambda: (vec(), InPlace((1,)), Sequence([1])), breaks=())
def in_place_forms_of_classes(x, t, items):
    alias = items
    t += (2,)
    items += [2]
    return x + 1, t, items, items is alias, Sequence([1]) + [2], [1] + Sequence([2])


@case(lambda: (vec(), collections.deque([1])), breaks=())
def queues(x, q):
    q += [2]
    found = attempt(operator.add, q, Other()), attempt(operator.add, q, [1]), attempt(operator.mul, q, q)
    return x + 1, q, found, q * 2


test_cases = make_test(__name__)

class Plain:
    def __repr__(self):
        return "plain"


VALUES: dict[type, Any] = {int: 2, float: 1.5, str: "ab", bytes: b"ab", list: [1], tuple: (1,), set: {1}, dict: {1: 2},
                           frozenset: {2}, collections.deque: [1]}
OPERATORS = {"add": (operator.add, operator.iadd), "mul": (operator.mul, operator.imul), "or": (
    operator.or_, operator.ior), "mod": (operator.mod, operator.imod), "sub": (operator.sub, operator.isub)}


def a_method(name: str, answers: bool) -> Callable[..., Any]:
    if not answers:
        return lambda self, other: NotImplemented
    return lambda self, other: (type(self).__name__, name, type(other).__name__)


def a_class(rng: random.Random, op: str, base: type) -> type:
    """A class with some of the operator's three methods."""
    methods = {f"__{how}{op}__": a_method(f"{how}{op}", rng.random() < 0.5) for how in ("", "r", "i")
               if rng.random() < 0.3}
    return type(f"Of_{base.__name__}", (base,), methods)


def an_instance(cls: type) -> Any:
    return next((cls(value) for base, value in VALUES.items() if issubclass(cls, base)), None) or cls()


def outcome(function: Callable[..., Any], a: type, b: type) -> Any:
    left, right = an_instance(a), an_instance(b)
    try:
        result = function(left, right)
    except TypeError as error:
        return str(error)
    return type(result).__name__, str(result), result is left, str(left)


@pytest.mark.parametrize("op", OPERATORS)
def test_generated_classes(op: str) -> None:
    rng = random.Random(op)
    for _ in range(60):
        bases = [*VALUES, Plain, Plain]
        left = a_class(rng, op, rng.choice(bases)) if rng.random() < 0.8 else rng.choice([*VALUES])
        right = rng.choice([a_class(rng, op, rng.choice(bases)), a_class(rng, op, left), left, rng.choice([*VALUES])])
        function = rng.choice(OPERATORS[op])

        def operate(a: Any, b: Any, function: Callable[..., Any] = function) -> Any:
            return function(a, b)

        wanted = outcome(function, left, right)
        found = outcome(jitpy.jit(operate, backend="eager"), left, right)
        assert found == wanted, (function, left, vars(left), right, vars(right))
