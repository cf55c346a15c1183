"""What classes may define beyond methods: operators, descriptors, metaclasses, enums, dataclasses, copies."""

import abc
import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import operator
import types
import typing

from .shared import pause


class Loud:
    """Answers every operator with what it was given, from either side."""

    def __init__(self, v, log=None):
        self.v = v
        self.log = [] if log is None else log

    def _note(self, name, other=None):
        pause()
        self.log.append(name)
        return Loud(self.v, self.log)

    def __matmul__(self, other):
        return self._note("matmul", other)

    def __rmatmul__(self, other):
        return self._note("rmatmul", other)

    def __rpow__(self, other):
        return self._note("rpow", other)

    def __ipow__(self, other):
        return self._note("ipow", other)

    def __divmod__(self, other):
        return self._note("divmod"), 1

    def __rlshift__(self, other):
        return self._note("rlshift", other)

    def __round__(self, digits=None):
        return self._note(f"round{digits}")

    def __pos__(self):
        return self._note("pos")

    def __reversed__(self):
        pause()
        return iter([self.v])

    def __ne__(self, other):
        pause()
        return "different"

    def __le__(self, other):
        pause()
        return NotImplemented

    def __ge__(self, other):
        self.log.append("ge")
        return [self.v]


class Left:
    def __init__(self, v):
        self.v = v

    def __add__(self, other):
        pause()
        return "left"

    def __sub__(self, other):
        pause()
        return NotImplemented


class Right(Left):
    def __radd__(self, other):
        pause()
        return self.v

    def __rsub__(self, other):
        pause()
        return self.v


@functools.total_ordering
class Ordered:
    def __init__(self, k, v=None):
        self.k, self.v = k, v

    def __eq__(self, other):
        pause()
        return self.k == other.k

    def __lt__(self, other):
        pause()
        return self.k < other.k


class Plain:
    def __init__(self, k, v):
        self.k, self.v = k, v

    def __lt__(self, other):
        return self.k < other.k


class Checked:
    """A descriptor with all three methods."""

    def __set_name__(self, owner, name):
        self.place = f"_{name}"

    def __get__(self, obj, owner=None):
        pause()
        return self if obj is None else vars(obj)[self.place]

    def __set__(self, obj, value):
        pause()
        vars(obj)[self.place] = value

    def __delete__(self, obj):
        pause()
        del vars(obj)[self.place]


class WithChecked:
    part = Checked()

    @property
    def whole(self):
        return self.part

    @whole.setter
    def whole(self, value):
        self.part = value

    @whole.deleter
    def whole(self):
        del self.part


class Meta(type):
    def __prepare__(name, bases, **kwargs):
        return {"prepared": kwargs.get("k", 1)}

    def __new__(mcls, name, bases, namespace, **kwargs):
        return super().__new__(mcls, name, bases, {**namespace, **kwargs})

    def __init__(cls, name, bases, namespace, **kwargs):
        super().__init__(name, bases, namespace)

    def __call__(cls, *args):
        pause()
        made = super().__call__(*args)
        made.by_meta = True
        return made

    def __len__(cls):
        return 3

    def __getitem__(cls, v):
        return v

    def __contains__(cls, v):
        pause()
        return v == 3

    def __iter__(cls):
        return iter([1, 2])

    @property
    def shown(cls):
        return cls.prepared


class Made(metaclass=Meta, k=5):
    def __init__(self, v):
        self.v = v


class Checking(type):
    def __instancecheck__(cls, other):
        pause()
        return hasattr(other, "quack")

    def __subclasscheck__(cls, other):
        pause()
        return other is int


class Duck(metaclass=Checking):
    pass


class Quacks:
    quack = 1


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self):
        """How large it is."""

    @property
    @abc.abstractmethod
    def name(self):
        """What it is called."""


class Square(Shape):
    def __init__(self, v):
        self.v = v

    def area(self):
        pause()
        return self.v

    name = "square"


@typing.runtime_checkable
class HasArea(typing.Protocol):
    def area(self): ...


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2
    TOP = 2

    @classmethod
    def _missing_(cls, value):
        pause()
        return cls.LOW


class Perm(enum.Flag):
    R = enum.auto()
    W = enum.auto()
    X = enum.auto()
    RW = R | W


class Planet(enum.Enum):
    EARTH = (1.0, "blue")
    MARS = (0.5, "red")

    def __init__(self, mass, tone):
        self.mass, self.tone = mass, tone

    @property
    def heavy(self):
        return self.mass > 0.75


class Word(str, enum.Enum):
    A = "a"
    B = "b"


