"""Containers, records and enums."""

import bisect
import collections
import dataclasses
import enum
import functools
import heapq
import operator
import types
import typing

from .shared import pause


class Missing(dict):
    def __missing__(self, key):
        pause()
        return self["v"]

    def __setitem__(self, key, value):
        super().__setitem__(key, value)


class Listed(list):
    def __getitem__(self, i):
        pause()
        return super().__getitem__(i)


class Mapped(collections.UserDict):
    def __setitem__(self, key, value):
        pause()
        super().__setitem__(key, value)


class Row(typing.NamedTuple):
    v: object
    k: int = 3

    def get(self):
        pause()
        return self.v


@dataclasses.dataclass(frozen=True)
class Frozen:
    v: object
    more: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        pause()
        self.more.append(self.v)


@dataclasses.dataclass(slots=True, kw_only=True)
class SlotData:
    v: object = None
    k: int = 1


@functools.total_ordering
class Ranked:
    def __init__(self, v, rank):
        self.v, self.rank = v, rank

    def __eq__(self, other):
        return self.rank == other.rank

    def __lt__(self, other):
        pause()
        return self.rank < other.rank

    def __hash__(self):
        return hash(self.rank)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


def by_missing(v):
    m = Missing()
    m["v"] = v
    return m["other"]


def by_list_subclass(v):
    return Listed([1, v])[-1]


def by_user_dict(v):
    m = Mapped(a=1)
    m["v"] = v
    m |= {"k": 2}
    return m.pop("v") if "a" in m else None


def by_user_list(v):
    return collections.UserList([v, 1])[0]


def by_named_tuple(v):
    row = Row(v)._replace(k=4)
    return row.get() if row[1] == 4 else None


def by_frozen(v):
    f = Frozen(v)
    try:
        f.v = 3
    except dataclasses.FrozenInstanceError:
        pause()
    return f.more[0]


def by_slot_data(v):
    d = SlotData(v=v)
    pause()
    return dataclasses.replace(d, k=2).v


def by_ranked(v):
    return max(Ranked(0, 1), Ranked(v, 3), Ranked(1, 2)).v


def by_sorted(v):
    return sorted([Ranked(0, 2), Ranked(v, 1)])[0].v


def by_sort_key(v):
    items = [(3, 0), (1, v), (2, 0)]
    items.sort(key=lambda pair: (pause(), pair[0])[1])
    return items[0][1]


def by_enum_key(v):
    return {Level.LOW: 0, Level.HIGH: v}[Level(1 + 1)]


def by_match_class(v):
    match Row(v):
        case Row(v=1):
            return None
        case Row(v=got, k=3) if pause() is None:
            return got


def by_default_dict(v):
    made = collections.defaultdict(lambda: (pause(), [])[1])
    made["a"].append(v)
    return made["a"][0]


def by_chain_map(v):
    made = collections.ChainMap({"a": 1}, {"v": v}).new_child({"a": 2})
    pause()
    return made["v"]


def by_ordered_dict(v):
    made = collections.OrderedDict(v=v, a=1)
    made.move_to_end("v")
    return made.popitem()[1]


def by_deque(v):
    made = collections.deque([1, v, 2], maxlen=3)
    made.rotate(1)
    pause()
    return made[2]


def by_namespace(v):
    made = types.SimpleNamespace(v=v)
    pause()
    return vars(made)["v"]


def by_proxy(v):
    return types.MappingProxyType({"v": v})["v"]


def by_item_getter(v):
    return operator.itemgetter(1, 0)([0, v])[0]


def by_bisect(v):
    return [0, 1, v][bisect.bisect_left([1, 3, 5], 4)]


def by_heap(v):
    heap = [(3, 0, 0)]
    heapq.heappush(heap, (1, 0, v))
    pause()
    return heapq.heappop(heap)[2]
