"""torch.func and torch.cond through the tracer: what is recorded, and what is not loaded for it."""

from __future__ import annotations

import subprocess
import sys

import torch
from torch.func import grad, vmap

import jitpy

_PROGRAM = """
import sys
import torch, jitpy
from torch.func import grad, hessian, jacfwd, jvp, vmap

x = torch.randn(4)
jitpy.jit(lambda x: vmap(grad(lambda t: t.sin()))(x), fullgraph=True)(x)
jitpy.jit(lambda x: hessian(lambda t: t.sin().sum())(x), fullgraph=True)(x)
jitpy.jit(lambda x: jvp(torch.sin, (x,), (x,)), fullgraph=True)(x)
jitpy.jit(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), fullgraph=True)(x)
jitpy.jit(lambda x: torch.while_loop(lambda t: t.sum() > 100, lambda t: (t * 2,), (x,)), fullgraph=True)(x)
assert "torch._dynamo" not in sys.modules
assert "_dynamo" not in vars(torch)
"""


def test_the_compiler_of_torch_is_not_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_transform_is_recorded_as_plain_operations() -> None:
    report = jitpy.explain(lambda x: vmap(grad(lambda t: (t * t).sum()))(x))(torch.randn(3, 4))
    names = {node.op.name for graph in report.graphs for node in graph.nodes}
    assert report.graph_break_count == 0
    assert names and all(name.startswith("aten.") for name in names)


def test_only_the_branch_taken_runs() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda t: t + torch.rand(3), lambda t: t * 2, (x,))

    jitted = jitpy.jit(fn, fullgraph=True)
    torch.manual_seed(0)
    assert torch.equal(jitted(-torch.ones(3)), torch.full((3,), -2.0))
    drawn = torch.rand(3)
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(3))
    torch.manual_seed(0)
    assert torch.equal(jitted(torch.ones(3)), 1 + drawn)


def test_a_list_that_a_branch_would_change_breaks() -> None:
    seen: list[int] = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        return vmap(lambda row: (seen.append(1), row * 2)[1])(x)

    report = jitpy.explain(fn)(torch.ones(2, 2))
    assert [record.reason.id for record in report.break_reasons][:1] == ["higher_order"]
    assert len(seen) == 1
