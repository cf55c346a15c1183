"""The native provider: what is replaced, what is not, and that frames are released properly."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import threading
import traceback
import types
import weakref

import pytest

from jitpy.frontend import hook

from .conftest import Replacements, active


def test_all_kinds_of_parameters_arrive(native: Replacements) -> None:
    def function(a, /, b=2, *args, c=3, d, **kw):
        raise AssertionError("not replaced")

    def replacement(a, b, c, d, args, kw):
        return a, b, args, c, d, kw

    native.replace(function, replacement)
    first = object()
    with active():
        assert function(first, d=4) == (first, 2, (), 3, 4, {})
        assert function(first, 5, 6, 7, d=8, e=9) == (first, 5, (6, 7), 3, 8, {"e": 9})
        assert function(*[1, 2, 3], **{"d": 4, "c": 5}) == (1, 2, (3,), 5, 4, {})
        with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'd'"):
            function(1)


def test_calls_through_methods_and_c_functions(native: Replacements) -> None:
    class Thing:
        def method(self, x):
            return "original"

        @classmethod
        def of_class(cls, x):
            return "original"

        @property
        def value(self):
            return "original"

        def __len__(self):
            return 0

    native.replace(Thing.method, lambda self, x: (self, x))
    native.replace(Thing.of_class.__func__, lambda cls, x: (cls, x))
    native.replace(Thing.value.fget, lambda self: self)
    native.replace(Thing.__len__, lambda self: 7)
    thing = Thing()
    with active():
        assert thing.method(1) == (thing, 1)
        assert Thing.of_class(2) == (Thing, 2)
        assert thing.value is thing
        assert len(thing) == 7
        assert list(map(thing.method, [1, 2])) == [(thing, 1), (thing, 2)]
        assert sorted([2, 1], key=lambda item: thing.method(-item)[1]) == [2, 1]
    assert thing.method(1) == "original" and len(thing) == 0


def test_cells_closures_and_super(native: Replacements) -> None:
    outer = 10

    def function(x):  # x is a cell variable
        return lambda: (x, outer)

    def replacement(x):
        return lambda: (x + 1, outer)

    class Base:
        def get(self):
            return "base"

    class Child(Base):
        def get(self):
            return super().get() + " child"

    def caller(child):
        return child.get() + "!"

    native.replace(function, replacement)
    native.dispatch(Child.get, lambda _function, _parameters: None)
    native.replace(caller, lambda child: child.get() + "?")
    with active():
        assert function(1)() == (2, 10)
        outer = 11
        assert function(1)() == (2, 11)
        assert caller(Child()) == "base child?"


def test_the_dispatcher_gets_the_function_itself(native: Replacements) -> None:
    def make(n):
        def inner(x):
            return "original"

        return inner

    one, two = make(1), make(2)

    def dispatcher(function, parameters):
        seen.append((function, parameters))
        return replacement

    def replacement(x):
        return x

    seen: list[object] = []
    native.dispatch(one, dispatcher)
    hook.skip_code(replacement.__code__)
    with active():
        assert (one(1), two(2)) == (1, 2)
    assert seen == [(one, (1,)), (two, (2,))]


def test_the_handler_is_asked_once_and_its_no_is_kept(native: Replacements) -> None:
    def function():
        return "original"

    with active():
        function()
        function()
    assert native.asked.count("function") == 1
    assert hook.code_state(function.__code__) == "skip"


def test_nothing_happens_outside_enter_and_leave(native: Replacements) -> None:
    def function():
        return "original"

    native.replace(function, lambda: "replaced")
    assert function() == "original" and native.asked == []
    assert not hook.is_installed() and not hook.is_active()
    with active():
        with active():
            assert function() == "replaced"
        assert hook.is_installed() and hook.is_active() and function() == "replaced"
    assert not hook.is_installed() and not hook.is_active() and function() == "original"


def test_leave_without_enter(native: Replacements) -> None:
    with pytest.raises(RuntimeError, match="leave"):
        hook.leave()


def test_suspended_for_code_of_others(native: Replacements) -> None:
    """Off in this thread, whatever the nesting; on for a jitted call inside; as before behind `resume`."""
    def function() -> str:
        return "original"

    native.replace(function, lambda: "replaced")
    assert hook.suspend() == 0
    hook.resume(0)
    with active(), active():
        calls = hook.suspend()
        try:
            assert calls == 2 and not hook.is_active() and not hook.is_installed() and function() == "original"
            with active():
                assert function() == "replaced" and hook.suspend() == 1
                hook.resume(1)
            assert function() == "original"
        finally:
            hook.resume(calls)
        assert hook.is_installed() and function() == "replaced"
    assert not hook.is_active() and not hook.is_installed()


def test_none_runs_the_frame_as_it_is(native: Replacements) -> None:
    def function(x):
        x += 1
        return x

    calls = []
    native.dispatch(function, lambda _function, parameters: calls.append(parameters))
    with active():
        assert [function(1), function(2)] == [2, 3]
    assert calls == [(1,), (2,)]


def test_frames_that_are_never_replaced(native: Replacements) -> None:
    def generator():
        yield 1

    async def coroutine():
        return 1

    async def async_generator():
        yield 1

    with active():
        assert list(generator()) == [1]
        with pytest.raises(StopIteration):
            coroutine().send(None)
        async_generator()

        class Body:
            x = 1

        exec("y = 1", {})
    assert not {"generator", "coroutine", "async_generator", "Body", "<module>"} & set(native.asked)
    for function in (generator, coroutine, async_generator):
        assert hook.code_state(function.__code__) == "skip"


def test_exceptions_of_the_replacement(native: Replacements) -> None:
    def function(x):
        return "original"

    def replacement(x):
        raise KeyError(x)

    native.replace(function, replacement)
    with active():
        for _ in range(3):
            with pytest.raises(KeyError) as caught:
                function("key")
    names = [entry.name for entry in traceback.extract_tb(caught.value.__traceback__)]
    assert names == ["test_exceptions_of_the_replacement", "replacement"]


def test_exceptions_of_dispatcher_and_handler(native: Replacements) -> None:
    def function(x):
        return "original"

    def dispatcher(_function, _parameters):
        raise ValueError("from the dispatcher")

    def other(x):
        return "original"

    def failing(_function, code):
        if code is other.__code__:
            asked.append(code)
            raise ValueError("from the handler")
        return native(_function, code)

    asked: list[object] = []
    native.dispatch(function, dispatcher)
    hook.set_eval_frame(failing)
    with active():
        for _ in range(2):
            with pytest.raises(ValueError, match="from the dispatcher"):
                function(object())
            with pytest.raises(ValueError, match="from the handler"):
                other(object())
    hook.set_eval_frame(native)
    assert len(asked) == 2, "a handler that raised is asked again"
    assert other(1) == "original"


def test_the_hook_is_off_in_handler_and_dispatcher(native: Replacements) -> None:
    def function(x):
        return "original"

    def dispatcher(_function, parameters):
        assert function(0) == "original"
        return replacement

    def replacement(x):
        return "replaced"

    native.dispatch(function, dispatcher)
    hook.skip_code(replacement.__code__)
    with active():
        assert function(1) == "replaced"
    assert "dispatcher" not in native.asked


def test_tracing_and_profiling_see_the_original(native: Replacements) -> None:
    def function():
        return "original"

    native.replace(function, lambda: "replaced")
    lines = []

    def tracer(frame, event, _argument):
        if frame.f_code is function.__code__:
            lines.append(event)
        return tracer

    former = sys.gettrace()
    with active():
        assert function() == "replaced"
        sys.settrace(tracer)
        try:
            assert function() == "original"
        finally:
            sys.settrace(former)
        profiler = sys.getprofile()
        sys.setprofile(lambda *_: None)
        try:
            assert function() == "original"
        finally:
            sys.setprofile(profiler)
        assert function() == "replaced"
    assert lines == ["call", "line", "return"]


def test_the_replaced_frame_is_not_on_the_stack(native: Replacements) -> None:
    def function():
        return None

    def replacement():
        frame, names = sys._getframe(), []
        while frame is not None:
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        return names[:2]

    native.replace(function, replacement)
    with active():
        assert function() == ["replacement", "test_the_replaced_frame_is_not_on_the_stack"]


def test_threads_have_their_own_activity(native: Replacements) -> None:
    def function(x):
        return ("original", x)

    native.replace(function, lambda x: ("replaced", x))
    failures: list[str] = []
    start = threading.Barrier(6)

    def work(number: int) -> None:
        start.wait()
        for i in range(2000):
            if number % 2:
                with active():
                    got, expected = function(i), ("replaced", i)
            else:
                got, expected = function(i), ("original", i)
            if got != expected:
                failures.append(f"thread {number}: {got} is not {expected}")
                return

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_dispatcher_lives_as_long_as_its_code(native: Replacements) -> None:
    class Dispatcher:
        def __call__(self, _function, _parameters):
            return None

    namespace: dict[str, object] = {}
    exec("def function(): return 1", namespace)
    function = namespace.pop("function")
    dispatcher = Dispatcher()
    gone = weakref.ref(dispatcher)
    hook.set_eval_frame(lambda _function, code, own=function.__code__, d=[dispatcher]: d.pop() if code is own else None)
    del dispatcher
    with active():
        function()
        function()
    hook.set_eval_frame(native)
    gc.collect()
    assert gone() is not None and hook.code_state(function.__code__) is gone()
    del function
    gc.collect()
    assert gone() is None


def test_forget_and_skip(native: Replacements) -> None:
    def function():
        return "original"

    code = function.__code__
    native.replace(function, lambda: "replaced")
    with active():
        assert function() == "replaced"
        hook.skip_code(code)
        assert function() == "original" and hook.code_state(code) == "skip"
        hook.forget_code(code)
        assert hook.code_state(code) is None
        assert function() == "replaced"
        hook.forget_code(code)
        native.dispatchers.clear()
        assert function() == "original"
    assert native.asked.count("function") == 3
    hook.forget_code(code)
    hook.forget_code(code)
    with pytest.raises(TypeError, match="code object"):
        hook.skip_code(function)
    with pytest.raises(TypeError, match="code object"):
        hook.forget_code(function)
    with pytest.raises(TypeError, match="callable"):
        hook.set_eval_frame(3)


def test_a_dispatcher_may_forget_its_own_code(native: Replacements) -> None:
    def function(x):
        return "original"

    def dispatcher(_function, _parameters):
        native.dispatchers.clear()
        hook.forget_code(function.__code__)
        gc.collect()
        return replacement

    def replacement(x):
        return "replaced"

    native.dispatch(function, dispatcher)
    hook.skip_code(replacement.__code__)
    del dispatcher
    with active():
        assert [function(1), function(1)] == ["replaced", "original"]


def test_references_are_released(native: Replacements) -> None:
    class Token:
        pass

    def function(a, *args, k=None, **kw):
        return None

    def replacement(a, k, args, kw):
        if k:
            raise ValueError
        return a

    native.replace(function, replacement)
    tokens = [Token() for _ in range(4)]
    watched = [*tokens, function, function.__code__, replacement]
    # Not inside an assert: pytest keeps the parts of a failing one alive.
    before = [sys.getrefcount(item) for item in watched]
    with active():
        for i in range(100):
            with contextlib.suppress(ValueError):
                function(tokens[0], tokens[1], k=i % 2, other=tokens[2])
        function(token := Token(), 1)
        dying = weakref.ref(token)
        del token
    after = [sys.getrefcount(item) for item in watched]
    assert dying() is None
    assert after == before


def test_destructors_that_call_python_while_the_frame_is_released(native: Replacements) -> None:
    log: list[int] = []

    class Noisy:
        def __init__(self, depth):
            self.depth = depth

        def __del__(self):
            log.append(self.depth)
            if self.depth:
                function(Noisy(self.depth - 1))

    def function(x):
        return "original"

    native.replace(function, lambda x: "replaced")
    with active():
        assert function(Noisy(20)) == "replaced"
    gc.collect()
    assert sorted(log) == list(range(21))


@pytest.mark.parametrize("ends", ["return", "raise"])
def test_recursion_over_many_stack_chunks(native: Replacements, ends: str) -> None:
    """The interpreter's frames lie in chunks of 16 KiB; some replaced frame is the first of each chunk."""

    def function(n, *rest):
        return "original"

    def replacement(n, rest):
        if n == 0:
            if ends == "raise":
                raise KeyError("bottom")
            return 0
        return 1 + function(n - 1, *rest)

    native.replace(function, replacement)
    with active():
        for width in range(12):
            for depth in (50, 120, 121, 122, 250):
                if ends == "return":
                    assert function(depth, *range(width)) == depth
                else:
                    with pytest.raises(KeyError, match="bottom"):
                        function(depth, *range(width))


