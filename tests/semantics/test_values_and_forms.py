"""Patterns, texts, numbers at their limits, star expressions, deletions, copies, signatures. PYTEST_DONT_REWRITE."""

# ruff: noqa: E741, F821, F524, F525, F841
from __future__ import annotations

import bisect
import cmath
import collections
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import heapq
import inspect
import json
import math
import numbers
import operator
import re
import statistics
import string
import struct
import textwrap
import types
import typing

import torch

from tests.semantics.harness import case, make_test


def vec(n=4):
    return torch.arange(1.0, 1 + n)


def one():
    return (vec(),)


class Pt:
    __match_args__ = ("x", "y")

    def __init__(s, x, y):
        s.x = x
        s.y = y


@dataclasses.dataclass
class DC:
    a: int
    b: object = None


class Col(enum.Enum):
    R = 1
    G = 2


class NT(typing.NamedTuple):
    p: int
    q: int = 2


def m(v):
    match v:
        case 0 | 1 | -1:
            return "small"
        case True:
            return "never"
        case 2.5:
            return "float"
        case "a" | "b" as s:
            return ("s", s)
        case b"x":
            return "bytes"
        case None:
            return "none"
        case Col.R:
            return "red"
        case Col():
            return "col"
        case int(n) if n > 100:
            return ("big", n)
        case int(n):
            return ("int", n)
        case str():
            return "str"
        case NT(p, q=3):
            return ("nt3", p)
        case [1, 2, *rest]:
            return ("l12", rest)
        case (a, b):
            return ("pair", a, b)
        case [x, [y, *_], {"k": k}]:
            return ("nest", x, y, k)
        case []:
            return "empty"
        case [*_, last]:
            return ("last", last)
        case {"type": "A", **rest}:
            return ("A", rest)
        case {"type": t, "v": [v0, _]}:
            return (t, v0)
        case {}:
            return "map"
        case Pt(0, y=yy):
            return ("origin", yy)
        case Pt(x=xx, y=Pt(a, b)):
            return ("nested", xx, a, b)
        case Pt(x, y):
            return ("pt", x, y)
        case DC(a=1):
            return "dc1"
        case DC(a, b):
            return ("dc", a, b)
        case torch.Tensor() as t if t.dim() == 1:
            return ("t1", t.shape)
        case torch.Tensor(shape=(p, q)):
            return ("t2", p, q)
        case set():
            return "set"
        case float() | complex():
            return "num"
        case type():
            return "type"
        case _:
            return "other"


@case(one)
def matching(x):
    vals = [
        0,
        1,
        True,
        -1,
        2.5,
        "a",
        "zz",
        b"x",
        b"y",
        None,
        Col.R,
        Col.G,
        500,
        7,
        NT(1, 3),
        NT(1),
        NT(1, 2),
        [1, 2, 3],
        (1, 2),
        (4, 5),
        [1, [2, 3], {"k": x}],
        [],
        [1, 2, 3, 4],
        {"type": "A", "z": 1},
        {"type": "B", "v": [1, 2]},
        {},
        {"q": 1},
        Pt(0, 3),
        Pt(1, Pt(2, 3)),
        Pt(1, 2),
        DC(1),
        DC(2, 3),
        x,
        x.reshape(2, 2),
        {1},
        1.5,
        2j,
        int,
        object,
        range(2),
        collections.deque([1, 2]),
        collections.OrderedDict(type="A"),
        iter([1]),
        "ab",
        frozenset(),
        types.SimpleNamespace(),
        slice(1),
    ]
    return x, [m(v) for v in vals]


@case(one)
def match_errors(x):
    class Bad:
        __match_args__ = ["a"]

    class Dup:
        __match_args__ = ("a", "a")
        a = 1

    class NoA:
        pass

    r = []
    for v in (Bad(), Dup(), NoA(), 3):
        try:
            match v:
                case Bad(q):
                    r.append(q)
                case Dup(1, 1):
                    r.append("d")
                case NoA(1):
                    r.append("n")
                case int(1, 2):
                    r.append("i")
        except TypeError as e:
            r.append(str(e))
    return x, r


class Fmt:
    def __format__(s, spec):
        return f"<{spec}>"

    def __repr__(s):
        return "R"

    def __str__(s):
        return "S"


class OnlyRepr:
    def __repr__(s):
        return "onlyr"


