"""`python -m jitpy`: the report names everything it promises, and says what is wrong."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from jitpy import __main__, config
from jitpy.explain import doctor


def names() -> set[str]:
    return {item.name for item in doctor.findings()}


def test_report_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["doctor"]) == 0
    text = capsys.readouterr().out
    for part in ("Python", "torch", "C++ compiler", "SIMD", "Triton", "GPU", "Cache folder", "Native hook", "Frame"):
        assert part in text
    assert torch.__version__ in text and sys.executable in text


def test_missing_compiler_is_said() -> None:
    with config.patch(cxx="/no/such/compiler"):
        found = {item.name: item for item in doctor.findings()}
    assert found["C++ compiler"].ok is False and "/no/such/compiler" in found["C++ compiler"].text
    assert "!" in doctor.report([found["C++ compiler"]])


def test_unusable_cache_folder_is_said() -> None:
    with config.patch(cache_dir="/proc/no/such/folder"):
        found = {item.name: item for item in doctor.findings()}
    assert found["Cache folder"].ok is False
    with config.patch(disk_cache=False):
        found = {item.name: item for item in doctor.findings()}
    assert "turned off" in found["Cache folder"].text


def test_a_failing_check_does_not_end_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> object:
        raise OSError("cannot look")
        yield

    monkeypatch.setattr(doctor, "CHECKS", (broken, *doctor.CHECKS))
    found = doctor.findings()
    assert found[0].text == "OSError: cannot look" and len(found) > 5


def test_unknown_command() -> None:
    done = subprocess.run([sys.executable, "-m", "jitpy", "nonsense"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "doctor" in done.stderr and "build" in done.stderr
