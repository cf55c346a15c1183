"""What builtins say to arguments that they refuse, and to special methods that return the wrong thing."""

from __future__ import annotations

import collections
import copy
import functools
import operator

import pytest
import torch

import jitpy


class Wrong:
    """Every special method returns what it must not."""

    def __str__(self):
        return 3

    def __repr__(self):
        return None

    def __format__(self, spec):
        return 5

    def __index__(self):
        return 2.0

    def __iter__(self):
        return 3

    def __hash__(self):
        return "a"

    def __len__(self):
        return -1


class Slots:
    __slots__ = ("a",)


class Index:
    def __index__(self):
        return 1


class Unset:
    x = 1

    def __len__(self):
        return "x"


class Ordered(collections.OrderedDict):
    pass


def rotated(n):
    queue = collections.deque([1, 2, 3])
    queue.rotate(n)
    return queue


REFUSED = {
    "print a separator": lambda x: print(sep=3),
    "print an end": lambda x: print(end=b"x"),
    "print to a number": lambda x: print("a", file=3),
    "iter": lambda x: iter(Wrong()),
    "for": lambda x: [v for v in Wrong()],
    "a rotation that is no size": lambda x: rotated(2**70),
    "a rotation that is just none": lambda x: rotated(-(2**63) - 1),
    "a rotation that is no number": lambda x: rotated("a"),
    "a rotation of nothing": lambda x: collections.deque().rotate(1.5),
    "a place that is no size": lambda x: [1].insert(2**70, 1),
    "a place in a queue that is no size": lambda x: collections.deque([1]).insert(2**70, 1),
    "a list too often": lambda x: [1] * 2**70,
    "a tuple too often": lambda x: (1,) * -(2**70),
    "ordered dicts": lambda x: collections.OrderedDict({}, {}),
    "ordered dicts of a class": lambda x: Ordered({}, {}, {}),
    "a dict's beginning": lambda x: dict.__init__({}, {}, {}),
    "a dict with defaults": lambda x: collections.defaultdict(int, {}, {}),
    "hash": lambda x: hash(Wrong()),
    "str": lambda x: str(Wrong()),
    "repr": lambda x: repr(Wrong()),
    "format": lambda x: f"{Wrong()}",
    "index": lambda x: [1, 2, 3][Wrong()],
    "slice": lambda x: [1, 2, 3][Wrong() :],
    "len": lambda x: len(Wrong()),
    "len of text": lambda x: len(Unset()),
    "truth": lambda x: bool(Wrong()),
    "vars of slots": lambda x: vars(Slots()),
    "vars of a number": lambda x: vars(3),
    "enumerate": lambda x: enumerate([1], start="a"),
    "step": lambda x: [1, 2, 3][::0],
    "insert": lambda x: [1].insert(),
    "get": lambda x: {}.get(),
    "append": lambda x: [].append(1, 2),
    "getattr": lambda x: len(1, 2),
    "in": lambda x: 3 in object(),
    "too few for getattr": lambda x: getattr(x),
    "too many for bool": lambda x: bool(1, 2),
    "too many for dict": lambda x: dict({}, {}),
    "too many for range": lambda x: range(1, 2, 3, 4),
    "too many for keys": lambda x: {}.keys(1),
    "too many for union": lambda x: {1}.add(1, 2),
    "too many for copy": lambda x: copy.copy(1, 2),
    "keyword of list": lambda x: list([1], key=1),
    "keyword of type": lambda x: type(1, zz=2),
    "keyword of zip": lambda x: zip([1], a=1),
    "keyword of float": lambda x: float(1, zz=1),
    "nothing for map": lambda x: map(),
    "nothing for operator": lambda x: operator.add(1),
    "operator of three": lambda x: operator.setitem([], 1),
    "a slot of one": lambda x: [].__len__(1),
    "a slot of two": lambda x: [1].__getitem__(),
    "an item of a class": lambda x: operator.getitem(int, 1),
    "rounding a tensor": lambda x: round(x, 1),
    "rounding an object": lambda x: round(Wrong()),
    "a negative length": lambda x: slice(1).indices(-1),
    "a hint of text": lambda x: operator.length_hint(1, "a"),
    "dict": lambda x: dict([1]),
    "isinstance": lambda x: isinstance(x, list[int]),
    "open": lambda x: open("/nonexistent"),
    "an item of 64 bits": lambda x: operator.setitem(x, 0, 1 << 63),
    "an operand of 64 bits": lambda x: x.long() * (1 << 70),
    "a byte": lambda x: torch.full((2,), 300, dtype=torch.uint8),
    "a filled byte": lambda x: x.to(torch.uint8).fill_(-1000),
    "a half": lambda x: torch.full((2,), 1e10, dtype=torch.float16),
    "masked": lambda x: x.to(torch.int8).masked_fill(x > 0, 300),
    "a list as a mapping": lambda x: {**[(1, 2)]},
    "an object as a mapping": lambda x: {**object()},
    "a mapping that lacks an attribute": lambda x: {**Keys(AttributeError("lost"))},
    "keywords of a list": lambda x: _keywords(**[("a", 2)]),
    "keywords that lack an attribute": lambda x: _keywords(**Keys(AttributeError("lost"))),
    "items of no iterable": lambda x: [*Never()],
    "arguments of no iterable": lambda x: _keywords(*Never()),
    "slices by objects": lambda x: (1, 2)[Slots():],
    "slices by text": lambda x: [1, 2]["a":],
    "a range's index": lambda x: range(3)["a"],
    "index of a float": lambda x: operator.index(1.5),
    "index of an object": lambda x: operator.index(Slots()),
    "a search from an object": lambda x: [1].index(1, Slots()),
    "a search from text": lambda x: (1,).index(1, "a"),
    "nothing for all": lambda x: all(),
    "too many for any": lambda x: any([], []),
    "sizes of text": lambda x: torch.Size(["a"]),
    "sizes joined": lambda x: x.shape + 1,
    "a device called": lambda x: x.device(),
    "a dtype called": lambda x: torch.float32(),
    "a queue by text": lambda x: collections.deque([1, 2])["a"],
    "a queue with too much": lambda x: collections.deque([1, 2]).pop(0),
    "a queue with too little": lambda x: collections.deque([1, 2]).insert(1),
    "keys from nowhere": lambda x: dict.fromkeys(),
    "a number joined": lambda x: "".join(1),
    "a list in bytes": lambda x: [1] in b"ab",
    "a set joined to a text": lambda x: operator.concat("a", {1}),
    "sets added": lambda x: {1} + {2},
    "a set repeated": lambda x: {1} * "a",
    "a list in a set's place": lambda x: operator.iand({1}, [1]),
    "a class thrown": lambda x: (v for v in [1]).throw(int),
    "a set that is no member": lambda x: {1}.remove({2}),
}


