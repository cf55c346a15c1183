"""Attribute access by CPython's data model: the type's MRO, descriptors, the instance dict, `__getattr__`."""

from __future__ import annotations

import enum
import re
import sys
import threading
import types
from typing import Any

import torch

from ...marks import original_of
from ...runtime.lifetimes import is_weakly_held
from ..guards.guard_set import MISSING
from ..guards.source import attr, constant, instance_dict
from ..models.builtins.exception_state import state_names
from ..models.builtins.modelled_types import store_hidden
from ..models.builtins.thread_locals import attributes_of_local, is_local
from ..models.tensors import torch_objects as tensor_values
from ..polyfills import MODELLED_ORIGINALS, MODELLED_TYPES, construct
from ..values import (
    DELETED,
    UNBOUND,
    ArrayValue,
    BoxedValue,
    BuiltinMethodValue,
    CellValue,
    ClassWrites,
    ConstValue,
    DictValue,
    ExceptionValue,
    FunctionValue,
    GeneratorValue,
    Interpreter,
    MethodValue,
    ModelledValue,
    ObjectValue,
    PyValue,
    RangeValue,
    ScalarValue,
    SliceValue,
    SuperValue,
    SymValue,
    TensorValue,
    TracebackValue,
    TupleValue,
    Value,
    const,
    type_name,
    unsupported,
)
from .frame import PUSHED, TracedException
from .plain_classes import is_plain_class
from .wrapped_functions import function_defaults

_FUNCTION_LIKE = (types.FunctionType,)
_C_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
_object_getattribute = object.__getattribute__
_module_getattr = torch.nn.Module.__getattr__


def load_attr(interp: Interpreter, value: Value, name: str) -> Any:
    """`value.name`: a Value, or PUSHED where a property or `__getattr__` in Python has to run. An AttributeError that
    it raises is told what was looked up."""
    try:
        found = find_attr(interp, value, name)
    except TracedException as error:
        error.value.tell_lookup(value, name)
        raise
    if found is PUSHED:
        interp.frame.lookup = value, name
    return found


def load_method(interp: Interpreter, value: Value, name: str) -> Any:
    """`value.name` in front of a call. Where the lookup is that of `object`, what a descriptor raises is left as it is.
    """
    lookup = interp.context.class_lookup
    plain = not isinstance(value, (PyValue, SuperValue)) and lookup(value.cls, "__getattr__") is MISSING and \
        lookup(value.cls, "__getattribute__") is object.__getattribute__
    return find_attr(interp, value, name) if plain else load_attr(interp, value, name)


def find_attr(interp: Interpreter, value: Value, name: str) -> Any:
    """As `load_attr`, without a word to the AttributeError."""
    if isinstance(value, PyValue):
        if isinstance(value.obj, type):
            return _load_class_attr(interp, value, name)
        if isinstance(value.obj, types.ModuleType):
            from .module_attributes import load_module_attr

            return load_module_attr(interp, value, name)
        if is_local(value) and not hasattr(threading.local, name):
            found = interp.context.dict_get(attributes_of_local(interp.context, value), name)
            if found is None:
                raise attribute_error(interp, value, name)
            return found
        if isinstance(value.obj, _OPERATORS) and interp.context.class_lookup(value.cls, name) is MISSING:
            return _load_operator_attr(interp, value, name)
    elif isinstance(value, SuperValue):
        return _load_super_attr(interp, value, name)
    elif isinstance(value, ArrayValue):
        from ..models.arrays.array_operations import load_attr as load_array_attr

        return load_array_attr(interp, value, name)
    elif isinstance(value, TensorValue):
        return _load_tensor_attr(interp, value, name)
    elif isinstance(value, ModelledValue) and name in value.hidden and interp.in_polyfill():
        return value.hidden[name]
    cls = value.cls
    getattribute = interp.context.class_lookup(cls, "__getattribute__")
    if isinstance(getattribute, types.FunctionType):

        getter = interp.context.const_object(getattribute)
        hook = interp.context.class_lookup(cls, "__getattr__")
        if isinstance(hook, types.FunctionType):
            return _with_hook(interp, hook, getter, value, name, const(name))
        return interp.call(getter, [value, const(name)], {})
    return load_attr_default(interp, value, name)


def _with_hook(interp: Interpreter, hook: types.FunctionType, getter: Value, value: Value, name: str,
               *args: Value) -> Any:
    """`getter(value, *args)`, or what `__getattr__` says where that raises AttributeError."""

    body = interp.context.const_object(construct.attribute_or_hook)
    return interp.call(body, [interp.context.const_object(hook), getter, value, const(name), *args], {})


