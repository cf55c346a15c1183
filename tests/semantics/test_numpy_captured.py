"""numpy code that is captured as one graph: types, layouts, aliasing and writes as numpy has them.
PYTEST_DONT_REWRITE: cases run as they are written."""

from __future__ import annotations

import warnings

import numpy as np
import torch

from jitpy.frontend.models.arrays.array_values import errors_are_silent
from tests.semantics.harness import case, make_test


def f32(*sizes: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=sizes or (4,)).astype(np.float32)


def one():
    return (f32(),)


def grid():
    return (f32(2, 3),)


def both():
    return f32(2, 3), np.arange(6).reshape(2, 3)


def captured(*makers, **options):
    return case(*makers, fullgraph=True, **options)


# -- elementwise, and its types


@captured(one, lambda: (np.arange(4),), lambda: (np.arange(4, dtype=np.int8),), lambda: (np.arange(4.0),))
def with_python_numbers(a):
    return a + 1, a * 2.5, 3 - a, 1 / (a + 2), a / 2, (a + 1).dtype, (a * 2.5).dtype, (a / 2).dtype


@captured(lambda: (np.arange(1, 4, dtype=np.float16),))
def half_with_python_numbers(a):
    return a * 0.1, a + 1, a / 3, (a * 0.1).dtype


@captured(both)
def float32_with_int64(f, i):
    return f + i, (f + i).dtype, f * i.astype(np.float32), i - f, i / (i + 1)


@captured(lambda: (np.arange(4, dtype=np.int32), np.arange(4, dtype=np.uint8)))
def integers(a, b):
    return a + b, a * b, a - b, (a + b).dtype, a & b, a | b, a ^ b, ~a, -a, abs(a), b - 1


@captured(lambda: (np.array([True, False, True]), np.array([True, True, False])))
def booleans(a, b):
    return a & b, a | b, a ^ b, ~a, a + b, a * b, a + 1, a * 2.0, np.logical_not(a), (a + b).dtype


@captured(lambda: (np.array([-7, 7, 6]), np.array([-7.5, 7.5, 6.0])))
def divided_by_numbers(i, f):
    return i // 2, i % 3, f // 2, f % 3, f % -3, f // -2.5, f // 0.0, f % np.float64(2)


@captured(lambda: (np.array([1.0, -2.0, 0.0, np.inf, np.nan], dtype=np.float32),))
def special_values(a):
    return np.sign(a), np.maximum(a, 0), np.fmax(a, 0), np.minimum(a, np.float32(1)), np.isnan(a), np.isinf(a), a > 0, \
        a == a, np.signbit(a), np.rint(a), a ** 2, np.sqrt(np.abs(a))


@captured(one, lambda: (np.arange(4),), lambda: (np.arange(4, dtype=np.int8),))
def unary_functions(a):
    return np.sin(a), np.exp(a), np.tanh(a), np.sqrt(abs(a)), np.floor(a), np.square(a), np.negative(a), \
        np.absolute(a), np.sqrt(abs(a)).dtype


@captured(one)
def rounded(a):
    return np.round(a * 10), np.round(a, 2), (a * 100).round(-1), np.rint(a), np.trunc(a), np.ceil(a)


@captured(both)
def compared(f, i):
    return f > 0, i >= 2, f == i, i != 3, (f > 0) & (i > 1), np.less(f, i), f < 0.5, (f < i).dtype


@captured(lambda: (np.float32(2.5), f32()), lambda: (np.float32(2.5), f32()))
def array_times_scalar(s, a):
    return a * s, s + a, (a * s).dtype


@captured(one)
def array_times_constant_scalar(a):
    return a * np.float64(2), a + np.int64(1), a * np.float32(0.5), (a * np.float64(2)).dtype, a * np.pi


@captured(lambda: (np.array(2.0), np.array(3, dtype=np.int32)))
def no_dimensions(a, b):
    return a + b, type(a + b).__name__, np.sin(a), a.ndim, a.shape, a * 1


@captured(both)
def powers(f, i):
    return f ** 2, i ** 2, f ** 3, abs(f) ** 0.5, np.power(f, 2), i ** 0, (i ** 2).dtype


# -- reductions


