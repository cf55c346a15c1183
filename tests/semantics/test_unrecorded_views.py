"""Views of parameters that were made under no_grad: to eager they require grad and are leaves, without a gradient."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy
from tests.counting import variants


@jitpy.disable
def look(*_: Any) -> None:
    """A break."""


#: (program of a parameter and a number, variants allowed; None: any)
CASES: dict[str, tuple[Callable[..., Any], int | None]] = {}


def case(allowed: int | None) -> Any:
    def register(function: Any) -> Any:
        CASES[function.__name__] = function, allowed
        return function

    return register


@case(2)
def used_under_no_grad(p, x):
    with torch.no_grad():
        v = p.view(2, 2)
        look()
        y = x * v
        return (y.sin() + v).sum() + v.mean()


@case(3)
def used_behind_several_breaks(p, x):
    with torch.no_grad():
        v = p[:2].unsqueeze(0)
        look()
        y = x * v
        look()
        return y + v.exp()


@case(2)
def what_it_says_of_itself(p, x):
    with torch.no_grad():
        v = p.view(2, 2)
        look()
        return x * v, v.requires_grad, v.shape


@case(None)
def whether_it_is_a_leaf(p, x):
    with torch.no_grad():
        v = p.view(2, 2)
        look()
        return x * v, v.is_leaf, v.grad_fn is None, v.grad is None


@case(2)
def a_view_of_the_view(p, x):
    with torch.no_grad():
        v = p.view(2, 2)
        look()
        return v[0] + x, v.t() * x


@case(2)
def returned(p, x):
    with torch.no_grad():
        v = p.view(2, 2)
        look()
        x = x + v
    return v, x


@case(2)
def detached(p, x):
    with torch.no_grad():
        v = p.view(2, 2)
    look()
    return v.detach() * x


@case(None)
def used_under_grad(p, x):
    with torch.no_grad():
        v = p.view(2, 2)
    look()
    return x * v + p.sum()


@case(None)
def alone_under_grad(p, x):
    with torch.no_grad():
        v = p.view(2, 2)
    look()
    return x * v


@case(None)
def used_under_grad_without_a_break(p, x):
    with torch.no_grad():
        v = p.view(2, 2)
    return x * v + p.sum()


@case(None)
def written_through(p, x):
    with torch.no_grad():
        v = p.view(2, 2)
        look()
        v.mul_(2)
        y = v + x
    return y + p.sum().detach()


@case(None)
def its_base_is_written(p, x):
    with torch.no_grad():
        v = p.view(2, 2)
        look()
        p.mul_(2)
        return v + x


@case(None)
def its_base_is_written_in_front_of_the_break(p, x):
    with torch.no_grad():
        v = p.view(2, 2)
        p.mul_(2)
        look()
        return v + x


@case(None)
def of_what_was_computed(p, x):
    h = p.sin()
    with torch.no_grad():
        v = h.view(2, 2)
        look()
        y = v + x
    return y * 2, h.sum()


#: what programs do with such a view `v` of `p`
USES: dict[str, Callable[..., Any]] = {
    "a gradient of something else": lambda v, p: torch.autograd.grad(p.sum(), v, allow_unused=True),
    "a gradient that nothing has": lambda v, p: torch.autograd.grad(p.sum(), v),
    "deep copy": lambda v, p: copy.deepcopy(v).requires_grad,
    "hook": lambda v, p: (v.register_hook(lambda g: g * 2), ((v * 2).sum() + p.sum()).backward(), v.grad)[2],
    "retained gradient": lambda v, p: (v.retain_grad(), ((v * 2).sum() + p.sum()).backward(), v.grad)[2],
    "made a leaf": lambda v, p: (v.requires_grad_(), (v * 2).sum().backward(), v.grad)[2],
    "loss": lambda v, p: (((v * 2).sum() + p.sum()).backward(), v.grad)[1],
    "text": lambda v, p: f"{v}",
    "optimizer": lambda v, p: len(torch.optim.SGD([v], lr=0.1).param_groups),
    "written": lambda v, p: v.fill_(1),
    "written without gradients": lambda v, p: (torch.no_grad()(v.fill_)(1), p)[1],
    "leaf behind a write": lambda v, p: (torch.no_grad()(p.add_)(1), v.is_leaf)[1],
    "behind a write": lambda v, p: (torch.no_grad()(p.add_)(1), v + 1)[1],
    "says behind a write that": lambda v, p: (torch.no_grad()(p.add_)(1), v.requires_grad)[1],
    "given other data": lambda v, p: (setattr(v, "data", torch.ones(2, 2)), p.sum(), v.detach())[1:],
    "view": lambda v, p: (v.t().requires_grad, v.t().is_leaf),
    "turned in place": lambda v, p: v.t_().shape,
}


@pytest.mark.parametrize("place", ["behind a break", "in the graph", "under no_grad"])
@pytest.mark.parametrize("name", USES)
def test_every_use_is_as_in_eager(name: str, place: str) -> None:
    jitpy.reset()
    use = USES[name]

    def function(p, x):
        with torch.no_grad():
            v = p.view(2, 2)
            if place == "under no_grad":
                look()
                return use(v, p)
        if place == "behind a break":
            look()
        return use(v, p)

    jitted = jitpy.jit(function, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(2):
            assert _outcome(jitted, step, False) == _outcome(function, step, False)


def _facts(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist(), value.requires_grad, value.is_leaf, value._base is not None, value.grad_fn is not None
    if isinstance(value, tuple):
        return tuple(map(_facts, value))
    return value


def _outcome(function: Any, step: int, backward: bool) -> Any:
    p = torch.nn.Parameter(torch.arange(4.0) + step)
    x = torch.ones(1) * step
    try:
        result = function(p, x)
        said = _facts(result)
        if backward:
            first = result[-1] if isinstance(result, tuple) else result
            if isinstance(first, torch.Tensor) and first.requires_grad:
                first.sum().backward()
    except RuntimeError as error:
        return str(error)
    return said, _facts(p), _facts(p.grad)


@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name: str) -> None:
    jitpy.reset()
    function, allowed = CASES[name]
    jitted = jitpy.jit(function, backend="eager")
    for step in range(4):
        for backward in (True, False):
            assert _outcome(jitted, step, backward) == _outcome(function, step, backward)
    assert allowed is None or variants() <= allowed


@pytest.mark.parametrize("kind", ["computed", "view under no_grad"])
def test_what_was_compiled_for_a_leaf(kind: str) -> None:
    """A pass that was captured leaves gradients in leaves only."""
    def step(x):
        (x * x).sum().backward()
        return x.grad

    def outcome(function: Any) -> Any:
        leaf = torch.ones(3, requires_grad=True)
        if kind == "computed":
            x = leaf * 1
        else:
            with torch.no_grad():
                x = leaf[:]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            grad = function(x)
            return _facts(grad), _facts(x.grad), _facts(leaf.grad)

    jitpy.reset()
    jitted = jitpy.jit(step, backend="eager")
    jitted(torch.ones(3, requires_grad=True))
    assert outcome(jitted) == outcome(step)


@pytest.mark.parametrize("hooked", [False, True])
def test_beside_a_pass_to_another_tensor(hooked: bool) -> None:
    def gradient(v, g):
        return torch.autograd.grad((v * v).sum(), v)[0] + g.detach(), g.is_leaf

    def outcome(function: Any) -> Any:
        v = torch.arange(3.0, requires_grad=True)
        with torch.no_grad():
            g = v[:]
        if hooked:
            g.register_hook(lambda grad: grad * 2)
        grad, leaf = function(v, g)
        return _facts(grad), leaf, _facts(v.grad), _facts(g.grad)

    jitpy.reset()
    jitted = jitpy.jit(gradient, backend="eager")
    for _ in range(2):
        assert outcome(jitted) == outcome(gradient)
