"""Calls of numpy while tracing: each becomes torch calls on the tensors of the arrays.

The form of a result (an array or a scalar, its dtype, its layout, whether it looks at an operand's memory) is numpy's
own answer: the function is called on fakes of the same types and layouts. `polyfills/arrays.py` says how torch
computes the numbers. Where the two cannot be brought together, or numpy itself refuses, the graph breaks.
"""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ...guards.source import constant
from ...interpreter.callees import builtin
from ...interpreter.frame import TracedException
from ...polyfills import arrays
from ...polyfills.arrays import FUNCTIONS, METHODS, UFUNCS, Counterpart
from ...values import (
    NUMPY_DTYPES,
    TORCH_DTYPES,
    ArrayValue,
    ConstValue,
    Interpreter,
    ListValue,
    NotConstant,
    ScalarValue,
    SymValue,
    TensorValue,
    TupleValue,
    Value,
    const,
    is_number,
)
from ...values.array import refuse
from ...values.tree import tree_iter, tree_unpack
from .array_values import errors_are_silent

_aten = torch.ops.aten
_CPU = torch.device("cpu")  # whatever the default device is
_NUMBERS = (ConstValue, SymValue, ScalarValue)

#: Arrays of constants up to this size are part of the code.
_CONSTANT_BYTES = 1 << 16


def _name(function: Any) -> str:
    owner = getattr(function, "__objclass__", None)
    return f"{owner.__name__ if owner is not None else 'numpy'}.{getattr(function, '__name__', function)}"


# -- arrays and tensors ---------------------------------------------------------------------------------------


def tensor_of(interp: Interpreter, value: ArrayValue) -> TensorValue:
    """The tensor of an array, as a Value."""
    return interp.context.tensor_value(value.traced)


def array_of_tensor(interp: Interpreter, value: TensorValue) -> ArrayValue:
    """`tensor.numpy()`: a new array in the same memory."""
    spec = value.traced.spec
    if spec.requires_grad or spec.dtype not in TORCH_DTYPES.values() or spec.device.type != "cpu" or \
            any(value.traced.lazy_bits) or interp.builder.state.transforms:
        raise refuse("Tensor.numpy() of such a tensor")
    return ArrayValue(_alias(interp, value.traced), np.ndarray)


def tensor_of_array(interp: Interpreter, value: ArrayValue) -> TensorValue:
    """`torch.from_numpy(array)`: a new tensor in the same memory."""
    return interp.context.tensor_value(_alias(interp, value.traced))


def _alias(interp: Interpreter, traced: Any) -> Any:
    with interp.recording("numpy()"):
        return interp.builder.record(_aten.alias.default, (traced,), {})


def constant_array(interp: Interpreter, array: Any) -> Value:
    """The Value of an array or scalar that numpy made of constants, anew at each call."""
    if is_number(array):
        return interp.context.const_object(array)
    if array.dtype not in TORCH_DTYPES or type(array) is not np.ndarray or array.nbytes > _CONSTANT_BYTES:
        raise refuse(f"a constant array of {array.dtype}")
    kept = torch.from_numpy(np.array(array, order="K"))
    with interp.recording("a constant array"):
        node = interp.builder.emit(_aten.clone.default, (interp.builder.constant(kept),), {})
        return ArrayValue(interp.builder.fresh(node), np.ndarray)


# -- numpy's own answer ---------------------------------------------------------------------------------------


def fake_of(interp: Interpreter, value: Any, made: dict[int, tuple[ArrayValue, Any]]) -> Any:
    """A real object with the type and layout of what a Value stands for; `made` keeps those of arrays."""
    value = interp.context.force(value)
    if not value.is_array:
        return value.numpy_fake(interp, lambda part: fake_of(interp, part, made))
    if id(value) not in made:
        made[id(value)] = value, _array_like(interp, value)
    return made[id(value)][1]


def _array_like(interp: Interpreter, value: ArrayValue) -> Any:
    """Zeros (which are good as indices) and ones, laid out as the array."""
    spec, dtype = value.traced.spec, value.dtype
    shape, stride = interp.builder.sizes.hints(spec.shape), interp.builder.sizes.hints(spec.stride)
    fill = 1 if dtype.kind in "fcb" else 0
    if value.is_scalar:
        return dtype.type(fill)
    extent = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) if 0 not in shape else 0
    memory = np.full(max(extent, 1), fill, dtype)
    return np.lib.stride_tricks.as_strided(memory, shape, [step * dtype.itemsize for step in stride])


