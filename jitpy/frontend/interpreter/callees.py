"""The tables of callables that tracing has models of: `handler(interp, args, kwargs)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..values import FunctionValue, Interpreter, Value

#: C callables (functions, types, method descriptors) modelled in Python: `handler(interp, args, kwargs)`
BUILTINS: dict[Any, Callable[[Interpreter, list[Value], dict[str, Value]], Any]] = {}
#: code (by identity) of closures that the library makes -> their model: `handler(interp, fn, args, kwargs)`
CODE_MODELS: dict[int, Callable[[Interpreter, FunctionValue, list[Value], dict[str, Value]], Any]] = {}


#: kinds of Values with a call of their own: `handler(interp, fn, args, kwargs)`
CALLS_OF: dict[type, Callable[[Interpreter, Any, list[Value], dict[str, Value]], Any]] = {}
#: code objects (by identity) of functions that library functions return, with what calling them does
WRAPPED: dict[int, Callable[[Interpreter, FunctionValue, list[Value], dict[str, Value]], Any]] = {}


def calls_of(kind: type) -> Callable[[Any], Any]:
    """Register what calling Values of one kind does."""

    def register(handler: Any) -> Any:
        CALLS_OF[kind] = handler
        return handler

    return register


def builtin(*objects: Any) -> Callable[[Any], Any]:
    """Register the model of C callables."""

    def register(handler: Any) -> Any:
        for obj in objects:
            BUILTINS[obj] = handler
        return handler

    return register
