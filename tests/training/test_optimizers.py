"""Training steps with each optimizer, captured whole: they follow eager's, and compile nothing after the third."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler, swa_utils

import jitpy
from tests.counting import variants

Step = Callable[..., Any]
STEPS = 10

#: Arguments to try for each class.
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"lr": 0.1}),
    "nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "dampening": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "maximize": True}),
    "adam": ("Adam", {"lr": 0.01}),
    "adam amsgrad": ("Adam", {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1, "maximize": True}),
    "adamw": ("AdamW", {"lr": 0.01}),
    "rmsprop": ("RMSprop", {"lr": 0.01, "momentum": 0.5, "centered": True, "weight_decay": 0.1}),
    "adagrad": ("Adagrad", {"lr": 0.01, "lr_decay": 0.1}),
    "adadelta": ("Adadelta", {"lr": 0.1, "weight_decay": 0.1}),
    "adamax": ("Adamax", {"lr": 0.01, "weight_decay": 0.1}),
    "nadam": ("NAdam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "radam": ("RAdam", {"lr": 0.01, "weight_decay": 0.1, "maximize": True}),
    "radam decoupled": ("RAdam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "asgd": ("ASGD", {"lr": 0.01, "t0": 3, "weight_decay": 0.1}),
    "rprop": ("Rprop", {"lr": 0.01}),
    "adafactor": ("Adafactor", {"lr": 0.01, "weight_decay": 0.1}),
}
FORMS: dict[str, dict[str, Any]] = {"loop": {"foreach": False}, "lists": {"foreach": True}, "fused": {"fused": True}}
FUSED = ("SGD", "Adam", "AdamW", "Adagrad")


@pytest.fixture(autouse=True)
def clean():
    jitpy.reset()
    yield
    jitpy.reset()


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))


def rows(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(number)
    return torch.randn(16, 4, generator=random), torch.randint(0, 3, (16,), generator=random)


def plain(model: nn.Module, opt: torch.optim.Optimizer) -> Step:
    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss

    return step


def follow(make: Callable[[nn.Module], torch.optim.Optimizer], training: Callable[..., Step] = plain,
           after: Callable[[torch.optim.Optimizer], Callable[[], Any]] | None = None) -> None:
    """Ten captured steps and eager's. `after(opt)` gives what is called behind each step."""
    model, twin = small(), small()
    opt, twin_opt = make(model), make(twin)
    step, eager = jitpy.jit(training(model, opt), fullgraph=True), training(twin, twin_opt)
    outside = [after(o) for o in (opt, twin_opt)] if after else []
    for number in range(STEPS):
        torch.testing.assert_close(step(*rows(number)), eager(*rows(number)), rtol=1e-4, atol=1e-5)
        for change in outside:
            change()
        if number == 2:
            compiled = variants()
    assert variants() == compiled, "steps were compiled after the third"
    for key, have, want in zip(model.state_dict(), states(model, opt), states(twin, twin_opt), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-4, msg=lambda text, key=key: f"{key}: {text}")


def states(model: nn.Module, opt: torch.optim.Optimizer) -> list[Any]:
    """Of each parameter: its value, its gradient and what the optimizer keeps."""
    return [copy.deepcopy([p.detach(), p.grad, dict(opt.state[p])]) for p in model.parameters()]


CASES = [(name, form) for name, (kind, _) in OPTIMIZERS.items() for form in FORMS if form != "fused" or kind in FUSED]


@pytest.mark.parametrize(("name", "form"), CASES)
def test_each_optimizer(name, form):
    kind, options = OPTIMIZERS[name]
    follow(lambda model: getattr(torch.optim, kind)(model.parameters(), **options, **FORMS[form]))