@dataclasses.dataclass
class Full:
    v: object
    k: int = 1
    items: list = dataclasses.field(default_factory=list)
    made: int = dataclasses.field(init=False, default=0)
    seed: dataclasses.InitVar[int] = 2

    def __post_init__(self, seed):
        pause()
        self.made = seed + self.k


@dataclasses.dataclass(frozen=True, order=True)
class Point:
    k: int
    v: object = dataclasses.field(default=None, compare=False, repr=False)

    def moved(self):
        return dataclasses.replace(self, k=self.k + 1)


@dataclasses.dataclass(slots=True, kw_only=True)
class Narrow:
    v: object
    k: int = 0


@dataclasses.dataclass(eq=False)
class Child(Full):
    extra: int = 7


class Triple(typing.NamedTuple):
    a: int
    v: object = None
    c: str = "c"

    def swapped(self):
        pause()
        return self._replace(a=self.v, v=self.a)


class Copied:
    def __init__(self, v):
        self.v = v
        self.parts = [1]

    def __copy__(self):
        pause()
        return Copied(self.v)

    def __deepcopy__(self, memo):
        pause()
        made = Copied(self.v)
        made.parts = copy.deepcopy(self.parts, memo)
        return made


class Sliced:
    def __init__(self, v):
        self.v = v
        self.asked = []

    def __getitem__(self, key):
        pause()
        self.asked.append(key)
        return self.v

    def __setitem__(self, key, value):
        self.asked.append((key, value))

    def __delitem__(self, key):
        self.asked.append(key)


class OldSequence:
    """Iterates by `__getitem__` alone."""

    def __init__(self, *items):
        self.items = items

    def __getitem__(self, i):
        pause()
        return self.items[i]


class Decorating(contextlib.ContextDecorator):
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("in")
        pause()
        return self

    def __exit__(self, *error):
        pause()
        self.log.append("out")


class ByMethod:
    @functools.singledispatchmethod
    def of(self, v):
        pause()
        return v

    @of.register
    def _(self, v: str):
        return "text"

    @functools.cached_property
    def once(self):
        pause()
        return []


class Base:
    def __init_subclass__(cls, /, tag=None, **kwargs):
        super().__init_subclass__(**kwargs)
        cls.tag = tag

    def __class_getitem__(cls, v):
        pause()
        return cls, v


class Tagged(Base, tag="t"):
    pass


class A0:
    def run(self, v):
        return [v]


class A1(A0):
    def run(self, v):
        pause()
        return [1, *super().run(v)]


class A2(A0):
    def run(self, v):
        return [2, *super().run(v)]


class A3(A1, A2):
    def run(self, v):
        return [3, *super().run(v)]


def by_matmul_of_classes(v):
    a = Loud(v)
    made = 3 @ (a @ 4)
    made **= 2
    made = 2 ** made
    return made.v if made.log == ["matmul", "rmatmul", "ipow", "rpow"] else None


def by_other_operators(v):
    a = Loud(v)
    q, r = divmod(a, 2)
    b = +(1 << q)
    c = round(b), round(b, 2)
    return c[1].v if a.log == ["divmod", "rlshift", "pos", "roundNone", "round2"] else None


def by_answers_that_are_no_bools(v):
    a, b = Loud(v), Loud(v)
    return (b <= a)[0] if (a != b) == "different" and a.log == ["ge"] else None


def by_reversed_method(v):
    return next(reversed(Loud(v)))


def by_subclass_on_the_right(v):
    return Left(1) + Right(v) if Left(1) - Right(2) == 2 else None


def by_total_ordering(v):
    a, b = Ordered(1), Ordered(2, v)
    return max(a, b).v if a <= b and not a >= b and b > a and a != b else None


def by_min_of_objects(v):
    return min([Plain(3, 1), Plain(1, v), Plain(2, 2)]).v


def by_sorted_objects(v):
    made = sorted([Plain(3, 1), Plain(1, v), Plain(1, 2)], reverse=True)
    pause()
    return made[1].v


def by_cmp_to_key(v):
    made = sorted([(1, 0), (3, v), (2, 0)], key=functools.cmp_to_key(lambda a, b: (pause(), b[0] - a[0])[1]))
    return made[0][1]


def by_checked_descriptor(v):
    made = WithChecked()
    made.whole = v
    got = made.whole
    del made.whole
    return got if not hasattr(made, "_part") and isinstance(WithChecked.part, Checked) else None


def by_meta_call(v):
    made = Made(v)
    return made.v if made.by_meta and Made.k == 5 and Made.shown == 5 and len(Made) == 3 else None


def by_meta_item(v):
    return Made[v] if 3 in Made and [*Made] == [1, 2] else None


def by_instance_check(v):
    return v if isinstance(Quacks(), Duck) and not isinstance(3, Duck) and issubclass(int, Duck) else None