def _load_operator_attr(interp: Interpreter, value: PyValue, name: str) -> Value:
    """An overload of a packet, or a fact about an operator: they do not change."""
    try:
        return interp.context.const_object(getattr(interp.context.pin(value), name))
    except AttributeError as error:
        raise interp.raise_real(error) from None


def load_attr_default(interp: Interpreter, value: Value, name: str) -> Any:
    """`object.__getattribute__(value, name)`, then `__getattr__`."""
    hook = interp.context.class_lookup(value.cls, "__getattr__")
    if isinstance(hook, types.FunctionType):
        found = interp.context.class_lookup(value.cls, name)
        if is_property(interp, found) and isinstance(found.fget, types.FunctionType):
            return _with_hook(interp, hook, interp.context.const_object(found.fget), value, name)
    try:
        return object_getattribute(interp, value, name)
    except _NoAttribute:
        pass
    if hook is _module_getattr and isinstance(value, ObjectValue):
        return _module_child(interp, value, name)
    if hook is not MISSING:

        if isinstance(hook, types.FunctionType):
            return interp.call(interp.context.const_object(hook), [value, const(name)], {})
        raise unsupported(value, f".{name} through __getattr__")
    if isinstance(value, MethodValue):
        return load_attr(interp, value.func, name)
    if isinstance(value, PyValue) and (value.cls.__dictoffset__ or
                                       value.cls.__getattribute__ is not object.__getattribute__):
        raise unsupported(value, f".{name}")  # a C type may have other ways to find attributes
    raise attribute_error(interp, value, name)


class _NoAttribute(Exception):
    """The default lookup found nothing."""


def attribute_error(interp: Interpreter, value: Value, name: str) -> Exception:
    """The AttributeError of a lookup, which names what was looked up."""
    return _missing(interp, value, name, _no_attribute(value, name))


def _no_attribute(value: Value, name: str) -> str:
    if isinstance(value, PyValue) and isinstance(value.obj, types.ModuleType):
        return f"module {value.obj.__name__!r} has no attribute {name!r}"
    if isinstance(value, PyValue) and isinstance(value.obj, type):
        return f"type object {value.obj.__name__!r} has no attribute {name!r}"
    return f"{type_name(value.cls)!r} object has no attribute {name!r}"


def _missing(interp: Interpreter, value: Value, name: str, message: str) -> Exception:
    error = interp.make_exception(AttributeError, message)
    error.tell_lookup(value, name)
    return interp.raise_value(error)


def object_getattribute(interp: Interpreter, value: Value, name: str) -> Any:
    """`object.__getattribute__`: raises `_NoAttribute` where it would raise AttributeError."""
    found = interp.context.class_lookup(value.cls, name)
    if found is not MISSING and is_data_descriptor(interp, found) and interp.context.has_slot(type(found), "__get__"):
        return _descriptor_get(interp, found, value, value.cls, name)
    attrs = instance_attrs(interp, value)
    if attrs is not None:
        own = interp.context.dict_get(attrs, name)
        if own is not None:
            return own
    if found is MISSING:
        raise _NoAttribute
    return _descriptor_get(interp, found, value, value.cls, name)


def instance_attrs(interp: Interpreter, value: Value) -> DictValue | None:
    """The instance's `__dict__`, or None where it has none."""
    if isinstance(value, ObjectValue):
        if value.attrs is None and value.real is None and value.cls.__dictoffset__ != 0:
            value.attrs = _new_dict_of(value)
        return value.attrs
    if isinstance(value, PyValue) and isinstance(value.obj, enum.Enum):
        member = interp.context.pin(value)
        return interp.context.wrap(member.__dict__, instance_dict(constant(member, str(member))))  # type: ignore[return-value]
    if isinstance(value, (FunctionValue, TensorValue)):
        if value.attrs is None:
            obj = value.known if isinstance(value, FunctionValue) else value.real
            real = obj.__dict__ if obj is not None else None
            if real is not None and value.source is not None:
                value.attrs = DictValue(instance_dict(value.source), dict, real, real)
            else:
                value.attrs = _new_dict_of(value)
        return value.attrs
    if isinstance(value, PyValue) and isinstance(value.obj, torch.Tensor) and value.source is not None:
        return interp.context.attributes_of(value.obj, value.source)
    return None


