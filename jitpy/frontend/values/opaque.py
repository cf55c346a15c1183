"""Objects that are known by their identity."""

from __future__ import annotations

import enum
import re
import types
from typing import Any

import torch

from ..guards.source import Source, constant, instance_dict
from .array import is_number
from .attribute_rules import rule_of
from .base import Interpreter, Show, TraceContext, Value, unsupported
from .wrapping import wraps

#: C types whose instances do not change, and others of which derived classes may
_IMMUTABLE = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
              types.GetSetDescriptorType, property, staticmethod, classmethod)
_OF_CONSTANTS = frozenset((torch.finfo, torch.iinfo, types.UnionType, types.GenericAlias))


class PyValue(Value):
    """A real object whose identity is all that is known: a class, module, C function, or something opaque.

    `pinned` says that a guard (or a constant of the code) already fixes which object it is.
    """

    __slots__ = ("obj", "pinned")

    def __init__(self, obj: Any, source: Source | None = None, pinned: bool = True) -> None:
        self.source = source
        self.obj = obj
        self.pinned = pinned

    @property
    def cls(self) -> type:  # type: ignore[override]
        return type(self.obj)

    def describe(self) -> str:
        name = getattr(self.obj, "__qualname__", None) or getattr(self.obj, "__name__", None) or type(self.obj).__name__
        module = getattr(self.obj, "__module__", None)
        return f"{module}.{name}" if isinstance(module, str) else str(name)

    @property
    def is_atomic(self) -> bool:  # type: ignore[override]
        return isinstance(self.obj, (type, enum.Enum, types.BuiltinFunctionType))

    def formatted(self, interp: Interpreter) -> Any:
        if is_number(self.obj):
            return interp.context.pin(self)
        if not isinstance(self.obj, (type, enum.Enum)):
            raise unsupported(self, "formatting")
        return interp.constant_of(self)

    def shown(self, interp: Interpreter, function: Any, found: Any, show: Show) -> Any:
        return self.shown_as_constant(interp, function)

    @property
    def called(self) -> Any:
        return self.obj

    def find_attribute(self, interp: Interpreter, name: str) -> Any:
        return rule_of(type(self.obj)).get(interp, self, name)

    def set_attribute(self, interp: Interpreter, name: str, new: Value) -> Any:
        return rule_of(type(self.obj)).set(interp, self, name, new)

    def del_attribute(self, interp: Interpreter, name: str) -> Any:
        return rule_of(type(self.obj)).delete(interp, self, name)

    def missing_attribute(self, interp: Interpreter, name: str) -> Any:
        if self.cls.__dictoffset__ or self.cls.__getattribute__ is not object.__getattribute__:
            raise unsupported(self, f".{name}")  # a C type may have other ways to find attributes
        return super().missing_attribute(interp, name)

    def title(self) -> str:
        if isinstance(self.obj, types.ModuleType):
            return f"module {self.obj.__name__!r}"
        return f"type object {self.obj.__name__!r}" if isinstance(self.obj, type) else super().title()

    def instance_dict(self, interp: Interpreter) -> Any:
        if isinstance(self.obj, enum.Enum):
            member = interp.context.pin(self)
            return interp.context.wrap(member.__dict__, instance_dict(constant(member, str(member))))
        if isinstance(self.obj, torch.Tensor) and self.source is not None:
            return interp.context.attributes_of(self.obj, self.source)
        return None

    def c_attribute(self, interp: Interpreter, name: str) -> Value:
        """An attribute of an opaque C object: read now where the object is known by identity and cannot change."""
        if isinstance(self.obj, _IMMUTABLE) or type(self.obj) in _OF_CONSTANTS or \
                type(self.obj) in (re.Pattern, re.Match) and name != "groupindex":
            return interp.context.const_object(getattr(interp.context.pin(self), name))
        raise unsupported(self, f".{name}")

    def call(self, interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
        return interp.call_object(interp.context.pin(self), args, kwargs, self)


class UnreadTuple(PyValue):
    """A tuple from outside that had another length at each call: whatever looks at it breaks the graph."""

    __slots__ = ()

    def __init__(self, obj: tuple[Any, ...], source: Source) -> None:
        super().__init__(obj, source, pinned=False)

    def describe(self) -> str:
        return f"tuple {self.source}"


@wraps(type, types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
       types.GetSetDescriptorType, types.MemberDescriptorType, enum.Enum, by_type=False)
def wrap_by_identity(context: TraceContext, obj: Any, cls: type, source: Source) -> PyValue:
    """An object that is told apart by identity only."""
    context.guard(source, "id", obj)
    return PyValue(obj, source)


@wraps(types.ModuleType, staticmethod, classmethod, property, by_type=False)
def _wrap_made_anew(context: TraceContext, obj: Any, cls: type, source: Source) -> PyValue:
    """One of those that a call may make."""
    if not context.comes_anew(obj, source):
        return wrap_by_identity(context, obj, cls, source)
    context.guard(source, "type", cls)
    return PyValue(obj, source, pinned=False)
