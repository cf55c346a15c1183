"""Classes that the traced program makes: class statements, `type(name, bases, dict)`, metaclasses.

While tracing, such a class is a real one, its *proxy class*: bases, slots and name are the program's, so that method
resolution, layout and `isinstance` are CPython's. What the proxy class holds are proxies of the right type (a function
that nobody calls for a function, an instance that nobody initialised for a descriptor of the program's);
`TraceContext.made` leads from them, and from the proxy, to the Values. Writes to the class are made to the proxy.

Each call of the compiled code makes a class of its own, where one is needed, as the proxy was in the end. The hooks of
`type.__new__` (`__set_name__`, `__init_subclass__`) are traced as the calls that they are (`polyfills/classes.py`), so
neither the proxy nor the class made at run time calls them.
"""

from __future__ import annotations

import _abc
import contextlib
import dataclasses
import types
from collections.abc import Iterable
from typing import Any

import torch

from ...breaks import GraphBreak
from ...codegen.frame_code import Emitter, builds
from ...guards.guard_set import MISSING
from ...interpreter.callees import builtin
from ...interpreter.calls import make_frame
from ...interpreter.constant_folding import NotConstant, deep_constant
from ...interpreter.frame import PUSHED
from ...polyfills import classes as polyfills
from ...values import (
    NONE,
    CellValue,
    ClassValue,
    ConstValue,
    DescriptorValue,
    DictValue,
    FunctionValue,
    Interpreter,
    MethodValue,
    ObjectValue,
    PyValue,
    TraceContext,
    TupleValue,
    Value,
    const,
    unsupported,
)
from . import class_writes

Args = list[Value]
Kwargs = dict[str, Value]

_DESCRIPTOR_METHODS = ("__get__", "__set__", "__delete__", "__set_name__")
#: attributes that `type.__new__` needs to know; setting `__module__` later has side effects
_FIXED = ("__slots__", "__qualname__", "__module__")
_OWN_STATE = ("__dict__", "__weakref__")


class _Anything:
    """Stands for an attribute whose type does not matter to the class."""


