"""Guards: each kind holds and fails as documented, natively and in Python, and explain says why."""

from __future__ import annotations

import collections
import contextlib
import gc
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import sympy
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from jitpy.frontend.guards import source as src
from jitpy.frontend.guards.guard_set import MISSING, ClassLookup, GuardSet, NumberFact, TensorGuard, TorchStateGuard
from jitpy.ir.sizes import SizeEnv, floordiv, mod
from jitpy.runtime import guard_checks
from jitpy.runtime.guards import GuardFunction, build_guards

X, Y = src.LocalSource(0, "x"), src.LocalSource(1, "y")


def tensor_guard(t: torch.Tensor, **changes: Any) -> TensorGuard:
    facts = dict(
        cls=type(t),
        dtype=t.dtype,
        device=t.device,
        requires_grad=t.requires_grad,
        shape=tuple(t.shape),
        stride=t.stride(),
        dispatch_keys=torch._C._dispatch_keys(t).raw_repr(),
        is_inference=t.is_inference(),
    )
    return TensorGuard(**{**facts, **changes})


def state_guard(devices: tuple[str, ...] = ("cpu",)) -> TorchStateGuard:
    return TorchStateGuard(**guard_checks.torch_state(devices))


def one(source: Any, kind: str, arg: Any = None) -> GuardSet:
    guards = GuardSet()
    guards.add(source, kind, arg, "test.py:1")
    return guards


class Both:
    """The native and the Python evaluator of one set; every check must agree with the other and with explain."""

    def __init__(self, guards: GuardSet, sizes: SizeEnv | None = None):
        self.native: GuardFunction = build_guards(guards, sizes, native=True)
        self.python: GuardFunction = build_guards(guards, sizes, native=False)

    def __call__(self, *params: Any, G: dict[str, Any] | None = None, C: tuple[Any, ...] | None = None) -> bool:
        globals_ = {} if G is None else G
        answer = self.native.check(params, globals_, C)
        assert self.python.check(params, globals_, C) is answer, self.python.source_text
        failing = self.python.explain(params, globals_, C)
        assert (failing == []) is answer, failing
        assert all(type(text) is str and text for text in failing)
        assert sys.exc_info() == (None, None, None)
        return answer


def both(source: Any, kind: str, arg: Any = None) -> Both:
    return Both(one(source, kind, arg))


class Plain:
    pass


class Slotted:
    __slots__ = ("a",)


class Hostile:
    """Whatever runs its methods fails the test."""

    def _no(self, *_: Any) -> Any:
        raise AssertionError("a guard ran user code")

    __eq__ = __len__ = __bool__ = __repr__ = __contains__ = __getitem__ = __iter__ = _no

    def __hash__(self) -> int:
        raise AssertionError("a guard ran user code")


# ---- kinds ----------------------------------------


def test_type_and_id() -> None:
    assert both(X, "type", int)(3)
    assert not both(X, "type", int)(True)
    marker = Plain()
    assert both(X, "id", marker)(marker)
    assert not both(X, "id", marker)(Plain())
    assert not both(X, "id", marker)(Hostile())
    text = "".join(["not ", "interned"])
    assert both(X, "id", text)(text)
    assert not both(X, "id", text)("".join(["not ", "interned"]))
    assert both(X, "id", None)(None)


def test_id_guard_keeps_its_object_alive_and_weak_id_does_not() -> None:
    for kind, alive in (("id", True), ("weak_id", False)):
        marker = Plain()
        ref = weakref.ref(marker)
        check = build_guards(one(X, kind, marker if kind == "id" else ref), native=True)
        guards_python = build_guards(one(X, kind, marker if kind == "id" else ref), native=False)
        assert check.check((marker,), {}) and guards_python.check((marker,), {})
        del marker
        gc.collect()
        assert (ref() is not None) is alive
        assert not check.check((None,), {}) and not guards_python.check((None,), {})
        assert not check.check((Plain(),), {})


