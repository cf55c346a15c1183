"""The table of opcode handlers: `handler(interp, frame, ins)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .code import Ins

HANDLERS: dict[str, Callable[[Any, Any, Ins], None]] = {}
#: opcodes that always break the graph, with the reason
DECLARED_BREAKS: dict[str, str] = {}
#: how many stack entries an instruction takes, or what tells that of its argument, where generated code can run it
POPS: dict[str, int | Callable[[Any], int]] = {}


def opcode(*names: str, pops: int | Callable[[Any], int] | None = None) -> Callable[[Any], Any]:
    """Register the handler of one or more opcodes: `handler(interp, frame, ins)`. `pops`: see `POPS`."""

    def register(handler: Any) -> Any:
        for name in names:
            HANDLERS[name] = handler
            if pops is not None:
                POPS[name] = pops
        return handler

    return register


def pops_of(ins: Ins) -> int | None:
    """How many stack entries an instruction takes; None where generated code cannot run it."""
    pops = POPS.get(ins.name)
    return pops(ins.arg) if callable(pops) else pops
