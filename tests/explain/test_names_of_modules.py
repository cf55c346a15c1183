"""Reports call frames and kernels of modules by the names that the program gave them."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

import jitpy


class Block(nn.Module):
    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.proj = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.breaks = breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.proj(x)).relu()
        if self.breaks:
            jitpy.graph_break("here")
        return x.sin() * 2


class Net(nn.Module):
    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.first = Block()
        self.blocks = nn.ModuleList([Block(), Block(breaks)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).exp()
        for block in self.blocks:
            x = block(x)
        return x.sum()


def line_of(fn: Any, text: str) -> int:
    lines, first = inspect.getsourcelines(fn)
    return first + next(k for k, line in enumerate(lines) if text in line)


def test_kernels_and_operations_name_their_modules() -> None:
    report = jitpy.explain(Net())(torch.randn(4, 8))
    (frame,) = report.frames
    assert (frame.name, frame.filename, frame.line) == ("Net", __file__, line_of(Net.forward, "def forward"))
    assert frame.graph is not None
    found = {(str(node.op), node.loc.module) for node in frame.graph.nodes if node.loc is not None}
    assert {("aten.linear.default", "Linear first.proj"), ("aten.layer_norm.default", "LayerNorm blocks.1.norm"),
            ("aten.relu.default", "Block blocks.0"), ("aten.exp.default", "Net"), ("aten.sum.default", "Net")} <= found
    first = report.kernels[0]
    assert first.modules == ["LayerNorm first.norm", "Block first", "Net"]
    assert str(first).startswith("kernel0 of LayerNorm first.norm, Block first, Net (rows): ")
    assert first.name.startswith("forward: native_layer_norm+relu+sin+mul+exp (test_names_of_modules.py:")
    for text in (str(report), report.to_html()):
        assert "jitted.py" not in text.split("guards:")[0].split("<summary>guards")[0]
        assert "LayerNorm blocks.1.norm" in text


def test_modules_of_torch_alone() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU())
    report = jitpy.explain(model)(torch.randn(4, 8))
    (frame,) = report.frames
    assert frame.name == "Sequential" and frame.filename.endswith("container.py")
    assert frame.graph is not None and all(
        node.loc is not None and "jitted.py" not in node.loc.filename for node in frame.graph.nodes)
    assert [node.loc.module for node in frame.graph.nodes if node.loc is not None] == [
        "Linear 0", "LayerNorm 1", "GELU 2"]
    assert report.kernels[0].modules == ["LayerNorm 1", "GELU 2"]
    assert all("normalization.py" in line or "activation.py" in line for line in report.kernels[0].lines)


def test_frames_behind_a_break() -> None:
    report = jitpy.explain(Net(breaks=True))(torch.randn(4, 8))
    (record,) = report.break_reasons
    assert (record.filename, record.line) == (__file__, line_of(Block.forward, "graph_break"))
    assert all(frame.filename == __file__ and "jitted" not in frame.name for frame in report.frames)
    assert [frame.name for frame in report.frames] == ["Net", "Net"]
    assert any(kernel.modules == ["LayerNorm blocks.1.norm", "Block blocks.1"] for kernel in report.kernels)


def test_modules_of_a_function() -> None:
    net = Net()

    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x) + net.first(x).sum() + x.cos().sum()

    report = jitpy.explain(step)(net.blocks[0], torch.randn(4, 8))
    graph = report.graphs[0]
    found = {node.loc.module for node in graph.nodes if node.loc is not None}
    assert found == {"Linear model.proj", "LayerNorm model.norm", "Block model", "Linear net.first.proj",
                     "LayerNorm net.first.norm", "Block net.first", ""}
    (frame,) = report.frames
    assert frame.name.endswith("step") and frame.line == line_of(step, "def step")


class Scaled:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2


def test_callables() -> None:
    (frame,) = jitpy.explain(Scaled())(torch.randn(3)).frames
    assert (frame.name, frame.filename, frame.line) == ("Scaled", __file__, line_of(Scaled.__call__, "def __call__"))
