"""numpy arrays and scalars in and out. PYTEST_DONT_REWRITE: cases run as they are written."""

from __future__ import annotations

import numpy as np
import torch

from tests.semantics.harness import case, make_test


def vec(*sizes: int) -> torch.Tensor:
    return torch.randn(*(sizes or (4,)))


def one():
    return (vec(),)


def array():
    return (np.arange(4.0),)


def grid():
    return (np.arange(6, dtype=np.float32).reshape(2, 3),)


@case(array, lambda: (np.arange(6.0),))
def array_argument(a):
    return torch.from_numpy(a) * 2


@case(array)
def array_shares(a):
    t = torch.from_numpy(a)
    t.add_(1)
    return t, a


@case(array)
def array_arithmetic(a):
    return a * 2 + 1, a.sum(), np.sin(a), a.mean(), a[1:], a.dtype


@case(grid, lambda: (np.arange(6).reshape(2, 3),))
def array_reductions(a):
    return a.sum(axis=0), np.max(a, axis=1), a.std(), a.argmax(), np.cumsum(a)


@case(grid, lambda: (np.arange(6).reshape(2, 3),))
def array_shapes(a):
    return a.T, a.reshape(-1), a.ravel(), a[None], a.shape, a.ndim, a.size, a.strides


@case(one)
def tensor_numpy(x):
    a = (x * 2).numpy()
    return a + 1, type(a).__name__, a.dtype


@case(one)
def numpy_shares(x):
    y = x * 2
    a = y.numpy()
    a[0] = 7
    return a, y


@case(one)
def numpy_of_argument(x):
    a = x.numpy()
    a += 1
    return x * 2, a


@case(lambda: (vec().requires_grad_(),))
def numpy_requires_grad(x):
    try:
        return x.numpy()
    except RuntimeError as error:
        return type(error).__name__, x.detach().numpy()


@case(one)
def round_trip(x):
    return torch.from_numpy(np.sin(x.numpy())) + 1


@case(array)
def as_tensor(a):
    t = torch.as_tensor(a)
    u = torch.tensor(a)
    t[0] = 9
    return t, u, a


@case(array, lambda: (np.arange(4),), lambda: (np.arange(4, dtype=np.float32),), lambda: (np.array(2.0),))
def dtype_of_array(a):
    return torch.as_tensor(a) + 1, a.dtype == np.float64


@case(lambda: (np.arange(8.0)[::2],), lambda: (np.arange(8.0).reshape(2, 4).T,))
def odd_strides(a):
    return torch.from_numpy(a) + 1, a * 2, (a * 2).strides


@case(lambda: (np.arange(8.0)[::-1],))
def negative_strides(a):
    try:
        return torch.from_numpy(a)
    except ValueError as error:
        return type(error).__name__, torch.from_numpy(a.copy())


@case(lambda: (np.float64(2.5), vec()), lambda: (np.float64(3.5), vec()))
def float64_argument(s, x):
    return x * s, s * 2, s + x.shape[0], type(s * 2).__name__


@case(lambda: (np.float32(2.5), vec()), lambda: (np.float32(3.5), vec()))
def float32_argument(s, x):
    return x * s, s * 2, type(s * 2).__name__


@case(lambda: (np.int64(2), vec()), lambda: (np.int64(3), vec()), lambda: (np.int64(4), vec()))
def int64_argument(n, x):
    return x * n, x[:n], n + 1, x.new_zeros(n), type(n + 1).__name__


@case(lambda: (np.bool_(True), vec()), lambda: (np.bool_(False), vec()))
def bool_argument(b, x):
    return x + 1 if b else x - 1


@case(lambda: (np.float64(2.5), vec()))
def reflected(s, x):
    try:
        return s * x, type(s * x).__name__
    except TypeError as error:
        return type(error).__name__


@case(lambda: (np.arange(4.0), vec()))
def array_and_tensor(a, x):
    return x + torch.from_numpy(a), type(x.double() + a).__name__


@case(lambda: (np.arange(4.0), vec()))
def array_times_tensor(a, x):
    try:
        r = a * x
        return r, type(r).__name__
    except TypeError as error:
        return type(error).__name__


@case(one)
def function_of_tensor(x):
    return np.sin(x), np.asarray(x), np.array(x)


@case(one)
def made_inside(x):
    a = np.linspace(0, 1, 4)
    return x * torch.from_numpy(a), a


@case(one)
def constants(x):
    return x * np.pi + np.float64(2.0), np.inf, x.shape[0] * np.int64(3), np.sqrt(2.0)


@case(one)
def sizes_from_numpy(x):
    return x.reshape(int(np.prod([2, 2])), -1), int(np.ceil(2.5)), x.repeat(np.int64(2))


