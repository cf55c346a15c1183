"""Exceptions, tracebacks, and what handlers leave on the stack."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable
from typing import Any

from ..guards.source import Source, attr, index
from .base import Interpreter, TraceContext, Value, unsupported
from .constant import ConstValue, const
from .instance import ObjectValue
from .tuple import TupleValue
from .wrapping import wraps


class ExceptionValue(ObjectValue):
    """An exception instance; `args` as BaseException keeps them. `step` is where it was raised first, or -1."""

    is_exception = True
    __slots__ = ("args", "cause", "context", "members", "step", "suppress_context")

    def __init__(self, cls: type, args: list[Value], source: Source | None = None, real: Any = None) -> None:
        super().__init__(cls, source, real)
        self.args = args
        self.cause: Value | None = None
        self.context: Value | None = None
        self.suppress_context = False
        self.members: dict[str, Value] = {}  # attributes that the C class keeps outside `args`
        self.step = -1

    def children(self) -> Iterable[Any]:
        return *self.args, self.cause, self.context, *self.members.values(), *super().children()

    def tell_lookup(self, value: Value, name: str) -> bool:
        """Tell an AttributeError what was looked up when it was raised; whether it did not know yet."""
        plain = issubclass(self.cls, AttributeError) and self.cls.name is AttributeError.name and \
            self.cls.obj is AttributeError.obj
        told = plain and not self.members.keys() & {"name", "obj"}
        if told:
            self.members = {**self.members, "name": ConstValue(name), "obj": value}
        return told

    def member(self, interp: Interpreter, descr: Any, owner: type) -> Value | None:
        if descr.__objclass__.__flags__ & _HEAP_TYPE:
            return super().member(interp, descr, owner)
        return interp.getattr_of_c(self, descr.__name__)  # state of a class in C

    def set_member(self, interp: Interpreter, descr: Any, new: Any) -> bool:
        return bool(descr.__objclass__.__flags__ & _HEAP_TYPE) and super().set_member(interp, descr, new)

    def c_attribute(self, interp: Interpreter, name: str) -> Value:
        if name in self.members:
            return self.members[name]
        if name == "args":
            return TupleValue(list(self.args))
        if name == "__cause__" and self.cause is not None:
            return self.cause
        if name == "__context__" and self.context is not None:
            return self.context
        if self.real is not None and self.source is not None and not (name == "__traceback__" and self.step >= 0):
            return interp.context.wrap(getattr(self.real, name), attr(self.source, name))
        if name in ("__cause__", "__context__"):
            return const(None)
        if name == "__traceback__":
            return TracebackValue(self.step) if self.step >= 0 else const(None)
        if name == "__suppress_context__":
            return const(self.suppress_context)
        if name == "value" and issubclass(self.cls, StopIteration):
            return self.args[0] if self.args else const(None)
        if name in state_names(self.cls):
            return const(None)
        raise unsupported(self, f".{name}")

    def set_c_attribute(self, interp: Interpreter, name: str, new: Any) -> bool:
        if self.source is not None:
            return False
        if name in state_names(self.cls) and not issubclass(self.cls, UnicodeError):  # these take some types only
            self.members = {**self.members, name: new}
        elif name == "__cause__":
            self.cause, self.suppress_context = new, True
        elif name == "__context__":
            self.context = new
        elif name == "__suppress_context__" and new.is_constant:
            if type(new.literal) is not bool:
                raise interp.throw(TypeError, "attribute value type must be bool")
            self.suppress_context = new.literal
        elif name == "__traceback__" and isinstance(new, TracebackValue):
            self.step = new.step if self.step < 0 else self.step
        elif name == "args" and new.base is tuple:
            if issubclass(self.cls, StopIteration):
                self.members = {"value": self.c_attribute(interp, "value"), **self.members}
            self.args = new.forced(interp)
        else:  # a traceback that is not there is taken away
            return name == "__traceback__" and new.literal is None and self.step == -1
        return True


class TracebackValue(Value):
    """The traceback of an exception raised while tracing, in step `step`: it exists, and any look into it breaks the
    graph."""

    __slots__ = ("step",)
    cls = types.TracebackType

    def __init__(self, step: int) -> None:
        self.source = None
        self.step = step

    def is_same(self, interp: Interpreter, other: Value) -> bool | None:
        if isinstance(other, TracebackValue):
            raise unsupported(self, "is")  # every frame that an exception leaves puts another one in front
        return None


class ExcInfoValue(Value):
    """The entry that PUSH_EXC_INFO leaves on the stack: `previous` was handled before `current` (None: nothing was)."""

    __slots__ = ("current", "previous")

    def __init__(self, previous: Value | None, current: Value) -> None:
        self.source = None
        self.previous = previous
        self.current = current

    parts = ("previous", "current")


@wraps(BaseException)
def _wrap(context: TraceContext, obj: BaseException, cls: type, source: Source) -> Value:
    value = ExceptionValue(cls, [], source, obj)
    value.args = [context.wrap(a, index(attr(source, "args"), i)) for i, a in enumerate(obj.args)]
    return context.with_attrs(value, obj)


@functools.cache
def base_in_c(cls: type) -> Any:
    """The class in C that an exception class derives from."""
    return next(base for base in cls.__mro__ if not base.__flags__ & _HEAP_TYPE)


_HEAP_TYPE = 1 << 9


@functools.cache
def descriptors_of(base: type) -> dict[str, Any]:
    """The descriptors of what exceptions of a class in C hold besides what all exceptions do."""
    own = [one for one in base.__mro__ if issubclass(one, BaseException) and one not in _PLAIN]
    return {name: found for one in own for name, found in vars(one).items()
            if type(found) in (types.MemberDescriptorType, types.GetSetDescriptorType) and not name.startswith("__")
            and name != "characters_written"}


#: those that hold nothing, and groups, which tracing does not make
_PLAIN = (BaseException, BaseExceptionGroup, ExceptionGroup)


def state_names(cls: type) -> dict[str, Any]:
    return descriptors_of(base_in_c(cls))