class _Quiet:
    """A first base that keeps `type.__new__` from calling the real bases' hook."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        pass


class _QuietWithoutDict:
    __slots__ = ()
    __init_subclass__ = _Quiet.__init_subclass__  # type: ignore[assignment]


def _never_called(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("a method of a class that exists while tracing only was called")


# -- proxy classes ------------------------------------------------------------------------------------------


def new_class(meta: type, name: str, bases: tuple[type, ...], fixed: dict[str, Any], names: Iterable[str]) -> type:
    """A class that has None under these names, in their order, but for what is `fixed`. No hook is called."""
    namespace = {key: fixed.get(key) for key in names}
    hooked = any("__init_subclass__" in vars(base) for cls in bases for base in cls.__mro__ if base is not object)
    if not hooked:
        return type.__new__(meta, name, bases, namespace)
    quiet = _Quiet if any(base.__dictoffset__ for base in bases) else _QuietWithoutDict
    made = type.__new__(meta, name, (quiet, *bases), namespace)
    _set_bases(made, bases)
    return made


_set_bases = type.__dict__["__bases__"].__set__  # type: ignore[attr-defined]


def forget_proxy_classes(context: TraceContext) -> None:
    """Take the proxy classes of a capture from the subclasses of their bases, where the program would find them."""
    for value in reversed(context.made.values()):
        if isinstance(value, ClassValue):
            with contextlib.suppress(TypeError):  # layouts differ: it goes with the next collection
                _set_bases(value.obj, (_Quiet,))


def proxy_of(interp: Interpreter, value: Value) -> Any:
    """The real object that stands for a Value in a proxy class."""
    context = interp.context
    if isinstance(value, ConstValue):
        return value.value
    if isinstance(value, PyValue):
        return context.pin(value)
    found = context.proxies.get(id(value))
    if found is None:
        found = context.proxies[id(value)] = _new_proxy(interp, value)
        context.adopt(found, value)
    return found


def _new_proxy(interp: Interpreter, value: Value) -> Any:
    if isinstance(value, FunctionValue):
        return _proxy_function(interp, value)
    if isinstance(value, TupleValue) and value.cls is tuple and value.items:
        try:
            return deep_constant(interp, value)
        except NotConstant:
            return _Anything()
    if isinstance(value, MethodValue) or not interp.context.has_slot(value.cls, *_DESCRIPTOR_METHODS):
        return _Anything()
    if type(value) is ObjectValue and value.cls.__new__ is object.__new__ and value.cls is not dataclasses.Field:
        return object.__new__(value.cls)
    raise GraphBreak("local_class", f"{value.describe()} as an attribute")


def _proxy_function(interp: Interpreter, value: FunctionValue) -> types.FunctionType:
    made = types.FunctionType(_never_called.__code__, {}, value.name)
    made.__qualname__ = value.qualname
    constants = value.code.co_consts
    made.__doc__ = constants[0] if constants and isinstance(constants[0], str) else None
    if value.attrs is not None:
        abstract = interp.context.dict_get(value.attrs, "__isabstractmethod__")
        if isinstance(abstract, ConstValue):
            made.__isabstractmethod__ = abstract.value  # type: ignore[attr-defined]
    return made


@builtin(polyfills.make_class)
def make_class(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`type.__new__(meta, name, bases, namespace)` without the hooks."""
    meta_value, name, bases_value, namespace = args
    if not isinstance(meta_value, PyValue) or not isinstance(name, ConstValue) or type(name.value) is not str or \
            not isinstance(bases_value, TupleValue) or not isinstance(namespace, DictValue):
        raise GraphBreak("local_class", "arguments of type.__new__")
    context = interp.context
    meta = context.pin(meta_value)
    bases = tuple(_base(interp, context.force(b)) for b in bases_value.items)
    if context.class_lookup(meta, "mro") is not type.__dict__["mro"]:
        raise GraphBreak("local_class", f"{meta.__qualname__}.mro")
    for slot in ("__eq__", "__hash__", "__subclasses__"):
        if isinstance(context.class_lookup(meta, slot), types.FunctionType):
            raise GraphBreak("local_class", f"{meta.__qualname__}.{slot}")
    attributes = dict(context.dict_items(namespace))
    if not all(type(key) is str for key in attributes):
        raise GraphBreak("local_class", "a namespace with keys other than strings")
    cells = [attributes.pop(key, None) for key in ("__classcell__", "__classdictcell__")]
    if "__module__" not in attributes:
        attributes["__module__"] = module_of_caller(interp)
    fixed: dict[str, Any] = {}
    for key in _FIXED:
        if key in attributes:
            try:
                fixed[key] = deep_constant(interp, attributes[key])
            except NotConstant:
                raise GraphBreak("local_class", f"{key} that is no constant") from None
    for key in attributes:
        on_meta = context.class_lookup(meta, key)
        if on_meta is not MISSING and hasattr(type(on_meta), "__set__") and key not in vars(type):
            raise GraphBreak("local_class", f"an attribute by the name of {on_meta!r} of its metaclass")
    try:
        proxy = new_class(meta, name.value, bases, fixed, attributes)
    except (TypeError, ValueError) as error:
        if any("__init_subclass__" in vars(base) for cls in bases for base in cls.__mro__ if base is not object):
            raise GraphBreak("local_class", str(error)) from None
        raise interp.raise_real(error) from None
    context.writes += 1
    value = ClassValue(proxy, tuple(attributes))
    context.adopt(proxy, value)
    for key, item in attributes.items():
        if key in _FIXED:
            continue
        if key in ("__new__", "__init_subclass__", "__class_getitem__") and isinstance(item, FunctionValue):
            item = _descriptor(interp, staticmethod if key == "__new__" else classmethod, [item])
        type.__setattr__(proxy, key, proxy_of(interp, item))
    for cell, content in zip(cells, (value, namespace), strict=True):
        if isinstance(cell, CellValue):
            cell.content = content
    return value


def _base(interp: Interpreter, value: Value) -> type:
    base = interp.context.pin(value) if isinstance(value, PyValue) else None
    if not isinstance(base, type):
        raise GraphBreak("local_class", f"a base that is no class: {value.describe()}")
    return base


def module_of_caller(interp: Interpreter) -> Value:
    frame = next(frame for frame in reversed(interp.frames) if "polyfills" not in frame.code.co_filename)
    return interp.context.dict_get(frame.globals, "__name__") or NONE


