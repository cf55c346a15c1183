"""Long rows held by clusters of programs, on a GPU that has them."""

from __future__ import annotations

import pytest
import torch

import jitpy
from jitpy.backends.triton import plan_graph
from jitpy.runtime.executable import make_executable
from jitpy.runtime.gpu.load import has_clusters
from tests.graph_tools import trace
from tests.triton.cases import Case
from tests.triton.test_clusters import CLUSTERED, IDS, few_rows, sizes
from tests.triton.test_interpreted import check

__all__ = ["few_rows"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("case", "cluster"), CLUSTERED, ids=IDS)
def test_like_eager(cuda: torch.device, case: Case, cluster: int) -> None:
    inputs = tuple(x.cuda() for x in case.make())
    plan = plan_graph(trace(case.fn, inputs))
    assert max(sizes(plan)) == (cluster if has_clusters(cuda) else 1)
    run = make_executable(plan)
    for _ in range(3):
        check(case, list(run(*inputs)), inputs)
        inputs = tuple(x * 0.75 for x in inputs)


@pytest.mark.parametrize("captured", [False, True])
def test_programs_read_what_the_others_wrote_in_this_call(cuda: torch.device, captured: bool) -> None:
    """Each row of each call has sums of its own; many rows are under way at a time."""
    rows, length = 2000, 65536
    run = make_executable(plan_graph(trace(lambda x: x - x.mean(-1, keepdim=True).round(),
                                           (torch.zeros(rows, length, device=cuda, dtype=torch.bfloat16),))))
    numbers = torch.arange(rows, device=cuda).bfloat16()[:, None] % 100
    results: list[torch.Tensor] = []

    def calls() -> None:
        for number in range(6):
            (found,) = run((numbers + 3 * number).expand(rows, length).contiguous())
            results.append(found.abs().amax())

    calls()
    if captured:
        results.clear()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            calls()
        for _ in range(3):
            graph.replay()
    assert max(map(float, results)) == 0


def test_gradients_of_a_norm(cuda: torch.device) -> None:
    """Through jit, forward and backward, in a large size."""
    norm = torch.nn.GroupNorm(4, 16, device=cuda)
    x = torch.randn(6, 16, 128, 128, device=cuda, requires_grad=True)
    wanted = torch.autograd.grad(torch.nn.functional.silu(norm(x)).square().sum(), [x, *norm.parameters()])
    fn = jitpy.jit(lambda x: torch.nn.functional.silu(norm(x)).square().sum())
    for _ in range(3):
        found = torch.autograd.grad(fn(x), [x, *norm.parameters()])
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-3)
