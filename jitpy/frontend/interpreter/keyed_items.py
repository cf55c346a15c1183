"""Items of dicts from outside under texts that change: `self.adapters[self.active]`.

Such an item is read by its paths at each call: that of the dict and that of the key, from an object that they have in
common. So what was read of the item is guarded, and not the key. Any other look at the key guards it.
"""

from __future__ import annotations

import collections
import functools
from typing import Any

from ..breaks import GraphBreak, RestartAnalysis
from ..guards.source import ConstSource, Source, slot
from ..values import DictValue, Interpreter, TraceContext, Value
from .trace_context import own_dict

Path = tuple[tuple[str, Any], ...]


class _ByKey:
    """Reads a dict's item under a text, or whether there is one."""

    __slots__ = ("is_item", "key", "of")
    __name__ = "item"

    def __init__(self, of: Path, key: Path, is_item: bool) -> None:
        self.of, self.key, self.is_item = of, key, is_item

    def __get__(self, base: Any, owner: Any = None) -> Any:
        of, key = _read(base, self.of), _read(base, self.key)
        if type(key) is not str:
            raise KeyError(key)
        return _item(of, key) if self.is_item else dict.__contains__(of, key)


def _item(of: Any, key: Any) -> Any:
    found = dict.get(of, key, of)
    if found is of:
        raise KeyError(key)
    return found


def _index(of: Any, i: int) -> Any:
    return (list if issubclass(type(of), list) else tuple).__getitem__(of, i)


_STEPS: dict[str, Any] = {"dict": lambda of, _: own_dict(of), "item": _item, "index": _index}


def _read(base: Any, path: Path) -> Any:
    return functools.reduce(lambda of, step: _STEPS[step[0]](of, step[1]), path, base)


_by_key = functools.cache(_ByKey)  # sources tell steps apart by identity


def read_by_key(interp: Interpreter, d: DictValue, key: Value, is_item: bool) -> Any:
    """The item (None: there is none), or whether there is one; NotImplemented where the key has to be known."""
    context = interp.context
    if key.source is None or d.source is None or d.log or d.cls not in (dict, collections.OrderedDict):
        return NotImplemented
    if not key.is_text:
        if type(key.literal) is str:
            context.history.keys.setdefault(key.source.key(), key.literal)
        return NotImplemented
    ancestors = [_ancestors(d.source), _ancestors(key.source)]
    shared = next((one for one in ancestors[0] if one in ancestors[1]), None)
    text = key.obj  # type: ignore[attr-defined]
    if shared is None or is_item and not dict.__contains__(d.real_dict, text):
        return NotImplemented
    lines = [line[:line.index(shared)][::-1] for line in ancestors]
    paths: list[Path] = [tuple(one.step for one in below) for below in lines]
    if any(kind not in _STEPS or type(arg) not in (str, int, type(None)) for path in paths for kind, arg in path):
        return NotImplemented
    for below in lines:
        for one in below:
            context.keyed.setdefault(one.base.key(), (interp.step, set()))[1].add(one.step[1])  # type: ignore[union-attr]
    check_keyed(context)
    source = slot(shared, _by_key(*paths, is_item))
    if is_item:
        return context.wrap(dict.__getitem__(d.real_dict, text), source)
    context.guard(source, "id", found := dict.__contains__(d.real_dict, text))
    return found


def _ancestors(source: Source) -> list[Source]:
    """The path to a source, from its end on."""
    line, at = [], source
    while at is not None and not isinstance(at, ConstSource):
        line.append(at)
        at = at.base  # type: ignore[assignment]
    return line


def check_keyed(context: TraceContext) -> None:
    """A break where such an item is read, if the program changes which dict or key that is."""
    for value in context.dirty if context.keyed else ():
        step, names = context.keyed.get(value.source.key(), (0, set())) if value.source is not None else (0, set())
        if names and not (value.base is dict and names.isdisjoint(key for key, _ in value.log)):
            raise RestartAnalysis(step, GraphBreak("changing_value", f"{value.source}, whose items are read by key"))
