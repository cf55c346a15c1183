"""Which Python body stands for which C function or type.

    @substitute(builtins.any)
    def any(iterable, /): ...

The symbolic executor looks a C callable up in `POLYFILLS` when it cannot evaluate the call on constants, and traces the
body as if the user had written it. Keys are the callables themselves: functions, types (for a constructor call), method
descriptors (`list.sort`) and slot wrappers (`functools.partial.__call__`). Bodies are plain Python, do what CPython's C
code does, exceptions included, and read nothing but their arguments and each other.
"""

from __future__ import annotations

import collections
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

#: A C type -> the Python class that stands for it. Instances traced have the C type; the class gives their methods, and
#: says how they are taken apart and put together:
#:
#: `state`   names of the attributes that its methods use, in order
#: `read`    how each is read from a real object: an attribute's name; a property, whose value is wrapped; `Items`, a
#:           property that gives the items of a hidden list. Real objects are opaque where this is missing.
#: `pinned`  real objects are told apart by identity, because they cannot change
#: `make`    `make(cls, *state)` makes the real object; where there is a `fill`, `make(cls)` makes an empty one, so that
#:           it can hold itself
#: `fill`    `fill(real, *state)` sets the state of a real object, a new or an old one
#: `changes` for a hidden list: method of list -> the function that does the same to a real object
MODELLED_TYPES: dict[type, Any] = {}

#: C method -> the function that stands for it wherever its class is asked for the method (operators too), and back.
MODELLED_METHODS: dict[Any, types.FunctionType] = {}
MODELLED_ORIGINALS: dict[types.FunctionType, Any] = {}


class Items(property):
    """Reads the items of a container for a modelled instance's hidden list, as a tuple."""


_CODES: set[types.CodeType] = set()

#: C types whose operators have no other model than the bodies registered here
_ANSWERED_BY_BODIES = (types.SimpleNamespace, collections.OrderedDict)
_OPERATORS = ("__eq__", "__ne__", "__repr__")

Body = TypeVar("Body", bound=Callable[..., Any])


def substitute(*originals: Any, iterator: bool = False) -> Callable[[Body], Body]:
    """Register the decorated function or class for these C callables.

    `iterator=True` says that the originals are iterator types and the body returns a generator in their place.
    """

    def register(body: Body) -> Body:
        table = MODELLED_TYPES if isinstance(body, type) else POLYFILLS
        for original in originals:
            if original in table:
                raise ValueError(f"two polyfills for {original!r}")
            table[original] = body
            ORIGINALS[body] = original
            if iterator:
                ITERATOR_TYPES.add(original)
            if getattr(original, "__objclass__", None) in _ANSWERED_BY_BODIES and original.__name__ in _OPERATORS:
                MODELLED_METHODS[original] = body  # type: ignore[assignment]
                MODELLED_ORIGINALS.setdefault(body, original)  # type: ignore[arg-type]
        if isinstance(body, types.FunctionType):
            _CODES.add(body.__code__)
        else:
            _register_methods(originals[0], body)
        return body

    return register


def _register_methods(original: Any, body: Any) -> None:
    for name, function in vars(body).items():
        method = vars(original).get(name)
        if isinstance(function, types.FunctionType) and isinstance(method, _C_METHODS):
            POLYFILLS[method] = MODELLED_METHODS[method] = function
            ORIGINALS.setdefault(function, method)
            MODELLED_ORIGINALS.setdefault(function, method)
            _CODES.add(function.__code__)


_C_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)


def model_of(cls: type) -> Any:
    """The class that stands for a type or its nearest base that has one, or None."""
    for base in cls.__mro__:
        if base in MODELLED_TYPES:
            return MODELLED_TYPES[base]
    return None


def is_polyfill(code: types.CodeType) -> bool:
    """True for the code of a registered body: reports show its caller's line instead."""
    return code in _CODES


class GiveUp(NotImplementedError):
    """Raised by `give_up` where no tracer stands in front of it."""


def rest_of(iterator: Any) -> Any:
    """For a loop in a body over an iterator that it has: tracing does not call its `__iter__` once more, as C code does
    not."""
    return iterator


def give_up(reason: str) -> NoReturn:
    """Called by a body in a case that it does not cover. The interpreter must call the original in its place: it undoes
    what the body did so far and treats the call as one to an unknown C function."""
    raise GiveUp(reason)
