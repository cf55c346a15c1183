"""Dicts and sets, and their subclasses in `collections`."""

from __future__ import annotations

import _collections
import collections

from .registry import give_up, substitute

_MISSING = object()


# Dicts.


def _update(target, other):
    """`other` is a dict, has `keys()`, or yields pairs. Stores as `dict.update`: past a subclass's `__setitem__`."""
    if isinstance(other, dict) and type(other).__iter__ is dict.__iter__:
        for key in dict.keys(other):
            dict.__setitem__(target, key, dict.__getitem__(other, key))
    elif hasattr(other, "keys"):
        for key in other.keys():
            dict.__setitem__(target, key, other[key])
    else:
        position = 0
        for item in other:
            if not hasattr(type(item), "__iter__") and not hasattr(type(item), "__getitem__"):
                raise TypeError(f"cannot convert dictionary update sequence element #{position} to a sequence")
            pair = [*item]
            if len(pair) != 2:
                raise ValueError(
                    f"dictionary update sequence element #{position} has length {len(pair)}; 2 is required"
                )
            dict.__setitem__(target, pair[0], pair[1])
            position += 1


@substitute(dict.fromkeys)
def dict_fromkeys(iterable, value=None, /):
    result = {}
    for key in iterable:
        result[key] = value
    return result


@substitute(dict.__or__)
def dict_or(self, other, /):
    if not isinstance(self, dict) or not isinstance(other, dict):
        return NotImplemented
    result = {}
    _update(result, self)
    _update(result, other)
    return result


@substitute(dict.__ior__)
def dict_ior(self, other, /):
    _update(self, other)
    return self


@substitute(dict.__repr__)
def dict_repr(self, /):
    text = "{"
    for key in dict.__iter__(self):
        value = dict.get(self, key)
        if value is self:
            give_up("repr of a container that holds itself")
        if len(text) > 1:
            text = text + ", "
        text = text + repr(key) + ": " + repr(value)
    return text + "}"


# collections.


@substitute(collections.defaultdict.copy, collections.defaultdict.__copy__)
def defaultdict_copy(self, /):
    return type(self)(self.default_factory, self)


@substitute(collections.OrderedDict.__reduce__)
def ordered_reduce(self, /):
    if type(self) is not collections.OrderedDict:
        give_up("the state of a class derived from OrderedDict")
    return collections.OrderedDict, (), self.__dict__ or None, None, iter(self.items())


@substitute(collections.OrderedDict.__eq__)
def ordered_eq(self, other, /):
    equal = dict.__eq__(self, other)
    if equal is not True or not isinstance(other, collections.OrderedDict):
        return equal
    for a, b in zip([*self], [*other], strict=True):
        if a is not b and not a == b:
            return False
    return True


@substitute(collections.OrderedDict.__ne__)
def ordered_ne(self, other, /):
    equal = ordered_eq(self, other)
    return equal if equal is NotImplemented else not equal


@substitute(_collections._count_elements)
def count_elements(mapping, iterable, /):
    """The function that `collections.Counter` counts with."""
    get = mapping.get
    for item in iterable:
        mapping[item] = get(item, 0) + 1


# Views of a dict as sets.

@substitute(type({}.keys()).isdisjoint, type({}.items()).isdisjoint)
def view_isdisjoint(self, other, /):
    for item in other:
        if item in self:
            return False
    return True
