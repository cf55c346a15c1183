"""Values inside a graph that lie row-major, whatever eager does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from jitpy.backends import eager
from jitpy.ir.graph import Graph
from jitpy.ir.passes.cleanup import remove_dead_code
from jitpy.ir.passes.layouts import choose_layouts
from jitpy.ir.verify import verify
from tests.graph_tools import trace

X, PIXELS = torch.randn(2, 96, 64), torch.randn(2, 64, 96)
UP, DOWN, BIAS = torch.randn(128, 96), torch.randn(96, 128), torch.randn(96)
INPUTS = X, PIXELS, UP, DOWN, BIAS


def norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def mixer(x: Tensor, pixels: Tensor, up: Tensor, down: Tensor, bias: Tensor) -> Tensor:
    """A block of a mixer, whose residuals are pixels of a row-major image."""
    stream = pixels.transpose(1, 2)
    hidden = torch.matmul(norm(stream).transpose(1, 2), up.t()).relu()
    mixed = torch.addmm(bias, hidden.view(128, 128), down.t()).view(2, 64, 96)
    stream = stream + mixed.transpose(1, 2)
    return norm(stream + norm(stream).tanh())


def changed(fn: Callable[..., Tensor]) -> tuple[Graph, list[str]]:
    """The graph behind the pass, which computes the same."""
    graph = trace(fn, INPUTS)
    (expected,) = eager.compile_graph(trace(fn, INPUTS), {})(*INPUTS)
    done = choose_layouts(graph, "cpu")
    remove_dead_code(graph)
    verify(graph)
    (found,) = eager.compile_graph(graph, {})(*INPUTS)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert found.stride() == expected.stride()
    return graph, done


def test_residuals_of_a_mixer() -> None:
    graph, done = changed(mixer)
    assert len(done) == 2, done
    sums = [node for node in graph.nodes if node.op.name == "aten.add.Tensor"]
    assert len(sums) == 3 and all(node.tensor.is_contiguous() for node in sums)
    assert not any(node.op.name == "aten.addmm.default" for node in graph.nodes)


def test_a_linear_is_written_as_it_is_read() -> None:
    def fn(x: Tensor, pixels: Tensor, up: Tensor, down: Tensor, bias: Tensor) -> Tensor:
        rows = torch.mm(x.view(192, 64), up[:64, :64]).view(2, 96, 64)
        return pixels + rows.transpose(1, 2)

    graph, done = changed(fn)
    assert len(done) == 1 and [node.op.name for node in graph.nodes].count("aten.bmm.default") == 1


KEPT: dict[str, Callable[..., Tensor]] = {
    "the caller sees it": lambda x, pixels, *_: pixels.transpose(1, 2) + x,
    "a view of it is seen": lambda x, pixels, *_: (pixels.transpose(1, 2) + x)[0],
    "all around it are columns": lambda x, pixels, *_: norm(pixels.transpose(1, 2).tanh().transpose(1, 2)),
    "products read either": lambda x, pixels, up, *_: torch.bmm(pixels.transpose(1, 2).tanh(), x.transpose(1, 2)),
    "a product that others read": lambda x, pixels, up, *_: (
        lambda rows: norm(pixels + rows.view(2, 96, 64).transpose(1, 2)).sum() + rows)(
            torch.mm(x.view(192, 64), up[:64, :64])),
    "memory of a product": lambda x, pixels, up, *_: (
        lambda rows: norm(pixels + rows) + rows.as_strided((2, 64, 96), (6144, 96, 1)))(
            torch.mm(x.view(192, 64), up[:64, :64]).view(2, 96, 64).transpose(1, 2)),
    "memory of elements": lambda x, pixels, *_: (
        lambda value: norm(value + x.new_zeros(2, 96, 64)) + value.as_strided((2, 96, 64), (6144, 64, 1)))(
            pixels.transpose(1, 2).tanh()),
    "a product of few columns": lambda x, pixels, up, *_: norm(
        pixels[:, :8] + torch.mm(x.view(192, 64), up[:64, :8]).view(2, 96, 8).transpose(1, 2)),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    assert changed(KEPT[name])[1] == []


def test_a_product_that_the_caller_sees() -> None:
    def fn(x: Tensor, pixels: Tensor, up: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.mm(x.view(192, 64), up[:64, :64]).view(2, 96, 64).transpose(1, 2)
        return rows, norm(pixels + rows)

    assert choose_layouts(trace(fn, INPUTS), "cpu") == []


def test_views_of_a_product_have_its_new_layout() -> None:
    def fn(x: Tensor, pixels: Tensor, up: Tensor, down: Tensor, bias: Tensor) -> Tensor:
        rows = torch.mm(x.view(192, 64), up[:64, :64]).view(2, 96, 64).transpose(1, 2)
        return norm(pixels + rows) + norm(pixels * rows) + torch.bmm(rows.transpose(1, 2), pixels).sum()

    graph, done = changed(fn)
    swapped = [node for node in graph.nodes if node.op.is_view and node.args[0].op.name == "aten.bmm.default"]
    assert len(done) == 1 and swapped and all(node.tensor.stride == (6144, 1, 96) for node in swapped)
