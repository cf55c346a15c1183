"""Optimizers, schedulers, clipping, scaling: updates in place, and the state that they keep. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import torch
from torch import nn

from tests.semantics.harness import case, make_test

KEPT: Any = None


def rows():
    return (torch.randn(3, 4),)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))


def state_of(opt: torch.optim.Optimizer, model: nn.Module) -> Any:
    """What the optimizer keeps, in an order that does not depend on objects' addresses."""
    return [opt.state.get(p) for p in model.parameters()], [
        {k: v for k, v in group.items() if k != "params"} for group in opt.param_groups
    ]


def stepped(name: str, make: Any, step_alone: bool = False, fullgraph: bool = False) -> None:
    """Two cases for an optimizer: a whole training step jitted, and `opt.step` itself jitted."""

    def whole():
        model = net()
        opt = make(model.parameters())

        def fn(x):
            opt.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            opt.step()
            return loss.detach(), state_of(opt, model)

        return fn, model

    def only_step():
        model = net()
        opt = make(model.parameters())

        def update():
            opt.step()

        return _loop(model, opt, update)

    whole.__name__, only_step.__name__ = f"{name}_training_step", f"{name}_step"
    for one in (whole, only_step):
        one.__module__ = __name__
        case(rows, factory=True, rounds=4, tolerance=1e-4)(one)


class Loop:
    """A training loop whose update alone is jitted: the harness jits `__call__`'s function, so it is made here."""


def _loop(model, opt, update):
    def fn(x):
        opt.zero_grad()
        loss = model(x).square().sum()
        for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
            p.grad = g
        update()
        return loss.detach(), state_of(opt, model)

    return fn, model


SGD, Adam, AdamW, RMSprop, Adagrad = (getattr(torch.optim, n) for n in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad"))

stepped("sgd", lambda p: SGD(p, lr=0.1))
stepped("sgd_momentum", lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01))
stepped("sgd_loop", lambda p: SGD(p, lr=0.1, momentum=0.9, foreach=False))
stepped("sgd_foreach", lambda p: SGD(p, lr=0.1, momentum=0.9, foreach=True))
stepped("adam", lambda p: Adam(p, lr=0.01))
stepped("adam_foreach", lambda p: Adam(p, lr=0.01, foreach=True, amsgrad=True))
stepped("adam_capturable_flag", lambda p: Adam(p, lr=torch.tensor(0.01), foreach=False))
stepped("adam_fused", lambda p: Adam(p, lr=0.01, fused=True))
stepped("adamw", lambda p: AdamW(p, lr=0.01, weight_decay=0.1))
stepped("adamw_foreach", lambda p: AdamW(p, lr=0.01, foreach=True))
stepped("rmsprop", lambda p: RMSprop(p, lr=0.01, momentum=0.5))
stepped("adagrad", lambda p: Adagrad(p, lr=0.01))


def updating(make: Any) -> Any:
    """A factory of cases in which only the update is jitted: gradients are made outside, by hand."""

    def factory():
        params = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2))]
        opt = make(params)

        def fn(*grads):
            for p, g in zip(params, grads, strict=True):
                p.grad = g
            opt.step()
            return [opt.state.get(p) for p in params]

        return fn, params

    return factory


def grads():
    return torch.randn(3), torch.randn(2, 2)


def _update_case(name: str, make: Any) -> None:
    factory = updating(make)
    factory.__name__, factory.__module__ = name, __name__
    case(grads, factory=True, rounds=4)(factory)


_update_case("update_sgd", lambda p: SGD(p, lr=0.1))
_update_case("update_sgd_momentum", lambda p: SGD(p, lr=0.1, momentum=0.9))
_update_case("update_adam", lambda p: Adam(p, lr=0.01))
_update_case("update_adam_foreach", lambda p: Adam(p, lr=0.01, foreach=True))
_update_case("update_adamw", lambda p: AdamW(p, lr=0.01))
_update_case("update_rmsprop", lambda p: RMSprop(p, lr=0.01))


