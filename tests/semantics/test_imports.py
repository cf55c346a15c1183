"""Imports inside functions: of modules that are loaded, and of submodules that nobody has imported yet."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import jitpy


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package with two submodules; nothing is imported."""
    folder = tmp_path / "jitpy_imported"
    folder.mkdir()
    (folder / "__init__.py").write_text("factor = 2.0\n")
    (folder / "first.py").write_text("offset = 3.0\n")
    (folder / "second.py").write_text("from . import first\n\n\ndef scale(x):\n    return x * first.offset\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder.name
    for name in [name for name in sys.modules if name.split(".")[0] == "jitpy_imported"]:
        del sys.modules[name]


@pytest.mark.parametrize("loaded", [False, True])
def test_submodules_that_are_imported_by_name(package: str, loaded: bool) -> None:
    """The package is there, its submodule is not: `from` imports it."""
    if loaded:
        __import__(package)

    def f(x: torch.Tensor) -> torch.Tensor:
        from jitpy_imported import factor, first, second

        return second.scale(x) * factor + first.offset

    x = torch.ones(3)
    jitted = jitpy.jit(f)
    for _ in range(3):
        assert torch.equal(jitted(x), x * 9)


def test_a_submodule_that_does_not_exist(package: str) -> None:
    __import__(package)

    def f(x: torch.Tensor) -> torch.Tensor:
        from jitpy_imported import third

        return x * third.offset

    jitted = jitpy.jit(f)
    for function in (f, jitted, jitted):
        with pytest.raises(ImportError, match="third"):
            function(torch.ones(3))


def test_numbers_of_modules_are_constants_till_they_change() -> None:
    """Also with `dynamic=True`, where sizes and numbers of the call are symbolic from the start."""
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = 4

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(x.shape[0], self.heads, -1).sum(1)

    module = Scaled()
    jitted = jitpy.jit(module, dynamic=True)
    for heads, rows in ((4, 3), (4, 5), (2, 5), (8, 7), (2, 9)):
        module.heads = heads
        x = torch.randint(-9, 9, (rows, 16)).float()
        assert torch.equal(jitted(x), module(x))
    graph = str(jitpy.explain(Scaled(), dynamic=True)(torch.randn(3, 16)))
    assert "[s0, 4, -1]" in graph


def test_a_module_that_is_written_later_is_found(tmp_path, monkeypatch):
    def call(x):
        return x + (10 if importlib.util.find_spec("written_later") else 1)

    x = torch.ones(3)
    jitted = jitpy.jit(call, fullgraph=True)
    assert torch.equal(jitted(x), x + 1) and torch.equal(jitted(x), x + 1)
    (tmp_path / "written_later.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert torch.equal(jitpy.jit(call)(x), x + 10)
    with pytest.raises(jitpy.FullGraphError):
        jitted(x)


def test_specs_of_modules(monkeypatch):
    """`importlib.util.find_spec` says whether a package is there; one that is loaded later is noticed."""
    def call(x):
        return x + 1 if importlib.util.find_spec("no_such_package") is None else x * 3

    x = torch.ones(3)
    jitted = jitpy.jit(call, fullgraph=True)
    assert torch.equal(jitted(x), x + 1)
    module = types.ModuleType("no_such_package")
    module.__spec__ = importlib.machinery.ModuleSpec("no_such_package", None)
    monkeypatch.setitem(sys.modules, "no_such_package", module)
    assert torch.equal(jitted(x), x * 3)
    loaded = jitpy.jit(lambda x: (x * 2, importlib.util.find_spec("json")), fullgraph=True)
    assert loaded(x)[1] is json.__spec__
    missing = ModuleNotFoundError
    for name, error in (("no_such_package.part", missing), ("sys.part", missing), ("", ValueError)):
        with pytest.raises(error) as found:
            jitpy.jit(lambda x, name=name: (x * 2, importlib.util.find_spec(name)))(x)
        with pytest.raises(error) as wanted:
            importlib.util.find_spec(name)
        assert str(found.value) == str(wanted.value)
    module.__spec__ = None
    with pytest.raises(ValueError, match="__spec__ is None"):
        jitpy.jit(call)(x)
