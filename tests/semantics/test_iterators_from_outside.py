"""Iterators that the program is passed, keeps, or has across a graph break: captured, and left where eager leaves them.

Each program is called with the arguments of several makers in turn, two rounds; results, errors and what the iterators
still give are compared with eager. The makers differ in what must not be taken for granted: who shares what, where an
iterator stands, what it goes over. PYTEST_DONT_REWRITE.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, ValuesView
from typing import Any

import pytest
import torch
from torch import nn

import jitpy
from tests.counting import variants
from tests.semantics.harness import _difference

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Callable[[], tuple[Any, ...]], ...]]] = {}


def program(*makers: Callable[[], tuple[Any, ...]]) -> Callable[[Any], Any]:
    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[fn.__name__] = fn, makers
        return fn

    return register


def x() -> torch.Tensor:
    return torch.ones(2)


def twice(it: Any) -> tuple[Any, Any]:
    return it, it


def advanced(it: Any, steps: int = 1) -> Any:
    for _ in range(steps):
        next(it)
    return it


def finished(it: Any) -> Any:
    list(it)
    return it


def with_list(make: Callable[[Any], Any], *items: Any) -> tuple[Any, Any]:
    made = list(items)
    return make(made), made


# -- views of dicts ---------------------------------------------------------------------------------------------


class Doubled(dict[Any, Any]):
    def __len__(self) -> int:
        return 2 * super().__len__()

    def __iter__(self) -> Any:
        return iter(())


def with_dict(kind: str, made: Any) -> tuple[Any, Any]:
    return getattr(made, kind)(), made


@program(*(lambda kind=kind, of=of: (x(), *with_dict(kind, of({"a": 1.5, "b": 2})))
           for kind in ("keys", "values", "items") for of in (dict, collections.OrderedDict)),
         lambda: (x(), *with_dict("keys", {})))
def over_a_view(x, view, of):
    before = len(view), [*view], "a" in view, bool(view)
    of["c"] = 5
    return before, len(view), [*view], [type(view), view is view], x * 2


@program(*(lambda kind=kind: (x(), *with_dict(kind, Doubled(a=1.5, b=2))) for kind in ("keys", "values", "items")),
         lambda: (x(), *with_dict("keys", {"b": 2, "a": 1.5})), lambda: (x(), *with_dict("keys", {"a": 1.5, "b": 2})),
         lambda: (x(), dict.keys(collections.OrderedDict(a=1)), {}))
def over_a_view_of_other_kinds(x, view, of):
    return len(view), [*view], [type(view)], x * len(view)


# -- steps ------------------------------------------------------------------------------------------------------


@program(lambda: (x(), iter([1, 2, 3])), lambda: (x(), iter([4, 5])), lambda: (x(), iter([])),
         lambda: (x(), advanced(iter([1, 2, 3]))), lambda: (x(), finished(iter([1]))), lambda: (x(), iter((6, 7))),
         lambda: (x(), iter(range(3, 9, 2))), lambda: (x(), reversed([1, 2])))
def one_step(x, it):
    return x * 2, next(it, "end")


@program(lambda: (x(), reversed((1, 2))), lambda: (x(), iter({"a": 1})), lambda: (x(), iter("ab")),
         lambda: (x(), iter(b"ab")), lambda: (x(), reversed("ab")), lambda: (x(), iter({5})),
         lambda: (x(), iter(range(1 << 90, (1 << 90) + 2))))
def one_step_of_other_kinds(x, it):
    return x * 2, next(it, "end")


@program(*(lambda n=n: (x(), iter(range(n))) for n in (3, 0, 1, 7, 3, 8, 2, 9)))
def all_that_is_left(x, it):
    for v in it:
        x = x * 2 + v
    return x


@program(lambda: (x(), enumerate(["a", "b"])), lambda: (x(), advanced(enumerate(["a", "b", "c"], 5))),
         lambda: (x(), enumerate(iter({"k": 1}.items()))), lambda: (x(), enumerate(zip([1, 2], (3, 4)), -1)),
         lambda: (x(), enumerate(map(abs, [-1, -2]))), lambda: (x(), enumerate(v for v in (7, 8))))
def numbered(x, it):
    first = next(it)
    return [first, *it], x * 2


@program(lambda: (x(), zip([1, 2], (3, 4))), lambda: (x(), zip([1, 2], (3, 4), [5, 6])), lambda: (x(), zip()),
         lambda: (x(), zip([1, 2], [3], strict=True)), lambda: (x(), zip([1, 2], iter([3]))),
         lambda: (x(), zip([], [1])))
def zipped(x, it):
    got = []
    try:
        for item in it:
            got.append(item)
    except ValueError as error:
        got.append(str(error))
    return got, x * 2


def chained(*parts: Any, steps: int = 0) -> tuple[Any, ...]:
    return x(), advanced(itertools.chain(*parts), steps), [part for part in parts if type(part) in (list, tuple, dict)]


@program(lambda: chained([1, 2], (3,), {4: 5}.values()), lambda: chained((1, 2), [3, 4], steps=1),
         lambda: chained((1,), [3, 4], steps=2), lambda: chained(), lambda: chained([], (), {}),
         lambda: (x(), finished(itertools.chain([1])), ()), lambda: chained(iter([1, 2]), "ab", steps=1),
         lambda: (x(), itertools.chain.from_iterable([[1], (2, 3)]), ()))
def over_a_chain(x, it, parts):
    return next(it, "end"), next(it, "end"), next(it, "end"), x * 2


@program(lambda: chained([1, 2], [3, 4]), lambda: chained([1, 2], [3, 4], steps=1), lambda: chained([1], [3], steps=1),
         lambda: chained([], [3]), lambda: chained([1], (2,), {3: 4}), lambda: chained((v for v in (5, 6)), [7]))
def over_a_chain_of_lists_that_grow(x, it, parts):
    got = []
    for item in it:
        got.append(item)
        if len(got) < 3 and parts and hasattr(parts[-1], "append"):
            parts[-1].append(item + 10)
    return got, parts, x * 2


@program(*(lambda n=n: (x(), [1.5] * n, {"a": 2.5, "b": 0.5}) for n in (3, 1, 0, 2)))
def breaks_within_a_chain(x, items, named):
    for factor in itertools.chain(items, named.values(), (1.0,)):
        x = broken(x) * factor
    kept = itertools.chain.from_iterable([items, (2.0, 3.0)])
    first = next(kept)
    x = broken(x)
    return x * first, list(kept), type(kept)


@program(lambda: (x(), *with_list(lambda v: map(abs, v), -1, -2)), lambda: (x(), *with_list(lambda v: map(str, v), -1)),
         lambda: (x(), *with_list(lambda v: map(max, v, [5, -5]), -1, -2)),
         lambda: (x(), *with_list(lambda v: filter(None, v), 0, 3, 0, 4)),
         lambda: (x(), *with_list(lambda v: filter(lambda w: w > 1, v), 1, 2, 3)))
def mapped(x, it, items):
    first = next(it, None)
    return first, list(it), items, x * 2


@program(lambda: (x(), (it := iter([1, 2, 3, 4])), zip(it, it)), lambda: (x(), iter([1, 2]), zip([3, 4], [5, 6])),
         lambda: (x(), (it := iter([1, 2, 3])), zip([8, 9], it)))
def shared_by_a_zip(x, it, pairs):
    return next(pairs), next(it), next(pairs, "end"), next(it, "end"), x * 2


@program(lambda: (x(), (it := iter([1, 2, 3, 4])), enumerate(it)), lambda: (x(), iter([1, 2]), enumerate([3, 4])))
def shared_by_an_enumerate(x, it, numbers):
    return next(numbers), next(it), next(numbers, "end"), next(it, "end"), x * 2


@program(lambda: (x(), iter([1, 2, 3]), iter([1, 2, 3])), lambda: (x(), *twice(iter([1, 2, 3]))),
         lambda: (x(), iter([1, 2, 3]), iter([1, 2, 3])))
def one_or_two(x, a, b):
    return next(a), next(b), next(a, "end"), a is b, x * 2


@program(lambda: (x(), iter([1, 2, 3]), iter([1, 2, 3])), lambda: (x(), *twice(iter([1, 2, 3]))))
def one_or_two_who_asks(x, a, b):
    return next(a), next(b), next(a, "end"), x * 2


@program(lambda: (x(), enumerate(iter([1, 2, 3])), iter([1, 2, 3])),
         lambda: (x(), enumerate(it := iter([1, 2, 3])), it))
def one_below_another_or_not(x, a, b):
    return next(a), next(b), next(a, "end"), x * 2


@program(lambda: (x(), *twice(iter([1, 2, 3]))), lambda: (x(), iter([1, 2, 3]), iter([1, 2, 3])))
def two_or_one(x, a, b):
    return next(a), next(b), next(a, "end"), a is b, x * 2


@program(lambda: (x(), iter([torch.ones(2), torch.zeros(2)])), lambda: (x(), iter([torch.ones(3), torch.ones(2)])),
         lambda: (x(), iter([1.5, torch.ones(2)])), lambda: (x(), iter([None, 3])))
def of_other_kinds(x, it):
    for v in it:
        if v is not None:
            x = x + (v.sum() if isinstance(v, torch.Tensor) else v)
    return x


@program(lambda: (x(), iter([[], {}, object]),), lambda: (x(), iter([[1], {2: 3}, int])))
def items_that_are_not_looked_at(x, it):
    a = next(it)
    b = next(it)
    return x * 2, [a, b]


# -- what they go over changes ----------------------------------------------------------------------------------


@program(lambda: (x(), *with_list(iter, 1, 2)), lambda: (x(), iter([1, 2]), [1, 2]),
         lambda: (x(), *with_list(lambda v: advanced(iter(v), 2), 1, 2)),
         lambda: (x(), *with_list(lambda v: finished(iter(v)), 1, 2)))
def list_that_grows(x, it, items):
    items.append(3)
    return list(it), items, x * 2


@program(lambda: (x(), iter([1, 2]), [1, 2]), lambda: (x(), *with_list(iter, 1, 2)))
def list_that_may_grow(x, it, items):
    items[1] = 5
    return list(it), items, x * 2


@program(lambda: (x(), *with_list(iter, 1, 2, 3)), lambda: (x(), iter([1, 2, 3]), [1, 2, 3]))
def list_that_shrinks_behind_a_step(x, it, items):
    first = next(it)
    del items[0]
    jitpy.graph_break()
    return first, next(it, "end"), items, x * 2


@program(lambda: (x(), *with_list(lambda v: finished(iter(v)), 1)),
         lambda: (x(), *with_list(lambda v: advanced(iter(v)), 1)))
def at_the_end_of_a_list_that_grows(x, it, items):
    first = next(it, "end")
    items.append(2)
    return first, next(it, "end"), x * 2


@program(lambda: (x(), *with_list(lambda v: advanced(iter(v)), 1)),
         lambda: (x(), *with_list(lambda v: finished(iter(v)), 1)))
def asked_after_the_end(x, it, items):
    items.append(2)
    return next(it, "end"), x * 2


@program(lambda: (x(), iter((d := {"a": 1, "b": 2}).values()), d), lambda: (x(), iter({"a": 1}.values()), {"a": 1}),
         lambda: (x(), iter((d := {"a": 1}).items()), d), lambda: (x(), iter(d := {"a": 1}), d),
         lambda: (x(), reversed(d := {"a": 1, "b": 0}), d),
         lambda: (x(), iter(d := collections.OrderedDict(a=1, b=2)), d))
def dict_whose_values_change(x, it, table):
    first = next(it)
    table["b"] = 7
    try:
        return first, next(it, "end"), table, x * 2
    except RuntimeError as error:
        return first, str(error), table, x * 2


@program(lambda: (x(), iter({"b": 3}), {"a": 1}), lambda: (x(), iter(d := {"a": 1}), d))
def dict_that_may_be_another(x, it, table):
    table["n"] = 7
    try:
        return next(it), table, x * 2
    except RuntimeError as error:
        return str(error), table, x * 2


class Box:
    def __init__(self, **members: Any) -> None:
        self.__dict__.update(members)


@program(lambda: (x(), iter({"a": 3}), Box(a=1)), lambda: (x(), iter((b := Box(a=1)).__dict__), b))
def dict_that_may_be_an_instances(x, it, box):
    box.n = 7
    try:
        return next(it), vars(box), x * 2
    except RuntimeError as error:
        return str(error), vars(box), x * 2


@program(lambda: (x(), iter((d := {"a": 1, "b": 2})), d))
def dict_that_has_grown_before(x, it, table):
    table["n"] = 7
    jitpy.graph_break()
    try:
        return next(it), x * 2
    except RuntimeError as error:
        return str(error), x * 2


@program(lambda: (x(), iter(s := {1}), s), lambda: (x(), iter({1}), {1}))
def set_that_grows(x, it, items):
    items.add(2)
    try:
        return next(it), items, x * 2
    except RuntimeError as error:
        return str(error), items, x * 2


# -- across graph breaks ----------------------------------------------------------------------------------------


def broken(x):
    jitpy.graph_break()
    return x + 1


@program(lambda: (x(), [1, 2, 3]), lambda: (x(), [1, 2, 3, 4, 5]), lambda: (x(), []))
def list_that_grows_in_its_loop(x, items):
    for v in items:
        x = broken(x) * v
        if v == 2:
            items.append(9)
        if v == 3:
            del items[0]
    return x, items


@program(lambda: (x(), {"a": 1, "b": 2, "c": 3}), lambda: (x(), {"a": 1}), lambda: (x(), {}))
def dict_that_grows_in_its_loop(x, table):
    try:
        for k, v in table.items():
            x = broken(x) * v
            table["c"] = 5
    except RuntimeError as error:
        return str(error), table
    return x, table


@program(lambda: (x(), [1.0, 2.0, 3.0]), lambda: (x(), [4.0]))
def nested_loops(x, items):
    for i, v in enumerate(items):
        for w, u in zip(items, reversed(items)):
            x = broken(x) * w - u
        else:
            x = x + i
        if i == 1:
            break
    return x


@program(lambda: (x(), [1, 2, 3, 4, 5, 6]), lambda: (x(), [2, 4, 6, 8]), lambda: (x(), [1, 3]))
def breaks_now_and_then(x, items):
    out = []
    it = iter(items)
    for v in it:
        if v % 2 == 0:
            x = broken(x)
            out.append(next(it, "none"))
        x = x + v
    return x, out


@program(lambda: (x(), [1, 2, 3]), lambda: (x(), [1, 2]))
def handed_to_other_code(x, items):
    it = iter(items)
    seen = []

    def other():
        jitpy.graph_break()
        seen.append(next(it, "end"))

    for v in it:
        other()
        x = x * v
    return x, seen


@program(lambda: (x(), [3, 0, 1]), lambda: (x(), [1, 2, 3]))
def errors_in_the_loop(x, items):
    got = []
    for i, v in enumerate(items):
        try:
            x = broken(x) + 6 // v
        except ZeroDivisionError:
            got.append(i)
            continue
        finally:
            got.append(v)
    return x, got


class Layer(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, x):
        return torch.relu(broken(self.linear(x)))


class Stack(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(2) for _ in range(count))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x) + i
        return x


STACKS = {n: Stack(n) for n in (3, 5)}


@program(lambda: (torch.ones(2), 3), lambda: (torch.ones(2), 5))
def modules(x, n):
    return STACKS[n](x)


class Kept:
    def __init__(self) -> None:
        self.it = iter([1, 2, 3, 4])


@program(lambda: (x(), Kept()))
def kept_in_an_object(x, kept):
    a = next(kept.it)
    x = broken(x) * a
    return x, next(kept.it), kept.it.__reduce__()[2]


def _played(fn: Callable[..., Any], makers: tuple[Callable[[], tuple[Any, ...]], ...]) -> list[Any]:
    found = []
    for make in makers * 2:
        args = make()
        try:
            result = fn(*args)
        except Exception as error:
            result = repr(error)
        found.append((result, list(map(_left, args))))
    return found


def _left(arg: Any) -> Any:
    """What an argument still gives, or what it holds."""
    if isinstance(arg, ValuesView):
        return [*arg]
    if not hasattr(arg, "__next__"):
        return vars(arg).keys() if isinstance(arg, (Box, Kept)) else arg
    try:
        return list(arg)
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str) -> None:
    fn, makers = PROGRAMS[name]
    torch.manual_seed(0)
    expected = _played(fn, makers)
    jitpy.reset()
    found = _played(jitpy.jit(fn, backend="eager"), makers)
    for number, (wanted, got) in enumerate(zip(expected, found, strict=True)):
        difference = _difference(wanted, got, 1e-5)
        assert difference is None, f"call {number}: {difference}"


LOOPS: dict[str, Callable[[Any], Any]] = {}


def loop(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    LOOPS[fn.__name__] = fn
    return fn


@loop
def over_a_range(x):
    for _ in range(200):
        x = broken(x) * 0.5
    return x


@loop
def over_numbers(x):
    for i in range(200):
        x = broken(x) * 0.5 + i
    return x


@loop
def over_pairs(x):
    for i, (a, b) in enumerate(zip(range(200), [0.5] * 200)):
        x = broken(x) * b + a - i
    return x


@loop
def over_a_dict(x):
    for k, v in dict.fromkeys(range(200), 0.5).items():
        x = broken(x) * v + k
    return x


@pytest.mark.parametrize("name", LOOPS)
def test_any_number_of_steps_is_a_few_graphs(name: str) -> None:
    fn = LOOPS[name]
    jitpy.reset()
    torch.testing.assert_close(jitpy.jit(fn, backend="eager")(x()), fn(x()))
    assert variants() <= 8, variants()


def test_a_loop_breaks_where_the_program_does() -> None:
    jitpy.reset()
    report = jitpy.explain(STACKS[5])(x())
    assert {record.reason.id for record in report.break_reasons} == {"user"}


@pytest.mark.parametrize("make", [lambda: iter([1, 2, 3]), lambda: iter((1, 2, 3)), lambda: iter([]), lambda: iter(()),
                                  lambda: iter(type("L", (list,), {})([4, 5]))])
def test_reading_ahead_in_sequences_takes_nothing(make: Callable[[], Any]) -> None:
    from jitpy.frontend.models.builtins.live_iterators import Ahead

    for taken in range(5):
        iterator = make()
        for _ in range(taken):
            next(iterator, None)
        rest = list(make())[taken:]
        for count in range(4):
            try:
                assert Ahead(count).__get__(iterator) is rest[count]
            except StopIteration:
                assert count >= len(rest)
        assert list(iterator) == rest


def test_reading_ahead_in_a_list_that_became_shorter() -> None:
    from jitpy.frontend.models.builtins.live_iterators import Ahead

    items = [1, 2, 3]
    iterator = iter(items)
    next(iterator), next(iterator)
    items.clear()
    with pytest.raises(StopIteration):
        Ahead(0).__get__(iterator)
    items += [4, 5, 6, 7]
    assert Ahead(1).__get__(iterator) == 7
