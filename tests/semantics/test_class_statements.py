"""Class statements in traced code: captured, and the class is another one at each call."""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import functools
import typing

import torch

import jitpy
from tests.semantics.harness import case, make_test

n = 1
REGISTRY: dict = {}
KEPT: list = []


def two():
    return (torch.randn(3),), (torch.randn(5),)


@case(*map(lambda a: (lambda: a), two()), breaks=("local_class",))
def methods_and_closures(x):
    k = 3

    class A:
        """About A."""

        factor = 2

        def scaled(self, y):
            return y * self.factor + k

        @property
        def half(self):
            return self.factor / 2

        @staticmethod
        def plus(y):
            return y + 1

        @classmethod
        def named(cls, y):
            return cls.__name__, cls.plus(y)

    a = A()
    a.factor = 5
    return a.scaled(x), a.half, A.plus(x), A.named(x), A.scaled(a, x), A.__doc__, A.__qualname__, A.__module__


@case(*map(lambda a: (lambda: a), two()), breaks=("local_class",))
def methods_change_a_closure(x):
    n = 0

    class A:
        def step(self):
            nonlocal n
            n += 1
            return n

    a = A()
    a.step()
    return x * a.step(), n


@case(*map(lambda a: (lambda: a), two()), breaks=("local_class", "local_class", "local_class", "local_class"))
def super_and_inheritance(x):
    class Base:
        def __init__(self, v):
            self.v = v

        def f(self):
            return self.v + 1

    class Middle(Base):
        def f(self):
            return super().f() * 2

    class Mixin(Base):
        def f(self):
            return super(Mixin, self).f() - 3

    class Bottom(Middle, Mixin):
        def __init__(self, v):
            super().__init__(v)
            self.w = v * 2

        def f(self):
            return super().f() + self.w

    b = Bottom(x)
    return b.f(), [c.__name__ for c in Bottom.__mro__], isinstance(b, Mixin), issubclass(Middle, Mixin)


@case(lambda: (torch.randn(3),), breaks=("local_class", "unsupported_value"))
def writes_to_the_class(x):
    class Counter:
        n = 0
        log = []

        def __init__(self):
            Counter.n += 1
            self.log.append(Counter.n)

    Counter(), Counter()
    Counter.extra = x * 2
    del Counter.log
    return Counter.n, Counter.extra, hasattr(Counter, "log"), hasattr(Counter(), "extra") if False else 1


@case(lambda: (torch.randn(3),), breaks=("local_class", "unsupported_value"))
def missing_class_attribute(x):
    class A:
        pass

    try:
        A.nothing
    except AttributeError as error:
        text = str(error)
    try:
        del A.nothing
    except AttributeError:
        return x + 1, text


@case(lambda: (torch.randn(3),), breaks=("local_class", "local_class", "local_class"))
def init_subclass_and_set_name(x):
    seen = []

    class Field:
        def __set_name__(self, owner, name):
            self.name = name
            seen.append((owner.__name__, name))

        def __get__(self, obj, owner=None):
            return self if obj is None else obj.values[self.name]

        def __set__(self, obj, value):
            obj.values[self.name] = value * 2

    class Base:
        def __init_subclass__(cls, scale=1, **keywords):
            super().__init_subclass__(**keywords)
            cls.scale = scale
            seen.append(cls.__name__)

    class A(Base, scale=3):
        a = Field()
        b = Field()

        def __init__(self, v):
            self.values = {}
            self.a = v
            self.b = v + 1

    made = A(x)
    return made.a, made.b, made.scale, seen, made.values


class Registered:
    def __init_subclass__(cls, key=None):
        REGISTRY[key] = cls
        KEPT.append(cls)


@case(lambda: (torch.randn(3),), breaks=("local_class",), globals={"REGISTRY": dict, "KEPT": list})
def registered_by_a_base(x):
    class A(Registered, key="a"):
        def f(self, y):
            return y + 1

    return REGISTRY["a"]().f(x), len(KEPT), KEPT[-1] is A, REGISTRY["a"] is A


