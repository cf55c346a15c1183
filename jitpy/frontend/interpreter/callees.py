"""The callee table: which model answers for a callable.

A `Family` is a set of callables that are answered alike; `ORDER` says which family is asked first. `lookup` gives the
model of a callable. To model one more C function, add a row: `@builtin(math.gcd)`.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..breaks import GraphBreak
from ..values import FunctionValue, Interpreter, Value

Args = list[Value]
Kwargs = dict[str, Value]
#: `handler(interp, args, kwargs)` of a callable, `handler(interp, fn, args, kwargs)` of what a library function made
Handler = Callable[[Interpreter, Args, Kwargs], Any]
CodeHandler = Callable[[Interpreter, FunctionValue, Args, Kwargs], Any]

#: The order in which families are asked. Each stands for exact objects, for code, or for a class of callables.
ORDER = (
    # the very object: what the program says of it
    "jitted",
    "disabled",
    "substituted",
    "constant result",
    # the very object: what it does
    "number of numpy's",
    "model",
    "torch state",
    "constant",
    "modelled type",
    "body",
    "operator",
    "torch operation",
    "allowed",
    "allowed in graphs",
    # the code of a Python function: closures that libraries make, and what runs as plain Python
    "made by a library",
    "wrapped for the compiler",
    "skipped",
    # its module
    "skipped module",
    # the class of the callable
    "slot",
    "__call__",
    "class",
    # modules that a program may import late
    "late",
)

#: Python's kinds of callables, which families may be for
FUNCTION, CLASS, METHOD, OBJECT = "function", "class", "C function", "object"
_C_TYPES = frozenset((types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
                      types.ClassMethodDescriptorType))
_BUILTIN_TYPES = _C_TYPES | {types.FunctionType, type}


@dataclass(eq=False)
class Family:
    """Callables that are answered alike. `find` gives what is known of one, or None; `call(interp, fn, obj, found,
    args, kwargs)` its result, or NotImplemented where the next family is to answer. `is_exact`: the object is looked up
    by its hash, and guarded by identity before it is called."""

    name: str
    find: Callable[[Any], Any]
    call: Callable[[Interpreter, Any, Any, Any, Args, Kwargs], Any]
    kinds: tuple[str, ...]
    is_exact: bool = True


class Model(NamedTuple):
    """The family that answers for a callable, and what that knows of it."""

    family: Family
    found: Any


_families: dict[str, Family] = {}
#: the families that may answer for callables of a kind, in order; builtin types of callables stand here as well
_in_order: dict[Any, tuple[Family, ...]] = {}


def family(name: str, find: Callable[[Any], Any], *kinds: str, is_exact: bool = True) -> Callable[[Any], Any]:
    """Register how callables are answered that `find` knows."""
    assert name in ORDER and name not in _families, name

    def register(call: Any) -> Any:
        _families[name] = Family(name, find, call, kinds, is_exact)
        _in_order.clear()
        return call

    return register


def kind_of(obj: Any) -> str:
    """Which of Python's kinds of callables an object is."""
    cls = type(obj)
    if cls in _C_TYPES:
        return METHOD
    if cls is types.FunctionType:
        return FUNCTION
    return CLASS if isinstance(obj, type) else OBJECT


def families_of(obj: Any) -> tuple[Family, ...]:
    """The families that may answer for a callable, in order."""
    cls = type(obj)
    found = _in_order.get(cls)
    if found is not None:
        return found
    kind = kind_of(obj)
    found = _in_order.get(kind)
    if found is None:
        known = map(_families.get, ORDER)
        found = _in_order[kind] = tuple(one for one in known if one is not None and kind in one.kinds)
    if cls in _BUILTIN_TYPES:
        _in_order[cls] = found
    elif cls.__hash__ is not object.__hash__:
        try:
            hash(obj)
        except TypeError:
            return tuple(one for one in found if not one.is_exact)
    return found


def models_of(obj: Any) -> Iterator[Model]:
    """The models of a callable, in order: the later ones answer where the first decline."""
    for one in families_of(obj):
        found = one.find(obj)
        if found is not None:
            yield Model(one, found)


def lookup(obj: Any) -> Model | None:
    """The model of a callable, or None."""
    return next(models_of(obj), None)


# -- the tables that families look callables up in ----------------------------------------------------------


#: C callables (functions, types, method descriptors) and library functions: "model"
_MODELS: dict[Any, Handler] = {}
#: code objects, by identity, of functions that library functions return: "made by a library"
_OF_CODE: dict[int, CodeHandler] = {}
#: classes of callables: "class"
_OF_CLASS: dict[type, Callable[[Interpreter, Any, Args, Kwargs], Any]] = {}

#: callables whose code in Python is traced in their place: "body"
_BODIES: dict[Any, Any] = {}


handler_of = _MODELS.get
body_of = _BODIES.get
code_model_of = _OF_CODE.get
class_model_of = _OF_CLASS.get


def builtin(*objects: Any) -> Callable[[Any], Any]:
    """Register the model of C callables: `handler(interp, args, kwargs)`."""

    def register(handler: Any) -> Any:
        for obj in objects:
            _MODELS[obj] = handler
        return handler

    return register


def traced_as(original: Any, body: types.FunctionType) -> None:
    """Have `body` traced in the place of a callable."""
    _BODIES[original] = body


def code_model(*functions: types.FunctionType) -> Callable[[Any], Any]:
    """Register the model of all functions that have the code of these: `handler(interp, fn, args, kwargs)`."""

    def register(handler: Any) -> Any:
        for function in functions:
            _OF_CODE[id(function.__code__)] = handler
        return handler

    return register


#: callables, by identity, that look at the frames that call them
_LOOKING: set[int] = set()


def looks_at_callers(*objects: Any) -> Callable[[Any], Any]:
    """Mark the handler of callables that look at the frames above theirs (to name a line, say). Where a graph breaks at
    such a call, frames have to stand for all that is inlined: the rest of it runs as plain Python."""

    def register(handler: Any) -> Any:
        _LOOKING.update(map(id, objects))

        @functools.wraps(handler)
        def looking(interp: Interpreter, *args: Any) -> Any:
            try:
                return handler(interp, *args)
            except GraphBreak as cause:
                keep_callers(interp, cause)
                raise

        return looking

    return register


def is_looking(value: Value) -> bool:
    """Whether a Value is of a callable that looks at its callers."""
    return id(value.called) in _LOOKING


def keep_callers(interp: Interpreter, cause: GraphBreak) -> None:
    """Have the inlined frames that call what breaks the graph run as plain Python."""
    cause.tail = cause.tail or len(interp.frames) > 1


def calls_of(*classes: type) -> Callable[[Any], Any]:
    """Register what calling instances of a C class does: `handler(interp, fn, args, kwargs)`."""

    def register(handler: Any) -> Any:
        for cls in classes:
            _OF_CLASS[cls] = handler
        return handler

    return register


def _of_code(function: types.FunctionType) -> CodeHandler | None:
    return _OF_CODE.get(id(function.__code__))


def _of_class(obj: Any) -> Any:
    return _OF_CLASS.get(type(obj))


@family("made by a library", _of_code, FUNCTION, is_exact=False)
def _call_closure(interp: Interpreter, fn: FunctionValue, obj: Any, found: CodeHandler, args: Args,
                  kwargs: Kwargs) -> Any:
    return found(interp, fn, args, kwargs)


@family("class", _of_class, OBJECT, is_exact=False)
def _call_instance(interp: Interpreter, fn: Value, obj: Any, found: Any, args: Args, kwargs: Kwargs) -> Any:
    return found(interp, fn, args, kwargs)
