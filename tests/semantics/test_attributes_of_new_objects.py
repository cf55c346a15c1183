"""Objects that a call makes and returns have their attributes as eager code stores them."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

import jitpy
from tests.semantics.harness import case, make_test


class Plain:
    def __init__(self, x: Any, scale: float) -> None:
        self.x = x
        self.scale = scale
        self.me = self


class Described:
    """A property and an attribute under one name."""

    @property
    def scale(self) -> str:
        return "of the class"


class Logging:
    log: list[str] = []

    def __setattr__(self, name: str, value: Any) -> None:
        self.log.append(name)
        object.__setattr__(self, name, value)


class Slotted:
    __slots__ = ("x", "__dict__")


class Error(Exception):
    pass


def one():
    return (torch.randn(3),)


@case(one, fullgraph=True)
def plain(x):
    made = Plain(x * 2, 3.0)
    made.later = x + 1
    del made.scale
    made.scale = 4.0
    return made, list(vars(made)), made.me is made


@case(one)
def beside_a_property(x):
    made = Described()
    vars(made)["scale"] = x * 2
    return made, made.scale, vars(made)["scale"]


@case(one, factory=True)
def own_setter():
    Logging.log.clear()

    def fn(x):
        made = Logging()
        made.x = x * 2
        return made

    return fn, Logging.log


@case(one, fullgraph=True)
def slots_and_dict(x):
    made = Slotted()
    made.x = x * 2
    made.y = x * 3
    return made.x, vars(made)


@case(one)
def names_that_are_none(x):
    made = Plain(x, 1.0)
    vars(made)["not a name"] = x + 1
    return vars(made)


@case(one)
def attributes_of_an_exception(x):
    made = Error("m")
    made.x = x * 2
    made.args = ("other",)
    return made.x, made.args, made


@case(one, fullgraph=True)
def attributes_of_a_tensor(x):
    made = x * 2
    made.note = "note"
    return made, made.note


test_all = make_test(__name__)


def test_no_dict_is_made() -> None:
    """An object whose `__dict__` somebody asked for is slower for as long as it lives."""

    def fn(x: torch.Tensor) -> Plain:
        return Plain(x * 2, 3.0)

    jitted = jitpy.jit(fn)
    for _ in range(3):
        assert not any(type(held) is dict for held in gc.get_referents(jitted(torch.ones(3))))


@pytest.mark.parametrize("name", ["scale", "__setattr__"])
def test_a_class_that_changes(name: str) -> None:
    def fn(x: torch.Tensor, cls: type) -> Any:
        made = cls()
        vars(made)["scale"] = x * 2
        return made

    def new() -> type:
        return type("New", (), {})

    ours, theirs = new(), new()
    jitted = jitpy.jit(fn)
    x = torch.ones(3)
    refused = property(lambda self: 1) if name == "scale" else lambda self, name, value: None
    for _ in range(2):
        for _ in range(3):
            made, expected = jitted(x, ours), fn(x, theirs)
            assert torch.equal(vars(made)["scale"], vars(expected)["scale"])
        for cls in (ours, theirs):
            setattr(cls, name, refused)
