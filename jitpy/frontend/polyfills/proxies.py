"""`types.MappingProxyType`, as a class around a mapping."""

from __future__ import annotations

import gc
import types

from .registry import substitute


@substitute(types.MappingProxyType)
class MappingProxy:
    """Stands for a `types.MappingProxyType`."""

    __slots__ = ("mapping",)
    __hash__ = None  # type: ignore[assignment]
    state = ("mapping",)
    read = {"mapping": property(lambda real: gc.get_referents(real)[0])}
    make = staticmethod(lambda cls, mapping: cls(mapping))

    def __init__(self, mapping, /):
        if not hasattr(type(mapping), "__getitem__") or isinstance(mapping, (list, tuple)):
            raise TypeError(f"mappingproxy() argument must be a mapping, not {type(mapping).__name__}")
        self.mapping = mapping

    def __getitem__(self, key, /):
        return self.mapping[key]

    def __len__(self):
        return len(self.mapping)

    def __iter__(self):
        return iter(self.mapping)

    def __reversed__(self):
        return reversed(self.mapping)

    def __contains__(self, key, /):
        return key in self.mapping

    def get(self, key, default=None, /):
        return self.mapping.get(key, default)

    def keys(self):
        return self.mapping.keys()

    def values(self):
        return self.mapping.values()

    def items(self):
        return self.mapping.items()

    def copy(self):
        return self.mapping.copy()

    def __eq__(self, other, /):
        return self.mapping == (_unwrapped(other))

    def __ne__(self, other, /):
        return self.mapping != (_unwrapped(other))

    def __or__(self, other, /):
        return _unwrapped(self) | _unwrapped(other)

    def __ror__(self, other, /):
        return _unwrapped(other) | _unwrapped(self)

    def __repr__(self):
        return f"mappingproxy({self.mapping!r})"


def _unwrapped(value):
    return dict(value) if isinstance(value, (MappingProxy, types.MappingProxyType)) else value

