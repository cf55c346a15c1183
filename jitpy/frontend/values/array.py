"""numpy's arrays and scalars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..breaks import GraphBreak
from ..guards.source import ConstSource, Source
from .attribute_rules import RULES
from .base import Interpreter, TraceContext, Value, unsupported
from .constant import ConstValue, const
from .iterator import Exhausted, IteratorValue
from .number import sym
from .opaque import PyValue
from .operator_tables import BINARY, UNARY
from .real_objects import NUMBERS, NUMPY_DTYPES, TORCH_DTYPES
from .wrapping import wraps

if TORCH_DTYPES:
    import numpy as np

#: BinaryOp name, symbol of a comparison, unary instruction -> name of the ufunc
UFUNCS_OF_OPERATORS = {
    "ADD": "add", "SUBTRACT": "subtract", "MULTIPLY": "multiply", "TRUE_DIVIDE": "divide",
    "FLOOR_DIVIDE": "floor_divide", "REMAINDER": "remainder", "POWER": "power", "MATRIX_MULTIPLY": "matmul",
    "AND": "bitwise_and", "OR": "bitwise_or", "XOR": "bitwise_xor", "<": "less", "<=": "less_equal", ">": "greater",
    ">=": "greater_equal", "==": "equal", "!=": "not_equal", "UNARY_NEGATIVE": "negative",
    "UNARY_POSITIVE": "positive", "UNARY_INVERT": "invert",
}


class SameNumber:
    """Guard predicate: the same number, of the same type, bit for bit."""

    def __init__(self, number: Any) -> None:
        self.kind, self.bits, self.text = type(number), number.tobytes(), repr(number)

    def __call__(self, value: Any) -> bool:
        return type(value) is self.kind and value.tobytes() == self.bits

    def __repr__(self) -> str:
        return f"is {self.text}"


class ArrayValue(Value):
    """An array, or a scalar (`cls` says which), whose numbers are in a tensor of the graph: `traced` is the graph
    builder's `TracedTensor`, for a scalar one of no dimensions in memory of its own."""

    __slots__ = ("cls", "traced")
    may_be_buffer = True
    is_recorded = True
    is_array = True

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

    def truth(self, interp: Interpreter) -> bool:
        raise GraphBreak("data_dependent_branch", "the truth of a numpy array")

    def length(self, interp: Interpreter) -> Value:
        if not self.traced.ndim:
            raise refuse("len() of a scalar")
        return sym(self.traced.spec.shape[0])

    def unary(self, interp: Interpreter, name: str) -> Any:
        return operate(interp, name, self)

    def arithmetic(self, interp: Interpreter, name: str, other: Value, inplace: bool) -> Any:
        return operate(interp, name, self, other, inplace=inplace)

    def reflected(self, interp: Interpreter, name: str, other: Value, inplace: bool) -> Any:
        return operate(interp, name, other, self, inplace=inplace)

    def tensor_operand(self, interp: Interpreter) -> Value | None:
        return None

    def is_compared_by_tensor(self, symbol: str) -> bool | None:
        return None

    def compare(self, interp: Interpreter, symbol: str, other: Value, swapped: bool) -> Any:
        return operate(interp, symbol, *((other, self) if swapped else (self, other)))

    def tensor_subscript(self, interp: Interpreter) -> Value:
        """Index arrays and masks. One of several dimensions torch may take for a tuple of its rows."""
        if self.is_scalar or self.dtype.kind not in "iub" or self.traced.ndim != 1:
            return self
        return interp.context.tensor_value(self.traced)

    def getitem(self, interp: Interpreter, key: Value) -> Any:
        return interp.call(interp.context.const_object(np.ndarray.__getitem__), [self, key], {})

    def setitem(self, interp: Interpreter, key: Value, new: Value) -> None:
        interp.call(interp.context.const_object(np.ndarray.__setitem__), [self, key, new], {})

    def contains(self, interp: Interpreter, item: Value) -> Value:
        raise unsupported(self, "in")

    def number(self, interp: Interpreter) -> Value:
        """The Python number in a scalar or an array without dimensions."""
        if self.traced.ndim:
            raise refuse("a number of an array")
        return interp.record(torch.Tensor.item, [interp.context.tensor_value(self.traced)], {})

    def payload(self, interp: Interpreter) -> Any:
        raise GraphBreak("unsupported_value", f"a numpy {self.cls.__name__} in a torch operation")


