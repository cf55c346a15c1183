"""Debuggers, profilers and tracers that are attached before the first call, between calls, and taken off again."""

from __future__ import annotations

import bdb
import contextlib
import cProfile
import pdb
import sys
import trace
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import jitpy
from tests.counting import variants


@contextlib.contextmanager
def settrace() -> Iterator[None]:
    events: list[str] = []

    def tracer(frame: Any, event: str, arg: Any) -> Any:
        events.append(event)
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        yield
    finally:
        sys.settrace(before)
    assert events


@contextlib.contextmanager
def settrace_of_opcodes() -> Iterator[None]:
    def tracer(frame: Any, event: str, arg: Any) -> Any:
        frame.f_trace_opcodes = True
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        yield
    finally:
        sys.settrace(before)


@contextlib.contextmanager
def setprofile() -> Iterator[None]:
    events: list[str] = []
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, arg: events.append(event))
    try:
        yield
    finally:
        sys.setprofile(before)
    assert events


@contextlib.contextmanager
def profiler() -> Iterator[None]:
    made = cProfile.Profile()
    made.enable()
    try:
        yield
    finally:
        made.disable()


@contextlib.contextmanager
def line_counter() -> Iterator[None]:
    """What `python -m trace --count` does."""
    before = sys.gettrace()
    sys.settrace(trace.Trace(count=1, trace=0).globaltrace)
    try:
        yield
    finally:
        sys.settrace(before)


class Stepping(pdb.Pdb):
    """A debugger somebody steps through everything with."""

    def interaction(self, *args: Any) -> None:
        self.set_step()

    def user_line(self, frame: Any) -> None:
        self.set_step()


@contextlib.contextmanager
def debugger() -> Iterator[None]:
    before = sys.gettrace()
    stepping: bdb.Bdb = Stepping(nosigint=True)
    stepping.reset()
    sys.settrace(stepping.trace_dispatch)
    try:
        yield
    finally:
        sys.settrace(before)


@contextlib.contextmanager
def monitoring() -> Iterator[None]:
    """What coverage does from 3.12 on."""
    monitor = sys.monitoring
    lines: list[int] = []
    monitor.use_tool_id(monitor.COVERAGE_ID, "a test")
    monitor.register_callback(monitor.COVERAGE_ID, monitor.events.LINE, lambda code, line: lines.append(line))
    monitor.set_events(monitor.COVERAGE_ID, monitor.events.LINE)
    try:
        yield
    finally:
        monitor.set_events(monitor.COVERAGE_ID, 0)
        monitor.free_tool_id(monitor.COVERAGE_ID)
    assert lines


TOOLS: list[Callable[[], Any]] = [settrace, settrace_of_opcodes, setprofile, profiler, line_counter, debugger]
if sys.version_info >= (3, 12):
    TOOLS.append(monitoring)


def one_graph(x: torch.Tensor, seen: list[Any]) -> torch.Tensor:
    y = (x + 1).sin()
    seen.append(len(seen))
    return y * 2


def below(x: torch.Tensor, n: int) -> torch.Tensor:
    jitpy.graph_break()
    return x if n == 0 else below(x * 2, n - 1) + 1


def with_breaks(x: torch.Tensor, seen: list[Any]) -> torch.Tensor:
    total = below(x, 1)
    for i in range(2):
        jitpy.graph_break()
        try:
            total = total + i
            if i == 1:
                raise ValueError(i)
        except ValueError as error:
            seen.append(error.args)
    return total


@pytest.mark.parametrize("program", [one_graph, with_breaks])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("tool", TOOLS)
def test_calls_under_a_tool_are_right(tool: Callable[[], Any], first: bool, program: Any) -> None:
    jitpy.reset()
    fast = jitpy.jit(program, backend="eager")

    def check() -> None:
        x, seen, wanted = torch.arange(3.0), [], []
        assert torch.equal(fast(x, seen), program(x, wanted)) and seen == wanted

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if not first:
            check()
        with tool():
            check()
            check()
        check()
        compiled = variants()
        for _ in range(3):
            check()
        with tool():
            check()
    assert compiled >= 1 and variants() == compiled, "what was compiled is used again"


# ---- methods of objects that raise where guards or tracing meet them ----------------------------------------


class Key:
    """A key of dicts whose comparison can be switched to raising."""

    raises = ""

    def __init__(self, name: str) -> None:
        self.name = name

    def __hash__(self) -> int:
        if Key.raises == "hash":
            raise ValueError("hash")
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        if Key.raises == "eq":
            raise ValueError("eq")
        return isinstance(other, Key) and self.name == other.name


@pytest.mark.parametrize("raises", ["hash", "eq"])
@pytest.mark.parametrize("native", [True, False])
def test_keys_that_raise_while_guards_look_them_up(raises: str, native: bool) -> None:
    key = Key("a")

    def body(x: torch.Tensor, table: dict[Any, float]) -> torch.Tensor:
        return x * table[key]

    def outcome(fn: Any, *args: Any) -> Any:
        try:
            return fn(*args).tolist()
        except Exception as error:
            return type(error), str(error)

    with jitpy.config.patch(native=native):
        fast = jitpy.jit(body, backend="eager")
        x = torch.ones(2)
        tables = [{key: 2.0}, {Key("a"): 3.0}, {Key("b"): 1.0, key: 4.0}, {}]
        for mode in ("", raises, ""):
            for table in tables:
                for _ in range(3):
                    try:
                        Key.raises = mode
                        found, wanted = outcome(fast, x, table), outcome(body, x, table)
                    finally:
                        Key.raises = ""
                    assert found == wanted, (mode, found, wanted)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_finalizers_that_raise(error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    """While tracing drops objects, while guards do, and in the compiled code: reported as eager reports them."""
    reported: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda info: reported.append(str(info.exc_value)))

    class Closing:
        def __init__(self, name: str) -> None:
            self.name = name

        def __del__(self) -> None:
            raise error(self.name)

    def body(x: torch.Tensor, items: list[Any], breaks: bool) -> torch.Tensor:
        items.pop()
        y = x + 1
        if breaks:
            jitpy.graph_break()
        items.clear()
        return y * 2

    fast = jitpy.jit(body, backend="eager")
    for breaks in (False, True):
        for i in range(4):
            for fn in (fast, body):
                reported.clear()
                assert fn(torch.ones(2), [Closing(f"a{i}"), Closing(f"b{i}")], breaks).tolist() == [4.0, 4.0]
                assert sorted(reported) == [f"a{i}", f"b{i}"]


def test_torch_jit_trace_sees_each_operation() -> None:
    jitpy.reset()
    fn = jitpy.jit(lambda x: (x * 2).sin() + 1)
    x = torch.randn(4)
    fn(x)
    traced = torch.jit.trace(fn, x)
    assert [node.kind() for node in traced.graph.nodes() if node.kind() != "prim::Constant"] == \
        ["aten::mul", "aten::sin", "aten::add"]
    assert torch.allclose(traced(-x), fn(-x))


@pytest.mark.parametrize("below", [False, True], ids=["itself", "a function below"])
def test_torch_compile_leaves_jitted_code_alone(below: bool) -> None:
    def part(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        jitpy.graph_break()
        return y.sin()

    jitted = jitpy.jit(part)
    compiled = torch.compile((lambda x: jitted(x) + 1) if below else jitted, backend="eager")
    for x in (torch.randn(4), torch.randn(4), torch.randn(2, 5)):
        assert torch.allclose(compiled(x), part(x) + below)
    assert torch.allclose(jitted(x), part(x))
