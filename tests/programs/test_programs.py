"""Research code as people write it, plain and jitted: the same results and the same state, step by step.

Programs are whole on purpose: models, losses, optimizers, loops, containers and numpy in one place find what cases of
one feature do not.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest
import torch

import jitpy

from . import agents, domains, drawn, generative, learning, made_anew, sequences  # noqa: F401  (they fill PROGRAMS)
from .program import PROGRAMS, Jit, Program


def leaves(value: Any) -> list[Any]:
    """All items of nested containers and dataclasses, keys among them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [item for field in dataclasses.fields(value) for item in leaves(getattr(value, field.name))]
    if isinstance(value, dict):
        return [item for key in value for item in (key, *leaves(value[key]))]
    if isinstance(value, (list, tuple)):
        return [type(value), *(item for one in value for item in leaves(one))]
    return [value]


def agree(want: Any, got: Any) -> bool:
    """Kernels may add in another order, and steps carry that on: numbers agree to about three digits."""
    if type(want) is not type(got):
        return False
    if isinstance(want, torch.Tensor):
        facts = [(t.shape, t.dtype, t.requires_grad) for t in (want, got)]
        return facts[0] == facts[1] and torch.allclose(want, got, rtol=1e-3, atol=1e-4, equal_nan=True)
    if isinstance(want, np.ndarray):
        return want.dtype == got.dtype and want.shape == got.shape and np.allclose(want, got, rtol=1e-3, atol=1e-4)
    if isinstance(want, (float, np.floating)):
        return want == pytest.approx(got, rel=1e-3, abs=1e-4, nan_ok=True)
    return want == got


def run(program: Program, jit: Jit) -> list[Any]:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    return leaves(program(jit))


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, backend: str) -> None:
    want = run(PROGRAMS[name], lambda fn: fn)
    got = run(PROGRAMS[name], lambda fn: jitpy.jit(fn, backend=backend))
    assert len(want) == len(got)
    for number, (one, other) in enumerate(zip(want, got, strict=True)):
        assert agree(one, other), f"item {number}: {one} became {other}"
