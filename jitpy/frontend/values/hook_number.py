"""Numbers of hooks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .base import Identity
from .instance import ObjectValue


class HookNumberValue(ObjectValue):
    """The number of a hook that was registered `index` hooks after the graph began: an int, not known which one (see
    `models/tensors/tensor_hooks.py`)."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        super().__init__(int)
        self.index = index

    def describe(self) -> str:
        return "the number of a hook"


def has_hook_numbers(keys: Iterable[Any]) -> bool:
    """Whether some of the keys are numbers of hooks that tracing does not know."""
    return any(type(key) is Identity and isinstance(key.value, HookNumberValue) for key in keys)
