"""Numbers of numpy's beside tensors: roots and logarithms that scale, attributes of objects. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import math
import types

import numpy as np
import torch

from jitpy import graph_break
from tests.semantics.harness import case, make_test


def vector():
    return (torch.arange(1.0, 5),)


class Scaled:
    def __init__(self, kind):
        self.scale = kind(4)

    def __call__(self, x):
        y = x / self.scale + self.scale * x
        y -= self.scale
        return y, self.scale - x, x**self.scale


@case(vector, lambda: (torch.arange(4),), lambda: (torch.ones(2, dtype=torch.float16),), factory=True, fullgraph=True)
def numpy_numbers_of_an_object():
    parts = [Scaled(kind) for kind in (np.sqrt, np.float64, np.float32, np.int64, np.int32)]
    return lambda x: [part(x) for part in parts], None


@case(lambda: (torch.ones(2, requires_grad=True),), fullgraph=True)
def a_root_as_scale(x):
    return x / np.sqrt(x.shape[0]), np.log(8.0) * x


@case(vector, factory=True, rounds=8)
def a_numpy_number_that_changes():
    state = types.SimpleNamespace(mean=np.float64(1))

    def fn(x):
        y = x * state.mean
        graph_break()
        state.mean = state.mean * np.float64(1.5)
        return y + state.mean

    return fn, state


RATE, COUNT = np.float64(2.5), np.int64(3)


@case(vector, fullgraph=True)
def python_functions_of_numpy_numbers(x):
    f, n = np.float64(2.5), np.int64(3)
    floats = float(f), int(f), round(f), round(f, 1), abs(-f), -f, +f, f > 2, f == 2.5, max(f, 1), bool(f), divmod(f, 2)
    texts = f"{f:.2f} {f} {n:>4} {n!r}", str(n), repr(f), format(f, ".1f"), "{}".format(n)
    roots = math.sqrt(f), math.floor(f), math.isnan(f), math.pow(n, 2)
    whole = n // 2, n % 2, n**2, n << 1, ~n, hash(n) == hash(3), "yes" if n else "no", [1, 2, 3, 4][n], (1, 2, 3, 4)[-n]
    return x * f, floats, texts, roots, whole, list(range(n)), isinstance(f, float), isinstance(n, int), f + 1, n / 4


@case(vector, fullgraph=True)
def numpy_numbers_of_a_module(x):
    shown = f"{RATE:.1f}", str(COUNT), round(RATE), -COUNT, COUNT + 1, RATE**2, COUNT // 2, not COUNT
    return x * RATE + float(RATE), x[:COUNT], shown, [1, 2, 3, 4][COUNT], math.floor(RATE), hash(RATE)


@case(vector)
def numpy_numbers_that_raise_or_warn(x):
    out = []
    for make in (lambda: math.sqrt(np.float64(-1)), lambda: int(np.float64("nan")), lambda: [1, 2][np.int64(2)],
                 lambda: [1, 2][np.float64(0)], lambda: range(np.float64(1)), lambda: ~np.float64(1)):
        try:
            out.append(make())
        except (ValueError, IndexError, TypeError) as error:
            out.append((type(error).__name__, str(error)))
    return out, np.float64(1) / np.float64(0), np.int64(2**62) * np.int64(4), x + 1


@case(vector, factory=True, rounds=8)
def numpy_numbers_shown_that_change():
    state = types.SimpleNamespace(rate=np.float64(1), step=np.int64(0))

    def fn(x):
        state.step = state.step + np.int64(1)
        state.rate = -state.rate * np.float64(1.5)
        return x * state.rate, f"{state.rate:.3f} {state.step}", float(state.rate), int(state.step), bool(state.step)

    return fn, state


test_all = make_test(__name__)
