"""Subclasses of immutable builtins, views and their algebra, replacing of parts."""

import collections
import copy
import dataclasses
import enum
import functools
import typing

from .shared import pause


class Metres(float):
    def __new__(cls, value, note=None):
        pause()
        made = super().__new__(cls, value)
        made.note = note
        return made

    def __add__(self, other):
        pause()
        return type(self)(float.__add__(self, other), self.note)

    __radd__ = __add__


class Count(int):
    note = None

    def __index__(self):
        return 1

    def __bool__(self):
        pause()
        return int(self) > 1


class Tag(str):
    note = None

    def __str__(self):
        pause()
        return "<" + str.__str__(self) + ">"

    def __len__(self):
        pause()
        return 2

    def __iter__(self):
        yield from (1, 2)

    def __lt__(self, other):  # nobody promises how often sorting compares
        return str.__gt__(self, other)


class Blob(bytes):
    note = None


class Points(tuple):
    def __getitem__(self, k):
        pause()
        got = super().__getitem__(k)
        return type(self)(got) if isinstance(k, slice) else got


class Keys(frozenset):
    note = None

    def __or__(self, other):
        pause()
        return type(self)(frozenset.__or__(self, other))


class Mark(str, enum.Enum):
    LOW = "low"
    HIGH = "high"

    def noted(self, v):
        pause()
        return v if self == "high" and self + "er" == "higher" else None


class Weight(float, enum.Enum):
    HALF = 0.5
    WHOLE = 1.0


class Access(enum.IntFlag):
    R = 1
    W = 2


@dataclasses.dataclass
class Replaced:
    v: object
    k: int = 1
    items: list = dataclasses.field(default_factory=list)


class Triple(typing.NamedTuple):
    a: object
    b: object = 2
    c: object = None


def by_number_attribute(v):
    made = Metres(1.5, v)
    pause()
    return (made + 1).note if made * 2 == 3.0 else None


def by_reflected_number(v):
    made = 1.5 + Metres(0.5, v)
    return made.note if f"{made:.1f}" == "2.0" else None


def by_sum_of_numbers(v):
    made = sum([Metres(1, v), Metres(2)])
    return made.note if round(made) == 3 else made.note


def by_count_index(v):
    k = Count(2)
    pause()
    return [0, 1, v, 3][k] if k else None


def by_count_key(v):
    return {Count(1): v, Count(2): None}[1]


def by_count_membership(v):
    k = Count(3)
    k.note = v
    pause()
    return [one for one in (Count(1), k, Count(5)) if one == 3][0].note


def by_tag_text(v):
    tag = Tag("a")
    tag.note = v
    return tag.note if f"{tag}{tag!r:>4} %s" % "b" == "<a> 'a' %s" % "b" and len(tag) == 2 else None


def by_tag_key(v):
    table = {Tag("one"): v}
    pause()
    return table["one"] if next(iter(table)).upper() == "ONE" else None


def by_tag_order(v):
    first, *_ = sorted([Tag("a"), Tag("c"), Tag("b")])
    return v if first + "" == "c" and [*first] == [1, 2] else None


def by_tag_attribute_name(v):
    class Kept:
        pass
    setattr(Kept, "v", v)
    pause()
    return getattr(Kept, Tag("v"))


def by_blob(v):
    blob = Blob(b"ab")
    blob.note = v
    pause()
    return copy.copy(blob).note if blob[0] == 97 and blob + b"c" == b"abc" else None


def by_points(v):
    made = Points([0, v, 2])[1:]
    pause()
    return made[0] if type(made) is Points and made * 2 else None


def by_keys(v):
    made = Keys({1}) | {2}
    table = {made: v}
    pause()
    return table[frozenset((1, 2))] if type(made) is Keys and type(made & {1}) is frozenset else None


def by_mark(v):
    return Mark("high").noted(v)


def by_mark_key(v):
    table = {Mark.LOW: None, Mark.HIGH: v}
    pause()
    return table["high"] if "-".join(Mark) == "low-high" else None


def by_weight(v):
    got = [v, None][Weight.WHOLE > 0.5]
    pause()
    return v if got is None and Weight.HALF * 4 == 2 and Weight(0.5) is Weight.HALF else None


