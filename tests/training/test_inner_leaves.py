"""Histories that begin inside a jitted function: at tensors that are told to require grad there, and at parameters that
an optimizer has changed by then. Adversarial networks, gradient penalties, attacks, inner loops.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import jitpy

Wrap = Callable[[Any], Any]
Program = Callable[[Wrap], Any]

#: program -> whether all of it is one graph
PROGRAMS: dict[str, tuple[Program, bool]] = {}


def program(whole: bool = True) -> Callable[[Program], Program]:
    def register(run: Program) -> Program:
        PROGRAMS[run.__name__] = run, whole
        return run

    return register


class Networks:
    """A generator and a critic with their optimizers."""

    def __init__(self, kind: Any = torch.optim.Adam, **options: Any) -> None:
        self.generator = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4)).double()
        self.critic = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1)).double()
        self.of_generator = kind(self.generator.parameters(), lr=1e-2, **options)
        self.of_critic = kind(self.critic.parameters(), lr=2e-2, **options)

    def left(self) -> list[Any]:
        """Parameters, gradients and the state of the optimizers."""
        parameters = [*self.generator.parameters(), *self.critic.parameters()]
        return [[p.detach() for p in parameters], [p.grad for p in parameters],
                [o.state_dict()["state"] for o in (self.of_generator, self.of_critic)]]


def data(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def steps(run: Any, networks: Networks, count: int = 4) -> Any:
    results = [copy.deepcopy(run(data(5, 4), data(5, 3))) for _ in range(count)]
    return [results, networks.left()]


@program()
def adversarial(wrap: Wrap) -> Any:
    n = Networks()
    real, fake = torch.ones(5, 1).double(), torch.zeros(5, 1).double()

    def step(x: torch.Tensor, z: torch.Tensor) -> Any:
        n.of_critic.zero_grad()
        made = n.generator(z)
        loss = F.binary_cross_entropy_with_logits(n.critic(x), real) + \
            F.binary_cross_entropy_with_logits(n.critic(made.detach()), fake)
        loss.backward()
        n.of_critic.step()
        n.of_generator.zero_grad()
        other = F.binary_cross_entropy_with_logits(n.critic(made), real)
        other.backward()
        n.of_generator.step()
        return loss.item(), other.detach()

    return steps(wrap(step), n)


@program()
def clipped(wrap: Wrap) -> Any:
    n = Networks(torch.optim.SGD, momentum=0.9)

    def step(x: torch.Tensor, z: torch.Tensor) -> Any:
        for _ in range(2):
            n.of_critic.zero_grad(set_to_none=False)
            (-n.critic(x)).mean().backward()
            n.critic(n.generator(z).detach()).mean().backward()
            n.of_critic.step()
            with torch.no_grad():
                for p in n.critic.parameters():
                    p.clamp_(-0.1, 0.1)
        n.of_generator.zero_grad()
        loss = -n.critic(n.generator(z)).mean()
        loss.backward()
        n.of_generator.step()
        return loss.detach()

    return steps(wrap(step), n)


def penalized(mark: Callable[[torch.Tensor], torch.Tensor]) -> Program:
    def run(wrap: Wrap) -> Any:
        n = Networks()

        def step(x: torch.Tensor, z: torch.Tensor) -> Any:
            n.of_critic.zero_grad()
            made = n.generator(z).detach()
            share = torch.rand(5, 1).double()
            between = mark(share * x + (1 - share) * made)
            score = n.critic(between)
            grad = torch.autograd.grad(score, between, torch.ones_like(score), create_graph=True, retain_graph=True)[0]
            penalty = ((grad.norm(2, dim=1) - 1) ** 2).mean()
            loss = n.critic(made).mean() - n.critic(x).mean() + 10 * penalty
            loss.backward()
            n.of_critic.step()
            n.of_generator.zero_grad()
            other = -n.critic(n.generator(z)).mean()
            other.backward()
            n.of_generator.step()
            return loss.detach(), other.detach(), penalty.item()

        return steps(wrap(step), n)

    return run


def by_attribute(x: torch.Tensor) -> torch.Tensor:
    x.requires_grad = True
    return x


PROGRAMS["gradient_penalty"] = penalized(lambda x: x.requires_grad_(True)), True
PROGRAMS["gradient_penalty_by_attribute"] = penalized(by_attribute), True


@program()
def attack(wrap: Wrap) -> Any:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        delta = torch.zeros_like(x).requires_grad_()
        loss = F.cross_entropy(model(x + delta), y)
        loss.backward()
        return (x + 0.1 * delta.grad.sign()).detach()

    run = wrap(step)
    return [run(data(5, 4), torch.tensor([0, 1, 2, 1, 0])) for _ in range(3)], [p.grad for p in model.parameters()]


@program()
def projected_attack(wrap: Wrap) -> Any:
    """What is told to require grad shows the memory of something else."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        moved = x.clone().detach()
        for _ in range(3):
            moved.requires_grad_()
            grad, = torch.autograd.grad(F.cross_entropy(model(moved), y), moved)
            moved = (moved.detach() + 0.1 * grad.sign()).clamp(-1, 1).detach()
        return moved

    run = wrap(step)
    return [run(data(5, 4), torch.tensor([0, 1, 2, 1, 0])) for _ in range(3)], [p.grad for p in model.parameters()]