@case(grads, factory=True, rounds=4)
def step_method_jitted():
    import jitpy

    params = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2))]
    opt = Adam(params, lr=0.01)
    step = jitpy.jit(opt.step)

    def outside(*found):
        for p, g in zip(params, found, strict=True):
            p.grad = g
        step()
        return [opt.state.get(p) for p in params]

    jitpy.disable(outside)
    return outside, params


@case(grads, factory=True, rounds=4)
def manual_update():
    params = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2))]

    def fn(*found):
        with torch.no_grad():
            for p, g in zip(params, found, strict=True):
                p.add_(g, alpha=-0.1)
                p -= 0.1 * g
                p.data.mul_(0.99)

    return fn, params


@case(grads, factory=True, rounds=3)
def learning_rate_changes():
    params = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2))]
    opt = SGD(params, lr=0.1)

    def fn(*found):
        for p, g in zip(params, found, strict=True):
            p.grad = g
        opt.step()
        for group in opt.param_groups:
            group["lr"] *= 0.5
        return opt.param_groups[0]["lr"]

    return fn, params


@case(grads, factory=True, rounds=5)
def scheduler_steps():
    params = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2))]
    opt = SGD(params, lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(opt, 2, 0.1)

    def fn(*found):
        for p, g in zip(params, found, strict=True):
            p.grad = g
        opt.step()
        schedule.step()
        return schedule.get_last_lr(), schedule.last_epoch

    return fn, params


@case(grads, factory=True, rounds=4)
def scheduler_lambda():
    params = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2))]
    opt = Adam(params, lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda epoch: 0.9**epoch)

    def fn(*found):
        for p, g in zip(params, found, strict=True):
            p.grad = g
        opt.step()
        schedule.step()
        return schedule.get_last_lr()

    return fn, params


@case(grads, factory=True)
def zero_grad_both_ways():
    params = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2))]
    opt = SGD(params, lr=0.1)

    def fn(*found):
        for p, g in zip(params, found, strict=True):
            p.grad = g
        opt.zero_grad(set_to_none=False)
        first = [p.grad.sum() for p in params]
        opt.zero_grad()
        return first, [p.grad for p in params]

    return fn, params


@case(grads, factory=True)
def optimizer_state_dict():
    params = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2))]
    opt = Adam(params, lr=0.1)

    def fn(*found):
        for p, g in zip(params, found, strict=True):
            p.grad = g
        opt.step()
        saved = copy.deepcopy(opt.state_dict())
        opt.step()
        opt.load_state_dict(saved)
        return saved["state"][0]["exp_avg"], opt.state[params[0]]["step"]

    return fn, params


@case(grads, factory=True)
def optimizer_with_closure():
    params = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2))]
    opt = SGD(params, lr=0.1)
    calls = [0]

    def fn(*found):
        def closure():
            calls[0] += 1
            opt.zero_grad()
            loss = sum((p * g).sum() for p, g in zip(params, found, strict=True))
            loss.backward()
            return loss

        return opt.step(closure)

    return fn, [params, calls]


@case(grads, factory=True)
def optimizer_hooks():
    params = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2))]
    opt = SGD(params, lr=0.1)
    log = []
    opt.register_step_pre_hook(lambda *a: log.append("pre"))
    opt.register_step_post_hook(lambda *a: log.append("post"))

    def fn(*found):
        for p, g in zip(params, found, strict=True):
            p.grad = g
        opt.step()
        return len(log)

    return fn, [params, log]


@case(grads, factory=True)
def optimizer_groups_and_frozen():
    params = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2))]
    opt = SGD([{"params": params[:1], "lr": 0.5}, {"params": params[1:]}], lr=0.1)

    def fn(g, _):
        params[0].grad = g
        opt.step()  # the second one has no gradient

    return fn, params


