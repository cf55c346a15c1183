"""The methods that `copy` and `pickle` ask of objects, and `types.SimpleNamespace`."""

from __future__ import annotations

import copyreg
import types

from .registry import give_up, substitute

#: Flag of types made by a `class` statement (and of nothing else that these bodies should take apart).
_HEAP_TYPE = 1 << 9


@substitute(object.__reduce_ex__)
def object_reduce_ex(self, protocol, /):
    cls = type(self)
    if cls.__reduce__ is not object.__reduce__:
        return self.__reduce__()
    if protocol < 2 or not cls.__flags__ & _HEAP_TYPE:
        give_up("an old pickle protocol, or a type of C")
    return _reduce_new(self, cls)


def _reduce_new(obj, cls):
    """How to make `obj` again by `cls.__new__`: (function, arguments, state, list items, dict items)."""
    function, arguments = copyreg.__newobj__, (cls,)
    if hasattr(obj, "__getnewargs_ex__"):
        args, kwargs = obj.__getnewargs_ex__()
        if kwargs:
            function, arguments = copyreg.__newobj_ex__, (cls, args, kwargs)
        else:
            arguments = (cls, *args)
    elif hasattr(obj, "__getnewargs__"):
        arguments = (cls, *obj.__getnewargs__())
    elif cls.__itemsize__ and not isinstance(obj, list):
        give_up("an object of variable size without __getnewargs__")
    state = obj.__getstate__()
    items = iter(obj) if isinstance(obj, list) else None
    pairs = iter(obj.items()) if isinstance(obj, dict) else None
    return function, arguments, state, items, pairs


@substitute(object.__getstate__)
def object_getstate(self, /):
    cls = type(self)
    if not cls.__flags__ & _HEAP_TYPE:
        give_up("the state of an object of a C type")
    names = copyreg._slotnames(cls)
    state = None
    if hasattr(self, "__dict__") and self.__dict__:
        state = self.__dict__
    slots = {}
    for name in names:
        if hasattr(self, name):
            slots[name] = getattr(self, name)
    if slots:
        return state, slots
    return state


@substitute(types.SimpleNamespace.__init__)
def namespace_init(self, /, *args, **kwargs):
    if args:
        give_up("SimpleNamespace from a mapping")
    for name in kwargs:
        self.__dict__[name] = kwargs[name]


@substitute(types.SimpleNamespace.__eq__)
def namespace_eq(self, other, /):
    if not isinstance(other, types.SimpleNamespace):
        return NotImplemented
    return self.__dict__ == other.__dict__


@substitute(types.SimpleNamespace.__repr__)
def namespace_repr(self, /):
    cls = type(self)
    name = "namespace" if cls is types.SimpleNamespace else cls.__name__
    fields = [f"{key}={value!r}" for key, value in self.__dict__.items()]
    return f"{name}({', '.join(fields)})"
