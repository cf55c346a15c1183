"""Clocks, and other things that a program asks its surroundings for."""

import contextvars
import logging
import os
import threading
import time
import uuid

import pytest
import torch

import jitpy
from tests.semantics.harness import jit

WORK = torch.rand(300, 300)


def reasons(fn, *args):
    jitpy.reset()
    return [record.reason.id for record in jitpy.explain(fn)(*args).break_reasons]


def test_time_around_a_forward_pass():
    def fn(x):
        start = time.perf_counter()
        for _ in range(3):
            x = (x @ WORK).sigmoid()
        seconds = time.perf_counter() - start
        return x, seconds

    assert reasons(fn, torch.rand(300, 300)) == []
    compiled = jit(fn)
    compiled(torch.rand(300, 300))
    for _ in range(3):
        x, before = torch.rand(300, 300), time.perf_counter()
        found, seconds = compiled(x)
        whole = time.perf_counter() - before
        torch.testing.assert_close(found, fn(x)[0])
        assert 0.2 * whole < seconds < whole  # the operations lie between the two


def test_parts_are_timed_apart():
    def fn(x):
        a = time.perf_counter()
        y = (x @ WORK).sigmoid()
        b = time.perf_counter()
        z = y + 1
        c = time.perf_counter()
        return z, b - a, c - b, (c >= b) & (b >= a)

    assert reasons(fn, torch.rand(300, 300)) == ["clock"]
    compiled = jit(fn)
    compiled(torch.rand(300, 300))
    x = torch.rand(300, 300)
    found, first, second, ordered = compiled(x)
    torch.testing.assert_close(found, fn(x)[0])
    assert ordered and first > 0 and second > 0


def test_clock_that_the_graph_needs():
    def fn(x):
        y = x + 1
        t = time.time()
        return y * t, t

    assert reasons(fn, torch.ones(2)) == ["clock"]
    y, t = jit(fn)(torch.ones(2))
    torch.testing.assert_close(y, torch.full((2,), 2.0) * t)
    assert abs(time.time() - t) < 60


def test_rates_and_texts():
    def fn(x, seen, said):
        start = time.time()
        y = x * 2
        took = time.time() - start
        seen.append(took)
        said.append(f"{took * 1000:.1f} ms, {took < 0}")
        rate = len(x) / (took + 1.0)
        return y, rate

    compiled, seen, said = jit(fn, backend="eager"), [], []
    for _ in range(3):
        y, rate = compiled(torch.ones(4), seen, said)
        assert y.tolist() == [2.0] * 4 and 0 < rate <= 4
    assert len(seen) == 3 and all(0 <= t < 60 for t in seen) and all(t.endswith(" ms, False") for t in said)


def test_time_in_a_loop_with_breaks():
    def fn(x, n):
        times = []
        for _ in range(n):
            start = time.monotonic()
            x = x + 1
            if x.sum() > 1e9:
                break
            times.append(time.monotonic() - start)
        return x, times

    x, times = jit(fn, backend="eager")(torch.zeros(2), 20)
    assert x.tolist() == [20.0, 20.0] and len(times) == 20 and min(times) >= 0


def test_time_limit():
    def fn(x, limit):
        end = time.time() + limit
        steps = 0
        while time.time() < end and steps < 5:
            x = x + 1
            steps += 1
        return x, steps

    compiled = jit(fn, backend="eager")
    for limit in (100, 0, 100):
        assert str(compiled(torch.zeros(1), limit)) == str(fn(torch.zeros(1), limit))


def test_clock_where_the_graph_gives_up():
    def fn(x, i):
        start = time.time()
        y = x.index_select(0, i)
        return y, time.time() - start

    compiled = jit(fn, backend="eager")
    assert compiled(torch.ones(2), torch.tensor([1]))[1] >= 0
    with pytest.raises((IndexError, RuntimeError)):
        compiled(torch.ones(2), torch.tensor([7]))
    assert compiled(torch.ones(2), torch.tensor([0]))[1] >= 0


def test_with_gradients():
    w = torch.ones(3, requires_grad=True)

    def fn(x):
        start = time.perf_counter()
        loss = (x * w).sum()
        loss.backward()
        return loss.detach(), time.perf_counter() - start

    assert reasons(fn, torch.ones(3)) == []
    w.grad = None
    loss, took = jit(fn)(torch.ones(3))
    assert loss == 3 and took > 0 and w.grad.tolist() == [1.0] * 3


def test_nanoseconds_and_processes():
    def fn(x):
        return x + 1, time.time_ns(), time.process_time(), threading.get_ident(), os.getpid(), os.cpu_count()

    assert reasons(fn, torch.ones(1)) == []
    compiled = jit(fn, backend="eager")
    found = [compiled(torch.ones(1)) for _ in range(2)]
    assert found[0][1] < found[1][1] and found[0][2] <= found[1][2]
    assert all(f[3:] == (threading.get_ident(), os.getpid(), os.cpu_count()) for f in found)
    others = []
    thread = threading.Thread(target=lambda: others.append((compiled(torch.ones(1))[3], threading.get_ident())))
    thread.start()
    thread.join()
    assert others[0][0] == others[0][1]


