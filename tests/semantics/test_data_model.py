"""The data model: metaclasses, descriptors, slots, special methods and what stands in for missing ones."""

# ruff: noqa: E741, F841
from __future__ import annotations

import collections
import functools
import math
import operator
import types
import typing

import torch

from tests.semantics.harness import case, make_test


def vec(n=4):
    return torch.arange(1.0, 1 + n)


def one():
    return (vec(),)


class MetaCall(type):
    count = 0

    def __call__(cls, *a, **k):
        MetaCall.count += 1
        obj = super().__call__(*a, **k)
        obj.made = MetaCall.count
        return obj


class WithMetaCall(metaclass=MetaCall):
    def __init__(self, k):
        self.k = k


@case(one, factory=True)
def metaclass_call():
    MetaCall.count = 0

    def fn(x):
        o = WithMetaCall(3)
        p = WithMetaCall(4)
        return x * o.k + p.made, o, MetaCall.count

    return fn, None


class Singleton(type):
    _inst = {}

    def __call__(cls, *a, **k):
        if cls not in cls._inst:
            cls._inst[cls] = super().__call__(*a, **k)
        return cls._inst[cls]


class Config(metaclass=Singleton):
    def __init__(self):
        self.n = 0


@case(one, factory=True)
def singleton_meta():
    Singleton._inst.clear()

    def fn(x):
        c = Config()
        c.n += 1
        return x * c.n, c is Config()

    return fn, Singleton._inst


@case(one)
def prepare_meta(x):
    class M(type):
        @classmethod
        def __prepare__(mcs, name, bases, **kw):
            d = collections.OrderedDict()
            d["pre"] = kw.get("p", 0)
            return d

        def __new__(mcs, name, bases, ns, **kw):
            ns["order"] = [k for k in ns if not k.startswith("__")]
            return super().__new__(mcs, name, bases, dict(ns))

        def __init__(cls, name, bases, ns, **kw):
            super().__init__(name, bases, ns)

    class A(metaclass=M, p=3):
        b = 1
        a = 2

        def f(self):
            return self.pre

    return x * A().f(), A.order


REG = []


class PluginBase:
    def __init_subclass__(cls, /, tag=None, **kw):
        super().__init_subclass__(**kw)
        cls.tag = tag
        REG.append((cls.__name__, tag))


class Named:
    def __set_name__(self, owner, name):
        self.name = name
        self.owner = owner.__name__

    def __get__(self, o, t=None):
        return (self.name, self.owner) if o is None else o.__dict__.get("_" + self.name, 7)


@case(one, factory=True)
def init_subclass_local():
    REG.clear()

    def fn(x):
        class P(PluginBase, tag="t"):
            f = Named()

        return x * P().f, P.tag, P.f, list(REG)

    return fn, REG


class CG:
    def __class_getitem__(cls, k):
        return (cls.__name__, k)


@case(one)
def class_getitem(x):
    return x + len(CG[3]), CG["a"], list[int] == list[int], dict[str, int].__origin__, typing.List[int].__args__


class GA:
    def __init__(self):
        self.log = []
        self.v = 2

    def __getattribute__(self, n):
        if n.startswith("_") or n == "log":
            return object.__getattribute__(self, n)
        object.__getattribute__(self, "log").append(n)
        if n == "w":
            raise AttributeError("no w")
        return object.__getattribute__(self, n)

    def __getattr__(self, n):
        return ("dyn", n)


@case(one, factory=True)
def getattribute_log():
    o = GA()

    def fn(x):
        a = o.w
        b = o.zz
        return x * o.v, a, b, hasattr(o, "w"), getattr(o, "q", 5)

    return fn, o


class OnlySet:
    def __set__(self, o, v):
        o.__dict__["x"] = v * 2


class OnlyDel:
    def __delete__(self, o):
        o.__dict__["deleted"] = o.__dict__.get("deleted", 0) + 1


class HasOnly:
    x = OnlySet()
    y = OnlyDel()


