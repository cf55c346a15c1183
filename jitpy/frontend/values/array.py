"""numpy's arrays and scalars."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..breaks import GraphBreak
from ..guards.source import Source
from .attribute_rules import RULES
from .base import Interpreter, Value
from .constant import CONST_TYPES, const
from .iterator import Exhausted, IteratorValue

try:
    import numpy as np
except ImportError:  # torch works without it
    _ARRAYS: tuple[type, ...] = ()
    _NUMBERS: tuple[type, ...] = ()
    TORCH_DTYPES: dict[Any, torch.dtype] = {}
    IS_CAPTURED = False
else:
    _ARRAYS = (np.ndarray, np.generic)
    _NUMBERS = (np.number, np.bool_)
    #: numpy dtypes with an equal of torch's
    TORCH_DTYPES = {np.dtype(name): getattr(torch, name) for name in (
        "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128")}
    #: the rules of NEP 50; before them, types depended on values
    IS_CAPTURED = int(np.__version__.split(".")[0]) >= 2

#: the classes of these dtypes
DTYPE_TYPES = tuple({type(dtype) for dtype in TORCH_DTYPES})
CONST_TYPES.update(DTYPE_TYPES)
NUMPY_DTYPES = {theirs: ours for ours, theirs in TORCH_DTYPES.items()}


def is_array(obj: Any) -> bool:
    """Whether this is an array, whose contents may change, or a scalar of a type that is no number."""
    return issubclass(type(obj), _ARRAYS) and not issubclass(type(obj), _NUMBERS)  # asks no object for its class


def is_number(obj: Any) -> bool:
    """Whether this is an (immutable) scalar of a numeric type or bool."""
    return issubclass(type(obj), _NUMBERS)


class ArrayValue(Value):
    """An array, or a scalar (`cls` says which), whose numbers are in a tensor of the graph: `traced` is the graph
    builder's `TracedTensor`, for a scalar one of no dimensions in memory of its own."""

    __slots__ = ("cls", "traced")

    def __init__(self, traced: Any, cls: type, source: Source | None = None) -> None:
        self.source = source
        self.traced = traced
        self.cls = cls

    def find_attribute(self, interp: Interpreter, name: str) -> Any:
        return RULES[ArrayValue].get(interp, self, name)

    @property
    def dtype(self) -> Any:
        return NUMPY_DTYPES[self.traced.dtype]

    @property
    def is_scalar(self) -> bool:
        return self.cls is not np.ndarray

    iter_is_known = True

    def iterate(self, interp: Interpreter, backwards: bool = False) -> Any:
        if backwards:
            return None
        if not self.traced.ndim:
            raise GraphBreak("numpy", "iteration over a scalar")
        return ArrayIterator(self)


class ArrayIterator(IteratorValue):
    """`iter(array)`: reads each item when it is asked for."""

    __slots__ = ("index", "of")

    def __init__(self, of: ArrayValue) -> None:
        self.source = None
        self.of = of
        self.index = 0

    def children(self) -> Iterable[Any]:
        return (self.of,)

    def step(self, interp: Interpreter) -> Any:
        size = self.of.traced.spec.shape[0]
        if not isinstance(size, int):
            size = interp.builder.sizes.specialize(size, f"iteration at {interp.loc()}")
        if self.index >= size:
            raise Exhausted
        self.index += 1
        return interp.getitem(self.of, const(self.index - 1))
