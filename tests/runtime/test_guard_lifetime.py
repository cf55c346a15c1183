"""Guards hold on to nothing that they should let go of, and survive what runs while they are evaluated."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import pytest
import sympy
import torch

from jitpy.frontend.guards import source as src
from jitpy.frontend.guards.guard_set import MISSING, ClassLookup, GuardSet, TensorGuard, TorchStateGuard
from jitpy.ir.sizes import SizeEnv
from jitpy.runtime import guard_checks
from jitpy.runtime.guards import build_guards
from jitpy.runtime.native_build import load_native

X, Y = src.LocalSource(0, "x"), src.LocalSource(1, "y")


class Plain:
    pass


def tensor_guard(t: torch.Tensor, shape: tuple[Any, ...] | None = None) -> TensorGuard:
    keys = torch._C._dispatch_keys(t).raw_repr()
    return TensorGuard(type(t), t.dtype, t.device, t.requires_grad, shape or tuple(t.shape), t.stride(), keys)


def one(source: Any, kind: str, arg: Any = None) -> GuardSet:
    guards = GuardSet()
    guards.add(source, kind, arg, "test.py:1")
    return guards


def test_checks_keep_no_references() -> None:
    t, obj = torch.zeros(2), Plain()
    obj.a = [t]  # type: ignore[attr-defined]
    guards = one(X, "type", Plain)
    guards.add(src.index(src.attr(X, "a"), 0), "tensor", tensor_guard(t))
    guards.add(src.item(src.instance_dict(X), "a"), "len", 1)
    guards.add(src.index(src.attr(X, "a"), 0), "same", Y)
    guard = build_guards(guards, native=True)
    params_list = [(obj, t), (obj, None), (t, t), (Plain(), t)]
    watched = [t, obj, obj.a, Plain, None]  # type: ignore[attr-defined]

    def run(times: int) -> None:
        for _ in range(times):
            for params in params_list:
                guard.check(params, {})

    run(2)
    before = [sys.getrefcount(w) for w in watched[:4]]
    run(500)
    assert [sys.getrefcount(w) for w in watched[:4]] == before


def test_guards_are_collected_with_what_they_hold() -> None:
    class Held:
        pass

    held = Held()
    guard = build_guards(one(X, "id", held), native=True)
    held.guard = guard  # type: ignore[attr-defined]
    held.native = guard.native_guard  # type: ignore[attr-defined]
    ref = weakref.ref(held)
    del held, guard
    gc.collect()
    assert ref() is None


def test_building_and_dropping_leaks_nothing() -> None:
    marker = Plain()
    env = SizeEnv()
    n = env.new_symbol(4, X, 0)

    def make() -> None:
        guards = one(Y, "id", marker)
        guards.add(X, "tensor", tensor_guard(torch.zeros(4), shape=(n,)))
        guards.add(None, "relation", sympy.Eq(sympy.Mod(n, 2), 0))
        guards.add(None, "class", ClassLookup(Plain, {"a": MISSING, "__init__": object.__dict__["__init__"]}))
        guards.add(None, "state", TorchStateGuard(**guard_checks.torch_state()))
        build_guards(guards, env, native=True)

    make()
    gc.collect()
    before = sys.getrefcount(marker), sys.getrefcount(Plain), sys.getrefcount(n)
    for _ in range(50):
        make()
    gc.collect()
    assert (sys.getrefcount(marker), sys.getrefcount(Plain), sys.getrefcount(n)) == before


def test_a_value_that_a_getter_replaces_stays_valid_during_the_check() -> None:
    class Tricky:
        def __init__(self) -> None:
            self.box = [Plain()]

        @property
        def flip(self) -> int:
            self.box[:] = []
            gc.collect()
            return 1

    guards = one(src.index(src.attr(X, "box"), 0), "type", Plain)
    guards.add(src.attr(X, "flip"), "eq", 1)
    guards.add(src.index(src.attr(X, "box"), 0), "same", src.index(src.attr(X, "box"), 0))
    for native in (True, False):
        assert build_guards(guards, native=native).check((Tricky(),), {})


def test_malformed_programs_are_refused() -> None:
    guard_type = load_native("runtime").Guard
    good = (("local", 0, 0, 1, -1, (("type", int),)),)
    assert guard_type(good, (), (), (0, 0), (), 0).check((1,), {})
    bad = [
        ((("local", 0, 1, 1, -1, ()),), (), (), (0, 0), (), 0),
        ((("attr", "a", 0, 1, -1, ()),), (), (), (0, 0), (), 0),
        (good, (("same", (0, 1), (), None, ()),), (), (0, 0), (), 0),
        (good, (("relation", (), (0,), bool, (("symbol", 0),)),), (), (0, 0), (), 0),
        ((("local", 0, 0, 1, -1, (("int", (0, True, 0, 1)),)),), (), (), (0, 0), (), 0),
        (good, (("relation", (), (), bool, (("add", 0),)),), (), (0, 0), (), 0),
        ((("local", 0, 0, 1, -1, (("keys", [1]),)),), (), (), (0, 0), (), 0),
        ((("local", 0, 0, 1, -1, (("weak_id", 3),)),), (), (), (0, 0), (), 0),
        ((("what", 0, 0, 1, -1, ()),), (), (), (0, 0), (), 0),
        ((("local", -1, 0, 1, -1, ()),), (), (), (0, 0), (), 0),
    ]
    for program in bad:
        with pytest.raises((ValueError, TypeError)):
            guard_type(*program)
    guard = guard_type(good, (), (), (0, 0), (), 0)
    for args in ((), ((1,),), ([1], {}), ((1,), []), ((1,), {}, (), 1)):
        with pytest.raises(TypeError):
            guard.check(*args)