class Keys:
    """A mapping whose items raise."""

    def __init__(self, error):
        self.error = error

    def keys(self):
        return ["a"]

    def __getitem__(self, key):
        raise self.error


class Never:
    __iter__ = None


def _keywords(**found):
    return found


@pytest.mark.parametrize("raises", [lambda: collections.deque([1])[3], lambda: functools.reduce(operator.add, 5)])
def test_errors_have_no_context(raises) -> None:
    def call(x):
        y = x * 2
        try:
            return raises()
        except (IndexError, TypeError) as error:
            return y, str(error), error.__context__, error.__suppress_context__

    jitpy.reset()
    assert jitpy.jit(call, backend="eager")(torch.ones(1))[1:] == call(torch.ones(1))[1:]


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_in_eager(name: str, backend: str) -> None:
    refused = REFUSED[name]

    def call(x):
        y = x * 2
        try:
            return y, refused(x)
        except Exception as error:
            return y, type(error), str(error)

    jitpy.reset()
    x = torch.arange(4.0)
    expected = call(x)
    assert len(expected) == 3
    found = jitpy.jit(call, backend=backend)(x)
    assert torch.equal(expected[0], found[0])
    assert expected[1:] == found[1:]


OPERANDS = (1, 2.5, None, "a", b"b", [1], (2,), {3}, frozenset([4]), {"k": 1}, range(3), 1j)


@pytest.mark.parametrize("operate", [operator.iadd, operator.ipow, operator.imatmul, operator.ior, operator.imul])
def test_operators_in_place(operate) -> None:
    """What refuses operands names the operator as it is written: `+=`."""
    def call(x, a):
        y = x * 2
        seen = []
        for b in OPERANDS:
            try:
                a = copy.copy(a)
                seen.append(operate(a, b))
            except (TypeError, ValueError) as error:
                seen.append(str(error))
        return seen, y

    for a in OPERANDS:
        jitpy.reset()
        x = torch.ones(1)
        assert jitpy.jit(call, backend="eager")(x, copy.copy(a))[0] == call(x, copy.copy(a))[0]


class Threes:
    def __eq__(self, other):
        return NotImplemented if other is None else other == 3


def test_not_equal_by_equal() -> None:
    def call(x):
        a = Threes()
        chained = collections.ChainMap({"a": 1})
        return (x + 1, a.__ne__(3), a.__ne__(4), a.__ne__(None), object.__ne__(a, 3), object.__ne__(1, 2),
                chained.__ne__({"a": 1}), chained.__ne__({"a": 2}))

    assert jitpy.jit(call, backend="eager")(torch.ones(1))[1:] == call(torch.ones(1))[1:]


def test_sets_as_members() -> None:
    def call(x):
        found = {frozenset([1]), frozenset([2]), 3}
        before = {1} in found, {3} in found
        found.discard({2})
        found.remove({1})
        return x + 1, before, found

    assert jitpy.jit(call, backend="eager")(torch.ones(1))[1:] == call(torch.ones(1))[1:]


def test_indices_of_objects() -> None:
    def call(x):
        return [1, 2, 3][Index()], [1, 2, 3][Index() :], operator.index(True), operator.index(Index()), \
            collections.deque([1, 2])[Index()], _keywords(**collections.UserDict(z=3))

    jitpy.reset()
    assert [repr(v) for v in jitpy.jit(call, backend="eager")(torch.ones(1))] == ["2", "[2, 3]", "1", "1", "2",
                                                                                     "{'z': 3}"]
