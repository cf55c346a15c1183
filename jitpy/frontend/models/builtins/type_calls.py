"""Making instances, and the builtin types that have no file of their own: exceptions, ranges, iterators, `super`."""

from __future__ import annotations

import builtins
import types
import weakref
from typing import Any

import torch

from ...breaks import GraphBreak
from ...codegen.hand_over import let_go, run_to_end
from ...guards.guard_set import MISSING
from ...guards.source import constant
from ...interpreter.callees import Args, Kwargs, builtin, handler_of
from ...interpreter.frame import first_argument
from ...polyfills import ORIGINALS, construct, model_of
from ...values import (
    FALSE,
    NONE,
    PLAIN_TYPES,
    UNKNOWN,
    BoxedValue,
    DictValue,
    FunctionValue,
    Interpreter,
    ListValue,
    MethodValue,
    ModelledValue,
    ObjectValue,
    RangeValue,
    SetValue,
    SliceValue,
    SuperValue,
    TracebackValue,
    TupleValue,
    Value,
    base_of,
    const,
    is_subtype,
    unsupported,
)
from .exception_state import TALKERS, base_in_c, live_copy, new_exception, state_names
from .iteration import (
    EnumerateIterator,
    FilterIterator,
    MapIterator,
    ZipIterator,
    get_iter_sync,
    iterate,
)
from .sets import make as make_set_of

_HEAP_TYPE = 1 << 9


# -- making instances ---------------------------------------------------------------------------------------


def allocate(interp: Interpreter, cls: type, new: Any, args: Args, kwargs: Kwargs) -> ObjectValue:
    """The object that `cls.__new__(cls, ...)` makes, for a `__new__` in C."""
    if cls.__flags__ & _HEAP_TYPE and interp.context.class_lookup(cls, "__del__") is not MISSING:
        raise GraphBreak("finalizer", f"an instance of {cls.__qualname__}, which has __del__", tail=True)
    if issubclass(cls, BaseException) and _base_new(cls) in (BaseException.__new__, *_EXCEPTION_NEWS):
        return new_exception(interp, cls, args, kwargs)
    if new is object.__new__ and _is_python_class(cls):
        made = ObjectValue(cls)
        made.born = interp.polyfill_caller() or interp.step
        return made
    body = model_of(cls)
    if body is not None:
        value = ModelledValue(cls, body)
        if "__init__" not in ORIGINALS[body].__dict__:
            interp.call_sync(interp.context.const_object(body.__init__), [value, *args], kwargs)
        return value
    if new is types.SimpleNamespace.__new__:
        return ObjectValue(cls)
    if new is dict.__new__:
        return DictValue(None, cls)
    if new is list.__new__:
        return ListValue([], None, cls)
    if new is tuple.__new__:
        return TupleValue(iterate(interp, args[0], hinted=True) if args else [], None, cls)
    if new is set.__new__:
        return SetValue({}, None, cls)
    if new is frozenset.__new__:
        return make_set_of(interp, cls, args[0] if args else None)
    for base in PLAIN_TYPES:
        if new is base.__new__ and cls is not base:
            return plain_new(interp, [interp.context.const_object(cls), *args], kwargs)
    if issubclass(cls, torch.Generator):
        raise GraphBreak("rng_state", "a generator is made, a new one at each call")
    raise GraphBreak("unsupported_call", f"{cls.__module__}.{cls.__qualname__}()")


_EXCEPTION_NEWS = {c.__new__ for c in vars(builtins).values() if isinstance(c, type) and issubclass(c, BaseException)
                   and c not in (BaseExceptionGroup, ExceptionGroup)}


def _base_new(cls: type) -> Any:
    return cls.__new__


def _is_python_class(cls: type, on: type = object) -> bool:
    """Whether no class but `on` below a class has C state."""
    from ...interpreter.plain_classes import is_plain_class

    return is_plain_class(cls, on)


def c_init(interp: Interpreter, init: Any, made: ObjectValue, args: Args, kwargs: Kwargs) -> None:
    """Run an `__init__` in C on a fresh instance."""
    handler = handler_of(init)
    if handler is not None:
        handler(interp, [made, *args], kwargs)
        return
    if made.base is tuple or init is object.__init__:
        return
    from ...polyfills.registry import POLYFILLS

    body = POLYFILLS.get(init)
    if body is None:
        raise GraphBreak("unsupported_call", f"{made.cls.__name__}.__init__")
    interp.call_sync(interp.context.const_object(body), [made, *args], kwargs)


