"""Classes and instances. PYTEST_DONT_REWRITE: cases run as they are written."""

from __future__ import annotations

import abc
import collections
import copy
import dataclasses
import enum
import functools
import typing

import torch

from tests.semantics.harness import case, make_test


def vec(*sizes: int) -> torch.Tensor:
    return torch.randn(*(sizes or (4,)))


def one():
    return (vec(),)


class Plain:
    shared = 10

    def __init__(self, x, n=2):
        self.x = x
        self.n = n

    def scaled(self, k=1):
        return self.x * self.n * k

    @property
    def doubled(self):
        return self.x * 2

    @doubled.setter
    def doubled(self, value):
        self.x = value / 2

    @staticmethod
    def helper(a, b):
        return a - b

    @classmethod
    def build(cls, x):
        return cls(x, cls.shared)


class Child(Plain):
    def __init__(self, x):
        super().__init__(x, n=3)
        self.extra = "e"

    def scaled(self, k=1):
        return super().scaled(k) + 1

    @property
    def doubled(self):
        return super().doubled + 0.5


@case(one, fullgraph=True)
def instance_made_and_used(x):
    p = Plain(x)
    p.n += 1
    p.fresh = p.n
    return p.scaled(2) + Plain.helper(x, 1) + p.helper(x, 2), p.fresh, p.shared, Plain.build(x).n


@case(one)
def instance_returned(x):
    p = Plain(x + 1)
    p.other = [p, x]
    return p


@case(one, fullgraph=True)
def inheritance_and_super(x):
    c = Child(x)
    c2 = Child.build
    return c.scaled(), c.doubled, c.extra, isinstance(c, Plain), issubclass(Child, Plain), type(c).__name__, c2.__name__


@case(lambda: (Plain(vec()),), lambda: (Plain(vec(), 5),), lambda: (Child(vec()),))
def instance_argument(p):
    return p.scaled(), p.doubled


@case(lambda: (Plain(vec()), 3))
def instance_mutated(p, k):
    p.x = p.x + 1
    p.n = k
    p.new = [k]
    p.doubled = torch.ones(4)
    del p.n
    return p.new


@case(lambda: (Plain(vec()),))
def deleted_attribute(p):
    del p.x
    return hasattr(p, "x"), p.x


@case(one, factory=True)
def instance_state_counts():
    p = Plain(torch.zeros(4), 0)

    def fn(x):
        p.n += 1
        p.x = p.x + x
        return p.x * p.n

    return fn, p


@case(one, factory=True)
def bound_method_of_state():
    p = Plain(torch.ones(4), 2)

    def fn(x):
        p.x.add_(x)
        method = p.scaled
        return method(3)

    return fn, p


@case(one, factory=True)
def class_attribute_written():
    class Local:
        total = 0

    def fn(x):
        Local.total += 1
        return x + Local.total

    return fn, Local.__dict__.get("total")


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: typing.Any = 3
    items: list = dataclasses.field(default_factory=list)

    def both(self):
        return self.left * self.right


@dataclasses.dataclass(frozen=True)
class Frozen:
    n: int
    x: typing.Any = None


@dataclasses.dataclass(slots=True, order=True)
class Ordered:
    a: int
    b: float = 1.0


@case(one, fullgraph=True)
def dataclasses_used(x):
    p = Pair(x)
    p.items.append(p.right)
    q = dataclasses.replace(p, right=5)
    names = [f.name for f in dataclasses.fields(p)]
    return p.both() + q.both(), p.items is q.items, names, Ordered(1) < Ordered(1, 2.0)


@case(one)
def dataclass_returned(x):
    return Pair(x, right=x + 1), Ordered(3)


@case(lambda: (vec(), Frozen(3)), lambda: (vec(), Frozen(4)))
def frozen_dataclass(x, f):
    try:
        f.n = 3
    except dataclasses.FrozenInstanceError as e:
        return x * f.n, str(e), f == Frozen(3), repr(f)


@case(lambda: (Pair(vec()),))
def dataclass_argument(p):
    p.right = p.left * 2
    return dataclasses.asdict(Ordered(1)), p.both()


class Color(enum.Enum):
    RED = 1
    BLUE = "b"

    @property
    def low(self):
        return self.name.lower()


class Flags(enum.IntFlag):
    A = 1
    B = 2


@case(lambda: (vec(), Color.RED), lambda: (vec(), Color.BLUE))
def enum_argument(x, color):
    if color is Color.RED:
        return x + color.value, color
    return x * 2, color.low, Color("b") is color, Color["RED"], list(Color), color == Color.BLUE


