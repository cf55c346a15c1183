"""Blocks in which no class is asked for `__torch_function__`."""

from __future__ import annotations

import torch

from .base import Value


class FunctionBlockValue(Value):
    """A `torch._C.DisableTorchFunctionSubclass()`, made at step `born`. Graphs do not break inside its block."""

    __slots__ = ("born",)
    is_function_block = True
    cls = torch._C.DisableTorchFunctionSubclass

    def __init__(self, born: int) -> None:
        self.source = None
        self.born = born
