"""Operators whose gradients and bodies are Python of the program's: what it reads may change between calls, and it
runs where the program runs it. PYTEST_DONT_REWRITE: cases run as they are written."""

from __future__ import annotations

import warnings

import torch

import jitpy
from tests.semantics.harness import case, make_test

warnings.filterwarnings("ignore", message="There is a performance drop")

FACTOR = [1.0]
CALLS: list[str] = []


@torch.library.custom_op("jitpyreg::scaled", mutates_args=())
def scaled(x: torch.Tensor, k: float = 2.0, y: torch.Tensor | None = None) -> torch.Tensor:
    return x * k if y is None else x * k + y


@scaled.register_fake
def _(x, k=2.0, y=None):
    return torch.empty_like(x)


def _keep(ctx, inputs, output):
    ctx.k = inputs[1]
    ctx.save_for_backward(inputs[0], output)


def _scaled_backward(ctx, grad):
    x, out = ctx.saved_tensors
    return grad * ctx.k * FACTOR[0] + 0 * out, None, grad if ctx.needs_input_grad[2:] == (True,) else None


scaled.register_autograd(_scaled_backward, setup_context=_keep)


@torch.library.custom_op("jitpyreg::counted", mutates_args=())
def counted(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sin(), x.cos()


@counted.register_fake
def _(x):
    return torch.empty_like(x), torch.empty_like(x)


def _counted_backward(ctx, first, second):
    CALLS.append("backward")
    return first - second


counted.register_autograd(_counted_backward)


@torch.library.custom_op("jitpyreg::named", mutates_args=())
def named(x: torch.Tensor, *, k: float) -> torch.Tensor:
    return x * k


@named.register_fake
def _(x, *, k):
    return torch.empty_like(x)


named.register_autograd(lambda ctx, grad: grad * FACTOR[0])


@torch.library.custom_op("jitpyreg::listed", mutates_args=())
def listed(xs: list[torch.Tensor]) -> torch.Tensor:
    return xs[0] + xs[1]


@listed.register_fake
def _(xs):
    return torch.empty_like(xs[0])


listed.register_autograd(lambda ctx, grad: [grad * FACTOR[0], grad])


@torch.library.custom_op("jitpyreg::without_fake", mutates_args=())
def without_fake(x: torch.Tensor) -> torch.Tensor:
    CALLS.append("without_fake")
    return x * 2


@torch.library.custom_op("jitpyreg::adding", mutates_args=("out",))
def adding(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    out.add_(x)
    return out * 2


@adding.register_fake
def _(out, x):
    return torch.empty_like(out)


class Settings:
    shift = 0.0


SETTINGS = Settings()
BUFFER = torch.zeros(3)


@torch.library.custom_op("jitpyreg::impure", mutates_args=())
def impure(x: torch.Tensor) -> torch.Tensor:
    print("impure", len(CALLS))
    CALLS.append("impure")
    return x * FACTOR[0] + SETTINGS.shift + BUFFER


@impure.register_fake
def _(x):
    return torch.empty_like(x)


_LIB = torch.library.Library("jitpyreg", "FRAGMENT")
_LIB.define("composite(Tensor x) -> Tensor")
_LIB.impl("composite", lambda x: x.sin() * FACTOR[0], "CompositeImplicitAutograd")
_LIB.define("composite_pair(Tensor x) -> (Tensor, Tensor)")
_LIB.impl("composite_pair", lambda x: (x * FACTOR[0], x + 1), "CompositeImplicitAutograd")
_LIB.define("composite_same(Tensor x) -> Tensor")
_LIB.impl("composite_same", lambda x: x, "CompositeImplicitAutograd")
_LIB.define("kernels(Tensor x) -> Tensor")
_LIB.impl("kernels", lambda x: x * 2, "CPU")
_LIB.impl("kernels", lambda x: torch.empty_like(x), "Meta")
torch.library.register_autograd("jitpyreg::kernels", lambda ctx, grad: grad * FACTOR[0], lib=_LIB)
_LIB.define("explicit(Tensor x) -> Tensor")
_LIB.impl("explicit", lambda x: x * 2, "CompositeExplicitAutograd")


def vec(**options):
    return torch.randn(3, **options)




def leaf():
    FACTOR[0] = 1.0
    return (vec(requires_grad=True),)


def later():
    FACTOR[0] = 3.0
    return (vec(requires_grad=True),)


def plain():
    FACTOR[0] = 2.0
    return (vec(),)


def plain_later():
    FACTOR[0] = 5.0
    return (vec(),)


CHANGED = {"FACTOR": lambda: [1.0], "CALLS": list}


@case(leaf, leaf, later, plain, later, globals=CHANGED)
def gradient_that_reads_a_global(x):
    return scaled(x * 3).sin(), scaled(x, k=4.0), torch.ops.jitpyreg.scaled.default(x, 0.5, x * 2)


@case(lambda: (vec(requires_grad=True),), lambda: (vec(),), fullgraph=True)
def gradient_is_captured(x):
    return scaled(x * 3).sin() + scaled(x, 4.0, x)


@case(leaf, later, globals=CHANGED)
def gradient_inside(x):
    return torch.autograd.grad(scaled(x * x).sum(), x)[0]


@case(leaf, later, globals=CHANGED)
def second_gradient_inside(x):
    (first,) = torch.autograd.grad((scaled(x * x) ** 2).sum(), x, create_graph=True)
    return torch.autograd.grad(first.sum(), x)[0]


@case(leaf, later, globals=CHANGED)
def gradient_with_an_effect(x):
    sin, cos = counted(x * 2)
    return sin * 2 + cos


@case(leaf, later, globals=CHANGED)
def keyword_only_argument(x):
    return named(x * 2, k=3.0)


@case(leaf, later, globals=CHANGED)
def list_of_tensors(x):
    return listed([x * 2, x])


@case(leaf, leaf, later, globals=CHANGED)
def gradient_of_a_library(x):
    return torch.ops.jitpyreg.kernels(x * 2) + 1


@case(leaf, later, plain, globals=CHANGED)
def gradient_of_a_transform(x):
    return torch.func.grad(lambda t: scaled(t).sum())(x)


@case(plain, plain_later, leaf, later, globals=CHANGED)
def composite_body(x):
    return torch.ops.jitpyreg.composite(x * 2) + 1, torch.ops.jitpyreg.composite_pair(x)


@case(plain, plain_later, globals=CHANGED)
def composite_body_under_vmap(x):
    return torch.vmap(lambda t: torch.ops.jitpyreg.composite(t))(x)


@case(plain, leaf)
def composite_that_returns_its_argument(x):
    return torch.ops.jitpyreg.composite_same(x), torch.ops.jitpyreg.composite_same(x) is x


@case(plain, plain, lambda: (torch.randn(4, 5),), globals=CHANGED)
def kernel_without_a_rule_for_shapes(x):
    return without_fake(x) + 1


@case(leaf, plain)
def results_of_detached_arguments(x):
    return scaled(x.detach())


@case(leaf, plain)
def result_of_a_detached_argument(x):
    return torch.ops.jitpyreg.explicit(x.detach())


@case(leaf, plain)
def composite_of_a_detached_argument(x):
    return torch.ops.jitpyreg.composite(x.detach())


@case(leaf, plain)
def writes_of_a_detached_argument(x):
    out = torch.zeros_like(x)
    return adding(out, x.detach()), out


@case(leaf, plain)
def results_without_grad_mode(x):
    with torch.no_grad():
        return scaled(x), torch.ops.jitpyreg.explicit(x), torch.ops.jitpyreg.composite(x)


READ = {**CHANGED, "SETTINGS": Settings, "BUFFER": lambda: torch.zeros(3)}


@case(plain, leaf, globals=READ)
def kernel_prints(x):
    print("before")
    y = impure(x)
    print("behind")
    return y


@case(plain, leaf, globals=READ)
def kernel_appends(x):
    CALLS.append("before")
    y = impure(x)
    CALLS.append("behind")
    return y * 2


@case(plain, leaf, globals=READ)
def kernel_reads_a_list(x):
    FACTOR[0] = 7.0
    y = impure(x)
    FACTOR[0] = 1.0
    return y


@case(plain, leaf, globals=READ)
def kernel_reads_a_global_variable(x):
    global FACTOR
    FACTOR = [8.0]
    return impure(x)


@case(plain, leaf, globals=READ)
def kernel_reads_an_attribute(x):
    SETTINGS.shift += 2.0
    return impure(x) + 1


@case(plain, leaf, globals=READ)
def kernel_reads_a_tensor(x):
    BUFFER.add_(1)
    return impure(x) + 1


@case(plain, leaf, factory=True, globals=READ)
def kernel_reads_nothing_that_changes():
    seen = []

    def fn(x):
        seen.append(len(seen))
        return scaled(x.detach()) + 1

    return fn, seen


def test_other_changes_do_not_break() -> None:
    def fn(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
        seen.append(1)
        return scaled(x) + 1

    jitpy.jit(fn, fullgraph=True)(torch.ones(2), [])


test_all = make_test(__name__)


def test_gradients_are_called_with_gradients() -> None:
    """Under the default backend: a gradient that reads Python is not one that was written down once."""
    for run in (lambda fn: fn, jitpy.jit):
        called, found = run(lambda x: scaled(x * 3).sum()), []
        for factor in (1.0, 1.0, 5.0):
            FACTOR[0] = factor
            x = torch.ones(2, requires_grad=True)
            called(x).backward()
            found.append(x.grad.tolist())
        assert found == [[6.0, 6.0], [6.0, 6.0], [30.0, 30.0]]
    FACTOR[0] = 1.0
