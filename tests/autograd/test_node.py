"""The autograd node against eager: programs are run with both, and must do the same, errors included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from . import programs
from .hand_made import MAKERS, Passes, eager
from .programs import PROGRAMS, Function, assert_same, outcome

#: the node in Python frees everything when it has run, as a `torch.autograd.Function` does
FREES_AT_ONCE = {programs.outputs_that_share_nothing, programs.inputs_one_by_one_of_separate_outputs}


@pytest.mark.parametrize("maker", list(MAKERS))
@pytest.mark.parametrize("fn", PROGRAMS, ids=[fn.__name__ for fn in PROGRAMS])
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_program(fn: Callable[[Function], Any], maker: str) -> None:
    expected = outcome(fn, eager)
    found = outcome(fn, MAKERS[maker]())
    if maker == "python" and fn in FREES_AT_ONCE:
        assert found[0] == "RuntimeError" and "second time" in found[1]
        return
    assert_same(found, expected)


@pytest.mark.parametrize("maker", list(MAKERS))
def test_passes_whose_results_must_repeat_are_made_for_that(maker: str) -> None:
    """Whether they must is known when a backward pass runs, not when its graph was made."""
    passes = Passes()
    call = MAKERS[maker](backward=passes)
    x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    result = call(x, w)[0].sum()
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    made = []
    try:
        for must in (False, True, True, False):
            torch.use_deterministic_algorithms(must)
            result.backward(retain_graph=True)
            made.append(len(passes.made))
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    assert made == [1, 2, 2, 2]
