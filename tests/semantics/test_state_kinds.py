"""State of every kind, read and written: classes, globals, modules, closures, buffers, containers that are held."""

# ruff: noqa: E741, F841
from __future__ import annotations

import collections
import os
import sys
import types

import torch
from torch import nn

from jitpy import graph_break
from tests.semantics.harness import case, make_test


def vec(n=4):
    return torch.arange(1.0, 1 + n)


def one():
    return (vec(),)


G = 1
GL = []
GD = {}


class CA:
    n = 0
    l = []
    d = {}
    __watched__ = ("n", "l", "d", "new")


class CB(CA):
    pass


@case(one, factory=True)
def class_attr_writes():
    CA.n = 0
    CA.l = []
    CA.d = {}
    CA.__dict__.get("new") is not None and delattr(CA, "new")

    def fn(x):
        CA.n += 1
        CA.l.append(CA.n)
        CA.d[CA.n] = x
        b = CB()
        b.n += 10
        b.l.append("b")
        CB.k = CA.n
        CA.new = x * 2
        return x * CA.n, b.n, CB.n, CB.k, CA.new

    return fn, CA


@case(one, globals={"G": lambda: 1, "GL": list, "GD": dict})
def global_writes(x):
    global G, GL
    G += 1
    GL.append(G)
    GL = [*GL, "new"] if G == 3 else GL
    GD[G] = GL
    GD.setdefault("t", []).append(x + G)
    graph_break()
    G *= 2
    globals()["GNEW"] = G
    return x * G, GD["t"][-1]


@case(one, globals={"G": lambda: 1})
def global_del(x):
    global G
    v = G
    del G
    try:
        G
    except NameError as e:
        m = str(e)
    G = v + 1
    return x * v, m


@case(one, factory=True)
def other_module_globals():
    mod = types.ModuleType("mm")
    mod.c = 0
    mod.l = [1]

    def fn(x):
        mod.c += 1
        mod.l.append(mod.c)
        setattr(mod, "v", x + mod.c)
        r = hasattr(mod, "gone")
        if mod.c == 2:
            del mod.l[0]
        mod.gone = 1
        del mod.gone
        return mod.v, r, mod.__dict__["c"], vars(mod)["l"] is mod.l

    return fn, mod.__dict__


@case(one, factory=True)
def closures():
    a = 0
    l = []

    def inc(k=1):
        nonlocal a
        a += k
        return a

    def mk():
        b = 0

        def step():
            nonlocal b, a
            b += 1
            a += b
            return b

        return step

    st = mk()

    def fn(x):
        inc()
        inc(5)
        s2 = mk()
        s2()
        s2()
        st()
        l.append(lambda: a)
        return x * a, st(), s2(), [f() for f in l]

    return fn, (st, inc, l)


class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.lin = nn.Linear(4, 4)
        s.register_buffer("buf", torch.zeros(4))
        s.register_buffer("np", torch.ones(4), persistent=False)
        s.register_buffer("none", None)
        s.count = 0
        s.hist = []
        s.drop = nn.Dropout(0.5)

    def forward(s, x):
        s.count += 1
        s.buf += x.detach()
        s.buf = s.buf * 2
        s.np = x.detach() + 1
        s.hist.append(s.count)
        if s.none is None:
            s.none = torch.ones(1)
        else:
            s.none = None
        return s.lin(x) + s.buf


@case(one, factory=True)
def module_buffers():
    m = M()

    def fn(x):
        return m(x), list(m._buffers), sorted(m.state_dict())

    return fn, m


@case(one, factory=True)
def module_param_replace():
    m = M()

    def fn(x):
        w = m.lin.weight
        m.lin.weight = nn.Parameter(m.lin.weight.detach() * 2)
        m.lin.bias = None
        m.extra = nn.Parameter(torch.ones(4))
        m.sub = nn.Linear(4, 4, bias=False)
        y = m.lin(x) + m.extra
        del m.extra
        r = [n for n, _ in m.named_parameters()], [n for n, _ in m.named_modules()], hasattr(m, "extra")
        try:
            m.lin.weight = torch.ones(4, 4)
        except TypeError as e:
            r += (str(e)[:60],)
        try:
            m.buf = 5
        except TypeError as e:
            r += (str(e)[:60],)
        try:
            m.nope
        except AttributeError as e:
            r += (str(e),)
        m.lin.register_parameter("bias", nn.Parameter(torch.zeros(4)))
        m.register_buffer("late", torch.ones(1))
        m.add_module("late_mod", nn.Identity())
        m.plain = m.lin
        return y + m.lin(x), r, m.plain is m.lin

    return fn, m


