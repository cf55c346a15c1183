"""`isinstance` and `issubclass` with protocols, abstract classes, metaclasses and objects that say what they are.
PYTEST_DONT_REWRITE: cases run as they are written."""

from __future__ import annotations

import abc
import collections.abc
import typing

import sympy  # noqa: F401  (registers abstract classes, which empties the caches that ABCMeta's checks are answered from)
import torch

from tests.semantics.harness import case, make_test


def one():
    return (torch.arange(4.0),)


@typing.runtime_checkable
class Goes(typing.Protocol):
    def go(self) -> int: ...


@typing.runtime_checkable
class HasData(typing.Protocol):
    data_attr: int


@typing.runtime_checkable
class Both(typing.Protocol):
    data_attr: int

    def go(self) -> int: ...


class NotForRuntime(typing.Protocol):
    def go(self) -> int: ...


def in_steps(make, *changes):
    """A function, and what is changed between its calls."""

    def factory():
        cls = type("Made", (), {"__slots__": ("__dict__", "slot")})
        obj = cls()
        fn = make(obj)
        state = {"calls": 0}

        def calls(x):
            step = state["calls"]
            state["calls"] += 1
            if 0 < step <= len(changes):
                changes[step - 1](cls, obj)
            return fn(x)

        return calls

    return factory


def _went(self):
    return 1


def _set(name, value):
    return lambda cls, obj: setattr(obj, name, value)


def _delete(name):
    return lambda cls, obj: delattr(obj, name)


def _set_class(name, value):
    return lambda cls, obj: setattr(cls, name, value)


def _delete_class(name):
    return lambda cls, obj: delattr(cls, name)


def stepwise(make, *changes):
    """A case whose object changes before each further call."""
    case(*[one] * (len(changes) + 2), factory=True, rounds=1)(_named(in_steps(make, *changes), make.__name__))
    return make


def _named(factory, name):
    factory.__name__ = name
    return factory


def asks(protocol):
    return lambda obj: lambda x: x * (2 if isinstance(obj, protocol) else 3)


def _steps(name, protocol, *changes):
    make = asks(protocol)
    make.__name__ = name
    stepwise(make, *changes)


