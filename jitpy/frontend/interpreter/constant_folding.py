"""C functions of constants that are evaluated while tracing."""

from __future__ import annotations

import datetime
import inspect
import math
import operator
import os
import re
import types
from collections.abc import Callable
from typing import Any

import torch

from ..breaks import GraphBreak
from ..models.arrays.array_values import evaluate_strictly
from ..values import (
    CONST_TYPES,
    DATE_TYPES,
    ConstValue,
    DictValue,
    Interpreter,
    ListValue,
    NotConstant,
    NumpyNumberValue,
    SetValue,
    TupleValue,
    Value,
)

#: modules of C functions that may look at more of their arguments than constants show
_OF_CONSTANTS_ONLY = frozenset(("math", "cmath", "_operator", "_struct", "_bisect"))


def takes_constants_only(obj: Any) -> bool:
    """Whether a pure function is evaluated on constants only, not on containers of them."""
    return isinstance(obj, types.BuiltinFunctionType) and obj.__module__ in _OF_CONSTANTS_ONLY


def is_pure(obj: Any) -> bool:
    """Whether a C function of constants may be evaluated while tracing."""
    if isinstance(obj, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return obj.__objclass__ in _PURE_CLASSES and obj not in _IMPURE_METHODS
    if isinstance(obj, types.BuiltinFunctionType):
        if obj.__module__ in _OF_CONSTANTS_ONLY:
            return True
        owner = obj.__self__
        if isinstance(owner, type):
            return owner in _PURE_CLASSES and obj not in _IMPURE_METHODS or obj in PURE_TORCH
    try:
        return obj in PURE_TORCH
    except TypeError:
        return False


_PURE_CLASSES = {int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, types.CodeType,
                 re.Pattern, re.Match, *DATE_TYPES}
#: those that make iterators, and those that read the clock, the time zone or the locale
_IMPURE_METHODS = {re.Pattern.finditer, re.Pattern.scanner, str.__iter__, bytes.__iter__, datetime.date.today,
                   datetime.date.fromtimestamp, datetime.date.strftime, datetime.date.__format__, datetime.date.ctime}
PURE_TORCH = {bytes, str.maketrans, *DATE_TYPES, torch.promote_types, torch.can_cast, torch.device, torch.finfo,
               torch.iinfo, inspect.cleandoc,
               *(vars(os.path)[name] for name in ("normpath", "splitroot")  # of C from 3.12 or 3.13 on
                 if type(vars(os.path).get(name)) is types.BuiltinFunctionType)}


#: functions that read the text, which is not their first argument, in memory, whatever methods its class has
_READS_MEMORY = (re.match, re.fullmatch, re.search, re.findall, re.split,
                 re.Pattern.match, re.Pattern.fullmatch, re.Pattern.search, re.Pattern.findall, re.Pattern.split)


def _known_text(interp: Interpreter, value: Any) -> Any:
    """Like `folded`, for functions in `_READS_MEMORY`. A match refers to the instance itself."""
    if value.base in (str, bytes) and value.source is not None and \
            not interp.context.comes_anew(value.real, value.source):
        interp.context.guard(value.source, "id", value.real)
        return value.real
    return value.folded(interp)


def fold_deep(interp: Interpreter, obj: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """Evaluate a pure function where all its arguments are made of constants; None where they are not."""
    in_memory = obj in _READS_MEMORY
    try:
        real = [_known_text(interp, a) if in_memory and position else a.folded(interp)
                for position, a in enumerate(args)]
        named = {k: _known_text(interp, v) if in_memory and k == "string" else v.folded(interp)
                 for k, v in kwargs.items()}
    except NotConstant:
        return None
    try:
        result = obj(*real, **named)
    except Exception as error:
        raise interp.raise_real(error) from None
    return lift(interp, result)


def fold(interp: Interpreter, obj: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Evaluate on constants."""
    try:
        result = obj(*(a.value for a in args), **{k: a.value for k, a in kwargs.items()})  # type: ignore[attr-defined]
    except Exception as error:
        raise interp.raise_real(error) from None
    return lift(interp, result)


def fold_numpy_numbers(interp: Interpreter, function: Any, args: list[Value]) -> Value | None:
    """Evaluate a function of numbers on scalars of numpy's and constants; None where there are others, or no such
    scalars, or where numpy would warn."""
    of_numpy = [isinstance(arg, NumpyNumberValue) for arg in args]
    if not any(of_numpy) or not all(is_one or arg.is_constant for is_one, arg in zip(of_numpy, args, strict=True)):
        return None
    real = [arg.value if arg.is_constant else interp.context.pin(arg) for arg in args]  # type: ignore[arg-type]
    try:
        result = evaluate_strictly(function, real)
    except Exception as error:
        raise interp.raise_real(error) from None
    return None if result is NotImplemented else lift(interp, result)


#: builtin functions that numbers of numpy's may be given as well as Python's
OF_NUMBERS = frozenset({float, int, bool, complex, str, repr, format, hash, round, abs, pow, divmod,
                         *(f for f in vars(math).values() if isinstance(f, types.BuiltinFunctionType))})


def lift(interp: Interpreter, result: Any) -> Value:
    """The Value of a freshly computed constant, containers included."""
    kind = type(result)
    if kind in CONST_TYPES:
        return ConstValue(result)
    if kind is tuple:
        return TupleValue([lift(interp, r) for r in result])
    if kind is list:
        return ListValue([lift(interp, r) for r in result])
    if kind is dict:
        made = DictValue()
        for key, item in result.items():
            interp.context.dict_set(made, key, lift(interp, item), lift(interp, key))
        return made
    if kind in (set, frozenset):
        return SetValue({r: lift(interp, r) for r in result}, None, kind)
    if hasattr(kind, "__next__"):
        raise GraphBreak("unsupported_call", f"a function that makes a {kind.__name__}")
    return interp.context.const_object(result)


def fold_constants(interp: Interpreter, function: Callable[..., Any], *args: Any) -> Value:
    if function in (operator.lshift, operator.ilshift) and isinstance(args[1], int) and args[1] > 1 << 20:
        raise GraphBreak("unsupported_call", "a huge shift")
    try:
        result = function(*args)
    except Exception as error:
        raise interp.raise_real(error) from None
    return lift(interp, result)
