"""Parameters, modules and copies of modules that are made inside: their values, histories, gradients and aliases.
PYTEST_DONT_REWRITE."""

from __future__ import annotations

import copy

import torch
from torch import nn

from tests.semantics.harness import case, make_test


def rows(*sizes: int) -> torch.Tensor:
    return torch.arange(1.0, 13.0).reshape(sizes or (3, 4)) / 7


def one():
    return (rows(),)


def needing_grad():
    return (rows().requires_grad_(),)


# -- parameters -------------------------------------------------------------------------------------------------------


@case(one, fullgraph=True)
def kept_for_later(x):
    p = nn.Parameter(x * 2)
    return p, p.requires_grad, p.is_leaf, type(p), isinstance(p, nn.Parameter), p.grad, p.grad_fn, p.detach() + 1


@case(one, breaks=("new_history",))
def with_a_result_of_it(x):
    p = nn.Parameter(torch.ones(4))
    return p, (p * x).sum()


@case(one, breaks=("new_history",))
def only_its_result(x):
    return (nn.Parameter(torch.ones(4)) * x).sum()


@case(one, needing_grad, fullgraph=True)
def gradient_left_in_it(x):
    p = nn.Parameter(torch.ones(4))
    (p * x.detach()).sum().backward()
    (p * 2).sum().backward()
    return p, p.grad


@case(one, fullgraph=True)
def gradient_only(x):
    p = nn.Parameter(torch.ones(4))
    q = nn.Parameter(torch.ones(4))
    loss = (p * q * x).sum()
    return torch.autograd.grad(loss, [p, q]), loss.detach()


@case(one)
def second_derivatives(x):
    p = nn.Parameter(torch.ones(4))
    (g,) = torch.autograd.grad((p ** 3 * x).sum(), p, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), p)
    return p, h


@case(one, fullgraph=True)
def gradient_asked_for_under_no_grad(x):
    p = nn.Parameter(torch.ones(4))
    loss = (p * x).sum()
    with torch.no_grad():
        (g,) = torch.autograd.grad(loss, p)
    return g


@case(one, fullgraph=True)
def shares_memory_with_its_data(x):
    data = x * 2
    p = nn.Parameter(data)
    data.add_(1)
    with torch.no_grad():
        p.mul_(3)
    return p, data, p.detach() + data


@case(one, needing_grad)
def made_of_an_argument(x):
    p = nn.Parameter(x)
    q = nn.Parameter(x[0])
    with torch.no_grad():
        p.mul_(2)
    return p, q


@case(one, needing_grad)
def made_of_a_computed_value(x):
    y = x * 3
    p = nn.Parameter(y)
    (p * 2).sum().backward()
    return p, y


@case(one)
def twice_of_the_same_data(x):
    data = x * 2
    return nn.Parameter(data), nn.Parameter(data), nn.Parameter(nn.Parameter(data))


@case(one, fullgraph=True)
def initialised_in_place(x):
    p = nn.Parameter(torch.empty(4, 3))
    nn.init.kaiming_uniform_(p, a=2)
    with torch.no_grad():
        p[1].fill_(7)
        p.t()[0].zero_()
    p.data.add_(1)
    return p


@case(one)
def written_under_grad_mode(x):
    p = nn.Parameter(x * 2)
    try:
        p.add_(1)
    except RuntimeError as error:
        return str(error), p
    return p


@case(one)
def view_written_under_grad_mode(x):
    p = nn.Parameter(x * 2)
    try:
        p[0].add_(1)
    except RuntimeError as error:
        return str(error), p
    return p


@case(one)
def read_before_and_after_a_change(x):
    p = nn.Parameter(x * 2)
    before = p * 2
    with torch.no_grad():
        p.add_(1)
    return p, before, p * 3


@case(one)
def views_see_changes(x):
    p = nn.Parameter(x * 2)
    view = p.t()
    seen = view.detach()
    parts = p.split(2, 1)
    with torch.no_grad():
        p.add_(1)
    return p, seen + 1, view.shape, seen, parts[0].detach() * 2


