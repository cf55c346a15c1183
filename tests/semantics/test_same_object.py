"""Arguments that are two objects in one call and one in the next: a change through one shows in the other."""

from __future__ import annotations

import math

import torch

from tests.semantics.harness import case, make_test


class Box:
    def __init__(self, value):
        self.value = value


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def vec():
    return torch.ones(3)


def twice(make):
    def makers():
        thing = make()
        return vec(), thing, thing

    return makers


def apart(make):
    return lambda: (vec(), make(), make())


@case(apart(lambda: [5]), twice(lambda: [5]), apart(lambda: [5]))
def lists(x, a, b):
    a.append(1)
    return x + len(b), b


@case(apart(dict), twice(dict), apart(dict))
def dicts(x, a, b):
    a["k"] = 3
    return x + len(b), b.get("k")


@case(apart(lambda: {1}), twice(lambda: {1}))
def sets(x, a, b):
    a.add(2)
    return x * len(b)


@case(apart(lambda: Box(1)), twice(lambda: Box(1)), apart(lambda: Box(1)))
def instances(x, a, b):
    a.value = 7
    return x * b.value, a is b


@case(apart(lambda: Slotted(1)), twice(lambda: Slotted(1)))
def slots(x, a, b):
    a.value = 7
    return x * b.value


@case(apart(lambda: [Box([1])]), twice(lambda: [Box([1])]))
def nested(x, a, b):
    a[0].value.append(2)
    return x * len(b[0].value)


@case(apart(lambda: [1]), twice(lambda: [1]), fullgraph=True)
def only_read(x, a, b):
    return x * len(a) + b[0]


@case(apart(lambda: [1]), twice(lambda: [1]), fullgraph=True)
def identity(x, a, b):
    return x + 1, a is b, a == b


@case(apart(lambda: torch.nn.Linear(3, 3)), twice(lambda: torch.nn.Linear(3, 3)))
def modules(x, a, b):
    a.scale = 2
    return x * getattr(b, "scale", 1)


def nan():
    return float("nan")


NANS = (apart(nan), twice(nan), lambda: (vec(), 1.5, 1.5), lambda: (vec(), 2.5, nan()), lambda: (vec(), 1.0, 2.0),
        twice(nan), apart(nan), lambda: (vec(), math.nan, GLOBAL), lambda: (vec(), math.nan, nan()))
GLOBAL = math.nan


@case(*NANS)
def nans_in_containers(x, a, b):
    return x + 1, [a] == [b], (a,) != (b,), {1: a} == {1: b}, a in [b, 1], (b, 1).count(a), [a, 1] < [b, 2], a is b


@case(*NANS)
def nans_as_keys(x, a, b):
    return x + 1, len({a, b}), {a: 1}.get(b), b in {a}


@case(*NANS)
def nans_that_are_known(x, a, b):
    return x + 1, [GLOBAL] == [a], [math.nan] == [b], [math.nan] == [GLOBAL], [float("nan")] == [a], [a + 0] == [a]


@case(*NANS, fullgraph=True)
def nans_that_are_numbers(x, a, b):
    passed = max(a, b)
    return x * a, x * b, [a] == [b], [a * 2] == [b], [passed] == [a], [passed] == [b], [+a] == [a], [float(b)] == [b]


def returned(x, a, b):
    made = float("nan")
    return [a], [b], [made], [made], [a + 0], [float("nan")]


def test_nans_that_leave():
    import jitpy

    jitted = jitpy.jit(returned, backend="eager")
    for makers in NANS:
        arguments = makers()
        wanted, found = returned(*arguments), jitted(*arguments)
        assert [[x == y for y in found] for x in found] == [[x == y for y in wanted] for x in wanted]
        assert found[:2] == wanted[:2]
    first, second = (jitted(vec(), 1.5, 2.5) for _ in range(2))
    assert first[2] != second[2]


@case(apart(lambda: slice(1, 3)), twice(lambda: slice(1, 3)), apart(lambda: slice(0, 2)), twice(lambda: slice(0, 1)),
      fullgraph=True)
def slices(x, a, b):
    return x[a], [1, 2, 3][b], a is b, a == b, [a] == [b], a, b


# -- tuples


@case(lambda: (vec(),))
def tuples_in_the_code(x):
    import jitpy

    t, parts = (1, (2, 3)), [(4, 5)]
    u = t
    for _ in range(3):
        parts.append((4, 5))
        jitpy.graph_break()
        x = x + t[0]
    return x, t is u, t[1] is u[1], [parts[0] is one for one in parts], len({id(one) for one in parts})


@case(apart(lambda: (1, 2)), twice(lambda: (1, 2)), lambda: (vec(), IN_THE_CODE(), (1, 2)), rounds=3)
def tuples_from_outside_beside_those_in_the_code(x, a, b):
    t = (7, 8)
    u = (7, 8)
    return x + 1, a is t, b is t, a is b, t is u, a == t


def _in_the_code():
    return next(c for c in tuples_from_outside_beside_those_in_the_code.__code__.co_consts if c == (7, 8))


IN_THE_CODE = _in_the_code


@case(lambda: (vec(), (1, 2)), lambda: (vec(), (3,)), lambda: (vec(), ()), fullgraph=True)
def operators_that_give_a_tuple_itself(x, a):
    t, empty, nothing = (x.dim(), 2), a[len(a):], ()
    return [one is t for one in (t[:], t[0:2], t[::-1], t + (), () + t, t * 1, 1 * t, tuple(t), t * 2)], \
        [one is a for one in (a[:], a + empty, empty + a, a * 1)], empty is nothing, t[2:] is empty


@case(lambda: (vec(),))
def operators_that_give_a_tuple_itself_in_front_of_a_break(x):
    import jitpy

    t = (x.dim(), 2)
    u, v, w = t[:], t + (), t * 1
    jitpy.graph_break()
    return x + 1, t is u, t is v, t is w


test_cases = make_test(__name__)