@captured(grid, lambda: (np.arange(6, dtype=np.int32).reshape(2, 3),), lambda: (np.ones((2, 3), dtype=bool),))
def sums(a):
    return a.sum(), a.sum(axis=0), a.sum(axis=1, keepdims=True), np.sum(a, axis=(0, 1)), a.sum(-1), a.sum().dtype, \
        a.sum(0).dtype, np.sum(a, keepdims=True)


@captured(grid, lambda: (np.arange(6, dtype=np.int8).reshape(2, 3),))
def means(a):
    return a.mean(), a.mean(0), a.mean(axis=1, keepdims=True), a.mean().dtype, np.mean(a, (0, 1)), \
        type(a.mean()).__name__


@captured(grid)
def variances(a):
    return a.var(), a.std(0), np.var(a, axis=1, ddof=1), a.std(ddof=1), np.std(a, axis=0, keepdims=True)


@captured(grid, lambda: (np.arange(6).reshape(2, 3),))
def extremes(a):
    return a.max(), a.min(0), np.max(a, axis=1, keepdims=True), np.amin(a), np.ptp(a), a.max().dtype, np.ptp(a, axis=0)


@captured(lambda: (np.array([[1, 3, 3], [0, 2, 2]]),), lambda: (np.array([[False, True, True]]),))
def positions(a):
    return a.argmax(), a.argmin(), np.argmax(a, axis=1), a.argmin(axis=0), type(a.argmax()).__name__


@captured(grid, lambda: (np.arange(6, dtype=np.int16).reshape(2, 3),))
def accumulated(a):
    return np.cumsum(a), a.cumsum(axis=1), np.cumprod(a, 0), np.cumsum(a).dtype


@captured(lambda: (np.array([[1.0, 0.0], [2.0, 3.0]]),))
def truths(a):
    return a.all(), a.any(), np.all(a, axis=0), (a > 1).any(axis=1), (a > 1).all(axis=1, keepdims=True), \
        type(a.all()).__name__


@captured(lambda: (np.arange(4, dtype=np.float32),))
def sum_with_dtype(a):
    return a.sum(dtype=np.float64), a.astype(np.int32).sum(dtype="int64"), np.mean(a, dtype=np.float64).dtype


@captured(grid)
def scalars_further(a):
    total = a.sum()
    return total * 2, total / 3, a / total, a - a.mean(), (a - a.mean()) / (a.std() + 1e-5), -total, total > 0, \
        abs(total)


@captured(grid)
def scalars_to_python(a):
    return float(a.sum()), a.max().item(), a[0, 0].item(), float(a[1, 2]) + 1, int(a.size), len(a)


@captured(lambda: (np.arange(4),))
def integers_to_python(a):
    return int(a.sum()), a[2].item(), a.tolist(), a.sum().tolist()


# -- shapes and views


@captured(grid)
def views(a):
    return a.T, a.reshape(3, 2), a.reshape(-1), a.ravel(), a.transpose(1, 0), a.swapaxes(0, 1), np.transpose(a), \
        a[None], np.expand_dims(a, 0), a.reshape((6,)), np.reshape(a, (1, -1)), a.flatten(), a.copy()


@captured(grid)
def copies_where_numpy_copies(a):
    b = a.T.reshape(-1)
    c = a.T.ravel()
    d = a.flatten()
    b += 1
    c += 2
    d += 3
    return a, b, c, d


@captured(grid)
def squeezed(a):
    b = a[:, None, :]
    return b.squeeze(), b.squeeze(1), np.squeeze(b, axis=1), np.moveaxis(b, 0, -1), b.shape, b.ndim, b.size


@captured(grid)
def writes_through_views(a):
    row = a[1]
    row += 1
    column = a[:, 0]
    column[:] = 9
    a.T[2] *= 2
    a.reshape(-1)[3] = 4
    return a, row, column


@captured(grid)
def sliced(a):
    return a[0], a[:, 1], a[1:, :2], a[..., 0], a[::2], a[0, 1], a[-1, -1], a[:], a[()]


@captured(lambda: (np.arange(8.0)[::2],), lambda: (np.arange(8.0).reshape(2, 4).T,))
def odd_layouts(a):
    return a + 1, a * a, (a + 1).strides, a.copy(), np.exp(a), a.reshape(-1)


