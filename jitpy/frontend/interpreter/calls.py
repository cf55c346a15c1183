"""Calling things: Python functions are inlined, C functions are modelled, recorded, or break the graph."""

from __future__ import annotations

import _thread
import contextlib
import inspect
import os
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from ...ir.algebra import sympy
from ...ir.ops.schemas import is_user_op
from ..arity import bodiless
from ..breaks import GraphBreak
from ..bytecode.code import has_own_builtins, is_readable
from ..bytecode.resume_codes import is_plain
from ..capture.graph_builder import (
    StructPayload,
    TracedScalar,
    TracedTensor,
    Uncapturable,
)
from ..capture.graph_effects import may_handle
from ..capture.known_numbers import pinned_arguments
from ..capture.torch_calls.tensor_calls import is_torch_callable, writes
from ..guards.guard_set import MISSING
from ..polyfills import ITERATOR_TYPES, MODELLED_ORIGINALS, ORIGINALS, give_up, is_polyfill
from ..values import (
    CONST_TYPES,
    PLAIN_TYPES,
    UNKNOWN,
    ConstValue,
    DictValue,
    FunctionValue,
    GeneratorValue,
    Interpreter,
    ListValue,
    MethodValue,
    NumpyNumberValue,
    PyValue,
    ScalarValue,
    SymValue,
    TupleValue,
    Value,
    tree_iter,
    type_name,
    unsupported,
)
from .callees import builtin, class_model_of, code_model_of, families_of
from .frame import PUSHED, Frame
from .operator_methods import own_methods
from .tensor_subclasses import call_overloaded, is_overloaded

# -- payloads -----------------------------------------------------------------------------------------------


def beside_tensor(interp: Interpreter, a: Value, b: Value, names: tuple[str, ...]) -> None:
    """The method that an operator of a tensor asks first, by these names."""
    if a.tensor is not None or b.tensor is not None:
        for value in (a, b):
            no_torch_function(interp, value)
            own_methods(interp, value, *names)


def no_torch_function(interp: Interpreter, value: Value) -> None:
    """A break where the class of an operand, which is no tensor, says itself what torch makes of it; else that it does
    not is guarded."""
    if (value.is_instance or value.opaque is not UNKNOWN) and not issubclass(value.cls, torch.Tensor) and \
            interp.context.class_lookup(value.cls, "__torch_function__") is not MISSING:
        raise unsupported(value, "an operation with a tensor, which its __torch_function__ answers")


def number_value(payload: Any) -> Value:
    """The Value of a number that the graph builder returned."""
    return ScalarValue(payload) if type(payload) is TracedScalar else ConstValue(payload)


def from_payload(interp: Interpreter, payload: Any, cls: type = torch.Tensor) -> Value:
    """The Value of what the graph builder returned."""
    if isinstance(payload, TracedTensor):
        return interp.context.tensor_value(payload, cls)
    if isinstance(payload, TracedScalar):
        return ScalarValue(payload)
    if isinstance(payload, sympy.Basic):
        return ConstValue(int(payload)) if payload.is_Integer else SymValue(payload)
    if isinstance(payload, StructPayload):
        return TupleValue([from_payload(interp, p) for p in payload.items], None, payload.cls)
    if isinstance(payload, SizePayload):
        return TupleValue([from_payload(interp, p) for p in payload], None, torch.Size)
    if isinstance(payload, tuple):
        kind = type(payload)
        known = kind if kind is torch.Size or hasattr(kind, "_fields") else tuple
        return TupleValue([from_payload(interp, p) for p in payload], None, known)
    if isinstance(payload, list):
        return ListValue([from_payload(interp, p) for p in payload])
    if type(payload) in CONST_TYPES:
        return ConstValue(payload)
    return interp.context.const_object(payload)


class SizePayload(tuple):
    """Sizes that eager returns as a torch.Size."""


