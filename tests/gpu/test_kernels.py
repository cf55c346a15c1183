"""Every kernel family on a GPU, against eager on the same inputs in double precision."""

from __future__ import annotations

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
