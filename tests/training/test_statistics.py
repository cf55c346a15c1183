"""Running statistics between forward and backward passes: eager's batch norm writes to them without a new version, so
that they refuse a pass only where the program wrote to them itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jitpy


def batch_norm(**options: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, **options), nn.Linear(4, 2))


def without_momentum() -> nn.Module:
    return batch_norm(momentum=None)


def without_affine() -> nn.Module:
    return batch_norm(affine=False)


def instance_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Unflatten(0, (2, 3)), nn.InstanceNorm1d(3, track_running_stats=True),
                         nn.Flatten(0, 1), nn.Linear(4, 2))


class Twice(nn.Module):
    """One norm that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(self.norm(self.linear(x)).relu()))


class Written(Twice):
    """What eager keeps is written to inside: its backward pass is refused."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.linear(x))
        self.norm.running_mean.fill_(0.5)
        return y


class ReadBefore(Twice):
    """The statistics are read by another op before they are written."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x) + self.norm.running_mean)


class WrittenWithoutMomentum(Written):
    """The same, of an average over all batches."""

    def __init__(self) -> None:
        super().__init__()
        self.norm.momentum = None


def norm_of(model: nn.Module) -> Any:
    return next(m for m in model.modules() if isinstance(m, (nn.BatchNorm1d, nn.InstanceNorm1d)))


def lerp(model: nn.Module) -> None:
    mean = norm_of(model).running_mean
    mean.lerp_(torch.ones_like(mean), 0.5)


#: what a letter of a script stands for; `f` is a forward pass, a digit the backward pass of the one of that number
STEPS: dict[str, Callable[[nn.Module], Any]] = {
    "t": lambda model: model.train(),
    "e": lambda model: model.eval(),
    "r": lambda model: norm_of(model).reset_running_stats(),
    "l": lerp,
    "d": lambda model: norm_of(model).running_mean.data.add_(0.5),
    "s": lambda model: model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}),
}


def run(make: Callable[[], nn.Module], wrap: Callable[[Any], Any], script: str) -> tuple[list[str], list[Any]]:
    """What a model leaves behind, and the errors of the backward passes, after some steps."""
    torch.manual_seed(0)
    model = make().double()
    forward = wrap(model)
    x = torch.randn(6, 4, dtype=torch.float64)
    losses: list[torch.Tensor] = []
    found: list[str] = []
    for step in script:
        if step == "f":
            losses.append(forward(x).square().sum())
        elif step.isdigit():
            try:
                losses[int(step)].backward(retain_graph=True)
                found.append("no error")
            except RuntimeError as error:
                assert "modified by an inplace operation: [torch.DoubleTensor" in str(error)
                found.append("version")
                model.zero_grad()  # how far an eager pass came
        else:
            STEPS[step](model)
    return found, [*(p.grad for p in model.parameters()), *model.buffers()]


#: An eval() pass, then a train() pass, then the backward pass of the first: eager computes that, without an error, from
#: the statistics that the second left. The gradients here are those of what the first has computed, or eager's.
_READ_CHANGED = ("eftf01", "tfeftfef0123")


@pytest.mark.parametrize("backend", ["codegen", "eager"])
@pytest.mark.parametrize("script", ["eftf01", "etff10", "tfr0", "tfl0", "efr0", "tfs0", "tfeftfef0123"])
@pytest.mark.parametrize("make", [batch_norm, without_momentum, without_affine, instance_norm, Twice, Written,
                                  WrittenWithoutMomentum, ReadBefore])
def test_passes_after_changes_of_statistics(make: Callable[[], nn.Module], script: str, backend: str) -> None:
    outcomes, tensors = run(make, lambda model: model, script)
    found, values = run(make, lambda model: jitpy.jit(model, backend=backend), script)
    assert found == outcomes
    if script in _READ_CHANGED:
        return
    torch.testing.assert_close(values, tensors)


@pytest.mark.parametrize("backend", ["codegen", "eager"])
def test_versions_of_statistics(backend: str) -> None:
    """A pass in train() writes to them, and leaves their versions as they are."""
    model = batch_norm()
    jitted = jitpy.jit(model, backend=backend)
    norm = model[1]
    versions = norm.running_mean._version, norm.running_var._version
    for _ in range(3):
        before = norm.running_mean.clone()
        jitted(torch.randn(6, 4))
        assert not torch.equal(norm.running_mean, before)
        with torch.no_grad():
            jitted(torch.randn(6, 4))
    assert (norm.running_mean._version, norm.running_var._version) == versions
    assert norm.num_batches_tracked == 6
    assert norm.num_batches_tracked._version > 0


@pytest.mark.parametrize("backend", ["codegen", "eager"])
def test_writes_through_data_leave_versions(backend: str) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        x.data.add_(1)
        return x * 2

    x = torch.zeros(3)
    assert torch.equal(jitpy.jit(step, backend=backend)(x), torch.full((3,), 2.0))
    assert torch.equal(x, torch.ones(3))
    assert x._version == 0


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("backend", ["codegen", "eager"])
def test_statistics_that_are_not_finite(backend: str, momentum: float | None) -> None:
    """They stay so, and batches that are not finite make them so."""
    inf, nan = float("inf"), float("nan")
    x = torch.randn(6, 8)
    x[2, 4:] = torch.tensor([inf, nan, -inf, inf])

    def left(wrap: Callable[[Any], Any]) -> list[torch.Tensor]:
        norm = nn.BatchNorm1d(8, momentum=momentum)
        wrapped = wrap(norm)
        wrapped(torch.ones(6, 8))
        norm.running_mean.copy_(torch.tensor([inf, nan, -inf, 1.0, inf, 1.0, inf, 1.0]))
        norm.running_var.copy_(torch.tensor([inf, nan, 1.0, inf, inf, inf, 1.0, 1.0]))
        wrapped(x)
        return list(norm.buffers())

    torch.testing.assert_close(left(lambda norm: jitpy.jit(norm, backend=backend)), left(lambda norm: norm),
                               equal_nan=True)