@case(one)
def views_made_under_no_grad(x):
    p = nn.Parameter(x * 2)
    with torch.no_grad():
        q = p[0]
        r = p.t()
    return p, q, r.requires_grad, p[1].detach()


@case(one)
def pass_over_a_change(x):
    p = nn.Parameter(x * 2)
    y = p * p
    with torch.no_grad():
        p.add_(1)
    try:
        y.sum().backward()
    except RuntimeError as error:
        return type(error), p.grad
    return p.grad


@case(one)
def pass_to_both_values(x):
    p = nn.Parameter(x * 2)
    y = p * 2
    with torch.no_grad():
        p.add_(1)
    (y + p * 3).sum().backward()
    return p.grad, p


@case(one, fullgraph=True)
def flags(x):
    p = nn.Parameter(x * 2, requires_grad=False)
    q = nn.Parameter(x * 3).requires_grad_(False)
    first = p * q
    p.requires_grad_()
    (p * 2).sum().backward()
    r = nn.Parameter(torch.arange(3), requires_grad=False)
    return p, q, r, first, p.grad, p.requires_grad, q.requires_grad


@case(one)
def of_integers(x):
    try:
        return nn.Parameter(torch.arange(3))
    except RuntimeError as error:
        return str(error)


@case(one, fullgraph=True)
def gradients_assigned(x):
    p = nn.Parameter(x * 2)
    (p * 2).sum().backward()
    p.grad = None
    q = nn.Parameter(x * 3)
    q.grad = x * 4
    return p, q


@case(one)
def keys_of_dicts(x):
    p, q = nn.Parameter(x * 2), nn.Parameter(x * 3)
    found = {p: 1, q: 2}
    return [p is k for k in found], found[q], p in found, len({p, q, p})


@case(one)
def attributes_of_its_own(x):
    p = nn.Parameter(x * 2)
    p.note = "kept"
    p.other = p
    return p, p.note


@case(one)
def hooks(x):
    p = nn.Parameter(x * 2)
    handle = p.register_hook(lambda g: g * 10)
    (p * 2).sum().backward()
    handle.remove()
    return p.grad


@case(one)
def hooked_and_kept(x):
    p = nn.Parameter(x * 2)
    p.register_hook(lambda g: g * 10)
    return p


@case(one)
def alive_at_a_break(x):
    p = nn.Parameter(x * 2)
    with torch.no_grad():
        p.add_(1)
    (p * x).sum().backward()
    print("here")
    held = [p]
    if p.detach().sum() > 1:
        held.append(p * 2)
    return held, p


@case(one)
def in_inference_mode(x):
    with torch.inference_mode():
        p = nn.Parameter(torch.ones(4))
        y = p * x
    return p.is_inference(), y.clone()


@case(one, fullgraph=True)
def kept_in_memory_order(x):
    p = nn.Parameter(x.t())
    q = nn.Parameter((x * 2).t())
    return p.stride(), q.stride(), q


# -- modules ----------------------------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.first = nn.Linear(size, size)
        self.norm = nn.BatchNorm1d(size)
        self.scale = nn.Parameter(torch.randn(size))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count.add_(1)
        return self.norm(self.first(x)).relu() * self.scale


@case(one, breaks=("new_history",))
def module_made_and_called(x):
    net = Net(4)
    return net, net(x), torch.rand(2)


@case(one, fullgraph=True)
def module_dropped(x):
    with torch.no_grad():
        y = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.LayerNorm(4))(x)
    return y, torch.rand(2)


@case(one, fullgraph=True)
def module_returned(x):
    net = nn.Sequential(nn.Embedding(5, 3, padding_idx=1), nn.Conv1d(3, 4, 2), nn.MultiheadAttention(4, 2),
                        nn.LSTM(3, 2), nn.TransformerEncoderLayer(4, 2))
    return net, [n for n, _ in net.named_parameters()], sum(p.numel() for p in net.parameters())


@case(one, factory=True)
def module_stored():
    class Holder:
        net = None

    holder = Holder()

    def fn(x):
        if holder.net is None:
            holder.net = nn.Linear(4, 2)
        return holder.net(x)

    return fn, holder


