"""Matrix products by templates: what is fused with them, in Triton's interpreter and compiled for a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from jitpy import config
from jitpy.backends.triton import measured, plan_graph
from jitpy.backends.triton.products import blocks_of
from jitpy.ir.builder import Builder
from jitpy.ir.graph import Graph
from jitpy.runtime.executable import PythonExecutable
from jitpy.runtime.gpu.compile import Target, compile_kernels
from jitpy.runtime.plan import LaunchStep, Plan
from jitpy.schedule.products import Sizes
from tests.graph_tools import spec_of, trace
from tests.triton.cases import BF16, HALF, Tensor, randn

pytest.importorskip("triton")


def small(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return (torch.randn(shape) * 0.5).to(dtype)


def residual(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return F.gelu(torch.addmm(b, x, w)) * r + r


def gated(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.silu(x @ w) * (x @ v)


def heads(x: Tensor, w: Tensor) -> Tensor:
    """Written down in another order."""
    return (F.linear(x, w) * 2).view(2, 24, 4, 16).transpose(1, 2).contiguous()


def two_results(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.mm(x, w)
    return y, y.relu()


def converted(x: Tensor, w: Tensor) -> Tensor:
    return torch.mm(x.to(BF16), w.to(BF16)).float()


def with_logarithm(x: Tensor, w: Tensor) -> Tensor:
    """Memory behind the end of the inner axis holds infinities."""
    return torch.mm(x, w.log())


def pixels(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    """A convolution of points, behind a gate and in front of a norm and an activation."""
    return F.silu(F.conv2d(x * scale[:, :, None, None].sigmoid(), w) * 0.5 + 1)


def of_few_rows(x: Tensor, w: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    return F.linear(x, w), F.linear(x, u).relu(), F.linear(x, v) * 2


def two_widths(x: Tensor, w: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    return F.linear(x, w), F.linear(x, u), F.linear(x, v)


def small_kernels(x: Tensor, y: Tensor, z: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    """Of different bodies, dtypes and compile options."""
    return x.cos(), (y.view(4, 2, 32).flip(1) * 3).exp(), z + 1, s.t().contiguous().tanh()


def image(*shape: int) -> Tensor:
    return small(*shape).to(memory_format=torch.channels_last)


#: fn, inputs, launches
CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], int]] = {
    "mm": (lambda x, w: torch.mm(x, w), (small(64, 128), small(128, 64)), 1),
    "float16": (lambda x, w: torch.mm(x, w).relu(), (small(33, 64, dtype=HALF), small(64, 40, dtype=HALF)), 1),
    "float32": (lambda x, w: torch.mm(x, w).relu(), (randn(33, 64), randn(64, 40)), 1),
    "split": (lambda x, w, b: torch.addmm(b, x, w).relu(), (randn(64, 96), randn(96, 64), randn(64)), 1),
    "split, odd sizes": (lambda x, w: torch.mm(x, w) * 2, (randn(130, 101), randn(101, 71)), 1),
    "split, turned": (lambda x, w: F.linear(x.t(), w), (randn(64, 200), randn(72, 64)), 1),
    "split, gated": (gated, (randn(70, 64), randn(64, 80), randn(64, 80)), 1),
    "split, batches": (lambda x, w: torch.bmm(x, w.mT), (randn(3, 64, 160), randn(3, 96, 160)), 1),
    "odd sizes": (lambda x, w: torch.mm(x, w).relu(), (small(70, 51), small(51, 37)), 1),
    "odd sizes in float32": (lambda x, w: torch.mm(x, w), (randn(70, 51), randn(51, 37)), 1),
    "turned": (lambda x, w: torch.mm(x.t(), w.t()) + 1, (small(64, 48), small(80, 64)), 1),
    "strided": (lambda x, w: torch.mm(x[::2, 3:67], w[:, 1::3]), (small(40, 80), small(64, 100)), 1),
    "residual": (residual, (small(48, 64), small(64, 80), small(80), small(48, 80)), 1),
    "gated": (gated, (small(48, 64), small(64, 80), small(64, 80)), 1),
    "gated, few rows": (gated, (small(3, 256), small(256, 80), small(256, 80)), 1),
    "linear of three axes": (lambda x, w, b: F.linear(x, w, b).tanh(), (small(2, 24, 64), small(96, 64), small(96)), 1),
    "heads": (heads, (small(2, 24, 64), small(64, 64)), 2),
    "two results": (two_results, (small(48, 64), small(64, 80)), 1),
    "bmm": (lambda x, w: torch.bmm(x, w) * 0.5, (small(5, 32, 64), small(5, 64, 48)), 1),
    "bmm, turned": (lambda x, w: torch.bmm(x, w.mT), (small(5, 32, 64), small(5, 48, 64)), 1),
    "baddbmm": (lambda b, x, w: torch.baddbmm(b, x, w).relu(),
                (small(5, 1, 48), small(5, 32, 64), small(5, 64, 48)), 1),
    "matmul of four axes": (lambda x, w: torch.matmul(x, w) + x.sum(), (small(2, 3, 32, 16), small(2, 3, 16, 32)), 2),
    "several bands": (lambda x, w: torch.mm(x, w), (small(600, 32), small(32, 160)), 1),
    "casts": (converted, (randn(16, 64), randn(64, 48)), 1),
    "a prologue behind the end": (with_logarithm, (small(16, 50), small(50, 48).abs() + 0.1), 1),
    "convolution of points": (lambda x, w, b: F.conv2d(x, w, b).relu(),
                              (image(2, 24, 6, 6), small(40, 24, 1, 1), small(40)), 1),
    "convolution behind a gate": (pixels, (image(2, 32, 6, 6), small(16, 32, 1, 1), small(2, 32)), 2),
    "one row": (lambda x, w: torch.mm(x, w).relu(), (small(1, 64), small(64, 128)), 1),
    "one row, turned": (lambda x, w, b: F.linear(x, w, b).relu(), (small(1, 64), small(128, 64), small(128)), 1),
    "several of few rows": (of_few_rows, (small(5, 64), small(128, 64), small(128, 64), small(128, 64)), 1),
    "several of one row": (of_few_rows, (small(1, 64), small(128, 64), small(128, 64), small(128, 64)), 1),
    "one column": (lambda x, w: torch.mm(x, w) * 2, (small(48, 64), small(64, 1)), 1),
    "one step": (lambda x, w: torch.mm(x, w).cos(), (small(48, 1), small(1, 40)), 1),
    "one step, float32, batches": (lambda x, w, b: torch.baddbmm(b, x, w),
                                   (randn(2, 8, 1), randn(2, 1, 48), randn(2, 1, 48)), 1),
    "one row by matrices of two widths": (two_widths, (small(1, 64), small(128, 64), small(80, 64), small(80, 64)), 1),
    "small kernels": (small_kernels, (randn(300), small(4, 64), torch.arange(20), randn(5, 5)), 1),
    "small kernels that follow each other": (lambda x, y: (x * 2, (x * 2).flip(0).cos(), y.sin()),
                                             (randn(300), randn(40)), 2),
    "small kernels beside larger ones": (lambda x, y, z: (x * 2, y.cos(), z.exp()),
                                         (randn(300), randn(1000, 100), randn(7)), 2),
}


def launches(plan: Plan) -> list[LaunchStep]:
    return [step for step in plan.steps if isinstance(step, LaunchStep)]


def run(plan: Plan, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    with config.patch(triton_on_cpu=True):
        return list(PythonExecutable(plan)(*inputs))


def listed(value: Any) -> list[Tensor]:
    return list(value) if isinstance(value, tuple) else [value]


def compare(found: list[Tensor], fn: Callable[..., Any], inputs: tuple[Tensor, ...]) -> None:
    """No further from the exact result than eager is, but for what chance adds."""
    exact = listed(fn(*(one.double() for one in inputs)))
    for one, wanted, right in zip(found, listed(fn(*inputs)), exact, strict=True):
        assert one.dtype is wanted.dtype and one.shape == wanted.shape and one.stride() == wanted.stride()
        size = right.double().norm().item()
        errors = [(value.double() - right.double()).norm().item() / size for value in (one, wanted)]
        assert errors[0] <= 1.1 * errors[1] + 1e-6, errors


@pytest.mark.parametrize("name", CASES)
def test_like_eager(name: str) -> None:
    fn, inputs, count = CASES[name]
    plan = plan_graph(trace(fn, inputs), products="all")
    assert plan.notes is not None and not plan.notes.eager
    assert len(launches(plan)) == count
    compare(run(plan, inputs), fn, inputs)


@pytest.mark.parametrize("name", ["residual", "gated", "bmm", "odd sizes", "several bands", "split", "split, gated"])
def test_candidates(name: str) -> None:
    """Every set of launch parameters computes the same."""
    fn, inputs, _ = CASES[name]
    plan = plan_graph(trace(fn, inputs), tune=True, products="all")
    (step,) = launches(plan)
    place = plan.steps.index(step)
    assert step.candidates
    for kernel, grid in step.candidates:
        steps = list(plan.steps)
        steps[place] = dataclasses.replace(step, kernel=kernel, grid=grid)
        compare(run(dataclasses.replace(plan, steps=steps), inputs), fn, inputs)


@pytest.mark.parametrize("name", ["residual", "gated", "bmm, turned", "odd sizes", "casts", "float32", "one row",
                                  "split", "split, gated"])
def test_compiled(name: str) -> None:
    """For Hopper: tensor cores where there are enough rows for them, and little enough shared memory."""
    fn, inputs, _ = CASES[name]
    kernels = [step.kernel for step in launches(plan_graph(trace(fn, inputs), products="all"))]
    for binary in compile_kernels(kernels, Target("cuda", 90)):
        assert binary.code[:4] == b"\x7fELF" and binary.shared <= 227 << 10
        if name not in ("float32", "one row"):
            assert "wgmma" in binary.assembly or "mma.sync" in binary.assembly


def test_split_products_of_special_numbers() -> None:
    """Parts of infinities and NaN are as eager's products; numbers at both ends of the range keep their digits."""
    x, w = randn(64, 96), randn(96, 64)
    x[3, 5], w[7, 9], x[20, 1], x[30, 2], x[41, 4] = float("inf"), float("-inf"), float("nan"), 3.4e38, 1e-40
    w[4], w[5, 11], x[50], w[:, 50] = 1e30, 0.0, 2.0 ** 40, 1.0
    x[51, :2], w[:2, 51] = torch.tensor([float("inf"), -float("inf")]), 1.0
    x[52, 0], w[0, 52] = float("inf"), 1e-38
    plan = plan_graph(trace(mm, (x, w)), products="all")
    assert "three_parts" in launches(plan)[0].kernel.source
    (found,), expected = run(plan, (x, w)), x @ w
    assert torch.equal(found.isnan(), expected.isnan()) and torch.equal(found.isinf(), expected.isinf())
    finite = expected.isfinite()
    torch.testing.assert_close(found[finite], expected[finite], rtol=1e-5, atol=1e-4)
    assert torch.equal(found[expected.isinf()], expected[expected.isinf()])