@case(one)
def fstrings(x):
    n, f, s, w = 42, 3.14159, "text", 10
    o = Fmt()
    p = OnlyRepr()
    r = [
        f"{n:>{w}}|{n:<8d}|{n:^+9,}|{n:#x}|{n:08b}|{n:_}|{n!r:>5}",
        f"{f:.2f} {f:{w}.{3}} {f:e} {f:g} {f:%} {f:+.1f}",
        f"{s!r} {s:>10} {s:*^12} {s!a} {s:.2}",
        f"{o} {o:abc} {o!r} {o!s:>4}",
        f"{p} {p!r:>8}",
        f"{{}} {n=} {f = :.1f} {s=!s} {x.shape=}",
        f"{[1, 'a']} {(1,)} {None} {True:d} {1e100} {1e16} {-0.0} {float('nan')} {float('inf'):f}",
        "%5.2f|%-6s|%r|%x|%%|%+d|%s" % (f, s, s, n, n, x.shape),
        "%(a)s %(b)05d" % {"a": 1, "b": 2},
        "{0} {1!r:>6} {k[a]} {o.x} {:>{w}}".format(1, "s", k={"a": 5}, o=types.SimpleNamespace(x=2), w=3)
        if False
        else "{0} {1!r:>6} {k[a]} {o.x}".format(1, "s", k={"a": 5}, o=types.SimpleNamespace(x=2)),
        "{:>{w}}".format(1, w=4),
        format(n, ">6"),
        format(f),
        "{}".format(Col.R),
        f"{Col.G} {Col.G!r} {Col.G.name} {Col.G.value}",
        str(x.dtype),
        f"{x.size()} {x.dim()} {x.numel()}",
        f"{1 + 2j} {b'q'} {range(3)} {slice(1, 2)} {Ellipsis}",
        f"{1_000_000:,} {123456789.123:,.2f} {0.1 + 0.2} {1 / 3!r}",
        f"{DC(1, 'z')} {NT(1)} {type(n).__name__} {int}",
    ]
    for bad in ("{:d}", "{:q}", "{:.2d}"):
        try:
            bad.format("a" if bad == "{:d}" else 3)
        except ValueError as e:
            r.append(str(e))
    return x, r


@case(one)
def bigints(x):
    a = 2**100
    b = -(3**70)
    r = [
        a,
        b,
        a * b,
        a // b,
        a % b,
        divmod(a, b),
        a >> 90,
        a << 3,
        a & b,
        a | b,
        a ^ b,
        ~a,
        a.bit_length(),
        a.bit_count(),
        int(1e20),
        hash(a),
        a == float(a),
        a < 1e31,
        float(a),
        a / b,
        pow(3, 200, 1000007),
        pow(7, -1, 13),
        -7 // 2,
        -7 % 3,
        7 // -2,
        divmod(-7, 2),
        int("ff", 16),
        int(-3.9),
        round(2.5),
        round(3.5),
        round(-2.5),
        round(12345, -2),
        round(2.675, 2),
        int.from_bytes(b"\x01\x02", "big"),
        (1000).to_bytes(2, "little"),
        math.isqrt(a),
        math.gcd(12, 18, 27),
        math.lcm(4, 6),
        math.comb(10, 3),
        math.perm(5, 2),
        True + True,
        ~True,
        True & False,
        True / 2,
        (5).__floordiv__(2),
        int.__add__(1, 2),
        (2).conjugate(),
        (3).real,
        0**0,
        0.0**0,
        1 if 0.1 + 0.2 == 0.3 else 2,
    ]
    return x * 2, r


@case(one)
def int_overflow_tensor(x):
    r = []
    big = 2**70
    for f in (
        lambda: x + big,
        lambda: torch.tensor(2**63),
        lambda: torch.tensor([1, 2]) + 2**63,
        lambda: torch.full((2,), 2**64),
        lambda: torch.arange(3) * 2**62,
        lambda: torch.tensor([1], dtype=torch.int8) + 200,
        lambda: torch.tensor([100], dtype=torch.uint8) * 3,
        lambda: torch.tensor([1], dtype=torch.uint8) - 2,
        lambda: x.to(torch.int64) * big,
        lambda: torch.tensor(3.7).to(torch.int8),
        lambda: x * 1e400,
        lambda: x * float(2**60),
        lambda: torch.tensor([1]) // -2,
        lambda: torch.tensor([-7]) % 3,
        lambda: x**2**65,
        lambda: torch.tensor([2]) ** -1,
        lambda: torch.full((2,), 300, dtype=torch.uint8),
        lambda: x.int().fill_(2**40),
        lambda: torch.zeros(2, dtype=torch.bool) + 5,
        lambda: torch.arange(2**63, 2**63 + 2),
    ):
        try:
            r.append(f())
        except Exception as e:
            r.append((type(e).__name__, str(e)[:120]))
    return r


