"""Guards that hold are remembered by what they read: every kind of change to it is noticed, and so is its end."""

from __future__ import annotations

import collections
import gc
import random
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from jitpy.frontend.guards import source as src
from jitpy.frontend.guards.guard_set import MISSING, ClassLookup, GuardSet, TensorGuard
from jitpy.runtime.guards import GuardFunction, build_guards

Undo = Callable[[], None]
X = src.LocalSource(0, "x")


class Node:
    """An instance with attributes of all kinds; `Other` is the same under another name."""

    flag = True

    def method(self) -> int:
        return 1


class Other(Node):
    pass


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a: Any, b: Any) -> None:
        self.a = a
        self.b = b


def function_with_everything(value: Any) -> types.FunctionType:
    def inner(a: int = 300, *, b: int = 400) -> Any:
        return value, a, b

    return inner  # type: ignore[return-value]


def other_function(a: int = 1, *, b: int = 2) -> Any:
    return a, b


def context(depth: int) -> Any:
    """A tree of objects, as models are."""
    if depth % 2:
        module = torch.nn.Linear(3, 2)
        module.register_buffer("mean", torch.zeros(2))
        if depth > 1:
            module.inner = context(depth - 1)
            module.more = torch.nn.ModuleList([context(depth - 2)])
        return module
    node = Node()
    node.number, node.text, node.ratio = 1000 + depth, f"text {depth}", 0.5
    node.items = [Node(), 2000 + depth, [1, 2]]
    node.pair = (Node(), 3000)
    node.table = {"a": 1, "b": Node()}
    node.ordered = collections.OrderedDict(a=1, b=[3])
    node.queue = collections.deque([1, 2])
    node.names = {"a", "b"}
    node.slotted = Slotted(Node(), 5000)
    node.tensor = torch.zeros(2, 3)
    node.function = function_with_everything([1])
    if depth:
        node.below = context(depth - 1)
    return node


def tensor_guard(t: torch.Tensor) -> TensorGuard:
    keys = torch._C._dispatch_keys(t).raw_repr()
    return TensorGuard(type(t), t.dtype, t.device, t.requires_grad, tuple(t.shape), t.stride(), keys)


def guard_all(guards: GuardSet, source: src.Source, value: Any, pick: random.Random, every: list[Any]) -> None:
    """Facts about all that is in reach, most of them; `every` gets the objects that can be changed."""
    if value is None or isinstance(value, bool):
        guards.add(source, "id", value)
        return
    if isinstance(value, (int, str, float, types.CodeType)):
        guards.add(source, "eq", value)
        return
    every.append(value)
    if isinstance(value, torch.Tensor):
        guards.add(source, "tensor", tensor_guard(value))
        return
    if isinstance(value, types.FunctionType):
        if pick.random() < 0.5:
            guards.add(source, "id", value)
        guards.add(source, "function", (value.__code__, value.__defaults__, value.__kwdefaults__, False))
        for i, cell in enumerate(value.__closure__ or ()):
            every.append(cell)
            place = src.index(src.attr(source, "__closure__"), i)
            guard_all(guards, src.cell_contents(place), cell.cell_contents, pick, every)
        if pick.random() < 0.5:
            guards.add(src.attr(source, "__annotations__"), "keys", tuple(value.__annotations__))
        for key, default in (value.__kwdefaults__ or {}).items():
            guard_all(guards, src.item(src.attr(source, "__kwdefaults__"), key), default, pick, every)
        return
    if pick.random() < 0.9:
        guards.add(source, "type", type(value))
    if isinstance(value, (list, tuple)):
        guards.add(source, "len", len(value))
        for i, item in enumerate(value):
            guard_all(guards, src.index(source, i if pick.random() < 0.8 else i - len(value)), item, pick, every)
    elif isinstance(value, dict):
        guard_dict(guards, source, value, pick, every)
    elif isinstance(value, (collections.deque, set)):
        guards.add(source, "len", len(value))
    elif isinstance(value, Slotted):
        for name in ("a", "b"):
            guard_all(guards, src.slot(source, Slotted.__dict__[name]), getattr(value, name), pick, every)
    else:
        guard_dict(guards, src.instance_dict(source), value.__dict__, pick, every)


