"""The default dtype and the default device, set inside of a function and around it. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.semantics.harness import case, jit, make_test


@pytest.fixture(autouse=True)
def _stack_as_before() -> Iterator[None]:
    """A default device that is set inside a block leaves its mode on this thread's stack, in torch as well."""
    depth = torch._C._len_torch_function_stack()
    yield
    while torch._C._len_torch_function_stack() > depth:
        torch._C._pop_torch_function_stack()


def graph_break() -> None:
    """`jitpy.graph_break`, looked up late: the cases alone run without it."""


if os.environ.get("JITPY_SEMANTICS_STUB") != "1":
    import jitpy

    graph_break = jitpy.graph_break  # type: ignore[assignment]


def one():
    return (torch.randn(4),)


def leaf():
    return (torch.randn(4, requires_grad=True),)


# -- default dtype


@case(one)
def factories_in_another_dtype(x):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    made = torch.ones(4), torch.tensor(1.5), torch.tensor([1.5, 2]), torch.arange(3.0), torch.arange(3), torch.eye(2)
    made += torch.full((2,), 1.5), torch.full((2,), 1), torch.linspace(0, 1, 3), torch.hann_window(4), torch.empty(0)
    inside = torch.get_default_dtype(), torch.zeros(2, dtype=torch.float32), torch.zeros_like(x), x.new_ones(2)
    torch.set_default_dtype(before)
    return made, inside, torch.ones(4), torch.tensor([1.5, 2]), x * 1.5


@case(lambda: (torch.arange(3, 6), torch.tensor([True, False])))
def integers_become_the_default(n, b):
    torch.set_default_dtype(torch.float64)
    results = n / 2, n * 1.5, n.sin(), n.true_divide(n), b * 0.5, n.sqrt() + n, 2.5**n, n**0.5, n.div(3.5)
    compared = (n + (1 << 24)) < (1 << 24) + 4.5, n == 3.0, n.float() / 3, n.sum(), n.sum(dtype=torch.float32)
    torch.set_default_dtype(torch.float32)
    return results, compared, n / 2


@case(lambda: (torch.arange(3, 6), torch.tensor([True, False, True])))
def other_results_in_the_default(n, b):
    torch.set_default_dtype(torch.float64)
    results = torch.where(b, 1.5, 2.5), torch.where(b, n, 0.5), n.masked_fill(b, 7.5), torch.full_like(n, 2.5)
    more = n.clamp(min=3.5), torch.complex(n.double(), n.double()), n * 1j, torch.tensor(1j), n.float() * 1j
    rest = torch.stack([n, n]).float(), torch.cat([n, n.double()]), torch.nn.functional.one_hot(n), n.float().mean()
    torch.set_default_dtype(torch.float32)
    return results, more, rest


@case(one)
def half_as_default(x):
    torch.set_default_dtype(torch.bfloat16)
    made = torch.ones(4), torch.linspace(0, 1, 3), torch.full((2,), 1.5), torch.arange(3) / 7
    drawn = torch.rand(3), torch.randn(2), torch.empty(3).uniform_()
    torch.set_default_dtype(torch.float32)
    return made, drawn, torch.rand(2) + x[:2]


@case(leaf)
def gradients_under_another_default(x):
    torch.set_default_dtype(torch.float64)
    y = (x * torch.ones(4)).sum() * torch.tensor(2.0)
    (g,) = torch.autograd.grad(y, x)
    torch.set_default_dtype(torch.float32)
    return y.detach(), g, x * 2 + torch.ones(4)


@case(one, one)
def default_left_behind(x):
    torch.set_default_dtype(torch.float64)
    return x + torch.ones(4)


@case(one)
def default_around_a_break(x):
    torch.set_default_dtype(torch.float64)
    y = torch.ones(4)
    graph_break()
    z = torch.ones(4)
    torch.set_default_dtype(torch.float32)
    return y, z, torch.ones(4)


@case(one)
def default_and_an_error(x):
    torch.set_default_dtype(torch.float64)
    raise ValueError(torch.ones(2).dtype)


@case(one)
def default_put_back_after_an_error(x):
    try:
        torch.set_default_dtype(torch.float64)
        y = torch.ones(4)
        raise ValueError(y.dtype)
    finally:
        torch.set_default_dtype(torch.float32)


@case(one)
def default_that_torch_refuses(x):
    try:
        torch.set_default_dtype(torch.int32)
    except TypeError as error:
        return str(error), x * 2


@case(one)
def default_tensor_type(x):
    torch.set_default_tensor_type(torch.DoubleTensor)
    y = torch.ones(3)
    torch.set_default_tensor_type(torch.FloatTensor)
    return y, torch.ones(3)


@contextlib.contextmanager
def default_dtype(dtype):
    old = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(old)


@case(one)
def default_as_a_context(x):
    with default_dtype(torch.float64):
        y = torch.zeros(3) + x[:3]
        z = torch.rand(2)
    return y, z, torch.zeros(3)


