"""Long rows held by clusters of programs, in Triton's interpreter and as machine code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from jitpy import config
from jitpy.backends.triton import plan_graph, target, tiles
from jitpy.runtime.executable import PythonExecutable
from jitpy.runtime.gpu.compile import KernelCompileError, Target, compile_kernels
from jitpy.runtime.gpu.kernel import GpuKernel
from jitpy.runtime.plan import LaunchStep, Plan
from tests.graph_tools import trace
from tests.triton.cases import BF16, Case, randn
from tests.triton.test_interpreted import check

pytest.importorskip("triton")
Tensor = torch.Tensor


def scaled_rows(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A result with an element a row may take the memory of an operand that has one, too."""
    scale = y.cumsum(0)
    scaled = x * scale[:, None]
    return torch.softmax(scaled, -1), scale * scaled.amax(-1)


#: What clusters do, with the programs of one.
CLUSTERED = [
    (Case("group_norm", lambda x, w, b: F.silu(F.group_norm(x, 2, w, b)),
          lambda: (randn(2, 8, 128, 128, dtype=BF16), randn(8, dtype=BF16), randn(8, dtype=BF16))), 4),
    (Case("softmax_of_two", lambda x, y: torch.softmax(x + y, -1) * y,
          lambda: (randn(3, 40960, dtype=torch.float16), randn(3, 40960, dtype=torch.float16))), 8),
    (Case("layer_norm", lambda x: torch.native_layer_norm(x + 3, (65536,), None, None, 1e-5),
          lambda: (randn(5, 65536),)), 8),
    (Case("first_of_the_largest", lambda x: x.round() - x.round().argmax(-1, keepdim=True),
          lambda: (randn(3, 32768),), exact=True), 4),
    (Case("over_its_operand", lambda x: torch.softmax(x.cumsum(-1) / 99, -1), lambda: (randn(2, 32768),),
          units=200), 4),
    (Case("over_an_operand_of_rows", scaled_rows, lambda: (randn(5, 32768), randn(5)), units=50), 4),
    (Case("longest_rows", lambda x: torch.softmax(x, -1), lambda: (randn(3, 131072),)), 8),
    (Case("longest_rows_of_16_bits", lambda x: torch.native_layer_norm(x, (262144,), None, None, 1e-5),
          lambda: (randn(2, 262144, dtype=BF16),)), 8),
    (Case("one_row", lambda x: x / x.std(), lambda: (randn(32768),), units=50), 4),
]
IDS = [case.name for case, _ in CLUSTERED]


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are as good as many, and half as long ones as the longest."""
    monkeypatch.setattr(tiles, "CLUSTERED_ROW", 1 << 16)
    monkeypatch.setattr(target, "LIMITS", dataclasses.replace(target.LIMITS, few_rows=1))


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are for a GPU that has them."""
    monkeypatch.setattr(target, "has_clusters", lambda device: True)


def sizes(plan: Plan) -> list[int]:
    """The clusters of a plan's launches."""
    return [step.kernel.cluster for step in plan.steps if isinstance(step, LaunchStep)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("case", "cluster"), CLUSTERED, ids=IDS)
def test_like_eager(clusters: None, case: Case, cluster: int) -> None:
    inputs = case.make()
    plan = plan_graph(trace(case.fn, inputs))
    assert max(sizes(plan)) == cluster
    with config.patch(triton_on_cpu=True):
        for _ in range(2):
            check(case, list(PythonExecutable(plan)(*inputs)), inputs)


def test_rows_that_do_not_come_out_even_and_gpus_without_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    def planned(*shape: int) -> list[int]:
        return sizes(plan_graph(trace(lambda x: torch.softmax(x, -1), [torch.empty(shape, device="meta")])))

    assert planned(8, 65536) == [1]
    monkeypatch.setattr(target, "has_clusters", lambda device: True)
    assert [planned(8, n) for n in (65536, 65540, 1 << 18, 1 << 19, 8192)] == [[8], [1], [8], [1], [1]]


def test_long_rows_with_much_to_compute() -> None:
    """Parts that fill half a multiprocessor are for light kernels: while one computes, nothing is read."""
    def planned(fn: Callable[..., Tensor], *inputs: Tensor) -> list[int]:
        return sizes(plan_graph(trace(fn, inputs)))

    x = torch.empty(8, 1 << 18, device="meta")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "has_clusters", lambda device: True)
        assert planned(lambda x: torch.softmax(x, -1), x) == [8]
        assert planned(lambda x, y: torch.softmax(x * y, -1), x[:, ::2].contiguous(), x[:, ::2].contiguous()) == [1]
        assert planned(lambda x: F.silu(F.layer_norm(x, (1 << 18,))).exp(), x) == [1]