EQUAL = [
    (1, 1, True),
    (1, True, False),
    (1, 1.0, False),
    (10**30, 10**30, True),
    (0.0, -0.0, False),
    (2.5, 2.5, True),
    (float("nan"), float("nan"), True),
    ("a", "a", True),
    (b"a", "a", False),
    (None, None, True),
    (None, 0, False),
    (complex(0.0, 1), complex(-0.0, 1), False),
    (complex(1, 2), complex(1, 2), True),
    (..., ..., True),
    ((1, (2.0, "a")), (1, (2.0, "a")), True),
    ((1, 2), (1, 2.0), False),
    ((1,), (1, 2), False),
    ((0.0,), (-0.0,), False),
    (frozenset([1, "a"]), frozenset(["a", 1]), True),
    (frozenset([1]), frozenset([True]), False),
    (frozenset([0.0]), frozenset([-0.0]), False),
    (slice(1, None), slice(1, None), True),
    (slice(1, 2), slice(1, 2.0), False),
    (torch.Size([1, 2]), torch.Size([1, 2]), True),
    (torch.Size([1]), (1,), False),
    (torch.device("cpu"), torch.device("cpu"), True),
    (torch.device("cpu"), torch.device("meta"), False),
    (torch.float32, torch.float32, True),
    (torch.float32, torch.float64, False),
]


@pytest.mark.parametrize("constant, value, equal", EQUAL)
def test_eq(constant: Any, value: Any, equal: bool) -> None:
    assert both(X, "eq", constant)(value) is equal
    assert both(X, "eq", value)(constant) is equal


def test_eq_runs_no_user_code() -> None:
    class Text(str):
        __eq__ = Hostile._no  # type: ignore[assignment]
        __hash__ = str.__hash__

    assert not both(X, "eq", "a")(Text("a"))
    assert not both(X, "eq", ("a", 1))((Text("a"), 1))
    assert not both(X, "eq", 1)(Hostile())


def test_len() -> None:
    class Sized(list):
        def __len__(self) -> int:
            return 99

    for value in (
        [1, 2],
        (1, 2),
        {1: 1, 2: 2},
        {1, 2},
        frozenset([1, 2]),
        collections.deque([1, 2]),
        Sized([1, 2]),
        collections.OrderedDict(a=1, b=2),
        collections.defaultdict(int, a=1, b=2),
    ):
        assert both(X, "len", 2)(value)
        assert not both(X, "len", 3)(value)
        assert not both(X, "len", 99)(value)
    for value in (3, "ab", Hostile(), range(2)):
        assert not both(X, "len", 2)(value)


def test_keys() -> None:
    check = both(X, "keys", ("a", 1))
    assert check({"a": Hostile(), 1: 2})
    assert not check({1: 2, "a": 1})
    assert not check({"a": 1, True: 2})
    assert not check({"a": 1})
    assert not check({"a": 1, 1: 2, "b": 3})
    assert check(collections.OrderedDict([("a", 1), (1, 2)]))
    assert not check([("a", 1)])


def test_haskey_and_nokey() -> None:
    assert both(X, "haskey", "a")({"a": None})
    assert not both(X, "haskey", "a")({"b": None})
    assert both(X, "nokey", "a")({"b": None})
    assert not both(X, "nokey", "a")({"a": None})
    for kind in ("haskey", "nokey"):
        assert not both(X, kind, "a")([1])
        assert both(X, kind, "a")(collections.OrderedDict(a=1)) is (kind == "haskey")
        filling = collections.defaultdict(int)
        assert both(X, kind, "a")(filling) is (kind == "nokey") and not filling
    parameter = torch.nn.Parameter(torch.zeros(2))  # hashes by identity, and its == makes a tensor
    assert both(X, "haskey", parameter)({parameter: 1})
    assert both(X, "nokey", parameter)({torch.zeros(2): 1})


def test_function() -> None:
    def f(a: int, b: int = 2, *, c: int = 3) -> int:
        return a + b + c

    check = both(X, "function", (f.__code__, f.__defaults__, f.__kwdefaults__, False))
    assert check(f)
    assert not check(len)
    g = types.FunctionType(f.__code__, {}, "g", (2,), None)
    assert not check(g)
    f.__defaults__ = (3,)
    assert not check(f)
    plain = lambda: 1  # noqa: E731
    assert both(X, "function", (plain.__code__, None, None, False))(plain)


