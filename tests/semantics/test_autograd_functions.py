"""torch.autograd.Function, checkpointing, and other code that speaks to autograd. PYTEST_DONT_REWRITE."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import jitpy
from tests.semantics.harness import case, make_test

LOG: Any = None
SCALE: Any = 2.0


def one():
    return (torch.randn(4),)


def leaf():
    return (torch.randn(4, requires_grad=True),)


def two():
    return torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 30 * x**2  # ten times the truth, so that it shows who computed it


@case(leaf, one)
def function_applied(x):
    return Cube.apply(x) + 1


@case(leaf)
def function_applied_twice(x):
    return Cube.apply(Cube.apply(x) * 0.1)


class Affine(Function):
    @staticmethod
    def forward(ctx, x, w, scale, bias=None):
        ctx.save_for_backward(x, w)
        ctx.scale = scale
        return x * w * scale if bias is None else x * w * scale + bias

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        first = grad * w * ctx.scale if ctx.needs_input_grad[0] else None
        second = grad * x * ctx.scale if ctx.needs_input_grad[1] else None
        return first, second, None, None


@case(two, lambda: (torch.randn(4), torch.randn(4, requires_grad=True)))
def function_of_several(x, w):
    return Affine.apply(x, w, 2.5), Affine.apply(x, w, SCALE, torch.ones(4))


@case(two, factory=True)
def function_reads_changing_number():
    state = {"scale": 1.0}

    def fn(x, w):
        return Affine.apply(x, w, state["scale"])

    def outside(x, w):
        state["scale"] += 1
        return fn(x, w)

    return outside, state


class Setup(Function):
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


@case(leaf, one)
def function_with_setup(x):
    a, b = Setup.apply(x, 3)
    return a * b


class Marked(Function):
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


@case(leaf)
def function_non_differentiable(x):
    values, order = Marked.apply(x)
    return values * 2, order, order.requires_grad


class InPlace(Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@case(lambda: (torch.randn(4, requires_grad=True) * 1,), one)
def function_in_place(x):
    y = InPlace.apply(x)
    return y + 1, y is x


class Unmaterialized(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, a, b):
        return (a * 2 if a is not None else 0) + (b * 3 if b is not None else 0)


@case(leaf)
def function_unmaterialized(x):
    a, b = Unmaterialized.apply(x)
    return a


class Once(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x.detach()
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return grad * ctx.x


@case(leaf)
def function_once_differentiable(x):
    return Once.apply(x)


@case(leaf)
def function_double_backward(x):
    y = Cube.apply(x).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    return g


class Logged(Function):
    @staticmethod
    def forward(ctx, x):
        LOG.append("forward")
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        LOG.append("backward")
        return grad * 2


@case(leaf, one, globals={"LOG": list})
def function_with_effects(x):
    return Logged.apply(x)


class StraightThrough(Function):
    @staticmethod
    def forward(ctx, x):
        return (x > 0).float()

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-1, 1)


@case(leaf, factory=True)
def function_inside_module():
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return StraightThrough.apply(self.inner(x)) * self.inner.bias

    net = Net()
    return net.forward, net


class Identity(Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return -grad


@case(leaf, one)
def function_identity(x):
    y = Identity.apply(x)
    return y * 2, y is x


class AsView(Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -grad


@case(leaf, one)
def function_view(x):
    return AsView.apply(x) * 2


class Raises(Function):
    @staticmethod
    def forward(ctx, x):
        raise ValueError("in forward")

    @staticmethod
    def backward(ctx, grad):
        return grad


@case(leaf)
def function_raises(x):
    return Raises.apply(x)


class GradModeSeen(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.seen = torch.is_grad_enabled()
        return x * (3 if torch.is_grad_enabled() else 2)

    @staticmethod
    def backward(ctx, grad):
        return grad * 7


@case(leaf, one)
def function_sees_no_grad(x):
    with torch.no_grad():
        y = GradModeSeen.apply(x)
    return y, GradModeSeen.apply(x)


class Half(Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.bfloat16)
    def forward(ctx, x):
        return x * 2

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        return grad * 2


@case(leaf)
def function_under_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return Half.apply(x)


@case(leaf, factory=True)
def function_replaced_between_calls():
    class Local(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 5

    calls = [0]

    def fn(x):
        return Local.apply(x)

    def other(ctx, grad):
        return grad * 50

    def outside(x):
        calls[0] += 1
        if calls[0] == 2:
            Local.backward = staticmethod(other)
        return fn(x)

    return outside, calls


# -- where nobody asks for gradients, `forward` is traced


class SavesReturned(Function):
    @staticmethod
    def forward(x):
        return x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad):
        return grad


@case(one, leaf)
def function_saves_what_it_returns(x):
    return SavesReturned.apply(x)


class SeesAll(Function):
    @staticmethod
    def forward(x, w, n):
        return x * w + n, x, torch.is_grad_enabled()

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, w, ctx.n = inputs
        ctx.save_for_backward(output[0])
        LOG.append((ctx.needs_input_grad, ctx.saved_tensors, torch.is_grad_enabled(), len(output), len(ctx.to_save)))

    @staticmethod
    def backward(ctx, *grads):
        return grads[0], grads[0], None


@case(two, lambda: (torch.randn(4), torch.randn(4)), globals={"LOG": list}, fullgraph=True)
def function_without_gradients(x, w):
    with torch.no_grad():
        y, same, enabled = SeesAll.apply(x, w, 3)
        values, order = Marked.apply(x)
    return y, same is x, same, same.requires_grad, enabled, values, order, torch.is_grad_enabled()


@case(one, lambda: (torch.randn(6),), lambda: (torch.randn(3, 2),), fullgraph=True)
def function_of_no_gradients(x):
    y = Identity.apply(x)
    y.add_(1)
    return y is x, y, x, AsView.apply(x), Cube.apply(x), GradModeSeen.apply(x)


@case(leaf, one, fullgraph=True)
def function_returns_detached(x):
    with torch.no_grad():
        y = Identity.apply(x)
    return y, y.requires_grad, y is x, y + 1


class Wrapped(Function):
    @staticmethod
    def forward(ctx, x, parts):
        ctx.parts = parts
        ctx.shape = x.shape
        return [x, *parts] if isinstance(parts, list) else (x, parts, None, 3, x)

    @staticmethod
    def backward(ctx, *grads):
        return None


@case(one, fullgraph=True)
def function_returns_other_things(x):
    items = Wrapped.apply(x, [x])
    several = Wrapped.apply(x, "text")
    return items, items[0] is x, items[1] is x, several, several[0] is x, several[0] is several[4]


class Enables(Function):
    @staticmethod
    def forward(ctx, x, w):
        with torch.enable_grad():
            return w * 2

    @staticmethod
    def backward(ctx, grad):
        return grad, grad


@case(lambda: (torch.randn(4), torch.randn(4, requires_grad=True)))
def function_enables_gradients(x, w):
    with torch.no_grad():
        y = Enables.apply(x, w)
    return y, y.requires_grad


class Keeps(Function):
    @staticmethod
    def forward(ctx, x):
        LOG.append(ctx)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad


@case(one, globals={"LOG": list})
def function_leaks_context(x):
    y = Keeps.apply(x) + 1
    return y, isinstance(LOG.pop(), torch.autograd.function.BackwardCFunction)


class Breaks(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        LOG.append("before")
        jitpy.graph_break()
        LOG.append("after")
        return x * 2, ctx.needs_input_grad, torch.is_grad_enabled()

    @staticmethod
    def backward(ctx, grad):
        return grad


@case(one, leaf, globals={"LOG": list})
def function_breaks_inside(x):
    y = x + 1
    with torch.no_grad():
        return Breaks.apply(y), y, torch.is_grad_enabled()


class AsksContext(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2, hasattr(ctx, "missing"), ctx.name(), type(ctx).__name__

    @staticmethod
    def backward(ctx, *grads):
        return grads[0]


@case(one)
def function_asks_context(x):
    return AsksContext.apply(x)


@case(one)
def function_caught(x):
    try:
        Raises.apply(x)
    except ValueError as error:
        return str(error), torch.is_grad_enabled()


@case(one)
def function_raises_without_gradients(x):
    with torch.no_grad():
        return Raises.apply(x)


class Nested(Function):
    @staticmethod
    def forward(ctx, x):
        return Cube.apply(x) + Identity.apply(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


@case(one, fullgraph=True)
def function_nested(x):
    return Nested.apply(x)


@case(one)
def function_under_vmap(x):
    try:
        return torch.vmap(Cube.apply)(x)
    except RuntimeError as error:
        return str(error)[:20]


@case(one)
def function_defaults_with_setup(x):
    return WithDefault.apply(x)


class WithDefault(Function):
    @staticmethod
    def forward(x, n=2):
        return x * n

    @staticmethod
    def setup_context(ctx, inputs, output):
        LOG.append(len(inputs)) if LOG is not None else None

    @staticmethod
    def backward(ctx, grad):
        return grad, None


# -- checkpointing


def checkpointed(use_reentrant, dropout=False):
    def make():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5 if dropout else 0.0), nn.Linear(8, 4))

        def fn(x):
            return torch.utils.checkpoint.checkpoint(net, x, use_reentrant=use_reentrant) * 2

        return fn, net

    make.__name__ = f"checkpoint_{'reentrant' if use_reentrant else 'plain'}{'_dropout' if dropout else ''}"
    make.__module__ = __name__
    return case(leaf, one, factory=True)(make)


checkpointed(False)
checkpointed(True)
checkpointed(False, True)
checkpointed(True, True)


@case(leaf, globals={"LOG": list})
def checkpoint_counts_calls(x):
    def part(y):
        LOG.append("run")
        return y.sin().exp()

    return torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False)


@case(leaf, factory=True)
def checkpoint_sequential():
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))

    def fn(x):
        return torch.utils.checkpoint.checkpoint_sequential(net, 2, x, use_reentrant=False)

    return fn, net


@case(two)
def checkpoint_kwargs(x, y):
    def part(a, b=None, scale=1.0):
        return (a * b).exp() * scale

    return torch.utils.checkpoint.checkpoint(part, x, b=y, scale=3.0, use_reentrant=False, preserve_rng_state=False)


@case(leaf)
def checkpoint_no_grad(x):
    with torch.no_grad():
        return torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False)


# -- autograd around and inside


@case(leaf, factory=True, fullgraph=True)
def gradient_penalty():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))

    def fn(x):
        out = net(x).sum()
        (g,) = torch.autograd.grad(out, x, create_graph=True)
        return out + (g.norm() - 1) ** 2

    return fn, net


@case(leaf, factory=True)
def double_backward_outside():
    def fn(x):
        return (x.exp() * x).sum()

    def outside(x):
        y = fn(x)
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        return g * 2

    return outside


@case(leaf, factory=True)
def backward_twice_outside():
    def fn(x):
        return (x.exp() * x).sum()

    def outside(x):
        y = fn(x)
        y.backward(retain_graph=True)
        y.backward()
        return x.grad.clone()

    return outside


@case(leaf, factory=True)
def freed_graph_outside():
    def fn(x):
        return (x.exp() * x).sum()

    def outside(x):
        y = fn(x)
        y.backward()
        y.backward()

    return outside


@case(leaf, factory=True)
def training_loop_inside():
    torch.manual_seed(0)
    net = nn.Linear(4, 1)

    def fn(x):
        total = 0.0
        for _ in range(3):
            net.zero_grad()
            loss = net(x).square().sum()
            loss.backward()
            with torch.no_grad():
                for p in net.parameters():
                    p -= 0.01 * p.grad
            total += loss.item()
        return total

    return fn, net


@case(leaf)
def vjp_and_functional(x):
    out, g = torch.autograd.functional.vjp(lambda y: y.exp().sum(), x)
    return out, g, torch.autograd.functional.jacobian(lambda y: y**2, x)


@case(leaf)
def gradient_edges(x):
    y = x * 2
    return len(y.grad_fn.next_functions), y


@case(leaf)
def walk_of_nodes(x):
    def names(node):
        return [] if node is None else [node.name(), *(name for one, _ in node.next_functions for name in names(one))]

    y = (x * 2).exp()
    z = torch.cat([y.sin() + x, y.neg()])
    return names(z.sum().grad_fn), z.grad_fn.saved_dim if hasattr(z.grad_fn, "saved_dim") else None, z


@case(leaf)
def allow_mutation_on_saved(x):
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        y = x * 1
        z = y.sin()
        y.zero_()
    return z.detach()


@case(leaf, globals={"LOG": list})
def disable_saved_hooks(x):
    with torch.autograd.graph.disable_saved_tensors_hooks("no hooks here"):
        return x * 2


@case(leaf)
def multi_grad_hook(x):
    y = x * 2
    torch.autograd.graph.register_multi_grad_hook((y,), lambda grads: None)
    return y * 2


@case(lambda: (torch.randn(4, requires_grad=True), torch.randn(4)))
def forward_mode(x, t):
    import torch.autograd.forward_ad as fwad

    with fwad.dual_level():
        dual = fwad.make_dual(x.detach(), t)
        out = fwad.unpack_dual(dual.sin() * 2)
        return out.primal, out.tangent


class SelectsInBackward(Function):
    """The gradient's size is known by the data only."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad[grad > -100].view(grad.shape) * 2


