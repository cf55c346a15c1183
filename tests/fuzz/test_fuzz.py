"""Random programs: eager and jitted agree on results, exceptions, side effects and aliasing.

A minute of fresh programs in a test run (JITPY_FUZZ_SECONDS changes it); `make fuzz MINUTES=60` goes on longer and
writes what it finds to files. A case that it found becomes a test in tests/semantics.
"""

from __future__ import annotations

import os

import pytest

from tests.fuzz.search import search

SECONDS = float(os.environ.get("JITPY_FUZZ_SECONDS", "60"))


@pytest.mark.parametrize(("backend", "share"), [("eager", 0.8), ("codegen", 0.2)])
def test_programs(backend: str, share: float) -> None:
    progress = search(backend, SECONDS * share, shrink_seconds=30)
    if progress.finding is not None:
        pytest.fail(f"with backend {backend}:\n{progress.finding.text()}")
    assert progress.programs > 5
