"""Behind the recompile limit a call that no variant fits costs what eager costs, and a microsecond or two."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy

#: microseconds that such a call may cost more than eager's
_MORE = 2.0


def _fastest(*runs: Callable[[], Any]) -> list[float]:
    """Microseconds a call of each, the least of many rounds in turn."""
    best = [float("inf")] * len(runs)
    for _ in range(40):
        for number, run in enumerate(runs):
            start = time.thread_time()
            for _ in range(50):
                run()
            best[number] = min(best[number], (time.thread_time() - start) * 1e6 / 50)
    return best


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block() for _ in range(20)])
        self.name = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x * len(self.name)


def small_function() -> tuple[Callable[..., Any], Callable[..., Any], Callable[[int], None]]:
    name = [""]

    def fn(x):
        return x * len(name[0]) + 1

    return fn, jitpy.jit(fn, fullgraph=True, backend="eager"), lambda k: name.__setitem__(0, f"n{k}")


def twenty_modules() -> tuple[Callable[..., Any], Callable[..., Any], Callable[[int], None]]:
    net = Net()
    return net, jitpy.jit(net, fullgraph=True, backend="eager"), lambda k: setattr(net, "name", f"n{k}")


@pytest.mark.parametrize("make", [small_function, twenty_modules], ids=lambda make: make.__name__)
def test_what_no_variant_fits_costs_what_eager_costs(make: Any) -> None:
    jitpy.reset()
    eager, jitted, change = make()
    x = torch.ones(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k in range(12):  # more than the limit
            change(k)
            torch.testing.assert_close(jitted(x), eager(x))
    change(99)
    for _ in range(100):  # calls until it looks for variants no more
        jitted(x)
    before, now = _fastest(lambda: eager(x), lambda: jitted(x))
    assert now < 1.05 * before + _MORE, (before, now)
