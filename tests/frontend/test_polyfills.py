"""Each polyfill against the C function it stands for: values, exceptions with their messages, what was consumed."""

from __future__ import annotations

import bisect
import collections
import copy
import functools
import heapq
import itertools
import math
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jitpy
from jitpy.frontend import polyfills
from jitpy.frontend.polyfills import MODELLED_TYPES, POLYFILLS
from jitpy.frontend.polyfills.registry import GiveUp


class Watched:
    """An iterator that records how far it was read."""

    def __init__(self, items: Any) -> None:
        self.items = list(items)
        self.read = 0

    def __iter__(self) -> Watched:
        return self

    def __next__(self) -> Any:
        if self.read == len(self.items):
            raise StopIteration
        self.read += 1
        return self.items[self.read - 1]


class Liar:
    """Equal to nothing, itself included."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = object.__hash__


class Keyed:
    """A key with its own hash and equality."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __hash__(self) -> int:
        return self.value % 3

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keyed) and self.value == other.value

    def __repr__(self) -> str:
        return f"Keyed({self.value})"


def plain(value: Any, depth: int = 0) -> Any:
    """Results as comparable data: iterators drained (up to a bound), floats by their bits, types kept."""
    if isinstance(value, float):
        return ("float", value.hex())
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [plain(item, depth) for item in value])
    if isinstance(value, (types.GeneratorType,)) or (hasattr(value, "__next__") and not isinstance(value, Watched)):
        return ("iterator", [plain(item, depth + 1) for item in itertools.islice(value, 40)])
    if isinstance(value, collections.deque) or type(value).__name__ == "Deque":
        return ("deque", [plain(item) for item in value], value.maxlen)
    if isinstance(value, dict):
        return (type(value).__name__, [(plain(k), plain(v)) for k, v in value.items()])
    if isinstance(value, Watched):
        return ("watched", value.read)
    return value


def outcome(function: Callable[..., Any], make: Callable[[], tuple[Any, ...]], **kwargs: Any) -> Any:
    """What a call does: its value or exception, and its arguments afterwards."""
    args = make()
    try:
        result = plain(function(*args, **kwargs))
    except GiveUp:
        raise
    except Exception as error:
        result = (type(error).__name__, str(error))
    return result, [plain(arg) for arg in args if isinstance(arg, (list, dict, set, Watched))]


def _traced(original: Any) -> Any:
    return jitpy.jit(lambda *args, **kwargs: original(*args, **kwargs), backend="eager")


def same(original: Any, *args: Any, **kwargs: Any) -> None:
    """The body of `original`, or its model in a traced call, behaves like it; arguments are copied for each call (one
    level deep)."""
    body = MODELLED_TYPES.get(original) or POLYFILLS.get(original) or _traced(original)

    def make() -> tuple[Any, ...]:
        return tuple(
            Watched(arg.items)
            if isinstance(arg, Watched)
            else arg.copy()
            if isinstance(arg, (list, dict, set))
            else arg
            for arg in args
        )

    assert outcome(body, make, **kwargs) == outcome(original, make, **kwargs)