@case(leaf, one)
def sizes_by_data_in_backward(x):
    return SelectsInBackward.apply(x) + 1


class AssignPart(Function):
    """Writes into a result of its own past autograd, as solvers of differential equations do."""

    @staticmethod
    def forward(ctx, scratch, value, index):
        ctx.index = index
        scratch.data[index] = value
        return scratch

    @staticmethod
    def backward(ctx, grad):
        return grad, grad[ctx.index], None


@case(lambda: (torch.randn(3, requires_grad=True),), lambda: (torch.randn(3),))
def parts_written_past_autograd(x):
    k = torch.zeros(3, 4)
    for i in range(3):
        k = AssignPart.apply(k, (x * i).sin(), (..., i))
        x = x + k[..., : i + 1].sum()
    return x * 2


@case(lambda: (torch.randn(4, requires_grad=True), torch.ones(3, 4, requires_grad=True)))
def part_of_an_argument_written_past_autograd(x, k):
    return AssignPart.apply(k, x, 0) * 2


class TwoResults(Function):
    @staticmethod
    def forward(ctx, x, y):
        first, second = x.exp(), y * 3
        ctx.save_for_backward(first)
        return first, second

    @staticmethod
    def backward(ctx, grad, other):
        (first,) = ctx.saved_tensors
        return grad * first + other, other * 3