def largest(fn: Callable[..., Tensor], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> GpuKernel:
    """The kernel of a function with the largest clusters."""
    plan = plan_graph(trace(fn, [torch.empty(shape, device="meta", dtype=dtype) for shape in shapes]))
    return max((step.kernel for step in plan.steps if isinstance(step, LaunchStep)), key=lambda kernel: kernel.cluster)


def test_later_rows_are_asked_for(clusters: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request a program and operand, where rows lie together; none behind the last row, and none where the GPU
    takes no such."""
    monkeypatch.setattr(tiles, "CLUSTERED_ROW", 3 << 16)
    kernel = largest(lambda x: torch.softmax(x, -1), (512, 65536))
    ahead = tiles.FETCHED_AHEAD // (4 * 65536)
    assert f"if x + {ahead} < 512:" in kernel.source
    assert f"fetch(in0 + ((x + {ahead}) * 65536 + r_first), 32768)" in kernel.source
    (binary,) = compile_kernels([kernel], Target("cuda", 90))
    assert binary.assembly.count("cp.async.bulk.prefetch.L2.global") == 1
    one = largest(lambda x: torch.softmax(x, -1), (512, 28672))
    assert one.cluster == 1 and "    fetch(in0" in one.source
    for gpu in (Target("cuda", 80), Target("hip", "gfx942", 64)):
        (binary,) = compile_kernels([one], gpu)
        assert "prefetch" not in binary.assembly
    apart = largest(lambda x: torch.softmax(x.transpose(0, 1), -1), (64, 8, 65536))
    assert apart.cluster == 8 and "    fetch(in0" not in apart.source


def test_clusters_where_there_is_much_to_compute(clusters: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows of 128 KB; others are read twice, from the cache."""
    monkeypatch.setattr(tiles, "CLUSTERED_ROW", 3 << 16)
    shapes = ((32, 512, 64, 64), (512,), (512,))
    found = [largest(lambda x, w, b, act=act: act(F.group_norm(x, 32, w, b)), *shapes, dtype=BF16).cluster
             for act in (F.silu, F.gelu, F.relu)]
    assert found == [4, 4, 1]


def test_machine_code(clusters: None) -> None:
    """Each element is read once, 16 bytes at a time."""
    (case, _), *_ = CLUSTERED
    plan = plan_graph(trace(case.fn, case.make()))
    kernels = [step.kernel for step in plan.steps if isinstance(step, LaunchStep)]
    (binary,) = compile_kernels(kernels, Target("cuda", 90))
    assert binary.cluster == 4 and binary.assembly.count("barrier.cluster.wait") == 1
    assert binary.assembly.count("ld.global.v4.b32") + binary.assembly.count("ld.global.v2.b64") == 8
    with pytest.raises(KernelCompileError, match="needs clusters"):
        compile_kernels(kernels, Target("cuda", 80))


def gated(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.silu(F.linear(x, w)) * F.linear(x, v) + 1


def converted(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, w.to(BF16)) * scale


def bytes_of(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


#: Products with few rows, by programs that share the inner axis: the programs of one cluster.
PRODUCTS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], int]] = {
    "linear": (lambda x, w: F.linear(x, w), (randn(16, 8192, dtype=BF16), randn(40, 8192, dtype=BF16)), 2),
    "gated": (gated, (randn(5, 8192, dtype=BF16), *(randn(48, 8192, dtype=BF16) for _ in range(2))), 1),
    "many rows": (lambda x, w: x @ w, (randn(48, 8192, dtype=BF16), randn(8192, 64, dtype=BF16)), 2),
    "converted": (converted, (randn(16, 8192, dtype=BF16), bytes_of(64, 8192), randn(64, dtype=BF16)), 2),
    "short": (lambda x, w: F.linear(x, w), (randn(16, 4096, dtype=BF16), randn(40, 4096, dtype=BF16)), 1),
    "uneven": (lambda x, w: F.linear(x, w), (randn(16, 8200, dtype=BF16), randn(40, 8200, dtype=BF16)), 1),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_whose_inner_axis_is_shared(clusters: None, name: str) -> None:
    fn, inputs, cluster = PRODUCTS[name]
    plan = plan_graph(trace(fn, inputs), products="all")
    assert sizes(plan) == [cluster]
    with config.patch(triton_on_cpu=True):
        (found,) = PythonExecutable(plan)(*inputs)
    expected = fn(*inputs)
    error = (found.double() - expected.double()).norm() / expected.double().norm()
    assert error < 6e-3 and found.dtype is expected.dtype
    kernels = [step.kernel for step in plan.steps if isinstance(step, LaunchStep)]
    (binary,) = compile_kernels(kernels, Target("cuda", 90))
    assert ("barrier.cluster" in binary.assembly) == (cluster > 1)
