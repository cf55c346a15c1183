"""Training steps captured whole: they follow eager's over many steps, as one graph, and compile once."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jitpy
from tests.counting import variants
from tests.training.models import TASKS

STEPS = 50


@pytest.fixture(autouse=True)
def clean():
    jitpy.reset()
    yield
    jitpy.reset()


def training(model: nn.Module, opt: torch.optim.Optimizer, loss_of: Callable[..., torch.Tensor],
             low: bool = False) -> Callable[..., torch.Tensor]:
    """The step as users write it."""

    def step(*batch):
        opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            loss = loss_of(model, *batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        return loss

    return step


def state_of(model: nn.Module, opt: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Parameters, buffers, gradients and what the optimizer keeps, by name."""
    found = dict(model.state_dict())
    for name, parameter in model.named_parameters():
        found[f"{name}.grad"] = parameter.grad
        for key, value in opt.state[parameter].items():
            found[f"{name}.{key}"] = value
    return found


def follow(name: str, low: bool, backend: str, steps: int = STEPS) -> tuple[list[float], list[float], Any, Any]:
    """The losses of eager and of the captured step, and both states at the end."""
    pytest.importorskip("transformers") if name == "gpt2" else None
    task = TASKS[name]
    model = task.make()
    model(*task.batch(0)) if name == "gpt2" else None  # the library looks at its configuration once
    twin = copy.deepcopy(model)
    opt, twin_opt = (torch.optim.AdamW(m.parameters(), lr=1e-3, weight_decay=0.01) for m in (model, twin))
    step = jitpy.jit(training(model, opt, task.loss, low), backend=backend)
    eager = training(twin, twin_opt, task.loss, low)
    found, wanted = [], []
    for number in range(steps):
        batch = task.batch(number)
        wanted.append(eager(*batch).item())
        found.append(step(*batch).item())
        if number == 2:
            compiled = variants()
    assert variants() == compiled, "steps were compiled after the third"
    states = copy.deepcopy(state_of(model, opt)), state_of(twin, twin_opt)
    report = jitpy.explain(training(model, opt, task.loss, low), backend=backend)(*task.batch(0))
    assert report.graph_break_count == 0, report.break_reasons
    assert report.graph_count == 1
    return found, wanted, *states


@pytest.mark.parametrize("name", sorted(TASKS))
def test_step_is_eager_bit_for_bit_with_eager_kernels(name):
    found, wanted, state, expected = follow(name, False, "eager", 6)
    assert found == wanted
    assert state.keys() == expected.keys()


@pytest.mark.parametrize("name", sorted(TASKS))
def test_fifty_steps_follow_eager(name):
    found, wanted, state, expected = follow(name, False, "codegen")
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=2e-4, atol=2e-5)
    assert wanted[-1] < wanted[0]
    assert state.keys() == expected.keys()
    for key, value in expected.items():
        assert state[key].dtype == value.dtype and state[key].stride() == value.stride(), key
        # AdamW divides gradients by their size, so that noise in those near zero moves a parameter as a signal does:
        # compared are whole tensors
        have, want = state[key].double(), value.double()
        assert (have - want).norm() <= 0.02 * want.norm() + 3e-4 * want.numel() ** 0.5, key


@pytest.mark.parametrize("name", sorted(TASKS))
def test_fifty_steps_follow_eager_in_bfloat16(name):
    found, wanted, state, expected = follow(name, True, "codegen")
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=3e-2, atol=3e-2)
    assert state.keys() == expected.keys()
    for key, value in expected.items():
        assert state[key].dtype == value.dtype, key


def small(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))


def rows(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(number)
    return torch.randn(16, 4, generator=random), torch.randint(0, 3, (16,), generator=random)


def classify(model, x, y):
    return F.cross_entropy(model(x), y)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "dampening": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, maximize=True, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam list": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adam amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1, maximize=True),
    "adam tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw list": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, lr_decay=0.1),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.1, foreach=True),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01, weight_decay=0.1),
    "muon": lambda p: torch.optim.Muon([q for q in p if q.ndim == 2], lr=0.01),  # steps in bfloat16
    "two groups": lambda p: torch.optim.AdamW([{"params": list(p)[:2], "lr": 0.1, "weight_decay": 0.0},
                                               {"params": list(p)[2:]}], lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_are_captured_whole_and_do_eagers_arithmetic(name):
    model, twin = small(), small()
    opt, twin_opt = (OPTIMIZERS[name](list(m.parameters())) for m in (model, twin))
    step = jitpy.jit(training(model, opt, classify), backend="eager", fullgraph=True)
    eager = training(twin, twin_opt, classify)
    for number in range(5):
        assert torch.equal(step(*rows(number)), eager(*rows(number)))
    state, expected = state_of(model, opt), state_of(twin, twin_opt)
    assert state.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(state[key], value), key


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_a_changed_learning_rate_compiles_nothing(kind):
    model, twin = small(), small()
    opt, twin_opt = (getattr(torch.optim, kind)(m.parameters(), lr=0.01) for m in (model, twin))
    schedules = [torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=30) for o in (opt, twin_opt)]
    step, eager = jitpy.jit(training(model, opt, classify), fullgraph=True), training(twin, twin_opt, classify)
    for number in range(12):
        torch.testing.assert_close(step(*rows(number)), eager(*rows(number)), rtol=1e-4, atol=1e-5)
        for schedule in schedules:
            schedule.step()
        if number == 2:
            compiled = variants()
    for o in (opt, twin_opt):
        o.param_groups[0]["lr"] = 0.5
    torch.testing.assert_close(step(*rows(20)), eager(*rows(20)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()), rtol=1e-3, atol=1e-4)
    assert variants() == compiled


def test_a_thousand_steps_leak_nothing():
    model = small()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = jitpy.jit(training(model, opt, classify))
    batch = rows(0)
    for _ in range(5):
        step(*batch)
    compiled = variants()
    gc.collect()
    before = len(gc.get_objects())
    old = weakref.ref(model[0].weight.grad)
    for _ in range(1000):
        loss = step(*batch)
    gc.collect()
    assert variants() == compiled
    assert len(gc.get_objects()) - before < 50
    assert old() is None
    kept = weakref.ref(loss)
    del loss
    assert kept() is None


def test_parameters_are_updated_where_they_are():
    """Kernels write into the parameters: nothing is copied back at the end, and version counters move."""
    model = small()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = jitpy.jit(training(model, opt, classify))
    for number in range(3):
        step(*rows(number))
    places = [p.data_ptr() for p in model.parameters()]
    versions = [p._version for p in model.parameters()]
    step(*rows(3))
    assert [p.data_ptr() for p in model.parameters()] == places
    assert all(p._version > v for p, v in zip(model.parameters(), versions, strict=True))


def test_jitted_method_of_an_optimizer():
    model, twin = small(), small()
    opt, twin_opt = (torch.optim.Adam(m.parameters(), lr=0.01) for m in (model, twin))
    step = jitpy.jit(opt.step)
    for number in range(4):
        for m in (model, twin):
            m.zero_grad()
            classify(m, *rows(number)).backward()
        step()
        twin_opt.step()
        if number == 1:
            compiled = variants()
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))
    assert variants() == compiled


def test_anomaly_mode_and_hooks_that_come_later_are_seen():
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    seen = []

    @jitpy.jit
    def slope(x):
        return torch.autograd.grad(x.sqrt().mul(0).sum(), x)[0]

    for _ in range(2):
        assert slope(x).isnan().tolist() == [True, False]
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="returned nan values"):
        slope(x)
    x.register_hook(seen.append)
    slope(x)
    assert len(seen) == 1