def test_sums_that_another_kernel_rounds() -> None:
    """Windows of a product in float32: a kernel of their own reads the sums, and adds the bias."""
    def fn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.avg_pool1d(torch.addmm(b, x, w).unsqueeze(1), 8).squeeze(1).sigmoid()

    inputs = randn(64, 96), randn(96, 64), randn(64)
    plan = plan_graph(trace(fn, inputs), products="all")
    assert plan.notes is not None and not plan.notes.eager
    assert [kernel.style for kernel in plan.notes.kernels] == ["product", "map"]
    compare(run(plan, inputs), fn, inputs)


def test_split_where_it_pays() -> None:
    def styles(*shapes: tuple[int, ...]) -> list[str]:
        plan = plan_graph(trace(mm, tuple(torch.empty(shape) for shape in shapes)), products="some")
        assert plan.notes is not None
        return [kernel.style for kernel in plan.notes.kernels]

    assert styles((4096, 4096), (4096, 4096)) == ["product"]
    assert styles((1024, 8192), (8192, 8192)) == ["product"]
    assert styles((256, 8192), (8192, 256)) == []  # too few tiles
    assert styles((16, 4096), (4096, 4096)) == []
    assert styles((4096, 16), (16, 4096)) == []
    assert styles((4096, 4095), (4095, 4096)) == []  # rows begin anywhere
    assert styles((512, 4096), (4096, 1024)) == []
    assert styles((1024, 1024), (1024, 1024)) == ["product"]
    assert styles((1023, 8192), (8192, 8192)) == ["product"]


