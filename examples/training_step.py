"""A whole training step as one graph: forward, backward and update. `python -m examples.training_step`.

The jitted function is the step as one writes it anyway. Gradients land in `.grad`, the optimizer keeps its state, a
scheduler changes the learning rate, and none of that compiles anew.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn

import jitpy


def digits(number: int, rows: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """Points on ten noisy rays: (float32[rows, 16], int64[rows])."""
    random = torch.Generator().manual_seed(number)
    labels = torch.randint(0, 10, (rows,), generator=random)
    rays = torch.randn(10, 16, generator=torch.Generator().manual_seed(0))
    return rays[labels] + 0.5 * torch.randn(rows, 16, generator=random), labels


def make_step(model: nn.Module, optimizer: torch.optim.Optimizer):
    """The training step: `step(x, y) -> loss`."""

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))
    twin = copy.deepcopy(model)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (model, twin)]
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, 100) for o in optimizers]
    step, eager = jitpy.jit(make_step(model, optimizers[0])), make_step(twin, optimizers[1])
    for number in range(100):
        loss, expected = step(*digits(number)), eager(*digits(number))
        for schedule in schedules:
            schedule.step()
        if number % 20 == 0 or number == 99:
            print(f"step {number:3}: loss {loss.item():.6f}, eager {expected.item():.6f}")
    report = jitpy.explain(make_step(model, optimizers[0]))(*digits(100))
    print(f"{report.graph_count} graph, {report.graph_break_count} graph breaks, {report.op_count} operations, "
          f"{len(report.kernels)} kernels")


if __name__ == "__main__":
    main()
