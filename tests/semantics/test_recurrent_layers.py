"""LSTM, GRU and RNN layers: batches and sequences of several sizes, states, packed sequences. PYTEST_DONT_REWRITE."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn

import jitpy
from jitpy.engine import all_engines
from tests.semantics.harness import case, make_test

KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {}, "batch_first": {"batch_first": True}, "bidirectional": {"bidirectional": True, "batch_first": True},
    "without_bias": {"bias": False}, "dropout": {"dropout": 0.3}, "relu": {"nonlinearity": "relu"},
    "projected": {"proj_size": 3},
}


def _layer(kind: str, option: str) -> Any:
    def made():
        layer = KINDS[kind](4, 6, 2, **OPTIONS[option])

        def fn(x):
            with torch.no_grad():
                plainly = layer(x)
            return layer(x), plainly

        return fn, layer

    made.__name__, made.__module__ = f"{kind}_{option}", __name__
    return made


for _kind in KINDS:
    for _option in OPTIONS:
        if (_option == "relu") <= (_kind == "rnn") and (_option == "projected") <= (_kind == "lstm"):
            case(*(lambda n=n: (torch.randn(n, 3, 4),) for n in (3, 4, 5)), factory=True, fullgraph=True, rounds=1,
                 tolerance=1e-4)(_layer(_kind, _option))


@case(*(lambda n=n: (torch.randn(n, 3, 4), torch.randn(1, n, 6), torch.randn(1, n, 6)) for n in (3, 4, 5)),
      factory=True, fullgraph=True, tolerance=1e-4)
def states_given():
    layer = nn.LSTM(4, 6, batch_first=True)

    def fn(x, h, c):
        with torch.no_grad():
            plainly = layer(x, (h, c))
        return layer(x, (h, c)), plainly

    return fn, layer


@case(lambda: (torch.randn(3, 3, 4), torch.randn(1, 2, 6)), factory=True)
def states_of_another_batch():
    layer = nn.GRU(4, 6)

    def fn(x, h):
        with torch.no_grad():
            return torch.gru(x, h, layer._flat_weights, True, 1, 0.0, True, False, False)

    return fn, layer


@case(lambda: (torch.randn(3, 4, dtype=torch.float64),), factory=True, fullgraph=True, tolerance=1e-4)
def one_sequence():
    layer = nn.LSTM(4, 6).double()

    def fn(x):
        with torch.no_grad():
            return layer(x)

    return fn, layer


@pytest.mark.parametrize(("kind", "grad"), [("lstm", False), ("gru", False), ("rnn", False), ("lstm", True)])
def test_other_sizes_are_no_other_variant(kind: str, grad: bool) -> None:
    jitpy.reset()
    layer = KINDS[kind](4, 6, batch_first=True)
    run = jitpy.jit(lambda x: layer(x)[0], backend="eager")
    with torch.set_grad_enabled(grad):
        for n in (3, 4, 5, 6):
            x = torch.randn(n, 3 if grad else 2 * n, 4)
            torch.testing.assert_close(run(x), layer(x)[0])
    assert sum(len(engine.variants) for engine in all_engines()) == 2


# -- packed sequences


def _padded():
    return torch.randn(3, 5, 4), torch.tensor([2, 5, 3])


@case(_padded, lambda: (torch.randn(3, 5, 4), [2, 5, 3]), lambda: (torch.randn(3, 4, 4), torch.tensor([4, 4, 1])))
def packed_and_padded(x, lengths):
    packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return packed.data, packed.batch_sizes, packed.sorted_indices, rnn.pad_packed_sequence(packed, batch_first=True)


def _packed(kind: str, **options: Any) -> Any:
    def made():
        layer = KINDS[kind](4, 6, batch_first=True, **options)

        def fn(x, lengths):
            packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            output, last = layer(packed)
            with torch.no_grad():
                plainly = layer(packed)[0].data
            return *rnn.pad_packed_sequence(output, batch_first=True), last, plainly

        return fn, layer

    made.__name__, made.__module__ = f"packed_{kind}_{'_'.join(options)}", __name__
    return made


for _kind in KINDS:
    for _options in ({}, {"bidirectional": True, "num_layers": 2}):
        case(_padded, lambda: (torch.randn(3, 5, 4, requires_grad=True), torch.tensor([1, 4, 1])),
             lambda: (torch.randn(4, 6, 4), torch.tensor([1, 4, 1, 6])), factory=True, fullgraph=True, rounds=1,
             tolerance=1e-4)(_packed(_kind, **_options))


@case(_padded, lambda: (torch.randn(2, 6, 4), torch.tensor([1, 6])), factory=True, fullgraph=True, tolerance=1e-4)
def packed_with_states_and_a_length():
    layer = nn.LSTM(4, 6, proj_size=2)

    def fn(x, lengths):
        packed = rnn.pack_padded_sequence(x.transpose(0, 1), lengths, enforce_sorted=False)
        states = torch.ones(1, x.shape[0], 2), torch.zeros(1, x.shape[0], 6)
        output, last = layer(packed, states)
        padded, found = rnn.pad_packed_sequence(output, padding_value=-1.0, total_length=7)
        return padded, found, last, padded[found - 1, torch.arange(x.shape[0])]

    return fn, layer


@case(_padded, lambda: (torch.randn(3, 6, 4), torch.tensor([1, 6, 2])), factory=True)
def padded_to_less_than_there_is():
    layer = nn.GRU(4, 6, batch_first=True)

    def fn(x, lengths):
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return rnn.pad_packed_sequence(layer(packed)[0], batch_first=True, total_length=5)

    return fn, layer


@case(_padded, lambda: (torch.randn(2, 6, 4), torch.tensor([1, 6])), factory=True, breaks=("autograd",), tolerance=1e-4)
def packed_in_training():
    layer = nn.GRU(4, 6, batch_first=True)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def fn(x, lengths):
        optimizer.zero_grad()
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        output, _ = rnn.pad_packed_sequence(layer(packed)[0], batch_first=True)
        loss = output.square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return fn, layer


@case(lambda: (torch.randn(3, 5, 4), torch.tensor([5, 3, 3])), lambda: (torch.randn(3, 5, 4), torch.tensor([5, 3, 4])))
def sorted_lengths(x, lengths):
    packed = rnn.pack_padded_sequence(x * 2, lengths, batch_first=True)
    return rnn.pad_packed_sequence(packed, batch_first=True), packed.batch_sizes[0].item(), x.shape


@case(lambda: ([torch.randn(1, 2), torch.randn(2, 2), torch.randn(3, 2)],))
def list_of_sequences(xs):
    packed = rnn.pack_sequence(xs, enforce_sorted=False)
    padded = rnn.pad_sequence(xs, batch_first=True, padding_value=-1.0), rnn.pad_sequence(xs)
    return packed, rnn.unpack_sequence(packed), padded


@case(lambda: (torch.randn(3, 5, 4), torch.tensor([2, 3, 5])), lambda: (torch.randn(3, 5, 4), torch.tensor([2, 0, 0])))
def lengths_that_torch_refuses(x, lengths):
    try:
        return rnn.pack_padded_sequence(x, lengths, batch_first=True)
    except RuntimeError as error:
        return str(error)[:60]


# -- layouts


@case(*(lambda n=n: (torch.randn(n, 3, 4, 4).to(memory_format=torch.channels_last),) for n in (2, 3, 4, 5)),
      *(lambda n=n: (torch.randn(2, 1, n, 4),) for n in (2, 3, 4)), fullgraph=True)
def channels_last_of_any_size(x):
    form = torch.channels_last
    made = x.contiguous(), x.contiguous(memory_format=form)
    parts = x[:, :1], x[:, 1:], x.transpose(1, 3), *made
    return x.is_contiguous(memory_format=form), [p.is_contiguous(memory_format=form) for p in parts]


@case(*(lambda n=n: (torch.randn(n, 3, 2, 4, 4).to(memory_format=torch.channels_last_3d),) for n in (2, 3, 4)),
      fullgraph=True)
def channels_last_of_volumes(x):
    form = torch.channels_last_3d
    return x.is_contiguous(memory_format=form), x[:, :2].is_contiguous(memory_format=form), x.is_contiguous()


test_cases = make_test(__name__)
