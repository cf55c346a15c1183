"""Backward passes inside jitted functions: `.grad`, errors, what is freed. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import jitpy
from tests.semantics.harness import case, make_test


def rows():
    return (torch.randn(6, 4),)


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))


def kept(model: nn.Module) -> list[Any]:
    """Parameters and the gradients that they have."""
    return [model, [p.grad for p in model.parameters()]]


@case(rows, factory=True, rounds=3, fullgraph=True)
def gradients_are_new_tensors():
    model = net()

    def fn(x):
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach(), [p.grad for p in model.parameters()]

    return fn, model


@case(rows, factory=True, rounds=3, fullgraph=True)
def gradients_are_added_in_place():
    model = net()
    held = []

    def fn(x):
        model(x).square().mean().backward()
        held.append(model[0].weight.grad)
        return [p.grad for p in model.parameters()]

    return fn, [model, held]


@case(rows, factory=True, rounds=3, fullgraph=True)
def two_backward_passes_add_up():
    model = net()

    def fn(x):
        for p in model.parameters():
            p.grad = None
        for part in x.split(3):
            (model(part).square().mean() / 2).backward()
        return [p.grad for p in model.parameters()]

    return fn, model


@case(rows, factory=True, rounds=3, fullgraph=True)
def gradients_set_to_zero():
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def fn(x):
        opt.zero_grad(set_to_none=False)
        model(x).sum().backward()
        opt.step()
        return [p.grad for p in model.parameters()]

    return fn, model


@case(rows, factory=True, fullgraph=True)
def shared_and_frozen_and_unused_parameters():
    model = net()
    model[0].bias.requires_grad_(False)
    unused = nn.Parameter(torch.ones(2))
    tied = nn.Parameter(torch.randn(4, 4))

    def fn(x):
        model(x @ tied @ tied).sum().backward()
        return tied.grad, unused.grad, [p.grad for p in model.parameters()]

    return fn, [model, unused, tied]


@case(rows, factory=True, fullgraph=True)
def one_gradient_for_two_parameters():
    a, b = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))

    def fn(x):
        a.grad = b.grad = None
        ((a + b) * x).sum().backward()
        a.grad.mul_(2)
        return a.grad, b.grad

    return fn, [a, b]


@case(lambda: (torch.randn(3, requires_grad=True), torch.randn(3)), fullgraph=True)
def gradient_of_an_argument(x, g):
    (x * 3).backward(g)
    return x.grad


@case(lambda: (torch.randn(3, requires_grad=True), torch.randn(3)), fullgraph=True)
def a_leaf_itself(x, g):
    x.backward(g)
    g.add_(1)
    return x.grad


@case(lambda: (torch.randn(4, 3).t().requires_grad_(), torch.randn(3, 4)), fullgraph=True)
def gradient_in_the_layout_of_its_tensor(x, y):
    (x * y).sum().backward()
    return x.grad, x.grad.stride()


@case(lambda: (torch.randn(4, 3, requires_grad=True),), fullgraph=True)
def expanded_gradient(x):
    x.sum().backward()
    return x.grad, x.grad.stride()


@case(lambda: (torch.randn(4, 6)[:, ::2].requires_grad_(),), fullgraph=True)
def gradient_of_a_tensor_with_gaps(x):
    (x * 2).sum().backward()
    return x.grad, x.grad.stride()


@case(lambda: (torch.randn(3, requires_grad=True),))
def backward_twice(x):
    loss = (x * x).sum()
    loss.backward()
    loss.backward()


@case(lambda: (torch.randn(3, requires_grad=True),))
def backward_twice_is_caught(x):
    loss = (x * x).sum()
    loss.backward()
    try:
        loss.backward()
    except RuntimeError as error:
        return str(error), x.grad


@case(lambda: (torch.randn(3, requires_grad=True),))
def gradients_of_an_input_twice(x):
    loss = (x * x).sum()
    found = torch.autograd.grad(loss, x)
    try:
        torch.autograd.grad(loss, x)
    except RuntimeError as error:
        return str(error), found


@case(lambda: (torch.randn(3, requires_grad=True),))
def backward_twice_where_a_number_was_kept(x):
    results = [x * 2, 3.0 / x, x + 2, 2 - x, x / 4]
    for result in list(results):
        result.sum().backward()
        try:
            result.sum().backward()
        except RuntimeError as error:
            results.append(str(error))
    return results, x.grad


@case(lambda: (torch.randn(3, requires_grad=True),))
def backward_twice_where_nothing_was_kept(x):
    loss = (x + 1).sum()
    loss.backward()
    loss.backward()
    return x.grad


@case(lambda: (torch.randn(3, requires_grad=True),), fullgraph=True)
def backward_of_what_kept_nothing_behind_what_did(x):
    y = x + 1
    (y * y).sum().backward()
    y.sum().backward()
    return x.grad


@case(lambda: (torch.randn(3, requires_grad=True),), fullgraph=True)
def retained_graph(x):
    loss = (x * x).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    return x.grad


@case(lambda: (torch.randn(3, requires_grad=True),), fullgraph=True)
def retained_graph_is_returned(x):
    loss = (x * x).sum()
    loss.backward(retain_graph=True)
    return loss


@case(lambda: (torch.randn(3, requires_grad=True),))
def backward_of_a_vector(x):
    (x * x).backward()


@case(lambda: (torch.randn(3),))
def backward_without_gradients(x):
    (x * x).sum().backward()


@case(lambda: (torch.randn(3, requires_grad=True),))
def backward_of_what_was_detached(x):
    (x.detach() * x.detach()).sum().backward()


@case(lambda: (torch.randn(3, requires_grad=True), torch.randn(4)))
def gradient_of_the_wrong_shape(x, g):
    (x * x).backward(g)


@case(lambda: (torch.randn(3, requires_grad=True),), fullgraph=True)
def loss_is_returned(x):
    loss = (x * x).sum()
    loss.backward()
    return loss, loss.requires_grad, loss.is_leaf, loss.item()


@case(lambda: (torch.randn(3, requires_grad=True),), fullgraph=True)
def values_on_the_way_are_returned(x):
    h = x.exp()
    (h * 2).sum().backward()
    return h, h.detach(), h * 3


@case(lambda: (torch.randn(3, requires_grad=True),), fullgraph=True)
def another_history_is_left(x):
    first, second = (x * x).sum(), x.sin()
    first.backward()
    return second


@case(rows, factory=True)
def returned_loss_is_spent():
    import jitpy

    model = net()

    @jitpy.disable
    def again(loss):
        try:
            loss.backward()
        except RuntimeError as error:
            return str(error)

    def fn(x):
        loss = model(x).square().sum()
        loss.backward()
        return again(loss)

    return fn, model


@case(lambda: (torch.randn(3, requires_grad=True).exp(),))
def history_from_before_the_frame(x):
    loss = (x * x).sum()
    loss.backward()
    return loss.detach()


@case(rows, factory=True)
def leaf_with_a_hook():
    model = net()
    seen = []
    model[0].weight.register_hook(lambda grad: seen.append(grad.sum().item()))

    def fn(x):
        model.zero_grad()
        model(x).sum().backward()
        return [p.grad for p in model.parameters()]

    return fn, [model, seen]


@case(rows, factory=True, rounds=4)
def hook_that_comes_later():
    model = net()
    seen = []
    calls = [0]

    def fn(x):
        model.zero_grad()
        model(x).sum().backward()
        return [p.grad for p in model.parameters()]

    def outside(x):
        calls[0] += 1
        if calls[0] == 3:
            model[2].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum().item()))
        return fn(x)

    return outside, [model, seen]


@case(lambda: (torch.randn(3, requires_grad=True),))
def hook_on_a_value_on_the_way(x):
    y = x * 2
    y.register_hook(lambda grad: grad * 10)
    y.sum().backward()
    return x.grad


@case(lambda: (torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)), fullgraph=True)
def backward_into_some(x, y):
    (x * y).sum().backward(inputs=[x])
    return x.grad, y.grad


@case(lambda: (torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)), fullgraph=True)
def several_outputs(x, y):
    torch.autograd.backward([(x * y).sum(), x * 2], [None, torch.ones(3)])
    return x.grad, y.grad


@case(lambda: (torch.randn(3, requires_grad=True),), fullgraph=True)
def inside_no_grad(x):
    loss = (x * x).sum()
    with torch.no_grad():
        loss.backward()
        x.sub_(x.grad)
    return x.grad


@case(lambda: (torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)), fullgraph=True)
def grad_of_some(x, y):
    loss = (x * y * y).sum()
    gx, gy = torch.autograd.grad(loss, [x, y], retain_graph=True)
    (again,) = torch.autograd.grad(loss, x)
    return gx, gy, again, x.grad


@case(lambda: (torch.randn(3, requires_grad=True),), fullgraph=True)
def grad_of_a_value_on_the_way(x):
    h = x.exp()
    return torch.autograd.grad((h * h).sum(), h)[0], h.detach()


@case(lambda: (torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)), fullgraph=True)
def grad_of_the_unused(x, y):
    return torch.autograd.grad((x * 2).sum(), [x, y], allow_unused=True)


@case(lambda: (torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)), fullgraph=True)
def grad_of_the_unused_as_zeros(x, y):
    return torch.autograd.grad((x * 2).sum(), [x, y], materialize_grads=True)


@case(lambda: (torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)))
def grad_of_the_unused_raises(x, y):
    return torch.autograd.grad((x * 2).sum(), [x, y])


@case(lambda: (torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)))
def grad_of_a_batch(x, y):
    """The rows of a Jacobian: runs as plain Python, with eager's result."""
    rows = torch.autograd.grad(x.sin() * y, [x, y], torch.eye(3), is_grads_batched=True, retain_graph=True)
    (again,) = torch.autograd.grad((x * y).exp(), x, torch.eye(3)[:2], is_grads_batched=True, create_graph=True)
    return rows, again, torch.autograd.grad(again.sum(), y)


