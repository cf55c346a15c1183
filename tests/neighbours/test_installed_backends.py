"""Backends of installed distributions, and bad ones, as a program of its own meets them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import jitpy

MODULE = """
def good(module, examples):
    return module.forward

def raises(module, examples):
    raise ValueError("no luck")

def not_callable(module, examples):
    return 3

def one_too_few(module, examples):
    return lambda *inputs: module(*inputs)[:-1]

def one_too_many(module, examples):
    return lambda *inputs: (*module(*inputs), 1)

number = 3
"""

NAMES = ("good", "raises", "not_callable", "one_too_few", "one_too_many", "number")

PROGRAM = """
import sys, warnings, torch, jitpy

def function(x):
    y = x + 1
    if not fullgraph:
        jitpy.graph_break()
    return y.sin(), x * 2

name, fullgraph = sys.argv[1], sys.argv[2] == "fullgraph"
fast = jitpy.jit(function, backend=name, fullgraph=fullgraph)
x = torch.arange(4.)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        try:
            torch.testing.assert_close(fast(x), ((x + 1).sin(), x * 2))
            print("equal")
        except jitpy.BackendError as error:
            print("error:", error)
for warning in caught:
    print("warning:", warning.message)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which pip would have installed a package with backends."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "some_compiler.py").write_text(MODULE)
    about = folder / "some_compiler-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: some-compiler\nVersion: 1.0\n")
    (about / "RECORD").write_text("")
    points = [f"{name} = some_compiler:{name}" for name in NAMES]
    points += ["no_module = there_is_no_such_module:backend", "no_name = some_compiler:there_is_no_such_name"]
    (about / "entry_points.txt").write_text("\n".join(["[torch_dynamo_backends]", *points, ""]))
    return folder


def run(folder: Path, program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), str(Path(jitpy.__file__).parents[1])])
    variables = {**os.environ, "JITPY_RAISE": "", **variables, "PYTHONPATH": path}
    return subprocess.run([sys.executable, "-c", program, *arguments], cwd=folder, env=variables, capture_output=True,
                          text=True, timeout=300, check=False)


def test_names(installed: Path) -> None:
    program = """
import jitpy
print(*jitpy.list_backends())
for name in ("no_module", "no_name", "number"):
    try:
        jitpy.jit(lambda x: x, backend=name)
    except ValueError as error:
        print(error)
"""
    done = run(installed, program, JITPY_LOGS="backends")
    assert done.returncode == 0, done.stderr
    names, *errors = done.stdout.splitlines()
    assert {"good", "raises", "codegen", "eager", "inductor"} <= set(names.split())
    assert not {"no_module", "no_name", "number", "jitpy"} & set(names.split())
    assert len(errors) == 3 and all("unknown backend" in error and "good" in error for error in errors)
    said = [line for line in done.stderr.splitlines() if "cannot be imported" in line]
    assert len(said) == 3  # each once
    for name, why in (("no_module", "No module named 'there_is_no_such_module'"), ("no_name", "there_is_no_such_name"),
                      ("number", "no callable but int")):
        assert any(f"{name} (" in line and why in line for line in said)


def test_a_broken_neighbour_costs_no_warning(installed: Path) -> None:
    done = run(installed, PROGRAM, "good", "")
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["equal"] * 3, "")


@pytest.mark.parametrize(("name", "text"), [
    ("raises", "raised ValueError: no luck"), ("not_callable", "returned int, not a callable"),
    ("one_too_few", "a function that returns"), ("one_too_many", "a function that returns")])
@pytest.mark.parametrize("fullgraph", ["fullgraph", ""])
def test_bad_backends(installed: Path, name: str, text: str, fullgraph: str) -> None:
    done = run(installed, PROGRAM, name, fullgraph)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    if fullgraph:
        assert len(lines) == 3 and all(line.startswith(f"error: the backend '{name}'") and text in line
                                       for line in lines)
    else:
        assert lines[:3] == ["equal"] * 3
        assert len(lines) == 4 and f"warning: jitpy: the backend '{name}'" in lines[3] and text in lines[3]
