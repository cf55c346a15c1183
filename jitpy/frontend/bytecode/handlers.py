"""The table of opcode handlers: `handler(interp, frame, ins)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .code import Ins

HANDLERS: dict[str, Callable[[Any, Any, Ins], None]] = {}
#: opcodes that always break the graph, with the reason
DECLARED_BREAKS: dict[str, str] = {}


def opcode(*names: str) -> Callable[[Any], Any]:
    """Register the handler of one or more opcodes: `handler(interp, frame, ins)`."""

    def register(handler: Any) -> Any:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register