@pytest.mark.parametrize("products", [1, 2])
@pytest.mark.parametrize("sizes", [(1, 4096, 4096, 4096), (1, 8192, 5632, 2048), (1, 16, 4096, 4096),
                                   (1, 64, 2048, 5632), (1024, 64, 64, 64), (96, 512, 512, 64), (1, 100, 100, 100)])
def test_blocks_fit(sizes: tuple[int, int, int, int], products: int) -> None:
    """The tiles under way fit a multiprocessor's shared memory."""
    for blocks in blocks_of(Sizes(*sizes, BF16, False), products):
        assert (blocks.rows + blocks.columns) * blocks.inner * 2 * (blocks.stages - 1) <= 227 << 10
        assert blocks.columns // products >= 16 and blocks.rows >= 16


def mm(x: Tensor, w: Tensor) -> Tensor:
    return torch.mm(x, w)


def test_what_stays_with_the_library() -> None:
    """Products of no templates: integers, float64, short inner axes."""
    for inputs in ((torch.ones(32, 32, dtype=torch.int64),) * 2, (randn(32, 32, dtype=torch.float64),) * 2,
                   (small(32, 8), small(8, 32))):
        assert not launches(plan_graph(trace(mm, inputs), products="all"))


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_attention_is_one_call(dtype: torch.dtype) -> None:
    """It is no product for templates, though its formula has two."""
    graph = Graph()
    operands = [graph.add_input(spec_of(small(2, 3, 32, 16, dtype=dtype))) for _ in range(3)]
    graph.outputs = [Builder(graph).call("aten.scaled_dot_product_attention.default", *operands)]
    plan = plan_graph(graph, products="all")
    assert plan.notes is not None and len(plan.notes.eager) == 1 and not launches(plan)


