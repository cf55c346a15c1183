"""Tensor subclasses as programs write them."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map_only

import jitpy

aten = torch.ops.aten


class Scaled(torch.Tensor):
    """int8 data and a scale for each row: dequantised for every operation, but for those of `TABLE`."""

    TABLE: dict = {}
    calls: list = []

    def __new__(cls, data, scale, note="plain"):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=scale.dtype, device=data.device)

    def __init__(self, data, scale, note="plain"):
        self.data8 = data
        self.scale = scale
        self.note = note

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __tensor_flatten__(self):
        return ["data8", "scale"], (self.note,)

    @classmethod
    def __tensor_unflatten__(cls, inner, meta, size, stride):
        return cls(inner["data8"], inner["scale"], *meta)

    def dequantize(self):
        return self.data8.to(self.scale.dtype) * self.scale

    def __repr__(self):
        return f"Scaled({self.data8}, {self.scale})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(str(func))
        if func in cls.TABLE:
            return cls.TABLE[func](func, types, args, kwargs or {})
        plain = tree_map_only(Scaled, Scaled.dequantize, args)
        return func(*plain, **(kwargs or {}))


def implements(*funcs):
    def register(fn):
        for func in funcs:
            Scaled.TABLE[func] = fn
        return fn

    return register


@implements(aten.t.default)
def _(func, types, args, kwargs):
    self = args[0]
    return return_and_correct_aliasing(func, args, kwargs, Scaled(self.data8.t(), self.scale.t(), self.note))


@implements(aten.detach.default, aten.clone.default, aten.alias.default)
def _(func, types, args, kwargs):
    self = args[0]
    return return_and_correct_aliasing(func, args, kwargs, Scaled(func(self.data8), func(self.scale), self.note))


@implements(aten.mul_.Tensor)
def _(func, types, args, kwargs):
    args[0].scale.mul_(args[1])
    return return_and_correct_aliasing(func, args, kwargs, args[0])


@implements(aten.mul.Tensor)
def _(func, types, args, kwargs):
    self, other = args
    return Scaled(self.data8, self.scale * other, self.note + "*")


def scaled(rows=6, columns=4, note="plain", seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator)
    scale = weight.abs().amax(1, keepdim=True) / 127
    return Scaled((weight / scale).round().to(torch.int8), scale, note)


class Named(torch.Tensor):
    """No code of its own."""


class Counting(torch.Tensor):
    """Hears of every call."""

    seen: list = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs)


class OwnParameter(torch.nn.Parameter):
    """A parameter that says what it is."""

    kind = "own"


class Opaque(torch.Tensor):
    """A wrapper whose operations nobody can look into."""

    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Opaque(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        opaque(func)
        return Opaque(func(*(a.inner if isinstance(a, Opaque) else a for a in args), **(kwargs or {}))) if \
            func is aten.mul.Tensor else func(*(a.inner if isinstance(a, Opaque) else a for a in args))


@jitpy.disable
def opaque(thing):
    return thing


class Slotted(torch.Tensor):
    """A wrapper with its parts in slots."""

    __slots__ = ("inner", "factor")

    def __new__(cls, inner, factor):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype)

    def __init__(self, inner, factor):
        self.inner = inner
        self.factor = factor

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __tensor_flatten__(self):
        return ["inner"], self.factor

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Slotted(inner["inner"], meta)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = tree_map_only(Slotted, lambda t: t.inner * t.factor, args)
        return func(*plain, **(kwargs or {}))