@case(one)
def module_trained_here(x):
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return net, losses


@case(one)
def module_trained_by_adam(x):
    net = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        optimizer.step()
    return net, optimizer.state_dict()["state"]


@case(one)
def tied_weights(x):
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    both = nn.Sequential(first, second)
    return both, len(list(both.parameters())), first.weight is second.weight


@case(one)
def moved_by_others(x):
    net = nn.Linear(4, 2)
    net.requires_grad_(False)
    net.apply(lambda m: nn.init.ones_(m.weight))
    return net.eval()(x), net.training, net


# -- copies -----------------------------------------------------------------------------------------------------------


@case(one, factory=True, breaks=("new_history",))
def deep_copy_of_a_module():
    net = Net(4)

    def fn(x):
        made = copy.deepcopy(net)
        with torch.no_grad():
            made.scale.zero_()
        return made, made(x), made.first.weight is net.first.weight

    return fn, net


@case(one, factory=True)
def inner_loop():
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

    def fn(x):
        fast = copy.deepcopy(net)
        optimizer = torch.optim.SGD(fast.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            fast(x).pow(2).mean().backward()
            optimizer.step()
        fast.zero_grad()
        fast(x + 1).pow(2).mean().backward()
        for p, q in zip(net.parameters(), fast.parameters()):
            p.grad = q.grad.clone()
        return [p.grad for p in net.parameters()]

    return fn, net


@case(one, factory=True)
def deep_copy_of_tied_parameters():
    first = nn.Linear(4, 4)
    second = nn.Linear(4, 4)
    second.weight = first.weight
    second.bias = nn.Parameter(first.bias.data)  # which a copy does not share
    second.register_buffer("a", torch.ones(4))
    net = nn.Sequential(first, second)
    net.note = [net]

    def fn(x):
        made = copy.deepcopy(net)
        with torch.no_grad():
            made[0].bias.add_(1)
        return made, made[0].weight is made[1].weight, made.note[0] is made, made[1].bias

    return fn, net


@case(one, factory=True)
def deep_copy_of_shared_buffers():
    net = nn.Module()
    net.register_buffer("a", torch.ones(4))
    net.register_buffer("b", net.a[:2])
    net.p = nn.Parameter(torch.ones(2), requires_grad=False)

    def fn(x):
        made = copy.deepcopy(net)
        made.a.add_(1)
        return made.a, made.b, made.p

    return fn, net


@case(one)
def deep_copy_of_what_was_made_here(x):
    net = nn.Linear(4, 2)
    net.weight.grad = torch.ones(2, 4)
    made = copy.deepcopy(net)
    return net, made, made.weight.grad


class Stateful:
    def __init__(self, x):
        self.x = x
        self.cache = {"a": 1}

    def __getstate__(self):
        return {"x": self.x, "left": "cache"}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.cache = {}


@case(one)
def deep_copy_with_state_methods(x):
    made = copy.deepcopy(Stateful(x * 1))
    return made.x, made.cache, made.left


# -- changes of modules -----------------------------------------------------------------------------------------------


@case(one, factory=True)
def parameters_replaced():
    net = nn.Linear(4, 4)

    def fn(x):
        net.weight = nn.Parameter(net.weight.detach() * 0.5)
        net.register_parameter("extra", nn.Parameter(x[0].clone()))
        return net(x) + net.extra

    return fn, net


@case(one, factory=True)
def lists_of_parameters():
    held = nn.ParameterList([torch.ones(4)])

    def fn(x):
        held.append(nn.Parameter(x[0].clone()))
        held[0] = torch.zeros(4)
        total = x
        for p in held:
            total = total * p
        return total, len(held)

    return fn, held


@case(one, factory=True)
def dicts_of_parameters():
    held = nn.ParameterDict({"a": torch.ones(4)})

    def fn(x):
        held["b"] = nn.Parameter(x[0].clone())
        return sum((x * p).sum() for p in held.values()), list(held.keys())

    return fn, held


test_parameters = make_test(__name__)