@program()
def factories_of_leaves(wrap: Wrap) -> Any:
    def step(x: torch.Tensor) -> torch.Tensor:
        scale = torch.ones(3, dtype=torch.float64, requires_grad=True)
        shift = torch.zeros_like(x, requires_grad=True)
        ((x * scale).exp() + shift * scale).sum().backward()
        return scale.grad + shift.grad

    return wrap(step)(data(3))


@program(whole=False)
def writes_to_shared_memory(wrap: Wrap) -> Any:
    def step(x: torch.Tensor) -> Any:
        y = x.detach()
        y.requires_grad_()
        x.add_(1)
        z = (y * y).sum()
        z.backward()
        return z.detach(), y.grad

    x = data(3)
    return wrap(step)(x), x


@program()
def unrolled(wrap: Wrap) -> Any:
    """Several steps of one optimizer in one call."""
    n = Networks(torch.optim.SGD)

    def step(x: torch.Tensor, z: torch.Tensor) -> float:
        for _ in range(3):
            n.of_critic.zero_grad()
            loss = n.critic(x).square().mean()
            loss.backward()
            n.of_critic.step()
        return loss.item()

    return steps(wrap(step), n, 2)


@program(whole=False)
def history_of_a_changed_parameter(wrap: Wrap) -> Any:
    """A result has a history that begins behind the step."""
    n = Networks(torch.optim.SGD)

    def step(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        n.critic(x).mean().backward()
        n.of_critic.step()
        return n.critic(x).square().mean()

    run = wrap(step)
    results = []
    for _ in range(3):
        loss = run(data(5, 4), data(5, 3))
        loss.backward()
        results.append(loss.detach())
    return results, n.left()


@program(whole=False)
def leaf_as_a_result(wrap: Wrap) -> Any:
    def step(x: torch.Tensor) -> Any:
        y = (x * 2).requires_grad_()
        (y * y).sum().backward()
        return y, y.grad

    y, grad = wrap(step)(data(3))
    (y.sum() * 3).backward()
    return y.detach(), y.is_leaf, y.requires_grad, y.grad, grad


@program(whole=False)
def pass_through_what_was_changed(wrap: Wrap) -> Any:
    """The second backward pass meets weights that the step has changed: eager refuses it."""
    n = Networks(torch.optim.SGD)

    def step(x: torch.Tensor, z: torch.Tensor) -> str:
        loss = n.critic(x).square().mean()
        loss.backward(retain_graph=True)
        n.of_critic.step()
        try:
            loss.backward()
        except RuntimeError as error:
            return str(error)[:80]
        return ""

    run = wrap(step)
    result = run(data(5, 4), data(5, 3))
    return result.startswith("one of the variables needed"), [p.detach() for p in n.critic.parameters()]


@program(whole=False)
def result_through_what_was_changed(wrap: Wrap) -> Any:
    weight = data(3).requires_grad_()

    def step(x: torch.Tensor) -> torch.Tensor:
        y = (x * weight).exp()
        with torch.no_grad():
            weight.mul_(2)
        return y

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        wrap(step)(data(3).requires_grad_()).sum().backward()
    return weight.detach(), weight.grad


@program(whole=False)
def both_values_of_a_leaf(wrap: Wrap) -> Any:
    """A pass that reaches a leaf as it was and as it is."""
    weight = data(3).requires_grad_()

    def step(x: torch.Tensor) -> torch.Tensor:
        before = (weight + x).sum()
        with torch.no_grad():
            weight.add_(1)
        (before + (weight * x).sum()).backward()
        return before.detach()

    return wrap(step)(data(3)), weight.detach(), weight.grad


@program(whole=False)
def grad_of_a_former_value(wrap: Wrap) -> Any:
    weight = data(3).requires_grad_()

    def step(x: torch.Tensor) -> Any:
        before = (weight + x).sum()
        with torch.no_grad():
            weight.add_(1)
        return torch.autograd.grad(before, weight)

    return wrap(step)(data(3)), weight.detach()


@program()
def views_of_a_changed_parameter(wrap: Wrap) -> Any:
    weight = data(2, 3).requires_grad_()

    def step(x: torch.Tensor) -> Any:
        row, whole = weight[0], weight.view(6)
        (row * x).sum().backward()
        with torch.no_grad():
            weight.sub_(weight.grad)
        (row * x.exp()).sum().backward()
        (whole * 2).sum().backward()
        return weight.is_leaf, weight.requires_grad

    return wrap(step)(data(3)), weight.detach(), weight.grad


@program()
def questions_about_leaves(wrap: Wrap) -> Any:
    def step(x: torch.Tensor) -> Any:
        y = x * 2
        before = y.is_leaf, y.requires_grad
        y.requires_grad_()
        z = y * 3
        return before, y.is_leaf, y.requires_grad, y.grad, y.grad_fn, z.is_leaf, z.requires_grad, z.detach()

    return wrap(step)(data(3))


def toggled(turn: Callable[[Any, bool], Any]) -> Program:
    """The generator's pass goes through a critic that does not learn by it."""

    def run(wrap: Wrap) -> Any:
        n = Networks()

        def step(x: torch.Tensor, z: torch.Tensor) -> Any:
            n.of_critic.zero_grad()
            made = n.generator(z)
            loss = n.critic(made.detach()).mean() - n.critic(x).mean()
            loss.backward()
            n.of_critic.step()
            turn(n.critic, False)
            flags = [p.requires_grad for p in n.critic.parameters()], n.critic(x).requires_grad
            n.of_generator.zero_grad()
            other = -n.critic(made).mean()
            other.backward()
            n.of_generator.step()
            turn(n.critic, True)
            return loss.detach(), other.detach(), flags, [p.is_leaf and p.requires_grad for p in n.critic.parameters()]

        return steps(wrap(step), n), [p.requires_grad for p in n.critic.parameters()]

    return run


def of_each(module: nn.Module, flag: bool) -> None:
    for p in module.parameters():
        p.requires_grad = flag


PROGRAMS["critic_turned_off"] = toggled(nn.Module.requires_grad_), True
PROGRAMS["critic_turned_off_by_attribute"] = toggled(of_each), True


@program()
def attack_on_an_argument(wrap: Wrap) -> Any:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double().requires_grad_(False)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.requires_grad_()
        F.cross_entropy(model(x), y).backward()
        return (x + 0.1 * x.grad.sign()).detach()

    run, results = wrap(step), []
    for _ in range(3):
        x = data(5, 4)
        results.append([run(x, torch.tensor([0, 1, 2, 1, 0])), x.detach(), x.grad, x.requires_grad])
    return results


@program()
def gradient_of_an_argument(wrap: Wrap) -> Any:
    """Forces: the energy's gradient by positions that came without history, also when they have one the second time."""
    def step(x: torch.Tensor) -> Any:
        x.requires_grad_(True)
        energy = (x.cos() * x).sum()
        force, = torch.autograd.grad(energy, x)
        return -force, energy.detach(), x.grad is None

    run, x = wrap(step), data(4)
    return [run(x), run(x), run(data(4))], x.requires_grad, x.grad


@program(whole=False)
def argument_with_a_history_that_leaves(wrap: Wrap) -> Any:
    def step(x: torch.Tensor) -> torch.Tensor:
        x.requires_grad_()
        return (x * 2).sin()

    run, x = wrap(step), data(3)
    run(x).sum().backward()
    run(x).sum().backward()
    return x.grad, x.requires_grad


@program(whole=False)
def views_of_an_argument_that_requires_grad(wrap: Wrap) -> Any:
    def step(x: torch.Tensor) -> Any:
        row = x[0]
        x.requires_grad_()
        (x * x).sum().backward()
        return row, x.detach()[1], x.grad

    x = data(3, 2)
    row, other, grad = wrap(step)(x)
    x.detach().add_(1)
    return row.detach(), other, grad, x.detach()


@program(whole=False)
def turned_off_before_the_pass(wrap: Wrap) -> Any:
    """Eager's engine looks at the flag when the gradient arrives."""
    w, v = nn.Parameter(data(3)), nn.Parameter(data(3))

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = (w * v * x).sum()
        w.requires_grad_(False)
        loss.backward()
        w.requires_grad_(True)
        return loss.detach()

    run = wrap(step)
    return [run(data(3)) for _ in range(3)], w.grad, v.grad, w.requires_grad


@program()
def turned_off_for_good(wrap: Wrap) -> Any:
    """What freezes its layers at some step, and hands out a history through those that are left."""
    n = Networks()

    def step(x: torch.Tensor, freeze: bool) -> torch.Tensor:
        if freeze:
            n.critic[0].requires_grad_(False)
        return n.critic(x).square().mean()

    run = wrap(step)
    for at in range(4):
        run(data(5, 4), at == 2).backward()
    return n.left(), [p.requires_grad for p in n.critic.parameters()]


@program(whole=False)
def break_while_turned_off(wrap: Wrap) -> Any:
    w = nn.Parameter(data(3))

    def step(x: torch.Tensor) -> Any:
        w.requires_grad_(False)
        a = (w * x).sin()
        jitpy.graph_break()
        flag = w.requires_grad, (w * a).requires_grad
        w.requires_grad = True
        (w * a).sum().backward()
        return a, flag

    run = wrap(step)
    return [run(data(3)) for _ in range(3)], w.grad, w.requires_grad


@program(whole=False)
def flags_that_are_refused(wrap: Wrap) -> Any:
    w = nn.Parameter(data(3))

    def step(x: torch.Tensor) -> Any:
        found = []
        for change in (lambda: (w * x).requires_grad_(False), lambda: torch.arange(3).requires_grad_(),
                       lambda: x.requires_grad_("yes")):
            try:
                change()
            except (RuntimeError, TypeError) as error:
                found.append(str(error)[:40])
        return found

    return wrap(step)(data(3))


@program()
def written_while_turned_off(wrap: Wrap) -> Any:
    w = nn.Parameter(data(3))

    def step(x: torch.Tensor) -> Any:
        w.requires_grad_(False)
        w.mul_(0.5)
        y = (w * x).sum()
        w.requires_grad_(True)
        return y

    run = wrap(step)
    return [run(data(3)) for _ in range(3)], w.detach(), w.requires_grad


@program(whole=False)
def written_and_then_told(wrap: Wrap) -> Any:
    """What was written to an argument before its history begins is seen outside."""
    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.mul_(2)
        x.requires_grad_()
        row = y[0]
        with torch.no_grad():
            row.add_(1)
            y.requires_grad = True
        (x * y).sum().backward()
        return x.grad, y.grad

    run, results = wrap(step), []
    for _ in range(3):
        x, y = data(2, 3), data(2, 3)
        results.append([run(x, y), x.detach(), y.detach(), x.requires_grad])
    return results


@program(whole=False)
def views_of_an_argument_as_arguments(wrap: Wrap) -> Any:
    """A view that was made before requires grad when its base does."""
    def step(x: torch.Tensor, row: torch.Tensor) -> Any:
        x.requires_grad_()
        return (row * 2).requires_grad, (x * x).sum().detach()

    run, results = wrap(step), []
    for shared in (False, True, False, True):
        x = data(2, 3)
        results += [run(x, x[0] if shared else data(3)), x.requires_grad]
    return results


@program()
def argument_given_twice(wrap: Wrap) -> Any:
    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.requires_grad_()
        (x * y).sum().backward()
        return x is y, x.grad, (y * 2).detach()

    run, results = wrap(step), []
    for same in (True, False, True):
        x = data(3)
        results.append([run(x, x if same else data(3)), x.grad, x.requires_grad])
    return results


@program()
def inner_loop_by_names(wrap: Wrap) -> Any:
    """Gradients with respect to a dict's values, and to what a generator gives."""
    net = nn.Linear(3, 2).double()

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        named = dict(net.named_parameters())
        for _ in range(2):
            loss = F.mse_loss(torch.func.functional_call(net, named, x), y)
            grads = torch.autograd.grad(loss, named.values(), create_graph=True)
            named = {name: p - 0.1 * g for (name, p), g in zip(named.items(), grads, strict=True)}
        loss = F.mse_loss(torch.func.functional_call(net, named, x), y)
        found = torch.autograd.grad(loss, (p for p in net.parameters()), retain_graph=True)
        loss.backward()
        return loss.detach(), *found

    run = wrap(step)
    return [run(data(4, 3), data(4, 2)) for _ in range(2)], [p.grad for p in net.parameters()]


def run(name: str, wrap: Wrap) -> Any:
    torch.manual_seed(0)
    return PROGRAMS[name][0](wrap)


@pytest.mark.parametrize("backend", ["codegen", "eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, backend: str) -> None:
    expected = run(name, lambda fn: fn)
    found = run(name, lambda fn: jitpy.jit(fn, backend=backend, fullgraph=PROGRAMS[name][1]))
    _compare(found, expected)


def _compare(found: Any, expected: Any) -> None:
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            _compare(one, other)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        _compare(list(found.values()), list(expected.values()))
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected)
        assert (found.requires_grad, found.is_leaf) == (expected.requires_grad, expected.is_leaf)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected)
    else:
        assert found == expected