nan = float("nan")
# fmt: off
CALLS: list[tuple[Any, ...]] = [
    (any, [0, 1, 2]), (any, []), (any, 3), (all, [1, 0]), (all, []), (any, Watched([0, 1, 2, 3])), (sum, [1, 2, 3]),
    (sum, [0.1] * 10), (sum, [1, 0.1, 0.2, 10**20, True]), (sum, ["a"]), (sum, ["a"], ""), (sum, [b"a"], b""),
    (sum, [[1], [2]], []), (sum, 3), (sum, [0.1, 1e308, 1e308]), (sum, [-0.0], -0.0), (sum, [0.1, 1j, 0.2]),
    (sum, [2**70, 0.5]), (sum, [1e16, 1.0, -1e16]), (sum, [0.1, "a"]), (max, []), (min, []), (max,), (min,),
    (max, 1, 2), (min, 1, 2), (max, [1, 3, 2]), (max, "abc"), (max, 3), (max, [1, "a"]), (min, [2.0, nan, 1.0]),
    (max, [nan, 1.0]), (max, [True, 1]), (min, [1, True]),
    (list.index, [1, 2], 3), (list.index, [1, 2, 1], 1, 1),
    (list.index, [1, 2], 2, -1), (list.index, [1, 2], 1, 0, -2), (tuple.index, (1, 2), 3), (tuple.index, (1, 2), 2),
    (list.remove, [1, 2, 1], 1), (list.remove, [1], 2), (list.count, [1, 1.0, True, 2], 1), (list.reverse, [1, 2, 3]),
    (list.extend, [1], Watched("ab")), (list.extend, [1], 2), (list.__add__, [1], [2]), (list.__add__, [1], (2,)),
    (tuple.__add__, (1,), (2,)), (tuple.__add__, (1,), [2]), (list.__iadd__, [1], "ab"),
    (list.__init__, [1, 2], "ab"), (list, "ab"), (list,), (tuple, "ab"), (tuple, [1]), (str.join, ",", ["a", "b"]),
    (str.join, ",", "abc"), (str.join, ",", [1]), (str.join, ",", 1), (str.join, ",", []), (str.join, ",", ["a"]),
    (str.join, ", ", Watched("xyz")), (list.__repr__, [1, "a", [2]]), (tuple.__repr__, (1,)), (tuple.__repr__, ()),
    (tuple.__repr__, (1, "b")), (list.__contains__, [nan], nan), (list.__contains__, [1], 1.0), (heapq.heappop, []),
    (heapq.heappush, 1, 2), (heapq.heappop, 1), (heapq.heapreplace, [], 1), (heapq.heapify, (1,)),
    (heapq.heappushpop, [], 1), (heapq.heappushpop, [2], 3), (bisect.bisect_left, [1, 2], 2),
    (bisect.bisect, [1, 2], 2), (bisect.bisect_left, [1, 2], 2, -1), (bisect.insort, [1, 3], 2),
    (bisect.insort_left, [1, 3], 3), (itertools.chain, [1], "ab"), (itertools.chain, [1], 2), (itertools.chain,),
    (itertools.chain.from_iterable, ["ab", "c"]), (itertools.chain.from_iterable, 1), (itertools.islice, "abc", -1),
    (itertools.islice, "abc", "a"), (itertools.islice, "abcdef", 1, None, 2), (itertools.islice, "abc", 0, 2, 0),
    (itertools.islice, "abc"), (itertools.islice, "abc", 1, 2, 3, 4), (itertools.islice, "abc", None),
    (itertools.islice, 1, 2), (itertools.count,), (itertools.count, 2.5, 0.5), (itertools.count, "a"),
    (itertools.count, 1, -2), (itertools.cycle, "ab"), (itertools.cycle, ""), (itertools.cycle, 1),
    (itertools.repeat, 1), (itertools.repeat, 1, 3), (itertools.repeat, 1, -3), (itertools.repeat, 1, "a"),
    (itertools.accumulate, [1, 2, 3]), (itertools.accumulate, [1, 2, 3], operator.mul), (itertools.accumulate, []),
    (itertools.accumulate, 1), (itertools.starmap, pow, [(2, 3), (3, 2)]), (itertools.starmap, pow, [[2, 3]]),
    (itertools.starmap, max, 1), (itertools.takewhile, bool, [1, 1, 0, 1]), (itertools.dropwhile, bool, [1, 0, 1]),
    (itertools.filterfalse, None, [0, 1]), (itertools.filterfalse, bool, [0, 1]),
    (itertools.compress, "abc", [1, 0, 1]), (itertools.compress, "abc", [1]), (itertools.pairwise, "abcd"),
    (itertools.pairwise, "a"), (itertools.pairwise, 1), (itertools.zip_longest, "ab", "c"), (itertools.zip_longest,),
    (itertools.zip_longest, 1), (itertools.product, "ab", [1, 2]), (itertools.product,),
    (itertools.product, "ab", ""), (itertools.permutations, "abc"), (itertools.permutations, "abc", 2),
    (itertools.permutations, "abc", 4), (itertools.permutations, "abc", 0), (itertools.permutations, "a", -1),
    (itertools.permutations, "a", "b"), (itertools.combinations, "abcd", 2), (itertools.combinations, "ab", 3),
    (itertools.combinations, "ab", -1), (itertools.combinations, "ab", 0), (itertools.combinations, "ab", "c"),
    (itertools.combinations_with_replacement, "abc", 2), (itertools.combinations_with_replacement, "", 2),
    (itertools.combinations_with_replacement, "", 0), (itertools.tee, "abc"), (itertools.tee, "abc", 3),
    (itertools.tee, "abc", 0), (itertools.tee, "abc", -1), (functools.reduce, operator.add, [1, 2, 3]),
    (functools.reduce, operator.add, []), (functools.reduce, operator.add, 1),
    (functools.reduce, operator.add, [], 5), (functools.reduce, operator.sub, [1, 2], 5), (dict, [("a", 1), "bc"]),
    (dict, [1]), (dict, [(1,)]), (dict, {"a": 1}), (dict,), (dict, 1, 2), (dict, 5),
    (dict.update, {"a": 1}, [("a", 2)]), (dict.update, {"a": 1}, {"b": 2}), (dict.update, {}, 1, 2),
    (dict.update, {}), (dict.pop, {"a": 1}, "a"), (dict.pop, {"a": 1}, "b"), (dict.pop, {}, "b", None),
    (dict.popitem, {"a": 1, "b": 2}), (dict.popitem, {}), (dict.setdefault, {"a": 1}, "a", 2),
    (dict.setdefault, {}, "a"), (dict.get, {"a": 1}, "b", 3), (dict.__or__, {"a": 1}, {"b": 2}), (dict.__or__, {}, 1),
    (dict.__ior__, {"a": 1}, [("b", 2)]), (dict.copy, {"a": 1}), (dict.__eq__, {"a": nan}, {"a": nan}),
    (dict.__eq__, {"a": 1}, {"b": 1}), (dict.__eq__, {}, []), (dict.__ne__, {}, {}),
    (dict.__repr__, {"a": [1], 2: "x"}), (dict.__repr__, {}), (dict.fromkeys, "ab"), (dict.fromkeys, "ab", 1),
    (set, "ab"), (set.update, {1}, [2], "c"), (set.union, {1}, [2], (3,)), (set.intersection, {1, 2, 3}, [2, 3], [3]),
    (set.difference, {1, 2, 3}, [2], [5]), (set.symmetric_difference, {1, 2}, [2, 3]), (set.issubset, {1}, [1, 2]),
    (set.issuperset, {1}, [1, 2]), (set.isdisjoint, {1}, [2]), (set.intersection_update, {1, 2}, [2]),
    (set.union, {1}), (set.difference_update, {1, 2}, [2]), (frozenset, "ab"), (frozenset.union, frozenset("a"), "b"),
    (set.issubset, {1}, 1), (math.prod, [2, 3.0]), (math.prod, []), (math.prod, ["a", 2]), (math.gcd, 12, 18),
    (math.gcd,), (math.gcd, 1.0), (math.gcd, -4, 6), (math.lcm, 4, 6), (math.lcm,), (math.lcm, 0, 3),
    (int.bit_count, 0), (int.bit_count, -13), (int.bit_count, True), (int.bit_count, 1 << 70),
    (math.dist, (1.0, 2.5), (-3.25, 4)), (math.dist, [1], (2, 3)), (math.dist, (), ()),
    (math.dist, (math.inf,), (nan,)),
    (math.isclose, 1, 1 + 1e-10), (math.isclose, 1, 2), (math.isclose, math.inf, math.inf),
    (math.isclose, math.inf, 1.0), (math.isclose, nan, nan), (math.degrees, 1), (math.radians, 10), (math.fabs, -3),
    (math.ceil, 1.5), (math.floor, -1.5), (math.ceil, math.inf), (math.trunc, "a"), (math.ceil, 3), (math.trunc, 2.7),
    (callable, 1), (callable, len), (callable, int), (divmod, 7, -2), (divmod, 7.5, 2), (divmod, 1, "a"),
    (divmod, 1, 0), (divmod, 2, 1.5), (divmod, 1.0, 0.0), (round, 2.5), (round, 2.567, 2), (round, "a"),
    (round, 25, -1), (round, 2.5, None), (operator.concat, [1], [2]), (operator.concat, 1, 2),
    (operator.countOf, [1, 1.0], 1), (operator.indexOf, [1, 2], 2), (operator.indexOf, [1], 2), (operator.index, 2.0),
    (operator.index, True), (operator.truth, []), (operator.not_, []), (operator.iconcat, [1], [2]),
    (operator.iconcat, 1, 2), (operator.delitem, [1, 2], 0), (operator.setitem, [1], 0, 2),
    (operator.getitem, [1], 3), (operator.contains, "abc", "b"), (operator.is_, 1, 1), (operator.abs, -2),
    (operator.inv, 5), (operator.invert, 5), (operator.neg, "a"), (operator.pow, 2, 3), (operator.matmul, 1, 2),
    (type.__call__, int, "3"), (type.__call__, collections.OrderedDict, [(1, 2)]), (type.__call__, object, 1),
    (object.__init__, 1),
]
# fmt: on