def _new_dict_of(value: Value) -> DictValue:
    made = DictValue()
    made.instance = value
    return made


def is_data_descriptor(interp: Interpreter, obj: Any) -> bool:
    cls = type(obj)
    if cls in _FUNCTION_LIKE or cls in _C_METHODS or cls is ClassWrites:
        return False
    return interp.context.has_slot(cls, "__set__", "__delete__")


def is_property(interp: Interpreter, found: Any, slot: str = "__get__") -> bool:
    """Whether something found in a class's dict is a property, or of a subclass that leaves `slot` as it is."""
    kind = type(found)
    return kind is property or isinstance(found, property) and interp.context.class_lookup(kind, slot) is getattr(
        property, slot)


def _name_by_slots(cls: type) -> str:
    """A class as slots that are not set name it."""
    if sys.version_info < (3, 13) or cls.__module__ in ("builtins", "__main__"):
        return cls.__name__
    return f"{cls.__module__}.{cls.__qualname__}"


def _descriptor_get(interp: Interpreter, descr: Any, value: Value | None, owner: type, name: str,
                    told: type | None = None
                    ) -> Any:
    """`descr.__get__(value, owner)` for something found in a class's dict; `value` None means access on the class.
    `told`: the class that the descriptor is told, where a search that began behind it found this one in `owner`."""
    context = interp.context
    told = owner if told is None else told
    kind = type(descr)
    if kind is ClassWrites:
        return context.class_item(owner, name)
    if kind is types.FunctionType:
        original = MODELLED_ORIGINALS.get(descr)
        if original is not None:
            return context.const_object(original) if value is None else BuiltinMethodValue(original, value)
        func = context.const_object(descr)
        return func if value is None else MethodValue(func, value)
    if is_property(interp, descr):
        if value is None:
            return context.const_object(descr)
        if descr.fget is None:
            raise interp.throw(AttributeError, f"property {name!r} of {owner.__name__!r} object has no getter")

        return interp.call(context.const_object(descr.fget), [value], {})
    if kind is staticmethod:
        return context.const_object(descr.__func__)
    if kind is classmethod:
        cls_value = context.const_object(told)
        inner = descr.__func__
        return MethodValue(context.const_object(inner), cls_value)
    if kind in _C_METHODS:
        return context.const_object(descr) if value is None else BuiltinMethodValue(descr, value)
    if kind is types.ClassMethodDescriptorType:
        indifferent = owner in (object, type)  # `__init_subclass__`, `__prepare__`: the class does not matter
        return context.const_object(descr.__get__(None, owner if indifferent else told))
    if kind is types.MemberDescriptorType:
        if value is None:
            return context.const_object(descr)
        if name == "__dict__":
            return _c_attribute(interp, value, name)
        if _is_hidden(value, descr):
            return value.hidden[name]
        if isinstance(value, TupleValue) and "n_sequence_fields" in owner.__dict__:
            fields = [n for n, m in owner.__dict__.items() if type(m) is types.MemberDescriptorType]
            return context.force(value.items[fields.index(name)])  # a struct sequence, such as torch.return_types.max
        if isinstance(value, ObjectValue) and not _is_of_c_exception(value, descr):
            found = context.read_slot(value, descr)
            if found is None:
                raise interp.throw(AttributeError, f"{_name_by_slots(owner)!r} object has no attribute {name!r}")
            return found
        return _c_attribute(interp, value, name)
    if kind is types.GetSetDescriptorType:
        if _is_hidden(value, descr):
            return value.hidden[name]
        return context.const_object(descr) if value is None else _c_attribute(interp, value, name)
    jitted = original_of(descr)
    if jitted is not None:
        func = context.const_object(jitted)
        return func if value is None else MethodValue(func, value)
    get = context.class_lookup(kind, "__get__")
    if isinstance(get, types.FunctionType):

        holder = _class_item(interp, owner, name, descr)
        target = value if value is not None else const(None)
        return interp.call(context.const_object(get), [holder, target, context.const_object(told)], {})
    if get is not MISSING:
        return _c_descriptor(interp, descr, value, owner, name)
    return _class_item(interp, owner, name, descr)


def _is_hidden(value: Value | None, descriptor: Any) -> bool:
    """Whether a descriptor is that of a C type for the state which its model's methods see; a subclass may have
    an attribute of that name besides."""
    if not isinstance(value, ModelledValue) or descriptor.__name__ not in value.hidden:
        return False
    return MODELLED_TYPES.get(descriptor.__objclass__) is value.body


