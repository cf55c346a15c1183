"""Kinds of values, one file each: how each kind of Python object behaves while it is traced."""

from .array import DTYPE_TYPES, IS_CAPTURED, NUMPY_DTYPES, TORCH_DTYPES, ArrayIterator, ArrayValue, is_array, is_number
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
    TraceContext,
    Value,
    is_subtype,
    type_name,
    unsupported,
)
from .classes import ClassWrites
from .constant import CONST_TYPES, FALSE, NONE, TRUE, ConstValue, const
from .dict import DictIterator, DictValue, DictViewValue
from .exception import ExceptionValue, ExcInfoValue, TracebackValue
from .function import (
    BuiltinMethodValue,
    CellValue,
    FunctionValue,
    MethodValue,
    SuperValue,
)
from .hook_number import HookNumberValue, has_hook_numbers
from .instance import BoxedValue, ModelledValue, ObjectValue
from .iterator import Exhausted, GeneratorValue, IteratorValue
from .iterators import END_OF_LIST, ListIterator, ReverseIterator, SequenceIterator
from .list import ListValue
from .number import ScalarValue, SymValue
from .opaque import PyValue, UnreadTuple
from .range import RangeValue, SliceValue
from .set import SetValue
from .tensor import TensorValue
from .tuple import TupleValue
from .weak_reference import WeakReferenceValue

__all__ = [
    "TraceContext",
    "ArrayValue",
    "BoxedValue",
    "BuiltinMethodValue",
    "CONST_TYPES",
    "CellValue",
    "ClassWrites",
    "ConstValue",
    "ArrayIterator",
    "DELETED",
    "DictIterator",
    "END_OF_LIST",
    "ListIterator",
    "ReverseIterator",
    "SequenceIterator",
    "DTYPE_TYPES",
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
    "IS_CAPTURED",
    "Identity",
    "Interpreter",
    "IteratorValue",
    "Lazy",
    "ListValue",
    "MethodValue",
    "Missing",
    "ModelledValue",
    "NONE",
    "NULL",
    "NUMPY_DTYPES",
    "NullValue",
    "ObjectValue",
    "PyValue",
    "RangeValue",
    "ScalarValue",
    "SetValue",
    "SliceValue",
    "SuperValue",
    "SymValue",
    "TORCH_DTYPES",
    "TRUE",
    "TensorValue",
    "TracebackValue",
    "TupleValue",
    "UNBOUND",
    "UnreadTuple",
    "Value",
    "WeakReferenceValue",
    "const",
    "has_hook_numbers",
    "is_array",
    "is_number",
    "is_subtype",
    "type_name",
    "unsupported",
]
