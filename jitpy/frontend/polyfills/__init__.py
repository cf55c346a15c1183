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
)
from .builtins_ import iterate_call
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

#: The modules whose frames belong to polyfills: reports show their callers.
MODULES = (arrays, attention, autograd, builtins_, deques, distributions, exceptions, functional, fused_steps,
           iterators, mappings, numbers, objects, operators, optimizers, proxies, sequences, texts)

__all__ = [
    "ITERATOR_TYPES", "MODULES", "ORIGINALS", "POLYFILLS", "MODELLED_TYPES", "MODELLED_METHODS", "MODELLED_ORIGINALS",
    "GiveUp", "Items", "give_up", "is_polyfill", "iterate_call", "rest_of", "model_of", "substitute",
]