@case(lambda: (torch.randn(3),), breaks=("local_class", "local_class"))
def a_metaclass_in_python(x):
    class Meta(type):
        def __new__(mcs, name, bases, namespace, **keywords):
            namespace["added"] = len(namespace) > 0
            made = super().__new__(mcs, name, bases, namespace)
            made.keywords = sorted(keywords)
            return made

        def __init__(cls, name, bases, namespace, **keywords):
            super().__init__(name, bases, namespace)
            cls.label = name.lower()

        def __call__(cls, *args):
            made = super().__call__(*args)
            made.called = True
            return made

        def __getattr__(cls, name):
            return name + "?"

        def __len__(cls):
            return 7

        @property
        def double(cls):
            return cls.label * 2

    class A(metaclass=Meta, k=1):
        def __init__(self, v):
            self.v = v

    a = A(x)
    return a.v * 2, a.called, A.added, A.keywords, A.label, A.unknown, len(A), A.double, type(A) is Meta


@case(lambda: (torch.randn(3),), breaks=("local_class", "local_class", "local_class"))
def a_metaclass_that_prepares(x):
    class Names(dict):
        def __setitem__(self, key, value):
            super().__setitem__(key, value)
            if not key.startswith("__"):
                super().setdefault("order", []).append(key)

    class Meta(type):
        @classmethod
        def __prepare__(mcs, name, bases, **keywords):
            return Names()

    class A(metaclass=Meta):
        b = 1
        a = b + 1

        def f(self):
            return self.a

    return x * A().f(), A.order, [k for k in A.order if k != "f"]


@case(lambda: (torch.randn(3),), breaks=("local_class", "local_class"))
def singletons(x):
    class Singleton(type):
        made = {}

        def __call__(cls, *args):
            if cls not in cls.made:
                cls.made[cls] = super().__call__(*args)
            return cls.made[cls]

    class A(metaclass=Singleton):
        def __init__(self, v):
            self.v = v

    return A(x).v + A(x + 1).v, A(0) is A(1), len(Singleton.made)


@case(lambda: (torch.randn(3),), breaks=("local_class", "local_class"))
def type_of_three(x):
    class Base:
        def f(self):
            return 1

    A = type("A", (Base,), {"g": lambda self, y: y * self.f(), "n": 3})
    return A().g(x) * A.n, A.__name__, A.__module__, A.__bases__ == (Base,), type(A) is type


@case(lambda: (torch.randn(3),), breaks=("local_class",))
def slots_and_properties(x):
    class P:
        __slots__ = ("_v", "__hidden")

        def __init__(self, v):
            self._v = v
            self.__hidden = 1

        @property
        def v(self):
            return self._v + self.__hidden

        @v.setter
        def v(self, new):
            self._v = new * 2

        @v.deleter
        def v(self):
            self._v = None

    p = P(x)
    p.v = p.v
    out = p.v
    try:
        p.other = 1
    except AttributeError as error:
        text = str(error)
    del p.v
    return out, p._v, text


@case(lambda: (torch.randn(3),), breaks=("local_class",))
def operators_and_hash(x):
    class N:
        def __init__(self, v):
            self.v = v

        def __add__(self, other):
            return N(self.v + other.v)

        def __radd__(self, other):
            return N(self.v + other)

        def __eq__(self, other):
            return isinstance(other, N) and self.v is other.v

        def __bool__(self):
            return False

        def __len__(self):
            return 4

        def __getitem__(self, i):
            return self.v[i]

        def __call__(self, y):
            return self.v * y

        def __iter__(self):
            yield self.v
            yield self.v + 1

        def __contains__(self, item):
            return item == 3

        def __enter__(self):
            return self.v

        def __exit__(self, *exc):
            return exc[0] is KeyError

    n = N(x)
    with n as v:
        raise KeyError
    return (1 + (n + n)).v, n == N(x), bool(n), len(n), n[0], n(2), list(n), 3 in n, N.__hash__, v is x


@case(lambda: (torch.randn(3),), breaks=("local_class",))
def an_exception_class(x):
    class Err(ValueError):
        def __init__(self, text, value):
            super().__init__(text)
            self.value = value

    try:
        raise Err("text", x * 2)
    except ValueError as error:
        return error.value, str(error), type(error).__name__, error.args


@case(lambda: (torch.randn(3),))
def an_exception_that_leaves(x):
    class Err(ValueError):
        pass

    y = x + 1
    raise Err("text", y.shape)


@case(lambda: (torch.randn(3), 1), lambda: (torch.randn(3), 0))
def a_body_that_raises(x, n):
    y = x * 2

    class A:
        a = 1 // n

    return y * A.a


