"""Operators and calls between members of enumerations, derived numbers, containers and tensors."""

from __future__ import annotations

import collections
import enum

import torch
import torch.nn.functional as F

from tests.semantics.harness import case, make_test


class IE(enum.IntEnum):
    A = 0
    B = 1
    C = 2


class FE(float, enum.Enum):
    H = 0.5


class SE(str, enum.Enum):
    MEAN = "mean"


class IF(enum.IntFlag):
    A = 1
    B = 2


class OI(int):
    pass


class OF(float):
    pass


L = lambda: (torch.tensor([0, 1, 2, 1]),)
D = lambda: (torch.randn(3, 3),)


@case(L, fullgraph=True)
def labels(y):
    return (
        y == IE.B,
        IE.B == y,
        y != IE.A,
        y > IE.A,
        IE.A < y,
        y + IE.B,
        y * IF.B,
        y.eq(IE.B),
        torch.eq(y, IE.B),
        torch.where(y == IE.C, IE.A, y),
        y[IE.B],
        y == IF.A,
        y == SE.MEAN,
        y <= OI(1),
        OI(1) >= y,
        y == OF(1.0),
        y.masked_fill(y == IE.B, IE.C),
        torch.full((IE.C,), IE.B),
        y.view(IE.C, -1),
        y.clamp(IE.A, IE.B),
        y.sum(IE.A),
        y.unsqueeze(dim=IE.A),
        y.float() * FE.H,
        y < FE.H,
        torch.zeros(IE.C),
        y.float().add(1, alpha=IE.C),
        y // IE.C,
        y % IE.C,
        IE.C - y,
        y**IE.C,
        y.repeat(IE.C),
        y.split(IE.C)[0],
        torch.arange(IE.C),
        (y == IE.B).sum() == IE.C,
    )


@case(D, fullgraph=True)
def reductions(x):
    return (
        F.mse_loss(x, x * 2, reduction=SE.MEAN),
        x.transpose(IE.A, IE.B),
        x.softmax(IE.B),
        torch.cat([x, x], IE.B),
        x.mean(dim=[IE.A, IE.B]),
        x.flip(IE.A),
        x.chunk(IE.C),
        x[: IE.C],
        x[IE.A, IE.B],
        x.norm(IE.C),
        F.dropout(x, OF(0.0)),
        x * OI(3),
        OI(3) * x,
        x - OF(0.5),
        x > OF(0.5),
    )


class A:
    def __eq__(s, o):
        return NotImplemented

    __hash__ = object.__hash__


class Y:
    def __eq__(s, o):
        return True


class SL(list):
    def __eq__(s, o):
        return "SLeq"


class SD(dict):
    pass


class IEE(enum.IntEnum):
    A = 1

    def __eq__(s, o):
        return "own"

    def __hash__(s):
        return 1


@case(D, fullgraph=True)
def compares(x):
    d = collections.deque
    return (
        x,
        SL([1]) != A(),
        A() != SL([1]),
        SL([1]) != Y(),
        Y() != A(),
        A() != Y(),
        A() != A(),
        SD(a=1) == collections.Counter("a"),
        SD(a=1) != collections.Counter("a"),
        collections.Counter("a") == SD(a=1),
        d([1]) != d([1]),
        d([1]) != d([2]),
        d([1]) == d([1]),
        d([1]) != [1],
        SL([1]) != [1],
        [1] != SL([1]),
        SL([1]) != SL([1]),
        collections.OrderedDict(a=1) != {"a": 1},
        {"a": 1} != collections.OrderedDict(a=1),
        [1] != Y(),
        (1,) == Y(),
        {1: 2} == Y(),
        {1} != Y(),
    )


@case(L)
def own_enum(y):
    return IEE.A == y, y, IEE.A == 1


@case(D)
def unions(x):
    out = []
    for v in (1, 2.5, "a", None, int):
        try:
            out.append(int | v)
        except TypeError as e:
            out.append(str(e))
    return x, [str(o) for o in out]


class SI(int):
    def __radd__(s, o):
        return "radd"

    def __add__(s, o):
        return "add"


X = lambda: (torch.ones(3),)


@case(X, fullgraph=True)
def boxed(x):
    return x, True + SI(3), 3 + SI(3), SI(1) + True, False - SI(2), sum([SI(1)])


@case(X)
def deq(x):
    class Index:
        def __index__(s):
            return 2

    d = collections.deque([1])
    out = [d * Index(), Index().__index__()]
    for f in (
        lambda: d * torch.tensor(2),
        lambda: torch.tensor(2) * d,
        lambda: d * x,
        lambda: d - x,
        lambda: d * 1.5,
        lambda: d + x,
    ):
        try:
            out.append(f())
        except Exception as e:
            out.append((type(e).__name__, str(e)))
    return x, out


class Reflected:
    def __radd__(self, other):
        return "reflected"

    def __iter__(self):
        return iter([5])


@case(X)
def added_in_place(x):
    plain, derived, queue, other = [1], SL([1]), collections.deque([1]), [1]
    other += (2,)
    kept = plain, derived, queue
    plain += Reflected()
    derived += Reflected()
    queue += Reflected()
    return x + 1, plain, derived, queue, other, kept


@case(*(lambda n=n: (torch.ones(2), n) for n in ((7, 2), (5, 3), (9, 4), (True, 2), (6, False), (2, True))))
def truth_values_beside_numbers_that_change(x, v):
    a, b = v
    return x + 1, a == b, a != b, a < b, a <= b, max(a, b), min(a, b), a + b, a * b


@case(lambda: (torch.zeros(4), True), lambda: (torch.ones(4), True), lambda: (torch.ones(3), False))
def truth_values_beside_sizes_that_depend_on_data(x, v):
    n = x.nonzero().shape[0]
    return x + 1, n == v, n > v, n + v


@case(*(lambda d=d, k=k: (torch.ones(2).to(d), k) for d, k in (
    (torch.float32, True), (torch.float32, 2), (torch.int32, False), (torch.bool, True))))
def truth_values_that_scale_sums(x, scale):
    found = x * 1
    try:
        found = torch.add(x, x, alpha=scale)
        return found, torch.sub(x, 1, alpha=scale)
    except RuntimeError as error:
        return found, str(error)


test_all = make_test(__name__)
