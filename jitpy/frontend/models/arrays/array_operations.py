"""The language's operations on arrays and scalars of numpy's: operators, subscripts, attributes, conversions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import torch

from ...breaks import GraphBreak
from ...codegen.frame_code import Emitter, builds
from ...interpreter.callees import builtin, handler_of
from ...polyfills import arrays
from ...polyfills.arrays import FUNCTIONS, Counterpart
from ...values import (
    NONE,
    TORCH_DTYPES,
    ArrayIterator,
    ArrayValue,
    BuiltinMethodValue,
    SliceValue,
    TupleValue,
    Value,
    const,
    is_number,
    sym,
    unsupported,
)
from ...values.array import refuse
from ...values.attribute_rules import attributes_of
from .array_calls import (
    array_of_tensor,
    asked,
    call_array_function,
    call_ufunc,
    check_kind,
    conform,
    converted,
    fake_of,
    own_copy,
    tensor_of,
    tensor_of_array,
    traced_body,
)
from .array_values import to_array, to_scalar

if TYPE_CHECKING:
    from ...values import Interpreter

# -- subscripts -----------------------------------------------------------------------------------------------


@builtin(np.ndarray.__getitem__)
def _get_item(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`array[key]`: a view, a scalar, or what index arrays pick."""
    array, key = _array_first(args)
    made: dict[int, tuple[ArrayValue, Any]] = {}
    fake, place = fake_of(interp, array, made), fake_of(interp, key, made)
    answer = asked(interp, "ndarray.__getitem__", lambda a, k: a[k], fake, place)
    check_kind("ndarray.__getitem__", _ANY_KIND, array.dtype)
    if _is_place(array, key):
        result = traced_body(interp, arrays.picked, [tensor_of(interp, array), tensor_of(interp, key)])
    else:
        result = traced_body(interp, torch.Tensor.__getitem__,
                             [tensor_of(interp, array), _key(interp, key, masks=False)])
    return conform(interp, "ndarray.__getitem__", result, answer, made)


