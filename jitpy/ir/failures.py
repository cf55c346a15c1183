"""Which nodes may raise when they run, although their arguments were right when the graph was recorded.

Python raises in the middle of a program: what came before has happened, and handlers around it run. A graph does
everything at once, so that a frame whose graph raised runs again as plain Python; that works where nothing was changed
before the node that raised.
"""

from __future__ import annotations

import operator

import torch

from .graph import Graph, Node
from .spec import TensorSpec

#: arithmetic on numbers that cannot raise
_SAFE_ON_HOST = frozenset({
    operator.add, operator.sub, operator.mul, operator.neg, operator.pos, operator.abs, abs, bool, operator.not_,
    operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.and_, operator.or_,
    operator.xor, operator.invert, min, max,
})

#: parts of the names of ATen ops that look at values: indices within bounds, matrices that can be factored,
#: probabilities between 0 and 1
_LOOK_AT_VALUES = (
    "index", "gather", "scatter", "embedding", "take", "put", "one_hot", "nll_loss", "cross_entropy", "bincount",
    "linalg", "cholesky", "inverse", "solve", "lstsq", "multinomial", "bernoulli", "binomial", "poisson", "normal",
    "repeat_interleave", "ctc_loss", "histc", "_assert", "searchsorted", "segment_reduce", "pad_sequence", "ormqr",
)

#: parts of the names of ATen ops that raise where integers are divided by zero
_DIVIDE = ("remainder", "fmod", "floor_divide", "div.")


def _may_divide_by_zero(node: Node) -> bool:
    """Integers divided by anything but a constant that is not zero."""
    if not any(part in node.op.name for part in _DIVIDE) or len(node.args) < 2:
        return False
    if not isinstance(node.spec, TensorSpec) or node.spec.dtype.is_floating_point:
        return False
    divisor = node.args[1]
    return type(divisor) not in (int, bool, float) or divisor == 0


def may_fail(node: Node) -> bool:
    """Whether the values of a node's arguments may make it raise."""
    op, target = node.op, node.op.target
    if isinstance(target, torch._ops.OpOverload):
        if _may_divide_by_zero(node):
            return True
        return target.namespace != "aten" or any(part in op.name for part in _LOOK_AT_VALUES)
    if op.kind == "host":
        return target not in _SAFE_ON_HOST
    return op.kind not in ("input", "constant", "getitem")


def graph_may_fail(graph: Graph) -> bool:
    """Whether any node may."""
    return any(map(may_fail, graph.nodes))
