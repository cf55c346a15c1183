"""How callables are answered that no model of their own is needed for: see `callees.ORDER`."""

from __future__ import annotations

import enum
import types
from typing import Any

import torch

from ...ir.ops.schemas import is_user_op
from ...marks import ALLOWED, DISABLED, original_of
from ..arity import accepts
from ..breaks import GraphBreak
from ..capture.torch_calls.tensor_calls import is_torch_callable
from ..capture.torch_state import torch_state_functions
from ..interpreter.callees import (
    CLASS,
    FUNCTION,
    METHOD,
    OBJECT,
    Args,
    Handler,
    Kwargs,
    body_of,
    calls_of,
    family,
    handler_of,
)
from ..interpreter.constant_folding import OF_NUMBERS, fold_deep, fold_numpy_numbers, is_pure, takes_constants_only
from ..interpreter.subscripts import SLOT_WRAPPERS
from ..interpreter.tensor_subclasses import is_overloaded
from ..polyfills import MODELLED_TYPES, POLYFILLS
from ..values import UNKNOWN, Interpreter, PyValue, Value
from .builtins.modelled_types import make_modelled, original_type


def check_arguments(fn: Value, obj: Any, args: Args, kwargs: Kwargs) -> None:
    """Leave it to C to refuse arguments of a number or with names that it does not take."""
    if not accepts(obj, len(args), tuple(kwargs)):
        raise GraphBreak("unsupported_call", f"{fn.describe()} with arguments that it refuses")


# -- the very object ----------------------------------------------------------------------------------------


@family("jitted", original_of, FUNCTION, OBJECT)
def _call_original(interp: Interpreter, fn: Value, obj: Any, found: Any, args: Args, kwargs: Kwargs) -> Any:
    return interp.call(interp.context.const_object(found), args, kwargs)


def _disabled(obj: Any) -> Any:
    return True if obj in DISABLED else None


@family("disabled", _disabled, FUNCTION, OBJECT)
def _refuse_disabled(interp: Interpreter, fn: Value, obj: Any, found: Any, args: Args, kwargs: Kwargs) -> Any:
    raise GraphBreak("disabled", fn.describe())


@family("number of numpy's", dict.fromkeys(OF_NUMBERS, True).get, METHOD, CLASS)
def _fold_numbers(interp: Interpreter, fn: Value, obj: Any, found: Any, args: Args, kwargs: Kwargs) -> Any:
    folded = fold_numpy_numbers(interp, obj, args) if args and not kwargs else None
    return NotImplemented if folded is None else folded


@family("model", handler_of, FUNCTION, METHOD, CLASS, OBJECT)
def _call_model(interp: Interpreter, fn: Value, obj: Any, found: Handler, args: Args, kwargs: Kwargs) -> Any:
    check_arguments(fn, obj, args, kwargs)
    return found(interp, args, kwargs)


@family("torch state", torch_state_functions.get, FUNCTION, METHOD, OBJECT)
def _call_state(interp: Interpreter, fn: Value, obj: Any, found: Any, args: Args, kwargs: Kwargs) -> Any:
    with interp.recording(fn.describe()):
        payload = found(interp.builder, tuple(a.payload(interp) for a in args),
                        {k: v.payload(interp) for k, v in kwargs.items()})
    return interp.from_payload(payload)


def _pure(obj: Any) -> Any:
    return True if is_pure(obj) else None


@family("constant", _pure, METHOD, CLASS, OBJECT, is_exact=False)
def _fold(interp: Interpreter, fn: Value, obj: Any, found: Any, args: Args, kwargs: Kwargs) -> Any:
    if takes_constants_only(obj) and not all(a.is_constant for a in args):
        return NotImplemented
    folded = fold_deep(interp, obj, args, kwargs)
    return NotImplemented if folded is None else folded


def _modelled(cls: type) -> type | None:
    cls = original_type(cls) or cls
    return cls if cls in MODELLED_TYPES else None


@family("modelled type", _modelled, CLASS)
def _make_modelled(interp: Interpreter, fn: Value, obj: Any, found: type, args: Args, kwargs: Kwargs) -> Any:
    return make_modelled(interp, found, args, kwargs)


def _body(obj: Any) -> Any:
    return body_of(obj) or POLYFILLS.get(obj)  # which modules of models may still fill


@family("body", _body, FUNCTION, METHOD, CLASS, OBJECT)
def _call_body(interp: Interpreter, fn: Value, obj: Any, found: Any, args: Args, kwargs: Kwargs) -> Any:
    check_arguments(fn, obj, args, kwargs)
    return interp.call(interp.context.const_object(found), args, kwargs)


def _operator(obj: Any) -> Any:
    return True if is_user_op(obj) or isinstance(obj, torch._ops.HigherOrderOperator) else None


