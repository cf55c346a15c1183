"""Making instances, in Python: what `type.__call__` does, so that a graph break inside `__init__` can be resumed."""


def instantiate(cls, /, *args, **kwargs):
    """`type.__call__` for a class whose `__new__` is Python."""
    made = cls.__new__(cls, *args, **kwargs)
    if isinstance(made, cls):
        type(made).__init__(made, *args, **kwargs)
    return made


def initialize(init, made, /, *args, **kwargs):
    """Run `__init__` on a fresh instance, and give the instance."""
    result = init(made, *args, **kwargs)
    if result is not None:
        raise TypeError(f"__init__() should return None, not '{type(result).__name__}'")
    return made


def drop_result(function, /, *args):
    """Call for the effect (property setters, `__setattr__`, `__setitem__`)."""
    function(*args)


def compare_equal(a, b, /):
    """`a == b` where one of the two has `__eq__` in Python."""
    left, right = type(a), type(b)
    if left is not right and issubclass(right, left):
        result = right.__eq__(b, a)
        if result is not NotImplemented:
            return result
        result = left.__eq__(a, b)
    else:
        result = left.__eq__(a, b)
        if result is NotImplemented:
            result = right.__eq__(b, a)
    if result is NotImplemented:
        return a is b
    return result


def iterate_getitem(sequence, /):
    """The iterator of an object that has only `__getitem__`."""
    index = 0
    while True:
        try:
            item = sequence[index]
        except IndexError:
            return
        yield item
        index += 1
