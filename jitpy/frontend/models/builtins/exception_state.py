"""The state of an exception besides its arguments (`OSError.errno`, `SystemExit.code`, `AttributeError.name`, ...), and
how its class in C fills that: a real instance is made, with marks in place of what tracing does not know."""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable
from typing import Any

from ...breaks import GraphBreak
from ...interpreter.callees import Args, Kwargs, builtin
from ...values import NONE, ExceptionValue, Identity, Interpreter, TupleValue, Value, unsupported
from ...values.exception import base_in_c, state_names

#: classes whose instances say more than their arguments
TALKERS = (KeyError, ImportError, OSError, SyntaxError, UnicodeError)


def _mark(interp: Interpreter, value: Any) -> Any:
    if value.is_constant:
        return value.value
    if value.base is tuple and value.cls is tuple:
        return tuple(_mark(interp, item) for item in value.forced(interp))
    return Identity(value)


def _unmark(interp: Interpreter, found: Any) -> Value:
    if isinstance(found, Identity):
        return found.value
    if type(found) is tuple:
        return TupleValue([_unmark(interp, item) for item in found])
    return interp.context.const_object(found)


def _in_c(interp: Interpreter, what: str, function: Callable[..., Any], *args: Any, marked: Args,
          kwargs: Kwargs) -> Any:
    """Call C with marks in place of Values."""
    given = {name: _mark(interp, value) for name, value in kwargs.items()}
    try:
        return function(*args, *(_mark(interp, value) for value in marked), **given)
    except (TypeError, ValueError, SystemError) as error:
        if all(value.is_constant for value in (*marked, *kwargs.values())):
            raise interp.raise_real(error) from None
        raise GraphBreak("unsupported_call", what) from None


def read_state(interp: Interpreter, real: BaseException, kwargs: Kwargs) -> dict[str, Value]:
    """The state of a real exception besides its arguments. None is nothing, unless it was given by name."""
    found = {name: descriptor.__get__(real) for name, descriptor in state_names(type(real)).items()}
    return {name: _unmark(interp, one) for name, one in found.items() if one is not None or name in kwargs}


def new_exception(interp: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> ExceptionValue:
    """The object that `__new__` in C makes."""
    if not state_names(cls):
        return ExceptionValue(cls, list(args))
    args = [interp.context.force(value) for value in args]
    real = _in_c(interp, f"{cls.__name__}()", base_in_c(cls).__new__, cls, marked=args, kwargs=kwargs)
    made = ExceptionValue(type(real), [_unmark(interp, one) for one in BaseException.args.__get__(real)])  # type: ignore[attr-defined]
    made.members = read_state(interp, real, kwargs)
    return made


_CLASSES = [found for found in vars(builtins).values() if isinstance(found, type) and issubclass(found, BaseException)]


@builtin(*{found.__init__ for found in _CLASSES})
def init_exception(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    """`__init__` in C."""
    made = args[0]
    if not made.is_exception or made.source is not None:
        raise unsupported(made, ".__init__()")
    cls, base = made.cls, base_in_c(made.cls)
    in_python = [isinstance(found, types.FunctionType) for found in (cls.__new__, cls.__init__)]
    if issubclass(cls, OSError) and in_python != [False, True]:
        return NONE  # `__new__` has done it
    given = [interp.context.force(value) for value in args[1:]]
    if kwargs or state_names(cls):
        real = base.__new__(cls)
        _in_c(interp, f"{cls.__name__}.__init__()", base.__init__, real, marked=given, kwargs=kwargs)
        made.members = read_state(interp, real, kwargs)
    made.args = given
    interp.context.writes += 1
    return NONE


def live_copy(interp: Interpreter, value: ExceptionValue, whole: bool) -> Any:
    """A real exception of the class in C, with the arguments of one (and, where `whole`, its state), all constants."""
    base = base_in_c(value.cls)
    made = base.__new__(base)
    made.args = tuple(one.constant(interp) for one in value.args)
    for name, member in value.members.items() if whole else ():
        setattr(made, name, member.constant(interp))
    return made
