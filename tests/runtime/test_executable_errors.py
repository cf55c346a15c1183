"""Executables: errors, lifetime, threads and reports, natively and in Python."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from jitpy import config
from jitpy.runtime.executable import PythonExecutable, check_plan, make_executable, pool_stats
from jitpy.runtime.plan import (
    CopyStep,
    FreeStep,
    KernelStep,
    Plan,
    SizeRef,
    SlotRef,
    SymbolBinding,
    ViewStep,
    Workspace,
)

from .plans import address, alloc, call, calls, sine_plan, symbolic_plan

aten = torch.ops.aten


# ---------------------------------------------------------------------------------------------- errors


class Failure(Exception):
    pass


def failing_plan(kernel, function: Callable[..., Any], *args: Any) -> Plan:
    return Plan(1, 3, (2,), [alloc(1, 16), kernel("sine16", 0, 1), call(function, *args, to=2)], workspace=1 << 16)


@pytest.mark.parametrize("error", [Failure("x"), KeyboardInterrupt(), KeyError("k"), StopIteration()])
def test_python_exception(make, kernel, error):
    fail = True

    def function(t: torch.Tensor) -> torch.Tensor:
        if fail:
            raise error
        return t

    run = make(failing_plan(kernel, function, SlotRef(1)))
    used = pool_stats()["used_blocks"]
    with pytest.raises(type(error)) as caught:
        run(torch.zeros(16))
    assert caught.value is error
    assert pool_stats()["used_blocks"] == used
    fail = False
    assert run(torch.zeros(16))[0].shape == (16,)


@pytest.mark.parametrize("function, args, kind", [
    (aten.mm.default, (torch.zeros(2, 3), SlotRef(0)), RuntimeError),
    (aten.index_select.default, (SlotRef(0), 0, torch.tensor([99])), (IndexError, RuntimeError)),
    (aten.select.int, (SlotRef(0), 5, 0), IndexError),
    (aten.linalg_cholesky.default, (torch.zeros(2, 2),), torch.linalg.LinAlgError),
    (aten.view.default, (SlotRef(0), [5]), RuntimeError),
])
def test_operator_exception_is_eagers(make, kernel, function, args, kind):
    run = make(failing_plan(kernel, function, *args))
    x = torch.zeros(16)
    with pytest.raises(kind) as caught:
        run(x)
    with pytest.raises(kind) as eager:
        function(*(x if isinstance(arg, SlotRef) else arg for arg in args))
    assert type(caught.value) is type(eager.value) and str(caught.value) == str(eager.value)


def test_bad_operator_arguments_fail_as_in_eager(make):
    for step in (call(aten.relu.default), call(aten.relu.default, "text"), call(aten.relu.default, SlotRef(0), 2),
                 call(aten.relu.default, SlotRef(0), unknown=3)):
        run = make(Plan(1, 2, (1,), [step]))
        with pytest.raises((RuntimeError, TypeError)) as caught:
            run(torch.zeros(1))
        with pytest.raises((RuntimeError, TypeError)) as eager:
            args = tuple(torch.zeros(1) if isinstance(arg, SlotRef) else arg for arg in step.args)
            step.function(*args, **step.kwargs)
        assert type(caught.value) is type(eager.value)


def test_exception_in_a_python_operator(make):
    """A kernel of a user's operator written in Python raises through the dispatcher."""
    with torch.library._scoped_library("jitpy_test_executable", "DEF") as library:
        library.define("fails(Tensor x) -> Tensor")

        def fails(x: torch.Tensor) -> torch.Tensor:
            raise Failure("from the operator")

        library.impl("fails", fails, "CPU")
        run = make(calls(torch.ops.jitpy_test_executable.fails.default, SlotRef(0)))
        with pytest.raises(Failure, match="from the operator"):
            run(torch.zeros(1))


