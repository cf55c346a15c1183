"""Plain Python bodies for C builtins and library functions: the interpreter traces `POLYFILLS[f]` in the place of
`f`."""

from . import (
    arrays,
    attention,
    autograd,
    builtins_,
    deques,
    distributions,
    exceptions,
    functional,
    fused_steps,
    iterators,
    mappings,
    numbers,
    objects,
    operators,
    optimizers,
    proxies,
    sequences,
    texts,
    types,
)
from .builtins_ import iterate_call, zip_strict
from .mappings import find_entry, mapping_fromkeys, subscript
from .registry import (
    ITERATOR_TYPES,
    MODELLED_METHODS,
    MODELLED_ORIGINALS,
    MODELLED_TYPES,
    ORIGINALS,
    POLYFILLS,
    GiveUp,
    Items,
    give_up,
    is_polyfill,
    model_of,
    rest_of,
    substitute,
)
from .sequences import contains_by_iteration
from .types import check_object_new, initialize, instantiate

#: The modules whose frames belong to polyfills: reports show their callers.
MODULES = (arrays, attention, autograd, builtins_, deques, distributions, exceptions, functional, fused_steps,
           iterators, mappings, numbers, objects, operators, optimizers, proxies, sequences, texts, types)

__all__ = [
    "ITERATOR_TYPES", "MODULES", "ORIGINALS", "POLYFILLS", "MODELLED_TYPES", "MODELLED_METHODS", "MODELLED_ORIGINALS",
    "GiveUp", "Items", "check_object_new", "contains_by_iteration", "find_entry", "give_up", "initialize",
    "instantiate", "is_polyfill", "iterate_call", "mapping_fromkeys", "rest_of", "model_of", "subscript", "substitute",
    "zip_strict",
]
