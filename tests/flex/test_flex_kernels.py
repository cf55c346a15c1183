"""Attention with computed scores by generated Triton kernels: in Triton's interpreter, and compiled for a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from jitpy import config
from jitpy.backends.triton import flex_blocks, plan_graph
from jitpy.ir.graph import Graph
from jitpy.ir.spec import contiguous_spec
from jitpy.runtime.executable import PythonExecutable
from jitpy.runtime.gpu.compile import Target, compile_kernels
from jitpy.runtime.plan import LaunchStep
from tests.flex.cases import (
    BF16,
    HALF,
    MODS,
    Case,
    Mod,
    Tensor,
    alibi,
    alibi_pull,
    at,
    bias_of_keys,
    case,
    causal,
    compare,
    compare_passes,
    per_key,
    relative,
    window,
    with_wrong_blocks,
)

pytest.importorskip("triton")

SMALL = (2, 4, 2, 90, 100, 16)


def run(graph: Graph, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    plan = plan_graph(graph)
    assert plan.notes is not None and not plan.notes.eager
    with config.patch(triton_on_cpu=True):
        return tuple(PythonExecutable(plan)(*inputs))


def check(given: Case, with_lse: bool = True) -> None:
    """Both passes against the dense reference."""
    compare_passes(given, run, with_lse)


@pytest.mark.parametrize("name", MODS)
def test_mods(name: str) -> None:
    """Sizes that no block divides, heads that share keys."""
    check(case(MODS[name](), SMALL))


def test_an_infinite_score() -> None:
    """Alone, and where programs share the keys."""
    def mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return torch.where((q == 0) & (k == 2), float("inf"), score)

    for shape in (SMALL, (2, 4, 2, 1, 500, 24)):
        given = case(Mod(mod), shape, shared=True)
        out, lse, top = run(given.graph(), given.inputs)
        expected = given.forward(given.query, given.key, given.value, given.blocks, ())
        for one, right in zip((out, lse, top), expected, strict=True):
            torch.testing.assert_close(one, right, equal_nan=True, atol=1e-4, rtol=1e-4)
        assert lse.isinf().sum() == 8


@pytest.mark.parametrize("shape", [SMALL, (2, 4, 2, 1, 500, 24)])
def test_the_least_scores(shape: tuple[int, int, int, int, int, int]) -> None:
    """A row that has nothing else is the mean of all values: alone, and where programs share the keys."""
    def mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return torch.where((b == 1) & (q == 0) | (k % 3 == 1), torch.finfo(torch.float32).min, score)

    given = case(Mod(mod), shape, shared=True)
    out, lse, top = run(given.graph(), given.inputs)
    expected = given.forward(given.query, given.key, given.value, given.blocks, ())
    torch.testing.assert_close(expected[0][1, :, 0], given.value[1].mean(1).repeat_interleave(2, 0))
    for one, right in zip((out, lse, top), expected, strict=True):
        torch.testing.assert_close(one, right, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", [SMALL, (2, 4, 2, 1, 500, 24)])
def test_rows_without_keys_may_be_nan(shape: tuple[int, int, int, int, int, int]) -> None:
    """As by softmax, for attention written out with a mask: alone, and where programs share the keys."""
    def mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return torch.where((b == 1) & (q == 0) | (k % 3 == 1), float("-inf"), score)

    given = case(Mod(mod), shape, (1 << 30, 1 << 30))
    given.blocks, given.forward.empty = [None] * 8, float("nan")
    found = run(given.graph(), given.inputs)[0]
    expected = given.forward(given.query, given.key, given.value, given.blocks, ())[0]
    assert expected[1, :, 0].isnan().all() and not expected[0].isnan().any()
    torch.testing.assert_close(found, expected, equal_nan=True, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [BF16, HALF])
@pytest.mark.parametrize("name", ["causal", "soft cap", "relative bias"])
def test_short_floats(name: str, dtype: torch.dtype) -> None:
    check(case(MODS[name](), SMALL, dtype=dtype), with_lse=False)


@pytest.mark.parametrize("shape", [(1, 2, 2, 64, 128, 64), (1, 1, 1, 1, 70, 16), (1, 2, 1, 70, 1, 24),
                                   (1, 6, 2, 33, 65, 40)])
def test_shapes(shape: tuple[int, int, int, int, int, int]) -> None:
    """Whole blocks, one query, one key, sizes of heads that are no powers of two."""
    mod = Mod(alibi, (torch.rand(shape[1]),), window, pull=alibi_pull, reads=((0, 1),))
    check(case(mod, shape, value_size=48))


def test_blocks_that_do_not_exist() -> None:
    check(with_wrong_blocks())


def test_one_mask_for_all() -> None:
    check(case(MODS["causal"](), SMALL, shared=True))


def test_lists_without_full_blocks() -> None:
    check(case(MODS["causal"](), SMALL, separate=False))


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_one_block_for_all(dynamic: bool, listed: bool) -> None:
    """As torch has it where there is no mask, and without lists."""
    given = case(MODS["soft cap"](), SMALL, (1 << 30, 1 << 30), separate=False, shared=True, dynamic=dynamic)
    given.blocks = given.blocks if listed else [None] * 8
    check(given)


def test_blocks_in_any_order() -> None:
    """The last block, which ends early, comes first."""
    given = case(Mod(), (1, 1, 1, 40, 130, 16), separate=False)
    order = torch.tensor([2, 0, 1], dtype=torch.int32)
    given.blocks = [given.blocks[0], order.view(1, 1, 1, 3), *given.blocks[2:]]
    check(given)


@pytest.mark.parametrize("name", ["document", "relative bias"])
def test_sizes_that_change(name: str) -> None:
    """One text for all sizes."""
    given = case(MODS[name](), SMALL, dynamic=True)
    check(given)
    plan = plan_graph(given.graph())
    (step,) = (step for step in plan.steps if isinstance(step, LaunchStep))
    assert "90" not in step.kernel.source and "100" not in step.kernel.source


def test_operands_that_lie_otherwise() -> None:
    """Heads inside rows, and a slice."""
    given = case(MODS["causal"](), SMALL)
    given.query = torch.randn(2, 90, 4, 16).transpose(1, 2)
    given.key, given.value = torch.randn(2, 100, 2, 48)[..., :32].transpose(1, 2).split(16, -1)
    check(given)


def test_an_index_out_of_range_is_an_error() -> None:
    """Only where no one knows that it is in range is it looked at."""
    mods = [Mod(relative, (torch.randn(4, size),), causal) for size in (289, 290)] + [
        Mod(per_key, (torch.randn(2, size), torch.tensor(0.5))) for size in (99, 100)]
    kernels = [step.kernel for mod in mods for step in plan_graph(case(mod, SMALL).graph()).steps
               if isinstance(step, LaunchStep)]
    assert [kernel.checks for kernel in kernels] == [True, False, True, False]


def test_differences_of_places_are_floats_at_once() -> None:
    """Numbers become floats as vectors, not as tiles."""
    for size, is_vector in ((100, True), (9_000_000, False)):
        given = case(Mod(alibi, (torch.rand(4),)), SMALL, shared=True)
        graph = given.graph()
        key, value = graph.inputs[1:3]
        for node in (key, value):
            node.spec = contiguous_spec(node.tensor.dtype, (2, 2, size, 16))
        (step,) = (step for step in plan_graph(graph).steps if isinstance(step, LaunchStep))
        assert ("k.to(tl.float32) - " in step.kernel.source) == is_vector
        assert ("(k - q)" in step.kernel.source) == (not is_vector)


def test_launch_parameters_of_the_program() -> None:
    given = case(MODS["causal"](), SMALL, options={"BLOCK_M": 32, "BLOCK_N": 16, "num_warps": 2, "num_stages": 1})
    check(given)
    (step,) = (step for step in plan_graph(given.graph()).steps if isinstance(step, LaunchStep))
    assert (step.kernel.num_warps, step.kernel.num_stages) == (2, 1)
    assert "tl.arange(0, 32)[:, None]" in step.kernel.source


@pytest.mark.parametrize("shape", [(2, 4, 2, 1, 500, 24), (1, 4, 4, 3, 300, 32), (1, 8, 2, 5, 600, 16)])
@pytest.mark.parametrize(("name", "is_listed"), [("relative bias", True), ("document", True), ("document", False)])
def test_few_queries(name: str, shape: tuple[int, int, int, int, int, int], is_listed: bool) -> None:
    """Programs share the keys, and have all heads that share them."""
    mod = Mod(bias_of_keys, (torch.randn(8, 600),), window) if name == "relative bias" else Mod(
        mask=lambda b, h, q, k, ids: at(ids, [k % 200]) != q, mask_captures=(torch.arange(200) // 60,))
    given = case(mod, shape, (64, 64) if is_listed else (1 << 30, 1 << 30), shared=True)
    given.blocks = given.blocks if is_listed else [None] * 8
    plan = plan_graph(given.graph())
    assert len([step for step in plan.steps if isinstance(step, LaunchStep)]) == 2
    found = run(given.graph(), given.inputs)
    tensors = (given.query, given.key, given.value)
    eager, exact = (given.forward(*(one.to(dtype) for one in tensors), given.blocks, mod.captures)
                    for dtype in (torch.float32, torch.float64))
    compare(found, eager, exact)


@pytest.mark.parametrize("room", [227, 163, 99])
def test_launches_fit_their_memory(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU that has less, blocks are smaller, or fewer of them are under way."""
    monkeypatch.setattr(flex_blocks, "shared_memory", lambda: room << 10)
    given = case(MODS["causal"](), (1, 4, 2, 256, 256, 128), (128, 128), BF16, shared=True)
    out, lse = torch.empty_like(given.query), torch.empty(given.query.shape[:3])
    kernels = [step.kernel for graph in (given.graph(), given.gradients(out, None, out, lse))
               for step in plan_graph(graph).steps if isinstance(step, LaunchStep)]
    assert max(binary.shared for binary in compile_kernels(kernels, Target("cuda", 90))) <= room << 10


@pytest.mark.parametrize("size", [64, 128])
def test_compiles_for_hopper(size: int) -> None:
    """On the tensor cores' own instructions, without checks of what is known."""
    shape = (1, 4, 2, 256, 256, size)
    given = case(MODS["soft cap"](), shape, (128, 128), BF16, shared=True)
    out, lse = torch.empty_like(given.query), torch.empty(given.query.shape[:3])
    kernels = [step.kernel for graph in (given.graph(), given.gradients(out, None, out, lse))
               for step in plan_graph(graph).steps if isinstance(step, LaunchStep)]
    binaries = compile_kernels(kernels, Target("cuda", 90))
    assert sum("wgmma.mma_async" in binary.assembly for binary in binaries) == 3
    assert max(binary.shared for binary in binaries) <= 227 * 1024
