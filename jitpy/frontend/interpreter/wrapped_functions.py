"""Functions and bound C methods from outside: their Values, their defaults, and what of them is guarded."""

from __future__ import annotations

import types
import weakref
from typing import Any

from ..guards.source import ConstSource, Source, attr, index
from ..values import (
    BuiltinMethodValue,
    FunctionValue,
    Interpreter,
    PyValue,
    TraceContext,
    Value,
)
from ..values.opaque import wrap_by_identity
from ..values.wrapping import wraps


@wraps(types.FunctionType, by_type=False)
def _wrap_function(context: TraceContext, obj: types.FunctionType, cls: type, source: Source) -> FunctionValue:
    by_code = not isinstance(source, ConstSource) and context.history.function_is_made_anew(source.key(), obj)
    if by_code:
        context.guard(source, "type", types.FunctionType)
        context.guard(attr(source, "__code__"), "id", obj.__code__)
        context.guard(attr(source, "__globals__"), "id", obj.__globals__)
    else:
        context.guard(source, "id", obj)
    closure = None
    if obj.__closure__:
        base = attr(source, "__closure__")
        closure = [context.wrap(c, index(base, i)) for i, c in enumerate(obj.__closure__)]
    value = FunctionValue(obj.__code__, obj.__globals__, name=obj.__name__, qualname=obj.__qualname__,
                          closure=closure, source=source, real=obj)  # type: ignore[arg-type]
    value.module = obj.__module__
    if by_code:
        weakly = weakref.proxy(context)
        value.pin = lambda: weakly.guard(source, "id", obj)
    return value


@wraps(types.BuiltinFunctionType, by_type=False)
def _wrap_builtin(context: TraceContext, obj: Any, cls: type, source: Source) -> Value:
    """A C function, or a bound method of an instance."""
    if not _is_bound_to_instance(obj):
        return wrap_by_identity(context, obj, cls, source)
    owner = obj.__self__
    descriptor = getattr(type(owner), obj.__name__, None)
    if not isinstance(descriptor, types.MethodDescriptorType):
        context.guard(source, "id", obj)
        return PyValue(obj, source)
    context.guard(source, "type", type(obj))
    context.guard(attr(source, "__name__"), "eq", obj.__name__)
    return BuiltinMethodValue(descriptor, context.wrap(owner, attr(source, "__self__")))


def closed_over(interp: Interpreter, fn: FunctionValue, variable: str) -> Value:
    """The content of a function's closure under the name of one of its free variables."""
    assert fn.closure is not None
    return interp.context.cell_content(interp.context.force(fn.closure[fn.code.co_freevars.index(variable)]))


def _is_bound_to_instance(obj: Any) -> bool:
    """Whether a C function is a method of an instance, and not a function of a module's or a class method."""
    owner = getattr(obj, "__self__", None)
    return owner is not None and not isinstance(owner, (types.ModuleType, type)) and not _is_torch_namespace(owner)


def _is_torch_namespace(owner: Any) -> bool:
    return type(owner).__module__ in ("torch._C", "builtins") and type(owner).__name__.startswith(("PyCapsule", "_"))
