"""Whether a graph is linear in some of its inputs.

Asked of the backward pass of a `torch.autograd.Function`: only a linear one may be given its gradients in parts. What
is linear is known op by op, as sums of products; what is not known is not linear.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from .graph import CONSTANT, GETITEM, Graph, Node
from .spec import TensorSpec

#: What an op computes is a sum of terms, each a product of factors: the positions of the arguments. Other arguments
#: are places, masks and sizes, on which nothing linear may depend. Names are of ATen, for all overloads where none is
#: named.
Terms = tuple[tuple[int, ...], ...]

_TERMS: dict[str, Terms] = {
    # one factor
    **dict.fromkeys((
        "neg", "sum", "mean", "clone", "contiguous", "_to_copy", "to", "sum_to_size", "reshape", "flip", "roll",
        "cumsum", "gather", "index_select", "index", "repeat", "tril", "triu", "div.Tensor", "div.Scalar", "diag",
        "diag_embed", "take", "take_along_dim", "repeat_interleave", "rot90", "im2col", "col2im", "embedding", "trace",
        "fliplr", "flipud", "tile", "alias", "positive", "detach",
    ), ((0,),)),
    # products
    **dict.fromkeys(("mul", "multiply", "mm", "bmm", "matmul", "mv", "outer", "ger", "dot", "inner", "vdot",
                     "tensordot", "kron", "cross", "linalg_cross"), ((0, 1),)),
    # sums
    **dict.fromkeys(("add", "sub", "subtract", "rsub", "lerp.Scalar", "lerp.Tensor"), ((0,), (1,))),
    **dict.fromkeys(("cat", "stack", "concat"), ((0,),)),
    "linear": ((0, 1), (2,)),
    **dict.fromkeys(("addcmul", "addmm", "addmv", "addbmm", "baddbmm", "addr"), ((0,), (1, 2))),
    "addcdiv": ((0,), (1,)),
    **dict.fromkeys(("convolution", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
                     "conv_transpose3d"), ((0, 1), (2,))),
    # choices and parts, of which each element comes from one of the terms
    **dict.fromkeys(("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar"), ((1,), (2,))),
    "masked_fill": ((0,), (2,)),
    "constant_pad_nd": ((0,), (2,)),
    "pad": ((0,), (3,)),
    **dict.fromkeys(("scatter.src", "scatter.value", "scatter_add", "index_add", "index_copy", "index_fill",
                     ), ((0,), (3,))),
    "index_put": ((0,), (2,)),
    **dict.fromkeys(("slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter"), ((0,), (1,))),
    "masked_scatter": ((0,), (2,)),
}
#: Lists of tensors each of which is a term.
_JOINED = ("cat", "stack", "concat")
#: Ops that make tensors of a form alone, and the position of the number that these are filled with: None for zeros.
_FILLED: dict[str, int | None] = {**dict.fromkeys(("zeros", "zeros_like", "new_zeros")), "full": 1, "full_like": 1,
                                  "new_full": 2, "scalar_tensor": 0}
_MADE = ("ones", "ones_like", "new_ones", "empty_like", "new_empty")


def is_linear(graph: Graph, n_inputs: int) -> bool:
    """Whether the outputs are certainly linear in the first `n_inputs` inputs, taken together."""
    linear = set(graph.inputs[:n_inputs])
    zeros: set[Node] = set()
    for node in graph.nodes:
        name = node.op.name.removeprefix("aten.")
        base = name.partition(".")[0]
        if base in _FILLED or node.op is CONSTANT:
            if _makes_zeros(base, node):
                zeros.add(node)
        elif base in _MADE:
            continue
        elif any(value in linear for value in node.input_nodes()):
            if not _keeps_linear(name, node, linear, zeros):
                return False
            linear.add(node)
        elif node.op.is_view and all(value in zeros for value in node.input_nodes()):
            zeros.add(node)
    return all(node in linear or node in zeros for node in graph.outputs)


def _makes_zeros(base: str, node: Node) -> bool:
    if node.op is CONSTANT:
        value = node.args[0]
        return isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.numel() == 1 and \
            not value.item()
    at = _FILLED[base]
    return at is None or len(node.args) > at and _is_zero(node.args[at], set())


def _keeps_linear(name: str, node: Node, linear: set[Node], zeros: set[Node]) -> bool:
    """Whether the result of a node that depends on linear values is linear in them."""
    if isinstance(node.spec, TensorSpec) and not node.spec.dtype.is_floating_point:
        return False
    if node.op is GETITEM:
        return True
    base = name.partition(".")[0]
    terms = _TERMS.get(name) or _TERMS.get(base)
    if terms is None:
        if not (node.op.is_view or base.endswith(("_backward", "_backward_data"))):
            return False
        terms = ((0,),)
    named = {position for term in terms for position in term}
    others = [arg for position, arg in enumerate(node.args) if position not in named]
    if any(value in linear for value in _nodes((others, list(node.kwargs.values())))):
        return False
    for term in terms:
        factors = [node.args[position] for position in term if position < len(node.args)]
        if not factors or factors[0] is None:
            continue
        if base in _JOINED:
            if not all(part in linear or _is_zero(part, zeros) for part in factors[0]):
                return False
            continue
        parts = [factor in linear if isinstance(factor, Node) else False for factor in factors]
        if any(value in linear for factor in factors if not isinstance(factor, Node) for value in _nodes(factor)):
            return False
        if sum(parts) != 1 and (any(parts) or not any(_is_zero(factor, zeros) for factor in factors)):
            return False
    return True


def _is_zero(value: Any, zeros: set[Node]) -> bool:
    return value in zeros if isinstance(value, Node) else type(value) in (int, float, bool) and value == 0


def _nodes(value: Any) -> Iterable[Node]:
    if isinstance(value, Node):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _nodes(item)


__all__ = ["is_linear"]