@case(one, factory=True)
def only_set_delete():
    o = HasOnly()

    def fn(t):
        o.x = 3
        del o.y
        r = [o.x, o.deleted]
        try:
            o.y = 4
        except AttributeError as e:
            r.append(str(e))
        try:
            del o.x
        except AttributeError as e:
            r.append(str(e))
        r.append(type(HasOnly().x).__name__)
        return t * o.x, r

    return fn, o


class S1:
    __slots__ = ("a", "b")


class S2(S1):
    __slots__ = ("c",)

    def __init__(self):
        self.a = 1
        self.c = 3


class S3(S2):
    pass


@case(one, factory=True)
def slots_inherit():
    o = S2()
    q = S3()

    def fn(x):
        r = []
        o.a += 1
        q.d = o.a
        try:
            o.b
        except AttributeError as e:
            r.append(str(e))
        try:
            o.zz = 1
        except AttributeError as e:
            r.append(str(e))
        if hasattr(o, "c"):
            del o.c
        else:
            o.c = 9
        r.append(hasattr(q, "__dict__"))
        r.append(hasattr(o, "__dict__"))
        n = S3()
        n.b = x
        return x * o.a, r, n

    return fn, (o, q)


LOG = []


class Del:
    def __init__(self, n):
        self.n = n

    def __del__(self):
        LOG.append(self.n)


@case(one, factory=True)
def del_timing():
    LOG.clear()

    def fn(x):
        a = Del("a")
        LOG.append("made")
        a = None
        LOG.append("gone")
        b = Del("b")
        y = x + 1
        del b
        LOG.append("end")
        return y, list(LOG)

    return fn, LOG


class Missing(dict):
    def __missing__(self, k):
        v = self[k] = k * 2
        return v


@case(one, factory=True)
def dict_missing():
    d = Missing()

    def fn(x):
        r = d[3], d.get(4), 4 in d, d[5]
        try:
            {}.__getitem__(3)
        except KeyError as e:
            r += (str(e),)
        return x * d[3], r

    return fn, d


class Idx:
    def __init__(self, n):
        self.n = n

    def __index__(self):
        return self.n


@case(one)
def index_protocol(x):
    i = Idx(2)
    l = [1, 2, 3, 4]
    return (
        x[i],
        l[i],
        l[i:],
        range(i),
        hex(i),
        x[: Idx(3)],
        operator.index(i),
        "a" * 2,
        [0] * i,
        bin(i),
        list(range(10))[::i],
        (1, 2, 3)[Idx(-1)],
        chr(Idx(65)),
        bytes(Idx(3)),
        math.factorial(Idx(4)),
        round(3.14159, Idx(2)),
        int("11", Idx(2)),
        torch.zeros(Idx(2)),
    )


class Cont:
    def __contains__(self, k):
        return "yes" if k > 2 else ""


class ItC:
    def __iter__(self):
        return iter([1, 2.0, "a"])


class GI:
    def __getitem__(self, i):
        if i > 3:
            raise IndexError(i)
        return i * i


@case(one)
def contains_fallbacks(x):
    r = [
        3 in Cont(),
        1 in Cont(),
        2 in ItC(),
        "b" in ItC(),
        9 in GI(),
        8 in GI(),
        list(GI()),
        list(ItC()),
        3 not in Cont(),
    ]
    try:
        3 in object()
    except TypeError as e:
        r.append(str(e))
    try:
        len(GI())
    except TypeError as e:
        r.append(str(e))
    a, *b = GI()
    return (
        x + a,
        r,
        b,
        max(GI()),
        sorted(GI(), reverse=True),
        list(reversed([1, 2])),
        dict(enumerate(GI())),
        list(zip(GI(), ItC())),
        tuple(map(lambda v: v + 1, GI())),
    )


class B1:
    def __bool__(self):
        return False


class L1:
    def __init__(s, n):
        s.n = n

    def __len__(self):
        return self.n


class BadB:
    def __bool__(self):
        return 3


