"""Functions, closure cells, bound methods, `super`."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any

from ..guards.source import Source, attr
from .base import Interpreter, Missing, TraceContext, Value
from .dict import DictValue
from .wrapping import wraps


class CellValue(Value):
    """A closure cell. `content` is None while it was not read from the real cell."""

    __slots__ = ("content", "dirty", "real")
    cls = types.CellType

    def __init__(self, content: Value | Missing | None, source: Source | None = None, real: Any = None) -> None:
        self.source = source
        self.content = content
        self.real = real
        self.dirty = False

    def children(self) -> Iterable[Any]:
        return (self.content,)

    def place(self) -> Any:
        return "cell", None


class FunctionValue(Value):
    """A Python function: a real one (`real`), or one made while tracing.

    Where the program makes another function of the same code at each call, guards know the code only. `known` is then
    the function of this call; asking for `real` guards that it is the same one (`pin`).
    """

    __slots__ = ("annotations", "attrs", "closure", "code", "defaults", "doc", "globals", "known", "kwdefaults",
                 "module", "name", "pin", "qualname")
    cls = types.FunctionType

    def __init__(self, code: types.CodeType, globals: dict[str, Any], *, name: str, qualname: str,
                 defaults: list[Value] | None = None, kwdefaults: dict[str, Value] | None = None,
                 closure: list[CellValue] | None = None, source: Source | None = None,
                 real: types.FunctionType | None = None) -> None:
        self.source = source
        self.code = code
        self.globals = globals
        self.name = name
        self.qualname = qualname
        self.defaults = defaults
        self.kwdefaults = kwdefaults
        self.closure = closure
        self.known = real
        self.pin: Callable[[], None] | None = None
        self.annotations: Value | None = None
        self.attrs: DictValue | None = None
        self.doc: Value | None = None  # where another one was given than the code has
        self.module: str | None = None

    def children(self) -> Iterable[Any]:
        return (self.attrs, self.annotations, self.doc, *(self.closure or ()), *(self.defaults or ()),
                *(self.kwdefaults or {}).values())

    @property
    def real(self) -> types.FunctionType | None:
        self.settle()
        return self.known

    def settle(self) -> None:
        """Guard a function from outside by identity: something is read that its code does not tell."""
        if self.pin is not None:
            pin, self.pin = self.pin, None
            pin()

    def describe(self) -> str:
        return f"{self.qualname}()"

    @property
    def called(self) -> Any:
        return self.known

    def call(self, interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
        return interp.call_function(self, args, kwargs)


class MethodValue(Value):
    """A bound method of a Python function (or any callable)."""

    __slots__ = ("func", "self")
    cls = types.MethodType

    def __init__(self, func: Value, self_: Value, source: Source | None = None) -> None:
        self.source = source
        self.func = func
        self.self = self_

    def children(self) -> Iterable[Any]:
        return self.func, self.self

    def describe(self) -> str:
        return self.func.describe()

    @property
    def called(self) -> Any:
        return self.func.called

    def call(self, interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
        return self.func.call(interp, [self.self, *args], kwargs)


class BuiltinMethodValue(Value):
    """A C method descriptor bound to a value, e.g. `some_list.append`."""

    __slots__ = ("descriptor", "self")
    cls = types.BuiltinMethodType

    def __init__(self, descriptor: Any, self_: Value) -> None:
        self.source = None
        self.descriptor = descriptor
        self.self = self_

    def children(self) -> Iterable[Any]:
        return (self.self,)

    def describe(self) -> str:
        return getattr(self.descriptor, "__qualname__", repr(self.descriptor))

    @property
    def called(self) -> Any:
        return self.descriptor

    def call(self, interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
        return interp.call_object(self.descriptor, [self.self, *args], kwargs, self)


class SuperValue(Value):
    """`super(cls, obj)`; `start` is the class after which the search begins, `mro_of` the class searched."""

    __slots__ = ("mro_of", "obj", "start")
    cls = super

    def __init__(self, start: type, obj: Value, mro_of: type, source: Source | None = None) -> None:
        self.source = source
        self.start = start
        self.obj = obj
        self.mro_of = mro_of

    def children(self) -> Iterable[Any]:
        return (self.obj,)


@wraps(types.CellType, by_type=False)
def _wrap_cell(context: TraceContext, obj: types.CellType, cls: type, source: Source) -> Value:
    return CellValue(None, source, obj)


@wraps(types.MethodType)
def _wrap_method(context: TraceContext, obj: types.MethodType, cls: type, source: Source) -> Value:
    func = context.wrap(obj.__func__, attr(source, "__func__"))
    return MethodValue(func, context.wrap(obj.__self__, attr(source, "__self__")), source)


@wraps(super)
def _wrap_super(context: TraceContext, obj: Any, cls: type, source: Source) -> Value | None:
    if cls is not super or obj.__self__ is None:
        return None
    for name in ("__thisclass__", "__self_class__"):
        context.guard(attr(source, name), "id", getattr(obj, name))
    bound = context.wrap(obj.__self__, attr(source, "__self__"))
    return SuperValue(obj.__thisclass__, bound, obj.__self_class__, source)
