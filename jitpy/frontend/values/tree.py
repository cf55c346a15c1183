"""Walks over trees of containers: lists, tuples and dicts in each other. Each kind tells what it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .base import Interpreter, Value
from .dict import DictValue
from .list import ListValue
from .tuple import TupleValue


def tree_iter(interp: Interpreter, value: Value) -> Iterator[Value]:
    """The leaves of a tree, from left to right."""
    branches = value.branches(interp)
    if branches is None:
        yield value
    for branch in branches or ():
        yield from tree_iter(interp, branch)


def tree_map(interp: Interpreter, leaf: Callable[[Value], Value], value: Value) -> Value:
    """The tree in new containers, with `leaf(value)` for each leaf."""
    made = value.rebuild(interp, lambda item: tree_map(interp, leaf, item))
    return leaf(value) if made is None else made


def tree_unpack(interp: Interpreter, leaf: Callable[[Value], Any], value: Value) -> Any:
    """The tree in real containers, with `leaf(value)` for each leaf."""
    made = value.unpacked(interp, lambda item: tree_unpack(interp, leaf, item))
    return leaf(value) if made is None else made


def tree_pack(interp: Interpreter, leaf: Callable[[Any], Value], tree: Any) -> Value:
    """A tree of real containers as Values, with `leaf(part)` for whatever is none."""
    if type(tree) is dict:
        made = DictValue()
        for key, part in tree.items():
            interp.context.dict_set(made, key, tree_pack(interp, leaf, part), interp.context.const_object(key))
        return made
    if type(tree) in (tuple, list):
        items = [tree_pack(interp, leaf, part) for part in tree]
        return TupleValue(items) if type(tree) is tuple else ListValue(items)
    return leaf(tree)


def dict_of(interp: Interpreter, items: dict[str, Value]) -> Value:
    """A new dict with these items."""
    return tree_pack(interp, lambda item: item, items)
