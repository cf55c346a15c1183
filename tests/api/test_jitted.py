"""What `jitpy.jit` and `jitpy.disable` make of functions, methods, objects and modules."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import pickle
import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch

import jitpy
from jitpy import jitted
from jitpy.engine import all_engines


@pytest.fixture(autouse=True)
def _fresh() -> None:
    jitpy.reset()


def variants(name: str) -> int:
    """How many variants of a function were compiled since the last reset."""
    return sum(one.name.rpartition(".")[2] == name for engine in all_engines() for one in engine.variants)


@jitpy.jit(backend="eager")
def module_level(x: torch.Tensor, k: int = 2) -> torch.Tensor:
    """Its doc."""
    return x * k


class Scaled:
    """A callable with state in `__dict__`."""

    registered: list[type] = []

    def __init__(self, k: float) -> None:
        self.k = k

    def __init_subclass__(cls, **kwargs: Any) -> None:
        Scaled.registered.append(cls)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = x.shape[0]
        return x * self.k


class Slotted:
    """A callable with state in slots."""

    __slots__ = ("k", "__weakref__")

    def __init__(self, k: float) -> None:
        self.k = k

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.k += 1
        return x * self.k


class Net(torch.nn.Module):
    """A module whose forward looks at who it is."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        assert type(self) is Net
        return self.inner(x) * self.count


# -- functions ----------------------------------------------------------------------------------------------


def test_function_is_pickled_and_copied_by_reference() -> None:
    assert pickle.loads(pickle.dumps(module_level)) is module_level
    assert copy.copy(module_level) is module_level and copy.deepcopy(module_level) is module_level
    assert copy.deepcopy({"f": module_level})["f"] is module_level


def test_function_attributes() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x

    fn.mark = 3  # type: ignore[attr-defined]
    fast = jitpy.jit(fn, backend="eager")
    assert fast.mark == 3 and fast.__wrapped__ is fn and fast.__doc__ is None
    fast.other = 4
    assert fast.other == 4 and not hasattr(fn, "other")
    assert fast.__defaults__ is None and inspect.unwrap(fast) is fn and callable(fast)
    assert weakref.ref(fast)() is fast and len({fast, fast}) == 1


def test_defaults_are_read_at_each_call() -> None:
    def fn(x: torch.Tensor, k: int = 2, *, j: int = 3) -> torch.Tensor:
        return x * k + j

    fast = jitpy.jit(fn, backend="eager")
    x = torch.ones(2)
    assert fast(x).tolist() == [5, 5]
    fn.__defaults__ = (10,)
    fn.__kwdefaults__ = {"j": 1}
    assert fast(x).tolist() == fn(x).tolist() == [11, 11]


def test_partial_and_builtin_callables() -> None:
    x = torch.randn(4)
    fast = jitpy.jit(functools.partial(torch.mul, other=3), backend="eager")
    assert torch.equal(fast(x), x * 3)
    fast = jitpy.jit(torch.sin, backend="eager", fullgraph=True)
    assert torch.equal(fast(x), x.sin()) and fast.__name__ == "sin" and inspect.unwrap(fast) is torch.sin
    partial = functools.partial(lambda x, k: x * k, k=5)
    assert torch.equal(jitpy.jit(partial, backend="eager", fullgraph=True)(x), x * 5)