@case(one)
def float_corners(x):
    nan = float("nan")
    inf = math.inf
    d = {nan: 1}
    d[nan] = 2
    d[float("nan")] = 3
    s = {nan, float("nan"), 0.0, -0.0, 1, True, 1.0}
    r = [
        len(d),
        d[nan],
        len(s),
        nan in [nan],
        nan == nan,
        [nan] == [nan],
        (nan,) == (float("nan"),),
        min(nan, 1.0),
        max(1.0, nan),
        min([1, nan]),
        sorted([3, nan, 1]),
        -0.0 == 0.0,
        math.copysign(1, -0.0),
        str(-0.0),
        0.0 * -1,
        inf - inf,
        inf > 10**400,
        math.fmod(-7, 3),
        -7.5 % 3,
        -7.5 // 3,
        divmod(-7.5, 2),
        divmod(7, -2.5),
        1e308 * 10,
        math.floor(-0.5),
        math.ceil(-0.5),
        math.trunc(-2.7),
        round(-0.4),
        round(0.5),
        round(1.5),
        round(1e300),
        round(2.5, 1),
        round(1234.5678, -2),
        (0.1).as_integer_ratio(),
        (0.5).hex(),
        float.fromhex("0x1p-2"),
        (3.0).is_integer(),
        math.isclose(1, 1 + 1e-10),
        math.frexp(8.5),
        math.modf(-3.5),
        math.ldexp(0.5, 3),
        math.hypot(3, 4),
        math.fsum([0.1] * 10),
        sum([0.1] * 10),
        math.prod([1.5, 2]),
        math.dist([0, 0], [3, 4]),
        math.log(8, 2),
        math.log2(8),
        math.log1p(1e-10),
        math.nextafter(1, 2),
        math.ulp(1.0),
        math.remainder(7, 4),
        float("1e-400"),
        5e-324 / 2,
        1e16 + 1,
        int(1e16) + 1,
        float(2**53 + 1),
        3 == 3.0,
        hash(3.0) == hash(3),
        True == 1.0,
        complex(1, -0.0),
        abs(3 + 4j),
        (1 + 2j) * 2,
        (1j) ** 2,
        cmath.sqrt(-1),
        float(" 1.5 "),
        float("-inf"),
        float("1_0"),
    ]
    return x * nan, x * inf, x * -0.0, r


@case(one)
def star_exprs(x):
    a, *b, c = range(6)
    (*d,) = "abc"
    (e, *f), g = (1, 2, 3), 4
    [*h, i] = {1: 2, 3: 4}
    j = [*b, *d, *{5: 1}]
    k = {**{"a": 1}, "b": 2, **{"a": 3}}
    l = (*j, a)
    mm = {*b, *b}

    def ff(*a, **k):
        return a, k

    r = [a, b, c, d, e, f, g, h, i, j, k, l, mm, ff(*b, *d, x=1, **k, **{"z": 5})]
    for bad in (lambda: ff(**{"a": 1}, **{"a": 2}), lambda: ff(*5), lambda: ff(**{1: 2})):
        try:
            bad()
        except TypeError as er:
            r.append(str(er).split(".")[-1])
    try:
        p, q = [1, 2, 3]
    except ValueError as er:
        r.append(str(er))
    try:
        p, q, *s = [1]
    except ValueError as er:
        r.append(str(er))
    for n, (o, *p) in enumerate([(1, 2, 3), "xy"]):
        r.append((n, o, p))
    u, v = x[0], x[1:]
    w, *y = x
    return r, w, y, *b, u


@case(one, factory=True)
def default_mutated():
    def f(a, l=[], *, d={}):
        l.append(a)
        d[a] = len(l)
        return l, d

    n = [0]

    def fn(x):
        n[0] += 1
        if n[0] == 3:
            f.__defaults__ = ([100],)
        if n[0] == 4:
            f.__kwdefaults__["d"] = {"new": 1}
        return f(n[0]), x + len(f(0)[0])

    return fn, f


