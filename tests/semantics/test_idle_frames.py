"""Functions below a jitted one that never come to an operation of tensors are plain Python from the second call on."""

from __future__ import annotations

import torch

import jitpy
from jitpy.engine import all_engines


@jitpy.disable
def look() -> int:
    """A break."""
    return 1


class Noticed:
    """Behind the making of one, a function is plain Python; what it calls is compiled by itself."""

    def __del__(self) -> None:
        pass


class Meter:
    """Keeps a tensor, and counts."""

    def __init__(self) -> None:
        self.last = torch.zeros(2)
        self.count = 0

    def update(self) -> int:
        self.count += look()
        self.count += look()
        return self.count

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        self.count += look()
        return x.sin() + self.last

    def sometimes(self, x: torch.Tensor, often: bool) -> torch.Tensor:
        self.count += look()
        return x.sin() if often else x


def calls() -> dict[str, int]:
    """How often compiled code of each function below, or of what follows a break in it, ran."""
    found: dict[str, int] = {}
    for engine in all_engines():
        for dispatcher in engine._dispatchers:
            found[dispatcher.__qualname__] = found.get(dispatcher.__qualname__, 0) + sum(
                entry.hits for entry in dispatcher.entries)
    return found


def test_a_frame_without_operations_is_left_alone() -> None:
    def program(meter, x):
        noticed = Noticed()
        count = meter.update()
        return meter.compute(x) * count, noticed

    jitpy.reset()
    meter, plain = Meter(), Meter()
    jitted = jitpy.jit(program, backend="eager")
    seen = []
    for _ in range(5):
        x = torch.ones(2)
        torch.testing.assert_close(jitted(meter, x)[0], program(plain, x)[0])
        seen.append(calls())
    assert meter.count == plain.count
    assert seen[1]["Meter.update"] == seen[4]["Meter.update"]
    assert seen[1]["Meter.compute"] < seen[4]["Meter.compute"]


def test_a_frame_that_has_shown_operations_is_kept() -> None:
    def program(meter, x, often):
        noticed = Noticed()
        return meter.sometimes(x, often), noticed

    jitpy.reset()
    meter = Meter()
    jitted = jitpy.jit(program, backend="eager")
    for often in (True, False, False, True, True):
        before = calls().get("Meter.sometimes", 0)
        x = torch.ones(2)
        torch.testing.assert_close(jitted(meter, x, often)[0], x.sin() if often else x)
        assert calls()["Meter.sometimes"] > before
