"""Builtin functions, and C functions of the standard library that need to know about Values."""

from __future__ import annotations

import builtins
import functools
import math
import operator
import sys
import types
import typing
from typing import Any

import torch

from ....ir.algebra import sympy
from ...breaks import GraphBreak
from ...bytecode.resume_codes import origin_code
from ...guards.guard_set import MISSING
from ...guards.source import attr
from ...interpreter import attributes
from ...interpreter.attributes import object_getattribute
from ...interpreter.callees import Args, Kwargs, builtin
from ...interpreter.calls import as_int, inline_library, number_value
from ...interpreter.constant_folding import fold, fold_deep
from ...interpreter.frame import Frame, TracedException
from ...interpreter.module_attributes import module_getattribute
from ...interpreter.operators import (
    fold_constants,
)
from ...polyfills import ORIGINALS, POLYFILLS, builtins_, construct
from ...values import (
    BINARY,
    COMPARE,
    FALSE,
    NONE,
    UNARY,
    UNKNOWN,
    DictValue,
    Exhausted,
    FunctionValue,
    Interpreter,
    Missing,
    TupleValue,
    Value,
    as_number,
    const,
    sym,
    type_name,
    unsupported,
)
from .iteration import get_iter, next_sync
from .plain_parts import plain_part
from .symbolic_text import is_made_of_numbers, text

# -- types --------------------------------------------------------------------------------------------------