def test_class_lookup() -> None:
    class Base:
        def f(self) -> int:
            return 1

    class Derived(Base):
        def __bool__(self) -> bool:
            raise AssertionError

    check = Both(one(None, "class", ClassLookup(Derived, {"f": Base.__dict__["f"], "g": MISSING})))
    assert check() and check()
    Base.h = 1  # type: ignore[attr-defined]
    assert check() and check()
    Derived.g = 1  # type: ignore[attr-defined]
    assert not check()
    del Derived.g  # type: ignore[attr-defined]
    assert check() and check()
    before = Base.f
    Base.f = lambda self: 2  # type: ignore[method-assign]
    assert not check()
    Base.f = before  # type: ignore[method-assign]
    assert check()
    Derived.f = before  # type: ignore[method-assign]
    assert check()
    Derived.f = lambda self: 3  # type: ignore[method-assign]
    assert not check() and not check()


def test_class_lookup_with_other_bases() -> None:
    class Base:
        def f(self) -> int:
            return 1

    class Derived(Base):
        f = Base.f

    class Other(Base):
        pass

    check = Both(one(None, "class", ClassLookup(Derived, {"f": Base.f})))
    assert check() and check()
    Derived.__bases__ = (Other,)
    assert not check() and not check()  # the name leads to the same function, but `super()` need not
    Derived.__bases__ = (Base,)
    assert check()


def test_class_lookup_of_builtin_types() -> None:
    check = Both(one(None, "class", ClassLookup(int, {"__add__": int.__dict__["__add__"], "nothing": MISSING})))
    assert check() and check()


def test_empty_cells() -> None:
    def make(fill: bool) -> tuple[Any, ...]:
        def inner() -> Any:
            return value

        if fill:
            value = 1
        return inner.__closure__ or ()

    full, empty = make(True), make(False)
    for source in (
        src.ClosureSource(0, "value"),
        src.ClosureCellSource(0, "value"),
        src.cell_contents(src.ClosureCellSource(0, "value")),
    ):
        check = both(source, "empty")
        assert check(C=empty)
        assert not check(C=full)
        assert not check(C=None)
        assert not check(C=())
    assert both(src.ClosureSource(0, "value"), "eq", 1)(C=full)
    assert not both(src.ClosureSource(0, "value"), "eq", 1)(C=empty)
    assert both(src.cell_contents(src.ClosureCellSource(0, "value")), "eq", 1)(C=full)


def test_same_and_distinct() -> None:
    a, b = Plain(), Plain()
    check = both(Y, "same", X)
    assert check(a, a) and not check(a, b)
    guards = GuardSet()
    sources = [src.index(X, i) for i in range(30)]
    for source in sources:
        guards.add(source, "distinct")
    check = Both(guards)
    values = [Plain() for _ in range(30)]
    assert check(values)
    assert not check(values[:29])
    assert not check([*values[:29], values[3]])
    few = GuardSet()
    for source in sources[:3]:
        few.add(source, "distinct")
    assert Both(few)(values) and not Both(few)([a, b, a])
    assert both(X, "distinct")(a)


def test_overlap() -> None:
    base = torch.zeros(8)
    check = both(X, "overlap", (Y, src.LocalSource(2, "z")))
    assert check(torch.zeros(4), torch.zeros(4), base)
    assert check(torch.zeros(4), base, base)
    assert not check(base, base[4:], torch.zeros(4))
    assert not check(base[:4], torch.zeros(4), base[4:])
    memory = np.zeros(16, dtype=np.float32)
    assert not check(torch.from_numpy(memory[:10]), torch.from_numpy(memory[5:]), base)
    assert check(torch.from_numpy(memory[:8]), torch.from_numpy(memory[8:]), base)
    assert not check(torch.zeros(4), 3, base)
    assert not check(3, base, base)
    assert not check(torch.zeros(4), torch.zeros(2, 2).to_sparse(), base)
    assert check(torch.zeros(0), torch.zeros(0), base)


