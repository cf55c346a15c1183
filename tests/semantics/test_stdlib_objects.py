"""types, inspect, dataclasses, enum, abc, weakref, typing. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import abc
import copyreg
import dataclasses
import enum
import functools
import gc
import inspect
import sys
import types
import typing
import weakref
from typing import Any, ClassVar, NamedTuple, Optional

import torch

from jitpy import graph_break
from tests.semantics.harness import case, make_test


def vec(*sizes: int) -> torch.Tensor:
    return torch.arange(1.0, 1 + (sizes or (4,))[0])


def one():
    return (vec(),)


def affine(x, a, b=1, *rest, c=0, **extra):
    """The doc of affine."""
    return x * a + b - c


# -- types and inspect --------------------------------------------------------------------------------------


@case(one)
def made_methods_and_functions(x):
    class Box:
        pass

    box = Box()
    box.k = 3
    m = types.MethodType(lambda self, v: v * self.k, box)
    f = types.FunctionType(affine.__code__, globals(), "copied", (5,), affine.__closure__)
    box.m = m
    return m(x), m.__self__ is box, f.__name__, box.m(x), isinstance(m, types.MethodType), m == m


@case(one)
def method_returned(x):
    class Box:
        def go(self, v):
            return v + 1

    box = Box()
    m = box.go
    return m, box, m(x), m == box.go, m.__name__


@case(one)
def function_attributes(x):
    def f(a, b=2, *, c: int = 3):
        """Doc."""
        return a

    f.calls = 1
    f.calls += 1
    f.__name__ = "renamed"
    return (
        f.calls,
        f.__name__,
        f.__defaults__,
        f.__kwdefaults__,
        f.__doc__,
        f.__annotations__,
        f.__code__.co_argcount,
        f,
    )


@case(one)
def default_arguments_replaced(x):
    def f(a, b=2):
        return a * b

    first = f(x)
    f.__defaults__ = (5,)
    return first, f(x)


@case(one)
def signatures(x):
    s = inspect.signature(affine)
    bound = s.bind(x, 2, 3, 4, c=5, z=6)
    bound.apply_defaults()
    names = list(s.parameters)
    p = s.parameters["b"]
    return names, p.default, p.kind.name, bound.args[1:], bound.kwargs, list(bound.arguments), str(s), x + 1


@case(one)
def signature_bind_error(x):
    return inspect.signature(affine).bind(c=1), x


@case(one)
def signature_of_local_function(x):
    def f(a, *, b=1):
        return a

    return list(inspect.signature(f).parameters), x + 1


@case(one)
def signatures_are_made_anew(x):
    first, second = inspect.signature(affine), inspect.signature(affine)
    return first is second, first == second, first.replace(parameters=list(first.parameters.values())[:2]), first, x


@case(one)
def signatures_of_changed_functions(x):
    def f(a: int, b=2) -> str:
        return a

    def text():
        s = inspect.signature(f)
        return [(p.name, p.default, p.annotation) for p in s.parameters.values()], s.return_annotation

    first = text()
    f.__defaults__ = (5,)
    f.__annotations__ = {"b": float}
    return first, text(), x


@case(one)
def signatures_of_methods_and_wrappers(x):
    class A:
        def m(self, a, *rest, key: int = 3):
            pass

    @functools.wraps(affine)
    def wrapper(*args):
        return affine(*args)

    return list(inspect.signature(A().m).parameters), str(inspect.signature(A.m)), str(inspect.signature(wrapper)), x


@case(one)
def filtered_keyword_arguments(x):
    given = {"a": 2, "c": 1, "unknown": 3}
    known = {k: v for k, v in given.items() if k in inspect.signature(affine).parameters}
    return affine(x, **known), known


@case(one)
def inspect_predicates(x):
    class A:
        def m(self):
            pass

    def g():
        yield 1

    return (
        inspect.isfunction(affine),
        inspect.ismethod(A().m),
        inspect.isclass(A),
        inspect.ismodule(torch),
        inspect.isbuiltin(len),
        inspect.isgeneratorfunction(g),
        inspect.isgenerator(g()),
        inspect.isfunction(len),
        inspect.iscoroutinefunction(g),
        callable(A),
        inspect.getdoc(affine),
        inspect.isabstract(A),
        inspect.getmodule(affine).__name__,
        x + 1,
    )


@case(one)
def inspect_members(x):
    class A:
        b = 1

        def m(self):
            pass

    return (
        [n for n, _ in inspect.getmembers(A, inspect.isfunction)],
        inspect.getfullargspec(affine).args,
        dir(A())[-2:],
        x,
    )


# -- dataclasses --------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Config:
    size: int = 4
    tags: list = dataclasses.field(default_factory=list)
    scale: float = dataclasses.field(default=1.0, compare=False)
    kind: ClassVar[str] = "cfg"

    def __post_init__(self):
        self.double = self.size * 2


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    a: int
    b: str = "b"


@dataclasses.dataclass(slots=True, kw_only=True)
class Slots:
    a: Any
    b: int = 2


@case(one)
def dataclass_helpers(x):
    c = Config(3, ["a"])
    d = dataclasses.replace(c, size=5)
    names = [f.name for f in dataclasses.fields(c)]
    return (
        c,
        d,
        d.double,
        names,
        dataclasses.asdict(c),
        dataclasses.astuple(d),
        dataclasses.is_dataclass(c),
        c == Config(3, ["a"]),
        repr(Frozen(1)),
        c.kind,
        d.tags is c.tags,
        x + 1,
    )


@case(one)
def frozen_dataclasses(x):
    f, g = Frozen(1), Frozen(1)
    try:
        f.a = 5
    except dataclasses.FrozenInstanceError as error:
        message = str(error)
    return (
        f == g,
        hash(f) == hash(g),
        {f: x}[g],
        f < Frozen(2),
        len({f, g}),
        message,
        sorted([Frozen(3), f])[0].a,
        repr(f),
    )


@case(one)
def slotted_dataclasses(x):
    s = Slots(a=x)
    s.b += 1
    t = dataclasses.replace(s, b=9)
    graph_break()
    return s, t, s.a + t.b


@case(lambda: (vec(), Config(2)), lambda: (vec(), Config(3)))
def dataclass_argument(x, c):
    c.tags.append(c.size)
    c.size += 1
    return x * c.size, dataclasses.replace(c), dataclasses.asdict(c)


@case(one)
def dataclass_made_inside(x):
    @dataclasses.dataclass
    class Local:
        a: int
        b: Any = None

    v = Local(1, x)
    return v.a, v.b, v == Local(1, x), repr(Local(2))


class Row(NamedTuple):
    key: str
    value: Any = None

    def shown(self):
        return f"{self.key}!"


class Options(typing.TypedDict, total=False):
    a: int
    b: Any


@case(one)
def typed_structures(x):
    r = Row("k", x)
    o = Options(a=1, b=x)
    o["a"] = 2
    return r.shown(), r, r._replace(key="z").key, o, Row("q").value, o.get("b")


# -- enums --------------------------------------------------------------------------------------------------


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"

    @property
    def long(self):
        return self.name.lower() * 2

    @classmethod
    def first(cls):
        return next(iter(cls))


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


class Mode(enum.Flag):
    A = enum.auto()
    B = enum.auto()
    AB = A | B


class Name(str, enum.Enum):
    X = "x"
    Y = "y"


@case(one, fullgraph=True)
def enum_members(x):
    return (
        Color("r") is Color.RED,
        Color["BLUE"].value,
        Color.RED.long,
        Color.first(),
        [c.name for c in Color],
        len(Color),
        Color.RED in Color,
        isinstance(Color.RED, Color),
        Color.RED == Color.BLUE,
        {Color.RED: 1}[Color("r")],
        repr(Color.RED),
        str(Color.RED),
        Level.HIGH > Level.LOW,
        Level.HIGH + 1,
        x * Level.HIGH,
        max(Level),
        int(Level.LOW),
        Name.X == "x",
        Name("y").upper(),
        f"{Color.RED.value}",
        Color.__members__["RED"],
        list(Color.__members__),
    )


@case(one, fullgraph=True)
def enum_flags(x):
    m = Mode.A | Mode.B
    return m is Mode.AB, Mode.A in m, bool(m & Mode.A), (m ^ Mode.A).name, ~Mode.A, Mode(0).value, x + m.value


@case(one)
def enum_errors(x):
    out = []
    for f in (lambda: Color("z"), lambda: Color["Z"], lambda: Color.GREEN):
        try:
            f()
        except (ValueError, KeyError, AttributeError) as error:
            out.append(type(error).__name__)
    return out, x


@case(lambda: (vec(), Color.RED, Level.LOW), lambda: (vec(), Color.BLUE, Level.HIGH))
def enum_arguments(x, c, n):
    match c:
        case Color.RED:
            x = x + 1
        case Color.BLUE:
            x = x * 2
    return x * n, c.name, c


# -- abc, typing, weakref -----------------------------------------------------------------------------------


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

    @property
    @abc.abstractmethod
    def name(self): ...


class Square(Shape):
    def __init__(self, side):
        self.side = side

    def area(self):
        return self.side * self.side

    @property
    def name(self):
        return "square"


@Shape.register
class Virtual:
    pass


@case(one)
def abstract_classes(x):
    s = Square(x)
    try:
        Shape()
    except TypeError as error:
        message = str(error)
    return s.area(), s.name, isinstance(s, Shape), isinstance(Virtual(), Shape), issubclass(Virtual, Shape), message


@typing.runtime_checkable
class HasArea(typing.Protocol):
    def area(self): ...


T = typing.TypeVar("T")


class Stack(typing.Generic[T]):
    def __init__(self) -> None:
        self.items: list[T] = []

    def push(self, item: T) -> None:
        self.items.append(item)


@case(one)
def typing_at_run_time(x):
    s = Stack[int]()
    s.push(x)
    a: Optional[int] = typing.cast(int, 3)
    return (
        isinstance(Square(1), HasArea),
        isinstance(3, HasArea),
        len(s.items),
        a,
        typing.get_origin(list[int]) is list,
        typing.get_args(dict[str, int]),
        isinstance(1, int | str),
        isinstance(None, Optional[int]),
        typing.TYPE_CHECKING,
        list[int]([1]),
        x + 1,
    )


@case(one, factory=True)
def weak_references():
    class Owner:
        pass

    owner = Owner()
    owner.k = 3
    ref = weakref.ref(owner)
    table = weakref.WeakKeyDictionary({owner: 2})

    def fn(x):
        target = ref()
        return x * target.k * table[owner], ref() is owner, len(table)

    return fn, owner


@case(one, factory=True)
def weak_reference_dies_between_calls():
    class Owner:
        k = 3

    kept = [Owner()]
    ref = weakref.ref(kept[0])

    def inner(x):
        target = ref()
        return x * target.k if target is not None else x - 1

    def outer(x):
        y = inner(x)
        if kept:
            kept.clear()
            gc.collect()
        return y

    return outer


@case(one)
def weak_references_made_inside(x):
    class Owner:
        pass

    o = Owner()
    r = weakref.ref(o)
    p = weakref.proxy(o)
    o.k = 5
    return r() is o, p.k, x + 1


@case(one)
def objects_with_hidden_state(x):
    o = object()
    p = property(lambda self: 1)
    return (
        o is not object(),
        isinstance(p, property),
        sys.getsizeof(()) > 0,
        sys.version_info >= (3, 11),
        copyreg.dispatch_table is not None,
        x,
    )


@case(one)
def classes_made_inside(x):
    A = type("A", (), {"k": 2, "go": lambda self, v: v * self.k})
    B = types.new_class("B", (A,))
    return A().go(x), B.__mro__[1] is A, A.__name__, B().k


@case(one)
def object_protocols(x):
    class Odd:
        def __len__(self):
            return 3

        def __getitem__(self, i):
            if i >= 3:
                raise IndexError(i)
            return i * 10

        def __contains__(self, v):
            return v == "in"

        def __index__(self):
            return 2

        def __bool__(self):
            return False

        def __call__(self, *a, **k):
            return len(a), k

        def __hash__(self):
            return 7

        def __reversed__(self):
            return iter("rev")

        def __int__(self):
            return 11

        def __float__(self):
            return 1.5

        def __round__(self, n=None):
            return "round", n

        def __divmod__(self, other):
            return "dm", other

        def __abs__(self):
            return "abs"

        def __length_hint__(self):
            return 3

        def __dir__(self):
            return ["d"]

    o = Odd()
    return (
        len(o),
        list(o),
        "in" in o,
        [1, 2, 3][o],
        bool(o),
        o(1, k=2),
        {o: 1}[o],
        list(reversed(o)),
        int(o),
        float(o),
        round(o, 1),
        divmod(o, 2),
        abs(o),
        hash(o),
        range(5)[o],
        "abc"[o],
        hex(o),
        x + 1,
    )


HINTS = {"a": int | None, "b": list[int], "c": dict[str, float]}


@case(one, fullgraph=True)
def parts_of_type_hints(x):
    parts = [(name, hint.__args__) for name, hint in HINTS.items()]
    return parts, HINTS["b"].__origin__, sum(int in args for _, args in parts) * x


@case(one)
def globals_and_vars(x):
    local = 1
    return "affine" in globals(), sorted(k for k in vars() if k != "x"), sorted(locals())[0], local, x + 1


@case(one)
def cached_on_the_instance(x):
    class A:
        @functools.cached_property
        def big(self):
            return x * 2

    a = A()
    graph_break()
    return a.big, a.big is a.big, sorted(vars(a))


test_cases = make_test(__name__)