@case(one, factory=True)
def random_numbers():
    def fn(x):
        np.random.seed(0)
        return x + torch.from_numpy(np.random.rand(4)), np.random.randint(10)

    return fn


@case(array, factory=True)
def array_in_closure():
    held = np.ones(4)

    def fn(a):
        held[0] += 1
        return torch.from_numpy(held) + torch.from_numpy(a), held.sum()

    return fn, held


@case(lambda: (np.array(["a", "b"]), vec()))
def text_array(a, x):
    return x + len(a), a[0], a.dtype.kind


@case(lambda: (np.array([{"a": 1}, None], dtype=object), vec()))
def object_array(a, x):
    return x + 1, a[0]


@case(lambda: (np.zeros(2, dtype=[("x", "f4"), ("y", "i8")]), vec()))
def structured_array(a, x):
    return x + 1, a["x"]


@case(array)
def array_in_place(a):
    a += 1
    a[0] = 100
    a[1:3] *= 2
    return a.sum(), a


@case(array)
def array_iteration(a):
    return [v * 2 for v in a], len(a), a.tolist(), a[0], type(a[0]).__name__


@case(array)
def array_truth(a):
    try:
        return 1 if a else 2
    except ValueError as error:
        return str(error)


@case(grid)
def array_matmul(a):
    return a @ a.T, np.dot(a, a.T), np.einsum("ij,kj->ik", a, a)


@case(grid)
def array_stacking(a):
    return np.concatenate([a, a], axis=0), np.stack([a, a]), np.where(a > 2, a, 0), np.clip(a, 1, 3)


@case(lambda: (np.arange(3, dtype=np.int32), np.arange(3, dtype=np.float32)))
def array_promotion(i, f):
    return (i + f).dtype, i + f, (i / 2).dtype, i * 2.5, (f * 2).dtype, f * np.float64(2), i // 2


@case(array)
def array_comparison(a):
    mask = a > 1
    return mask, a[mask], mask.any(), np.allclose(a, a), (a == a).all()


@case(lambda: (np.arange(4.0),))
def read_only(a):
    a.flags.writeable = False
    return a + 1, a.flags.writeable


@case(lambda: (np.float64(2.0),), lambda: (2.0,), lambda: (np.float32(2.0),))
def type_of_number(v):
    return type(v).__name__, v * 2, isinstance(v, float), torch.ones(2) * v


@case(lambda: ({"a": np.arange(3.0), "b": [np.ones(2)]},))
def arrays_in_containers(d):
    return torch.from_numpy(d["a"]) + 1, d["b"][0] * 2


@case(one)
def index_with_array(x):
    return x[np.array([0, 2])], x[np.int64(1)], x[torch.from_numpy(np.array([True, False, True, False]))]


@case(one)
def item_and_list(x):
    return np.array(x.tolist()), np.float64(x.sum().item()) * 2


@case(lambda: (np.arange(4.0),), lambda: (np.arange(4.0) + 5,))
def same_shape_other_values(a):
    if a[0] > 1:
        return torch.from_numpy(a) * 100
    return torch.from_numpy(a)


@case(array)
def dtype_objects(a):
    return a.dtype, np.dtype("float32"), a.astype(np.float32), a.astype("int64"), np.float32(1).dtype


@case(lambda: (vec(), np.int64(2)), lambda: (vec(), np.int64(2)), lambda: (vec(), np.float32(0.5)))
def compared_with_tensor(x, n):
    return x == n, n == x, x != n, x > n, n <= x


@case(lambda: (torch.arange(3.0), np.arange(3.0)))
def tensor_equals_array(x, a):
    return x == a, type(a == x).__name__, x != a


@case(lambda: (np.float64(2.0),), lambda: (np.float32(2.0),), lambda: (np.int64(2),))
def tensor_of_number(n):
    return torch.tensor(n), torch.tensor([n, 1]), torch.full((2,), n), torch.as_tensor(n)


@case(lambda: (vec(), np.bool_(True)))
def bool_as_index(x, b):
    try:
        return x[b]
    except IndexError as error:
        return type(error).__name__


@case(lambda: (vec(), np.int64(2)), lambda: (vec(), np.int64(3)))
def number_as_python_int(x, n):
    return [1, 2, 3, 4][n], list(range(n)), n > 1, int(n), f"{n}", max(n, 1), [0] * n, {2: "a", 3: "b"}[n], n in (2,)


@case(lambda: (vec(), np.float64(-0.0)), lambda: (vec(), np.float64(0.0)), lambda: (vec(), np.float64("nan")))
def special_numbers(x, n):
    return x * 0 + n, torch.copysign(x, torch.zeros(4) * n)


@case(one)
def numpy_bfloat(x):
    try:
        return x.bfloat16().numpy()
    except TypeError as error:
        return type(error).__name__


test_all = make_test(__name__)