@case(lambda: (torch.randn(3),), breaks=("local_class",))
def bodies_with_control_flow(x):
    class A:
        table = {}
        for i in range(3):
            table[i] = i * i
        if len(table) == 3:
            def f(self, y):
                return y * self.table[2]
        else:
            f = None
        total = sum(table.values())
        names = [n for n in ("a", "b")]
        a: int = 1
        b: str
        try:
            unknown  # noqa: B018
        except NameError:
            caught = True
        del i

        class Inner:
            n = 9

    return A().f(x), A.total, A.names, A.__annotations__, A.caught, A.Inner.n, hasattr(A, "i"), A.Inner.__qualname__


@case(lambda: (torch.randn(3),), breaks=("local_class",))
def names_of_the_body_come_first(x):
    class A:
        m = n
        n = 2
        k = n

        def f(self):
            return n

    return x + A.m, A.n, A.k, A().f()


@case(lambda: (torch.randn(3),))
def a_name_of_the_body_that_is_not_set_yet(x):
    n = 1
    y = x + n

    class A:
        m = n
        n = 2

    return y + A.m


@case(lambda: (torch.randn(3),), breaks=("local_class", "local_class"))
def abstract_classes(x):
    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self): ...

        @property
        @abc.abstractmethod
        def name(self): ...

    class Square(Shape):
        name = "square"

        def __init__(self, v):
            self.v = v

        def area(self):
            return self.v * self.v

    s = Square(x)
    return s.area(), s.name, isinstance(s, Shape)


@case(lambda: (torch.randn(3),))
def an_abstract_class_is_not_made(x):
    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self): ...

    y = x + 1
    try:
        Shape()
    except TypeError as error:
        return y, str(error)


@case(lambda: (torch.randn(2, 3),), breaks=("local_class",))
def a_module_class(x):
    class Net(torch.nn.Module):
        scale = 2

        def __init__(self):
            super().__init__()
            self.register_buffer("weight", torch.ones(3))
            self.register_buffer("shift", torch.zeros(3))

        def forward(self, y):
            return y * self.weight * self.scale + self.shift

    net = Net()
    return net(x), net.training, [n for n, _ in net.named_buffers()]


@case(lambda: (torch.randn(3),), breaks=("local_class", "local_class", "local_class"))
def subclasses_of_builtins(x):
    class Items(list):
        def total(self):
            return sum(self)

    class Table(dict):
        def __missing__(self, key):
            return key * 2

    class Pair(tuple):
        @property
        def first(self):
            return self[0]

    items = Items([x, x + 1])
    items.append(x * 2)
    return items.total(), Table(a=1)["b"], Pair((x, 1)).first, len(items)


@case(lambda: (torch.randn(3),), breaks=("local_class",))
def new_in_python(x):
    class A:
        made = 0

        def __new__(cls, v):
            cls.made += 1
            return super().__new__(cls)

        def __init__(self, v):
            self.v = v

        def __class_getitem__(cls, key):
            return (cls.__name__, key)

    return A(x).v + A(x).v, A.made, A["k"]


@case(lambda: (torch.randn(3),), breaks=("local_class", "unsupported_value"))
def decorated(x):
    def add(cls):
        cls.extra = lambda self, y: y + self.n
        return cls

    @add
    @functools.partial(lambda n, cls: setattr(cls, "n", n) or cls, 4)
    class A:
        pass

    return A().extra(x), A.n


@case(lambda: (torch.randn(3),))
def breaks_around(x):
    class A:
        def f(self, y):
            return y * 2

    y = A().f(x)
    jitpy.graph_break()
    z = A().f(y)

    class B(A):
        def f(self, y):
            return super().f(y) + 1

    return B().f(z), isinstance(B(), A)


@case(lambda: (torch.randn(3),))
def a_break_in_the_body(x):
    y = x + 1

    class A:
        jitpy.graph_break()
        n = 3

    return y * A.n


@case(lambda: (torch.randn(3),), factory=True)
def escapes():
    kept = {"classes": [], "instances": []}

    def fn(x):
        class A:
            tag = "t"

            def f(self, y):
                return y * self.v

        a = A()
        a.v = x * 2
        kept["classes"].append(A)
        kept["instances"].append(a)
        same = len(set(kept["classes"])) == len(kept["classes"])
        return a.f(x), a.v, len(kept["classes"]), type(kept["instances"][-1]) is kept["classes"][-1], same

    return fn, kept


# -- classes whose code the standard library writes: one break, where they are made -------------------------------


