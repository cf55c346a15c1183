"""itertools, collections, enums, dataclasses, protocols and texts, with what they raise. PYTEST_DONT_REWRITE."""

# ruff: noqa: E741, F841
from __future__ import annotations

import abc
import collections
import copy
import dataclasses
import enum
import functools
import itertools
import string
import sys
import typing

import torch

from tests.semantics.harness import case, make_test


def vec(n=4):
    return torch.arange(1.0, 1 + n)


def one():
    return (vec(),)


@case(one)
def itertools_all(x):
    I = itertools
    r = [
        list(I.accumulate([1, 2, 3], initial=10)),
        list(I.accumulate([3, 1, 4], max)),
        list(I.chain("ab", [1])),
        list(I.chain.from_iterable(["ab", [2]])),
        list(I.combinations("abc", 2)),
        list(I.combinations_with_replacement("ab", 2)),
        list(I.compress("abcd", [1, 0, 1, 0])),
        list(I.islice(I.count(3, 2), 3)),
        list(I.islice(I.cycle("ab"), 5)),
        list(I.dropwhile(lambda v: v < 3, [1, 4, 2])),
        list(I.filterfalse(lambda v: v % 2, range(5))),
        [(k, list(g)) for k, g in I.groupby("aabbc")],
        [(k, len(list(g))) for k, g in I.groupby([1, 2, 4], key=lambda v: v % 2)],
        list(I.islice("abcdef", 1, None, 2)),
        list(I.pairwise([1, 2, 3])),
        list(I.permutations([1, 2, 3], 2)),
        list(I.product("ab", [1, 2])),
        list(I.product([0, 1], repeat=2)),
        list(I.repeat(5, 2)),
        list(I.starmap(pow, [(2, 3), (3, 2)])),
        list(I.takewhile(lambda v: v < 3, [1, 2, 5, 1])),
        list(I.zip_longest("ab", [1], fillvalue="-")),
        [next(t) for t in I.tee([1, 2, 3])],
    ]
    a, b = I.tee(iter([1, 2, 3]))
    next(a)
    r.append((list(a), list(b)))
    g = I.groupby([1, 1, 2])
    k1, g1 = next(g)
    k2, g2 = next(g)
    r.append((list(g1), list(g2)))
    c = I.count(0.5, 0.25)
    r += [next(c), next(c), repr(I.count(3)), repr(I.repeat(1, 3)), I.repeat(1, 3).__length_hint__()]
    ts = [t * 2 for t in I.chain([x], (x + i for i in range(2)))]
    if sys.version_info >= (3, 12):
        r.append(list(I.batched("abcde", 2)))
    for bad in (
        lambda: list(I.islice([1], -1)),
        lambda: list(I.combinations([1], -1)),
        lambda: list(I.product([1], repeat=-1)),
        lambda: list(I.starmap(pow, [1])),
    ):
        try:
            r.append(bad())
        except Exception as e:
            r.append((type(e).__name__, str(e)))
    return ts, r


