"""The pure-Python provider: what it replaces from the second call on, and that it leaves everything as it was."""

from __future__ import annotations

import gc
import inspect
import os
import subprocess
import sys
import threading
import traceback
import weakref
from pathlib import Path

import pytest

from jitpy.frontend import hook

from .conftest import Replacements, active


def test_calls_after_the_first_are_replaced(monitoring: Replacements) -> None:
    def function(a, /, b=2, *args, c=3, d, **kw):
        return "original"

    def replacement(a, b, c, d, args, kw):
        return a, b, args, c, d, kw

    monitoring.replace(function, replacement)
    with active():
        assert function(0, d=1) == "original"
        assert function(1, d=4) == (1, 2, (), 3, 4, {})
        assert function(1, 5, 6, 7, d=8, e=9) == (1, 5, (6, 7), 3, 8, {"e": 9})
        with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'd'"):
            function(1)
    assert function(1, d=4) == "original"
    with active():
        assert function(1, d=4) == (1, 2, (), 3, 4, {}), "known from before"
    assert monitoring.asked.count("function") == 1


def test_suspended_for_code_of_others(monitoring: Replacements) -> None:
    def function() -> str:
        return "original"

    monitoring.replace(function, lambda: "replaced")
    with active(), active():
        function()
        calls = hook.suspend()
        try:
            assert calls == 2 and not hook.is_active() and not hook.is_installed() and function() == "original"
            with active():
                assert function() == "replaced"
            assert function() == "original"
        finally:
            hook.resume(calls)
        assert hook.is_installed() and function() == "replaced"
    assert not hook.is_active() and not hook.is_installed() and function() == "original"


