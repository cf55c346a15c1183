"""Backward passes behind one that freed what was kept: through nodes of eager's that keep nothing they run again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy

Function = Callable[[torch.Tensor, torch.Tensor], Any]

FUNCTIONS: dict[str, Function] = {
    "sum": lambda x, y: (x + y).sum(),
    "views_and_cumsum": lambda x, y: (x + y).mT.flatten().cumsum(0),
    "mean_keeps_nothing": lambda x, y: torch.cat([x + y, x - 3]).mean(0) - y,
    "numbers_of_a_product_are_kept": lambda x, y: torch.cat([x + y, x * 3]).sum(0) - y,
    "product": lambda x, y: (x + y) * y,
    "padded": lambda x, y: torch.nn.functional.pad(x[:1] - y.expand(2, 3)[1:], (1, 2)),
    "one_result_of_two": lambda x, y: (x.unbind(0)[1] + y, x.sum() * y),
    "the_other_result": lambda x, y: (x.sum() * y, x.unbind(0)[1] + y)[::-1],
    "result_that_keeps": lambda x, y: (x.sum() * y, x.unbind(0)[1] + y),
}


def observed(fn: Function, create_graph: bool) -> Any:
    x, y = torch.arange(6.0).reshape(2, 3).requires_grad_(), torch.ones(3, requires_grad=True)
    scale = torch.tensor(2.0, requires_grad=True)
    made = fn(x, y)
    results = made if isinstance(made, tuple) else (made,)
    sum(result.sum() for result in results).backward()
    try:
        given = torch.ones_like(results[0]) * (scale if create_graph else 2)
        grads = torch.autograd.grad(results[0], (x, y), given, create_graph=create_graph)
        if create_graph:
            sum((grad * grad).sum() for grad in grads).backward()
    except RuntimeError as error:
        return str(error)
    return [(grad.detach(), grad.requires_grad) for grad in grads], scale.grad, x.grad, y.grad


@pytest.mark.parametrize("create_graph", [True, False])
@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_pass(name: str, backend: str, create_graph: bool) -> None:
    wanted = observed(FUNCTIONS[name], create_graph)
    jitted = jitpy.jit(FUNCTIONS[name], backend=backend)
    for _ in range(2):
        found = observed(jitted, create_graph)
        if isinstance(wanted, str):
            assert found == wanted
        else:
            torch.testing.assert_close(found, wanted)
