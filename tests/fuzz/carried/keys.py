"""Keys of dicts, members of sets, and copies."""

import collections
import copy
import dataclasses
import functools

from .shared import pause


@dataclasses.dataclass(frozen=True)
class Place:
    k: object
    v: object = dataclasses.field(default=None, compare=False)

    @functools.cached_property
    def label(self):
        pause()
        return f"at {self.k}"


class OwnHash:
    def __init__(self, k):
        self.k = k

    def __hash__(self):
        pause()
        return self.k % 2

    def __eq__(self, other):
        return self.k == other.k


class Bare:
    def __init__(self, v):
        self.v, self.names = v, ["a"]


class Contrary(type):
    def __instancecheck__(cls, obj):
        pause()
        return False

    def __subclasscheck__(cls, other):
        return True


class Unasked(metaclass=Contrary):
    def __new__(cls, v):
        return super().__new__(cls)

    def __init__(self, v):
        self.v = v


def by_frozen_keys(v):
    places = {Place(1, v): v, Place((2, 3)): 0, Place(2): 1}
    places.pop(Place(2), None)
    pause()
    first = next(iter(places))
    places[Place(1)] = places[first]
    return first.v if first.label == "at 1" and Place((2, 3)) in places else None


def by_frozen_members(v):
    kept = Place(1, v)
    members = {kept, Place(2)} | {Place(1)}
    pause()
    found = [one for one in members if one.k == 1]
    return found[0].v if len(members) == 2 and Place(1) in members else None


def by_counted_keys(v):
    counted = collections.Counter([Place(1), Place(2), Place(1)])
    lists = collections.defaultdict(list)
    for one in (1, 2, 1):
        lists[Place(one)].append(v)
    pause()
    return lists[Place(1)][1] if counted.most_common(1) == [(Place(1), 2)] else None


@functools.lru_cache(maxsize=4)
def cached_place(place, by=1):
    return (place.k, by)


def by_cached_key(v):
    pause()
    return v if cached_place(Place(3), by=2) == (3, 2) and cached_place(Place(3)) == (3, 1) else None


def by_equal_keys(v):
    held = {1: 0, 2: v}
    del held[1]
    held[True] = 1
    pause()
    held[2.0] = held.pop(2)
    return held[2] if [type(key) for key in held] == [bool, float] and {1} & {True} == {1} else None


def by_own_hash(v):
    held = {OwnHash(1): 0, OwnHash(3): v}
    pause()
    return held.get(OwnHash(3)) if OwnHash(5) not in held else None


def by_copied_keys(v):
    key = Bare(0)
    copied = copy.deepcopy({key: 1, Place(1): [2]})
    pause()
    return v if key not in copied and copied[Place(1)] == [2] else None


def by_plain_copy(v):
    old = Bare(v)
    new = copy.copy(old)
    pause()
    new.names.append("b")
    return new.v if old.names == ["a", "b"] and copy.deepcopy(old.names) is not old.names else None


def by_contrary_class(v):
    made = Unasked(v)
    pause()
    return made.v if not isinstance(made, Unasked) else None


def by_method_of_iterator(v):
    following = iter([0, v]).__next__
    following()
    pause()
    return following()
