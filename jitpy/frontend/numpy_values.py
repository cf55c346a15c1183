"""What tracing knows about numpy's objects. Arrays are opaque; their scalars are numbers, known by identity."""

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


def is_array(obj: Any) -> bool:
    """Whether this is an array, whose contents may change, or a scalar of a type that is no number."""
    return isinstance(obj, _ARRAYS) and not isinstance(obj, _NUMBERS)


def is_number(obj: Any) -> bool:
    """Whether this is an (immutable) scalar of a numeric type or bool."""
    return isinstance(obj, _NUMBERS)
