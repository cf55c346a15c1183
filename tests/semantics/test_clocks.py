"""Clocks, and other things that a program asks its surroundings for."""

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
