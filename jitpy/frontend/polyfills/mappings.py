"""Dicts and sets, their subclasses in `collections`, and lookups by a key's own `__hash__` and `__eq__`."""

from __future__ import annotations

import _collections
import builtins
import collections

from .registry import give_up, substitute

_MISSING = object()


# Lookup among entries [hash, key, value, ...]: for keys whose `__hash__` or `__eq__` is the user's.


def find_entry(entries, key, /):
    """The position of `key` in a list of entries `[hash, key, ...]`, or -1.

    Calls `__hash__` once, and `__eq__` only where the hashes are equal.
    """
    wanted = hash(key)
    for i in range(len(entries)):
        entry = entries[i]
        if entry[1] is key or (entry[0] == wanted and entry[1] == key):
            return i
    return -1


# Dicts.


@substitute(builtins.dict)
def dict_from(*args, **kwargs):
    if len(args) > 1:
        raise TypeError(f"dict expected at most 1 argument, got {len(args)}")
    result = {}
    if args:
        _update(result, args[0])
    for name in kwargs:
        result[name] = kwargs[name]
    return result


@substitute(dict.__init__)
def dict_init(self, /, *args, **kwargs):
    if len(args) > 1:
        raise TypeError(f"{type(self).__name__} expected at most 1 argument, got {len(args)}")
    dict_update(self, *args, **kwargs)


@substitute(dict.update)
def dict_update(self, /, *args, **kwargs):
    if len(args) > 1:
        raise TypeError(f"update expected at most 1 argument, got {len(args)}")
    if args:
        _update(self, args[0])
    for name in kwargs:
        dict.__setitem__(self, name, kwargs[name])


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


def mapping_fromkeys(cls, iterable, value=None, /):
    """`cls.fromkeys(iterable, value)` for a subclass of dict."""
    result = cls()
    for key in iterable:
        result[key] = value
    return result


def subscript(self, key, /):
    """`dict.__getitem__(self, key)` on an instance of a subclass: `__missing__` has a say."""
    if dict.__contains__(self, key):
        return dict.get(self, key)
    missing = getattr(type(self), "__missing__", None)
    if missing is not None:
        return missing(self, key)
    raise KeyError(key)


@substitute(dict.get)
def dict_get(self, key, default=None, /):
    return dict.__getitem__(self, key) if dict.__contains__(self, key) else default


@substitute(dict.setdefault)
def dict_setdefault(self, key, default=None, /):
    if not dict.__contains__(self, key):
        dict.__setitem__(self, key, default)
        return default
    return dict.__getitem__(self, key)


@substitute(dict.pop)
def dict_pop(self, key, default=_MISSING, /):
    if not dict.__contains__(self, key):
        if default is _MISSING:
            raise KeyError(key)
        return default
    value = dict.__getitem__(self, key)
    dict.__delitem__(self, key)
    return value


@substitute(dict.popitem)
def dict_popitem(self, /):
    if not dict.__len__(self):
        raise KeyError("popitem(): dictionary is empty")
    key = [*dict.__iter__(self)][-1]
    value = dict.__getitem__(self, key)
    dict.__delitem__(self, key)
    return key, value


@substitute(dict.copy)
def dict_copy(self, /):
    result = {}
    _update(result, self)
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


@substitute(dict.__eq__)
def dict_eq(self, other, /):
    if not isinstance(other, dict):
        return NotImplemented
    if dict.__len__(self) != dict.__len__(other):
        return False
    for key in dict.__iter__(self):
        if not dict.__contains__(other, key):
            return False
        a, b = dict.get(self, key), dict.get(other, key)
        if a is not b and not a == b:
            return False
    return True


@substitute(dict.__ne__)
def dict_ne(self, other, /):
    equal = dict_eq(self, other)
    return equal if equal is NotImplemented else not equal


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


@substitute(collections.defaultdict.__missing__)
def defaultdict_missing(self, key, /):
    factory = self.default_factory
    if factory is None:
        raise KeyError(key)
    value = factory()
    self[key] = value
    return value


@substitute(collections.defaultdict.__init__)
def defaultdict_init(self, /, *args, **kwargs):
    factory = args[0] if args else None
    if factory is not None and not callable(factory):
        raise TypeError("first argument must be callable or None")
    self.default_factory = factory
    dict.__init__(self, *args[1:], **kwargs)


@substitute(collections.defaultdict.copy, collections.defaultdict.__copy__)
def defaultdict_copy(self, /):
    return type(self)(self.default_factory, self)


@substitute(collections.OrderedDict.__init__)
def ordered_init(self, /, *args, **kwargs):
    if len(args) > 1:
        raise TypeError(f"expected at most 1 arguments, got {len(args)}")
    ordered_update(self, *args, **kwargs)


@substitute(collections.OrderedDict.update)
def ordered_update(self, /, *args, **kwargs):
    """Unlike `dict.update` this one stores with the subclass's `__setitem__`."""
    if len(args) > 1:
        raise TypeError(f"update() takes at most 1 positional argument ({len(args)} given)")
    if args:
        other = args[0]
        if type(other) is dict or hasattr(other, "keys"):
            for key in other.keys():
                self[key] = other[key]
        elif hasattr(other, "items"):
            for key, value in other.items():
                self[key] = value
        else:
            for key, value in other:
                self[key] = value
    for name in kwargs:
        self[name] = kwargs[name]