def test_method_objects() -> None:
    class Thing:
        k = 3

        @jitpy.jit(backend="eager")
        @staticmethod
        def outside(x: torch.Tensor) -> torch.Tensor:
            return x + 1

        @jitpy.jit(backend="eager")
        @classmethod
        def of_class(cls, x: torch.Tensor) -> torch.Tensor:
            return x * cls.k

        def method(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.k

    class Other(Thing):
        k = 4

    x = torch.randn(3)
    thing = Thing()
    assert isinstance(vars(Thing)["outside"], staticmethod) and isinstance(vars(Thing)["of_class"], classmethod)
    assert torch.equal(thing.outside(x), x + 1) and torch.equal(Thing.outside(x), x + 1)
    assert torch.equal(Thing.of_class(x), x * 3) and torch.equal(Other.of_class(x), x * 4)
    fast = jitpy.jit(thing.method, backend="eager")
    assert fast.__self__ is thing and fast.__name__ == "method"
    assert torch.equal(fast(x), x * 3)
    thing.k = 7
    assert torch.equal(fast(x), x * 7)


@jitpy.config.patch(native=True)
def test_waiting_for_the_native_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the native part is built a Python function stands in front; it looks and binds as the dispatcher does."""
    monkeypatch.setattr(jitted.native_build, "is_built", lambda name: False)

    def fn(x: torch.Tensor, k: int = 2) -> torch.Tensor:
        """Doc."""
        return x * k

    fast = jitpy.jit(fn, backend="eager")
    assert inspect.isfunction(fast) and fast.__doc__ == "Doc." and inspect.signature(fast) == inspect.signature(fn)
    x = torch.randn(3)
    assert torch.equal(fast(x, k=3), x * 3) and torch.equal(types_method(fast, x)(), x * 2)
    assert torch.equal(jitpy.jit(lambda t: fast(t) + 1, backend="eager", fullgraph=True)(x), x * 2 + 1)

    @functools.wraps(fast)
    def wrapper(x: torch.Tensor) -> torch.Tensor:
        return fast(x) + 10

    assert torch.equal(jitpy.jit(wrapper, backend="eager", fullgraph=True)(x), x * 2 + 10)


def types_method(function: Any, owner: Any) -> Any:
    return function.__get__(owner)


def test_wrappers_of_jitted_functions_are_traced_themselves() -> None:
    """functools.wraps copies attributes: that must not make the wrapper pass for what it wraps."""

    @functools.wraps(module_level)
    def wrapper(x: torch.Tensor) -> torch.Tensor:
        return module_level(x) + 10

    x = torch.randn(3)
    fast = jitpy.jit(lambda t: wrapper(t), backend="eager", fullgraph=True)
    assert torch.equal(fast(x), x * 2 + 10)


def test_jitted_methods_inside_a_jitted_function() -> None:
    class Thing:
        k = 2.0

        @jitpy.jit(backend="eager")
        def method(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.k

        @classmethod
        @jitpy.jit(backend="eager")
        def of_class(cls, x: torch.Tensor) -> torch.Tensor:
            return x + cls.k

        @staticmethod
        @jitpy.jit(backend="eager")
        def outside(x: torch.Tensor) -> torch.Tensor:
            return x * 3

    thing = Thing()

    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        return [thing.method(x), Thing.method(thing, x), Thing.of_class(x), thing.of_class(x), thing.outside(x)]

    x = torch.randn(3)
    fast = jitpy.jit(fn, backend="eager", fullgraph=True)
    for k in (2.0, 5.0):
        Thing.k = k
        torch.testing.assert_close(fast(x), fn(x))


# -- objects ------------------------------------------------------------------------------------------------


def test_callable_object_shares_its_state() -> None:
    plain = Scaled(2.0)
    before = list(Scaled.registered)
    fast = jitpy.jit(plain, backend="eager")
    assert isinstance(fast, Scaled) and type(fast).__name__ == "Scaled"
    assert Scaled.registered == before
    x = torch.ones(3)
    assert fast(x).tolist() == [2, 2, 2] and plain.seen == 3
    fast.k = 5.0
    assert plain.k == 5.0 and fast(x).tolist() == [5, 5, 5]
    del plain.seen
    assert not hasattr(fast, "seen")
    twin = copy.copy(fast)
    twin.k = 1.0
    assert plain.k == 5.0 and isinstance(twin, jitted.SharingObject) and twin(x).tolist() == [1, 1, 1]


def test_callable_object_with_slots() -> None:
    plain = Slotted(1.0)
    fast = jitpy.jit(plain, backend="eager")
    x = torch.ones(2)
    assert fast(x).tolist() == [2, 2] and plain.k == fast.k == 2
    fast.k = 10.0
    assert plain.k == 10 and fast(x).tolist() == [11, 11]


def test_dict_with_a_call() -> None:
    """State outside `__dict__` cannot be shared: such an object is called through a function."""

    class Table(dict):  # type: ignore[type-arg]
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * self["k"]

    table = Table(k=3)
    fast = jitpy.jit(table, backend="eager")
    x = torch.ones(2)
    assert fast(x).tolist() == [3, 3]
    table["k"] = 4
    assert fast(x).tolist() == [4, 4]


# -- modules ------------------------------------------------------------------------------------------------


def test_forward_sees_the_original() -> None:
    net = Net()
    fast = jitpy.jit(net, backend="eager", fullgraph=True)
    x = torch.randn(2, 3)
    torch.testing.assert_close(fast(x), net.inner(x))
    assert isinstance(fast, Net) and repr(fast) == repr(net) and vars(fast) is vars(net)
    assert not [name for name in vars(net) if "jitpy" in name]


def test_attributes_both_ways() -> None:
    net = Net()
    fast = jitpy.jit(net, backend="eager")
    fast.extra = torch.nn.Parameter(torch.ones(1))
    assert "extra" in dict(net.named_parameters())
    del net.extra
    assert not hasattr(fast, "extra")
    fast.register_buffer("table", torch.zeros(2))
    assert list(net.state_dict()) == list(fast.state_dict()) == ["table", "inner.weight", "inner.bias"]
    assert [name for name, _ in fast.named_modules()] == [name for name, _ in net.named_modules()]
    fast.to(torch.float64)
    assert net.inner.weight.dtype is torch.float64
    net.train(False)
    assert not fast.training


def test_module_inside_a_jitted_function() -> None:
    net = Net()
    fast = jitpy.jit(net, backend="eager")
    x = torch.randn(2, 3)

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = fast(x) + net(x)
        fast.count = 10
        return y * net.count

    expected = (net.inner(x) * 1 + net.inner(x) * 2) * 10
    torch.testing.assert_close(jitpy.jit(fn, backend="eager", fullgraph=True)(x), expected)
    assert net.count == 10


def test_module_as_a_part() -> None:
    outer = torch.nn.Sequential(jitpy.jit(Net(), backend="eager"), torch.nn.ReLU())
    assert list(outer.state_dict()) == ["0.inner.weight", "0.inner.bias"]
    x = torch.randn(2, 3)
    expected = outer[0].inner(x).relu()
    torch.testing.assert_close(outer(x), expected)
    for again in (copy.deepcopy(outer), pickle.loads(pickle.dumps(outer))):
        assert isinstance(again[0], jitted.SharingObject)
        again[0].count = 0
        torch.testing.assert_close(again(x), expected)
    assert outer[0].count == 1


def test_jit_of_a_jitted_module_takes_the_new_options() -> None:
    net = Net()
    first = jitpy.jit(net, backend="eager")
    second = jitpy.jit(first, backend="codegen")
    assert vars(second) is vars(net) and type(second) is type(first)
    assert second._jitpy_options.backend == "codegen" and first._jitpy_options.backend == "eager"


def test_module_goes_when_it_is_dropped() -> None:
    net = Net()
    fast = jitpy.jit(net, backend="eager")
    fast(torch.randn(2, 3))
    refs = weakref.ref(net), weakref.ref(fast)
    del net, fast
    gc.collect()
    assert refs[0]() is None and refs[1]() is None


def test_class_of_a_jitted_module_makes_plain_ones() -> None:
    fast = jitpy.jit(Net(), backend="eager")
    made = type(fast)()
    x = torch.randn(2, 3)
    made.forward = made.inner.forward
    torch.testing.assert_close(made(x), made.inner(x))
    raw = fast.__new__(type(fast))
    raw.__dict__ = dict(vars(fast))
    raw.forward = raw.inner.forward
    torch.testing.assert_close(raw(x), fast.inner(x))
    twin = copy.deepcopy(raw)
    assert type(twin) is Net and twin.inner is not raw.inner


def test_class_is_refused() -> None:
    with pytest.raises(TypeError, match="instances"):
        jitpy.jit(Net)


# -- the recompile limit of methods -------------------------------------------------------------------------


class Layered:
    """An instance differs from the next by a string, which each variant holds as a constant."""

    def __init__(self, k: float) -> None:
        self.k = k

    @property
    def k(self) -> float:
        return float(self.text)

    @k.setter
    def k(self, value: float) -> None:
        self.text = str(value)

    @jitpy.jit(backend="eager")
    def run(self, x: torch.Tensor, *rest: torch.Tensor, twice: bool = False, **more: float) -> torch.Tensor:
        y = x * self.k + sum(rest) + more.get("c", 0.0)
        return y * 2 if twice else y

    @jitpy.jit(backend="eager")
    def broken(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        jitpy.graph_break()
        return y * self.k

    @jitpy.jit(backend="eager")
    def same(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def test_each_instance_has_its_own_limit(recwarn: pytest.WarningsRecorder) -> None:
    x = torch.ones(2)
    things = [Layered(k + 0.5) for k in range(20)]
    for _ in range(3):
        for thing in things:
            assert thing.run(x).tolist() == [thing.k] * 2
            assert thing.run(x, x, twice=True, c=2.0).tolist() == [(thing.k + 3) * 2] * 2
            assert thing.broken(x).tolist() == [2 * thing.k] * 2
            assert thing.same(x).tolist() == [2, 2]
    assert not [w for w in recwarn if "jitpy" in str(w.message)]
    # instances that are alike share a variant
    assert variants("same") == 1
    assert 40 <= variants("run") <= 60
    with pytest.raises(TypeError, match="argument"):
        things[0].run()


def test_what_changes_in_one_instance_breaks_its_graphs(recwarn: pytest.WarningsRecorder) -> None:
    x = torch.ones(2)
    things = [Layered(k + 0.5) for k in range(10)]
    for thing in things:
        thing.run(x)
    last = things[-1]
    counts = []
    for k in range(24):
        last.k = k + 0.25
        assert last.run(x).tolist() == [last.k] * 2
        counts.append(variants("run"))
    assert counts[12] == counts[-1]
    assert not [w for w in recwarn if "jitpy" in str(w.message)]


def test_instances_of_a_split_method_go() -> None:
    x = torch.ones(2)
    things = [Layered(k + 0.5) for k in range(12)]
    for thing in things:
        thing.run(x)
    refs = [weakref.ref(thing) for thing in things]
    del things, thing
    gc.collect()
    assert [ref() for ref in refs] == [None] * 12


# -- disable ------------------------------------------------------------------------------------------------


def test_disabled_function_runs_all_below_as_plain_python() -> None:
    seen: list[bool] = []

    @jitpy.jit(backend="eager")
    def inner(x: torch.Tensor) -> torch.Tensor:
        seen.append(jitpy.is_compiling())
        return x + 1

    @jitpy.disable
    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x)

    assert outer(torch.ones(1)).item() == 2 and outer.__name__ == "outer"
    assert seen == [False] and variants("inner") == 0
    inner(torch.ones(1))
    assert variants("inner") == 1


def test_disabled_module() -> None:
    net = Net()
    part = jitpy.disable(net)
    assert isinstance(part, Net) and vars(part) is vars(net)
    x = torch.randn(2, 3)
    report = jitpy.explain(lambda x: part(x * 2) + 1, backend="eager")(x)
    assert [record.reason.id for record in report.break_reasons] == ["disabled"]
    torch.testing.assert_close(report.result, net.inner(x * 2) + 1)
    assert isinstance(copy.deepcopy(part), jitted.SharingObject)
    with pytest.raises(TypeError, match="callable"):
        jitpy.disable(3)


def test_enabled_flag() -> None:
    calls: list[int] = []

    @jitpy.jit(backend="eager")
    def fn(x: torch.Tensor) -> torch.Tensor:
        if not jitpy.is_compiling():
            calls.append(1)
        return x + 1

    x = torch.ones(1)
    with jitpy.config.patch(enabled=False):
        fn(x)
    assert len(calls) == 1 and variants("fn") == 0
    fn(x)
    assert len(calls) == 1 and variants("fn") == 1
    with jitpy.config.patch(enabled=False):
        fn(x)
    assert len(calls) == 2
    fn(x)
    assert len(calls) == 2


# -- the import ---------------------------------------------------------------------------------------------


def test_import_and_decoration_are_cheap() -> None:
    program = (
        "import sys, time, torch\n"
        "before = set(sys.modules)\n"
        "start = time.process_time()\n"
        "import jitpy\n"
        "seconds = time.process_time() - start\n"
        "jitpy.jit(lambda x: x)\n"
        "jitpy.jit(torch.nn.Linear(2, 2))\n"
        "new = set(sys.modules) - before\n"
        "print(seconds, 'sympy' in new, 'jitpy.engine' in new, 'torch._subclasses.fake_tensor' in new)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    seconds, *heavy = done.stdout.split()
    assert float(seconds) < 0.6 and heavy == ["False"] * 3
