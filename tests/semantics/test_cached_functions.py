"""Functions under `functools.lru_cache` that make plain objects of plain arguments, as parsers of patterns do."""

from __future__ import annotations

import functools
import io
import logging
from typing import Any

import pytest
import torch

import jitpy
from tests.semantics.harness import case, make_test


def one():
    return (torch.arange(1.0, 5.0),)


class Recipe:
    """What a pattern says, made once."""

    def __init__(self, names, order):
        self.names = names
        self.order = order


def make_parser(maxsize=8):
    parsed = []

    @functools.lru_cache(maxsize)
    def parse(pattern, names=(), *, ndim=None):
        left, right = (side.split() for side in pattern.split("->"))
        known = {name: k for k, name in enumerate(left)}
        unknown = [name for name in left if name not in names]
        return Recipe(unknown, [known[name] for name in right])

    return parse, parsed


@case(one, factory=True)
def recipes():
    parse, _ = make_parser()

    def fn(x):
        a, b = parse("a b -> b a", ("a",), ndim=2), parse("a b c -> c a b", ndim=3)
        again = parse("a b -> b a", ("a",), ndim=2)
        return x * sum(a.order) + len(b.names), a is again, a.order, b.order

    return fn


@case(one, factory=True)
def tuples_of_tuples():
    @functools.lru_cache(4)
    def total(pairs, flags=(None, True)):
        return [name for name, _ in pairs], sum(n for _, n in pairs), flags

    def fn(x):
        names, n, flags = total((("a", 2), ("b", 3)))
        return x * n, names, flags, total((("a", 2), ("b", 3)), (None, False))[2]

    return fn


@case(one, factory=True)
def more_entries_than_places():
    @functools.lru_cache(2)
    def boxed(n):
        return [n]

    kept = []

    def fn(x):
        for n in (1, 2, 3, 1):
            kept.append(boxed(n))
        return x * boxed(2)[0], kept[0] is kept[3], len(kept)

    return fn, kept


@case(one, factory=True)
def cached_object_changed_by_the_program():
    @functools.lru_cache(4)
    def boxed(n):
        return [n]

    def fn(x):
        boxed(2).append(5)
        return x * sum(boxed(2))

    return fn


@case(one, factory=True)
def stale_entries():
    base = [1]

    @functools.lru_cache(4)
    def table(name):
        return {name: base[0]}

    def fn(x):
        y = x * table("a")["a"]
        base[0] += 1
        return y, base[0]

    return fn


@case(one, factory=True)
def body_with_an_effect():
    seen = []

    @functools.lru_cache(4)
    def table(name):
        seen.append(name)
        return [name]

    def fn(x):
        return x + len(table("ab")[0]), seen

    return fn, seen


@case(one, factory=True)
def body_that_raises():
    @functools.lru_cache(4)
    def table(name):
        if "->" not in name:
            raise ValueError(name)
        return [name]

    def fn(x):
        try:
            return table("ab"), x
        except ValueError as error:
            return str(error), x + 1

    return fn


def boxing(maxsize):
    @functools.lru_cache(maxsize)
    def boxed(n):
        return [n]

    def fn(x):
        a, b = boxed(2), boxed(3)
        return x * a[0] + b[0], a is boxed(2), a

    return boxed, fn


@pytest.mark.parametrize("maxsize", [2, 4, None])
@pytest.mark.parametrize("between", ["nothing", "cleared", "replaced", "changed"])
def test_the_cache_between_calls(maxsize: int | None, between: str) -> None:
    """What the cache counts and holds is what eager leaves there."""

    def run(wrap):
        boxed, fn = boxing(maxsize)
        call = wrap(fn)
        found = []
        for step in range(5):
            y, same, box = call(torch.ones(2))
            found.append((y.tolist(), same, box is boxed(2), boxed.cache_info()))
            if between == "cleared" and step % 2:
                boxed.cache_clear()
            elif between == "replaced":
                boxed(7), boxed(8 + step)
            elif between == "changed":
                boxed(2)[0] += 1
        return found

    assert run(jitpy.jit) == run(lambda fn: fn)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_sizes_that_change(backend: str) -> None:
    """Arguments that change at each call: the body is traced, and no variant belongs to one size."""
    parse, _ = make_parser()

    @functools.lru_cache(1024)
    def shapes(recipe, shape, lengths):
        found = [shape[k] for k in recipe.order]
        return found, [found[0] * found[1], -1], dict(lengths)

    def fn(x):
        recipe = parse("a b c -> c a b", ndim=3)
        sizes, flat, lengths = shapes(recipe, x.shape, (("a", x.shape[0]), ("b", 2)))
        return x.permute(recipe.order).reshape(flat) * lengths["b"] + sizes[1]

    jitted = jitpy.jit(fn, backend=backend, fullgraph=True)
    for n in (3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13):
        x = torch.arange(n * 10.0).reshape(n, 5, 2)
        torch.testing.assert_close(jitted(x), fn(x))
    report = jitpy.explain(fn)(torch.ones(3, 5, 2))
    assert report.graph_break_count == 0
    assert len(jitpy.explain(jitted)(torch.ones(14, 5, 2)).graphs) <= 1


