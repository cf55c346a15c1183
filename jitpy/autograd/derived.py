"""Rules derived from torch's own autograd."""

from __future__ import annotations

from typing import Any

from ..ir.builder import Builder
from ..ir.graph import Node
from ..ir.op import NotCovered


def expand_by_recording(b: Builder, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise NotCovered(f"no gradient rule for {node.op}")
