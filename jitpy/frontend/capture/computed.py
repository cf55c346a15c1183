"""Values that the call itself computed in front of a graph break: the next call has others.

A resume function gets the function's parameters, which callers choose, and what plain Python made of them. The latter
is not compiled for by identity, nor item by item where items are many and change: plain Python reads those.
"""

from __future__ import annotations

from typing import Any

from ..breaks import GraphBreak, RestartAnalysis
from ..guards.observations import MANY, Observations, kind_of
from ..guards.source import ConstSource, LocalSource, Source, root_of
from .traced import GraphBuilder

#: numbers, texts and arrays in a container, before plain Python reads them
_MANY_ITEMS = 16


class Computed:
    """The places that begin at what the call computed, for one capture."""

    def __init__(self, history: Observations, builder: GraphBuilder) -> None:
        #: the names of a resume function's variables that are no parameters of the function
        self.names: frozenset[str] = frozenset()
        self._history = history
        self._builder = builder
        #: by `kind_of`, when items of a container were first read, and where numbers, texts and arrays were
        self._items: dict[Any, tuple[int, set[Any]]] = {}

    def __bool__(self) -> bool:
        return bool(self.names)

    def begins(self, source: Source) -> bool:
        """Whether a path begins at what the call computed."""
        root = root_of(source) if self.names else source
        return isinstance(root, LocalSource) and root.name in self.names

    def comes_anew(self, obj: Any, source: Source, differs: bool) -> bool:
        """Note an object whose identity matters; whether others were in its place before. Of what the call computed,
        one other is enough to tell. `differs`: other things may be different things of different instances."""
        made = self.begins(source)
        if isinstance(root_of(source), ConstSource) or differs and not made:
            return False
        return self._history.is_needed_often((source.key(), "object"), id(obj), 1 if made else MANY)

    def note_item(self, obj: Any, source: Source, is_constant: bool, is_array: bool) -> None:
        """Note that something is read. Arrays, and constants that were others before, each are an input of the graph:
        plain Python reads them where they are many."""
        kind = kind_of(source.key()) if self.begins(source) else None
        if kind is not None:
            first, places = self._items.setdefault(kind, (self._builder.step(), set()))
            if is_array or is_constant:
                places.add(source.key())
            changes = is_constant and self._history.items_change(kind, source.key(), hash((type(obj), obj)))
            if len(places) > _MANY_ITEMS and (changes or is_array):
                raise RestartAnalysis(first, GraphBreak("changing_value", f"{source} and many other items"))

    def note_pair(self, first: Source, second: Source) -> None:
        """Note two places with one object. Where these are others in each call, plain Python reads the container."""
        kind = kind_of(second.key()) if self.begins(second) else None
        if kind in self._items and self._history.pairs_change(kind, (first.key(), second.key())):
            raise RestartAnalysis(self._items[kind][0],
                                  GraphBreak("changing_value", f"which items are one object: {second}"))
