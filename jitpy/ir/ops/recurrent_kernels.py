"""GRU and RNN layers in training, on CPUs: one layer in one direction, all steps, in eager's formulas.

Eager's autograd keeps a node for each operation of each step. Here the forward pass keeps the gates of all steps, so
that the backward pass computes everything that does not wait for the next step's gradient at once, and sums the
gradients of the weights up in one product.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

Tensor = torch.Tensor

_aten = torch.ops.aten
_PACKETS = {"gru": _aten.gru, "tanh": _aten.rnn_tanh, "relu": _aten.rnn_relu}

#: what is kept of each step besides the result, in widths of the state: reset and update gates, the new state and the
#: part of it that the former one has
KEPT = {"gru": 4, "tanh": 0, "relu": 0}


def recurrent_layer(x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None,
                    kind: str, reverse: bool) -> tuple[Tensor, Tensor]:
    """The states behind all steps, and what `recurrent_layer_backward` wants to know of them. Where autograd records
    it, the states are those of torch's own layer."""
    length, batch, _ = x.shape
    width = w_hh.shape[1]
    weights = [w_ih, w_hh, *(b for b in (b_ih, b_hh) if b is not None)]
    kept = x.new_empty(length, batch, KEPT[kind] * width)
    out = x.new_empty(length, batch, width)
    order = range(length - 1, -1, -1) if reverse else range(length)
    with torch.no_grad():
        (_gru if kind == "gru" else _rnn)(x, h, w_ih, w_hh, b_ih, b_hh, out, kept, order, kind)
    if torch.is_grad_enabled() and any(t.requires_grad for t in (x, h, *weights)):
        x = x.flip(0) if reverse else x
        out = _PACKETS[kind].input(x, h.unsqueeze(0), weights, b_ih is not None, 1, 0.0, False, False, False)[0]
        out = out.flip(0) if reverse else out
    return out, kept


def _gru(x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None, out: Tensor,
         kept: Tensor, order: Sequence[int], kind: str) -> None:
    width = w_hh.shape[1]
    given = torch.nn.functional.linear(x, w_ih, b_ih)
    given_gates, given_new = given[..., :2 * width].unbind(0), given[..., 2 * width:].unbind(0)
    gates, resets, updates, news, parts = (kept[..., a * width:b * width].unbind(0)
                                           for a, b in ((0, 2), (0, 1), (1, 2), (2, 3), (3, 4)))
    turned = w_hh.t()
    hidden = x.new_empty(h.shape[0], 3 * width)
    hidden_gates, hidden_new = hidden[:, :2 * width], hidden[:, 2 * width:]
    difference = torch.empty_like(h)
    outs = out.unbind(0)
    for t in order:
        if b_hh is None:
            torch.mm(h, turned, out=hidden)
        else:
            torch.addmm(b_hh, h, turned, out=hidden)
        torch.add(hidden_gates, given_gates[t], out=gates[t]).sigmoid_()
        parts[t].copy_(hidden_new)
        new = torch.addcmul(given_new[t], hidden_new, resets[t], out=news[t]).tanh_()
        torch.sub(h, new, out=difference)
        h = torch.addcmul(new, difference, updates[t], out=outs[t])


def _rnn(x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None, out: Tensor,
         kept: Tensor, order: Sequence[int], kind: str) -> None:
    given = torch.nn.functional.linear(x, w_ih, b_ih)
    if b_hh is not None:
        given += b_hh
    steps, outs, turned = given.unbind(0), out.unbind(0), w_hh.t()
    for t in order:
        h = torch.addmm(steps[t], h, turned, out=outs[t])
        torch.tanh_(h) if kind == "tanh" else torch.relu_(h)


def recurrent_layer_backward(grad: Tensor, x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, out: Tensor, kept: Tensor,
                             has_biases: bool, kind: str, reverse: bool,
                             mask: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """The gradients of the leading arguments of `recurrent_layer` that `mask` asks for, given that of the states."""
    length, batch, _ = x.shape
    rows = length * batch
    order = range(length) if reverse else range(length - 1, -1, -1)
    with torch.no_grad():
        before = torch.empty_like(out)  # the state that each step found
        if reverse:
            before[:-1], before[-1] = out[1:], h
        else:
            before[1:], before[0] = out[:-1], h
        steps = _gru_backward if kind == "gru" else _rnn_backward
        of_state, of_given, of_hidden = steps(grad, w_hh, out, before, kept, order, kind)
        of_given, of_hidden = of_given.view(rows, -1), of_hidden.view(rows, -1)
        return (
            (of_given @ w_ih).view(x.shape) if mask[0] else None,
            of_state if mask[1] else None,
            of_given.t() @ x.reshape(rows, -1) if mask[2] else None,
            of_hidden.t() @ before.view(rows, -1) if mask[3] else None,
            of_given.sum(0) if has_biases and mask[4] else None,
            of_hidden.sum(0) if has_biases and mask[5] else None,
        )


def _gru_backward(grad: Tensor, w_hh: Tensor, out: Tensor, before: Tensor, kept: Tensor, order: Sequence[int],
                  kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the first state and of what both products of all steps gave."""
    length, batch, width = out.shape
    reset, update, new, part = kept.view(length, batch, 4, width).unbind(2)
    rest = 1 - update
    new_of_state = (1 - new * new).mul_(rest)
    update_of_state = (before - new).mul_(update).mul_(rest)
    reset_of_new = (reset * (1 - reset)).mul_(part)
    of_hidden = torch.empty(length, batch, 3, width, dtype=out.dtype)
    of_new = torch.empty_like(out)
    reset_grads, update_grads, part_grads = (of_hidden[:, :, k].unbind(0) for k in range(3))
    products, new_grads = of_hidden.view(length, batch, 3 * width).unbind(0), of_new.unbind(0)
    resets, updates, grads = reset.unbind(0), update.unbind(0), grad.unbind(0)
    slopes = [s.unbind(0) for s in (new_of_state, update_of_state, reset_of_new)]
    passed = torch.empty_like(out[0])
    state = grads[order[0]]
    for t, following in zip(order, [*order[1:], None], strict=True):
        own = torch.mul(state, slopes[0][t], out=new_grads[t])
        torch.mul(state, slopes[1][t], out=update_grads[t])
        torch.mul(own, slopes[2][t], out=reset_grads[t])
        torch.mul(own, resets[t], out=part_grads[t])
        if following is None:
            torch.mul(state, updates[t], out=passed)
        else:
            torch.addcmul(grads[following], state, updates[t], out=passed)
        state = torch.addmm(passed, products[t], w_hh)
    of_given = torch.cat([of_hidden[:, :, :2].reshape(length, batch, 2 * width), of_new], 2)
    return state, of_given, of_hidden


def _rnn_backward(grad: Tensor, w_hh: Tensor, out: Tensor, before: Tensor, kept: Tensor, order: Sequence[int],
                  kind: str) -> tuple[Tensor, Tensor, Tensor]:
    slope = 1 - out * out if kind == "tanh" else (out > 0).to(out.dtype)
    found = torch.empty_like(out)
    slopes, grads, products = slope.unbind(0), grad.unbind(0), found.unbind(0)
    state = grads[order[0]]
    for t, following in zip(order, [*order[1:], None], strict=True):
        own = torch.mul(state, slopes[t], out=products[t])
        state = torch.mm(own, w_hh) if following is None else torch.addmm(grads[following], own, w_hh)
    return state, found, found


__all__ = ["KEPT", "recurrent_layer", "recurrent_layer_backward"]
