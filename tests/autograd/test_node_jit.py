"""Jitted functions whose results need gradients, in the hands of programs that use autograd in every way."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy

from .hand_made import eager
from .programs import PROGRAMS, Function, assert_same, grad, leaves, outcome


@pytest.mark.parametrize("fn", PROGRAMS, ids=[fn.__name__ for fn in PROGRAMS])
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_program(fn: Callable[[Function], Any]) -> None:
    assert_same(outcome(fn, jitpy.jit(eager)), outcome(fn, eager))


def is_compiled(tensor: torch.Tensor) -> bool:
    return tensor.grad_fn is not None and tensor.grad_fn.name() == "JitBackward"


def test_the_programs_meet_the_node():
    assert is_compiled(jitpy.jit(eager)(*leaves())[0])


def same_as_eager(fn: Function, program: Callable[[Function], Any], compiled: bool = True) -> None:
    """`program(fn)` gives the same with `fn` jitted; whether that is one node is checked too."""
    jitted = jitpy.jit(fn)
    assert_same(outcome(program, jitted), outcome(program, fn))


# -- grad mode and requires_grad are guarded -------------------------------------------------------------------


def test_modes_are_told_apart():
    F = jitpy.jit(lambda x, w: (x * w).sin())
    x, w = leaves()
    for _ in range(2):
        assert is_compiled(F(x, w))
        with torch.no_grad():
            assert F(x, w).grad_fn is None
        with torch.inference_mode():
            assert F(x, w).is_inference()
        assert F(x.detach(), w.detach()).grad_fn is None
        w.requires_grad_(False)
        y = F(x, w)
        assert is_compiled(y) and len(y.grad_fn.next_functions) == 1
        w.requires_grad_(True)


def test_nothing_is_saved_without_need():
    F = jitpy.jit(lambda x, w: (x * w).sin().exp())
    packed: list[torch.Tensor] = []
    x, w = leaves()
    F(x, w)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t), lambda t: t):
        with torch.no_grad():
            F(x, w)
        F(x.detach(), w.detach())
    assert not packed


@pytest.mark.parametrize("outer", [True, False])
def test_grad_modes_inside(outer):
    def fn(x, w):
        with torch.no_grad():
            a = x * w
        with torch.enable_grad():
            b = x.exp() * w
        return a * x, b, a

    def program(F):
        x, w = leaves()
        with torch.set_grad_enabled(outer):
            results = F(x, w)
        torch.stack([r.sum() for r in results if r.requires_grad]).sum().backward()
        return results, x.grad, w.grad

    same_as_eager(fn, program)


def test_detach_inside():
    def fn(x, w):
        return (x.detach() * w + x * w.detach()).sin(), (x * 2).detach()

    def program(F):
        x, w = leaves()
        y, d = F(x, w)
        gx, = grad(y.sum(), x, create_graph=True)
        (gx ** 2).sum().backward()
        return y, d, gx, x.grad, w.grad

    same_as_eager(fn, program)


# -- writes, views and aliases ---------------------------------------------------------------------------------


def in_place_on_intermediate(x, w):
    h = x * 2
    h.add_(w)
    h[0].mul_(3)
    return h.sin()


def in_place_on_input(x, w):
    x.mul_(w)
    return x.sin()


def view_of_input(x, w):
    return x.t(), x[0] * w[0]


def input_itself(x, w):
    return x, x * w


def two_views_of_one_result(x, w):
    h = x * w
    return h.t(), h[0], h


def the_same_twice(x, w):
    h = (x * w).exp()
    return h, h


def expanded(x, w):
    return x.sum().expand(3), w[:, :1].expand(2, 4) * x


def unused(x, w):
    return x.sin(), torch.zeros(3)


def constant_result(x, w):
    return torch.ones(2), x * w


def permuted(x, w):
    return (x * w).exp().t()


def chunks(x, w):
    return (x * w).exp().chunk(2)


def a_number(x, w):
    return (x * w).sum(), x.shape[0]


def makes_a_leaf(x, w):
    return (x.detach() * 2).requires_grad_() * w


WRITES = [in_place_on_intermediate, in_place_on_input, view_of_input, input_itself, two_views_of_one_result,
          the_same_twice, expanded, unused, constant_result, permuted, chunks, a_number, makes_a_leaf]


def use_leaves(F):
    x, w = leaves()
    results = F(x, w)
    parts = [results] if isinstance(results, torch.Tensor) else [r for r in results if isinstance(r, torch.Tensor)]
    torch.stack([(r * (i + 1)).sum() for i, r in enumerate(parts) if r.requires_grad]).sum().backward()
    return results, x.grad, w.grad


def use_intermediates(F):
    x, w = leaves()
    a, b = x * 1, w * 1
    results = F(a, b)
    parts = [results] if isinstance(results, torch.Tensor) else [r for r in results if isinstance(r, torch.Tensor)]
    torch.stack([(r * (i + 1)).sum() for i, r in enumerate(parts) if r.requires_grad]).sum().backward()
    return results, a, x.grad, w.grad


def write_into_results(F):
    x, w = leaves()
    results = F(x * 1, w * 1)
    parts = [results] if isinstance(results, torch.Tensor) else [r for r in results if isinstance(r, torch.Tensor)]
    for part in parts:
        if part.requires_grad:
            part.mul_(2)
    torch.stack([(r * (i + 1)).sum() for i, r in enumerate(parts) if r.requires_grad]).sum().backward()
    return results, x.grad, w.grad


def write_into_inputs(F):
    x, w = leaves()
    a, b = x * 1, w * 1
    results = F(a, b)
    a.mul_(2)
    b.mul_(2)
    parts = [results] if isinstance(results, torch.Tensor) else [r for r in results if isinstance(r, torch.Tensor)]
    torch.stack([(r * (i + 1)).sum() for i, r in enumerate(parts) if r.requires_grad]).sum().backward()
    return x.grad, w.grad


@pytest.mark.parametrize("program", [use_leaves, use_intermediates, write_into_results, write_into_inputs])
@pytest.mark.parametrize("fn", WRITES)
def test_writes_and_views(fn, program):
    same_as_eager(fn, program)


# -- modules ---------------------------------------------------------------------------------------------------


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(4, 4)
        self.b = torch.nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.norm = torch.nn.BatchNorm1d(4)
        self.b.bias.requires_grad_(False)
        self.unused = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.b(self.norm(self.a(x)).relu()).sigmoid()


def nets() -> tuple[Net, Net]:
    torch.manual_seed(0)
    plain = Net()
    jitted = Net()
    jitted.load_state_dict(plain.state_dict())
    jitted.forward = jitpy.jit(jitted.forward)
    return plain, jitted


def gradients_of(net: Net) -> list[torch.Tensor | None]:
    return [p.grad for p in net.parameters()]


def test_training_of_a_module():
    found = []
    for net in nets():
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        generator = torch.Generator().manual_seed(1)
        losses = []
        for i in range(20):
            x = torch.randn(8, 4, generator=generator)
            loss = net(x).pow(2).mean()
            optimizer.zero_grad(set_to_none=i % 2 == 0)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        found.append((losses, gradients_of(net), list(net.buffers())))
    torch.testing.assert_close(found[1], found[0])


def test_a_penalty_on_gradients_trains():
    found = []
    for net in nets():
        net.eval()
        optimizer = torch.optim.Adam(net.parameters(), 1e-2)
        generator = torch.Generator().manual_seed(1)
        losses = []
        for _ in range(10):
            x = torch.randn(8, 4, generator=generator, requires_grad=True)
            gx, = grad(net(x).sum(), x, create_graph=True)
            loss = ((gx.norm(dim=1) - 1) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        found.append((losses, gradients_of(net)))
    torch.testing.assert_close(found[1], found[0])


def test_a_penalty_with_dropout_uses_the_same_mask():
    def fn(x):
        return torch.nn.functional.dropout(x.sin() * x, 0.5).exp().sum()

    def program(F):
        torch.manual_seed(7)
        x, _ = leaves()
        y = F(x)
        gx, = grad(y, x, create_graph=True)
        return y, gx, grad(gx.sum(), x), torch.rand(2)

    same_as_eager(fn, program)


def test_checkpoint_around_a_jitted_module():
    from torch.utils.checkpoint import checkpoint

    found = []
    for net in nets():
        net.eval()
        x = torch.ones(3, 4, requires_grad=True)
        checkpoint(net, x, use_reentrant=False).sum().backward()
        found.append((x.grad, gradients_of(net)))
    torch.testing.assert_close(found[1], found[0])


def test_two_heads_free_what_eager_frees():
    """The loss of one head frees the trunk; the other head's own part can still run."""
    def fn(x, a, b):
        trunk = (x @ a).sin()
        return trunk.exp(), (trunk @ b).tanh()

    F = jitpy.jit(fn)
    found = []
    for function in (fn, F):
        x, a = torch.ones(3, 4, requires_grad=True), torch.full((4, 5), 0.1, requires_grad=True)
        b = torch.full((5, 2), 0.2, requires_grad=True)
        one, two = function(x, a, b)
        one.sum().backward()
        head = grad(two.sum(), b)
        found.append((x.grad, a.grad, b.grad, head, outcome(lambda _, t=two, a=a: grad(t.sum(), [a]), fn)))
    assert_same(found[1], found[0])


