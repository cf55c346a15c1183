"""Bytecode of CPython: code objects as instructions (`code.py`), and the handlers of opcodes by family."""

from __future__ import annotations

import importlib

_FAMILIES = ("call", "container", "exception", "flow", "stack")


def load() -> None:
    """Import the families, which enter their handlers in the table."""
    for family in _FAMILIES:
        importlib.import_module(f"{__name__}.{family}_opcodes")
