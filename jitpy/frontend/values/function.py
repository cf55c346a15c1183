"""Functions, closure cells, bound methods, `super`."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

from ..guards.source import Source, attr, index, item
from .base import UNBOUND, Identity, Interpreter, Missing, TraceContext, Value, unsupported
from .constant import ConstValue, const
from .dict import DictValue
from .opaque import PyValue, compare_objects, is_same_object
from .tuple import TupleValue
from .wrapping import wraps


class CellValue(Value):
    """A closure cell. `content` is None while it was not read from the real cell."""

    __slots__ = ("content", "dirty", "real")
    cls = types.CellType

    def __init__(self, content: Value | Missing | None, source: Source | None = None, real: Any = None) -> None:
        self.source = source
        self.content = content
        self.real = real
        self.dirty = False

    @property
    def held(self) -> Value | None:
        """The value in it; None where it is empty, or was not read."""
        return self.content if isinstance(self.content, Value) else None

    def store(self, context: TraceContext, new: Value | Missing) -> None:
        self.content = new
        self.dirty = True
        context.writes += 1
        if self.source is not None:
            context.touch(self)

    def c_attribute(self, interp: Interpreter, name: str) -> Value:
        if name != "cell_contents":
            raise unsupported(self, f".{name}")
        content = interp.context.cell_content(self)
        if content is UNBOUND:
            raise interp.throw(ValueError, "Cell is empty")
        assert isinstance(content, Value)
        return content

    def set_c_attribute(self, interp: Interpreter, name: str, new: Value) -> bool:
        if name == "cell_contents":
            self.store(interp.context, new)
        return name == "cell_contents"

    parts = ("content",)

    def place(self) -> Any:
        return "cell", None


class FunctionValue(Value):
    """A Python function: a real one (`real`), or one made while tracing.

    Where the program makes another function of the same code at each call, guards know the code only. `known` is then
    the function of this call; asking for `real` guards that it is the same one (`pin`).
    """

    __slots__ = ("annotations", "attrs", "closure", "code", "defaults", "doc", "globals", "known", "kwdefaults",
                 "module", "name", "pin", "qualname")
    cls = types.FunctionType
    is_known_object = True

    takes_attributes = True
    is_atomic = True

    def __init__(self, code: types.CodeType, globals: dict[str, Any], *, name: str, qualname: str,
                 defaults: list[Value] | None = None, kwdefaults: dict[str, Value] | None = None,
                 closure: list[CellValue] | None = None, source: Source | None = None,
                 real: types.FunctionType | None = None) -> None:
        self.source = source
        self.code = code
        self.globals = globals
        self.name = name
        self.qualname = qualname
        self.defaults = defaults
        self.kwdefaults = kwdefaults
        self.closure = closure
        self.known = real
        self.pin: Callable[[], None] | None = None
        self.annotations: Value | None = None
        self.attrs: DictValue | None = None
        self.doc: Value | None = None  # where another one was given than the code has
        self.module: str | None = None

    def formatted(self, interp: Interpreter) -> Any:
        raise unsupported(self, "formatting")

    def children(self) -> Iterable[Any]:
        return (self.attrs, self.annotations, self.doc, *(self.closure or ()), *(self.defaults or ()),
                *(self.kwdefaults or {}).values())

    @property
    def real(self) -> types.FunctionType | None:
        self.settle()
        return self.known

    def settle(self) -> None:
        """Guard a function from outside by identity: something is read that its code does not tell."""
        if self.pin is not None:
            pin, self.pin = self.pin, None
            pin()

    def describe(self) -> str:
        return f"{self.qualname}()"

    def name_of_call(self) -> str:
        self.settle()
        return f"{self.module}.{self.qualname}()" if self.module not in (None, "builtins") else f"{self.qualname}()"

    def is_object(self, obj: Any) -> bool:
        return True

    @property
    def called(self) -> Any:
        return self.known

    def call(self, interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
        return interp.call_function(self, args, kwargs)

    def real_object(self, interp: Interpreter) -> Any:
        return self if self.real is None else self.real

    def compare(self, interp: Interpreter, symbol: str, other: Value, swapped: bool) -> Any:
        return compare_objects(interp, symbol, *((other, self) if swapped else (self, other)))

    def is_same(self, interp: Interpreter, other: Value) -> bool | None:
        return is_same_object(interp, self, other)

    def key(self, interp: Interpreter) -> Any:
        return self.real if self.real is not None else Identity(self)

    # attributes

    def instance_dict(self, interp: Interpreter) -> DictValue:
        if self.attrs is None:
            self.attrs = interp.context.new_dict_of(self, self.known)
        return self.attrs

    def c_attribute(self, interp: Interpreter, name: str) -> Value:
        context = interp.context
        simple = {"__name__": self.name, "__qualname__": self.qualname, "__code__": self.code,
                  "__module__": self.module}
        if name in simple and name != "__code__" and self.known is not None and self.source is not None:
            return context.wrap(getattr(self.known, name), attr(self.source, name))
        if name in simple:
            return context.const_object(simple[name])
        if name == "__globals__":
            return context.globals_of(self.globals)
        if name in ("__defaults__", "__kwdefaults__"):
            defaults, kwdefaults = self.parameter_defaults(context)
            if name == "__defaults__":
                return TupleValue(list(defaults)) if defaults else const(None)
            if not kwdefaults and (self.known is None or self.known.__kwdefaults__ is None):
                return const(None)
            raise unsupported(self, "__kwdefaults__")  # a dict whose changes change the function
        if name == "__closure__":
            return TupleValue(list(self.closure)) if self.closure else const(None)
        if name == "__annotations__":
            return self._annotations_dict(interp)
        if name == "__type_params__" and sys.version_info >= (3, 12):
            if self.real is not None and self.source is not None:
                return context.wrap(self.real.__type_params__, attr(self.source, name))
            if self.real is None or not self.real.__type_params__:
                return TupleValue([])  # of those made here none is generic: making parameters breaks the graph
        if name == "__doc__" and self.doc is not None:
            return self.doc
        if name == "__doc__" and (self.real is None or isinstance(self.real.__doc__, (str, type(None)))):
            constants = self.code.co_consts
            documented = sys.version_info < (3, 14) or self.code.co_flags & 0x4000000  # CO_HAS_DOCSTRING
            if self.real is not None and self.source is not None:
                return context.wrap(self.real.__doc__, attr(self.source, name))
            doc = self.real.__doc__ if self.real is not None else constants[0] if documented and constants else None
            return const(doc if isinstance(doc, str) else None)
        raise unsupported(self, f".{name}")

    def _annotations_dict(self, interp: Interpreter) -> Value:
        """The dict of a function's annotations: the very one, which the program may change."""
        real = self.real
        if real is not None and self.source is not None:
            return interp.context.wrap(real.__annotations__, attr(self.source, "__annotations__"))
        if sys.version_info >= (3, 14):
            raise unsupported(self, ".__annotations__")
        given = self.annotations
        if not isinstance(given, DictValue):
            self.annotations = made = DictValue()
            parts = given.items if isinstance(given, TupleValue) else []
            items: list[Any] = [interp.context.force(item) for item in parts]
            for key, item in zip(items[::2], items[1::2], strict=True):
                interp.context.dict_set(made, key.value, item, key)
            return made
        return given

    def set_c_attribute(self, interp: Interpreter, name: str, new: Value) -> bool:
        if self.source is not None:
            return False
        if name in ("__name__", "__qualname__", "__module__") and isinstance(new, ConstValue):
            setattr(self, name.strip("_"), new.value)
        elif name == "__doc__" and isinstance(new, ConstValue):
            self.doc = new
        elif name == "__annotations__" and isinstance(new, DictValue):
            self.annotations = new
            interp.context.writes += 1
        else:
            return False
        return True

    # parameters

    def parameter_defaults(self, context: TraceContext) -> tuple[list[Value], dict[str, Value]]:
        """Default values of positional and keyword-only parameters (read once, guarded)."""
        if self.defaults is None:
            real = self.known
            defaults: list[Value] = []
            kwdefaults: dict[str, Value] = {}
            if real is not None and self.source is not None:
                for i, default in enumerate(real.__defaults__ or ()):
                    defaults.append(context.wrap(default, index(attr(self.source, "__defaults__"), i)))
                for name, default in (real.__kwdefaults__ or {}).items():
                    kwdefaults[name] = context.wrap(default, item(attr(self.source, "__kwdefaults__"), name))
                self._guard_defaults(context, real, [*defaults, *kwdefaults.values()])
            self.defaults = defaults
            self.kwdefaults = {**kwdefaults, **(self.kwdefaults or {})}
        if self.known is not None and self.source is not None:
            held = context.value_of(self.known.__kwdefaults__)
            if isinstance(held, DictValue):  # the program has the dict itself, and may have changed it
                context.wrap(self.known.__kwdefaults__, attr(self.source, "__kwdefaults__"))
                return self.defaults, dict(context.dict_items(held))
        return self.defaults, self.kwdefaults or {}

    def _guard_defaults(self, context: TraceContext, real: types.FunctionType, values: list[Value]) -> None:
        """Code and defaults are as they are. Values other than constants are left to guards of their own: they change,
        or holding the tuple would keep them alive."""
        source, is_marked = self.source, real.__dict__.get("_dynamo_marked_constant") is True
        assert source is not None
        if self.pin is None and all(isinstance(value, ConstValue) for value in values):
            context.guard(source, "function", (real.__code__, real.__defaults__, real.__kwdefaults__, is_marked))
            return
        context.guard(source, "function", (real.__code__, ..., ..., is_marked))
        for name, fact in (("__defaults__", "len"), ("__kwdefaults__", "keys")):
            found = getattr(real, name)
            if found is None:
                context.guard(attr(source, name), "id", None)
            else:
                context.guard(attr(source, name), fact, len(found) if fact == "len" else tuple(found))


