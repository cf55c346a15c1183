"""Fixtures of the tests that run plans."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from jitpy.runtime import compiler
from jitpy.runtime.executable import PythonExecutable, make_executable
from jitpy.runtime.plan import KernelStep, Plan, SlotRef, Workspace

from .plans import KERNELS, address


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    if compiler.find_compiler() is None:
        pytest.skip("no C++ compiler")
    return compiler.load_text_cached(KERNELS, ("-O1",))


@pytest.fixture
def kernel(library: ctypes.CDLL) -> Callable[..., KernelStep]:
    def make(name: str, *pointers: int | Workspace, writes: tuple[int, ...] = ()) -> KernelStep:
        refs = tuple(SlotRef(p) if isinstance(p, int) else p for p in pointers)
        return KernelStep(address(library, name), refs, name, writes)

    return make


@pytest.fixture(params=["native", "python"])
def make(request: pytest.FixtureRequest) -> Callable[[Plan], Any]:
    """Makes a plan callable, in each of the two ways."""
    if request.param == "python":
        return PythonExecutable
    if compiler.find_compiler() is None:
        pytest.skip("no C++ compiler")

    def native(plan: Plan) -> Any:
        executable = make_executable(plan)
        assert not isinstance(executable, PythonExecutable), "the native runtime is not in use"
        return executable

    return native


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small operators are slow where their threads wait for a busy core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
