"""torch.cond, torch.while_loop, scans and checks. PYTEST_DONT_REWRITE: cases run as they are written."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import jitpy
from tests.semantics.harness import case, make_test


def vec(*sizes: int) -> torch.Tensor:
    return torch.randn(*(sizes or (4,)))


def up():
    return (torch.arange(4.0),)


def down():
    return (-torch.arange(4.0),)


@case(up, down, fullgraph=True)
def cond_simple(x):
    return torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos() + 1, (x,))


@case(up, down)
def cond_constant_predicate(x):
    return torch.cond(x.shape[0] > 3, lambda t: t + 1, lambda t: t - 1, (x,))


@case(up, down, fullgraph=True)
def cond_tuple_result(x):
    a, b = torch.cond(x.sum() > 0, lambda t: (t, t * 2)[::1] and (t + 1, t * 2), lambda t: (t - 1, t * 3), (x,))
    return a + b


@case(up, down, fullgraph=True)
def cond_closure(x):
    scale = x.abs().max() + 1
    return torch.cond(x.sum() > 0, lambda t: t / scale, lambda t: t * scale, (x,))


@case(lambda: (torch.arange(4.0).requires_grad_(),), lambda: ((-torch.arange(4.0)).requires_grad_(),))
def cond_gradient(x):
    return torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t * t, (x,))


@case(up, down, fullgraph=True)
def cond_nested(x):
    def inner(t):
        return torch.cond(t[1] > 1, lambda u: u + 10, lambda u: u - 10, (t,))

    return torch.cond(x.sum() > 0, inner, lambda t: t * 2, (x,))


@case(up, down, factory=True)
def cond_module():
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return torch.cond(x.sum() > 0, self.a, self.b, (x,)) * 2

    model = Model()
    return model.forward, model


@case(up, down)
def cond_appends_to_outer_list(x):
    seen = []

    def yes(t):
        seen.append(1)
        return t + 1

    try:
        return torch.cond(x.sum() > 0, yes, lambda t: t - 1, (x,)), seen
    except Exception as error:
        return type(error).__name__


@case(up, down)
def cond_random_branch(x):
    y = torch.cond(x.sum() > 0, lambda t: t + torch.rand(4), lambda t: t * 2, (x,))
    return y, torch.rand(2)


@case(lambda: (torch.arange(4.0),), lambda: (torch.arange(5.0),), lambda: (-torch.arange(6.0),))
def cond_changing_sizes(x):
    return torch.cond(x.sum() > 0, lambda t: t.new_ones(t.shape[0]) + t, lambda t: t * t.shape[0], (x,))


@case(up, down)
def cond_alias_of_closure(x):
    v = x[1:]
    z = x * 2
    w = z[:2]
    z.add_(1)
    y = torch.cond(x.sum() > 0, lambda t: t + w.sum(), lambda t: t - w.sum(), (x,))
    return y, w + 1, v


@case(up, down)
def cond_different_shapes(x):
    try:
        return torch.cond(x.sum() > 0, lambda t: t[:2], lambda t: t, (x,))
    except Exception as error:
        return type(error).__name__


@case(up, down)
def cond_bad_operands(x):
    try:
        return torch.cond(x.sum() > 0, lambda t: t, lambda t: t, (1,))
    except Exception as error:
        return type(error).__name__


@case(up, fullgraph=True)
def while_loop_counts(x):
    def go(i, t):
        return i < 5

    def body(i, t):
        return i + 1, t * 2 + i

    return torch.while_loop(go, body, (torch.tensor(0), x))


@case(up, down)
def while_loop_no_iteration(x):
    return torch.while_loop(lambda t: t.sum() > 100, lambda t: (t + 1,), (x,))


@case(up)
def while_loop_closure(x):
    step = x + 1
    return torch.while_loop(lambda t: t.sum() < 50, lambda t: (t + step,), (x,))


@case(up)
def check_family(x):
    torch._check(x.shape[0] == 4)
    torch._check(x.shape[0] > 0, lambda: "never")
    torch._check_value(x.ndim == 1, lambda: "one axis")
    torch._check_type(True)
    torch._check_index(x.shape[0] > 1)
    return x + 1


@case(up)
def check_fails(x):
    torch._check(x.shape[0] > 4, lambda: f"got {x.shape[0]}")
    return x


@case(up)
def check_fails_with_kind(x):
    try:
        torch._check_value(x.shape[0] > 4, lambda: f"got {x.shape[0]}")
    except ValueError as error:
        return str(error), x + 1


@case(up)
def associative_scan(x):
    from torch._higher_order_ops import associative_scan

    return associative_scan(lambda a, b: a + b, x, dim=0, combine_mode="generic")


@case(up, fullgraph=True)
def scan_running_sum(x):
    from torch._higher_order_ops import scan

    return scan(lambda carry, item: (carry + item, carry * 1), x[0] * 0, x, dim=0)


def matrix():
    return (torch.randn(3, 4),)


@case(matrix, fullgraph=True)
def scan_backwards_along_columns(x):
    from torch._higher_order_ops import scan

    return scan(lambda carry, item: (carry + item, carry * item), x[:, 0] * 0, x, dim=1, reverse=True)


@case(matrix, fullgraph=True)
def scan_of_structures(x):
    from torch._higher_order_ops import scan

    def body(carry, item):
        return {"a": carry["a"] + item[0]}, {"b": carry["a"] * item[1], "c": [carry["a"].sin()]}

    carry, out = scan(body, {"a": x[:, 0] * 0}, (x, x * 2), dim=1, reverse=True)
    return carry["a"] + 1, out


@case(lambda: (torch.randn(3, 4).requires_grad_(),), fullgraph=True)
def scan_closure_gradient(x):
    from torch._higher_order_ops import scan

    scale = x[:, 0].exp()
    carry, out = scan(lambda carry, item: (carry * scale, {"z": carry * item * scale}), scale.sin(), x.detach(), dim=-1)
    return carry + 1, out["z"].cos()


@case(matrix)
def associative_scan_of_structures(x):
    from torch._higher_order_ops import associative_scan

    def combine(a, b):
        return {"a": a["a"] * b["a"], "b": a["b"] * b["a"] + b["b"]}

    return associative_scan(combine, {"a": x, "b": x + 1}, dim=-1, reverse=True, combine_mode="generic")


@case(matrix, fullgraph=True)
def map_of_structures(x):
    from torch._higher_order_ops import map as over_rows

    return over_rows(lambda row, scale: {"a": row * scale, "b": [row.sum()]}, x, x.sum())


@case(lambda: (torch.randn(70, 2),), breaks=("higher_order",))
def map_of_many_rows(x):
    from torch._higher_order_ops import map as over_rows

    return over_rows(lambda row: row * 2, x)


@case(lambda: (torch.randn(4, 4, requires_grad=True), torch.tensor(True)),
      lambda: (torch.randn(4, 4, requires_grad=True), torch.tensor(False)), fullgraph=True)
def gradient_through_cond_inside(x, p):
    y = torch.cond(p, lambda x: x.sin() * x.sum(0), lambda x: (x @ x).cos(), (x,))
    (g,) = torch.autograd.grad(y.square().sum(), x)
    return g * 2, y


SCALE = torch.nn.Parameter(torch.randn(4))
SHIFT = torch.nn.Parameter(torch.randn(4))


@case(lambda: (torch.randn(4, requires_grad=True), torch.tensor(True)),
      lambda: (torch.randn(4, requires_grad=True), torch.tensor(False)), fullgraph=True)
def gradients_of_both_branches_inside(x, p):
    y = torch.cond(p, lambda x: (x * SCALE, x.exp()), lambda x: (x + SHIFT, x * 1), (x * 2,))
    return torch.autograd.grad((y[0] * y[1].detach()).sum(), (x, SCALE, SHIFT))


@case(matrix, fullgraph=True, factory=True)
def region_compiled_by_itself():
    @torch.compiler.nested_compile_region
    def region(x):
        return x * 2

    return lambda x: region(x) + 1


test_all = make_test(__name__)


def _scan_that_returns_its_argument(x):
    from torch._higher_order_ops import scan

    return scan(lambda carry, item: (carry + item, item), x[0] * 0, x)


def _map_with_a_side_effect(x):
    from torch._higher_order_ops import map as over_rows

    seen = []

    def fn(row):
        seen.append(1)
        return row * 2

    return over_rows(fn, x), len(seen)


@pytest.mark.parametrize("fn", [_scan_that_returns_its_argument, _map_with_a_side_effect])
def test_functions_that_torch_refuses_are_refused(fn):
    x = torch.randn(3, 4)
    with pytest.raises(Exception) as wanted:
        fn(x)
    with pytest.raises(type(wanted.value), match="doesn't work unless it is captured completely"):
        jitpy.jit(fn)(x)


def _python_cond(pred, true_fn, false_fn, operands):
    return true_fn(*operands) if bool(pred) else false_fn(*operands)


def _python_loop(cond_fn, body_fn, carried):
    while bool(cond_fn(*carried)):
        carried = body_fn(*carried)
    return carried


def _draws_in_branches(cond, loop, generator):
    def fn(x):
        y = cond(
            x.sum() > 0,
            lambda x: x + torch.rand(4, generator=generator),
            lambda x: torch.randperm(4, generator=generator) * x + torch.empty(4).normal_(generator=generator),
            (x,),
        )
        count, z = loop(
            lambda i, z: i < 3, lambda i, z: (i + 1, z + torch.rand(4, generator=generator)), (torch.tensor(0), y)
        )
        return y, count, z, torch.rand(2, generator=generator), torch.rand(2), generator.get_state()

    return fn


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_generators_in_branches(backend):
    """Eager's own torch.cond compiles its branches, and takes no generator there: plain Python says what is right."""
    import jitpy

    ours = torch.Generator().manual_seed(5)
    theirs = torch.Generator().manual_seed(5)
    jitted = jitpy.jit(_draws_in_branches(torch.cond, torch.while_loop, ours), backend=backend, fullgraph=True)
    plain = _draws_in_branches(_python_cond, _python_loop, theirs)
    for x in (torch.ones(4), -torch.ones(4), torch.ones(4)):
        torch.manual_seed(1)
        found = jitted(x)
        torch.manual_seed(1)
        torch.testing.assert_close(found, plain(x))