class MethodValue(Value):
    """A bound method of a Python function (or any callable)."""

    __slots__ = ("func", "self")
    cls = types.MethodType

    def __init__(self, func: Value, self_: Value, source: Source | None = None) -> None:
        self.source = source
        self.func = func
        self.self = self_

    parts = ("func", "self")

    def describe(self) -> str:
        return self.func.describe()

    def name_of_call(self) -> str:
        return self.func.name_of_call()

    @property
    def called(self) -> Any:
        return self.func.called

    def call(self, interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
        return self.func.call(interp, [self.self, *args], kwargs)

    def compare_same(self, interp: Interpreter, symbol: str, other: Value) -> Value | None:
        if not isinstance(other, MethodValue) or symbol not in ("==", "!="):
            return None
        same = interp.equal(self.func, other.func) and interp.same_object(self.self, other.self)
        return const(same == (symbol == "=="))

    def missing_attribute(self, interp: Interpreter, name: str) -> Any:
        return interp.getattr(self.func, name)

    def c_attribute(self, interp: Interpreter, name: str) -> Value:
        if name in ("__func__", "__self__"):
            return self.func if name == "__func__" else self.self
        found: Value = interp.getattr(self.func, name)
        return found


class BuiltinMethodValue(Value):
    """A C method descriptor bound to a value, e.g. `some_list.append`."""

    __slots__ = ("descriptor", "self")
    cls = types.BuiltinMethodType

    def __init__(self, descriptor: Any, self_: Value) -> None:
        self.source = None
        self.descriptor = descriptor
        self.self = self_

    parts = ("self",)

    def describe(self) -> str:
        return getattr(self.descriptor, "__qualname__", repr(self.descriptor))

    @property
    def called(self) -> Any:
        return self.descriptor

    def call(self, interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
        return interp.call_object(self.descriptor, [self.self, *args], kwargs, self)


class SuperValue(Value):
    """`super(cls, obj)`; `start` is the class after which the search begins, `mro_of` the class searched."""

    __slots__ = ("mro_of", "obj", "start")
    cls = super

    def __init__(self, start: type, obj: Value, mro_of: type, source: Source | None = None) -> None:
        self.source = source
        self.start = start
        self.obj = obj
        self.mro_of = mro_of

    parts = ("obj",)

    def find_attribute(self, interp: Interpreter, name: str) -> Any:
        mro = interp.context.mro(self.mro_of)
        if name == "__class__":
            return interp.context.const_object(super)
        if name in ("__thisclass__", "__self_class__"):
            return interp.context.const_object(self.start if name == "__thisclass__" else self.mro_of)
        if name == "__self__":
            return self.obj
        for owner in mro[mro.index(self.start) + 1:]:
            if owner in interp.context.class_writes:
                raise unsupported(self, f"super().{name} of a class that the program changed")
            if name in owner.__dict__:
                found = owner.__dict__[name]
                interp.context.class_lookup(owner, name)
                on_class = isinstance(self.obj, PyValue) and self.obj.obj is self.mro_of  # `super(cls, subclass)`
                if on_class and type(found) is classmethod:
                    return MethodValue(interp.context.const_object(found.__func__), self.obj)
                if on_class and isinstance(found, types.BuiltinFunctionType):
                    return interp.context.const_object(found)
                return interp.descriptor_get(found, None if on_class else self.obj, owner, name, self.mro_of)
            interp.context.class_lookup(owner, name)
        raise interp.throw(AttributeError, f"'super' object has no attribute {name!r}")


@wraps(types.CellType, by_type=False)
def _wrap_cell(context: TraceContext, obj: types.CellType, cls: type, source: Source) -> Value:
    return CellValue(None, source, obj)


@wraps(types.MethodType)
def _wrap_method(context: TraceContext, obj: types.MethodType, cls: type, source: Source) -> Value:
    func = context.wrap(obj.__func__, attr(source, "__func__"))
    return MethodValue(func, context.wrap(obj.__self__, attr(source, "__self__")), source)


@wraps(super)
def _wrap_super(context: TraceContext, obj: Any, cls: type, source: Source) -> Value | None:
    if cls is not super or obj.__self__ is None:
        return None
    for name in ("__thisclass__", "__self_class__"):
        context.guard(attr(source, name), "id", getattr(obj, name))
    bound = context.wrap(obj.__self__, attr(source, "__self__"))
    return SuperValue(obj.__thisclass__, bound, obj.__self_class__, source)