def test_python_predicates_run_last_and_may_raise() -> None:
    calls: list[Any] = []

    def predicate(value: Any) -> bool:
        calls.append(value)
        if value == "raise":
            raise ValueError("no")
        return value == 3

    guards = one(X, "python", predicate)
    guards.add(Y, "type", int)
    check = Both(guards)
    assert check(3, 4) and not check(4, 4) and not check("raise", 4)
    calls.clear()
    assert not build_guards(guards, native=True).check((3, "no int"), {}) and calls == []

    def interrupt(value: Any) -> bool:
        raise KeyboardInterrupt

    for native in (True, False):
        with pytest.raises(KeyboardInterrupt):
            build_guards(one(X, "python", interrupt), native=native).check((1,), {})


def test_facts_about_numbers() -> None:
    sizes = SizeEnv()
    n = sizes.new_symbol(6, "n", None, low=-(1 << 62))
    guards = one(Y, "int", n)
    guards.add(X, "type", float)
    guards.add(None, "numbers", NumberFact("((p0 * 2) < (q0 / q1))", (X,), (n, floordiv(n, 2))), "a branch")
    check = Both(guards, sizes)
    assert check(0.5, 6) and not check(1.5, 6) and check(-1.0, 3)
    assert not check(0.5, 1)  # divides by zero
    failing = check.native.explain((1.5, 6), {})
    assert len(failing) == 1 and "x * 2" in failing[0] and "x = 1.5" in failing[0]


# ---- reading values ----------------------------------------


def test_paths() -> None:
    class Derived(Plain):
        pass

    obj = Derived()
    obj.name = {"k": [1, (2, 3)]}  # type: ignore[attr-defined]
    path = src.index(src.index(src.item(src.attr(X, "name"), "k"), 1), -1)
    assert both(path, "eq", 3)(obj)
    obj.name["k"][1] = (2,)  # type: ignore[attr-defined]
    assert both(path, "eq", 2)(obj)
    obj.name["k"][1] = ()  # type: ignore[attr-defined]
    assert not both(path, "eq", 2)(obj)
    assert not both(path, "eq", 2)(Plain())
    assert not both(path, "eq", 2)()
    assert both(src.StepSource(X, "type"), "id", Derived)(obj)
    assert both(src.item(src.GlobalsSource(), "g"), "eq", 5)(G={"g": 5})
    assert not both(src.item(src.GlobalsSource(), "g"), "eq", 5)(G={})
    assert both(src.item(src.constant({"k": 1}, "table"), "k"), "eq", 1)()
    for key in (1, None, (1, "a"), torch.float32, Plain):
        assert both(src.item(X, key), "eq", 7)({key: 7})
        assert not both(src.item(X, key), "eq", 7)({})
    assert both(src.item(X, "k"), "eq", 1)(collections.OrderedDict(k=1))
    filling = collections.defaultdict(int)
    assert not both(src.item(X, "k"), "eq", 0)(filling) and not filling
    assert not both(src.item(X, "k"), "eq", 1)(types.MappingProxyType({"k": 1}))
    assert both(src.index(X, 0), "eq", 1)(torch.Size([1]))
    assert not both(src.index(X, 0), "eq", "a")("abc")


def test_index_and_item_run_no_user_code() -> None:
    class List(list):
        __getitem__ = __len__ = __iter__ = Hostile._no  # type: ignore[assignment]

    assert both(src.index(X, 1), "eq", 2)(List([1, 2]))
    assert not both(src.index(X, 2), "eq", 2)(List([1, 2]))
    assert not both(src.index(X, 0), "eq", 2)(Hostile())


def test_slots() -> None:
    obj = Slotted()
    check = both(src.slot(X, Slotted.__dict__["a"]), "eq", 1)
    assert not check(obj)
    obj.a = 1
    assert check(obj)
    assert not check(Plain())


