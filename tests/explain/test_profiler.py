"""torch.profiler: kernels are named after operations and lines of the program, and their memory is theirs."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import jitpy


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(256, 256)
        self.norm = nn.LayerNorm(256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.norm(self.proj(x)))


def line_of(fn: Any, text: str) -> str:
    """`file.py:12` for the line of a function that holds a text."""
    lines, first = inspect.getsourcelines(fn)
    return f"test_profiler.py:{first + next(k for k, line in enumerate(lines) if text in line)}"


def profiled_step(model: nn.Module, x: torch.Tensor) -> list[Any]:
    """The events of a training step that was compiled before."""
    jitted = jitpy.jit(model)
    for _ in range(3):
        jitted(x).square().sum().backward()
    model.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        loss = jitted(x)
        loss.backward(torch.ones_like(loss))
    return list(profiler.events())


def test_a_training_step_shows_operations_lines_and_memory() -> None:
    events = profiled_step(Block(), torch.randn(512, 256))
    place = line_of(Block.forward, "torch.tanh")
    (forward,) = [e for e in events if e.name.startswith("forward: ")]
    assert "layer_norm" in forward.name and "tanh" in forward.name and forward.name.endswith(f"({place})")
    # the result and what the backward pass is to know of it: no less than the result, and no more than four of its kind
    assert 4 * 512 * 256 <= forward.cpu_memory_usage <= 4 * 4 * 512 * 256
    backward = [e for e in events if e.name.startswith("backward: ")]
    assert backward and all("layer_norm_backward" in e.name and place in e.name for e in backward)
    assert all(e.cpu_parent is not None and "Backward" in e.cpu_parent.name for e in backward)
    # the products, which are torch's own kernels, keep their names
    assert {"aten::addmm", "aten::mm"} <= {e.name for e in events}


def test_all_memory_that_is_taken_belongs_to_a_kernel_or_operator() -> None:
    @jitpy.jit
    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() @ x).exp()

    x = torch.randn(300, 300)
    fn(x)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        fn(x)
    taken = {e.name: e.self_cpu_memory_usage for e in profiler.events() if e.self_cpu_memory_usage > 0}
    result = 4 * 300 * 300
    assert taken.pop("aten::mm", 0) + sum(n for name, n in taken.items() if "test_profiler.py" in name) >= 2 * result
    assert not taken.get("[memory]")
