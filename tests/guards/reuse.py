"""Objects that are freed and made anew at the same address: kinds of objects, places for them, and how to land there.

A *wrap* is a kind of object that leads to another one; a *leaf* is a kind that leads to a number; a *place* is what a
jitted function reads the outermost object from. `Nest` puts wraps around a leaf.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import gc
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import jitpy


class Box:
    def __init__(self, v: Any) -> None:
        self.v = v

    def get(self) -> Any:
        return self.v


class Slotted:
    __slots__ = ("v", "p0", "p1", "p2", "p3", "p4")

    def __init__(self, v: Any = None) -> None:
        self.v = v


@dataclasses.dataclass
class Data:
    v: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    v: Any


@dataclasses.dataclass(slots=True)
class SlottedData:
    v: Any


class Pair(NamedTuple):
    v: Any
    other: int = 0


class OwnList(list):
    pass


class OwnTuple(tuple):
    pass


class OwnDict(dict):
    pass


class Module(torch.nn.Module):
    def __init__(self, v: Any) -> None:
        super().__init__()
        self.v = v


def _identity(v: Any) -> Any:
    return v


def _closure(v: Any) -> Any:
    return lambda: v


def _default(v: Any) -> Any:
    def f(a: Any = v) -> Any:
        return a

    return f


def _keyword_default(v: Any) -> Any:
    def f(*, a: Any = v) -> Any:
        return a

    return f


def _python_module(v: Any) -> types.ModuleType:
    made = types.ModuleType("made")
    made.v = v  # type: ignore[attr-defined]
    return made


def _with_own_dict(v: Any) -> Any:
    made = Box(None)
    made.__dict__ = {"v": v}
    return made


class Kind(NamedTuple):
    """How an object is made around another one, and the expression that reads that from it."""

    make: Callable[[Any], Any]
    read: str
    hashable_only: bool = False


WRAPS: dict[str, Kind] = {
    "tuple": Kind(lambda v: (v,), "{}[0]"),
    "tuple of two": Kind(lambda v: (7, v), "{}[-1]"),
    "tuple subclass": Kind(lambda v: OwnTuple((v,)), "{}[0]"),
    "list": Kind(lambda v: [v], "{}[0]"),
    "list subclass": Kind(lambda v: OwnList([v]), "{}[0]"),
    "dict": Kind(lambda v: {"k": v}, "{}['k']"),
    "dict subclass": Kind(lambda v: OwnDict(k=v), "{}['k']"),
    "OrderedDict": Kind(lambda v: collections.OrderedDict(k=v), "{}['k']"),
    "defaultdict": Kind(lambda v: collections.defaultdict(int, k=v), "{}['k']"),
    "deque": Kind(lambda v: collections.deque([v]), "{}[0]"),
    "dict key": Kind(lambda v: {v: 0}, "next(iter({}))", True),
    "set": Kind(lambda v: {v}, "next(iter({}))", True),
    "frozenset": Kind(lambda v: frozenset([v]), "next(iter({}))", True),
    "instance": Kind(Box, "{}.v"),
    "instance, dict replaced": Kind(_with_own_dict, "{}.v"),
    "slots": Kind(Slotted, "{}.v"),
    "dataclass": Kind(Data, "{}.v"),
    "frozen dataclass": Kind(Frozen, "{}.v"),
    "slots dataclass": Kind(SlottedData, "{}.v"),
    "NamedTuple": Kind(Pair, "{}.v"),
    "namespace": Kind(lambda v: types.SimpleNamespace(v=v), "{}.v"),
    "module": Kind(_python_module, "{}.v"),
    "nn.Module": Kind(Module, "{}.v"),
    "class": Kind(lambda v: type("Made", (), {"v": v}), "{}.v"),
    "instance of a new class": Kind(lambda v: type("Made", (), {"v": v})(), "{}.v"),
    "static method": Kind(lambda v: type("Made", (), {"f": staticmethod(lambda: v)}), "{}.f()"),
    "property": Kind(lambda v: type("Made", (), {"v": property(lambda self: v)})(), "{}.v"),
    "closure": Kind(_closure, "{}()"),
    "cell": Kind(types.CellType, "{}.cell_contents"),
    "default": Kind(_default, "{}()"),
    "keyword default": Kind(_keyword_default, "{}()"),
    "bound method": Kind(lambda v: Box(v).get, "{}()"),
    "self of a method": Kind(lambda v: Box(v).get, "{}.__self__.v"),
    "partial": Kind(lambda v: functools.partial(_identity, v), "{}()"),
}

#: kinds of objects that lead to a number: make(n) for n in 0, 1
LEAVES: dict[str, Kind] = {
    "float": Kind(lambda n: 2.5 + n, "{}", True),
    "int": Kind(lambda n: 100_000 + n, "{}", True),
    "large int": Kind(lambda n: 10**20 + n, "({} - 10**20)", True),
    "bool": Kind(bool, "int({})", True),
    "complex": Kind(lambda n: complex(1.5, n), "{}.imag", True),
    "str": Kind(lambda n: "".join(["text", "text "[n:]]), "len({})", True),
    "bytes": Kind(lambda n: bytes([7, n, 9]), "{}[1]", True),
    "None or float": Kind(lambda n: None if n else 4.5, "(3.0 if {0} is None else 1.0)", True),
    "range": Kind(lambda n: range(3 + n), "len({})", True),
    "slice": Kind(lambda n: slice(0, 3 + n), "{}.stop"),
    "tuple of floats": Kind(lambda n: (1.5, 2.5 + n), "sum({})", True),
    "frozenset of ints": Kind(lambda n: frozenset([100_001, 100_002 + n]), "sum({})", True),
    "set of ints": Kind(lambda n: {100_001, 100_002 + n}, "sum({})"),
    "list of floats": Kind(lambda n: [1.5, 2.5 + n], "sum({})"),
    "dict of floats": Kind(lambda n: {"a": 1.5, "b": 2.5 + n}, "sum({}.values())"),
    "keys of a dict": Kind(lambda n: {"a": 1, ("b" if n else "bb"): 2}, "sum(len(k) for k in {})"),
    "length of a tuple": Kind(lambda n: (None,) * (3 + n), "len({})", True),
    "length of a list": Kind(lambda n: [None] * (3 + n), "len({})"),
    "torch.Size": Kind(lambda n: torch.Size([3, 4 + n]), "{}[1]", True),
    "function": Kind(lambda n: (lambda: 2.0) if n else (lambda: 3.0), "{}()", True),
    "instance of one of two classes": Kind(lambda n: (Box, Data)[n](1.0), "len(type({}).__name__)"),
    "tensor's value": Kind(lambda n: torch.tensor(2.0 + n), "{}"),
    "tensor's shape": Kind(lambda n: torch.zeros(2, 3 + n), "{}.shape[1]"),
    "tensor's dtype": Kind(lambda n: torch.zeros(2, dtype=(torch.float32, torch.float64)[n]), "{}.element_size()"),
    "tensor's strides": Kind(lambda n: torch.zeros(2, 2).t() if n else torch.zeros(2, 2), "{}.stride()[0]"),
    "tensor that requires grad": Kind(lambda n: torch.zeros(2, requires_grad=bool(n)), "int({}.requires_grad)"),
    "parameter": Kind(lambda n: torch.nn.Parameter(torch.full((2,), 2.0 + n)), "{}.detach().sum()"),
}

#: plain functions, which in a class become methods when an instance reads them
FUNCTIONS = frozenset({"closure", "default", "keyword default"})
#: kinds that hold themselves, so that the garbage collector has to free them
SLOW = frozenset({"class", "instance of a new class", "static method", "property"})


class Place:
    """The place that the function reads the object from. `put` replaces what is there; `clear` frees it."""

    def __init__(self, read: str, put: Callable[[Any], None], clear: Callable[[], None], holder: Any,
                 namespace: dict[str, Any], padding: str) -> None:
        self.read, self.put, self.clear, self.holder = read, put, clear, holder
        self.namespace, self.padding = namespace, padding


def _padded(holder: Any) -> Any:
    """So many attributes more that the guards are worth a snapshot."""
    for i in range(5):
        setattr(holder, f"p{i}", Box(0.0))
    return holder


def _of_attributes(holder: Any, read: str, padding: str, namespace: dict[str, Any] | None = None) -> Place:
    def clear() -> None:
        holder.v = None

    return Place(read, lambda obj: setattr(holder, "v", obj), clear, holder, namespace or {}, padding)


def _pads(of: str) -> str:
    return " + ".join(f"{of}.p{i}.v" for i in range(5))


def _attribute() -> Place:
    return _of_attributes(_padded(Box(None)), "h.v", _pads("h"))


def _slot() -> Place:
    return _of_attributes(_padded(Slotted()), "h.v", _pads("h"))


def _dataclass() -> Place:
    return _of_attributes(_padded(Data(None)), "h.v", _pads("h"))


def _class_attribute() -> Place:
    cls = _padded(type("Holder", (), {"v": None}))
    return _of_attributes(cls, "h.v", _pads("h"))


def _attribute_of_class_read_from_instance() -> Place:
    cls = _padded(type("Holder", (), {"v": None}))
    place = _of_attributes(cls, "h.v", _pads("h"))
    place.holder = cls()
    return place


def _module_attribute() -> Place:
    module = _padded(types.ModuleType("holder"))
    return _of_attributes(module, "M.v", _pads("M"), {"M": module})


def _nn_module_attribute() -> Place:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), Module(None))
    return Place("h[1].v", lambda obj: setattr(module[1], "v", obj), lambda: setattr(module[1], "v", None), module,
                 {}, "float(len(h)) + h[0].in_features")


def _list_item() -> Place:
    holder: list[Any] = [_padded(Box(0)), None]

    def put(obj: Any) -> None:
        holder[1] = obj

    return Place("h[1]", put, lambda: put(None), holder, {}, _pads("h[0]"))


def _dict_item() -> Place:
    holder: dict[str, Any] = {"pad": _padded(Box(0)), "v": None}
    return Place("h['v']", lambda obj: holder.update(v=obj), lambda: holder.update(v=None), holder, {},
                 _pads("h['pad']"))


def _global() -> Place:
    space: dict[str, Any] = {"G": None, "PAD": _padded(Box(0))}
    return Place("G", lambda obj: space.update(G=obj), lambda: space.update(G=None), None, space, _pads("PAD"))


def _item_of_global() -> Place:
    table: dict[str, Any] = {"v": None}
    space: dict[str, Any] = {"T": table, "PAD": _padded(Box(0))}
    return Place("T['v']", lambda obj: table.update(v=obj), lambda: table.update(v=None), None, space, _pads("PAD"))


def _argument() -> Place:
    holder: list[Any] = [None]

    def put(obj: Any) -> None:
        holder[0] = obj

    place = Place("h", put, lambda: put(None), holder, {"PAD": _padded(Box(0))}, _pads("PAD"))
    place.call = lambda f, x: f(x, holder[0])  # type: ignore[attr-defined]
    return place


def _closure_cell() -> Place:
    cell = types.CellType(None)

    def put(obj: Any) -> None:
        cell.cell_contents = obj

    place = Place("c", put, lambda: put(None), _padded(Box(0)), {}, _pads("h"))
    place.cell = cell  # type: ignore[attr-defined]
    return place


def _default_of_function() -> Place:
    def helper(a: Any = None) -> Any:
        return a

    def put(obj: Any) -> None:
        helper.__defaults__ = (obj,)

    return Place("helper()", put, lambda: put(None), _padded(Box(0)), {"helper": helper}, _pads("h"))


def _default_of_the_function_itself() -> Place:
    place = Place("d", lambda obj: None, lambda: None, _padded(Box(0)), {}, _pads("h"))
    place.default = True  # type: ignore[attr-defined]
    return place


PLACES: dict[str, Callable[[], Place]] = {
    "attribute": _attribute, "slot": _slot, "dataclass": _dataclass, "class attribute": _class_attribute,
    "class attribute by an instance": _attribute_of_class_read_from_instance, "module": _module_attribute,
    "nn.Module": _nn_module_attribute, "list item": _list_item, "dict item": _dict_item, "global": _global,
    "item of a global dict": _item_of_global, "argument": _argument, "closure cell": _closure_cell,
    "default": _default_of_function, "own default": _default_of_the_function_itself,
}


def functions_of(place: Place, text: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Two functions of the same text, so that one can be jitted and the other stay plain: (jitted, plain)."""
    default = ", d=None" if getattr(place, "default", False) else ""
    head, body = f"def f(x, h{default}):", f"return x * ({text}) + ({place.padding})"
    source = f"def outer(c):\n  {head}\n    {body if place.read != 'c' else body}\n  return f"
    place.namespace.update(torch=torch)
    exec(compile(source, "<reuse>", "exec"), place.namespace)
    made = []
    for _ in range(2):
        f = place.namespace["outer"](None)
        if hasattr(place, "cell"):
            f = types.FunctionType(f.__code__, place.namespace, "f", closure=(place.cell,))
        made.append(f)
    if default:
        def put(obj: Any) -> None:
            for f in made:
                f.__defaults__ = (obj,)

        place.put, place.clear = put, lambda: put(None)
    return jitpy.jit(made[0], backend="eager"), made[1]