def _is_of_c_exception(value: Value, descriptor: Any) -> bool:
    """Whether a descriptor is of an exception class in C, whose state is no slot of the program's."""
    return isinstance(value, ExceptionValue) and not descriptor.__objclass__.__flags__ & _HEAP_TYPE


#: flag of types made by class statements
_HEAP_TYPE = 1 << 9


def _c_descriptor(interp: Interpreter, descr: Any, value: Value | None, owner: type, name: str) -> Any:
    """Descriptors implemented in C: those of torch's C types, `functools` objects, named-tuple fields."""
    if value is None:
        return interp.context.const_object(descr.__get__(None, owner))
    if isinstance(value, TupleValue) and type(descr).__name__ == "_tuplegetter":
        return interp.context.force(value.items[descr.__reduce__()[1][0]])
    if type(descr).__name__ in ("_lru_cache_wrapper", "cython_function_or_method"):
        return MethodValue(interp.context.const_object(descr), value)
    if isinstance(value, PyValue) and not isinstance(value.obj, (type, types.ModuleType)):
        return _opaque_attribute(interp, value, name)
    raise unsupported(value, f".{name}")


def _class_item(interp: Interpreter, cls: type, name: str, found: Any) -> Value:
    """A plain object stored in a class's dict: constants by value, anything else by the path to it."""
    if isinstance(found, (types.FunctionType, type, types.ModuleType, types.BuiltinFunctionType)):
        return interp.context.const_object(found)
    return interp.context.class_item(cls, name)


def _load_class_attr(interp: Interpreter, value: PyValue, name: str) -> Any:
    """`cls.name`, as `type.__getattribute__` finds it."""
    cls = interp.context.pin(value)
    context = interp.context
    meta = type(cls)
    if name in ("__name__", "__qualname__", "__module__", "__doc__", "__mro__", "__bases__", "__base__", "__flags__",
                "__basicsize__", "__dictoffset__", "__itemsize__", "__weakrefoffset__"):
        if name in ("__mro__", "__bases__"):
            context.mro(cls)
        if name in ("__mro__", "__bases__") and is_weakly_held(cls):  # holding the tuple would keep the class alive
            return context.wrap(getattr(cls, name), attr(constant(cls, cls.__qualname__), name))
        if name in ("__name__", "__qualname__", "__module__", "__doc__") and cls.__flags__ & _HEAP_TYPE:
            return context.wrap(getattr(cls, name), attr(constant(cls, cls.__qualname__), name))
        return context.const_object(getattr(cls, name))
    if name == "__class__":
        return context.const_object(meta)
    if name == "__dict__":
        raise unsupported(value, ".__dict__")
    on_meta = context.class_lookup(meta, name)
    if on_meta is not MISSING and meta is not type and is_data_descriptor(interp, on_meta) and \
            context.has_slot(type(on_meta), "__get__"):
        return _descriptor_get(interp, on_meta, value, meta, name)
    found = context.class_lookup(cls, name)
    if found is not MISSING:
        return _descriptor_get(interp, found, None, cls, name)
    if on_meta is not MISSING:
        return _descriptor_get(interp, on_meta, value, meta, name)
    hook = context.class_lookup(meta, "__getattr__")
    if isinstance(hook, types.FunctionType):

        return interp.call(context.const_object(hook), [value, const(name)], {})
    if hasattr(cls, name):
        raise unsupported(value, f".{name}")
    raise attribute_error(interp, value, name)


def _load_super_attr(interp: Interpreter, value: SuperValue, name: str) -> Any:
    mro = interp.context.mro(value.mro_of)
    if name == "__class__":
        return interp.context.const_object(super)
    if name in ("__thisclass__", "__self_class__"):
        return interp.context.const_object(value.start if name == "__thisclass__" else value.mro_of)
    if name == "__self__":
        return value.obj
    for owner in mro[mro.index(value.start) + 1:]:
        if owner in interp.context.class_writes:
            raise unsupported(value, f"super().{name} of a class that the program changed")
        if name in owner.__dict__:
            found = owner.__dict__[name]
            interp.context.class_lookup(owner, name)
            on_class = isinstance(value.obj, PyValue) and value.obj.obj is value.mro_of  # `super(cls, subclass)`
            if on_class and type(found) is classmethod:
                return MethodValue(interp.context.const_object(found.__func__), value.obj)
            if on_class and isinstance(found, types.BuiltinFunctionType):
                return interp.context.const_object(found)
            return _descriptor_get(interp, found, None if on_class else value.obj, owner, name, value.mro_of)
        interp.context.class_lookup(owner, name)
    raise interp.throw(AttributeError, f"'super' object has no attribute {name!r}")