@case(one)
def dels(x):
    a = 1
    l = [1, 2, 3, 4, 5]
    d = {"a": 1, "b": 2}
    o = types.SimpleNamespace(z=1)
    r = []
    del a
    try:
        a
    except UnboundLocalError as e:
        r.append(str(e))
    del l[0], l[-1], l[0:1]
    del d["a"], o.z
    for f in (lambda: d.__delitem__("zz"), lambda: l.__delitem__(9), lambda: delattr(o, "q")):
        try:
            f()
        except Exception as e:
            r.append((type(e).__name__, str(e)))
    try:
        del d["no"]
    except KeyError as e:
        r.append(e.args)

    def g():
        nonlocal x
        y = x
        del x
        try:
            x
        except NameError as e:
            r.append(str(e))
        return y

    y = g()
    try:
        x
    except NameError as e:
        r.append((type(e).__name__, str(e)))
    l2 = list(range(10))
    del l2[::2]
    l2[1:3] = "ab"
    l2[::2] = [7, 8, 9]
    try:
        l2[::2] = [1]
    except ValueError as e:
        r.append(str(e))
    try:
        del y[0]
    except TypeError as e:
        r.append(str(e))
    return y, r, l, d, o, l2


@case(one, factory=True)
def deepcopies():
    lin = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    shared = [1]
    data = {
        "a": shared,
        "b": shared,
        "o": Pt(1, shared),
        "dc": DC(1, {2}),
        "nt": NT(1, 2),
        "t": torch.ones(2),
        "cyc": [],
    }
    data["cyc"].append(data)

    def fn(x):
        c = copy.deepcopy(data)
        s = copy.copy(data)
        l2 = copy.deepcopy(lin)
        y = l2(torch.stack([x, x]))
        dc = dataclasses.replace(data["dc"], b=4)
        return (
            y.shape,
            c["a"] is c["b"],
            c["o"].y is c["a"],
            c["cyc"][0] is c,
            s["a"] is shared,
            c,
            l2[0].weight is lin[0].weight,
            l2,
            dc,
            copy.copy(data["o"]),
            copy.deepcopy(x) is x,
            copy.copy(x).data_ptr() == x.data_ptr(),
        )

    return fn, (lin, data)


class Cpy:
    def __init__(s, v):
        s.v = v

    def __copy__(s):
        return Cpy(("copy", s.v))

    def __deepcopy__(s, memo):
        memo["z"] = 1
        return Cpy(("deep", copy.deepcopy(s.v, memo)))


class Red:
    def __init__(s, v):
        s.v = v

    def __reduce__(s):
        return (Red, (s.v,), {"extra": 1})


class GS:
    def __init__(s):
        s.a = 1
        s.cache = 5

    def __getstate__(s):
        return {"a": s.a}

    def __setstate__(s, st):
        s.__dict__.update(st)
        s.cache = None


@case(one)
def copy_protocol(x):
    a = copy.copy(Cpy(1)).v
    b = copy.deepcopy([Cpy([1])])[0].v
    c = copy.deepcopy(Red([1]))
    d = copy.copy(GS())
    e = copy.deepcopy(GS())
    return (
        x,
        a,
        b,
        c,
        d,
        e,
        copy.copy([1, [2]]),
        copy.copy({1}),
        copy.deepcopy((1, [2])),
        copy.deepcopy(collections.OrderedDict(a=[1])),
        copy.copy(collections.deque([1], 3)),
        copy.deepcopy(collections.defaultdict(list, a=[1])),
    )


@case(one)
def sigs(x):
    def f(a, b=1, /, c=2, *args, d, e=3, **kw) -> int:
        pass

    s = inspect.signature(f)
    r = [
        str(s),
        list(s.parameters),
        s.parameters["d"].kind.name,
        s.parameters["c"].default,
        s.parameters["a"].default is inspect.Parameter.empty,
        s.return_annotation,
    ]
    b = s.bind(1, 2, d=4, z=5)
    b.apply_defaults()
    r += [b.arguments, b.args, b.kwargs]
    try:
        s.bind()
    except TypeError as e:
        r.append(str(e))
    r += [
        str(inspect.signature(DC)),
        str(inspect.signature(Pt)),
        inspect.getfullargspec(f).kwonlyargs,
        inspect.isfunction(f),
        inspect.ismethod(Pt(1, 2).__init__),
        inspect.isclass(Pt),
        inspect.getdoc(f),
        callable(f),
        f.__code__.co_argcount,
        f.__code__.co_varnames[:3],
        inspect.iscoroutinefunction(f),
    ]
    if "c" in inspect.signature(f).parameters:
        x = x + 1
    return x, r


