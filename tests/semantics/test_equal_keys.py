"""Keys of dicts and members of sets that are equal without being the same."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import sys
from typing import Any

import torch

from tests.semantics.harness import case, make_test


def in_both(name: str, change: Any) -> None:
    """A case that changes a dict made in the function, and one from outside."""

    def factory() -> Any:
        outside = {1: 1, 2: 2}

        def fn(x: torch.Tensor) -> Any:
            inside = {1: 1, 2: 2}
            return x + 1, change(inside), list(inside.items()), change(outside), list(outside.items())

        return fn, outside

    factory.__name__ = name
    case(lambda: (torch.ones(3),), factory=True, fullgraph=True)(factory)


def deleted_and_stored_again(d: dict[Any, Any]) -> None:
    del d[1]
    d[True] = 5


def popped_and_stored_again(d: dict[Any, Any]) -> Any:
    found = d.pop(1), d.popitem()
    d[1.0], d[2.0] = found
    return d.setdefault(True, 8)


def stored_over(d: dict[Any, Any]) -> None:
    d[True] = 5
    d[2.0] = 7


def stored_over_then_deleted(d: dict[Any, Any]) -> list[Any]:
    d[True] = 5
    keys = list(d)
    d.pop(1.0)
    d[1] = 7
    return keys


for one in (deleted_and_stored_again, popped_and_stored_again, stored_over, stored_over_then_deleted):
    in_both(one.__name__, one)


@case(lambda: (torch.ones(3),), fullgraph=True)
def sets_and_unions(x):
    members = {1, 2}
    members.discard(1)
    members.add(1.0)
    return x + 1, list(members), list({1: 2} | {True: 3}), {True} | {1}


def kinds(members):
    return sorted((type(member).__name__, member) for member in members)


@case(lambda: (torch.ones(3),), fullgraph=True)
def which_of_equal_members_stays(x):
    found = []
    for a, b in (({1}, {True}), ({1, 2}, {True}), ({1}, {True, 2.0}), (frozenset({1.0}), {1}), ({1, 2}, {2.0, 1.0})):
        found += [kinds(made) for made in (a & b, a | b, a - b, a ^ b, a.union(b), a.intersection(list(b)))]
        for change in (set.update, set.intersection_update, set.symmetric_difference_update, set.difference_update):
            changed = set(a)
            change(changed, b)
            found.append(kinds(changed))
    return x + 1, found


@case(lambda: (torch.ones(3),), factory=True)
def which_of_equal_members_stays_outside():
    members, others, frozen = {1, 2}, {True, 3}, frozenset({1.0})

    def fn(x):
        found = [kinds(made) for made in (members & others, members | frozen, others | members, frozen & members)]
        members.update({True, 5.0})
        members.intersection_update({True, 5})
        members.add(1.0)
        return x + 1, found, kinds(members)

    return fn, [members, others]


@case(lambda: (torch.ones(3),), fullgraph=True)
def nans_are_found_by_identity(x):
    nan = float("nan")
    d = {nan: 1}
    return x, d.get(nan), d.get(float("nan")), nan in [nan], {nan} == {nan}, [nan].index(nan), {1: nan} == {1: nan}


@case(lambda: (torch.ones(3),), lambda: (torch.tensor([0.0, 1.0]),))
def texts_of_sizes_that_depend_on_data(x):
    found = torch.nonzero(x > 0.25).shape[0]
    return x, str(found) in {"3": 1}, {"1": 2}.get(f"{found}"), f"{found}"


# -- frozen dataclasses -----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Point:
    a: Any
    b: Any = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    a: int
    note: int = dataclasses.field(default=0, compare=False)


@dataclasses.dataclass(frozen=True)
class Derived(Point):
    c: int = 3

    @functools.cached_property
    def twice(self):
        return self.a * 2


@dataclasses.dataclass(frozen=True)
class OwnHash:
    a: int

    def __hash__(self):
        ASKED.append(self.a)
        return 7


ASKED: list[int] = []
TABLE = {Point(1): 2, Point(2, 5): 3, Derived(1): 4, Slotted(4): 5}
KEY = Point(1)


@case(lambda: (torch.ones(3),), lambda: (torch.ones(5),), fullgraph=True)
def frozen_keys_made_inside(x):
    d = {Point(1): x, Point(x.shape[0]): x + 1}
    counted = collections.Counter([Point(1), Point(1), Slotted(1, 7), Slotted(1, 8)])
    lists = collections.defaultdict(list)
    for number in (1, 2, 1):
        lists[Point(number)].append(number)
    del lists[Point(2)]
    return d[Point(1)] + d[Point(x.shape[0])], Point(3) in d, counted, dict(lists), {Point(1): 1} == {Point(1): 1}


@case(lambda: (torch.ones(3), Point(1)), lambda: (torch.ones(3), Point(2, 5)), lambda: (torch.ones(3), Point(7)),
      lambda: (torch.ones(3), Derived(1)))
def frozen_keys_from_outside(x, key):
    return x * TABLE[KEY], TABLE.get(key), key in TABLE, key == KEY, TABLE[Slotted(4, note=1)], {key, KEY, Point(1)}


@case(lambda: (torch.ones(3),), fullgraph=True, factory=True)
def which_frozen_key_stays():
    table = {Point(1): "a", Point(2): "b"}

    def fn(x):
        new = Point(1)
        table[new] = "z"
        first = next(iter(table))
        table.pop(Point(2), None)
        again = Point(2, 5)
        table[again] = 5
        both = {Point(1), new} | {Point(1)}
        shared = {new} & {Point(1)}
        return x, first is new, [key is again for key in table], [key is new for key in both], [
            key is new for key in shared], list(table.items()), (Point(1), "z") in table.items()

    return fn, table


@case(lambda: (torch.ones(3),), fullgraph=True if sys.version_info < (3, 13) else None)
def frozen_keys_that_hold_tensors(x):
    y = x + 1
    d = {Point((y,)): 1, Point(x): 2}
    return y, d[Point((y,))], d.get(Point(y, 2)), d[Point(x)]


@case(lambda: (torch.ones(3),), fullgraph=True)
def frozen_keys_that_hold_lists(x):
    d, found = {}, []
    for what in (lambda: hash(Point([])), lambda: d.get(Point([])), lambda: {Point({}): 1}, lambda: hash(([],))):
        try:
            found.append(what())
        except TypeError as error:
            found.append(str(error))
    return x + 1, found, Derived(2).twice


@case(lambda: (torch.ones(3),))
def frozen_keys_that_change(x):
    key = Derived(3)
    d = {key: 1}
    found = d[Derived(3)], key.twice
    object.__setattr__(key, "a", 9)
    return x, found, d.get(Derived(3)), d.get(key), d.get(Derived(9))


@case(lambda: (torch.ones(3),))
def keys_with_a_hash_of_their_own(x):
    ASKED.clear()
    d = {OwnHash(1): 1, OwnHash(2): 2}
    return x, d.get(OwnHash(2)), OwnHash(1) in d, list(ASKED)


class Same(enum.Enum):
    A = 1
    B = 2

    def __eq__(self, other):
        ASKED.append(0)
        return True

    def __hash__(self):
        ASKED.append(1)
        return 3


@case(lambda: (torch.ones(3),))
def members_with_a_comparison_of_their_own(x):
    ASKED.clear()
    d = {Same.A: 1}
    return x, d.get(Same.B), Same.A == Same.B, Same.B in d, list(ASKED)


@functools.lru_cache
def scaled(point, by):
    return point.a * by


@case(lambda: (torch.ones(3),), lambda: (torch.ones(5),), factory=True)
def frozen_arguments_of_cached_functions():
    scaled.cache_clear()

    def fn(x):
        return x * scaled(Point(2), 3) + scaled(Point(2), 3), scaled(KEY, 2), scaled(Derived(x.shape[0]), by=3)

    def asking(x):
        return fn(x), scaled.cache_info()

    return asking


test_equal_keys = make_test(__name__)
