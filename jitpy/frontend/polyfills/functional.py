"""`functools`, and small C functions of torch."""

from __future__ import annotations

import functools

import torch

from .registry import give_up, rest_of, substitute

_MISSING = object()


@substitute(functools.reduce)
def reduce(function, iterable, initial=_MISSING, /):
    iterator = None
    try:
        iterator = iter(iterable)
    except TypeError:
        pass
    if iterator is None:  # raised here, it has no context
        raise TypeError("reduce() arg 2 must support iteration")
    value = initial
    for item in rest_of(iterator):
        value = item if value is _MISSING else function(value, item)
    if value is _MISSING:
        raise TypeError("reduce() of empty iterable with no initial value")
    return value


@substitute(functools.partial)
class Partial:
    """Stands for `functools.partial`. A partial of a partial is one."""

    __slots__ = ("__dict__", "args", "func", "keywords")
    state = ("func", "args", "keywords")
    read = {"func": "func", "args": "args", "keywords": "keywords"}
    make = staticmethod(lambda cls: functools.partial.__new__(cls, len))
    fill = staticmethod(lambda real, *state: functools.partial.__setstate__(real, (*state, None)))

    def __init__(self, /, *args, **keywords):
        if not args:
            raise TypeError("type 'partial' takes at least one argument")
        function = args[0]
        if not callable(function):
            raise TypeError("the first argument must be callable")
        args = args[1:]
        if type(function).__call__ in (Partial.__call__, functools.partial.__call__) and not function.__dict__:
            args = (*function.args, *args)
            keywords = {**function.keywords, **keywords}
            function = function.func
        self.func = function
        self.args = args
        self.keywords = keywords

    def __call__(self, /, *args, **kwargs):
        return self.func(*self.args, *args, **{**self.keywords, **kwargs})


class Key:
    """The result of `cmp_to_key(compare)` for a value: it compares by calling `compare`."""

    __slots__ = ("compare", "obj")

    def __init__(self, compare, obj):
        self.compare = compare
        self.obj = obj

    def __lt__(self, other):
        return self.compare(self.obj, other.obj) < 0

    def __gt__(self, other):
        return self.compare(self.obj, other.obj) > 0

    def __eq__(self, other):
        return self.compare(self.obj, other.obj) == 0

    def __le__(self, other):
        return self.compare(self.obj, other.obj) <= 0

    def __ge__(self, other):
        return self.compare(self.obj, other.obj) >= 0

    __hash__ = None  # type: ignore[assignment]


@substitute(functools.cmp_to_key)
def cmp_to_key(mycmp):
    def key(obj):
        return Key(mycmp, obj)

    return key


@substitute(torch.jit.annotate)
def annotate(the_type, the_value):
    return the_value


@substitute(torch.jit.isinstance)
def jit_isinstance(obj, target_type):
    return torch._jit_internal._isinstance(obj, target_type)


@substitute(torch._C._infer_size)
def infer_size(a, b):
    if not isinstance(a, torch.Size) or not isinstance(b, torch.Size):
        return give_up("sizes that are no torch.Size")
    try:
        return torch.broadcast_shapes(a, b)
    except RuntimeError:
        return give_up("sizes that do not fit")  # the message is another


@substitute(functools.cached_property.__get__)
def cached_property_get(self, instance, owner=None):
    """Without the lock that Python 3.11 has around it."""
    if instance is None:
        return self
    if self.attrname is None:
        raise TypeError("Cannot use cached_property instance without calling __set_name__ on it.")
    if not hasattr(instance, "__dict__"):
        raise TypeError(
            f"No '__dict__' attribute on {type(instance).__name__!r} instance to cache {self.attrname!r} property."
        )
    value = instance.__dict__.get(self.attrname, _MISSING)
    if value is _MISSING:
        value = self.func(instance)
        instance.__dict__[self.attrname] = value
    return value
