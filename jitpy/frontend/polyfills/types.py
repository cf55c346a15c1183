"""The call of a class."""

from __future__ import annotations

from .construct import is_instance
from .registry import substitute


@substitute(type.__call__)
def instantiate(cls, /, *args, **kwargs):
    """The call of a class."""
    obj = cls.__new__(cls, *args, **kwargs)
    if not is_instance(obj, cls):
        return obj
    return initialize(type(obj).__init__, obj, *args, **kwargs)


def initialize(init, obj, /, *args, **kwargs):
    """Run `init`, an `__init__` that was looked up on the type of `obj`; returns `obj`."""
    result = init(obj, *args, **kwargs)
    if result is not None:
        raise TypeError(f"__init__() should return None, not '{type(result).__name__}'")
    return obj


@substitute(object.__init__)
def object_init(self, /, *args, **kwargs):
    if args or kwargs:
        cls = type(self)
        if cls.__init__ is not object.__init__:
            raise TypeError("object.__init__() takes exactly one argument (the instance to initialize)")
        if cls.__new__ is object.__new__:
            raise TypeError(f"{cls.__name__}() takes no arguments")


def check_object_new(cls, args, kwargs):
    """The argument check of `object.__new__(cls, *args, **kwargs)`; the interpreter makes the instance."""
    if args or kwargs:
        if cls.__new__ is not object.__new__:
            raise TypeError("object.__new__() takes exactly one argument (the type to instantiate)")
        if cls.__init__ is object.__init__:
            raise TypeError(f"{cls.__name__}() takes no arguments")
