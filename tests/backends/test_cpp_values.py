"""What kernels compute, value by value: special floats, 16-bit rounding, conversions, integers, indices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy
from jitpy import config
from jitpy.backends.cpp import plan_graph
from jitpy.runtime.executable import make_executable
from tests.graph_tools import trace

Tensor = torch.Tensor


def run(fn: Callable[..., Any], *inputs: Tensor) -> Any:
    """`fn` compiled; its one result."""
    graph = trace(fn, inputs)
    plan = plan_graph(graph)
    assert plan.notes is not None and plan.notes.kernels, "nothing was compiled"
    results = make_executable(plan)(*inputs)
    return results[0] if len(results) == 1 else results


SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 1e-45, 88.7, 89.0, -87.4,
    -104.0, 1e30, -1e30, 3.4e38, 1e5, 123456.78, -3.0, 10.0, 1e-8, 4097.5,
]  # fmt: skip
UNARY = [
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid", "reciprocal", "floor",
    "ceil", "trunc", "round", "sign", "abs", "neg", "relu", "square", "frac",
]  # fmt: skip


def test_special_values_float32() -> None:
    """All functions in one graph: one compiler run."""
    names = [name for name in UNARY if name not in ("frac",)]
    xs = [torch.tensor(SPECIAL * 3), torch.randn(1000) * 3, torch.rand(999), torch.randn(1001) * 50]
    for x in xs:
        results = run(lambda x: tuple(getattr(torch, name)(x) for name in names), x)
        for name, found in zip(names, results, strict=True):
            eager, exact = getattr(torch, name)(x), getattr(torch, name)(x.double())
            assert torch.equal(found.isnan(), eager.isnan()), name
            assert torch.equal(found.isinf(), exact.float().isinf()), name
            zero = (found == 0) & (eager == 0)
            assert torch.equal(torch.signbit(found[zero]), torch.signbit(eager[zero])), name
            finite = exact.float().isfinite()
            torch.testing.assert_close(found.double()[finite], exact[finite], rtol=6e-7, atol=2e-38, msg=name)


def test_special_values_float64() -> None:
    x = torch.tensor(SPECIAL, dtype=torch.float64)
    results = run(lambda x: tuple(getattr(torch, name)(x) for name in UNARY), x)
    for name, found in zip(UNARY, results, strict=True):
        torch.testing.assert_close(found, getattr(torch, name)(x), rtol=1e-14, atol=0, equal_nan=True, msg=name)


def test_maximum_and_minimum_keep_nan() -> None:
    x = torch.tensor([1.0, math.nan, 2.0, math.inf, -math.inf, math.nan] * 20)
    y = torch.tensor([math.nan, 1.0, -1.0, math.nan, 0.0, math.nan] * 20)
    found = run(lambda x, y: (torch.maximum(x, y), torch.minimum(x, y), x.clamp(-1, 1), x.amax(), y.amin()), x, y)
    wanted = (torch.maximum(x, y), torch.minimum(x, y), x.clamp(-1, 1), x.amax(), y.amin())
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def bits(x: Tensor) -> Tensor:
    return torch.where(x.isnan(), torch.zeros_like(x), x).view(torch.int16 if x.dtype.itemsize == 2 else torch.int32)


def test_every_float16() -> None:
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.float16)
    found = run(lambda x: x.float(), x)
    assert torch.equal(bits(found), bits(x.float())) and torch.equal(found.isnan(), x.isnan())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounding_to_16_bits(dtype: torch.dtype) -> None:
    x = torch.cat([torch.randn(20000) * 10**e for e in (-8, -6, -5, -4, 0, 3, 4, 5)])
    edges = [
        65504.0,
        65519.9,
        65520.0,
        65536.0,
        -0.0,
        math.inf,
        -math.inf,
        math.nan,
        2**-24,
        2**-25,
        2**-26,
        2**-14,
        3.4e38,
    ]
    x = torch.cat([x, torch.tensor(edges), torch.arange(0, 2**32 - 1, 99991).to(torch.int32).view(torch.float32)])
    found, wanted = run(lambda x: x.to(dtype), x), x.to(dtype)
    assert torch.equal(bits(found), bits(wanted)) and torch.equal(found.isnan(), wanted.isnan())


def test_float16_overflows_after_each_op() -> None:
    x = torch.tensor([300.0, 200.0, 1.0], dtype=torch.float16)
    torch.testing.assert_close(run(lambda x: x * 300 / 300, x), x * 300 / 300, equal_nan=True)


@pytest.mark.parametrize("target", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool])
def test_float_to_integer(target: torch.dtype) -> None:
    x = torch.cat([torch.randn(500) * 50, torch.tensor([0.0, -0.0, 0.9, -0.9, 1.5, -1.5, 100.7])])
    if target is torch.uint8:
        x = x.abs()
    found = run(lambda x: (x + 0).to(target), x)
    assert torch.equal(found, (x + 0).to(target))


@pytest.mark.parametrize("simd", ["scalar", "auto"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_constants_that_no_integer_holds(dtype: torch.dtype, simd: str) -> None:
    """Compilers convert these otherwise than the processor does; one constant among others is enough."""
    x = torch.linspace(-5, 5, 37).to(dtype)

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        special = [x.masked_fill(x > 1, value) for value in (math.inf, -math.inf, math.nan, 1e10, 1e30)]
        special.append((x.masked_fill(x > 1, math.nan) * 2).clamp(min=-8))
        targets = torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64
        return tuple(value.to(target) for value in special for target in targets)

    with config.patch(simd=simd):
        results = run(fn, x)
    for found, wanted in zip(results, fn(x), strict=True):
        assert torch.equal(found, wanted)


def test_integers_wrap_and_divide_as_eager() -> None:
    for dtype in (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8):
        info = torch.iinfo(dtype)
        x = torch.randint(max(info.min, -(2**62)), min(info.max, 2**62), (500,), dtype=torch.int64).to(dtype)
        y = torch.randint(1, 100, (500,)).to(dtype)

        def fn(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            return (x * y + x, x // 7, x % 7, torch.fmod(x, 5), x >> 1, x << 3, x & y, x | y, x ^ y, ~x, x.abs(), -y,
                    x > y, x.sum(), x.amax(), torch.maximum(x, y), x.to(torch.float32) / 3, x / y)  # fmt: skip

        for k, (a, b) in enumerate(zip(run(fn, x, y), fn(x, y), strict=True)):
            assert a.dtype is b.dtype
            torch.testing.assert_close(a, b, rtol=2e-7, atol=0, msg=f"{dtype} result {k}")


def test_integer_division_by_zero_is_eagers_error() -> None:
    x = torch.arange(5)
    graph = trace(lambda x, y: x // y + 1, [x, x + 1])
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        make_executable(plan_graph(graph))(x, torch.zeros(5, dtype=torch.int64))


@pytest.mark.parametrize("bad", [10, -1])
def test_index_out_of_range(bad: int) -> None:
    table, ids = torch.randn(10, 4), torch.tensor([1, 2, 3])
    compiled = make_executable(plan_graph(trace(lambda t, i: torch.embedding(t, i) * 2, [table, ids])))
    assert torch.equal(compiled(table, ids)[0], table[ids] * 2)
    with pytest.raises(IndexError, match="out of range"):
        compiled(table, torch.tensor([1, bad, 3]))
    assert torch.equal(compiled(table, ids)[0], table[ids] * 2)


@pytest.mark.parametrize("of_a_sum", [False, True])
def test_index_into_what_is_the_same_everywhere(of_a_sum: bool) -> None:
    def fill(x: torch.Tensor) -> torch.Tensor:
        return x.sum().expand(4, 2) if of_a_sum else torch.ones(4, 2)

    reads: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
        lambda x, i: fill(x)[i], lambda x, i: fill(x).index_select(0, i), lambda x, i: torch.embedding(fill(x), i),
        lambda x, i: fill(x)[:, 0].gather(0, i)]
    x, ids = torch.randn(3), torch.tensor([1, 2, 3])
    for read in reads:
        compiled = make_executable(plan_graph(trace(lambda x, i, read=read: read(x, i) * 2, [x, ids])))
        torch.testing.assert_close(compiled(x, ids)[0], read(x, ids) * 2)
        with pytest.raises((IndexError, RuntimeError), match="out of"):
            compiled(x, torch.tensor([1, 4, 3]))


def test_results_of_calls_lie_as_the_rule_says() -> None:
    x = torch.zeros(6)
    compiled = make_executable(plan_graph(trace(lambda x: torch.ops.aten.uniform(x[::2]) + 1, [x])))
    torch.manual_seed(5)
    expected = torch.ops.aten.uniform(x[::2]) + 1
    torch.manual_seed(5)
    assert torch.equal(compiled(x)[0], expected)


def test_negative_indices_count_from_the_end() -> None:
    table, ids = torch.randn(10, 4), torch.tensor([[-1, 2], [3, -10]])
    assert torch.equal(run(lambda t, i: t[i] + 1, table, ids), table[ids] + 1)


@pytest.mark.parametrize("simd", ["scalar", "avx2"])
def test_other_instruction_sets(simd: str) -> None:
    """The same program without vectors, and with narrower ones."""
    x, b = torch.randn(33, 70), torch.randn(70)

    def fn(x: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        h = torch.nn.functional.layer_norm(x + b, (70,))
        return (
            torch.nn.functional.gelu(h),
            x.softmax(0),
            x.argmax(1),
            (x > 0).sum(),
            x.half().float(),
            x.exp().bfloat16(),
        )

    with config.patch(simd=simd):
        results = run(fn, x, b)
    for found, wanted in zip(results, fn(x, b), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_sums_are_as_exact_as_eager() -> None:
    for shape, dim in (((3, 200_000), 1), ((5000, 300), 0), ((700_000,), 0), ((64, 3, 5000), (0, 2))):
        x = torch.rand(shape)
        exact = x.double().sum(dim)
        mine = (run(lambda x, dim=dim: x.sum(dim), x).double() - exact).abs().max()
        assert mine <= 1.5 * (x.sum(dim).double() - exact).abs().max() + 1e-7 * exact.abs().max()


@pytest.mark.parametrize("shape", [(144, 8), (300, 20), (1000, 20), (16, 36, 8)])
def test_sums_of_equal_numbers_do_not_drift(shape: tuple[int, ...]) -> None:
    """Each addition of the same number errs in the same direction: in plain float32 as far as there are rows."""
    x, dims = torch.full(shape, 0.1), tuple(range(len(shape) - 1))
    exact = x.double().sum(dims)
    off = (run(lambda x: x.sum(dims), x).double() - exact).abs().max() / exact.abs().max()
    assert off < 8e-7


def test_arg_reductions_take_the_first_of_equals() -> None:
    x = torch.randint(0, 3, (40, 50)).float()
    x[3, 7] = math.nan
    x[5] = -math.inf
    x[:, 9] = -math.inf

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x.argmax(1), x.argmin(1), x.argmax(0), x.argmin(0), x.argmax(), *x.max(1), *x.min(0)

    for found, wanted in zip(run(fn, x), fn(x), strict=True):
        torch.testing.assert_close(found, wanted, equal_nan=True)
    large = torch.zeros(300_000)
    large[[70_000, 200_000]] = 1
    assert run(lambda x: x.argmax(), large).item() == 70_000


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32])
@pytest.mark.parametrize("shape", [(3, 4, 33), (5, 5, 5), (4, 9, 12)])
def test_the_first_of_equals_where_memory_has_another_order(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    def fn(x: Tensor) -> list[Tensor]:
        views = [x.transpose(0, 2), x.permute(1, 2, 0), x.permute(2, 0, 1), x.diagonal(0, 0, 1), x.mT, x.flip(0)]
        return [op(v) for v in (*views, (x * 2).mT, x) for op in (torch.argmax, torch.argmin)] + [x.mT.max(1)[1]]

    x = torch.randint(0, 3, shape).to(dtype)
    for found, wanted in zip(run(fn, x), fn(x), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_choices_that_are_one_for_all_lanes(dtype: torch.dtype) -> None:
    """Windows at the border of channels-last images, rows that a mask hides: conditions outside the vector loop."""
    x = torch.randn(2, 24, 7, 9).to(dtype)
    x[0, 3, 2, 2], x[1, 5, 0, 0], x[0, 1, 6, 8] = math.nan, math.inf, -math.inf
    x = x.to(memory_format=torch.channels_last)
    values, places = run(lambda x: torch.ops.aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1]), x)
    wanted, indices = torch.ops.aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])
    torch.testing.assert_close(values, wanted, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(places, indices)
    rows, hidden = torch.randn(5, 40).to(dtype), torch.tensor([True, False, False, True, True])
    rows[1, 3] = math.nan
    found = run(lambda r, h: torch.where(h[:, None], r, -math.inf) * 2, rows, hidden)
    torch.testing.assert_close(found, torch.where(hidden[:, None], rows, -math.inf) * 2, rtol=0, atol=0, equal_nan=True)


def test_a_small_operand_that_no_condition_ever_reads_within() -> None:
    """What a choice for all lanes does not read must not be read: neither before the memory nor behind it."""
    x, y = torch.randn(3, 33), torch.randn(1, 33)
    found = run(lambda x, y: torch.cat([x, y, x], 0) * 2, x, y)
    assert torch.equal(found, torch.cat([x, y, x], 0) * 2)
    padded = run(lambda y: torch.nn.functional.pad(y, (0, 0, 2, 3), value=1.5) + 1, y)
    assert torch.equal(padded, torch.nn.functional.pad(y, (0, 0, 2, 3), value=1.5) + 1)


def test_truth_values_in_memory() -> None:
    x, mask = torch.randn(7, 67), torch.rand(7, 67) < 0.5
    x[2, 3] = math.nan

    def program(x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        y = (x * 2).relu()
        below = y <= 0
        return y, below, below & mask, ~mask, mask.masked_fill(x > 0, True), x.masked_fill(mask, 0.0), mask.any(1), \
            mask.all(0), (x > 0).sum(0), mask.to(torch.float32) * x, mask ^ below

    for found, wanted in zip(run(program, x, mask), program(x, mask), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
def test_sums_at_computed_places_of_each_channel(format: torch.memory_format) -> None:
    """Overlapping windows add up where they have their maximum; no two channels share a place."""
    x = torch.randint(0, 4, (2, 20, 9, 7)).float().to(memory_format=format)
    values, places = torch.ops.aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])
    grad = torch.randn_like(values)
    options = ([3, 3], [2, 2], [1, 1], [1, 1], False)
    found = run(lambda g, x, p: torch.ops.aten.max_pool2d_with_indices_backward(g, x, *options, p), grad, x, places)
    wanted = torch.ops.aten.max_pool2d_with_indices_backward(grad, x, *options, places)
    torch.testing.assert_close(found, wanted)
    rows, at = torch.randn(6, 1, 40), torch.randint(0, 3, (6, 1, 40))
    found = run(lambda r, a: torch.zeros(6, 3, 40).scatter_add(1, a, r), rows, at)
    torch.testing.assert_close(found, torch.zeros(6, 3, 40).scatter_add(1, at, rows))
    found = run(lambda r, a: torch.zeros(6, 1, 40).scatter_add(2, a, r), rows, at)
    torch.testing.assert_close(found, torch.zeros(6, 1, 40).scatter_add(2, at, rows))


def test_long_rows_of_several_axes_are_summed_line_by_line() -> None:
    """The lines of a long row are summed in float32, the row in float64: no further off than eager."""
    x = torch.randn(40, 3, 37, 27) + 3
    y = torch.randn(160, 2, 300)
    y[7, 1, 299] = math.inf

    def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x.sum((0, 2, 3)), (x * x).mean((0, 2, 3)), y.sum((0, 2)), y.amax((0, 2)), (y > 0).sum((0, 2))

    exact = program(x.double(), y.double())
    for found, eager, wanted in zip(run(program, x, y), program(x, y), exact, strict=True):
        assert found.dtype is eager.dtype
        torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-6, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bounds_that_are_numbers(dtype: torch.dtype) -> None:
    """NaN goes through, and of two zeros the operand's own is kept, as in eager."""
    x = torch.tensor([*SPECIAL, *SPECIAL], dtype=dtype)
    bounds: list[tuple[Any, Any]] = [(0.0, None), (None, 0.0), (-0.5, 0.5), (0.0, math.inf), (-0.0, 1.0)]
    for own, (low, high) in zip(run(lambda x: tuple(x.clamp(*b) for b in bounds), x), bounds, strict=True):
        torch.testing.assert_close(own, x.clamp(low, high), rtol=0, atol=0, equal_nan=True)
        assert torch.equal(own.signbit(), x.clamp(low, high).signbit())


