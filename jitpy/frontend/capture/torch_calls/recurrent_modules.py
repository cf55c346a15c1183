"""LSTM, GRU and RNN layers on CPUs.

Without gradients a stack of layers is one call of torch's, whatever its length. With gradients each layer of a GRU or
RNN is one in each direction (`ir/ops/recurrent_kernels.py`), and an LSTM is recorded as the calls that torch makes of
it, which are the same for all sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import derived_calls
from ..traced import DECLINED, GraphBuilder, TracedTensor
from . import packed

_aten = torch.ops.aten


def _layer(function: Any, name: str) -> Callable[..., Any]:
    def shortcut(builder: GraphBuilder, *args: Any) -> Any:
        if len(args) == 9 and isinstance(args[1], TracedTensor) and isinstance(args[3], (tuple, list)):
            return packed.layer(builder, name, args)
        if len(args) != 9 or not isinstance(args[2], (tuple, list)):
            return DECLINED
        input, hx, params, _, _, dropout, train, _, batch_first = args
        states = list(hx) if isinstance(hx, (tuple, list)) else [hx]
        tensors = [input, *states, *params]
        if any(t.dtype != input.dtype or t.spec.device.type != "cpu" for t in tensors) or input.ndim != 3 or \
                not all(p.spec.is_static for p in params):
            return DECLINED
        batch = input.shape[0 if batch_first else 1]
        if any(s.ndim != 3 or not builder.sizes.equal(s.shape[1], batch, f"states of {name}") for s in states):
            return DECLINED
        if builder.state.grad_enabled and any(t.spec.requires_grad for t in tensors):
            if name != "lstm":
                return _trained(builder, name.removeprefix("rnn_"), *args)
            if not (dropout and train) and not all(t.spec.is_static for t in tensors):
                return derived_calls.run_alike(builder, function, args, tensors)
            return DECLINED
        if dropout and train:
            return DECLINED
        node = builder.emit(f"ir.{name}", builder.to_node(args))
        return builder.results(node, node.spec)

    return shortcut


def _trained(builder: GraphBuilder, kind: str, input: TracedTensor, hx: TracedTensor, params: Sequence[TracedTensor],
             has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
             batch_first: bool) -> Any:
    """All layers of a GRU or RNN, one node for each in each direction, under autograd."""
    directions, each = (2 if bidirectional else 1), (4 if has_biases else 2)
    x = builder.record(_aten.transpose.int, (input, 0, 1), {}) if batch_first else input
    if not _fits(builder, kind, x, hx, params, num_layers * directions, directions, each):
        return DECLINED
    lasts = []
    for layer in range(num_layers):
        outs = []
        for direction in range(directions):
            number = layer * directions + direction
            h = builder.record(_aten.select.int, (hx, 0, number), {})
            weights = [*params[number * each:][:each], None, None][:4]
            node = builder.emit("ir.recurrent_layer", (*builder.to_node((x, h, *weights)), kind, bool(direction)))
            outs.append(builder.results(node, node.spec)[0])
            lasts.append(builder.record(_aten.select.int, (outs[-1], 0, 0 if direction else -1), {}))
        x = builder.record(_aten.cat.default, (outs, -1), {}) if bidirectional else outs[0]
        if dropout and train and layer + 1 < num_layers:
            x = builder.record_call(torch.dropout, (x, dropout, True), {})
    last = builder.record(_aten.stack.default, (lasts, 0), {})
    return builder.record(_aten.transpose_.default, (x, 0, 1), {}) if batch_first else x, last


def _fits(builder: GraphBuilder, kind: str, x: TracedTensor, hx: TracedTensor, params: Sequence[TracedTensor],
          layers: int, directions: int, each: int) -> bool:
    """Whether sizes and dtypes are those of layers that eager runs."""
    width = hx.shape[2]
    gates = width * 3 if kind == "gru" else width
    if len(params) != layers * each or x.dtype not in (torch.float32, torch.float64) or type(width) is not int or \
            not builder.sizes.equal(hx.shape[0], layers, "states of a recurrent layer") or \
            builder.sizes.equal(x.shape[0], 0, "length of a sequence"):
        return False
    for number in range(layers):
        wide = x.shape[2] if number < directions else width * directions
        own = params[number * each:][:each]
        shapes = [(gates, wide), (gates, width), (gates,), (gates,)]
        if not all(len(p.shape) == len(s) and all(builder.sizes.equal(a, b, "weights of a recurrent layer")
                   for a, b in zip(p.shape, s, strict=True)) for p, s in zip(own, shapes, strict=False)):
            return False
    return True


RECURRENT: dict[Any, Callable[..., Any]] = {
    **{getattr(torch, name): _layer(getattr(torch, name), name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
    torch._VF._pack_padded_sequence: packed.pack,
    torch._VF._pad_packed_sequence: packed.pad,
}
