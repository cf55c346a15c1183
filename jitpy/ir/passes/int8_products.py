"""Products and convolutions of dequantised operands as those of their integers (CPUs only).

    linear((x - zx) * sx, (w - zw) * sw, bias)
      ->  (_int_mm(x, t(w)) - zx * sum(w) - zw * sum(x) + k * zx * zw) * (sx * sw) + bias

Here `x` and `w` have 8 bits; `zx` and `sx` are numbers, `zw` and `sw` have a number for each row of `w`. The library's
product of integers is several times as fast as that of floats, and exact: only the last steps are rounded. What is
around it becomes part of the kernels that quantise and dequantise. `torch.ao` and PT2E write models so.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from ..builder import Builder
from ..graph import Graph, Node
from ..op import Op
from ..ops.layout import channels_last_stride
from ..spec import ScalarSpec, TensorSpec, contiguous_stride, prod
from .convolutions import ConvolutionCall

#: how long rows may be, so that no sum of 32 bits overflows, with zero points below 256
_LONGEST = 1 << 15
_BYTES = (torch.int8, torch.uint8)
#: where floats overflow that integers do not: infinities and NaNs are left to floats
_LARGEST_SCALE = 2.0 ** 64


def use_integer_products(graph: Graph) -> list[str]:
    """Rewrite products of dequantised operands in place. One text a change."""
    mapping: dict[Node, Node] = {}
    for node in [node for node in graph.nodes if node.op.name == "aten.linear.default"]:
        x, weight = node.args[0], node.args[1]
        bias = node.args[2] if len(node.args) > 2 else None
        left, right = _activation(x), _weight(weight)
        if left is None or right is None or node.kwargs or not _is_taken(node, left[0], right[0], bias):
            continue
        if not isinstance(left[1], Node) and not isinstance(left[2], Node):
            mapping[node] = _product(Builder(graph, node), node, left, right, bias)
        elif left[0].tensor.dtype is torch.uint8 and _has_kernel():
            spec = node.tensor.with_(stride=contiguous_stride(node.tensor.shape))
            mapping[node] = _integers(graph, node, spec, left, right, bias)
    if mapping:
        graph.replace(mapping)
        graph.nodes[:] = [node for node in graph.nodes if node not in mapping]
    return [f"{node.name}: a product of integers" for node in mapping]


def _is_taken(node: Node, x: Node, w: Node, bias: Any) -> bool:
    """Whether torch has a product for these bytes, and float32 is what comes out."""
    result = node.tensor
    if result.requires_grad or result.device.type != "cpu" or result.dtype is not torch.float32 or \
            isinstance(bias, Node) and bias.tensor.dtype is not torch.float32:
        return False
    return _has_short_rows(w) and x.tensor.ndim >= 2 and x.tensor.is_contiguous() and \
        w.tensor.is_contiguous() and all(type(size) is not int or size > 0 for size in result.shape) and \
        _multiplies(x.tensor.dtype)


def _has_short_rows(w: Node) -> bool:
    width = prod(w.tensor.shape[1:])
    return type(width) is int and 0 < width <= _LONGEST


@functools.cache
def _multiplies(dtype: torch.dtype) -> bool:
    """Whether torch multiplies bytes of this kind with signed ones, and exactly: processors without VNNI add pairs of
    products in 16 bits."""
    with torch.no_grad():
        try:
            return all(bool((torch._int_mm(torch.full((16, 64), x, dtype=dtype),
                                           torch.full((64, 16), w, dtype=torch.int8)) == 64 * x * w).all())
                       for x in (torch.iinfo(dtype).min, torch.iinfo(dtype).max) for w in (-128, 127))
        except RuntimeError:
            return False


def _is(value: Any, name: str) -> bool:
    return isinstance(value, Node) and value.op.name == name and len(value.args) == 2 and not value.kwargs


def _activation(node: Any) -> tuple[Node, Any, Any] | None:
    """(x, zx, sx) of `(float(x) - zx) * sx`. The numbers may be known when the graph runs only."""
    if not _is(node, "aten.mul.Tensor") or not _is_number(node.args[1], float, _LARGEST_SCALE):
        return None
    inner, zero = node.args[0], 0
    if _is(inner, "aten.sub.Tensor") and _is_number(inner.args[1], int, 256):
        inner, zero = inner.args
    if not isinstance(inner, Node) or inner.op.name != "aten._to_copy.default" or \
            dict(inner.kwargs) != {"dtype": torch.float32}:
        return None
    source = inner.args[0]
    is_bytes = isinstance(source, Node) and isinstance(source.spec, TensorSpec) and source.tensor.dtype in _BYTES
    return (source, zero, node.args[1]) if is_bytes else None


def _is_number(value: Any, kind: Any, limit: float) -> bool:
    if isinstance(value, Node):
        return isinstance(value.spec, ScalarSpec) and value.spec.kind is kind
    return value.__class__ is kind and abs(value) < limit


def _in_order(node: Any) -> Any:
    """The node behind permutations that change nothing."""
    while isinstance(node, Node) and node.op.name == "aten.permute.default" and \
            list(node.args[1]) == list(range(len(node.args[1]))):
        node = node.args[0]
    return node


def _weight(node: Any) -> tuple[Node, Node, Node] | None:
    """(w, zw, sw) of `(w - zw) * sw`, with a column of zero points and one of scales."""
    node = _in_order(node)
    if not _is(node, "aten.mul.Tensor") or not _is(node.args[0], "aten.sub.Tensor"):
        return None
    (w, zero), scale = node.args[0].args, node.args[1]
    w = _in_order(w)
    columns = all(isinstance(one, Node) and isinstance(one.spec, TensorSpec) for one in (w, zero, scale))
    if not columns or w.tensor.dtype is not torch.int8 or w.tensor.ndim < 2 or scale.tensor.dtype is not torch.float32:
        return None
    column = (w.tensor.shape[0], *[1] * (w.tensor.ndim - 1))
    # the difference of narrower integers could overflow
    fits = zero.tensor.shape == column == scale.tensor.shape and zero.tensor.dtype in (torch.int32, torch.int64)
    return (w, zero, scale) if fits else None


def _product(b: Builder, node: Node, left: tuple[Node, int, float], right: tuple[Node, Node, Node], bias: Any) -> Node:
    (x, zx, sx), (w, zw, sw) = left, right
    count, width = w.tensor.shape
    shape = node.tensor.shape
    rows = x if len(shape) == 2 else b.call("aten.view.default", x, [prod(shape[:-1]), width])
    made = b.call("aten._int_mm.default", rows, b.call("aten.t.default", w))
    if zx:
        sums = b.call("aten.sum.dim_IntList", w, [1], False, dtype=torch.int32)
        made = b.call("aten.sub.Tensor", made, b.call("aten.mul.Tensor", sums, zx))
    # sums of more than 24 bits cancel here
    made = b.call("aten._to_copy.default", made, dtype=torch.float64)
    zeros = b.call("aten._to_copy.default", b.call("aten.view.default", zw, [count]), dtype=torch.float64)
    sums = b.call("aten._to_copy.default", b.call("aten.sum.dim_IntList", rows, [1], True, dtype=torch.int32),
                  dtype=torch.float64)
    made = b.call("aten.sub.Tensor", made,
                  b.call("aten.mul.Tensor", b.call("aten.sub.Tensor", sums, float(width * zx)), zeros))
    made = b.call("aten._to_copy.default", made, dtype=torch.float32)
    scales = b.call("aten.mul.Tensor", b.call("aten.view.default", sw, [count]), sx)
    made = b.call("aten.mul.Tensor", made, scales)
    if isinstance(bias, Node):
        made = b.call("aten.add.Tensor", made, bias)
    return made if len(shape) == 2 else b.call("aten.view.default", made, list(shape))


def use_integer_convolutions(graph: Graph) -> list[str]:
    """Rewrite convolutions of dequantised images, with dequantised weights, in place. One text a change."""
    mapping: dict[Node, Node] = {}
    for node in [node for node in graph.nodes if node.op.convolution is not None and _has_kernel()]:
        call = ConvolutionCall.of(node)
        left, right = (None, None) if call is None else (_activation(call.x), _weight(call.weight))
        if call is None or left is None or right is None or left[0].tensor.ndim != 4 or \
                left[0].tensor.dtype is not torch.uint8 or not _has_short_rows(right[0]):
            continue
        spec, bias = node.tensor, call.bias
        if spec.requires_grad or spec.device.type != "cpu" or spec.dtype is not torch.float32 or not spec.is_static or \
                bias is not None and bias.tensor.dtype is not torch.float32 or \
                spec.stride not in (contiguous_stride(spec.shape), channels_last_stride(spec.shape)):
            continue
        inner = spec.with_(stride=channels_last_stride(spec.shape))
        made = _integers(graph, node, inner, left, right, bias, *call.places, call.groups)
        mapping[node] = made if inner.stride == spec.stride else Builder(graph, node).call(
            "aten.clone.default", made, memory_format=torch.contiguous_format, spec=spec)
    if mapping:
        graph.replace(mapping)
        graph.nodes[:] = [node for node in graph.nodes if node not in mapping]
    return [f"{node.name}: a convolution of integers" for node in mapping]


def _integers(graph: Graph, node: Node, spec: TensorSpec, left: tuple[Node, Any, Any], right: tuple[Node, Node, Node],
              bias: Any, *places: Any) -> Node:
    """The node that oneDNN computes in place of `node`."""
    op = Op("ir.int8_convolution" if places else "ir.int8_linear", _Integers(places),
            infer=lambda env, *args, **kwargs: spec, aliasing=lambda *args, **kwargs: "copy")
    return Builder(graph, node).call(op, *left, *right, bias, spec=spec)


@functools.cache
def _has_kernel() -> bool:
    """Whether torch has oneDNN's convolutions of bytes, and they are exact: see `_multiplies`."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.onednn, "qconv_pointwise") or \
            not hasattr(torch.ops.onednn, "qconv_prepack"):
        return False
    run = _Integers(([1, 1], [0, 0], [1, 1], 1))
    x, zeros, ones = torch.full((1, 64, 5, 5), 255, dtype=torch.uint8), *(
        torch.full((8, 1, 1, 1), value, dtype=dtype) for value, dtype in ((0, torch.int64), (1.0, torch.float32)))
    with torch.no_grad():
        try:
            return all(bool((run(x, 0, 1.0, torch.full((8, 64, 3, 3), w, dtype=torch.int8), zeros, ones, None)
                             == 255 * w * 64 * 9).all()) for w in (-128, 127))
        except RuntimeError:
            return False


