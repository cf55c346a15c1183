"""Dicts and their views."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any

from ..breaks import GraphBreak, RestartAnalysis
from ..guards.source import Source, StepSource
from .base import DELETED, Interpreter, Missing, Show, TraceContext, Value
from .instance import ObjectValue
from .iterator import Exhausted, IteratorValue
from .tuple import TupleValue
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

    @property
    def base(self) -> type:
        """The class in C whose methods it has."""
        return collections.OrderedDict if issubclass(self.cls, collections.OrderedDict) else dict

    def children(self) -> Iterable[Any]:
        return *self.vals.values(), *super().children()

    def iterate(self, interp: Interpreter, backwards: bool = False) -> Value | None:
        return DictIterator(interp, self, "keys", backwards)

    def place(self) -> Any:
        if isinstance(self.source, StepSource) and self.source.kind == "dict":
            return "attributes", self.owner
        return super().place()

    def shown(self, interp: Interpreter, function: Any, found: Any, show: Show) -> Any:
        return self.shown_as_constant(interp, function)

    def deep_copied(self, interp: Interpreter, memo: dict[int, Value], copy: Callable[[Any], Value]) -> Value | None:
        kinds = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)
        attrs = self.instance_dict(interp) if self.cls in kinds else None
        if self.cls not in kinds or attrs is not None and interp.context.dict_items(attrs):
            return None
        memo[id(self)] = made = DictValue(None, self.cls)
        if self.cls is collections.defaultdict:
            factory = collections.defaultdict.default_factory  # type: ignore[attr-defined]
            interp.context.write_slot(made, factory, copy(interp.context.read_slot(self, factory)))
        for key, item in interp.context.dict_items(self):
            new = copy(interp.context.dict_key_value(self, key))
            interp.context.dict_set(made, interp.key_of(new), copy(item), new)
        return made

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

    def iterate(self, interp: Interpreter, backwards: bool = False) -> Value | None:
        return DictIterator(interp, self.of, self.kind, backwards)

    @property
    def base(self) -> type:
        """The class whose method made it."""
        return self.of.base

    @property
    def cls(self) -> type:  # type: ignore[override]
        return type(getattr(self.base(), self.kind)())


class DictIterator(IteratorValue):
    """Over the keys, values or items that a dict has when they are asked for; its size must not change meanwhile."""

    __slots__ = ("_now", "_writes", "backwards", "born", "changed", "cls", "finished", "index", "keys", "kind", "of",
                 "of_real_keys")

    def __init__(self, interp: Interpreter, of: DictValue, kind: str, backwards: bool = False) -> None:
        self.source = None
        self.born = interp.step
        self.of = of
        self.kind = kind
        self.backwards = backwards
        self.changed = False  # its size did: every further step says so
        self._now = interp.context.dict_items(of)
        self._writes = interp.context.writes  # as of when `_now` was what the dict holds
        self.keys = [key for key, _ in self._now]
        # whether the real dict has the same keys in spite of what is to be written to it
        self.of_real_keys = of.real_dict is None or len(of.real_dict) == len(self.keys) and \
            not any(item is DELETED or key not in of.real_dict for key, item in of.log)
        self.index = 0
        self.finished = False
        self.cls = type((reversed if backwards else iter)(getattr(of.base(), kind)()))

    def children(self) -> Iterable[Any]:
        return (self.of,)

    def step(self, interp: Interpreter) -> Value:
        if self.finished:
            raise Exhausted
        if interp.context.writes != self._writes or self.of.unsettled:
            self._now = interp.context.dict_items(self.of)
        now = self._now
        if len(now) != len(self.keys) or self.changed:
            ordered = issubclass(self.of.cls, collections.OrderedDict)
            self.finished, self.changed = ordered, not ordered
            raise interp.throw(RuntimeError, "OrderedDict mutated during iteration" if ordered else
                           "dictionary changed size during iteration")
        if self.index >= len(self.keys):
            self.finished = True
            raise Exhausted
        place = -1 - self.index if self.backwards else self.index
        key, value = now[place]
        if key is not self.keys[place] and key != self.keys[place]:
            # which of them a real iterator meets depends on where it is
            raise RestartAnalysis(self.born,
                                  GraphBreak("unsupported_value", "iteration over a dict that gets other keys"))
        self.index += 1
        interp.context.writes += 1
        self._writes = interp.context.writes
        if self.kind == "values":
            return value
        shown = interp.context.dict_key_value(self.of, key)
        return shown if self.kind == "keys" else TupleValue([shown, value])


@wraps(dict)
def _wrap(context: TraceContext, obj: dict[Any, Any], cls: type, source: Source) -> Value:
    if cls is not dict:
        context.container_kinds[source.key()] = dict
    return context.with_attrs(DictValue(source, cls, obj, obj), obj)