def by_abstract_class(v):
    try:
        Shape()
    except TypeError:
        pause()
        return Square(v).area() if isinstance(Square(1), HasArea) else None


def by_registered_class(v):
    @Shape.register
    class Other:
        def area(self):
            return v
    pause()
    return Other().area() if isinstance(Other(), Shape) else None


def by_int_enum(v):
    found = {level: level + 1 for level in Level}
    pause()
    return v if found[Level.TOP] == 3 and Level(9) is Level.LOW and Level["HIGH"] is Level.TOP else None


def by_flags(v):
    both = Perm.R | Perm.W
    pause()
    return v if both is Perm.RW and Perm.X not in both and [*both] == [Perm.R, Perm.W] and not Perm(0) else None


def by_rich_enum(v):
    found = [p.name for p in Planet if p.heavy]
    pause()
    return v if found == ["EARTH"] and Planet((0.5, "red")) is Planet.MARS and Word("b") == "b" else None


def by_enum_made_here(v):
    made = enum.Enum("made", "ONE TWO")
    pause()
    return v if made.TWO.value == 2 and len(made) == 2 and made(1) is made.ONE else None


def by_full_dataclass(v):
    made = Full(v, 3, seed=4)
    made.items.append(1)
    other = dataclasses.replace(made, k=5, seed=1)
    pause()
    return other.v if (made.made, other.made) == (7, 6) and other.items is made.items else None


def by_frozen_dataclass(v):
    made = Point(1, v)
    try:
        made.k = 2
    except dataclasses.FrozenInstanceError:
        pause()
    return made.moved().v if made < made.moved() and {made: 1}[Point(1)] == 1 else None


def by_narrow_dataclass(v):
    made = Narrow(v=v)
    made.k += 1
    pause()
    try:
        made.other = 1
    except AttributeError:
        return made.v if dataclasses.fields(made)[1].default == 0 else None


def by_child_dataclass(v):
    made = Child(v, extra=8)
    pause()
    match made:
        case Child(got, 1, extra=8):
            return got


def by_dataclass_made_here(v):
    @dataclasses.dataclass
    class Local:
        v: object
        k: int = 2

        def twice(self):
            return self.k * 2
    made = Local(v)
    pause()
    return made.v if made.twice() == 4 and made == Local(v) else None


def by_as_tuple(v):
    made = dataclasses.astuple(Narrow(v=[1], k=2))
    pause()
    return v if made == ([1], 2) and dataclasses.asdict(Point(3)) == {"k": 3, "v": None} else None


def by_typed_named_tuple(v):
    made = Triple(1, v)
    pause()
    a, b, c = made.swapped()
    return a if (b, c) == (1, "c") and made._asdict()["c"] == "c" and Triple._fields[1] == "v" else None


def by_named_tuple_made_here(v):
    made = collections.namedtuple("made", "a v", defaults=[v])(1)
    pause()
    return made._replace(a=3).v


def by_copy_hooks(v):
    made = Copied(v)
    made.parts.append(2)
    a, b = copy.copy(made), copy.deepcopy(made)
    pause()
    return a.v if a.parts == [1] and b.parts == [1, 2] and b.parts is not made.parts else None


def by_deep_copy_of_cycle(v):
    items = [1, {"k": [2]}]
    items.append(items)
    pause()
    made = copy.deepcopy(items)
    made[1]["k"].append(3)
    return v if made[2] is made and items[1] == {"k": [2]} else None


def by_slice_objects(v):
    made = Sliced(v)
    got = made[1:2, ..., None]
    made[::2] = 3
    del made[-1]
    pause()
    return got if made.asked == [(slice(1, 2), ..., None), (slice(None, None, 2), 3), -1] else None


def by_old_sequence(v):
    made = OldSequence(1, v, 3)
    pause()
    return [*made][1] if 3 in made and list(reversed([*made]))[0] == 3 else None


def by_context_decorator(v):
    log = []

    @Decorating(log)
    def run(one):
        pause()
        return one
    got = run(v)
    return got if run(1) == 1 and log == ["in", "out"] * 2 else None


def by_single_dispatch_method(v):
    made = ByMethod()
    return made.of(v) if made.of("a") == "text" else None


def by_cached_property_twice(v):
    made = ByMethod()
    made.once.append(v)
    pause()
    got = made.once[0]
    del made.once
    return got if made.once == [] else None


def by_init_subclass_keywords(v):
    class Local(Base, tag=v):
        pass
    pause()
    return Local.tag if Tagged.tag == "t" and Base[3] == (Base, 3) else None


def by_diamond(v):
    return A3().run(v)[3]


