"""The autograd node against eager: programs are run with both, and must do the same, errors included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from .hand_made import Passes, eager, made
from .programs import PROGRAMS, Function, assert_same, outcome


@pytest.mark.parametrize("fn", PROGRAMS, ids=[fn.__name__ for fn in PROGRAMS])
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_program(fn: Callable[[Function], Any]) -> None:
    expected = outcome(fn, eager)
    assert_same(outcome(fn, made()), expected)


def test_passes_whose_results_must_repeat_are_made_for_that() -> None:
    """Whether they must is known when a backward pass runs, not when its graph was made."""
    passes = Passes()
    call = made(backward=passes)
    x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    result = call(x, w)[0].sum()
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    counts = []
    try:
        for must in (False, True, True, False):
            torch.use_deterministic_algorithms(must)
            result.backward(retain_graph=True)
            counts.append(len(passes.made))
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    assert counts == [1, 2, 2, 2]
