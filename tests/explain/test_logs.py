"""Logs and the debug folder, as a user turns them on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import jitpy
from jitpy import logs


def scaled(x: torch.Tensor) -> torch.Tensor:
    return (x + x.shape[0]).sin() * 2


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    before = logs.set_sink(lines.append)
    monkeypatch.setattr(logs, "_enabled", set())
    try:
        yield lines  # type: ignore[misc]
    finally:
        logs.set_sink(before)


def test_bytecode(written: list[str]) -> None:
    logs.enable("bytecode")
    jitpy.jit(scaled, backend="eager")(torch.ones(3))
    assert any("[jitpy bytecode] scaled" in text and "RETURN_VALUE" in text for text in written)


def test_sizes(written: list[str]) -> None:
    logs.enable("sizes")
    f = jitpy.jit(scaled, backend="eager")
    f(torch.ones(3))
    f(torch.ones(4))
    assert "no symbolic sizes" in written[0]
    assert "s0 = 4, x, axis 0" in written[1]


def test_debug_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITPY_DEBUG_DIR", str(tmp_path))
    with jitpy.config.patch(debug=True):
        jitpy.jit(scaled)(torch.ones(3))
    (folder,) = tmp_path.iterdir()
    assert {path.name for path in folder.iterdir()} == {"graph.py", "schedule.txt", "kernels.cpp", "plan.txt"}
    assert "sinf" in (folder / "kernels.cpp").read_text()