@builtin(give_up)
def _give_up(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
    raise GraphBreak("unsupported_call", args[0].value if args and args[0].is_constant else "")


@builtin(torch.compiler.is_compiling)
def _is_compiling(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """True; but not for those of torch's own files that ask in order to compute something else than eager does: modules
    (hooks left out, padding kept where the encoder's fast path makes it zero), and optimizers (float32 on tensors where
    eager takes Python numbers, arguments unchecked)."""
    code = interp.frames[-1].code
    return ConstValue(not code.co_filename.startswith(_AS_IN_EAGER) or code is _CAPTURE_CHECK)


_AS_IN_EAGER = tuple(os.path.dirname(package.__file__) + os.sep for package in (torch.optim, torch.nn.modules))
#: asks whether a CUDA graph is being captured
_CAPTURE_CHECK = torch.optim.Optimizer._accelerator_graph_capture_health_check.__code__


@contextlib.contextmanager
def recording(interp: Interpreter, what: str) -> Iterator[None]:
    """Turn the graph builder's refusals into graph breaks."""
    if interp.builder.state.is_foreign:
        raise GraphBreak("torch_mode", what, tail=True)
    try:
        yield
    except Uncapturable as error:
        raise GraphBreak(error.reason_id, f"{what}: {error.detail}") from None


@contextlib.contextmanager
def recording_whole(interp: Interpreter, what: str) -> Iterator[None]:
    """As `recording`, for several operations: all of them, or none where one cannot be captured."""
    builder = interp.builder
    builder.loc = interp.loc()
    mark = builder.checkpoint()
    with recording(interp, what):
        try:
            yield
        except (Uncapturable, GraphBreak):
            builder.rollback(mark)
            raise


def record(interp: Interpreter, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Put a torch call into the graph."""
    if interp.context.has_overloads:
        answer = call_overloaded(interp, fn, args, kwargs)
        if answer is not NotImplemented:
            return answer
    if fn in _FROM_DATA and any(_holds_number(interp, value) for value in (*args, *kwargs.values())):
        raise GraphBreak("unsupported_value", "a numpy number as a tensor's data: it has a dtype of its own")
    if _in_try(interp) and not may_handle(interp.builder, is_user_op(fn) and writes(fn)):
        raise GraphBreak("unsupported_call", f"{fn}, whose exceptions are caught here")
    if fn is torch.Tensor.new and len(args) == 2 and args[1].cls is torch.Size:
        fn = torch.Tensor.new_empty  # a torch.Size is a shape, any other sequence the data; payloads do not tell them
    with recording(interp, getattr(fn, "__name__", str(fn))):
        payload = _recorded(interp, fn, tuple(a.payload(interp) for a in args),
                            {k: v.payload(interp) for k, v in kwargs.items()})
    if fn in _RETURNS_SIZE and type(payload) is tuple:
        payload = SizePayload(payload)
    if payload is None and fn in _RETURNS_LIST:
        return args[0] if args else kwargs["self"]
    return from_payload(interp, payload)


#: torch functions whose tuple of ints is a torch.Size.
_RETURNS_SIZE = frozenset({torch.Tensor.size, torch.functional.broadcast_shapes})


#: those that write to a list of tensors and return it
_RETURNS_LIST = frozenset(getattr(torch, name) for name in dir(torch) if re.fullmatch("_foreach_.*[^_]_", name))

#: functions that look at the types of the numbers that they are given
_FROM_DATA = frozenset({torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor, torch.Tensor.new_tensor,
                        torch.Tensor.new, torch.Tensor})


def _holds_number(interp: Interpreter, value: Value) -> bool:
    """Whether a numpy number is among the items of nested lists."""
    return any(isinstance(leaf, NumpyNumberValue) for leaf in tree_iter(interp, value))


def _in_try(interp: Interpreter) -> bool:
    """Whether the program would catch what the current call raises (`with` blocks aside), when the graph runs."""
    for frame in interp.frames:
        handler = frame.current.handler
        if handler is not None and frame.instructions[handler.target + 1].name != "WITH_EXCEPT_START":
            return True
    return False


def _recorded(interp: Interpreter, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The graph builder's call; where it refuses, once more with the values of numbers that are known."""
    try:
        return interp.builder.call(fn, args, kwargs, interp.loc())
    except Uncapturable:
        mark = interp.builder.guards.checkpoint()
        what = f"an argument of {getattr(fn, '__name__', fn)}, {interp.loc()}"
        known = pinned_arguments(interp.builder, (args, kwargs), what)
        if known is None:
            raise
        try:
            return interp.builder.call(fn, *known, interp.loc())
        except Uncapturable:
            interp.builder.guards.rollback(mark)
            raise


# -- calling ------------------------------------------------------------------------------------------------


def call(interp: Interpreter, fn: Value, args: list[Value], kwargs: dict[str, Value]) -> Any:
    """Call a Value: the result, or PUSHED when a Python function's frame was pushed."""
    result = fn.call(interp, args, kwargs)
    if result is not NotImplemented:
        return result
    model = class_model_of(fn.cls)
    if model is not None:
        return model(interp, fn, args, kwargs)
    hook = interp.context.class_lookup(fn.cls, "__call__")
    if isinstance(hook, types.FunctionType):
        return call(interp, interp.context.const_object(hook), [fn, *args], kwargs)
    if hook is not MISSING:
        raise unsupported(fn, "a call")
    raise interp.throw(TypeError, f"{type_name(fn.cls)!r} object is not callable")


_C_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)
#: methods of plain types that ask for the text of what they are given
_LOOKS_AT_CLASSES = frozenset({"format", "__format__", "__mod__", "__rmod__"})


#: methods of lists and tuples that look at the items alone, whatever a derived class has; first those of two sequences
_OF_TWO = frozenset({"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__add__"})
_READS_ITEMS = _OF_TWO | {"__contains__", "index", "count"}


def _plain_sequence(value: Any) -> Value:
    """The list or tuple that C code sees in an instance of a derived class; other Values as they are."""
    if value.cls is value.base or value.base not in (list, tuple):
        return value
    return (ListValue if value.base is list else TupleValue)(value.items)


def call_object(interp: Interpreter, obj: Any, args: list[Value], kwargs: dict[str, Value], fn: Value) -> Any:
    """Call a C function, a method descriptor, a class, or an opaque callable; `fn` is its Value."""
    if args and isinstance(obj, _C_METHODS):
        if obj.__objclass__ in PLAIN_TYPES and any(arg.is_boxed for arg in args):
            if obj.__name__ not in _LOOKS_AT_CLASSES:
                args = [arg.whole_plain_part(interp) for arg in args]
        elif obj.__objclass__ in (list, tuple) and obj.__name__ in _READS_ITEMS:
            rest = args[1:]
            args = [_plain_sequence(args[0]), *(map(_plain_sequence, rest) if obj.__name__ in _OF_TWO else rest)]
    if is_overloaded(interp, args, kwargs) and is_torch_callable(obj):
        answer = call_overloaded(interp, obj, args, kwargs)
        if answer is not NotImplemented:
            return answer
    for family in families_of(obj):
        found = family.find(obj)
        if found is not None:
            result = family.call(interp, fn, obj, found, args, kwargs)
            if result is not NotImplemented:
                return result
    if isinstance(obj, type):
        return instantiate(interp, fn, obj, args, kwargs)  # type: ignore[arg-type]
    owner = getattr(obj, "__objclass__", None) or type(getattr(obj, "__self__", None))
    raise GraphBreak("lock" if owner in _LOCKS else "unsupported_call", fn.describe())


_LOCKS = (_thread.LockType, _thread.RLock)


@builtin(types.FunctionType.__get__)
def _bind(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`function.__get__(obj, cls)`: a method, or the function itself without an object."""
    if kwargs or len(args) not in (2, 3) or args[0].code is None:
        raise GraphBreak("unsupported_call", "function.__get__")
    is_none = args[1].literal is None
    return args[0] if is_none else MethodValue(args[0], args[1])


def instantiate(interp: Interpreter, fn: PyValue, cls: type, args: list[Value], kwargs: dict[str, Value]) -> Any:
    """`type.__call__(cls, ...)`."""
    from ..models.builtins.type_calls import allocate

    context = interp.context
    new = context.class_lookup(cls, "__new__")
    init = context.class_lookup(cls, "__init__")
    if isinstance(new, staticmethod):
        new = new.__func__
    if isinstance(new, types.FunctionType):
        from ..polyfills.construct import instantiate as body

        return call(interp, context.const_object(body), [fn, *args], kwargs)
    if new is type.__new__:
        raise GraphBreak("local_class", f"{cls.__qualname__}()", tail=True)
    if cls.__flags__ & (1 << 20):  # abstract
        raise GraphBreak("unsupported_call", f"abstract class {cls.__name__}")
    made = allocate(interp, cls, new, args, kwargs)
    if init in MODELLED_ORIGINALS:
        interp.call_sync(context.const_object(init), [made, *args], kwargs)
        return made
    if isinstance(init, types.FunctionType):
        return call_init(interp, context.const_object(init), made, args, kwargs)
    if init is not object.__init__ and init is not MISSING:
        from ..models.builtins import type_calls as builtin_types

        builtin_types.c_init(interp, init, made, args, kwargs)
    elif init is object.__init__ and new is object.__new__ and (args or kwargs):
        raise interp.throw(TypeError, f"{cls.__name__}() takes no arguments")
    return made


def call_init(interp: Interpreter, init: Value, made: Value, args: list[Value], kwargs: dict[str, Value]) -> Any:
    """Run `__init__` in Python and return the instance; resumable through `construct`."""
    from ..polyfills.construct import initialize

    return call(interp, interp.context.const_object(initialize), [init, made, *args], kwargs)


# -- Python functions ---------------------------------------------------------------------------------------

_GENERATOR = inspect.CO_GENERATOR
_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def call_function(interp: Interpreter, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Any:
    """Call a Python function: its model answers, or its frame is pushed."""
    real = fn.known
    if real is not None:
        for family in families_of(real):
            found = family.find(real)
            if found is not None:
                if family.is_exact:
                    fn.settle()
                result = family.call(interp, fn, real, found, args, kwargs)
                if result is not NotImplemented:
                    return result
    elif fn.closure:
        model = code_model_of(id(fn.code))
        if model is not None:
            return model(interp, fn, args, kwargs)
    return inline(interp, fn, args, kwargs)


def inline_library(interp: Interpreter, function: types.FunctionType, args: list[Value],
                   kwargs: dict[str, Value]) -> Any:
    """Trace the Python code of a library function that has a model, in a case that the model leaves to it."""
    fn = interp.context.const_object(function)
    return inline(interp, fn, args, kwargs)


def inline(interp: Interpreter, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Any:
    """Push the frame of a Python function, or make its generator."""
    if fn.code.co_flags & _ASYNC:
        raise GraphBreak("async", fn.describe())
    if is_plain(fn.code):
        raise GraphBreak("plain_loop", fn.code.co_name)
    frame = make_frame(interp, fn, args, kwargs)
    if fn.code.co_flags & _GENERATOR:
        frame.resumable = False
        made = GeneratorValue(frame, interp.polyfill_caller() or interp.step, fn)
        frame.generator = made
        caller = interp.frames[-1].func if interp.frames else None
        original = ORIGINALS.get(caller.known) if caller is not None and caller.known is not None else None
        if original in ITERATOR_TYPES:
            made.cls = original if isinstance(original, type) else original.__self__
        return made
    interp.push_frame(frame)
    return PUSHED


def make_frame(interp: Interpreter, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Frame:
    """A frame with the arguments bound."""
    if not is_readable(fn.code):
        raise GraphBreak("opcode", fn.describe())
    if has_own_builtins(fn.code, fn.globals):
        raise GraphBreak("skipped", f"{fn.qualname}: it has builtins of its own")
    frame = Frame(fn, fn.code, interp.context.globals_of(fn.globals))
    bind(interp, fn, args, kwargs, frame.locals)
    for name, cell in zip(fn.code.co_freevars, fn.closure or (), strict=True):
        frame.cells[name] = cell
    return frame


def bind(interp: Interpreter, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value],
         out: dict[str, Value]) -> None:
    """Bind arguments to parameters as CPython does."""
    code = fn.code
    n = code.co_argcount
    names = code.co_varnames
    defaults, kwdefaults = fn.parameter_defaults(interp.context)
    given = len(args)
    for i in range(min(given, n)):
        out[names[i]] = args[i]
    n_kwonly = code.co_kwonlyargcount
    position = n + n_kwonly
    if code.co_flags & inspect.CO_VARARGS:
        out[names[position]] = TupleValue(list(args[n:]))
        position += 1
    elif given > n:
        raise bad_arguments(interp, fn, args, kwargs)
    extra: DictValue | None = None
    if code.co_flags & inspect.CO_VARKEYWORDS:
        extra = DictValue()
        out[names[position]] = extra
    positional_only = code.co_posonlyargcount
    for key, value in kwargs.items():
        where = names.index(key, 0, n + n_kwonly) if key in names[: n + n_kwonly] else -1
        if where < positional_only and where >= 0 or where < 0:
            if extra is None:
                raise bad_arguments(interp, fn, args, kwargs)
            interp.context.dict_set(extra, key, value, ConstValue(key))
        elif key in out:
            raise bad_arguments(interp, fn, args, kwargs)
        else:
            out[key] = value
    first_default = n - len(defaults)
    for i in range(given, n):
        if names[i] not in out:
            if i < first_default:
                raise bad_arguments(interp, fn, args, kwargs)
            out[names[i]] = defaults[i - first_default]
    for i in range(n, n + n_kwonly):
        if names[i] not in out:
            if names[i] not in kwdefaults:
                raise bad_arguments(interp, fn, args, kwargs)
            out[names[i]] = kwdefaults[names[i]]


def bad_arguments(interp: Interpreter, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> BaseException:
    """CPython's own TypeError for a wrong call, had by calling a function of the same signature."""
    if is_polyfill(fn.code):
        return GraphBreak("unsupported_call", f"{fn.describe()} with arguments that it refuses")  # in C's words
    defaults, kwdefaults = fn.parameter_defaults(interp.context)
    fn.settle()  # its name is in the message
    probe = bodiless(fn, len(defaults), kwdefaults)
    try:
        probe(*(None for _ in args), **dict.fromkeys(kwargs))
    except TypeError as error:
        return interp.raise_real(error)
    return GraphBreak("unsupported_call", f"arguments of {fn.describe()}")


def as_int(interp: Interpreter, value: Value, what: str) -> int:
    """A Python int, pinning a symbolic size where need be."""
    value = value.whole_plain_part(interp)
    number = value.as_index(interp, what)
    if number is not None:
        return number
    hook = interp.context.class_lookup(value.cls, "__index__")
    if isinstance(hook, types.FunctionType):
        found = interp.call_sync(interp.context.const_object(hook), [value])
        if not issubclass(found.cls, int):
            raise interp.throw(TypeError, f"__index__ returned non-int (type {found.cls.__name__})")
        return as_int(interp, found, what)
    if hook is not MISSING:
        raise unsupported(value, what)
    raise interp.throw(TypeError, f"{type_name(value.cls)!r} object cannot be interpreted as an integer")


def is_index_sized(number: int) -> bool:
    """Whether C code takes a number for a place or a length."""
    return -sys.maxsize - 1 <= number <= sys.maxsize
