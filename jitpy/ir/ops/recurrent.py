"""Recurrent layers as one call of torch's: for graphs without gradients, of whatever length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..sizes import SizeEnv
from ..spec import TensorSpec, contiguous_spec
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


def _called(packet: Any) -> Callable[..., tuple[torch.Tensor, ...]]:
    def target(*args: Any) -> tuple[torch.Tensor, ...]:
        return tuple(packet.input(*args))

    return target


for _name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
    define(f"ir.{_name}", target=_called(getattr(_aten, _name)), infer=_infer, is_random=False,
           aliasing=lambda *args, **kwargs: "copy")