_steps("method_added_to_the_class", Goes, _set_class("go", _went), _delete_class("go"))
_steps("method_on_the_instance", Goes, _set("go", _went), _delete("go"), _set("go", None), _set("go", 1))
_steps("data_comes_and_goes", HasData, _set("data_attr", 1), _set("data_attr", None), _delete("data_attr"))
_steps("data_of_the_class", HasData, _set_class("data_attr", None), _delete_class("data_attr"))
_steps("data_and_method", Both, _set("data_attr", 1), _set_class("go", _went), _delete("data_attr"),
       _set_class("data_attr", property(lambda self: 1 // 0)), _set_class("go", None), _set("go", 2))
_steps("data_in_a_slot", HasData, _set("slot", 1), lambda cls, obj: setattr(cls, "data_attr", cls.slot),
       _delete("slot"))
_steps("class_registered_with_a_protocol", Both, lambda cls, obj: Both.register(cls))
_steps("class_registered_with_an_abstract_class", collections.abc.Sized,
       lambda cls, obj: collections.abc.Sized.register(cls))


@case(one, factory=True)
def attribute_found_by_code():
    class Dynamic:
        def __getattr__(self, name):
            if name == "data_attr":
                return 1
            raise AttributeError(name)

    class Computed:
        @property
        def data_attr(self):
            raise AttributeError("not now")

    found = Dynamic(), Computed()
    return lambda x: [x * isinstance(obj, HasData) for obj in found]


@case(one)
def protocols_that_cannot_be_asked(x):
    found = []
    for question in (lambda: isinstance(x, NotForRuntime), lambda: issubclass(int, HasData),
                     lambda: issubclass(int, NotForRuntime), lambda: isinstance(x, list[int])):
        try:
            found.append(question())
        except TypeError as error:
            found.append(str(error))
    return x + 1, found


@case(one)
def protocols_of_plain_values(x):
    values = [1, "a", [1], {"a": 1}, x, len, torch, None, torch.nn.Linear]
    return x + 1, [isinstance(value, typing.SupportsIndex) for value in values[:5]], [
        isinstance(value, collections.abc.Iterable) for value in values
    ], issubclass(int, typing.SupportsInt), issubclass(list, Goes)


class Explicit(Goes):
    pass


class Structural:
    def go(self):
        return 1


@case(one, fullgraph=True)
def protocols_by_class(x):
    return x + 1, isinstance(Explicit(), Goes), isinstance(Structural(), Goes), issubclass(Structural, Goes), \
        isinstance(Structural(), Explicit), isinstance(x, Goes)


ASKED: list[str] = []


class Meta(type):
    def __instancecheck__(cls, instance):
        ASKED.append(type(instance).__name__)
        return hasattr(instance, "special") or super().__instancecheck__(instance)

    def __subclasscheck__(cls, sub):
        return sub is int or super().__subclasscheck__(sub)


class Special(metaclass=Meta):
    pass


class PartOfSpecial(Special):
    special = True


class AbstractMeta(abc.ABCMeta):
    def __instancecheck__(cls, instance):
        return getattr(instance, "wanted", False) or super().__instancecheck__(instance)

    def __subclasscheck__(cls, sub):
        return sub is float or super().__subclasscheck__(sub)


class Wanted(metaclass=AbstractMeta):
    pass


class Holder:
    wanted = False


@case(one, fullgraph=True, globals={"ASKED": list})
def metaclass_that_answers(x):
    found = [isinstance(obj, Special) for obj in (Special(), PartOfSpecial(), 1, x, Holder())]
    return x + 1, found, issubclass(int, Special), issubclass(PartOfSpecial, Special), issubclass(str, Special)


@case(one, factory=True, rounds=3)
def abstract_metaclass_that_answers():
    holder = Holder()

    def fn(x):
        result = [isinstance(holder, Wanted), isinstance(1.0, Wanted), isinstance(1, Wanted), issubclass(float, Wanted)]
        holder.wanted = not holder.wanted
        return x * result[0], result

    return fn


class BaseMeta(type):
    def named(cls, name):
        return cls.__name__ + name

    def __call__(cls, *args):
        return super().__call__(*args), "base"


class DerivedMeta(BaseMeta):
    def named(cls, name):
        return super().named(name.upper())

    def __call__(cls, *args):
        return super().__call__(*args), "derived"


class MadeByMeta(metaclass=DerivedMeta):
    def __init__(self, number):
        self.number = number


@case(one, fullgraph=True)
def super_in_metaclasses(x):
    (made, first), second = MadeByMeta(2)
    return x * made.number, first, second, MadeByMeta.named("a")


class Mock:
    @property
    def __class__(self):
        return torch.nn.Linear


@case(one, fullgraph=True)
def object_that_says_another_class(x):
    return x + 1, isinstance(Mock(), torch.nn.Linear), isinstance(Mock(), Mock), isinstance(Mock(), torch.nn.Module), \
        isinstance(Mock(), int), isinstance(Mock(), collections.abc.Sized)


@case(one, factory=True)
def hook_of_an_abstract_class():
    asked = []

    class Sizes(abc.ABC):
        @classmethod
        def __subclasshook__(cls, sub):
            asked.append(sub.__name__)
            if sub is str:
                raise ValueError("no text")
            return hasattr(sub, "__len__") or NotImplemented

    def fn(x):
        try:
            failed = isinstance("a", Sizes)
        except ValueError as error:
            failed = str(error)
        return x + 1, isinstance([], Sizes), isinstance(1, Sizes), failed

    return fn


@case(one)
def unions(x):
    return x + 1, isinstance(1, int | None), isinstance(None, int | None), isinstance("", typing.Optional[int]), \
        isinstance([], typing.List), isinstance(x, torch.Tensor | int)  # noqa: UP006


@case(lambda: (torch.ones(3), 2, "a"), fullgraph=True)
def refinements_of_torchscript(x, number, text):
    refine = torch.jit.isinstance
    return x + 1, refine(x, torch.Tensor), refine(number, str), refine(text, (int, str)), refine([x], list)


@case(lambda: (torch.ones(3), [torch.ones(2)], {"k": 1}))
def refinements_of_containers(x, tensors, numbers):
    refine = torch.jit.isinstance
    return (x + 1, refine(tensors, list[torch.Tensor]), refine(tensors, typing.List[int]),
            refine(numbers, dict[str, int]), refine((1, "a"), tuple[int, str]), refine(None, typing.Optional[int]))


NUMBER = typing.Union[int, float]  # noqa: UP007


@case(lambda: (torch.randn(3), 2), lambda: (torch.randn(3), "a"), lambda: (torch.randn(3), None), fullgraph=True)
def unions_of_typing(x, value):
    found = [isinstance(value, NUMBER), isinstance(value, typing.Optional[str]),  # noqa: UP007, UP045
             isinstance(value, (typing.Union[str, list], dict)), issubclass(type(value), NUMBER)]  # noqa: UP007
    return x + sum(found), found


@case(lambda: (torch.randn(3),), factory=True)
def a_union_that_changes():
    state = {"kinds": typing.Union[int, str]}  # noqa: UP007

    def fn(x):
        found = isinstance(3, state["kinds"])
        state["kinds"] = typing.Union[str, bytes] if found else typing.Union[int, str]  # noqa: UP007
        return x + found

    return fn, state


test_all = make_test(__name__)
