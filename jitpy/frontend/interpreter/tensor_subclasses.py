"""Torch calls on tensors whose class says itself what torch makes of them.

A call asks the classes of its arguments for `__torch_function__` first, as torch's bindings do. Where that is switched
off, or torch's own, C++ runs the call on stand-ins of the arguments: it decides which ATen operations they come to.
Each of these operations goes to the class's `__torch_dispatch__`, which is traced like any method.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import types
from collections.abc import Iterator
from typing import Any

import torch

from ..breaks import GraphBreak
from ..values import (
    Interpreter,
    ListValue,
    TupleValue,
    Value,
)
from ..values.tensor import overloads_torch
from ..values.tree import dict_of
from .callees import Args, Kwargs


def call_overloaded(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    """The result of a torch call that classes of its arguments answer; NotImplemented for any other call."""
    found = [value for value in tensors_in(interp, (*args, *kwargs.values())) if value.overloads]
    if not found or fn in unasked:
        return NotImplemented
    asked = [value for value in found if asks_class(interp, value)]
    if asked:
        fn, args, kwargs = _as_called(interp, fn, args, kwargs)
        return call_function(interp, interp.context.const_object(fn), asked, args, kwargs)
    if not any(value.has_dispatch for value in found):
        return NotImplemented
    return _Dispatch(interp).run(fn, args, kwargs)


def is_overloaded(interp: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Whether the class of an argument says what torch makes of a call."""
    return interp.context.has_overloads and any(
        value.overloads for value in tensors_in(interp, (*args, *kwargs.values())))


def tensors_in(interp: Interpreter, values: Any) -> Iterator[Value]:
    """The arguments, and what is in lists and tuples among them, as torch looks for tensors."""
    for value in values:
        items = value.branches(interp)
        yield from (value,) if items is None else items


#: functions of torch's that ask no class
unasked: set[Any] = set()


# -- `__torch_function__` -------------------------------------------------------------------------------------


def is_function_enabled(interp: Interpreter) -> bool:
    """Whether classes are asked for `__torch_function__`."""
    state = interp.builder.state
    return state.asks_classes and not state.function_blocks


def asks_class(interp: Interpreter, value: Value) -> bool:
    """Whether the class of a tensor is asked for `__torch_function__`."""
    return overloads_torch(value.cls) and is_function_enabled(interp)


def call_function(interp: Interpreter, fn: Value, asked: list[Value], args: Args, kwargs: Kwargs) -> Any:
    """The answer of the first `__torch_function__` that has one."""
    context = interp.context
    classes = _in_order(interp, asked)
    given = [fn, TupleValue([context.const_object(cls) for cls in classes]), TupleValue(args)]
    if kwargs:
        given.append(dict_of(interp, kwargs))
    return _first_answer(interp, "__torch_function__", classes, given)


def _first_answer(interp: Interpreter, method: str, classes: list[type], given: Args) -> Value:
    for cls in classes:
        hook = interp.finish_sync(interp.getattr(interp.context.const_object(cls), method))
        with interp.calling_ordinarily():
            answer = interp.call_sync(hook, list(given))
        if answer.literal is not NotImplemented and answer.opaque is not NotImplemented:
            return answer
    raise GraphBreak("exception", f"{given[0].describe()}, which no {method} of its arguments answers")


def _in_order(interp: Interpreter, values: list[Value]) -> list[type]:
    """The classes in the order in which torch asks them: from left to right, derived ones before their bases."""
    order: list[type] = []
    for cls in dict.fromkeys(value.cls for value in values):
        place = next((i for i, other in enumerate(order) if other in interp.context.mro(cls)), len(order))
        order.insert(place, cls)
    return order


