"""Frames that are executed symbolically, and the exceptions of the traced program."""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..breaks import Signal
from ..bytecode.code import CodeView, Ins, view_of
from ..bytecode.resume_codes import origin_code
from ..guards.source import module_path
from ..values import (
    CellValue,
    DictValue,
    ExceptionValue,
    FunctionValue,
    GeneratorValue,
    Interpreter,
    TraceContext,
    Value,
    is_subtype,
)

#: returned by `call` when a frame was pushed: the result will appear on the caller's stack
PUSHED: Any = object()


class TracedException(Signal):
    """An exception inside the traced program."""

    def __init__(self, value: ExceptionValue) -> None:
        super().__init__(value.cls)
        self.value = value


class Share:
    """The part of a trace that the calls of one function took, with all that they called."""

    __slots__ = ("at_break", "calls", "code", "instructions", "nodes")

    def __init__(self, code: types.CodeType) -> None:
        self.code = weakref.ref(code)
        self.calls = self.instructions = self.nodes = 0
        #: how many of the frames that the trace ended in are its own, or below
        self.at_break = 0

    def add(self, instructions: int, nodes: int) -> None:
        self.calls += 1
        self.instructions += instructions
        self.nodes += nodes


class Frame:
    """A frame being executed symbolically."""

    #: how the running version lays out the stack: NULL above the callable (3.13) or below it
    kw_null_last = sys.version_info >= (3, 13)
    #: an exhausted FOR_ITER jumps over END_FOR and pops the iterator itself (3.12)
    for_pops_two = (3, 12) <= sys.version_info < (3, 13)
    #: SEND leaves the receiver on the stack when it ends, for END_SEND to remove (3.12)
    send_keeps_receiver = sys.version_info >= (3, 12)

    __slots__ = ("_module", "cells", "code", "entered", "finish", "func", "generator", "globals", "instructions", "ip",
                 "kw_names", "locals", "lookup", "nodes", "ran", "resumable", "stack", "view")

    def __init__(self, func: FunctionValue | None, code: types.CodeType, globals: DictValue) -> None:
        self.func = func
        self.code = code
        self.view: CodeView = view_of(code)
        self.instructions = self.view.instructions
        self.globals = globals
        self.locals: dict[str, Value] = {}
        self.cells: dict[str, CellValue] = {}
        self.stack: list[Value] = []
        self.ip = 0
        #: how many instructions were traced in it
        self.ran = 0
        self.kw_names: tuple[str, ...] = ()
        self.generator: GeneratorValue | None = None
        #: what to do with the returned value instead of pushing it on the caller's stack
        self.finish: Callable[[Interpreter, Value], None] | None = None
        self.resumable = True
        #: the step at which the call was made, for breaking there instead
        self.entered = 0
        self.nodes = 0  # of the graph, then
        #: the attribute that the call looks up: the object, and its name
        self.lookup: tuple[Value, str] | None = None
        self._module: str | None = None

    def children(self) -> Iterable[Any]:
        """The Values that it holds, as `Value.children`."""
        return (*self.stack, *self.locals.values(), *self.cells.values(), self.func, self.globals, self.generator)

    @property
    def current(self) -> Ins:
        """The instruction being executed."""
        return self.instructions[self.ip - 1]

    def push(self, value: Value) -> None:
        self.stack.append(value)

    def pop(self) -> Value:
        return self.stack.pop()

    def popn(self, n: int) -> list[Value]:
        if not n:
            return []
        values = self.stack[-n:]
        del self.stack[-n:]
        return values

    def is_handling(self) -> bool:
        """Whether it is inside an `except` or `finally` that handles an exception."""
        return any(value.current is not None for value in self.stack)

    def module(self) -> str:
        """The nn.Module whose method runs, for reports: its class and its path. "" where it is none."""
        if self._module is None:
            owner = self.code.co_qualname.rpartition(".")[0]
            is_method = owner != "" and not owner.endswith("<locals>") and self.code.co_argcount > 0
            name = self.code.co_varnames[0] if is_method else ""
            held: Any = self.cells[name].content if name in self.cells else self.locals.get(name)
            is_module = is_subtype(getattr(held, "cls", object), torch.nn.Module)
            path = module_path(held.source) if is_module and held.source is not None else ""
            self._module = f"{held.cls.__name__} {path}".rstrip() if is_module else ""
        return self._module

    def line(self) -> int:
        ins = self.instructions[max(self.ip - 1, 0)]
        return ins.line or self.code.co_firstlineno


def first_argument(frame: Frame, context: TraceContext) -> Value | None:
    """The object that `super()` without arguments finds in a frame; None where it is not used."""
    code = origin_code(frame.code)
    if "__class__" not in code.co_freevars or not code.co_varnames:
        return None
    name = code.co_varnames[0]
    found = frame.locals.get(name)
    if found is None and name in frame.cells:
        content = context.cell_content(frame.cells[name])
        found = content if isinstance(content, Value) else None
    return found or frame.locals.get("___first")
