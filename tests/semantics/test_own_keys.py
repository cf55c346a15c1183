"""Keys of dicts and members of sets whose classes have a `__hash__` and an `__eq__` of the program's own."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
from typing import Any

import torch

from tests.semantics.harness import case, make_test

X = lambda: (torch.ones(3),)


class Key:
    def __init__(self, v, w=0):
        self.v = v
        self.w = w
        self.cache = []

    def __hash__(self):
        return hash(self.v)

    def __eq__(self, other):
        return isinstance(other, Key) and self.v == other.v


class Same7:
    def __init__(self, v):
        self.v = v

    def __hash__(self):
        return 7

    def __eq__(self, other):
        return self.v == other.v


class Slot:
    __slots__ = ("a", "b")

    def __init__(s, a, b):
        s.a = a
        s.b = b

    def __hash__(s):
        return hash((s.a, s.b))

    def __eq__(s, o):
        if not isinstance(o, Slot):
            return NotImplemented
        return s.a == o.a and s.b == o.b


class Lower:
    def __init__(s, n):
        s.name = n

    def __hash__(s):
        return hash(s.name.lower())

    def __eq__(s, o):
        return s.name.lower() == o.name.lower()


@dataclasses.dataclass(unsafe_hash=True)
class UH:
    a: int
    b: str = "x"


class Unequal:
    def __init__(s, v):
        s.v = v

    def __hash__(s):
        return hash(s.v)

    def __eq__(s, o):
        return False


class Derived(Key):
    def extra(self):
        return 1


class Prop:
    def __init__(s, v):
        s._v = v

    @property
    def v(s):
        return s._v

    def __hash__(s):
        return hash(s.v)

    def __eq__(s, o):
        return s.v == o.v


SCALE = 2


class Glob:
    def __init__(s, v):
        s.v = v

    def __hash__(s):
        return hash(s.v * SCALE)

    def __eq__(s, o):
        return s.v == o.v


class Raises:
    def __init__(s, v):
        s.v = v

    def __hash__(s):
        raise ValueError("no hash")

    def __eq__(s, o):
        return True


class EqRaises:
    def __init__(s, v):
        s.v = v

    def __hash__(s):
        return 1

    def __eq__(s, o):
        raise ValueError("no eq")


class TKey:
    def __init__(s, t):
        s.t = t

    def __hash__(s):
        return hash(s.t.shape)

    def __eq__(s, o):
        return s.t is o.t


class Side:
    log: list[Any] = []
    __watched__ = ("log",)

    def __init__(s, v):
        s.v = v

    def __hash__(s):
        Side.log.append(("hash", s.v))
        return 7

    def __eq__(s, o):
        Side.log.append(("eq", s.v, o.v))
        return s.v == o.v


@case(X, fullgraph=True)
def inside(x):
    k = Key(1)
    d = {k: x, Key(2): x * 2}
    d[Key(1)] = x + 5
    return (
        d[Key(2)] + d[Key(1)],
        Key(3) in d,
        len({Key(1), Key(1)}),
        list(d)[0] is k,
        d,
        {Key(4), Key(4)},
        d.pop(Key(2)),
        {Key(1)} & {Key(1)},
        {Key(1), Key(2)} - {Key(2)} == {Key(1)},
        (Key(1), 2) in {(Key(1), 2): 1},
        {Key(1): 1} == {Key(1): 1},
    )


@case(X, fullgraph=True)
def kinds(x):
    out = []
    for mk in (
        lambda v: Same7(v),
        lambda v: Slot(v, "b"),
        lambda v: Lower("A%d" % v),
        lambda v: UH(v),
        lambda v: Derived(v),
    ):
        a = mk(1)
        d = {a: 1, mk(2): 2}
        d[mk(1)] = 3
        d[a] = d[a] + 1
        out.append(
            (
                list(d.values()),
                mk(1) in d,
                a in d,
                len({mk(1), mk(1), mk(2)}),
                hash(mk(1)) == hash(mk(1)),
                list(d)[0] is a,
            )
        )
    d = {Lower("Ab"): 1}
    d[Lower("aB")] = 2
    return x, out, list(d)[0].name, d, Derived(1) == Key(1), Key(1) in {Derived(1): 2}


@case(X)
def others(x):
    out = []
    for mk in (Prop, Glob, Raises, EqRaises, Unequal, Side):
        try:
            a = mk(1)
            d = {a: 1, mk(2): 2}
            d[mk(1)] = 3
            d[a] = d[a] + 1
            out.append(list(d.values()))
        except ValueError as e:
            out.append(str(e))
    return x, out


@case(X)
def tkey(x):
    y = x + 1
    d = {TKey(y): 1}
    return TKey(y) in d, TKey(x) in d, y


@case(X, factory=True)
def outside():
    d = {Key("a"): 1, Key("b"): 2}

    def fn(x):
        d[Key("a")] += 1
        d[Key("c" + str(len(d) % 2))] = len(d)
        return x * d[Key("a")] + d[Key("b")], Key("z") in d, [k.v for k in d], list(d.values())

    return fn, d


@case(X, lambda: (torch.ones(4),), factory=True)
def cache_by_key():
    cache = {}

    def fn(x):
        k = Key((x.shape[0], str(x.dtype)))
        if k not in cache:
            cache[k] = len(cache) + 1
        return x * cache[k]

    return fn, cache


@case(X, factory=True)
def mutated_key():
    k = Key(1)
    d = {k: 5}
    st = {"n": 0}

    def fn(x):
        st["n"] += 1
        r = k in d, d.get(Key(1)), d.get(Key(2))
        if st["n"] % 2 == 0:
            k.v += 1
        return x, r, k in d

    return fn, (d, k, st)


@case(X)
def mutate_inside(x):
    k = Key(1)
    d = {k: x}
    k.v = 2
    k.w = 4
    return x + 1, k in d, Key(1) in d, Key(2) in d, k.w


@case(X, factory=True)
def from_arg():
    k = Key(3)

    def fn(x):
        d = {k: 1}
        d[Key(3)] = 2
        k.w += 1
        return x * d[k], list(d)[0] is k, d

    return fn, k


@case(X, fullgraph=True)
def counter(x):
    c = collections.Counter([Key(1), Key(2), Key(1)])
    dd = collections.defaultdict(list)
    dd[Key(1)].append(x)
    dd[Key(1)].append(2)
    od = collections.OrderedDict()
    od[Key(2)] = 1
    od[Key(1)] = 2
    od.move_to_end(Key(2))
    return x * c[Key(1)], dd, [k.v for k in od], dict.fromkeys([Key(1), Key(1)], 0)


@case(X)
def hashes_that_are_counted(x):
    Side.log.clear()
    d = {Side(1): 1, Side(2): 2}
    d[Side(1)] = 5
    r = d.get(Side(9))
    return x, list(d.values()), r, list(Side.log)


class Counted(enum.Enum):
    A = 1
    B = 2

    def __hash__(self):
        HASHED.append(self.name)
        return 1


HASHED: list[str] = []


@functools.lru_cache
def value_of(member):
    return member.value


@case(X, globals={"HASHED": list})
def members_whose_hashes_are_counted(x):
    value_of.cache_clear()
    members = {Counted.A, Counted.B}
    counts = collections.Counter([Counted.A, Counted.A])
    return (x + 1, Counted.A in members, sorted(members, key=lambda m: m.value), value_of(Counted.A),
            value_of(Counted.A), counts[Counted.A], frozenset(members) | {Counted.B}, list(HASHED))


test_all = make_test(__name__)