class NumpyNumberValue(PyValue):
    """A scalar of numpy's that is known exactly."""

    __slots__ = ()
    is_recorded = True

    def guard_object(self, context: TraceContext) -> None:
        assert self.source is not None
        context.need((self.source.key(), "value"), hash(self.obj), f"{self.source}")
        context.guards.add(self.source, "python", SameNumber(self.obj), context.why)

    def truth(self, interp: Interpreter) -> bool:
        return bool(interp.context.pin(self))

    def unary(self, interp: Interpreter, name: str) -> Value | None:
        return interp.fold_numpy_numbers(UNARY[name][0], [self])  # type: ignore[arg-type]

    @property
    def is_part_of_code(self) -> bool:
        """Whether the code holds on to it, as to other constants."""
        return isinstance(self.source, ConstSource)

    def arithmetic(self, interp: Interpreter, name: str, other: Value, inplace: bool) -> Any:
        return self._operate(interp, name, other, self, other)

    def reflected(self, interp: Interpreter, name: str, other: Value, inplace: bool) -> Any:
        return self._operate(interp, name, other, other, self)

    def is_compared_by_tensor(self, symbol: str) -> bool | None:
        return True

    def _operate(self, interp: Interpreter, name: str, other: Value, *operands: Value) -> Any:
        folded = interp.fold_numpy_numbers(BINARY[name][0], list(operands))
        if folded is None and self.is_part_of_code and (
                isinstance(other, ConstValue) or isinstance(other, NumpyNumberValue) and other.is_part_of_code):
            return operate(interp, name, *operands)
        return folded

    def tensor_operand(self, interp: Interpreter) -> Value | None:
        """To tensors, numbers of numpy's (but bools) are those of Python."""
        if self.obj.dtype.kind == "b":
            return None
        number = interp.context.pin(self).item()
        return ConstValue(number) if type(number) in (int, float, complex) else None

    def as_index(self, interp: Interpreter, what: str) -> int | None:
        return int(interp.context.pin(self)) if self.obj.dtype.kind in "iu" else None

    def numpy_fake(self, interp: Interpreter, fake: Callable[[Any], Any]) -> Any:
        return interp.context.pin(self)

    def payload(self, interp: Interpreter) -> Any:
        if self.obj.dtype.kind == "b":
            raise GraphBreak("unsupported_value", f"a numpy {self.cls.__name__} in a torch operation")
        return interp.context.pin(self).item()


def refuse(what: str) -> GraphBreak:
    """The break for what torch does not do as numpy does it."""
    return GraphBreak("numpy", what)


def operate(interp: Interpreter, name: str, *operands: Value, inplace: bool = False) -> Any:
    """An operator or comparison with an array or scalar among its operands."""
    if name not in UFUNCS_OF_OPERATORS or not all(_is_operand(v, operands) for v in operands):
        raise refuse(f"operator {name} of numpy with {' and '.join(v.cls.__name__ for v in operands)}")
    first, out = operands[0], {}
    if inplace and isinstance(first, ArrayValue):
        out = {} if first.is_scalar else {"out": first}
    elif inplace and not first.is_number and not isinstance(first, ConstValue):
        raise refuse(f"{first.cls.__name__} {name}= array")
    ufunc = interp.context.const_object(getattr(np, UFUNCS_OF_OPERATORS[name]))
    return interp.call(ufunc, list(operands), out)  # type: ignore[arg-type]


def _is_operand(value: Value, operands: tuple[Any, ...]) -> bool:
    if value.base in (list, tuple):
        return value.cls is value.base and all(
            v is value or v.is_array and not v.is_scalar for v in operands)
    return value.is_number or value.is_array or isinstance(value, NumpyNumberValue)


@wraps(*NUMBERS)
def _wrap_number(context: TraceContext, obj: Any, cls: type, source: Source) -> NumpyNumberValue:
    return NumpyNumberValue(obj, source, pinned=isinstance(source, ConstSource))


class ArrayIterator(IteratorValue):
    """`iter(array)`: reads each item when it is asked for."""

    __slots__ = ("index", "of")

    def __init__(self, of: ArrayValue) -> None:
        self.source = None
        self.of = of
        self.index = 0

    parts = ("of",)

    def step(self, interp: Interpreter) -> Any:
        size = self.of.traced.spec.shape[0]
        if not isinstance(size, int):
            size = interp.builder.sizes.specialize(size, f"iteration at {interp.loc()}")
        if self.index >= size:
            raise Exhausted
        self.index += 1
        return interp.getitem(self.of, const(self.index - 1))