# -- lifetimes -------------------------------------------------------------------------------------------------


def test_a_thousand_steps_leak_nothing():
    _, net = nets()
    x = torch.randn(8, 4)

    def step() -> None:
        for p in net.parameters():
            p.grad = None
        net(x).sum().backward()

    for _ in range(20):
        step()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(1000):
        step()
    gc.collect()
    assert len(gc.get_objects()) <= before + 20


def test_intermediate_results_go_with_the_graph():
    F = jitpy.jit(lambda x, w: (x * w).exp().sin())
    x, w = leaves()
    F(x, w).sum().backward()
    gc.collect()
    gc.disable()
    try:
        h = x * 1
        alive = weakref.ref(h)
        loss = F(h, w).sum()
        del h
        loss.backward()
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("product", [torch.mm, torch.matmul, lambda a, b: torch.addmm(torch.ones(6), a, b, alpha=2)],
                         ids=["mm", "matmul", "addmm"])
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)])
def test_gradients_of_products_lie_as_the_factors_do(product: Any, turned: tuple[bool, bool]) -> None:
    torch.manual_seed(0)
    left = torch.randn(7, 5).t() if turned[0] else torch.randn(5, 7)
    right = torch.randn(6, 7).t() if turned[1] else torch.randn(7, 6)

    def strides(fn: Any) -> list[tuple[int, ...]]:
        factors = [one.detach().requires_grad_() for one in (left, right)]
        grads = torch.autograd.grad(fn(*factors).square().sum(), factors)
        return [grad.stride() for grad in grads]

    assert strides(jitpy.jit(product)) == strides(product)


class Moved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.cumsum(0)

    @staticmethod
    def backward(ctx, grad):
        return grad.flip(0).cumsum(0).flip(0)


def test_a_backward_that_moves_gradients_is_compiled():
    """It is known to be linear; else the whole graph would run op by op."""
    result = jitpy.jit(lambda x: Moved.apply(x).sin())(torch.randn(4, requires_grad=True))
    assert "Sin" not in result.grad_fn.name()


def test_without_native_code_graphs_run_under_autograd():
    """Autograd's nodes are native code: without it, graphs that need gradients run op by op."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    same = copy.deepcopy(model)

    def step(model: torch.nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = model(x)
        loss = y.pow(2).sum()
        return loss, y.detach() * loss  # a result that another one is computed from

    with jitpy.config.patch(native=False):
        jitted = jitpy.jit(step)
        for _ in range(3):
            x = torch.randn(5, 4)
            found, expected = jitted(model, x), step(same, x)
            found[0].backward()
            expected[0].backward()
            torch.testing.assert_close(found, expected)
            for one, other in zip(model.parameters(), same.parameters(), strict=True):
                torch.testing.assert_close(one.grad, other.grad)
    (variant,) = jitted.on_miss.engine.variants
    assert "native runtime" in str(variant.graph.lowered)