class Nest(NamedTuple):
    """Wraps around a leaf, the outermost first."""

    wraps: tuple[str, ...]
    leaf: str

    def text(self, read: str) -> str:
        for name in self.wraps:
            read = WRAPS[name].read.format(read)
        return LEAVES[self.leaf].read.format(read)

    def is_possible(self) -> bool:
        """Whether each object can lie where the nest wants it."""
        hashable, function = LEAVES[self.leaf].hashable_only, self.leaf == "function"
        for name in reversed(self.wraps):
            if WRAPS[name].hashable_only and not hashable or name == "instance of a new class" and function:
                return False
            function = name in FUNCTIONS
            hashable = hashable and name in ("tuple", "tuple of two", "frozenset", "frozen dataclass", "NamedTuple")
        return True

    def makers(self, n: int) -> list[Callable[[Any], Any]]:
        """How to make it, innermost first; the first one ignores its argument."""
        return [lambda _: LEAVES[self.leaf].make(n), *(WRAPS[name].make for name in reversed(self.wraps))]


def made(makers: list[Callable[[Any], Any]], of: Any = None) -> Any:
    for make in makers:
        of = make(of)
    return of


def landing(address: int, makers: list[Callable[[Any], Any]], inner: Any, tries: int) -> Any:
    """An object made by `makers` around `inner`, at the address if CPython can be brought to it."""
    others = []
    for _ in range(tries):
        candidate = made(makers, inner)
        if id(candidate) == address:
            return candidate
        others.append(candidate)
    return others[0]