def asked(interp: Interpreter, what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Numpy's answer on fakes; what it refuses, it may refuse itself."""
    if not errors_are_silent(np):
        raise refuse(f"{what} where floating-point errors raise")
    interp.context.guards.add(constant(np, "numpy"), "python", errors_are_silent, "numpy")
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function(*args, **kwargs)
        except Exception as error:
            raise refuse(f"{what}: {type(error).__name__}") from None


# -- results --------------------------------------------------------------------------------------------------


def conform(interp: Interpreter, what: str, result: Value, answer: Any,
            made: dict[int, tuple[ArrayValue, Any]]) -> Value:
    """Torch's result, as the object that numpy would have returned."""
    if isinstance(answer, (tuple, list)):
        items = result.listed(interp)
        if items is None or len(items) != len(answer):
            raise refuse(f"{what} with several results")
        parts = [conform(interp, what, item, part, made) for item, part in zip(items, answer, strict=True)]
        return TupleValue(parts) if isinstance(answer, tuple) else ListValue(parts)
    if result.tensor is None or not (is_number(answer) or type(answer) is np.ndarray):
        raise refuse(f"{what}, which returns a {type(answer).__name__}")
    for operand, fake in made.values():
        if answer is fake and not operand.is_scalar:
            return operand
    sizes, spec = interp.builder.sizes, result.traced.spec
    if spec.dtype is not TORCH_DTYPES.get(answer.dtype) or sizes.hints(spec.shape) != answer.shape:
        raise refuse(f"{what}, of which torch makes another shape or type")
    shared = [operand for operand, fake in made.values() if not operand.is_scalar
              and not is_number(answer) and np.may_share_memory(answer, fake)]
    if shared:
        fake = made[id(shared[0])][1]
        _check_view(interp, what, result, answer, shared[0], fake)
        return ArrayValue(_alias(interp, result.traced), np.ndarray)
    if any(result.traced.storage is operand.traced.storage for operand, _ in made.values()) or result.traced.chain:
        result = interp.context.tensor_value(_called(interp, torch.Tensor.clone, [result]).traced)
        spec = result.traced.spec
    if is_number(answer):
        return ArrayValue(result.traced, type(answer))
    wanted = tuple(step // answer.itemsize for step in answer.strides)
    if _moving(spec.shape, sizes.hints(spec.stride)) != _moving(answer.shape, wanted):
        order = sorted(range(answer.ndim), key=lambda axis: (-wanted[axis], axis))
        result = traced_body(interp, arrays.as_laid_out, [result, TupleValue([*map(const, order)])])
        if _moving(answer.shape, sizes.hints(result.traced.spec.stride)) != _moving(answer.shape, wanted):
            raise refuse(f"{what}, of which torch makes another layout")
    return ArrayValue(result.traced, np.ndarray)


def _moving(shape: Any, strides: Any) -> list[Any]:
    """The strides that address anything."""
    return [] if 0 in shape else [s for n, s in zip(shape, strides, strict=True) if n != 1]


def _check_view(interp: Interpreter, what: str, result: TensorValue, answer: Any, operand: ArrayValue,
                fake: Any) -> None:
    """The tensor looks at the operand's memory just as numpy's array does."""
    sizes, spec, base = interp.builder.sizes, result.traced.spec, operand.traced.spec
    start = answer.__array_interface__["data"][0] - fake.__array_interface__["data"][0]
    strides = [step * answer.itemsize for step in sizes.hints(spec.stride)]
    offset = (sizes.hint(spec.offset) - sizes.hint(base.offset)) * answer.itemsize
    if not answer.flags.writeable or result.traced.storage is not operand.traced.storage or offset != start and \
            answer.size or _moving(answer.shape, strides) != _moving(answer.shape, answer.strides):
        raise refuse(f"{what}, which looks at memory in a way that torch does not")


# -- operands -------------------------------------------------------------------------------------------------


def traced_body(interp: Interpreter, body: Any, args: list[Value], kwargs: dict[str, Value] | None = None) -> Value:
    """Trace a body, or a function of torch's. Where torch refuses, numpy may have something else to say."""
    try:
        return interp.call_sync(interp.context.const_object(body), args, kwargs)
    except TracedException:
        raise refuse(f"numpy, where torch raises in {getattr(body, '__name__', body)}") from None


def _called(interp: Interpreter, function: Any, args: list[Value], kwargs: dict[str, Value] | None = None) -> Any:
    return interp.record(function, args, kwargs or {})


def check_kind(what: str, entry: Counterpart, *dtypes: Any) -> None:
    for dtype in dtypes:
        kind = "i" if dtype.kind == "u" else dtype.kind
        allowed = kind in entry.kinds or kind == "f" and dtype.itemsize > 2 and "d" in entry.kinds
        if dtype not in TORCH_DTYPES or not allowed:
            raise refuse(f"{what} of {dtype}")


def converted(interp: Interpreter, what: str, value: Value, dtype: Any, number: bool = False) -> Value:
    """An operand as a tensor of a dtype, or, where `number` says so, perhaps as a Python number that has the value."""
    if dtype not in TORCH_DTYPES:
        raise refuse(f"{what}, which computes in {dtype}")
    if value.is_array:
        tensor = tensor_of(interp, value)
        if value.dtype == dtype:
            return tensor
        _check_cast(what, value.dtype, dtype)
        return _called(interp, torch.Tensor.to, [tensor, const(TORCH_DTYPES[dtype])])
    if value.is_constant or is_number(value.opaque):
        real = value.real_object(interp)
        value = const((real.astype(dtype) if is_number(real) else dtype.type(real)).item())
    elif value.is_computed and value.cls in (int, float) and dtype == np.float32:
        # by way of float64, as numpy does it; too large ones are infinite, which torch.full refuses
        return _called(interp, torch.Tensor.to, [_filled(interp, value, np.dtype("float64")), const(torch.float32)])
    elif not value.is_computed or dtype.itemsize != 8 or dtype.kind != ("i" if value.cls is int else "f"):
        raise refuse(f"{what} with a {value.cls.__name__}")
    return value if number else _filled(interp, value, dtype)


def _filled(interp: Interpreter, number: Value, dtype: Any) -> Value:
    """A number as a tensor."""
    options: dict[str, Value] = {"dtype": const(TORCH_DTYPES[dtype]), "device": const(_CPU)}
    return _called(interp, torch.full, [TupleValue([]), number], options)


def _check_cast(what: str, source: Any, target: Any) -> None:
    """Casts of numbers that the target cannot hold: what comes out differs between numpy and torch."""
    if source.kind == "c" and target.kind != "c" or source.kind == "f" and (
            target.kind == "u" or target.kind == "i" and target.itemsize < 4):
        raise refuse(f"{what}: a cast from {source} to {target}")


def _in_place(interp: Interpreter, what: str, target: ArrayValue, value: Value) -> Value:
    """`target[...] = value`, of equal shapes or broadcast."""
    value = own_copy(interp, target, value)
    _called(interp, torch.Tensor.copy_, [tensor_of(interp, target), value])
    return target


def own_copy(interp: Interpreter, target: ArrayValue, value: Value) -> Value:
    """A value that is to be written: numpy reads all of it first."""
    if value.tensor is not None and value.tensor.storage is target.traced.storage:
        return _called(interp, torch.Tensor.clone, [value])
    return value


# -- calls ----------------------------------------------------------------------------------------------------


def call_array_function(
    interp: Interpreter, function: Any, entry: Counterpart, args: list[Value], kwargs: dict[str, Value]
) -> Any:
    """A function or method of numpy's that has a counterpart."""
    what = _name(function)
    folded = _folded(interp, what, function, args, kwargs)
    if folded is not None:
        return folded
    made: dict[int, tuple[ArrayValue, Any]] = {}
    answer = asked(interp, what, function, *(fake_of(interp, a, made) for a in args),
                    **{k: fake_of(interp, v, made) for k, v in kwargs.items()})
    named = dict(kwargs)
    out = named.pop("out", None)
    for name in ("dtype", "order", "casting"):
        named.pop(name, None)  # the answer shows what they do
    if function in _DTYPE_SECOND and len(args) > _DTYPE_SECOND[function]:
        args = args[: _DTYPE_SECOND[function]]
    first = answer[0] if isinstance(answer, (tuple, list)) and answer else answer
    if not isinstance(first, (np.ndarray, np.generic)):
        raise refuse(f"{what}, which returns a {type(first).__name__}")
    signature = inspect.signature(entry.body)
    try:
        bound = signature.bind(*args, **named)
    except TypeError:
        raise refuse(f"{what} with such arguments") from None
    if "a" in bound.arguments:
        bound.arguments["a"] = _as_array(interp, bound.arguments["a"])
    given: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        given[name] = _operand(interp, what, entry, name, value, first.dtype)
    bound.arguments.update(given)
    check_kind(what, entry, first.dtype, *_dtypes(interp, [v for n, v in given.items() if n not in entry.converted]))
    result = traced_body(interp, entry.body, list(bound.args), dict(bound.kwargs))
    if out is not None and out.is_array:
        return _in_place(interp, what, out, result)
    return conform(interp, what, result, answer, made)


def _dtypes(interp: Interpreter, values: list[Any]) -> list[Any]:
    """Those of the tensors among a body's arguments."""
    parts = [part for value in values for part in (value if isinstance(value, tuple) else (value,))]
    tensors = [leaf.tensor for part in parts for leaf in tree_iter(interp, part)]
    return [NUMPY_DTYPES[tensor.dtype] for tensor in tensors if tensor is not None]


#: functions of which an optional dtype is a positional parameter behind so many others
_DTYPE_SECOND: dict[Any, int] = {np.array: 1, np.asarray: 1, np.ascontiguousarray: 1, np.ndarray.astype: 1,
                                 np.generic.astype: 1, np.sum: 2, np.mean: 2, np.ndarray.sum: 2, np.ndarray.mean: 2}


def _operand(interp: Interpreter, what: str, entry: Counterpart, name: str, value: Any, dtype: Any) -> Any:
    """An argument as the body takes it."""
    if isinstance(value, tuple):  # of a parameter `*values`
        return tuple(_operand(interp, what, entry, name, item, dtype) for item in value)
    value = interp.context.force(value)
    items = value.listed(interp)
    if items is not None:
        return type(value)([_operand(interp, what, entry, name, item, dtype) for item in items])
    if name in entry.converted and value.literal is not None:
        return converted(interp, what, value, dtype)
    if value.is_array:
        return tensor_of(interp, value)
    return const(interp.context.pin(value).item()) if is_number(value.opaque) else value


def _folded(interp: Interpreter, what: str, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """numpy's result for constants."""
    try:
        real = [_constant(interp, a) for a in args]
        named = {k: _constant(interp, v) for k, v in kwargs.items()}
    except NotConstant:
        return None
    return _lifted(interp, what, asked(interp, what, function, *real, **named))


def _lifted(interp: Interpreter, what: str, answer: Any) -> Value:
    if isinstance(answer, (np.ndarray, np.generic)):
        return constant_array(interp, answer)
    if isinstance(answer, (bool, int, float, complex, str, np.dtype, type(None))):
        return const(answer)
    if isinstance(answer, (tuple, list)):
        parts = [_lifted(interp, what, part) for part in answer]
        return TupleValue(parts) if isinstance(answer, tuple) else ListValue(parts)
    raise refuse(f"{what}, which returns a {type(answer).__name__}")


def _constant(interp: Interpreter, value: Value) -> Any:
    return tree_unpack(interp, lambda leaf: interp.context.pin(leaf) if is_number(leaf.opaque) else
                       leaf.folded(interp), value)


def call_ufunc(interp: Interpreter, ufunc: Any, args: list[Value], kwargs: dict[str, Value],
               out: Value | None = None) -> Any:
    """An elementwise function (or matmul), in the dtype that numpy computes in."""
    what, entry = _name(ufunc), UFUNCS[ufunc.__name__]
    named = dict(kwargs)
    out = named.pop("out", out)
    if len(args) == ufunc.nin + 1 and out is None:
        out = args.pop()
    dtype = named.pop("dtype", None)
    if named or len(args) != ufunc.nin or out is not None and (not out.is_array or out.is_scalar):
        raise refuse(f"{what} with such arguments")
    args = [_as_array(interp, a) for a in args]
    options: dict[str, Any] = {} if dtype is None else {"dtype": _constant(interp, dtype)}
    if out is None and not any(a.is_array or a.is_computed for a in args):
        folded = _folded(interp, what, ufunc, args, {} if dtype is None else {"dtype": dtype})
        if folded is not None:
            return folded
    made: dict[int, tuple[ArrayValue, Any]] = {}
    fakes = [fake_of(interp, a, made) for a in args]
    target = fake_of(interp, out, {}) if out is not None else None
    answer = asked(interp, what, ufunc, *fakes, **options, **({} if target is None else {"out": target}))
    if not isinstance(answer, (np.ndarray, np.generic)):
        raise refuse(f"{what}, which returns a {type(answer).__name__}")
    loop = _loop(what, ufunc, fakes, target, options)
    check_kind(what, entry, *loop[: ufunc.nin])
    operands = [converted(interp, what, a, d, number=bool(i) and ufunc is not np.matmul and
                          ufunc.__name__ in _WITH_NUMBERS)
                for i, (a, d) in enumerate(zip(args, loop, strict=False))]
    result = traced_body(interp, entry.body, operands)
    if out is None:
        return conform(interp, what, result, answer, made)
    _check_cast(what, loop[-1], out.dtype)
    return _in_place(interp, what, out, result)


#: functions whose bodies take a Python number as their second operand
_WITH_NUMBERS = frozenset({"add", "subtract", "multiply", "divide", "true_divide", "floor_divide", "remainder", "mod",
                           "power", "less", "less_equal", "greater", "greater_equal", "equal", "not_equal"})


def _loop(what: str, ufunc: Any, operands: list[Any], out: Any, options: dict[str, Any]) -> tuple[Any, ...]:
    """The dtypes of the operands and of the result while numpy computes."""
    kinds = [type(o) if type(o) in (int, float, complex) else np.asarray(o).dtype for o in operands]
    signature = (None,) * ufunc.nin + (np.dtype(options["dtype"]),) if options else None
    return _resolved(what, ufunc, (*kinds, None if out is None else out.dtype), signature)


def _resolved(what: str, ufunc: Any, kinds: tuple[Any, ...], signature: Any) -> tuple[Any, ...]:
    try:
        return ufunc.resolve_dtypes(kinds, **({} if signature is None else {"signature": signature}))
    except (TypeError, ValueError):
        raise refuse(f"{what} of such types") from None


def _as_array(interp: Interpreter, value: Value) -> Value:
    """A list of numbers as the array that numpy makes of it."""
    if value.base in (list, tuple) and value.cls is value.base:
        return call_array_function(interp, np.array, FUNCTIONS["array"], [value], {})
    return value


def _handler(function: Any, entry: Counterpart) -> Any:
    def handler(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
        return call_array_function(interp, function, entry, args, kwargs)

    return handler


def _ufunc_handler(ufunc: Any) -> Any:
    def handler(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
        return call_ufunc(interp, ufunc, list(args), kwargs)

    return handler


def _folding(function: Any) -> Any:
    """A function that is pure, and captured where its arguments are constants."""

    def handler(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
        folded = _folded(interp, _name(function), function, args, kwargs)
        if folded is None:
            raise refuse(f"{_name(function)} of what is no constant")
        return folded

    return handler


_FOLDED = (np.linspace, np.eye, np.identity, np.arange, np.zeros, np.ones, np.full, np.dtype, np.issubdtype,
           np.result_type, np.promote_types, np.can_cast, np.logspace, np.tri, np.hanning, np.hamming, np.isscalar)


def _register() -> None:
    for name, entry in FUNCTIONS.items():
        function = operator.attrgetter(name)(np)
        builtin(function)(_handler(function, entry))
    for name, entry in METHODS.items():
        for owner in (owner for owner in (np.ndarray, np.generic) if hasattr(owner, name)):
            builtin(getattr(owner, name))(_handler(getattr(owner, name), entry))
    for name in UFUNCS:
        builtin(getattr(np, name))(_ufunc_handler(getattr(np, name)))
    for function in _FOLDED:
        builtin(function)(_folding(function))


_register()