def test_erf_far_from_zero() -> None:
    x = torch.cat([torch.linspace(-12, 12, 200001), torch.tensor([math.inf, -math.inf, 1e30, -1e30])])
    assert (run(torch.erf, x).double() - torch.erf(x.double())).abs().max() < 1e-7


@pytest.mark.parametrize("fn", [
    lambda y: 1 - y[..., None].expand(2, 3, 2).reshape(2, 6).flip(-1),
    lambda y: 1 - y[:, None].expand(2, 2, 3).reshape(2, 6).flip(-1),
    lambda y: 1 - y.expand(2, 2, 3).reshape(4, 3).flip(0),
    lambda y: 1 - torch.cat([y[..., None] * 2, y[..., None]], -1).reshape(2, 6).flip(-1),
    lambda y: y.t().reshape(-1).flip(0)[:4] + 1,
    lambda y: y.reshape(3, 2).flip(1).reshape(2, 3).flip(0, 1) + 1,
    lambda y: y.t().reshape(-1).roll(1).flip(0).reshape(2, 3) + 1,
], ids=["expanded", "repeated", "rows", "cat", "transposed", "twice", "rolled"])
def test_flips_of_reshaped_tensors(fn: Callable[[Tensor], Tensor]) -> None:
    y = torch.randn(2, 3)
    torch.testing.assert_close(run(fn, y), fn(y))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_operands_are_rounded_to_16_bits_as_in_eager(dtype: torch.dtype) -> None:
    """Integers, numbers and 0-dim tensors, but the factors and divisors that eager keeps."""
    x = (torch.rand(2000) * 4 + 0.3).to(dtype)

    def fn(x: Tensor, many: Tensor, one: Tensor) -> list[Tensor]:
        return [op(x, y) for y in (many, one, 0.7123456, 2051)
                for op in (torch.add, torch.sub, torch.mul, torch.div, torch.remainder, torch.fmod, torch.eq, torch.lt,
                           torch.pow, torch.floor_divide)] + [torch.lerp(x, x * 2, 0.7123456), one + x, many / x]

    for many, one in ((torch.randint(1000, 9000, (2000,), dtype=torch.int32), torch.tensor(0.7123456)),
                      (torch.randint(1000, 9000, (2000,)), torch.tensor(2051))):
        for one_eager, one_compiled in zip(fn(x, many, one), run(fn, x, many, one), strict=True):
            assert one_eager.dtype is one_compiled.dtype
            different = ~((one_eager == one_compiled) | (one_eager != one_eager) & (one_compiled != one_compiled))
            assert different.sum() <= 2, (one_eager[different], one_compiled[different])  # of powers


