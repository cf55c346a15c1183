"""Sizes that a program learns while it runs: BindStep in both executables, and plans with such sizes end to end."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitpy
from jitpy.backends import registry
from jitpy.runtime.executable import make_executable
from jitpy.runtime.plan import (
    AllocStep,
    BindStep,
    BoundSymbol,
    CallStep,
    FreeStep,
    Plan,
    SizeCheckFailed,
    SizeRef,
    SlotRef,
    SymbolBinding,
)

aten = torch.ops.aten
CPU = torch.device("cpu")


def selecting_plan() -> Plan:
    """x -> zeros(number of non-zero elements * x.size(0)), that number; at most 3 of them."""
    bind = BindStep((BoundSymbol(1, SymbolBinding(1, 0), 0, 100),), (1, 2), 0, lambda s: [s[0] * s[1], s[1] <= 3],
                    ((2, "u0 <= 3 does not hold"),))
    return Plan(1, 4, (2, 3), [
        CallStep(aten.nonzero.default, (SlotRef(0),), {}, (1,)),
        bind,
        CallStep(aten.zeros.default, ((SizeRef(1), SizeRef(0)),), {}, (2,)),
        AllocStep(3, (SizeRef(1),), (1,), torch.float32, CPU),
        FreeStep((1,)),
    ], symbols=(SymbolBinding(0, 0),), n_sizes=3, size_function_py=lambda s: [s[0]], size_entries=(0,), n_symbols=2)


def test_sizes_are_known_after_the_step_that_tells_them(make: Any) -> None:
    run = make(selecting_plan())
    for x in (torch.tensor([1.0, 0.0, 2.0]), torch.zeros(4), torch.ones(1)):
        zeros, fresh = run(x)
        expected = len(x) * len(x.nonzero())
        assert zeros.shape == (expected, len(x)) and fresh.shape == (expected,)


def test_a_failed_check_raises(make: Any) -> None:
    run = make(selecting_plan())
    with pytest.raises(SizeCheckFailed, match="u0 <= 3"):
        run(torch.ones(5))
    with pytest.raises(SizeCheckFailed, match="out of range"):
        run(torch.ones(101))
    assert run(torch.zeros(5))[0].shape == (0, 5), "the program is as good as before"


@pytest.mark.parametrize("value, fits", [(0, True), (7, True), (8, False), (-1, False), (1 << 70, False)])
def test_numbers_as_sizes(make: Any, value: int, fits: bool) -> None:
    plan = Plan(1, 3, (2,), [
        CallStep(int, (SlotRef(0),), {}, (1,)),
        BindStep((BoundSymbol(0, SymbolBinding(1), 0, 7),), (0,), 0, lambda s: [s[0] + 1]),
        CallStep(aten.zeros.default, ((SizeRef(0),),), {}, (2,)),
    ], n_sizes=1, size_entries=(), n_symbols=1)
    run = make(plan)
    if fits:
        assert run(value)[0].shape == (value + 1,)
    else:
        with pytest.raises(SizeCheckFailed):
            run(value)


def test_text_of_a_program() -> None:
    text = make_executable(selecting_plan()).steps_text()
    assert "s1 = %1.size(0); n1, n2 = sizes(); check n2: u0 <= 3 does not hold" in text


def test_python_size_functions_run_natively() -> None:
    plan = Plan(1, 2, (1,), [CallStep(aten.zeros.default, ((SizeRef(0),),), {}, (1,))],
                symbols=(SymbolBinding(0, 0),), n_sizes=1, size_function_py=lambda s: [s[0] * 2], size_entries=(0,))
    run = make_executable(plan)
    assert run(torch.ones(3))[0].shape == (6,)


# -- end to end


def select(x: torch.Tensor, n: torch.Tensor) -> Any:
    rows = x[x[:, 0] > 0]
    return (rows * 2 + 1).relu() + rows.sum(), torch.zeros(n.item(), 2).exp() - 1, torch.arange(n.item()) * 3


@pytest.mark.parametrize("backend", ["codegen", "eager"])
def test_kernels_run_after_their_sizes(backend: str) -> None:
    fn = jitpy.jit(select, backend=backend, fullgraph=True)
    for rows, n in ((5, 3), (1, 0), (4, 1), (2, 9)):
        x = torch.randn(rows, 3)
        for found, wanted in zip(fn(x, torch.tensor(n)), select(x, torch.tensor(n)), strict=True):
            torch.testing.assert_close(found, wanted)
            assert found.stride() == wanted.stride()
    report = jitpy.explain(select)(torch.randn(5, 3), torch.tensor(3))
    assert not report.break_reasons


def test_selections_become_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = []

    def keep(graph: Any, options: Any) -> Any:
        from jitpy.backends.cpp.backend import plan_graph

        plans.append(plan_graph(graph))
        return make_executable(plans[-1])

    monkeypatch.setitem(registry._registered, "keep_data_sizes", keep)
    x = torch.randn(6, 3)
    for found, wanted in zip(jitpy.jit(select, backend="keep_data_sizes")(x, torch.tensor(4)),
                             select(x, torch.tensor(4)), strict=True):
        torch.testing.assert_close(found, wanted)
    (plan,) = plans
    steps = [type(step).__name__ for step in plan.steps]
    assert steps.count("BindStep") == 2, "one mask, and one number that is read twice"
    assert steps.count("KernelStep") >= 3


def test_a_failed_check_runs_the_program_plainly() -> None:
    calls = []

    def fn(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        calls.append(n.item())
        return torch.rand(3) + x[: n.item()].sum() + torch.arange(n.item()).view(-1, 2).sum()

    jitted = jitpy.jit(fn)
    x = torch.randn(8)
    for n in (4, 2, 6):
        torch.manual_seed(n)
        wanted = fn(x, torch.tensor(n))
        torch.manual_seed(n)
        torch.testing.assert_close(jitted(x, torch.tensor(n)), wanted)
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="shape '\\[-1, 2\\]' is invalid for input of size 3"):
        jitted(x, torch.tensor(3))
    torch.set_rng_state(state)
    assert calls == [4, 4, 2, 2, 6, 6, 3]


def test_backends_of_fx_graphs_leave_such_graphs_to_eager_kernels() -> None:
    def unused(module: Any, example: Any) -> Any:
        raise AssertionError("not for graphs whose sizes depend on data")

    x = torch.tensor([1.0, -1.0, 2.0])
    found = jitpy.jit(lambda x: x[x > 0] + 1, backend=unused)(x)
    torch.testing.assert_close(found, torch.tensor([2.0, 3.0]))