@pytest.mark.parametrize("kind", ["Adam", "RAdam", "ASGD", "NAdam"])
def test_capturable_is_refused_as_in_eager(kind):
    if torch.cuda.is_available():
        pytest.skip("about tensors that are on a device without such steps")
    model = small()
    opt = getattr(torch.optim, kind)(model.parameters(), capturable=True)
    step = plain(model, opt)
    with pytest.raises(AssertionError) as wanted:
        step(*rows(0))
    with pytest.raises(AssertionError, match=re.escape(str(wanted.value))):
        jitpy.jit(step)(*rows(0))


def two_groups(model: nn.Module) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    return torch.optim.AdamW([{"params": parameters[:2], "lr": 0.1, "weight_decay": 0.0}, {"params": parameters[2:]}],
                             lr=0.01)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "LambdaLR": lambda opt: lr_scheduler.LambdaLR(opt, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda opt: lr_scheduler.MultiplicativeLR(opt, lambda epoch: 0.9),
    "StepLR": lambda opt: lr_scheduler.StepLR(opt, 2, 0.5),
    "MultiStepLR": lambda opt: lr_scheduler.MultiStepLR(opt, [2, 5]),
    "ConstantLR": lambda opt: lr_scheduler.ConstantLR(opt, 0.5, 4),
    "LinearLR": lambda opt: lr_scheduler.LinearLR(opt, 0.5, 1.0, 5),
    "ExponentialLR": lambda opt: lr_scheduler.ExponentialLR(opt, 0.9),
    "SequentialLR": lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.ConstantLR(opt, 0.1, 3), lr_scheduler.ExponentialLR(opt, 0.9)], [4]),
    "ChainedScheduler": lambda opt: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(opt, 0.1, 3), lr_scheduler.ExponentialLR(opt, 0.9)]),
    "PolynomialLR": lambda opt: lr_scheduler.PolynomialLR(opt, 8),
    "CosineAnnealingLR": lambda opt: lr_scheduler.CosineAnnealingLR(opt, 8),
    "CosineAnnealingWarmRestarts": lambda opt: lr_scheduler.CosineAnnealingWarmRestarts(opt, 3),
    "CyclicLR": lambda opt: lr_scheduler.CyclicLR(opt, 0.01, 0.1, 2, cycle_momentum="momentum" in opt.defaults),
    "OneCycleLR": lambda opt: lr_scheduler.OneCycleLR(opt, 0.1, total_steps=30),
    "ReduceLROnPlateau": lambda opt: lr_scheduler.ReduceLROnPlateau(opt, patience=0),
    "SWALR": lambda opt: swa_utils.SWALR(opt, 0.05, 3),
}


@pytest.mark.parametrize(("schedule", "make"), [*((name, two_groups) for name in SCHEDULES),
                                                ("CyclicLR", momentum), ("OneCycleLR", momentum)])
def test_schedules_compile_nothing(schedule, make):
    def after(opt):
        made = SCHEDULES[schedule](opt)
        return (lambda: made.step(1.0)) if schedule == "ReduceLROnPlateau" else made.step

    follow(make, after=after)


def test_all_schedules_are_tried():
    assert set(lr_scheduler.__all__) - {"LRScheduler"} <= set(SCHEDULES)


def accumulating(model: nn.Module, opt: torch.optim.Optimizer) -> Step:
    def step(x, y):
        opt.zero_grad()
        total = 0.0
        for part, target in zip(x.split(4), y.split(4), strict=True):
            loss = F.cross_entropy(model(part), target) / 4
            loss.backward()
            total = total + loss.detach()
        opt.step()
        return total

    return step


def zeroing(model: nn.Module, opt: torch.optim.Optimizer) -> Step:
    def step(x, y):
        opt.zero_grad(set_to_none=False)
        F.cross_entropy(model(x), y).backward()
        opt.step()

    return step


def clipping(model: nn.Module, opt: torch.optim.Optimizer) -> Step:
    def step(x, y):
        opt.zero_grad()
        (100 * F.cross_entropy(model(x), y)).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        opt.step()
        return norm

    return step


