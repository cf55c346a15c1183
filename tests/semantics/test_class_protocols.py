"""Metaclasses, descriptors, operators and other protocols of classes. PYTEST_DONT_REWRITE: cases run as written."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

import jitpy
from tests.semantics.harness import case, make_test


def one() -> tuple[Any, ...]:
    return (torch.randn(4),)


# -- metaclasses ----------------------------------------------------------------------------------------------


class Counting(type):
    made = 0

    def __call__(cls, *args, **kwargs):
        Counting.made += 1
        return super().__call__(*args, **kwargs)


class Counted(metaclass=Counting):
    def __init__(self, t):
        self.t = t


class Duck(type):
    def __instancecheck__(cls, obj):
        return hasattr(obj, "quack")

    def __subclasscheck__(cls, sub):
        return hasattr(sub, "quack")

    def __getitem__(cls, key):
        return (cls.__name__, key)

    def __contains__(cls, item):
        return item == "in"

    def __len__(cls):
        return 7

    def __iter__(cls):
        return iter(["a", "b"])

    @property
    def loud(cls):
        return cls.__name__.upper()

    def __getattr__(cls, name):
        if name.startswith("auto_"):
            return name[5:]
        raise AttributeError(name)

    def __or__(cls, other):
        return "or"

    def __eq__(cls, other):
        return isinstance(other, Duck)

    def __hash__(cls):
        return 1

    def __bool__(cls):
        return False


class Quacker(metaclass=Duck):
    pass


class Mallard:
    def quack(self):
        return 1


class Typed:
    def __class_getitem__(cls, key):
        return f"{cls.__name__}[{key}]"


@case(one)
def metaclass_call(x):
    before = Counting.made
    c = Counted(x + 1)
    return c.t, Counting.made - before


@case(one)
def metaclass_checks(x):
    return isinstance(Mallard(), Quacker), isinstance(3, Quacker), issubclass(Mallard, Quacker), x + 1


@case(one)
def metaclass_operators(x):
    return Quacker["k"], "in" in Quacker, len(Quacker), list(Quacker), Quacker.loud, Quacker.auto_x, x


@case(one)
def metaclass_more_operators(x):
    return Quacker | 3, Quacker == Quacker, bool(Quacker), hasattr(Quacker, "missing"), x


@case(one)
def class_getitem(x):
    return Typed["a"], Typed[1, 2], x


@case(one)
def class_attributes_of_instances(x):
    m = Mallard()
    return type(m).__name__, m.__class__ is Mallard, Mallard.__mro__[1] is object, m.__module__, Mallard.__bases__, x


# -- descriptors and attribute hooks --------------------------------------------------------------------------


class Data:
    def __set_name__(self, owner, name):
        self.slot = "_" + name

    def __get__(self, obj, owner=None):
        return self if obj is None else getattr(obj, self.slot, "unset")

    def __set__(self, obj, value):
        setattr(obj, self.slot, value)

    def __delete__(self, obj):
        delattr(obj, self.slot)


class NonData:
    def __get__(self, obj, owner=None):
        return ("non-data", obj is None)


class Described:
    data = Data()
    plain = NonData()


@case(one, fullgraph=True)
def data_descriptor(x):
    d = Described()
    first = d.data
    d.data = x
    d.__dict__["data"] = "shadow"
    second = d.data
    del d.data
    return first, second + 1, d.data, d.__dict__["data"], type(Described.data).__name__


@case(one, fullgraph=True)
def non_data_descriptor(x):
    d = Described()
    before = d.plain
    d.plain = x
    return before, d.plain, Described.plain


class Fallback:
    def __init__(self):
        self.log = []

    @property
    def broken(self):
        raise AttributeError("inner")

    @property
    def read_only(self):
        return 5

    @property
    def deletable(self):
        return 1

    @deletable.deleter
    def deletable(self):
        self.log.append("deleted")

    def __getattr__(self, name):
        if name == "missing":
            raise AttributeError(f"no {name}")
        return "fallback " + name


@case(one, fullgraph=True)
def property_falls_back(x):
    f = Fallback()
    return f.broken, f.anything, hasattr(f, "missing"), getattr(f, "missing", x)


@case(one, fullgraph=True)
def property_errors(x):
    f = Fallback()
    out = []
    try:
        f.read_only = 3
    except AttributeError as error:
        out.append(str(error))
    del f.deletable
    try:
        del f.read_only
    except AttributeError as error:
        out.append(str(error))
    return out, f.log, x


class Hooked:
    def __init__(self):
        object.__setattr__(self, "log", [])

    def __getattribute__(self, name):
        if name == "secret":
            return "from getattribute"
        return super().__getattribute__(name)

    def __setattr__(self, name, value):
        self.log.append(("set", name))
        super().__setattr__(name, value)

    def __delattr__(self, name):
        self.log.append(("del", name))
        object.__delattr__(self, name)


@case(one, fullgraph=True)
def all_attribute_hooks(x):
    h = Hooked()
    h.t = x
    y = h.t + 1
    del h.t
    return y, h.secret, h.log, hasattr(h, "t")


LOOKS: list[str] = []


class Watched:
    """Notes each look at an attribute: compiling, and the code that is made, must not look at any."""

    def __getattribute__(self, name):
        LOOKS.append(name)
        if name == "gone":
            jitpy.graph_break()
            raise AttributeError(name)
        return object.__getattribute__(self, name)

    def __getattr__(self, name):
        return 3


@case(lambda: (torch.ones(2), Watched()), globals={"LOOKS": list})
def looks_at_attributes(x, given):
    made = Watched()
    made.there = 1
    given.other = x
    jitpy.graph_break()
    y = x * made.gone + made.there
    jitpy.graph_break()
    given.other = y
    return y, given.other, given.gone, made.there


class Slotted:
    __slots__ = ("a", "b", "__dict__")

    def __init__(self, a):
        self.a = a


class SlottedChild(Slotted):
    __slots__ = ("c",)


@case(one, fullgraph=True)
def slots_and_dict(x):
    s = SlottedChild(x)
    s.c = 2
    s.extra = 3
    unset = hasattr(s, "b"), getattr(s, "b", "unset")
    s.b = 1
    del s.b
    return s.a + s.c, s.__dict__, unset, hasattr(s, "b")


@case(lambda: (torch.randn(4), Slotted(torch.ones(4))), fullgraph=True)
def slots_of_argument(x, s):
    s.b = x + s.a
    s.other = 2
    s.a = 5
    return s


class Lazy:
    def __init__(self, function):
        self.function = function
        functools.update_wrapper(self, function)

    def __get__(self, obj, owner):
        return types.MethodType(self, obj) if obj is not None else self

    def __call__(self, obj, *args):
        return self.function(obj, *args)


class WithLazy:
    @Lazy
    def double(self, t):
        return t * 2


@case(one)
def descriptor_as_decorator(x):
    return WithLazy().double(x), WithLazy.double(None, x)


# -- operators ------------------------------------------------------------------------------------------------


class Vec:
    def __init__(self, v):
        self.v = v

    def __add__(self, other):
        if not isinstance(other, (Vec, int)):
            return NotImplemented
        return Vec(self.v + (other.v if isinstance(other, Vec) else other))

    def __radd__(self, other):
        return Vec(other + self.v)

    def __iadd__(self, other):
        self.v = self.v + other
        return self

    def __matmul__(self, other):
        return ("matmul", other)

    def __rmatmul__(self, other):
        return ("rmatmul", other)

    def __neg__(self):
        return Vec(-self.v)

    def __invert__(self):
        return "inverted"

    def __abs__(self):
        return "absolute"

    def __divmod__(self, other):
        return ("divmod", other)

    def __rdivmod__(self, other):
        return ("rdivmod", other)

    def __pow__(self, other, mod=None):
        return ("pow", other, mod)

    def __rpow__(self, other):
        return ("rpow", other)

    def __round__(self, n=None):
        return ("round", n)

    def __lshift__(self, other):
        return "lshift"

    def __rrshift__(self, other):
        return "rrshift"


class SubVec(Vec):
    def __radd__(self, other):
        return "sub radd"


@case(one, fullgraph=True)
def operators_everywhere(x):
    a, b = Vec(x), Vec(x + 1)
    c = a
    c += 3
    return (a + b).v, (a + 1).v, (1 + a).v, c is a, (-a).v, ~a, abs(a), a @ 2, 2 @ a, a << 1, 1 >> a


@case(one, fullgraph=True)
def more_numeric_operators(x):
    a = Vec(x)
    return divmod(a, 2), divmod(7, a), a**2, 2**a, round(a), round(a, 2), x


@case(one)
def power_with_modulus(x):
    return pow(Vec(x), 2, 5), pow(Vec(x), 2), pow(5, 2, 3), x


@case(one, fullgraph=True)
def subclass_priority(x):
    return Vec(x) + SubVec(x), (SubVec(x) + Vec(x)).v


@case(one)
def not_implemented_both_ways(x):
    try:
        Vec(x) + "text"
    except TypeError as error:
        return str(error), x


class Eq:
    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        if isinstance(other, Eq):
            return self.n == other.n
        return NotImplemented

    def __lt__(self, other):
        return self.n < other.n


@case(one, fullgraph=True)
def eq_without_hash(x):
    out = [Eq(1) == Eq(1), Eq(1) != Eq(1), Eq(1) != Eq(2), Eq(1) == 1, Eq(1) in [Eq(2), Eq(1)], [Eq(3)] == [Eq(3)]]
    try:
        {Eq(1)}
    except TypeError as error:
        out.append(str(error))
    return out, Eq(1) < Eq(2), Eq(1) > Eq(2), x


@functools.total_ordering
class Ordered:
    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return self.n == other.n

    def __lt__(self, other):
        return self.n < other.n

    def __hash__(self):
        return hash(self.n)


@case(one, fullgraph=True)
def total_ordering(x):
    a, b = Ordered(1), Ordered(2)
    return a <= b, a >= b, a > b, max(a, b).n, sorted([b, a])[0].n, min([b, a], key=lambda o: -o.n).n, x


class Declining:
    """Its methods say NotImplemented by way of others."""

    def __init__(self, n):
        self.n = n

    def _answer(self, other, value):
        return value if isinstance(other, Declining) else NotImplemented

    def __eq__(self, other):
        return super().__eq__(other) if self.n else self._answer(other, True)

    def __lt__(self, other):
        return self._answer(other, True)

    def __add__(self, other):
        return self._answer(other, "add")

    def __radd__(self, other):
        return "radd"


@case(one, fullgraph=True)
def declining_by_way_of_others(x):
    a, b = Declining(1), Declining(0)
    out = [a == a, a == Declining(1), b == 3, b != 3, b == Declining(0), a != a, a + b, 1 + a, a in [Declining(1), a]]
    try:
        b < 3
    except TypeError as error:
        out.append(str(error))
    try:
        b + 3
    except TypeError as error:
        out.append(str(error))
    return out, x + 1


class Numeric:
    def __index__(self):
        return 2

    def __int__(self):
        return 5

    def __float__(self):
        return 2.5

    def __complex__(self):
        return 1 + 2j

    def __bool__(self):
        return False

    def __len__(self):
        return 9


@case(one)
def conversions(x):
    n = Numeric()
    return int(n), float(n), complex(n), bool(n), len(n), [1, 2, 3][n], list(range(n)), hex(n), x


class Shown:
    def __repr__(self):
        return "<shown>"

    def __format__(self, spec):
        return f"formatted({spec})"


class Str(Shown):
    def __str__(self):
        return "text"


@case(one, fullgraph=True)
def text_protocols(x):
    s, t = Shown(), Str()
    return f"{s} {s!r} {s!s} {s:>5}", f"{t} {t!r} {t!s}", str(t), repr(t), format(s, "x"), x


@case(one)
def text_of_containers(x):
    s, t = Shown(), Str()
    return str([s, t]), "%s %r" % (t, t), "{} {!r}".format(s, t), x


class Box:
    def __init__(self):
        self.items = {}

    def __getitem__(self, key):
        return self.items[key]

    def __setitem__(self, key, value):
        self.items[key] = value

    def __delitem__(self, key):
        del self.items[key]

    def __contains__(self, key):
        return key in self.items

    def __iter__(self):
        return iter(self.items)

    def __len__(self):
        return len(self.items)

    def __reversed__(self):
        return iter(["reversed"])

    def __call__(self, t, *, scale=1):
        return t * scale

    def __length_hint__(self):
        return 3


@case(one, fullgraph=True)
def container_protocol(x):
    b = Box()
    b["a"] = x
    b[1, 2] = 3
    b[...] = 5
    del b[1, 2]
    return "a" in b, "z" in b, len(b), bool(Box()), list(reversed(b)), b["a"] + 1, b(x, scale=2)


class Missing(dict):
    def __missing__(self, key):
        self[key] = value = f"made {key}"
        return value


@case(one, fullgraph=True)
def missing_hook(x):
    d = Missing(a=1)
    return d["a"], d["b"], d.get("c"), d, x


class Manager:
    def __init__(self, swallow):
        self.swallow = swallow
        self.log = []

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, tb):
        self.log.append((kind.__name__ if kind else None, str(value), tb is not None))
        return self.swallow


@case(one, fullgraph=True)
def managers(x):
    with Manager(True) as a, Manager(False) as b:
        y = x + 1
        raise ValueError("inside")
    with Manager(False) as c:
        y = x + 2
    return y, a.log, b.log, c.log


test_all = make_test(__name__)
