"""The log of recompilations: what changed, from what to what, each thing once."""

import gc
import warnings

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