def test_wrong_inputs(make, kernel, library):
    run = make(sine_plan(kernel))
    x = torch.zeros(16)
    for inputs in ((), (x, x)):
        with pytest.raises(TypeError, match="takes 1 positional arguments, got"):
            run(*inputs)
    for bad in ("text", None, [x]):
        with pytest.raises(TypeError, match="input 0 must be a tensor or a number"):
            run(bad)
    with pytest.raises(TypeError):
        run(x=x)
    sized = make(symbolic_plan(kernel, library))
    for bad in (3, torch.zeros(3)):
        with pytest.raises(TypeError, match="input 0 must be a tensor with more than"):
            sized(bad)
    with pytest.raises(TypeError, match="input 0 must be an int"):
        make(Plan(1, 1, (), [], symbols=(SymbolBinding(0),), n_sizes=4, size_function=address(library, "center_sizes"),
                  size_function_py=lambda s: [0] * 4))(x)


@pytest.mark.parametrize("plan", [
    Plan(1, 2, (1,), []),
    Plan(1, 1, (0,), [alloc(1, 4)]),
    Plan(1, 2, (1,), [CopyStep(0, 1)]),
    Plan(1, 2, (1,), [call(aten.relu.default, [SlotRef(1)])]),
    Plan(1, 2, (1,), [alloc(1, 4), FreeStep((1,))]),
    Plan(1, 2, (1,), [ViewStep(1, 1, (), (), 0)]),
    Plan(0, 1, (0,), [alloc(0, 4), KernelStep(1, (SlotRef(0),), "k", writes=(0,))]),
    Plan(1, 1, (), [], n_sizes=2),
    Plan(1, 1, (), [], symbols=(SymbolBinding(3, 0),)),
])
def test_malformed_plans(make, plan):
    with pytest.raises(ValueError, match="plan: "):
        make(plan)


def test_malformed_steps(make):
    with pytest.raises(TypeError, match="not a step"):
        make(Plan(1, 1, (), ["step"]))
    with pytest.raises(TypeError):
        check_plan(Plan(1, 1, (), [None]))


# ---------------------------------------------------------------------------------------------- lifetime and threads


def test_nothing_leaks(make, kernel, library, one_thread):
    def boom(t: torch.Tensor) -> None:
        raise Failure

    big = Plan(2, 8, (3, 5, 7), [
        alloc(2, 130, 130), kernel("twice", 0, 2), ViewStep(3, 2, (130,), (1,), 5),
        call(lambda t, n: n + 1, SlotRef(0), SlotRef(1), to=4), call(aten.max.dim, SlotRef(2), 1, to=(5, 6)),
        call(lambda t: t + 1, SlotRef(0), to=7), FreeStep((2, 6)),
    ], workspace=1 << 17)
    big.symbols, big.n_sizes = (SymbolBinding(0, 0), SymbolBinding(0, 0)), 4
    big.size_function = address(library, "center_sizes")
    big.size_function_py = lambda s: [s[0], s[1], s[0] * s[1], s[1] * 4]
    runs = [make(big), make(Plan(2, 3, (), [alloc(2, 90000), call(boom, SlotRef(2), to=2)]))]
    x, number = torch.randn(130, 130), 12345678

    def all_of_them() -> None:
        runs[0](x, number)
        with pytest.raises(Failure):
            runs[1](x, number)

    for _ in range(20):
        all_of_them()
    gc.collect()
    before = (sys.getrefcount(x), sys.getrefcount(number), storage_uses(x), tensor_count())
    used, blocks = pool_stats()["used_blocks"], sys.getallocatedblocks()
    for _ in range(1000):
        runs[0](x, number)
    for _ in range(20):
        all_of_them()
    gc.collect()
    after = (sys.getrefcount(x), sys.getrefcount(number), storage_uses(x), tensor_count())
    assert after == before and pool_stats()["used_blocks"] == used
    assert sys.getallocatedblocks() - blocks < 500


def storage_uses(x: torch.Tensor) -> int:
    return torch._C._storage_Use_Count(x.untyped_storage()._cdata)


def tensor_count() -> int:
    return sum(1 for item in gc.get_objects() if issubclass(type(item), torch.Tensor))


def test_outputs_outlive_the_executable(make, kernel):
    run = make(sine_plan(kernel))
    outputs = [run(torch.zeros(16))[0] for _ in range(3)]
    del run
    gc.collect()
    for y in outputs:
        torch.testing.assert_close(y, torch.full((16,), 1.0).sin() * 2)


