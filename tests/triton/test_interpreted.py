"""Every kernel family in Triton's interpreter, against eager on the same inputs in double precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from jitpy import config
from jitpy.backends.triton import plan_graph
from jitpy.runtime.executable import PythonExecutable
from jitpy.runtime.plan import LaunchStep, Plan
from tests.graph_tools import trace
from tests.triton.cases import CASES, Case

pytest.importorskip("triton")
Tensor = torch.Tensor


def launches(plan: Plan) -> list[LaunchStep]:
    return [step for step in plan.steps if isinstance(step, LaunchStep)]


def results(value: Any) -> list[Tensor]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def in_double(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


def error(found: Tensor, exact: Tensor) -> float:
    """The largest difference, relative where the exact value is large. What is not finite must agree."""
    found, exact = found.double(), exact.to(found.dtype).double()
    same = (found == exact) | (found.isnan() & exact.isnan())
    difference = torch.where(same, 0.0, (found - exact).abs() / exact.abs().clamp_min(1.0))
    return float(difference.max()) if difference.numel() else 0.0


def check(case: Case, found: list[Tensor], inputs: tuple[Tensor, ...]) -> None:
    """No further from the exact result than a little more than eager is."""
    eager = results(case.fn(*inputs))
    exact = results(case.fn(*map(in_double, inputs)))
    assert len(found) == len(eager)
    for number, (one, wanted, reference) in enumerate(zip(found, eager, exact, strict=True)):
        assert one.dtype is wanted.dtype and one.shape == wanted.shape and one.stride() == wanted.stride(), number
        if case.exact or not one.is_floating_point():
            torch.testing.assert_close(one, wanted, rtol=0, atol=0, equal_nan=True)
            continue
        unit = torch.finfo(one.dtype).eps
        allowed = 2 * error(wanted, reference) + case.units * unit
        assert error(one, reference) <= allowed, f"result {number}: {error(one, reference)} > {allowed}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_like_eager(case: Case) -> None:
    inputs = case.make()
    plan = plan_graph(trace(case.fn, inputs))
    assert plan.notes is not None and (case.calls or not plan.notes.eager), plan.notes.eager
    assert len(launches(plan)) <= case.launches
    with config.patch(triton_on_cpu=True):
        found = list(PythonExecutable(plan)(*inputs))
    check(case, found, inputs)


def test_text_is_the_same_each_time() -> None:
    for case in CASES[:8]:
        inputs = case.make()
        texts = {tuple(s.kernel.source for s in launches(plan_graph(trace(case.fn, inputs)))) for _ in range(2)}
        assert len(texts) == 1


def test_equal_kernels_are_one() -> None:
    def layers(x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.mm(torch.softmax(x, -1), x)
        return x

    first, *others = launches(plan_graph(trace(layers, [torch.randn(16, 16)])))
    assert len(others) == 2 and len({step.kernel for step in others}) == 1
    assert first.kernel != others[0].kernel  # it reads what nothing in the graph makes


def test_what_decompositions_make_is_where_the_graph_is() -> None:
    """A graph for another device than the default one: nothing of it is left to eager."""
    logits = torch.empty(64, 501, dtype=torch.bfloat16, device="meta")
    target = torch.empty(64, dtype=torch.int64, device="meta")
    for reduction in ("none", "mean", "sum"):
        graph = trace(lambda x, t, how=reduction: F.cross_entropy(x, t, reduction=how), [logits, target])
        assert not plan_graph(graph).notes.eager


def test_index_out_of_range_stops_the_kernel() -> None:
    plan = plan_graph(trace(lambda x, i: x[i] + 1, [torch.randn(5), torch.tensor([1, 2])]))
    with config.patch(triton_on_cpu=True), pytest.raises(Exception, match="index out of range"):
        PythonExecutable(plan)(torch.randn(5), torch.tensor([1, 7]))


def test_index_out_of_range_of_what_is_the_same_everywhere_stops_the_kernel() -> None:
    inputs = [torch.randn(5), torch.tensor([1, 2])]
    plan = plan_graph(trace(lambda x, i: x.sum().expand(4)[i] + torch.ones(4)[i], inputs))
    with config.patch(triton_on_cpu=True):
        PythonExecutable(plan)(*inputs)
        with pytest.raises(Exception, match="index out of range"):
            PythonExecutable(plan)(torch.randn(5), torch.tensor([1, 7]))


def test_sums_that_must_repeat_are_not_added_atomically() -> None:
    inputs = [torch.randn(5, 30), torch.randint(0, 9, (5,))]

    def gradient(g: Tensor, i: Tensor) -> Tensor:
        return torch.ops.aten.embedding_dense_backward(g, i, 9, -1, False)

    assert not plan_graph(trace(gradient, inputs)).notes.eager
    torch.use_deterministic_algorithms(True)
    try:
        assert plan_graph(trace(gradient, inputs)).notes.eager
    finally:
        torch.use_deterministic_algorithms(False)
