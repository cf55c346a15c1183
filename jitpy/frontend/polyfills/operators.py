"""Callables of the `operator` module."""

from __future__ import annotations

import operator

from .registry import substitute


@substitute(operator.inv)
@substitute(operator.invert)
def invert(a, /):
    return ~a


# The callables that hold their arguments. A C instance tells what it holds only through `__reduce__`.


@substitute(operator.itemgetter)
class ItemGetter:
    """Stands for `operator.itemgetter`."""

    state = ("items",)
    pinned = True
    read = {"items": lambda real: real.__reduce__()[1]}
    make = staticmethod(lambda cls, items: cls(*items))

    def __init__(self, *items):
        if not items:
            raise TypeError("itemgetter expected 1 argument, got 0")
        self.items = items

    def __call__(self, obj, /):
        return _get_items(obj, self.items)


def _get_items(obj, items):
    if len(items) == 1:
        return obj[items[0]]
    return tuple([obj[item] for item in items])


@substitute(operator.attrgetter)
class AttrGetter:
    """Stands for `operator.attrgetter`."""

    state = ("names",)
    pinned = True
    read = {"names": lambda real: real.__reduce__()[1]}
    make = staticmethod(lambda cls, names: cls(*names))

    def __init__(self, *names):
        if not names:
            raise TypeError("attrgetter expected 1 argument, got 0")
        for name in names:
            if not isinstance(name, str):
                raise TypeError("attribute name must be a string")
        self.names = names

    def __call__(self, obj, /):
        return _get_attributes(obj, self.names)


def _get_attributes(obj, names):
    if len(names) == 1:
        return _get_dotted(obj, names[0])
    return tuple([_get_dotted(obj, name) for name in names])


def _get_dotted(obj, name):
    for part in name.split("."):
        obj = getattr(obj, part)
    return obj


@substitute(operator.methodcaller)
class MethodCaller:
    """Stands for `operator.methodcaller`."""

    state = ("name", "args", "kwargs")
    pinned = True
    read = {
        "name": lambda real: _method_call(real)[0],
        "args": lambda real: _method_call(real)[1],
        "kwargs": lambda real: _method_call(real)[2],
    }
    make = staticmethod(lambda cls, name, args, kwargs: cls(name, *args, **kwargs))

    def __init__(self, *args, **kwargs):
        if not args:
            raise TypeError("methodcaller needs at least one argument, the method name")
        if not isinstance(args[0], str):
            raise TypeError("method name must be a string")
        self.name = args[0]
        self.args = args[1:]
        self.kwargs = kwargs

    def __call__(self, obj, /):
        return getattr(obj, self.name)(*self.args, **self.kwargs)


def _method_call(real):
    """(name, args, kwargs) of a real `methodcaller`."""
    function, args = real.__reduce__()
    if function is operator.methodcaller:
        return args[0], args[1:], {}
    # With keywords, what is reduced to is `partial(methodcaller, name, **keywords)` and the positional arguments.
    return function.args[0], args, function.keywords
