"""Hooks that come and go between training steps: none is dropped, whether the module or the whole step is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jitpy

Install = Callable[[nn.Module, list[float]], Any]


@pytest.fixture(autouse=True)
def clean():
    jitpy.reset()
    yield
    jitpy.reset()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))


def rows(number: int) -> torch.Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(number))


def training(model: nn.Module, forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def step(x):
        model.zero_grad()
        loss = forward(x).square().mean()
        loss.backward()
        return loss.detach()

    return step


def accumulation(model: nn.Module) -> Any:
    """The node that adds gradients to `.grad`; it lives as long as somebody holds it."""
    parameter = model[0].weight
    model.node = parameter.view_as(parameter).grad_fn.next_functions[0][0]
    return model.node


#: What installs a hook and gives the handle to remove it; `seen` is for numbers that it meets.
HOOKS: dict[str, Install] = {
    "gradient": lambda model, seen: model[0].weight.register_hook(lambda grad: seen.append(grad.sum().item())),
    "gradient, changed": lambda model, seen: model[0].weight.register_hook(lambda grad: grad * 2),
    "gradient accumulated": lambda model, seen: model[2].weight.register_post_accumulate_grad_hook(
        lambda parameter: seen.append(parameter.grad.sum().item())),
    "gradients of several": lambda model, seen: torch.autograd.graph.register_multi_grad_hook(
        tuple(model.parameters()), lambda grads: seen.append(len(grads))),
    "of the node that accumulates": lambda model, seen: accumulation(model).register_hook(
        lambda grads, given: seen.append(given[0].sum().item())),
    "before the node that accumulates": lambda model, seen: accumulation(model).register_prehook(
        lambda given: (given[0] * 2,)),
    "forward": lambda model, seen: model[1].register_forward_hook(lambda module, args, result: seen.append(1.0)),
    "forward, changed": lambda model, seen: model[1].register_forward_hook(lambda module, args, result: result * 2),
    "before forward": lambda model, seen: model[1].register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
    "forward with keywords": lambda model, seen: model[1].register_forward_hook(
        lambda module, args, kwargs, result: seen.append(len(kwargs)), with_kwargs=True, always_call=True),
    "of all modules": lambda model, seen: nn.modules.module.register_module_forward_hook(
        lambda module, args, result: seen.append(len(args))),
    "backward": lambda model, seen: model[1].register_full_backward_hook(
        lambda module, grads, given: seen.extend([grads[0].sum().item(), given[0].sum().item()])),
    "backward, changed": lambda model, seen: model[1].register_full_backward_hook(
        lambda module, grads, given: (grads[0] * 2,)),
    "before backward": lambda model, seen: model[1].register_full_backward_pre_hook(
        lambda module, given: (given[0] * 2,)),
    "backward of the whole": lambda model, seen: model.register_full_backward_hook(
        lambda module, grads, given: seen.append(given[0].sum().item())),
}

#: Those that are traced; others break the captured step with a reason.
TRACED = ("forward", "forward, changed", "before forward", "forward with keywords", "of all modules")


def results(install: Install, captured: bool, compiled: bool) -> list[Any]:
    """Losses, gradients and what hooks saw, over steps before, with and after the hook."""
    model = net()
    seen: list[float] = []
    step = training(model, jitpy.jit(model) if compiled and not captured else model)
    step = jitpy.jit(step) if compiled and captured else step
    found = []
    for number in range(7):
        if number == 2:
            handle = install(model, seen)
        if number == 5:
            handle.remove()
        loss = step(rows(number))
        found.append([loss, [p.grad.clone() for p in model.parameters()], list(seen)])
    assert len(found[4][2]) == len(found[6][2])
    return found


@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize("captured", [True, False], ids=["captured step", "jitted module"])
def test_hooks_come_and_go(captured, name):
    found, wanted = (results(HOOKS[name], captured, compiled) for compiled in (True, False))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("name", HOOKS)
def test_what_hooks_cost_a_captured_step(name):
    model = net()
    seen: list[float] = []
    handle = HOOKS[name](model, seen)
    try:
        report = jitpy.explain(training(model, model))(rows(0))
    finally:
        handle.remove()
    assert (report.graph_break_count == 0) == (name in TRACED)
    assert all(found.reason.explanation for found in report.break_reasons)


@pytest.mark.parametrize("captured", [True, False], ids=["captured step", "jitted module"])
def test_hooks_on_saved_tensors(captured):
    """What is packed comes back unpacked, and only while the hooks are there."""
    def gradients(compiled):
        model = net()
        step = training(model, jitpy.jit(model) if compiled and not captured else model)
        step = jitpy.jit(step) if compiled and captured else step
        packed: list[torch.Tensor] = []
        unpacked: list[torch.Tensor] = []

        def pack(tensor):
            packed.append(tensor)
            return len(packed) - 1

        def unpack(place):
            unpacked.append(packed[place])
            return packed[place] * 2

        found, counts = [], []
        for number in range(6):
            if number in (2, 3):
                with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                    step(rows(number))
            else:
                step(rows(number))
            found.append([p.grad.clone() for p in model.parameters()])
            counts.append((len(packed), len(unpacked)))
        assert counts[1] == (0, 0) and counts[3] == counts[5]
        assert counts[2][0] > 0 and counts[2][1] > 0
        return found

    found, wanted = gradients(True), gradients(False)
    same = [torch.allclose(a, b, atol=1e-6)
            for f, w in zip(found, wanted, strict=True) for a, b in zip(f, w, strict=True)]
    if captured:
        assert all(same)
    else:  # a compiled module saves other tensors than eager: those of plain steps must agree
        assert all(same[:8]) and all(same[16:])


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning")
@pytest.mark.filterwarnings("ignore:Error detected in:UserWarning")
@pytest.mark.parametrize("captured", [True, False], ids=["captured step", "jitted module"])
def test_anomalies_are_found(captured):
    model = nn.Linear(2, 2)
    forward = lambda x: (model(x) * 0).sqrt() * 0  # noqa: E731
    step = training(model, forward if captured else jitpy.jit(forward))
    step = jitpy.jit(step) if captured else step
    for number in range(6):
        if number in (2, 3):
            with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="returned nan values"):
                step(torch.ones(3, 2))
        else:
            step(torch.ones(3, 2))
            assert model.weight.grad.isnan().any()
