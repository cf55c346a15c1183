"""`torch.utils.checkpoint` captured: values, gradients, random numbers, and what is kept. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import collections
import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import jitpy
from tests.semantics.harness import CASES, case, check, make_test

LOG: Any = None


def leaf():
    return (torch.randn(3, 4, requires_grad=True),)


def plain():
    return (torch.randn(5, 4),)


def net(dropout=0.0):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 4), nn.LayerNorm(4))


@case(leaf, plain, factory=True, fullgraph=True)
def region_of_a_module():
    module = net()
    return (lambda x: checkpoint(module, x, use_reentrant=False) * 2), module


@case(leaf, factory=True, fullgraph=True)
def region_with_dropout():
    module = net(0.5)
    return (lambda x: checkpoint(module, x, use_reentrant=False) * torch.rand(4)), module


@case(leaf, factory=True, fullgraph=True)
def regions_in_a_row():
    modules = nn.Sequential(*(net(0.2) for _ in range(4)))
    return (lambda x: checkpoint_sequential(modules, 2, x, use_reentrant=False)), modules


@case(leaf, factory=True, fullgraph=True)
def regions_inside_each_other():
    module = net(0.2)

    def inner(x):
        return checkpoint(module, x, use_reentrant=False).exp()

    return (lambda x: checkpoint(inner, x, use_reentrant=False).sum()), module


@case(lambda: (torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)), fullgraph=True)
def region_of_keywords(x, y):
    def part(a, b=None, scale=1.0):
        return (a * b).exp() * scale, a.view(4, 3), {"b": b + 1}

    return checkpoint(part, x, b=y, scale=3.0, use_reentrant=False)


@case(leaf, fullgraph=True)
def region_returns_its_argument(x):
    y = checkpoint(lambda t: t, x, use_reentrant=False)
    return y is x, y * 2


@case(leaf, fullgraph=True)
def region_without_gradients(x):
    with torch.no_grad():
        return checkpoint(torch.sin, x, use_reentrant=False)


# -- use_reentrant=True


@case(leaf, factory=True, fullgraph=True)
def reentrant_region_of_a_module():
    module = net(0.3)
    return (lambda x: checkpoint(module, x, use_reentrant=True) * torch.rand(4)), module


@case(leaf, factory=True, fullgraph=True)
def reentrant_regions_in_a_row():
    modules = nn.Sequential(*(net(0.2) for _ in range(4)))
    return (lambda x: checkpoint_sequential(modules, 2, x, use_reentrant=True)), modules


@case(leaf, factory=True, fullgraph=True)
def reentrant_regions_inside_each_other():
    module = net(0.2)

    def inner(x):
        return checkpoint(module, x, use_reentrant=True).exp()

    return (lambda x: checkpoint(inner, x, use_reentrant=True).sum()), module


@case(leaf, factory=True, rounds=3, fullgraph=True)
def reentrant_region_and_backward_inside():
    module = net(0.2)

    def fn(x):
        checkpoint(module, x.sin(), use_reentrant=True).square().sum().backward()
        return x.grad, [p.grad for p in module.parameters()]

    return fn, module


@case(lambda: (torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)), fullgraph=True)
def reentrant_region_of_several_results(x, y):
    a, b, flag = checkpoint(lambda s, t, n: (s * t, (s + t).argmax(1), n), x, y, True, use_reentrant=True)
    return a.exp(), b, flag


@case(plain, factory=True)
def reentrant_region_without_an_argument_that_requires_grad():
    module = net()
    return (lambda x: checkpoint(module, x, use_reentrant=True)), module


@case(leaf)
def reentrant_region_asks_about_grad_mode(x):
    return checkpoint(lambda t: t.sin() if torch.is_grad_enabled() else t.cos(), x, use_reentrant=True)


@case(leaf)
def reentrant_region_reads_another_history(x):
    y = x.exp()
    return checkpoint(lambda t: t.sin() * y, x, use_reentrant=True)


@case(leaf)
def reentrant_region_with_a_free_result(x):
    made, free = checkpoint(lambda t: (t.sin(), torch.ones(2)), x, use_reentrant=True)
    return made, free, free.requires_grad


@case(leaf)
def reentrant_region_returns_its_argument(x):
    y = checkpoint(lambda t: t, x, use_reentrant=True)
    return y is x, y * 2


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("create_graph", [False, True])
def test_reentrant_regions_refuse_passes_to_some_leaves(create_graph: bool, inside: bool) -> None:
    def loss_of(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda t: t.sin().exp(), x, use_reentrant=True).sum()

    def gradient(x: torch.Tensor) -> Any:
        return torch.autograd.grad(loss_of(x), x, create_graph=create_graph)

    messages = []
    for jitted in (False, True):
        run = jitpy.jit(loss_of, fullgraph=True) if jitted else loss_of
        x = torch.randn(3, requires_grad=True)
        with pytest.raises(RuntimeError) as caught:
            if inside and jitted:
                jitpy.jit(gradient)(x)
            else:
                torch.autograd.grad(run(x), x, create_graph=create_graph)
        messages.append(str(caught.value))
        run(x).backward()
        assert x.grad is not None
    assert messages[0] == messages[1]


class Double(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.exp())
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0]


@case(leaf, fullgraph=True)
def region_with_a_function(x):
    return checkpoint(lambda t: Double.apply(t.sin()).exp(), x, use_reentrant=False)


@case(leaf, globals={"LOG": list}, breaks=("autograd",))
def region_with_an_effect(x):
    def part(y):
        LOG.append("run")
        return y.sin().exp()

    return checkpoint(part, x, use_reentrant=False)


@case(leaf, factory=True)
def region_with_statistics():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    return (lambda x: checkpoint(module, x, use_reentrant=False)), module


@case(leaf)
def region_breaks(x):
    def part(y):
        z = y.sin()
        jitpy.graph_break()
        return z.exp()

    return checkpoint(part, x, use_reentrant=False)


@case(leaf)
def region_raises(x):
    def part(y):
        raise ValueError("inside")

    try:
        return checkpoint(part, x, use_reentrant=False)
    except ValueError as error:
        return str(error)


@case(leaf, factory=True)
def reentrant_region():
    module = net(0.5)
    return (lambda x: checkpoint(module, x, use_reentrant=True)), module


@case(leaf, factory=True)
def region_with_other_masks():
    module = net(0.5)
    return (lambda x: checkpoint(module, x, use_reentrant=False, preserve_rng_state=False).detach()), module


test_cases = make_test(__name__)


@pytest.mark.parametrize("name", [
    "region_of_a_module", "region_with_dropout", "regions_in_a_row", "regions_inside_each_other", "region_of_keywords",
    "region_returns_its_argument", "region_with_a_function",
])
def test_compiled(name):
    """The same through the C++ backend."""
    check(next(one for one in CASES[__name__] if one.fn.__name__ == name), "codegen")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.3))

    def forward(self, x):
        return x + self.inner(self.norm(x))


def _kept(fn, parameters, x, *options):
    """Bytes that the backward pass of a call holds, parameters and arguments aside; and what the call returns."""
    known = {t.untyped_storage()._cdata for t in (*parameters, x)}
    kept: dict[int, int] = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = fn(x, *options)
    return sum(kept.values()), result


def test_a_stack_keeps_its_inputs():
    """What regions keep is what they take, and the state of the generator; gradients are eager's for the same seed."""
    torch.manual_seed(0)
    blocks = nn.ModuleList(Block(16) for _ in range(4))
    x = torch.randn(64, 16, requires_grad=True)

    def stack(x, regions):
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False) if regions else block(x)
        return x.square().sum()

    fn = jitpy.jit(stack, fullgraph=True)
    parameters = list(blocks.parameters())
    found = []
    for run, regions in ((stack, True), (fn, True), (fn, True), (fn, False)):
        torch.manual_seed(1)
        kept, loss = _kept(run, parameters, x, regions)
        drawn = torch.rand(3)
        found.append((kept, (loss.detach(), drawn, torch.autograd.grad(loss, [x, *parameters]), torch.rand(3))))
    for _, results in found[1:]:
        torch.testing.assert_close(results, found[0][1], rtol=1e-4, atol=1e-5)
    eager, compiled, everything = found[0][0], found[2][0], found[3][0]
    state = torch.get_rng_state().numel()
    activation = x.numel() * 4
    assert compiled <= eager + 4 * state + activation
    assert compiled <= 4 * (activation + state) < everything / 2


