"""Floats and ints that change from call to call: one graph for all values, and facts about them guarded."""

from __future__ import annotations

import math

import pytest
import torch

import jitpy
from tests.counting import variants
from tests.semantics.harness import case, make_test


def vec(n=4):
    return torch.arange(float(n)) / 4 + 0.5


def call(*values):
    return lambda: (vec(), *values)


@case(*[lambda f=f: (torch.arange(3.0), f) for f in (0.5, 0.7, 3.0, -0.5)])
def branch_on_a_long_computation(x, f):
    for _ in range(1500):
        f = f * 0.9999
    return x + 1 if f > 0.5 else x - 1


@case(*[lambda f=f: (torch.arange(3.0), f) for f in (0.5, 0.7, 3.0, -0.5)])
def branch_on_a_number_used_twice_again_and_again(x, f):
    for _ in range(60):
        f = (f + f) * 0.51
    return x + 1 if f > 1 else x - f


@case(call(0.1), call(0.2), call(0.3), call(-0.0), call(math.inf), call(math.nan), fullgraph=True)
def float_that_changes(x, f):
    return x * f, f * x, x / 2 - f, f, f * 2, x + f


@case(call(1.5, 0.5), call(2.5, 0.25), call(-1.0, 0.75), call(0.0, 1.0), fullgraph=True)
def branch_on_a_float(x, f, g):
    if f > 0:
        x = x * f
    if g == 1.0:
        x = x + 1
    if not f:
        return x - 1
    return x if 0 < f < 2 else -x


@case(call(1.0), call(2.0), call(0.0), call(4.0), call(0.0))
def float_that_divides(x, f):
    try:
        y = 1 / f
    except ZeroDivisionError:
        y = -1.0
    return x * y


@case(call(4.0), call(9.0), call(-1.0), call(16.0))
def math_of_a_float(x, f):
    log = []
    try:
        log.append(math.sqrt(f))
    except ValueError as error:
        log.append(str(error))
    return x, log, math.floor(f), f ** 2, abs(f), round(f)


@case(call(2.5), call(3.5), call(1.0), call(0.5), fullgraph=True)
def float_as_a_count(x, f):
    return [x * i for i in range(int(f))], x[: int(f)], f"{f:.2f}", {f: 1}


@case(call(0.25), call(0.5), call(0.75), fullgraph=True)
def float_in_containers(x, f):
    state = {"lr": f, "all": [f, f + 1]}
    state["all"].append(x.sum() * f)
    return state


@case(call(1), call(2), call(3), call(40), fullgraph=True)
def step_counter(x, step):
    return x / (1 - 0.9**step), step / 10, x * (step * 0.5), math.cos(math.pi * step / 100)


@case(call(0.5), call(0.25), call(2.0), factory=True)
def float_attribute():
    class Schedule:
        scale = 1.0

    schedule = Schedule()

    def fn(x, f):
        schedule.scale = schedule.scale * f
        return x * schedule.scale

    return fn, schedule


@case(call(0.5), call(0.25), call(1.5), call(0.1))
def float_against_data(x, f):
    if x.sum().item() > f * 4:
        return x + f
    return x - f


# A graph that raises when it runs: the frame runs again as plain Python, with its side effects and its handlers.


@case(lambda: (vec(), torch.tensor([0, 1])), lambda: (vec(), torch.tensor([0, 9])), lambda: (vec(), torch.tensor([3])),
      factory=True)
def index_out_of_bounds_after_an_effect():
    log = []

    def fn(x, index):
        log.append(len(log))
        try:
            return x[index] * 2
        except IndexError as error:
            log.append(str(error))
            return -x

    return fn, log


@case(lambda: (vec(), vec(), torch.tensor([1])), lambda: (vec(), vec(), torch.tensor([7])))
def index_out_of_bounds_after_a_write(x, y, index):
    x.mul_(2)
    picked = torch.nn.functional.embedding(index, y.view(-1, 1))
    y.add_(1)
    return picked, x + y


@case(lambda: (vec() - 0.5,), lambda: (vec(),), lambda: (vec() - 0.75,), factory=True)
def division_by_an_item():
    log = []

    def fn(x):
        log.append("before")
        first = x[0].item()
        print("dividing")
        return x * (1 / first), log

    return fn, log


test_cases = make_test(__name__)


def count(fn, calls):
    jitpy.reset()
    jitted = jitpy.jit(fn, backend="eager")
    for args in calls:
        torch.testing.assert_close(jitted(*args), fn(*args), equal_nan=True)
    return variants()


@pytest.mark.parametrize("kind", ["learning rate", "temperature", "step", "warm-up"])
def test_one_graph_for_all_values(kind: str) -> None:
    """The first value is a constant, the second makes it an input, and no other compiles again."""
    x = vec()
    programs = {
        "learning rate": (lambda p, lr: p - lr * (p * 2), [(x, 0.1 / (i + 1)) for i in range(20)]),
        "temperature": (lambda p, t: (p / t).softmax(0), [(x, 0.5 + i / 7) for i in range(20)]),
        "step": (lambda p, n: p / (1 - 0.9**n), [(x, i + 2) for i in range(20)]),
        "warm-up": (lambda p, n: p * min(n / 30, 1.0) if n < 40 else p, [(x, i + 2) for i in range(20)]),
    }
    fn, calls = programs[kind]
    assert count(fn, calls) <= (3 if kind == "warm-up" else 2)


def _floats(n: int) -> list[tuple[float, float]]:
    return [(i * 37 % 101 / 100, i * 61 % 97 / 100) for i in range(n)]


def _compared(x, a, b):
    return x + a if a < b else x - b


def _computed(x, a, b):
    return x * a if a * 2 + 0.5 > b + math.sqrt(a) else x


def _with_a_size(x, a, b):
    return x + 1 if x.shape[0] / 2 > 3.5 * a else x - b


def _with_an_int(x, a, n):
    return x + n if n > a * 50 else x * a


def _rounded(x, a, b):
    return x[: int(a * 3)] + b


def _best_so_far(x, a, best):
    return (x * a, a) if a < best else (x, best)


@pytest.mark.parametrize("fn, most", [(_compared, 3), (_computed, 3), (_with_an_int, 4), (_rounded, 5),
                                      (_best_so_far, 4)])
def test_one_graph_for_each_answer(fn, most: int) -> None:
    """What a branch asks of changing numbers is guarded as an answer, not by their values."""
    calls = [(vec(), a, int(b * 100) + 2 if fn is _with_an_int else b) for a, b in _floats(30)]
    assert count(fn, calls) <= most


def test_comparisons_with_sizes() -> None:
    calls = [(vec(2 + i % 7), a, b) for i, (a, b) in enumerate(_floats(30))]
    assert count(_with_a_size, calls) <= 4


def test_a_float_that_is_needed_breaks_the_graph() -> None:
    """As for ints: after a few values plain Python does what depends on the value, for all of them."""
    seen = {}

    def fn(x, a):
        seen[a] = len(seen)
        return x * a

    x = vec()
    jitted = jitpy.jit(fn, backend="eager")
    for i in range(20):
        assert torch.equal(jitted(x, i / 7), x * (i / 7))
    assert list(seen) == [i / 7 for i in range(20)]
    assert variants() <= 10
