"""Objects that are known by their identity."""

from __future__ import annotations

import enum
import operator
import re
import types
from collections.abc import Callable
from typing import Any

import torch

from ..breaks import GraphBreak
from ..guards.source import Source, constant, instance_dict
from .attribute_rules import rule_of
from .base import Interpreter, Show, TraceContext, Value, unsupported
from .constant import ConstValue, const
from .operator_tables import BINARY, COMPARE, SYMBOLS
from .real_objects import (
    ASKED,
    BOXED_READERS,
    DATE_TYPES,
    PLAIN_TYPES,
    base_of,
    is_array,
    is_compared_by_c,
    is_number,
    method_of_program,
)
from .wrapping import wraps

#: C types whose instances do not change, and others of which derived classes may
_IMMUTABLE = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
              types.GetSetDescriptorType, property, staticmethod, classmethod)
_OF_CONSTANTS = frozenset((torch.finfo, torch.iinfo, types.UnionType, types.GenericAlias, *DATE_TYPES))


class PyValue(Value):
    """A real object whose identity is all that is known: a class, module, C function, or something opaque.

    `pinned` says that a guard (or a constant of the code) already fixes which object it is.
    """

    __slots__ = ("obj", "pinned")
    may_be_buffer = True
    is_known_object = True
    answers_comparisons = True

    def __init__(self, obj: Any, source: Source | None = None, pinned: bool = True) -> None:
        self.source = source
        self.obj = obj
        self.pinned = pinned

    @property
    def cls(self) -> type:  # type: ignore[override]
        return type(self.obj)

    def pinned_object(self, context: TraceContext) -> Any:
        """The real object, from now on guarded."""
        if not self.pinned:
            self.pinned = True
            self.guard_object(context)
        return self.obj

    def guard_object(self, context: TraceContext) -> None:
        """Guard which object it is."""
        if self.source is not None and context.comes_anew(self.obj, self.source) and context.breakable:
            raise GraphBreak("changing_value", f"{self.source}, which is another object at each call")
        context.guard(self.source, "id", self.obj)

    def describe(self) -> str:
        name = getattr(self.obj, "__qualname__", None) or getattr(self.obj, "__name__", None) or type(self.obj).__name__
        module = getattr(self.obj, "__module__", None)
        return f"{module}.{name}" if isinstance(module, str) else str(name)

    def name_of_call(self) -> str:
        if not hasattr(self.obj, "__qualname__"):
            return super().name_of_call()
        module, name = getattr(self.obj, "__module__", None), f"{self.obj.__qualname__}()"
        return name if module in (None, "builtins") else f"{module}.{name}"

    def is_object(self, obj: Any) -> bool:
        return True

    @property
    def is_atomic(self) -> bool:  # type: ignore[override]
        return isinstance(self.obj, (type, enum.Enum, types.BuiltinFunctionType))

    def formatted(self, interp: Interpreter) -> Any:
        if is_number(self.obj):
            return interp.context.pin(self)
        if not self._is_form() and not isinstance(self.obj, enum.Enum):
            raise unsupported(self, "formatting")
        return self.constant(interp)

    def _is_form(self) -> bool:
        """Whether this is a class, or what stands for classes in annotations."""
        return isinstance(self.obj, (type, types.GenericAlias, types.UnionType)) or self.cls.__module__ == "typing"

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
        cls: Any = self.cls
        if cls.__dictoffset__ or cls.__getattribute__ is not object.__getattribute__:
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

    def asks_class(self, interp: Interpreter, *names: str) -> bool:
        return method_of_program(interp.context, self, *names) is not None

    def truth(self, interp: Interpreter) -> bool:
        if not hasattr(self.cls, "__bool__") and not hasattr(self.cls, "__len__"):
            return True
        if isinstance(self.obj, (type, enum.Enum, str)):
            return bool(interp.context.pin(self))
        raise unsupported(self, "truth")

    def key(self, interp: Interpreter) -> Any:
        obj = interp.context.pin(self)
        if not is_compared_by_c(obj) and type(obj) not in (torch.Tensor, torch.nn.Parameter):
            raise unsupported(self, "hash()")
        return obj  # tensors of the kinds that are not captured: found by identity, as others are

    def payload(self, interp: Interpreter) -> Any:
        if isinstance(self.obj, torch.Tensor):
            raise GraphBreak("unsupported_tensor", type(self.obj).__name__)
        if is_array(self.obj):
            raise GraphBreak("unsupported_value", f"a numpy {type(self.obj).__name__} in a torch operation")
        interp.no_torch_function(self)
        return interp.context.pin(self)

    def tensor_operand(self, interp: Interpreter) -> Value | None:
        return None

    def combine(self, interp: Interpreter, name: str, other: Value, inplace: bool) -> Any:
        are_dates = type(self.obj) in DATE_TYPES and other.cls in (*DATE_TYPES, int, float)
        if name != "OR" and not are_dates or not isinstance(other, (PyValue, ConstValue)):
            return None
        right = other.value if isinstance(other, ConstValue) else interp.context.pin(other)
        if are_dates:
            return interp.fold(BINARY[name][0], interp.context.pin(self), right)
        if not isinstance(self.obj, (type, types.UnionType, types.GenericAlias)):
            return None
        return interp.fold(operator.or_, interp.context.pin(self), right)

    def check_beside(self, left: Value, name: str) -> None:
        if isinstance(self.obj, torch.Tensor):
            raise unsupported(left, f"operator {SYMBOLS[name]}")

    def is_compared_by_tensor(self, symbol: str) -> bool | None:
        if isinstance(self.obj, _NEVER_TENSORS):
            return False
        raise unsupported(self, f"{symbol} with a tensor")

    def compare(self, interp: Interpreter, symbol: str, other: Value, swapped: bool) -> Any:
        return compare_objects(interp, symbol, *((other, self) if swapped else (self, other)))

    def real_object(self, interp: Interpreter) -> Any:
        return interp.context.pin(self)

    def is_same(self, interp: Interpreter, other: Value) -> bool | None:
        return is_same_object(interp, self, other)

    def check_comparable(self, symbol: str) -> None:
        if not is_compared_by_c(self.obj):
            raise unsupported(self, symbol)

    def getitem(self, interp: Interpreter, key: Value) -> Any:
        if isinstance(self.obj, type):
            return self._class_getitem(interp, key)
        if type(self.obj) is re.Match:
            return interp.fold(operator.getitem, interp.context.pin(self), key.subscript(interp))
        return super().getitem(interp, key)

    def _class_getitem(self, interp: Interpreter, key: Value) -> Any:
        context, cls = interp.context, interp.context.pin(self)
        if isinstance(cls, enum.EnumMeta):
            return context.const_object(interp.fold(lambda k: cls[k], key.constant(interp)).obj)  # type: ignore[attr-defined]
        of_meta = context.class_lookup(type(cls), "__getitem__")
        if isinstance(of_meta, types.FunctionType):
            return interp.call(context.const_object(of_meta), [self, key], {})
        hook = context.class_lookup(cls, "__class_getitem__")
        if isinstance(hook, classmethod) and isinstance(hook.__func__, types.FunctionType) and \
                hook.__func__.__module__ != "typing":
            return interp.call(context.const_object(hook.__func__), [self, key], {})
        try:
            return context.const_object(cls[key.constant(interp)])
        except TypeError as error:
            raise interp.raise_real(error) from None

    def contains(self, interp: Interpreter, item: Value) -> Value | None:
        if isinstance(self.obj, enum.EnumMeta):
            return interp.fold(operator.contains, interp.context.pin(self), item.constant(interp))
        if isinstance(item, (ConstValue, PyValue)):
            raise unsupported(self, "in")
        return None

    def constant(self, interp: Interpreter) -> Any:
        if (self._is_form() or isinstance(self.obj, (enum.Enum, types.ModuleType))) and \
                not self.asks_class(interp, *ASKED):
            return interp.context.pin(self)
        return super().constant(interp)

    def folded(self, interp: Interpreter) -> Any:
        if (isinstance(self.obj, (re.Pattern, re.Match, enum.Enum, type, str)) or type(self.obj) in DATE_TYPES) and \
                not self.asks_class(interp, *ASKED):
            return interp.context.pin(self)
        return super().folded(interp)

    def numpy_fake(self, interp: Interpreter, fake: Callable[[Any], Any]) -> Any:
        return interp.context.pin(self) if isinstance(self.obj, type) else super().numpy_fake(interp, fake)