def test_sizes_that_change_in_one_graph() -> None:
    """Neither a size that changes from call to call nor one that depends on data breaks the graph at a cached call."""
    @functools.lru_cache(64)
    def shape(sizes, pairs):
        return [sizes[0], sizes[1] // pairs, pairs]

    def sized(x):
        return x.reshape(shape(x.shape, 2))

    def counted(x):
        y = x[x.sum(-1) > 0]
        return y.reshape(shape(y.shape, 2))

    for fn in (sized, counted):
        jitted = jitpy.jit(fn, fullgraph=True)
        for n in (3, 4, 5, 6, 3):
            x = torch.arange(n * 4.0).reshape(n, 4)
            torch.testing.assert_close(jitted(x), fn(x))


def test_results_of_changing_sizes_that_outlive_the_call() -> None:
    """The caller gets the cached list itself, and what it does to that is seen by later calls."""
    @functools.lru_cache(64)
    def sizes(n):
        return [n]

    def fn(x):
        return x + 1, sizes(x.shape[0])

    def run(call):
        sizes.cache_clear()
        found = []
        for n in (3, 4, 5, 6, 3, 5, 6):
            result = call(torch.ones(n))[1]
            result.append(len(found))
            found.append((list(result), result is sizes(n)))
        return found

    assert run(jitpy.jit(fn)) == run(fn)


def test_changed_result_of_changing_sizes() -> None:
    """A list that the cache keeps and the program changes."""
    @functools.lru_cache(64)
    def sizes(n):
        return [n]

    def fn(x):
        found = sizes(x.shape[0])
        found.append(x.shape[0])
        return x * len(found), len(found)

    def run(call):
        sizes.cache_clear()
        return [call(torch.ones(n))[1] for n in (3, 4, 5, 6, 3, 4, 7, 3)]

    assert run(jitpy.jit(fn)) == run(fn) == [2, 2, 2, 2, 3, 3, 2, 4]


def test_kept_results_of_changing_sizes() -> None:
    """Which object the cache gave shows, once it is kept, or compared with one that was."""
    @functools.lru_cache(64)
    def sizes(n):
        return [[n], n]

    def run(call):
        sizes.cache_clear()
        kept = []

        def fn(x, keep):
            found = sizes(x.shape[0])
            if keep:
                kept.append(found[0])
            return x * found[1], [found[0] is one for one in kept]

        jitted = call(fn)
        results = [jitted(torch.ones(n), keep)[1] for keep in (True, False) for n in (3, 4, 5, 3)]
        return results, [[a is b for a in kept] for b in kept]

    assert run(jitpy.jit) == run(lambda fn: fn)


def test_one_graph() -> None:
    """No break, not even at the first call; guards and calls go by the cached object."""
    parse, _ = make_parser()

    def fn(x):
        for _ in range(4):
            x = x * parse("a b -> b a", ("a",), ndim=2).order[0]
        return x

    report = jitpy.explain(fn)(torch.ones(3))
    assert report.graph_break_count == 0 and len(report.graphs) == 1


@functools.lru_cache(None)
def log_once(logger, *args):
    logger.warning(*args)


def a_logger(name):
    stream = io.StringIO()
    logger = logging.Logger(name)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(funcName)s:%(lineno)s %(message)s"))
    logger.addHandler(handler)
    return logger, stream


LOGGER, STREAM = a_logger("said")


@pytest.mark.parametrize("order", ["alone", "behind a message", "in front of messages", "a level that drops it"])
def test_what_is_logged_once(order: str) -> None:
    """Where it is the first thing said the graph stays whole, and the real function decides whether it is said again,
    also when the cache has been emptied."""
    def run(call: Any) -> Any:
        logger, stream = LOGGER, STREAM
        stream.seek(0)
        stream.truncate()
        logger.setLevel("ERROR" if order == "a level that drops it" else "INFO")
        log_once.cache_clear()
        seen = []

        def fn(x, text):
            seen.append(1)
            y = x + 1
            if order == "behind a message":
                logger.warning("first")
            log_once(logger, "once: %s", text)
            if order == "in front of messages":
                logger.warning("then")
                log_once(logger, "once: %s", text)
            return y * 2

        jitted = call(fn)
        results = []
        for text in ("a", "a", "b", "a"):
            results.append((jitted(torch.ones(2), text).tolist(), stream.getvalue(), log_once.cache_info()))
        log_once.cache_clear()
        logger.setLevel("INFO")
        results.append((jitted(torch.ones(2), "a").tolist(), stream.getvalue(), log_once.cache_info(), seen))
        return results

    assert run(lambda fn: jitpy.jit(fn, backend="eager")) == run(lambda fn: fn)
    log_once.cache_clear()
    report = jitpy.explain(lambda x: (x + 1, log_once(LOGGER, "here"))[0] * 2, backend="eager")(torch.ones(3))
    assert report.graph_break_count == 0


def test_a_cached_function_that_logs_what_it_finds() -> None:
    """What it looks at may be something else by the time that it runs: the graph breaks."""
    logger, stream = a_logger("elsewhere")
    state = {"n": 0}

    @functools.lru_cache(None)
    def tell(text):
        logger.warning("%s %s", text, state["n"])

    def fn(x):
        state["n"] += 1
        tell("now")
        state["n"] += 1
        return x + state["n"]

    jitted = jitpy.jit(fn, backend="eager")
    assert [jitted(torch.ones(1)).item() for _ in range(3)] == [3, 5, 7]
    assert stream.getvalue() == "tell:%d now 1\n" % (tell.__wrapped__.__code__.co_firstlineno + 2)


test_cases = make_test(__name__)
