"""Generators and lazy iterators that outlive the code that made them. PYTEST_DONT_REWRITE: cases run as written."""

from __future__ import annotations

import collections.abc
import contextlib
import gc
import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy
from tests.semantics.harness import case, jit, make_test


def graph_break(message: str = "") -> None:
    """`jitpy.graph_break`, looked up late: the cases alone run without it."""


if os.environ.get("JITPY_SEMANTICS_STUB") != "1":
    from jitpy import graph_break  # type: ignore[no-redef]


def one() -> tuple[Any, ...]:
    return (torch.randn(4),)


def counting(n, log=None):
    try:
        for i in range(n):  # the loop is the point
            yield i
    finally:
        if log is not None:
            log.append("closed")


# -- returned -----------------------------------------------------------------------------------------------


@case(one, breaks=())
def unstarted(x):
    return counting(3), x + 1


@case(one, breaks=())
def unstarted_closure(x):
    y = x * 2

    def lazily(n, *more, scale=3, **options):
        for i in range(n):
            yield y * i * scale
        yield from more
        yield sorted(options)

    return lazily(2, "a", "b", scale=4, k=1, j=2)


@case(one, breaks=())
def unstarted_expression(x):
    y = x + 1
    return (y * i for i in range(3))


@case(one, breaks=())
def half_used(x):
    g = counting(4)
    a = next(g)
    b = next(g)
    return g, x * a + b


@case(one, breaks=())
def half_used_with_locals_and_closure(x):
    total = x * 0

    def running(items):
        nonlocal total
        for position, item in enumerate(items):
            total = total + item
            got = yield total, position
            if got is not None:
                total = total * got

    g = running([x, x + 1, x + 2, x + 3])
    next(g)
    g.send(2)
    total = total + 1
    return g, total


@case(one, breaks=())
def half_used_expression(x):
    g = (x + i for i in range(5) if i != 2)
    return next(g), next(g), g


@case(one, breaks=())
def two_names_one_generator(x):
    g = counting(4)
    next(g)
    return [g, g], {"g": g}, x + next(g)


@case(one, breaks=())
def inside_yield_from(x):
    def inner():
        got = yield x
        yield (got, x + 1)
        return "inner"

    def outer():
        result = yield from inner()
        yield result
        yield from [1, 2]

    g = outer()
    next(g)
    return g


@case(one, breaks=())
def inside_yield_from_list(x):
    def outer():
        yield from [x, x + 1, x + 2]
        yield "end"

    g = outer()
    next(g)
    return g


@case(one, breaks=())
def suspended_in_try_and_with(x):
    log = []

    @contextlib.contextmanager
    def noted(name):
        log.append("enter " + name)
        yield name
        log.append("leave " + name)

    def body():
        with noted("a") as name:
            try:
                yield name, x
                yield 2
            finally:
                log.append("finally")

    g = body()
    next(g)
    return g, log


@case(one, breaks=())
def finished_generator(x):
    g = counting(1)
    list(g)
    return g, x


@case(one, factory=True)
def stored_in_state():
    state = {"g": None, "out": []}

    def fn(x):
        if state["g"] is None:
            state["g"] = counting(5)
            next(state["g"])
        state["out"].append(next(state["g"]))
        return x + state["out"][-1]

    return fn, state["out"]


@case(one, breaks=())
def generator_of_generators(x):
    def outer():
        for n in range(1, 4):
            yield (x * i for i in range(n))

    g = outer()
    first = next(g)
    next(first)
    return first, g


@case(one, breaks=())
def held_by_a_closure(x):
    g = counting(6)
    next(g)

    def more():
        return next(g)

    return more, more(), x


@case(one, breaks=())
def held_by_an_object(x):
    class_ = Holder(counting(3))
    return class_, class_.take(), class_.generator, x


class Holder:
    def __init__(self, generator):
        self.generator = generator

    def take(self):
        return next(self.generator)


@case(one, breaks=())
def lazy_zip_enumerate_map_filter(x):
    a = zip([1, 2, 3], (x, x + 1, x + 2), strict=False)
    b = enumerate(["a", "b"], 5)
    c = map(lambda v: x * v, [1, 2, 3])
    d = filter(lambda v: v % 2, range(6))
    next(a), next(b), next(c), next(d)
    return a, b, c, d