@substitute(collections.OrderedDict.move_to_end)
def ordered_move_to_end(self, key, last=True):
    if not dict.__contains__(self, key):
        raise KeyError(key)
    keys = [*dict.__iter__(self)]
    value = dict.get(self, key)
    dict.__delitem__(self, key)
    dict.__setitem__(self, key, value)
    if not last:
        for other in keys:
            if other is not key and not other == key:
                value = dict.get(self, other)
                dict.__delitem__(self, other)
                dict.__setitem__(self, other, value)


@substitute(collections.OrderedDict.popitem)
def ordered_popitem(self, last=True):
    if not dict.__len__(self):
        raise KeyError("dictionary is empty")
    keys = [*dict.__iter__(self)]
    key = keys[-1] if last else keys[0]
    value = dict.get(self, key)
    dict.__delitem__(self, key)
    return key, value


@substitute(collections.OrderedDict.pop)
def ordered_pop(self, key, default=_MISSING):
    if dict.__contains__(self, key):
        value = dict.get(self, key)
        dict.__delitem__(self, key)
        return value
    missing = getattr(type(self), "__missing__", None)
    if default is _MISSING and missing is not None:
        return missing(self, key)
    if default is _MISSING:
        raise KeyError(key)
    return default


@substitute(collections.OrderedDict.setdefault)
def ordered_setdefault(self, key, default=None):
    if dict.__contains__(self, key):
        return self[key]
    self[key] = default
    return default


@substitute(collections.OrderedDict.copy)
def ordered_copy(self, /):
    result = type(self)()
    for key in dict.__iter__(self):
        result[key] = self[key]
    return result


@substitute(collections.OrderedDict.__reduce__)
def ordered_reduce(self, /):
    if type(self) is not collections.OrderedDict:
        give_up("the state of a class derived from OrderedDict")
    return collections.OrderedDict, (), self.__dict__ or None, None, iter(self.items())


@substitute(collections.OrderedDict.__eq__)
def ordered_eq(self, other, /):
    equal = dict_eq(self, other)
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


# Sets. The interpreter's sets support `add`, `discard`, `in`, `len` and iteration on values with known hashes.


@substitute(builtins.set)
def set_from_iterable(iterable=(), /):
    result = set()
    for item in iterable:
        result.add(item)
    return result


@substitute(set.__init__)
def set_init(self, iterable=(), /):
    set.clear(self)
    for item in iterable:
        set.add(self, item)


@substitute(builtins.frozenset)
def frozenset_from_iterable(iterable=(), /):
    if type(iterable) is frozenset:
        return iterable
    return frozenset({*iterable})


@substitute(set.update)
def set_update(self, /, *others):
    for other in others:
        for item in [*other] if other is self else other:
            set.add(self, item)


@substitute(set.union)
def set_union(self, /, *others):
    result = {*self}
    for other in others:
        for item in other:
            result.add(item)
    return result


substitute(frozenset.union)(lambda self, /, *others: frozenset(set_union(self, *others)))


@substitute(set.intersection)
def set_intersection(self, /, *others):
    result = {*self}
    for other in others:
        kept = set()
        for item in other:
            if item in result:
                kept.add(item)
        result = kept
    return result


substitute(frozenset.intersection)(lambda self, /, *others: frozenset(set_intersection(self, *others)))


@substitute(set.difference)
def set_difference(self, /, *others):
    result = {*self}
    for other in others:
        for item in other:
            result.discard(item)
    return result


substitute(frozenset.difference)(lambda self, /, *others: frozenset(set_difference(self, *others)))


@substitute(set.symmetric_difference)
def set_symmetric_difference(self, other, /):
    result = {*self}
    for item in set(other):
        if item in result:
            result.discard(item)
        else:
            result.add(item)
    return result


@substitute(set.difference_update)
def set_difference_update(self, /, *others):
    for other in others:
        for item in [*other] if other is self else other:
            set.discard(self, item)


@substitute(set.intersection_update)
def set_intersection_update(self, /, *others):
    kept = set_intersection(self, *others)
    set.clear(self)
    for item in kept:
        set.add(self, item)


@substitute(set.issubset, frozenset.issubset)
def set_issubset(self, other, /):
    values = other if isinstance(other, (set, frozenset)) else set(other)
    for item in self:
        if item not in values:
            return False
    return True


@substitute(set.issuperset, frozenset.issuperset)
def set_issuperset(self, other, /):
    for item in other:
        if item not in self:
            return False
    return True


@substitute(set.isdisjoint, frozenset.isdisjoint)
def set_isdisjoint(self, other, /):
    for item in other:
        if item in self:
            return False
    return True


# Views of a dict as sets.

_KEYS = type({}.keys())
_ITEMS = type({}.items())


substitute(_KEYS.__and__, _ITEMS.__and__)(lambda self, other, /: set_intersection({*self}, other))
substitute(_KEYS.__or__, _ITEMS.__or__)(lambda self, other, /: set_union({*self}, other))
substitute(_KEYS.__sub__, _ITEMS.__sub__)(lambda self, other, /: set_difference({*self}, other))
substitute(_KEYS.__xor__, _ITEMS.__xor__)(lambda self, other, /: set_symmetric_difference({*self}, other))
substitute(_KEYS.isdisjoint, _ITEMS.isdisjoint)(lambda self, other, /: set_isdisjoint(self, other))
