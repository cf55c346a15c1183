"""Shape, strides and dtype of elementwise results, for operands of every layout, against eager."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jitpy.ir import SizeEnv, ops
from jitpy.ir.ops.promotion import result_type
from tests.ir.op_samples import spec_of

DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.bool,
    torch.uint8,
    torch.complex64,
)
SCALARS = (True, 2, 2.5, 1j)


@st.composite
def tensors(
    draw: Any, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.int64)
) -> torch.Tensor:
    """A tensor that broadcasts to `shape`: permuted, strided, expanded, with axes of size 1 and missing axes."""
    own = tuple(1 if draw(st.integers(0, 4)) == 0 else size for size in shape)[draw(st.integers(0, len(shape))) :]
    order = draw(st.permutations(range(len(own))))
    steps = [draw(st.integers(1, 2)) for _ in own]
    expanded = [draw(st.integers(0, 5)) == 0 for _ in own]
    base = torch.ones([1 if expanded[a] else own[a] * steps[a] for a in order], dtype=draw(st.sampled_from(dtypes)))
    back = base.permute([order.index(a) for a in range(len(own))])
    back = back.expand([own[a] if expanded[a] else back.shape[a] for a in range(len(own))])
    return back[tuple(slice(None) if expanded[a] else slice(0, own[a] * steps[a], steps[a]) for a in range(len(own)))]


@st.composite
def operands(draw: Any, count: int) -> list[torch.Tensor]:
    shape = tuple(
        draw(st.integers(0 if draw(st.integers(0, 9)) == 0 else 1, 4)) for _ in range(draw(st.integers(0, 4)))
    )
    return [draw(tensors(shape)) for _ in range(count)]


def check(name: str, args: tuple[Any, ...], **kwargs: Any) -> None:
    op = ops.get(name)
    try:
        want = op.target(*args, **kwargs)
    except (RuntimeError, TypeError) as error:
        with pytest.raises(type(error)):
            ops.infer(op, SizeEnv(), [spec_of(a) for a in args], kwargs)
        return
    got = ops.infer(op, SizeEnv(), [spec_of(a) for a in args], kwargs)
    wanted = spec_of(want)
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    if want.numel():
        assert got.stride == wanted.stride, (name, [spec_of(a) for a in args])


@settings(max_examples=400, deadline=None)
@given(operands(1))
def test_unary(args: list[torch.Tensor]) -> None:
    check("aten.sin.default", tuple(args))
    check("aten.clone.default", tuple(args))
    check("aten.add.Tensor", (args[0], 2.5))
    check("aten.to.dtype", (args[0], torch.float64))
    check("aten.flip.default", (args[0], [0] if args[0].dim() else []))


@settings(max_examples=800, deadline=None)
@given(operands(2))
def test_binary(args: list[torch.Tensor]) -> None:
    check("aten.add.Tensor", tuple(args))
    check("aten.div.Tensor", tuple(args))
    check("aten.lt.Tensor", tuple(args))


@settings(max_examples=400, deadline=None)
@given(operands(3))
def test_ternary(args: list[torch.Tensor]) -> None:
    check("aten.addcmul.default", tuple(args))
    check("aten.where.self", (args[0] > 0, args[1], args[2]))
    check("aten.clamp.Tensor", tuple(args))
    check("aten.masked_fill.Scalar", (args[0], args[1] > 0, 2))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_views_of_any_layout(data: Any) -> None:
    shape = tuple(data.draw(st.integers(1, 4)) for _ in range(data.draw(st.integers(1, 4))))
    x = data.draw(tensors(shape))
    sizes = data.draw(st.permutations([s for s in x.shape]))
    if data.draw(st.booleans()) and x.dim() > 1:
        sizes = [x.shape[0] * x.shape[1], *x.shape[2:]]
    if data.draw(st.booleans()) and sizes:
        sizes = [*sizes[:-1], -1]
    env = SizeEnv()
    for name, args in (
        ("reshape", (sizes,)),
        ("view", (sizes,)),
        ("flatten.using_ints", (0, -1)),
        ("squeeze", ()),
        ("unsqueeze", (data.draw(st.integers(-x.dim() - 1, x.dim())),)),
        ("contiguous", ()),
    ):
        op = ops.get(f"aten.{name}" if "." in name else f"aten.{name}.default")
        try:
            want = op.target(x, *args)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                ops.infer(op, env, (spec_of(x), *args))
            continue
        assert ops.infer(op, env, (spec_of(x), *args)) == spec_of(want), name
        real = "self" if want is x else "view" if want.data_ptr() == x.data_ptr() else "copy"
        assert ops.aliasing(op, env, (spec_of(x), *args)) == real, name


def _operand_kinds() -> list[Any]:
    kinds: list[Any] = list(SCALARS)
    for dtype in DTYPES:
        kinds += [torch.ones(2, dtype=dtype), torch.ones((), dtype=dtype)]
    return kinds


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_promotion_of_every_pair(default: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        for a, b in itertools.product(_operand_kinds(), repeat=2):
            assert result_type((spec_of(a), spec_of(b))) is torch.result_type(a, b), (a, b)
    finally:
        torch.set_default_dtype(before)


def test_promotion_of_three() -> None:
    for a, b, c in itertools.product(_operand_kinds(), repeat=3):
        if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and isinstance(c, torch.Tensor)):
            continue
        if torch.complex64 in (a.dtype, b.dtype, c.dtype) or {a.dtype, b.dtype, c.dtype} == {torch.bool}:
            continue
        want = torch.addcmul(a, b, c).dtype
        assert result_type((spec_of(a), spec_of(b), spec_of(c))) is want, (a, b, c)
