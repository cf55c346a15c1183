"""Kernels that do the same to different tensors run as one, where none of them needs another's result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import jitpy
from jitpy.backends.cpp import plan_graph
from jitpy.ir.graph import Mutation
from jitpy.runtime.executable import make_executable
from jitpy.runtime.plan import AllocStep, CopyStep, KernelStep
from tests.graph_tools import trace

Tensor = torch.Tensor
SIZES = [(1,), (7,), (64, 3), (1000,), (5, 1, 9), (70000,)]


def check(program: Callable[..., tuple[Tensor, ...]], tensors: list[Tensor], kernels: int) -> None:
    """The plan has so many kernels, and gives what eager gives."""
    plan = plan_graph(trace(program, tensors))
    assert sum(isinstance(step, KernelStep) for step in plan.steps) == kernels
    run = make_executable(plan)
    for scale in (1, 2):
        moved = [t * scale for t in tensors]
        for found, expected in zip(run(*moved), program(*moved), strict=True):
            assert found.dtype is expected.dtype and found.shape == expected.shape
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("grain", [1, 32768])
def test_updates_of_many_tensors(threads: int, grain: int) -> None:
    def program(*tensors):
        half = len(tensors) // 2
        return tuple(p * 0.9 - g.sqrt() for p, g in zip(tensors[:half], tensors[half:], strict=True))

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with jitpy.config.patch(threads_grain=grain):
            check(program, [torch.rand(s) + 0.5 for s in (*SIZES, *SIZES)], 2)  # those of one element have no loop
    finally:
        torch.set_num_threads(before)


def test_what_differs_is_apart() -> None:
    """Other constants, other dtypes: kernels of their own. A transposed tensor is one run of memory as well."""

    def program(a, b, c, d, e, f, g, h):
        return a + 1, b + 1, c + 2, d + 1, e + 1, f.t() + 1, g.t() + 1, h + 1

    rand = torch.rand
    check(program, [rand(8), rand(9), rand(10), rand(8, dtype=torch.float64), rand(5, dtype=torch.float64),
                    rand(4, 6), rand(3, 6), rand(11).bfloat16()], 4)


def test_one_that_needs_the_other() -> None:
    def program(x, y, m):
        first = x * 3 + 1
        second = (first.reshape(1, -1) @ m).reshape(-1) * 3 + 1
        return first, second, y * 3 + 1

    check(program, [torch.rand(40), torch.rand(70), torch.rand(40, 50)], 2)


def test_updates_stay_out_of_reductions() -> None:
    """What is done to each of many small results is one kernel, whatever kernels made these."""

    def program(*tensors):
        sums = [t.sum(1) for t in tensors]
        return (*sums, *(s * 0.5 + s.abs().sqrt() for s in sums))

    check(program, [torch.rand(6 + k, 50) for k in range(5)], 6)


def test_scalars_of_each() -> None:
    """A tensor without axes is the same for every element of its own update only."""

    def program(*tensors):
        half = len(tensors) // 2
        return tuple(p * s + 1 for p, s in zip(tensors[:half], tensors[half:], strict=True))

    check(program, [*(torch.rand(9 + k) for k in range(5)), *(torch.rand(()) for _ in range(5))], 1)


def test_inputs_are_written_in_place() -> None:
    def program(*tensors):
        return tuple(t * 2 + 1 for t in tensors)

    tensors = [torch.rand(5 + k) for k in range(6)]
    graph = trace(program, tensors)
    graph.mutations = [Mutation(k, node) for k, node in enumerate(graph.outputs)]
    graph.outputs = []
    plan = plan_graph(graph)
    assert sum(isinstance(step, KernelStep) for step in plan.steps) == 1
    assert not any(isinstance(step, (AllocStep, CopyStep)) for step in plan.steps)
    expected = program(*tensors)
    make_executable(plan)(*tensors)
    for found, wanted in zip(tensors, expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_an_input_that_another_update_reads_is_not_written_early() -> None:
    """A chain of exchanges: each tensor becomes a function of its neighbour."""

    def program(*tensors):
        return tuple(t * 2 + 1 for t in (*tensors[1:], tensors[0]))

    tensors = [torch.rand(50) for _ in range(5)]
    graph = trace(program, tensors)
    graph.mutations = [Mutation(k, node) for k, node in enumerate(graph.outputs)]
    graph.outputs = []
    expected = program(*tensors)
    make_executable(plan_graph(graph))(*tensors)
    for found, wanted in zip(tensors, expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_sizes_that_change() -> None:
    @jitpy.jit(dynamic=True)
    def program(*tensors):
        return tuple(t * 3 - 1 for t in tensors)

    for extra in range(4):
        tensors = [torch.rand(20 + k + extra) for k in range(5)]
        for found, tensor in zip(program(*tensors), tensors, strict=True):
            torch.testing.assert_close(found, tensor * 3 - 1)
