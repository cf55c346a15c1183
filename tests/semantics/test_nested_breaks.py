"""Breaks in inlined callees: what was captured around them stays captured. PYTEST_DONT_REWRITE: run as written."""

from __future__ import annotations

import collections
import functools
import os
from typing import Any

import pytest
import torch

from tests.semantics.harness import case, make_test


def graph_break(message: str = "") -> None:
    """`jitpy.graph_break`, looked up late: the cases alone run without it."""


if os.environ.get("JITPY_SEMANTICS_STUB") != "1":
    from jitpy import graph_break  # type: ignore[no-redef]


def one() -> tuple[Any, ...]:
    return (torch.randn(4),)


def level_three(t):
    t = t + 3
    graph_break()
    return t * 3


def level_two(t):
    t = t + 2
    t = level_three(t)
    return t * 2


def level_one(t):
    t = t + 1
    t = level_two(t)
    return t * 1.5


class Thing:
    def __init__(self, t):
        self.t = t

    @property
    def prop(self):
        y = self.t + 1
        graph_break()
        return y * 2

    def __getitem__(self, key):
        y = self.t + key
        graph_break()
        return y * 2

    def __call__(self, t):
        y = self.t + t
        graph_break()
        return y * 2

    def __add__(self, other):
        y = self.t + other
        graph_break()
        return y * 2

    def __radd__(self, other):
        y = self.t - other
        graph_break()
        return y * 2

    def __neg__(self):
        graph_break()
        return -self.t

    def __lt__(self, other):
        y = self.t + other
        graph_break()
        return y

    def __enter__(self):
        y = self.t + 1
        graph_break()
        return y

    def __exit__(self, *info):
        graph_break()

    def __setitem__(self, key, value):
        y = value + 1
        graph_break()
        self.t = y

    def __setattr__(self, name, value):
        if name == "hooked":
            value = value + 1
            graph_break()
        self.__dict__[name] = value

    def __getattr__(self, name):
        if name != "other":
            raise AttributeError(name)
        y = self.t * 2
        graph_break()
        return y + 1

    def __iter__(self):
        y = self.t + 1
        graph_break()
        return iter([y])

    def __bool__(self):
        graph_break()
        return True

    def __len__(self):
        graph_break()
        return 3

    def __contains__(self, item):
        graph_break()
        return True

    def __eq__(self, other):
        graph_break()
        return True

    __hash__ = None


@case(one, breaks=("user",))
def three_levels(x):
    return level_one(x - 1) + 1


@case(one, breaks=("user", "user"))
def three_levels_twice(x):
    return level_one(level_one(x))


@case(one, breaks=("user",))
def in_method(x):
    class_ = Runner(x)
    return class_.run(2) + 1


class Runner:
    def __init__(self, t):
        self.t = t

    def run(self, n):
        return self.step(n) * 2

    def step(self, n):
        y = self.t * n
        graph_break()
        return y + self.t


@case(one, breaks=("user",))
def in_property(x):
    return Thing(x * 2).prop + 1


@case(one, breaks=("user",))
def in_getitem(x):
    return Thing(x * 2)[3] + 1


@case(one, breaks=("user",))
def in_call(x):
    return Thing(x * 2)(x) + 1


@case(one, breaks=("user",))
def in_operator(x):
    return (Thing(x * 2) + 1) * 3


@case(one)
def in_reflected_operator(x):
    return (1 + Thing(x * 2)) * 3, -Thing(x)


@case(one, breaks=("user",))
def in_comparison(x):
    return (Thing(x * 2) < 1) * 3


@case(one, breaks=("user", "user"))
def in_enter_and_exit(x):
    with Thing(x * 2) as y:
        z = y * 3
    return z + 1


@case(one)
def in_setitem_and_setattr(x):
    t = Thing(x * 2)
    t[0] = x
    t.hooked = t.t * 2
    return t.hooked + t.t


@case(one)
def in_getattr_hook_and_iter(x):
    t = Thing(x * 2)
    total = t.other
    for item in t:
        total = total + item
    return total


@case(one)
def in_bool_len_contains_eq(x):
    t = Thing(x * 2)
    y = x + 1 if t else x
    return y * len(t), 3 in t, t == 4, not t


@case(one)
def in_init(x):
    class_ = WithInit(x * 2)
    return class_.t + 1


class WithInit:
    def __init__(self, t):
        self.t = t + 1
        graph_break()
        self.t = self.t * 2


@case(one)
def in_new(x):
    return WithNew(x * 2).t + 1


class WithNew:
    def __new__(cls, t):
        made = super().__new__(cls)
        made.t = t + 1
        graph_break()
        return made


@case(one)
def in_list_comprehension(x):
    return sum([level_three(x + i) for i in range(3)])


@case(one)
def in_dict_and_set_comprehension(x):
    return {i: level_three(x + i) for i in range(2)}, len({int(level_three(x * 0).sum()) for _ in range(2)})


@case(one)
def in_comprehension_that_fills_a_set_of_tensors(x):
    rows = (x.flatten()[0], x.flatten()[-1])
    return x * len({row for row in (*rows, rows[0]) if row.item() > -1e9})


@case(one)
def in_nested_comprehension(x):
    return [[level_three(x * i + j) for i in range(2)] for j in range(2)]


@case(one)
def in_comprehension_condition(x):
    return [i for i in range(4) if Thing(x) and i % 2]


@case(one)
def in_generator_expression(x):
    return sum(level_three(x + i) for i in range(3))


