"""Classes made inside jitted functions. PYTEST_DONT_REWRITE: cases run as written."""

from __future__ import annotations

import abc
import dataclasses
import enum
import os
from typing import Any, NamedTuple

import torch

from tests.semantics.harness import case, make_test


def graph_break(message: str = "") -> None:
    """`jitpy.graph_break`, looked up late: the cases alone run without it."""


if os.environ.get("JITPY_SEMANTICS_STUB") != "1":
    from jitpy import graph_break  # type: ignore[no-redef]


def one() -> tuple[Any, ...]:
    return (torch.randn(4),)


@case(one)
def plain(x):
    class Pair:
        kind = "pair"

        def __init__(self, a, b):
            self.a, self.b = a, b

        def total(self):
            return self.a + self.b

    p = Pair(x, x * 2)
    return p.total(), p.kind, Pair.__name__, Pair.__qualname__


@case(one)
def with_closure(x):
    y = x + 1

    class Adder:
        def add(self, z):
            return z + y

    y = y * 2
    return Adder().add(x)


@case(one)
def with_super(x):
    class Base:
        def scale(self, t):
            return t * 2

    class Derived(Base):
        def scale(self, t):
            return super().scale(t) + 1

    return Derived().scale(x)


@case(one)
def with_dataclass(x):
    @dataclasses.dataclass
    class Point:
        a: Any
        b: Any = 3
        tags: list = dataclasses.field(default_factory=list)

    p = Point(x)
    p.tags.append("t")
    q = dataclasses.replace(p, b=x + 1)
    return q.a + q.b, p.tags is q.tags, [f.name for f in dataclasses.fields(p)]


@case(one)
def with_enum(x):
    class Colour(enum.Enum):
        RED = 1
        BLUE = 2

    return x * Colour.BLUE.value, [c.name for c in Colour], Colour(1) is Colour.RED


@case(one)
def with_named_tuple(x):
    class Pair(NamedTuple):
        a: Any
        b: int = 2

    p = Pair(x)
    return p.a * p.b, p._fields, p._replace(b=5).b


class Meta(type):
    def __new__(mcls, name, bases, space, *, scale=1):
        made = super().__new__(mcls, name, bases, space)
        made.scale = scale
        return made

    def __init__(cls, name, bases, space, **kwargs):
        super().__init__(name, bases, space)


@case(one)
def with_metaclass(x):
    class Scaled(metaclass=Meta, scale=3):
        def run(self, t):
            return t * self.scale

    return Scaled().run(x), type(Scaled).__name__


class Registry:
    known: list = []

    def __init_subclass__(cls, tag="none", **kwargs):
        super().__init_subclass__(**kwargs)
        cls.tag = tag


@case(one)
def with_init_subclass(x):
    class Plugin(Registry, tag="mine"):
        pass

    return x + 1, Plugin.tag, Plugin().tag


class Named:
    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, instance, owner):
        return self.name


@case(one)
def with_set_name(x):
    class Holder:
        first = Named()
        second = Named()

    return x, Holder().first, Holder.second


@case(one)
def with_decorator_and_property(x):
    def tagged(cls):
        cls.tag = "tagged"
        return cls

    @tagged
    class Thing:
        def __init__(self, t):
            self._t = t

        @property
        def doubled(self):
            return self._t * 2

        @staticmethod
        def one():
            return 1

        @classmethod
        def make(cls, t):
            return cls(t + 1)

    return Thing.make(x).doubled, Thing.one(), Thing.tag


@case(one)
def with_exception_class(x):
    class Problem(ValueError):
        def __init__(self, code):
            super().__init__(f"code {code}")
            self.code = code

    try:
        raise Problem(7)
    except Problem as error:
        return x + error.code, str(error)


@case(one)
def with_abstract_base(x):
    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self): ...

    class Square(Shape):
        def area(self):
            return x * x

    try:
        Shape()
    except TypeError:
        return Square().area(), issubclass(Square, Shape)


@case(one)
def with_module(x):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = 3

        def forward(self, t):
            return t * self.scale

    return Layer()(x)


@case(one)
def in_loop(x):
    made = []
    for i in range(3):

        class Step:
            number = i

            def run(self, t):
                return t * self.number

        made.append(Step)
    return [s().run(x) for s in made], len(set(made))


@case(one)
def in_callee(x):
    def make(scale):
        class Inner:
            def run(self, t):
                return t * scale

        return Inner()

    return make(2).run(x) + make(3).run(x)


@case(one)
def body_with_code(x):
    class Table:
        items = {}
        for n in range(3):
            items[n] = n * n
        del n
        both = [i + 1 for i in (1, 2)]

    return x * Table.items[2], Table.both, hasattr(Table, "n")


@case(one)
def body_raises(x):
    try:

        class Bad:
            value = 1 / 0

    except ZeroDivisionError as error:
        return str(error), x + 1


@case(one)
def subclass_of_container(x):
    class Stack(list):
        def push(self, item):
            self.append(item)
            return self

    s = Stack().push(x).push(x + 1)
    return s[0] + s[1], len(s), isinstance(s, list)


@case(one)
def break_after_class(x):
    class Thing:
        def __init__(self, t):
            self.t = t

        def run(self):
            return self.t + 1

    thing = Thing(x)
    graph_break()
    return thing.run() * 2


@case(one)
def slots_in_body(x):
    class Point:
        __slots__ = ("a", "b")

        def __init__(self, a):
            self.a = a

    p = Point(x)
    try:
        p.c = 1
    except AttributeError:
        return p.a + 1, hasattr(p, "b")


@case(one)
def returns_class_and_instance(x):
    class Local:
        def value(self):
            return 5

    return x + Local().value(), isinstance(Local(), Local)


class WithProperty(type):
    @property
    def shown(cls):
        return "of the metaclass", cls.__name__


@case(one)
def an_attribute_that_the_metaclass_has_a_property_for(x):
    class Made(metaclass=WithProperty):
        shown = "own"
        other = 2

    return x + 1, Made.shown, Made().shown, Made.other


test_all = make_test(__name__)
