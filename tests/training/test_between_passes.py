"""What a program changes between the forward and the backward pass, or from call to call: as in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import jitpy
from tests.counting import variants

Program = Callable[[Callable[[nn.Module], Any]], Any]

@pytest.fixture(autouse=True)
def clean():
    jitpy.reset()
    yield
    jitpy.reset()


def normalized() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)).double()


def data(number: int) -> torch.Tensor:
    return torch.randn(4, 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(number))


def seen(model: nn.Module) -> Any:
    return copy.deepcopy([dict(model.state_dict()), [p.grad for p in model.parameters()]])


def statistics_between(wrap: Callable[[nn.Module], Any], training: bool, change: Callable[[nn.Module], Any]) -> Any:
    """Whoever writes to the statistics behind a forward pass is refused where the backward pass reads them."""
    model = normalized().train(training)
    run, results = wrap(model), []
    for number in range(4):
        model.zero_grad()
        loss = run(data(number)).square().sum()
        change(model[1])
        try:
            loss.backward()
        except RuntimeError as error:
            results.append(str(error).partition("modified by an inplace")[0])
            model.zero_grad()  # which gradients are there already depends on the order of the nodes
        results += [loss.detach(), seen(model)]
    return results


def fill(norm: Any) -> None:
    norm.running_mean.fill_(0.3)
    norm.running_var.mul_(2.0)


def reset(norm: Any) -> None:
    norm.reset_running_stats()


def replace(norm: Any) -> None:
    norm.running_mean = norm.running_mean.clone() + 1
    norm.running_var = torch.ones_like(norm.running_var) * 3


def replace_data(norm: Any) -> None:
    norm.running_mean.data = torch.full_like(norm.running_mean, 0.5)


def load(norm: Any) -> None:
    state = {key: value + 1 for key, value in norm.state_dict().items()}
    norm.load_state_dict(state)


#: Changes of statistics in place are left out in train mode: eager refuses them, although no gradient reads them.
STATISTICS = [lambda wrap, t=t, c=c: statistics_between(wrap, t, c) for c in (fill, reset, replace, replace_data, load)
              for t in (True, False) if not t or c not in (fill, reset)]


def both_halves_of_a_batch(wrap):
    """Two forward passes in train mode, which both move the statistics, then one backward pass."""
    model = normalized()
    run, results = wrap(model), []
    for number in range(3):
        model.zero_grad()
        loss = run(data(number)).square().sum() - run(data(number + 10)).sum()
        loss.backward()
        results += [loss.detach(), seen(model)]
    return results


def statistics_given_up(wrap):
    """`track_running_stats` is switched off on the way, momentum changes, statistics become None."""
    model = normalized()
    run, results = wrap(model), []
    for number in range(6):
        if number == 2:
            model[1].momentum = 0.5
        if number == 3:
            model[1].momentum = None
        if number == 4:
            model[1].running_mean = model[1].running_var = None
        model.zero_grad()
        loss = run(data(number)).square().sum()
        loss.backward()
        results += [loss.detach(), seen(model)]
    return results


def flips(wrap):
    model = normalized()
    run, results = wrap(model), []
    for number in range(12):
        model.train(number % 3 != 0)
        model.zero_grad()
        loss = run(data(number)).square().sum()
        loss.backward()
        results += [loss.detach(), seen(model)]
    return results


def modes_between(wrap):
    """A model that is put into another mode behind its forward pass."""
    model = normalized()
    run, results = wrap(model), []
    for number in range(4):
        model.train(number % 2 == 0)
        model.zero_grad()
        loss = run(data(number)).square().sum()
        model.train(number % 2 == 1)
        loss.backward()
        results += [loss.detach(), seen(model)]
    return results


def frozen_and_thawed(wrap):
    model = normalized()
    run, results = wrap(model), []
    for number in range(9):
        for p in model[0].parameters():
            p.requires_grad_(number % 3 == 1)
        model[1].weight.requires_grad_(number % 2 == 0)
        model.zero_grad()
        loss = run(data(number)).square().sum()
        loss.backward()
        results += [loss.detach(), seen(model)]
    return results


def frozen_between(wrap):
    """A parameter that needs no gradient any more when the backward pass runs."""
    model = normalized()
    run, results = wrap(model), []
    for number in range(3):
        model.requires_grad_(True)
        model.zero_grad()
        loss = run(data(number)).square().sum()
        model[0].requires_grad_(False)
        loss.backward()
        results += [loss.detach(), seen(model)]
    return results


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4).double()
        self.second = nn.Linear(4, 4).double()
        self.second.weight = self.first.weight
        self.table = nn.Embedding(5, 4).double()
        self.last = nn.Linear(4, 5, bias=False).double()
        self.last.weight = self.table.weight

    def forward(self, ids):
        return self.last(self.second(self.first(self.table(ids)).tanh()))


def shared_parameters(wrap):
    """Tied, untied and tied again."""
    model = Tied()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    run, results = wrap(model), []
    ids = torch.tensor([0, 3, 3, 4])
    for number in range(8):
        if number == 3:
            model.second.weight = nn.Parameter(model.first.weight.detach().clone())
        if number == 6:
            model.second.weight = model.first.weight
        model.zero_grad()
        loss = run(ids).square().mean()
        loss.backward()
        opt.step()
        results += [loss.detach(), seen(model)]
    return results


class Averaging(nn.Module):
    """A buffer that each forward pass moves, and one that it replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 3, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(3, dtype=torch.float64))
        self.register_buffer("last", torch.zeros(3, dtype=torch.float64))

    def forward(self, x):
        y = x * self.weight
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(y.mean(0), 0.1)
                self.last = y.detach().mean(0)
        return (y - self.mean).sin() + self.last