@case(one, breaks=())
def lazy_over_generators(x):
    g = counting(5)
    next(g)
    return zip(g, g, strict=False), enumerate(x + i for i in range(3)), map(str, counting(2))


@case(one)
def lazy_itertools(x):
    return itertools.chain([1], (2,)), itertools.islice([x, x + 1, x + 2], 2), itertools.count(3, 2)


@case(one, breaks=())
def half_used_container_iterators(x):
    its = [iter([1, 2, 3]), iter((1, 2, 3)), iter({"a": 1, "b": 2}), iter("abc"), iter(range(4)), reversed([1, 2, 3])]
    return [next(i) for i in its], [list(i) for i in its], x


@case(one, breaks=())
def returned_container_iterators(x):
    d = {"a": x, "b": x + 1}
    a, b, c = iter(d.items()), iter([x, 1]), iter({5})
    next(a)
    return (list(a), b, list(c)), d


# -- alive at a break -----------------------------------------------------------------------------------------


@case(one)
def unstarted_at_break(x):
    g = (x + i for i in range(3))
    graph_break()
    return list(g), x + 1


@case(one)
def half_used_at_break(x):
    g = counting(5)
    x = x + next(g)
    x = x + next(g)
    graph_break()
    return x * next(g), next(g), list(g)


@case(one)
def loop_over_generator_with_break_in_body(x):
    def parts():
        for i in range(3):
            yield x * i

    total = x
    for part in parts():
        total = total + part
        graph_break()
        total = total * 2
    return total


@case(one)
def break_inside_generator_body(x):
    def parts():
        for i in range(3):
            y = x * i
            graph_break()
            yield y + 1

    return [p * 2 for p in parts()]


@case(one)
def break_inside_generator_with_finally(x):
    log = []

    def parts():
        try:
            yield x
            graph_break()
            yield x + 1
        finally:
            log.append("done")

    return list(parts()), log


@case(one)
def break_inside_manager(x):
    log = []

    @contextlib.contextmanager
    def manager():
        log.append("in")
        graph_break()
        try:
            yield x + 1
        except ValueError as error:
            log.append(str(error))
        graph_break()
        log.append("out")

    with manager() as y:
        z = y * 2
        raise ValueError("inside")
    return z, log


@case(one)
def break_while_generator_manager_is_open(x):
    log = []

    @contextlib.contextmanager
    def manager(name):
        log.append("in " + name)
        try:
            yield x + 1
        finally:
            log.append("out " + name)

    with manager("a") as a, manager("b") as b:
        y = a * b
        graph_break()
        y = y + a
    return y, log


@case(one)
def passed_to_c_function(x):
    g = (i * 2 for i in range(4))
    from collections import deque

    return deque(g, 3), x


@case(one)
def passed_to_unknown_function(x):
    g = (x + i for i in range(3))
    return opaque(g), x * 2


@torch.compiler.disable
def opaque(g):
    return [next(g), *g]


@case(one)
def lazy_things_at_break(x):
    a = zip([1, 2, 3], [x, x + 1, x + 2], strict=True)
    b = enumerate([x, x + 1], 5)
    c = map(lambda v: x * v, [1, 2, 3])
    d = filter(None, [0, 1, 2])
    next(a), next(b), next(c)
    graph_break()
    return list(a), list(b), list(c), list(d)


@case(one)
def yield_from_chain_at_break(x):
    def inner():
        got = yield 1
        got = yield got * 2
        return got

    def middle():
        result = yield from inner()
        yield result + 100
        return "middle"

    def outer():
        result = yield from middle()
        yield result

    g = outer()
    next(g)
    graph_break()
    return g.send(5), g.send(7), next(g), list(g), x


@case(one)
def finally_runs_on_close_after_break(x):
    log = []
    g = counting(4, log)
    next(g)
    graph_break()
    g.close()
    return x, log, list(g)