def test_what_jumps_sees_values_of_16_bits() -> None:
    """bfloat16 is computed in 32 bits, but for comparisons, steps, and where the best value of several is."""
    x, y = torch.randn(300, 1000).bfloat16(), torch.randn(300, 1000).bfloat16()

    def fn(x: Tensor, y: Tensor) -> list[Tensor]:
        product = x * y
        return [product == product.amax(-1, keepdim=True), product == product.amax(), product.argmax(-1),
                product.argmin(0), product.floor(), product.round(), product.remainder(0.5), product > y,
                product.to(torch.int32), (x.float() * 1.0001).bfloat16() == x, (x.float() * 1.0001).bfloat16() - x]

    for eager, compiled in zip(fn(x, y), run(fn, x, y), strict=True):
        assert torch.equal(eager, compiled)


def test_what_shows_more_than_16_bits_sees_values_of_16_bits() -> None:
    x, y = torch.randn(30, 40).bfloat16(), torch.randn(30, 40).bfloat16()
    wide, double = torch.randn(30, 40), torch.randn(30, 40).double()

    def fn(x: Tensor, y: Tensor, wide: Tensor, double: Tensor) -> list[Tensor]:
        return [x * y + wide, double - x * y, torch.where(x > 0, x * y, wide), x * y > wide,
                torch.maximum(x + y, double)]

    for eager, compiled in zip(fn(x, y, wide, double), run(fn, x, y, wide, double), strict=True):
        assert torch.equal(eager, compiled)
    found = run(lambda x, y: (x * y).sum(-1, dtype=torch.float32), x, y)
    torch.testing.assert_close(found, (x * y).sum(-1, dtype=torch.float32), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("source", [torch.int32, torch.float32])
def test_reductions_that_are_asked_for_16_bits_take_operands_of_16_bits(
        source: torch.dtype, dtype: torch.dtype) -> None:
    x = (torch.randn(300, 40) * 3000).to(source)

    def fn(x: Tensor) -> list[Tensor]:
        return [x.sum(-1, dtype=dtype), (x * 2).sum(-1, dtype=dtype)]

    for found, wanted in zip(run(fn, x), fn(x), strict=True):
        assert torch.equal(found, wanted)
    close = run(lambda x: x.log_softmax(-1, dtype=dtype), x)
    torch.testing.assert_close(close, x.log_softmax(-1, dtype=dtype), atol=0.01, rtol=0.01)


@pytest.mark.parametrize("keepdim", [False, True])
def test_any_and_all_along_no_axis(keepdim: bool) -> None:
    with config.patch(raise_errors=True):
        for op in (torch.any, torch.all):
            x = torch.randint(0, 2, (3, 4)).t()
            found = jitpy.jit(lambda x, op=op: op(x * 1, dim=(), keepdim=keepdim))(x)
            assert torch.equal(found, x.bool())
            assert found.stride() == op(x * 1, dim=(), keepdim=keepdim).stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_floats_that_become_integers_and_floats_again(dtype: torch.dtype) -> None:
    """Not `trunc`: zeros have no sign then, and what is out of range or NaN becomes some integer."""
    x = torch.tensor([math.inf, -math.inf, math.nan, 1e20, -1e20, 3e9, -0.3, 2.7, -2.7, 0.0, -0.0] * 8, dtype=dtype)

    def fn(x: Tensor) -> list[Tensor]:
        return [made for whole in (torch.int32, torch.int64, torch.int16, torch.uint8)
                for made in (x.to(whole).float(), x.to(whole).double(), torch.where(x > 0, x.to(whole), 0).float())]

    for found, wanted in zip(run(fn, x), fn(x), strict=True):
        assert torch.equal(found, wanted)
        assert torch.equal(found.signbit(), wanted.signbit())


def test_complex_numbers_that_the_graph_reads_are_numbers_for_calls() -> None:
    def fn(x: Tensor, n: Tensor) -> Any:
        c = n.item()
        return c, x * c, c * 2 + 1, torch.full((2,), c), torch.where(x > 0, x, c), x.add(x + 0j, alpha=c)

    jitted = jitpy.jit(fn, fullgraph=True)
    for n in (torch.tensor(1 + 2j), torch.tensor(-3j), torch.tensor(2 + 0j)):
        x = torch.tensor([1.0, -2.0])
        for found, expected in zip(jitted(x, n), fn(x, n), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
