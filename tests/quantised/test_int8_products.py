"""Products of dequantised operands, which become products of integers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import jitpy


def product(x, w, zeros, scales, bias, zero, scale):
    values = (x.to(torch.float32) - zero) * scale
    return F.linear(values, (w - zeros.view(-1, 1)) * scales.view(-1, 1), bias)


def operands(dtype, rows, width, features, has_bias=True):
    generator = torch.Generator().manual_seed(0)
    low, high = (0, 256) if dtype is torch.uint8 else (-128, 128)
    x = torch.randint(low, high, (*rows, width), generator=generator).to(dtype)
    w = torch.randint(-128, 128, (features, width), generator=generator).to(torch.int8)
    zeros = torch.randint(-3, 4, (features,), generator=generator)
    scales = torch.rand(features, generator=generator) / 100 + 0.001
    return x, w, zeros, scales, torch.randn(features, generator=generator) if has_bias else None


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("rows", [(1,), (5,), (2, 3)])
@pytest.mark.parametrize("zero", [0, 17])
@pytest.mark.parametrize("has_bias", [True, False])
def test_product_is_one_of_integers(dtype, rows, zero, has_bias):
    given = operands(dtype, rows, 64, 24, has_bias)
    report = jitpy.explain(product)(*given, zero, 0.02)
    assert "_int_mm" in "".join(str(kernel) for frame in report.frames for kernel in frame.eager), report
    x, w, zeros, scales, bias = given
    weight = (w.double() - zeros.double().view(-1, 1)) * scales.double().view(-1, 1)
    reference = (x.double() - zero) * 0.02 @ weight.t()
    reference = reference if bias is None else reference + bias.double()
    got, want = jitpy.jit(product)(*given, zero, 0.02), product(*given, zero, 0.02)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-4)
    assert (got.double() - reference).abs().max() <= 2 * (want.double() - reference).abs().max() + 1e-5


@pytest.mark.parametrize("width", [1 << 15, (1 << 15) + 8])
def test_largest_sums(width):
    """All bytes at their limits: no sum overflows, and longer rows are left alone."""
    x = torch.full((2, width), 255, dtype=torch.uint8)
    w = torch.full((8, width), -128, dtype=torch.int8)
    given = x, w, torch.full((8,), 127), torch.full((8,), 1e-4), None
    for zero in (0, 255):
        want = product(*given, zero, 1e-3)
        torch.testing.assert_close(jitpy.jit(product)(*given, zero, 1e-3), want, rtol=1e-4, atol=1e-4)


def test_batches_that_change():
    compiled = jitpy.jit(product)
    for rows in (2, 5, 9, 1):
        given = operands(torch.uint8, (rows,), 64, 24)
        torch.testing.assert_close(compiled(*given, 17, 0.02), product(*given, 17, 0.02), rtol=1e-5, atol=1e-4)


def test_other_products_are_left_alone():
    """A weight with gradients, columns that are no columns, numbers of other types."""
    x, w, zeros, scales, bias = operands(torch.uint8, (5,), 64, 64)
    scales.requires_grad_()
    got, want = (fn(x, w, zeros, scales, bias, 17, 0.02) for fn in (jitpy.jit(product), product))
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-4)
    gradients = [torch.autograd.grad(one.sum(), scales)[0] for one in (got, want)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-2)

    def rows(x, w, zeros, scales):
        return F.linear((x.to(torch.float32) - 17) * 0.02, (w - zeros) * scales)

    given = x, w, zeros, scales.detach()
    torch.testing.assert_close(jitpy.jit(rows)(*given), rows(*given), rtol=1e-5, atol=1e-4)


def convolution(x, w, zeros, scales, bias, zero, scale, stride, padding, dilation, groups):
    values = (x.to(torch.float32) - zero) * scale
    column = (-1, 1, 1, 1)
    return F.conv2d(values, (w - zeros.view(column)) * scales.view(column), bias, stride, padding, dilation, groups)


def images(channels=8, features=16, groups=1, width=9, seed=0, is_last=False):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (2, channels, width, width), generator=generator).to(torch.uint8)
    w = torch.randint(-128, 128, (features, channels // groups, 3, 3), generator=generator).to(torch.int8)
    scales = torch.rand(features, generator=generator) / 100 + 0.001
    x = x.contiguous(memory_format=torch.channels_last) if is_last else x
    return x, w, torch.zeros(features, dtype=torch.int64), scales, torch.randn(features, generator=generator)


def is_of_integers(report):
    return "ir.int8_convolution" in "".join(str(kernel) for frame in report.frames for kernel in frame.eager)


@pytest.mark.parametrize("places", [(1, 1, 1, 1), (2, 0, 1, 1), ((1, 2), (2, 1), 2, 1), (1, 1, 1, 4)])
@pytest.mark.parametrize("zero", [0, 131])
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("has_bias", [True, False])
def test_convolution_is_one_of_integers(places, zero, is_last, has_bias):
    given = images(groups=places[3], is_last=is_last)
    given = given if has_bias else (*given[:4], None)
    want = convolution(*given, zero, 0.02, *places)
    compiled = jitpy.jit(convolution)
    for _ in range(2):
        got = compiled(*given, zero, 0.02, *places)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)
        assert got.stride() == want.stride()
    assert is_of_integers(jitpy.explain(convolution)(*given, zero, 0.02, *places))


def test_weights_of_a_convolution_that_change():
    """Packed weights are those of the call: whoever wrote to them, also past the version counter."""
    x, w, zeros, scales, bias = images()
    compiled = jitpy.jit(lambda *given: convolution(*given, 131, 0.02, 1, 1, 1, 1))

    def check():
        want = convolution(x, w, zeros, scales, bias, 131, 0.02, 1, 1, 1, 1)
        torch.testing.assert_close(compiled(x, w, zeros, scales, bias), want, rtol=1e-4, atol=1e-3)

    check()
    w.data[3, 2, 1, 0] += 7
    check()
    scales.data[2] *= 2
    check()
    w = w.flip(0)
    check()
    zeros[5] = 3
    check()
    zeros[5] = 0
    check()
    with torch.inference_mode():
        check()
    check()


@pytest.mark.parametrize("scale", [float("inf"), float("nan"), 1e38])
def test_scales_that_are_no_usual_numbers(scale):
    """Products with weights that are zero are NaN."""
    x, w, zeros, scales, bias = images()
    scales[2], w[2] = scale, 0
    for given in ((x, w, zeros, scales, bias, 0, 0.02), (x, w, zeros, scales.abs().clamp(max=1), bias, 0, scale)):
        fn = lambda *tensors, given=given: convolution(*tensors, *given[5:], 1, 1, 1, 1)  # noqa: E731
        got, want = jitpy.jit(fn)(*given[:5]), fn(*given[:5])
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3, equal_nan=True)
    x, w, zeros, scales, bias = operands(torch.uint8, (5,), 64, 24)
    if scale != 1e38:
        scales[2], w[2], zeros[2] = scale, 0, 0
        fn = lambda *tensors: product(*tensors, 0, 0.02)  # noqa: E731
        torch.testing.assert_close(jitpy.jit(fn)(x, w, zeros, scales, bias), fn(x, w, zeros, scales, bias),
                                   rtol=1e-3, atol=1e-3, equal_nan=True)
        fn = lambda *tensors: product(*tensors, 3, scale)  # noqa: E731
        x, w, zeros, scales, bias = operands(torch.uint8, (5,), 64, 24)
        torch.testing.assert_close(jitpy.jit(fn)(x, w, zeros, scales, bias), fn(x, w, zeros, scales, bias),
                                   equal_nan=True)


def of_tensors(x, w, zeros, scales, bias, zero, scale, *places):
    """Its numbers are found when it runs."""
    run = convolution if places else product
    return run(x, w, zeros, scales, bias, zero.item(), scale.item(), *places)


@pytest.mark.parametrize("places", [(), (1, 1, 1, 1), (2, 0, 1, 1)])
def test_numbers_that_are_found_at_run_time(places):
    given = images() if places else operands(torch.uint8, (5,), 64, 24)
    given[2].zero_()
    compiled = jitpy.jit(of_tensors, fullgraph=True)
    for zero, scale in ((131, 0.02), (0, 0.02), (7, 0.5), (0, 1e30), (3, float("inf")), (3, float("nan")), (131, 0.02)):
        numbers = torch.tensor(zero), torch.tensor(scale, dtype=torch.float64)
        got, want = compiled(*given, *numbers, *places), of_tensors(*given, *numbers, *places)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3 * (scale if scale < 1e9 else 1), equal_nan=True)
    name = "ir.int8_convolution" if places else "ir.int8_linear"
    report = jitpy.explain(of_tensors)(*given, *numbers, *places)
    assert name in "".join(str(kernel) for frame in report.frames for kernel in frame.eager)
    if not places:  # weights with zero points are floats
        given[2][3] = 2
        numbers = torch.tensor(131), torch.tensor(0.02, dtype=torch.float64)
        torch.testing.assert_close(compiled(*given, *numbers), of_tensors(*given, *numbers), rtol=1e-4, atol=1e-3)


def test_windows_do_not_quantise_again():
    """Each element of a pooled image belongs to several windows."""
    def fn(x, scale):
        quantised = (x * scale).round().add(3).clamp(0, 255).to(torch.uint8)
        return F.max_pool2d((quantised.to(torch.float32) - 3) * scale, 3, 2, 1)

    given = torch.randn(1, 64, 56, 56), torch.tensor(4.0)
    assert torch.equal(jitpy.jit(fn)(*given), fn(*given))
    (frame,) = jitpy.explain(fn)(*given).frames
    assert [str(kernel).count("max_pool2d") for kernel in frame.kernels] == [0, 1]


def test_permutations_that_change_nothing():
    """As PT2E writes weights with a scale a row."""
    def fn(x, w, zeros, scales, bias):
        weight = ((w.permute(0, 1) - zeros.view(-1, 1)) * scales.view(-1, 1)).permute(0, 1)
        return F.linear((x.to(torch.float32) - 17) * 0.02, weight, bias)

    given = operands(torch.uint8, (5,), 64, 24)
    torch.testing.assert_close(jitpy.jit(fn)(*given), fn(*given), rtol=1e-5, atol=1e-4)
    report = jitpy.explain(fn)(*given)
    assert "_int_mm" in "".join(str(kernel) for frame in report.frames for kernel in frame.eager)


@pytest.mark.parametrize("channels", [3640, 8192])
def test_largest_sums_of_convolutions(channels):
    """Those of more elements than 32 bits hold are left alone."""
    x = torch.full((1, channels, 3, 3), 255, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    w = torch.full((8, channels, 3, 3), -128, dtype=torch.int8)
    given = x, w, torch.zeros(8, dtype=torch.int64), torch.full((8,), 1e-4), None
    for zero in (0, -255):
        want = convolution(*given, zero, 1e-3, 1, 0, 1, 1)
        torch.testing.assert_close(jitpy.jit(convolution)(*given, zero, 1e-3, 1, 0, 1, 1), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("places", [(), (1, 1, 1, 1)])
@pytest.mark.parametrize("zero", [256, -10**6, 10**6])
def test_zero_points_beyond_bytes(places, zero):
    """Such ones, found at run time, are floats' work."""
    x, w, zeros, scales, bias = images() if places else operands(torch.uint8, (5,), 64, 24)
    given = x, w.fill_(-128), torch.zeros_like(zeros), scales, bias, torch.tensor(zero), torch.tensor(0.02)
    torch.testing.assert_close(jitpy.jit(of_tensors)(*given, *places), of_tensors(*given, *places),
                               rtol=1e-5, atol=1e-4 * max(1, abs(zero) / 256))