@case(one)
def counters(x):
    C = collections.Counter
    c = C("abracadabra")
    d = C(a=1, z=-2)
    r = [
        c["q"],
        "q" in c,
        c.most_common(),
        c + d,
        c - d,
        c & d,
        c | d,
        +d,
        -d,
        c == C("abracadabra"),
        C({"a": 0}) == C(),
        c <= c,
        d < c,
        sorted(c),
        sum(c.values()),
        c.total(),
        list(d.elements()),
        C([1, 1, 2]).most_common(1),
        repr(C("aab")),
        C(a=1).copy(),
        dict(c),
    ]
    del c["nope"]
    c.clear()
    r.append(c)
    try:
        C.fromkeys("a")
    except NotImplementedError as e:
        r.append(str(e))
    d += C("aa")
    r.append(d)
    dd = collections.defaultdict(int)
    dd["a"] += 1
    dd["t"] = x
    r += [dd, dd.get("zz"), repr(collections.defaultdict(list)), dd.default_factory is int]
    nd = collections.defaultdict(lambda: collections.defaultdict(list))
    nd["a"]["b"].append(1)
    r.append(nd["a"])
    cm = collections.ChainMap({"a": 1}, {"a": 2, "b": 3})
    cm["c"] = 4
    r += [
        cm["b"],
        len(cm),
        dict(cm),
        cm.maps,
        list(cm.items()),
        "z" in cm,
        cm.get("z", 0),
        cm.new_child()["a"],
        cm.parents["a"],
        cm.pop("c"),
    ]
    for f in (lambda: cm.pop("b"), lambda: cm["nope"], lambda: cm.__delitem__("b")):
        try:
            f()
        except KeyError as e:
            r.append(e.args)
    od = collections.OrderedDict([("a", 1), ("b", 2), ("c", 3)])
    od.move_to_end("a")
    r += [
        list(od),
        list(reversed(od)),
        od == collections.OrderedDict(b=2, c=3, a=1),
        od == dict(a=1, b=2, c=3),
        od.popitem(),
        od.popitem(False),
        repr(od),
        od | {"q": 1},
    ]
    try:
        od.move_to_end("zz")
    except KeyError as e:
        r.append(e.args)

    class UD(collections.UserDict):
        def __setitem__(s, k, v):
            super().__setitem__(k, v * 2)

        def __missing__(s, k):
            return "miss"

    u = UD(a=1)
    u.update(b=2)
    r += [
        u.data,
        u["zz"],
        u | {"c": 1},
        len(u),
        "a" in u,
        list(u.items()),
        u == {"a": 2, "b": 4},
        copy.copy(u).data,
        u.get("nope"),
    ]

    class UL(collections.UserList):
        def append(s, v):
            super().append(v + 1)

    l = UL([1, 2])
    l.append(3)
    l += [4]
    r += [l, l[1:], l * 2, l.data, sorted(l), l == [1, 2, 4, 4]]
    us = collections.UserString("ab")
    r += [us + "c", us.upper(), len(us)]
    q = collections.deque([1, 2, 3, 4], maxlen=4)
    q.append(5)
    q.rotate(2)
    q.insert if len(q) == 4 else 0
    r += [
        q,
        q.maxlen,
        q[0],
        q.index(5),
        q.count(2),
        list(reversed(q)),
        q + collections.deque([1]),
        q.copy(),
        q == collections.deque([5, 4, 2, 3]),
    ]
    try:
        q.insert(1, 9)
    except IndexError as e:
        r.append(str(e))
    P = collections.namedtuple("P", "x y", defaults=[5])
    p = P(1)
    r += [
        p,
        p._replace(y=2),
        p._asdict(),
        P._fields,
        P._make([3, 4]),
        p == (1, 5),
        p.x,
        P._field_defaults,
        hash(p) == hash((1, 5)),
    ]
    for f in (lambda: P(), lambda: p._replace(z=1), lambda: setattr(p, "x", 2)):
        try:
            f()
        except Exception as e:
            r.append((type(e).__name__, str(e)))
    return x, r


class E1(enum.Enum):
    A = 1
    B = 2
    ALIAS = 1

    @property
    def dbl(s):
        return s.value * 2

    @classmethod
    def _missing_(cls, v):
        return cls.B if v == "b" else None


class F1(enum.Flag):
    R = enum.auto()
    W = enum.auto()
    X = enum.auto()


class I1(enum.IntEnum):
    LO = 1
    HI = 5


class SE(str, enum.Enum):
    P = "p"


@case(one)
def enums(x):
    r = [
        E1.A,
        E1(2),
        E1["B"],
        E1.ALIAS is E1.A,
        E1.A.name,
        E1.A.dbl,
        list(E1),
        len(E1),
        E1("b"),
        E1.A in E1,
        F1.R | F1.W,
        F1.R in (F1.R | F1.X),
        ~F1.R,
        (F1.R | F1.W) & F1.W,
        bool(F1.R & F1.W),
        F1(3),
        I1.LO < I1.HI,
        I1.HI + 1,
        I1(5),
        sorted([I1.HI, I1.LO]),
        SE.P == "p",
        SE("p"),
        f"{SE.P.value}",
        isinstance(I1.LO, int),
        E1.A == 1,
        E1.__members__.keys(),
        {E1.A: 1}[E1.A],
        str(E1.A),
        repr(F1.R),
        hash(E1.A) == hash(E1.ALIAS),
        E1.A.__class__ is E1,
        [m.value for m in F1],
        max(I1),
    ]
    for f in (lambda: E1(9), lambda: E1["ZZ"], lambda: setattr(E1, "A", 3), lambda: E1.A < E1.B, lambda: E1.zz):
        try:
            f()
        except Exception as e:
            r.append((type(e).__name__, str(e)))
    return x * I1.HI + E1.B.value, r