@pytest.mark.parametrize("call", CALLS, ids=lambda call: getattr(call[0], "__qualname__", repr(call[0])))
def test_call(call: tuple[Any, ...]) -> None:
    same(*call)


def test_keywords() -> None:
    for original in (max, min):
        same(original, [1, -3, 2], key=abs)
        same(original, [], default=7)
        same(original, 1, 2, default=7)
        same(original, [], key=abs, default=None)
        same(original, 3, 5, key=operator.neg)
    same(sum, [1, 2], start=5)
    same(itertools.count, start=3, step=2)
    same(itertools.repeat, object=1, times=2)
    same(itertools.accumulate, [1, 2], initial=10)
    same(itertools.accumulate, [], initial=10)
    same(itertools.accumulate, [1, 2], func=operator.mul)
    same(itertools.zip_longest, "ab", "c", fillvalue=0)
    same(itertools.product, "ab", repeat=2)
    same(itertools.product, "ab", repeat=0)
    same(itertools.product, "ab", repeat=-1)
    same(itertools.permutations, "abc", r=2)
    same(math.prod, [2], start=3)
    same(math.isclose, 1, 2, rel_tol=-1)
    same(math.isclose, 1, 2, abs_tol=1.5)
    same(dict, a=1)
    same(dict, [("a", 1)], a=2)
    same(bisect.bisect_left, [(1, "a"), (2, "b")], 2, key=operator.itemgetter(0))
    same(bisect.insort, [(1, "a"), (3, "b")], (2, "c"), key=operator.itemgetter(0))
    same(round, number=2.5, ndigits=0)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="itertools.batched is new in 3.12")
