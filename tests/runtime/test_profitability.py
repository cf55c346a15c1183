"""Functions whose graph breaks cost more than their graphs save are left to Python once they have settled."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import jitpy
from jitpy.engine import all_engines
from jitpy.profitability import Reviews, Worth

#: Enough calls for a function to settle and be reviewed, and for what it calls after that.
CALLS = 200


class Piece:
    """An object that a call makes anew, so that guards on it walk its attributes each time."""

    def __init__(self, number: int) -> None:
        self.a = self.b = self.c = self.d = self.e = self.f = number
        self.inner = None if number == 0 else Piece(number - 1)


def total(piece: Piece | None) -> int:
    seen = 0
    while piece is not None:
        seen += piece.a + piece.b + piece.c + piece.d + piece.e + piece.f
        piece = piece.inner
    return seen


def computes_little(x: torch.Tensor, log: list[int]) -> torch.Tensor:
    piece = Piece(6)
    for number in range(6):
        jitpy.graph_break()
        log.append(total(piece) if number % 2 else -total(piece))
        piece.a += 1
    return x + len(log)


def computes_much(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        jitpy.graph_break()
        x = (x * 2 + 1).sin().cos() - x.tanh()
    return x


def logs_or_computes(x: torch.Tensor, logs: bool) -> torch.Tensor:
    if logs:
        jitpy.graph_break()
        return x
    for _ in range(30):
        x = x.sin() * 1.01 + 0.1
    return x


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    jitpy.reset()
    yield


def _names() -> set[str]:
    return {variant.name for engine in all_engines() for variant in engine.variants}


def _agrees(fn: Any, calls: int = CALLS) -> Any:
    jitted = jitpy.jit(fn)
    ours: list[int] = []
    theirs: list[int] = []
    for number in range(calls):
        x = torch.full((4,), float(number))
        ours.clear(), theirs.clear()
        assert torch.equal(jitted(x, ours), fn(x, theirs))
        assert ours == theirs
    return jitted


def test_what_loses_is_left_to_python() -> None:
    jitted = _agrees(computes_little)
    assert "computes_little" not in _names()
    assert jitted.run_original_always  # nothing below is compiled either: not even the frames are watched


def test_what_saves_stays_compiled() -> None:
    jitted = jitpy.jit(computes_much)
    x = torch.randn(4)
    for _ in range(CALLS):
        torch.testing.assert_close(jitted(x), computes_much(x))
    assert "computes_much" in _names()
    assert not jitted.run_original_always


def test_a_long_loop_is_left_in_one_call() -> None:
    def loop(x: torch.Tensor, log: list[int]) -> torch.Tensor:
        for number in range(CALLS):
            piece = Piece(6)
            jitpy.graph_break()
            if number % 2:
                log.append(total(piece))
            else:
                log.append(-total(piece))
        return x * len(log)

    _agrees(loop, calls=2)
    assert "loop" not in _names()


def heavy(x: torch.Tensor) -> torch.Tensor:
    return (x * 2 + 1).sin().cos() - x.tanh()


def calls_heavy(x: torch.Tensor, log: list[int]) -> torch.Tensor:
    piece = Piece(6)
    for number in range(20):
        jitpy.graph_break()
        log.append(total(piece) if number % 2 else -total(piece))
    jitpy.graph_break()
    return heavy(x)


@pytest.mark.parametrize("native", [True, False])
def test_what_it_calls_may_stay_compiled(native: bool) -> None:
    with jitpy.config.patch(native=native):
        jitted = jitpy.jit(calls_heavy)
        for _ in range(CALLS):
            x = torch.randn(4)
            log: list[int] = []
            torch.testing.assert_close(jitted(x, log), calls_heavy(x, []))
            assert len(log) == 20
    if native:  # Python's guards do not count their work
        assert "calls_heavy" not in _names() and "heavy" in _names()


def logs_totals(piece: Piece, log: list[int]) -> None:
    for number in range(20):
        jitpy.graph_break()
        log.append(total(piece) if number % 2 else -total(piece))


def logs_below(log: list[int]) -> int:
    logs_totals(Piece(6), log)
    return len(log)


def logs_far_below(x: torch.Tensor, log: list[int]) -> torch.Tensor:
    x = x + logs_below(log)
    jitpy.graph_break()
    return heavy(x)


@pytest.mark.skipif(jitpy.config.hook == "none", reason="without the frame hook nothing below is compiled")
def test_functions_with_the_breaks_that_lose_are_not_compiled_by_themselves() -> None:
    """Each would be compiled, would lose, and would leave those that it calls to the next round."""
    jitted = jitpy.jit(logs_far_below)
    jitted(torch.randn(4), [])
    (engine,) = (engine for engine in all_engines() if engine.variants)
    engine.made = []
    for _ in range(CALLS):
        x = torch.randn(4)
        torch.testing.assert_close(jitted(x, []), logs_far_below(x, []))
    made = {variant.name for variant in engine.made}
    assert "logs_far_below" not in _names() and "heavy" in made
    assert made.isdisjoint({"logs_below", "logs_totals"})


def test_review_can_be_turned_off() -> None:
    with jitpy.config.patch(review_after=0):
        _agrees(computes_little)
        assert "computes_little" in _names()


class Part:
    """A dispatcher, as far as reviews know it."""

    def __init__(self, saved: float, walked: int) -> None:
        saved, walked = 20 * saved, 20 * walked
        self.code = computes_little.__code__
        self.original = computes_little
        self.review_in = 0
        self.entries = [types.SimpleNamespace(hits=0, frames=0, payload=Worth(saved, 10_000, True),
                                              guard=types.SimpleNamespace(walked=0))]
        self._walked = walked

    def call(self, times: int) -> None:
        for entry in self.entries:
            entry.hits += times
            entry.guard.walked += times * self._walked


@pytest.mark.parametrize(("saved", "walked", "left_after"), [
    (0, 100, 8), (0, 10, 64), (490, 100, 16), (990, 100, 32), (1400, 100, 64), (2100, 100, None)])
def test_the_clearer_the_sooner(saved: float, walked: int, left_after: int | None) -> None:
    part, reviews = Part(saved, walked), Reviews()
    reviews.expect([part], part, True, lambda dispatcher: None)
    calls = 0
    while calls < 200 and part.review_in:
        due = part.review_in
        part.call(due)
        calls, part.review_in = calls + due, 0
        if reviews.losing([part], part):
            break
    assert (calls if calls < 200 else None) == left_after


def test_a_new_variant_puts_the_review_off() -> None:
    part, reviews = Part(490, 100), Reviews()
    for _ in range(3):
        reviews.expect([part], part, True, lambda dispatcher: None)
        assert part.review_in == 8
        part.call(8)
        assert not reviews.losing([part], part) and part.review_in == 8
    part.call(8)
    assert reviews.losing([part], part) and not part.review_in


def test_exceptions_and_gradients_are_eagers() -> None:
    class Refused(Exception):
        pass

    def fn(x: torch.Tensor, log: list[int]) -> torch.Tensor:
        piece = Piece(6)
        try:
            jitpy.graph_break()
            log.append(total(piece))
            if len(log) % 3 == 0:
                raise Refused(len(log))
        except Refused as error:
            log.append(-error.args[0])
        jitpy.graph_break()
        return (x * total(piece)).sum()

    jitted = jitpy.jit(fn)
    ours: list[int] = []
    theirs: list[int] = []
    for _ in range(CALLS):
        x, y = (torch.arange(4.0, requires_grad=True) for _ in range(2))
        jitted(x, ours).backward()
        fn(y, theirs).backward()
        assert torch.equal(x.grad, y.grad) and ours[-3:] == theirs[-3:]


class Letter:
    """The C encoder asks a function for what it stands for."""


def single(letter: Letter) -> int:
    return 1


def calls_often(x: torch.Tensor, letters: list[Letter]) -> torch.Tensor:
    x = ((x * 2 + 1).sin().cos() - x.tanh()).exp().mul(3).sub(1)
    text = json.dumps(letters, default=single)
    return heavy(x) + len(text)


@pytest.mark.skipif(jitpy.config.hook == "none", reason="without the frame hook nothing below is compiled")
def test_many_frames_below_are_not_watched() -> None:
    """Code compiled below saves less than the hook costs in all the frames there: the function stays compiled."""
    jitted = jitpy.jit(calls_often)
    letters = [Letter() for _ in range(3000)]
    x = torch.randn(4)
    for _ in range(40):
        torch.testing.assert_close(jitted(x, letters), calls_often(x, letters))
    entries = [entry for engine in all_engines() for one in engine._dispatchers for entry in one.entries]
    assert "calls_often" in _names() and not any(entry.needs_hook for entry in entries)


def test_few_frames_below_are_watched() -> None:
    jitted = jitpy.jit(calls_often)
    letters = [Letter() for _ in range(3)]
    x = torch.randn(4)
    for _ in range(CALLS):
        torch.testing.assert_close(jitted(x, letters), calls_often(x, letters))
    entries = [entry for engine in all_engines() for one in engine._dispatchers for entry in one.entries]
    assert any(entry.needs_hook for entry in entries)


def test_a_cheap_branch_that_comes_first_does_not_decide() -> None:
    """Ten calls that lose a little say nothing of what comes later."""
    jitted, x = jitpy.jit(logs_or_computes), torch.randn(8)
    for _ in range(20):
        jitted(x, True)
    for _ in range(20):
        torch.testing.assert_close(jitted(x, False), logs_or_computes(x, False))
    assert any(variant.graph is not None and len(variant.graph.nodes) > 60
               for engine in all_engines() for variant in engine.variants)