def guard_dict(guards: GuardSet, source: src.Source, value: dict[Any, Any], pick: random.Random,
               every: list[Any]) -> None:
    if pick.random() < 0.4:
        guards.add(source, "keys", tuple(value))
    if pick.random() < 0.4:
        guards.add(source, "len", len(value))
    guards.add(source, "nokey", "absent")
    for key, item in value.items():
        if pick.random() < 0.85:
            guard_all(guards, src.item(source, key), item, pick, every)
        else:
            guards.add(source, "haskey", key)


# ---- changes ----------------------------------------


def fresh(pick: random.Random) -> Any:
    return pick.choice([lambda: 10**6 + pick.randrange(5), lambda: [1, 2], Node, lambda: torch.zeros(2, 3),
                        lambda: "text", dict, lambda: None, lambda: (1, 2), lambda: torch.nn.Linear(3, 2)])()


def change_dict(d: dict[Any, Any], pick: random.Random) -> Undo:
    key = pick.choice([*d, "absent"])
    before = dict(d)

    def undo() -> None:
        d.clear()
        d.update(before)

    kind = pick.randrange(6)
    if kind == 0:
        d[key] = fresh(pick)
    elif kind == 1:
        d.pop(key, None)
    elif kind == 2:
        d.update({key: fresh(pick)})
    elif kind == 3 and key in before:
        d[key] = before[key]
    elif kind == 4:
        d.setdefault("absent", 1)
    else:
        undo()
    return undo


def change_object(value: Any, pick: random.Random) -> Undo:
    before = value.__dict__
    kind = pick.randrange(6)
    if kind == 0:
        value.__dict__ = dict(before)
        return lambda: setattr(value, "__dict__", before)
    if kind == 1 and type(value) is Node:
        value.__class__ = Other
        return lambda: setattr(value, "__class__", Node)
    if kind == 2:
        copied = dict(before)
        copied["number"] = fresh(pick)
        value.__dict__ = copied
        return lambda: setattr(value, "__dict__", before)
    names = [name for name in before if not name.startswith("_")]
    if kind == 3 and names:
        name = pick.choice(names)
        found = before[name]
        delattr(value, name)
        return lambda: object.__setattr__(value, name, found)
    if kind == 4 and names and not isinstance(value, torch.nn.Module):
        name = pick.choice(names)
        found = before[name]
        setattr(value, name, fresh(pick))
        return lambda: setattr(value, name, found)
    return change_dict(before, pick)


def change_list(value: list[Any], pick: random.Random) -> Undo:
    before = list(value)
    i = pick.randrange(len(value) + 1)
    if i < len(value):
        value[i] = pick.choice([fresh(pick), value[i]])
    elif pick.random() < 0.5:
        value.extend([1] * 20)
    else:
        value.pop()
    return lambda: value.__setitem__(slice(None), before)


def change_function(value: types.FunctionType, pick: random.Random) -> Undo:
    name = pick.choice(["__defaults__", "__kwdefaults__", "__code__", "__annotations__"])
    before = getattr(value, name)
    if name == "__annotations__":
        value.__annotations__ = {"a": int}
    elif name == "__code__":
        value.__code__ = before.replace(co_name="renamed")
    elif name == "__kwdefaults__" and before and pick.random() < 0.5:
        found = before["b"]
        before["b"] = fresh(pick)
        return lambda: before.__setitem__("b", found)
    else:
        setattr(value, name, pick.choice([None, (7,) if name == "__defaults__" else {"b": 8}]))
    return lambda: setattr(value, name, before)


