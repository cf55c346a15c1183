"""Random programs: eager and jitted agree on results, exceptions, side effects and aliasing.

A test run draws the same programs each time, up to a minute of them (JITPY_FUZZ_SECONDS changes it), so that a red run
can be repeated and tells of the change at hand. `make fuzz MINUTES=60` draws fresh ones and writes what it finds to
files. A case that it found becomes a test in tests/semantics.
"""

from __future__ import annotations

import os

import pytest

from tests.fuzz import tensors
from tests.fuzz.search import search

SECONDS = float(os.environ.get("JITPY_FUZZ_SECONDS", "60"))


@pytest.mark.parametrize(("backend", "share", "most"), [("eager", 0.8, 120), ("codegen", 0.2, 20)])
def test_programs(backend: str, share: float, most: int) -> None:
    progress = search(backend, SECONDS * share, shrink_seconds=30, seed=20, most=most)
    if progress.finding is not None:
        pytest.fail(f"with backend {backend}:\n{progress.finding.text()}")
    assert progress.programs  # a slow machine draws fewer


@pytest.mark.parametrize(("backend", "most"), [("eager", 150), ("codegen", 10)])
def test_tensor_programs(backend: str, most: int) -> None:
    programs, findings = tensors.search(backend, 1, lambda programs: programs < most)
    assert programs == most
    if findings:
        pytest.fail("\n".join(f"{program.text()}\n{problem}" for program, problem in findings))


def test_tensor_programs_are_read_again() -> None:
    for seed in range(30):
        program = tensors.Drawing(seed).program()
        assert tensors.parsed(program.text()) == program
