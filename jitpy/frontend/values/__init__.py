"""Kinds of values, one file each: how each kind of Python object behaves while it is traced."""

from .base import (
    DELETED,
    NULL,
    UNBOUND,
    Handler,
    Identity,
    Interpreter,
    Lazy,
    Missing,
    NullValue,
    Value,
    is_subtype,
    type_name,
    unsupported,
)
from .classes import ClassValue, ClassWrites, DescriptorValue, NamedTupleClassValue
from .constant import CONST_TYPES, FALSE, NONE, TRUE, ConstValue, const
from .dict import DictValue, DictViewValue
from .exception import WRAPPED_STEP, ExceptionValue, ExcInfoValue, TracebackValue
from .function import (
    BuiltinMethodValue,
    CellValue,
    FunctionValue,
    MethodValue,
    SuperValue,
    TransformValue,
    WrittenFunctionValue,
)
from .hook_number import HookNumberValue, has_hook_numbers
from .instance import BoxedValue, ModelledValue, ObjectValue
from .iterator import Exhausted, GeneratorValue, IteratorValue
from .list import ListValue
from .number import ScalarValue, SymValue
from .opaque import PyValue, UnreadTuple
from .range import RangeValue, SliceValue
from .set import SetValue
from .tensor import TensorValue
from .tuple import TupleValue
from .weak_reference import WeakReferenceValue

__all__ = [
    "BoxedValue",
    "BuiltinMethodValue",
    "CONST_TYPES",
    "CellValue",
    "ClassValue",
    "ClassWrites",
    "ConstValue",
    "DELETED",
    "DescriptorValue",
    "DictValue",
    "DictViewValue",
    "ExcInfoValue",
    "ExceptionValue",
    "Exhausted",
    "FALSE",
    "FunctionValue",
    "GeneratorValue",
    "Handler",
    "HookNumberValue",
    "Identity",
    "Interpreter",
    "IteratorValue",
    "Lazy",
    "ListValue",
    "MethodValue",
    "Missing",
    "NONE",
    "NULL",
    "NamedTupleClassValue",
    "NullValue",
    "ObjectValue",
    "PyValue",
    "RangeValue",
    "ScalarValue",
    "SetValue",
    "SliceValue",
    "ModelledValue",
    "SuperValue",
    "SymValue",
    "TRUE",
    "TensorValue",
    "TracebackValue",
    "TransformValue",
    "TupleValue",
    "UNBOUND",
    "UnreadTuple",
    "Value",
    "WRAPPED_STEP",
    "WeakReferenceValue",
    "WrittenFunctionValue",
    "const",
    "has_hook_numbers",
    "is_subtype",
    "type_name",
    "unsupported",
]