@case(lambda: (vec(), Flags.A | Flags.B), lambda: (vec(), Flags.A))
def int_flag(x, flags):
    if flags & Flags.B:
        x = x * 2
    return x * int(flags), Flags.A in flags, flags | Flags.B


class Named(typing.NamedTuple):
    x: torch.Tensor
    n: int = 4

    def total(self):
        return self.x.sum() * self.n


Old = collections.namedtuple("Old", "a b")


@case(lambda: (Named(vec()),), lambda: (Named(vec(), 2),))
def named_tuple_argument(t):
    x, n = t
    return t.total(), t._replace(n=n + 1), t[0] * 2, len(t), t._fields, isinstance(t, tuple)


@case(one)
def named_tuple_made(x):
    o = Old(b=x, a=2)
    return o, o.a, o + (1,), Named(x), o._asdict()


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


@case(lambda: (Slotted(vec()),))
def slots(s):
    s.b = s.a + 1
    t = Slotted(3)
    try:
        t.c = 1
    except AttributeError as e:
        message = type(e).__name__
    try:
        t.b  # the error is the point
    except AttributeError:
        message += "!"
    return s.b * t.a, message


class Descriptor:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, owner=None):
        if obj is None:
            return self
        return getattr(obj, self.name, 1) * 2

    def __set__(self, obj, value):
        setattr(obj, self.name, value)


class Described:
    value = Descriptor()

    @functools.cached_property
    def lazy(self):
        self.computed = getattr(self, "computed", 0) + 1
        return self.computed * 10


@case(one, fullgraph=True)
def descriptors(x):
    d = Described()
    before = d.value
    d.value = x
    return before, d.value, type(Described.value).__name__


@case(lambda: (vec(), Described()), rounds=1)
def cached_property_on_argument(x, d):
    return x * d.lazy, d.lazy, d.computed


class Dynamic:
    def __init__(self):
        self.seen = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        self.seen.append(name)
        return len(name)


class Recording:
    def __init__(self, log):
        object.__setattr__(self, "log", log)

    def __setattr__(self, name, value):
        self.log.append(name)
        object.__setattr__(self, name, value)

    def __getattribute__(self, name):
        if name == "magic":
            return 42
        return object.__getattribute__(self, name)

    def __delattr__(self, name):
        self.log.append("-" + name)
        object.__delattr__(self, name)


@case(one, fullgraph=True)
def getattr_hook(x):
    d = Dynamic()
    return x * d.abc + d.z, d.seen, hasattr(d, "anything"), getattr(d, "__nothing__", None)


@case(lambda: (vec(), []), fullgraph=True)
def setattr_hooks(x, log):
    r = Recording(log)
    r.a = x
    del r.a
    return r.magic, hasattr(r, "a")


class Number:
    def __init__(self, v):
        self.v = v

    def __add__(self, other):
        return Number(self.v + getattr(other, "v", other))

    __radd__ = __add__

    def __mul__(self, other):
        if isinstance(other, str):
            return NotImplemented
        return Number(self.v * getattr(other, "v", other))

    def __iadd__(self, other):
        self.v = self.v + 100
        return self

    def __neg__(self):
        return Number(-self.v)

    def __eq__(self, other):
        return isinstance(other, Number) and bool(self.v is other.v)

    def __lt__(self, other):
        return True

    __hash__ = None

    def __len__(self):
        return 3

    def __bool__(self):
        return False

    def __contains__(self, item):
        return item == 1

    def __getitem__(self, key):
        return (key, self.v)

    def __setitem__(self, key, value):
        self.v = (key, value)

    def __call__(self, *args, **kwargs):
        return self.v, args, kwargs

    def __repr__(self):
        return "Number!"

    def __format__(self, spec):
        return f"<{spec}>"

    def __int__(self):
        return 7

    def __index__(self):
        return 2

    def __matmul__(self, other):
        return "matmul"

    def __enter__(self):
        return self

    def __exit__(self, *details):
        return True


@case(one, fullgraph=True)
def operators(x):
    a, b = Number(x), Number(x)
    total = a + b + 1
    right = 5 + a
    kept = a
    kept += 1
    return total.v, right.v, (-b).v, (b * 2).v, a is kept, a == b, a < b, len(a), not a, 1 in a, 2 in a


@case(one, fullgraph=True)
def more_operators(x):
    a = Number(x)
    first = a[1:2, ...]
    a["k"] = 3
    return first[0], a.v, a(1, k=2), repr(a), f"{a:>3} {a!r}", int(a), [1, 2, 3][a], a @ a, str(a)


@case(one)
def operator_not_supported(x):
    return Number(x) * "text"


@case(one)
def reflected_with_tensor(x):
    return (x + Number(1)).v