class Outcome(NamedTuple):
    reused: bool
    stale: bool
    detail: str = ""


def call(place: Place, f: Callable[..., Any], x: torch.Tensor) -> Any:
    return place.call(f, x) if hasattr(place, "call") else f(x, place.holder)  # type: ignore[attr-defined]


def run(place_name: str, nest: Nest, held: int, rounds: int = 3) -> Outcome:
    """Jit a function that reads the nest from the place, free what is there, put one with other content at the same
    address, and compare with plain Python.

    held: so many objects of the inside are made ahead and stay alive, with both contents; the rest is freed.
    """
    place = PLACES[place_name]()
    jitted, plain = functions_of(place, nest.text(place.read))
    x = torch.ones(2)
    makers = [nest.makers(n) for n in (0, 1)]
    inner = [made(m[:held]) for m in makers]
    outside = [m[held:] for m in makers]
    place.put(made(outside[0], inner[0]))
    for _ in range(4):
        found, expected = call(place, jitted, x), call(place, plain, x)
        if not torch.equal(found, expected):
            return Outcome(False, True, f"at first: {found.tolist()} instead of {expected.tolist()}")
    slow = not SLOW.isdisjoint(nest.wraps)
    reused = False
    which = 0
    for _ in range(rounds):
        which = 1 - which
        address = _address(place, place_name, plain)
        place.clear()
        if slow:
            gc.collect()
        landed = landing(address, outside[which], inner[which], tries=16 if slow else 48)
        reused = reused or id(landed) == address
        place.put(landed)
        del landed
        for _ in range(3):
            found, expected = call(place, jitted, x), call(place, plain, x)
            if not (torch.equal(found, expected) and found.dtype == expected.dtype):
                return Outcome(reused, True, f"{found.tolist()} instead of {expected.tolist()}")
    return Outcome(reused, False)


def _address(place: Place, name: str, plain: Callable[..., Any]) -> int:
    if name == "own default":
        return id(plain.__defaults__[0])  # type: ignore[attr-defined]
    if name == "default":
        return id(place.namespace["helper"].__defaults__[0])
    if name == "argument":
        return id(place.holder[0])
    if name == "closure cell":
        return id(place.cell.cell_contents)  # type: ignore[attr-defined]
    return id(eval(place.read, {**place.namespace, "h": place.holder}))
