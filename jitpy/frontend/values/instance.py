"""Instances of classes."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any

from ..guards.source import Source
from .attribute_rules import RULES
from .base import Interpreter, Missing, Show, Value


class ObjectValue(Value):
    """An instance. `attrs` is its `__dict__` (None where the class has none), `slots` what was read from or written
    to member descriptors. `real` is the live object of an instance from outside."""

    takes_attributes = True
    __slots__ = ("attrs", "born", "cls", "dirty_slots", "real", "slots")

    def __init__(self, cls: type, source: Source | None = None, real: Any = None) -> None:
        self.source = source
        self.cls = cls
        self.real = real
        self.born = -1  # the step at which tracing made it, where that is known
        self.attrs: Any = None  # a DictValue
        self.slots: dict[Any, Value | Missing] | None = None
        self.dirty_slots: dict[Any, bool] | None = None

    def member(self, interp: Interpreter, descr: Any, owner: type) -> Value | None:
        return interp.context.read_slot(self, descr)

    def set_member(self, interp: Interpreter, descr: Any, new: Any) -> bool:
        interp.context.write_slot(self, descr, new)
        return True

    def instance_dict(self, interp: Interpreter) -> Any:
        if self.attrs is None and self.real is None and self.cls.__dictoffset__ != 0:
            self.attrs = interp.context.new_dict_of(self)
        return self.attrs

    def children(self) -> Iterable[Any]:
        return self.attrs, *(self.slots or {}).values()

    def place(self) -> Any:
        return "object", self.cls


class ModelledValue(ObjectValue):
    """An instance of a C type whose methods tracing knows from a Python class, `body` (see `polyfills/registry.py`).

    `hidden` is the state that only the methods of `body` see. `dirty` says that it has to be written back.
    """

    __slots__ = ("body", "dirty", "hidden")

    def __init__(self, cls: type, body: Any, source: Source | None = None, real: Any = None) -> None:
        super().__init__(cls, source, real)
        self.body = body
        self.hidden: dict[str, Value] = {}
        self.dirty = False

    def find_attribute(self, interp: Interpreter, name: str) -> Any:
        return self.hidden[name] if name in self.hidden and interp.in_polyfill() else NotImplemented

    def set_attribute(self, interp: Interpreter, name: str, new: Value) -> Any:
        if name not in self.body.state or not interp.in_polyfill():
            return NotImplemented
        return RULES[ModelledValue].set(interp, self, name, new)

    def deep_copied(self, interp: Interpreter, memo: dict[int, Value], copy: Callable[[Any], Value]) -> Value | None:
        if self.cls is not collections.deque:
            return None
        memo[id(self)] = made = ModelledValue(self.cls, self.body)
        made.hidden.update((name, copy(hidden)) for name, hidden in self.hidden.items())
        return made

    def children(self) -> Iterable[Any]:
        return *self.hidden.values(), *super().children()


class BoxedValue(ObjectValue):
    """An instance of a class that is derived, in Python, from `base`: int, float, complex, str or bytes. `plain` is the
    number, text or bytes of the exact type that C code sees in it (see `models/builtins/plain_parts.py`)."""

    __slots__ = ("base", "plain")

    def __init__(self, cls: type, base: type, plain: Value, source: Source | None = None, real: Any = None) -> None:
        super().__init__(cls, source, real)
        self.base, self.plain = base, plain

    def c_attribute(self, interp: Interpreter, name: str) -> Value:
        return interp.getattr_of_c(self.plain, name)  # `real` and its like

    def shown(self, interp: Interpreter, function: Any, found: Any, show: Show) -> Any:
        return show(self.plain, function)

    def children(self) -> Iterable[Any]:
        return self.plain, *super().children()
