"""Instances of classes."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..breaks import GraphBreak
from ..guards.source import Source
from .attribute_rules import RULES
from .base import Interpreter, Missing, Show, Value, unsupported


class ObjectValue(Value):
    """An instance. `attrs` is its `__dict__` (None where the class has none), `slots` what was read from or written
    to member descriptors. `real` is the live object of an instance from outside."""

    takes_attributes = True
    is_instance = True
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

    def is_object(self, obj: Any) -> bool:
        return self.real is obj

    def instance_dict(self, interp: Interpreter) -> Any:
        if self.attrs is None and self.real is None and self.cls.__dictoffset__ != 0:
            self.attrs = interp.context.new_dict_of(self)
        return self.attrs

    def children(self) -> Iterable[Any]:
        return self.attrs, *(self.slots or {}).values()

    def place(self) -> Any:
        return "object", self.cls

    def asks_class(self, interp: Interpreter, *names: str) -> bool:
        return True

    def keeps(self, interp: Interpreter, base: type, *names: str) -> bool:
        """Whether the class leaves special methods to a builtin base."""
        return all(interp.context.class_lookup(self.cls, name) is getattr(base, name) for name in names)

    def is_compared_by_tensor(self, symbol: str) -> bool | None:
        raise GraphBreak("unsupported_op", f"Tensor {symbol} {self.cls.__name__}")

    def tensor_operand(self, interp: Interpreter) -> Value | None:
        return None

    def truth(self, interp: Interpreter) -> Any:
        if interp.context.has_slot(self.cls, "__bool__"):
            raise unsupported(self, "truth")
        return not interp.context.has_slot(self.cls, "__len__") or interp.truth_or_number(interp.length(self))

    def key(self, interp: Interpreter) -> Any:
        return interp.instance_key(self)

    def payload(self, interp: Interpreter) -> Any:
        if isinstance(self.real, torch.Generator):
            raise GraphBreak("rng_state", "a torch.Generator")
        return super().payload(interp)

    def constant(self, interp: Interpreter) -> Any:
        # forms such as `Optional[int]` do not change
        form = interp.context.pin_instance(self) if self.cls.__module__ == "typing" else None
        return super().constant(interp) if form is None else form


class ModelledValue(ObjectValue):
    """An instance of a C type whose methods tracing knows from a Python class, `body` (see `polyfills/registry.py`).

    `hidden` is the state that only the methods of `body` see. `dirty` says that it has to be written back.
    """

    is_modelled = True
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
    is_boxed = True

    def __init__(self, cls: type, base: type, plain: Value, source: Source | None = None, real: Any = None) -> None:
        super().__init__(cls, source, real)
        self.base, self.plain = base, plain

    def c_attribute(self, interp: Interpreter, name: str) -> Value:
        return interp.getattr_of_c(self.plain, name)  # `real` and its like

    def shown(self, interp: Interpreter, function: Any, found: Any, show: Show) -> Any:
        return show(self.plain, function)

    def children(self) -> Iterable[Any]:
        return self.plain, *super().children()

    def whole_plain_part(self, interp: Interpreter) -> Value:
        return self.plain

    answers_operator = Value.answers_by_c

    def transparent_part(self, interp: Interpreter) -> Value:
        """The plain part, where the class has no special method of its own at all: no C code can tell the two apart by
        what it computes. Else itself."""
        return interp.plain_part(self, *(name for name, method in vars(self.base).items() if name.startswith("__") and
                                         isinstance(method, _C_METHODS) and name not in _ASIDE))

    def truth(self, interp: Interpreter) -> Any:
        if interp.context.has_slot(self.cls, "__bool__") or interp.context.has_slot(self.cls, "__len__"):
            return interp.truth_or_number(self.plain)
        return True

    def key(self, interp: Interpreter) -> Any:
        plain = interp.plain_part(self, "__hash__", "__eq__")
        return super().key(interp) if plain is self else plain.key(interp)

    def payload(self, interp: Interpreter) -> Any:
        interp.no_torch_function(self)
        return self.plain.payload(interp)

    def constant(self, interp: Interpreter) -> Any:
        plain = self.transparent_part(interp)
        return super().constant(interp) if plain is self else plain.constant(interp)

    def folded(self, interp: Interpreter) -> Any:
        plain = self.transparent_part(interp)
        return super().folded(interp) if plain is self else plain.folded(interp)


_C_METHODS = (types.WrapperDescriptorType, types.MethodDescriptorType)
#: special methods of builtin types that say nothing about what C code does with the plain part
_ASIDE = frozenset({"__new__", "__init__", "__doc__", "__getattribute__", "__getnewargs__", "__sizeof__"})
