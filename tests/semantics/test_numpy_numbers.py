"""Numbers of numpy's beside tensors: roots and logarithms that scale, attributes of objects. PYTEST_DONT_REWRITE."""

from __future__ import annotations

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


test_all = make_test(__name__)
