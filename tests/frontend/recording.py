"""Run plain PyTorch functions through the graph builder, without bytecode: proxies stand in for tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from jitpy.frontend.capture.graph_builder import (
    Finished,
    StructPayload,
    TracedGraphBuilder,
    TracedScalar,
    TracedTensor,
)
from jitpy.frontend.guards.guard_set import GuardSet
from jitpy.frontend.guards.source import LocalSource
from jitpy.ir import SizeEnv
from jitpy.ir.interpret import interpret


class Proxy:
    """A payload with a tensor's operators, methods and attributes."""

    def __init__(self, builder: TracedGraphBuilder, payload: Any) -> None:
        self.__dict__["builder"] = builder
        self.__dict__["payload"] = payload

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("the mode comes first")

    def __getattr__(self, name: str) -> Any:
        method = getattr(torch.Tensor, name)
        if callable(method):
            return lambda *args, **kwargs: call(self.builder, method, (self, *args), kwargs)
        with torch._C.DisableTorchFunction():
            return to_proxy(self.builder, self.builder.attribute(self.payload, name))

    def __len__(self) -> int:
        return self.payload.shape[0]

    def __iter__(self) -> Any:
        return iter(self.unbind(0))

    __hash__ = object.__hash__


def _operator(name: str) -> Callable[..., Any]:
    def method(self: Proxy, *args: Any) -> Any:
        return call(self.builder, getattr(torch.Tensor, name), (self, *args), {})

    return method


for _name in (
    "add sub mul truediv floordiv mod pow matmul and or xor radd rsub rmul rtruediv rfloordiv rmod rpow rmatmul "
    "rand ror rxor iadd isub imul itruediv ifloordiv imod ipow iand ior ixor neg pos abs invert eq ne lt le gt ge "
    "getitem setitem lshift rshift ilshift irshift"
).split():
    if hasattr(torch.Tensor, f"__{_name}__"):
        setattr(Proxy, f"__{_name}__", _operator(f"__{_name}__"))


def find_proxies(value: Any) -> list[Proxy]:
    if isinstance(value, Proxy):
        return [value]
    if isinstance(value, (tuple, list)):
        return [p for v in value for p in find_proxies(v)]
    if isinstance(value, dict):
        return find_proxies(tuple(value.values()))
    if isinstance(value, slice):
        return find_proxies((value.start, value.stop, value.step))
    return []


def to_payload(value: Any) -> Any:
    if isinstance(value, Proxy):
        return value.payload
    if type(value) in (tuple, list):
        return type(value)(map(to_payload, value))
    if isinstance(value, torch.Size):
        return tuple(value)
    if isinstance(value, tuple):
        return StructPayload(type(value), tuple(map(to_payload, value)))
    if isinstance(value, dict):
        return {k: to_payload(v) for k, v in value.items()}
    if isinstance(value, slice):
        return slice(to_payload(value.start), to_payload(value.stop), to_payload(value.step))
    return value


def to_proxy(builder: TracedGraphBuilder, value: Any) -> Any:
    if isinstance(value, (TracedTensor, TracedScalar)):
        known = builder.__dict__.setdefault("proxies", {})
        return known.setdefault(id(value), Proxy(builder, value))
    if isinstance(value, (tuple, list)):
        return type(value)(to_proxy(builder, v) for v in value)
    if isinstance(value, StructPayload):
        return value.cls(to_proxy(builder, v) for v in value.items)
    return value


def call(builder: TracedGraphBuilder, fn: Any, args: Any, kwargs: Any) -> Any:
    with torch._C.DisableTorchFunction():
        return to_proxy(builder, builder.call(fn, to_payload(args), to_payload(kwargs)))


class Calls(TorchFunctionMode):
    """Sends every torch call to the graph builder."""

    def __init__(self, builder: TracedGraphBuilder) -> None:
        super().__init__()
        self.builder = builder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(self.builder, func, args, kwargs or {})


class Recording:
    """A recorded function, callable like it."""

    def __init__(self, fn: Callable[..., Any], *args: Any, dims: Any = None) -> None:
        self.builder = TracedGraphBuilder(SizeEnv(), GuardSet())
        proxies = tuple(self._input(a, i, dims) for i, a in enumerate(args))
        with Calls(self.builder):
            result = fn(*proxies)
        self.structure = to_payload(result)
        self.live: list[Any] = []
        _collect(self.structure, self.live)
        self.finished: Finished = self.builder.finish(self.live)
        self.graph = self.builder.graph

    def _input(self, value: Any, index: int, dims: Any) -> Any:
        if isinstance(value, torch.Tensor):
            axes = None if dims is None else dims[index]
            return Proxy(self.builder, self.builder.tensor_input(value, LocalSource(index, f"arg{index}"), axes))
        if isinstance(value, (tuple, list)):
            return type(value)(self._input(v, index * 100 + i, dims) for i, v in enumerate(value))
        return value

    def __call__(self, *args: Any) -> Any:
        inputs: dict[int, torch.Tensor] = {}
        for i, arg in enumerate(args):
            _by_source(arg, i, inputs)
        tensors = [inputs[node.meta["source"].index] for node in self.graph.inputs]
        outputs = interpret(self.graph, tensors)
        values = [tensors[k] if place == "input" else outputs[k] for place, k in self.finished.places]
        return _rebuild(self.structure, iter(values))


def _by_source(value: Any, index: int, into: dict[int, torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        into[index] = value
    elif isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            _by_source(item, index * 100 + i, into)


def _collect(value: Any, into: list[Any]) -> None:
    if isinstance(value, (TracedTensor, TracedScalar)):
        into.append(value)
    elif isinstance(value, (tuple, list)):
        for item in value:
            _collect(item, into)
    elif isinstance(value, dict):
        _collect(tuple(value.values()), into)
    elif isinstance(value, StructPayload):
        _collect(value.items, into)


def _rebuild(value: Any, values: Any) -> Any:
    if isinstance(value, (TracedTensor, TracedScalar)):
        return next(values)
    if isinstance(value, (tuple, list)):
        return type(value)([_rebuild(v, values) for v in value])
    if isinstance(value, dict):
        return {k: _rebuild(v, values) for k, v in value.items()}
    if isinstance(value, StructPayload):
        return value.cls([_rebuild(v, values) for v in value.items])
    return value
