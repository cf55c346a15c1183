"""Strides of every rule's result, axes of size 1 among them, for operands in odd layouts, against eager."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from jitpy.ir import NotCovered, SizeEnv, TensorSpec, ops
from jitpy.ir.ops.table import defined_names
from tests.ir.op_samples import spec_of

Layout = tuple[tuple[int, ...], tuple[int, ...]]

#: (shape, strides), such as views have them
_LAYOUTS: tuple[Layout, ...] = (
    ((3, 1), (1, 3)), ((3, 1), (2, 1)), ((1, 3), (1, 1)), ((3, 2), (1, 3)), ((3, 2), (2, 1)), ((1, 1), (5, 7)),
    ((0, 3), (1, 1)), ((2, 1, 3), (3, 9, 1)), ((2, 1, 3), (1, 1, 2)), ((3, 1), (1, 0)), ((3,), (2,)), ((1,), (4,)),
    ((), ()), ((2, 3), (0, 1)), ((2, 3), (6, 2)), ((3, 1), (4, 4)), ((1, 2, 3), (1, 3, 1)),
)
#: oneDNN refuses these layouts, and an index is out of range in an empty table
_REFUSED_BY_KERNELS = ("aten.gelu_backward.default", "aten.embedding.default")


def _tensors(op: Any) -> list[str] | None:
    """What the arguments that an op asks for are, where these are tensors and numbers only."""
    target = op.target
    if op.infer is None or op.is_random or op.is_view or not isinstance(target, torch._ops.OpOverload) or \
            target._schema.is_mutable or op.name in _REFUSED_BY_KERNELS:
        return None
    asked = [a for a in target._schema.arguments if not a.has_default_value()]
    kinds = [str(a.real_type) for a in asked]
    fits = 0 < kinds.count("Tensor") < 3 and not any(a.kwarg_only for a in asked)
    return [a.name if k == "Tensor" else k for a, k in zip(asked, kinds, strict=True)] \
        if fits and set(kinds) <= {"Tensor", "number"} else None


_OPS = {name: asked for name in sorted(defined_names()) if name.startswith("aten.") and
        (asked := _tensors(ops.get(name))) is not None}


def _of(layout: Layout, dtype: torch.dtype) -> torch.Tensor:
    tensor = torch.empty_strided(*layout, dtype=dtype)
    tensor.untyped_storage().fill_(0)
    return tensor


def _dtype(op: str, argument: str) -> torch.dtype:
    if argument in ("condition", "mask") or "logical" in op:
        return torch.bool
    integers = "bitwise" in op or op.startswith(("aten.__", "aten.gcd", "aten.lcm")) or argument in ("index", "indices")
    return torch.int64 if integers else torch.float32


@pytest.mark.parametrize("name", _OPS)
def test_strides(name: str) -> None:
    op, asked = ops.get(name), _OPS[name]
    options = {"min": 0, "max": 1} if name in ("aten.clamp.default", "aten.clip.default") else {}
    count = len(asked) - asked.count("number")
    for combination in itertools.product(_LAYOUTS, repeat=count):
        layouts = iter(combination)
        args = tuple(1 if what == "number" else _of(next(layouts), _dtype(name, what)) for what in asked)
        try:
            got = op.infer(SizeEnv(), *map(spec_of, args), **options)
        except (NotCovered, RuntimeError, IndexError, ValueError):
            continue  # torch itself is asked
        wanted = op.target(*args, **options)
        for have, want in zip(got if isinstance(got, tuple) else (got,),
                              wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            if isinstance(have, TensorSpec) and have.is_static:
                assert (have.shape, have.stride, have.dtype) == (want.shape, want.stride(), want.dtype), combination
