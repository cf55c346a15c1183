"""Iterators that live while something else happens: graph breaks, changes of what they go over. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import collections
import functools
import itertools

import torch

import jitpy
from tests.semantics.harness import case, make_test

ASKED: list[str] = []


def one():
    return (torch.randn(4),)


class Source:
    def __init__(self, *items):
        self.items = items
        self.at = 0

    def __iter__(self):
        ASKED.append("iter")
        return self

    def __next__(self):
        ASKED.append("next")
        if self.at == len(self.items):
            raise StopIteration
        self.at += 1
        return self.items[self.at - 1]


class Sized:
    def __init__(self, *items):
        self.items = items

    def __len__(self):
        ASKED.append("len")
        return len(self.items)

    def __iter__(self):
        ASKED.append("iter")
        return iter(self.items)


class Hinting(Source):
    def __length_hint__(self):
        ASKED.append("hint")
        return NotImplemented


class Unsure(Sized):
    def __len__(self):
        ASKED.append("len")
        raise TypeError("no length")


class Middle(tuple):
    def __getitem__(self, i):
        ASKED.append("item")
        return tuple.__getitem__(self, i) * 10


class Listed(list):
    def __iter__(self):
        yield from ("own", *super().__iter__())

    def base(self):
        return super().__iter__()


class Keys(frozenset):
    def __or__(self, other):
        ASKED.append("or")
        return type(self)(frozenset.__or__(self, other))

    def __rsub__(self, other):
        ASKED.append("rsub")
        return "reflected"


class Changed(set):
    def __ior__(self, other):
        ASKED.append("ior")
        self.add(99)
        return self


@case(one)
def exhausted_list_iterator_stays_exhausted(x):
    items = []
    it = iter(items)
    first = next(it, None)
    jitpy.graph_break()
    items.append(1)
    return first, next(it, "end"), x * 2


@case(one)
def list_iterator_at_the_end_but_not_told_so(x):
    items = [1]
    it = iter(items)
    first = next(it, None)
    jitpy.graph_break()
    items.append(2)
    return first, next(it, "end"), next(it, "end"), x * 2


@case(lambda: (torch.ones(2), [1, 2]))
def exhausted_iterator_of_a_list_from_outside(x, items):
    it = iter(items)
    total = sum(it)
    items.append(3)
    jitpy.graph_break()
    return total, next(it, "end"), x * 2


@case(one, breaks=())
def dict_views_show_what_is_there_now(x):
    table = {"a": 1, "b": 2, "c": 3}
    found = []
    for key, value in table.items():
        found.append((key, value))
        table["c"] = value * 10
    values = iter(table.values())
    next(values)
    table["b"] = x
    return found, next(values) is x, table


@case(lambda: (torch.ones(2), {"a": 1, "b": 2}), lambda: (torch.ones(2), {"a": 3, "b": 2}), breaks=())
def dict_views_of_dicts_from_outside(x, table):
    total = x
    for key, value in table.items():
        total = total * value
        table["b"] = value + 5
    return total, table


@case(lambda: (torch.ones(2), {"a": 1, "b": 2}))
def dict_views_across_breaks(x, table):
    found = []
    for key, value in table.items():
        found.append((key, value))
        table["b"] = value + 5
        jitpy.graph_break()
    it = iter(table.values())
    next(it)
    jitpy.graph_break()
    table["b"] = "new"
    return found, next(it), x * 2


@case(one)
def dict_with_other_keys_of_the_same_number(x):
    table = {"a": 1, "b": 2, "c": 3}
    found = []
    for key in table:
        found.append(key)
        if key == "a":
            del table["b"]
            table["d"] = 4
    return found, x * 2


@case(one)
def dict_that_grows(x):
    table = {"a": 1}
    it = iter(table)
    jitpy.graph_break()
    table["b"] = 2
    try:
        next(it)
    except RuntimeError as error:
        return str(error), x * 2


@case(one)
def finished_dict_iterator(x):
    table = {"a": 1}
    it = iter(table.items())
    got = list(it)
    table["b"] = 2
    jitpy.graph_break()
    return got, next(it, "end"), x * 2


@case(one)
def ordered_dict_in_its_own_order(x):
    table = collections.OrderedDict(a=1, b=2, c=3)
    table.move_to_end("a")
    found = []
    for key in table:
        found.append(key)
        jitpy.graph_break()
    return found, x * 2


@case(one, globals={"ASKED": list})
def builtin_iterators_ask_for_an_iterator_once(x):
    pairs = zip([1, 2, 3], Source(0, 1, 2))
    numbered = enumerate(Source("a", "b"))
    mapped = map(lambda v: v + 1, Source(1, 2))
    chosen = filter(None, Source(0, 5, 6))
    first = next(pairs), next(numbered), next(mapped), next(chosen)
    jitpy.graph_break()
    return first, next(pairs), next(numbered), next(mapped), next(chosen), x * 2


@case(one, globals={"ASKED": list}, breaks=())
def lengths_are_asked_for(x):
    a, b = Sized(1, 2)
    return (x, list(Sized(1)), tuple(Sized(2)), [*Sized(3)], (*Sized(4),), max(*Sized(1, 2)), sorted(Sized(2, 1)),
            set(Sized(1)), {*Sized(5)}, "".join(Sized("a")), list(Hinting(1)), list(Unsure(1)), sum(Sized(1)), (a, b),
            [v for v in Sized(7)], dict(zip(Sized("k"), Sized(1))), collections.deque(Sized(1)), [*Hinting(2), 1])


@case(one, globals={"ASKED": list}, breaks=())
def library_iterators_ask_for_an_iterator_once(x):
    def add(a, b):
        return a + b

    made = [
        itertools.chain([1], Source(2, 3)),
        itertools.chain.from_iterable(Source([1], [2])),
        itertools.cycle(Source(1, 2)),
        itertools.accumulate(Source(1, 2, 3)),
        itertools.takewhile(bool, Source(1, 2, 3)),
        itertools.dropwhile(lambda v: v < 2, Source(1, 2, 3, 4)),
        itertools.pairwise(Source(1, 2, 3)),
        itertools.starmap(add, Source((1, 2), (3, 4))),
        itertools.tee(Source(1, 2, 3))[0],
        itertools.filterfalse(lambda v: v == 2, Source(1, 2, 3)),
        itertools.islice(Source(1, 2, 3), 2),
        itertools.zip_longest(Source(1, 2), Source(1)),
    ]
    found = [(next(it), next(it)) for it in made]
    return found, sum(Source(1, 2)), max(Source(1, 2)), functools.reduce(add, Source(1, 2)), any(Source(0, 1)), x * 2


@case(one, globals={"ASKED": list})
def unpacking_takes_no_more_than_it_needs(x):
    it = iter([1, 2, 3, 4, 5])
    try:
        a, b = it
    except ValueError as error:
        shown = str(error)
    try:
        a, b = itertools.count()
    except ValueError as error:
        shown += str(error)
    try:
        a, b, c = Source(1, 2)
    except ValueError as error:
        shown += str(error)
    return shown, next(it), x * 2


@case(one, globals={"ASKED": list}, breaks=())
def reversed_tuple_of_a_class(x):
    return [*reversed(Middle((1, 2)))], x * 2


@case(one)
def base_iterator_of_a_list_of_a_class(x):
    items = Listed([1, 2, 3])
    it = items.base()
    first = next(it)
    jitpy.graph_break()
    return first, next(it), [*items], x * 2


@case(lambda: (torch.ones(2), Keys({1})), globals={"ASKED": list}, breaks=())
def operators_of_sets_of_a_class(x, keys):
    made = keys | {2}
    again = Keys({3}) | frozenset()
    changed = Changed({1})
    changed |= {5}
    return (made, type(again).__name__, type(keys & {1}).__name__, {1, 2} | keys, frozenset({7}) - keys, {7} - keys,
            sorted(changed), x * 2)


class Doubled(list):
    """Shows its items doubled; what its base class does looks at the items themselves."""

    def __getitem__(self, i):
        return list.__getitem__(self, i) * 2

    def __iter__(self):
        return (v * 2 for v in list.__iter__(self))

    def __len__(self):
        return 0

    def __contains__(self, item):
        return "base", super().__contains__(item)

    def same(self, other):
        return super().__eq__(other), super().__lt__(other), super().__contains__(1), super().index(3), super().count(1)

    def joined(self, other):
        return super().__add__(other)


@case(lambda: (torch.ones(2), Doubled([1, 2, 3])), lambda: (torch.ones(2), Doubled([1, 3])), breaks=())
def base_methods_see_the_items(x, items):
    made = Doubled([1, 3])
    return items.same([1, 2, 3]), items.same(made), made.joined([4]), items.joined(made), 3 in items, [*items], x * 2


@case(lambda: (torch.ones(2).expand(2, -1),))
def part_of_an_expanded_tensor(h):
    h[0] = 0.5
    return h.sum()


@case(one)
def part_of_an_expanded_tensor_across_a_break(x):
    h = (x + x).expand(2, -1)
    jitpy.graph_break()
    h[0] = 0.5
    return h, h * 2


@case(lambda: (torch.ones(2), {1: 2}))
@case(lambda: (torch.ones(2), collections.OrderedDict({1: 2})))
def dict_that_got_a_key_before_the_loop(x, found):
    found[5] = 3
    seen = []
    for key in found:
        if key == 5:
            jitpy.graph_break()
        seen.append(key)
    del found[5]
    found[1] = 4
    for key, value in found.items():
        jitpy.graph_break()
        seen.append((key, value))
    return x + 1, seen, [*found]


@case(lambda: (torch.ones(2), {1: 2, 3: 4, 5: 6}))
def dict_that_has_other_keys_before_the_loop(x, found):
    found[1] = found.pop(1)
    del found[3]
    found[3] = 4
    seen = []
    for key in found:
        if key != 5:
            jitpy.graph_break()
        seen.append(key)
    return x + 1, seen


@case(lambda: (torch.ones(2), collections.OrderedDict({1: 2})), breaks=())
def views_of_an_ordered_dict(x, found):
    made = collections.OrderedDict(a=x)
    kinds = [type(view).__name__ for d in (found, made, {}) for view in (d.keys(), d.values(), d.items(), iter(d))]
    return kinds, found.keys() | {7}, found.items() & {(1, 2)}, made.values(), found.items(), list(reversed(found))


def _steps(it, count, between):
    seen = []
    for k in range(count):
        try:
            seen.append(next(it))
        except (RuntimeError, StopIteration) as error:
            seen.append((type(error).__name__, str(error)))
        between(k)
    return seen


@case(one)
def changed_sizes(x):
    """An iterator over a dict or set that has changed its size says so at each further step, even if it has its old
    size again; one over an OrderedDict is at its end then."""
    seen = []
    makers = (iter, reversed, lambda d: reversed(d.items()), lambda d: iter(d.values()), lambda d: reversed(d.keys()))
    for make in makers:
        for kind in (dict, collections.OrderedDict):
            d = kind({1: 2, 3: 4, 5: 6})
            it = make(d)
            seen.append(_steps(it, 4, lambda k, d=d: d.update({9: 1}) if k == 0 else d.pop(9, None)))
            seen.append(type(it).__name__)
    members = {1, 2, 3}
    seen.append(_steps(iter(members), 4, lambda k: members.add(9) if k == 0 else members.discard(9)))
    return x + 1, seen


@case(lambda: (torch.ones(2), {1: 2, 3: 4, 5: 6}))
def backwards_in_changing_dicts(x, outside):
    seen, d = [], {1: 2, 3: 4, 5: 6}
    for kept in (d, outside):
        it = reversed(kept)
        seen.append(next(it))
        kept[1] = 7
        jitpy.graph_break()
        seen.append(next(it))
        kept["new"] = 0
        try:
            next(it)
        except RuntimeError as error:
            seen.append(str(error))
    for key, value in reversed(d.items()):
        x = x + value
        seen.append(key)
        jitpy.graph_break()
    return x, seen, type(reversed(range(3))).__name__, list(reversed(range(2, 9, 3)))


class NinesFirst(dict):
    def __iter__(self):
        return iter([9, 9])


@case(one)
def backwards_asks_no_iter(x):
    return x + 1, list(reversed(NinesFirst(a=1, b=2)))


test_kept_iterators = make_test(__name__)
