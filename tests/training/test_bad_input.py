"""Mistakes in training code: what eager raises is raised at the same place, around compiled calls and inside."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import Function

import jitpy

Program = Callable[[Callable[..., Any]], Any]


@pytest.fixture(autouse=True)
def clean():
    jitpy.reset()
    yield
    jitpy.reset()


def leaf() -> torch.Tensor:
    return torch.tensor([0.5, 1.0, 2.0], requires_grad=True)


def outcome(program: Program, fn: Callable[..., Any]) -> str:
    try:
        program(fn)
    except Exception as error:
        # the compiled graph is one node, which bears its own name
        text = re.sub(r"output \d of \w+,", "output of a node,", str(error))
        return f"{type(error).__name__}: {text}"
    return "nothing raised"


def check(program: Program, fn: Callable[..., Any], raises: bool = True) -> None:
    wanted = outcome(program, fn)
    assert (wanted != "nothing raised") == raises
    for backend in ("codegen", "eager"):
        jitted = jitpy.jit(fn, backend=backend)
        for _ in range(3):
            assert outcome(program, jitted) == wanted, backend


# -- the mistake lies outside ---------------------------------------------------------------------------------------


def twice(fn):
    loss = fn(leaf()).sum()
    loss.backward()
    loss.backward()


def input_changed(fn):
    h = leaf().exp()
    result = fn(h)
    h.add_(1)
    result.sum().backward()


def parameter_changed(fn):
    x = leaf()
    result = fn(x)
    with torch.no_grad():
        x.add_(1)
    result.sum().backward()


def result_changed(fn):
    result = fn(leaf())
    result.mul_(2)
    result.sum().backward()


def no_scalar(fn):
    fn(leaf()).backward()


def wrong_shape(fn):
    fn(leaf()).backward(torch.ones(4))


def no_gradients(fn):
    fn(torch.ones(3)).sum().backward()


def no_grad_mode(fn):
    with torch.no_grad():
        result = fn(leaf())
    result.sum().backward()


def unused_input(fn):
    torch.autograd.grad(fn(leaf()).sum(), [leaf()])


def no_inputs(fn):
    torch.autograd.grad(fn(leaf()).sum(), [])


@pytest.mark.parametrize("program", [twice, input_changed, parameter_changed, no_scalar, wrong_shape, no_gradients,
                                     no_grad_mode, unused_input, no_inputs])
def test_mistakes_around_a_call(program):
    check(program, lambda x: x * x)


def test_a_saved_result_is_changed():
    check(result_changed, lambda x: x.exp())


def test_numbers_of_another_dtype_are_taken():
    check(lambda fn: fn(leaf()).backward(torch.ones(3, dtype=torch.int64)), lambda x: x * x, raises=False)


# -- the mistake lies inside ----------------------------------------------------------------------------------------


def backward_twice(x, y):
    loss = (x * y).sum()
    loss.backward()
    loss.backward()


def saved_input_changed(x, y):
    h = x.exp()
    z = h * h
    h.add_(1)
    z.sum().backward()


def saved_result_changed(x, y):
    z = x.exp()
    z.mul_(2)
    z.sum().backward()


def saved_parameter_changed(x, y):
    z = (x * y).sum()
    with torch.no_grad():
        y.add_(1)
    z.backward()


def step_before_backward(x, y):
    opt = torch.optim.SGD([x], lr=0.1)
    loss = (x * x * y).sum()
    loss.backward(retain_graph=True)
    opt.step()
    loss.backward()


def leaf_changed(x, y):
    x.mul_(2)


def view_of_leaf_changed(x, y):
    x[0] = 1


def vector(x, y):
    (x * y).backward()


def no_history(x, y):
    (x.detach() * y.detach()).sum().backward()


def gradient_of_another_shape(x, y):
    (x * y).backward(torch.ones(4))


def unused(x, y):
    torch.autograd.grad((x * 2).sum(), [x, y])


def of_no_inputs(x, y):
    torch.autograd.grad((x * y).sum(), [])


def into_no_inputs(x, y):
    (x * y).sum().backward(inputs=[])


def gradient_assigned(x, y):
    x.grad = torch.ones(4)


def history_taken_away(x, y):
    (x * y).requires_grad_(False)


INSIDE = (
    backward_twice, saved_input_changed, saved_result_changed, saved_parameter_changed, step_before_backward,
    leaf_changed, view_of_leaf_changed, vector, no_history, gradient_of_another_shape, unused, of_no_inputs,
    into_no_inputs, gradient_assigned, history_taken_away,
)


@pytest.mark.parametrize("step", INSIDE)
def test_mistakes_inside_a_step(step):
    check(lambda fn: fn(leaf(), leaf()), step)


# -- autograd functions ---------------------------------------------------------------------------------------------


class Double(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class WrongShape(Double):
    @staticmethod
    def backward(ctx, grad):
        return torch.ones(4)


class TooMany(Double):
    @staticmethod
    def backward(ctx, grad):
        return grad, grad


class NoTensor(Double):
    @staticmethod
    def backward(ctx, grad):
        return 3


class Raising(Double):
    @staticmethod
    def backward(ctx, grad):
        raise ValueError("mine")


class SavesNumber(Double):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(3)
        return x * 2


class NoBackward(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2


@pytest.mark.parametrize("inside", [False, True], ids=["backward outside", "captured step"])
@pytest.mark.parametrize("kind", [WrongShape, TooMany, NoTensor, Raising, SavesNumber, NoBackward])
def test_mistakes_of_autograd_functions(kind, inside):
    if inside:
        check(lambda fn: fn(leaf()), lambda x: kind.apply(x).sum().backward())
    else:
        check(lambda fn: fn(leaf()).backward(), lambda x: kind.apply(x).sum())