def test_batched() -> None:
    same(itertools.batched, "abcde", 2)
    same(itertools.batched, "abcd", 0)
    same(itertools.batched, "", 2)
    if sys.version_info >= (3, 13):
        same(itertools.batched, "abc", 2, strict=True)


ITEMS = st.lists(st.integers(-5, 5), max_size=9)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=8), st.sampled_from([0, 0.0, -0.0, 1]))
def test_sum_of_floats(items: list[float], start: Any) -> None:
    same(sum, items, start)


@given(st.lists(st.one_of(st.integers(-(2**40), 2**40), st.floats(-1e20, 1e20), st.booleans()), max_size=8))
def test_sum_of_mixed_numbers(items: list[Any]) -> None:
    same(sum, items)


@given(ITEMS, st.integers(0, 10), st.one_of(st.none(), st.integers(0, 10)), st.integers(1, 4))
def test_islice_consumes_alike(items: list[int], start: int, stop: int | None, step: int) -> None:
    real, ours = Watched(items), Watched(items)
    expected = list(itertools.islice(real, start, stop, step))
    assert list(POLYFILLS[itertools.islice](ours, start, stop, step)) == expected
    assert ours.read == real.read


@given(ITEMS, st.lists(st.integers(0, 3), max_size=12))
def test_groupby_in_any_order_of_reading(items: list[int], script: list[int]) -> None:
    """Groups may be read partly, late, or not at all."""

    def play(groupby: Any) -> list[Any]:
        groups = groupby(iter(items), lambda v: v // 2)
        open_groups: list[Any] = []
        seen: list[Any] = []
        for step in script:
            if step == 0 or not open_groups:
                entry = next(groups, None)
                seen.append(None if entry is None else entry[0])
                if entry is not None:
                    open_groups.append(entry[1])
            else:
                seen.append(next(open_groups[-step % len(open_groups)], "end"))
        seen.append([(key, list(group)) for key, group in groups])
        return seen

    assert play(POLYFILLS[itertools.groupby]) == play(itertools.groupby)


@given(ITEMS, st.lists(st.integers(0, 2), max_size=15))
def test_tee_interleaved(items: list[int], order: list[int]) -> None:
    real, ours = itertools.tee(iter(items), 3), POLYFILLS[itertools.tee](iter(items), 3)
    assert [next(ours[i], "end") for i in order] == [next(real[i], "end") for i in order]


@given(ITEMS, ITEMS, ITEMS)
def test_iterators_of_several(a: list[int], b: list[int], c: list[int]) -> None:
    same(itertools.zip_longest, a, b, c)
    same(itertools.product, a[:3], b[:3], c[:2])
    same(itertools.chain, a, b, c)
    for r in range(4):
        same(itertools.permutations, a[:4], r)
        same(itertools.combinations, a[:5], r)
        same(itertools.combinations_with_replacement, a[:4], r)


@given(ITEMS, ITEMS)
def test_comparison(a: list[int], b: list[int]) -> None:
    for name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
        same(getattr(list, name), a, b)
        same(getattr(tuple, name), tuple(a), tuple(b))
        same(getattr(list, name), a, tuple(b))


def test_comparison_uses_identity_first() -> None:
    liar = Liar()
    same(list.__eq__, [liar], [liar])
    same(list.__contains__, [liar], liar)
    same(list.count, [liar, liar], liar)
    same(list.__eq__, [Liar()], [liar])
    same(list.__lt__, [nan], [nan])


@given(st.lists(st.integers(0, 6), max_size=10), st.integers(0, 6))
def test_heaps(items: list[int], extra: int) -> None:
    same(heapq.heapify, items)
    heap = sorted(items)
    same(heapq.heappush, heap, extra)
    same(heapq.heappop, heap)
    same(heapq.heapreplace, heap, extra)
    same(heapq.heappushpop, heap, extra)
    same(bisect.bisect_left, heap, extra)
    same(bisect.bisect_right, heap, extra)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers()), max_size=8), st.booleans())
