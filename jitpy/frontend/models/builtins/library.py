"""Functions of the standard library whose Python code is not for tracing: locks, weak references, hidden caches."""

from __future__ import annotations

import abc
import builtins
import collections
import dataclasses
import enum
import functools
import importlib.machinery
import importlib.util
import os
import reprlib
import sys
import types
import typing
from typing import Any

from ...breaks import GraphBreak
from ...guards.guard_set import Answers
from ...guards.source import constant
from ...interpreter.callees import Args, Kwargs, builtin, code_model
from ...interpreter.wrapped_functions import closed_over
from ...values import UNKNOWN, FunctionValue, Interpreter

# -- functions that make classes -------------------------------------------------------------------------------


def _makes_classes(function: Any) -> None:
    @builtin(function)
    def handler(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        is_statement = function is builtins.__build_class__  # others look at the module of their caller
        raise GraphBreak("local_class", f"{function.__qualname__}()", tail=not is_statement)


for _function in (builtins.__build_class__, type.__new__, types.new_class, collections.namedtuple, typing.NamedTuple,
                  typing.NamedTupleMeta.__new__, typing._make_nmtuple, enum.EnumMeta._create_,  # type: ignore[attr-defined]
                  dataclasses.make_dataclass, dataclasses._process_class):  # type: ignore[attr-defined]
    _makes_classes(_function)


# -- singledispatch -------------------------------------------------------------------------------------------


_GENERIC = functools.singledispatch(lambda x: x)


def _cache_token(module: Any) -> Any:
    """Another one once an abstract class has got a new virtual subclass."""
    return module.get_cache_token()


@code_model(_GENERIC.dispatch)
def _dispatch(interp: Interpreter, fn: FunctionValue, args: Args, kwargs: Kwargs) -> Any:
    """`generic.dispatch(cls)`: found in the registry, which is guarded; the cache beside it is nobody's business."""
    registry: Any = closed_over(interp, fn, "registry")
    if not issubclass(registry.cls, dict) or registry.real_dict is None or registry.log or len(args) != 1 or \
            args[0].opaque is UNKNOWN:
        raise GraphBreak("unsupported_call", "functools.singledispatch")
    cls = interp.context.pin(args[0])
    interp.context.dict_complete(registry)
    if any(isinstance(key, abc.ABCMeta) for key in registry.real_dict):
        interp.context.guard(constant(abc, "abc"), "python", Answers(_cache_token, abc.get_cache_token()))
    try:
        found = registry.real_dict.get(cls) or functools._find_impl(cls, registry.real_dict)  # type: ignore[attr-defined]
    except RuntimeError as error:  # two abstract classes fit
        raise interp.raise_real(error) from None
    return next(v for key, v in interp.context.dict_items(registry) if registry.real_dict[key] is found)


# -- reprs that notice when they meet themselves --------------------------------------------------------------


@code_model(*(decorate(lambda self: "") for decorate in (
    reprlib.recursive_repr(), getattr(dataclasses, "_recursive_repr", reprlib.recursive_repr()))))
def _repr(interp: Interpreter, fn: FunctionValue, args: Args, kwargs: Kwargs) -> Any:
    return interp.call(closed_over(interp, fn, "user_function"), args, kwargs)


# -- modules that may be there ----------------------------------------------------------------------------------


@builtin(importlib.util.find_spec)
def _find_spec(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    """The spec of a module that is loaded, or None, as long as none is found (each call looks at the folders). A
    package that would have to be loaded is left to Python."""
    name = args[0].literal if len(args) == 1 and not kwargs and args[0].is_constant else None
    if type(name) is not str or name.startswith("."):
        raise GraphBreak("unsupported_call", "importlib.util.find_spec of a name that is not known")
    module = interp.context.imported(name)
    if module is not None:
        spec = interp.getattr(module, "__spec__") if isinstance(module.opaque, types.ModuleType) else None
        if spec is None or spec.literal is None and spec.is_constant:
            raise GraphBreak("unsupported_call", "importlib.util.find_spec of a module without a spec")
        return spec
    parent = name.rpartition(".")[0]
    if parent and interp.context.imported(parent) is None or importlib.util.find_spec(name) is not None:
        raise GraphBreak("unsupported_call", f"importlib.util.find_spec({name!r}), which is not loaded")
    why = f"no module {name!r} is there"
    interp.builder.guards.add(constant(importlib.util, "importlib.util"), "python", _missing(name), why)
    return interp.context.const_object(None)


class _Missing:
    """Guard predicate: no module of this name is found. It is looked for again where a folder has changed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.searched = self._searched()

    def __call__(self, _: Any = None) -> bool:
        try:
            found = self._searched()
            if found is None or found != self.searched:
                if importlib.util.find_spec(self.name) is not None:
                    return False
                self.searched = found
        except (ImportError, ValueError, AttributeError):
            return False
        return True

    def _searched(self) -> Any:
        """The facts that the search depends on, as in Python's own caches; None where other finders know more."""
        parent = sys.modules.get(self.name.rpartition(".")[0])
        path = sys.path if parent is None else list(parent.__path__)
        if self.name in sys.modules or any(finder not in _FINDERS and finder.find_spec(self.name, path) is not None
                                           for finder in sys.meta_path):
            return None
        return [*sys.meta_path], [*sys.path_hooks], [*path], [_time(place) for place in path]


_FINDERS = (importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter, importlib.machinery.PathFinder)
_missing = functools.cache(_Missing)


def _time(place: Any) -> tuple[int, int] | None:
    try:
        found = os.stat(place or ".")
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