def change_tensor(t: torch.Tensor, pick: random.Random) -> Undo:
    kind = pick.randrange(4)
    data = t.data
    if kind == 0 and t.is_leaf:
        grad = t.requires_grad
        t.requires_grad_(not grad)
        return lambda: setattr(t, "requires_grad", grad)
    if kind == 1:
        t.data = torch.zeros(pick.choice([(2, 3), (3, 2), (6,)]), dtype=pick.choice([torch.float32, torch.float64]))
    elif kind == 2 and not t.requires_grad:
        t.t_() if t.dim() == 2 else t.unsqueeze_(0)
    else:
        t.data = t.data.clone()

    def undo() -> None:
        t.data = data

    return undo


def change(value: Any, pick: random.Random) -> Undo:
    if isinstance(value, torch.Tensor):
        return change_tensor(value, pick)
    if isinstance(value, types.FunctionType):
        return change_function(value, pick)
    if isinstance(value, types.CellType):
        before = value.cell_contents
        value.cell_contents = fresh(pick)
        return lambda: setattr(value, "cell_contents", before)
    if isinstance(value, dict):
        return change_dict(value, pick)
    if isinstance(value, list):
        return change_list(value, pick)
    if isinstance(value, (set, collections.deque)):
        was = type(value)(value)
        value.add("c") if isinstance(value, set) else value.append(3)
        return lambda: (value.clear(), [getattr(value, "add", getattr(value, "append", None))(v) for v in was])[0]
    if isinstance(value, Slotted):
        name = pick.choice("ab")
        found = getattr(value, name)
        setattr(value, name, fresh(pick))
        return lambda: setattr(value, name, found)
    return change_object(value, pick) if hasattr(value, "__dict__") else lambda: None


def agree(native: GuardFunction, python: GuardFunction, params: tuple[Any, ...]) -> bool:
    answer = python.check(params, {}, None)
    assert native.check(params, {}, None) is answer, (answer, python.explain(params, {}, None))
    return answer


@pytest.mark.parametrize("seed", range(12))
def test_changes_are_seen_as_a_walk_sees_them(seed: int) -> None:
    pick = random.Random(seed)
    root = context(pick.randrange(4))
    guards, every = GuardSet(), []
    guard_all(guards, X, root, pick, every)
    native, python = build_guards(guards, native=True), build_guards(guards, native=False)
    held = 0
    for _ in range(60):
        for _ in range(pick.randrange(4)):
            held += agree(native, python, (root,))
        undos = [change(pick.choice(every), pick) for _ in range(pick.choice([1, 1, 1, 2, 3]))]
        if pick.random() < 0.1:
            gc.collect()
        for _ in range(pick.randrange(3)):
            agree(native, python, (root,))
        for undo in reversed(undos):
            undo()
        if pick.random() < 0.1:
            gc.collect()
    assert held, "nothing ever held"
    del every, root
    for _ in range(20):  # at the addresses of freed objects
        assert agree(native, python, (context(2),)) in (True, False)


# ---- one store of each kind ----------------------------------------


def remembered(guards: GuardSet, params: tuple[Any, ...], globals_: Any = None, closure: Any = None) -> GuardFunction:
    """A native guard that holds, and has held often enough to be remembered."""
    made = build_guards(guards, native=True)
    for _ in range(5):
        assert made.check(params, globals_ or {}, closure), made.explain(params, globals_ or {}, closure)
    noted = made.native_guard.noted()
    assert noted["words"] + noted["watched"] + noted["tensors"] > 0, noted
    return made


def test_an_unchanged_model_is_not_walked() -> None:
    """What is compared at each check: dicts of modules only where they cannot be watched."""
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(20)))
    guards, every = GuardSet(), []
    guard_all(guards, X, model, random.Random(1), every)
    noted = remembered(guards, (model,)).native_guard.noted()
    assert noted["reads"] <= 1  # the root's own checks
    assert noted["tensors"] <= 40
    if sys.version_info >= (3, 12):
        assert noted["watched"] > 20
        assert noted["words"] <= 3 * 21  # each module: its type, its dict's place, the size of its set of buffers