def _load_tensor_attr(interp: Interpreter, value: TensorValue, name: str) -> Any:
    from .calls import SizePayload

    context = interp.context
    if name == "__class__":
        return context.const_object(value.cls)
    found = context.class_lookup(value.cls, name)
    kind = type(found)
    if found is MISSING or not is_data_descriptor(interp, found):
        own = context.dict_get(instance_attrs(interp, value), name)
        if own is not None:
            return own
        if found is MISSING:
            raise attribute_error(interp, value, name)
    if name == "__dict__":
        return instance_attrs(interp, value)
    if kind is types.FunctionType:
        return MethodValue(context.const_object(found), value)
    if kind in _C_METHODS:
        return BuiltinMethodValue(found, value)
    if kind is property and name != "grad" and isinstance(found.fget, types.FunctionType):
        return interp.call(context.const_object(found.fget), [value], {})
    if name == "grad" and kind is types.GetSetDescriptorType:
        return tensor_values.load_grad(interp, value)
    if kind in (types.GetSetDescriptorType, property, types.MemberDescriptorType):
        with interp.recording(f"Tensor.{name}"):
            payload = interp.builder.attribute(value.traced, name)
        return interp.from_payload(SizePayload(payload) if name == "shape" else payload)
    return _descriptor_get(interp, found, value, value.cls, name)


def _module_child(interp: Interpreter, value: ObjectValue, name: str) -> Any:
    """`nn.Module.__getattr__`: parameters, buffers and submodules, without tracing its Python body."""
    attrs = instance_attrs(interp, value)
    assert attrs is not None
    for registry in ("_parameters", "_buffers", "_modules"):
        table = interp.context.dict_get(attrs, registry)
        if isinstance(table, DictValue):
            found = interp.context.dict_get(table, name)
            if found is not None:
                return found
    raise interp.throw(AttributeError, f"{value.cls.__name__!r} object has no attribute {name!r}")


#: (class, attribute) of C getsets whose value follows from the Value
def _c_attribute(interp: Interpreter, value: Value, name: str) -> Any:
    context = interp.context
    if name == "__class__":
        return context.const_object(value.cls)
    if name == "__dict__":
        attrs = instance_attrs(interp, value)
        if attrs is None:
            raise attribute_error(interp, value, name)
        return attrs
    if isinstance(value, BoxedValue):
        return _c_attribute(interp, value.plain, name)  # `real` and its like
    if isinstance(value, ConstValue):
        return context.const_object(getattr(value.value, name))
    if isinstance(value, (SymValue, ScalarValue)) and value.cls in (int, float) and \
            name in ("real", "imag", "numerator", "denominator"):
        if name in ("real", "numerator"):
            return value
        return const(value.cls(0) if name == "imag" else 1)
    if isinstance(value, FunctionValue):
        return _function_attribute(interp, value, name)
    if isinstance(value, MethodValue):
        if name == "__func__":
            return value.func
        if name == "__self__":
            return value.self
        return load_attr(interp, value.func, name)
    if isinstance(value, (RangeValue, SliceValue)):
        return getattr(value, name)
    if isinstance(value, ExceptionValue):
        return _exception_attribute(interp, value, name)
    if isinstance(value, CellValue) and name == "cell_contents":
        content = context.cell_content(value)
        if content is UNBOUND:
            raise interp.throw(ValueError, "Cell is empty")
        return content
    if isinstance(value, GeneratorValue):
        value.func.settle()
        known = {"__name__": value.func.name, "__qualname__": value.func.qualname, "gi_running": value.running,
                 "gi_code": value.func.code}
        if name in known:
            return const(known[name])
    if isinstance(value, PyValue):
        return _opaque_attribute(interp, value, name)
    raise unsupported(value, f".{name}")


def _opaque_attribute(interp: Interpreter, value: PyValue, name: str) -> Value:
    """An attribute of an opaque C object: read now where the object is known by identity and cannot change."""
    obj = value.obj
    if isinstance(obj, (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
                        types.GetSetDescriptorType, property, staticmethod, classmethod)):
        return interp.context.const_object(getattr(interp.context.pin(value), name))
    if type(obj) in (torch.finfo, torch.iinfo, types.UnionType, types.GenericAlias):
        return interp.context.const_object(getattr(interp.context.pin(value), name))
    if type(obj) in (re.Pattern, re.Match) and name != "groupindex":
        return interp.context.const_object(getattr(interp.context.pin(value), name))
    raise unsupported(value, f".{name}")


