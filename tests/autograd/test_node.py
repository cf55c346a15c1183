"""The autograd node against eager: programs are run with both, and must do the same, errors included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from . import programs
from .hand_made import MAKERS, eager
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
