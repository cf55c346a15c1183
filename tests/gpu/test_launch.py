"""Plans with hand-written kernels, launched by native code."""

from __future__ import annotations

import dataclasses
import threading

import pytest
import torch

from jitpy.backends.triton import plan_graph
from jitpy.runtime.executable import PythonExecutable, make_executable
from jitpy.runtime.plan import AllocStep, LaunchStep, Plan, SlotRef
from tests.graph_tools import trace
from tests.runtime.gpu import kernels


def sine(x: torch.Tensor) -> torch.Tensor:
    return (x + 1).sin() * 2


@pytest.mark.parametrize("elements", [1, 16, 127, 128, 100_003])
def test_a_kernel(cuda: torch.device, elements: int) -> None:
    run = make_executable(kernels.sine_plan(cuda, elements))
    assert not isinstance(run, PythonExecutable)
    for _ in range(3):
        x = torch.randn(elements, device=cuda)
        torch.testing.assert_close(run(x)[0], sine(x))


def test_the_python_executable_does_the_same(cuda: torch.device) -> None:
    x = torch.randn(1000, device=cuda)
    run = PythonExecutable(kernels.sine_plan(cuda, 1000))
    torch.testing.assert_close(run(x)[0], sine(x))


def test_sizes_scratch_and_numbers(cuda: torch.device) -> None:
    run = make_executable(kernels.axpb_plan(cuda))
    for n in (0, 1, 63, 64, 20_000):
        x = torch.randn(n, device=cuda)
        for scale in (3, -1, 0):
            torch.testing.assert_close(run(x, scale)[0], x * scale + 0.5)
    with pytest.raises(OverflowError, match="too large for its index type"):
        run(torch.randn(4, device=cuda), 1 << 40)


def test_inputs_that_are_not_aligned_take_the_general_kernel(cuda: torch.device) -> None:
    run = make_executable(kernels.sine_plan(cuda, 1000))
    base = torch.randn(1010, device=cuda)
    for offset in range(6):
        x = base[offset:offset + 1000]
        torch.testing.assert_close(run(x)[0], sine(x))


def test_much_shared_memory(cuda: torch.device) -> None:
    """A row of 16384 floats through shared memory takes 64 KiB, which a kernel has to ask for."""
    source = kernels.HEADER + '''@triton.jit
def transpose(x, y, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    tile = tl.load(x + index[:, None] * BLOCK + index[None, :])
    tl.store(y + index[:, None] * BLOCK + index[None, :], tl.trans(tile))
'''
    kernel = kernels.GpuKernel(source, "transpose", (("x", "*fp32"), ("y", "*fp32"), ("BLOCK", "constexpr")),
                               (("BLOCK", 128),), frozenset({"x", "y"}))
    steps = [AllocStep(1, (128, 128), (128, 1), torch.float32, cuda),
             LaunchStep(kernel, (1,), (SlotRef(0), SlotRef(1)), "transpose")]
    run = make_executable(Plan(1, 2, (1,), steps, device=cuda))
    x = torch.randn(128, 128, device=cuda)
    assert torch.equal(run(x)[0], x.T)


@pytest.mark.parametrize("captured", [False, True])
def test_launches_that_begin_early_wait_for_what_they_read(cuda: torch.device, captured: bool) -> None:
    """Sums in two launches, behind one that writes what they read and in front of one that writes over it."""
    def sums(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(0), x.sum(), x[:64].sum(1)

    x = torch.zeros(8192, 2048, device=cuda)
    run = make_executable(plan_graph(trace(sums, (x,))))
    results: list[tuple[torch.Tensor, ...]] = []

    def calls() -> None:
        for number in range(20):  # whole numbers: sums are exact
            x.fill_(number % 7)
            results.append(run(x))

    calls()
    if captured:
        graph = torch.cuda.CUDAGraph()
        results.clear()
        with torch.cuda.graph(graph):
            calls()
        for _ in range(5):
            graph.replay()
    for number, found in enumerate(results):
        for got, size in zip(found, (8192, 8192 * 2048, 2048), strict=True):
            assert torch.equal(got, torch.full_like(got, number % 7 * size)), number


def test_written_inputs_change_version(cuda: torch.device) -> None:
    x = torch.randn(500, device=cuda)
    expected, version = x + 1, x._version
    make_executable(kernels.increment_plan(cuda, 500))(x)
    assert torch.equal(x, expected) and x._version == version + 1


def test_the_current_stream_is_used(cuda: torch.device) -> None:
    run = make_executable(kernels.sine_plan(cuda, 1 << 20))
    side = torch.cuda.Stream()
    x = torch.zeros(1 << 20, device=cuda)
    run(x)
    torch.cuda.synchronize()
    for _ in range(5):
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)  # what comes later on this stream must wait for it
            x.fill_(1.0)
            y = run(x)[0]
        assert not side.query()  # nothing waited
        side.synchronize()
        torch.testing.assert_close(y, sine(torch.ones_like(x)))
        x.zero_()
        torch.cuda.synchronize()


