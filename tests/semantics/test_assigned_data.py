"""`tensor.data = ...`: parameters and other tensors that look at other memory from then on. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import jitpy
from tests.semantics.harness import case, make_test


def vec() -> torch.Tensor:
    return torch.randn(4)


def leaf() -> torch.Tensor:
    return torch.randn(4, requires_grad=True)


def one():
    return (vec(),)


def two():
    return vec(), vec()


def two_leaves():
    return leaf(), leaf()


def both():
    return leaf(), vec()


@case(two, both, two_leaves, fullgraph=True)
def average(p, q):
    p.data = p.data * 0.9 + q.data * 0.1
    with torch.no_grad():
        return p * 2, p.requires_grad, p.is_leaf, q.sum()


@case(both, two_leaves, two)
def average_then_forward(p, q):
    p.data = p.data * 0.9 + q.data * 0.1
    return (p * q).sum()


@case(two, both, fullgraph=True)
def assigned_alone(p, q):
    p.data = q * 2


@case(two, both, two_leaves, fullgraph=True)
def assigned_to_itself(p, q):
    """As `model.to(dtype)` does it with parameters that have the dtype already."""
    layer = nn.Linear(4, 4)
    for t in (p, q, *layer.parameters()):
        with torch.no_grad():
            t.data = t.to(p)
    y = (p * 2).sin()
    y.data = y
    return y * q, p, layer.weight.requires_grad, layer.weight.is_leaf


@case(two, both)
def memory_is_shared(p, q):
    p.data = q
    q.add_(1)
    with torch.no_grad():
        return p * 1, q


@case(two, both)
def shared_with_what_is_returned(p, q):
    made = q * 2
    p.data = made
    return made, p


@case(two)
def written_through_data_later(p, q):
    p.data = q * 2
    p.data.mul_(3)
    p.data[0] = 5
    return p + 1


@case(two, both)
def written_directly_later(p, q):
    p.data = q * 2
    with torch.no_grad():
        p.mul_(3)
    return p.detach() + 1


@case(two, both, two_leaves, fullgraph=True)
def swapped(p, q):
    p.data, q.data = q.data, p.data
    with torch.no_grad():
        return p - q


@case(two, both)
def objects_swapped(p, q):
    kept = p.data
    q.data = q.data + 1
    p.data = q
    q.data = kept
    return p.detach() - q.detach()


@case(one, lambda: (leaf(),), fullgraph=True)
def put_back(p):
    saved = p.data
    p.data = saved * 2
    with torch.no_grad():
        y = p * 1
    p.data = saved
    return y, saved


@case(lambda: (leaf(), torch.randn(2, 3)), lambda: (leaf(), torch.randn(4).double()), lambda: (vec(), vec().half()),
      lambda: (vec(), torch.ones(4, dtype=torch.int64)),
      lambda: (torch.randn(6).requires_grad_(), torch.randn(3, 2).t()))
def of_another_kind(p, q):
    p.data = q
    return p.shape, p.dtype, p.stride(), p.detach() * 1


@case(lambda: (leaf(), torch.ones(4, dtype=torch.int64)), lambda: (leaf(), 3), lambda: (leaf(), None))
def refused(p, q):
    try:
        p.data = q
    except (RuntimeError, TypeError) as error:
        return type(error), str(error), p
    return p


@case(two, both, two_leaves)
def after_it_was_used(p, q):
    y = p * q
    p.data = q.data * 2
    return y


@case(two, two_leaves)
def of_a_computed_tensor(p, q):
    h = p * 2
    h.data = q.data * 3
    return h, h.requires_grad


@case(two)
def of_a_tensor_made_inside(p, q):
    t = torch.zeros(4)
    t.data = p * 2
    t.data.add_(q)
    return t, t + 1


@case(two)
def of_a_view_made_inside(p, q):
    v = p[:2]
    v.data = q[2:]
    v.add_(1)
    return v, p, q


@case(lambda: (leaf(), vec()))
def view_made_before(p, q):
    v = p.detach()[1:]
    p.data = q * 2
    v.add_(1)
    return v, p


@case(lambda: (leaf(), vec()))
def written_before(p, q):
    with torch.no_grad():
        p.add_(1)
        kept = p.data
        p.data = p.data * q
    return kept


@case(both, fullgraph=True)
def step_within(p, q):
    p.data = q * 2
    loss = (p * p).sum()
    loss.backward()
    p.data = p.data - 0.1 * p.grad
    return loss.detach()


@case(both)
def requires_grad_turned(p, q):
    p.requires_grad_(False)
    p.data = q * 2
    p.requires_grad_()
    return p.detach()


@case(lambda: (leaf(), vec(), [0]))
def by_setattr(p, q, log):
    setattr(p, "data", q + 1)  # noqa: B010
    log.append(torch.equal(p.data, q + 1))


@case(factory=True)
def model_averaged():
    online, target = nn.Linear(3, 2), nn.Linear(3, 2)
    x = torch.randn(5, 3)

    def fn():
        for p, q in zip(target.parameters(), online.parameters(), strict=True):
            p.data = p.data * 0.9 + q.data * 0.1
        with torch.no_grad():
            return target(x)

    return fn, [online.weight, target.weight, target.bias]


@case(factory=True)
def weights_clipped():
    net = nn.Linear(3, 2)
    x = torch.randn(5, 3)

    def fn():
        net(x).sum().backward()
        for p in net.parameters():
            p.data.add_(p.grad, alpha=-0.1)
            p.data.clamp_(-0.05, 0.05)
        return net.weight.detach().abs().max()

    return fn, [net.weight, net.bias]


@case(factory=True)
def vector_and_back():
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3))
    x = torch.randn(5, 3)

    def fn():
        vector = nn.utils.parameters_to_vector(net.parameters())
        nn.utils.vector_to_parameters(vector.detach() * 0.5, net.parameters())
        return net(x)

    return fn, list(net.parameters())


@case(factory=True)
def binarised_weights():
    net = nn.Linear(3, 2)
    x = torch.randn(5, 3)

    def fn():
        kept = net.weight.data.clone()
        net.weight.data = net.weight.data.sign()
        net.zero_grad()
        net(x).sum().backward()
        net.weight.data = kept
        net.weight.data.sub_(net.weight.grad * 0.1)
        return net.weight.grad

    return fn, [net.weight]


@case(factory=True)
def converted_module():
    net = nn.Linear(3, 2)
    x = torch.randn(5, 3)

    def fn():
        net.double()
        y = net(x.double())
        net.float()
        return y, net(x)

    return fn, [net.weight, net.bias]


@case(lambda: (leaf(),) * 2, two_leaves, lambda: (leaf(),) * 2)
def one_tensor_twice(p, q):
    p.data = p.data * 2
    return q.data + 1


@case(lambda: (lambda p: (p, p.detach()))(leaf()), both)
def with_another_that_shows_it(p, q):
    p.data = p.data * 2
    q.add_(1)
    return q, p.data


# -- leaves that are made inside: attacks, which step through `.data`

WEIGHT = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


@case(one, fullgraph=True)
def attack_by_backward(x):
    delta = torch.zeros_like(x, requires_grad=True)
    best = torch.zeros(())
    for _ in range(3):
        loss = torch.tanh((x + delta) @ WEIGHT).sum()
        loss.backward()
        best = torch.max(best, loss.detach())
        delta.data = (delta + 0.01 * delta.grad.detach().sign()).clamp(-0.1, 0.1)
        delta.grad.zero_()
    return delta.detach(), best


@case(one, fullgraph=True)
def attack_by_grad(x):
    delta = torch.zeros_like(x).uniform_(-0.1, 0.1)
    delta.requires_grad = True
    for _ in range(3):
        grad = torch.autograd.grad(torch.tanh((x + delta) @ WEIGHT).sum(), delta)[0]
        delta.data = torch.clamp(delta.data + 0.01 * grad.sign(), -0.1, 0.1)
    return x + delta.detach()


@case(one)
def gradients_add_up_over_assignments(x):
    d = torch.ones_like(x).requires_grad_()
    (d**2).sum().backward()
    d.data = x * 2
    (d**3).sum().backward()
    return d.grad, d.detach(), d.is_leaf, d.requires_grad


@case(one)
def kept_before_read_behind(x):
    d = torch.ones_like(x).requires_grad_()
    v = d.view(-1)
    loss = (d**2 * x).sum() + (v * v).sum()
    d.data = torch.full_like(x, 5.0)
    loss.backward()
    return d.grad, d.detach()


@case(one)
def passes_to_former_values(x):
    d = torch.ones_like(x).requires_grad_()
    first = (d * x).sum()
    d.data = x * 3
    second = (d * 2).sum()
    return torch.autograd.grad(first, d, retain_graph=True)[0], torch.autograd.grad(first + second, d)[0], d.detach()


@case(one)
def derivative_of_a_gradient_behind(x):
    d = torch.ones_like(x).requires_grad_()
    grad = torch.autograd.grad((d**3).sum(), d, create_graph=True)[0]
    d.data = x * 3
    return torch.autograd.grad(grad.sum(), d)[0]


@case(one)
def own_leaf_is_returned(x):
    d = torch.ones_like(x).requires_grad_()
    (d**2).sum().backward()
    d.data = x * 2
    return d, (d * d).sum()


@case(one)
def memory_that_others_show(x):
    d, e = torch.ones_like(x).requires_grad_(), torch.ones_like(x).requires_grad_()
    kept, other = d.detach(), x * 2
    d.data, e.data = other, x
    kept.add_(1)
    other.add_(1)
    grads = torch.autograd.grad((d**2).sum() + (e**2).sum(), [d, e])
    return grads, kept, other, d.detach(), e.detach(), e.data_ptr() == x.data_ptr()


@case(one)
def of_another_size(x):
    d = torch.ones_like(x).requires_grad_()
    d.data = torch.ones(2)
    return d.shape, d.detach()


@case(one)
def watched_leaf(x):
    d, seen = torch.ones_like(x).requires_grad_(), []
    d.register_hook(lambda grad: seen.append(grad.sum()))
    (d * 2).sum().backward()
    d.data = x * 2
    (d * 3).sum().backward()
    return seen, d.grad


@case(one)
def clamped_behind_a_step(x):
    d = torch.zeros_like(x, requires_grad=True)
    optimizer = torch.optim.SGD([d], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        torch.tanh((x + d) @ WEIGHT).sum().backward()
        optimizer.step()
        d.data = d.data.clamp(-0.1, 0.1)
    return d.detach()


test_all = make_test(__name__)


def test_sets_of_tensors_at_a_break() -> None:
    """Lists of their elements in two orders were compared, tensor by tensor."""
    made = [torch.randn(2) for _ in range(40)]

    def fn(tensors):
        kept = {t for t in tensors if t.ndim == 1}
        kept.discard(tensors[3])
        jitpy.graph_break()
        return len(kept), tensors[4] in kept, tensors[3] in kept

    for count in range(20, 40):
        assert jitpy.jit(fn, backend="eager")(made[:count]) == fn(made[:count])


def test_guards_see_what_was_assigned_between_calls() -> None:
    p, x = nn.Parameter(torch.ones(4)), torch.ones(4)
    compiled = jitpy.jit(lambda x: p * x, backend="eager")
    for data in (torch.ones(4) * 2, torch.ones(4).double(), torch.ones(2, 4), torch.ones(8)[::2] * 3):
        p.data = data
        assert torch.equal(compiled(x), p * x) and compiled(x).dtype == (p * x).dtype


@pytest.mark.parametrize("data", [torch.ones(2), torch.ones(64).half(), torch.arange(128.0)[::2], torch.ones(8, 8)])
def test_backward_pass_does_not_read_beyond_what_was_assigned_behind_the_graph(data: torch.Tensor) -> None:
    """It took what it kept for the tensor that it was: with eight bytes of memory for 256."""
    x, w = torch.randn(64, requires_grad=True), torch.randn(64, requires_grad=True)
    y = jitpy.jit(lambda x, w: (x * w).sin() * w)(x, w)
    w.data = data
    with pytest.raises(RuntimeError, match="has been replaced"):
        y.sum().backward()


@pytest.mark.parametrize("name", ["tanh_", "exp_", "relu_", "sigmoid_"])
@pytest.mark.parametrize("part", [False, True])
def test_data_behind_the_graph_is_what_an_operation_in_place_kept(name: str, part: bool) -> None:
    def argument(x, h):
        getattr(h[1:] if part else h, name)()
        return x * 1

    def own(x, h):
        t = x * 2
        getattr(t[1:] if part else t, name)()
        return t

    for fn in (argument, own):
        found = []
        for run in (fn, jitpy.jit(fn, backend="eager")):
            x = torch.linspace(-1, 1, 4).requires_grad_()
            h = x * 2
            result = run(x, h)
            h.data.mul_(-3)
            result.data.mul_(-2)
            (result.sum() + h.sum()).backward()
            found.append(x.grad)
        assert torch.equal(*found)
