"""When mode="reduce-overhead" records, replays and copies, by where inputs are. Nothing runs, and no GPU is needed."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from jitpy.runtime.gpu import graphs
from jitpy.runtime.plan import Plan

LARGE, SMALL = 1 << 19, 16


class Recording:
    def __init__(self, addresses: bytes, output: torch.Tensor | None) -> None:
        self.addresses, self.output = addresses, output
        self.replays = 0
        self.memory = [] if output is None else [(None, output.data_ptr(), 0)]

    def is_free(self) -> bool:
        return True


class Counted(graphs.GraphedExecutable):
    """Counts what it would do."""

    def __init__(self, mutated: tuple[int, ...] = (), output: int = 0) -> None:
        self.output = output
        self.plan = Plan(0, 0, (), [])
        self.reason, self._numbers, self._symbols, self._mutated = "", (), (), mutated
        self._device = torch.device("cpu")
        self._sites = {}
        self.done: Counter[str] = Counter()
        self._run = lambda *inputs: (*self._note("plain"), *[torch.empty(output) for _ in range(output > 0)])
        self._addresses = lambda inputs, device, copied: b"".join(
            struct.pack("Q", 0 if number in copied else one.data_ptr()) for number, one in enumerate(inputs))

    def _note(self, what: str) -> tuple[Any, ...]:
        self.done[what] += 1
        return ()

    def _record(self, site: Any, addresses: bytes, inputs: tuple[Any, ...]) -> Any:
        self._note("record")
        made = Recording(addresses, torch.empty(self.output) if self.output else None)
        graphs._live.add(made)
        return made

    def _replay(self, one: Any, site: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        assert all(number in site.copied or address == tensor.data_ptr() for number, (tensor, address) in enumerate(
            zip(inputs, graphs._numbers(one.addresses), strict=True)))
        self._note("replay")
        one.replays += 1
        return () if one.output is None else (one.output,)

    def _forget(self, site: Any) -> None:
        site.recordings.clear()

    def call(self, inputs: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        return self._call((), tuple(inputs))

    @property
    def copied(self) -> set[int]:
        return set(self._sites[()].copied)


WEIGHT, OTHER = torch.empty(LARGE), torch.empty(LARGE)
PLACES, FEW = [torch.empty(LARGE) for _ in range(40)], [torch.empty(SMALL) for _ in range(40)]
WEIGHTS = [torch.nn.Parameter(place, requires_grad=False) for place in PLACES[:14]]

#: at call n the inputs are so; recordings at most, and what is copied in the end
CASES: dict[str, tuple[Callable[[int], tuple[torch.Tensor, ...]], int, set[int]]] = {
    "always the same": (lambda n: (WEIGHT, OTHER), 1, set()),
    "a small one that moves": (lambda n: (WEIGHT, FEW[n]), 1, {1}),
    "a large one that moves": (lambda n: (WEIGHT, PLACES[n]), 1, {1}),
    "small ones beside one that moves": (lambda n: (WEIGHT, FEW[0], PLACES[n]), 1, {1, 2}),
    "all that move": (lambda n: (PLACES[n], PLACES[39 - n], FEW[n]), 1, {0, 1, 2}),
    "one that moves once": (lambda n: (WEIGHT, PLACES[n > 0]), 1, {1}),
    "one that moves while others settle": (lambda n: (PLACES[n > 0], PLACES[10 + (n > 1)]), 2, {0, 1}),
    "one that moves later": (lambda n: (WEIGHT, PLACES[n > 9]), 2, {1}),
    "two buffers": (lambda n: (WEIGHT, PLACES[n % 2]), 1, {1}),
    "many buffers": (lambda n: (WEIGHT, PLACES[n % 7]), 1, {1}),
    "many buffers, for some time each": (lambda n: (WEIGHT, PLACES[n // 3]), 2, {1}),
    "a parameter that moves once": (lambda n: (WEIGHTS[n > 0], OTHER), 1, set()),
    "a parameter that moves later": (lambda n: (WEIGHTS[n > 9], OTHER), 2, set()),
    "two sets of weights": (lambda n: (WEIGHTS[n % 2], WEIGHTS[2 + n % 2], OTHER), 2, set()),
    "two sets of weights, and inputs that move": (lambda n: (WEIGHTS[n % 2], PLACES[n]), 3, {1}),
    "many sets of weights": (lambda n: (WEIGHTS[n % 14], OTHER), 5, {0}),
}

#: the same of inputs that the plan writes to
STATES: dict[str, tuple[Callable[[int], tuple[torch.Tensor, ...]], int, set[int]]] = {
    "always the same": (lambda n: (WEIGHT, OTHER), 1, set()),
    "one that moves once": (lambda n: (WEIGHT, PLACES[n > 0]), 1, set()),
    "one that moves later": (lambda n: (WEIGHT, PLACES[n > 9]), 2, set()),
    "two buffers": (lambda n: (WEIGHT, PLACES[n % 2]), 2, set()),
    "a small one that moves": (lambda n: (WEIGHT, FEW[n]), 1, {1}),
    "many buffers": (lambda n: (WEIGHT, PLACES[n % 7]), 5, {1}),
    "a small one beside one that moves": (lambda n: (WEIGHT, FEW[0], PLACES[n]), 1, {2}),
    "a small one that moves after some time": (lambda n: (WEIGHT, FEW[n // 20]), 2, set()),
}


@pytest.mark.parametrize("name", CASES)
def test_recordings_are_few(name: str) -> None:
    check(Counted(), *CASES[name])


@pytest.mark.parametrize("name", STATES)
def test_recordings_of_what_is_written_to_are_few(name: str) -> None:
    check(Counted(mutated=(1,)), *STATES[name])


def check(run: Counted, inputs: Callable[[int], tuple[torch.Tensor, ...]], most: int, copied: set[int]) -> None:
    for number in range(30):
        run.call(inputs(number))
    assert run.done["record"] <= most and run.copied == copied, run.done
    before = run.done["replay"]
    for number in range(30, 40):
        run.call(inputs(number))
    assert run.done["replay"] - before == 10, "every call is a replay in the end"


def test_what_recordings_return_is_not_copied() -> None:
    """Parts of a model, one behind the other, whose first one has another input at each call."""
    parts, held = [Counted(output=LARGE) for _ in range(4)], []
    for number in range(12):
        value = PLACES[number]
        for part in parts:
            (value,) = part.call((WEIGHT, value))
            if number < 3:
                held.append(value)  # places of plain calls are not taken again
    assert [part.copied for part in parts] == [{1}, set(), set(), set()]
    assert [part.done["record"] for part in parts] == [1, 1, 1, 1]


def test_what_is_not_copied_is_recorded_where_it_is() -> None:
    """Two inputs that share memory, one of which is written to."""
    memory, run = torch.empty(2 * LARGE), Counted(mutated=(0,))
    for number in range(6):
        start = number % 3 * SMALL
        run.call((memory[start:start + LARGE], memory[LARGE:]))
    assert not run.copied and run.done["record"] <= 3 and run.done["replay"] >= 4, run.done


@pytest.mark.parametrize("states", [FEW, PLACES])
def test_recordings_that_paid_make_room(states: list[torch.Tensor]) -> None:
    """As with a new cache for each text."""
    run = Counted(mutated=(1,))
    for number in range(400):
        run.call((WEIGHT, states[number // 20], PLACES[number % 40]))
    assert run.copied == {2} and run.done["record"] == 20 and run.done["plain"] == 1, run.done