def _words(w: torch.Tensor) -> torch.Tensor:
    """The bytes of a weight, eight at a time where that can be: they are compared quicker so."""
    flat = w.reshape(-1)
    aligned = flat.numel() % 8 == 0 and flat.storage_offset() % 8 == 0
    return flat.view(torch.int64) if aligned else flat


@dataclass(slots=True, eq=False)
class _Integers:
    """`(x, zx, sx, w, zw, sw, bias) -> result` by oneDNN, whose weights have no zero points; by floats where these do.
    A convolution, channels last, where there are `places`: stride, padding, dilation and groups. Weights are packed
    again where they are others than in the call before: they are compared."""

    places: tuple[Any, ...]
    known: tuple[torch.Tensor, torch.Tensor, list[Any], torch.Tensor] | None = None

    def __call__(self, x: torch.Tensor, zero: int, scale: float, w: torch.Tensor, zw: torch.Tensor, sw: torch.Tensor,
                 bias: torch.Tensor | None) -> torch.Tensor:
        weights = sw.reshape(-1), zw.reshape(-1)
        usual = abs(zero) < 256 and abs(scale) < _LARGEST_SCALE and not zw.any()
        packed = self._packed(x, w, weights[0], scale, zero) if usual else None
        if packed is None:
            run = torch.nn.functional.conv2d if self.places else torch.nn.functional.linear
            made = run((x.to(torch.float32) - zero) * scale, (w - zw) * sw, bias, *self.places)
        else:
            name = "qconv_pointwise" if self.places else "qlinear_pointwise"
            made = getattr(torch.ops.onednn, name)(x, scale, zero, packed, *weights, bias, *self.places, 1.0, 0,
                                                   torch.float32, "none", [], "")
        return made.contiguous(memory_format=torch.channels_last) if self.places else made

    def _packed(self, x: torch.Tensor, w: torch.Tensor, scales: torch.Tensor, scale: float,
                zero: int) -> torch.Tensor | None:
        """The weights as oneDNN takes them; None where their scales are too large."""
        known, key = self.known, [*x.shape, zero != 0]
        if known is None or known[2] != key or not torch.equal(known[0], _words(w)) or \
                not torch.equal(known[1], scales):
            if not bool((scales.abs() < _LARGEST_SCALE).all()):
                return None
            packed = torch.ops.onednn.qconv_prepack(w, scales, scale, zero, *self.places, list(x.shape)) \
                if self.places else torch.ops.onednn.qlinear_prepack(w, list(x.shape))
            known = self.known = _words(w).clone(), scales.clone(), key, packed
        return known[3]


__all__ = ["use_integer_convolutions", "use_integer_products"]