def test_what_was_freed_is_not_read() -> None:
    """Memory of big lists goes back to the system: reading a recorded place in it would end the process."""
    def make() -> Node:
        root = Node()
        root.rows = [[Node()] * 200_000, [[7000 + i for i in range(200_000)]]]
        return root

    root = make()
    rows = src.item(src.instance_dict(X), "rows")
    guards = GuardSet()
    guards.add(X, "type", Node)
    for i in (0, 100_000, 199_999):
        guards.add(src.index(src.index(rows, 0), i), "type", Node)
        guards.add(src.index(src.index(src.index(rows, 1), 0), i), "type", int)
    made = remembered(guards, (root,))
    for change_it in (lambda: root.rows.clear(), lambda: root.rows.__setitem__(1, []), lambda: root.__dict__.clear(),
                      lambda: root.__dict__.update(rows=[[], []])):
        change_it()
        gc.collect()
        assert not made.check((root,), {}, None)
        root.__dict__.clear()
        root.__dict__.update(make().__dict__)
        for _ in range(5):
            assert made.check((root,), {}, None)
    root.rows[0].clear()
    assert not made.check((root,), {}, None)


def test_a_change_elsewhere_in_a_dict_is_looked_at_once() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(5)))
    guards, every = GuardSet(), []
    guard_all(guards, X, model, random.Random(4), every)
    guards = GuardSet([g for g in guards if g.kind not in ("keys", "len")])
    made = remembered(guards, (model,))
    before = made.native_guard.noted()
    for step in range(10):
        model[2].unrelated = step
        assert made.check((model,), {}, None)
        assert made.native_guard.noted() == before


def test_the_order_of_an_ordered_dict() -> None:
    d = collections.OrderedDict(a=1, b=2, c=3)
    guards = GuardSet()
    guards.add(X, "type", collections.OrderedDict)
    guards.add(X, "keys", ("a", "b", "c"))
    for key, value in d.items():
        guards.add(src.item(X, key), "eq", value)
    guards.add(src.attr(X, "__class__"), "id", collections.OrderedDict)
    native, python = build_guards(guards, native=True), build_guards(guards, native=False)
    for _ in range(4):
        assert agree(native, python, (d,))
    d.move_to_end("a")
    assert not agree(native, python, (d,))
    d.move_to_end("a", last=False)
    assert agree(native, python, (d,))


def test_many_objects_take_turns() -> None:
    roots = [context(2) for _ in range(8)]
    for root in roots:
        root.number = 1
        root.function = None
    guards, every = GuardSet(), []
    guard_all(guards, X, roots[0], random.Random(0), every)
    native, python = build_guards(guards, native=True), build_guards(guards, native=False)
    for _ in range(5):
        for root in roots:
            agree(native, python, (root,))
    roots[3].number = 2
    assert not agree(native, python, (roots[3],))
    roots[3].number = 1
    assert agree(native, python, (roots[3],)) == agree(native, python, (roots[4],))


def test_classes_are_followed() -> None:
    class Base:
        size = 1

    class Derived(Base):
        pass

    guards = GuardSet()
    guards.add(X, "type", Derived)
    guards.add(None, "class", ClassLookup(Derived, {"size": 1, "other": MISSING}))
    made = build_guards(guards, native=True)
    value = Derived()
    for _ in range(4):
        assert made.check((value,), {}, None)
    Derived.other = 1
    assert not made.check((value,), {}, None)
    del Derived.other
    assert made.check((value,), {}, None)
    Base.size = 2
    assert not made.check((value,), {}, None)
    Base.size = 1
    assert made.check((value,), {}, None)


def test_a_swapped_tensor() -> None:
    node = Node()
    for name in ("a", "b", "c", "d", "e", "f", "g"):
        setattr(node, name, torch.zeros(3))
    guards, every = GuardSet(), []
    guard_all(guards, X, node, random.Random(2), every)
    made = remembered(guards, (node,))
    other = torch.zeros(5)
    torch.utils.swap_tensors(node.a, other)
    assert not made.check((node,), {}, None)
    torch.utils.swap_tensors(node.a, other)
    assert made.check((node,), {}, None)
