"""Tests of this folder run on a machine with a GPU; elsewhere they are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="there is no GPU"))


@pytest.fixture
def cuda() -> torch.device:
    """The first GPU, with a fixed seed."""
    torch.manual_seed(0)
    return torch.device("cuda", 0)
