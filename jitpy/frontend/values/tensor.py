"""Tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from ..breaks import GraphBreak
from ..guards.source import Source
from .attribute_rules import RULES
from .base import Interpreter, Value, unsupported
from .constant import const
from .dict import DictValue
from .iterators import SequenceIterator
from .number import ScalarValue, sym
from .operator_tables import BINARY, COMPARE, SYMBOLS, UNARY

#: attributes of tensors that are set through C: `setter(interp, tensor, new)`
SETTERS: dict[str, Callable[[Interpreter, Any, Value], Any]] = {}


def sets_attribute(name: str) -> Callable[[Any], Any]:
    """Register what setting an attribute of a tensor does."""

    def register(setter: Any) -> Any:
        SETTERS[name] = setter
        return setter

    return register


def overloads_torch(cls: type) -> bool:
    """Whether torch asks a class of tensors what its functions are to do."""
    return cls is not torch.Tensor and \
        cls.__torch_function__ is not torch._C._disabled_torch_function_impl  # type: ignore[attr-defined]


class TensorValue(Value):
    """A tensor; `traced` is the graph builder's `TracedTensor`, `real` the object that came from outside.

    `attrs` is the instance dict, once it was looked at; `grad` what `.grad` is, once it was read or assigned; `flag`
    what `.requires_grad` of a tensor from outside was told to be, `data` what was last assigned to its `.data`.
    """

    takes_attributes = True
    __slots__ = ("cls", "traced", "attrs", "real", "grad", "grad_assigned", "flag", "data")
    is_recorded = True

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

    @property
    def overloads(self) -> bool:  # type: ignore[override]
        return overloads_torch(self.cls)

    @property
    def outline(self) -> Any:  # type: ignore[override]
        return self.traced.spec

    def converted(self, interp: Interpreter, function: Any) -> Value | None:
        method = f"__{function.__name__}__"
        interp.own_methods(self, method)
        return interp.record(torch.abs if function is abs else getattr(torch.Tensor, method), [self], {})

    @property
    def iter_is_known(self) -> bool:  # type: ignore[override]
        return not self.overloads

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
        if self.overloads:
            raise unsupported(self, f".{name} = ...")
        SETTERS[name](interp, self, new)
        return True

    def del_c_attribute(self, interp: Interpreter, name: str) -> bool:
        return name == "grad" and self.set_c_attribute(interp, name, const(None))

    def is_object(self, obj: Any) -> bool:
        return self.real is obj

    def instance_dict(self, interp: Interpreter) -> DictValue:
        if self.attrs is None:
            self.attrs = interp.context.new_dict_of(self, self.real)
        return self.attrs

    parts = ("attrs", "grad", "data")

    def place(self) -> Any:
        return "tensor", None

    def truth(self, interp: Interpreter) -> Any:
        interp.own_methods(self, "__bool__")
        with interp.recording("bool"):
            return interp.builder.call(torch.Tensor.__bool__, (self.traced,), {}, interp.loc())

    def length(self, interp: Interpreter) -> Value:
        if self.overloads:
            return interp.call_sync(interp.getattr(self, "__len__"), [])
        sizes = self.traced.spec.shape
        return sym(sizes[0]) if sizes else interp.record(torch.Tensor.__len__, [self], {})

    def unary(self, interp: Interpreter, name: str) -> Value:
        function, method = UNARY[name]
        interp.own_methods(self, method)
        return interp.record(function, [self], {})

    def check_identity(self, interp: Interpreter) -> None:
        """The program sees which object it is."""
        interp.builder.speculation.check_identity(self.traced)

    def key(self, interp: Interpreter) -> Any:
        self.check_identity(interp)
        return interp.identity_key(self)

    def payload(self, interp: Interpreter) -> Any:
        return self.traced

    def as_index(self, interp: Interpreter, what: str) -> int:
        interp.own_methods(self, "__index__")
        return interp.as_int(interp.record(torch._C.TensorBase.__index__, [self], {}), what)

    def getitem(self, interp: Interpreter, key: Value) -> Value:
        interp.own_methods(self, "__getitem__")
        return interp.record(torch.Tensor.__getitem__, [self, key.tensor_subscript(interp)], {})

    def setitem(self, interp: Interpreter, key: Value, new: Value) -> None:
        interp.own_methods(self, "__setitem__")
        interp.record(torch.Tensor.__setitem__, [self, key.tensor_subscript(interp), new], {})

    def compare(self, interp: Interpreter, symbol: str, other: Value, swapped: bool) -> Any:
        is_compared = other.is_compared_by_tensor(symbol)
        if is_compared is None:
            return None
        if is_compared:
            function, _, reflected = COMPARE[symbol]
            if swapped and isinstance(other, ScalarValue):  # which asks the tensor
                return interp.record(getattr(operator, reflected), [self, other], {})
            return interp.record(function, [other, self] if swapped else [self, other], {})
        if symbol in ("==", "!="):
            return const(symbol == "!=")
        raise GraphBreak("unsupported_op", f"Tensor {symbol} {other.cls.__name__}")

    def is_compared_by_tensor(self, symbol: str) -> bool | None:
        return True

    def is_same(self, interp: Interpreter, other: Value) -> bool | None:
        if isinstance(other, TensorValue):
            self.check_identity(interp)
            other.check_identity(interp)
        return None

    def contains(self, interp: Interpreter, item: Value) -> Value:
        answer = interp.call_sync(interp.context.const_object(torch.Tensor.__contains__), [self, item])
        return const(interp.truth(answer))

    def arithmetic(self, interp: Interpreter, name: str, other: Value, inplace: bool) -> Any:
        operand = other.tensor_operand(interp)
        if operand is None:
            return None
        function, _, _, of_assignment = BINARY[name]
        return interp.record(getattr(operator, of_assignment) if inplace else function, [self, operand], {})

    def reflected(self, interp: Interpreter, name: str, other: Value, inplace: bool) -> Any:
        operand = other.tensor_operand(interp)
        if operand is None:
            return None
        if self.overloads:
            return interp.record(BINARY[name][0], [operand, self], {})
        if operand.cls in (str, bytes):
            if name == "REMAINDER":
                return operand.combine(interp, name, self, inplace)
            raise GraphBreak("unsupported_op", f"{operand.cls.__name__} {SYMBOLS[name]} Tensor")
        if operand.is_number and name == "TRUE_DIVIDE":
            return interp.record(torch.Tensor.mul, [interp.record(torch.Tensor.reciprocal, [self], {}), operand], {})
        if operand.is_number and name in _REFLECTED:
            return interp.record(_REFLECTED[name], [self, operand], {})
        return interp.record(BINARY[name][0], [operand, self], {})

    answers_operator = Value.answers_by_c


TensorValue.tensor = TensorValue.traced  # type: ignore[misc]  # the slot itself: faster than a property


#: what a tensor's reflected operators call
_REFLECTED = {"ADD": torch.Tensor.add, "MULTIPLY": torch.Tensor.mul, "SUBTRACT": torch.rsub}