class _Asked(torch.Tensor):
    """Tells which function torch names for an operator."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func, args


#: functions whose results are no tensors of the class
NOT_CONVERTED = torch.overrides.get_default_nowrap_functions()
_OPERATORS = frozenset(getattr(operator, name) for name in operator.__all__)


@functools.cache
def _function_named(fn: Any, kinds: tuple[type, ...]) -> tuple[Any, tuple[int, ...]]:
    """The function that torch names for an operator or a slot, and which operands become its arguments."""
    operands = [1 if kind is int else torch.empty(()).as_subclass(kind) for kind in kinds]
    try:
        func, args = fn(*operands)
    except TypeError:
        raise GraphBreak("unsupported_call", f"{fn} on a tensor subclass") from None
    return func, tuple(next(i for i, one in enumerate(operands) if one is arg) for arg in args)


def _as_called(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> tuple[Any, Args, Kwargs]:
    """The call as `__torch_function__` is told of it."""
    if kwargs or not (isinstance(fn, types.WrapperDescriptorType) or
                      isinstance(fn, types.BuiltinFunctionType) and fn in _OPERATORS):
        return fn, args, kwargs
    func, order = _function_named(fn, tuple(
        _Asked if value.overloads else int if value.outline is None else torch.Tensor for value in args))
    return func, [args[i] for i in order], {}


# -- `__torch_dispatch__` -------------------------------------------------------------------------------------


class _Pending(Exception):
    """An ATen operation whose result is not known yet."""

    def __init__(self, func: Any, args: Any, kwargs: Any) -> None:
        super().__init__(str(func))
        self.call = func, args, kwargs


class _StandIn(torch.Tensor):
    """A tensor with the metadata of a traced one."""

    dispatch: _Dispatch

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[attr-defined]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _Dispatch.active[-1].answer(func, args, kwargs or {})


class _Dispatch:
    """One torch call on tensors with a `__torch_dispatch__`.

    C++ makes the call once more for each ATen operation that it comes to, with the results of those before. So no code
    of the program's is traced while the dispatcher of torch is at work.
    """

    active: list[_Dispatch] = []

    def __init__(self, interp: Interpreter) -> None:
        self.interp = interp
        self.results: list[Value] = []
        self.next = 0
        self.known: dict[int, tuple[torch.Tensor, Value]] = {}

    def run(self, fn: Any, args: Args, kwargs: Kwargs) -> Value:
        while True:
            self.next = 0
            self.known.clear()
            given = [self._stand_in(value) for value in args]
            named = {name: self._stand_in(value) for name, value in kwargs.items()}
            try:
                with self._under_torch():
                    result = fn(*given, **named)
            except _Pending as pending:
                func, pending_args, pending_kwargs = pending.call
                values = [self._value(arg) for arg in pending_args]
                self.results.append(self._traced(func, values, {k: self._value(v) for k, v in pending_kwargs.items()}))
                continue
            except Exception as error:
                raise GraphBreak("exception", f"{getattr(fn, '__name__', fn)}: {error}") from None
            return self._result(fn, result)

    @contextlib.contextmanager
    def _under_torch(self) -> Iterator[None]:
        builder = self.interp.builder
        below = torch._C._AutoDispatchBelowAutograd() if builder.state.below_autograd else contextlib.nullcontext()
        self.active.append(self)
        try:
            with builder.state.active(), below, torch._C.DisableTorchFunctionSubclass():
                yield
        finally:
            self.active.pop()

    def answer(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Answer an ATen operation that C++ calls: with a stand-in of the result, where that is known."""
        self.next += 1
        if self.next > len(self.results):
            raise _Pending(func, args, kwargs)
        return self._stand_in(self.results[self.next - 1])

    def _traced(self, func: Any, args: Args, kwargs: Kwargs) -> Value:
        """Trace an ATen operation: the `__torch_dispatch__` of its arguments' classes, or a node."""
        interp, context = self.interp, self.interp.context
        found = [value for value in tensors_in(interp, (*args, *kwargs.values())) if value.has_dispatch]
        if not found:
            return interp.record(func, args, kwargs)
        classes = _in_order(interp, found)
        given = [context.const_object(func), TupleValue([context.const_object(cls) for cls in classes]),
                 TupleValue(args), dict_of(interp, kwargs)]
        state = interp.builder.state
        state.below_autograd += 1
        try:
            return _first_answer(interp, "__torch_dispatch__", classes, given)
        finally:
            state.below_autograd -= 1

    def _result(self, fn: Any, result: Any) -> Value:
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor) and (
                    tensor.requires_grad and tensor.grad_fn is not None
                    or not tensor.requires_grad and self._value(tensor).outline.requires_grad):
                name = getattr(fn, "__name__", fn)
                raise GraphBreak("autograd", f"{name}, whose gradient is made above __torch_dispatch__")
        return self._value(result)

    # -- values and real objects

    def _stand_in(self, value: Value) -> Any:
        spec = value.outline
        if spec is not None:
            found = next((known for known, of in self.known.values() if of is value), None)
            if found is None:
                found = self._tensor(spec)
                self.known[id(found)] = found, value
            return found
        made = value.unpacked(self.interp, self._stand_in)
        return value.constant(self.interp) if made is None else made

    def _tensor(self, spec: Any) -> torch.Tensor:
        def fixed(size: Any) -> int:
            return size if type(size) is int else self.interp.context.specialize(size, "a size that C++ looks at")

        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined,no-any-return]
            _StandIn, tuple(map(fixed, spec.shape)), strides=tuple(map(fixed, spec.stride)),
            storage_offset=fixed(spec.offset), dtype=spec.dtype, device=spec.device, requires_grad=spec.requires_grad)

    def _value(self, obj: Any) -> Value:
        if isinstance(obj, torch.Tensor):
            if id(obj) not in self.known:
                raise GraphBreak("unsupported_op", "a tensor that C++ makes of one with a __torch_dispatch__")
            return self.known[id(obj)][1]
        if type(obj) is list:
            return ListValue(list(map(self._value, obj)))
        if isinstance(obj, tuple):
            return TupleValue(list(map(self._value, obj)), None, type(obj))
        return self.interp.context.const_object(obj)
