"""Dicts and their views."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any

from ..guards.source import Source, StepSource
from .base import Interpreter, Missing, TraceContext, Value
from .instance import ObjectValue
from .wrapping import wraps


class DictValue(ObjectValue):
    """A dict or an instance of a subclass, or the `__dict__` of an instance.

    `vals` is what is known so far: key -> Value, or DELETED for a key known to be absent. `real_dict` still holds
    the rest while `complete` is False. `keys` keeps the Value of each key. `log` lists the writes, in order. The last
    `unsettled` of them have keys that are not known exactly.
    """

    __slots__ = ("complete", "instance", "keys", "length", "log", "owner", "real_dict", "unsettled", "vals")

    def __init__(self, source: Source | None = None, cls: type = dict, real: Any = None, real_dict: Any = None) -> None:
        super().__init__(cls, source, real)
        self.vals: dict[Any, Value | Missing] = {}
        self.keys: dict[Any, Value] = {}
        self.real_dict = real_dict
        self.complete = real_dict is None
        self.owner: type | None = None  # the class of the instance whose `__dict__` this is
        self.instance: Value | None = None  # ... and that itself, where tracing made it
        self.log: list[tuple[Any, Value | Missing]] = []
        self.unsettled = 0
        self.length: Any = None  # the real dict's, once it was asked for

    @property
    def was_read(self) -> bool:
        """Whether tracing knows or changed anything of it."""
        return bool(self.vals or self.log) or self.complete

    def children(self) -> Iterable[Any]:
        return *self.vals.values(), *super().children()

    def place(self) -> Any:
        if isinstance(self.source, StepSource) and self.source.kind == "dict":
            return "attributes", self.owner
        return super().place()

    def branches(self, interp: Interpreter) -> list[Value] | None:
        return [value for _, value in interp.context.dict_items(self)]

    def rebuild(self, interp: Interpreter, item: Callable[[Value], Value]) -> Value | None:
        if self.cls is not dict:
            return None
        made = DictValue()
        for key, value in interp.context.dict_items(self):
            interp.context.dict_set(made, key, item(value), interp.context.dict_key_value(self, key))
        return made

    def unpacked(self, interp: Interpreter, item: Callable[[Value], Any]) -> Any:
        return {key: item(value) for key, value in interp.context.plain_items(self)} if self.cls is dict else None


class DictViewValue(Value):
    """`d.keys()`, `d.values()` or `d.items()`."""

    __slots__ = ("kind", "of")

    def __init__(self, of: DictValue, kind: str) -> None:
        self.source = None
        self.of = of
        self.kind = kind

    def children(self) -> Iterable[Any]:
        return (self.of,)

    @property
    def base(self) -> type:
        """The class whose method made it."""
        return collections.OrderedDict if issubclass(self.of.cls, collections.OrderedDict) else dict

    @property
    def cls(self) -> type:  # type: ignore[override]
        return type(getattr(self.base(), self.kind)())


@wraps(dict)
def _wrap(context: TraceContext, obj: dict[Any, Any], cls: type, source: Source) -> Value:
    if cls is not dict:
        context.container_kinds[source.key()] = dict
    return context.with_attrs(DictValue(source, cls, obj, obj), obj)
