"""16-bit floats that loops convert by blocks: every length, every kind of loop, every bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import jitpy
from jitpy.backends.cpp.halves import in_order
from jitpy.schedule.expr import ScalarBuilder
from jitpy.schedule.index import Axis, Index
from jitpy.schedule.values import Value

Tensor = torch.Tensor
#: fewer than a block, whole blocks, and what is left over
LENGTHS = (1, 15, 16, 31, 32, 33, 48, 64, 95, 257)
DTYPES = [torch.bfloat16, torch.float16]

ARGUMENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "exact": lambda x: torch.where(x > 0, -x, x.abs()).clamp(-2, 3),
    "rounded": lambda x: x * 1.37,
    "cast": lambda x: (x.float() * 1.001).to(x.dtype),
    "rounded, then exact": lambda x: -(x.float() * 1.001).to(x.dtype),
    "constant too fine for 16 bits": lambda x: x.clamp(-0.3001, 0.3001),
    "row added": lambda x: x + x[:1],
    "column added": lambda x: x + x[:, :1],
    "from a row on": lambda x: x[1:] * 2,
    "from a column on": lambda x: x[:, 1:] * 2,
    "rows looked up": lambda x: x[torch.tensor([2, 0, 1, 1])] * 2,
    "wider": lambda x: x.double() * 2,
    "whole": lambda x: (x * 2).to(torch.int32),
    "flag": lambda x: x > 0.5,
    "from wider": lambda x: (x.double() * 3).to(x.dtype),
    "lengthened": lambda x: torch.cat([x, x * 2], 1),
    "largest": lambda x: x.amax(1),
    "largest of columns": lambda x: x.amax(0),
    "place of the largest": lambda x: x.argmax(1),
    "largest of all": lambda x: x.amax(),
    "less the largest": lambda x: x - x.amax(1, keepdim=True),
    "less that of its column": lambda x: x - x.amax(0, keepdim=True),
    "sums of wholes": lambda x: x.sign().sum(1),
    "sums of wholes by columns": lambda x: x.sign().sum(0),
    "into itself": lambda x: x.mul_(2).neg_(),
}


@pytest.fixture(params=["auto", "scalar"])
def simd(request: pytest.FixtureRequest) -> Iterator[str]:
    with jitpy.config.patch(simd=request.param):
        yield request.param


def same_bits(found: Tensor, wanted: Tensor) -> bool:
    if found.dtype not in DTYPES:
        return torch.equal(found, wanted)
    return found.dtype is wanted.dtype and torch.equal(found.view(torch.int16), wanted.view(torch.int16))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_length(dtype: torch.dtype, simd: str) -> None:
    """All in one graph: one compiler run a length."""
    names = [name for name in ARGUMENTS if name != "into itself"]
    for length in LENGTHS if simd == "auto" else LENGTHS[::4]:  # without vectors there are no blocks
        x = torch.randn(5, length).to(dtype)
        found = jitpy.jit(lambda x: [ARGUMENTS[name](x) for name in names])(x)
        for name, result in zip(names, found, strict=True):
            assert same_bits(result, ARGUMENTS[name](x)), (name, length)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_changing_lengths(name: str, dtype: torch.dtype) -> None:
    compiled = jitpy.jit(ARGUMENTS[name], dynamic=True)
    for length in (64, *LENGTHS[1:]):
        x, y = (torch.arange(6.0 * length).view(6, length).sin().to(dtype) for _ in range(2))
        assert same_bits(compiled(x), ARGUMENTS[name](y)), length
        assert same_bits(x, y), length


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_value(dtype: torch.dtype, simd: str) -> None:
    """Zeros with signs, infinities and what is tiny stay what they are; a NaN stays one."""
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    found = jitpy.jit(lambda x: (x.float(), -x, x.abs(), (x.float() * 1.0001).to(dtype)))(x)
    for result, wanted in zip(found, (x.float(), -x, x.abs(), (x.float() * 1.0001).to(dtype)), strict=True):
        numbers = ~wanted.isnan()
        assert torch.equal(result.isnan(), wanted.isnan())
        assert torch.equal(result[numbers], wanted[numbers])
        assert torch.equal(result[numbers].signbit(), wanted[numbers].signbit())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.bool])
def test_bytes(dtype: torch.dtype, simd: str) -> None:
    """Rows and columns of bytes are reduced in as many lanes as a vector has of them."""
    for length in (5, 63, 64, 65, 256, 2100):
        x = (torch.randint(0, 100, (70, length)) * (torch.rand(70, length) > 0.02)).to(dtype)
        y = x[:, 1:] != 0

        def fn(x: Tensor, y: Tensor) -> list[Tensor]:
            both = [z.any(d) for z in (x, y) for d in (0, 1)] + [z.all(d) for z in (x, y) for d in (0, 1)]
            rest = [x.sum(0), x.sum(1), x.any(), x.all(), y.any(), (x[:, 1:] + 0.5).where(y, -1.0).amax(1)]
            return both + rest + ([] if dtype is torch.bool else [x.amax(0), x.amax(1), x.amin(), x.argmax(1)])

        for number, (found, wanted) in enumerate(zip(jitpy.jit(fn)(x, y), fn(x, y), strict=True)):
            assert found.dtype is wanted.dtype and torch.equal(found, wanted), (number, length)


def test_places_that_only_the_loop_computes() -> None:
    """An index that needs a value which is not there ahead of the loop is none of a block, in a quotient neither."""
    e, axis, value = ScalarBuilder(), Axis(64), Value((64, 64), torch.bfloat16, "x")
    row = Index(((e.load(Value((), torch.int64, "row"), Index(), torch.int64), 1),))
    for place in (row * 64, row // 3 * 64):
        names = {atom: "t1" for atom, _ in row.terms}
        assert in_order(value, place + Index(((axis, 1),)), axis, names)
        assert not in_order(value, place + Index(((axis, 1),)), axis, {})