@case(one)
def default_as_a_context_with_a_break(x):
    with default_dtype(torch.float64):
        y = torch.zeros(3) + x[:3]
        graph_break()
        z = torch.rand(2)
    return y, z, torch.zeros(3)


@case(*(lambda n=n: (torch.randn(n),) for n in (3, 4, 5)))
def default_and_sizes(x):
    torch.set_default_dtype(torch.float64)
    y = torch.ones(x.shape[0]) + x, torch.arange(x.shape[0]) / x.shape[0]
    torch.set_default_dtype(torch.float32)
    return y, torch.ones(x.shape)


# -- default device


@case(one)
def device_block(x):
    with torch.device("meta"):
        made = torch.ones(4), torch.rand(3), torch.arange(4), torch.full((2,), 1.0)
        elsewhere = torch.empty(3, device="cpu").fill_(1), torch.zeros_like(x), x.new_ones(3)
        inside = torch.get_default_device()
    return made, elsewhere, inside, torch.ones(3), torch.get_default_device()


@case(one)
def device_of_data(x):
    with torch.device("meta"):
        made = torch.tensor([1.0, 2.0]), torch.tensor(1), torch.as_tensor([1.0]), torch.asarray([1, 2])
    return made, torch.tensor([1.0])


@case(one)
def device_blocks_nested(x):
    with torch.device("cpu"):
        y, outer = torch.ones(4), torch.get_default_device()
        with torch.device("meta") as device:
            z, inner = torch.ones(3), torch.get_default_device()
        w = torch.rand(3)
    return y, z, w, outer, inner, device, torch.ones(3)


@case(one)
def device_block_with_a_break(x):
    with torch.device("meta"):
        y = torch.ones(4)
        graph_break()
        z = torch.ones(3)
    return y, z, torch.ones(2)


@case(one)
def device_blocks_with_a_break(x):
    with torch.device("meta"), torch.device("cpu"):
        y = torch.ones(4)
        graph_break()
        z = torch.ones(3)
    return y, z, torch.ones(2)


@case(one)
def error_out_of_a_device_block(x):
    with torch.device("meta"):
        y = torch.ones(4)
        raise ValueError(str(y.device))


@case(one)
def error_caught_outside_of_a_device_block(x):
    try:
        with torch.device("meta"):
            y = torch.ones(4)
            raise ValueError(str(y.device))
    except ValueError as error:
        return str(error), torch.ones(3)


@case(one)
def device_left_open(x):
    torch.device("meta").__enter__()
    y = torch.ones(3)
    graph_break()
    z = torch.ones(3)
    torch.device("meta").__exit__(None, None, None)
    return y, z, torch.ones(3)


@case(one, one, one)
def device_set(x):
    torch.set_default_device("meta")
    y = torch.ones(3), torch.get_default_device()
    torch.set_default_device("cpu")
    z = torch.ones(3), torch.get_default_device()
    torch.set_default_device(None)
    return y, z, torch.ones(3), torch.get_default_device()


@case(one, one, one)
def device_set_and_left(x):
    torch.set_default_device("meta")
    return torch.ones(3)


@case(one, one)
def device_set_before_an_error(x):
    torch.set_default_device("meta")
    raise ValueError(torch.ones(3).device)


@case(one, one)
def device_set_in_a_block(x):
    with torch.device("cpu"):
        y = torch.ones(3)
        torch.set_default_device("cpu")
    return y, torch.ones(3)


@case(one, one)
def device_with_a_wrong_name(x):
    try:
        torch.set_default_device("nowhere")
    except RuntimeError as error:
        return str(error)[:40], torch.ones(3)


@case(one, factory=True)
def device_of_an_argument():
    class Position(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.device(x.device):
                p = torch.arange(4)
            return self.linear(x) + p

    model = Position()
    return (lambda x: model(x)), model


@case(*[one] * 6, factory=True)
def contexts_around():
    calls = [0]

    def fn(x):
        return torch.ones(3), torch.rand(2), torch.zeros_like(x), torch.get_default_device()

    compiled = jit(fn, fullgraph=True)

    def outside(x):
        calls[0] += 1
        around: Any = [contextlib.nullcontext(), torch.device("meta"), torch.device("cpu")][calls[0] % 3]
        with around:
            result = compiled(x), fn(x)
            with torch.device("meta"):
                more = compiled(x), fn(x)
        torch.set_default_device("meta" if calls[0] % 2 else "cpu")
        last = compiled(x), fn(x)
        torch.set_default_device(None)
        return (*result, *more, *last, compiled(x)) if calls[0] > 1 else ()

    if os.environ.get("JITPY_SEMANTICS_STUB") != "1":
        outside = jitpy.disable(outside)
    return outside, calls


@case(*[one] * 4, factory=True)
def default_dtypes_around():
    calls = [0]

    def fn(x):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float16)
        y = torch.ones(3)
        torch.set_default_dtype(before)
        return y, torch.ones(3), before

    compiled = jit(fn)

    def outside(x):
        calls[0] += 1
        with default_dtype(torch.float64 if calls[0] % 2 else torch.float32):
            return compiled(x), fn(x)

    return outside, calls


test_cases = make_test(__name__)