@case(one, factory=True)
def types_stuff():
    d = {"a": 1}
    mp = types.MappingProxyType(d)
    ns = types.SimpleNamespace(a=1, b=[2])

    class K:
        def __init__(s):
            s.v = 2

        def f(s, y):
            return y * s.v

    k = K()
    bound = types.MethodType(lambda self, y: y + self.v, k)

    def fn(x):
        d["b"] = d.get("b", 0) + 1
        ns.a += 1
        ns.c = bound
        k.g = types.MethodType(K.f, k)
        r = [
            mp["b"],
            len(mp),
            "a" in mp,
            dict(mp),
            list(mp.items()),
            mp | {"z": 1},
            ns == types.SimpleNamespace(a=ns.a, b=[2], c=bound),
            repr(types.SimpleNamespace(a=1)),
            bound.__self__ is k,
            bound.__func__.__name__,
            k.f == k.f,
            k.g == k.f,
        ]
        try:
            mp["q"] = 1
        except TypeError as e:
            r.append(str(e))
        return bound(x) + k.g(x), r, vars(ns) is ns.__dict__

    return fn, (d, ns, k)


@case(one)
def operator_stuff(x):
    o = types.SimpleNamespace(a=types.SimpleNamespace(b=3), l=[1, 2], f=lambda v, k=1: v * k)
    ag, ig, mc = operator.attrgetter("a.b", "l"), operator.itemgetter(1, -1), operator.methodcaller("f", 2, k=5)
    l = [1, 2, 3]
    operator.setitem(l, 0, 9)
    operator.delitem(l, 1)
    l = operator.iadd(l, [7])
    r = [
        ag(o),
        ig([1, 2, 3]),
        mc(o),
        operator.itemgetter(slice(1, 3))("abcd"),
        sorted([(1, "b"), (0, "c")], key=operator.itemgetter(1)),
        operator.concat([1], [2]),
        operator.contains([1], 1),
        operator.countOf([1, 1], 1),
        operator.indexOf([1, 2], 2),
        operator.is_(o, o),
        operator.truth([]),
        operator.not_(1),
        operator.pos(True),
        operator.inv(5),
        operator.matmul(x, x),
        operator.call(lambda a: a, 4) if hasattr(operator, "call") else 0,
        operator.length_hint([1, 2]),
        operator.lt(1, 2),
        operator.xor(5, 3),
        operator.floordiv(7, 2),
        operator.index(True),
        l,
        repr(operator.itemgetter(1)),
        functools.reduce(operator.mul, [1, 2, 3], x),
    ]
    return r


@case(one)
def misc_std(x):
    h = []
    for v in (5, 1, 4):
        heapq.heappush(h, v)
    r = [
        heapq.heappop(h),
        heapq.nlargest(2, [1, 5, 3]),
        heapq.nsmallest(1, [3, 2], key=lambda v: -v),
        heapq.merge([1, 3], [2]),
        bisect.bisect([1, 2, 3], 2),
        bisect.bisect_left([1, 2, 3], 2),
        fractions.Fraction(1, 3) + 1,
        decimal.Decimal("1.1") + 1,
        statistics.mean([1, 2, 3]),
        re.sub(r"(\d+)", r"<\1>", "a1b22"),
        re.match(r"(?P<n>\w+)", "hello").group("n"),
        [mm.start() for mm in re.finditer("a", "banana")],
        json.dumps({"a": [1, None, 2.5]}),
        json.loads('{"q": [1, 2]}'),
        textwrap.dedent("  a"),
        string.ascii_lowercase[:3],
        datetime.date(2020, 1, 1).isoformat(),
        isinstance(1, numbers.Number),
        struct.pack("<i", 5),
        "a,b".split(","),
        "Ab".swapcase(),
        "x".zfill(3),
        "abc".translate({97: "z"}),
        "a-b".partition("-"),
        "é".encode(),
        "abc".removeprefix("a"),
        "1".isdigit(),
        "a\nb".splitlines(),
        "abc"[::-1],
        "ab" * 2,
        "b" in "abc",
        " a ".strip(),
        "abcabc".replace("b", "X", 1),
        "abc".center(7, "*"),
        "aXb".casefold(),
        "a{}".format(1),
        str.maketrans("a", "b"),
        "abc".rfind("c"),
        ",".join(map(str, range(3))),
        ord("a"),
        ascii("é"),
        "ß".upper(),
        "a b".title(),
        "abc".startswith(("x", "a")),
        "tab\t".expandtabs(4),
        bytes("a", "utf8"),
        bytearray(b"abc")[1],
        memoryview(b"abc")[0],
    ]
    return x + r[0], r


test_all = make_test(__name__)
