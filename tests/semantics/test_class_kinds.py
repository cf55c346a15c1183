"""Dataclasses, enums, super(), __new__, subclasses of builtins. PYTEST_DONT_REWRITE: cases run as written."""

from __future__ import annotations

import dataclasses
import enum
import functools
import typing
from typing import Any, Generic, TypeVar

import torch

from tests.semantics.harness import case, make_test


def one() -> tuple[Any, ...]:
    return (torch.randn(4),)


# -- dataclasses, enums, named tuples ---------------------------------------------------------------------------


@dataclasses.dataclass(order=True)
class Item:
    rank: int
    name: str = dataclasses.field(default="x", compare=False)
    tags: list = dataclasses.field(default_factory=list, compare=False)
    total: int = dataclasses.field(init=False, default=0, compare=False)

    def __post_init__(self):
        self.total = self.rank * 2


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: Any
    b: int = 1

    @property
    def both(self):
        return self.a * self.b


@dataclasses.dataclass(slots=True, kw_only=True)
class SlottedData:
    t: Any
    n: int = 2


@dataclasses.dataclass
class Nested:
    item: Item
    more: dict


@case(one)
def dataclass_features(x):
    a, b = Item(1), Item(2, "y")
    a.tags.append("t")
    return a < b, a == Item(1, "z"), sorted([b, a])[0].name, repr(b), b.tags, b.total, dataclasses.is_dataclass(a), x


@case(one)
def dataclass_functions(x):
    n = Nested(Item(3, "q", ["t"]), {"k": [x]})
    d = dataclasses.asdict(n)
    names = [f.name for f in dataclasses.fields(Nested)]
    return d, dataclasses.astuple(n.item), dataclasses.replace(n.item, rank=5).total, names


@case(one)
def frozen_dataclass_rules(x):
    f = Frozen(x, 3)
    g = dataclasses.replace(f, b=4)
    try:
        f.b = 5
    except dataclasses.FrozenInstanceError as error:
        text = str(error)
    return f.both, g.both, text, hash(Frozen(1, 2)) == hash(Frozen(1, 2)), Frozen(1) == Frozen(1)


@case(one)
def slotted_dataclass(x):
    s = SlottedData(t=x)
    s.n += 1
    return s.t * s.n, s == SlottedData(t=x, n=3) if False else None, hasattr(s, "__dict__")


class Mode(enum.Enum):
    A = "a"
    B = "b"
    ALIAS = "a"

    @property
    def upper(self):
        return self.value.upper()

    @classmethod
    def default(cls):
        return cls.A


class Perm(enum.Flag):
    R = enum.auto()
    W = enum.auto()
    X = enum.auto()
    RW = R | W


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3


class Word(str, enum.Enum):
    ONE = "one"


@case(one)
def enum_features(x):
    found = {Mode.A: 1, Mode.B: 2}
    return (Mode("b").name, Mode["A"] is Mode.ALIAS, Mode.default().upper, found[Mode.B], [m.name for m in Mode],
            len(Mode), Mode.A in Mode, repr(Mode.A), str(Mode.B), f"{Mode.A}", x)


@case(one)
def enum_errors(x):
    out = []
    for make in (lambda: Mode("zz"), lambda: Mode["ZZ"]):
        try:
            make()
        except (ValueError, KeyError) as error:
            out.append(repr(error))
    return out, x


@case(one)
def flags(x):
    p = Perm.R | Perm.X
    return (Perm.R in p, Perm.W in p, bool(p & Perm.W), ~p == Perm.W, Perm.RW == Perm.R | Perm.W, p.value, Perm(3),
            (p ^ Perm.R).name, x)


@case(one)
def int_and_str_enums(x):
    return x * Level.HIGH, Level.LOW < Level.HIGH, Level(3).name, Word.ONE == "one", Word.ONE.upper(), f"{Level.LOW:d}"


# -- super ----------------------------------------------------------------------------------------------------