@captured(lambda: (np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1),))
def layout_of_results(a):
    return a + 1, (a + 1).strides, np.sin(a), a.sum(0), a.astype(np.float32), a.copy(), np.zeros_like(a)


@captured(grid)
def scalar_of_an_item(a):
    first = a[0, 0]
    a[0, 0] = 100
    return first, a[0, 0], first + 1


@captured(grid)
def joined(a):
    return np.concatenate([a, a]), np.concatenate((a, a + 1), axis=1), np.stack([a, a]), np.stack([a, a], axis=-1), \
        np.vstack([a, a]), np.hstack([a, a]), np.concatenate([a, a], axis=None)


@captured(both)
def joined_types(f, i):
    return np.concatenate([f, i]), np.stack([i, f]).dtype, np.concatenate([f.astype(np.float64), f])


@captured(lambda: (np.arange(6.0),))
def parts(a):
    b, c, d = np.split(a, 3)
    b += 1
    return a, b, c + d, np.split(a, [2, 5])


@captured(grid)
def repeated(a):
    return np.tile(a, 2), np.tile(a, (2, 1)), np.repeat(a, 2), a.repeat(2, axis=1), np.roll(a, 1), np.roll(a, 1, axis=0)


@captured(grid)
def chosen(a):
    return np.where(a > 0, a, 0), np.where(a > 0, a, -a), np.where(a > 0, 1, 0), np.where(a > 0, 1.0, a).dtype, \
        np.clip(a, -0.5, 0.5), a.clip(0, 1), a.clip(min=0), np.clip(a, None, 0.25)


@captured(grid)
def products(a):
    return a @ a.T, np.dot(a, a.T), a[0] @ a[1], np.dot(a[0], a[1]), np.outer(a[0], a[1]), \
        np.einsum("ij,kj->ik", a, a), np.matmul(a, a.T), np.tensordot(a, a, 2), type(a[0] @ a[1]).__name__


@captured(grid)
def triangles(a):
    return np.tril(a), np.triu(a, 1), np.trace(a[:, :2]), np.diff(a), np.diff(a, axis=0), np.sort(a), np.sort(a, axis=0)


# -- subscripts


@captured(lambda: (np.arange(12.0).reshape(4, 3), np.array([0, -1, 2])))
def picked(a, i):
    return a[i], a[:, i], a[[0, 2]], np.take(a, i, axis=0), a[i, i[:1] - i[:1]], a[np.array([[0, 1], [2, 3]])]


@captured(lambda: (torch.randn(4, 3), np.array([0, -1, 2])), lambda: (torch.randn(4, 3), np.array([1, 1], np.int32)),
          lambda: (torch.randn(4, 3), np.array([3, 0, 1])))
def tensors_at_places_of_arrays(x, i):
    y = x.clone()
    y[i] = 7
    y[i[:2], 1] += x[i[1:], 0].sum()
    return x[i], x[:, i[:2] * 0], x[i, abs(i) % 3], y, x[i[::2]]


@captured(lambda: (torch.randn(3, 3), np.array([True, False, True])))
def tensors_under_masks_of_arrays(x, mask):
    y = x.clone()
    y[mask] = 0
    y[:, ~mask] *= 2
    return x[mask], x[:, mask], y


@captured(grid)
def masked_writes(a):
    a[a < 0] = 0
    a[a > 1] = 1.0
    return a


@captured(grid)
def item_writes(a):
    a[0, 1] = 5
    a[1] = [1, 2, 3]
    a[:, 2] = a[:, 0]
    a[0] = a.sum()
    a[:, 1:] = np.float64(2.5)
    return a


@captured(lambda: (np.zeros(5, np.float32), np.array([0, -1, 3, 3]), torch.randn(4)),
          lambda: (np.arange(5), np.array([2, 2, 4, -5], dtype=np.int8), torch.randn(4) * 9))
def writes_at_computed_places(a, places, x):
    new = x.abs().numpy()
    for place, value in zip(places, new):
        a[place] = value
        a[place - 1] += 2
    a[places[0]] = 7
    return a, [a[place] for place in places]


@case(lambda: (np.zeros(5, np.float32), np.array([0, 7]), torch.randn(2)))
def writes_outside(a, places, x):
    try:
        for place, value in zip(places, x.numpy()):
            a[place] = value
    except IndexError as error:
        return str(error), a
    return a