def test_threads(cuda: torch.device) -> None:
    """Threads that never used CUDA before have no context of their own at first."""
    run = make_executable(kernels.sine_plan(cuda, 4096))
    x = torch.randn(4096, device=cuda)
    torch.cuda.synchronize()
    wrong: list[str] = []

    def work() -> None:
        try:
            for _ in range(200):
                if not torch.allclose(run(x)[0], sine(x)):
                    wrong.append("differs")
        except Exception as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_fresh_thread_launches_first(cuda: torch.device) -> None:
    run = make_executable(kernels.sine_plan(cuda, 64))
    x, found = torch.randn(64, device=cuda), []
    torch.cuda.synchronize()
    thread = threading.Thread(target=lambda: found.append(run(x)[0]))
    thread.start()
    thread.join()
    torch.testing.assert_close(found[0], sine(x))


def test_capture_into_a_graph_of_the_user(cuda: torch.device) -> None:
    run = make_executable(kernels.axpb_plan(cuda))
    x = torch.randn(5000, device=cuda)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # also the first launch
        y = run(x, 3)[0]
    for _ in range(3):
        x.normal_()
        graph.replay()
        torch.testing.assert_close(y, x * 3 + 0.5)


def test_tensors_on_another_device(cuda: torch.device) -> None:
    run = make_executable(kernels.sine_plan(cuda, 16))
    with pytest.raises(RuntimeError, match="slot 0 is on cpu"):
        run(torch.randn(16))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_second_device() -> None:
    other = torch.device("cuda", 1)
    run = make_executable(kernels.axpb_plan(other))
    for _ in range(3):
        x = torch.randn(5000, device=other)
        torch.testing.assert_close(run(x, 2)[0], x * 2 + 0.5)
    assert torch.cuda.current_device() == 0


def test_out_of_memory(cuda: torch.device) -> None:
    huge = 1 << 38  # a terabyte of floats
    steps = [AllocStep(1, (huge,), (1,), torch.float32, cuda),
             LaunchStep(kernels.SINE, (1,), (SlotRef(0), SlotRef(1), 16), "sine")]
    run = make_executable(Plan(1, 2, (1,), steps, device=cuda))
    x = torch.randn(16, device=cuda)
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        with pytest.raises(torch.cuda.OutOfMemoryError):
            run(x)
    assert torch.cuda.memory_allocated() == before
    torch.testing.assert_close(make_executable(kernels.sine_plan(cuda))(x)[0], sine(x))


def test_kernels_of_other_shapes(cuda: torch.device) -> None:
    rows, columns = 1000, 3001
    steps = [AllocStep(1, (rows,), (1,), torch.bfloat16, cuda),
             LaunchStep(kernels.ROW_SUM, (rows,), (SlotRef(0), SlotRef(1), columns), "row_sum")]
    run = make_executable(Plan(1, 2, (1,), steps, device=cuda))
    x = torch.randn(rows, columns, device=cuda, dtype=torch.bfloat16)
    reference = x.double().sum(1)
    assert (run(x)[0].double() - reference).abs().max() <= 2 * (x.sum(1).double() - reference).abs().max() + 1e-3
    assert dataclasses.is_dataclass(run.plan)
