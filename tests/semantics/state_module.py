"""A module whose attributes the cases of `test_state_writes` read and write."""

from __future__ import annotations

from typing import Any

counter: Any = 0
items: Any = []


def bump() -> Any:
    global counter
    counter += 10
    return counter
