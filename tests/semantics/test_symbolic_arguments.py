"""Ints and floats that change from call to call, given to operations that are made for one of their values: an axis, a
kind of norm, half of a size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitpy
from jitpy.ir import SizeEnv
from jitpy.ir.algebra import sympy

X = torch.arange(24.0).reshape(4, 6).sin()
CALLS: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (lambda x, d: x.max(d), (0, 1, -1, 0)),
    (lambda x, d: x.sum(d, True), (0, 1, -1, 0)),
    (lambda x, d: torch.var(x, dim=(d,), correction=d), (0, 1, 0)),
    (lambda x, d: x.sum().max(d), (0, -1, 0)),
    (lambda x, p: x.norm(p), (2, 3, 1, 4)),
    (lambda x, p: x.norm(p), (2.0, 3.0, 1.0, 0.5)),
    (lambda x, p: torch.dist(x, 2 * x, p), (2, 3, 1)),
    (lambda x, p: torch.renorm(x, p, 0, 1.0), (2, 3, 1)),
    (lambda x, n: F.glu(x[:, :n]), (2, 4, 6)),
    (lambda x, a: F.celu(x, a), (0.5, 2.0, 1.5)),
    (lambda x, k: x.roll(k, 0), (1, 2, 3)),
    (lambda x, k: x.quantile(k), (0.2, 0.5, 1.0)),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("number", range(len(CALLS)))
def test_like_eager(number: int, dynamic: bool | None) -> None:
    fn, values = CALLS[number]
    jitted = jitpy.jit(fn, dynamic=dynamic)
    for value in values:
        found = []
        for one in (fn, jitted):
            x = X.clone().requires_grad_()
            result = one(x, value)
            first = result if isinstance(result, torch.Tensor) else result[0]
            first.sum().backward()
            found.append((first.detach(), x.grad))
        torch.testing.assert_close(found[1], found[0])


def test_questions_about_quotients_have_exact_answers() -> None:
    env = SizeEnv()
    size = env.new_symbol(3, None)
    assert not env.decide(sympy.Eq(1.0 / size, 1.0))
    assert not env.decide(sympy.Eq(1.0 / size, 0.0))
    assert env.decide(sympy.Eq(6 / size, 2))
