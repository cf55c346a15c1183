"""What tracing knows about numpy's objects. Arrays are opaque; their scalars are immutable numbers."""

from __future__ import annotations

from typing import Any

try:
    import numpy as np
except ImportError:  # torch works without it
    _ARRAYS: tuple[type, ...] = ()
    _NUMBERS: tuple[type, ...] = ()
else:
    _ARRAYS = (np.ndarray, np.generic)
    _NUMBERS = (np.number, np.bool_)


class SameNumber:
    """Guard predicate: the same number, of the same type, bit for bit."""

    def __init__(self, number: Any) -> None:
        self.kind, self.bits, self.text = type(number), number.tobytes(), repr(number)

    def __call__(self, value: Any) -> bool:
        return type(value) is self.kind and value.tobytes() == self.bits

    def __repr__(self) -> str:
        return f"is {self.text}"


def is_array(obj: Any) -> bool:
    """Whether this is an array, whose contents may change, or a scalar of a type that is no number."""
    return isinstance(obj, _ARRAYS) and not isinstance(obj, _NUMBERS)


def is_number(obj: Any) -> bool:
    """Whether this is an (immutable) scalar of a numeric type or bool."""
    return isinstance(obj, _NUMBERS)
