"""Members of enumerations and classes are constants to a trace, but what the program wrote for them is called, each
time: their truth, operators, texts, subscripts."""

from __future__ import annotations

import copy
import copyreg
import enum
import operator
import warnings
from typing import Any

import pytest
import torch

from tests.semantics.harness import case, make_test
from tests.semantics.test_changes_between_calls import Change, Surroundings, check_changes, registering

CHANGED: dict[str, tuple[Any, tuple[Change, ...]]] = {}


changed = registering(CHANGED)


one = lambda: (torch.ones(2),)  # noqa: E731
two = lambda: (torch.ones(3),)  # noqa: E731


def _noting(seen, name, answer):
    """A method that notes its calls; `answer(seen)` is what it returns."""

    def method(self, *args):
        seen.append(name)
        return answer(seen)

    return method


@case(one, two, factory=True)
def truth_of_members():
    seen = []

    class Kind(enum.Enum):
        A = 1
        __bool__ = _noting(seen, "bool", lambda s: len(s) % 2 == 1)

    def fn(x):
        found = [bool(Kind.A), not Kind.A, [1 for _ in range(3) if Kind.A]]
        return x + 1 if Kind.A else x - 1, found

    return fn, seen


@case(one, two, factory=True)
def texts_of_members():
    seen = []

    class Kind(enum.Enum):
        A = 1
        __str__ = _noting(seen, "str", lambda s: f"<{len(s)}>")
        __repr__ = _noting(seen, "repr", lambda s: f"<<{len(s)}>>")

    def fn(x):
        member = Kind.A
        return (x + 1, str(member), repr(member), f"{member} {member!r}", "{:>5}".format(member), "%s" % member,
                str([member, {"a": member}]), f"{member:>6}")

    return fn, seen


@case(one, two, factory=True)
def operators_of_flags():
    seen = []

    class Flag(enum.Flag):
        A = 1
        B = 2
        __or__ = _noting(seen, "or", len)
        __contains__ = _noting(seen, "contains", lambda s: len(s) > 3)
        __invert__ = _noting(seen, "invert", len)

    class Plain(enum.Flag):
        A = 1
        B = 2

    def fn(x):
        a, b = Flag.A, Flag.B
        return x + 1, a | b, a in b, ~a, a & b, Plain.A | Plain.B, Plain.A in Plain.A | Plain.B, ~Plain.A, bool(a & b)

    return fn, seen


@case(one, two, factory=True)
def what_a_metaclass_says():
    seen = []

    class Meta(type):
        __bool__ = _noting(seen, "bool", lambda s: len(s) % 2 == 0)
        __len__ = _noting(seen, "len", len)
        __str__ = _noting(seen, "str", lambda s: f"<{len(s)}>")
        __contains__ = _noting(seen, "contains", lambda s: False)
        __getitem__ = _noting(seen, "getitem", len)
        __or__ = _noting(seen, "or", len)
        __format__ = _noting(seen, "format", lambda s: f"<<{len(s)}>>")

    class Made(metaclass=Meta):
        pass

    def fn(x):
        return (x + 1 if Made else x - 1, bool(Made), len(Made), str(Made), 1 in Made, Made[2], Made | int, f"{Made:k}",
                "%s" % Made, "{}".format(Made), [1 for _ in range(2) if not Made])

    return fn, seen


@changed(lambda w: setattr(w.cls, "__or__", lambda self, other: 5), lambda w: delattr(w.cls, "__or__"))
def operators_that_a_flag_gets():
    class Flag(enum.Flag):
        A = 1
        B = 2

    return lambda x: (x + 1, Flag.A | Flag.B), Surroundings(cls=Flag)


@changed(lambda w: setattr(w.cls, "__set_name__", lambda self, owner, name: setattr(self, "name", name)),
         lambda w: setattr(w.cls, "__get__", lambda self, owner, cls: "got"))
def descriptors_that_become_some():
    class Item:
        name = None

    def fn(x):
        item = Item()

        class Made:
            held = item

        return x + 1, item.name, Made().held if isinstance(Made().held, str) else None

    return fn, Surroundings(cls=Item)


@changed(lambda w: copyreg.pickle(w.cls, lambda one: (list, ([5],))),
         lambda w: copyreg.dispatch_table.pop(w.cls),
         lambda w: setattr(w.cls, "__deepcopy__", lambda self, memo: 7))
def copies_that_copyreg_knows():
    class Held:
        pass

    held = Held()
    held.part = [1]

    def shown(found):
        return vars(found) if isinstance(found, Held) else found

    return lambda x: (x + 1, shown(copy.copy(held)), shown(copy.deepcopy(held)), len(copy.deepcopy([held]))), \
        Surroundings(cls=Held)


@changed(lambda w: setattr(w.cls, "__index__", lambda self: 1), lambda w: delattr(w.cls, "__index__"))
def indices_that_become_some():
    class Place:
        pass

    place = Place()

    def asked(question):
        try:
            return question()
        except (TypeError, IndexError) as error:
            return str(error)

    return lambda x: (x + 1, [asked(q) for q in (lambda: [5, 6][place], lambda: (5, 6)[place:], lambda: "ab"[place],
                                                 lambda: range(3)[place],
                                                 lambda: [1] * place)]), Surroundings(cls=Place)


@case(one, two, factory=True)
def reversed_asks_item_by_item():
    seen = []

    class Items:
        def __init__(self):
            self.items = [1, 2, 3]

        def __len__(self):
            seen.append("len")
            return len(self.items)

        def __getitem__(self, i):
            seen.append(i)
            return self.items[i]

    def fn(x):
        held = Items()
        found = []
        for item in reversed(held):
            seen.append(("got", item))
            held.items[0] = item * 10
            found.append(x + item)
        left = reversed(held)
        found.append(next(left))
        held.items.clear()
        return found, [*map(int, left)]

    return fn, seen


class _Number(float):
    pass


def _answering(name, answer):
    return type("Answering", (), {name: lambda self: answer})()


@case(one)
def numbers_that_special_methods_return(x):
    found = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for made in (int(_answering("__int__", True)), float(_answering("__float__", _Number(2))),
                     operator.index(_answering("__index__", True)), hash(_answering("__hash__", True)),
                     hash(_answering("__hash__", -1)), hash(_answering("__hash__", 2**70))):
            found.append((made, type(made).__name__))
    for name, answer, ask in (("__float__", "a", float), ("__float__", 1, float), ("__str__", 1, str),
                              ("__repr__", 1, str), ("__repr__", 1, repr), ("__hash__", "a", hash)):
        try:
            ask(_answering(name, answer))
        except TypeError as error:
            found.append(str(error))
    return x + 1, found, [(str(one.message), one.lineno) for one in caught]


_patch = lambda name, method: lambda context: setattr(torch.Tensor, name, method)  # noqa: E731
_unpatch = lambda name: _patch(name, vars(torch.Tensor).get(name, getattr(torch.Tensor, name)))  # noqa: E731


@changed(_patch("__float__", lambda self: 2.5), _unpatch("__float__"),
         _patch("__int__", lambda self: 7), _unpatch("__int__"),
         _patch("__abs__", lambda self: 9), _unpatch("__abs__"),
         _patch("__index__", lambda self: 1), _unpatch("__index__"))
def numbers_that_tensors_become():
    def fn(x):
        return float(x.sum()), int(x.sum()), abs(x), [5, 6, 7][torch.tensor(0)]

    return fn, Surroundings()


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", CHANGED)
def test_changes_are_seen(name: str, backend: str) -> None:
    check_changes(*CHANGED[name], backend)


test_all = make_test(__name__)
