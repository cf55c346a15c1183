"""Each test starts and ends without compiled code, of either compiler, and in the default stance."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
import torch._dynamo

import jitpy


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    jitpy.reset()
    torch._dynamo.reset()
    torch._dynamo.eval_frame.dynamo_tls.traced_frame_infos.clear()
    yield
    torch.compiler.set_stance("default")
    assert torch._dynamo.utils._error_on_graph_break is False


@pytest.fixture
def _unseen(_fresh: None) -> Iterator[None]:
    """Dynamo has not tried to compile anything of jitpy's by the end of the test."""
    yield
    ours = os.path.dirname(jitpy.__file__) + os.sep
    traced = torch._dynamo.eval_frame.dynamo_tls.traced_frame_infos
    assert traced and [frame for frame in traced if ours in frame or "<jitpy " in frame] == []
