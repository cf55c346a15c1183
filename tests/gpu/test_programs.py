"""Jitted functions on a GPU: no further from float64 than eager is; inputs changed as eager changes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitpy

from .programs import PROGRAMS

#: how much further than eager from the float64 result (relative to its norm) a result may be, in ulps of the dtype
SLACK = 4


def leaves(value: Any) -> list[Any]:
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, (tuple, list)) else [value]


def doubled(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def copied(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in arguments)


def distance(value: torch.Tensor, reference: torch.Tensor) -> float:
    difference = (value.double() - reference.double())[torch.isfinite(reference)]
    return (difference.norm() / (reference[torch.isfinite(reference)].double().norm() + 1e-30)).item()


def compare(found: Any, eager: Any, reference: Any) -> None:
    found, eager, reference = leaves(found), leaves(eager), leaves(reference)
    assert len(found) == len(eager)
    for one, other, exact in zip(found, eager, reference, strict=True):
        if not isinstance(other, torch.Tensor):
            assert one == other
            continue
        assert (one.dtype, one.device, one.shape, one.stride()) == (other.dtype, other.device, other.shape,
                                                                    other.stride())
        if not other.is_floating_point():
            assert torch.equal(one, other)
            continue
        assert torch.equal(torch.isnan(one), torch.isnan(other))
        slack = SLACK * torch.finfo(other.dtype).eps
        assert distance(one, exact) <= 1.1 * distance(other, exact) + slack


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["f32", "bf16", "f16"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(cuda: torch.device, name: str, dtype: torch.dtype) -> None:
    function, make = PROGRAMS[name]
    jitted = jitpy.jit(function)
    for _ in range(3):
        arguments = make(dtype, cuda)
        ours, theirs, exact = copied(arguments), copied(arguments), tuple(map(doubled, copied(arguments)))
        compare((jitted(*ours), ours), (function(*theirs), theirs), (function(*exact), exact))
    torch.cuda.synchronize()


@pytest.mark.parametrize("name", ["broadcast", "softmax", "layer_norm", "sums", "masks", "transpose_add"])
def test_other_sizes(cuda: torch.device, name: str) -> None:
    """Sizes that change become symbolic, and kernels are compiled no more."""
    function, make = PROGRAMS[name]
    jitted = jitpy.jit(function)
    for rows in (7, 12, 33, 200):
        arguments = tuple(value[:rows] if value.dim() > 1 and name != "transpose_add"
                          else value for value in make(torch.float32, cuda))
        exact = tuple(map(doubled, arguments))
        compare(jitted(*copied(arguments)), function(*copied(arguments)), function(*exact))
