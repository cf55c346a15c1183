"""Dicts and their views."""

from __future__ import annotations

import collections
from typing import Any

from ..guards.source import Source
from .base import Missing, Value
from .instance import ObjectValue


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


class DictViewValue(Value):
    """`d.keys()`, `d.values()` or `d.items()`."""

    __slots__ = ("kind", "of")

    def __init__(self, of: DictValue, kind: str) -> None:
        self.source = None
        self.of = of
        self.kind = kind

    @property
    def base(self) -> type:
        """The class whose method made it."""
        return collections.OrderedDict if issubclass(self.of.cls, collections.OrderedDict) else dict

    @property
    def cls(self) -> type:  # type: ignore[override]
        return type(getattr(self.base(), self.kind)())
