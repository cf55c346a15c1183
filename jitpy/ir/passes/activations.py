"""Biases and activations behind products become part of the library's call (GPUs only).

cuBLAS adds a bias and applies an activation before it writes a product down, which saves a kernel that reads and
writes all of it: relu (equal to the bit, as relu of a rounded number is the rounded relu), and GELU in the form with
tanh (which then is rounded once instead of twice). Measured on an H200 in bfloat16, with the activation in a kernel of
its own and in the call: 45 and 35 us for (4096, 768) by (768, 3072), 133 and 102 for (8192, 1024) by (1024, 4096). GELU
stays outside of larger products, where the call gained nothing. A vector that is added to the rows of a product
(`x @ w + b`) costs nothing either: 180 us for 4096^3 on an H100, and 179 without it.
"""

from __future__ import annotations

from typing import Any

import torch

from ..builder import Builder
from ..graph import Graph, Node
from ..spec import TensorSpec, prod
from .alignment import FORMS

_DTYPES = (torch.bfloat16, torch.float16)
#: The factor that sizes must have, and multiplications up to which GELU is worth it.
_PIECE, _MOST = 8, 1 << 35


def fold_activations(graph: Graph, where: str = "cuda") -> list[str]:
    """Rewrite products on devices of type `where` in place; they are left to be removed. One text a change."""
    nodes = [node for node in graph.nodes if isinstance(node.spec, TensorSpec) and node.spec.device.type == where
             and node.spec.dtype in _DTYPES]
    done = _fold(graph, [(node, pair) for node in nodes if node.op.name == "aten.add.Tensor" and _is_plain_sum(node)
                         for pair in (node.args, node.args[::-1])])
    return done + _fold(graph, [(node, (node.args[0], gelu)) for node in nodes if (gelu := _is_gelu(node)) is not None])


def _fold(graph: Graph, found: list[tuple[Node, tuple[Any, ...]]]) -> list[str]:
    """Fold nodes, each with the product that it may belong to, and the bias that it adds, or whether it is a GELU."""
    if not found:
        return []
    users = graph.users()
    kept = {*graph.outputs, *(mutation.value for mutation in graph.mutations)}
    done: dict[Node, str] = {}
    for node, (product, what) in found:
        if node not in done and isinstance(product, Node) and len(users[product]) == 1 and product not in kept \
                and _join(graph, node, product, what):
            done[node] = f"{node.name}: part of the product {product.name}"
    return list(done.values())


def _is_plain_sum(node: Node) -> bool:
    return len(node.args) == 2 and all(isinstance(one, Node) for one in node.args) and \
        all(value == 1 for value in node.kwargs.values())


def _is_gelu(node: Node) -> bool | None:
    """None for what is no activation that the library has."""
    if node.op.name == "aten.relu.default":
        return False
    if node.op.name != "aten.gelu.default":
        return None
    approximate = node.kwargs.get("approximate", node.args[1] if len(node.args) > 1 else "none")
    return True if approximate == "tanh" else None


def _join(graph: Graph, node: Node, product: Node, what: Node | bool) -> bool:
    """Let the library do what `node` does to a product: add a bias (`what`), or apply GELU or (False) relu. False
    where it cannot."""
    made: list[Node] = []
    b = Builder(graph, into=made, loc=node.loc, grad_enabled=node.grad_enabled)
    form = FORMS.get(product.op.name)
    found = None if form is None else form(b, product)
    added = what if isinstance(what, Node) else None
    if found is None or (found[3] is None) is (added is None) or any(value != 1 for value in found[4].values()):
        return False
    _, left, right, own, _ = found
    bias: Node = added or own  # type: ignore[assignment]
    specs = [one.spec for one in (bias, left, right)]
    if not all(isinstance(one, TensorSpec) and one.dtype in _DTYPES and one.dtype is product.tensor.dtype
               and one.device == product.tensor.device and one.is_static for one in specs):
        return False
    sizes = [*left.tensor.shape, right.tensor.shape[-1]]
    if right.tensor.ndim != 2 or bias.tensor.shape != right.tensor.shape[1:] \
            or not all(one.tensor.is_contiguous() for one in (bias, left, product, node)):
        return False
    if any(size % _PIECE or size < 2 * _PIECE for size in sizes) or what is True and prod(sizes) > _MOST:  # type: ignore[operator]
        return False
    if added is None:
        result = b.call("aten._addmm_activation.default", bias, left, right, use_gelu=what)
        if node.tensor.ndim != 2:
            result = b.call("aten.view.default", result, list(node.tensor.shape))
    else:
        turned = right.args[0] if right.op.name == "aten.t.default" else b.call("aten.t.default", right)
        result = b.call("aten.linear.default", left if node.tensor.ndim == 2 else left.args[0], turned, bias)
    graph.replace({node: result})
    place = graph.nodes.index(node)
    graph.nodes[place:place + 1] = made
    return True


__all__ = ["fold_activations"]