def test_instance_dicts() -> None:
    class Shadowing(Plain):
        __dict__ = property(Hostile._no)  # type: ignore[assignment]

        def __getattribute__(self, name: str) -> Any:
            raise AssertionError("a guard ran user code")

    class Meta(type):
        pass

    class Made(metaclass=Meta):
        a = 1

    check = both(src.item(src.instance_dict(X), "a"), "eq", 1)
    for cls in (Plain, Shadowing):
        obj = cls()
        object.__setattr__(obj, "a", 1)
        assert check(obj) and check(obj)
        object.__setattr__(obj, "a", 2)
        assert not check(obj)
        object.__delattr__(obj, "a")
        assert not check(obj)
    function = lambda: 1  # noqa: E731
    assert not check(function)
    function.a = 1  # type: ignore[attr-defined]
    assert check(function)
    module = types.ModuleType("m")
    module.a = 1  # type: ignore[attr-defined]
    assert check(module)
    assert check(Made) and not check(Plain) and not check(int)
    assert both(src.instance_dict(X), "haskey", "a")(Made) and both(src.instance_dict(X), "nokey", "a")(Plain)
    assert both(src.instance_dict(X), "keys", tuple(vars(Made)))(Made)
    assert both(src.item(src.instance_dict(X), "__add__"), "id", int.__dict__["__add__"])(int)
    for value in (3, Slotted(), None, [1]):
        assert not check(value)
    assert not hasattr(int, "__test__")


def test_instance_dict_of_classes_without_a_value_of_their_own() -> None:
    """A tensor's and a module's own dicts."""
    tensor = torch.zeros(1)
    tensor.a = 1  # type: ignore[attr-defined]
    assert both(src.item(src.instance_dict(X), "a"), "eq", 1)(tensor)
    linear = torch.nn.Linear(2, 2)
    weight = src.item(src.item(src.instance_dict(X), "_parameters"), "weight")
    check = both(weight, "tensor", tensor_guard(linear.weight))
    assert check(linear)
    linear.weight = torch.nn.Parameter(torch.zeros(3, 2))
    assert not check(linear)


def test_getters_that_raise() -> None:
    class Bad:
        @property
        def value(self) -> int:
            raise RuntimeError("broken")

        @property
        def interrupt(self) -> int:
            raise KeyboardInterrupt

    assert not both(src.attr(X, "value"), "type", int)(Bad())
    for native in (True, False):
        guard = build_guards(one(src.attr(X, "interrupt"), "type", int), native=native)
        with pytest.raises(KeyboardInterrupt):
            guard.check((Bad(),), {})


def test_a_node_is_checked_before_what_lies_below_it() -> None:
    """Also where the set has a guard on the child between two on the parent."""

    class Spy:
        touched = 0

        @property
        def a(self) -> int:
            Spy.touched += 1
            return 1

    guards = one(X, "type", Plain)
    guards.add(src.attr(X, "a"), "eq", 1)
    guards.add(X, "id", "something else")
    for native in (True, False):
        assert not build_guards(guards, native=native).check((Spy(),), {})
        plain = Plain()
        plain.a = 1  # type: ignore[attr-defined]
        assert not build_guards(guards, native=native).check((plain,), {})
    assert Spy.touched == 0


def test_a_shared_prefix_is_read_once() -> None:
    class Counting:
        reads = 0

        @property
        def box(self) -> tuple[int, ...]:
            Counting.reads += 1
            return (1, 2, 3)

    guards = GuardSet()
    for i in range(3):
        guards.add(src.index(src.attr(X, "box"), i), "eq", i + 1)
    for native in (True, False):
        Counting.reads = 0
        assert build_guards(guards, native=native).check((Counting(),), {})
        assert Counting.reads == 1


# ---- tensors ----------------------------------------


