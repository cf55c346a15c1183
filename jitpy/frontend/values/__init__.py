"""Kinds of values, one file each: how each kind of Python object behaves while it is traced."""

from .array import UFUNCS_OF_OPERATORS, ArrayIterator, ArrayValue, NumpyNumberValue, SameNumber, operate
from .attribute_rules import RULES, Rule, attributes_of, rule_of
from .base import (
    DELETED,
    NULL,
    UNBOUND,
    UNKNOWN,
    Handler,
    Identity,
    Interpreter,
    Lazy,
    Missing,
    NotConstant,
    NullValue,
    Show,
    TraceContext,
    Value,
    is_subtype,
    type_name,
    unsupported,
)
from .classes import ClassWrites
from .constant import CONST_TYPES, FALSE, NONE, TRUE, ConstValue, const
from .dict import DictIterator, DictValue, DictViewValue
from .exception import ExceptionValue, ExcInfoValue, TracebackValue, base_in_c, descriptors_of, state_names
from .function import BuiltinMethodValue, CellValue, FunctionValue, MethodValue, SuperValue
from .hook_number import HookNumberValue, has_hook_numbers
from .instance import BoxedValue, ModelledValue, ObjectValue
from .iterator import Exhausted, GeneratorValue, IteratorValue
from .iterators import END_OF_LIST, ListIterator, ReverseIterator, SequenceIterator
from .list import ListValue
from .number import (
    ComputedNumberValue,
    ScalarValue,
    SymValue,
    as_number,
    compare_numbers,
    count_value,
    sym,
    symbolic_binary,
)
from .opaque import EnumMemberValue, PyValue, UnreadTuple, compare_objects, is_same_object, wrap_by_identity
from .operator_tables import BINARY, COMPARE, SYMBOLS, UNARY
from .range import RangeValue, SliceValue
from .real_objects import (
    ASKED,
    BOXED_READERS,
    DATE_TYPES,
    DTYPE_TYPES,
    IS_CAPTURED,
    NUMBERS,
    NUMPY_DTYPES,
    PLAIN_TYPES,
    TORCH_DTYPES,
    base_of,
    compares_by_program,
    is_array,
    is_compared_by_c,
    is_number,
    method_of_program,
)
from .sequence import SequenceValue
from .set import SET_OPERATORS, SetValue, compare_sets
from .tensor import SETTERS, TensorValue, sets_attribute
from .text import TextValue
from .tree import tree_iter, tree_map, tree_pack, tree_unpack
from .tuple import TupleValue, shown_by_parts
from .weak_reference import WeakReferenceValue
from .wrapper_tensor import WrapperValue
from .wrapping import Wrap, wrap_new, wraps

__all__ = [
    "ASKED", "ArrayIterator", "ArrayValue", "BINARY", "BOXED_READERS", "BoxedValue", "BuiltinMethodValue", "COMPARE",
    "CONST_TYPES", "CellValue",
    "ClassWrites", "ComputedNumberValue", "ConstValue", "DATE_TYPES", "DELETED", "DTYPE_TYPES",
    "DictIterator", "DictValue", "DictViewValue", "END_OF_LIST", "EnumMemberValue", "ExcInfoValue", "ExceptionValue",
    "Exhausted", "FALSE", "FunctionValue", "GeneratorValue", "Handler", "HookNumberValue", "IS_CAPTURED", "Identity",
    "Interpreter", "IteratorValue", "Lazy", "ListIterator", "ListValue", "MethodValue", "Missing", "ModelledValue",
    "NONE", "NULL", "NUMBERS", "NUMPY_DTYPES", "NotConstant", "NullValue", "NumpyNumberValue", "ObjectValue",
    "PLAIN_TYPES", "PyValue", "RULES", "RangeValue", "ReverseIterator", "Rule", "SETTERS", "SET_OPERATORS", "SYMBOLS",
    "SameNumber", "ScalarValue", "SequenceIterator", "SequenceValue", "SetValue", "Show", "SliceValue",
    "SuperValue", "SymValue", "TORCH_DTYPES", "TRUE", "TensorValue", "TextValue", "TraceContext", "TracebackValue",
    "TupleValue", "UFUNCS_OF_OPERATORS", "UNARY", "UNBOUND", "UNKNOWN", "UnreadTuple", "Value", "WeakReferenceValue",
    "Wrap", "WrapperValue", "as_number", "attributes_of", "base_in_c", "base_of", "compare_numbers", "compare_objects",
    "compare_sets",
    "compares_by_program", "const", "count_value", "descriptors_of", "has_hook_numbers", "is_array",
    "is_compared_by_c", "is_number", "is_same_object", "is_subtype", "method_of_program", "operate", "rule_of",
    "sets_attribute", "shown_by_parts", "state_names", "sym", "symbolic_binary", "tree_iter", "tree_map", "tree_pack",
    "tree_unpack", "type_name", "unsupported", "wrap_by_identity", "wrap_new", "wraps",
]
