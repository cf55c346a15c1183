"""Dicts and their views."""

from __future__ import annotations

import collections
import gc
from collections.abc import Callable, Iterable
from typing import Any

from ..breaks import GraphBreak, RestartAnalysis
from ..guards.source import Source, StepSource, slot
from ..guards.source import item as item_of
from .base import DELETED, Interpreter, Missing, Show, TraceContext, Value, unsupported
from .constant import const
from .hook_number import has_hook_numbers
from .instance import ObjectValue
from .iterator import Exhausted, IteratorValue
from .number import count_value
from .set import SET_OPERATORS, compare_sets
from .tuple import TupleValue
from .wrapping import wraps


class DictValue(ObjectValue):
    """A dict or an instance of a subclass, or the `__dict__` of an instance.

    `vals` is what is known so far: key -> Value, or DELETED for a key known to be absent. `real_dict` still holds
    the rest while `complete` is False. `keys` keeps the Value of each key. `log` lists the writes, in order. The last
    `unsettled` of them have keys that are not known exactly.
    """

    answers_comparisons = True
    __slots__ = ("complete", "instance", "keys", "log", "owner", "real_dict", "real_length", "unsettled", "vals")

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
        self.real_length: Any = None  # once it was asked for

    def length(self, interp: Interpreter) -> Value:
        return count_value(interp.context.dict_count(self))

    def written_parts(self) -> Iterable[tuple[Source, Any, Value]]:
        assert self.source is not None
        return [(item_of(self.source, key), dict.get(self.real_dict, key, DELETED), found)
                for key, found in self.log if not isinstance(found, Missing)]

    def payload(self, interp: Interpreter) -> Any:
        return {k: v.payload(interp) for k, v in interp.context.plain_items(self)}

    def combine(self, interp: Interpreter, name: str, other: Value, inplace: bool) -> Any:
        context = interp.context
        if name != "OR" or not isinstance(other, DictValue) or self.cls is not dict or other.cls is not dict:
            return None
        target = self if inplace else DictValue()
        for one in (other,) if inplace else (self, other):
            for key, item in context.dict_items(one):
                context.dict_set(target, key, item, context.dict_key_value(one, key))
        return target

    def answers_operator(self, interp: Interpreter, name: str, method: str, found: Any, other: Value) -> bool:
        if isinstance(other, DictValue) and found is getattr(dict, method, None):
            return True
        return (issubclass(other.cls, dict) or method == "__ior__") and \
            super().answers_operator(interp, name, method, found, other)

    def check_known(self, keys: Iterable[Any]) -> None:
        """A break where keys are numbers of hooks, which tracing does not know."""
        if has_hook_numbers(keys):
            raise unsupported(self, "a look at the numbers of hooks")

    def compare_same(self, interp: Interpreter, symbol: str, other: Value) -> Value | None:
        if not isinstance(other, DictValue) or symbol not in ("==", "!="):
            return None
        xs, ys = dict(interp.context.dict_items(self)), dict(interp.context.dict_items(other))
        self.check_known((*xs, *ys))
        same = xs.keys() == ys.keys() and all(interp.equal(v, ys[k]) for k, v in xs.items())
        return const(same == (symbol == "=="))

    def getitem(self, interp: Interpreter, key: Value) -> Any:
        found = interp.read_by_key(self, key, True)
        if found is NotImplemented:
            found = interp.context.dict_get(self, key.key(interp))
        if found is not None:
            return found
        if not interp.context.has_slot(self.cls, "__missing__"):
            raise interp.throw(KeyError, key)
        missing = interp.context.class_lookup(self.cls, "__missing__")
        return interp.call(interp.context.const_object(missing), [self, key], {})

    def setitem(self, interp: Interpreter, key: Value, new: Value) -> None:
        if interp.context.dict_set_unread(self, key):
            interp.context.dict_set_symbolic(self, key, new)
        else:
            interp.context.dict_set(self, key.key(interp), new, key)

    def delitem(self, interp: Interpreter, key: Value) -> None:
        real_key = key.key(interp)
        if interp.context.dict_get(self, real_key) is None:
            raise interp.throw(KeyError, key)
        interp.context.dict_delete(self, real_key)

    def contains(self, interp: Interpreter, item: Value) -> Value:
        found = interp.read_by_key(self, item, False)
        return const(interp.context.dict_get(self, item.key(interp)) is not None if found is NotImplemented else found)

    @property
    def was_read(self) -> bool:
        """Whether tracing knows or changed anything of it."""
        return bool(self.vals or self.log) or self.complete

    @property
    def base(self) -> type:  # type: ignore[override]
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
            factory = collections.defaultdict.default_factory  # type: ignore[misc]
            interp.context.write_slot(made, factory, copy(interp.context.read_slot(self, factory)))
        for key, item in interp.context.dict_items(self):
            new = copy(interp.context.dict_key_value(self, key))
            interp.context.dict_set(made, new.key(interp), copy(item), new)
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

    parts = ("of",)

    def iterate(self, interp: Interpreter, backwards: bool = False) -> Value | None:
        return DictIterator(interp, self.of, self.kind, backwards)

    @property
    def cls(self) -> type:  # type: ignore[override]
        return type(getattr(self.of.base(), self.kind)())

    def truth(self, interp: Interpreter) -> Any:
        return interp.truth_or_number(self.length(interp))

    def length(self, interp: Interpreter) -> Value:
        return self.of.length(interp)

    def combine(self, interp: Interpreter, name: str, other: Value, inplace: bool) -> Any:
        is_set = self.kind != "values" and name in SET_OPERATORS
        return interp.set_binary(name, self, other, inplace) if is_set else None

    def set_keys(self, interp: Interpreter) -> list[Any] | None:
        if self.kind == "values":
            return None
        items = interp.context.dict_items(self.of)
        self.of.check_known(key for key, _ in items)
        if self.kind == "keys":
            return [key for key, _ in items]
        return [(key, found.key(interp)) for key, found in items]

    def compare_same(self, interp: Interpreter, symbol: str, other: Value) -> Value | None:
        if self.kind == "items" and isinstance(other, DictViewValue) and other.kind == "items" and \
                symbol in ("==", "!="):
            return self.of.compare_same(interp, symbol, other.of)
        return compare_sets(interp, symbol, self, other)

    def contains(self, interp: Interpreter, item: Value) -> Value | None:
        return self.of.contains(interp, item) if self.kind == "keys" else None


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

    parts = ("of",)

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


class _Viewed:
    """Reads the dict that a view shows."""

    __name__ = "<dict>"

    def __get__(self, view: Any, owner: type | None = None) -> Any:
        return gc.get_referents(view)[0]


_VIEWED = _Viewed()
VIEWS: dict[type, str] = {type(getattr(of(), kind)()): kind for of in (dict, collections.OrderedDict)
                           for kind in ("keys", "values", "items")}


@wraps(*VIEWS)
def _wrap_view(context: TraceContext, obj: Any, cls: type, source: Source) -> Value | None:
    """The Value of a view from outside, or None where it is none of the dict's own kind."""
    shown = context.wrap(_VIEWED.__get__(obj), slot(source, _VIEWED))
    if not isinstance(shown, DictValue):
        return None
    made = DictViewValue(shown, VIEWS[cls])
    made.source = source
    return made if made.cls is cls else None