class Multiplied(type):
    def __call__(cls, *args):
        made = super().__call__(*args)
        made.tag = cls.__name__
        return made

    @property
    def plural(cls):
        return cls.__name__ + "s"

    def __len__(cls):
        return 5


class Thing(metaclass=Multiplied):
    def __init__(self, x):
        self.x = x


@case(one, fullgraph=True)
def metaclass(x):
    t = Thing(x)
    return t.x + 1, t.tag, Thing.plural, len(Thing)


class Chosen:
    def __new__(cls, kind):
        return super().__new__(cls) if kind else "a string"

    def __init__(self, kind):
        self.kind = kind


@case(one, fullgraph=True)
def new_decides(x):
    return Chosen(1).kind, Chosen(0), x + 1


class Base(abc.ABC):
    @abc.abstractmethod
    def run(self, x): ...

    def template(self, x):
        return self.run(x) + 1


class Concrete(Base):
    def run(self, x):
        return x * 3


@case(one, fullgraph=True)
def abstract_base(x):
    return Concrete().template(x)


@case(one)
def abstract_instantiation(x):
    return Base()


class A:
    def who(self):
        return ["A"]


class B(A):
    def who(self):
        return ["B", *super().who()]


class C(A):
    def who(self):
        return ["C", *super().who()]


class D(B, C):
    def who(self):
        return ["D", *super().who()]


@case(one, fullgraph=True)
def diamond(x):
    return D().who(), [cls.__name__ for cls in D.__mro__], x + 1


@case(one)
def class_made_inside(x):
    class Local:
        factor = x.shape[0]

        def apply(self, t):
            return t * self.factor

    return Local().apply(x), Local.__name__


class WithHash:
    def __init__(self, n):
        self.n = n

    def __hash__(self):
        return 1

    def __eq__(self, other):
        return self.n == other.n


@case(one)
def user_hash_as_key(x):
    d = {WithHash(1): x, WithHash(2): 2}
    d[WithHash(1)] = x + 1
    return d[WithHash(1)], len(d), WithHash(2) in d, WithHash(3) in d


class MyList(list):
    def append(self, item):
        super().append((item, item))


class MyDict(dict):
    def __missing__(self, key):
        return key * 2

    def __setitem__(self, key, value):
        super().__setitem__(key, (value,))


class MyInt(int):
    def __add__(self, other):
        return "added"


class MyStr(str):
    def shout(self):
        return self.upper() + "!"


@case(one)
def subclasses_of_builtins(x):
    items = MyList([1])
    items.append(2)
    d = MyDict(a=1)
    d["b"] = 2
    return x + len(items), items, d, d["zz"], MyInt(3) + 4, MyInt(3) * 4, MyStr("a").shout(), type(items).__name__


@case(lambda: (vec(), MyList([1, 2]), MyDict(a=1)))
def subclass_arguments(x, items, d):
    items.append(5)
    d["q"] = 3
    return x * items[0], d["none"], isinstance(d, dict)


@case(lambda: (Plain(vec()),))
def copies(p):
    q = copy.copy(p)
    q.x = q.x + 1
    return q.x, p.x is q.x, q.n


@case(lambda: (vec(), {"a": [1, 2]}))
def deep_copies(x, d):
    e = copy.deepcopy(d)
    e["a"].append(3)
    return e, x + 1


@case(lambda: (Plain(vec()), "n"), lambda: (Plain(vec()), "x"))
def getattr_setattr_by_name(p, name):
    value = getattr(p, name)
    setattr(p, name + "_copy", value)
    return vars(p)[name], hasattr(p, "zzz"), sorted(p.__dict__)


@case(one, fullgraph=True)
def isinstance_variants(x):
    return (
        isinstance(x, torch.Tensor),
        isinstance(x, (int, torch.Tensor)),
        isinstance(3, int | str),
        isinstance(x, collections.abc.Iterable),
        isinstance([], collections.abc.Sequence),
        issubclass(bool, int),
        callable(vec),
        type(x) is torch.Tensor,
        x + 1,
    )


@case(one)
def instance_identity(x):
    p, q = Plain(x), Plain(x)
    return p is q, p == q, p != q, p is p, id(p) == id(p), len({id(p), id(q)}), x + 1


class Generic(typing.Generic[typing.TypeVar("T")]):
    def __init__(self, value):
        self.value = value


@case(one)
def generic_class(x):
    return Generic(x).value + 1, Generic[int](3).value, typing.cast(int, x)


@case(one, factory=True)
def two_instances_share_a_method():
    a, b = Plain(torch.ones(4), 2), Plain(torch.ones(4), 3)

    def fn(x):
        return a.scaled() * x + b.scaled()

    return fn, (a, b)


test_cases = make_test(__name__)
