"""Recurrent layers as one call, of whatever length: torch's for graphs without gradients, our own with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..sizes import SizeEnv
from ..spec import Dim, TensorSpec, contiguous_spec
from .recurrent_kernels import KEPT, recurrent_layer, recurrent_layer_backward
from .table import define

_aten = torch.ops.aten


def _infer(
    env: SizeEnv,
    input: TensorSpec,
    hx: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[TensorSpec, ...]:
    states = hx if isinstance(hx, (tuple, list)) else (hx,)
    length, batch = input.shape[:2][:: -1 if batch_first else 1]
    width = states[0].shape[2] * (2 if bidirectional else 1)
    output = contiguous_spec(input.dtype, (length, batch, width), input.device)
    if batch_first:
        output = output.with_(shape=(batch, length, width), stride=(width, batch * width, 1))
    return output, *(contiguous_spec(s.dtype, s.shape, s.device) for s in states)


def _infer_packed(env: SizeEnv, data: TensorSpec, batch_sizes: TensorSpec, hx: Any, params: Any, has_biases: bool,
                  num_layers: int, dropout: float, train: bool, bidirectional: bool) -> tuple[TensorSpec, ...]:
    states = hx if isinstance(hx, (tuple, list)) else (hx,)
    width = states[0].shape[2] * (2 if bidirectional else 1)
    output = contiguous_spec(data.dtype, (data.shape[0], width), data.device)
    return output, *(contiguous_spec(s.dtype, s.shape, s.device) for s in states)


def _called(overload: Any) -> Callable[..., tuple[torch.Tensor, ...]]:
    return lambda *args: tuple(overload(*args))


# Of packed sequences, too; where gradients are needed, torch's autograd sees the call.
for _name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
    _packet = getattr(_aten, _name)
    for _full, _overload, _rule in ((_name, _packet.input, _infer), (f"{_name}_packed", _packet.data, _infer_packed)):
        define(f"ir.{_full}", target=_called(_overload), infer=_rule, is_random=False, is_recordable=True,
               aliasing=lambda *args, **kwargs: "copy")


def pad_packed(data: torch.Tensor, batch_sizes: torch.Tensor, batch: int, batch_first: bool, padding_value: float,
               total_length: int) -> tuple[torch.Tensor, ...]:
    """`_pad_packed_sequence`, told how many sequences there are."""
    return tuple(_aten._pad_packed_sequence.default(data, batch_sizes, batch_first, padding_value, total_length))


def _infer_pad_packed(env: SizeEnv, data: TensorSpec, batch_sizes: TensorSpec, batch: Dim, batch_first: bool,
                      padding_value: Any, total_length: Dim) -> tuple[TensorSpec, ...]:
    padded = contiguous_spec(data.dtype, (total_length, batch, *data.shape[1:]), data.device)
    if batch_first:
        shape, stride = padded.shape, padded.stride
        padded = padded.with_(shape=(batch, total_length, *shape[2:]), stride=(stride[1], stride[0], *stride[2:]))
    return padded, contiguous_spec(torch.int64, (batch,), data.device)


define("ir.pad_packed", target=pad_packed, infer=_infer_pad_packed, is_random=False, differentiable=(True, False),
       is_recordable=True, aliasing=lambda *args, **kwargs: "copy")


def _infer_layer(env: SizeEnv, x: TensorSpec, h: TensorSpec, w_ih: TensorSpec, w_hh: TensorSpec, b_ih: Any, b_hh: Any,
                 kind: str, reverse: bool) -> tuple[TensorSpec, ...]:
    length, batch, _ = x.shape
    width = w_hh.shape[1]
    return (contiguous_spec(x.dtype, (length, batch, width), x.device),
            contiguous_spec(x.dtype, (length, batch, KEPT[kind] * width), x.device))


def _infer_layer_backward(env: SizeEnv, grad: TensorSpec, x: TensorSpec, h: TensorSpec, w_ih: TensorSpec,
                          w_hh: TensorSpec, out: TensorSpec, kept: TensorSpec, has_biases: bool, kind: str,
                          reverse: bool, mask: Any) -> tuple[TensorSpec | None, ...]:
    shapes = (x.shape, h.shape, w_ih.shape, w_hh.shape, w_ih.shape[:1], w_ih.shape[:1])
    return tuple([contiguous_spec(x.dtype, shape, x.device) if wanted else None
                  for shape, wanted in zip(shapes, mask, strict=True)])


#: One layer in one direction, in training: the states behind all steps, and what is kept of these.
define("ir.recurrent_layer", target=recurrent_layer, infer=_infer_layer, is_random=False,
       differentiable=(True, False), is_recordable=True, aliasing=lambda *args, **kwargs: "copy", failure="never")
define("ir.recurrent_layer_backward", target=recurrent_layer_backward, infer=_infer_layer_backward, is_random=False,
       aliasing=lambda *args, **kwargs: "copy", failure="never")
