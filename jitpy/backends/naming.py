"""A kernel's name for readers: its operations, and the lines of the program that they come from."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..ir.graph import Node, short_name

#: operations and places that a title names; the others are counted
_OPS, _PLACES = 5, 3


def op_names(nodes: Sequence[Node]) -> list[str]:
    """The operations in order, each once: `add.Tensor`, `relu`."""
    return list(dict.fromkeys(node.op.name.removeprefix("aten.").removesuffix(".default") for node in nodes))


def places(nodes: Sequence[Node]) -> list[tuple[str, int]]:
    """Files and lines of the program, in order, each once."""
    return list(dict.fromkeys((node.loc.filename, node.loc.line) for node in nodes if node.loc is not None))


def title(nodes: Sequence[Node], half: str) -> str:
    """`forward: layer_norm+relu (model.py:12)`, as profilers show it."""
    ops = _some(list(dict.fromkeys(short_name(node.op) for node in nodes)), _OPS, "+")
    where = _some([f"{os.path.basename(filename)}:{line}" for filename, line in places(nodes)], _PLACES, ", ")
    return f"{half}: " * bool(half) + ops + f" ({where})" * bool(where)


def _some(names: list[str], most: int, between: str) -> str:
    return between.join(names[:most]) + f"{between}{len(names) - most} more" * (len(names) > most)
