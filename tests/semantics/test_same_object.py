"""Arguments that are two objects in one call and one in the next: a change through one shows in the other."""

from __future__ import annotations

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


test_cases = make_test(__name__)