def buffers(wrap):
    model = Averaging()
    run, results = wrap(model), []
    for number in range(8):
        if number == 3:
            model.mean = torch.ones(3, dtype=torch.float64)
        if number == 5:
            model.register_buffer("mean", torch.full((3,), 2.0, dtype=torch.float64))
        if number == 6:
            model.eval()
        model.zero_grad()
        result = run(data(number)[:, 0, :, :3].flatten(0, 1))
        loss = result.sum()
        if number == 4:
            model.last = torch.zeros(3, dtype=torch.float64)
        loss.backward()
        results += [loss.detach(), seen(model)]
    return results


def given_gradients(wrap):
    """`.grad` fields that the program has filled, of other kinds than it will be given."""
    model = normalized()
    run, results = wrap(model), []
    for number in range(6):
        weight = model[4].weight
        if number == 1:
            weight.grad = torch.ones_like(weight)
        if number == 2:
            weight.grad = torch.ones(12, 2, dtype=torch.float64).t()
        if number == 3:
            kept = weight.grad
            weight.grad = None
        if number == 4:
            weight.grad = kept
        loss = run(data(number)).square().sum()
        loss.backward()
        results += [loss.detach(), seen(model), weight.grad.stride(), weight.grad.requires_grad]
    return results


def anomalies(wrap):
    model = normalized()
    run, results = wrap(model), []
    for number in range(4):
        model.zero_grad()
        with torch.autograd.set_detect_anomaly(number % 2 == 1):
            x = data(number)
            x[0, 0, 0, 0] = float("nan") if number > 1 else 0.0
            try:
                run(x).square().sum().backward()
                results.append("fine")
            except RuntimeError as error:
                results.append("nan" if "returned nan values" in str(error) else str(error))
    return results


PROGRAMS: list[Program] = [statistics_given_up, flips, modes_between, frozen_and_thawed, frozen_between,
                           shared_parameters, buffers, given_gradients, anomalies, both_halves_of_a_batch]
NAMES = [program.__name__ for program in PROGRAMS]


@pytest.fixture(params=["codegen", "eager"])
def jitted(request: Any) -> Iterator[Callable[[nn.Module], Any]]:
    yield lambda model: jitpy.jit(model, backend=request.param)


def check(program: Program, jitted: Callable[[nn.Module], Any]) -> None:
    have, want = program(jitted), program(lambda model: model)
    assert [part for part in have if isinstance(part, str)] == [part for part in want if isinstance(part, str)]
    have, want = ([part for part in parts if not isinstance(part, str)] for parts in (have, want))
    torch.testing.assert_close(have, want, equal_nan=True)


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected in", "ignore:grad and param do not obey")
@pytest.mark.parametrize("program", PROGRAMS, ids=NAMES)
def test_as_in_eager(program, jitted):
    check(program, jitted)


@pytest.mark.parametrize("number", range(len(STATISTICS)))
def test_statistics_changed_between(number, jitted):
    check(STATISTICS[number], jitted)


def test_flips_compile_once_for_each_mode(jitted):
    flips(jitted)
    assert variants() <= 2
