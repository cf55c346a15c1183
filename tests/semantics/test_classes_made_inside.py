"""Classes that a function makes with help of the library: autograd functions, dataclasses, named tuples."""


import dataclasses
import functools
from collections import namedtuple
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch

import jitpy
from tests.semantics.harness import case, make_test

X = lambda: (torch.randn(3),)  # noqa: E731
G = lambda: (torch.randn(3, requires_grad=True),)  # noqa: E731


@case(X, lambda: (torch.randn(4),), fullgraph=True)
def masked_sum(x):
    return torch.masked.sum(x, 0, mask=x > 0)


@case(X, G, fullgraph=True)
def masked_softmax(x):
    masked = torch.masked
    return (masked.softmax(x, 0, mask=x > 0), masked.mean(x, 0, mask=x > 0), masked.amax(x, 0), masked.cumsum(x, 0),
            masked.normalize(x, 2.0, 0), masked.logsumexp(x, 0), masked.var(x, 0))


@case(X, G, breaks=("local_class",))
def local_function(x):
    scale = x.shape[0]
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * scale
        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * scale * x
    return Scaled.apply(x + 1).sin()


@case(X, breaks=("local_class",))
def local_function_escapes(x):
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2
        @staticmethod
        def backward(ctx, g):
            return g * 5
    return Twice.apply(x), Twice.__name__, [Twice], Twice._backward_cls.__name__


@dataclass
class Base:
    a: int
    b: list = field(default_factory=list)


@case(X, X)
def dc_default_tensor(x):
    @dataclass
    class P:
        t: Any
        u: Any = x
        n: ClassVar[int] = 4
        def total(self): return self.t + self.u * self.n
    return P(1.0).total(), P(x * 2, x + 1).total()


@case(X, X, breaks=("local_class", "local_class"))
def dc_inherits(x):
    @dataclass
    class P(Base):
        c: int = 5
        def __post_init__(self):
            self.b.append(self.c)
    @dataclass(order=True)
    class Q(P):
        d: int = 7
    q = Q(1)
    shown = repr(q), dataclasses.astuple(q), Q(1, [2]) < Q(2, [1]), P.__match_args__, isinstance(q, Base)
    return x * q.d + q.b[0], shown


@case(X, X, breaks=("local_class", "local_class"))
def dc_escapes(x):
    @dataclass(frozen=True)
    class P:
        "doc"
        a: Any
        b: int = 3
    return P(x), P, P.__doc__


@case(X, X, factory=True, breaks=("local_class", "local_class"))
def dc_escapes_used():
    made = []
    def fn(x):
        @dataclass(order=True)
        class P:
            a: int
            b: int = field(default=3, repr=False)
            c: list = field(default_factory=lambda: [1])
        p = P(2)
        made.append(p)
        return x + 1
    def watched():
        return [(repr(p), p == type(p)(2), type(p)(3) > p, dataclasses.asdict(p), dataclasses.fields(p)[1].repr,
                 type(p).__doc__, type(p).__init__.__qualname__) for p in made]
    class W:
        def __repr__(self): return repr(watched())
    return fn, [W()]


@case(X, X)
def dc_mutable_default(x):
    try:
        @dataclass
        class P:
            a: list = []
    except ValueError as e:
        return x, str(e)


@case(X, X)
def dc_wrong_order(x):
    try:
        @dataclass
        class P:
            a: int = 1
            b: int
    except TypeError as e:
        return x, str(e)


@case(X, X)
def dc_initvar(x):
    @dataclass(kw_only=True)
    class P:
        a: int
        s: dataclasses.InitVar[int] = 2
        r: int = field(init=False)
        def __post_init__(self, s): self.r = self.a * s
    p = P(a=4)
    match p:
        case P(a=4, r=r):
            y = x * r
    return y, [f.name for f in dataclasses.fields(p)], dataclasses.replace(p, a=5, s=3).r, dataclasses.is_dataclass(P)


@case(X, X)
def dc_break(x):
    @dataclass
    class P:
        a: Any
    p = P(x)
    jitpy.graph_break()
    return p.a + 1, repr(P(3)), type(p) is P


@case(X, X)
def dc_hash(x):
    @dataclass(frozen=True)
    class K:
        a: int
    try:
        d = {K(1): 2}
        return x * d[K(1)]
    except TypeError as e:
        return x, str(e)


@case(X, X)
def dc_setattr_after(x):
    @dataclass
    class P:
        a: int = 2
    P.extra = 5
    return x * P().a + P.extra


def tagged(cls):
    cls.tag = cls.__name__.lower()
    return cls


@case(X, X)
def dc_decorated_twice(x):
    @tagged
    @dataclass
    @functools.total_ordering
    class P:
        a: int = 2
        def __lt__(self, o): return self.a < o.a
    return x * P().a, P.tag, P(1) <= P(2)


@case(X, X, breaks=("local_class",))
def nt_more(x):
    P = namedtuple("P", "a b c", defaults=[1, x])
    p = P(3)
    q = p._replace(b=9)
    a, b, c = q
    shown = repr(P(1, 2, 3)), P._fields, P(1, 2, 3) == (1, 2, 3), P._field_defaults["b"], P._make([1, 2, 3])._asdict()
    return p.c * a, q.b, shown, p[0], len(p), P.__name__, P.__doc__


@case(X, X, breaks=("local_class",))
def nt_escapes(x):
    P = namedtuple("P", ["a", "b"])
    return P(x, 2), P(1, 2)._asdict(), P.__module__


@case(X, X, breaks=("local_class",))
def nt_subclass(x):
    class P(namedtuple("P", "a b")):
        __slots__ = ()
        @property
        def s(self): return self.a + self.b
    return x * P(1, 2).s, P(1, 2), P(x, 3).s


@case(X, X)
def nt_attr(x):
    P = namedtuple("P", "a b")
    P.__new__.__defaults__ = (1, 2)
    P.__doc__ = "q"
    return x * P().b


@case(X, breaks=("local_class",))
def nt_error(x):
    try:
        namedtuple("P", "a a")
    except ValueError as e:
        return x, str(e)


@case(X, X, breaks=("local_class",))
def make_dc(x):
    P = dataclasses.make_dataclass("P", [("a", int), ("b", int, field(default=3))])
    return x * P(1).b, repr(P(2)), P.__module__


@case(X, breaks=("local_class", "local_class"))
def dc_local(x):
    @dataclass
    class P:
        a: torch.Tensor
        b: int = 3
    p = P(x)
    return p.a * p.b, repr(P(1, 2)), P(1) == P(1), P.__name__


@case(X, breaks=("local_class", "local_class"))
def dc_local_frozen(x):
    @dataclass(frozen=True, order=True)
    class P:
        a: int
        b: int = 3
    p = P(1)
    try:
        p.a = 4
    except dataclasses.FrozenInstanceError as e:
        m = str(e)
    return x * p.b, hash(P(1)) == hash(P(1)), P(1) < P(2), m


@case(X)
def dc_local_field(x):
    @dataclass(slots=True)
    class P:
        a: Any
        made: list = field(default_factory=list)
        def __post_init__(self):
            self.made.append(1)
    p = P(x)
    return x + len(p.made), dataclasses.asdict(P(1)), [f.name for f in dataclasses.fields(P)]


@case(X, breaks=("local_class",))
def nt_local(x):
    P = namedtuple("P", "a b")
    p = P(x, 2)
    return p.a * p.b, p._fields


@case(X)
def nt_typing_local(x):
    class P(NamedTuple):
        a: Any
        b: int = 2
    p = P(x)
    return p.a * p.b, p._asdict()["b"]


test_all = make_test(__name__)