class Root:
    tag = "root"

    def __init__(self):
        self.log = ["root"]

    def run(self, t):
        return t + 1

    @classmethod
    def make(cls):
        return cls()

    @staticmethod
    def helper(t):
        return t * 3

    @property
    def prop(self):
        return "root prop"

    def __getitem__(self, key):
        return ("root", key)


class Left(Root):
    def __init__(self):
        super().__init__()
        self.log.append("left")

    def run(self, t):
        return super().run(t) * 2

    @classmethod
    def make(cls):
        made = super().make()
        made.log.append("made")
        return made

    @property
    def prop(self):
        return super().prop + " left"

    def nested(self, t):
        def inner():
            return super(Left, self).run(t)

        return inner() + [super(Left, self).run(t) for _ in range(1)][0]

    def zero_arg_nested(self, t):
        def inner(self):
            return super().run(t)

        return inner(self)

    def __getitem__(self, key):
        return super().__getitem__(key)

    def get_tag(self):
        return super().tag, super().helper(2), super(Left, type(self)).make().log


class Right(Root):
    def __init__(self):
        super().__init__()
        self.log.append("right")

    def run(self, t):
        return super().run(t) - 5


class Bottom(Left, Right):
    tag = "bottom"

    def __init__(self):
        super().__init__()
        self.log.append("bottom")


@case(one)
def super_everywhere(x):
    b = Bottom()
    return b.run(x), b.log, Bottom.make().log, b.prop, b["k"], b.get_tag()


@case(one)
def super_in_nested_functions(x):
    b = Left()
    return b.nested(x), b.zero_arg_nested(x)


@case(one)
def super_by_hand(x):
    b = Bottom()
    s = super(Left, b)
    return s.run(x), super(Right, b).tag, Root.run(b, x), hasattr(s, "nothing")


# -- __new__, subclasses of builtins ----------------------------------------------------------------------------


class Single:
    instance = None

    def __new__(cls, *args):
        if cls.instance is None:
            cls.instance = super().__new__(cls)
        return cls.instance

    def __init__(self, n=0):
        self.n = n


class Fresh:
    def __new__(cls, kind):
        if kind == "other":
            return [kind]
        made = object.__new__(cls)
        made.kind = kind
        return made

    def __init__(self, kind):
        self.initialised = True


@case(one)
def new_returns_other(x):
    return Fresh("other"), Fresh("mine").kind, Fresh("mine").initialised, x


@case(one)
def singleton(x):
    a, b = Single(1), Single(2)
    same = a is b, a.n
    Single.instance = None
    return same, x


class Metres(float):
    def __add__(self, other):
        return Metres(float(self) + float(other))

    @property
    def km(self):
        return self / 1000


class Even(int):
    def __new__(cls, n):
        return super().__new__(cls, n * 2)

    def half(self):
        return self // 2


class Name(str):
    __slots__ = ()

    def shout(self):
        return self.upper() + "!"


class Point(tuple):
    __slots__ = ()

    def __new__(cls, a, b):
        return super().__new__(cls, (a, b))

    @property
    def total(self):
        return self[0] + self[1]


class Problem(Exception):
    def __init__(self, code, *, detail=None):
        super().__init__(f"problem {code}")
        self.code = code
        self.detail = detail

    def __str__(self):
        return f"{self.args[0]} ({self.detail})"


@case(one)
def numeric_subclasses(x):
    m, e = Metres(1500.0), Even(3)
    return m + 1, type(m + 1).__name__, m.km, e, e.half(), e + 1, type(e + 1).__name__, x * e


@case(one)
def str_and_tuple_subclasses(x):
    n, p = Name("ab"), Point(x, x + 1)
    return n.shout(), n == "ab", {n: 1}["ab"], n + "c", p.total, p[1], len(p), isinstance(p, tuple), p


@case(one)
def exception_with_state(x):
    try:
        raise Problem(3, detail="d")
    except Problem as error:
        return error.code, error.detail, str(error), error.args, x


@case(lambda: (torch.randn(4), Problem(1)), lambda: (torch.randn(4), Problem(2, detail="q")))
def exception_as_argument(x, problem):
    return x + problem.code, str(problem), problem.detail


