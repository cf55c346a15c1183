"""`math` functions that take symbolic numbers or iterables, and methods of floats. The rest is evaluated on
constants."""

from __future__ import annotations

import math

from .registry import substitute


@substitute(math.prod)
def prod(iterable, /, *, start=1):
    result = start
    for item in iterable:
        result = result * item
    return result


@substitute(math.gcd)
def gcd(*integers):
    result = 0
    for value in integers:
        a, b = abs(result), abs(_as_int(value))
        while b:
            a, b = b, a % b
        result = a
    return result


@substitute(math.lcm)
def lcm(*integers):
    result = 1
    for value in integers:
        value = abs(_as_int(value))
        result = result // gcd(result, value) * value if value else 0
    return result


def _as_int(value):
    if isinstance(value, int):
        return value
    method = getattr(type(value), "__index__", None)
    if method is None:
        raise TypeError(f"'{type(value).__name__}' object cannot be interpreted as an integer")
    return method(value)


@substitute(math.dist)
def dist(p, q, /):
    p, q = tuple(p), tuple(q)
    if len(p) != len(q):
        raise ValueError("both points must have the same number of dimensions")
    return math.hypot(*[float(a) - float(b) for a, b in zip(p, q, strict=True)])


@substitute(int.bit_count)
def bit_count(self, /):
    rest, count = abs(self), 0
    while rest:
        count += rest % 2
        rest //= 2
    return count


@substitute(math.isclose)
def isclose(a, b, *, rel_tol=1e-09, abs_tol=0.0):
    if rel_tol < 0.0 or abs_tol < 0.0:
        raise ValueError("tolerances must be non-negative")
    a, b = float(a), float(b)
    if a == b:
        return True
    if math.isinf(a) or math.isinf(b):
        return False
    difference = abs(b - a)
    return difference <= abs(rel_tol * b) or difference <= abs(rel_tol * a) or difference <= abs_tol


@substitute(math.ceil)
def ceil(x, /):
    method = getattr(type(x), "__ceil__", None)
    if method is not None:
        return method(x)
    return float(x).__ceil__()


@substitute(math.floor)
def floor(x, /):
    method = getattr(type(x), "__floor__", None)
    if method is not None:
        return method(x)
    return float(x).__floor__()


@substitute(math.trunc)
def trunc(x, /):
    method = getattr(type(x), "__trunc__", None)
    if method is None:
        raise TypeError(f"type {type(x).__name__} doesn't define __trunc__ method")
    return method(x)


@substitute(float.is_integer)
def is_integer(self, /):
    return self % 1.0 == 0.0  # the remainder of what is not finite is NaN


@substitute(float.conjugate)
def conjugate(self, /):
    return self