def test_tensor_facts() -> None:
    t = torch.zeros(2, 3)
    check = both(X, "tensor", tensor_guard(t))
    assert check(torch.ones(2, 3))
    different = [
        torch.zeros(3, 2),
        torch.zeros(2, 3, 1),
        torch.zeros(3, 2).t(),
        torch.zeros(2, 3, dtype=torch.float64),
        torch.zeros(2, 3, requires_grad=True),
        torch.zeros(2, 3, device="meta"),
        torch.nn.Parameter(torch.zeros(2, 3)),
        torch.zeros(2, 3).to_sparse(),
        torch.zeros(2, 3, dtype=torch.complex64).conj(),
        None,
        3,
        torch.zeros(2, 6)[:, ::2],
        torch.zeros(2, 3).to_mkldnn(),
    ]
    for value in different:
        assert not check(value)
    with torch.inference_mode():
        made = torch.zeros(2, 3)
    assert not check(made)
    for value in different[:-4]:
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            assert both(X, "tensor", tensor_guard(value))(value)
    assert both(X, "tensor", tensor_guard(made))(made)


def test_tensor_subclasses() -> None:
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError("a guard ran user code")

    with torch._C.DisableTorchFunction():
        loud = torch.zeros(2).as_subclass(Loud)
        guard = tensor_guard(loud)
    check = both(X, "tensor", guard)
    assert check(loud) and not check(torch.zeros(2))
    with pytest.raises(TypeError):
        build_guards(
            one(X, "tensor", TensorGuard(int, torch.float32, torch.device("cpu"), False, (), (), 0)), native=True
        )


def test_tensors_of_functorch_differ() -> None:
    check = build_guards(one(X, "tensor", tensor_guard(torch.zeros(3))), native=True)
    seen = []

    def inner(x: torch.Tensor) -> torch.Tensor:
        seen.append(check.check((x,), {}))
        return x.sum()

    torch.func.grad(inner)(torch.zeros(3))
    torch.func.vmap(inner)(torch.zeros(2, 3))
    assert seen == [False, False]


def test_symbols_bind_and_compare() -> None:
    env = SizeEnv()
    n = env.new_symbol(4, X, 0)
    t = torch.zeros(4, 4, 3)
    guard = tensor_guard(t, shape=(n, n, 3), stride=(3 * n, 3, 1), ranges=((n, 2, 10),))
    guards = one(X, "tensor", guard)
    guards.add(Y, "tensor", tensor_guard(torch.zeros(4), shape=(n,)))
    check = Both(guards, env)
    for size in (2, 5, 10):
        assert check(torch.zeros(size, size, 3), torch.zeros(size))
    assert not check(torch.zeros(1, 1, 3), torch.zeros(1))
    assert not check(torch.zeros(11, 11, 3), torch.zeros(11))
    assert not check(torch.zeros(5, 6, 3), torch.zeros(5))
    assert not check(torch.zeros(5, 5, 3), torch.zeros(6))
    assert not check(torch.zeros(5, 3, 5).transpose(1, 2), torch.zeros(5))
    assert not check(3, torch.zeros(5))


def test_ranges_of_the_size_environment_count() -> None:
    env = SizeEnv()
    n = env.new_symbol(4, X, 0, low=3, high=6)
    check = Both(one(X, "tensor", tensor_guard(torch.zeros(4), shape=(n,))), env)
    assert [check(torch.zeros(i)) for i in (2, 3, 6, 7)] == [False, True, True, False]


def test_int_symbols() -> None:
    env = SizeEnv()
    n = env.new_symbol(4, X, None, low=-5, high=100)
    guards = one(X, "int", n)
    guards.add(Y, "tensor", tensor_guard(torch.zeros(4), shape=(n,)))
    check = Both(guards, env)
    assert check(7, torch.zeros(7))
    for value in (8, True, 7.0, 10**30, -(10**30), "7"):
        assert not check(value, torch.zeros(7))
    lone = Both(one(X, "int", n), env)
    assert [lone(v) for v in (-6, -5, 100, 101)] == [False, True, True, False]


def relation_check(make: Any, *, count: int = 2) -> Both:
    env = SizeEnv()
    symbols = [env.new_symbol(4, src.LocalSource(i, f"a{i}"), None, low=-(1 << 62)) for i in range(count)]
    guards = GuardSet()
    for i, symbol in enumerate(symbols):
        guards.add(src.LocalSource(i, f"a{i}"), "int", symbol)
    guards.add(None, "relation", make(*symbols))
    return Both(guards, env)