def by_exit_stack_handed_over(v):
    log = []
    with contextlib.ExitStack() as stack:
        stack.callback(log.append, v)
        stack.enter_context(contextlib.closing(types.SimpleNamespace(close=lambda: log.append(1))))
        pause()
        kept = stack.pop_all()
    if log:
        return None
    kept.close()
    return log[1]


def by_counter_arithmetic(v):
    a, b = collections.Counter("aab"), collections.Counter(a=1, c=2)
    pause()
    return v if (a + b).most_common(1) == [("a", 3)] and a - b == {"a": 1, "b": 1} and (a & b)["a"] == 1 else None


def by_chain_of_maps(v):
    outer = {"a": 1, "v": 0}
    made = collections.ChainMap({"v": v}, outer)
    inner = made.new_child({"a": 2})
    inner["b"] = 3
    pause()
    return inner["v"] if inner["a"] == 2 and made["a"] == 1 and "b" not in outer and len(inner) == 3 else None


def by_ordered_dict_moves(v):
    made = collections.OrderedDict(a=1, b=v, c=3)
    made.move_to_end("a")
    made.move_to_end("c", last=False)
    pause()
    return made.popitem()[1] if False else made["b"] if [*made] == ["c", "b", "a"] else None


def by_user_string(v):
    made = collections.UserString("ab") + "c"
    pause()
    return v if made.upper() == "ABC" and "b" in made and made[1:] == "bc" else None


def by_big_numbers(v):
    n = 3 ** 80 + 1
    pause()
    return v if n % 1_000_007 == pow(3, 80, 1_000_007) + 1 and n.bit_length() == 127 and -n // 7 < 0 else None


def by_text_forms(v):
    n, f, s = 255, 1234.5678, "ab"
    made = f"{n:#06x}|{n:,}|{f:>12.3e}|{f:+.1f}|{s!r:^6}|{s:*<4}|{n=}|{'%5.2f%%' % f}|{{}}"
    pause()
    return v if made == "0x00ff|255| 1.235e+03|+1234.6| 'ab' |ab**|n=255|1234.57%|{}" else None


def by_frozen_sets(v):
    a, b = frozenset("abc"), {"b", "c", "d"}
    pause()
    made = {a & b: v}
    return made[frozenset("bc")] if (a ^ b) == {"a", "d"} and a.isdisjoint("xy") and a >= {"a"} else None


def by_extended_slices(v):
    items = [*range(6), v]
    items[::2] = "abcd"
    del items[1::2]
    pause()
    items[1:1] = [v]
    return items[1] if items[2:] == ["b", "c", "d"] else None


def by_module_getattr(v):
    made = types.ModuleType("made")
    made.__getattr__ = lambda name: (pause(), name)[1]
    made.v = v
    return made.v if made.other == "other" else None


def by_changed_default(v):
    def inner(a=1, *, k=2):
        return a, k
    inner.__defaults__ = (v,)
    pause()
    return inner()[0]


def by_attribute_protocol_order(v):
    class Own:
        def __getattribute__(self, name):
            pause()
            if name == "gone":
                raise AttributeError(name)
            return object.__getattribute__(self, name)

        def __getattr__(self, name):
            return v
    made = Own()
    made.there = 1
    return made.gone if made.there == 1 else None


def by_in_place_fallback(v):
    class Adds:
        def __init__(self, items):
            self.items = items

        def __add__(self, other):
            pause()
            return Adds([*self.items, other])
    a = b = Adds([])
    a += v
    return a.items[0] if b.items == [] else None


def by_method_resolution_of_instances(v):
    class Callable:
        def __call__(self):
            return 1

        def __len__(self):
            return 1
    made = Callable()
    made.__call__ = lambda: 2
    made.__len__ = lambda: 5
    pause()
    return v if made() == 1 and len(made) == 1 and made.__call__() == 2 else None


def by_operator_functions(v):
    items = [0, v, 2]
    operator.setitem(items, 0, 5)
    operator.iadd(items, [9])
    pause()
    got = operator.itemgetter(1, 3)(items)
    return got[0] if operator.contains(items, 9) and operator.length_hint(items) == 4 else None


def by_exception_notes(v):
    try:
        try:
            raise ValueError(1)
        except ValueError as e:
            e.add_note("first")
            pause()
            raise KeyError(v) from e
    except KeyError as e:
        return e.args[0] if e.__cause__.__notes__ == ["first"] and e.__context__ is e.__cause__ else None


def by_nested_groups(v):
    found = []
    try:
        raise ExceptionGroup("outer", [ValueError(v), ExceptionGroup("inner", [KeyError(1), TypeError(2)])])
    except* KeyError as group:
        pause()
        found.append(group.exceptions[0].exceptions[0].args)
    except* (ValueError, TypeError) as group:
        pause()
        found.append(group.exceptions[0].args)
    return found[1][0] if found[0] == (1,) else None
