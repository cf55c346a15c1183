"""Numbers that change from call to call, in every kind of place: two variants at most, not one for each value."""

from __future__ import annotations

import collections
import random
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy
from tests.counting import variants

COUNT: Any = 0
other_module = types.ModuleType("other_module")

#: name -> maker(start, step) of (the function, what changes the number between calls or None)
PLACES: dict[str, Callable[[Any, Any], tuple[Any, Callable[[], None] | None]]] = {}


def place(make: Any) -> Any:
    PLACES[make.__name__] = make
    return make


@place
def class_attribute(start, step):
    class A:
        n = start

    return lambda x: x * A.n, lambda: setattr(A, "n", A.n + step)


@place
def class_attribute_by_instance(start, step):
    class A:
        n = start

    a = A()
    return lambda x: x * a.n, lambda: setattr(A, "n", A.n + step)


@place
def class_attribute_stored(start, step):
    class A:
        n = start

    def fn(x):
        A.n += step
        return x * A.n

    return fn, None


@place
def class_of_self(start, step):
    class A:
        n = start

        def __call__(self, x):
            self.__class__.n += step
            return x * self.n

    a = A()
    return lambda x: a(x), None


@place
def type_of_self(start, step):
    class A(torch.nn.Module):
        n = start

        def forward(self, x):
            type(self).n += step
            return x * type(self).n

    return A(), None


@place
def classmethod_counter(start, step):
    class A:
        n = start

        @classmethod
        def up(cls, x):
            cls.n += step
            return x + cls.n

    return lambda x: A.up(x), None


@place
def base_class(start, step):
    class A:
        n = start

    class B(A):
        pass

    def fn(x):
        A.n += step
        return x * B.n

    return fn, None


@place
def metaclass(start, step):
    class M(type):
        n = start

    class A(metaclass=M):
        pass

    def fn(x):
        M.n += step
        return x * A.n

    return fn, None


@place
def own_global(start, step):
    global COUNT
    COUNT = start

    def fn(x):
        global COUNT
        COUNT += step
        return x * COUNT

    return fn, None


@place
def global_of_another_module(start, step):
    other_module.n = start

    def fn(x):
        other_module.n += step
        return x * other_module.n

    return fn, None


@place
def global_of_a_helper(start, step):
    space = {"n": start, "step": step}
    exec("def helper(x):\n    global n\n    n += step\n    return x * n", space)
    helper = space["helper"]
    return lambda x: helper(x), None


@place
def closure_cell(start, step):
    n = start

    def fn(x):
        nonlocal n
        n += step
        return x * n

    return fn, None


@place
def closure_cell_of_a_helper(start, step):
    n = start

    def helper():
        nonlocal n
        n += step
        return n

    return lambda x: x * helper(), None


@place
def default_argument(start, step):
    def helper(x, n=start):
        return x * n

    def change():
        helper.__defaults__ = (helper.__defaults__[0] + step,)

    return lambda x: helper(x), change


@place
def keyword_default(start, step):
    def helper(x, *, n=start):
        return x * n

    return lambda x: helper(x), lambda: helper.__kwdefaults__.update(n=helper.__kwdefaults__["n"] + step)


@place
def own_default(start, step):
    def fn(x, n=start):
        return x * n

    def change():
        fn.__defaults__ = (fn.__defaults__[0] + step,)

    return fn, change


def _item(container, key):
    def make(start, step):
        held = container(start)

        def fn(x):
            held[key] += step
            return x * held[key]

        return fn, None

    return make


PLACES["dict_entry"] = _item(lambda n: {"n": n}, "n")
PLACES["list_item"] = _item(lambda n: [0, n], 1)
PLACES["deque_item"] = _item(lambda n: collections.deque([n, 0]), 0)
PLACES["counter_entry"] = _item(lambda n: collections.Counter(n=n), "n")
PLACES["default_dict_entry"] = _item(lambda n: collections.defaultdict(int, n=n), "n")


class Slotted:
    __slots__ = ("n",)


def _attribute(make_holder):
    def make(start, step):
        held = make_holder()
        held.n = start

        def fn(x):
            held.n += step
            return x * held.n

        return fn, None

    return make


