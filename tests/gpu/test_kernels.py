"""Every kernel family on a GPU, against eager on the same inputs in double precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from jitpy.backends.triton import plan_graph
from jitpy.runtime.executable import make_executable
from tests.graph_tools import trace
from tests.triton.cases import CASES, Case
from tests.triton.test_interpreted import check

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_like_eager(case: Case) -> None:
    inputs = tuple(x.cuda() for x in case.make())
    plan = plan_graph(trace(case.fn, inputs))
    for _ in range(2):
        found = list(make_executable(plan)(*inputs))
        check(case, found, inputs)


@pytest.mark.parametrize(("fn", "shape"), [
    (lambda x: x + 1, (2**31 + 4096,)), (lambda x: x.amax(-1), (32769, 65536)),
    (lambda x: x.amax(0), (2**21 + 1, 1024)), (lambda x: (x + 0.0).std(0), (2**17 + 1, 16400)),
], ids=["pointwise", "rows", "columns", "columns in two passes"])
def test_more_elements_than_32_bits_count(fn: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...]) -> None:
    if torch.cuda.mem_get_info()[0] < 1 << 34:
        pytest.skip("needs 16 GB")
    x = torch.empty(shape, dtype=torch.int8, device="cuda").random_(-100, 100)
    (found,) = make_executable(plan_graph(trace(fn, (x,))))(x)
    torch.testing.assert_close(found, fn(x), rtol=1e-5, atol=0)
