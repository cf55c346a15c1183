"""Tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..guards.source import Source
from .attribute_rules import RULES
from .base import Interpreter, Value
from .constant import const
from .dict import DictValue
from .iterators import SequenceIterator

#: attributes of tensors that are set through C: `setter(interp, tensor, new)`
SETTERS: dict[str, Callable[[Interpreter, Any, Value], Any]] = {}


def sets_attribute(name: str) -> Callable[[Any], Any]:
    """Register what setting an attribute of a tensor does."""

    def register(setter: Any) -> Any:
        SETTERS[name] = setter
        return setter

    return register


class TensorValue(Value):
    """A tensor; `traced` is the graph builder's `TracedTensor`, `real` the object that came from outside.

    `attrs` is the instance dict, once it was looked at; `grad` what `.grad` is, once it was read or assigned; `flag`
    what `.requires_grad` of a tensor from outside was told to be, `data` what was last assigned to its `.data`.
    """

    takes_attributes = True
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

    def find_attribute(self, interp: Interpreter, name: str) -> Any:
        return RULES[TensorValue].get(interp, self, name)

    def set_c_attribute(self, interp: Interpreter, name: str, new: Value) -> bool:
        if name not in SETTERS:
            return False
        SETTERS[name](interp, self, new)
        return True

    def del_c_attribute(self, interp: Interpreter, name: str) -> bool:
        return name == "grad" and self.set_c_attribute(interp, name, const(None))

    def instance_dict(self, interp: Interpreter) -> DictValue:
        if self.attrs is None:
            self.attrs = interp.context.new_dict_of(self, self.real)
        return self.attrs

    def children(self) -> Iterable[Any]:
        return self.attrs, self.grad, self.data

    def place(self) -> Any:
        return "tensor", None