def test_the_first_frame_of_a_chunk_at_every_offset(native: Replacements) -> None:
    """Replaced frames of many sizes, called from every depth of plain frames."""
    sources = "\n".join(
        f"def size_{n}(x):\n" + "".join(f"    v{i} = x\n" for i in range(n)) + "    return x" for n in range(0, 60, 7)
    )
    namespace: dict[str, types.FunctionType] = {}
    exec(sources, namespace)
    functions = [value for name, value in namespace.items() if name.startswith("size_")]
    for function in functions:
        native.replace(function, lambda x: x + 1)

    def down(depth):
        got = [function(depth) for function in functions]
        assert got == [depth + 1] * len(functions)
        return depth if depth == 0 else down(depth - 1)

    with active():
        assert down(300) == 0
    assert functions[0](5) == 5


def test_recursion_error_is_raised_and_survived(native: Replacements) -> None:
    def function(n):
        return "original"

    def replacement(n):
        return function(n + 1)

    native.replace(function, replacement)
    with active():
        for _ in range(3):
            with pytest.raises(RecursionError):
                function(0)
    assert function(0) == "original"


def test_recursion_goes_as_deep_as_without_the_hook(native: Replacements) -> None:
    def function(n):
        return 0 if n == 0 else 1 + function(n - 1)

    def plain(n):
        return 0 if n == 0 else 1 + plain(n - 1)

    native.replace(function, lambda n: 0 if n == 0 else 1 + function(n - 1))
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(3000)
    try:
        with active():
            assert plain(2500) == 2500
            assert function(2500) == 2500
            with pytest.raises(RecursionError):
                plain(3000)
            with pytest.raises(RecursionError):
                function(3000)
        assert plain(2500) == 2500
    finally:
        sys.setrecursionlimit(limit)


def test_native_replacements_do_not_recurse_without_limit(native: Replacements) -> None:
    def function(x):
        return "original"

    # A partial calls the function from C: no Python frame is ever run.
    native.dispatch(function, lambda _function, _parameters: functools.partial(function))
    with active():
        with pytest.raises(RecursionError):
            function(1)
        with pytest.raises(RecursionError):
            function(1)
    assert function(1) == "original"


def test_replacement_may_be_any_callable(native: Replacements) -> None:
    def function(a, b):
        return "original"

    native.dispatch(function, lambda _function, _parameters: max)
    with active():
        assert function(1, 2) == 2

    def wrong(a):
        return a

    native.dispatchers.clear()
    hook.forget_code(function.__code__)
    native.replace(function, wrong)
    with active(), pytest.raises(TypeError, match="positional argument"):
        function(1, 2)
