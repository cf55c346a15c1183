"""Dispatch: binding, variants, misses, closures and lifetimes, of the native type and of the Python one."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import pickle
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from jitpy.frontend.guards import source as src
from jitpy.frontend.guards.guard_set import GuardSet
from jitpy.runtime import dispatch
from jitpy.runtime.dispatch import make_dispatcher
from jitpy.runtime.guards import build_guards


@pytest.fixture(params=[True, False], ids=["native", "python"])
def native(request: pytest.FixtureRequest) -> bool:
    return request.param


class Misses(list):
    """An `on_miss` that records its calls and answers None, or what `answer` makes."""

    def __init__(self, answer: Callable[..., Any] | None = None):
        self.answer = answer

    def __call__(self, dispatcher: Any, params: Any, globals: Any, closure: Any) -> Any:
        self.append((params, globals, closure))
        return None if self.answer is None else self.answer(dispatcher, params, globals, closure)


def wrap(fn: types.FunctionType, native: bool, on_miss: Any = None, **changes: Any) -> Any:
    options = dict(
        name=fn.__name__,
        qualname=fn.__qualname__,
        on_miss=Misses() if on_miss is None else on_miss,
        original=fn,
        native=native,
    )
    return make_dispatcher(fn.__code__, fn.__globals__, **{**options, **changes})


def guard_type(index: int, cls: type, native: bool = True) -> Any:
    guards = GuardSet()
    guards.add(src.LocalSource(index, f"p{index}"), "type", cls)
    return build_guards(guards, native=native)


def returns(value: Any, n: int) -> types.CodeType:
    """Code with n positional parameters that returns (value, parameters)."""
    names = ", ".join(f"p{i}" for i in range(n))
    space: dict[str, Any] = {}
    exec(f"def f({names}): return ({value!r}, ({names}{',' if n else ''}))", space)
    return space["f"].__code__


# ---- binding ----------------------------------------

SIGNATURES: list[Any] = [
    lambda: locals(),
    lambda a: locals(),
    lambda a, b=2: locals(),
    lambda a, /, b, *, c, d=4: locals(),
    lambda a=1, /, b=2, *args, c=3, **kw: locals(),
    lambda *args: locals(),
    lambda **kw: locals(),
    lambda a, *args, b, **kw: locals(),
    lambda a, b, c, d, e, f, g, h, i, j, k, k2, m, n, o, p, q=17, *r, s=19: locals(),
]


def expected_params(fn: Any, args: Any, kwargs: Any) -> tuple[Any, ...] | None:
    """Parameters in the order of co_varnames, or None where they do not fit."""
    try:
        found = fn(*args, **kwargs)
    except TypeError:
        return None
    return tuple(found[name] for name in fn.__code__.co_varnames)


@hypothesis.given(
    number=st.integers(0, len(SIGNATURES) - 1),
    args=st.lists(st.integers(), max_size=18),
    kwargs=st.dictionaries(
        st.sampled_from(["a", "b", "c", "d", "e", "q", "s", "x", "args", "kw"]), st.integers(), max_size=4
    ),
)
@hypothesis.settings(max_examples=300, deadline=None)
def test_binding_agrees_with_python(number: int, args: list[Any], kwargs: dict[str, Any]) -> None:
    fn = SIGNATURES[number]
    want = expected_params(fn, args, kwargs)
    for native in (True, False):
        misses = Misses()
        dispatcher = wrap(fn, native, misses)
        if want is None:
            with pytest.raises(TypeError) as raised:
                dispatcher(*args, **kwargs)
            with pytest.raises(TypeError) as python:
                fn(*args, **kwargs)
            assert str(raised.value) == str(python.value)
            assert misses == []
        else:
            assert dispatcher(*args, **kwargs) == fn(*args, **kwargs)
            assert [params for params, _, _ in misses] == [want]
            code = returns("hit", len(want))
            dispatcher.add_entry(None, code)
            assert dispatcher(*args, **kwargs) == ("hit", want)


def test_keywords_that_are_not_interned(native: bool) -> None:
    def f(some_name: int, *, other_name: int) -> int:
        return 0

    dispatcher = wrap(f, native)
    dispatcher.add_entry(None, returns("hit", 2))
    kwargs = {"".join(["some", "_name"]): 1, "".join(["other", "_name"]): 2}
    assert dispatcher(**kwargs) == ("hit", (1, 2))


def test_defaults_follow_the_original(native: bool) -> None:
    def f(a: int, b: int = 2, *, c: int = 3) -> tuple[int, ...]:
        return a, b, c

    dispatcher = wrap(f, native)
    dispatcher.add_entry(None, returns("hit", 3))
    assert dispatcher(1) == ("hit", (1, 2, 3))
    f.__defaults__, f.__kwdefaults__ = (20,), {"c": 30}
    assert dispatcher(1) == ("hit", (1, 20, 30))
    f.__kwdefaults__ = None
    with pytest.raises(TypeError, match="keyword-only"):
        dispatcher(1)


def test_a_replaced_code_object_runs_as_it_is(native: bool) -> None:
    def f(a: int) -> str:
        return "old"

    dispatcher = wrap(f, native)
    dispatcher.add_entry(None, returns("hit", 1))
    assert dispatcher(1) == ("hit", (1,))
    f.__code__ = (lambda a: "new").__code__
    assert dispatcher(1) == "new"


# ---- variants ----------------------------------------


def add(a: Any, b: Any = 1) -> Any:
    return a + b


def test_misses_hits_and_order(native: bool) -> None:
    def on_miss(dispatcher: Any, params: Any, globals: Any, closure: Any) -> Any:
        cls = type(params[0])
        if cls is dict:
            return None
        return dispatcher.add_entry(guard_type(0, cls, native), returns(cls.__name__, 2), payload=cls)

    misses = Misses(on_miss)
    dispatcher = wrap(add, native, misses)
    assert dispatcher.entries == [] and "add, 0 variants" in repr(dispatcher)
    assert dispatcher(1) == ("int", (1, 1))
    assert dispatcher("a", b="b") == ("str", ("a", "b"))
    for _ in range(3):
        assert dispatcher(2)[0] == "int" and dispatcher("c")[0] == "str" and dispatcher("c")[0] == "str"
    assert len(misses) == 2 and misses[0] == ((1, 1), globals(), None)
    with pytest.raises(TypeError):
        dispatcher({}, {})
    assert len(misses) == 3
    first, second = dispatcher.entries
    assert (first.payload, second.payload, first.hits, second.hits) == (int, str, 4, 7)
    assert first.code.co_argcount == 2 and first.needs_hook is False and "hits" in repr(first)
    explained = dispatch.explain_miss(dispatcher, ([], 1))
    assert [entry for entry, _ in explained] == [first, second]
    assert all(len(failing) == 1 and "list" in failing[0] for _, failing in explained)
    dispatcher.remove(first)
    assert dispatcher.entries == [second]
    with pytest.raises(ValueError):
        dispatcher.remove(first)
    assert dispatcher(5)[0] == "int" and len(misses) == 4
    dispatcher.clear()
    assert dispatcher.entries == [] and dispatcher("x")[0] == "str" and len(misses) == 5


def test_the_other_evaluator_s_guards_work(native: bool) -> None:
    dispatcher = wrap(add, native)
    dispatcher.add_entry(guard_type(0, int, not native), returns("hit", 2))
    assert dispatcher(1, 2) == ("hit", (1, 2)) and dispatcher(1.0, 2) == 3.0


def test_any_object_with_check_is_a_guard(native: bool) -> None:
    class Guard:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def check(self, params: Any, globals: Any, closure: Any) -> bool:
            self.seen.append((params, globals is add.__globals__, closure))
            if params[0] == "raise":
                raise LookupError("guard")
            return params[0] == 1

        def explain(self, params: Any, globals: Any, closure: Any) -> list[str]:
            return ["no"]

    guard = Guard()
    dispatcher = wrap(add, native)
    dispatcher.add_entry(guard, returns("hit", 2))
    assert dispatcher(1) == ("hit", (1, 1)) and dispatcher(2) == 3
    assert guard.seen == [((1, 1), True, None), ((2, 1), True, None)]
    assert dispatch.explain_miss(dispatcher, (1, 2))[0][1] == ["no"]
    with pytest.raises(LookupError):
        dispatcher("raise")
    with pytest.raises(AttributeError):
        dispatcher.add_entry(object(), returns("hit", 2)) and dispatcher(1)


def test_code_of_another_shape_is_refused(native: bool) -> None:
    dispatcher = wrap(add, native)
    x = 1
    for code in (
        returns("hit", 1),
        (lambda *a: 1).__code__,
        (lambda a, b, *, c=1: 1).__code__,
        (lambda a, b: x).__code__,
    ):
        with pytest.raises(ValueError):
            dispatcher.add_entry(None, code)
    with pytest.raises(TypeError):
        dispatcher.add_entry(None, "code")


def test_exceptions_pass_through(native: bool) -> None:
    def fail(a: Any) -> Any:
        raise KeyError(a)

    dispatcher = wrap(fail, native)
    with pytest.raises(KeyError):
        dispatcher(1)
    dispatcher.add_entry(None, fail.__code__)
    with pytest.raises(KeyError) as raised:
        dispatcher(1)
    assert raised.traceback[-1].frame.code.name == "fail"

    def on_miss(*_: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        wrap(fail, native, on_miss)(1)
    with pytest.raises(TypeError, match="on_miss"):
        wrap(fail, native, lambda *_: 3)(1)


def test_wrong_arguments_are_refused(native: bool) -> None:
    code = add.__code__
    for args, kwargs in [
        ((code, {}), {"on_miss": 3}),
        ((code, {}), {"original": 3}),
        ((code, {}), {"original": named}),
    ]:
        with pytest.raises(TypeError):
            make_dispatcher(*args, **{"on_miss": Misses(), "native": native, **kwargs})


def test_no_original(native: bool) -> None:
    dispatcher = wrap(add, native, original=None)
    assert dispatcher(None, 1, 5) == 6 and dispatcher((), 2, 1) == 3
    for wrong in ((), (None,), (None, 1)):
        with pytest.raises(TypeError):
            dispatcher(*wrong)
    assert dispatcher.original is None
    with pytest.raises(AttributeError):
        _ = dispatcher.nothing


# ---- closures ----------------------------------------


def make_adder(n: Any) -> Any:
    def adder(a: Any) -> Any:
        return a + n

    return adder


def test_closures(native: bool) -> None:
    adder = make_adder(10)
    guards = GuardSet()
    guards.add(src.ClosureSource(0, "n"), "type", int)
    dispatcher = wrap(adder, native)
    entry = dispatcher.add_entry(build_guards(guards, native=native), adder.__code__)
    assert dispatcher(1) == 11 and entry.hits == 1
    adder.__closure__[0].cell_contents = 20
    assert dispatcher(1) == 21 and entry.hits == 2
    adder.__closure__[0].cell_contents = 1.5
    assert dispatcher(1) == 2.5 and entry.hits == 2


def test_closure_first(native: bool) -> None:
    """A resume function: no closure of its own."""
    code = make_adder(1).__code__
    guards = GuardSet()
    guards.add(src.ClosureSource(0, "n"), "type", int)
    misses = Misses()
    dispatcher = make_dispatcher(code, globals(), on_miss=misses, native=native, name="resume")
    assert dispatcher((types.CellType(5),), 1) == 6
    assert misses[0][0] == (1,) and misses[0][2][0].cell_contents == 5
    entry = dispatcher.add_entry(build_guards(guards, native=native), code)
    assert dispatcher((types.CellType(6),), 1) == 7 and dispatcher((types.CellType(7),), 1) == 8 and entry.hits == 2
    assert dispatcher((types.CellType(0.5),), 1) == 1.5 and entry.hits == 2
    for args in ((), (None, 1), ((), 1), ((types.CellType(1),),), ((types.CellType(1),), 1, 2)):
        with pytest.raises(TypeError):
            dispatcher(*args)
    dispatcher.run_original_always = True
    assert dispatcher((types.CellType(6),), 1) == 7 and entry.hits == 2
    plain = make_dispatcher((lambda a: a).__code__, globals(), on_miss=misses, native=native)
    assert plain(None, 3) == 3 and plain((), 3) == 3


def test_closure_contents_are_not_kept_alive(native: bool) -> None:
    class Held:
        pass

    def make(n: Any) -> Any:
        return lambda a: n

    code = make(1).__code__
    dispatcher = make_dispatcher(code, globals(), on_miss=Misses(), native=native)
    dispatcher.add_entry(None, code)
    held = Held()
    ref = weakref.ref(held)
    assert dispatcher((types.CellType(held),), 1) is held
    del held
    assert ref() is None


# ---- switches ----------------------------------------


@pytest.fixture
def _enabled() -> Iterator[None]:
    yield
    dispatch.set_enabled(True)
    dispatch.set_compiling(False)


@pytest.mark.usefixtures("_enabled")
def test_switches(native: bool) -> None:
    dispatcher = wrap(add, native)
    dispatcher.add_entry(None, returns("hit", 2))
    assert dispatch.set_enabled(False) is True
    assert dispatcher(1) == 2
    assert dispatch.set_enabled(True) is False
    assert dispatch.set_compiling(True) is False and dispatch.is_compiling()
    seen: list[Any] = []
    assert dispatcher(1) == 2
    thread = threading.Thread(target=lambda: seen.append(dispatcher(1)))
    thread.start()
    thread.join()
    assert seen == [("hit", (1, 1))]
    assert dispatch.set_compiling(False) is True and not dispatch.is_compiling()
    assert dispatcher(1) == ("hit", (1, 1))
    dispatcher.run_original_always = True
    assert dispatcher(1) == 2
    dispatcher.run_original_always = False
    assert dispatcher(1) == ("hit", (1, 1))


def test_a_closed_dispatcher_does_not_ask(native: bool) -> None:
    guards = GuardSet()
    guards.add(src.LocalSource(0, "a"), "eq", 1)
    misses = Misses()
    dispatcher = wrap(add, native, misses)
    entry = dispatcher.add_entry(build_guards(guards, native=native), returns("hit", 2))
    dispatcher.closed = True
    for _ in range(500):
        assert dispatcher(1) == ("hit", (1, 1)) and dispatcher(2) == 3
    assert entry.hits == 500 and not misses and not dispatcher.run_original_always
    for _ in range(500):
        assert dispatcher(2) == 3
    assert dispatcher(1) == 2 and entry.hits == 500 and not misses and dispatcher.run_original_always


def test_a_miss_marks_the_thread_as_compiling(native: bool) -> None:
    inner = wrap(add, native)
    inner.add_entry(None, returns("hit", 2))
    seen: list[Any] = []

    def on_miss(*_: Any) -> Any:
        seen.append((dispatch.is_compiling(), inner(1)))
        raise RuntimeError

    outer = wrap(add, native, on_miss)
    with pytest.raises(RuntimeError):
        outer(1)
    assert seen == [(True, 2)] and not dispatch.is_compiling()


# ---- as a function ----------------------------------------


def test_methods(native: bool) -> None:
    def method(self: Any, x: int, *, y: int = 2) -> Any:
        return self, x, y

    dispatcher = wrap(method, native)
    dispatcher.add_entry(None, returns("hit", 3))

    class C:
        m = dispatcher
        s = staticmethod(dispatcher)
        c = classmethod(dispatcher)
        p = property(wrap(lambda self: 4, native))

    c = C()
    assert c.m(1) == ("hit", (c, 1, 2)) and C.m(c, 1, y=5) == ("hit", (c, 1, 5))
    bound = c.m
    assert isinstance(bound, types.MethodType) and bound(1) == ("hit", (c, 1, 2)) and C.__dict__["m"] is C.m
    assert C.s(c, 1) == ("hit", (c, 1, 2)) and C.c(1) == ("hit", (C, 1, 2)) and c.p == 4


@functools.wraps(add)
def named(a: Any, b: Any = 1) -> Any:
    return add(a, b)


def test_it_looks_like_its_function(native: bool) -> None:
    def documented(a: int, b: str = "x") -> bool:
        """What it does."""
        return True

    documented.extra = 5  # type: ignore[attr-defined]
    dispatcher = dispatch.update_wrapper(wrap(documented, native), documented)
    assert (
        dispatcher.__name__ == "documented"
        and dispatcher.__doc__ == "What it does."
        and dispatcher.__module__ == __name__
    )
    assert (
        dispatcher.__qualname__ == documented.__qualname__
        and dispatcher.__wrapped__ is documented
        and dispatcher.extra == 5
    )
    assert inspect.signature(dispatcher) == inspect.signature(documented)
    assert dispatcher.__defaults__ == ("x",) and dispatcher.__code__ is documented.__code__
    dispatcher.mine = 1
    assert dispatcher.__dict__["mine"] == 1 and not hasattr(documented, "mine")
    with pytest.raises(AttributeError):
        _ = dispatcher.nothing
    assert weakref.ref(dispatcher)() is dispatcher and callable(dispatcher) and hash(dispatcher) is not None


native_named = wrap(add, True, name="native_named", qualname="native_named")
native_named.__module__ = __name__
python_named = wrap(add, False, name="python_named", qualname="python_named")
python_named.__module__ = __name__


def test_pickled_and_copied_by_name() -> None:
    for dispatcher in (native_named, python_named):
        assert pickle.loads(pickle.dumps(dispatcher)) is dispatcher
        assert copy.deepcopy(dispatcher) is dispatcher and copy.copy(dispatcher) is dispatcher


# ---- life and death, threads ----------------------------------------


def test_cycles_are_collected(native: bool) -> None:
    def f(a: Any) -> Any:
        return a

    dispatcher = wrap(f, native, lambda d, *_: None)
    dispatcher.add_entry(None, returns("hit", 1), payload=[dispatcher])
    dispatcher.me = dispatcher
    dispatcher(1)
    f.dispatcher = dispatcher  # type: ignore[attr-defined]
    ref = weakref.ref(dispatcher)
    del dispatcher, f
    gc.collect()
    assert ref() is None


def test_calls_keep_no_references(native: bool) -> None:
    def f(a: Any, b: Any = None, *args: Any, c: Any = None, **kw: Any) -> Any:
        return None

    marker = object()
    f.__defaults__ = (marker,)
    guards = GuardSet()
    guards.add(src.LocalSource(0, "a"), "id", marker)
    hitting = wrap(f, native)
    hitting.add_entry(build_guards(guards, native=native), (lambda a, b, c, args, kw: None).__code__)
    missing = wrap(f, native)

    def run(times: int) -> None:
        for _ in range(times):
            for d in (hitting, missing):
                d(marker, marker, marker, c=marker, x=marker)
                d(marker, marker)
                d(c=marker, a=marker)
                d(a=None)
                for bad in ({}, {"a": marker, "b": marker}):
                    with pytest.raises(TypeError):
                        d(*((marker,) if bad else ()), **bad)

    missing.on_miss.clear()
    run(2)
    missing.on_miss.clear()
    hitting.on_miss.clear()
    gc.collect()
    before = sys.getrefcount(marker), sys.getrefcount(hitting), sys.getrefcount(hitting.entries[0])
    run(100)
    missing.on_miss.clear()
    hitting.on_miss.clear()
    gc.collect()
    assert (sys.getrefcount(marker), sys.getrefcount(hitting), sys.getrefcount(hitting.entries[0])) == before


def test_entries_change_while_a_guard_runs(native: bool) -> None:
    dispatcher = wrap(add, native)

    class Removing:
        def check(self, *_: Any) -> bool:
            dispatcher.clear()
            gc.collect()
            return True

    dispatcher.add_entry(Removing(), returns("hit", 2))
    assert dispatcher(1) == ("hit", (1, 1)) and dispatcher.entries == []
    assert dispatcher(1) == 2


def test_recursion(native: bool) -> None:
    def fib(n: int) -> int:
        return n if n < 2 else space["fib"](n - 1) + space["fib"](n - 2)

    space: dict[str, Any] = {}
    dispatcher = wrap(fib, native)
    space["fib"] = dispatcher
    dispatcher.add_entry(guard_type(0, int, native), fib.__code__)
    assert dispatcher(15) == 610
    entry = dispatcher.entries[0]
    assert entry.hits == 1973

    def forever(n: int) -> int:
        return space["forever"](n + 1)

    space["forever"] = wrap(forever, native)
    space["forever"].add_entry(None, forever.__code__)
    with pytest.raises(RecursionError):
        space["forever"](0)


def test_threads(native: bool) -> None:
    lock = threading.Lock()

    def on_miss(dispatcher: Any, params: Any, *_: Any) -> Any:
        with lock:
            cls = type(params[0])
            known = [entry for entry in dispatcher.entries if entry.payload is cls]
            return (
                known[0]
                if known
                else dispatcher.add_entry(guard_type(0, cls, native), returns(cls.__name__, 2), payload=cls)
            )

    dispatcher = wrap(add, native, on_miss)
    values = [1, "a", 1.5, b"x", None, (1,), [2], {3}]
    wrong: list[Any] = []
    stop = threading.Event()

    def run(shift: int) -> None:
        for i in range(1500):
            value = values[(i + shift) % len(values)]
            result = dispatcher(value)
            if result != (type(value).__name__, (value, 1)):
                wrong.append(result)

    def disturb() -> None:
        while not stop.is_set():
            entries = dispatcher.entries
            if len(entries) > 5:
                dispatcher.clear()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    disturber = threading.Thread(target=disturb)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in (*threads, disturber):
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        stop.set()
        disturber.join()
        sys.setswitchinterval(before)
    assert wrong == []


# ---- the frame hook ----------------------------------------


def hook_module() -> Any:
    from jitpy.runtime.native_build import NativeUnavailable, load_native

    try:
        return load_native("hook")
    except NativeUnavailable as error:
        pytest.skip(error.reason)


def test_frames_below_a_call_are_served_through_the_hook() -> None:
    module = hook_module()

    def inner(a: Any) -> Any:
        return ("plain", a)

    def other(a: Any) -> Any:
        return ("plain", a)

    def outer(a: Any, f: Any = inner) -> Any:
        return f(a)

    served = wrap(inner, True, original=None)
    served.add_entry(guard_type(0, int), returns("hit", 1))

    def lookup(function: Any, params: Any) -> Any:
        return (lambda a: ("other", a)) if params == (1,) else None

    def handler(function: Any, code: Any) -> Any:
        return {inner.__code__: served, other.__code__: lookup}.get(code)

    top = wrap(outer, True)
    entry = top.add_entry(None, outer.__code__, needs_hook=True)
    without = wrap(outer, True)
    without.add_entry(None, outer.__code__)
    before = module.set_eval_frame(None)
    assert top(1) == ("plain", 1)
    module.set_eval_frame(handler)
    dispatch.set_hook_api(module.api)
    try:
        assert top(1) == ("hit", (1,)) and entry.needs_hook is True
        assert top("s") == ("plain", "s")
        assert top(1, other) == ("other", 1) and top(2, other) == ("plain", 2)
        assert served.entries[0].hits == 1
        assert without(1) == ("plain", 1) and inner(1) == ("plain", 1)
    finally:
        dispatch.set_hook_api(None)
        module.set_eval_frame(before)
    with pytest.raises((ValueError, TypeError)):
        dispatch.set_hook_api(3)


def test_hook_functions(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a native hook, plain functions are called around entries that need it."""
    calls: list[str] = []

    def fail(a: Any) -> Any:
        calls.append("call")
        if a is None:
            raise KeyError("mine")
        return a

    monkeypatch.setattr(dispatch, "_hook", None)
    dispatcher = wrap(fail, native)
    dispatcher.add_entry(guard_type(0, int, native), fail.__code__)
    needing = wrap(fail, native)
    needing.add_entry(None, fail.__code__, needs_hook=True)
    dispatch.set_hook_functions(lambda: calls.append("enter"), lambda: calls.append("leave"))
    try:
        assert needing(1) == 1 and calls == ["enter", "call", "leave"]
        calls.clear()
        with pytest.raises(KeyError, match="mine"):
            needing(None)
        assert calls == ["enter", "call", "leave"]
        calls.clear()
        assert dispatcher(1) == 1 and calls == ["call"]
    finally:
        dispatch.set_hook_functions(lambda: None, lambda: None)