def _function_attribute(interp: Interpreter, value: FunctionValue, name: str) -> Value:
    context = interp.context
    simple = {"__name__": value.name, "__qualname__": value.qualname, "__code__": value.code,
              "__module__": value.module}
    if name in simple and name != "__code__" and value.known is not None and value.source is not None:
        return context.wrap(getattr(value.known, name), attr(value.source, name))
    if name in simple:
        return context.const_object(simple[name])
    if name == "__globals__":
        return context.globals_of(value.globals)
    if name in ("__defaults__", "__kwdefaults__"):
        defaults, kwdefaults = function_defaults(context, value)
        if name == "__defaults__":
            return TupleValue(list(defaults)) if defaults else const(None)
        if not kwdefaults and (value.known is None or value.known.__kwdefaults__ is None):
            return const(None)
        raise unsupported(value, "__kwdefaults__")  # a dict whose changes change the function
    if name == "__closure__":
        return TupleValue(list(value.closure)) if value.closure else const(None)
    if name == "__annotations__":
        return _annotations(interp, value)
    if name == "__type_params__" and sys.version_info >= (3, 12):
        if value.real is not None and value.source is not None:
            return context.wrap(value.real.__type_params__, attr(value.source, name))
        if value.real is None or not value.real.__type_params__:
            return TupleValue([])  # of those made here none is generic: what makes their parameters breaks the graph
    if name == "__doc__" and value.doc is not None:
        return value.doc
    if name == "__doc__" and (value.real is None or isinstance(value.real.__doc__, (str, type(None)))):
        constants = value.code.co_consts
        documented = sys.version_info < (3, 14) or value.code.co_flags & 0x4000000  # CO_HAS_DOCSTRING
        if value.real is not None and value.source is not None:
            return context.wrap(value.real.__doc__, attr(value.source, name))
        doc = value.real.__doc__ if value.real is not None else constants[0] if documented and constants else None
        return const(doc if isinstance(doc, str) else None)
    raise unsupported(value, f".{name}")


def _annotations(interp: Interpreter, value: FunctionValue) -> Value:
    """The dict of a function's annotations: the very one, which the program may change."""
    real = value.real
    if real is not None and value.source is not None:
        return interp.context.wrap(real.__annotations__, attr(value.source, "__annotations__"))
    if sys.version_info >= (3, 14):
        raise unsupported(value, ".__annotations__")
    given = value.annotations
    if not isinstance(given, DictValue):
        value.annotations = made = DictValue()
        items = [interp.context.force(item) for item in given.items] if isinstance(given, TupleValue) else []
        for key, item in zip(items[::2], items[1::2], strict=True):
            interp.context.dict_set(made, key.value, item, key)  # type: ignore[attr-defined]
        return made
    return given


def _exception_attribute(interp: Interpreter, value: ExceptionValue, name: str) -> Value:
    if name in value.members:
        return value.members[name]
    if name == "args":
        return TupleValue(list(value.args))
    if name == "__cause__" and value.cause is not None:
        return value.cause
    if name == "__context__" and value.context is not None:
        return value.context
    if value.real is not None and value.source is not None and not (name == "__traceback__" and value.step >= 0):
        return interp.context.wrap(getattr(value.real, name), attr(value.source, name))
    if name in ("__cause__", "__context__"):
        return const(None)
    if name == "__traceback__":
        return TracebackValue(value.step) if value.step >= 0 else const(None)
    if name == "__suppress_context__":
        return const(value.suppress_context)
    if name == "value" and issubclass(value.cls, StopIteration):
        return value.args[0] if value.args else const(None)
    if name in state_names(value.cls):
        return const(None)
    raise unsupported(value, f".{name}")


# -- writing ------------------------------------------------------------------------------------------------


def _is_module_that_keeps(interp: Interpreter, value: PyValue, name: str) -> bool:
    from .module_attributes import writes_to_dict

    return isinstance(value.obj, types.ModuleType) and writes_to_dict(interp, value, name)