@case(lambda: (torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)))
def grad_of_a_batch_unused(x, y):
    return torch.autograd.grad(x.sin(), [x, y], torch.eye(3), is_grads_batched=True, allow_unused=True)


@case(lambda: (torch.randn(3, requires_grad=True), torch.ones(3)))
def gradient_given_by_the_caller(x, g):
    x.grad = g
    (x * 2).sum().backward()
    found = x.grad is g, g.clone()
    x.grad = torch.full_like(x, 5.0)
    x.exp().sum().backward()
    return found, x.grad.clone()


@case(lambda: (torch.randn(3, requires_grad=True),))
def gradients_are_changed_between_passes(x):
    for k in range(3):
        (x * (k + 1)).sin().sum().backward()
        if k == 1:
            x.grad.zero_()
        x.grad *= 0.5
    return x.grad.clone()


def _with_history():
    x = torch.randn(3, requires_grad=True)
    return x, x * 2


@case(_with_history)
def grad_through_what_was_computed_before(x, h):
    return torch.autograd.grad((h * h).sum(), [x], allow_unused=True)


@case(_with_history)
def grad_of_what_was_computed_before(x, h):
    loss = (h * h * x).sum()
    return torch.autograd.grad(loss, [h], retain_graph=True), torch.autograd.grad(loss, [h, x])


