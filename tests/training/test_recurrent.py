"""Recurrent networks in training: cells and layers, hidden states carried over and detached, one graph each."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jitpy
from jitpy.engine import all_engines

MODELS: dict[str, Callable[[], nn.Module]] = {
    "rnn": lambda: nn.RNN(3, 4),
    "gru": lambda: nn.GRU(3, 4, 2, bidirectional=True),
    "lstm": lambda: nn.LSTM(3, 4, 2, batch_first=True),
    "projected": lambda: nn.LSTM(3, 4, proj_size=2),
}


def detached(state: Any) -> Any:
    return tuple(s.detach() for s in state) if isinstance(state, tuple) else state.detach()


def layers(make: Callable[[], nn.Module], wrap: Callable[[Any], Any]) -> list[Any]:
    """The hidden state goes on from call to call, its history does not."""
    torch.manual_seed(0)
    model = make().double()
    run, state, results = wrap(model), None, []
    for _ in range(3):
        y, state = run(torch.randn(2, 2, 3, dtype=torch.float64), state)
        state = detached(state)
        y.square().sum().backward()
        results += [y.detach(), y.stride(), state]
    return [results, [p.grad for p in model.parameters()]]


def chunks(make: Callable[[], nn.Module], wrap: Callable[[Any], Any]) -> list[Any]:
    """Truncated backpropagation: a cell in a loop, with the optimizer's step, in one call."""
    torch.manual_seed(0)
    cell = make().double()
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1, momentum=0.9)

    def chunk(rows: torch.Tensor, state: torch.Tensor) -> Any:
        optimizer.zero_grad()
        loss = rows.new_zeros(())
        for row in rows:
            state = cell(row, state)
            loss = loss + state.square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(cell.parameters(), 0.1)
        optimizer.step()
        return state.detach(), loss.item()

    run, state, results = wrap(chunk), torch.zeros(2, 4, dtype=torch.float64), []
    for _ in range(3):
        state, loss = run(torch.randn(3, 2, 3, dtype=torch.float64), state)
        results += [state, loss]
    return [results, [p.detach() for p in cell.parameters()]]


@pytest.mark.parametrize("backend", ["codegen", "eager"])
@pytest.mark.parametrize("name", MODELS)
def test_layers(name: str, backend: str) -> None:
    expected = layers(MODELS[name], lambda fn: fn)
    found = layers(MODELS[name], lambda fn: jitpy.jit(fn, backend=backend, fullgraph=True))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("backend", ["codegen", "eager"])
@pytest.mark.parametrize("cell", [nn.GRUCell, nn.RNNCell])
def test_truncated_backpropagation(cell: Any, backend: str) -> None:
    expected = chunks(lambda: cell(3, 4), lambda fn: fn)
    found = chunks(lambda: cell(3, 4), lambda fn: jitpy.jit(fn, backend=backend, fullgraph=True))
    torch.testing.assert_close(found, expected)


def test_second_derivatives() -> None:
    """Of a cell whose gates are written to in place, in memory with gaps."""
    torch.manual_seed(0)
    cell = nn.GRUCell(3, 4).double()
    x, h = (torch.randn(2, n, dtype=torch.float64, requires_grad=True) for n in (3, 4))
    assert torch.autograd.gradgradcheck(jitpy.jit(cell), (x, h))


@pytest.mark.parametrize("grad", [False, True])
def test_sizes_that_a_layer_settles(grad: bool) -> None:
    """A layer that takes no symbolic sizes fixes the batch in the middle of the graph; before and after it is written
    in symbols."""
    torch.manual_seed(0)
    layer, norm = nn.LSTM(4, 2, batch_first=True, bidirectional=True), nn.GroupNorm(1, 4)

    def fn(x):
        batch, channels, a, b = x.shape
        y, _ = layer(x.permute(0, 3, 2, 1).reshape(batch * b, a, channels))
        return norm(y.contiguous().view(batch, b, a, -1).permute(0, 3, 2, 1).contiguous()) + x

    jitted = jitpy.jit(fn)
    for batch in (2, 3, 4, 3):
        x = torch.randn(batch, 4, 3, 5)
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(jitted(x), fn(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "options"), [
    (nn.GRU, {"num_layers": 2, "bidirectional": True, "dropout": 0.3}), (nn.GRU, {"bias": False, "batch_first": True}),
    (nn.RNN, {"bidirectional": True}), (nn.RNN, {"nonlinearity": "relu"})])
def test_one_graph_for_all_batches_and_lengths(kind: Any, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layer = kind(3, 4, **options)
    twin = copy.deepcopy(layer)

    def make(layer: nn.Module) -> Callable[[torch.Tensor], Any]:
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

        def step(x: torch.Tensor) -> Any:
            optimizer.zero_grad()
            y, last = layer(x)
            (y.square().mean() + last.sin().mean()).backward()
            optimizer.step()
            return y.detach(), last.detach(), x.grad

        return step

    jitpy.reset()
    plain, jitted = make(layer), jitpy.jit(make(twin), fullgraph=True)
    for batch, length in ((2, 3), (4, 5), (3, 6), (5, 2), (7, 9)):
        x = torch.randn(batch, length, 3)
        torch.manual_seed(1)
        expected = plain(x.clone().requires_grad_())
        torch.manual_seed(1)
        torch.testing.assert_close(jitted(x.clone().requires_grad_()), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(list(twin.parameters()), list(layer.parameters()), rtol=1e-4, atol=1e-5)
    assert sum(len(engine.variants) for engine in all_engines()) <= 3


@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN])
def test_second_derivatives_of_layers(kind: Any) -> None:
    torch.manual_seed(0)
    layer = kind(3, 4, 2, bidirectional=True).double()
    x, h = (torch.randn(n, 2, m, dtype=torch.float64, requires_grad=True) for n, m in ((3, 3), (4, 4)))
    jitted = jitpy.jit(layer)
    assert torch.autograd.gradgradcheck(lambda x, h: jitted(x, h)[0][-1], (x, h))

    def penalty(x: torch.Tensor) -> Any:
        (slope,) = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), [x, *layer.parameters()], allow_unused=True)

    torch.testing.assert_close(jitpy.jit(penalty)(x), penalty(x))


def test_states_that_are_changed_before_the_pass() -> None:
    """Eager keeps other memory for the backward pass than that of the layer's result."""
    torch.manual_seed(0)
    layer = nn.GRU(3, 4)

    def fn(x: torch.Tensor) -> Any:
        y, last = layer(x)
        return y, last

    results = []
    for run in (fn, jitpy.jit(fn)):
        layer.zero_grad()
        x = torch.linspace(-1, 1, 18).reshape(3, 2, 3).requires_grad_()
        y, last = run(x)
        y.mul_(2)
        last.add_(1)
        (y.sum() + last.square().sum()).backward()
        results.append([x.grad, y.detach(), *(p.grad for p in layer.parameters())])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["codegen", "eager"])
def test_results_that_keep_their_history_behind_a_pass(backend: str) -> None:
    torch.manual_seed(0)
    layer = nn.GRU(3, 4, bidirectional=True)

    def fn(x: torch.Tensor) -> Any:
        y, last = layer(x)
        y.sum().backward(retain_graph=True)
        return last

    results = []
    for run in (fn, jitpy.jit(fn, backend=backend)):
        layer.zero_grad()
        x = torch.linspace(-1, 1, 18).reshape(3, 2, 3).requires_grad_()
        run(x).square().sum().backward()
        results.append([x.grad, *(p.grad for p in layer.parameters())])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