def clipping_one_by_one(model: nn.Module, opt: torch.optim.Optimizer) -> Step:
    def step(x, y):
        opt.zero_grad()
        (100 * F.cross_entropy(model(x), y)).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, float("inf"), foreach=False)
        nn.utils.clip_grad_value_(model.parameters(), 0.1, foreach=False)
        opt.step()
        return norm

    return step


def with_closure(model: nn.Module, opt: torch.optim.Optimizer) -> Step:
    def step(x, y):
        def closure():
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return opt.step(closure)

    return step


def some_frozen(model: nn.Module, opt: torch.optim.Optimizer) -> Step:
    model[0].requires_grad_(False)
    return plain(model, opt)


@pytest.mark.parametrize("training", [accumulating, zeroing, clipping, clipping_one_by_one, with_closure, some_frozen])
@pytest.mark.parametrize("make", [two_groups, momentum])
def test_ways_to_write_a_step(make, training):
    follow(make, training)


@pytest.mark.parametrize("average", [swa_utils.get_ema_multi_avg_fn(0.9), swa_utils.get_swa_multi_avg_fn(), None],
                         ids=["ema", "swa", "one by one"])
def test_averaged_models(average):
    """`AveragedModel.update_parameters` behind each step, in the same graph once it has counted its first."""
    results = []
    for wrap in (lambda fn: fn, jitpy.jit):
        model = small()
        opt = momentum(model)
        averaged = swa_utils.AveragedModel(model, multi_avg_fn=average, use_buffers=average is not None)

        def step(x, y, model=model, opt=opt, averaged=averaged):
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            averaged.update_parameters(model)
            return loss

        run = wrap(step)
        losses, counts = [], []
        for number in range(STEPS):
            losses.append(run(*rows(number)).detach())
            counts.append(variants())
        results.append((losses, dict(averaged.state_dict()), averaged(rows(0)[0]).detach()))
    assert counts[5] == counts[-1]
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_lbfgs():
    """Its line search asks for values all the time: the closure is compiled, the rest runs as plain Python."""
    results = []
    for wrap in (lambda fn: fn, jitpy.jit):
        model = small().double()
        opt = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, line_search_fn="strong_wolfe")
        step = wrap(with_closure(model, opt))
        results.append([[step(rows(number)[0].double(), rows(number)[1]).detach() for number in range(3)],
                        dict(model.state_dict())])
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-8)


def test_accumulation_over_calls():
    """Gradients of several calls add up in `.grad`; the step is its own call."""
    model, twin = small(), small()
    opt, twin_opt = two_groups(model), two_groups(twin)

    def backward(net):
        return lambda x, y: (F.cross_entropy(net(x), y) / 2).backward()

    calls = (jitpy.jit(backward(model), fullgraph=True), jitpy.jit(opt.step), jitpy.jit(opt.zero_grad))
    eager = (backward(twin), twin_opt.step, twin_opt.zero_grad)
    for number in range(STEPS):
        for run, step, zero in (calls, eager):
            run(*rows(number))
            if number % 2:
                step()
                zero()
        if number == 5:
            compiled = variants()
    assert variants() == compiled
    torch.testing.assert_close(states(model, opt), states(twin, twin_opt), rtol=1e-4, atol=1e-5)


def test_what_keeps_torchs_compiler_out_keeps_no_step_out() -> None:
    """The first use of torch.compile in a process wraps parts of the optimizers: they are captured all the same."""
    from torch.optim import SGD

    before = SGD._init_group
    try:
        SGD._init_group = torch._dynamo.disable(before)  # as torch._dynamo does it
        model = torch.nn.Linear(3, 2)
        optimizer = SGD(model.parameters(), 0.1, momentum=0.9)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            optimizer.step()
            return loss

        assert not jitpy.explain(step)(torch.randn(4, 3)).graph_break_count
    finally:
        SGD._init_group = before
