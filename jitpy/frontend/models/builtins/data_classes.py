"""Dataclasses and named tuples that the traced program makes.

The library writes the code of their methods. It does so for the proxy (see `local_classes.py`) while tracing, so that
these methods can be traced, and for the class of each call at run time, where one is needed."""

from __future__ import annotations

import collections
import dataclasses
import functools
import inspect
import sys
import types
import typing
from typing import Any

from ...breaks import GraphBreak
from ...codegen.frame_code import Emitter, builds
from ...guards.guard_set import MISSING
from ...interpreter.callees import builtin
from ...interpreter.constant_folding import NotConstant, deep_constant
from ...interpreter.frame import Frame
from ...values import (
    NONE,
    CellValue,
    ClassValue,
    ConstValue,
    DescriptorValue,
    DictValue,
    Interpreter,
    ListValue,
    NamedTupleClassValue,
    ObjectValue,
    TupleValue,
    Value,
    WrittenFunctionValue,
    const,
)
from .host_effects import caller
from .local_classes import module_of_caller, proxy_of

Args = list[Value]
Kwargs = dict[str, Value]

_process = dataclasses._process_class  # type: ignore[attr-defined]


@builtin(_process)
def process_class(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """What `@dataclass` does to a class, in place."""
    cls = args[0]
    options = inspect.signature(_process).bind(*args, **kwargs).arguments
    flags = {name: _flag(value) for name, value in options.items() if name != "cls"}
    if not isinstance(cls, ClassValue) or cls.before is not None:
        raise GraphBreak("local_class", "dataclass() of a class from outside writes the code of its methods")
    if flags["slots"]:
        raise GraphBreak("local_class", "dataclass(slots=True), which makes a second class")
    context, proxy = interp.context, cls.obj
    for base in proxy.__mro__[1:]:
        context.class_lookup(base, "__dataclass_fields__")
    _make_annotations_real(interp, proxy)
    for name in vars(proxy).get("__annotations__", ()):
        _check_default(interp, vars(proxy).get(name, MISSING))
    before = dict(vars(proxy))
    try:
        _process(proxy, **flags)
    except (TypeError, ValueError, AttributeError) as error:
        _restore(proxy, before)
        raise GraphBreak("local_class", f"dataclass(): {error}") from None
    if before.get("__doc__") is None and "_Anything object at" in (proxy.__doc__ or ""):
        _restore(proxy, before)
        raise GraphBreak("local_class", "a dataclass whose text shows defaults that are no constants")
    _adopt_methods(interp, proxy, before)
    context.writes += 1
    context.touches += 1
    cls.before = before
    cls.completions[functools.partial(_process, **flags)] = ()
    return cls


def _restore(proxy: type, before: dict[str, Any]) -> None:
    """Take back what a dataclass was given: plain Python does it, or fails to, on a class of its own."""
    for name, raw in list(vars(proxy).items()):
        if name not in before:
            type.__delattr__(proxy, name)
        elif before[name] is not raw:
            type.__setattr__(proxy, name, before[name])
    for name in before.keys() - vars(proxy).keys():
        type.__setattr__(proxy, name, before[name])


def _flag(value: Value) -> bool:
    if not isinstance(value, ConstValue) or type(value.value) is not bool:
        raise GraphBreak("local_class", "dataclass() with options that are no constants")
    return value.value


def _make_annotations_real(interp: Interpreter, proxy: type) -> None:
    raw = vars(proxy).get("__annotations__")
    value = interp.context.const_object(raw) if raw is not None else None
    if isinstance(value, DictValue) and type(raw) is not dict:
        real = {name: proxy_of(interp, item) for name, item in interp.context.dict_items(value)}
        if any(type(interp.context.const_object(item)) is ObjectValue for item in real.values()):
            raise GraphBreak("local_class", "a dataclass with annotations that are made at each call")
        type.__setattr__(proxy, "__annotations__", real)
        interp.context.adopt(real, value)


def _check_default(interp: Interpreter, raw: Any) -> None:
    """Defaults that cannot be hashed are refused: what stands for them can."""
    value = interp.context.const_object(raw) if raw is not MISSING else NONE
    parts = value.args[:1] if isinstance(value, DescriptorValue) and isinstance(raw, dataclasses.Field) else [value]
    if any(part.cls.__hash__ is None for part in parts):
        raise GraphBreak("local_class", "a dataclass with a default that it refuses")


@builtin(dataclasses.field)
def make_field(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    names = inspect.signature(dataclasses.field).parameters
    if args or not kwargs.keys() <= names.keys() or {"default", "default_factory"} <= kwargs.keys():
        raise GraphBreak("local_class", "field() with arguments that it refuses")
    values = [kwargs[name] if name in kwargs else interp.context.const_object(parameter.default)
              for name, parameter in names.items()]
    made = dataclasses.Field(*(_part(interp, name, value) for name, value in zip(names, values, strict=True)))
    field = DescriptorValue(made, values)
    interp.context.adopt(made, field)
    return field


def _part(interp: Interpreter, name: str, value: Value) -> Any:
    if isinstance(value, ObjectValue) and (value.real is dataclasses.MISSING or value.real is dataclasses.KW_ONLY):
        return value.real
    if name in ("default", "default_factory"):
        return proxy_of(interp, value)
    try:
        return deep_constant(interp, value)
    except NotConstant:
        raise GraphBreak("local_class", f"field({name}=...) that is no constant") from None


# -- methods that the library wrote ---------------------------------------------------------------------------


def _adopt_methods(interp: Interpreter, proxy: type, before: dict[str, Any]) -> None:
    """Have the functions that a proxy class got stand for themselves: they go with it."""
    for name, raw in vars(proxy).items():
        if before.get(name, MISSING) is raw:
            continue
        if isinstance(raw, types.FunctionType):
            _adopt_function(interp, raw)
        elif isinstance(raw, (classmethod, staticmethod)) and isinstance(raw.__func__, types.FunctionType):
            interp.context.adopt(raw, DescriptorValue(raw, [_adopt_function(interp, raw.__func__)]))


def _adopt_function(interp: Interpreter, raw: types.FunctionType) -> Value:
    def part(obj: Any) -> Value:
        return interp.context.const_object(obj)

    value = WrittenFunctionValue(
        raw.__code__, raw.__globals__, name=raw.__name__, qualname=raw.__qualname__,
        defaults=[part(default) for default in raw.__defaults__ or ()],
        kwdefaults={name: part(default) for name, default in (raw.__kwdefaults__ or {}).items()},
        closure=[CellValue(part(cell.cell_contents)) for cell in raw.__closure__ or ()],
    )
    value.module = raw.__module__
    value.doc = const(raw.__doc__)
    value.annotations = DictValue()
    for name, annotation in raw.__annotations__.items():
        interp.context.dict_set(value.annotations, name, part(annotation))
    interp.context.adopt(raw, value)
    return value


if sys.version_info >= (3, 12):

    @builtin(sys._getframemodulename)
    def module_above(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        """The name of the module of a caller, which the library gives to the classes that it makes for it."""
        depth = args[0] if args else kwargs.get("depth", const(0))
        if not isinstance(depth, ConstValue) or type(depth.value) is not int or depth.value < 0:
            raise GraphBreak("frame_access", "sys._getframemodulename")
        place = caller(interp, depth.value + 1)
        if not isinstance(place, Frame):
            raise GraphBreak("frame_access", "sys._getframemodulename", tail=True)
        return interp.context.dict_get(place.globals, "__name__") or NONE


# -- named tuples ---------------------------------------------------------------------------------------------


@builtin(collections.namedtuple)
def make_named_tuple(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    given = dict(zip(("typename", "field_names"), args, strict=False)) | kwargs
    if len(args) > 2 or not given.keys() <= {"typename", "field_names", "rename", "defaults", "module"} or \
            not {"typename", "field_names"} <= given.keys():
        raise GraphBreak("local_class", "namedtuple() with arguments that it refuses")
    defaults = given.pop("defaults", NONE)
    try:
        constants = {name: deep_constant(interp, value) for name, value in given.items()}
    except NotConstant:
        raise GraphBreak("local_class", "namedtuple() of what is not constant") from None
    if constants.get("module") is None:
        module = module_of_caller(interp)
        constants["module"] = module.value if isinstance(module, ConstValue) else None
    if isinstance(defaults, ListValue):
        defaults = TupleValue(defaults.items)
    if not isinstance(defaults, TupleValue) and defaults is not NONE and not (
            isinstance(defaults, ConstValue) and defaults.value is None):
        raise GraphBreak("local_class", "namedtuple() with defaults that are no tuple")
    real = tuple(proxy_of(interp, interp.context.force(item)) for item in defaults.items) \
        if isinstance(defaults, TupleValue) else None
    try:
        proxy = collections.namedtuple(**constants, defaults=real)
    except (TypeError, ValueError) as error:
        raise interp.raise_real(error) from None
    value = NamedTupleClassValue(proxy, const(tuple(constants.items())), defaults)
    interp.context.writes += 1
    interp.context.adopt(proxy, value)
    _adopt_methods(interp, proxy, {})
    return value


@builtin(typing.NamedTupleMeta.__new__, typing._make_nmtuple)  # type: ignore[attr-defined]
def make_typed_named_tuple(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    raise GraphBreak("local_class", "typing.NamedTuple writes the code of a class")


@builds(NamedTupleClassValue)
def _build_named_tuple(emitter: Emitter, value: NamedTupleClassValue) -> None:
    parts = emitter.parts(value, [value.arguments, value.defaults])
    if parts is None:
        emitter.load(value)
        return
    emitter.call(_named_tuple, *(lambda name=name: emitter.emit("LOAD_FAST", name) for name in parts))
    emitter.remember(value)


def _named_tuple(arguments: tuple[tuple[str, Any], ...], defaults: Any) -> type:
    return collections.namedtuple(**dict(arguments), defaults=defaults)  # type: ignore[misc]
