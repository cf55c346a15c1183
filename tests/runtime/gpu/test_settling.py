"""Which inputs of a recording are copied, and how soon recordings settle: without a GPU, for addresses told here."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from jitpy.runtime.gpu import graphs
from jitpy.runtime.gpu.graphs import GraphedExecutable

SMALL, LARGE = 1000, 1 << 19  # float32


class TracedGraphBuilder(GraphedExecutable):
    """Records nothing: a call says what would be done."""

    def __init__(self, mutated: tuple[int, ...] = ()) -> None:
        self.plan = SimpleNamespace(symbols=(), unseen=())  # type: ignore[assignment]
        self._run = lambda *inputs: "plain"
        self._device = torch.device("cpu")
        self._mutated, self._symbols, self._numbers, self._sites = mutated, (), None, {}
        self.reason, self.calls = "", []

    def _addresses(self, inputs: tuple[Any, ...], device: Any, skip: tuple[int, ...]) -> bytes:
        places = [0 if number in skip else one.data_ptr() for number, one in enumerate(inputs)]
        return struct.pack(f"{len(places)}Q", *places)

    def _record(self, site: Any, addresses: bytes, inputs: tuple[Any, ...]) -> Any:
        self.calls.append("record")
        result = torch.empty(LARGE)
        made = graphs._Recording(None, addresses, [graphs._Output(result)], [], None)  # type: ignore[arg-type]
        made.memory = [(result.untyped_storage(), result.data_ptr(), 0)]
        graphs._live.add(made)
        return made

    def _replay(self, one: Any, site: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(output.tensor.detach() for output in one.outputs)

    def copied(self) -> list[int]:
        return sorted(number for site in self._sites.values() for number in site.copied)


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(graphs._Recording, "is_free", lambda self: True)


def test_inputs_that_stay() -> None:
    run, inputs = TracedGraphBuilder(), (torch.zeros(SMALL), torch.zeros(LARGE))
    assert run(*inputs) == "plain"
    for _ in range(5):
        run(*inputs)
    assert (run.calls, run.copied()) == (["record"], [])


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_an_input_that_moves_is_copied_at_the_second_call(size: int) -> None:
    run, stays, held = TracedGraphBuilder(), torch.zeros(LARGE), []
    for _ in range(6):
        held.append(torch.zeros(size))
        run(held[-1], stays)
    assert (run.calls, run.copied()) == (["record"], [0])


def test_small_inputs_are_copied_with_one_that_moves() -> None:
    run, stays, later = TracedGraphBuilder(), torch.zeros(LARGE), [torch.zeros(SMALL)]
    held = []
    for number in range(8):
        held.append(torch.zeros(SMALL))
        if number > 4:
            later.append(torch.zeros(SMALL))
        run(held[-1], stays, later[-1])
    assert (run.calls, run.copied()) == (["record"], [0, 2])


def test_an_input_that_moves_late() -> None:
    run, held = TracedGraphBuilder(), [torch.zeros(LARGE)]
    for number in range(9):
        if number > 4:
            held.append(torch.zeros(LARGE))
        run(held[-1])
    assert (run.calls, run.copied()) == (["record"] * 2, [0])


@pytest.mark.parametrize("kind", ["parameter", "written"])
def test_state_that_is_replaced_is_recorded_where_it_is_then(kind: str) -> None:
    run = TracedGraphBuilder(mutated=(0,) if kind == "written" else ())
    state = [torch.zeros(LARGE)]
    for number in range(8):
        if number == 4:
            state.append(torch.zeros(LARGE))
        run(torch.nn.Parameter(state[-1]) if kind == "parameter" else state[-1])
    assert (run.calls, run.copied()) == (["record"] * 2, [])


def test_parameters_that_never_stay_are_copied() -> None:
    run, held = TracedGraphBuilder(), []
    for _ in range(12):
        held.append(torch.nn.Parameter(torch.zeros(SMALL)))
        run(held[-1])
    assert (run.calls, run.copied()) == (["record"] * (graphs._ADDRESSES + 1), [0])


def test_results_of_a_recording_are_read_where_they_are() -> None:
    """A chain settles in the step in which its first part does, whatever moves in front of it."""
    first, second, third = TracedGraphBuilder(), TracedGraphBuilder(), TracedGraphBuilder()
    held = [torch.zeros(LARGE), torch.zeros(LARGE)]
    counts = []
    for number in range(8):
        if number > 2:
            held.append(torch.zeros(LARGE))
        made = first(held[min(number // 2, 1)] if number < 3 else held[-1])
        made = second(torch.zeros(LARGE) if made == "plain" else made[0])
        third(torch.zeros(LARGE) if made == "plain" else made[0])
        counts.append([len(one.calls) for one in (first, second, third)])
    assert counts[1] == [1, 1, 1] and counts[3] == counts[-1]
    assert [one.copied() for one in (first, second, third)] == [[0], [], []]