PLACES["instance_attribute"] = _attribute(type("Plain", (), {}))
PLACES["slot"] = _attribute(Slotted)
PLACES["module_attribute"] = _attribute(lambda: torch.nn.Linear(2, 2))
PLACES["function_attribute"] = _attribute(lambda: lambda: None)
PLACES["tensor_attribute"] = _attribute(lambda: torch.ones(1))
PLACES["namespace"] = _attribute(types.SimpleNamespace)


@place
def tuple_in_an_attribute(start, step):
    held = types.SimpleNamespace(pair=(start, 1))

    def fn(x):
        held.pair = (held.pair[0] + step, 1)
        return x * held.pair[0]

    return fn, None


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    jitpy.reset()


def play(fn: Any, raw: Any, change: Callable[[], None] | None) -> list[torch.Tensor]:
    out = []
    for i in range(12):
        if change is not None:
            change()
        out.append(fn(torch.arange(1.0, 4.0) + i))
    return out


@pytest.mark.parametrize("kind", [int, float])
@pytest.mark.parametrize("name", PLACES)
def test_a_number_that_changes_is_compiled_twice(name: str, kind: type) -> None:
    start, step = (2, 3) if kind is int else (0.25, 0.5)
    raw, change = PLACES[name](start, step)
    wanted = play(raw, raw, change)
    raw, change = PLACES[name](start, step)
    fast = jitpy.jit(raw, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = play(fast, raw, change)
    for a, b in zip(wanted, found, strict=True):
        torch.testing.assert_close(b, a)
    assert variants() == 2


def actions_of_a_batch(x, actions):
    return x * torch.tensor(actions), sum(actions)


def a_stripe(x, numbers):
    start, length, *rest = numbers
    y = x.clone()
    y[start:start + length] = 0
    return y * sum(rest)


@pytest.mark.parametrize("fn", [actions_of_a_batch, a_stripe])
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_many_ints_that_may_be_0_or_1(fn: Any, backend: str) -> None:
    """No variant for each combination of those that are and those that are not."""
    drawn = random.Random(0)
    fast = jitpy.jit(fn, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(60):
            numbers = [drawn.randrange(-1 if i > 40 and j > 1 else 0, 4) for j in range(8)]
            x = torch.arange(1.0, 9.0) + i
            wanted, found = fn(x, numbers), fast(x, numbers)
            torch.testing.assert_close(found, wanted)


# ---- what the relaxed guards on classes still see ----------------------------------------


def _classes() -> tuple[Any, Any, Any]:
    class A:
        n = 1

    class B(A):
        pass

    return A, B, lambda x: x * B.n


def _hide(A: Any, B: Any) -> None:
    B.n = 50  # in front of the one that changes


def _become_float(A: Any, B: Any) -> None:
    A.n = 0.5


def _become_tensor(A: Any, B: Any) -> None:
    A.n = torch.tensor(4.0)


def _become_property(A: Any, B: Any) -> None:
    A.n = True


def _new_base(A: Any, B: Any) -> None:
    B.__bases__ = (type("C", (), {"n": 70}), A)


def _delete(A: Any, B: Any) -> None:
    del A.n


@pytest.mark.parametrize("change", [_hide, _become_float, _become_tensor, _become_property, _new_base, _delete])
@pytest.mark.parametrize("native", [True, False])
def test_changes_of_kind_are_seen(change: Any, native: bool) -> None:
    A, B, fn = _classes()
    with jitpy.config.patch(native=native):
        fast = jitpy.jit(fn, backend="eager")
        x = torch.ones(2)
        for value in (1, 2, 3, 4):
            A.n = value
            assert torch.equal(fast(x), fn(x))
        change(A, B)
        try:
            expected = fn(x)
        except AttributeError:
            with pytest.raises(AttributeError):
                fast(x)
            return
        assert torch.equal(fast(x), expected)
        if "n" in vars(B):
            del B.n
            assert torch.equal(fast(x), fn(x))


def test_a_class_attribute_that_does_not_change_is_a_constant() -> None:
    class A:
        n = 3

    fn = jitpy.jit(lambda x: x.reshape(A.n, -1) * A.n, backend="eager", fullgraph=True)
    assert fn(torch.ones(6)).shape == (3, 2)
    A.n = 2
    assert fn(torch.ones(6)).shape == (2, 3)
    A.n = 6
    assert fn(torch.ones(6)).shape == (6, 1)
    assert variants() <= 3
