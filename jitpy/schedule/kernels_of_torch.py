"""Which dtypes torch's own kernels refuse: kernels of ours would take them, and eager's error would be lost."""

from __future__ import annotations

import re

import torch

from ..ir.graph import Node
from ..ir.ops.oracle import error_of, in_small
from ..ir.spec import TensorSpec

_USUAL = frozenset({torch.float32, torch.float64})
_REFUSAL = re.compile(r"not implemented for|does not support|not supported for")


def refuses(node: Node) -> bool:
    """Whether the op's CPU kernel refuses the dtypes of a node's operands. Asked once for each op and dtypes, with two
    elements along each axis; what it says about sizes does not count."""
    op = node.op
    specs = [n.spec for n in node.input_nodes() if isinstance(n.spec, TensorSpec)]
    if not isinstance(op.target, torch._ops.OpOverload) or not op.is_pure or op.is_random or op.is_view:
        return False
    if all(spec.dtype in _USUAL for spec in specs) or any(spec.device.type != "cpu" for spec in specs):
        return False
    error = error_of(op.target, in_small(node.args), {name: in_small(value) for name, value in node.kwargs.items()})
    return error is not None and _REFUSAL.search(error) is not None