@case(one, factory=True)
def training_flips():
    m = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 2))
    t = [0]

    def fn(x):
        t[0] += 1
        xb = torch.stack([x, x + 1])
        m.eval()
        a = m(xb)
        m.train()
        b = m(xb)
        m[0].eval()
        c = m(xb)
        if t[0] == 2:
            m.training = False
        m[1].requires_grad_(False)
        return a, b, c, m.training, [q.training for q in m.modules()], m[1].weight.requires_grad

    return fn, m


class SA:
    def __init__(s):
        object.__setattr__(s, "log", [])
        s.a = 1

    def __setattr__(s, n, v):
        s.log.append((n, v))
        object.__setattr__(s, n, v * 2 if isinstance(v, int) else v)

    def __delattr__(s, n):
        s.log.append(("del", n))
        object.__delattr__(s, n)


@case(one, factory=True)
def setattr_log():
    o = SA()

    def fn(x):
        o.b = 3
        o.a += 1
        o.t = x
        setattr(o, "z", 5)
        del o.z
        p = SA()
        p.q = o
        vars(o)["raw"] = 1
        o.__dict__.update(k=2)
        return x * o.a, p, o.b

    return fn, o


@case(one, factory=True)
def containers_held():
    s = types.SimpleNamespace(
        l=[1, 2],
        d={"a": 1},
        s={1},
        q=collections.deque([1], 3),
        od=collections.OrderedDict(a=1, b=2, c=3),
        dd=collections.defaultdict(list),
        c=collections.Counter("aab"),
        cm=collections.ChainMap({}, {"z": 1}),
        t=(1, [2]),
        ba=bytearray(b"ab"),
        ud=collections.UserDict(a=1),
        ul=collections.UserList([1]),
    )
    n = [0]

    def fn(x):
        n[0] += 1
        s.l.append(x)
        s.l[0] = n[0]
        s.l.insert(1, "i")
        s.l.reverse()
        s.l.extend([3])
        s.l.sort(key=str) if n[0] == 2 else None
        s.l.remove("i")
        s.d.update(b=x)
        s.d.pop("a", None)
        s.d |= {"c": 3}
        s.d.setdefault("q", []).append(1)
        s.s |= {n[0], "x"}
        s.s.discard(1)
        s.s ^= {7}
        s.q.appendleft(n[0])
        s.q.rotate(1)
        s.q.extend([8, 9])
        s.od.move_to_end("a")
        s.od.move_to_end("c", last=False)
        s.od["n"] = n[0]
        p = s.od.popitem(last=False)
        s.od["a"] = 5
        s.od.setdefault("c", 1)
        s.dd["k"].append(n[0])
        s.dd["m"]
        s.c.update("abc")
        s.c["z"] -= 2
        s.c.subtract("a")
        mc = s.c.most_common(2)
        s.cm["w"] = n[0]
        s.cm = s.cm.new_child({"v": 2})
        z = s.cm["z"]
        s.t[1].append(n[0])
        s.ud["b"] = n[0]
        s.ul.append(n[0])
        return (
            x + len(s.l),
            p,
            mc,
            z,
            list(s.cm),
            +s.c,
            s.c + s.c,
            s.c & s.c,
            list(s.c.elements()),
            s.c.total(),
            dict(s.cm),
            s.cm.maps,
            s.cm.parents,
            s.ud | {"k": 1},
            s.ul + [1],
        )

    return fn, s


@case(one, factory=True)
def aliasing_kept():
    a = [1]
    s = types.SimpleNamespace(p=a, q=a, d={"a": a}, t=torch.ones(3))
    s.v = s.t[1:]

    def fn(x):
        s.p.append(2)
        s.n = s.q
        s.new = [x]
        s.new2 = s.new
        s.d["self"] = s.d
        s.v += 1
        s.w = s.t
        s.view = s.t[:2]
        y = x + 1
        s.y1 = y
        s.y2 = y.view(2, 2)
        return y, s.p is s.q, s.n is a, s.w is s.t, y

    return fn, (s, a)


@case(one, factory=True)
def effects_then_raise_then_continue():
    s = types.SimpleNamespace(l=[], t=torch.zeros(4), n=0)

    def inner(x):
        s.l.append("in")
        s.t.add_(1)
        s.n += 1
        s.new = x * s.n
        if s.n % 2:
            raise ValueError(s.n)
        return x

    def fn(x):
        s.l.append("a")
        try:
            y = inner(x)
        except ValueError as e:
            s.l.append(str(e))
            y = s.new * 2
        graph_break()
        s.l.append("b")
        return inner(y)

    return fn, s