PyValue.opaque = PyValue.obj  # type: ignore[misc]  # the slot itself: faster than a property


#: opaque objects that no tensor is equal to
_NEVER_TENSORS = (type, types.ModuleType, types.BuiltinFunctionType, enum.Enum)


def compare_objects(interp: Interpreter, symbol: str, a: Value, b: Value) -> Value | None:
    """Classes, modules, functions, enum members, constants: by identity, unless their class defines more."""
    if not (a.is_known_object and b.is_known_object):
        return None
    x, y = a.real_object(interp), b.real_object(interp)
    return interp.fold(COMPARE[symbol][0], x, y) if is_compared_by_c(x) and is_compared_by_c(y) else None


def is_same_object(interp: Interpreter, a: Value, b: Value) -> bool | None:
    """`a is b` of functions and opaque objects."""
    if not b.is_known_object or isinstance(b, ConstValue):
        return None
    return a.real_object(interp) is b.real_object(interp)


class EnumMemberValue(PyValue):
    """A member of an enumeration."""

    __slots__ = ()

    @property
    def is_boxed(self) -> bool:  # type: ignore[override]
        return isinstance(self.obj, PLAIN_TYPES)

    def arithmetic(self, interp: Interpreter, name: str, other: Value, inplace: bool) -> Any:
        """An operator of flags' members, which are pure."""
        if not isinstance(other, PyValue) or not isinstance(self.obj, enum.Flag) or \
                any(value.asks_class(interp, *BINARY[name][1:]) for value in (self, other)):
            return None
        return interp.fold(BINARY[name][0], interp.context.pin(self), interp.context.pin(other))

    def answers_operator(self, interp: Interpreter, name: str, method: str, found: Any, other: Value) -> bool:
        answers = self.answers_by_c if self.is_boxed else super().answers_operator
        return answers(interp, name, method, found, other)

    def whole_plain_part(self, interp: Interpreter) -> Value:
        base = base_of(self.cls)
        return self if base is None else const(BOXED_READERS[base].__get__(interp.context.pin(self)))


