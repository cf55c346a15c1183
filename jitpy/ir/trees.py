"""Walks over nested arguments and specs: through tuples, lists, dicts and slices, down to their leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def tree_map(fn: Callable[[Any], Any], value: Any) -> Any:
    """A copy of a nested value with `fn(leaf)` in place of each leaf."""
    kind = type(value)
    if kind is tuple:
        return tuple([tree_map(fn, item) for item in value])
    if kind is list:
        return [tree_map(fn, item) for item in value]
    if kind is dict:
        return {key: tree_map(fn, item) for key, item in value.items()}
    if kind is slice:
        return slice(*(tree_map(fn, part) for part in (value.start, value.stop, value.step)))
    if isinstance(value, (tuple, list)):  # a size of torch's, or what an op with several results returns
        return (list if isinstance(value, list) else tuple)([tree_map(fn, item) for item in value])
    return fn(value)


def tree_leaves(value: Any) -> Iterator[Any]:
    """The leaves of a nested value, in order."""
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from tree_leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tree_leaves(item)
    elif isinstance(value, slice):
        yield from tree_leaves((value.start, value.stop, value.step))
    else:
        yield value


__all__ = ["tree_leaves", "tree_map"]