@case(_with_history)
def backward_through_what_was_computed_before(x, h):
    (h * h).sum().backward(inputs=[x])
    return x.grad.clone()


@case(lambda: (torch.randn(3, requires_grad=True),))
def grad_through_a_break(x):
    h = x * 2
    print(len(h))
    if h.sum() > 100:
        return h
    return torch.autograd.grad((h * x).sum(), [x], allow_unused=True)


@case(lambda: (torch.randn(3, requires_grad=True), torch.randn(3)))
def grad_of_what_needs_none(x, y):
    return torch.autograd.grad((x * y).sum(), [x, y])


@case(lambda: (torch.randn(3, requires_grad=True),))
def gradient_with_a_history(x):
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (g * g).sum().backward()
    return x.grad


@case(rows, factory=True)
def anomaly_mode():
    model = net()

    def fn(x):
        model.zero_grad()
        model(x).sum().backward()
        return [p.grad for p in model.parameters()]

    def outside(x):
        with torch.autograd.detect_anomaly(check_nan=False):
            return fn(x)

    return outside, model


@case(rows, factory=True, rounds=3)
def saved_value_is_overwritten():
    w = nn.Parameter(torch.randn(4))

    def fn(x):
        y = x * w
        z = y.exp()
        z.mul_(2)
        z.sum().backward()
        return w.grad

    return fn, w


