"""The object that `torch.distributions` makes of a lazy property that is read on the class: an object that is asked
its type."""

import torch.distributions.utils

from .registry import substitute

_LazyProperty = torch.distributions.utils._lazy_property_and_property


@substitute(_LazyProperty)
class LazyProperty:
    """Stands for a property made of a function, `wrapped`."""

    __slots__ = ("wrapped",)
    state = ("wrapped",)
    read = {"wrapped": "fget"}
    make = staticmethod(lambda cls, wrapped: cls(wrapped))

    def __init__(self, wrapped, /):
        self.wrapped = wrapped