class BadL:
    def __len__(self):
        return -1


@case(one)
def bool_len(x):
    r = [bool(B1()), bool(L1(0)), bool(L1(3)), not L1(0), B1() or 5, L1(2) and 6, bool(object())]
    for f in (BadB(), BadL()):
        try:
            r.append(bool(f))
        except Exception as e:
            r.append((type(e).__name__, str(e)))
    try:
        len(BadL())
    except Exception as e:
        r.append((type(e).__name__, str(e)))
    if L1(0):
        r.append("no")
    while L1(0):
        pass
    return (
        x,
        r,
        any([B1(), L1(1)]),
        all([L1(1), B1()]),
        list(filter(None, [L1(0), 3, 0])),
        sum(map(bool, [L1(1), L1(0)])),
    )


class N:
    def __init__(s, v, log):
        s.v = v
        s.log = log

    def __add__(s, o):
        s.log.append(("add", type(s).__name__))
        return NotImplemented if isinstance(o, str) else N(s.v + getattr(o, "v", o), s.log)

    def __radd__(s, o):
        s.log.append(("radd", type(s).__name__))
        return N(s.v * 10, s.log)

    def __lt__(s, o):
        s.log.append("lt")
        return NotImplemented

    def __gt__(s, o):
        s.log.append("gt")
        return True

    def __eq__(s, o):
        s.log.append("eq")
        return NotImplemented

    __hash__ = None


class NS(N):
    def __radd__(s, o):
        s.log.append("sub radd")
        return "sub"

    def __eq__(s, o):
        s.log.append("sub eq")
        return "subeq"


class NS2(N):
    pass


@case(one, factory=True)
def reflected():
    log = []

    def fn(x):
        n, s, q = N(1, log), NS(2, log), NS2(3, log)
        r = [n + s, s + n, n + q, 5 + n, n + 5, n < s, n == s, s == n, n == q, n != s, n == 3]
        try:
            n + "a"
        except TypeError as e:
            r.append(str(e))
        try:
            n < 3
        except TypeError as e:
            r.append(str(e))
        try:
            hash(n)
        except TypeError as e:
            r.append(str(e))
        n += 3
        r.append(n)
        r.append(sum([n, 3]))
        return x * n.v, r

    return fn, log


class IA:
    def __init__(s):
        s.items = []

    def __iadd__(s, o):
        s.items.append(o)
        return s

    def __imul__(s, o):
        return NotImplemented

    def __mul__(s, o):
        return ("mul", o)

    def __isub__(s, o):
        return "replaced"

    def __ior__(s, o):
        s.items.append(o)

    def __matmul__(s, o):
        return ("mm", o)

    def __imatmul__(s, o):
        s.items.append("imm")
        return s


@case(one, factory=True)
def inplace_fallbacks():
    o = IA()
    h = types.SimpleNamespace(o=o, l=[o])

    def fn(x):
        a = o
        a += 1
        a += x
        b = a
        b *= 3
        c = a
        c -= 1
        d = a
        d |= 4
        e = a
        e @= 4
        h.l[0] += 5
        h.o += 6
        t = ([1],)
        try:
            t[0].__iadd__([2])
            t[0] += [3]
        except TypeError as err:
            m = str(err)
        return a is o, b, c, d, e is o, t, m

    return fn, h


@functools.total_ordering
class TO:
    def __init__(s, v):
        s.v = v

    def __eq__(s, o):
        return s.v == o.v if isinstance(o, TO) else NotImplemented

    def __lt__(s, o):
        return s.v < o.v if isinstance(o, TO) else NotImplemented


@case(one)
def total_order(x):
    a, b = TO(1), TO(2)
    r = [
        a < b,
        a <= b,
        a > b,
        a >= b,
        a == b,
        a != b,
        max(a, b).v,
        [o.v for o in sorted([b, a])],
        min([b, a], key=lambda o: -o.v).v,
    ]
    try:
        a >= 3
    except TypeError as e:
        r.append(str(e))
    return x * a.v, r


