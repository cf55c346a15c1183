"""Matrix products by templates, on the GPU: in default mode, and measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import jitpy
from jitpy import config
from jitpy.backends.triton import backend
from jitpy.backends.triton import products as templates
from jitpy.backends.triton.products import Blocks
from jitpy.runtime.executable import make_executable
from jitpy.runtime.plan import LaunchStep
from tests.graph_tools import trace
from tests.triton.test_products import CASES, Tensor, compare, gated, listed, small


def moved(inputs: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, ...]:
    """On the GPU, with the strides that they have."""
    found = []
    for one in inputs:
        there = torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=device)
        found.append(there.copy_(one))
    return tuple(found)


@pytest.mark.parametrize("name", CASES)
def test_templates(name: str, cuda: torch.device) -> None:
    fn, inputs, count = CASES[name]
    inputs = moved(inputs, cuda)
    plan = backend.plan_graph(trace(fn, inputs), products="all")
    assert sum(isinstance(step, LaunchStep) for step in plan.steps) == count
    compare(list(make_executable(plan)(*inputs)), fn, inputs)


LARGE: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "gated": (gated, ((300, 512), (512, 1030), (512, 1030))),
    "few rows": (lambda x, w: torch.mm(x, w.t()).relu(), ((16, 4096), (4096, 4096))),
    "many matrices": (torch.bmm, ((512, 64, 64), (512, 64, 64))),
    "a residual": (lambda x, w, b, r: torch.nn.functional.gelu(x @ w + b) * r,
                   ((2048, 1024), (1024, 2048), (2048,), (2048, 2048))),
    "a vector": (lambda x, w, b: torch.relu(x @ w + b), ((512, 1024), (1024, 512), (512,))),
}


@pytest.mark.parametrize("mode", ["default", "max-autotune", "reduce-overhead"])
@pytest.mark.parametrize("name", LARGE)
def test_modes(name: str, mode: str, cuda: torch.device, tmp_path: Path) -> None:
    """Whatever is chosen is as exact as eager, also when it is looked up on disk."""
    fn, shapes = LARGE[name]
    inputs = moved(tuple(small(*shape) for shape in shapes), cuda)
    with config.patch(cache_dir=str(tmp_path)), torch.no_grad():
        for _ in range(2 if mode == "max-autotune" else 1):
            jitted = jitpy.jit(fn, mode=mode)
            for _ in range(3):
                compare(listed(jitted(*inputs)), fn, inputs)


def test_a_template_that_does_not_fit_is_the_librarys(cuda: torch.device, monkeypatch: pytest.MonkeyPatch,
                                                      tmp_path: Path) -> None:
    """Tiles that need more shared memory than there is."""
    asked = []

    def too_large(sizes: Any, products: int) -> list[Blocks]:
        asked.append(sizes)
        return [Blocks(256, 256, 128, 8, 6)]

    monkeypatch.setattr(templates, "blocks_of", too_large)
    inputs = moved((small(16, 4096), small(4096, 4096)), cuda)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        return torch.mm(x, w.t()).relu() * 2

    with config.patch(cache_dir=str(tmp_path)), torch.no_grad():
        compare(listed(jitpy.jit(fn)(*inputs)), fn, inputs)
    assert asked


def test_gradients(cuda: torch.device) -> None:
    """Products of both passes."""
    inputs = [one.requires_grad_() for one in moved((small(64, 512), small(512, 1024), small(512, 1024)), cuda)]
    jitted = jitpy.jit(gated)
    grads = [torch.autograd.grad(call(*inputs).float().square().sum(), inputs) for call in (gated, jitted)]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=5e-2, atol=5e-2 * other.abs().max().item())