@case(one)
def shared_closure_cells(x):
    level = 1

    def scaled():
        nonlocal level
        while True:
            level += 1
            yield x * level

    g = scaled()
    a = next(g)
    graph_break()
    level = 10
    b = next(g)
    return a, b, level


# -- from outside ---------------------------------------------------------------------------------------------


@case(lambda: (torch.randn(4), counting(4)), lambda: (torch.randn(3), counting(2)))
def unstarted_argument(x, g):
    total = x
    for i in g:
        total = total + i
    return total


def started(n):
    g = counting(n)
    next(g)
    return g


@case(lambda: (torch.randn(4), started(4)))
def suspended_argument(x, g):
    y = x + next(g)
    z = y * next(g)
    return z, g


@case(lambda: (torch.randn(4), started(4)))
def argument_passed_on(x, g):
    return x + 1, g


@case(lambda: (torch.randn(4), started(4)))
def argument_closed(x, g):
    g.close()
    return x + 1, next(g, "closed")


# -- the protocol ---------------------------------------------------------------------------------------------


@case(one)
def pep_479(x):
    def bad():
        yield x
        raise StopIteration("inside")

    g = bad()
    next(g)
    try:
        next(g)
    except RuntimeError as error:
        return str(error), type(error.__cause__).__name__, x + 1


@case(one)
def close_ignored(x):
    def stubborn():
        for _ in range(2):
            try:
                yield 1
            except GeneratorExit:
                pass

    g = stubborn()
    next(g)
    try:
        g.close()
    except RuntimeError as error:
        result = str(error)
    g2 = counting(2)
    return result, x, list(g2)


@case(one)
def close_raises_other(x):
    def failing():
        try:
            yield 1
        finally:
            raise KeyError("in finally")

    g = failing()
    next(g)
    try:
        g.close()
    except KeyError as error:
        return error.args, x + 1


@case(one)
def close_returns(x):
    def quiet():
        try:
            yield 1
        except GeneratorExit:
            return 5

    g = quiet()
    next(g)
    g.close()
    return next(g, "end"), x


@case(one)
def throw_variants(x):
    log = []

    def body():
        while True:
            try:
                got = yield len(log)
            except ValueError as error:
                log.append(repr(error))
            else:
                log.append(got)

    g = body()
    next(g)
    g.throw(ValueError)
    g.throw(ValueError("instance"))
    g.send("sent")
    try:
        g.throw(KeyError("out"))
    except KeyError as error:
        log.append(error.args)
    return log, next(g, "over"), x + 1


@case(one)
def throw_into_unstarted(x):
    g = counting(3)
    try:
        g.throw(ValueError("early"))
    except ValueError as error:
        return str(error), list(g), x


@case(one)
def throw_through_yield_from(x):
    log = []

    def inner():
        try:
            yield 1
        except ValueError:
            log.append("inner saw it")
            yield 2
        return "value"

    def outer():
        try:
            result = yield from inner()
            log.append(result)
        finally:
            log.append("outer finally")
        yield 3

    g = outer()
    return next(g), g.throw(ValueError("v")), next(g), list(g), log, x


@case(one)
def close_through_yield_from(x):
    log = []

    def inner():
        try:
            yield 1
        finally:
            log.append("inner")

    def outer():
        try:
            yield from inner()
        finally:
            log.append("outer")

    g = outer()
    next(g)
    g.close()
    return log, x


@case(one)
def send_to_unstarted(x):
    g = counting(2)
    try:
        g.send(3)
    except TypeError as error:
        return str(error), list(g), x


@case(one)
def return_value_by_hand(x):
    def body():
        yield 1
        return x + 1

    g = body()
    next(g)
    try:
        next(g)
    except StopIteration as stop:
        return stop.value


@case(one)
def generator_is_running(x):
    def body():
        yield 1
        next(me)

    me = body()
    next(me)
    try:
        next(me)
    except ValueError as error:
        return str(error), x


@case(one)
def generator_attributes(x):
    g = counting(2)
    names = g.__name__, g.__qualname__, iter(g) is g, g.gi_running
    return names, x


