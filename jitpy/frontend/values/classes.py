"""Classes that the program makes or writes to, and their descriptors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..guards.source import constant
from .base import Value
from .opaque import PyValue


class ClassValue(PyValue):
    """A class that the traced program made. `obj` is its proxy class (see `models/builtins/local_classes.py`).

    `names` are the keys of the namespace that it was made of. `before` is what the proxy class had before the functions
    in `completions` added more, where that is not known by name.
    """

    __slots__ = ("before", "completions", "names")

    def __init__(self, proxy: type, names: tuple[str, ...]) -> None:
        super().__init__(proxy)
        self.names = names
        self.before: dict[str, Any] | None = None
        #: functions called on the class once it was made -> the attributes that they set
        self.completions: dict[Callable[[type], Any], tuple[str, ...]] = {}


class NamedTupleClassValue(ClassValue):
    """A class that `namedtuple` made, and of what."""

    __slots__ = ("arguments", "defaults")

    def __init__(self, proxy: type, arguments: Value, defaults: Value) -> None:
        super().__init__(proxy, ())
        self.before = dict(vars(proxy))
        self.arguments = arguments
        self.defaults = defaults

    def children(self) -> Iterable[Any]:
        return self.arguments, self.defaults


class ClassWrites(Value):
    """What the traced program wrote to a class from outside: name -> Value, or DELETED."""

    __slots__ = ("items", "obj")
    cls = type

    def __init__(self, obj: type) -> None:
        self.source = constant(obj, obj.__qualname__)
        self.obj = obj
        self.items: dict[str, Any] = {}

    def children(self) -> Iterable[Any]:
        return self.items.values()


class DescriptorValue(PyValue):
    """A property, staticmethod or classmethod that the traced program made; `obj` is one made of proxies."""

    __slots__ = ("args",)

    def __init__(self, obj: Any, args: list[Value]) -> None:
        super().__init__(obj)
        self.args = args

    def children(self) -> Iterable[Any]:
        return self.args
