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
    "sgd in a loop": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, foreach=False),
    "adam in a loop": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True, foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "adamax": lambda p: torch.optim.Adamax(p),
    "nadam": lambda p: torch.optim.NAdam(p),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "asgd": lambda p: torch.optim.ASGD(p, t0=3),
    "rprop": lambda p: torch.optim.Rprop(p),
    "fused sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, fused=True),
    "fused adam": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.01, amsgrad=True, maximize=True, fused=True),
    "fused adamw": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "fused adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1, fused=True),
}

#: Steps whose data overflow.
OVERFLOWS = (3, 7, 8, 20)
STEPS = 30


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


FUSED = [name for name in OPTIMIZERS if name.startswith("fused")]
CASES = [(name, "captured step", "clipped") for name in OPTIMIZERS] + \
        [(name, what, "") for name in ("sgd", "adamw", *FUSED) for what in ("captured step", "jitted module")]


@pytest.mark.parametrize(("name", "what", "clip"), CASES)
def test_steps_follow_eager(name, what, clip):
    captured = what == "captured step"
    model, twin = net(), net()
    opt, twin_opt = (OPTIMIZERS[name](m.parameters()) for m in (model, twin))
    scaler, twin_scaler = (torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2) for _ in range(2))
    if captured:
        step = jitpy.jit(training(model, opt, scaler, clip))
    else:
        step = training(jitpy.jit(model), opt, scaler, clip)
    eager = training(twin, twin_opt, twin_scaler, clip)
    counts = []
    for number in range(STEPS):
        torch.testing.assert_close(step(rows(number)), eager(rows(number)), equal_nan=True, rtol=1e-4, atol=1e-5)
        assert scaler.state_dict() == twin_scaler.state_dict(), number
        torch.testing.assert_close(states(model, opt), states(twin, twin_opt), equal_nan=True, rtol=1e-3, atol=1e-4)
        counts.append(variants())
    assert counts[4] == counts[-1], "a skipped step compiled something"
    assert twin_scaler.get_scale() not in (8.0, 8.0 * 2**(STEPS // 2))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_one_graph(name):
    """Also where it is Python that decides whether the optimizer steps."""
    model = net()
    opt = OPTIMIZERS[name](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    step = training(model, opt, scaler, True)
    step(rows(0))
    assert not jitpy.explain(step)(rows(1)).break_reasons
    jitpy.jit(step, fullgraph=True)(rows(1))


def scheduled(model, opt, scaler):
    schedule = torch.optim.lr_scheduler.StepLR(opt, 2, 0.5)
    plain = training(model, opt, scaler, False)

    def step(x):
        loss = plain(x)
        schedule.step()
        return loss

    return step


def hooked(model, opt, scaler):
    """What is called in each step has an effect of its own, which a skipped step must not have."""
    model.calls = []
    opt.register_step_post_hook(lambda *args: model.calls.append(len(model.calls)))
    return training(model, opt, scaler, False)


def clamping(model, opt, scaler):
    """The step changes gradients, too."""
    step = opt.step

    def clipped():
        for p in model.parameters():
            p.grad.clamp_(-0.01, 0.01)
        step()

    opt.step = clipped
    return training(model, opt, scaler, False)


def raising(model, opt, scaler):
    """A step that must not be taken at all where gradients overflow."""
    step = opt.step

    def checked():
        for p in model.parameters():
            if not p.grad.isfinite().all():
                raise AssertionError("a step with an overflow")
        step()

    opt.step = checked
    return training(model, opt, scaler, False)


def noisy(model, opt, scaler):
    step = opt.step

    def noise():
        step()
        for p in model.parameters():
            with torch.no_grad():
                p.add_(torch.randn_like(p), alpha=0.01)

    opt.step = noise
    return training(model, opt, scaler, False)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
@pytest.mark.parametrize("backend", ["codegen", "eager"])
@pytest.mark.parametrize("make", [scheduled, hooked, clamping, raising, noisy])
def test_what_else_happens_in_a_step(make, backend):
    results = []
    for wrap in (lambda fn: fn, jitpy.jit(backend=backend)):
        model = net()
        opt = torch.optim.AdamW(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        step = wrap(make(model, opt, scaler))
        torch.manual_seed(0)
        losses = [step(rows(number)) for number in (3, 7, *range(10))]  # the first ones overflow
        results.append((losses, states(model, opt), scaler.state_dict(), getattr(model, "calls", None), torch.rand(2)))
    assert results[0][3] == results[1][3]
    torch.testing.assert_close(results[0], results[1], equal_nan=True, rtol=1e-3, atol=1e-4)


def test_one_scaler_for_two_optimizers():
    """One of them steps, the other does not."""
    results = []
    for wrap in (lambda fn: fn, jitpy.jit):
        first, second = net(), net()
        opts = [torch.optim.SGD(first.parameters(), lr=0.1, momentum=0.9), torch.optim.Adam(second.parameters())]
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

        def step(x, first=first, second=second, opts=opts, scaler=scaler):
            for opt in opts:
                opt.zero_grad()
            scaler.scale(first(x).mean()).backward()
            scaler.scale(second(x.nan_to_num(posinf=1.0)).mean()).backward()
            for opt in opts:
                scaler.step(opt)
            scaler.update()

        run = wrap(step)
        for number in range(10):
            run(rows(number))
        results.append([states(first, opts[0]), states(second, opts[1]), scaler.state_dict()])
    torch.testing.assert_close(results[0], results[1], equal_nan=True, rtol=1e-4, atol=1e-5)


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
