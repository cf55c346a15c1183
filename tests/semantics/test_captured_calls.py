"""Calls of torch's that are captured: copies of tensors, results of another dtype, regions, higher order."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import jitpy
from tests.semantics.harness import case, make_test


def one():
    return (torch.randn(4, 4),)


def leaf():
    return (torch.randn(4, 4, requires_grad=True),)


@case(one, fullgraph=True)
def tensor_of_a_tensor(x):
    return torch.tensor(x) + 1


@case(one, fullgraph=True)
def tensor_of_a_view_in_another_dtype(x):
    y = torch.tensor(x.t()[:, 1:], dtype=torch.float64)
    y.add_(1)
    return y, x


@case(leaf, fullgraph=True)
def tensor_of_what_requires_grad(x):
    return (x * torch.tensor(x)).sum(), torch.tensor(x * 2)


@case(one, fullgraph=True)
def tensor_of_a_scalar_tensor(x):
    return torch.tensor(x.sum(), dtype=torch.int64, device="cpu")


def with_out(dtype):
    return lambda: (torch.randn(4, 4), torch.zeros(4, 4, dtype=dtype))


@case(with_out(torch.float64), fullgraph=True)
def out_of_a_wider_dtype(x, o):
    y = torch.mul(x, 1 / 3, out=o)
    return o + 1, y


@case(with_out(torch.bfloat16), fullgraph=True)
def out_of_a_narrower_dtype(x, o):
    torch.exp(x, out=o)
    return o * 2


@case(with_out(torch.float32), fullgraph=True)
def truth_values_into_numbers(x, o):
    torch.gt(x, 0, out=o)
    return o.sum()


@case(one, fullgraph=True)
def out_made_inside(x):
    o = torch.empty(4, 4, dtype=torch.float64)
    torch.sub(x, 2, out=o[:, :])
    torch.add(x[0], x[1], out=o[0])
    return o


@case(with_out(torch.int64))
def out_that_numbers_do_not_fit(x, o):
    return torch.add(x, 1, out=o)


@case(lambda: (torch.randn(64, 64), torch.empty(64, dtype=torch.float64)), breaks=("unsupported_op",))
def sums_are_computed_in_the_dtype_of_out(x, o):
    torch.sum(x, 0, out=o)
    return o


@case(lambda: (torch.rand(4, dtype=torch.float32), torch.empty(4, dtype=torch.complex64)), breaks=("unsupported_op",))
def out_that_is_complex(x, o):
    torch.mul(x, 2, out=o)
    return o


LINEAR = torch.nn.Linear(4, 4)


@case(one, fullgraph=True)
def reentrant_region_without_gradients(x):
    y = checkpoint(lambda v: LINEAR(v).sin(), x, use_reentrant=True)
    return y, y.requires_grad, torch.is_grad_enabled()


@case(one, fullgraph=True, factory=True)
def reentrant_region_without_gradients_with_effects():
    seen = []

    def fn(x):
        def inner(v, n):
            seen.append((n, torch.is_grad_enabled()))
            return v + 1 if n > 5 else v * n

        return checkpoint(inner, x, 3, use_reentrant=True, preserve_rng_state=False) + 1

    return fn, seen


@case(one)
def reentrant_region_that_returns_its_argument(x):
    y = checkpoint(lambda v: v, x, use_reentrant=True)
    y.add_(1)
    return x, y is x


test_all = make_test(__name__)


def warned(fn: Callable[..., Any], x: torch.Tensor) -> list[tuple[type[Warning], str, str, int]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fn(x)
    return [(w.category, str(w.message), w.filename, w.lineno) for w in caught]


def tensors(x: torch.Tensor) -> torch.Tensor:
    y = torch.tensor(x)
    return y + torch.tensor(y, dtype=torch.float64)


def region(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(torch.sin, checkpoint(torch.cos, x, use_reentrant=True), use_reentrant=True)


@pytest.mark.parametrize(("fn", "text"), [(tensors, "To copy construct from a tensor"),
                                          (region, "None of the inputs have requires_grad=True")])
def test_warnings_as_eager(fn: Callable[..., Any], text: str) -> None:
    x = torch.randn(3)
    jitted = jitpy.jit(fn)
    for _ in range(2):
        assert warned(jitted, x) == warned(fn, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=text):
            jitted(x)


def test_an_error_filter_for_other_texts_breaks_nothing() -> None:
    x = torch.randn(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="something else")
        torch.testing.assert_close(jitpy.jit(tensors, fullgraph=True)(x), tensors(x))
