"""Where kernels cannot run, graphs do by eager's: with one warning that says why."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import jitpy
from jitpy import config
from jitpy.backends import target
from jitpy.backends.triton import backend
from jitpy.runtime import executable
from jitpy.runtime.gpu.compile import KernelCompileError
from jitpy.runtime.plan import LaunchStep, Plan

pytest.importorskip("triton")

GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "_warned", set())


def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ weight + 1, -1)


def calls(text: str, count: int = 3) -> None:
    """Three jitted functions, called twice with and without gradients: right results, and one warning in all."""
    with warnings.catch_warnings(record=True) as caught, config.patch(triton_on_cpu=True):
        warnings.simplefilter("always")
        for _ in range(count):
            jitted = jitpy.jit(program)
            for needs_grad in (False, True, False, True):
                x, weight = torch.randn(4, 8), torch.randn(8, 8, requires_grad=needs_grad)
                expected = program(x, weight)
                torch.testing.assert_close(jitted(x, weight), expected)
                if needs_grad:
                    (gradient,) = torch.autograd.grad(jitted(x, weight).square().sum(), weight)
                    torch.testing.assert_close(gradient, torch.autograd.grad(expected.square().sum(), weight)[0])
    found = [str(one.message) for one in caught if "jitpy" in str(one.message)]
    assert len(found) == 1 and text in found[0], found


def test_a_device_that_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "unsupported", lambda device: "it is older than Triton's kernels need")
    calls("graphs on cpu run with eager kernels: it is older than Triton's kernels need")


def test_a_kernel_that_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    real = executable.make_executable

    def fail(plan: Plan) -> Any:
        if any(isinstance(step, LaunchStep) for step in plan.steps):
            raise KernelCompileError("kernel fused: not today", "line 7")
        return real(plan)

    monkeypatch.setattr(executable, "make_executable", fail)
    calls("a graph runs with eager kernels: kernel fused: not today")


def test_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert backend.unsupported(GPU) == "there is no usable CUDA driver"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A small GPU")
    monkeypatch.setattr(torch.version, "hip", None)
    for capability, reason in (((7, 5), "A small GPU is older than Triton's kernels need"), ((8, 0), ""), ((9, 0), "")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert backend.unsupported(GPU) == reason
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert backend.unsupported(GPU) == "Triton is not installed"


def test_a_module_keeps_working(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "unsupported", lambda device: "no")
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.0))
    jitted = jitpy.jit(model)
    with warnings.catch_warnings(), config.patch(triton_on_cpu=True):
        warnings.simplefilter("ignore")
        x = torch.randn(4, 8)
        jitted(x).sum().backward()
        assert model[1].num_batches_tracked == 1 and model[0].weight.grad is not None