def test_ordered_dict(pairs: list[tuple[int, int]], last: bool) -> None:
    cls = collections.OrderedDict
    for name, args in (
        ("move_to_end", (2, last)),
        ("popitem", (last,)),
        ("pop", (3,)),
        ("pop", (3, None)),
        ("setdefault", (1, 9)),
        ("copy", ()),
        ("__eq__", (cls(pairs[::-1]),)),
        ("__eq__", (dict(pairs),)),
        ("update", ([(7, 7)],)),
        ("update", ({2: 5},)),
        ("__eq__", (3,)),
        ("__ne__", (cls(pairs),)),
    ):
        real, ours = cls(pairs), cls(pairs)
        method = getattr(cls, name)
        left = outcome(POLYFILLS.get(method) or _traced(method), lambda self=ours, args=args: (self, *args))
        right = outcome(method, lambda self=real, args=args: (self, *args))
        assert left[0] == right[0]
        assert list(ours.items()) == list(real.items())


def test_defaultdict() -> None:
    for factory in (list, None):
        real, ours = collections.defaultdict(factory), collections.defaultdict(factory)
        missing = collections.defaultdict.__missing__
        assert outcome(_traced(missing), lambda ours=ours: (ours, "k")) == outcome(
            missing, lambda real=real: (real, "k")
        )
    made = collections.defaultdict.__new__(collections.defaultdict)
    _traced(collections.defaultdict.__init__)(made, int, {"a": 1}, b=2)
    assert made == collections.defaultdict(int, a=1, b=2) and made.default_factory is int
    with pytest.raises(TypeError, match="first argument must be callable or None"):
        _traced(collections.defaultdict.__init__)(made, 3)
    copied = POLYFILLS[collections.defaultdict.copy](made)
    assert copied == made and copied.default_factory is int and copied is not made