@captured(*[lambda k=k: (f32(4), 0.3 + 1.7 * k, 2**24 + 3 * k, k) for k in range(6)],
          lambda: (f32(4), 1e-42, 3, 1), lambda: (f32(4), float("inf"), 2**60 + 1, 2))
def numbers_that_change(a, x, n, i):
    b = a * x + 1 / x, abs(a) ** (x / 2), np.maximum(a, x), a - n, a > x
    a[i % 4] = x
    a[i % 3] += n * x
    return b, a, np.full(3, x, np.float32) * a[0]


@captured(lambda: (np.arange(6),))
def writes_convert(a):
    a[0] = 2.7
    a[1:3] = np.array([3.9, -1.2])
    a[3] = True
    return a


@captured(lambda: (np.arange(6.0),))
def overlapping_write(a):
    a[1:] = a[:-1]
    a[:3] += a[3:]
    a[1:] += a[:-1]
    return a


@captured(lambda: (np.arange(6, dtype=np.float32),))
def in_place_operators(a):
    b = a
    a += 1
    a *= 2
    a -= np.arange(6, dtype=np.float32)
    a /= 3
    a **= 2
    return a is b, a


@captured(lambda: (np.arange(6, dtype=np.float32), np.arange(6.0)))
def in_place_casts(a, b):
    a += b
    a *= np.float64(3)
    return a, a.dtype


@captured(one)
def out_argument(a):
    b = np.zeros(4, dtype=np.float32)
    c = np.add(a, 1, out=b)
    np.multiply(b, 2, b)
    d = np.sum(a, axis=0, keepdims=True, out=b[:1])
    return c is b, b, d


@captured(lambda: (np.array([3.0, 1.0, 2.0]),))
def argmax_as_index(a):
    return a[a.argmax()], a[np.argmin(a)] + 1


@captured(one)
def iterated(a):
    total = 0
    for v in a:
        total = total + v * 2
    return total, [v for v in a], [row.sum() for row in np.stack([a, a])]


@captured(one)
def written_while_iterated(a):
    seen = []
    for i, v in enumerate(a):
        a[3] = i
        seen.append(v)
    return seen


# -- new arrays, and constants


@captured(one)
def new_arrays(a):
    return np.zeros(3), np.ones((2, 2), dtype=np.float32), np.full(2, 7), np.arange(5), np.arange(0, 1, 0.25), \
        np.linspace(0, 1, 5), np.eye(2), np.array([1, 2, 3]), np.array([[1.5, 2]]), a + np.arange(4)


@captured(one)
def new_arrays_are_new(a):
    b = np.zeros(3)
    b[0] = 1
    c = np.array([1.0, 2.0])
    c += 1
    return b, c, a


@captured(grid)
def like_another(a):
    return np.zeros_like(a), np.ones_like(a, dtype=np.int64), np.full_like(a, 2.5), np.zeros_like(a.T).strides


@captured(one)
def made_of_scalars(a):
    return np.array([a.sum(), a.max(), 3]), np.array([a, a]), np.stack([a.mean(), a.std()]), np.asarray(a) is a, \
        np.array(a), np.asarray([a[0], 1.0])


@captured(lambda: (f32(3),), lambda: (f32(5),), lambda: (f32(6),))
def sizes_that_change(a):
    return a * 2 + np.arange(a.shape[0]), np.zeros(a.shape), a.sum(), np.ones(len(a), dtype=np.float32), \
        a.reshape(-1, 1)


@captured(one)
def conversions(a):
    return a.astype(np.float64), a.astype("int64"), a.astype(np.float32), a.astype(np.float32, copy=False) is a, \
        a.astype(bool), a.astype(np.int64).dtype, np.float32(a[0]), np.float64(2) * np.float32(3)


@captured(one)
def dtypes(a):
    return a.dtype == np.float32, a.dtype is np.dtype("float32"), a.dtype.name, a.itemsize, a.nbytes, \
        np.issubdtype(a.dtype, np.floating), a.dtype.kind == "f", isinstance(a, np.ndarray), \
        isinstance(a[0], np.floating)


@case(lambda: (np.dtype("float32"), f32()), lambda: (np.dtype("int64"), f32()))
def dtype_argument(d, a):
    return a.astype(d), d == np.float32


