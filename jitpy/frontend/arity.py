"""How many arguments callables take: models are asked only where the callable itself would take what is given."""

from __future__ import annotations

import builtins
import functools
import inspect
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .values import FunctionValue

_MODULES = {"builtins", "math", "cmath", "_operator", "_functools", "_collections", "collections", "itertools", "types",
            "_bisect", "_heapq", "copy"}
_C_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)


@functools.lru_cache(8192)
def accepts(function: Any, count: int, names: tuple[str, ...]) -> bool:
    """Whether a builtin function, type or method, or one of the library, takes so many arguments, as far as it tells.
    """
    owner = function.__objclass__ if isinstance(function, _C_METHODS) else function
    in_python = isinstance(function, types.FunctionType) and not hasattr(function, "__wrapped__")
    if getattr(owner, "__module__", None) not in _MODULES and not in_python:
        return True
    for one in _UNTOLD.get(function, (function,)):
        try:
            inspect.signature(one).bind(*[None] * count, **dict.fromkeys(names))
        except ValueError:
            return True
        except TypeError:
            continue
        return True
    return False


def _no_more(self, /):  # type: ignore[no-untyped-def]
    pass


def _one_more(self, other, /):  # type: ignore[no-untyped-def]
    pass


def _many_more(self, /, *others):  # type: ignore[no-untyped-def]
    pass


def _text(self, part, start=None, end=None, /):  # type: ignore[no-untyped-def]
    pass


def _filled(self, other=(), /, **items):  # type: ignore[no-untyped-def]
    pass


def _methods(classes: tuple[type, ...], names: str, like: Callable[..., Any]) -> dict[Any, tuple[Callable[..., Any]]]:
    return {vars(cls)[name]: (like,) for cls in classes for name in names.split() if name in vars(cls)}


_SETS, _DICTS = (set, frozenset), (dict, OrderedDict)
#: what callables take that do not tell in every version: functions that take the same
_UNTOLD: dict[Any, tuple[Callable[..., Any], ...]] = {
    getattr: (lambda obj, name, default=None, /: 0,),
    iter: (lambda obj, sentinel=None, /: 0,),
    next: (lambda iterator, default=None, /: 0,),
    vars: (lambda obj=None, /: 0,),
    bool: (lambda obj=False, /: 0,),
    int: (lambda number=0, /, base=10: 0,),
    str: (lambda object="", encoding="", errors="": 0,),
    dict: (lambda items=(), /, **named: 0,),
    set: (lambda items=(), /: 0,),
    frozenset: (lambda items=(), /: 0,),
    range: (lambda start, stop=None, step=None, /: 0,),
    slice: (lambda start, stop=None, step=None, /: 0,),
    zip: (lambda *iterables, strict=False: 0,),
    map: (lambda function, iterable, /, *iterables: 0,),
    filter: (lambda function, iterable, /: 0,),
    type: (lambda obj, /: 0, lambda name, bases, members, /, **named: 0),
    super: (lambda cls=None, obj=None, /: 0,),
    staticmethod: (lambda function, /: 0,),
    classmethod: (lambda function, /: 0,),
    slice.indices: (_one_more,),
    BaseException.with_traceback: (_one_more,),
    types.GeneratorType.send: (_one_more,),
    types.GeneratorType.close: (_no_more,),
    vars(defaultdict)["__missing__"]: (_one_more,),
    **_methods(_SETS, "add discard remove symmetric_difference symmetric_difference_update issubset issuperset "
               "isdisjoint __contains__", _one_more),
    **_methods((list, dict), "__getitem__ __contains__", _one_more),
    **_methods(_SETS, "pop clear copy", _no_more),
    **_methods(_SETS, "update union intersection difference intersection_update difference_update", _many_more),
    **_methods(_DICTS, "keys values items clear copy", _no_more),
    **_methods(_DICTS, "update", _filled),
    vars(dict)["pop"]: (lambda self, key, default=None, /: 0,),
    vars(OrderedDict)["pop"]: (lambda self, key, default=None: 0,),
    **_methods((builtins.str,), "startswith endswith", _text),
}


def bodiless(fn: FunctionValue, defaults: int, kwdefaults: Iterable[str]) -> types.FunctionType:
    """A real function with the parameters of another one, that does nothing."""
    code = fn.code.replace(co_code=_RETURN_NONE, co_flags=fn.code.co_flags & ~inspect.CO_GENERATOR,
                           co_exceptiontable=b"", co_freevars=(), co_cellvars=(), co_consts=(None,), co_stacksize=10)
    probe = types.FunctionType(code, {}, fn.name, (None,) * defaults or None)
    probe.__kwdefaults__ = dict.fromkeys(kwdefaults) or None
    probe.__qualname__ = fn.qualname
    return probe


_RETURN_NONE = (lambda: None).__code__.co_code