@builtin(object.__new__)
def object_new(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    cls = interp.context.pin(args[0])  # type: ignore[arg-type]
    return allocate(interp, cls, object.__new__, [], {})


@builtin(*(base.__new__ for base in PLAIN_TYPES))
def plain_new(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    """`float.__new__(cls, ...)` and the like."""
    cls = interp.context.pin(args[0])  # type: ignore[arg-type]
    base = base_of(cls)
    if base is None or cls is bool:
        raise GraphBreak("unsupported_call", f"__new__ of {cls.__qualname__}")
    plain = interp.finish_sync(interp.call(interp.context.const_object(base), args[1:], kwargs))
    return plain if cls is base else _boxed(cls, base, plain)


def _boxed(cls: type, base: type, plain: Value) -> BoxedValue:
    if not _is_python_class(cls, base):
        raise GraphBreak("unsupported_call", f"{cls.__module__}.{cls.__qualname__}()")
    return BoxedValue(cls, base, plain)


@builtin(list.__new__)
def list_new(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return ListValue([], None, interp.context.pin(args[0]))  # type: ignore[arg-type]


@builtin(dict.__new__)
def dict_new(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return allocate(interp, interp.context.pin(args[0]), dict.__new__, [], {})  # type: ignore[arg-type]


@builtin(tuple.__new__)
def tuple_new(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    items = iterate(interp, args[1], hinted=True) if len(args) > 1 else []
    return TupleValue(items, None, interp.context.pin(args[0]))  # type: ignore[arg-type]


@builtin(set.__new__)
def set_new(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return SetValue({}, None, interp.context.pin(args[0]))  # type: ignore[arg-type]


@builtin(BaseException.__new__, *_EXCEPTION_NEWS)
def exception_new(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return new_exception(interp, interp.context.pin(args[0]), args[1:], kwargs)  # type: ignore[arg-type]


@builtin(object.__init__)
def object_init(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    cls = args[0].cls
    if (len(args) > 1 or kwargs) and (interp.context.class_lookup(cls, "__init__") is not object.__init__
                                      or cls.__new__ is object.__new__):
        raise interp.throw(TypeError, "object.__init__() takes exactly one argument (the instance to initialize)")
    return NONE


@builtin(BaseException.with_traceback)
def exception_with_traceback(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if len(args) != 2 or not isinstance(args[1], TracebackValue):
        raise GraphBreak("unsupported_call", "with_traceback() with another traceback")
    return args[0]


@builtin(BaseException.__str__, BaseException.__repr__)
def exception_str(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return exception_text(interp, args[0], str)


def exception_text(interp: Interpreter, value: Value, function: Any) -> Value:
    """`str` or `repr` of an exception by its builtin base class, which may have its own rules (KeyError, OSError)."""
    if not value.is_exception or issubclass(value.cls, BaseExceptionGroup):
        raise unsupported(value, f"{function.__name__}()")
    talks = function is str and issubclass(value.cls, TALKERS)
    if function is str and not talks and len(value.args) == 1:
        return interp.call_sync(interp.context.const_object(str), [value.args[0]])
    if talks and state_names(value.cls) and value.real is not None:
        raise unsupported(value, "str()")  # what it says is in none of its arguments
    base = base_in_c(value.cls)
    text = function(live_copy(interp, value, talks))
    return const(text.replace(base.__name__, value.cls.__name__, 1) if function is repr else text)


@builtin(range)
def make_range(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    values = [a if issubclass(a.cls, int) and not a.is_instance else const(interp.as_int(a, "range"))
              for a in args]
    if len(values) == 1:
        return RangeValue(const(0), values[0], const(1))
    step = values[2] if len(values) > 2 else const(1)
    if step.literal == 0:
        raise interp.throw(ValueError, "range() arg 3 must not be zero")
    return RangeValue(values[0], values[1], step)


@builtin(slice)
def make_slice(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if len(args) == 1:
        return SliceValue(NONE, args[0], NONE)
    return SliceValue(args[0], args[1], args[2] if len(args) > 2 else NONE)


@builtin(slice.indices)
def slice_indices(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if args[0].cls is not slice:
        raise unsupported(args[0], ".indices()")
    length = interp.as_int(args[1], "slice.indices")
    if length < 0:
        raise interp.throw(ValueError, "length should not be negative")
    return TupleValue([const(i) for i in args[0].real(interp).indices(length)])


@builtin(zip)
def make_zip(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    strict = interp.truth(kwargs.get("strict", FALSE))
    return ZipIterator([get_iter_sync(interp, a) for a in args], strict)


@builtin(enumerate)
def make_enumerate(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    start = args[1] if len(args) > 1 else kwargs.get("start", const(0))
    if not start.is_computed:
        start = const(interp.as_int(start, "enumerate()"))
    return EnumerateIterator(get_iter_sync(interp, args[0] if args else kwargs["iterable"]), start)


@builtin(map)
def make_map(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return MapIterator(args[0], [get_iter_sync(interp, a) for a in args[1:]])


@builtin(filter)
def make_filter(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return FilterIterator(args[0], get_iter_sync(interp, args[1]))


@builtin(reversed)
def make_reversed(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    value = args[0]
    hook = interp.context.class_lookup(value.cls, "__reversed__")
    if isinstance(hook, types.FunctionType):
        return interp.call(interp.context.const_object(hook), [value], {})
    made = value.iterate(interp, backwards=True)
    if made is not None:
        return made
    if hook is MISSING and interp.context.class_lookup(value.cls, "__getitem__") is not MISSING and \
            value.is_instance:
        last = interp.as_int(interp.length(value), "reversed()") - 1
        return interp.call(interp.context.const_object(construct.iterate_backwards), [value, const(last)], {})
    raise unsupported(value, "reversed()")


@builtin(type.__call__)
def type_call(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if not args or not isinstance(args[0].opaque, type):
        raise GraphBreak("unsupported_call", "type.__call__")
    return interp.instantiate(args[0], interp.context.pin(args[0]), args[1:], kwargs)


@builtin(types.MethodType)
def make_method(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return MethodValue(args[0], args[1])


@builtin(types.FunctionType)
def make_function(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    """`FunctionType(code, globals, name, defaults, closure)`, as resume points use it."""
    code: Any = args[0]
    globals_: Any = args[1]
    if not code.is_constant or not issubclass(globals_.cls, dict) or globals_.real_dict is None:
        raise GraphBreak("unsupported_call", "types.FunctionType")
    name = args[2] if len(args) > 2 else NONE
    closure: Any = args[4] if len(args) > 4 else NONE
    text = name.value if name.is_constant and name.value is not None else code.value.co_name
    cells = closure.forced(interp) if closure.base is tuple else None
    return FunctionValue(code.value, globals_.real_dict, name=text, qualname=code.value.co_qualname,
                         closure=cells)  # type: ignore[arg-type]


@builtin(run_to_end)
def call_inner(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    """The call of an inner resume function."""
    _, function, *arguments = args[0].forced(interp)
    return interp.call(function, arguments, {})


@builtin(let_go)
def hold_nothing(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return NONE


@builtin(super)
def make_super(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if not args:
        cell = interp.frame.cells.get("__class__")
        first = first_argument(interp.frame, interp.context)
        if cell is None or first is None:
            arguments = interp.frame.code.co_argcount
            raise interp.throw(RuntimeError, "super(): __class__ cell not found" if arguments
                               else "super(): no arguments")
        args = [interp.context.cell_content(cell), first]  # type: ignore[list-item]
    if len(args) < 2 or args[0].opaque is UNKNOWN:
        raise GraphBreak("unsupported_call", "super() with one argument")
    start = interp.context.pin(args[0])
    obj = args[1]
    if isinstance(obj.opaque, type) and is_subtype(obj.obj, start):
        return SuperValue(start, obj, interp.context.pin(obj))
    if not is_subtype(obj.cls, start):
        raise interp.throw(TypeError, "super(type, obj): obj must be an instance or subtype of type")
    return SuperValue(start, obj, obj.cls)


# -- classes --------------------------------------------------------------------------------------------------


@builtin(torch.is_tensor)
def is_tensor(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return interp.call(interp.context.const_object(isinstance), [*args, interp.context.const_object(torch.Tensor)],
                kwargs)


@builtin(type.__subclasses__)
def subclasses(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`cls.__subclasses__()`: a guard says that there are no others now."""
    if len(args) != 1 or not isinstance(args[0].opaque, type) or kwargs:
        raise GraphBreak("unsupported_call", "type.__subclasses__")
    cls = interp.context.pin(args[0])
    found = type.__subclasses__(cls)
    interp.context.guard(constant(cls, cls.__qualname__), "python", _SameSubclasses(found))
    return ListValue([interp.context.const_object(one) for one in found])


class _SameSubclasses:
    """Guard predicate: a class has these subclasses, in this order."""

    def __init__(self, found: list[type]) -> None:
        self.found = [weakref.ref(one) for one in found]

    def __call__(self, cls: type) -> bool:
        now = type.__subclasses__(cls)
        return len(now) == len(self.found) and all(a() is b for a, b in zip(self.found, now, strict=True))
