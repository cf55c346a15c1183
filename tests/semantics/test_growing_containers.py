"""Containers that change at each call: a few variants for any number of calls, and eager's contents."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy
from tests.counting import variants

#: name -> (maker of (function, what to watch), variants allowed)
GROWING: dict[str, tuple[Callable[[], Any], int]] = {}
LOG: list[Any] = []


def grows(allowed: int = 2) -> Any:
    def register(make: Any) -> Any:
        GROWING[make.__name__] = make, allowed
        return make

    return register


class TracedGraphBuilder:
    def __init__(self) -> None:
        self.history: list[Any] = []
        self.by_name: dict[str, list[Any]] = collections.defaultdict(list)
        self.seen: set[Any] = set()
        self.steps: dict[Any, Any] = {}
        self.recent: collections.deque[Any] = collections.deque(maxlen=5)
        self.queue: collections.deque[Any] = collections.deque()
        self.n = 0


def with_builder(allowed: int = 2) -> Any:
    """Register `fn(graph builder, x)`."""

    def register(fn: Any) -> Any:
        def make() -> Any:
            builder = TracedGraphBuilder()
            return lambda x: fn(builder, x), builder

        GROWING[fn.__name__] = make, allowed
        return fn

    return register


@with_builder(1)
def append(r, x):
    r.history.append(x.mean().item())
    return x * 2


@with_builder(1)
def append_tensor(r, x):
    y = x * 2
    r.history.append(y.sum())
    return y


@with_builder(1)
def append_several(r, x):
    r.history.append(x.shape[0])
    r.history += [1, 2]
    r.history.extend(i for i in range(3))
    r.history.append([x + 1])
    return x * 2


@with_builder(1)
def insert_in_front(r, x):
    r.history.insert(0, x.sum())
    return x + 1


@grows(1)
def append_to_global():
    LOG.clear()

    def fn(x):
        LOG.append(x.sum())
        return x + 1

    return fn, LOG


@grows(1)
def append_to_closure():
    log = []

    def fn(x):
        log.append(float(x.sum()))
        return x + 1

    return fn, log


@grows(1)
def append_to_argument_default():
    def fn(x, log=[]):  # noqa: B006
        log.append(x.sum())
        return x + 1

    return fn, fn.__defaults__


@with_builder(2)
def list_in_dict(r, x):
    r.by_name["mean"].append(x.mean())
    r.by_name["sum"].append(x.sum())
    return x + 1


@with_builder(3)
def length_as_number(r, x):
    r.history.append(0)
    return x * len(r.history)


@with_builder(3)
def length_after_changes(r, x):
    r.history.append(1)
    r.history.append(2)
    r.history.insert(0, 3)
    n = len(r.history)
    r.history.pop()
    return x * n + len(r.history)


@with_builder(3)
def truth_of_list(r, x):
    first = not r.history
    r.history.append(x.sum())
    return x + first


@with_builder(3)
def last_item(r, x):
    if r.history:
        x = x + r.history[-1]
    r.history.append(x.sum())
    return x


@with_builder(4)
def last_two_items(r, x):
    if len(r.history) >= 2:
        x = x + r.history[-1] * r.history[-2]
    r.history.append(x.mean().item())
    return x


@with_builder(3)
def first_item(r, x):
    r.history.append(x.sum())
    return x + r.history[0]


@with_builder(3)
def change_last(r, x):
    r.history.append(x.sum())
    r.history.append(x.sum())
    r.history[-1] = x.mean()
    r.history[-2] += 1
    return x + r.history[-1]


@with_builder(1)
def own_item(r, x):
    r.history.append(x.sum())
    r.history.append(x.mean())
    return x + r.history[-1] - r.history[-2]


@with_builder(1)
def pushed_and_popped(r, x):
    r.history.append(x)
    r.history.append(x + 1)
    return r.history.pop() * 2


@with_builder(3)
def window(r, x):
    r.history.append(x.sum())
    if len(r.history) > 4:
        r.history.pop(0)
    return x + r.history[-1]


@with_builder(3)
def window_by_del(r, x):
    r.history.append(x.sum())
    if len(r.history) > 4:
        del r.history[0]
    return x


@with_builder(1)
def cleared(r, x):
    r.history.append(x.sum())
    return x


@with_builder(2)
def cleared_and_filled(r, x):
    r.history.clear()
    r.history.append(x.sum())
    return x + len(r.history)


@with_builder(3)
def counter_in_object(r, x):
    r.n += 1
    return x * r.n


@with_builder(3)
def dict_by_counter(r, x):
    r.steps[r.n] = x.sum()
    r.n += 1
    return x + 1


@with_builder(3)
def dict_by_pair(r, x):
    r.steps["loss", r.n] = x.sum()
    r.steps[r.n, "n"] = r.n
    r.n += 1
    return x + 1


@with_builder(3)
def length_of_dict(r, x):
    n = len(r.steps)
    r.steps[n] = x.sum()
    return x * n


@with_builder(3)
def dict_constant_keys(r, x):
    r.steps["last"] = x.sum()
    r.steps["count"] = r.steps.get("count", 0) + 1
    return x + r.steps["last"]


@with_builder(3)
def dict_length_after_write(r, x):
    r.steps["a"] = x.sum()
    r.steps.pop("b", None)
    r.steps[r.n] = 1
    r.n += 1
    return x + 1


@with_builder(3)
def set_by_counter(r, x):
    r.seen.add(r.n)
    r.n += 1
    return x + 1


@with_builder(3)
def set_constants(r, x):
    if "a" not in r.seen:
        r.seen.add("a")
        x = x + 1
    r.seen.add("b")
    r.seen.discard("c")
    r.seen.add(r.n)
    r.n += 1
    return x * 2


@with_builder(3)
def length_of_set(r, x):
    n = len(r.seen)
    r.seen.add(n)
    return x * n


@with_builder(3)
def length_of_set_after(r, x):
    r.seen.add("a")
    r.seen.add("b")
    r.seen.discard("b")
    return x * len(r.seen)


@with_builder(1)
def deque_unbounded(r, x):
    r.queue.append(x.sum())
    r.queue.appendleft(x.mean())
    return x


@with_builder(3)
def deque_bounded(r, x):
    r.recent.append(x.mean().item())
    return x * 2


@with_builder(4)
def deque_bounded_left(r, x):
    r.recent.appendleft(x.sum())
    r.recent.append(x.mean())
    return x * 2


@with_builder(3)
def deque_length(r, x):
    r.queue.append(x.sum())
    return x * len(r.queue)


@with_builder(3)
def deque_ends(r, x):
    r.queue.append(x.sum())
    return x + r.queue[-1] + r.queue[0]


@with_builder(3)
def deque_as_queue(r, x):
    r.queue.append(x.sum())
    if len(r.queue) > 3:
        x = x + r.queue.popleft()
    return x


@with_builder(2)
def break_between(r, x):
    r.history.append(x.sum())
    jitpy.graph_break()
    r.history.append(x.mean())
    return x + r.history[-1]


@pytest.mark.parametrize("name", GROWING)
def test_grows(name):
    jitpy.reset()
    make, allowed = GROWING[name]
    plain, watched_plain = make()
    if name == "append_to_global":  # one list for both
        expected_values, expected = _run(plain, watched_plain)
        fn, watched = make()
    else:
        fn, watched = make()
        expected_values, expected = _run(plain, watched_plain)
    jitted = jitpy.jit(fn, backend="eager")
    values, found = _run(jitted, watched)
    for wanted, got in zip(expected_values, values, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    for wanted, got in zip(expected, found, strict=True):
        assert repr(got) == repr(wanted)
    assert variants() <= allowed, variants()


def _run(fn, watched):
    values, states = [], []
    for i in range(30):
        values.append(fn(torch.arange(4.0) + i % 5))
        states.append(copy.deepcopy(vars(watched) if isinstance(watched, TracedGraphBuilder) else watched))
    return values, states


@pytest.mark.parametrize("kept", ["attribute", "list", "dict"])
def test_tensors_that_a_call_leaves_larger_are_compiled_once(kept):
    jitpy.reset()

    class Kept:
        pass

    holder = Kept()
    items = {"attribute": vars(holder), "list": [None], "dict": {}}[kept]
    key = 0 if kept == "list" else "tensor"
    items[key] = torch.ones(2, 3)

    def fn(x):
        if kept == "attribute":
            holder.tensor = torch.cat([holder.tensor, x])
            return holder.tensor.sum(0)
        items[key] = torch.cat([items[key], x])
        return items[key].sum(0)

    jitted = jitpy.jit(fn, backend="eager")
    for count in range(1, 6):
        assert torch.equal(jitted(torch.ones(2, 3)), torch.full((3,), 2.0 + 2 * count))
    assert variants() == 1