@case(one)
def another_default_device(a):
    with torch.device("meta"):
        return 2.0 - a, np.sqrt(a * a + 1), a % 3, np.round(a, 2), np.zeros(a.shape[0]), np.full_like(a, 2)


@case(lambda: (f32(2, 2),))
def under_autocast(a):
    with torch.autocast("cpu", torch.bfloat16):
        return a @ a, np.dot(a, a), a.sum()


# -- tensors and arrays


@captured(lambda: (torch.randn(4),), lambda: (torch.randn(4),))
def round_trip(x):
    a = np.sin((x * 2).numpy()) + 1
    return torch.from_numpy(a) * x, a


@captured(lambda: (torch.randn(4),))
def shared_both_ways(x):
    a = x.numpy()
    a[0] = 7
    x[1] = 8
    t = torch.from_numpy(a)
    t += 1
    return x, a, t


@captured(one)
def argument_as_tensor(a):
    t = torch.from_numpy(a)
    t.mul_(2)
    a += 1
    return torch.as_tensor(a), torch.tensor(a), t + 1


@captured(lambda: (np.arange(6.0).reshape(2, 3).T,), lambda: (np.arange(12.0)[::2],), lambda: (np.array(2.0),), one,
          lambda: (np.arange(4),), lambda: (np.array([True, False]),))
def tensors_made_of_arrays(a):
    made = [torch.tensor(a), torch.as_tensor(a), torch.asarray(a)]
    made += [make(a, dtype=dtype) for make in (torch.tensor, torch.as_tensor, torch.asarray)
             for dtype in (torch.float32, torch.float64, torch.int64)]
    made += [torch.tensor(a, device="cpu"), torch.as_tensor(a, dtype=None, device=torch.device("cpu"))]
    a[...] = a + 1  # seen by those in the same memory
    return made, a


@captured(one, lambda: (np.arange(1.0, 5.0),), lambda: (np.arange(4),))
def tensors_made_of_numbers(a):
    top = a.max()
    made = [make(top, **how) for make in (torch.tensor, torch.as_tensor, torch.asarray)
            for how in ({}, {"dtype": torch.float32}, {"dtype": torch.float64})]
    return made, torch.tensor([1.0]) * torch.as_tensor(a[0])


@captured(lambda: (f32(2, 3).T, torch.randn(3)), lambda: (np.arange(3.0), torch.randn(3)))
def legacy_constructors(a, x):
    made = [torch.Tensor(a), torch.FloatTensor(a), torch.DoubleTensor(a), torch.LongTensor(a), torch.FloatTensor(x)]
    made += [torch.FloatTensor([[1, 2.5], [x.sum().item(), 4]])]
    made += [torch.LongTensor([1.7, True]), torch.BoolTensor((0.5, 0))]
    made += [torch.FloatTensor(2, 3).fill_(1), torch.IntTensor(x.shape).zero_(), torch.ByteTensor().dtype]
    made[1] += 1
    made[4] += 1
    return made, a, x


@captured(lambda: (torch.randn(2, 3),))
def views_of_tensors(x):
    a = x.numpy()
    b = a.T
    b[0] = 0
    return x, b, torch.from_numpy(b)


@captured(lambda: (torch.randn(2, 3, requires_grad=True),))
def detached(x):
    a = x.detach().numpy()
    return (x * torch.from_numpy(a * 2)).sum(), a.mean()


@captured(lambda: (torch.arange(4.0),))
def statistics_of_a_tensor(x):
    a = np.asarray(x.numpy())
    return {"mean": a.mean(), "std": a.std(), "max": a.max()}, x / float(a.max())


@captured(lambda: (torch.randn(3), f32(3)))
def arrays_of_both(x, a):
    return torch.from_numpy(a + x.numpy()), np.concatenate([a, x.numpy()])


# -- what breaks, and is right


@case(lambda: (np.arange(6.0),))
def reversed_view(a):
    b = a[::-1]
    b[0] = 100
    return a, b, np.flip(a)


@case(lambda: (np.arange(6.0).reshape(2, 3),))
def read_only_results(a):
    b = np.broadcast_to(a, (2, 2, 3))
    return b, b.flags.writeable, np.diagonal(a)


