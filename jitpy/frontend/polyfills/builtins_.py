"""Built-in functions, and construction of objects."""

from __future__ import annotations

import builtins
import sys

from .registry import rest_of, substitute

_MISSING = object()
_NEW_MESSAGES = sys.version_info >= (3, 12)
#: From 3.12 on, `sum` of floats carries the rounding errors along.
_COMPENSATED = sys.version_info >= (3, 12)
_LARGEST_FLOAT = sys.float_info.max


@substitute(builtins.any)
def any(iterable, /):
    for item in iterable:
        if item:
            return True
    return False


@substitute(builtins.all)
def all(iterable, /):
    for item in iterable:
        if not item:
            return False
    return True


@substitute(builtins.sum)
def sum(iterable, /, start=0):
    iterator = iter(iterable)
    if isinstance(start, str):
        raise TypeError("sum() can't sum strings [use ''.join(seq) instead]")
    if isinstance(start, bytes):
        raise TypeError("sum() can't sum bytes [use b''.join(seq) instead]")
    if isinstance(start, bytearray):
        raise TypeError("sum() can't sum bytearray [use b''.join(seq) instead]")
    total = start
    if _COMPENSATED and type(total) is int:
        for item in rest_of(iterator):
            whole = type(item) is int or type(item) is bool
            total = total + item
            if not whole:
                break
        else:
            return total
    if _COMPENSATED and type(total) is float:
        return _sum_floats(iterator, total)
    for item in rest_of(iterator):
        total = total + item
    return total


def _sum_floats(iterator, total):
    """The rest of a sum that has become a float: exact errors of the additions are added at the end (Neumaier)."""
    carry = 0.0
    for item in rest_of(iterator):
        if type(item) is float:
            new = total + item
            back = new - total
            carry += (total - (new - back)) + (item - back)
            total = new
        elif isinstance(item, int):
            total += float(item)
        else:
            total = _with_carry(total, carry) + item
            for rest in rest_of(iterator):
                total = total + rest
            return total
    return _with_carry(total, carry)


def _with_carry(total, carry):
    if carry != 0.0 and -_LARGEST_FLOAT <= carry <= _LARGEST_FLOAT:
        return total + carry
    return total


@substitute(builtins.max)
def max(*args, key=None, default=_MISSING):
    return _best("max", True, args, key, default)


@substitute(builtins.min)
def min(*args, key=None, default=_MISSING):
    return _best("min", False, args, key, default)


def _best(name, is_largest, args, key, default):
    if len(args) == 0:
        raise TypeError(f"{name} expected at least 1 argument, got 0")
    if len(args) > 1 and default is not _MISSING:
        raise TypeError(f"Cannot specify a default for {name}() with multiple positional arguments")
    best = best_key = _MISSING
    for item in args if len(args) > 1 else args[0]:
        item_key = item if key is None else key(item)
        if best is _MISSING or (item_key > best_key if is_largest else item_key < best_key):
            best = item
            best_key = item_key
    if best is not _MISSING:
        return best
    if default is not _MISSING:
        return default
    raise ValueError(f"{name}() iterable argument is empty" if _NEW_MESSAGES else f"{name}() arg is an empty sequence")


@substitute(builtins.divmod)
def divmod(x, y, /):
    for_left = getattr(type(x), "__divmod__", None)
    if for_left is not None:
        result = for_left(x, y)
        if result is not NotImplemented:
            return result
    for_right = getattr(type(y), "__rdivmod__", None)
    if for_right is not None:
        result = for_right(y, x)
        if result is not NotImplemented:
            return result
    raise TypeError(f"unsupported operand type(s) for divmod(): '{type(x).__name__}' and '{type(y).__name__}'")


@substitute(int.__divmod__)
def int_divmod(self, other, /):
    if not isinstance(other, int):
        return NotImplemented
    return self // other, self % other


@substitute(float.__divmod__)
def float_divmod(self, other, /):
    if not isinstance(other, (int, float)):
        return NotImplemented
    return self // other, self % other


def iterate_call(function, sentinel, /):
    """`iter(function, sentinel)`."""
    if not callable(function):
        raise TypeError(_ITER_MESSAGE)
    return _iterate_call(function, sentinel)


_ITER_MESSAGE = (
    "iter(object, sentinel): object must be callable"
    if sys.version_info[:2] == (3, 12)
    else "iter(v, w): v must be callable"
)


def _iterate_call(function, sentinel):
    while True:
        value = function()
        if value is sentinel or value == sentinel:
            return
        yield value