@builtin(np.ndarray.__setitem__)
def _set_item(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`array[key] = new`."""
    array, key, new = _array_first(args)
    if array.is_scalar or new.tensor is not None:
        raise refuse("ndarray.__setitem__ with a tensor, or of a scalar")
    if new.base in (list, tuple):
        new = call_array_function(interp, np.array, FUNCTIONS["array"], [new], {})
    made: dict[int, tuple[ArrayValue, Any]] = {}
    fake, place, value = (fake_of(interp, v, made) for v in (array, key, new))
    asked(interp, "ndarray.__setitem__", lambda a, k, v: a.__setitem__(k, v), fake, place, value)
    if np.ndim(value) and any(isinstance(k, (np.ndarray, list)) for k in (place if type(place) is tuple else (place,))):
        raise refuse("ndarray.__setitem__ of several numbers at places that may be equal")
    tensor = own_copy(interp, array, converted(interp, "ndarray.__setitem__", new, array.dtype))
    if _is_place(array, key):
        traced_body(interp, arrays.placed, [tensor_of(interp, array), tensor_of(interp, key), tensor])
    else:
        traced_body(interp, torch.Tensor.__setitem__, [tensor_of(interp, array), _key(interp, key, masks=True), tensor])
    return NONE


def _array_first(args: list[Value]) -> tuple[Any, ...]:
    if not args[0].is_array:
        raise unsupported(args[0], "a method of numpy's arrays")
    return tuple(args)


def _is_place(array: ArrayValue, key: Value) -> TypeGuard[ArrayValue]:
    """Whether `array[key]` is one number, at a place that the graph computes."""
    return key.is_array and key.is_scalar and key.dtype.kind in "iu" and array.traced.ndim == 1


_ANY_KIND = Counterpart(arrays.array, (), "bifc")


def _key(interp: Interpreter, key: Value, masks: bool) -> Value:
    """A subscript as a tensor takes it; index arrays only where numpy and torch mean the same."""
    items = key.listed(interp) if key.base is tuple else [key]
    items = [call_array_function(interp, np.array, FUNCTIONS["array"], [v], {}) if v.base is list else v for v in items]
    picks = [i for i, v in enumerate(items) if v.is_array]
    if picks and (picks[-1] - picks[0] + 1 != len(picks) or not all(
            v.is_array or v.cls is slice or v.literal is Ellipsis for v in items)):
        raise refuse("a subscript of index arrays and numbers, or arrays apart")
    made = [_index(interp, v, masks) for v in items]
    return TupleValue(made) if key.base is tuple else made[0]


def _index(interp: Interpreter, value: Value, masks: bool) -> Value:
    if value.is_array:
        if value.is_scalar or not (value.dtype.kind in "iu" or masks and value.dtype.kind == "b"):
            raise refuse(f"a subscript of {value.dtype}")
        return converted(interp, "a subscript", value, np.dtype("int64") if value.dtype.kind in "iu" else value.dtype)
    if value.cls is slice:
        step = value.step.literal
        if step is not None and not (type(step) is int and step > 0):
            raise refuse("a slice that runs backwards")
        return SliceValue(*(_plain_int(interp, v) for v in (value.start, value.stop, value.step)))
    value = _plain_int(interp, value)
    known = value.literal
    if value.expr is not None or known is None or known is Ellipsis or type(known) is int:
        return value
    raise refuse(f"a subscript that is a {value.cls.__name__}")


def _plain_int(interp: Interpreter, value: Value) -> Value:
    whole = is_number(value.opaque) and value.opaque.dtype.kind in "iu"
    return const(int(interp.context.pin(value))) if whole else value


# -- attributes -----------------------------------------------------------------------------------------------


def load_attr(interp: Interpreter, array: ArrayValue, name: str) -> Value:
    """`array.name`."""
    found = interp.context.class_lookup(array.cls, name)
    if handler_of(found) is not None:
        return BuiltinMethodValue(found, array)
    spec, itemsize = array.traced.spec, array.dtype.itemsize
    if name == "__class__":
        return interp.context.const_object(array.cls)
    if name == "shape":
        return TupleValue([sym(size) for size in spec.shape])
    if name == "strides" and all(type(size) is int and size > 1 for size in spec.shape):
        return TupleValue([sym(step * itemsize) for step in spec.stride])
    if name == "ndim":
        return const(len(spec.shape))
    if name == "size":
        return sym(spec.numel)
    if name == "nbytes":
        return sym(spec.numel * itemsize)
    if name == "itemsize":
        return const(itemsize)
    if name == "dtype":
        return const(array.dtype)
    if name == "real" and array.dtype.kind in "biuf" and not array.is_scalar:
        return array
    if name in ("T", "mT") and not array.is_scalar:
        if name == "mT":
            return call_array_function(interp, np.swapaxes, FUNCTIONS["swapaxes"], [array, const(-1), const(-2)], {})
        return call_array_function(interp, np.transpose, FUNCTIONS["transpose"], [array], {})
    raise unsupported(array, f".{name}")


def _item(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    array = args[0]
    if not array.is_array:
        raise unsupported(array, ".item()")
    if len(args) > 1 or kwargs or array.traced.spec.numel != 1:
        raise refuse("ndarray.item() with arguments")
    return interp.record(torch.Tensor.item, [tensor_of(interp, array)], {})


def _tolist(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return interp.record(torch.Tensor.tolist, [tensor_of(interp, args[0])], {})


def _fill(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 2 or not args[1].is_known_object and args[1].scalar is None:
        raise refuse("ndarray.fill() with an array")
    args[0].setitem(interp, const(Ellipsis), args[1])
    return NONE


# -- to and from torch, and new arrays ------------------------------------------------------------------------


@builtin(torch._C.TensorBase.numpy)
def _tensor_numpy(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1 or kwargs or args[0].tensor is None:
        raise refuse("Tensor.numpy() with arguments")
    return array_of_tensor(interp, args[0])


def _array_argument(args: list[Value], kwargs: dict[str, Value]) -> ArrayValue | None:
    return args[0] if len(args) == 1 and not kwargs and args[0].is_array and not args[0].is_scalar \
        else None


@builtin(torch.from_numpy)
def _from_numpy(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    array = _array_argument(args, kwargs)
    if array is None:
        raise GraphBreak("unsupported_value", "torch.from_numpy() of what tracing does not know")
    return tensor_of_array(interp, array)


def tensor_from_data(interp: Interpreter, data: Value, dtype: torch.dtype | None, *, copies: bool = False,
                     shares_numbers: bool = True) -> Value | None:
    """The tensor that torch's constructors make of an array or a scalar of numpy's, None for other data: in the same
    memory, where its dtype is not another one, unless the constructor `copies`."""
    if not data.is_array:
        return None
    if data.is_scalar and dtype is not None and not (dtype.is_floating_point and data.dtype.kind != "c"):
        return None  # refused, but for some types
    if not shares_numbers and not data.traced.ndim or data.is_scalar:
        copies = True
    if dtype is not None and dtype != data.traced.dtype:
        return interp.record(torch.Tensor.to, [tensor_of(interp, data), const(dtype)], {})
    return interp.record(torch.Tensor.clone, [tensor_of(interp, data)],
                  {}) if copies else tensor_of_array(interp, data)


def _constructor(function: Any, **how: bool) -> Any:
    """`torch.tensor` and its like, which take arrays too."""

    def handler(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
        found = None
        if function is torch.tensor and args and args[0].tensor is not None:
            found = _copy_of_tensor(interp, args, kwargs)
        elif len(args) == 1 and kwargs.keys() <= {"dtype", "device"} and _is_on_cpu(interp, kwargs.get("device", NONE)):
            dtype = kwargs.get("dtype", NONE).literal
            if dtype is None or isinstance(dtype, torch.dtype):
                found = tensor_from_data(interp, args[0], dtype, **how)
        return found if found is not None else interp.record(function, args, kwargs)

    return handler


def _copy_of_tensor(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """`torch.tensor` of a tensor: a copy without history, and a warning. None where more is asked for."""
    from ..builtins.warned import warn

    state = interp.builder.state
    given = {name: v for name, v in kwargs.items() if v.literal is not None}
    if len(args) > 1 or not given.keys() <= {"dtype", "device"} or state.transforms or state.device_of_factories:
        return None
    warn(interp, [const(_COPIED)], {})
    source = interp.record(torch.Tensor.detach, [args[0]], {})
    return interp.record(torch.Tensor.to, [source], {**given, "copy": const(True)}) if given else \
        interp.record(torch.Tensor.clone, [source], {})


_COPIED = ("To copy construct from a tensor, it is recommended to use sourceTensor.detach().clone() or "
           "sourceTensor.detach().clone().requires_grad_(True), rather than torch.tensor(sourceTensor).")


def _is_on_cpu(interp: Interpreter, device: Value) -> bool:
    """Whether a constructor with this argument makes tensors on the CPU."""
    if device.literal is None:
        return interp.builder.state.device_of_factories in (None, torch.device("cpu"))
    return device.literal in ("cpu", torch.device("cpu"))


def _converting(function: Any) -> Any:
    """`np.array` and its like, which take tensors too."""
    inner = handler_of(function)

    def handler(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
        if args and args[0].tensor is not None:
            args = [array_of_tensor(interp, args[0]), *args[1:]]
        return inner(interp, args, kwargs)

    return handler


def _making(function: Any, value: Any) -> Any:
    """`np.zeros` and its like with sizes that are symbols; `value` None takes the second argument."""
    inner = handler_of(function)
    place = 1 if value is not None else 2

    def handler(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
        sizes = args[0].listed(interp) if args and args[0].base is tuple else args[:1]
        if not any(size.expr is not None for size in sizes):
            return inner(interp, args, kwargs)
        made: dict[int, Any] = {}
        answer = asked(interp, function.__name__, function, *(fake_of(interp, a, made) for a in args),
                        **{k: fake_of(interp, v, made) for k, v in kwargs.items()})
        filled = const(value) if value is not None else args[1] if len(args) > 1 else NONE
        if answer.dtype not in TORCH_DTYPES or len(args) > place + 1 or not kwargs.keys() <= {"dtype"} or \
                not filled.is_constant:
            raise refuse(f"numpy.{function.__name__} with such arguments")
        number = const(answer.dtype.type(filled.literal).item())
        result = traced_body(interp, arrays.filled, [args[0], number, const(TORCH_DTYPES[answer.dtype])])
        return conform(interp, function.__name__, result, answer, made)

    return handler


def _like(value: Any) -> Any:
    """`np.zeros_like` and its like."""

    def handler(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
        function: Any = {0: np.zeros_like, 1: np.ones_like, None: np.full_like}[value]
        if not args or not args[0].is_array or not kwargs.keys() <= {"dtype"} or \
                len(args) > 2 + (value is None):
            raise refuse(f"numpy.{function.__name__} with such arguments")
        made: dict[int, Any] = {}
        answer = asked(interp, function.__name__, function, *(fake_of(interp, a, made) for a in args),
                        **{k: fake_of(interp, v, made) for k, v in kwargs.items()})
        if not isinstance(answer, np.ndarray) or answer.dtype not in TORCH_DTYPES:
            raise refuse(f"numpy.{function.__name__} of such an array")
        number = converted(interp, function.__name__, const(value) if value is not None else args[1], answer.dtype)
        shape = TupleValue([sym(size) for size in args[0].traced.spec.shape])
        result = interp.record(torch.Tensor.clone, [interp.record(torch.Tensor.expand, [number, shape], {})],
                        {"memory_format": const(torch.contiguous_format)})
        return conform(interp, function.__name__, result, answer, made)

    return handler


def _arange(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
    """`np.arange` of integers, one of them a symbol."""
    if not any(a.expr is not None for a in args) or kwargs or not all(a.cls is int for a in args):
        return _fold_arange(interp, args, kwargs)
    answer = asked(interp, "numpy.arange", np.arange, *(fake_of(interp, a, {}) for a in args))
    bounds = [const(0), *args, const(1)] if len(args) == 1 else [*args, const(1)][:3]
    result = traced_body(interp, arrays.counted, [*bounds, const(TORCH_DTYPES[answer.dtype])])
    return conform(interp, "numpy.arange", result, answer, {})


def _scalar_type(cls: Any) -> Any:
    """`np.float32(x)`."""
    dtype = np.dtype(cls)

    def handler(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
        if len(args) != 1 or kwargs:
            raise refuse(f"numpy.{cls.__name__} with such arguments")
        value = args[0]
        if value.is_constant or is_number(value.opaque):
            return interp.context.const_object(asked(interp, f"numpy.{cls.__name__}", cls, value.real_object(interp)))
        if value.is_array and value.traced.ndim:
            return call_array_function(interp, np.ndarray.astype, arrays.METHODS["astype"], [value, const(dtype)], {})
        tensor = converted(interp, f"numpy.{cls.__name__}", value, dtype)
        made = interp.record(torch.Tensor.clone, [tensor], {})
        return ArrayValue(made.traced, cls)  # type: ignore[attr-defined]

    return handler


def _absolute(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
    return call_ufunc(interp, np.absolute, list(args), kwargs)


def _register() -> None:
    function: Any
    builtin(torch.tensor)(_constructor(torch.tensor, copies=True))
    builtin(torch.as_tensor)(_constructor(torch.as_tensor))
    builtin(torch.asarray)(_constructor(torch.asarray, shares_numbers=False))
    for function in (np.array, np.asarray, np.asanyarray, np.ascontiguousarray):
        builtin(function)(_converting(function))
    for function, value in ((np.zeros, 0), (np.ones, 1), (np.full, None)):
        builtin(function)(_making(function, value))
    for function, value in ((np.zeros_like, 0), (np.ones_like, 1), (np.full_like, None)):
        builtin(function)(_like(value))
    builtin(np.arange)(_arange)
    for owner in (np.ndarray, np.generic):
        builtin(owner.item)(_item)
        builtin(owner.tolist)(_tolist)
    builtin(np.ndarray.fill)(_fill)
    for dtype in TORCH_DTYPES:
        builtin(dtype.type)(_scalar_type(dtype.type))
        builtin(dtype.type.__abs__)(_absolute)
    builtin(np.ndarray.__abs__)(_absolute)


# -- code -----------------------------------------------------------------------------------------------------


@builds(ArrayValue)
def _build_array(emitter: Emitter, value: ArrayValue) -> None:
    emitter.make(value, to_scalar if value.is_scalar else to_array, lambda: emitter._load_live(value.traced))


@builds(ArrayIterator)
def _build_iterator(emitter: Emitter, value: ArrayIterator) -> None:
    emitter.make(value, _advanced, value.of, lambda: emitter.const(value.index))


def _advanced(array: Any, count: int) -> Any:
    """An iterator over an array, some steps in (run by compiled code)."""
    iterator = iter(array)
    iterator.__setstate__(count)
    return iterator


attributes_of(ArrayValue, get=load_attr)
_fold_arange = handler_of(np.arange)
_register()

__all__ = ["load_attr"]