def test_executable_is_collected(make):
    """Also where a step's function refers to it."""

    class Marker:
        pass

    def build() -> weakref.ref[Marker]:
        box: list[Any] = []
        marker = Marker()

        def function(t: torch.Tensor) -> Any:
            return box, marker

        box.append(make(calls(function, SlotRef(0))))
        assert box[0](torch.zeros(1))[0][0] is box
        assert weakref.ref(box[0])() is box[0]
        return weakref.ref(marker)

    gone = build()
    gc.collect()
    assert gone() is None


def test_constants_are_kept(make):
    def build() -> Any:
        constant = torch.arange(4.0)
        return make(calls(aten.add.Tensor, SlotRef(0), constant)), make(calls(lambda *a: a, [constant, SlotRef(0)]))

    native, python = build()
    gc.collect()
    torch.empty(4).fill_(9)
    assert native(torch.ones(4))[0].tolist() == [1, 2, 3, 4]
    assert python(torch.ones(4))[0][0][0].tolist() == [0, 1, 2, 3]


def test_reentry(make):
    depth = 0

    def function(t: torch.Tensor) -> torch.Tensor:
        nonlocal depth
        depth += 1
        return run(t)[0] if depth < 5 else t

    run = make(Plan(1, 3, (2,), [call(function, SlotRef(0)), call(aten.add.Tensor, SlotRef(1), 1, to=2)], workspace=64))
    assert run(torch.zeros(1))[0] == 5


def test_threads(make, kernel, library):
    run = make(symbolic_plan(kernel, library))
    errors: list[str] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for i in range(100):
            x = torch.randn(3 + seed, 50 + 500 * (i % 2), generator=generator)
            if not torch.allclose(run(x)[0], x - x.mean(1, keepdim=True), atol=1e-5):
                errors.append(f"thread {seed}, round {i}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_large_kernels_let_other_threads_run(make, kernel):
    run = make(Plan(1, 1, (), [kernel("doze", 0)]))
    x = torch.zeros(1 << 16)
    ticks = 0
    done = threading.Event()

    def work() -> None:
        for _ in range(5):
            run(x)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.wait(0.001):
        ticks += 1
    thread.join()
    assert ticks > 20  # 100 ms of kernels, of which the main thread had most


# ---------------------------------------------------------------------------------------------- reports


def test_steps_text(make, kernel, library):
    plan = Plan(
        2, 6, (3, 5),
        [
            alloc(2, SizeRef(0), 4, stride=(4, 1)),
            kernel("twice", 0, Workspace(SizeRef(1)), 2, writes=(0,)),
            ViewStep(3, 2, (SizeRef(2),), (1,), 8),
            call(aten.max.dim, SlotRef(2), 1, keepdim=True, to=(None, 5), grad=False),
            CopyStep(0, 2),
            FreeStep((2,)),
        ],
        symbols=(SymbolBinding(0, 1), SymbolBinding(1)), n_sizes=4,
        size_function=address(library, "center_sizes"), size_function_py=lambda s: [1] * 4, workspace=256,
    )
    assert make(plan).steps_text() == """\
program(%0, %1):
    s0 = %0.size(1)
    s1 = %1
    n0..n3 = sizes(s0, s1)
    workspace 256 bytes
    %2 = alloc float32[n0, 4] stride [4, 1] cpu
    kernel twice(%0, workspace+n1, %2) writes %0
    %3 = view %2 [n2] stride [1] at +8
    _, %5 = call aten.max.dim(%2, 1, keepdim=True) grad=False
    copy %2 into %0
    free %2
    return %3, %5"""
    assert make(plan).plan is plan


def test_python_where_native_is_off(kernel):
    with config.patch(native=False):
        run = make_executable(sine_plan(kernel))
    assert isinstance(run, PythonExecutable)
    assert run(torch.zeros(16))[0].shape == (16,)


def test_kernels_appear_in_the_profiler(kernel):
    run = make_executable(sine_plan(kernel))
    if isinstance(run, PythonExecutable):
        pytest.skip("native only")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run(torch.zeros(16))
    assert "sine16" in [event.key for event in profile.key_averages()]