@family("operator", _operator, OBJECT)
def _call_operator(interp: Interpreter, fn: Value, obj: Any, found: Any, args: Args, kwargs: Kwargs) -> Any:
    from .tensors.registered_operators import call_operator

    if isinstance(obj, torch._ops.HigherOrderOperator):
        raise GraphBreak("higher_order", str(obj))
    return call_operator(interp, obj, args, kwargs)


def _torch_operation(obj: Any) -> Any:
    return True if is_torch_callable(obj) else None


@family("torch operation", _torch_operation, FUNCTION, METHOD, OBJECT, is_exact=False)
def _record(interp: Interpreter, fn: Value, obj: Any, found: Any, args: Args, kwargs: Kwargs) -> Any:
    if isinstance(obj, types.FunctionType) and is_overloaded(interp, args, kwargs):
        return NotImplemented  # its body asks the classes of the arguments
    return interp.record(obj, args, kwargs)


def _allowed(obj: Any) -> Any:
    return True if obj in ALLOWED else None


@family("allowed", _allowed, FUNCTION, METHOD, OBJECT)
def _record_allowed(interp: Interpreter, fn: Value, obj: Any, found: Any, args: Args, kwargs: Kwargs) -> Any:
    return interp.record(obj, args, kwargs)


# -- the class of the callable ------------------------------------------------------------------------------


def _slot(obj: Any) -> Any:
    return SLOT_WRAPPERS.get(obj.__name__)


@family("slot", _slot, METHOD)
def _call_slot(interp: Interpreter, fn: Value, obj: Any, found: Any, args: Args, kwargs: Kwargs) -> Any:
    """A C slot wrapper or method called on a value: the operators' models answer (`dict.__getitem__(d, k)`)."""
    if not isinstance(obj, types.MethodDescriptorType | types.WrapperDescriptorType) or not args or kwargs or \
            not accepts(obj, len(args), ()) or len(args) == 3 and obj.__name__ in ("__pow__", "__rpow__") or \
            not issubclass(args[0].cls, obj.__objclass__):
        return NotImplemented
    result = found(interp, obj.__objclass__, *args)
    return NotImplemented if result is None else result


def _class_in_python(obj: Any) -> type | None:
    """The class of a callable that a class statement made, which may have a `__call__` of its own."""
    return type(obj) if type(obj).__flags__ & _HEAP_TYPE else None


#: flag of types made by class statements
_HEAP_TYPE = 1 << 9


@family("__call__", _class_in_python, CLASS, OBJECT, is_exact=False)
def _call_by_class(interp: Interpreter, fn: Value, obj: Any, found: type, args: Args, kwargs: Kwargs) -> Any:
    """The call of its class's `__call__`, or of its metaclass's, where that is Python."""
    hook = interp.context.class_lookup(found, "__call__")
    if isinstance(hook, type):  # `TypedDict` classes make dicts
        return interp.call(interp.context.const_object(hook), args, kwargs)
    if not isinstance(hook, types.FunctionType):
        return NotImplemented
    member = _enum_member(interp, obj, args, kwargs) if hook is enum.EnumMeta.__call__ else None
    return interp.call(interp.context.const_object(hook), [fn, *args], kwargs) if member is None else member


def _enum_member(interp: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> Any:
    """Enum lookups by value: members are constants. None where code of the program's answers for other values."""
    if not issubclass(cls, enum.Enum) or len(args) != 1 or kwargs or not (
            args[0].is_constant or args[0].opaque is not UNKNOWN):
        return None
    key = args[0].real_object(interp)
    missing = interp.context.class_lookup(cls, "_missing_")
    if missing not in (vars(enum.Enum)["_missing_"], vars(enum.Flag)["_missing_"]):
        if type(key) is not cls and not any(known == key for known in cls._value2member_map_):
            return None
    try:
        return interp.context.const_object(cls(key))
    except ValueError as error:
        raise interp.raise_real(error) from None


@calls_of(torch.jit.ScriptFunction)
def _call_scripted(interp: Interpreter, fn: PyValue, args: Args, kwargs: Kwargs) -> Any:
    from .tensors.scripted import call_scripted

    return call_scripted(interp, fn, args, kwargs)


@calls_of(type(vars(torch.jit.ScriptFunction)["save"]))
def _call_script_method(interp: Interpreter, fn: PyValue, args: Args, kwargs: Kwargs) -> Any:
    """`ScriptFunction.__call__`, which tools wrap."""
    if fn.obj.__name__ != "__call__" or not args or \
            not isinstance(args[0].opaque, torch.jit.ScriptFunction):
        return NotImplemented
    return _call_scripted(interp, args[0], args[1:], kwargs)