def test_read_in_another_order() -> None:
    """Products that the template does not take are the library's, with a kernel behind."""
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return torch.mm(x, w).flip(0) + 1

    inputs = small(48, 64), small(64, 80)
    plan = plan_graph(trace(fn, inputs), products="all")
    compare(run(plan, inputs), fn, inputs)


@pytest.mark.parametrize("faster", ["template", "library"])
@pytest.mark.parametrize("name", ["residual", "gated", "linear of three axes", "convolution behind a gate", "casts",
                                  "two results", "one row, turned"])
def test_measured(name: str, faster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part of the graph that the kernel computes is measured both ways; the faster way is taken."""
    fn, inputs, count = CASES[name]
    parts = []

    def times(part: Graph, device: torch.device) -> tuple[float, float]:
        parts.append(part)
        given = [measured._made_up(node.tensor) for node in part.inputs]
        plans = [plan_graph(part, products=products, rewritten=True) for products in ("all", "none")]
        assert [bool(plan.notes and plan.notes.eager) for plan in plans] == [False, True]
        for one, other in zip(*(run(plan, tuple(given)) for plan in plans), strict=True):
            assert one.shape == other.shape and one.stride() == other.stride()
            torch.testing.assert_close(one.float(), other.float(), rtol=3e-2, atol=3e-1, equal_nan=True)
        return (1.0, 2.0) if faster == "template" else (2.0, 1.0)

    monkeypatch.setattr(measured, "_times", times)
    monkeypatch.setattr(measured, "_known", {})
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"none, {faster}")
    with config.patch(disk_cache=False):
        plan = plan_graph(trace(fn, inputs), products="measured")
    assert len(parts) == 1 and plan.notes is not None
    assert bool(plan.notes.eager) is (faster == "library")
    if faster == "template":
        assert len(launches(plan)) == count
    compare(run(plan, inputs), fn, inputs)


def kernels_of(fn: Callable[..., Any], *shapes: tuple[int, ...]) -> list[str]:
    """The styles of the kernels of a function of bfloat16 matrices, by what they cost on Hopper."""
    inputs = tuple(torch.empty(shape, dtype=BF16) for shape in shapes)
    plan = plan_graph(trace(fn, inputs), products="some")
    assert plan.notes is not None
    return [kernel.style for kernel in plan.notes.kernels]


def test_costs() -> None:
    """Small products, those of few rows, and what has much to fuse are templates; large ones are the library's."""
    assert kernels_of(mm, (16, 4096), (4096, 4096)) == []
    assert kernels_of(lambda x, w: torch.mm(x, w.t()), (16, 4096), (4096, 4096)) == ["product"]
    assert kernels_of(lambda x, w: torch.bmm(x, w), (256, 64, 64), (256, 64, 64)) == ["product"]
    assert kernels_of(gated, (64, 2048), (2048, 5632), (2048, 5632)) == ["product"]
    assert kernels_of(lambda x, w: torch.mm(x, w.t()), (1, 4096), (4096, 4096)) == ["rows"]
    assert kernels_of(mm, (1024, 1024), (1024, 1024)) == []
    assert kernels_of(mm, (1, 4096), (4096, 4096)) == []
    assert kernels_of(lambda x, w: torch.mm(x, w) * 2, (2048, 4096), (4096, 4096)) == ["map"]
    assert kernels_of(gated, (512, 2048), (2048, 5632), (2048, 5632)) == ["map"]


def test_what_a_norm_adds_is_the_norms() -> None:
    """A residual that the next kernel adds for nothing is no reason for a template."""
    def block(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
        return F.layer_norm(torch.mm(x, w) + r, (1024,))

    assert "product" not in kernels_of(block, (1024, 1024), (1024, 1024), (1024, 1024))