@builtin(type)
def builtin_type(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if len(args) != 1:
        raise GraphBreak("local_class", "type()", tail=True)
    return interp.context.const_object(shown_class(args[0]))


def shown_class(value: Value) -> type:
    """A value's class; a class of `polyfills/` stands for one of C that programs must not find different."""
    if value.is_instance and value.cls in ORIGINALS:
        raise unsupported(value, "a question for its class")
    return value.cls


@builtin(callable)
def builtin_callable(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    value = args[0]
    if value.opaque is not UNKNOWN:
        return const(callable(interp.context.pin(value)))
    return const(interp.context.class_lookup(value.cls, "__call__") is not MISSING)


# -- attributes ---------------------------------------------------------------------------------------------


def _name(interp: Interpreter, value: Value) -> str:
    value = plain_part(interp, value, "__hash__", "__eq__")
    if isinstance(value.literal, str):
        return value.literal
    if value.base is str:
        raise unsupported(value, "the name of an attribute")
    if type(value.opaque) is str:
        return interp.context.pin(value)
    raise interp.throw(TypeError, "attribute name must be string, not " + repr(value.cls.__name__))


@builtin(getattr)
def builtin_getattr(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    name = _name(interp, args[1])
    if len(args) == 2:
        return interp.getattr(args[0], name)
    try:
        return interp.finish_sync(interp.getattr(args[0], name))
    except TracedException as error:
        if issubclass(error.value.cls, AttributeError):
            return args[2]
        raise


@builtin(hasattr)
def builtin_hasattr(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return const(interp.hasattr(args[0], _name(interp, args[1])))


@builtin(setattr)
def builtin_setattr(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if args[1].plain is not None:
        raise unsupported(args[1], "the name of an attribute that is set")  # the key is the instance itself
    interp.finish_sync(interp.setattr(args[0], _name(interp, args[1]), args[2]))
    return NONE


@builtin(delattr)
def builtin_delattr(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    interp.finish_sync(interp.delattr(args[0], _name(interp, args[1])))
    return NONE


@builtin(object.__setattr__)
def object_setattr(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    interp.finish_sync(attributes.object_setattr(interp, args[0], _name(interp, args[1]), args[2]))
    return NONE


@builtin(object.__delattr__)
def object_delattr(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    interp.finish_sync(attributes.object_delattr(interp, args[0], _name(interp, args[1])))
    return NONE


@builtin(object.__getattribute__)
def _object_getattribute(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    name = _name(interp, args[1])
    try:
        return object_getattribute(interp, args[0], name)
    except attributes._NoAttribute:
        raise attributes.attribute_error(interp, args[0], name) from None


@builtin(types.ModuleType.__getattribute__)
def _module_getattribute(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return module_getattribute(interp, args[0], _name(interp, args[1]))


@builtin(vars)
def builtin_vars(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if not args:
        return builtin_locals(interp, args, kwargs)
    if args[0].opaque is UNKNOWN and not interp.hasattr(args[0], "__dict__"):
        raise interp.throw(TypeError, "vars() argument must have __dict__ attribute")
    return interp.getattr(args[0], "__dict__")


@builtin(locals)
def builtin_locals(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    frame = interp.frame
    if _looks_again(frame):
        raise GraphBreak("frame_access", "", tail=True)
    made = DictValue()
    code = origin_code(frame.code)
    for name in dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars)):
        found: Any = frame.locals.get(name)
        if found is None and name in frame.cells:
            found = interp.context.cell_content(frame.cells[name])
        if found is not None and not isinstance(found, Missing) and not name.startswith("."):
            interp.context.dict_set(made, name, found, const(name))
    return made


def _looks_again(frame: Frame) -> bool:
    """Whether the program may ask for the variables once more: up to Python 3.12 a frame has one dict of them, which is
    brought up to date then."""
    if sys.version_info >= (3, 13):
        return False
    here = frame.current.index
    return any(0 <= ins.target <= here or ins.name in ("LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD") and
               (ins.arg[1] if isinstance(ins.arg, tuple) else ins.arg) in _LOOKS
               for ins in frame.instructions[here + 1:])


#: what looks at the variables of the frame that it is called in
_LOOKS = frozenset(("locals", "vars", "dir", "exec", "eval", "_getframe", "currentframe"))


@builtin(globals)
def builtin_globals(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return interp.frame.globals


@builtin(exec, eval, __import__, breakpoint, input, compile, sys._getframe)
def _frame_access(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    raise GraphBreak("frame_access", "", tail=True)  # the names that they look at are those of the frame's own code


@builtin(dir)
def builtin_dir(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    raise GraphBreak("frame_access", "", tail=not args)


# -- numbers ------------------------------------------------------------------------------------------------


@builtin(len)
def builtin_len(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return interp.length(args[0])


def _evaluate(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    """`function(*args, **kwargs)` of what is made of constants."""
    return fold(interp, function, [const(a.constant(interp)) for a in args],
                {k: const(v.constant(interp)) for k, v in kwargs.items()})


def _by_method(interp: Interpreter, value: Value, name: str, kind: type, message: str) -> Any:
    """The number that a special method of an instance's class gives; None where there is no such method."""
    hook = interp.context.class_lookup(value.cls, name) if value.is_instance else MISSING
    if isinstance(hook, types.FunctionType):
        return checked_call(interp, hook, kind, message, value)
    return None if hook is MISSING else interp.call(interp.getattr(value, name), [], {})


def _plain_number(interp: Interpreter, value: Value) -> Value:
    """The Python number in a scalar of numpy's; other Values as they are."""
    return value.number(interp) if value.is_array else value


@builtin(bool)
def builtin_bool(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if not args:
        return FALSE
    value = _plain_number(interp, args[0])
    made = value.converted(interp, bool)
    return const(interp.truth(value)) if made is None else made


@builtin(int)
def builtin_int(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if len(args) == 1 and not kwargs:
        value = _plain_number(interp, args[0])
        made = value.converted(interp, int)
        if made is not None:
            return made
        for name in ("__int__", "__index__"):
            made = _by_method(interp, value, name, int, f"{name} returned non-int (type %s)")
            if made is not None:
                return made
    return _evaluate(interp, int, args, kwargs)


@builtin(float)
def builtin_float(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if len(args) == 1:
        value = _plain_number(interp, as_number(interp, args[0]))
        made = value.converted(interp, float)
        if made is not None:
            return made
        message = f"{type_name(value.cls)}.__float__ returned non-float (type %s)"
        made = _by_method(interp, value, "__float__", float, message)
        if made is not None:
            return made
    return _evaluate(interp, float, args, {})


@builtin(complex)
def builtin_complex(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return _evaluate(interp, complex, args, kwargs)


@builtin(abs)
def builtin_abs(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    value = args[0]
    made = value.converted(interp, abs)
    if made is not None:
        return made
    if value.is_constant:
        return fold(interp, abs, args, kwargs)
    if interp.context.class_lookup(value.cls, "__abs__") is MISSING:
        raise interp.throw(TypeError, f"bad operand type for abs(): {value.cls.__name__!r}")
    return interp.call(interp.getattr(value, "__abs__"), [], {})


@builtin(round)
def builtin_round(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    value = args[0] if args else kwargs["number"]
    if (value.is_instance or value.tensor is not None) and not interp.context.has_slot(value.cls, "__round__"):
        raise interp.throw(TypeError, f"type {value.cls.__name__} doesn't define __round__ method")
    if value.scalar is not None:
        with interp.recording("round"):
            return number_value(interp.builder.scalar_op(round, *(a.payload(interp) for a in args)))
    if value.is_instance:
        return interp.call(interp.getattr(value, "__round__"), args[1:], {})
    return _evaluate(interp, round, args, kwargs)


@builtin(pow)
def builtin_pow(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if len(args) == 2 and not kwargs:
        return interp.binary("POWER", args[0], args[1])
    return _evaluate(interp, pow, args, kwargs)


def checked_call(interp: Interpreter, method: types.FunctionType, kind: type, message: str, *args: Value) -> Any:
    """Call a special method; a TypeError with this text about what it returned, where that is of another type."""
    body = interp.context.const_object(construct.checked)
    return interp.call(body,
                [interp.context.const_object(kind), const(message), interp.context.const_object(method), *args], {})


@builtin(hash)
def builtin_hash(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    value = args[0]
    hasher = interp.context.class_lookup(value.cls, "__hash__")
    if isinstance(hasher, types.FunctionType):
        body = interp.context.const_object(construct.checked_hash)
        return interp.call(body, [interp.context.const_object(hasher), value], {})
    value = plain_part(interp, value, "__hash__")
    if value.expr is not None:
        value = const(as_int(interp, value, "hash()"))
    if value.base is tuple and hasher is tuple.__hash__ and value.cls is not torch.Size:
        value = TupleValue(value.items)
    if value.is_constant or value.base is tuple:
        return fold_constants(interp, hash, value.constant(interp))
    if value.base is frozenset and hasher is frozenset.__hash__:
        return const(hash(frozenset(item.constant(interp) for item in value.items.values())))
    if hasher is None:
        raise interp.throw(TypeError, f"unhashable type: {value.cls.__name__!r}")
    raise unsupported(value, "hash()")


@builtin(id)
def builtin_id(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    value = args[0]
    if isinstance(value.opaque, (type, types.ModuleType)):
        return const(id(interp.context.pin(value)))
    found = interp.context.pin_instance(value)
    if found is None:
        raise unsupported(value, "id()")
    return const(id(found))


for _function in (ord, chr, bin, hex, oct, ascii):
    builtin(_function)((lambda f: lambda interp, args, kwargs: _evaluate(interp, f, args, {}))(_function))


#: what functions of `math` ask of numbers
_CONVERSIONS = ("__float__", "__index__", "__floor__", "__ceil__", "__trunc__")


def _math(function: Any) -> Any:
    """A function of `math`: on constants it is evaluated, on computed numbers it becomes part of the graph."""

    def handler(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        if any(a.tensor is not None for a in args):
            args = [interp.finish_sync(builtin_float(interp, [a], {})) if a.tensor is not None else a
                    for a in args]
        args = [as_number(interp, plain_part(interp, a, *_CONVERSIONS)) for a in args]
        if any(a.scalar is not None for a in args):
            with interp.recording(f"math.{function.__name__}"):
                return number_value(interp.builder.scalar_op(function, *(a.payload(interp) for a in args)))
        if function is math.sqrt and any(a.expr is not None for a in args):
            with interp.recording("math.sqrt"):  # of a size: the usual scale of attention
                return number_value(interp.builder.scalar_op(function, *(a.payload(interp) for a in args)))
        if all(a.is_constant or a.expr is not None for a in args):
            plain = [const(as_int(interp, a, f"math.{function.__name__}")) if a.expr is not None else a
                     for a in args]
            return fold(interp, function, plain, kwargs)
        if function in POLYFILLS:
            return interp.call(interp.context.const_object(POLYFILLS[function]), args, kwargs)
        folded = fold_deep(interp, function, args, kwargs)
        if folded is not None:
            return folded
        raise unsupported(args[0], f"math.{function.__name__}()")

    return handler


for _function in vars(math).values():
    if isinstance(_function, types.BuiltinFunctionType):
        builtin(_function)(_math(_function))


def _extremum(symbol: str, body_name: str) -> Any:
    def handler(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        if not kwargs and len(args) >= 2 and all(
                a.is_constant or a.expr is not None or a.scalar is not None for a in args):
            if any(a.scalar is not None and a.scalar.known is None for a in args):
                with interp.recording(body_name):
                    function = getattr(builtins, body_name)
                    return number_value(interp.builder.scalar_op(function, *(a.payload(interp) for a in args)))
            if any(a.expr is not None and interp.context.sizes.is_unbacked(a.expr) for a in args) and \
                    all(a.scalar is None and issubclass(a.cls, int) for a in args):
                extremum = sympy.Max if body_name == "max" else sympy.Min
                return sym(extremum(*(a.payload(interp) for a in args)))
            best = args[0]  # the very argument: a NaN in a list is found by its identity
            for other in args[1:]:
                if interp.truth(interp.compare(symbol, other, best)):
                    best = other
            return best
        return interp.call(interp.context.const_object(getattr(builtins_, body_name)), args, kwargs)

    return handler


builtin(max)(_extremum(">", "max"))
builtin(min)(_extremum("<", "min"))


# -- iteration ----------------------------------------------------------------------------------------------


@builtin(iter)
def builtin_iter(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if len(args) == 2:
        return interp.call(interp.context.const_object(builtins_.iterate_call), args, {})
    return get_iter(interp, args[0])


@builtin(next)
def builtin_next(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    try:
        return next_sync(interp, args[0])
    except Exhausted as end:
        if len(args) > 1:
            return args[1]
        returned = end.value is not None and end.value.literal is not None
        raise interp.throw(StopIteration, *([end.value] if returned else [])) from None


# -- text ---------------------------------------------------------------------------------------------------


def to_str(interp: Interpreter, value: Value, function: Any = str) -> Any:
    """`str(value)` or `repr(value)`."""
    if value.is_constant:
        return fold(interp, function, [value], {})
    if is_made_of_numbers(value):
        return value if function is str and value.cls is str else text(interp, function, value)
    name = "__str__" if function is str else "__repr__"
    found = interp.context.class_lookup(value.cls, name)
    if found is object.__str__:
        found = interp.context.class_lookup(value.cls, "__repr__")
    if isinstance(found, types.FunctionType):
        return checked_call(interp, found, str, f"{name} returned non-string (type %s)", value)
    if value.is_exception:
        from .type_calls import exception_text

        return exception_text(interp, value, function)
    return value.shown(interp, function, found, lambda part, how: to_str(interp, part, how))


@builtin(str)
def builtin_str(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if not args:
        return const("")
    if len(args) > 1:
        return _evaluate(interp, str, args, {})
    return to_str(interp, args[0])


@builtin(repr)
def builtin_repr(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return to_str(interp, args[0], repr)


@builtin(format)
def builtin_format(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    spec = args[1] if len(args) > 1 else const("")
    hook = interp.context.class_lookup(args[0].cls, "__format__")
    if isinstance(hook, types.FunctionType):
        return checked_call(interp, hook, str, "__format__ must return a str, not %s", args[0], spec)
    if spec.literal == "" and not args[0].is_constant:
        return to_str(interp, args[0])
    value, spec = plain_part(interp, args[0], "__format__"), spec.whole_plain_part(interp)
    if is_made_of_numbers(value) or is_made_of_numbers(spec):
        return text(interp, format, value, spec)
    formatted, how = value.formatted(interp), spec.constant(interp)
    try:
        return const(format(formatted, how))
    except Exception as error:
        raise interp.raise_real(error) from None


# -- operator -----------------------------------------------------------------------------------------------


def _binary_function(name: str, inplace: bool) -> Any:
    return lambda interp, args, kwargs: interp.binary(name, args[0], args[1], inplace)


for _name_, (_function, _dunder, _reflected, _inplace) in BINARY.items():
    builtin(_function)(_binary_function(_name_, False))
    builtin(getattr(operator, _inplace))(_binary_function(_name_, True))
for _symbol, (_function, _dunder, _reflected) in COMPARE.items():
    builtin(_function)((lambda symbol: lambda interp, args, kwargs: interp.compare(symbol, args[0], args[1]))(_symbol))
for _name_, (_function, _dunder) in UNARY.items():
    builtin(_function)((lambda name: lambda interp, args, kwargs: interp.unary(name, args[0]))(_name_))
builtin(operator.abs)(builtin_abs)


@builtin(operator.setitem)
def operator_setitem(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    interp.finish_sync(interp.setitem(*args))
    return NONE


@builtin(operator.delitem)
def operator_delitem(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    interp.finish_sync(interp.delitem(*args))
    return NONE


builtin(operator.getitem)(lambda interp, args, kwargs: interp.getitem(args[0], args[1]))
builtin(operator.contains)(lambda interp, args, kwargs: interp.contains(args[0], args[1]))
builtin(operator.not_)(lambda interp, args, kwargs: const(not interp.truth(args[0])))
builtin(operator.truth)(lambda interp, args, kwargs: const(interp.truth(args[0])))
builtin(operator.is_)(lambda interp, args, kwargs: const(interp.same_object(args[0], args[1])))
builtin(operator.is_not)(lambda interp, args, kwargs: const(not interp.same_object(args[0], args[1])))


@builtin(operator.index)
def operator_index(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    value = args[0] if args[0].plain is None else args[0].plain  # C asks no instance of int
    if value.expr is not None:
        return value
    made = _by_method(interp, value, "__index__", int, "__index__ returned non-int (type %s)")
    if made is not None:
        return made
    return const(int(as_int(interp, value, "operator.index")))


# -- library ------------------------------------------------------------------------------------------------


@builtin(torch._C._log_api_usage_once)
def log_api_usage(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return NONE


@builtin(typing.cast)
def typing_cast(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return args[1]


@builtin(*(cls.__getitem__ for cls in vars(typing).values() if isinstance(cls, type) and "__getitem__" in vars(cls)))
def subscripted_form(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    """`Optional[int]`, `Callable[[int], str]`: functions of constants, whose results are cached and do not change."""
    form, parameters = (arg.constant(interp) for arg in args)
    try:
        return interp.context.const_object(form[parameters])
    except TypeError as error:
        raise interp.raise_real(error) from None


def _is_generic(interp: Interpreter, function: FunctionValue) -> bool:
    if sys.version_info < (3, 12):
        return False
    parameters = interp.finish_sync(interp.getattr(function, "__type_params__"))
    return parameters.base is not tuple or bool(parameters.items)


@builtin(functools.update_wrapper)
def update_wrapper(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    """Between two Python functions, the wrapper made here; other callables go through the library's own code."""
    names = dict(zip(("wrapper", "wrapped", "assigned", "updated"), args, strict=False)) | kwargs
    wrapper, wrapped = names["wrapper"], names["wrapped"]
    usual = (names["assigned"]).constant(interp) == functools.WRAPPER_ASSIGNMENTS if "assigned" in names else True
    usual = usual and ("updated" not in names or (names["updated"]).constant(interp) == functools.WRAPPER_UPDATES)
    if not (usual and wrapper.code is not None and wrapped.code is not None
            and wrapper.source is None and not _is_generic(interp, wrapped)):
        return inline_library(interp, functools.update_wrapper, args, kwargs)
    wrapper.name, wrapper.qualname, wrapper.module = wrapped.name, wrapped.qualname, wrapped.module
    wrapper.doc = interp.finish_sync(interp.getattr(wrapped, "__doc__"))
    real = wrapped.real
    if wrapped.annotations is not None:
        wrapper.annotations = interp.finish_sync(interp.getattr(wrapped, "__annotations__"))
    elif real is not None and wrapped.source is not None:
        wrapper.annotations = interp.context.wrap(real.__annotations__, attr(wrapped.source, "__annotations__"))
    target = wrapper.instance_dict(interp)
    source = wrapped.instance_dict(interp)
    assert target is not None and source is not None
    for key, item in interp.context.dict_items(source):
        interp.context.dict_set(target, key, item, const(key))
    interp.context.dict_set(target, "__wrapped__", wrapped, const("__wrapped__"))
    return wrapper
