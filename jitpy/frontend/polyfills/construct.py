"""The interpreter's steps around methods in Python, in Python, so that a graph break inside of them can be resumed:
making instances, trying operator methods in turn, looking attributes up."""

import sys
import warnings


def instantiate(cls, /, *args, **kwargs):
    """`type.__call__` for a class whose `__new__` is Python."""
    made = cls.__new__(cls, *args, **kwargs)
    if is_instance(made, cls):
        type(made).__init__(made, *args, **kwargs)
    return made


def is_instance(obj, cls, /):
    """`isinstance`, without asking the class's metaclass."""
    for base in type(obj).__mro__:
        if base is cls:
            return True
    return False


def initialize(init, made, /, *args, **kwargs):
    """Run `__init__` on a fresh instance, and give the instance."""
    result = init(made, *args, **kwargs)
    if result is not None:
        raise TypeError(f"__init__() should return None, not '{type(result).__name__}'")
    return made


def checked(kind, message, method, /, *args):
    """The result of a special method, which has to be of a type."""
    result = method(*args)
    if not isinstance(result, kind):
        raise TypeError(message % type(result).__name__ if "%s" in message else message)
    if type(result) is not kind and (kind is int or kind is float):
        warnings.warn(f"{message % type(result).__name__}.  The ability to return an instance of a strict subclass of "
                      f"{kind.__name__} is deprecated, and may be removed in a future version of Python.",
                      DeprecationWarning, stacklevel=2)
        return kind(result)
    return result


def checked_hash(method, obj, /):
    """The result of `hash()` for that of a `__hash__`."""
    result = method(obj)
    if not isinstance(result, int):
        raise TypeError("__hash__ method should return an integer")
    result = int(result)
    if result == -1:
        return -2
    return result if -sys.maxsize - 1 <= result <= sys.maxsize else hash(result)


def checked_iterator(method, obj, /):
    """The result of an `__iter__`."""
    result = method(obj)
    if not hasattr(type(result), "__next__"):
        raise TypeError(f"iter() returned non-iterator of type {type(result).__name__!r}")
    return result


def operate(error, /, *attempts):
    """The first answer of some operator methods; `attempts` are (method, left, right), in order."""
    for method, left, right in attempts:
        result = method(left, right)
        if result is not NotImplemented:
            return result
    raise TypeError(error)


def compare(symbol, a, b, /, *attempts):
    """The first answer of some comparison methods; objects that nobody compares are equal where they are the same."""
    for method, left, right in attempts:
        result = method(left, right)
        if result is not NotImplemented:
            return result
    if symbol == "==":
        return a is b
    if symbol == "!=":
        return a is not b
    raise TypeError(f"'{symbol}' not supported between instances of '{type(a).__name__}' and '{type(b).__name__}'")


def attribute_or_hook(hook, getter, obj, name, /, *args):
    """The result of `getter`, or of `__getattr__` where it raises AttributeError."""
    try:
        return getter(obj, *args)
    except AttributeError:
        pass
    return hook(obj, name)


def looked_up(getter, obj, name, /):
    """The result of `getter`; an AttributeError that it raises gets the name that was looked up."""
    try:
        return getter()
    except AttributeError as error:
        if error.name is None and error.obj is None:
            error.name = name
            error.obj = obj
        raise


def iterate_getitem(sequence, /):
    """The iterator of an object that has only `__getitem__`."""
    index = 0
    while True:
        try:
            item = sequence[index]
        except (IndexError, StopIteration):
            return
        yield item
        index += 1


def iterate_backwards(sequence, index, /):
    """`reversed` of an object that has only `__getitem__` and `__len__`."""
    while index >= 0:
        try:
            item = sequence[index]
        except (IndexError, StopIteration):
            return
        yield item
        index -= 1