class Decay(torch.optim.Optimizer):
    """An optimizer of the user's own."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["count"] = 0
                    state["mean"] = torch.zeros_like(p)
                state["count"] += 1
                state["mean"].lerp_(p.grad, 0.1)
                p.addcdiv_(state["mean"], p.grad.abs() + 1, value=-group["lr"] / state["count"])


_update_case("update_own_optimizer", lambda p: Decay(p, lr=0.1))


# -- foreach and clipping


def lists():
    return [torch.randn(3), torch.randn(2, 2)], [torch.randn(3), torch.randn(2, 2)]


@case(lists, fullgraph=True)
def foreach_out_of_place(a, b):
    return (
        torch._foreach_add(a, b, alpha=2),
        torch._foreach_mul(a, 2.0),
        torch._foreach_mul(a, [1.0, 3.0]),
        torch._foreach_norm(a),
        torch._foreach_sqrt(torch._foreach_abs(a)),
        torch._foreach_maximum(a, b),
        torch._foreach_pow(torch._foreach_abs(a), 2.0),
    )


@case(lists)
def foreach_in_place(a, b):
    torch._foreach_add_(a, b)
    torch._foreach_mul_(a, 0.5)
    torch._foreach_lerp_(a, b, 0.3)
    torch._foreach_addcmul_(a, b, b, 0.1)
    torch._foreach_addcdiv_(a, b, torch._foreach_exp(b), 0.1)
    torch._foreach_clamp_max_(a, 1.0)
    torch._foreach_copy_(b, a)
    torch._foreach_zero_(a)
    return a, b


@case(lists)
def foreach_aliases(a, b):
    torch._foreach_add_([a[0], a[0]], [b[0], b[0]])
    return a


def parameters_with_grads():
    params = [nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(2, 2))]
    for p in params:
        p.grad = torch.randn_like(p) * 3
    return (params,)


@case(parameters_with_grads)
def clip_by_norm(params):
    return torch.nn.utils.clip_grad_norm_(params, 1.0), params[0].grad * 1


@case(parameters_with_grads)
def clip_by_norm_loop(params):
    return torch.nn.utils.clip_grad_norm_(params, 1.0, norm_type=1.0, foreach=False)


@case(parameters_with_grads)
def clip_by_norm_inf(params):
    return torch.nn.utils.clip_grad_norm_(params, 1.0, norm_type=float("inf"), error_if_nonfinite=True)


@case(parameters_with_grads)
def clip_by_value(params):
    torch.nn.utils.clip_grad_value_(params, 0.5)


@case(parameters_with_grads)
def total_norm(params):
    return torch.nn.utils.get_total_norm([p.grad for p in params])


@case(parameters_with_grads)
def parameters_as_vector(params):
    vector = torch.nn.utils.parameters_to_vector(params)
    torch.nn.utils.vector_to_parameters(vector.detach() * 2, params)
    return vector


@case(rows, factory=True, rounds=3)
def scaler_on_cpu():
    model = net()
    opt = SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)

    def fn(x):
        opt.zero_grad()
        loss = model(x).square().sum()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss.detach(), scaler.get_scale()

    return fn, model


@case(rows, factory=True, rounds=3)
def averaged_model():
    model = net()
    average = torch.optim.swa_utils.AveragedModel(model)

    def fn(x):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(x.mean())
        average.update_parameters(model)
        return average(x).detach()

    return fn, [model, average.n_averaged]


test_cases = make_test(__name__)


def test_the_first_optimizer_of_a_process():
    """It wraps the `step` of its class."""
    code = """
import torch, jitpy
def fn(x, kind):
    w = torch.nn.Parameter(x.clone())
    optimizer = kind([w], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (w**2).sum().backward()
        optimizer.step()
    return w.detach()
for kind in (torch.optim.SGD, torch.optim.Adam):
    found = jitpy.jit(fn, fullgraph=True)(torch.ones(3), kind)
    assert kind.step.hooked
    torch.testing.assert_close(found, fn(torch.ones(3), kind))
"""
    subprocess.run([sys.executable, "-c", code], check=True)