def test_masks_are_drawn_again_where_memory_is_short():
    """Below a budget of 1.0 the state of the generator may be kept instead of masks."""
    torch.manual_seed(0)
    x = torch.randn(256, 256, requires_grad=True)

    def fn(x):
        for _ in range(3):
            x = nn.functional.dropout(x.sin(), 0.4)
        return x.sum()

    found = []
    for run, budget in ((fn, 1.0), (jitpy.jit(fn), 1.0), (jitpy.jit(fn), 0.1)):
        with jitpy.config.patch(activation_memory_budget=budget):
            torch.manual_seed(1)
            kept, loss = _kept(run, (), x)
            found.append((kept, (loss.detach(), torch.autograd.grad(loss, x), torch.rand(3))))
    for _, results in found[1:]:
        torch.testing.assert_close(results, found[0][1], rtol=1e-4, atol=1e-3)
    assert found[2][0] < found[1][0] / 4


class _Counting(nn.Module):
    """A layer whose region is run by torch itself, because it has an effect."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))
        self.runs = 0

    def block(self, x):
        self.runs += 1
        return self.inner(x * 2 + 1).sin()

    def block_sum(self, x):
        return self.block(x).sum()

    def forward(self, x, reentrant):
        return checkpoint(lambda y: self.block(y), x, use_reentrant=reentrant).cos() + 1


@pytest.mark.parametrize("inside", [False, True], ids=["pass outside", "pass inside"])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("before", [False, True], ids=["first in the region", "first outside"])
def test_regions_run_by_torch_keep_the_same_tensors_twice(before: bool, reentrant: bool, inside: bool) -> None:
    """What a region calls is compiled neither when it runs nor when it runs again."""
    def run(wrap):
        torch.manual_seed(0)
        layer = _Counting()

        def step(x):
            if before:
                sorted([x], key=layer.block_sum)  # called by C code: compiled on its own
            loss = layer(x, reentrant).sum()
            if inside:
                loss.backward()
            return loss

        call = wrap(step)
        for _ in range(2):
            x = torch.randn(3, 4, requires_grad=True)
            loss = call(x)
            if not inside:
                loss.backward()
        return loss.detach(), x.grad, layer.runs, [p.grad for p in layer.parameters()], list(layer.buffers())

    torch.testing.assert_close(run(jitpy.jit), run(lambda fn: fn), rtol=1e-4, atol=1e-5)


def _counts():
    number = 0
    while True:
        number += 1
        yield number


@pytest.mark.parametrize("effect", [
    lambda: (deque := collections.deque([0]), lambda: deque.append(1), lambda: len(deque)),
    lambda: (numbers := zip([1, 2, 3, 4], [5, 6, 7, 8]), lambda: next(numbers), lambda: next(numbers)),
    lambda: (numbers := _counts(), lambda: next(numbers), lambda: next(numbers)),
    lambda: (append := functools.partial([].append, 1), lambda: append(), lambda: len(append.func.__self__)),
    lambda: (error := ValueError(), lambda: setattr(error, "args", (*error.args, 1)), lambda: error.args),
], ids=["deque", "zip", "generator", "partial", "exception"])
def test_effects_of_regions_are_repeated(effect: Any) -> None:
    """The backward pass runs a region again, with its effect on an object that the program made."""

    def fn(x):
        _, act, look = effect()

        def region(y):
            act()
            return (y * 2).sin()

        checkpoint(region, x, use_reentrant=False).sum().backward()
        return look()

    x = torch.randn(3, requires_grad=True)
    assert jitpy.jit(fn)(x) == fn(x)


@pytest.mark.parametrize("name", ["embedding", "gather", "inverse", "nothing"])
def test_torch_checkpoints_a_compiled_function_that_may_raise(name: str) -> None:
    """The checkpoint ends the second run by an exception when it has all tensors: that is no failure of the graph."""
    index = torch.tensor([0, 1, 2, 1])
    functions: dict[str, Any] = {
        "embedding": lambda x: torch.nn.functional.embedding(index, x),
        "gather": lambda x: x.gather(0, index[:, None]),
        "inverse": lambda x: torch.linalg.inv(x @ x.t() + torch.eye(4)).sin(),
        "nothing": torch.asinh,
    }
    function = functions[name]
    compiled = jitpy.jit(function)
    for _ in range(3):
        x = torch.randn(0 if name == "nothing" else 4, 3, requires_grad=True)
        result = checkpoint(compiled, x, use_reentrant=False)
        found, = torch.autograd.grad(result.sum(), x)
        expected, = torch.autograd.grad(function(x).sum(), x)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
