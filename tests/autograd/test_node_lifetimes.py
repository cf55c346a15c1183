"""How long the autograd node keeps what, which backward passes it makes, and threads."""

from __future__ import annotations

import dataclasses
import gc
import threading
import weakref
from typing import Any

import pytest
import torch

from jitpy.runtime.autograd_node import make_differentiable

from .hand_made import MUL, SIN, Passes, eager, made, spec
from .programs import Function, assert_same, backward_of_all, grad, gradient_penalty, leaves


class Token:
    """What a saved tensor is packed into: it goes when the node frees it."""

    living: weakref.WeakSet[Token] = weakref.WeakSet()

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.detach()  # not its history, which leads to the node
        Token.living.add(self)


def with_tokens(F: Function, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    Token.living.clear()
    with torch.autograd.graph.saved_tensors_hooks(Token, lambda token: token.tensor):
        return F(x, w)


def test_saved_tensors_go_with_the_backward_pass():
    s, _, e = with_tokens(made(), *leaves())
    assert Token.living
    total = s.sum() + e.sum()
    total.backward(retain_graph=True)
    assert Token.living
    total.backward()
    assert not Token.living


def test_saved_tensors_go_with_the_results():
    results = with_tokens(made(), *leaves())
    assert Token.living
    del results
    assert not Token.living


def test_nothing_is_saved_where_no_gradient_is_needed():
    with_tokens(made(), *leaves(False, False))
    assert not Token.living


def test_inputs_are_not_held_after_the_backward_pass():
    F = made()
    x, w = leaves()
    h = x * 1
    s, _, e = F(h, w)
    alive = weakref.ref(h)
    del h
    assert alive() is not None
    (s.sum() + e.sum()).backward()
    assert alive() is None, "the inputs for a differentiable pass are still held"


def test_no_cycles():
    F = made()
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            x, w = leaves()
            s, index, e = F(x, w)
            alive = [weakref.ref(t) for t in (x, w, s, e)]
            (s * e).sum().backward()
            gx, = grad(F(x, w)[0].sum(), x, create_graph=True)
            del x, w, s, index, e, gx
            assert not any(ref() is not None for ref in alive)
    finally:
        gc.enable()


def test_a_thousand_steps_leak_nothing():
    F = made()
    x, w = leaves()

    def step(i: int) -> None:
        s, _, e = F(x, w)
        if i % 10 == 0:
            gx, = grad((s * e).sum(), x, create_graph=True)
            (gx ** 2).sum().backward()
        elif i % 10 != 1:  # some are dropped without a backward pass
            (s * e).sum().backward()

    for i in range(50):
        step(i)
    gc.collect()
    before = len(gc.get_objects())
    resident = _resident()
    for i in range(1000):
        step(i)
    gc.collect()
    assert len(gc.get_objects()) <= before + 20
    assert _resident() - resident < 8 << 20


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_the_function_goes_when_the_last_result_goes():
    F = made()
    passes = weakref.ref(F.spec.backward)
    s = F(*leaves())[0]
    del F
    gc.collect()
    assert passes() is not None
    s.sum().backward()
    del s
    gc.collect()
    assert passes() is None


def test_a_long_chain_is_freed_without_recursion():
    F = made()
    x, w = leaves()
    y = x
    for _ in range(20_000):
        y = F(y, w)[0]
    y.sum().backward()
    assert x.grad is not None
    del y


# -- passes that are made --------------------------------------------------------------------------------------


def test_each_pass_is_made_once_and_only_what_is_asked():
    passes = Passes()
    F = made(backward=passes)
    x, w = leaves()
    for _ in range(3):
        F(x, w)[0].sum().backward()
        grad(F(x, w)[0].sum(), x)
        grad(F(x, w)[2].sum(), x)
    assert sorted(passes.made) == [(1, 1), (1, 3), (2, 1)]


def test_a_leaf_that_needs_none_is_not_asked_for():
    passes = Passes()
    x, w = leaves(True, False)
    made(backward=passes)(x, w)[0].sum().backward()
    assert passes.made == [(1, 1)]


def test_many_inputs_make_wide_masks():
    count = 150

    def forward(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (sum(tensors[1:], tensors[0]),)

    def backward(defined: int, wanted: int) -> Any:
        assert defined == 1
        return lambda g: [g * (i + 1) for i in range(count) if wanted >> i & 1]

    F = make_differentiable(
        forward, spec(n_inputs=count, n_outputs=1, saved=(), grad_outputs=(0,), grad_inputs=tuple(range(count)),
                      backward=backward, eager=None, kept=(), paths=None))
    tensors = [torch.zeros(2, requires_grad=i % 3 != 0) for i in range(count)]
    y, = F(*tensors)
    y.sum().backward()
    for i, tensor in enumerate(tensors):
        assert tensor.grad is None if i % 3 == 0 else tensor.grad.tolist() == [i + 1.0, i + 1.0]
    g, = grad(F(*tensors)[0].sum(), [tensors[133]])
    assert g.tolist() == [134.0, 134.0]


def test_a_backward_pass_that_cannot_be_made():
    def backward(defined: int, wanted: int) -> Any:
        raise ZeroDivisionError("no such pass")

    s = made(backward=backward)(*leaves())[0].sum()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="no such pass"):
            s.backward()


def test_too_few_gradients():
    F = made(backward=lambda defined, wanted: lambda *values: [])
    with pytest.raises(RuntimeError, match="too few"):
        F(*leaves())[0].sum().backward()


def test_no_second_derivative():
    F = made(eager=None)
    x, w = leaves()
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        grad(F(x, w)[0].sum(), x, create_graph=True)


def test_watched_tensors_are_checked_and_not_held():
    paths = dataclasses.replace(spec().paths(), watched=(MUL, SIN))
    F = made(watched=(("output", 0, ""), ("input", 0, "")), paths=lambda: paths)
    x, w = leaves()
    s = F(x, w)[0]
    total = s.sum()
    s.mul_(2)
    with pytest.raises(RuntimeError, match=r"inplace operation: \[torch.DoubleTensor \[2, 4\]\], which is output 0 of "
                                           r"Jit(Backward)?, is at version 1; expected version 0"):
        total.backward()
    s = F(x, w)[0].sum()
    with torch.no_grad():
        x.view(-1)[0] = 1  # a view shares the version
    with pytest.raises(RuntimeError, match=r"\[torch.DoubleTensor \[2, 4\]\] is at version 1"):
        s.backward()


def test_a_saved_intermediate_in_the_memory_of_a_result():
    """exp(x).t() is returned and exp(x) kept: changing the one is noticed by the other."""
    def forward(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = x.exp()
        return h.detach().t(), h

    F = make_differentiable(forward, spec(
        n_inputs=1, n_outputs=1, saved=(("extra", 0),), grad_outputs=(0,), grad_inputs=(0,), kept=(), eager=None,
        paths=None, backward=lambda defined, wanted: lambda h, g: [g.t() * h]))
    x, _ = leaves()
    y, = F(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, x.exp())
    y, = F(x)
    assert not y._is_view()
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_numbers_are_saved_as_they_are():
    F = make_differentiable(lambda x, n: (x * n, n + 1, 2.5), spec(
        n_inputs=2, n_outputs=1, saved=(("extra", 0), ("input", 1), ("extra", 1)), grad_outputs=(0,), grad_inputs=(0,),
        kept=(), eager=None, paths=None, backward=lambda d, w: lambda m, n, half, g: [g * (n + m * 10 + half)]))
    x, _ = leaves()
    F(x, 3)[0].sum().backward()
    assert x.grad.unique().tolist() == [45.5]


def test_arguments_are_checked():
    F = made()
    x, w = leaves()
    with pytest.raises(TypeError, match="takes 2 positional arguments, got 1"):
        F(x)
    with pytest.raises(ValueError, match="no such inputs"):
        spec(kept=(2,))
    with pytest.raises(ValueError, match="no output 3"):
        spec(saved=(("output", 3),))


def test_random_numbers_are_drawn_again_for_a_differentiable_pass():
    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x ** 3 * torch.rand_like(x),)

    F = make_differentiable(run, spec(
        n_inputs=1, n_outputs=1, saved=(), grad_outputs=(0,), grad_inputs=(0,), kept=(0,), random=True,
        eager=lambda: run, paths=None, backward=lambda d, w: lambda g: [g]))
    found = []
    for function in (run, F):
        torch.manual_seed(5)
        x, _ = leaves()
        y, = function(x)
        noise = torch.rand(3)
        g, = grad(y.sum(), x, create_graph=True)
        found.append((y, g, grad(g.sum(), x)[0], noise, torch.rand(3)))
    assert_same(found[1], found[0])


# -- threads ---------------------------------------------------------------------------------------------------


def test_threads():
    F = made()
    expected = [t.clone() for t in backward_of_all(eager)]
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(50):
                assert_same([t.clone() for t in backward_of_all(F)], expected)
                assert_same(gradient_penalty(F)[0].shape, torch.Size([2, 4]))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_one_graph_from_two_threads():
    x, w = leaves()
    s = made()(x, w)[0].sum()
    threads = [threading.Thread(target=lambda: s.backward(retain_graph=True)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reference, _ = leaves()
    eager(reference, w)[0].sum().backward()
    torch.testing.assert_close(x.grad, 8 * reference.grad)