@case(rows, factory=True, rounds=3, fullgraph=True)
def update_by_hand():
    model = net()

    def fn(x):
        loss = model(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None
        return loss

    return fn, model


@case(rows, factory=True, rounds=3)
def generator_and_critic():
    one, two = net(0), nn.Linear(1, 1)
    opt_one = torch.optim.SGD(one.parameters(), lr=0.1)
    opt_two = torch.optim.SGD(two.parameters(), lr=0.1)

    def fn(x):
        opt_two.zero_grad()
        critic = two(one(x).detach()).square().mean()
        critic.backward()
        opt_two.step()
        opt_one.zero_grad()
        loss = -two(one(x)).mean()
        loss.backward()
        opt_one.step()
        return critic.detach(), loss.detach()

    return fn, [one, two]


@case(rows, factory=True, rounds=3)
def average_of_weights():
    model = net()
    average = copy.deepcopy(model)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def fn(x):
        opt.zero_grad()
        model(x).mean().backward()
        opt.step()
        with torch.no_grad():
            for p, q in zip(average.parameters(), model.parameters(), strict=True):
                p.lerp_(q, 0.1)

    return fn, [model, average]


@case(rows, factory=True, rounds=3)
def dropout_follows_the_seed():
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))

    def fn(x):
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach(), [p.grad for p in model.parameters()]

    return fn, model


@case(rows, factory=True, rounds=4, fullgraph=True)
def batch_norm_statistics():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def fn(x):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), torch.zeros(6, dtype=torch.long))
        loss.backward()
        opt.step()
        return loss

    return fn, model


@case(rows, factory=True, rounds=4, fullgraph=True)
def clipped_by_norm():
    model = net()
    opt = torch.optim.Adam(model.parameters(), lr=0.01)

    def fn(x):
        opt.zero_grad()
        (model(x) * 100).square().mean().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        nn.utils.clip_grad_value_(model.parameters(), 0.4)
        opt.step()
        return norm

    return fn, model


@case(rows, factory=True, rounds=3)
def closure_of_the_optimizer():
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def fn(x):
        def closure():
            opt.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        return opt.step(closure)

    return fn, model


@case(rows, factory=True, rounds=4)
def scaler_that_is_off():
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)

    def fn(x):
        opt.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()

    return fn, model


@case(rows, factory=True, rounds=4)
def scaler_that_is_on():
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

    def fn(x):
        opt.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(opt)
        scaler.update()
        return scaler.get_scale()

    return fn, model


test_cases = make_test(__name__)


def test_sizes_that_are_equal_as_products() -> None:
    """Scores and labels of other sizes of their own, flattened to the same."""
    def fn(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(scores.view(-1, 5), labels.view(-1), ignore_index=-100)

    jitted = jitpy.jit(fn)
    for rows, columns in ((2, 6), (3, 8), (5, 4)):
        labels = torch.randint(0, 5, (columns, rows))
        found = []
        for run in (fn, jitted):
            torch.manual_seed(0)
            scores = torch.randn(rows, columns, 5, requires_grad=True)
            loss = run(scores, labels)
            loss.backward()
            found.append((loss.detach(), scores.grad))
        torch.testing.assert_close(found[1], found[0])