@case(one)
def in_generator(x):
    def parts():
        for i in range(2):
            y = level_three(x + i)
            yield y + 1

    total = x
    for part in parts():
        total = total + part
    return total


@case(one)
def in_yield_from(x):
    def inner():
        y = level_three(x)
        yield y
        return y + 1

    def outer():
        result = yield from inner()
        yield result * 2

    return list(outer())


@case(one)
def in_sort_key(x):
    def key(n):
        graph_break()
        return -n

    return sorted([1, 3, 2], key=key), x + 1


@case(one)
def in_map_and_filter(x):
    def double(n):
        y = x * n
        graph_break()
        return y

    def odd(n):
        graph_break()
        return n % 2

    return list(map(double, [1, 2])), list(filter(odd, [1, 2, 3]))


@case(one)
def in_reduce_and_partial(x):
    def add(a, b):
        graph_break()
        return a + b

    return functools.reduce(add, [x, x + 1, x + 2]), functools.partial(add, x)(3)


@case(one)
def in_with_in_callee(x):
    def work(t):
        with torch.no_grad():
            t = t + 1
            t = level_three(t)
        return t * 2

    return work(x) + 1


@case(one)
def in_closure_writing(x):
    count = 0

    def work(t):
        nonlocal count
        count += 1
        t = t * count
        graph_break()
        count += 1
        return t + count

    y = work(x)
    y = work(y)
    return y, count


@case(one)
def in_recursion(x):
    def down(t, n):
        if n == 0:
            graph_break()
            return t
        return down(t + n, n - 1) * 2

    return down(x, 3)


@case(one)
def in_star_call(x):
    def make():
        y = x + 1
        graph_break()
        return [y, 2]

    def use(a, b, *, k):
        return a * b + k

    return use(*make(), **{"k": level_three(x)})


@case(one)
def in_callee_in_loop_in_callee(x):
    def inner(t, i):
        t = t + i
        graph_break()
        return t * 2

    def outer(t):
        for i in range(3):
            t = inner(t, i)
            if i == 1:
                continue
            t = t - 1
        return t

    return outer(x) + 1


@case(one)
def in_decorated(x):
    def logged(f):
        @functools.wraps(f)
        def inner(*args, **kwargs):
            return f(*args, **kwargs) + 1

        return inner

    @logged
    def work(t, k=2):
        t = t * k
        graph_break()
        return t

    return work(x, k=3)


@case(one)
def in_class_and_static_method(x):
    return Maker.make(x) + Maker.double(x)


class Maker:
    @classmethod
    def make(cls, t):
        return cls.double(t) + 1

    @staticmethod
    def double(t):
        t = t + 1
        graph_break()
        return t * 2


class Base:
    scale = 2

    def run(self, t, n):
        return t * n * self.scale

    @classmethod
    def make(cls, t):
        made = cls()
        made.t = t
        return made


class Child(Base):
    scale = 3

    def run(self, t, n):
        aardvark = t + 1
        graph_break()
        return super().run(aardvark, n) + super().scale

    def captured(self, t):
        aardvark = t + 1

        def inner():
            return self.scale

        graph_break()
        bound = super()
        return bound.run(aardvark, inner())

    def yielding(self, t):
        aardvark = t + 1
        yield aardvark
        bound = super()
        yield bound.run(aardvark, 2)

    @classmethod
    def make(cls, t):
        aardvark = t * 2
        graph_break()
        return super().make(aardvark)


@case(one)
def super_after_a_break(x):
    c = Child()
    return c.run(x, 2), c.captured(x), Child.make(x).t


@case(one)
def super_in_a_suspended_generator(x):
    g = Child().yielding(x)
    next(g)
    graph_break()
    return list(g)


class Layer(torch.nn.Module):
    def __init__(self, breaks):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.breaks = breaks

    def forward(self, t):
        t = self.linear(t)
        if self.breaks:
            graph_break()
        return t.relu()


def model():
    torch.manual_seed(0)
    net = torch.nn.Sequential(Layer(False), torch.nn.Sequential(Layer(True), Layer(False)), Layer(False))
    return lambda x: net(x) + 1


@case(one, factory=True)
def in_modules():
    return model()


class Broken:
    def __or__(self, other: Any) -> Any:
        graph_break()
        return "or", other


@case(lambda: (torch.randn(4), Broken(), {1: 2}, collections.OrderedDict({3: 4})))
def one_operator_breaks_inside_and_then_itself(x: torch.Tensor, a: Any, d: Any, e: Any) -> Any:
    found = []
    for left, right in ((a, 1), (d, e), (a, 2), (e, d)):
        found.append(left | right)
    return x + 1, found


test_all = make_test(__name__)


def _graphs(fn: Any, *args: Any) -> list[int]:
    """How many operations each graph has."""
    import jitpy

    jitpy.reset()
    report = jitpy.explain(fn)(*args)
    return [len(list(g.nodes)) for g in report.graphs if g is not None and len(list(g.nodes))]


@pytest.mark.skipif(os.environ.get("JITPY_SEMANTICS_STUB") == "1", reason="needs jitpy")
@pytest.mark.parametrize(
    ("fn", "wanted"),
    [(three_levels.__wrapped__ if hasattr(three_levels, "__wrapped__") else three_levels, [4, 4]),
     (in_property, [2, 2]), (in_getitem, [2, 2]), (in_call, [2, 2]), (in_operator, [2, 2])],
)
def test_two_graphs_hold_every_operation(fn: Any, wanted: list[int]) -> None:
    assert _graphs(fn, torch.randn(4)) == wanted