def test_unique_names():
    def fn(x, names):
        names.append(uuid.uuid4())
        return x + 1

    compiled, names = jit(fn, backend="eager"), []
    for _ in range(3):
        compiled(torch.ones(1), names)
    assert len(set(names)) == 3 and all(type(name) is uuid.UUID for name in names)


def test_patched_clock(monkeypatch):
    def fn(x):
        return x + time.time()

    compiled = jit(fn, backend="eager")
    assert compiled(torch.zeros(1)).item() > 1e9
    monkeypatch.setattr(time, "time", lambda: 5.0)
    assert compiled(torch.zeros(1)).item() == 5.0


LOCAL = threading.local()
VARIABLE = contextvars.ContextVar("VARIABLE", default=2)
BARE = contextvars.ContextVar("BARE")


def test_attributes_of_threads():
    def fn(x):
        count = getattr(LOCAL, "count", 0)
        LOCAL.count = count + 1
        LOCAL.last = x * 2
        if hasattr(LOCAL, "gone"):
            del LOCAL.gone
        return x + LOCAL.count, LOCAL.last is LOCAL.last

    def run(f):
        found = []

        def calls():
            LOCAL.__dict__.clear()
            for k in range(4):
                if k == 2:
                    LOCAL.gone = 1
                y, same = f(torch.zeros(2))
                found.append((y.tolist(), same, LOCAL.count, LOCAL.last.tolist(), hasattr(LOCAL, "gone")))

        for _ in range(2):
            thread = threading.Thread(target=calls)
            thread.start()
            thread.join()
            calls()
        return found

    assert run(fn) == run(jit(fn, backend="eager"))
    LOCAL.__dict__.clear()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        jit(lambda x: x + LOCAL.nothing, backend="eager")(torch.zeros(1))


def test_context_variables_are_read():
    def fn(x):
        return x + VARIABLE.get() + VARIABLE.get(5) + BARE.get(1)

    compiled = jit(fn, backend="eager")

    def run(f):
        found = [f(torch.zeros(1)).item()]
        a = VARIABLE.set(3)
        found.append(f(torch.zeros(1)).item())
        b = BARE.set(10)
        found.append(f(torch.zeros(1)).item())
        BARE.reset(b)
        VARIABLE.reset(a)
        return [*found, f(torch.zeros(1)).item()]

    for _ in range(2):
        assert run(fn) == run(compiled)
    with pytest.raises(LookupError):
        jit(lambda x: x + BARE.get(), backend="eager")(torch.zeros(1))


def test_context_variables_are_set():
    def scoped(x):
        token = VARIABLE.set(7)
        try:
            y = x + VARIABLE.get()
        finally:
            VARIABLE.reset(token)
        return y + VARIABLE.get()

    def left_set(x):
        VARIABLE.set(x.shape[0])
        token = VARIABLE.set(VARIABLE.get() + 1)
        return x * 2, token.var is VARIABLE

    def broken(x):
        token = VARIABLE.set(9)
        y = x + VARIABLE.get()
        jitpy.graph_break()
        y = y * VARIABLE.get()
        VARIABLE.reset(token)
        return y + VARIABLE.get()

    def token_leaves(x):
        first = VARIABLE.set(4)
        second = VARIABLE.set(5)
        return x, second, first

    def spent(x):
        token = VARIABLE.set(4)
        VARIABLE.reset(token)
        try:
            VARIABLE.reset(token)
        except RuntimeError:
            return x + 1
        return x

    def raises(x):
        VARIABLE.set(8)
        raise ValueError("stop")

    for fn in (scoped, left_set, broken, token_leaves, spent, raises):
        compiled = jit(fn, backend="eager")

        def play(f, fn=fn):
            try:
                found = f(torch.ones(2))
            except ValueError as error:
                found = str(error)
            now = VARIABLE.get()
            if fn is token_leaves:
                VARIABLE.reset(found[1])
                now = now, VARIABLE.get()
                VARIABLE.reset(found[2])
                found = None
            return str(found), now, VARIABLE.get()

        for _ in range(3):
            assert contextvars.copy_context().run(play, fn) == contextvars.copy_context().run(play, compiled), fn


def test_level_of_a_logger():
    logger = logging.getLogger("tests.surroundings")

    def fn(x):
        if logger.getEffectiveLevel() <= logging.INFO:
            return x + 1
        return x

    assert reasons(fn, torch.ones(1)) == []
    compiled = jit(fn, backend="eager")
    try:
        for level in (logging.DEBUG, logging.ERROR, logging.INFO, logging.ERROR):
            logger.setLevel(level)
            assert compiled(torch.ones(1)) == fn(torch.ones(1))
    finally:
        logger.setLevel(logging.NOTSET)
