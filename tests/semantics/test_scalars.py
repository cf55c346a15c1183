"""Numbers: `.item()`, ints and floats in their corners, sizes as ints. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import torch

from tests.semantics.harness import case, make_test


def vec(*sizes: int) -> torch.Tensor:
    return torch.randn(*(sizes or (4,)))


def one():
    return (vec(),)


@case(lambda: (vec(),), lambda: (vec(6),), lambda: (vec(5),), fullgraph=True)
def item_in_arithmetic(x):
    s = x.sum().item()
    return x * s + 1, s, s * 2


@case(lambda: (torch.arange(4),), lambda: (torch.arange(2, 6),), fullgraph=True)
def integer_item(x):
    n = x.max().item()
    return n + 1, x + n, n // 2, -n, x.sum().item() % 3, float(x[0])


@case(one, lambda: (torch.tensor([1, 3, 2]),), lambda: (torch.tensor([0.5, float("nan")]),), fullgraph=True)
def compared_with_tensors(x):
    n = x.max().item()
    return n > x, n >= x, n < x, n == x, x != n, n <= x.sum(), n + 1 > x.sum()


@case(one, fullgraph=True)
def tolist(x):
    values = (x * 0 + 2).tolist()
    return values, x + 1, values[0] + values[1]


@case(lambda: (torch.tensor(3),), lambda: (torch.tensor(5),))
def item_as_size(n):
    k = n.item()
    return torch.zeros(k), list(range(k))


@case(lambda: (torch.tensor(2), vec()), lambda: (torch.tensor(0), vec()), lambda: (torch.tensor(1), vec()))
def item_as_index(i, x):
    return x[i], x[i.item()], [10, 20, 30][i.item()]


@case(one, lambda: (-torch.ones(4),), lambda: (torch.ones(4),))
def branch_on_item(x):
    if x.sum().item() > 0:
        return x + 1
    return x - 1


@case(one, lambda: (-torch.ones(4),), lambda: (torch.ones(4),), breaks=None)
def branch_on_tensor(x):
    y = x * 2
    if y.sum() > 0:
        z = y + 1
    else:
        z = y - 1
    return z * 3


@case(lambda: (torch.tensor([True, False]),), lambda: (torch.tensor([False, False]),))
def branch_on_any(m):
    if m.any() and not m.all():
        return 1, m
    return (2, ~m) if m.any() else 3


@case(one)
def bool_int_float_of_tensor(x):
    t = (x > 100).sum()
    return bool(t), int(t), float(t), t.item() == 0, complex(t)


@case(one)
def item_of_many(x):
    return x.item()


@case(one)
def truth_of_many(x):
    if x:
        return 1
    return 2


@case(lambda: (vec(), 2, 3), lambda: (vec(), 5, 3), lambda: (vec(), -7, 2), lambda: (vec(), 0, 1))
def integer_arithmetic(x, a, b):
    return x + a // b, a % b, a**b, a << 2, a >> 1, a & b, a | b, a ^ b, ~a, -a // b, divmod(a, b), a / b


@case(lambda: (vec(), 2**62), lambda: (vec(), 2**63), lambda: (vec(), -(2**80)))
def big_integers(x, n):
    return n * 4, n + 1, x * 2


@case(lambda: (vec(), 0),)
def division_by_zero(x, n):
    return x, 5 // n


@case(lambda: (vec(), 0.0))
def float_division_by_zero(x, f):
    return x, 5 / f


@case(lambda: (vec(), 0.1), lambda: (vec(), -0.0), lambda: (vec(), float("nan")), lambda: (vec(), float("inf")))
def float_corners(x, f):
    return x * f, f + 0.2, f == f, f > 1, str(f), f * 0, -f, abs(f), f // 1 if f == f and abs(f) < 1e9 else None


@case(lambda: (vec(), 1.5), lambda: (vec(), 2.5), lambda: (vec(), 3.5), lambda: (vec(), 4.5))
def float_argument_changes(x, f):
    return x * f + f**2


@case(lambda: (vec(), 0.0), lambda: (vec(), -0.0))
def signed_zero_argument(x, z):
    return torch.full((2,), z), z, x * z


@case(lambda: (vec(3, 4),), lambda: (vec(5, 4),), lambda: (vec(6, 8),), lambda: (vec(1, 1),))
def sizes_in_arithmetic(x):
    a, b = x.shape
    return x.reshape(b, a), a * b, a // 2, a - b, (a + b) / 2, torch.zeros(a + 1, b), x.view(-1).shape[0] == a * b


@case(lambda: (vec(3, 4),), lambda: (vec(5, 4),), lambda: (vec(7, 4),))
def sizes_in_branches(x):
    n = x.size(0)
    if n > 4:
        return x[:4]
    return x[: n // 2], range(n), [i for i in range(n)]


@case(lambda: (vec(3),), lambda: (vec(5),), lambda: (vec(8),))
def sizes_in_strings_and_keys(x):
    n = len(x)
    return f"{n}", {n: x}, str(x.shape), n in {3, 8}, "x" * n


@case(lambda: (vec(2, 3), vec(2, 3)), lambda: (vec(4, 3), vec(4, 3)), lambda: (vec(4, 3), vec(1, 3)))
def broadcasting_changes(a, b):
    return a + b, (a * b).sum(0)


@case(lambda: (vec(2, 3), vec(3, 2)), lambda: (vec(4, 5), vec(5, 1)), lambda: (vec(6, 2), vec(3, 3)))
def size_mismatch_later(a, b):
    return a @ b


@case(one, fullgraph=True)
def number_tensor_mixes(x):
    y = x * x + 1
    return 1 - x, 2 / y, 3 // y, x**2, 2**x, x % 2, -x, abs(x), x > 0, 1 <= x, ~(x > 0), round(2.5)


@case(lambda: (torch.arange(1, 5),), fullgraph=True)
def integer_tensors(x):
    bits = (x > 2) & (x < 4), x << 1, ~x
    return x / 2, x // 2, x % -3, -x // 2, x**2, x * 1.5, x + True, x.float().int(), bits


@case(lambda: (torch.tensor([250, 5], dtype=torch.uint8),), fullgraph=True)
def small_integers_wrap(x):
    return x + 10, x * 2, -x, x.to(torch.int8), x // 3, x.sum(), (x + 300) % 7


@case(lambda: (torch.tensor([float("nan"), float("inf"), -0.0, -1.0]),), fullgraph=True)
def special_values(x):
    tests = x.isnan(), x == x, x.sign()
    return x.relu(), x.max(), x.clamp(-1, 1), torch.maximum(x, -x), tests, x.sqrt(), x.nan_to_num()


@case(lambda: (torch.ones(2, dtype=torch.float16),), lambda: (torch.ones(2, dtype=torch.bfloat16) * 3,))
def half_types(x):
    return x + 1, x * 1000 * 1000, x.float() / 3, x.sum(), (x / 3).to(torch.float32)


@case(one, fullgraph=True)
def scalars_as_tensors(x):
    t = torch.tensor(3)
    made = torch.tensor([1, 2.5]), torch.tensor([[1], [2]]).shape, torch.as_tensor(2.0), torch.full((2,), 7)
    return x * t, t + 1, made


@case(one)
def tensor_of_items(x):
    a = x[0].item()
    return torch.tensor([a, a * 2]), torch.tensor(a)


@case(one, fullgraph=True)
def type_promotion(x):
    i = torch.arange(4)
    return x + i, i + 1.0, i * 2, (i > 1) + 1, x.double() + x, torch.ones(1, dtype=torch.float16) + x, i / i.add(1)


@case(lambda: (vec(), True), lambda: (vec(), False))
def booleans_are_numbers(x, b):
    return x + b, b + 1, b * 2.0, not b, b & True, int(b), sum([b, b]), [5, 6][b]


@case(lambda: (vec(), 1 + 2j))
def complex_numbers(x, c):
    return c * 2, abs(c), c.real, x * c, c.conjugate()


@case(lambda: (vec(), 7), lambda: (vec(), 8), lambda: (vec(), 9), lambda: (vec(), 10), rounds=1)
def integer_as_length(x, n):
    return x.repeat(n), torch.arange(n), [0] * n


@case(lambda: (vec(6), 2), lambda: (vec(6), 3), lambda: (vec(6), 6), rounds=1)
def integer_as_view_size(x, n):
    return x.view(n, -1).sum(1), x.chunk(n)[0], x[n - 1]


@case(lambda: (vec(4, 4), 0), lambda: (vec(4, 4), 1), lambda: (vec(4, 4), -1), lambda: (vec(4, 4), 5))
def integer_as_dimension(x, d):
    return x.sum(d), x.softmax(dim=d)


@case(one)
def nonzero_sizes(x):
    i = (x > 0).nonzero()
    return i.shape[0], x[x > 0] * 2, torch.unique(torch.tensor([1, 1, 2]))


@case(lambda: (vec(), [1, 2.0, True, None, "s"]), lambda: (vec(), [1, 2.0, True, None, "s"]))
def constants_of_all_kinds(x, items):
    return [type(v).__name__ for v in items], items[0] == items[2], x + items[0] * items[1]


@case(lambda: (torch.tensor(4.0), torch.tensor(2.0)))
def zero_dim_tensors_as_numbers(a, b):
    return a / b, a**b, float(a) + int(b), max(a, b), min(a, b), a > b, [1, 2, 3][int(b)], range(int(b))


@case(*(lambda v=v: (vec(), v) for v in (1.5, 2.5, -0.25, 4)))
def parts_of_numbers(x, v):
    s, z = x.sum().item(), v + 1j
    flag = x.sum().item() > 0
    return x + 1, v.real, v.imag, s.real, s.imag, z.real, z.imag, (s + 2j).imag, flag.real, flag.imag, x.shape[0].imag


@case(*(lambda v=v: (vec(v), v) for v in (7, 6, 5, 2)))
def comparison_methods_of_numbers(x, v):
    n = x.shape[0]
    return x + 1, v.__eq__(2), v.__ne__(2), (2).__eq__(v), n.__eq__(2), v.__eq__("a"), n.__ne__(2.0), v.__lt__(6)


@case(*(lambda v=v: (vec(), v) for v in (1.5, 2.5, -0.25)))
def comparison_methods_of_floats(x, v):
    s = x.sum().item()
    return x + 1, v.__eq__(2), v.__eq__(2.5), (2).__eq__(v), v.__ge__(2), s.__eq__(2.5), s.__lt__(1)


@case(*(lambda n=n: (vec(), n) for n in (3, 5, 0, -2, -3, 4)))
def lengths_of_ranges_that_change(x, n):
    r = range(n)
    return x + 1, len(r), bool(r), len(r) * 2, "some" if r else "none", len(range(n + 1)), list(r)


class Measured:
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length


@case(*(lambda n=n: (vec(), n) for n in (3, 5, 0, -2, -3, 4)))
def lengths_that_the_program_tells(x, n):
    made = Measured(n)
    try:
        return x + 1, len(made), bool(made)
    except ValueError as error:
        return x + 1, str(error)


@case(one)
def slices_in_order(x):
    return x + 1, slice(1) < slice(2), slice(0, 1) >= slice(0, 5), slice(1) == slice(1)


test_cases = make_test(__name__)
