"""What a function changes outside itself, and what others change between calls. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import collections
import itertools
import math
import sys
import types
from typing import Any

import torch

from jitpy import graph_break
from tests.semantics import state_module as sm
from tests.semantics.harness import case, make_test

COUNT: Any = 0
TABLE: Any = None


def vec(*sizes: int) -> torch.Tensor:
    return torch.arange(1.0, 1 + (sizes or (4,))[0])


def one():
    return (vec(),)


# -- globals of any module ----------------------------------------------------------------------------------


@case(one, factory=True, fullgraph=True)
def attributes_of_another_module():
    sm.counter = 0
    sm.items = []

    def fn(x):
        sm.counter += 1
        sm.items.append(sm.counter)
        sm.latest = x + sm.counter
        return x * sm.counter, sm.bump(), sm.counter

    return fn, sm.__dict__["items"]


@case(one, factory=True)
def module_attribute_deleted_and_made():
    sm.gone = 1

    def fn(x):
        had = hasattr(sm, "gone")
        if had:
            del sm.gone
        else:
            sm.gone = 2
        return x, had, getattr(sm, "gone", None)

    return fn


@case(one, factory=True)
def module_function_replaced_between_calls():
    sm.scale = lambda v: v * 2
    calls = itertools.count()

    def fn(x):
        return sm.scale(x)

    def outer(x):
        y = fn(x)
        if next(calls) == 0:
            sm.scale = lambda v: v * 10
        return y

    return outer


@case(one, factory=True)
def module_function_replaced_inside():
    sm.scale = lambda v: v * 2

    def fn(x):
        y = sm.scale(x)
        sm.scale = lambda v: v + 100
        return y, sm.scale(x)

    return fn


@case(one, factory=True)
def library_function_patched():
    real = math.sqrt
    calls = itertools.count()

    def fn(x):
        return x * math.sqrt(4)

    def outer(x):
        math.sqrt = (lambda v: 10) if next(calls) % 2 else real
        try:
            return fn(x)
        finally:
            math.sqrt = real

    return outer


@case(one, factory=True)
def synthetic_module():
    m = types.ModuleType("made")
    m.k = 2

    def fn(x):
        m.k += 1
        m.new = x
        setattr(m, "by_name", m.k)
        return x * m.k, vars(m)["k"], m.__name__

    return fn, m.__dict__


@case(one, globals={"COUNT": lambda: 0})
def global_by_dict(x):
    globals()["COUNT"] += 1
    sys.modules[__name__].COUNT += 1
    return x * COUNT


# -- closures -----------------------------------------------------------------------------------------------


@case(one, factory=True, fullgraph=True)
def cell_shared_by_functions():
    n = 0
    last = None

    def bump():
        nonlocal n
        n += 1
        return n

    def read():
        return n, last

    def fn(x):
        nonlocal last
        bump()
        last = x * n
        bump()
        return last + n, read()

    return fn, read


@case(one, factory=True)
def cell_written_before_break():
    n = 0

    def fn(x):
        nonlocal n
        n += 1
        graph_break()
        n += 10
        return x * n

    return fn, lambda: n


@case(one, factory=True)
def counters_made_by_a_factory():
    def make():
        n = 0

        def step():
            nonlocal n
            n += 1
            return n

        return step

    a, b = make(), make()

    def fn(x):
        a()
        return x * a() + b()

    return fn, (a, b)


@case(one)
def closures_made_inside_share(x):
    n = 0

    def up():
        nonlocal n
        n += 1
        return n

    def get():
        return n

    up()
    graph_break()
    up()
    return up, get, get() + x, [f() for f in (lambda i=i: i * n for i in range(3))]


# -- classes ------------------------------------------------------------------------------------------------


def counting_class():
    class Net:
        count = 0
        registry = []
        table = {}

        def forward(self, x):
            type(self).count += 1
            Net.registry.append(self.count)
            self.__class__.table["last"] = x
            return x * self.count

    return Net


@case(one, factory=True)
def class_attributes_written():
    cls = counting_class()
    net = cls()
    return net.forward, (cls.registry, cls.table, lambda: cls.count)


@case(one, factory=True)
def class_attribute_read_after_write():
    cls = counting_class()

    def fn(x):
        before = cls.count
        cls.count = before + 5
        cls.fresh = x
        made = cls()
        return made.count, cls.count, made.fresh + 1, hasattr(cls, "fresh")

    return fn, cls.registry


@case(one, factory=True)
def class_attribute_deleted():
    class A:
        k = 1

    class B(A):
        k = 2

    def fn(x):
        had = "k" in B.__dict__
        if had:
            del B.k
        return x * B.k, had

    return fn


@case(one, factory=True)
def class_attribute_shadowed():
    cls = counting_class()
    a, b = cls(), cls()

    def fn(x):
        a.count = 7
        cls.count += 1
        return a.count, b.count, x

    return fn, (a, b)


@case(one, factory=True)
def class_attribute_changed_between_calls():
    cls = counting_class()
    cls.k = 1

    def fn(x):
        return x * cls.k

    def outer(x):
        y = fn(x)
        cls.k += 1
        return y

    return outer


@case(one, factory=True)
def method_patched_between_calls():
    class Net:
        def act(self, x):
            return x + 1

    net = Net()
    calls = itertools.count()

    def fn(x):
        return net.act(x)

    def outer(x):
        n = next(calls)
        if n == 1:
            Net.act = lambda self, x: x * 5
        if n == 2:
            net.act = lambda x: x * 7
        return fn(x)

    return outer, net


@case(one, factory=True)
def method_patched_inside():
    class Net:
        def act(self, x):
            return x + 1

    net = Net()

    def fn(x):
        y = net.act(x)
        Net.act = lambda self, v: v * 5
        return y, net.act(x)

    return fn, net


@case(one, factory=True)
def base_class_changed_between_calls():
    class Base:
        k = 1

    class Net(Base):
        def go(self, x):
            return x * self.k

    net = Net()

    def outer(x):
        y = net.go(x)
        Base.k += 1
        return y

    return outer


# -- instances ----------------------------------------------------------------------------------------------


class Slotted:
    __slots__ = ("n", "items", "__dict__")

    def __init__(self):
        self.n = 0
        self.items = []


class Guarded:
    def __init__(self):
        object.__setattr__(self, "log", [])

    def __setattr__(self, name, value):
        self.log.append(name)
        object.__setattr__(self, name, value)

    def __delattr__(self, name):
        self.log.append("del " + name)
        object.__delattr__(self, name)


class Celsius:
    def __init__(self):
        self._t = 0.0

    @property
    def t(self):
        return self._t

    @t.setter
    def t(self, value):
        self._t = value * 2

    @t.deleter
    def t(self):
        self._t = None


@case(one, factory=True, fullgraph=True)
def slots_written():
    s = Slotted()

    def fn(x):
        s.n += 1
        s.items.append(s.n)
        s.extra = x
        return x * s.n

    return fn, s


@case(one, factory=True, fullgraph=True)
def setattr_hook():
    g = Guarded()

    def fn(x):
        g.a = x
        g.b = 1
        del g.b
        setattr(g, "c", len(g.log))
        return g.a + g.c

    return fn, g


@case(one, factory=True, fullgraph=True)
def property_setters():
    c = Celsius()

    def fn(x):
        c.t = c.t + 1 if c.t else 1.0
        first = c.t
        del c.t
        return x * first, c.t

    return fn, c


@case(one, factory=True)
def attributes_added_and_deleted():
    box = types.SimpleNamespace(a=1, b=[1])

    def fn(x):
        had = hasattr(box, "c")
        if had:
            del box.c
        else:
            box.c = x
        box.a += 1
        box.__dict__["d"] = box.a
        return x, had, sorted(vars(box))

    return fn, box


@case(one, factory=True)
def order_of_new_attributes():
    class Box:
        pass

    box = Box()

    def fn(x):
        box.z = 1
        box.a = x
        box.z = 2
        box.m = 3
        del box.a
        box.a = 5
        return x

    return fn, box


@case(one, factory=True)
def instance_class_changed():
    class A:
        def go(self, x):
            return x + 1

    class B:
        def go(self, x):
            return x * 2

    a = A()

    def fn(x):
        y = a.go(x)
        a.__class__ = B
        return y, a.go(x)

    return fn


# -- aliasing -----------------------------------------------------------------------------------------------


def shared_context():
    items = [1]
    box = types.SimpleNamespace(items=items, me=None)
    box.me = box
    return items, box


@case(lambda: (vec(), *shared_context()))
def one_list_by_two_paths(x, items, box):
    items.append(2)
    box.items.append(3)
    box.me.n = len(items)
    return items is box.items, len(items), x * box.n


@case(lambda: (vec(), *shared_context()), lambda: (vec(), [1], shared_context()[1]), lambda: (vec(), *shared_context()))
def alias_comes_and_goes(x, items, box):
    items.append(x)
    return len(box.items), items is box.items


@case(one, globals={"TABLE": lambda: {"list": [1]}}, factory=True)
def argument_and_global():
    def inner(x, items):
        items.append(2)
        TABLE["n"] = len(TABLE["list"])
        return x * TABLE["n"], items is TABLE["list"]

    def fn(x):
        return inner(x, TABLE["list"])

    return fn


@case(lambda: (vec(), [1]))
def new_object_stored_twice(x, items):
    fresh = {"k": [x]}
    items.append(fresh)
    items.append(fresh)
    items.append(fresh["k"])
    items.append(items)
    return fresh, items


@case(lambda: (vec(), [1], [2]))
def objects_swapped(x, a, b):
    a[0], b[0] = b, a
    a.append(b)
    return a[0] is b, b[0] is a, x


@case(lambda: (vec(), {"a": [1]}))
def moved_between_containers(x, d):
    d["b"] = d.pop("a")
    d["b"].append(x)
    d["c"] = d["b"]
    return d["c"] is d["b"]


@case(lambda: (vec(), [[1], [2], [3]]))
def reordered(x, rows):
    first = rows[0]
    rows.reverse()
    rows[0].append("x")
    rows[:] = rows[1:]
    first.append(x)
    return rows, first


@case(lambda: (vec(), [vec(), vec()]))
def tensors_replaced_in_a_list(x, ts):
    ts[0] = ts[0] + x
    ts[1].add_(x)
    ts.append(ts[0])
    return ts[0] is ts[2], ts[1]


# -- default arguments --------------------------------------------------------------------------------------


@case(one, factory=True)
def mutated_default():
    def gather(v, seen=[], *, table={}):
        seen.append(v.shape[0])
        table[len(table)] = v
        return len(seen), len(table)

    def fn(x):
        gather(x)
        return gather(x), x + 1

    return fn, gather.__defaults__


@case(one, factory=True)
def function_attributes_as_state():
    def step(x):
        step.calls += 1
        return x * step.calls

    step.calls = 0
    return (lambda x: step(x) + step.calls), step


# -- raising and breaking -----------------------------------------------------------------------------------


def state_holder():
    return types.SimpleNamespace(n=0, items=[], table={}, tensor=torch.zeros(4))


@case(one, factory=True)
def writes_before_a_raise():
    s = state_holder()

    def fn(x):
        s.n += 1
        s.items.append(x)
        s.table["k"] = s.n
        s.tensor.add_(x)
        raise ValueError(f"n={s.n}")

    return fn, s


@case(one, factory=True)
def writes_before_a_caught_raise():
    s = state_holder()

    def risky(x):
        s.items.append(1)
        s.tensor.add_(x)
        if s.n >= 0:
            raise KeyError("k")
        s.items.append("never")

    def fn(x):
        try:
            risky(x)
        except KeyError:
            s.n += 1
        finally:
            s.table["f"] = s.n
        return x * len(s.items)

    return fn, s


@case(one, factory=True)
def writes_around_breaks():
    s = state_holder()

    def helper(x):
        s.n += 1
        graph_break()
        s.items.append(s.n)
        s.tensor = s.tensor + x
        return x * s.n

    def fn(x):
        s.table["start"] = s.n
        y = helper(x)
        s.table["mid"] = len(s.items)
        z = helper(y)
        return z, s.tensor + 1

    return fn, s


@case(one, factory=True)
def changed_by_uncaptured_code():
    s = state_holder()

    def fn(x):
        s.items.append(1)
        before = len(s.items)
        exec("s.items.append(2); s.n += 1", {"s": s})
        return x * s.n, before, len(s.items)

    return fn, s


@case(one, factory=True)
def attribute_error_after_write():
    s = state_holder()

    def fn(x):
        s.n += 1
        return x * s.missing

    return fn, s


# -- containers held by objects ------------------------------------------------------------------------------


@case(one, factory=True)
def containers_of_an_object():
    class Net:
        def __init__(self):
            self.d = collections.deque(maxlen=2)
            self.s = {1}
            self.o = collections.OrderedDict()
            self.dd = collections.defaultdict(int)
            self.c = collections.Counter()

    net = Net()

    def fn(x):
        net.d.append(len(net.s))
        net.s.add(len(net.s) + 1)
        net.o[len(net.o)] = x
        net.o.move_to_end(0)
        net.dd["n"] += 1
        net.c["n"] += 2
        return x * net.dd["n"] + net.c["n"], list(net.d), list(net.o)

    return fn, net


@case(one, factory=True)
def growing_list_of_numbers():
    seen = []

    def fn(x):
        seen.append(x.shape[0] + len(seen))
        return x * len(seen)

    return fn, seen


@case(one, factory=True, rounds=12)
def iterated_list_that_grows():
    seen = []

    def fn(x):
        for v in seen:
            x = x + v
        seen.append(1)
        return x

    return fn, seen


@case(one, factory=True, rounds=12)
def iterated_dict_that_grows():
    seen = {}

    def fn(x):
        for k, v in seen.items():
            x = x + v * k
        seen[len(seen)] = 1
        return x

    return fn, seen


test_cases = make_test(__name__)