class UnreadTuple(PyValue):
    """A tuple from outside that had another length at each call: whatever looks at it breaks the graph."""

    __slots__ = ()

    def __init__(self, obj: tuple[Any, ...], source: Source) -> None:
        super().__init__(obj, source, pinned=False)

    def pinned_object(self, context: TraceContext) -> Any:
        raise GraphBreak("changing_value", f"{self.source}, which has another length at each call")

    def describe(self) -> str:
        return f"tuple {self.source}"

    def as_known(self, interp: Interpreter) -> Value:
        return interp.context.pin(self)


@wraps(type, types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
       types.GetSetDescriptorType, types.MemberDescriptorType, enum.Enum, by_type=False)
def wrap_by_identity(context: TraceContext, obj: Any, cls: type, source: Source) -> PyValue:
    """An object that is told apart by identity only."""
    context.guard(source, "id", obj)
    return EnumMemberValue(obj, source) if issubclass(cls, enum.Enum) else PyValue(obj, source)


@wraps(types.ModuleType, staticmethod, classmethod, property, by_type=False)
def _wrap_made_anew(context: TraceContext, obj: Any, cls: type, source: Source) -> PyValue:
    """One of those that a call may make."""
    if not context.comes_anew(obj, source):
        return wrap_by_identity(context, obj, cls, source)  # type: ignore[return-value]
    context.guard(source, "type", cls)
    return PyValue(obj, source, pinned=False)
