"""Ops without a gradient rule become ops that have one, in place.

An expansion is what eager's autograd does with a composite op: it computes the same values, bit for bit, by the calls
that eager's own implementation makes. So the forward pass has the results that the backward pass reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..ir import ops
from ..ir.alias import needs_grad
from ..ir.builder import Builder
from ..ir.graph import CONSTANT, GETITEM, REGION, Graph, Node
from ..ir.op import NotCovered, OpRules
from ..ir.ops import normalize
from ..ir.ops.layout import is_channels_last_strides, is_contiguous
from ..ir.ops.nn import _is_fused, gpu_attention
from ..ir.ops.random_order import filling_order, fills_by_index
from ..ir.passes.attention import as_bias, kernel_bias
from ..ir.spec import TensorSpec, prod
from .derived import expand_by_recording, is_complex, is_composite
from .pullback import same_shape
from .rules import COMPLEX, covers

#: `(b, *args, **kwargs) -> Node`, or a tuple of nodes for an op with several results.
Expansion = Callable[..., Any]

#: An expansion raises NotCovered for arguments that it does not take.
EXPANSIONS = OpRules()
expansion = EXPANSIONS.of


class LeftToTorch(NotCovered):
    """The graph has to run under torch's autograd: what recording finds is not what eager does on this device."""


def expand_nodes(graph: Graph, active: Callable[[Iterable[Node]], set[Node]]) -> None:
    """Expand the active nodes whose ops have no rule. Every Node object keeps its value.

    `active(nodes)` says through which nodes of a list gradients flow. Raises NotCovered.
    """
    flowing = active(graph.nodes)
    if all(node.op is GETITEM or _is_covered(node) for node in flowing if node.op.kind != "input"):
        return
    result: list[Node] = []
    getitems: dict[Node, tuple[Node, ...]] = {}
    for node in graph.nodes:
        if node.op is GETITEM and node.args[0] in getitems:
            _become(result, node, "aten.alias.default", getitems[node.args[0]][node.args[1]])
        elif node not in flowing or node.op is GETITEM or _is_covered(node):
            result.append(node)
        else:
            _expand(graph, node, result, getitems)
    graph.nodes[:] = result


def _become(result: list[Node], node: Node, op: str, source: Node) -> None:
    node.op, node.args, node.kwargs = ops.get(op), (source,), {}
    result.append(node)


def _expand(graph: Graph, node: Node, result: list[Node], getitems: dict[Node, tuple[Node, ...]]) -> None:
    """Append what stands for `node`, itself last."""
    made: list[Node] = []
    builder = Builder(graph, into=made, loc=node.loc, grad_enabled=node.grad_enabled, region=node.meta.get(REGION))
    args, kwargs = normalize(node.op, node.args, node.kwargs)
    value = _expanded(builder, node, args, kwargs)
    if value is None:  # autograd knows the op itself
        result.append(node)
        return
    # the ops that it is made of may be composite as well
    for inner in made:
        if inner.op is GETITEM and inner.args[0] in getitems:
            _become(result, inner, "aten.alias.default", getitems[inner.args[0]][inner.args[1]])
        elif _needs_rule(inner):
            _expand(graph, inner, result, getitems)
        else:
            result.append(inner)
    if isinstance(value, tuple):
        getitems[node] = value
        return
    if not isinstance(node.spec, TensorSpec) or not _same_layout(value.tensor, node.tensor):
        raise NotCovered(f"{node.op} as {value.op}: {value.spec} where {node.spec} was expected")
    if value not in made:
        _become(result, node, "aten.alias.default", value)
        return
    if value is not made[-1] or value.op is CONSTANT:
        _become(result, node, "aten.alias.default", value)
        return
    # the last node's place is taken by the one that others know
    result.remove(value)
    node.op, node.args, node.kwargs = value.op, value.args, value.kwargs
    result.append(node)


def _is_covered(node: Node) -> bool:
    """Whether there is a gradient rule for the node: those that are written down are about real numbers."""
    return covers(node.op) and not (is_composite(node.op) and node.op.name not in COMPLEX and is_complex(node))


