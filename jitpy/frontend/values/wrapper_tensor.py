"""Tensors without elements of their own, whose class says what torch makes of them."""

from __future__ import annotations

from typing import Any

import torch

from ..breaks import GraphBreak
from ..guards.source import Source
from .base import Interpreter, Missing, Value
from .tensor import TensorValue


class WrapperValue(TensorValue):
    """A tensor that `torch.Tensor._make_wrapper_subclass` made. Its parts are in `attrs`, as those of any instance.

    `spec` is what the wrapper itself says: dtype, sizes, strides, device, whether it requires grad. `made_with` are the
    arguments that the program made it with, as a tuple and a dict; None for a wrapper from outside.
    """

    __slots__ = ("dirty_slots", "made_with", "slots", "spec")

    def __init__(self, spec: Any, cls: type, source: Source | None = None, real: Any = None,
                 made_with: tuple[Value, Value] | None = None) -> None:
        self.source = source
        self.cls = cls
        self.spec = spec
        self.made_with = made_with
        self.slots: dict[Any, Value | Missing] | None = None
        self.dirty_slots: dict[Any, bool] | None = None
        self.attrs = None
        self.real = real
        self.grad = None
        self.grad_assigned = False
        self.flag = None
        self.data = None

    @property
    def traced(self) -> Any:  # type: ignore[override]
        """There is no node that this tensor is."""
        raise GraphBreak("unsupported_tensor", self.cls.__name__)

    @property
    def outline(self) -> Any:
        return self.spec

    overloads = has_dispatch = True
    tensor = None  # no node's

    def check_identity(self, interp: Interpreter) -> None:
        pass

    def member(self, interp: Interpreter, descr: Any, owner: type) -> Value | None:
        return interp.context.read_slot(self, descr)

    def set_member(self, interp: Interpreter, descr: Any, new: Any) -> bool:
        interp.context.write_slot(self, descr, new)
        return True

    def truth(self, interp: Interpreter) -> Any:
        return interp.truth(interp.record(torch.Tensor.__bool__, [self], {}))

    def key(self, interp: Interpreter) -> Any:
        return interp.identity_key(self)

    def children(self) -> Any:
        return *(self.made_with or ()), *(self.slots or {}).values(), *super().children()
