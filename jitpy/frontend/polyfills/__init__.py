"""Plain Python bodies for C builtins and library functions: the executor traces `POLYFILLS[f]` in the place of `f`."""

from . import builtins_, deques, functional, iterators, mappings, numbers, objects, operators, sequences, types
from .builtins_ import iterate_call, zip_strict
from .mappings import find_entry, mapping_fromkeys, subscript
from .registry import ITERATOR_TYPES, ORIGINALS, POLYFILLS, STAND_INS, GiveUp, give_up, is_polyfill, substitute
from .sequences import contains_by_iteration
from .types import check_object_new, initialize, instantiate

#: The modules whose frames belong to polyfills: reports show their callers.
MODULES = (builtins_, deques, functional, iterators, mappings, numbers, objects, operators, sequences, types)

__all__ = [
    "ITERATOR_TYPES",
    "MODULES",
    "ORIGINALS",
    "POLYFILLS",
    "STAND_INS",
    "GiveUp",
    "check_object_new",
    "contains_by_iteration",
    "find_entry",
    "give_up",
    "initialize",
    "instantiate",
    "is_polyfill",
    "iterate_call",
    "mapping_fromkeys",
    "subscript",
    "substitute",
    "zip_strict",
]
