"""Tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..guards.source import Source
from .base import Interpreter, Value
from .dict import DictValue
from .iterators import SequenceIterator


class TensorValue(Value):
    """A tensor; `traced` is the graph builder's `TracedTensor`, `real` the object that came from outside.

    `attrs` is the instance dict, once it was looked at; `grad` what `.grad` is, once it was read or assigned; `flag`
    what `.requires_grad` of a tensor from outside was told to be, `data` what was last assigned to its `.data`.
    """

    __slots__ = ("cls", "traced", "attrs", "real", "grad", "grad_assigned", "flag", "data")

    def __init__(self, traced: Any, cls: type, source: Source | None = None, real: Any = None) -> None:
        self.source = source
        self.traced = traced
        self.cls = cls
        self.attrs: DictValue | None = None
        self.real = real
        self.grad: Value | None = None
        self.grad_assigned = False
        self.flag: bool | None = None
        self.data: TensorValue | None = None

    iter_is_known = True

    def iterate(self, interp: Interpreter, backwards: bool = False) -> Any:
        if backwards:
            return None
        if self.traced.ndim == 0:
            raise interp.throw(TypeError, "iteration over a 0-d tensor")
        parts: Any = interp.record(torch.Tensor.unbind, [self], {})
        return SequenceIterator(list(parts.items), type(iter([])))

    def children(self) -> Iterable[Any]:
        return self.attrs, self.grad, self.data

    def place(self) -> Any:
        return "tensor", None
