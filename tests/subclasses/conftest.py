"""Fixtures of tests of tensor subclasses."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True, scope="module")
def _functions_are_found(_earlier_objects_are_left_alone: None) -> None:
    """The functions behind operators are looked for among the objects that the collector knows."""
    gc.unfreeze()