@builtin(polyfills.set_name_hooks)
def set_name_hooks(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    context = interp.context
    proxy = args[0].obj  # type: ignore[attr-defined]
    found: list[Value] = []
    for key, raw in vars(proxy).items():
        hook = context.class_lookup(type(raw), "__set_name__")
        if hook is MISSING or type(raw) is property:  # properties learn their name, from 3.13 on, in C
            continue
        if type(raw) is dataclasses.Field and not hasattr(type(raw.default), "__set_name__"):
            continue
        value = context.const_object(raw)
        if not isinstance(hook, types.FunctionType) or not isinstance(value, ObjectValue):
            raise GraphBreak("local_class", f"{type(raw).__name__}.__set_name__")
        found.append(TupleValue([MethodValue(context.const_object(hook), value), const(key)]))
    return TupleValue(found)


@builtin(polyfills.run_class_body)
def run_class_body(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    body, namespace = args
    if not isinstance(body, FunctionValue):
        raise GraphBreak("local_class", body.describe())
    frame = make_frame(interp, body, [], {})
    frame.namespace = namespace
    frame.finish = lambda interp, value: interp.frames[-1].push(value)
    interp.push_frame(frame)
    return PUSHED


@builtin(polyfills.prepare)
def prepare(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:

    meta, name, bases, keywords = args
    if isinstance(meta, PyValue) and isinstance(meta.obj, type):
        found = interp.context.class_lookup(interp.context.pin(meta), "__prepare__")
        if found is type.__dict__["__prepare__"]:
            return DictValue()
        hook = interp.finish_sync(interp.getattr(meta, "__prepare__"))
        assert isinstance(keywords, DictValue)
        return interp.call(hook, [name, bases], dict(interp.context.dict_items(keywords)))
    raise GraphBreak("local_class", f"metaclass {meta.describe()}")


@builtin(type.__prepare__)
def type_prepare(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return DictValue()


@builtin(type.__new__)
def type_new(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return interp.call(interp.context.const_object(polyfills.new_type), args, kwargs)


@builtin(type.__init__, object.__init_subclass__)
def nothing_else(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`type.__init__` looks at nothing; `object.__init_subclass__` takes no arguments."""
    if kwargs and (not args or not isinstance(args[0], PyValue)):
        name = args[0].describe() if args else "object"
        raise interp.throw(TypeError, f"{name}.__init_subclass__() takes no keyword arguments")
    return NONE


@builtin(type.__call__)
def type_call(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    from ...interpreter.calls import instantiate

    if not args or not isinstance(args[0], PyValue) or not isinstance(args[0].obj, type):
        raise GraphBreak("unsupported_call", "type.__call__")
    return instantiate(interp, args[0], interp.context.pin(args[0]), args[1:], kwargs)


# -- descriptors --------------------------------------------------------------------------------------------


def _descriptor(interp: Interpreter, kind: type, args: Args, kwargs: Kwargs | None = None) -> Value:
    """`property(...)`, `staticmethod(...)` or `classmethod(...)`."""
    names = ("fget", "fset", "fdel", "doc")
    parts = dict(zip(names, args, strict=False)) | (kwargs or {})
    positional = [parts.get(name, NONE) for name in names] if kind is property else list(args)
    made = kind(*(proxy_of(interp, value) for value in positional))
    value = DescriptorValue(made, positional)
    interp.context.adopt(made, value)
    return value


def _makes(kind: type) -> None:
    @builtin(kind)
    def make(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        if kind is not property and (len(args) != 1 or kwargs):
            raise GraphBreak("unsupported_call", f"{kind.__name__}()")
        return _descriptor(interp, kind, args, kwargs)


for _kind in (property, staticmethod, classmethod):
    _makes(_kind)


def _changes(method: Any, position: int) -> None:
    @builtin(method)
    def change(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        """`property.setter(f)` and its like: another property."""
        old = args[0]
        if not isinstance(old, DescriptorValue) or type(old.obj) is not property or len(args) != 2:
            raise unsupported(old, f".{method.__name__}()")
        parts = list(old.args)
        parts[position] = args[1]
        return _descriptor(interp, property, parts)


for _position, _method in enumerate((property.getter, property.setter, property.deleter)):
    _changes(_method, _position)


# -- attributes ---------------------------------------------------------------------------------------------


def store_class_attr(interp: Interpreter, value: ClassValue, name: str, new: Value | None) -> Any:
    """`cls.name = new`, or `del cls.name` where `new` is None."""
    context = interp.context
    proxy = value.obj
    hook = context.class_lookup(type(proxy), "__delattr__" if new is None else "__setattr__")
    if isinstance(hook, types.FunctionType):
        return interp.call(context.const_object(hook), [value, const(name), *([] if new is None else [new])], {})
    return set_class_attr(interp, value, name, new)


def set_class_attr(interp: Interpreter, value: ClassValue, name: str, new: Value | None) -> Any:
    """As `store_class_attr`, without hooks of the metaclass."""
    proxy = value.obj
    if value.before is not None:
        raise GraphBreak("local_class", f"{proxy.__name__}.{name} = ... behind what wrote its methods")
    on_meta = interp.context.class_lookup(type(proxy), name)
    own = vars(proxy).get(name, MISSING)
    if on_meta is not MISSING and hasattr(type(on_meta), "__set__") and name not in ("__doc__", "__module__") or \
            type(own) is types.MemberDescriptorType or name in _FIXED and not isinstance(new, ConstValue):
        raise unsupported(value, f".{name} = ...")
    if new is None and own is MISSING:
        raise interp.throw(AttributeError, f"type object {proxy.__name__!r} has no attribute {name!r}"
                       if interp.context.class_lookup(proxy, name) is MISSING else name)
    interp.context.writes += 1
    interp.context.touches += 1
    if new is None:
        type.__delattr__(proxy, name)
    else:
        type.__setattr__(proxy, name, proxy_of(interp, new))
    return None


@builtin(type.__setattr__)
def type_setattr(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    cls, name, new = args
    if not isinstance(cls, PyValue) or not isinstance(cls.obj, type) or not isinstance(name, ConstValue):
        raise unsupported(cls, ".__setattr__()")
    if isinstance(cls, ClassValue):
        set_class_attr(interp, cls, name.value, new)
        return NONE
    done = class_writes.set_class_attr(interp, cls, name.value, new)
    if done is not None:
        interp.finish_sync(done)  # a setter of the metaclass
    return NONE


@builtin(_abc._abc_init)
def abc_init(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """What `ABCMeta` does to a new class: which methods are abstract."""
    cls = args[0]
    if not isinstance(cls, ClassValue) or any(type(raw).__module__ != "builtins" and hasattr(type(raw), "__get__")
                                              for raw in vars(cls.obj).values()):
        raise GraphBreak("local_class", "an abstract class with descriptors")
    _abc._abc_init(cls.obj)
    cls.completions[_abc._abc_init] = ("_abc_impl", "__abstractmethods__")
    return NONE


@builtin(type(torch.autograd.Function).__init__)
def autograd_function_init(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """What the metaclass of autograd functions does to a new one: a class of its nodes, with the next number."""
    cls = args[0]
    if not isinstance(cls, ClassValue):
        raise GraphBreak("local_class", "an autograd function from elsewhere")
    _make_node_class(cls.obj)
    cls.completions[_make_node_class] = ("_backward_cls",)
    return NONE


def _make_node_class(cls: type) -> None:
    type(torch.autograd.Function).__init__(cls, cls.__name__, cls.__bases__, {})


# -- at run time --------------------------------------------------------------------------------------------


@builds(ClassValue)
def _build_class(emitter: Emitter, value: ClassValue) -> None:
    """A class as the proxy is now."""
    proxy = value.obj
    context: TraceContext = emitter.context
    completed = {name for names in value.completions.values() for name in names}
    attributes = {key: raw for key, raw in (vars(proxy) if value.before is None else value.before).items()
                  if key not in completed and not _is_layout(proxy, key, raw)}
    fixed: dict[str, Any] = {"__qualname__": proxy.__qualname__} if "__qualname__" in value.names else {}
    if "__module__" in attributes:
        fixed["__module__"] = attributes["__module__"]
    if "__slots__" in attributes:
        slots = attributes["__slots__"]
        fixed["__slots__"] = slots if isinstance(slots, (str, tuple)) else tuple(_slot_names(proxy))
    names = tuple(key for key in value.names if key in attributes or key == "__qualname__")
    bases = emitter.parts(value, [context.const_object(base) for base in proxy.__bases__])
    if bases is None:
        emitter.load(value)
        return
    emitter.call(new_class, lambda: emitter.const_object(type(proxy)), lambda: emitter.const(proxy.__name__),
                 lambda: emitter.load_tuple(bases), lambda: emitter.const(fixed), lambda: emitter.const(names))
    emitter.remember(value)
    for key, raw in attributes.items():
        by_itself = raw is None and key in ("__doc__", "__hash__") and key not in value.names
        if key not in fixed and not by_itself:
            item = context.const_object(raw)
            emitter.call(type.__setattr__, lambda: emitter.load(value), lambda key=key: emitter.const(key),
                         lambda item=item: emitter.load(item))
            emitter.emit("POP_TOP")
    for completion in value.completions:
        emitter.call(lambda function=completion: emitter.const(function), lambda: emitter.load(value))
        emitter.emit("POP_TOP")


def _is_layout(proxy: type, key: str, raw: Any) -> bool:
    """Whether `type.__new__` made an attribute by itself: access to a slot, to `__dict__`, to weak references."""
    return key in _OWN_STATE and type(raw) is types.GetSetDescriptorType or \
        type(raw) is types.MemberDescriptorType and raw.__objclass__ is proxy


def _slot_names(proxy: type) -> list[str]:
    return [key for key, raw in vars(proxy).items() if _is_layout(proxy, key, raw)]


@builds(DescriptorValue)
def _build_descriptor(emitter: Emitter, value: DescriptorValue) -> None:
    args = emitter.parts(value, value.args)
    if args is None:
        emitter.load(value)
        return
    emitter.call(lambda: emitter.const(type(value.obj)),
                 *(lambda name=name: emitter.emit("LOAD_FAST", name) for name in args))
    emitter.remember(value)