@case(lambda: (np.array([1.0, -1.0, 2.0]),))
def sizes_by_data(a):
    return a[a > 0], np.nonzero(a), np.unique(a), np.where(a > 0)


@case(lambda: (np.array([1, 0, -7]), np.array([0, 3, 2])))
def integer_division_by_zero(a, b):
    with np.errstate(all="ignore"):
        return a // b, a % b


@case(lambda: (np.array([1, 2]),))
def negative_power(a):
    try:
        return a ** -1
    except ValueError as error:
        return str(error)


@case(lambda: (np.array([1.0, 0.0]),))
def errors_that_raise(a):
    with np.errstate(divide="raise"):
        try:
            return 1.0 / a
        except FloatingPointError as error:
            return str(error)


@case(lambda: (np.array([1, 2], dtype=np.int8),))
def number_out_of_range(a):
    try:
        return a + 300
    except OverflowError as error:
        return type(error).__name__


@case(lambda: (np.arange(3), np.arange(3.0)))
def unsafe_in_place(a, b):
    try:
        a += b
    except TypeError as error:
        return type(error).__name__, a


@case(lambda: (np.arange(3.0), np.arange(2.0)))
def shapes_that_differ(a, b):
    try:
        return a + b
    except ValueError as error:
        return str(error)


@case(lambda: (np.arange(3.0),))
def index_out_of_range(a):
    try:
        return a[5]
    except IndexError as error:
        return str(error)


@case(lambda: (np.arange(3).astype(">i4"),), lambda: (np.arange(3).astype(np.uint16),))
def other_dtypes(a):
    return a + 1, (a + 1).dtype.str


@case(lambda: (np.array([1 + 2j, 3]),))
def complex_numbers(a):
    return a * 2, a + a, a.real, abs(a), a.conj()


@case(lambda: (np.arange(3.0),))
def branch_on_data(a):
    if a.sum() > 2:
        return a * 2
    return a


@case(lambda: (np.arange(12).reshape(3, 4),))
def mixed_subscripts(a):
    return a[0, [1, 2]], a[[0, 1], 1:, None], a[:, [0, 1]][[0, 2]], a[[0, 1], [1, 2]]


@case(lambda: (np.ma.masked_array([1.0, 2.0], [True, False]),))
def subclass(a):
    return a + 1


@case(lambda: (np.arange(6.0), 2), lambda: (np.arange(6.0), 3), lambda: (np.arange(6.0), 4))
def index_that_changes(a, i):
    return a[i], a[:i], a[i:], a[i - 1 : i]


def _overlapping():
    memory = np.arange(6.0)
    return memory[:4], memory[2:], torch.from_numpy(memory)


@case(lambda: (np.zeros(4), np.ones(4), torch.zeros(6)), _overlapping)
def memory_in_common(a, b, t):
    s = b.sum()
    a += 1
    return s, b * 2, t + 1


@case(lambda: (f32(3), 1.5), lambda: (f32(3), 2.5), lambda: (f32(3), 3.5))
def float_that_changes(a, s):
    return a * s, (a * s).dtype, a + s


@captured(lambda: (torch.randn(3, 4),))
def lists_of_numbers_that_were_computed(x):
    losses = [row.sum().item() for row in x]
    hits = [(row > 0).sum().item() for row in x]
    return (np.mean(losses), np.std(losses), np.sum(losses), np.max(losses), np.mean(hits), np.argmax(losses),
            np.cumsum(hits), np.sum((losses[0], 2), axis=0, keepdims=True))


test_all = make_test(__name__)


def test_the_guard_on_errors_follows_every_change() -> None:
    """Its answer is kept, but for equal settings only."""
    with warnings.catch_warnings(), np.errstate(all="warn"):
        warnings.simplefilter("ignore")
        for _ in range(2):
            assert errors_are_silent(np)
            with np.errstate(divide="raise"):
                assert not errors_are_silent(np)
            assert errors_are_silent(np)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert not errors_are_silent(np)
            assert errors_are_silent(np)
            warnings.filters.insert(0, ("error", None, RuntimeWarning, None, 0))
            assert not errors_are_silent(np)
            del warnings.filters[0]
            before = np.seterr(over="call")
            assert not errors_are_silent(np)
            np.seterr(**before)
        warnings.filterwarnings("error", "overflow")
        assert not errors_are_silent(np)
