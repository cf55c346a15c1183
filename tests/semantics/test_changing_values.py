"""Values that change at each call and decide what the program does: a few variants for any number of calls.

Containers that grow and are read whole, caches keyed by a step, loops over a changing number: compiled for some values,
then the graph breaks where the value is needed, and what lies around it stays captured.
"""

from __future__ import annotations

import collections
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy
from jitpy.engine import all_engines
from tests.counting import variants

#: (maker of `fn(x, step)`, variants allowed: a few, and those of the pieces around the break)
CASES: dict[str, tuple[Callable[[], Any], int]] = {}


def changes(allowed: int) -> Any:
    def register(make: Any) -> Any:
        CASES[make.__name__] = make, allowed
        return make

    return register


@changes(6)
def sum_of_a_list():
    xs = []

    def fn(x, i):
        xs.append(x.sum())
        return x + sum(xs)

    return fn


@changes(15)
def loop_over_a_list():
    xs = []

    def fn(x, i):
        xs.append(x.sum())
        y = x * 2
        for v in xs:
            y = y + v
        return y.sin()

    return fn


@changes(6)
def stacked_list():
    xs = []

    def fn(x, i):
        xs.append(x * 2)
        return torch.stack(xs).mean(0) + x

    return fn


@changes(30)
def items_of_a_dict():
    d = {}

    def fn(x, i):
        d[f"k{i}"] = x * 2
        y = x + 1
        for k, v in list(d.items()):
            y = y + v
        return y * 2

    return fn


@changes(12)
def cache_by_step():
    d = {}

    def fn(x, i):
        y = x + 1
        if i not in d:
            d[i] = y * i
        return d[i] + y

    return fn


@changes(7)
def cache_asked_with_get():
    d = {}

    def fn(x, i):
        y = x + 1
        v = d.get(i)
        if v is None:
            v = d[i] = y * i
        return v + y

    return fn


@changes(6)
def running_mean():
    class Mean:
        def __init__(self):
            self.h = []

        def f(self, x):
            self.h.append(x.mean().item())
            return x - sum(self.h) / len(self.h)
    m = Mean()
    return lambda x, i: m.f(x)


@changes(6)
def concatenated_list():
    ks = []

    def fn(x, i):
        ks.append(x * 2)
        k = torch.cat(ks)
        return (k.sum() + x).sin()

    return fn


@changes(7)
def window():
    d = collections.deque(maxlen=20)

    def fn(x, i):
        d.append(x * 2)
        return sum(d) + x

    return fn


@changes(7)
def sorted_set():
    d = set()

    def fn(x, i):
        d.add(i)
        return x * len(sorted(d)) + x

    return fn


@changes(16)
def loop_of_changing_length():

    def fn(x, i):
        y = x
        for k in range(i):
            y = y + k
        return y * 2

    return fn


@changes(7)
def item_of_a_changing_index():
    ws = [torch.full((3,), float(k)) for k in range(40)]

    def fn(x, i):
        return (x * ws[i]).sin()

    return fn


@changes(15)
def comprehension():
    xs = []

    def fn(x, i):
        xs.append(x * 2)
        ys = [v * 2 for v in xs if v is not None]
        return ys[-1] + len(ys)

    return fn


@changes(15)
def enumerated_list():
    xs = []

    def fn(x, i):
        xs.append(x * 2)
        y = x
        for j, v in enumerate(xs):
            y = y + v * j
        return y

    return fn


@changes(25)
def cache_by_text():
    d = {}

    def fn(x, i):
        k = f"step{i}"
        if k not in d:
            d[k] = x * 2
        return d[k] + 1

    return fn


@changes(10)
def copy_of_a_list():
    xs = []

    def fn(x, i):
        xs.append(x * 2)
        ys = list(xs)
        ys.reverse()
        return ys[0] + ys[-1]

    return fn


@changes(8)
def module_by_index():
    layers = torch.nn.ModuleList([torch.nn.Linear(3, 3) for _ in range(30)])

    def fn(x, step):
        return layers[step](x * 2).sin()

    return fn


@changes(16)
def loop_over_a_changing_size():
    def fn(x, step):
        y = torch.ones(step + 2)
        total = x
        for i in range(y.shape[0]):
            total = total + i
        return total

    return fn


@changes(12)
def caught_lookup():
    cache = {}

    def fn(x, step):
        y = x * 2
        try:
            return cache[step] + y
        except KeyError:
            cache[step % 7] = y
        return y

    return fn


@pytest.mark.parametrize("name", CASES)
def test_few_variants_for_many_values(name: str) -> None:
    jitpy.reset()
    make, allowed = CASES[name]
    torch.manual_seed(0)
    plain = make()
    torch.manual_seed(0)
    fast = jitpy.jit(make(), backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # giving up warns
        for step in range(30):
            x = torch.arange(3.0) + step
            torch.testing.assert_close(fast(x, step), plain(x, step))
            if step == 24:
                late = variants()
    assert variants() == late <= allowed, (late, variants())


class Named:
    def __init__(self) -> None:
        for i in range(30):
            setattr(self, f"a{i}", i)


NAMED = Named()
#: what programs do with a text that is another one at each call
TEXTS: dict[str, Callable[[str], int]] = {
    "truth": lambda s: 1 if s else 2,
    "equal": lambda s: int(s == "a5"),
    "equal to a number": lambda s: int(s == 3),
    "in a text": lambda s: int(s in "a1a2"),
    "has": lambda s: int("5" in s),
    "in a tuple": lambda s: int(s in ("a5", "a6")),
    "in a set": lambda s: int(s in {"a5", "a6"}),
    "getattr": lambda s: getattr(NAMED, s, 3),
    "hasattr": lambda s: int(hasattr(NAMED, s)),
    "formatted": lambda s: len(f"{s}!"),
    "key": lambda s: {"a5": 3}.get(s, 4),
    "type": lambda s: int(isinstance(s, str)) + int(s is None) + int(type(s) is str),
    "concatenated": lambda s: len("x" + s),
    "keyword": lambda s: (lambda **k: len(k))(**{s or "q": 1}),
    "number": lambda s: int(s[1:]),  # raises where it is empty
    "position": lambda s: [1, 2][s],  # type: ignore[call-overload]  # raises always
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_that_change(name: str) -> None:
    jitpy.reset()
    use = TEXTS[name]

    def fn(x, s):
        y = x + 1
        return (y * use(s)).sin()

    def outcome(f, s):
        try:
            return f(torch.ones(2), s).tolist()
        except (TypeError, ValueError) as error:
            return type(error), str(error)

    fast = jitpy.jit(fn, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            for s in (*(f"a{i}" for i in range(8)), "", "a5"):
                assert outcome(fast, s) == outcome(fn, s), s


def test_one_graph_as_asked() -> None:
    """`fullgraph=True` asks for whole graphs: each value is compiled for, up to the limit."""
    jitpy.reset()
    kept: list[Any] = []

    @jitpy.jit(fullgraph=True, backend="eager")
    def fn(x):
        kept.append(x)
        return sum(kept)

    for i in range(6):
        assert torch.equal(fn(torch.ones(2)), torch.full((2,), i + 1.0))
    assert variants() == 6


def test_the_break_says_what_changes() -> None:
    jitpy.reset()
    kept: list[Any] = []

    def fn(x):
        kept.append(x.sum())
        return x + sum(kept)

    fast = jitpy.jit(fn, backend="eager")
    for _ in range(5):
        fast(torch.ones(2))
    found = [variant.break_record for engine in all_engines() for variant in engine.variants if variant.break_record]
    assert found and all(record.reason.id == "changing_value" and "kept" in record.detail for record in found)