@dataclasses.dataclass(order=True)
class D1:
    a: int
    b: list = dataclasses.field(default_factory=list, compare=False)
    c: int = dataclasses.field(default=3, repr=False)
    d: dataclasses.InitVar[int] = 0
    k: typing.ClassVar[int] = 9

    def __post_init__(s, d):
        s.e = s.a + d


@dataclasses.dataclass(frozen=True, slots=True)
class D2:
    v: float
    w: tuple = ()


@dataclasses.dataclass(kw_only=True)
class D3(D1):
    f: object = None


@case(one)
def dataclass_all(x):
    a, b = D1(1), D1(2, [x], d=5)
    r = [
        a,
        b.e,
        a < b,
        a == D1(1, [9]),
        repr(a),
        D1.k,
        dataclasses.asdict(D1(1, [[2]])),
        dataclasses.astuple(D2(1.0, (2,))),
        [f.name for f in dataclasses.fields(a)],
        dataclasses.is_dataclass(a),
        dataclasses.replace(D2(1.0), v=2.0),
        hash(D2(1.0)) == hash(D2(1.0)),
        D3(a=1, f=x),
        sorted([b, a])[0] is a,
        D2.__slots__,
        a.__eq__(3),
    ]
    for f in (
        lambda: setattr(D2(1.0), "v", 2),
        lambda: hash(a),
        lambda: D1(),
        lambda: D3(1),
        lambda: a < 3,
        lambda: D2(1.0).zz,
    ):
        try:
            f()
        except Exception as e:
            r.append((type(e).__name__, str(e)))
    return x, r


class Abs(abc.ABC):
    @abc.abstractmethod
    def f(s): ...
    @classmethod
    def __subclasshook__(cls, C):
        return hasattr(C, "quack") or NotImplemented


class Quack:
    def quack(s):
        return 1


class Impl(Abs):
    def f(s):
        return 3


@typing.runtime_checkable
class Proto(typing.Protocol):
    def f(s): ...


class Gen(typing.Generic[typing.TypeVar("T")]):
    def __init__(s, v):
        s.v = v


class TDict(typing.TypedDict):
    a: int


class Callme:
    def __init__(s):
        s.n = 0

    def __call__(s, *a, **k):
        s.n += 1
        return a, k, s.n


@case(one)
def protocols(x):
    r = [
        isinstance(Quack(), Abs),
        issubclass(Quack, Abs),
        Impl().f(),
        isinstance(Impl(), Abs),
        isinstance(Impl(), Proto),
        isinstance(3, Proto),
        Gen[int](3).v,
        TDict(a=1),
        typing.cast(int, "a"),
        callable(Callme()),
        callable(3),
        Callme()(1, k=2),
        isinstance(1, (int, str)),
        isinstance(1, int | str),
        isinstance([], collections.abc.Sequence),
        isinstance({}, collections.abc.Mapping),
        isinstance(iter([]), collections.abc.Iterator),
        isinstance(lambda: 0, collections.abc.Callable),
        issubclass(bool, int),
        isinstance(True, int),
        type(x).__mro__[0] is torch.Tensor,
        typing.get_type_hints(D2.__init__) is not None if False else 1,
    ]
    for f in (
        lambda: Abs(),
        lambda: isinstance(1, [int]),
        lambda: issubclass(1, int),
        lambda: isinstance(1, list[int]),
    ):
        try:
            f()
        except Exception as e:
            r.append((type(e).__name__, str(e)))
    return x, r


@case(one, factory=True)
def recursion_decorators():
    def deco(times):
        def wrap(f):
            @functools.wraps(f)
            def inner(*a, **k):
                inner.calls += 1
                for _ in range(times):
                    out = f(*a, **k)
                return out

            inner.calls = 0
            return inner

        return wrap

    log = []

    @deco(2)
    def fib(n):
        log.append(n) if n > 3 else None
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    def even(n):
        return True if n == 0 else odd(n - 1)

    def odd(n):
        return False if n == 0 else even(n - 1)

    Y = lambda f: (lambda g: g(g))(lambda g: f(lambda *a: g(g)(*a)))

    def hanoi(n, a, b, c):
        return [] if n == 0 else hanoi(n - 1, a, c, b) + [(a, c)] + hanoi(n - 1, b, a, c)

    def deep(n):
        return deep(n + 1)

    def fn(x):
        try:
            deep(0)
        except RecursionError as e:
            m = str(e)[:33]
        return (
            x * fib(4),
            fib.calls,
            even(7),
            Y(lambda s: lambda n: 1 if n == 0 else n * s(n - 1))(5),
            hanoi(3, "a", "b", "c"),
            m,
        )

    return fn, (log, fib)


