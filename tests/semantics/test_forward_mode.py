"""Forward-mode gradients around jitted functions: what was compiled for plain tensors would drop tangents.
PYTEST_DONT_REWRITE: cases run as they are written."""

from __future__ import annotations

import pytest
import torch
import torch.autograd.forward_ad as forward_ad

import jitpy
from tests.semantics.harness import case, make_test


def _with_tangent(fn, *tensors):
    with forward_ad.dual_level():
        primal, tangent = forward_ad.unpack_dual(fn(*[forward_ad.make_dual(t, torch.ones_like(t)) for t in tensors]))
        return primal.clone(), None if tangent is None else tangent.clone()


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_tangents_behind_a_plain_call(backend: str, requires_grad: bool) -> None:
    def fn(t):
        return t.exp() * t

    jitted = jitpy.jit(fn, backend=backend)
    x = torch.randn(3, requires_grad=requires_grad)
    for _ in range(2):
        torch.testing.assert_close(jitted(x), fn(x))
        for _ in range(2):
            assert _with_tangent(jitted, x)[1] is not None
            torch.testing.assert_close(_with_tangent(jitted, x), _with_tangent(fn, x))
        with forward_ad.dual_level():
            assert forward_ad.unpack_dual(jitted(x)).tangent is None
            assert forward_ad.unpack_dual(jitted(forward_ad.make_dual(x, x.detach()))).tangent is not None
            assert forward_ad.unpack_dual(jitted(x)).tangent is None


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_tangent_of_a_tensor_that_is_read(backend: str) -> None:
    module = torch.nn.Linear(3, 2)
    jitted = jitpy.jit(lambda t: module(t), backend=backend)
    x = torch.randn(2, 3)
    jitted(x)
    weight = module.weight.detach().clone()
    del module.weight
    module.weight = torch.nn.Parameter(weight)
    jitted(x)
    with forward_ad.dual_level():
        del module.weight
        module.weight = forward_ad.make_dual(weight, torch.ones_like(weight))
        tangent = forward_ad.unpack_dual(jitted(x)).tangent
        torch.testing.assert_close(tangent, x @ torch.ones(2, 3).t())


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_forward_over_reverse(backend: str) -> None:
    """A backward pass of a compiled node whose gradient has a tangent."""
    def fn(t):
        return t.exp() * 2

    found = []
    for called in (fn, jitpy.jit(fn, backend=backend)):
        x = torch.ones(3, requires_grad=True)
        y = called(x)
        with forward_ad.dual_level():
            grad = forward_ad.make_dual(torch.ones(3), torch.full((3,), 2.0))
            primal, tangent = forward_ad.unpack_dual(torch.autograd.grad(y, x, grad)[0])
            found.append((primal.clone(), tangent.clone()))
    torch.testing.assert_close(found[1], found[0])


@case(lambda: (torch.randn(3),), lambda: (torch.randn(3, requires_grad=True),))
def level_inside(x):
    y = x * 2
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        result = forward_ad.unpack_dual(dual.sin() * 2)
        kept = result.primal * 1, result.tangent * 1
    return y, kept[0], kept[1], x + 1


@case(lambda: (torch.randn(3),), lambda: (torch.randn(4),), factory=True)
def jvp_of_a_compiled_function():
    inner = jitpy.jit(lambda t: (t.sin() * t).sum())

    def fn(x):
        inner(x)
        return torch.func.jvp(inner, (x,), (x,)), torch.func.jacfwd(inner)(x), torch.func.hessian(inner)(x), inner(x)

    return fn


test_all = make_test(__name__)
