"""`torch.autograd.Function` captured with its gradients. PYTEST_DONT_REWRITE."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import jitpy
from tests.semantics.harness import case, check, make_test

LOG: Any = None
FACTOR: Any = None


def leaf(n=4):
    return lambda: (torch.randn(n, requires_grad=True),)


def two():
    return torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)


class Cube(Function):
    """Gradients that are ten times the truth, so that it shows who computed them."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 30 * x**2


class Exp(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * y * 2


class Reverse(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -grad * ctx.factor, None


class Same(Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return -grad


class Pair(Function):
    @staticmethod
    def forward(x, n):
        return x * n, x + n

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.n = inputs
        ctx.save_for_backward(output[0])

    @staticmethod
    def backward(ctx, a, b):
        (y,) = ctx.saved_tensors
        return a * ctx.n + b * y, None


class Sorted(Function):
    @staticmethod
    def forward(ctx, x):
        order = x.argsort()
        ctx.mark_non_differentiable(order)
        ctx.save_for_backward(order)
        return x[order], order

    @staticmethod
    def backward(ctx, grad, _):
        (order,) = ctx.saved_tensors
        return torch.zeros_like(grad).index_add(0, order, grad)


class Once(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x.detach()
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return grad * ctx.x


class Turned(Function):
    @staticmethod
    def forward(ctx, x):
        return (x * 2).view(2, 2).t()

    @staticmethod
    def backward(ctx, grad):
        return grad.t().reshape(4) * 2


@case(leaf(), leaf(6), leaf(7), fullgraph=True)
def function_applied(x):
    return Cube.apply(Cube.apply(x) * 0.1) + Exp.apply(x)


@case(leaf(), fullgraph=True)
def function_is_the_result(x):
    return Exp.apply(x)


@case(leaf(), fullgraph=True)
def function_reverses(x):
    y = Reverse.apply(x * 2, 0.5)
    return y.sin(), y


@case(leaf(), leaf(5), fullgraph=True)
def function_shows_its_argument(x):
    y = Same.apply(x)
    return y, y is x, y.requires_grad, y.is_leaf


@case(leaf(), fullgraph=True)
def function_with_two_results(x):
    a, b = Pair.apply(x, 3)
    return a * b


@case(leaf(), fullgraph=True)
def function_with_one_result_used(x):
    a, _ = Pair.apply(x, 3)
    return a


@case(leaf(), fullgraph=True)
def function_with_two_results_returned(x):
    return Pair.apply(x, 3)


@case(leaf(), fullgraph=True)
def function_marks(x):
    values, order = Sorted.apply(x)
    return values * 2, order, order.requires_grad


@case(leaf(), fullgraph=True)
def function_once(x):
    return Once.apply(x) * 3


@case(leaf(), fullgraph=True)
def function_turns(x):
    return Turned.apply(x) @ Turned.apply(x)


class Kept(Function):
    """Keeps what it should not: an attribute that is a tensor, None, and numbers that change."""

    @staticmethod
    def forward(ctx, x, w, power, bias=None):
        ctx.save_for_backward(x, w, bias)
        ctx.power, ctx.mask = power, x > 0
        y = x * w**power
        return y if bias is None else y + bias

    @staticmethod
    def backward(ctx, grad):
        x, w, bias = ctx.saved_tensors
        first = grad * w**ctx.power if ctx.needs_input_grad[0] else None
        second = torch.where(ctx.mask, grad * x, 0) if ctx.needs_input_grad[1] else None
        return (first, second, None) if bias is None else (first, second, None, grad.sum())


@case(two, lambda: (torch.randn(4), torch.randn(4, requires_grad=True)), fullgraph=True)
def function_of_several(x, w):
    bias = (w * 2).sum()
    return Kept.apply(x, w, 2) + Kept.apply(w, x, 1.0, bias)


@case(leaf(), fullgraph=True)
def function_of_the_same_twice(x):
    return Kept.apply(x, x, 2)


@case(two, factory=True)
def function_reads_what_changes():
    state = {"power": 1.0}

    def fn(x, w):
        return Kept.apply(x, w, state["power"])

    def outside(x, w):
        state["power"] += 1
        return fn(x, w)

    return outside, state


class Effects(Function):
    @staticmethod
    def forward(ctx, x, seen):
        LOG.append("forward")
        seen.append(len(seen))
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 3, None


@case(leaf(), globals={"LOG": list}, fullgraph=True)
def function_with_effects_forward(x):
    seen = [1]
    y = Effects.apply(x, seen)
    return y, seen


class Loud(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        LOG.append("backward")
        return grad * 3


@case(leaf(), globals={"LOG": list}, breaks=("autograd",))
def function_with_effects_backward(x):
    return Loud.apply(x) + 1


class Scaled(Function):
    @staticmethod
    def forward(ctx, x):
        return x * FACTOR

    @staticmethod
    def backward(ctx, grad):
        return grad * (FACTOR + 1)


@case(leaf(), globals={"FACTOR": lambda: 2.5}, fullgraph=True)
def function_reads_globals(x):
    return Scaled.apply(x)


class ByHand(Function):
    """Writes to memory of its own."""

    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        y.copy_(x)
        y[0] = 0
        y.mul_(2)
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        mine = grad.clone()
        mine[x > 0] = 0
        mine[1] *= 3
        return mine


@case(leaf(), fullgraph=True)
def function_writes_to_its_own(x):
    return ByHand.apply(x) + 1


class CallsAnother(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return Cube.apply(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return Cube.apply(x) * grad


@case(leaf(), fullgraph=True)
def function_calls_another(x):
    return CallsAnother.apply(x)


@case(leaf(), fullgraph=True)
def result_is_written_to(x):
    y = Cube.apply(x)
    y.add_(1)
    y[0] = 2
    return y


@case(leaf())
def saved_result_is_written_to(x):
    y = Exp.apply(x)
    y.add_(1)
    return y


@case(leaf())
def shown_argument_is_written_to(x):
    h = x * 1
    y = Same.apply(h)
    h.add_(1)
    return y * 2


@case(leaf())
def shown_argument_is_written_to_quietly(x):
    h = x * 1
    y = Same.apply(h)
    with torch.no_grad():
        h.add_(1)
    return h.detach(), y.detach()


@case(leaf())
def view_of_function_is_written_to(x):
    y = Same.apply(x * 1)
    y.add_(1)
    return y


class Unmaterialized(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(z := x * 3)
        return x * 2, z

    @staticmethod
    def backward(ctx, a, b):
        return a * (5 if b is None else 7)


@case(leaf(), fullgraph=True)
def function_without_zeros(x):
    return Unmaterialized.apply(x)


class WithZeros(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_non_differentiable(z := x * 3)
        return x * 2, z, "text"

    @staticmethod
    def backward(ctx, a, b, c):
        return a * (5 if c is None else 7) + b.exp()


@case(leaf(), fullgraph=True)
def function_with_zeros(x):
    return WithZeros.apply(x)


class Half(Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.t(), x.t() @ grad


@case(lambda: (torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)))
def function_under_autocast(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return Half.apply(x, w)


class Single(Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.t(), x.t() @ grad


@case(lambda: (torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)), fullgraph=True)
def function_that_casts_under_autocast(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return Single.apply(x.bfloat16(), w), Single.apply(x, w) @ w


class Doubled(Function):
    @staticmethod
    def forward(ctx, x, y):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x, y

    @staticmethod
    def backward(ctx, a, b):
        return a * 2, b


@case(lambda: (torch.randn(4), torch.randn(4)), fullgraph=True)
def function_writes_without_gradients(x, y):
    a, b = Doubled.apply(x, y)
    return a, b, a is x, b is y


@case(lambda: (torch.randn(4), torch.randn(4, requires_grad=True)), leaf(), fullgraph=None)
def function_writes_beside_gradients(x, y=None):
    z = x * 1
    a, b = Doubled.apply(z, x * 3 if y is None else y)
    return a, b, a is z


class Clipped(Function):
    """Its backward pass is not linear: left to torch's autograd where it is not captured."""

    @staticmethod
    def forward(ctx, x):
        return x.exp(), x.exp()

    @staticmethod
    def backward(ctx, first, second):
        return first.clamp(-1, 1) + second


@case(leaf(), fullgraph=True)
def results_that_are_computed_alike(x):
    """Each has memory of its own."""
    return Clipped.apply(x), Clipped.apply(x), Exp.apply(x), Exp.apply(x)


class Flat(Function):
    """Looks at its gradient in row-major order."""

    @staticmethod
    def forward(ctx, x, limit):
        ctx.limit = limit
        return x.view(2, 3) * 1

    @staticmethod
    def backward(ctx, grad):
        return grad.reshape(-1).clamp(-ctx.limit, ctx.limit) + grad.contiguous().view(6), None


@case(leaf(6), fullgraph=True)
def gradient_in_another_order(x):
    return Flat.apply(x, 0.5).t().contiguous() * torch.arange(6.0).view(3, 2)


@case(leaf(6), fullgraph=True)
def gradient_in_another_order_in_a_captured_pass(x):
    (Flat.apply(x, 0.5).t().contiguous() * torch.arange(6.0).view(3, 2)).sum().backward()
    return x.grad


def doubling(backward):
    """An autograd function that doubles its argument, with this backward pass."""
    return type(backward.__name__, (Function,), {"forward": staticmethod(lambda ctx, x: x * 2),
                                                 "backward": staticmethod(backward)})


@doubling
def AsksGradMode(ctx, grad):
    with torch.no_grad():
        half = grad / 2
    return grad * half * (2 if torch.is_grad_enabled() else 3)


@case(leaf())
def backward_asks_about_grad_mode(x):
    y = AsksGradMode.apply(x).sum()
    (first,) = torch.autograd.grad(y, x, retain_graph=True)
    (second,) = torch.autograd.grad(y, x, create_graph=True)
    return first, second.detach()


@doubling
def AsksAutocast(ctx, grad):
    return grad * (2 if torch.is_autocast_enabled("cpu") else 3)


@case(leaf())
def backward_asks_about_autocast(x):
    with torch.autocast("cpu"):
        y = AsksAutocast.apply(x).sum()
        y.backward()
    (again,) = torch.autograd.grad(AsksAutocast.apply(x).sum(), x)
    return x.grad, again


@doubling
def NoGradInside(ctx, grad):
    with torch.no_grad():
        half = grad / 2
    return grad + half


@case(leaf(), fullgraph=True)
def backward_with_a_block_of_no_grad(x):
    NoGradInside.apply(x).sum().backward()
    return x.grad


@case(leaf())
def function_of_keywords(x):
    return Cube.apply(x=x)


class Lost(Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x + 1


@case(lambda: (torch.randn(4),))
def function_loses_what_it_writes(x):
    return Lost.apply(x)


@case(leaf(), factory=True, fullgraph=True)
def function_inside_module():
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return Cube.apply(self.inner(x)) * self.inner.bias

    net = Net()
    return net.forward, net


@case(leaf(), factory=True, fullgraph=True)
def function_in_a_captured_step():
    torch.manual_seed(0)
    net = nn.Linear(4, 4)

    def fn(x):
        net.zero_grad()
        a, b = Pair.apply(Cube.apply(Reverse.apply(net(x), 2.0)), 2)
        loss = (a + Exp.apply(net.bias)).sum()
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.01 * p.grad
        return loss.detach(), b.detach()

    return fn, net


test_cases = make_test(__name__)


@pytest.mark.parametrize("name", [
    "function_applied", "function_is_the_result", "function_with_one_result_used", "function_with_two_results_returned",
    "function_marks", "function_writes_to_its_own", "function_calls_another", "function_of_several",
    "function_in_a_captured_step", "function_shows_its_argument", "result_is_written_to",
])
def test_compiled(name):
    """The same through the C++ backend."""
    from tests.semantics.harness import CASES

    check(next(one for one in CASES[__name__] if one.fn.__name__ == name), "codegen")


FUNCTIONS = {
    "cube": lambda x: Cube.apply(x) + 1,
    "cube_of_cube": lambda x: Cube.apply(Cube.apply(x) * 0.1),
    "exp": lambda x: Exp.apply(x) * 2,
    "exp_alone": lambda x: Exp.apply(x),
    "reverse": lambda x: Reverse.apply(x * 2, 0.5).sin(),
    "same": lambda x: Same.apply(x) * x,
    "pair": lambda x: torch.mul(*Pair.apply(x, 3)),
    "sorted": lambda x: Sorted.apply(x)[0] * x,
    "once": lambda x: Once.apply(x) * 3,
    "turned": lambda x: Turned.apply(x) @ Turned.apply(x),
    "by_hand": lambda x: ByHand.apply(x) * x,
}


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_derivatives(name, backend):
    """Double backward goes through the user's backward, or raises eager's error."""
    fn = FUNCTIONS[name]
    found = []
    for run in (fn, jitpy.jit(fn, backend=backend, fullgraph=True)):
        torch.manual_seed(0)
        x = torch.randn(4, requires_grad=True)
        loss = run(x).square().sum()
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        try:
            second = torch.autograd.grad(first.square().sum(), x, retain_graph=True)[0]
        except RuntimeError as error:
            second = str(error)
        loss.backward()
        found.append((first, second, x.grad))
    torch.testing.assert_close(found[1], found[0]) if not isinstance(found[0][1], str) else None
    assert not isinstance(found[0][1], str) or found[0][1] == found[1][1]


BACKWARDS = {
    "one_gradient_missing": lambda ctx, g: g,
    "one_gradient_too_many": lambda ctx, g: (g, g, g),
    "one_none_too_many": lambda ctx, g: (g, g, None),
    "wrong_shape": lambda ctx, g: (g[:2], g),
    "no_tensor": lambda ctx, g: (1.0, g),
    "a_list": lambda ctx, g: [g, g],
    "raises": lambda ctx, g: [][1],
    "larger": lambda ctx, g: (g.expand(3, 4), g),
    "other_dtype": lambda ctx, g: (g.double(), g),
    "none": lambda ctx, g: (None, g),
    "writes_to_its_gradient": lambda ctx, g: (g.mul_(2), g),
    "branches_on_data": lambda ctx, g: (g * 2, g) if g.sum() > 0 else (g, g),
    "random": lambda ctx, g: (g * torch.rand(4), g),
    "reads_a_number": lambda ctx, g: (g * ctx.saved_tensors[0].sum().item(), g),
}


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", BACKWARDS)
def test_odd_backwards(name, backend):
    """Gradients, or the error, type and message, are eager's."""

    class Odd(Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x * w

        backward = staticmethod(BACKWARDS[name])

    def fn(x, w):
        return Odd.apply(x * 1, w) * 2

    def outcome(run):
        torch.manual_seed(0)
        x, w = two()
        y = run(x, w)
        try:
            y.sum().backward()
        except Exception as error:
            return type(error), str(error)
        return x.grad, w.grad

    expected, found = outcome(fn), outcome(jitpy.jit(fn, backend=backend))
    if isinstance(expected[0], type):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected)


def _function(backward):
    class Squared(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return backward(grad, x)

    return Squared


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("backward", [lambda g, x: g * 2 * x + 1.0, lambda g, x: g * g * x + x.exp(),
                                      lambda g, x: g * 2 * x], ids=["affine", "square", "linear"])
def test_gradients_that_arrive_together_are_passed_on_together(backward: Any, backend: str) -> None:
    squared = _function(backward)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return squared.apply(x).sin()

    def gradients(fn: Any) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.tensor([0.3, 0.7], requires_grad=True)
        y = fn(x)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (first.pow(2).sum() + y.sum()).backward()
        return first.detach(), x.grad

    torch.testing.assert_close(gradients(jitpy.jit(fn, backend=backend)), gradients(fn))
