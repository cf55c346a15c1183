"""Which Python body stands for which C function or type.

    @substitute(builtins.any)
    def any(iterable, /): ...

The symbolic executor looks a C callable up in `POLYFILLS` when it cannot evaluate the call on constants, and traces the
body as if the user had written it. Keys are the callables themselves: functions, types (for a constructor call), method
descriptors (`list.sort`) and slot wrappers (`functools.partial.__call__`). Bodies are plain Python, do what CPython's C
code does, exceptions included, and read nothing but their arguments and each other.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

#: The C callable -> the Python function with its body.
POLYFILLS: dict[Any, Any] = {}

#: Python body -> the C callable that it stands for, for reports.
ORIGINALS: dict[Any, Any] = {}

#: Iterator types whose polyfill returns a generator: right to consume inside the traced code, but of another type than
#: the original, so that it must not leave it. Where it would, the original has to be called instead.
ITERATOR_TYPES: set[Any] = set()

#: A C type -> the Python class whose instances stand for its own. They must answer `type(x)` and `isinstance` as the
#: original; where one leaves the traced code, `original(*args, **kwargs)` with what its `__rebuild__()` returns makes
#: the real object. Kept apart from POLYFILLS because an executor that cannot do this must not use them.
STAND_INS: dict[type, type] = {}

_CODES: set[types.CodeType] = set()

Body = TypeVar("Body", bound=Callable[..., Any])


def substitute(*originals: Any, iterator: bool = False) -> Callable[[Body], Body]:
    """Register the decorated function or class for these C callables.

    `iterator=True` says that the originals are iterator types and the body returns a generator in their place.
    """

    def register(body: Body) -> Body:
        table = STAND_INS if isinstance(body, type) else POLYFILLS
        for original in originals:
            if original in table:
                raise ValueError(f"two polyfills for {original!r}")
            table[original] = body
            ORIGINALS[body] = original
            if iterator:
                ITERATOR_TYPES.add(original)
        if isinstance(body, types.FunctionType):
            _CODES.add(body.__code__)
        return body

    return register


def is_polyfill(code: types.CodeType) -> bool:
    """True for the code of a registered body: reports show its caller's line instead."""
    return code in _CODES


class GiveUp(NotImplementedError):
    """Raised by `give_up` where no tracer stands in front of it."""


def give_up(reason: str) -> NoReturn:
    """Called by a body in a case that it does not cover. The executor must call the original in its place: it undoes
    what the body did so far and treats the call as one to an unknown C function."""
    raise GiveUp(reason)
