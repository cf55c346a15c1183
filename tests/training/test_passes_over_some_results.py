"""Passes that come from some of the results only, or go to some of the inputs, where sizes are symbolic: whatever tells
a size, the gradient or the kept tensor, may be missing then."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import jitpy

Results = tuple[torch.Tensor, ...]
FUNCTIONS: list[Callable[..., Results]] = [
    lambda x, w: (x.amax(), x.sort()[0]),
    lambda x, w: (x.sum(), x * 2),
    lambda x, w: (x.sum(), x.exp()),
    lambda x, w: (x.prod(), x.exp(), x @ w),
    lambda x, w: (F.cross_entropy(x @ w, torch.arange(len(x)) % 3), x @ w),
    lambda x, w: ((x @ w).relu().sum(), (x.sin() @ w).mean(0), x[1:].cumsum(0)),
]


@pytest.mark.parametrize("backend", ["codegen", "eager"])
@pytest.mark.parametrize("number", range(len(FUNCTIONS)))
def test_gradients(number: int, backend: str) -> None:
    fn = FUNCTIONS[number]
    jitted = jitpy.jit(fn, backend=backend)
    for rows in (4, 7, 9):
        values = torch.randn(rows, 5), torch.randn(5, 3)
        for result in range(len(fn(*values))):
            for wanted in ((0, 1), (0,), (1,)):
                found = []
                for one in (fn, jitted):
                    leaves = [v.clone().requires_grad_() for v in values]
                    out = one(*leaves)[result]
                    found.append(torch.autograd.grad(out.sum(), [leaves[k] for k in wanted], allow_unused=True))
                torch.testing.assert_close(found[1], found[0])


def test_what_no_pass_reads_may_change() -> None:
    """A tensor that tells a size, and nothing else, is not looked at: the program may write to it."""
    def fn(x: torch.Tensor, w: torch.Tensor) -> Results:
        return (x * w).sum(), x.exp()

    jitted = jitpy.jit(fn)
    for rows in (4, 7, 9):
        found = []
        for one in (fn, jitted):
            x, w = torch.ones(rows, requires_grad=True), torch.full((rows,), 2.0)
            total, grown = one(x, w)
            with torch.no_grad():
                grown.zero_()
            total.backward()
            found.append(x.grad)
        assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("backend", ["codegen", "eager"])
def test_a_write_to_the_bits_keeps_the_history(backend: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y.view(torch.int32).add_(1)
        return y * 2

    found = []
    for one in (fn, jitpy.jit(fn, backend=backend)):
        x = torch.ones(3, requires_grad=True)
        result = one(x)
        result.sum().backward()
        found.append((result.detach(), x.grad))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
