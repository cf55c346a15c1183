"""Products whose number of rows changes: few rows are a template's, many the library's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import jitpy
from jitpy import config
from jitpy.backends.triton import backend, target
from jitpy.runtime.gpu.compile import Target, compile_kernels
from jitpy.schedule.products import Choice
from tests.triton.cases import BF16, Tensor

pytest.importorskip("triton")


def converted(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return F.silu(F.linear(x, weight.to(BF16)) * scale) + 1


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[target.TritonTarget]:
    """The targets of the plans that were made. Products are chosen as on Hopper."""
    found: list[target.TritonTarget] = []

    def choice(self: target.TritonTarget, graph: object) -> Choice:
        found.append(self)
        return Choice(graph)  # type: ignore[arg-type]

    monkeypatch.setattr(target.TritonTarget, "product_choice", choice)
    return found


def test_a_plan_for_few_rows_and_one_for_many(planned: list[target.TritonTarget]) -> None:
    weight = torch.randint(-128, 128, (64, 256), dtype=torch.int8)
    scale = torch.rand(64).to(BF16)
    with config.patch(triton_on_cpu=True), torch.no_grad():
        run = jitpy.jit(converted, fullgraph=True, dynamic=None)
        for rows, plans in ((5, 1), (16, 1), (2, 1), (40, 2), (100, 3), (64, 3), (7, 3), (3000, 3)):
            x = torch.randn(rows, 256).to(BF16)
            if rows == 5:
                jitpy.mark_dynamic(x, 0)
            torch.testing.assert_close(run(x, weight, scale), converted(x, weight, scale), rtol=2e-2, atol=1.0)
            assert len(planned) == plans
    few, some, many = (list(one.kernels) for one in planned)
    assert "dot" in few[0].source and "dot" in some[0].source and few[0] != some[0]
    assert not any("dot" in kernel.source for kernel in many)
    assert "int64" not in few[0].source
    assert compile_kernels([*few, *some], Target("cuda", 90))


def test_several_numbers_of_rows(planned: list[target.TritonTarget]) -> None:
    """Those of both products of a call decide."""
    def fn(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return F.linear(x, w.to(BF16)).relu(), F.linear(y.view(-1, 128), w.to(BF16)).relu()

    weight = torch.randint(-128, 128, (32, 128), dtype=torch.int8)
    with config.patch(triton_on_cpu=True), torch.no_grad():
        run = jitpy.jit(fn, fullgraph=True)
        for (one, two), plans in (((3, 4), 1), ((5, 6), 1), ((5, 50), 2), ((90, 3), 3), ((4, 7), 3)):
            given = torch.randn(one, 128).to(BF16), torch.randn(two, 2, 128).to(BF16), weight
            for tensor in given[:2] if (one, two) == (3, 4) else ():
                jitpy.mark_dynamic(tensor, 0)
            for found, wanted in zip(run(*given), fn(*given), strict=True):
                torch.testing.assert_close(found, wanted, rtol=2e-2, atol=1.0)
            assert len(planned) == plans


def test_other_graphs_do_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise AssertionError("no product's rows change")

    monkeypatch.setattr(backend, "ByRows", refuse)
    with config.patch(triton_on_cpu=True), torch.no_grad():
        x = torch.randn(5, 8)
        jitpy.mark_dynamic(x, 0)
        run = jitpy.jit(lambda x: x.relu() + 1, fullgraph=True)
        for rows in (5, 70):
            given = x if rows == 5 else torch.randn(rows, 8)
            assert torch.equal(run(given), given.relu() + 1)


def test_halves_of_a_training_step(planned: list[target.TritonTarget]) -> None:
    """Gradients of products are products of few rows, too."""
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return F.linear(x, w).float().tanh().sum()

    w = (torch.randn(32, 64) / 8).to(BF16)
    with config.patch(triton_on_cpu=True):
        run = jitpy.jit(fn, fullgraph=True)
        for rows in (5, 40, 90, 6):
            x = torch.randn(rows, 64).to(BF16)
            if rows == 5:
                jitpy.mark_dynamic(x, 0)
            one, other = (w.clone().requires_grad_() for _ in range(2))
            torch.testing.assert_close(run(x, one), fn(x, other), rtol=2e-2, atol=0.5)
            pairs = (run, one), (fn, other)
            found, wanted = (torch.autograd.grad(call(x, weight), weight)[0] for call, weight in pairs)
            torch.testing.assert_close(found, wanted, rtol=2e-2, atol=5e-2)