@case(*map(lambda a: (lambda: a), two()), breaks=("local_class", "local_class"))
def made_by_dataclass(x):
    @dataclasses.dataclass(order=True)
    class Point:
        a: int
        parts: list = dataclasses.field(default_factory=list)

    first, second = Point(1), Point(2)
    KEPT.append(Point)
    different = len(KEPT) < 2 or KEPT[-1] is not KEPT[-2]
    return x * second.a, first < second, repr(first), first.parts is not second.parts, different


@case(*map(lambda a: (lambda: a), two()), breaks=("local_class",))
def made_by_namedtuple(x):
    pair = collections.namedtuple("pair", "left right", defaults=[2])
    made = pair(x)
    return made.left * made.right, made._fields, type(made).__name__, isinstance(made, pair)


@case(*map(lambda a: (lambda: a), two()), breaks=("local_class",))
def made_by_named_tuple(x):
    class Pair(typing.NamedTuple):
        left: int
        right: int = 2

    return x * Pair(3).right, Pair(3)._asdict()


@case(*map(lambda a: (lambda: a), two()), breaks=("local_class",))
def made_by_enum(x):
    class Kind(enum.Enum):
        A = 1
        B = 2

    return x * Kind.B.value, Kind(1) is Kind.A, [kind.name for kind in Kind]


@case(*map(lambda a: (lambda: a), two()), breaks=("local_class",))
def made_by_calling_enum(x):
    kind = enum.IntFlag("kind", "A B")
    return x * int(kind.A | kind.B), repr(kind.A)


test_all = make_test(__name__)


def test_what_escapes_works_as_in_eager() -> None:
    """A returned class is complete: methods, `super`, closures, slots, hooks for later subclasses."""

    def fn(x, n):
        total = []

        class Base:
            def __init_subclass__(cls, **keywords):
                total.append(cls.__name__)

            def f(self):
                return self.v * n

        class A(Base):
            __slots__ = ("v", "w")
            kind = "a"

            def __init__(self, v):
                self.v = v

            def f(self):
                return super().f() + 1, __class__.__name__

            @property
            def doubled(self):
                return self.v * 2

            @staticmethod
            def s(y):
                return y - 1

            @classmethod
            def c(cls):
                return cls

        A.late = x + 1
        return A, Base, A(x), total

    fast = jitpy.jit(fn)
    seen = set()
    for n in (2, 2, 3):
        x = torch.randn(3)
        made, base, instance, total = fast(x, n)
        assert total == ["A"]
        seen.add(made)
        assert type(instance) is made and made.__mro__ == (made, base, object) and base.__subclasses__() == [made]
        assert torch.equal(instance.f()[0], x * n + 1) and instance.f()[1] == "A"
        assert torch.equal(made(x + 1).doubled, (x + 1) * 2) and made.c() is made and made.s(3) == 2
        assert torch.equal(made.late, x + 1) and not hasattr(instance, "w")
        made.kind = "b"
        assert instance.kind == "b" and made.__qualname__.endswith("fn.<locals>.A") and made.__module__ == __name__

        class Late(made):
            pass

        assert total == ["A", "Late"] and Late(x).f()[1] == "A"
        assert list(vars(made))[:3] == ["__module__", *list(vars(made))[1:3]]
    assert len(seen) == 3, "each call makes a class of its own"


def test_order_of_attributes_is_the_programs() -> None:
    def fn():
        class A:
            z = 1
            a = 2

            def m(self): ...

            b: int = 3

        A.late = 4
        return A

    plain, made = fn(), jitpy.jit(fn)()
    assert list(vars(made)) == list(vars(plain))
    assert made.__annotations__ == plain.__annotations__ and made.m.__qualname__ == plain.m.__qualname__


def test_bases_are_guarded() -> None:
    class Base:
        n = 1

        def f(self, y):
            return y + self.n

    def fn(x):
        class A(Base):
            def g(self, y):
                return self.f(y) * 2

        return A().g(x)

    fast = jitpy.jit(fn)
    x = torch.ones(2)
    assert torch.equal(fast(x), torch.full((2,), 4.0))
    Base.n = 5
    assert torch.equal(fast(x), torch.full((2,), 12.0))
    Base.f = lambda self, y: y
    assert torch.equal(fast(x), torch.full((2,), 2.0))
    Base.g = lambda self, y: None  # hidden by the class's own
    assert torch.equal(fast(x), torch.full((2,), 2.0))