def by_access(v):
    access = Access.R | Access.W
    pause()
    return [0, 1, 2, v][access] if Access.W in access and not access & 4 else None


def by_replace(v):
    made = Replaced(None, 2)
    pause()
    return dataclasses.replace(made, v=v, items=made.items).v


def by_row_replace(v):
    row = Triple(1)._replace(c=v)
    pause()
    return row._asdict()["c"] if row._fields == ("a", "b", "c") and row[:2] == (1, 2) else None


def by_fields(v):
    made = Replaced(v)
    pause()
    return {f.name: getattr(made, f.name) for f in dataclasses.fields(made)}["v"]


def by_key_views(v):
    a, b = {"x": 1, "v": v}, {"v": 0, "y": 2}
    common = a.keys() & b.keys()
    pause()
    only = (a.keys() - b) | (b.keys() ^ {"y"})
    return a[common.pop()] if sorted(only) == ["v", "x"] and a.keys() >= {"x"} else None


def by_item_views(v):
    table = {"k": 1, "m": 2}
    seen = table.items() & {("k", 1)}
    pause()
    table["v"] = v
    return table["v"] if ("k", 1) in seen and len(table.values()) == 3 and not table.keys().isdisjoint("k") else None


def by_live_view(v):
    table = {}
    values = table.values()
    pause()
    table["v"] = v
    return [*values][0]


def by_set_algebra(v):
    a, b = {1, 2, 3}, frozenset({3, 4})
    a ^= b
    a |= {9}
    pause()
    a -= {9}
    return v if a == {1, 2, 4} and b <= {3, 4, 5} and a.isdisjoint(b - {4}) else None


def by_method_dispatch(v):
    class Kind:
        @functools.singledispatchmethod
        def of(self, arg, v):
            return None

        @of.register
        def _(self, arg: str, v):
            pause()
            return v
    return Kind().of("a", v)


def by_set_name(v):
    class Named:
        def __set_name__(self, owner, name):
            self.name = name
            owner.names = [*getattr(owner, "names", ()), name]

        def __get__(self, obj, owner=None):
            pause()
            return obj.__dict__.get(self.name + "_") if obj is not None else self

        def __set__(self, obj, value):
            obj.__dict__[self.name + "_"] = value

        def __delete__(self, obj):
            pause()
            del obj.__dict__[self.name + "_"]

    class Owner:
        a = Named()
        b = Named()
    made = Owner()
    made.a, made.b = 1, v
    del made.a
    return made.b if made.a is None and Owner.names == ["a", "b"] else None


def by_deleted_attribute(v):
    class Base:
        kept = v
    made = Base()
    made.kept = 1
    pause()
    del made.kept
    return made.kept


def by_deleted_class_attribute(v):
    class Base:
        kept = v

    class Sub(Base):
        kept = 2
    made = Sub()
    before = made.kept
    pause()
    del Sub.kept
    return made.kept if before == 2 else None


def by_counter(v):
    counts = collections.Counter("abca")
    counts.update(a=2)
    pause()
    counts -= collections.Counter(b=1)
    return v if counts.most_common(1) == [("a", 4)] and counts["z"] == 0 and "b" not in counts else None


def by_slice_assignment(v):
    items = [0, 1, 2, 3, 4]
    items[1:3] = [v]
    pause()
    items[::2] = [9, 9]
    del items[-1:]
    return items[1] if len(items) == 3 else None


def by_nested_unpacking(v):
    a, (b, *[c, d]), *e = 1, (2, 3, v), 4, 5
    pause()
    [a, [b, c]] = [b, (a, c)]
    return d if (a, b, c, e) == (2, 1, 3, [4, 5]) else None


def by_augmented_item(v):
    table = {"k": [1]}
    at = iter(["k", "m"])
    table[next(at)] += [v]
    pause()
    return table["k"][-1]


def by_conversion_protocols(v):
    class Number:
        def __int__(self):
            pause()
            return 2

        __index__ = __int__

        def __float__(self):
            return 2.5

        def __round__(self, digits=None):
            pause()
            return "rounded", digits

        def __divmod__(self, other):
            return v, other
    one = Number()
    ok = int(one) + float(one) == 4.5 and round(one, 1) == ("rounded", 1) and "ab"[one - 1 if False else one:] == ""
    return divmod(one, 2)[0] if ok else None
