"""Gradients of gradients of torch's own operator samples through `jitpy.jit`, against eager's, in float64: the first
pass is made outside of the jitted function, or in it. A sample of the operators by a hash of the name; all of them with
JITPY_TEST_ALL=1.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

import jitpy
from tests.ops.test_opinfo import OPS, copied, label, sample_of, tensors_in

#: of how many operators one is in the sample
EVERY = 1 if os.environ.get("JITPY_TEST_ALL") == "1" else 16
CASES = [pytest.param(op, where, id=f"{label(op)}-{where}") for op in OPS for where in ("outside", "inside")
         if op.supports_gradgrad and torch.float64 in op.supported_backward_dtypes("cpu")
         and zlib.crc32(f"{label(op)} {where}".encode()) % EVERY == 0]


def like(tensors: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(t.shape, dtype=torch.float64, generator=generator).to(t.dtype) for t in tensors]


def with_history(value: Any) -> list[torch.Tensor]:
    return [t for t in tensors_in(value) if t.requires_grad]


def outcome(op: OpInfo, sample: SampleInput, where: str, prepare: Callable[[Any], Any]) -> Any:
    """Results, gradients, and their gradients, each by the input that it belongs to."""
    arguments = copied(sample.input), copied(sample.args), copied(sample.kwargs)
    wrt = with_history(arguments)

    def results(first: Any, args: Any, kwargs: Any) -> Any:
        return op.op(first, *args, **kwargs)

    def gradients(first: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        made = op.op(first, *args, **kwargs)
        outputs = with_history(made)
        return made, torch.autograd.grad(outputs, wrt, like(outputs, 1), create_graph=True, allow_unused=True)

    torch.manual_seed(1)
    if where == "inside":
        made, grads = prepare(gradients)(*arguments)
    else:
        made = prepare(results)(*arguments)
        outputs = with_history(made)
        grads = torch.autograd.grad(outputs, wrt, like(outputs, 1), create_graph=True, allow_unused=True)
    again = with_history(grads)
    seconds = torch.autograd.grad(again, wrt, like(again, 2), allow_unused=True) if again else ()
    return [t.detach().clone() for t in tensors_in(made)], list(grads), list(seconds)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("op", "where"), CASES)
def test_like_eager(op: OpInfo, where: str) -> None:
    sample = sample_of(op, torch.float64, True)
    if sample is None:
        pytest.skip("no sample of strided tensors")
    try:
        wanted = outcome(op, sample, where, lambda fn: fn)
    except (RuntimeError, NotImplementedError, ImportError) as error:
        pytest.skip(f"eager refuses: {type(error).__name__}")
    jitpy.reset()
    found = outcome(op, sample, where, jitpy.jit)
    for mine, theirs in zip(found, wanted, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            if a is None or b is None:
                # an undefined gradient is zero, which the other side may compute with rounding
                assert all(g is None or bool((g.abs() < 1e-12).all()) for g in (a, b))
            else:
                torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8, equal_nan=True)