class Rows(list):
    def __getitem__(self, key):
        return ("row", super().__getitem__(key))

    def append(self, item):
        super().append(("wrapped", item))


@case(one)
def overriding_container_methods(x):
    r = Rows([1])
    r.append(x)
    return r[0], r[1], len(r), [i for i in r], r


# -- identity ---------------------------------------------------------------------------------------------------


@case(one)
def ids_and_identity(x):
    a, b = [1], [1]
    y = x
    return id(a) == id(a), id(a) == id(b), a is b, id(x) == id(y), y is x, (a, a)[0] is (a, b)[0]


@case(one)
def recursion_and_decorators(x):
    def twice(f):
        @functools.wraps(f)
        def inner(*args, **kwargs):
            return f(f(*args, **kwargs), **kwargs)

        return inner

    @twice
    def add(t, n=1):
        """Adds."""
        return t + n

    def fact(n):
        return 1 if n < 2 else n * fact(n - 1)

    return add(x, n=2), add.__name__, add.__doc__, add.__wrapped__(x), fact(10)


# -- generic classes --------------------------------------------------------------------------------------------

T = TypeVar("T")


class Holder(Generic[T]):
    def __init__(self, item: T):
        self.item = item

    def swapped(self, other: T) -> T:
        old, self.item = self.item, other
        return old


class Doubling(torch.nn.Module, Generic[T]):
    def forward(self, x):
        return x * 2


@case(one, one, factory=True, fullgraph=True)
def generic_classes():
    kept, layer = Holder(torch.ones(4)), Doubling()

    def fn(x):
        return Holder(layer(x)).swapped(x) + Holder[int](x).item, kept.swapped(x)

    return fn, kept


ASKED: list[object] = []


class Grade(enum.IntEnum):
    LOW = 1
    HIGH = 2

    @classmethod
    def _missing_(cls, value):
        ASKED.append(value)
        return cls.LOW if value == 9 else None


class Loud(enum.EnumMeta):
    def __call__(cls, value):
        ASKED.append(value)
        return super().__call__(value)


class Told(enum.Enum, metaclass=Loud):
    A = 1


@case(lambda: (torch.ones(2), 9), lambda: (torch.ones(2), 2), lambda: (torch.ones(2), 5), globals={"ASKED": list})
def enumerations_that_answer_for_themselves(x, n):
    found = [Grade(9).name, Grade(2).name, Told(1).name]
    try:
        found.append(Grade(n))
    except ValueError as error:
        found.append(str(error))
    return x * 2, found


class Contrary(type):
    """A metaclass that answers questions about instances and subclasses as it likes."""

    def __instancecheck__(cls, obj):
        return obj == 3

    def __subclasscheck__(cls, other):
        return True


class Made(metaclass=Contrary):
    def __new__(cls, value):
        return super().__new__(cls)

    def __init__(self, value):
        self.value = value

    def __add__(self, other):
        return "added"

    def __lt__(self, other):
        return "less"


class Other(metaclass=Contrary):
    def __radd__(self, other):
        return "added by the right one"

    def __gt__(self, other):
        return "greater"


@case(one, fullgraph=True)
def metaclasses_that_answer_as_they_like(x):
    return x * 2, Made(5).value, Made(1) + Other(), Made(1) < Other(), isinstance(3, Made), issubclass(int, Other)


@case(one)
def typed_dicts_made_inside(x):
    class Options(typing.TypedDict):
        a: int

    options = Options(a=2)
    return x * options["a"], options, Options.__required_keys__


class TwoSlots:
    __slots__ = ("a", "b")

    def __init__(self):
        self.a = 1


@case(one, fullgraph=True)
def slots_that_are_not_set(x):
    slotted, found = TwoSlots(), []
    for what in (lambda: slotted.b, lambda: delattr(slotted, "b"), lambda: delattr(slotted, "a"),
                 lambda: delattr(slotted, "a"), lambda: slotted.a):
        try:
            what()
        except AttributeError as error:
            found.append(str(error))
    return x * 2, found


test_all = make_test(__name__)
