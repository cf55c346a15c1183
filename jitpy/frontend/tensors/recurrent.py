"""LSTM, GRU and RNN layers on CPUs.

Without gradients a layer is one call of torch's, whatever its length. With gradients it is recorded as the calls that
torch makes of it, which for a GRU or RNN are some for each step of the sequence; those of an LSTM are the same for all
sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..recording import derived_calls
from ..traced import DECLINED, TracedTensor, Uncapturable
from .state import refuses

if TYPE_CHECKING:
    from ..recording.recorder import Recorder


def _layer(function: Any, name: str) -> Callable[..., Any]:
    def shortcut(recorder: Recorder, *args: Any) -> Any:
        if len(args) == 9 and isinstance(args[1], TracedTensor) and isinstance(args[3], (tuple, list)):
            raise Uncapturable("dynamic_shape", f"{name} of a packed sequence: its lengths are data")
        if len(args) != 9 or not isinstance(args[2], (tuple, list)):
            return DECLINED
        input, hx, params, _, _, dropout, train, _, batch_first = args
        states = list(hx) if isinstance(hx, (tuple, list)) else [hx]
        tensors = [input, *states, *params]
        if any(t.dtype != input.dtype or t.spec.device.type != "cpu" for t in tensors) or input.ndim != 3 or \
                dropout and train or not all(p.spec.is_static for p in params):
            return DECLINED
        batch = input.shape[0 if batch_first else 1]
        if any(s.ndim != 3 or not recorder.sizes.equal(s.shape[1], batch, f"states of {name}") for s in states):
            return DECLINED
        if recorder.state.grad_enabled and any(t.spec.requires_grad for t in tensors):
            if name == "lstm" and not all(t.spec.is_static for t in tensors):
                return derived_calls.run_alike(recorder, function, args, tensors)
            return DECLINED
        node = recorder.emit(f"ir.{name}", recorder.to_node(args))
        return recorder._results(node, node.spec)

    return shortcut


refuses("dynamic_shape", "how many elements a packed sequence has depends on the values of its lengths",
        torch._VF._pack_padded_sequence)
refuses("dynamic_shape", "how long the longest of packed sequences is depends on the values of their batch sizes",
        torch._VF._pad_packed_sequence)

RECURRENT: dict[Any, Callable[..., Any]] = {
    getattr(torch, name): _layer(getattr(torch, name), name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
}