def store_attr(interp: Interpreter, value: Value, name: str, new: Value) -> Any:
    """`value.name = new`: None, or PUSHED where a setter in Python has to run (its result is to be dropped)."""

    context = interp.context
    if isinstance(value, PyValue):
        if _is_module_that_keeps(interp, value, name):
            context.dict_set(context.module_dict(context.pin(value)), name, new, const(name))
            return None
        if isinstance(value.obj, type):
            from ..models.builtins import class_writes

            return class_writes.store_class_attr(interp, value, name, new)
        if is_local(value) and not hasattr(threading.local, name):
            context.dict_set(attributes_of_local(context, value), name, new, const(name))
            return None
        raise unsupported(value, f".{name} = ...")
    if isinstance(value, ModelledValue) and name in value.body.state and interp.in_polyfill():
        store_hidden(interp, value, name, new)
        return None
    setter = context.class_lookup(value.cls, "__setattr__")
    if isinstance(setter, types.FunctionType):
        return interp.call(context.const_object(setter), [value, const(name), new], {})
    return object_setattr(interp, value, name, new)


def object_setattr(interp: Interpreter, value: Value, name: str, new: Value) -> Any:
    """`object.__setattr__(value, name, new)`."""

    context = interp.context
    found = context.class_lookup(value.cls, name)
    if found is not MISSING and is_data_descriptor(interp, found):
        kind = type(found)
        if is_property(interp, found, "__set__"):
            if found.fset is None:
                raise interp.throw(AttributeError, f"property {name!r} of {value.cls.__name__!r} object has no setter")
            return interp.call(context.const_object(found.fset), [value, new], {})
        slot = kind is types.MemberDescriptorType and isinstance(value, ObjectValue)
        if slot and not _is_of_c_exception(value, found):
            context.write_slot(value, found, new)
            return None
        if kind is types.GetSetDescriptorType and name == "grad" and isinstance(value, TensorValue):
            return tensor_values.store_grad(interp, value, new)
        if kind in (types.GetSetDescriptorType, types.MemberDescriptorType):
            return _store_c_attribute(interp, value, name, new)
        setter = context.class_lookup(kind, "__set__")
        if isinstance(setter, types.FunctionType):
            return interp.call(context.const_object(setter),
                        [_class_item(interp, value.cls, name, found), value, new], {})
        raise unsupported(value, f".{name} = ...")
    if not isinstance(value, (ObjectValue, FunctionValue, TensorValue)):
        raise unsupported(value, f".{name} = ...")
    attrs = instance_attrs(interp, value)
    if attrs is None:
        message = f"{value.cls.__name__!r} object has no attribute {name!r}"
        if sys.version_info >= (3, 13):
            more = " and no __dict__ for setting new attributes" if found is MISSING else ""
            raise _missing(interp, value, name, message + more)
        raise interp.throw(AttributeError, message)
    context.dict_set(attrs, name, new, const(name))
    return None


def _store_c_attribute(interp: Interpreter, value: Value, name: str, new: Value) -> Any:
    if isinstance(value, ExceptionValue) and value.source is None:
        if name in state_names(value.cls) and not issubclass(value.cls, UnicodeError):  # these take some types only
            value.members = {**value.members, name: new}
            return None
        if name == "__cause__":
            value.cause = new
            value.suppress_context = True
            return None
        if name == "__context__":
            value.context = new
            return None
        if name == "__suppress_context__" and isinstance(new, ConstValue):
            value.suppress_context = bool(new.value)
            return None
        if name == "__traceback__" and isinstance(new, TracebackValue):
            if value.step < 0:
                value.step = new.step
            return None
        if name == "__traceback__" and isinstance(new, ConstValue) and new.value is None and value.step == -1:
            return None
        if name == "args" and isinstance(new, TupleValue):
            if issubclass(value.cls, StopIteration):
                value.members = {"value": _exception_attribute(interp, value, "value"), **value.members}
            value.args = [interp.context.force(v) for v in new.items]
            return None
    if isinstance(value, FunctionValue) and value.source is None and isinstance(new, ConstValue):
        if name in ("__name__", "__qualname__"):
            setattr(value, name.strip("_"), new.value)
            return None
        if name == "__module__":
            value.module = new.value
            return None
        if name == "__doc__":
            value.doc = new
            return None
    if name == "__annotations__" and isinstance(value, FunctionValue) and value.source is None and \
            isinstance(new, DictValue):
        value.annotations = new
        interp.context.writes += 1
        return None
    if name == "requires_grad" and isinstance(value, TensorValue):
        from ..models.tensors.leaves import store_requires_grad

        store_requires_grad(interp, value, new)
        return None
    if name == "data" and isinstance(value, TensorValue):
        from ..models.tensors.data import store_data

        store_data(interp, value, new)
        return None
    if name == "cell_contents" and isinstance(value, CellValue):
        store_cell(interp, value, new)
        return None
    if name == "__class__" and type(value) is ObjectValue and value.source is None:
        _store_class(interp, value, new)
        return None
    raise unsupported(value, f".{name} = ...")