def _needs_rule(node: Node) -> bool:
    return needs_grad(node.spec) and node.op is not GETITEM and node.op is not CONSTANT and not _is_covered(node)


def _same_layout(a: TensorSpec, b: TensorSpec) -> bool:
    if a.dtype is not b.dtype or not same_shape(a.shape, b.shape):
        return False
    return same_shape(a.stride, b.stride) or prod(a.shape) == 0


def _expanded(b: Builder, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    known = EXPANSIONS.get(node.op.name)
    if known is not None and not is_complex(node):
        try:
            return known(b, *args, **kwargs)
        except LeftToTorch:
            raise
        except NotCovered:
            pass
    return expand_by_recording(b, node, args, kwargs) if is_composite(node.op) else None


# -- normalisations ---------------------------------------------------------------------------------------------------


@expansion("aten.layer_norm.default")
def _layer_norm(b: Builder, x: Node, shape: Any, weight: Node | None = None, bias: Node | None = None,
                eps: float = 1e-5, cudnn_enable: bool = True) -> Node:
    return b.getitem(b.call("aten.native_layer_norm.default", x, list(shape), weight, bias, eps), 0)


@expansion("aten.group_norm.default")
def _group_norm(b: Builder, x: Node, groups: int, weight: Node | None = None, bias: Node | None = None,
                eps: float = 1e-5, cudnn_enabled: bool = True) -> Node:
    spec = x.tensor
    batch, channels, *inner = spec.shape
    last = spec.device.type == "cpu" and is_channels_last_strides(b.env, spec.shape, spec.stride)
    if not last and not is_contiguous(spec.shape, spec.stride):
        x = b.call("aten.clone.default", x, memory_format=torch.contiguous_format)
    return b.getitem(b.call("aten.native_group_norm.default", x, weight, bias, batch, channels, prod(tuple(inner)),
                            groups, eps), 0)


@expansion("aten.batch_norm.default")
def _batch_norm(b: Builder, x: Node, weight: Node | None, bias: Node | None, mean: Node | None, var: Node | None,
                training: bool, momentum: float, eps: float, cudnn_enabled: bool) -> Any:
    if x.tensor.device.type != "cpu" or any(type(size) is int and size == 0 for size in x.tensor.shape):
        raise NotCovered("batch norm of another device, or of nothing")
    return b.getitem(b.call("aten.native_batch_norm.default", x, weight, bias, mean, var, training, momentum, eps), 0)


@expansion("aten.rms_norm.default")
def _rms_norm(b: Builder, x: Node, shape: Any, weight: Node | None = None, eps: float | None = None) -> Node:
    decompose = ops.get("aten.rms_norm.default").decompose
    assert decompose is not None
    return decompose(b, x, shape, weight, eps)


# -- random masks -----------------------------------------------------------------------------------------------------


@expansion("aten.dropout.default")
def _dropout(b: Builder, x: Node, probability: float, train: bool) -> Node:
    """Eager's factor is kept as a mask of one byte an element."""
    if not train or probability == 0:
        return b.call("aten.alias.default", x)
    if probability == 1:
        raise NotCovered("dropout")
    if x.tensor.device.type == "cuda":
        return b.getitem(b.call("aten.native_dropout.default", x, probability, True), 0)
    if x.tensor.device.type != "cpu":
        raise NotCovered("dropout on another device")
    drawn = _drawn(b, _detached(b, x), 1 - probability)
    mask = b.call("aten.ne.Scalar", drawn, 0)
    noise = b.call("aten.div.Tensor", b.call("aten.to.dtype", mask, x.tensor.dtype), 1 - probability)
    return b.call("aten.mul.Tensor", x, noise)


def _drawn(b: Builder, x: Node, probability: float) -> Node:
    """`torch.empty_like(x).bernoulli_(probability)`"""
    if fills_by_index(x.tensor):
        return b.call("aten.bernoulli.p", x, probability)
    order = filling_order(b.env, x.tensor)
    drawn = b.call("aten.bernoulli.p", b.call("aten.permute.default", x, order), probability)
    return b.call("aten.permute.default", drawn, [order.index(axis) for axis in range(len(order))])


def _detached(b: Builder, x: Node) -> Node:
    return b.call("aten.detach.default", x)


# -- attention --------------------------------------------------------------------------------------------------------


@expansion("aten.scaled_dot_product_attention.default")
def _attention(b: Builder, q: Node, k: Node, v: Node, mask: Node | None = None, dropout: float = 0.0,
               is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False) -> Node:
    """The kernel that eager picks; its plain formula is recorded."""
    specs = [n.tensor for n in (q, k, v)]
    if all(spec.device.type == "cuda" for spec in specs):
        return _gpu_attention(b, q, k, v, mask, dropout, is_causal, scale, enable_gqa)
    if any(spec.device.type != "cpu" for spec in specs):
        raise NotCovered("attention on another device")
    bias = mask.tensor if mask is not None else None
    if _is_fused(b.env, specs[0], specs[1], specs[2], bias, dropout, is_causal, enable_gqa):
        if mask is not None and mask.tensor.dtype is torch.bool:
            mask = as_bias(b, mask, q.tensor.dtype)
        name = "aten._scaled_dot_product_flash_attention_for_cpu.default"
        return b.getitem(b.call(name, q, k, v, dropout, is_causal, attn_mask=mask, scale=scale), 0)
    raise NotCovered("attention by its formula")


def _gpu_attention(b: Builder, q: Node, k: Node, v: Node, mask: Node | None, dropout: float, is_causal: bool,
                   scale: float | None, enable_gqa: bool) -> Node:
    """The kernel that eager picks on a GPU. Odd widths are left to torch."""
    operands = (q.tensor, k.tensor, v.tensor)
    try:
        kernel = gpu_attention(b.env, operands, mask.tensor if mask is not None else None, float(dropout), is_causal,
                               enable_gqa)
    except NotCovered as error:
        raise LeftToTorch(str(error)) from None
    if kernel is None or enable_gqa and "efficient" in kernel[0]:
        raise LeftToTorch("attention by its formula, or of grouped heads, on a GPU")
    name, arguments = kernel
    if mask is not None:
        bias = kernel_bias(b, mask, q, k)
        if bias is None:
            raise LeftToTorch("attention with a mask of an odd shape on a GPU")
        arguments = (bias, *arguments[1:])
    return b.getitem(b.call(name, q, k, v, *arguments, scale=scale), 0)


# -- losses -----------------------------------------------------------------------------------------------------------


@expansion("aten.cross_entropy_loss.default")
def _cross_entropy(b: Builder, x: Node, target: Node, weight: Node | None = None, reduction: int = 1,
                   ignore_index: Any = -100, smoothing: float = 0.0) -> Node:
    if target.tensor.dtype.is_floating_point or smoothing:
        raise NotCovered("cross entropy with probabilities")
    logs = b.call("aten.log_softmax.int", x, 1 if x.tensor.ndim > 1 else 0)
    return _nll(b, logs, target, weight, reduction, ignore_index)


@expansion("aten.nll_loss.default", "aten.nll_loss_nd.default")
def _nll(b: Builder, x: Node, target: Node, weight: Node | None = None, reduction: int = 1,
         ignore_index: Any = -100) -> Node:
    if x.tensor.ndim not in (1, 2, 4):
        raise NotCovered("losses of images of one axis, or of more than two")
    kind = "nll_loss2d" if x.tensor.ndim == 4 else "nll_loss"
    return b.getitem(b.call(f"aten.{kind}_forward.default", x, target, weight, reduction, ignore_index), 0)


# -- convolutions -----------------------------------------------------------------------------------------------------


@expansion("aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default")
def _convolution(b: Builder, x: Node, weight: Node, bias: Node | None = None, stride: Any = 1, padding: Any = 0,
                 dilation: Any = 1, groups: int = 1) -> Node:
    axes = weight.tensor.ndim - 2

    def full(value: Any) -> list[int]:
        values = [value] if isinstance(value, int) else list(value)
        return values * axes if len(values) == 1 else values

    if x.tensor.ndim != axes + 2:
        raise NotCovered("a convolution of one example")
    return b.call("aten.convolution.default", x, weight, bias, full(stride), full(padding), full(dilation), False,
                  [0] * axes, groups)


__all__ = ["EXPANSIONS", "expand_nodes", "expansion"]
