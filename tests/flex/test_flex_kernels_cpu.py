"""Attention with computed scores by generated C++ kernels."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.attention.flex_attention as flex_module
from torch.nn.attention.flex_attention import flex_attention

import jitpy
from jitpy import config
from jitpy.backends.cpp.target import CppTarget
from jitpy.backends.stages import Stages
from jitpy.engine import all_engines
from jitpy.ir.graph import Graph
from jitpy.runtime.executable import make_executable
from tests.flex.cases import (
    BF16,
    HALF,
    MODS,
    Mod,
    Tensor,
    alibi,
    case,
    compare_passes,
    per_key,
    window,
    with_wrong_blocks,
)

SMALL = (2, 4, 2, 150, 170, 32)


def run(graph: Graph, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    plan = Stages(graph, CppTarget()).plan
    assert plan.notes is not None and not plan.notes.eager
    return tuple(make_executable(plan)(*inputs))


@pytest.mark.parametrize("dtype", [torch.float32, BF16, HALF])
@pytest.mark.parametrize("name", MODS)
def test_mods(name: str, dtype: torch.dtype) -> None:
    """Sizes that no block divides, heads that share keys, rows that see nothing."""
    compare_passes(case(MODS[name](), SMALL, dtype=dtype), run)


@pytest.mark.parametrize("shape", [(1, 2, 2, 64, 128, 64), (1, 1, 1, 1, 70, 16), (1, 2, 1, 70, 1, 24),
                                   (1, 6, 2, 33, 65, 40)])
def test_shapes(shape: tuple[int, int, int, int, int, int]) -> None:
    compare_passes(case(Mod(mask=window), shape, value_size=44), run)


@pytest.mark.parametrize("block", [(16, 48), (128, 64)])
def test_blocks(block: tuple[int, int]) -> None:
    compare_passes(case(MODS["soft cap"](), SMALL, block, shared=True, separate=block[0] == 16), run)


def test_blocks_that_do_not_exist() -> None:
    compare_passes(with_wrong_blocks(), run)


def test_one_block_for_all() -> None:
    compare_passes(case(MODS["causal"](), SMALL, (1 << 30, 1 << 30), separate=False, shared=True, dynamic=True), run)


@pytest.mark.parametrize("simd", ["auto", "avx2", "scalar"])
def test_sizes_that_change(simd: str) -> None:
    with config.patch(simd=simd):
        compare_passes(case(MODS["document"](), SMALL, dynamic=True), run)


def test_operands_that_lie_otherwise() -> None:
    given = case(MODS["causal"](), SMALL)
    given.query = torch.randn(2, 150, 4, 32).transpose(1, 2)
    given.key, given.value = torch.randn(2, 170, 2, 96)[..., :64].transpose(1, 2).split(32, -1)
    compare_passes(given, run)


def test_an_index_out_of_range_is_an_error() -> None:
    for size in (169, 170):
        given = case(Mod(per_key, (torch.randn(2, 170), torch.tensor(0.5))), SMALL)
        given.mod = Mod(per_key, (torch.randn(2, size), torch.tensor(0.5)))
        given.forward = given.mod.forward(0.2, (64, 64))
        if size == 170:
            run(given.graph(), given.inputs)
            continue
        with pytest.raises(IndexError):
            graph = given.graph()
            run(graph, given.inputs)


def test_captures_that_need_no_gradient() -> None:
    given = case(Mod(alibi, (torch.rand(4),), window, pull=lambda score, b, h, q, k, grad, slopes: grad), SMALL)
    compare_passes(given, run)


def test_the_backward_pass_reads_what_the_program_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is copied for it, and a change in between is an error, as in eager."""
    monkeypatch.setattr(flex_module, "_validate_device", lambda *args: None)  # eager has no gradients on the CPU
    q, k, v = (torch.randn(1, 2, 64, 16, requires_grad=True) for _ in range(3))
    jitpy.reset()
    call = jitpy.jit(lambda q, k, v: flex_attention(q, k, v))
    out = call(q, k, v)
    (variant,) = (variant for engine in all_engines() for variant in engine.variants)
    names = [name for part in variant.graph.lowered if part.notes for kernel in part.notes.kernels
             for name in kernel.nodes]
    assert "flex_attention" in names and not any("clone" in name for name in names)
    with torch.no_grad():
        k.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