@case(two, fullgraph=True)
def one_of_two_results_in_a_captured_pass(x, y):
    first, second = TwoResults.apply(x, y)
    (first * first).sum().backward()
    return first.detach(), second.detach()


@case(two, fullgraph=True)
def two_results_differentiated_twice(x, y):
    first, second = TwoResults.apply(x, y)
    (grad,) = torch.autograd.grad((first * first + second).sum(), x, create_graph=True)
    return grad.sum()


class Reversed(Function):
    """Its backward pass is linear in the gradient, by ops that move or add up elements."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        return torch.outer(x.flip(0).cumsum(0), w).tril()

    @staticmethod
    def backward(ctx, grad):
        (w,) = ctx.saved_tensors
        moved = torch.matmul(grad.tril(), w).flip(0).cumsum(0)
        return moved.roll(1, 0).flip(0), grad.triu().sum(0).index_select(0, torch.tensor([1, 0, 3, 2])).repeat(1)


@case(two, fullgraph=True)
def function_that_moves_gradients(x, w):
    return Reversed.apply(x, w).sin()


@case(two, fullgraph=True)
def function_that_moves_gradients_in_a_captured_pass(x, w):
    out = Reversed.apply(x, w).sin().sum()
    out.backward()
    return out.detach()


test_cases = make_test(__name__)
