"""The log of recompilations: what changed, from what to what, each thing once."""

import gc
import logging
import warnings

import pytest
import torch

import jitpy
from jitpy import logs
from jitpy.explain.misses import grouped


class Settings:
    scale = 1
    mode = "a"


def test_what_changed():
    settings = Settings()
    settings.scale, settings.mode = 1, "a"

    def fn(x, n, items):
        y = x * settings.scale
        if settings.mode == "a":
            y = y + n
        return y + len(items)

    compiled = jitpy.jit(fn, backend="eager")
    compiled(torch.ones(2), 1, [1])
    texts = []
    sink = logs.set_sink(texts.append)
    logs.enable("recompiles")
    try:
        compiled(torch.ones(3), 2, [1, 2])
        settings.mode = "b"
        compiled(torch.ones(3), 2, [1, 2])
    finally:
        logs.disable("recompiles")
        logs.set_sink(sink)
    first, second = texts
    assert "n: 1 -> 2" in first and "len(items): 1 -> 2" in first and "x: size 0: 2 -> 3" in first, first
    lines = second.splitlines()
    assert "settings.mode: 'a' -> 'b'" in second and "test_recompile_reasons.py" in second, second
    assert sum("mode" in line for line in lines) == 1  # once, for both variants


def test_each_thing_once():
    assert grouped([["constants_equal(n, 1), but found 3", "constants_equal(m, 0), but found 5"],
                    ["constants_equal(n, 2), but found 3"]]) == ["n: 2, 1 -> 3", "m: 0 -> 5 (variant 0)"]
    assert grouped([["x: dtype is torch.int32, expected torch.float32; it has 2 dimensions, expected 1"]]) == [
        "x: dtype: torch.float32 -> torch.int32", "x: dimensions: 1 -> 2"]
    assert grouped([["something else"], ["something else", "more"]]) == ["something else", "more (variant 1)"]
    assert grouped([]) == []


def test_guards_of_what_is_only_left_behind():
    """What is read of objects when tracing has ended is read at no line."""
    import functools

    kept = []

    def fn(x):
        made = [functools.partial(lambda k, v: v, i) for i in range(1)]
        kept.append(made[0])
        del kept[:-2]
        return made[-1](x + x)

    compiled = jitpy.jit(fn, backend="eager")
    for _ in range(4):
        assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    assert len(kept) == 2


def _warning_for(calls) -> str:
    jitpy.reset()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        calls()
    texts = [str(one.message) for one in said if "still does not fit" in str(one.message)]
    assert len(texts) == 1, texts
    return texts[0]


def test_the_warning_names_classes_that_are_gone():
    """Variants go with the classes that they were compiled for: the warning says which classes these were."""
    jitted = jitpy.jit(lambda x, operation: operation.run(x), backend="eager")

    def calls() -> None:
        for number in range(12):
            cls = type(f"Operation{number}", (), {"run": lambda self, x: x.sin()})
            jitted(torch.ones(3), cls())
            del cls
            gc.collect()

    text = _warning_for(calls)
    assert "These kept changing:\n  class Operation" in text and "Operation7" in text and "no guard" not in text, text


def test_the_warning_says_what_changed():
    jitted = jitpy.jit(lambda x, name: x * len(name), backend="eager", fullgraph=True)

    def calls() -> None:
        for number in range(12):
            jitted(torch.ones(3), f"n{number}")

    text = _warning_for(calls)
    assert "These kept changing:\n" in text and "What" not in text, text


class State:
    def __init__(self) -> None:
        self.steps, self.tags, self.part = torch.tensor(0), {"a"}, Settings()


def asks_a_counter(state, x):
    if state.steps == 3:
        return x + 1
    return x


def loops_by_a_counter(state, x):
    for _ in range(int(state.steps)):
        x = x + 1
    return x


def asks_a_mask(state, x):
    return x + 1 if (x > 0).all() else x


def asks_a_logger(state, x):
    return x + 1 if LOGGER.isEnabledFor(10) else x


def reads_a_grad(state, x):
    return x * 2 if x.grad is None else x + x.grad


def sorts_a_set(state, x):
    return x + len("".join(sorted(state.tags)))


def asks_for_an_object(state, x):
    return x + 1 if state.part is PART else x


def calls_a_function(state, x):
    return state.part(x)


LOGGER = logging.getLogger(__name__)
PART = Settings()


def add_gradient(state, x):
    x.grad = torch.ones(2)


@pytest.mark.parametrize(("function", "change", "text"), [
    (asks_a_counter, lambda state, x: state.steps.fill_(3), "state.steps in `if state.steps == 3:`: False -> True"),
    (loops_by_a_counter, lambda state, x: state.steps.fill_(2),
     "state.steps in `for _ in range(int(state.steps)):`: 0 -> 2"),
    (asks_a_logger, lambda state, x: LOGGER.setLevel(10), "LOGGER isEnabledFor(10): False -> True"),
    (reads_a_grad, add_gradient, "x has no grad, which is no longer so"),
    (sorts_a_set, lambda state, x: state.tags.symmetric_difference_update("ab"),
     "state.tags equals {'a'}, which is no longer so"),
    (calls_a_function, lambda state, x: setattr(state, "part", torch.cos),
     "state.part: sin -> cos"),
])
def test_guards_in_the_users_words(function, change, text):
    state, x = State(), torch.ones(2, requires_grad=True)
    state.part = torch.sin
    compiled = jitpy.jit(function, backend="eager")
    LOGGER.setLevel(30)
    texts = []
    sink = logs.set_sink(texts.append)
    logs.enable("recompiles")
    try:
        compiled(state, x)
        change(state, x)
        compiled(state, x)
    finally:
        logs.disable("recompiles")
        logs.set_sink(sink)
    assert len(texts) == 1 and text in texts[0], texts
    assert "object at 0x" not in texts[0]


def test_an_object_and_another_of_its_type():
    first, second = "Settings object at 0x7f2476f28f40", "Settings object at 0x7f2476f2b140"
    assert grouped([[f"a.b is {first}, but found {second}", f"alive({first}, c), but found {second}"],
                    [f"a.b is Plain object at 0x7f2476f28f41, but found {second}  # m.py:3", "other", "other 2"]]) == [
        "a.b: some Settings -> another Settings", "c: some Settings -> another Settings",
        "a.b: some Plain -> some Settings (variant 1)  # m.py:3", "other (variant 1)", "other 2 (variant 1)"]
    assert grouped([["type(o) is O, but found P"]]) == ["type(o): O -> P"]