def _store_class(interp: Interpreter, value: ObjectValue, new: Value) -> None:
    """`value.__class__ = new` for an instance that the program made, of plain classes at the top of modules."""
    cls = interp.context.pin(new) if isinstance(new, PyValue) else None
    for one in (value.cls, cls):
        if not isinstance(one, type) or not is_plain_class(one) or one.__flags__ & _ABSTRACT or is_weakly_held(one) or \
                interp.context.class_lookup(one, "__del__") is not MISSING:
            raise unsupported(value, ".__class__ = ...")
    try:
        object.__setattr__(object.__new__(value.cls), "__class__", cls)  # C knows which layouts fit
    except TypeError as error:
        raise interp.raise_real(error) from None
    value.cls = cls
    interp.context.writes += 1


#: flag of classes that have abstract methods
_ABSTRACT = 1 << 20


def delete_attr(interp: Interpreter, value: Value, name: str) -> Any:
    """`del value.name`."""

    context = interp.context
    if isinstance(value, PyValue):
        if _is_module_that_keeps(interp, value, name):
            space = context.module_dict(context.pin(value))
            if context.dict_get(space, name) is None:
                raise interp.throw(AttributeError, f"'module' object has no attribute {name!r}")
            context.dict_delete(space, name)
            return None
        if is_local(value) and not hasattr(threading.local, name):
            space = attributes_of_local(context, value)
            if context.dict_get(space, name) is None:
                raise interp.throw(AttributeError, _no_attribute(value, name))
            context.dict_delete(space, name)
            return None
        if isinstance(value.obj, type):
            from ..models.builtins import class_writes

            return class_writes.store_class_attr(interp, value, name, None)
        raise unsupported(value, f"del .{name}")
    hook = context.class_lookup(value.cls, "__delattr__")
    if isinstance(hook, types.FunctionType):
        return interp.call(context.const_object(hook), [value, const(name)], {})
    return object_delattr(interp, value, name)


def object_delattr(interp: Interpreter, value: Value, name: str) -> Any:
    """`object.__delattr__(value, name)`."""

    context = interp.context
    found = context.class_lookup(value.cls, name)
    if found is not MISSING and is_data_descriptor(interp, found):
        if is_property(interp, found, "__delete__"):
            if found.fdel is None:
                raise interp.throw(AttributeError, f"property {name!r} of {value.cls.__name__!r} object has no deleter")
            return interp.call(context.const_object(found.fdel), [value], {})
        deleter = context.class_lookup(type(found), "__delete__")
        if isinstance(deleter, types.FunctionType):
            return interp.call(context.const_object(deleter), [_class_item(interp, value.cls, name, found), value], {})
        if type(found) is types.MemberDescriptorType and isinstance(value, ObjectValue) and \
                not _is_of_c_exception(value, found):
            if context.read_slot(value, found) is None:
                raise interp.throw(AttributeError, found.__name__)  # as C says it
            context.write_slot(value, found, DELETED)
            return None
        if type(found) is types.GetSetDescriptorType and name == "grad" and isinstance(value, TensorValue):
            return tensor_values.store_grad(interp, value, const(None))
        raise unsupported(value, f"del .{name}")
    attrs = instance_attrs(interp, value)
    if attrs is None or context.dict_get(attrs, name) is None:
        raise interp.throw(AttributeError, _no_attribute(value, name))
    context.dict_delete(attrs, name)
    return None


def store_cell(interp: Interpreter, cell: CellValue, new: Any) -> None:
    """Write a closure cell."""
    cell.content = new
    cell.dirty = True
    interp.context.writes += 1
    if cell.source is not None:
        interp.context.touch(cell)


def has_attr(interp: Interpreter, value: Value, name: str) -> bool:
    """`hasattr(value, name)`, running properties where they are in Python."""
    try:
        result = load_attr(interp, value, name)
        if result is PUSHED:
            interp.finish_sync(result)
    except TracedException as error:
        if issubclass(error.value.cls, AttributeError):
            return False
        raise
    return True