@case(one)
def exception_crosses_generators(x):
    def inner():
        yield 1
        raise KeyError("deep")

    def outer():
        try:
            for i in inner():
                yield i
        except KeyError as error:
            yield ("caught", error.args)

    return list(outer()), x


@case(one)
def exception_leaves_generator(x):
    def body():
        yield x
        raise ValueError("out")

    try:
        return list(body())
    except ValueError as error:
        return str(error), x


@case(one)
def context_inside_generator(x):
    """The exception being handled by the caller is the context of one raised in the generator."""

    def body():
        yield 1
        raise ValueError("second")

    g = body()
    next(g)
    try:
        try:
            raise KeyError("first")
        except KeyError:
            next(g)
    except ValueError as error:
        return type(error.__context__).__name__, x


test_all = make_test(__name__)


# -- what happens to them later -------------------------------------------------------------------------------


def _both(fn: Callable[..., Any], use: Callable[..., Any]) -> None:
    x = torch.arange(3.0)
    wanted = use(fn(x))
    compiled = jit(fn, backend="eager")
    for _ in range(2):
        assert repr(use(compiled(x))) == repr(wanted)


def test_code_and_names_of_a_suspended_generator() -> None:
    def fn(x):
        g = (x * i for i in range(3))
        h = counting(3)
        next(g), next(h)
        return g, h

    def use(made):
        return [(g.gi_code.co_name, g.__name__, g.__qualname__, g.gi_frame is not None, g.gi_running) for g in made]

    _both(fn, use)


def test_a_suspended_generator_takes_what_is_sent() -> None:
    def fn(x):
        def body():
            got = yield x
            while got != "stop":
                got = yield (got, x)
            return "returned"

        g = body()
        next(g)
        return g

    def use(g):
        out = [g.send(1), g.send(None), next(g)]
        with pytest.raises(StopIteration) as stop:
            g.send("stop")
        return out, stop.value.value

    _both(fn, use)


def test_a_suspended_generator_can_be_closed_and_collected() -> None:
    log: list[str] = []

    def fn(x):
        a, b = counting(3, log), counting(3, log)
        next(a), next(b)
        return a, b

    def use(pair):
        log.clear()
        a, b = pair
        pair = None
        a.close()
        first = list(log)
        del a, b
        gc.collect()
        return first, log[:1]

    _both(fn, use)


def test_a_suspended_generator_handles_what_is_thrown() -> None:
    def fn(x):
        def body():
            try:
                yield x
            except ValueError as error:
                yield str(error)

        g = body()
        next(g)
        return g

    _both(fn, lambda g: (g.throw(ValueError("later")), next(g, "end")))


def test_a_lazy_generator_computes_late() -> None:
    log: list[int] = []

    def fn(x):
        def body():
            for i in range(3):
                log.append(i)
                yield x + i

        g = body()
        next(g)
        return g

    def use(g):
        before = list(log)
        next(g)
        after = list(log)
        log.clear()
        return before, after

    _both(fn, use)


def _left_in_a_try(caught):
    try:
        yield 1
        yield 2
    except caught:
        yield 3


class Pages(collections.abc.Sequence):
    def __getitem__(self, index):
        return [3, 4, 5][index]

    def __len__(self):
        return 3


def test_a_dropped_generator_whose_handlers_let_it_close() -> None:
    def fn(x):
        for a, b in zip([1, 2], Pages(), strict=False):  # leaves the sequence's own iterator in its `try`
            x = x + a * b
        for a in _left_in_a_try(IndexError):
            break
        return x * a

    x = torch.ones(2)
    assert torch.equal(jit(fn)(x), fn(x))
    assert torch.equal(jitpy.jit(lambda x: [x + n for n, _ in zip(Pages(), range(2), strict=False)][-1],
                                 fullgraph=True, backend="eager")(x), x + 4)


def test_a_dropped_generator_that_catches_everything() -> None:
    log: list[str] = []

    def body():
        try:
            yield 1
        except BaseException as error:
            log.append(type(error).__name__)
            raise

    def fn(x):
        for a in body():
            break
        return x * a

    x = torch.ones(2)
    for run in (fn, jit(fn)):
        run(x)
        assert log == ["GeneratorExit"]
        log.clear()