RELATIONS = [
    (lambda a, b: sympy.Eq(mod(a, 8), 0), lambda a, b: a % 8 == 0),
    (lambda a, b: sympy.Ne(sympy.Mod(a, b), 1), lambda a, b: a % b != 1),
    (lambda a, b: sympy.Eq(floordiv(a, b), 3), lambda a, b: a // b == 3),
    (lambda a, b: sympy.floor(a / 2) < b, lambda a, b: a // 2 < b),
    (lambda a, b: sympy.ceiling(a / b) <= 2, lambda a, b: -(-a // b) <= 2),
    (lambda a, b: sympy.Rational(1, 3) * a > b / 2, lambda a, b: 2 * a > 3 * b),
    (lambda a, b: sympy.Max(a, 3) >= sympy.Min(b, 10), lambda a, b: max(a, 3) >= min(b, 10)),
    (lambda a, b: a**3 - b**2 > 5, lambda a, b: a**3 - b**2 > 5),
    (lambda a, b: sympy.Abs(a - b) <= 4, lambda a, b: abs(a - b) <= 4),
    (lambda a, b: sympy.Or(sympy.And(a > 2, b < 9), sympy.Eq(a, b)), lambda a, b: a > 2 and b < 9 or a == b),
    (lambda a, b: sympy.Not(sympy.Eq(a + b, 7)), lambda a, b: a + b != 7),
    (lambda a, b: sympy.sqrt(a * a + b * b) < 10, lambda a, b: a * a + b * b < 100),
    (lambda a, b: a**7 * b**7 < 10**40, lambda a, b: a**7 * b**7 < 10**40),
]


@pytest.mark.parametrize("number", range(len(RELATIONS)))
def test_relations(number: int) -> None:
    make, truth = RELATIONS[number]
    check = relation_check(make)
    for a in (-17, -8, -1, 1, 2, 3, 7, 8, 12, 1000003):
        for b in (-9, -4, 1, 2, 4, 8, 12, 5000017):
            assert check(a, b) is truth(a, b), (a, b, check.python.source_text)


def test_relations_that_divide_by_zero_do_not_hold() -> None:
    check = relation_check(lambda a, b: sympy.Ne(floordiv(a, b), 100))
    assert check(4, 2) and not check(4, 0)


def test_relations_from_the_size_environment() -> None:
    env = SizeEnv()
    n, m = env.new_symbol(8, X, 0), env.new_symbol(4, Y, 0)
    guards = one(X, "tensor", tensor_guard(torch.zeros(8), shape=(n,)))
    guards.add(Y, "tensor", tensor_guard(torch.zeros(4), shape=(m,)))
    assert env.equal(n, 2 * m, "a.py:3")
    check = Both(guards, env)
    assert check(torch.zeros(10), torch.zeros(5)) and not check(torch.zeros(10), torch.zeros(6))
    assert "a.py:3" in check.native.source_text
    assert any(
        "= 10" in text and "a.py:3" in text for text in check.native.explain((torch.zeros(10), torch.zeros(6)), {})
    )


def test_unbound_symbols_are_refused() -> None:
    env = SizeEnv()
    n = env.new_symbol(8, X, 0)
    env.decide(sympy.Eq(sympy.Mod(n, 4), 0))
    with pytest.raises(ValueError, match="s0"):
        build_guards(GuardSet(), env)


def test_unknown_kinds_and_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="kind"):
        build_guards(one(X, "nonsense"))
    with pytest.raises(ValueError, match="step"):
        build_guards(one(src.StepSource(X, "nonsense"), "type", int))


# ---- torch's modes ----------------------------------------


def test_state() -> None:
    check = both(None, "state", state_guard())
    assert check()

    class Mode(torch.overrides.TorchFunctionMode):
        pass

    class Dispatch(TorchDispatchMode):
        pass

    for make in (
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu"),
        Mode,
        Dispatch,
        lambda: torch.device("meta"),
        lambda: torch.autocast("cpu", dtype=torch.float16),
    ):
        with make():
            assert not check(), make
            assert both(None, "state", state_guard())()
        assert check()
    torch.set_default_dtype(torch.float64)
    try:
        assert not check()
    finally:
        torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(True)
    try:
        assert not check()
    finally:
        torch.use_deterministic_algorithms(False)
    assert check()


def test_kernels_of_attention() -> None:
    """Each of the kernels that it asks about, allowed or not, and no other."""
    names = guard_checks.ATTENTION_KERNELS
    for asked in (names, ("flash", "math")):
        for forbidden in ((), ("flash",), ("mem_efficient", "overrideable")):
            with allowed(set(names) - set(forbidden)):
                check = both(None, "attention", tuple((name, name not in forbidden) for name in asked))
                assert check()
            for name in names:
                with allowed(set(names) - set(forbidden) ^ {name}):
                    assert check() == (name not in asked), (asked, forbidden, name)


@contextlib.contextmanager
def allowed(kernels: set[str]) -> Iterator[None]:
    before = {name: getattr(torch._C, f"_get_{name}_sdp_enabled")() for name in guard_checks.ATTENTION_KERNELS}

    def switch(name: str, on: bool) -> None:
        getattr(torch._C, f"_set_sdp_use_{name}")(on)

    try:
        for name in before:
            switch(name, name in kernels)
        yield
    finally:
        for name, on in before.items():
            switch(name, on)


def test_state_is_this_threads() -> None:
    check = both(None, "state", state_guard())
    seen: list[bool] = []

    def run() -> None:
        with torch.no_grad():
            seen.append(check())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [False] and check()


# ---- text ----------------------------------------


def test_the_printed_function_runs_and_says_why() -> None:
    guards = one(X, "type", Plain)
    guards.add(src.attr(X, "a"), "eq", "text", "user.py:7 in f")
    guards.add(Y, "tensor", tensor_guard(torch.zeros(2)))
    guard = build_guards(guards)
    text = guard.source_text
    assert text.startswith("def guard(L, G, C):")
    assert "# user.py:7 in f" in text and "type(x) is Plain" in text and "float32[2]" in text
    namespace = dict(guard.names)
    exec(text, namespace)
    good = Plain()
    good.a = "text"  # type: ignore[attr-defined]
    assert namespace["guard"]((good, torch.zeros(2)), {}, None) is True
    assert namespace["guard"]((Plain(), torch.zeros(2)), {}, None) is False


def test_explain_lists_every_failing_guard_in_order() -> None:
    guards = one(X, "type", int)
    guards.add(Y, "tensor", tensor_guard(torch.zeros(2, 3)))
    guards.add(src.attr(src.LocalSource(2, "z"), "a"), "eq", 1)
    guards.add(src.LocalSource(3, "w"), "eq", 5)
    guard = build_guards(guards)
    failing = guard.explain(("s", torch.zeros(4, 3, dtype=torch.float64), Plain(), 6), {})
    assert len(failing) == 4
    assert "x" in failing[0] and "str" in failing[0]
    assert "float64" in failing[1] and "size 0 is 4, expected 2" in failing[1]
    assert "z.a cannot be read" in failing[2]
    assert "5" in failing[3] and "6" in failing[3]


def test_explain_is_robust() -> None:
    guards = one(X, "eq", 1)
    guards.add(Y, "len", 3)
    guards.add(src.item(src.LocalSource(2, "z"), "k"), "type", int)
    assert len(build_guards(guards).explain((Hostile(), Hostile()), {})) == 3


def test_awkward_names() -> None:
    """Parameter names that are helpers', keywords' or builtins' in the printed function."""
    names = ["length", "type", "S", "L", "getattr", "guard", "index", "class", "Plain", "v3", "True"]
    guards = GuardSet()
    for i, name in enumerate(names):
        source = src.LocalSource(i, name)
        guards.add(source, "type", Plain)
        guards.add(src.index(src.attr(source, "a"), 0), "eq", 1)
    values = []
    for _ in names:
        values.append(Plain())
        values[-1].a = [1]  # type: ignore[attr-defined]
    check = Both(guards)
    assert check(*values)
    assert not check(*values[:-1], Slotted())