def test_count_elements() -> None:
    counted: dict[str, int] = {"a": 1}
    POLYFILLS[collections._count_elements](counted, "abca")  # type: ignore[attr-defined]
    assert counted == {"a": 3, "b": 1, "c": 1}


DEQUE_CALLS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(
                [
                    "append",
                    "appendleft",
                    "remove",
                    "count",
                    "index",
                    "__contains__",
                    "__delitem__",
                    "__getitem__",
                    "rotate",
                    "__mul__",
                ]
            ),
            st.integers(-4, 4),
        ),
        st.tuples(
            st.sampled_from(["pop", "popleft", "reverse", "clear", "copy", "__len__", "__reversed__", "__repr__"])
        ),
        st.tuples(st.sampled_from(["extend", "extendleft"]), ITEMS),
        st.tuples(st.sampled_from(["insert", "__setitem__"]), st.integers(-4, 4), st.integers(-4, 4)),
    ),
    max_size=12,
)


def rebuilt(original: type, ours: Any) -> Any:
    """The real object of a modelled instance, as compiled code makes it."""
    body = MODELLED_TYPES[original]
    state = [getattr(ours, name) for name in body.state]
    if not hasattr(body, "fill"):
        return body.make(original, *state)
    made = body.make(original)
    body.fill(made, *state)
    return made


@given(ITEMS, st.one_of(st.none(), st.integers(0, 4)), DEQUE_CALLS)
@settings(max_examples=200)
def test_deque(items: list[int], maxlen: int | None, calls: list[tuple[Any, ...]]) -> None:
    real, ours = collections.deque(items, maxlen), MODELLED_TYPES[collections.deque](items, maxlen)
    for name, *args in calls:
        expected = outcome(getattr(real, name), lambda args=args: tuple(args))
        assert outcome(getattr(ours, name), lambda args=args: tuple(args)) == expected, name
        assert plain(ours) == plain(real), name
    again = rebuilt(collections.deque, ours)
    assert again == real and again.maxlen == real.maxlen


def test_deque_compares_and_refuses_as_the_real_one() -> None:
    ours = MODELLED_TYPES[collections.deque]
    assert ours([1]) == collections.deque([1]) and ours([1]) < ours([2]) and not ours([1]) == [1]
    for args in (((), -1), ((), "a"), (1,)):
        assert outcome(ours, lambda args=args: args) == outcome(collections.deque, lambda args=args: args)
    with pytest.raises(TypeError):
        hash(ours())
    changing = ours([1, 2])
    with pytest.raises(RuntimeError, match="deque mutated during iteration"):
        for _ in changing:
            changing.append(3)


def test_getters_and_callers() -> None:
    data = types.SimpleNamespace(a=types.SimpleNamespace(b=3), c=4, get=lambda x, y=0: (x, y))
    for original, args, kwargs, target in (
        (operator.itemgetter, (1,), {}, [5, 6]),
        (operator.itemgetter, (1, 0), {}, [5, 6]),
        (operator.itemgetter, (), {}, None),
        (operator.itemgetter, (9,), {}, [5]),
        (operator.attrgetter, ("a.b",), {}, data),
        (operator.attrgetter, ("a.b", "c"), {}, data),
        (operator.attrgetter, (1,), {}, data),
        (operator.attrgetter, ("zz",), {}, data),
        (operator.attrgetter, (), {}, data),
        (operator.methodcaller, ("get", 1), {"y": 2}, data),
        (operator.methodcaller, ("get", 1), {}, data),
        (operator.methodcaller, (), {}, data),
        (operator.methodcaller, (1,), {}, data),
    ):

        def build_and_call(make: Any, args: Any = args, kwargs: Any = kwargs, target: Any = target) -> Any:
            return make(*args, **kwargs)(target)

        expected = outcome(build_and_call, lambda original=original: (original,))
        assert outcome(build_and_call, lambda original=original: (MODELLED_TYPES[original],)) == expected
        if expected[0] and isinstance(expected[0], tuple) and expected[0][0] in ("TypeError",):
            continue
        made = original(*args, **kwargs)
        ours = MODELLED_TYPES[original](*args, **kwargs)
        again = rebuilt(original, ours)
        assert outcome(again, lambda target=target: (target,)) == outcome(made, lambda target=target: (target,))
        assert [reader(again) for reader in MODELLED_TYPES[original].read.values()] == [
            getattr(ours, name) for name in MODELLED_TYPES[original].state
        ]


