"""Training with a GradScaler: steps with an overflow are skipped and the scale follows as in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jitpy
from tests.counting import variants

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "fused sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, fused=True),
    "fused adam": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.01, amsgrad=True, maximize=True, fused=True),
    "fused adamw": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "fused adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1, fused=True),
}

#: Steps whose data overflow.
OVERFLOWS = (3, 7)


@pytest.fixture(autouse=True)
def clean():
    jitpy.reset()
    yield
    jitpy.reset()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))


def rows(number: int) -> torch.Tensor:
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(number))
    if number in OVERFLOWS:
        x[0, 0] = float("inf")
    return x


def training(model: nn.Module, opt: torch.optim.Optimizer, scaler: Any, clip: bool) -> Callable[..., torch.Tensor]:
    def step(x):
        opt.zero_grad()
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        return loss.detach()

    return step


def states(model: nn.Module, opt: torch.optim.Optimizer) -> list[Any]:
    return copy.deepcopy([model.state_dict(), opt.state_dict()["state"], [p.grad for p in model.parameters()]])


@pytest.mark.parametrize("clip", [False, True], ids=["", "clipped"])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("captured", [True, False], ids=["captured step", "jitted module"])
def test_steps_follow_eager(captured, name, clip):
    model, twin = net(), net()
    opt, twin_opt = (OPTIMIZERS[name](m.parameters()) for m in (model, twin))
    scaler, twin_scaler = (torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2) for _ in range(2))
    if captured:
        step = jitpy.jit(training(model, opt, scaler, clip))
    else:
        step = training(jitpy.jit(model), opt, scaler, clip)
    eager = training(twin, twin_opt, twin_scaler, clip)
    counts = []
    for number in range(12):
        torch.testing.assert_close(step(rows(number)), eager(rows(number)), equal_nan=True)
        assert scaler.state_dict() == twin_scaler.state_dict(), number
        torch.testing.assert_close(states(model, opt), states(twin, twin_opt), equal_nan=True)
        counts.append(variants())
    assert counts[4] == counts[-1], "a skipped step compiled something"
    assert twin_scaler.get_scale() not in (8.0, 8.0 * 2**6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_breaks_a_captured_step(name):
    """Fused optimizers skip a step inside their arithmetic; others leave the decision to Python."""
    model = net()
    opt = OPTIMIZERS[name](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    step = training(model, opt, scaler, True)
    step(rows(0))
    report = jitpy.explain(step)(rows(1))
    wanted = [] if getattr(opt, "_step_supports_amp_scaling", False) else ["data_dependent_branch"]
    assert [r.reason.id for r in report.break_reasons] == wanted


def test_scale_stops_before_it_overflows():
    scaler = torch.full((), 2.0**127), torch.zeros((), dtype=torch.int32)
    twin = copy.deepcopy(scaler)

    def update(scale, tracker, found):
        torch._amp_update_scale_(scale, tracker, found, 2.0, 0.5, 2)

    jitted = jitpy.jit(update, fullgraph=True)
    for found in (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0):
        update(*twin, torch.tensor(found))
        jitted(*scaler, torch.tensor(found))
        assert scaler == twin


def test_unscaled_twice_raises_as_in_eager():
    model = net()
    opt = OPTIMIZERS["sgd"](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    @jitpy.jit
    def step(x):
        scaler.scale(model(x).sum()).backward()
        scaler.unscale_(opt)
        scaler.unscale_(opt)

    with pytest.raises(RuntimeError, match="already been called on this optimizer"):
        step(rows(0))


@pytest.mark.filterwarnings("ignore:torch.cuda.amp.GradScaler is enabled:UserWarning")
def test_scaler_of_a_device_that_is_missing():
    if torch.cuda.is_available():
        pytest.skip("the scaler is on")
    model, twin = net(), net()
    opt, twin_opt = (OPTIMIZERS["adamw"](m.parameters()) for m in (model, twin))
    scaler = torch.amp.GradScaler("cuda")
    step = jitpy.jit(training(model, opt, scaler, True), fullgraph=True)
    for number in range(3):
        torch.testing.assert_close(step(rows(number)), training(twin, twin_opt, scaler, True)(rows(number)))
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))
