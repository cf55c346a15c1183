"""Fixtures of tests of `flex_attention`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
import torch._dynamo
from torch.nn.attention import flex_attention as flex


@pytest.fixture
def plain_eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Eager refuses gradients on the CPU, which its formulas compute like others. Its own caches begin anew."""
    monkeypatch.setattr(flex, "_validate_device", lambda query, key, value: None)
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