@case(one, factory=True)
def lru_state():
    calls = []

    @functools.lru_cache(maxsize=2)
    def f(n, k=1):
        calls.append(n)
        return n * k

    @functools.cache
    def g(n):
        return n + 1 if n < 1 else g(n - 1) + 1

    n = [0]

    def fn(x):
        n[0] += 1
        r = [f(1), f(2), f(1), f(3), f(2), f(1.0), g(5), f.cache_info(), g.cache_info(), f.cache_parameters()]
        if n[0] == 3:
            f.cache_clear()
        try:
            f([])
        except TypeError as e:
            r.append(str(e))
        return x * f(1), r, f.__wrapped__(4)

    return fn, calls


class CP:
    n = 0

    @functools.cached_property
    def v(self):
        self.n += 1
        return self.n * 2


@case(one, factory=True)
def cached_prop():
    o = CP()
    t = [0]

    def fn(x):
        t[0] += 1
        a = o.v
        b = o.v
        if t[0] == 2:
            del o.v
        if t[0] == 3:
            o.v = 50
        return x * o.v, a, b, "v" in o.__dict__, vars(o)

    return fn, o


@case(one, factory=True)
def singledisp():
    @functools.singledispatch
    def f(a):
        return "base"

    @f.register
    def _(a: int):
        return ("int", a)

    @f.register(list)
    def _l(a):
        return ("list", len(a))

    t = [0]

    def fn(x):
        t[0] += 1
        r = [
            f(1),
            f([1]),
            f("a"),
            f(True),
            f(x),
            f.dispatch(bool) is f.dispatch(int),
            sorted(k.__name__ for k in f.registry),
        ]
        if t[0] == 2:
            f.register(str, lambda a: "str!")
        return x, r

    return fn, None


class SDM:
    @functools.singledispatchmethod
    def f(self, a):
        return ("base", a)

    @f.register
    def _(self, a: int):
        return ("int", a + self.k)

    def __init__(self):
        self.k = 5

    h = functools.partialmethod(f, 3)


@case(one)
def singledispatchmethod_(x):
    o = SDM()
    return x, o.f(1), o.f("a"), o.f(x), o.h()


class PM:
    def f(self, a, b=1, *c, **d):
        return (a, b, c, sorted(d.items()))

    g = functools.partialmethod(f, 1, 2, k=3)
    c = classmethod(lambda cls, v: (cls.__name__, v))
    cp = functools.partialmethod(c, 8)

    @staticmethod
    def s(v):
        return v


@case(one)
def partialmethods(x):
    o = PM()
    return (
        x,
        o.g(4, z=5),
        o.cp(),
        PM.g(o, 9),
        o.s(2),
        PM.s(3),
        o.c(1),
        PM.c(2),
        PM.f(o, 1),
        o.f.__func__ is PM.f,
        o.f == o.f,
        o.f is o.f,
    )


class WrongKind:
    def __init__(self, answer):
        self.answer = answer

    def __index__(self):
        return self.answer

    def __int__(self):
        return self.answer

    def __iter__(self):
        return iter((1, 2))

    def __length_hint__(self):
        return self.answer


class NoContainer:
    __contains__ = None

    def __iter__(self):
        return iter((1, 2))


def said(function, *args):
    try:
        return function(*args)
    except (TypeError, ValueError) as error:
        return type(error).__name__, str(error)


@case(*(lambda a=a: (vec(), a) for a in (0, 2, 5, -1, "a", None, NotImplemented, 1.5)))
def special_methods_that_return_other_things(x, answer):
    made = WrongKind(answer)
    functions = (int, operator.index, operator.length_hint, list, tuple, lambda v: [0, *v], range, lambda v: [1, 2][v:])
    return x + 1, [said(function, made) for function in functions]


@case(one)
def no_containers(x):
    return x + 1, said(lambda: 1 in NoContainer()), said(lambda: 9 not in NoContainer()), list(NoContainer())


test_all = make_test(__name__)