def test_partial() -> None:
    def f(*args: Any, **kwargs: Any) -> Any:
        return args, sorted(kwargs.items())

    for outer in (functools.partial, MODELLED_TYPES[functools.partial]):
        made = outer(outer(f, 1, a=2), 3, b=4, a=5)
        assert made(6, b=7) == functools.partial(functools.partial(f, 1, a=2), 3, b=4, a=5)(6, b=7)
        assert made.func is f and made.args == (1, 3) and made.keywords == {"a": 5, "b": 4}
    ours = MODELLED_TYPES[functools.partial](f, 1, a=2)
    again = rebuilt(functools.partial, ours)
    assert again(3, a=4) == f(1, 3, a=4) and again.keywords is ours.keywords
    same(functools.partial, 1)
    same(functools.partial)


def test_cmp_to_key() -> None:
    def compare(a: int, b: int) -> int:
        return (b > a) - (b < a)

    assert sorted([1, 3, 2], key=POLYFILLS[functools.cmp_to_key](compare)) == [3, 2, 1]


def test_iterate_call() -> None:
    def until(make_iter: Any) -> list[int]:
        values = iter([1, 2, 3, 4])
        return list(make_iter(lambda: next(values), 3))

    assert until(polyfills.iterate_call) == until(iter)
    assert outcome(polyfills.iterate_call, lambda: (1, 2)) == outcome(iter, lambda: (1, 2))


def test_copy_protocol() -> None:
    class Point:
        def __init__(self) -> None:
            self.x = [1]

    class Slots:
        __slots__ = ("a", "b")

    class Stack(list):  # type: ignore[type-arg]
        pass

    class Table(dict):  # type: ignore[type-arg]
        pass

    class Pair(tuple):
        def __getnewargs__(self) -> Any:
            return (list(self),)

    class Empty:
        pass

    slots = Slots()
    slots.a = 5
    stack = Stack([1, 2])
    stack.name = "s"
    for obj in (Point(), slots, stack, Table(a=1), Pair((1, 2)), Empty()):
        real, ours = obj.__reduce_ex__(4), POLYFILLS[object.__reduce_ex__](obj, 4)
        assert ours[:3] == real[:3]
        for mine, theirs in zip(ours[3:], real[3:], strict=True):
            assert (mine is None and theirs is None) or list(mine) == list(theirs)
        assert POLYFILLS[object.__getstate__](obj) == obj.__getstate__()
        assert type(copy.copy(obj)) is type(obj)
    with pytest.raises(GiveUp):
        POLYFILLS[object.__reduce_ex__](3, 2)


def test_namespace() -> None:
    cls = types.SimpleNamespace
    made = cls.__new__(cls)
    POLYFILLS[cls.__init__](made, a=1, b="x")
    assert made == cls(a=1, b="x")
    assert POLYFILLS[cls.__repr__](made) == repr(made)
    assert POLYFILLS[cls.__eq__](made, cls(a=1, b="x")) is True
    assert POLYFILLS[cls.__eq__](made, 3) is NotImplemented


def test_views() -> None:
    a, b = {1: 2, 3: 4}, {3: 4, 5: 6}
    for name in ("isdisjoint",):
        for view in ("keys", "items"):
            left, right = getattr(a, view)(), getattr(b, view)()
            original = getattr(type(left), name)
            assert POLYFILLS[original](left, right) == original(left, right)


def test_registry_is_consistent() -> None:
    for original, body in POLYFILLS.items():
        assert callable(body) and polyfills.ORIGINALS[body] is not None, original
        if isinstance(body, types.FunctionType):
            assert polyfills.is_polyfill(body.__code__)
    assert not MODELLED_TYPES.keys() & POLYFILLS.keys()
    for cls in MODELLED_TYPES.values():
        assert callable(cls.make) and all(isinstance(name, str) for name in cls.state)
        assert not hasattr(cls, "read") or set(cls.read) == set(cls.state)
    with pytest.raises(ValueError, match="two polyfills"):
        polyfills.substitute(any)(lambda iterable: True)
