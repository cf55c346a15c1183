"""Tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..guards.source import Source
from .base import Value
from .dict import DictValue


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

    def children(self) -> Iterable[Any]:
        return self.attrs, self.grad, self.data

    def place(self) -> Any:
        return "tensor", None