def test_functions_get_their_own_code_back(monitoring: Replacements) -> None:
    def function(x):
        return x

    own = function.__code__
    monitoring.replace(function, lambda x: -x)
    with active():
        assert function(1) == 1
        assert function.__code__ is not own and hook.original_code(function.__code__) is own
        assert inspect.signature(function) == inspect.Signature(
            [inspect.Parameter("x", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
        )
        assert inspect.getsource(function).strip().startswith("def function(x):")
        with active():
            assert function(1) == -1
        assert function(1) == -1
    assert function.__code__ is own and not hook.is_installed()
    assert sys.monitoring.get_events(sys.monitoring.OPTIMIZER_ID) == 0


def test_none_runs_the_original_instructions(monitoring: Replacements) -> None:
    def function(n, *rest, key=None):
        """Cells, a loop, handlers and a nested function."""
        total = 0
        inner = lambda: (n, key)  # noqa: E731
        for i in range(n):
            try:
                total += 10 // i
            except ZeroDivisionError:
                continue
            finally:
                total += 1
        return total, inner(), [n + item for item in rest]

    monitoring.dispatch(function, lambda _function, parameters: replacement if parameters[0] == 3 else None)

    def replacement(n, key, rest):
        return "replaced"

    hook.skip_code(replacement.__code__)
    expected = [function(n, n, key=n) for n in range(8)]
    with active():
        for _ in range(2):
            got = [function(n, n, key=n) for n in range(8)]
    expected[3] = "replaced"
    assert got == expected


def test_tracebacks_show_the_users_lines(monitoring: Replacements) -> None:
    def function(x):
        y = x + 1

        raise ValueError(y)

    monitoring.dispatch(function, lambda _function, _parameters: None)

    def lines():
        try:
            function(1)
        except ValueError as error:
            return [(entry.name, entry.lineno) for entry in traceback.extract_tb(error.__traceback__)]

    before = lines()
    with active():
        assert [lines(), lines(), lines()] == [before] * 3


def test_closures_are_told_apart(monitoring: Replacements) -> None:
    def make(n):
        def inner(x):
            return ("original", n, x)

        return inner

    one, two = make(1), make(2)

    def dispatcher(function, parameters):
        seen.append(function)
        return replacement if parameters[0] else None

    def replacement(x):
        return "replaced"

    seen: list[object] = []
    monitoring.dispatch(one, dispatcher)
    hook.skip_code(replacement.__code__)
    with active():
        assert (one(0), two(0)) == (("original", 1, 0), ("original", 2, 0))
        assert (one(1), two(1), one(0), two(0)) == ("replaced", "replaced", ("original", 1, 0), ("original", 2, 0))
    assert seen[-4:] == [one, two, one, two]


def test_functions_made_anew_run_as_they_are(monitoring: Replacements) -> None:
    def caller(x):
        def inner(y):
            return x + y

        return inner(1)

    def handler(function, code):
        asked.append(code.co_name)
        return lambda _function, _parameters: None

    asked: list[str] = []
    hook.set_eval_frame(handler)
    with active():
        assert [caller(i) for i in range(10)] == list(range(1, 11))
    assert asked.count("inner") == 1 and asked.count("caller") == 1


def test_exceptions_propagate(monitoring: Replacements) -> None:
    def function(x):
        return "original"

    def replacement(x):
        if x:
            raise KeyError(x)
        return "replaced"

    def other(x):
        return "original"

    def failing(_function, code):
        if code is other.__code__:
            raise ValueError("from the handler")
        return monitoring(_function, code)

    monitoring.replace(function, replacement)
    hook.set_eval_frame(failing)
    with active():
        function(0)
        with pytest.raises(KeyError):
            function(1)
        assert function(0) == "replaced"
        for _ in range(2):
            with pytest.raises(ValueError, match="from the handler"):
                other(1)
    hook.set_eval_frame(monitoring)
    assert (function(1), other(1)) == ("original", "original")


def test_generators_are_left_alone(monitoring: Replacements) -> None:
    def generator():
        yield 1

    async def coroutine():
        return 1

    with active():
        for _ in range(2):
            assert list(generator()) == [1]
            with pytest.raises(StopIteration):
                coroutine().send(None)
    assert not {"generator", "coroutine"} & set(monitoring.asked)


def test_skip_and_forget(monitoring: Replacements) -> None:
    def function():
        return "original"

    own = function.__code__
    monitoring.replace(function, lambda: "replaced")
    with active():
        assert [function(), function()] == ["original", "replaced"]
        hook.skip_code(own)
        assert function.__code__ is own and function() == "original" and hook.code_state(own) == "skip"
        hook.forget_code(own)
        assert hook.code_state(own) is None
        assert [function(), function()] == ["original", "replaced"]
        hook.forget_code(function.__code__)
        monitoring.dispatchers.clear()
        assert [function(), function()] == ["original", "original"]
    assert monitoring.asked.count("function") == 3


def test_a_users_own_code_is_not_overwritten(monitoring: Replacements) -> None:
    def function():
        return "original"

    def changed():
        return "changed"

    monitoring.replace(function, lambda: "replaced")
    with active():
        assert [function(), function()] == ["original", "replaced"]
        function.__code__ = changed.__code__
        assert function() == "changed"
    assert function.__code__ is changed.__code__
    with active():
        assert function() == "changed"


def test_recursion(monitoring: Replacements) -> None:
    def function(n):
        return 0 if n == 0 else function(n - 1)

    def replacement(n):
        return n if n == 0 else 1 + function(n - 1)

    monitoring.replace(function, replacement)
    with active():
        function(0)
        assert function(50) == 50
        with pytest.raises(RecursionError):
            function(10**6)
        assert function(50) == 50
    assert function(5) == 0


def test_other_threads_run_the_original(monitoring: Replacements) -> None:
    def function(x):
        return ("original", x)

    monitoring.replace(function, lambda x: ("replaced", x))
    with active():
        function(0)
    failures: list[str] = []
    start = threading.Barrier(4)

    def work(number: int) -> None:
        start.wait()
        for i in range(300):
            if number % 2:
                with active():
                    function(i)  # it may have been given its own code back while no thread was active
                    got, expected = function(i), ("replaced", i)
            else:
                got, expected = function(i), ("original", i)
            if got != expected:
                failures.append(f"thread {number}: {got} is not {expected}")
                return

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and function(1) == ("original", 1)


def test_tracing_sees_the_original(monitoring: Replacements) -> None:
    def function():
        return "original"

    monitoring.replace(function, lambda: "replaced")
    former = sys.gettrace()
    with active():
        function()
        sys.settrace(lambda *_: None)
        try:
            assert function() == "original"
        finally:
            sys.settrace(former)
        assert function() == "replaced"


def test_nothing_is_kept_alive(monitoring: Replacements) -> None:
    class Dispatcher:
        def __call__(self, _function, _parameters):
            return None

    namespace: dict[str, object] = {}
    exec("def function(): return 1", namespace)
    function = namespace.pop("function")
    dispatcher = Dispatcher()
    gone = weakref.ref(dispatcher), weakref.ref(function), weakref.ref(function.__code__)
    hook.set_eval_frame(lambda _function, code, own=[function.__code__], d=[dispatcher]: d[0] if code in own else None)
    del dispatcher
    with active():
        assert [function() for _ in range(3)] == [1, 1, 1]
    hook.set_eval_frame(monitoring)
    del function
    gc.collect()
    assert [ref() for ref in gone] == [None, None, None]


PROGRAM = """
import torch, jitpy

def inner(x):
    return (x * 2).sin() + 1

def outer(x):
    return eval("inner(x)") * 2  # a break: the hook meets the frame of `inner`

jitted, x = jitpy.jit(outer), torch.randn(3)
assert all(torch.allclose(jitted(x), outer(x)) for _ in range(4))
from jitpy.engine import all_engines
print([variant.name for engine in all_engines() for variant in engine.variants])
"""


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="needs Python 3.12")
@pytest.mark.parametrize("native", ["0", "1"])
def test_frames_below_a_jitted_call_are_compiled(native: str, tmp_path: Path) -> None:
    """Whether dispatch is native or not: this provider takes objects in Python."""
    environment = {**os.environ, "JITPY_HOOK": "monitoring", "JITPY_NATIVE": native}
    program = tmp_path / "program.py"  # code of strings counts as a library's
    program.write_text(PROGRAM)
    done = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True)
    assert "'inner'" in done.stdout, done.stderr