class Prop:
    def __init__(s):
        s._v = 1
        s.reads = 0

    @property
    def v(s):
        s.reads += 1
        return s._v

    @v.setter
    def v(s, k):
        s._v = k + s.reads

    @v.deleter
    def v(s):
        s._v = -1

    @classmethod
    def make(cls, k):
        o = cls()
        o._v = k
        return o

    @staticmethod
    def st(k):
        return k * 2


@case(one, factory=True)
def props():
    o = Prop()

    def fn(x):
        o.v += 2
        a = o.v
        if a > 8:
            del o.v
        p = Prop.make(4)
        q = o.make(5)
        return x * a, p, q.v, Prop.st(3), o.st(4), Prop.v.fget(o), isinstance(Prop.__dict__["v"], property)

    return fn, o


class Base:
    def __init__(s, k):
        s.k = k

    def f(s):
        return ("base", s.k)

    @property
    def p(s):
        return s.k * 2

    @classmethod
    def c(cls):
        return cls.__name__


class Mid(Base):
    def f(s):
        return ("mid", super().f())

    @property
    def p(s):
        return super().p + 1

    @classmethod
    def c(cls):
        return ("mid", super().c())


class Other(Base):
    def f(s):
        return ("other", super(Other, s).f())


class Leaf(Mid, Other):
    def __init__(s, k):
        super().__init__(k)
        g = super
        s.z = [super(Leaf, s).f() for _ in range(2)]

    def f(s):
        def inner():
            return super(Leaf, s).f()

        return inner(), super().p, Base.f(s), super(Mid, s).f(), super(Mid, Leaf).c()


@case(one)
def supers(x):
    l = Leaf(3)
    r = [l.f(), l.c(), l.p, l.z, [c.__name__ for c in Leaf.__mro__], isinstance(l, Other)]
    try:
        super(Mid, l).zzz
    except AttributeError as e:
        r.append(str(e))
    try:
        super().x
    except RuntimeError as e:
        r.append(str(e))
    return x, r


@case(one, factory=True)
def instance_class_change():
    class A:
        def f(s):
            return 1

    class B:
        def f(s):
            return 2

    o = A()

    def fn(x):
        o.__class__ = B if isinstance(o, A) else A
        return x * o.f(), type(o).__name__

    return fn, o


@case(one, factory=True)
def dict_mutation_while_iter():
    d = {"a": 1, "b": 2}
    l = [1, 2, 3]
    s = {1}

    def fn(x):
        r = []
        try:
            for k in d:
                d[k + "x"] = 1
        except RuntimeError as e:
            r.append(str(e))
        for i, v in enumerate(l):
            if i > 6:
                break
            l.append(v + 1)
        try:
            for v in s:
                s.add(v + 100)
        except RuntimeError as e:
            r.append(str(e))
        for k in list(d):
            if k.endswith("x"):
                del d[k]
        it = iter(l)
        l.clear()
        r.append(list(it))
        it2 = iter([1])
        r += [next(it2), next(it2, "d"), next(it2, "d")]
        return x, r

    return fn, (d, l, s)


@case(one, factory=True)
def fn_attrs():
    def helper(x):
        helper.calls += 1
        return x * helper.calls

    helper.calls = 0
    helper.cfg = {"k": [1]}

    def fn(x):
        helper.cfg["k"].append(helper.calls)
        y = helper(x)

        def loc():
            pass

        loc.a = y
        loc.b = helper
        helper.last = loc
        return y, loc.a is y, helper.__dict__.keys(), helper.last.b is helper

    return fn, helper


@case(one, factory=True)
def environ_sys():
    def fn(x):
        os.environ["PROBE_X"] = "3"
        a = os.environ.get("PROBE_X"), os.getenv("PROBE_NO", "d")
        sys.modules["probe_mod"] = types
        b = "probe_mod" in sys.modules
        del sys.modules["probe_mod"], os.environ["PROBE_X"]
        return x, a, b, sys.version_info >= (3, 8), sys.maxsize

    return fn, None


@case(one, factory=True)
def monkey_inside():
    class K:
        def f(s, x):
            return x + 1

    k = K()
    mod = types.ModuleType("q")
    mod.g = lambda x: x * 2
    n = [0]

    def fn(x):
        n[0] += 1
        old = mod.g
        mod.g = lambda y: old(y) + n[0]
        k.f = lambda y: y * 100
        a = mod.g(x), k.f(x)
        mod.g = old
        del k.f
        return a, mod.g(x), k.f(x)

    return fn, (mod.__dict__, k)


test_all = make_test(__name__)
