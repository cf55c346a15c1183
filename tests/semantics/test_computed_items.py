"""Containers that a call makes in front of a break hold other items in each call: a few variants fit them all."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import jitpy
from tests.counting import variants

torch.manual_seed(0)
_GENERATOR = random.Random(0)
#: (state, action, reward, done, text) as replay buffers hold them
_BUFFER = [(torch.randn(4), k % 3, float(k % 7), k % 9 == 0, f"episode {k}") for k in range(200)]
_ARRAYS = [(np.full(4, k, np.float32), k % 3, float(k % 7)) for k in range(200)]


@jitpy.disable
def sample(items: list[Any], count: int) -> list[Any]:
    return _GENERATOR.sample(items, count)


@jitpy.disable
def choices(items: list[Any], count: int) -> list[Any]:
    return _GENERATOR.choices(items, k=count)


#: (program of a tensor, variants allowed)
CASES: dict[str, tuple[Callable[..., Any], int]] = {}


def case(allowed: int) -> Any:
    def register(function: Any) -> Any:
        CASES[function.__name__] = function, allowed
        return function

    return register


@case(3)
def tensors(x):
    batch = sample(_BUFFER, 32)
    return torch.stack([item[0] for item in batch]).sum(0) + x


@case(18)
def numbers(x):
    batch = sample(_BUFFER, 32)
    actions = torch.tensor([item[1] for item in batch])
    rewards = torch.tensor([item[2] for item in batch])
    return (actions * rewards).sum() + x.sin()


@case(18)
def flags_and_texts(x):
    batch = sample(_BUFFER, 32)
    done = [item[3] for item in batch]
    names = [item[4] for item in batch]
    return x.sin() + len(done) + len(names)


@case(12)
def taken_apart(x):
    states, actions, rewards, _, _ = zip(*sample(_BUFFER, 32), strict=True)
    return torch.stack(states).sum() * torch.tensor(actions) + torch.tensor(rewards).sum() + x.sum()


@case(12)
def arrays(x):
    states, actions, _ = zip(*sample(_ARRAYS, 32), strict=True)
    return torch.from_numpy(np.stack(states)).sum(0) + x + torch.tensor(actions).sum()


@case(12)
def the_same_items_at_times(x):
    """Of few items, many are drawn twice."""
    batch = choices(_BUFFER[:12], 20)
    return torch.stack([item[0] for item in batch]).sum(0) + x


@case(12)
def tensors_that_are_the_same_at_times(x):
    kept = [item[0] for item in _BUFFER[:12]]
    return torch.stack(choices(kept, 20)).sum(0) + x


@case(14)
def whether_items_are_the_same(x):
    batch = choices(_BUFFER[:5], 3)
    return x + (1 if batch[0] is batch[1] else 2) + (4 if batch[1][0] is batch[2][0] else 8)


@case(8)
def few_numbers(x):
    """These are inputs of the graph."""
    batch = sample(_BUFFER, 4)
    return x * batch[0][2] + batch[1][2] + batch[2][2] * batch[3][2]


@pytest.mark.parametrize("name", CASES)
def test_few_variants(name: str) -> None:
    jitpy.reset()
    function, allowed = CASES[name]
    jitted = jitpy.jit(function, backend="eager")
    x = torch.arange(4.0)
    late = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in range(40):
            _GENERATOR.seed(k)
            found = jitted(x)
            _GENERATOR.seed(k)
            torch.testing.assert_close(found, function(x))
            if k == 30:
                late = variants()
    assert variants() == late <= allowed, (late, variants())


def test_items_that_stay_are_compiled_for() -> None:
    """A list of names that is made anew but holds the same at each call: the loop over it is one graph."""
    names = [f"layer {k}" for k in range(30)]
    layers = {name: torch.nn.Linear(4, 4) for name in names}

    @jitpy.disable
    def look() -> list[str]:
        return list(names)

    def fn(x):
        for name in look():
            x = layers[name](x)
        return x

    jitpy.reset()
    jitted = jitpy.jit(fn, backend="eager")
    for k in range(4):
        x = torch.ones(4) * k
        torch.testing.assert_close(jitted(x), fn(x))
    assert variants() == 2
