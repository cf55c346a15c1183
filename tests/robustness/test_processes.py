"""fork, spawn, signals and interrupts: each in a process of its own, with a time limit."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap

import pytest

from jitpy.runtime import native_build


@pytest.fixture(autouse=True, scope="module")
def _native_parts() -> None:
    """Built before the programs start: a build takes a minute on a slow machine, and an interrupt would end it."""
    for part in ("hook", "iterators", "runtime"):
        with contextlib.suppress(RuntimeError, ImportError):
            native_build.load_native(part)


def run(program: str, *, timeout: float = 600) -> str:
    """What a program prints; an AssertionError with its errors where it fails. The limit is for programs that hang."""
    # shells start what runs in the background with interrupts ignored
    text = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n" + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_fork_after_compiling_goes_on_in_both() -> None:
    assert run("""
        import os, torch, jitpy
        @jitpy.jit
        def fn(x):
            return (x + 1).sin() * 2
        x = torch.randn(10)
        want = (x + 1).sin() * 2
        fn(x)
        child = os.fork()
        ok = torch.allclose(fn(x), want) and torch.allclose(fn(x[:5]), want[:5])
        if child == 0:
            os._exit(0 if ok else 3)
        assert ok and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        print("fine")
    """) == "fine\n"


def test_fork_before_the_first_compilation() -> None:
    assert run("""
        import os, torch, jitpy
        @jitpy.jit
        def fn(x):
            return x * 3 - 1
        x = torch.randn(10)
        children = []
        for _ in range(2):
            child = os.fork()
            if child == 0:
                os._exit(0 if torch.allclose(fn(x), x * 3 - 1) else 3)
            children.append(child)
        assert torch.allclose(fn(x), x * 3 - 1)
        assert all(os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) == 0 for c in children)
        print("fine")
    """) == "fine\n"


def test_spawned_workers_jit_on_their_own(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "job.py").write_text(textwrap.dedent("""
        import torch, jitpy
        @jitpy.jit
        def fn(x):
            return x.cos() + 1
        def work(seed):
            x = torch.full((4,), float(seed))
            return bool(torch.allclose(fn(x), x.cos() + 1))
        if __name__ == "__main__":
            import multiprocessing
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                assert pool.map(work, range(4)) == [True] * 4
            print("fine")
    """))
    done = subprocess.run([sys.executable, str(tmp_path / "job.py")], capture_output=True, text=True, timeout=600)
    assert done.stdout == "fine\n", done.stderr[-3000:]


def test_interrupt_during_compilation() -> None:
    assert run("""
        import os, signal, time, torch, jitpy
        def slow(x):
            for i in range(3000):
                x = x + i
            return x
        fn = jitpy.jit(slow, backend="eager")
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        x = torch.zeros(3)
        caught = 0
        for delay in (0.01, 0.05, 0.1):
            try:
                signal.setitimer(signal.ITIMER_REAL, delay)
                fn(x)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                caught += 1
        assert caught, "nothing was interrupted"
        assert torch.equal(fn(x), slow(x))
        assert torch.equal(jitpy.jit(lambda x: x * 2)(x + 1), (x + 1) * 2)
        print("fine")
    """) == "fine\n"


def test_signal_handlers_run_while_tracing() -> None:
    assert run("""
        import signal, torch, jitpy
        ticks = []
        signal.signal(signal.SIGALRM, lambda *_: ticks.append(float(torch.ones(2).sum())))
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        def body(x):
            for i in range(300):
                x = torch.sin(x) + i
            return x
        fn = jitpy.jit(body, backend="eager")
        x = torch.ones(3)
        got = fn(x), fn(x)
        signal.setitimer(signal.ITIMER_REAL, 0)
        want = body(x)
        assert all(torch.allclose(g, want) for g in got) and ticks and set(ticks) == {2.0}
        print("fine")
    """) == "fine\n"


def test_interrupts_at_many_moments_leave_everything_usable() -> None:
    assert run("""
        import gc, os, signal, torch, jitpy
        from jitpy.frontend import hook
        def make():
            def body(x, y):
                for i in range(12):
                    x = torch.nn.functional.softplus(x + i).cumsum(0) + torch.ones(3)
                if x.sum() > 1e9:
                    x = x - 1
                with torch.no_grad():
                    z = torch.logaddexp(y, x)
                return z, x.sin()
            return body
        x, y = torch.zeros(3), torch.ones(3)
        body = make()
        want = body(x, y)
        jitpy.jit(make(), backend="eager")(x, y)
        handler = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        caught = 0
        for step in range(40):
            fn = jitpy.jit(make(), backend="eager")
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0003 + 0.0012 * step)
                fn(x, y)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                caught += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert torch._C._len_torch_dispatch_stack() == 0 and torch._C._len_torch_function_stack() == 0
            assert torch.is_grad_enabled() and gc.isenabled() and not torch.is_inference_mode_enabled()
            assert not hook.is_active() and not hook.is_installed() and not jitpy.is_compiling()
            assert signal.getsignal(signal.SIGINT) is handler
            for got in (fn(x, y), fn(x, y)):
                assert all(torch.equal(g, w) for g, w in zip(got, want, strict=True))
        assert caught > 3, caught
        print("fine")
    """) == "fine\n"


def test_what_a_signal_handler_raises_reaches_the_caller() -> None:
    assert run("""
        import signal, torch, jitpy
        class TooLate(Exception):
            pass
        def late(*_):
            raise TooLate
        def slow(x):
            for i in range(3000):
                x = torch.logaddexp(x, x + i)
            return x
        signal.signal(signal.SIGALRM, late)
        fn = jitpy.jit(slow, backend="eager")
        x = torch.zeros(3)
        jitpy.jit(lambda x: x + 1, backend="eager")(x)
        for delay in (0.01, 0.02, 0.05, 0.1):
            try:
                signal.setitimer(signal.ITIMER_REAL, delay)
                fn(x)
                raise AssertionError("the handler's exception is lost")
            except TooLate as error:
                assert error.__cause__ is None
        assert torch.equal(fn(x), slow(x))
        print("fine")
    """) == "fine\n"


def test_exit_while_another_thread_compiles() -> None:
    assert run("""
        import threading, torch, jitpy
        def slow(x):
            for i in range(2000):
                x = x + i
            return x
        threading.Thread(target=lambda: jitpy.jit(slow, backend="eager")(torch.zeros(2)), daemon=True).start()
        print("fine")
    """) == "fine\n"
