"""Questions about real objects and their classes."""

from __future__ import annotations

import datetime
import enum
import re
import types
from typing import Any

import torch

from .base import Value
from .constant import CONST_TYPES

try:
    import numpy as np
except ImportError:  # torch works without it
    _ARRAYS: tuple[type, ...] = ()
    NUMBERS: tuple[type, ...] = ()
    TORCH_DTYPES: dict[Any, torch.dtype] = {}
    IS_CAPTURED = False
else:
    _ARRAYS = (np.ndarray, np.generic)
    NUMBERS = (np.number, np.bool_)
    #: numpy dtypes with an equal of torch's
    TORCH_DTYPES = {np.dtype(name): getattr(torch, name) for name in (
        "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128")}
    #: the rules of NEP 50; before them, types depended on values
    IS_CAPTURED = int(np.__version__.split(".")[0]) >= 2

#: the classes of these dtypes
DTYPE_TYPES = tuple({type(dtype) for dtype in TORCH_DTYPES})
CONST_TYPES.update(DTYPE_TYPES)
#: days and durations, which do not change
DATE_TYPES = (datetime.date, datetime.timedelta)
NUMPY_DTYPES = {theirs: ours for ours, theirs in TORCH_DTYPES.items()}


def is_array(obj: Any) -> bool:
    """Whether this is an array, whose contents may change, or a scalar of a type that is no number."""
    return issubclass(type(obj), _ARRAYS) and not issubclass(type(obj), NUMBERS)  # asks no object for its class


def is_number(obj: Any) -> bool:
    """Whether this is an (immutable) scalar of a numeric type or bool."""
    return issubclass(type(obj), NUMBERS)


def compares_by_program(cls: type) -> bool:
    """Whether a dict that looks for an instance calls code of the program's."""
    return any(isinstance(method, types.FunctionType) for method in (cls.__eq__, cls.__hash__)) and \
        not (cls.__eq__ is object.__eq__ and cls.__hash__ is enum.Enum.__hash__)  # type: ignore[comparison-overlap]


#: The metaclass of the classes that torch's C++ defines.
_BOUND: type = type(torch._C._SDPBackend)


_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


def is_compared_by_c(obj: Any) -> bool:
    cls = type(obj)
    if type(cls) is _BOUND and "__members__" in cls.__dict__:
        return True  # an enum of torch's C++
    if cls in _OPERATORS:
        return True  # their hash in Python is that of their name
    if compares_by_program(cls):
        return False
    by_identity = cls.__eq__ is object.__eq__  # type: ignore[comparison-overlap]
    if cls is types.MethodWrapperType:
        return type(obj.__self__) is types.GetSetDescriptorType
    return by_identity or cls in (type, types.ModuleType, types.BuiltinFunctionType, *DATE_TYPES) or \
        isinstance(obj, (enum.Enum, int, str, float, bytes, type(None), torch.dtype, torch.device, tuple, Value,
                         *DTYPE_TYPES, types.MethodDescriptorType, types.GenericAlias, types.UnionType, re.Pattern))


_HEAP_TYPE = 1 << 9
#: modules whose metaclasses programs do not change
_LIBRARY = frozenset({"abc", "enum", "typing"})


def method_of_program(context: Any, value: Value, *names: str) -> types.FunctionType | None:
    """The first method of these names that the program wrote for a class or a member of an enumeration."""
    if not value.cls.__flags__ & _HEAP_TYPE or value.cls.__module__ in _LIBRARY:
        return None
    for name in names:
        found = context.class_lookup(value.cls, name)
        if isinstance(found, types.FunctionType) and found.__globals__ is not vars(enum):
            return found
    return None


#: methods that functions in C call on what they are given
ASKED = tuple(f"__{name}__" for name in (
    "str repr format bool len iter next contains getitem eq ne lt le gt ge hash index int float complex neg pos invert "
    "abs round add radd sub rsub mul rmul and rand or ror xor rxor").split())


# -- instances of classes derived from int, float, complex, str and bytes ---------------------------------------------

#: the function that reads the plain part of a real instance, by the builtin type below its class
BOXED_READERS: dict[type, property] = {
    int: property(int.__int__), float: property(float.__float__), complex: property(complex.__complex__),
    str: property(str.__str__), bytes: property(bytes.__bytes__)}
PLAIN_TYPES = tuple(BOXED_READERS)


def base_of(cls: type) -> type | None:
    """Which of the builtin types a class is derived from."""
    return next((base for base in PLAIN_TYPES if issubclass(cls, base)), None)
