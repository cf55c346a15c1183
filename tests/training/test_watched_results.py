"""Results of one call under whatever watches autograd: hooks of tensors and nodes, saved tensors, threads, errors."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.graph import get_gradient_edge, register_multi_grad_hook, saved_tensors_hooks

import jitpy

Fn = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
SCENARIOS: dict[str, Callable[[Fn, torch.Tensor], Any]] = {}


def scenario(run: Callable[[Fn, torch.Tensor], Any]) -> Callable[[Fn, torch.Tensor], Any]:
    SCENARIOS[run.__name__] = run
    return run


def program(x):
    y = x.sin()
    return y, (y * 3).exp(), x.cos()


@scenario
def a_hook_raises(fn, x):
    def refuse(grad: torch.Tensor) -> None:
        raise ValueError("not now")

    y, z, _ = fn(x)
    handle = y.register_hook(refuse)
    with pytest.raises(ValueError, match="not now"):
        z.sum().backward(retain_graph=True)
    handle.remove()
    z.sum().backward()
    return x.grad


@scenario
def a_hook_raises_and_the_rest_goes_on(fn, x):
    def refuse(grad: torch.Tensor) -> None:
        raise ValueError("not now")

    y, z, _ = fn(x)
    handle = y.register_hook(refuse)
    with pytest.raises(ValueError, match="not now"):
        z.sum().backward()
    handle.remove()
    y.sum().backward()
    return x.grad


@scenario
def hooks_of_results_that_no_gradient_reaches(fn, x):
    y, z, w = fn(x)
    seen: list[Any] = []
    w.register_hook(lambda g: seen.append(("w", g)))
    y.register_hook(lambda g: seen.append(("y", g)))
    y.sum().backward(retain_graph=True)
    w.sum().backward(retain_graph=True)
    return seen, x.grad


@scenario
def a_hook_of_several(fn, x):
    y, z, w = fn(x)
    seen: list[Any] = []
    register_multi_grad_hook((y, z, w), seen.append)
    z.sum().backward(retain_graph=True)
    (w * y).sum().backward()
    return seen


@scenario
def hooks_before_nodes(fn, x):
    y, z, w = fn(x)
    seen: list[Any] = []
    y.grad_fn.register_prehook(lambda grads: seen.append(grads[0]))
    z.grad_fn.register_prehook(lambda grads: (grads[0] * 2,))
    (z + w).sum().backward()
    return seen, x.grad


@scenario
def hooks_behind_nodes(fn, x):
    y, z, w = fn(x)
    y.grad_fn.register_hook(lambda made, given: (made[0] * 2,))
    (z + w).sum().backward()
    return x.grad


@scenario
def in_another_thread(fn, x):
    y, z, w = fn(x)
    seen: list[Any] = []
    y.register_hook(seen.append)
    thread = threading.Thread(target=lambda: (z + y + w).sum().backward())
    thread.start()
    thread.join()
    return seen, x.grad


@scenario
def in_several_threads(fn, x):
    y, z, _ = fn(x)
    threads = [threading.Thread(target=lambda: z.sum().backward(retain_graph=True)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return x.grad


@scenario
def packed(fn, x):
    with saved_tensors_hooks(lambda t: t.clone(), lambda t: t * 1):
        y, z, w = fn(x)
    seen: list[Any] = []
    y.register_hook(seen.append)
    (z + y + w).sum().backward()
    return seen, x.grad


@scenario
def unpacking_raises(fn, x):
    def unpack(packed: Any) -> Any:
        raise KeyError("gone")

    with saved_tensors_hooks(lambda t: t, unpack):
        y, z, _ = fn(x)
    with pytest.raises(KeyError, match="gone"):
        z.sum().backward()


@scenario
def edges(fn, x):
    y, z, _ = fn(x)
    return (torch.autograd.grad(z.sum(), [get_gradient_edge(y)], retain_graph=True),
            torch.autograd.grad(get_gradient_edge(z), [x], torch.ones(4)))


@scenario
def batches_of_gradients(fn, x):
    y, z, _ = fn(x)
    return torch.autograd.grad(z, (y, x), torch.eye(4), is_grads_batched=True)


@scenario
def detached_afterwards(fn, x):
    y, z, _ = fn(x)
    y.detach_()
    z.sum().backward()
    return y.requires_grad, x.grad


@scenario
def freed(fn, x):
    y, z, w = fn(x)
    alive = [weakref.ref(t) for t in (y, z, w)]
    (z + w).sum().backward()
    del y, z, w
    gc.collect()
    return [ref() is None for ref in alive]


@scenario
def freed_after_second_derivatives(fn, x):
    y, z, w = fn(x)
    alive = [weakref.ref(t) for t in (y, z, w)]
    grads = torch.autograd.grad((z + w).sum(), (y, x), create_graph=True)
    del y, z, w, grads
    gc.collect()
    return [ref() is None for ref in alive]


@pytest.mark.parametrize("backend", ["codegen", "eager"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_like_eager(name, backend):
    jitpy.reset()
    found, expected = (SCENARIOS[name](fn, torch.arange(1.0, 5.0).requires_grad_())
                       for fn in (jitpy.jit(program, backend=backend), program))
    torch.testing.assert_close(_numbers(found), _numbers(expected), rtol=1e-4, atol=1e-5)


def _numbers(value: Any) -> Any:
    """`assert_close` compares no None and no text."""
    if isinstance(value, (tuple, list)):
        return [_numbers(item) for item in value]
    if isinstance(value, (torch.Tensor, float)):
        return torch.as_tensor(value)
    return torch.tensor([ord(c) for c in str(value)])


# -- autograd functions that write to their arguments, or take undefined gradients -----------------------------------


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.mark_dirty(a)
        ctx.save_for_backward(b)
        a.add_(b)
        return a, a * b

    @staticmethod
    def backward(ctx, first, second):
        b, = ctx.saved_tensors
        return first + second * b, first + second * b


class Undefined(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        found = [grad * k for grad, k in ((first, 2), (second, 3)) if grad is not None]
        return sum(found) if found else None


def written_and_used(x):
    y = x * 2
    z = Twice.apply(y)
    return y, z.sin()


def written_through_a_view(x):
    y = x.sin()
    Twice.apply(y.view(-1))
    return y, y * 2


def written_and_another(x):
    a = x * 2
    c, d = Sum.apply(a, x.cos())
    return a, c, d, (c * d).sum()


def saved_and_written(x):
    y = x.exp()
    y2 = y * y
    Twice.apply(y)
    return y, y2


def a_leaf(x):
    return (Twice.apply(x),)


def one_of_two(x):
    a, b = Undefined.apply(x.sin())
    return a.exp(), b


@pytest.mark.parametrize("backend", ["codegen", "eager"])
@pytest.mark.parametrize("fn", [written_and_used, written_through_a_view, written_and_another, saved_and_written,
                                a_leaf, one_of_two])
def test_functions(fn, backend):
    def run(fn: Fn, only: int | None) -> Any:
        x = torch.arange(1.0, 5.0).requires_grad_()
        try:
            results = fn(x)
            seen: list[Any] = []
            for t in results:
                t.register_hook(seen.append)
            sum(t.sum() for t in results[only:]).backward()
        except RuntimeError as error:
            return str(error)[:60]
        return [t.detach() for t in results], sorted(g.sum().item() for g in seen), x.grad

    jitpy.reset()
    jitted = jitpy.jit(fn, backend=backend)
    for only in (None, -1):
        torch.testing.assert_close(_numbers(run(jitted, only)), _numbers(run(fn, only)), rtol=1e-4, atol=1e-5)