@case(one)
def walrus_comps(x):
    r = [
        y := 5,
        y**2,
        [z for v in range(5) if (z := v * 2) > 3],
        z,
        {k: v for k, v in zip("ab", range(2))},
        {v % 2 for v in range(4)},
        list(v for v in range(3)),
        [[i * j for j in range(i)] for i in range(3)],
        [a for b in [[1, 2], [3]] for a in b if a != 2],
        any((hit := v) > 2 for v in [1, 3, 4]),
        hit,
        (lambda q=y: q + y)(),
        [f() for f in [lambda: i for i in range(3)]],
        [f() for f in [lambda i=i: i for i in range(3)]],
    ]
    while (n := len(r)) < 16:
        r.append(n)
    for i in range(3):
        if i == 5:
            break
    else:
        r.append("else")
    try:
        pass
    except ValueError:
        pass
    else:
        r.append("tryelse")
    finally:
        r.append("fin")
    i = 0
    while True:
        i += 1
        if i % 2:
            continue
        if i > 4:
            break
    else:
        r.append("no")
    assert i == 6, "msg"
    try:
        assert i == 5, f"bad {i}"
    except AssertionError as e:
        r.append(str(e))
    x = y = [x]
    x[0] += 1
    a = b = c = 0
    a, b = b, a + 1
    l = [0, 0]
    k = 0
    k, l[k] = 1, 5
    r += [
        a,
        b,
        l,
        1 < 2 < 3,
        1 < 3 > 2,
        not 1 == 2,
        None or 0 or "q",
        1 and [] and 2,
        3 if [] else 4,
        *(1, 2),
        -(2**2),
        2**-1,
        7 // -2,
        ...,
    ]
    return x, r, y is x


@case(one)
def text_methods(x):
    s = "Hello, World"
    t = string.Template("$a ${b}").safe_substitute(a=1)
    r = [
        s.find("o", 5),
        s.count("l"),
        s.split(),
        s.rsplit(",", 1),
        s.rpartition("o"),
        s.lower().title(),
        s.strip("Hd"),
        s.isalpha(),
        s.encode("utf8").decode(),
        s[::2],
        s[-3:],
        s * 0,
        "a" < "b",
        "x".join(["1", "2"]),
        s.replace("l", "L", 2),
        s.center(20, "-"),
        s.ljust(14) + "|",
        s.rjust(14),
        "%s-%s" % ("a", 1),
        s.index("W"),
        s.endswith("ld"),
        "abc".isidentifier(),
        "12".isnumeric(),
        "ab\tc".expandtabs(4),
        "a,b,,c".split(","),
        " a  b ".split(),
        "line1\r\nline2".splitlines(True),
        "x=1;y=2".partition(";"),
        "{:>5}|{:<5}|{:^5}".format("a", "b", "c"),
        "{:.3f} {:+d} {:e}".format(1.23456, 3, 12345.678),
        "{!r:>6}".format("a"),
        "{0[1]} {1.real}".format([1, 2], 3),
        "{a[k]}".format(a={"k": 9}),
        "abc".format_map({}),
        repr("it's"),
        repr("a\"b'c"),
        "\N{BULLET}",
        "é".encode("latin1"),
        b"ab".hex(),
        bytes.fromhex("6162"),
        b"a,b".split(b","),
        b"abc"[1],
        b"abc"[1:],
        bytes([65, 66]).decode(),
        bytearray(b"x") + b"y",
        "ab",
        r"\n",
        """multi
line""",
        t,
        "abc".__contains__("b"),
        "ss".casefold(),
        str(b"a"),
        str(1.0),
        str(1e22),
        str(True),
        str(None),
        repr(1.1),
        str([1.0, "a", None]),
        str({"a": (1,)}),
        str({1}),
        str(range(3)),
        int("0x1f", 16),
        int("0b11", 0),
        int(" 12 "),
        float("nan") != float("nan"),
        complex("1+2j"),
        bool("False"),
        list("abc"),
        tuple("ab"),
        sorted("hello"),
        max("abc"),
        min("b", "a"),
        len("é"),
        hash("a") == hash("a"),
        "b" in {"b": 1},
        "abc" > "ab",
        "".join(reversed("abc")),
        "-".join(str(v) for v in x.shape),
        chr(97) + chr(0x1F600),
        ascii("\xe9"),
        f"{'nested ' + f'{1 + 1}'}",
    ]
    return x, r


test_all = make_test(__name__)
