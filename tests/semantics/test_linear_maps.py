"""torch.func.vjp and linearize, chunks of vmap, batches of gradients. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import os

import torch
import torch.nn.functional as F
from torch import nn

from tests.semantics.harness import case, make_test


def graph_break() -> None:
    """`jitpy.graph_break`, looked up late: the cases alone run without it."""


if os.environ.get("JITPY_SEMANTICS_STUB") != "1":
    import jitpy

    graph_break = jitpy.graph_break  # type: ignore[assignment]


def vec(*sizes: int):
    return lambda: (torch.randn(*(sizes or (4,))),)


def leaf():
    return (torch.randn(4, requires_grad=True),)


def two():
    return torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)


def net():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


# -- vjp


@case(vec(3), vec(5), vec(6), fullgraph=True)
def pulled_back_twice(x):
    out, pull = torch.func.vjp(lambda t: t.sin() * t.sum(), x)
    return out, pull(torch.ones_like(out)), pull(out)


@case(vec(), fullgraph=True)
def pulled_back_through_trees(x):
    out, pull = torch.func.vjp(lambda a, b: {"p": a * b, "q": [a + b]}, x, x * 2)
    return out, pull({"p": torch.ones(4), "q": [x]})


@case(vec(), fullgraph=True)
def pulled_back_under_vmap(x):
    _, pull = torch.func.vjp(lambda t: t.sin() * t.sum(), x)
    return torch.func.vmap(pull)(torch.eye(4))


@case(vec(), fullgraph=True)
def pulled_back_gradient(x):
    _, pull = torch.func.vjp(torch.func.grad(lambda t: (t**3).sum()), x)
    return pull(torch.ones(4))


@case(vec(), fullgraph=True)
def pull_of_a_pull(x):
    def first(t):
        _, pull = torch.func.vjp(lambda a: a**3, t)
        return pull(torch.ones(4))[0]

    out, pull = torch.func.vjp(first, x)
    return out, pull(torch.ones(4)), torch.func.grad(lambda t: first(t).sum())(x)


@case(vec(), fullgraph=True)
def pulled_back_beside_others(x):
    out, pull, aux = torch.func.vjp(lambda a: (a * a, {"next": a + 1}), x, has_aux=True)
    return out, pull(torch.ones(4)), aux


@case(leaf, fullgraph=True)
def pulled_back_under_autograd(x):
    _, pull = torch.func.vjp(lambda a: a**3, x)
    (grad,) = pull(torch.ones(4))
    grad.sum().backward()
    return x.grad


@case(vec(), factory=True, fullgraph=True)
def pulled_back_to_parameters():
    model = net()

    def fn(x):
        values = {name: p.detach() for name, p in model.named_parameters()}
        out, pull = torch.func.vjp(lambda p: torch.func.functional_call(model, p, (x,)), values)
        return out, pull(torch.ones_like(out))

    return fn


@case(vec(), fullgraph=True)
def names_that_change_later(x):
    pulls = []
    w = x * 2
    for k in range(2):
        _, pull = torch.func.vjp(lambda t, k=k, w=w: w * t ** (k + 1), x)
        pulls.append(pull)
    w = w * 5
    return [pull(w) for pull in pulls]


@case(vec(), fullgraph=True)
def argument_is_the_result(x):
    out, pull = torch.func.vjp(lambda a: a, x)
    return out, pull(out), out is x


@case(vec())
def written_between(x):
    y = x * 1
    _, pull = torch.func.vjp(lambda a: a * a, y)
    y.mul_(3)
    return pull(torch.ones(4))


@case(vec())
def captured_is_written_between(x):
    w = torch.ones(4)
    _, pull = torch.func.vjp(lambda a: a * w * a, x)
    w.mul_(3)
    return pull(torch.ones(4))


@case(vec())
def result_is_written_between(x):
    out, pull = torch.func.vjp(lambda a: a.exp(), x)
    out.add_(1)
    return out, pull(torch.ones(4))


@case(vec(), breaks=("transform", "user", "skipped"))
def break_between(x):
    out, pull = torch.func.vjp(torch.sin, x)
    graph_break()
    return pull(out)


@case(vec())
def random_function(x):
    out, pull = torch.func.vjp(lambda a: F.dropout(a * a, 0.5), x)
    return out, pull(torch.ones(4)), torch.rand(2)


@case(vec())
def function_that_prints(x):
    def loud(a):
        print("called")
        return a * 2

    out, pull = torch.func.vjp(loud, x)
    return pull(out)


@case(vec())
def another_shape(x):
    _, pull = torch.func.vjp(lambda a: a * a, x)
    try:
        pull(torch.ones(3))
    except RuntimeError as error:
        return str(error)


# -- linearize


@case(vec(), fullgraph=True)
def pushed_forward(x):
    out, push = torch.func.linearize(lambda a, b: (a * b, a.sin()), x, x + 1)
    return out, push(x, x), push(torch.ones(4), torch.zeros(4))


@case(leaf)
def pushed_forward_without_history(x):
    out, push = torch.func.linearize(lambda a: a * a, x)
    return out, push(torch.ones(4))


@case(vec())
def pushed_through_a_view(x):
    out, push = torch.func.linearize(lambda a: a.view(2, 2), x)
    return out, push(x)


# -- chunks of vmap


@case(vec(3, 4), vec(5, 4), vec(6, 4), fullgraph=True)
def chunks(x):
    return torch.vmap(lambda row: (row.sum(), row * 2), out_dims=(0, 1), chunk_size=2)(x)


@case(vec(3, 4), fullgraph=True)
def chunks_of_random_numbers(x):
    return torch.vmap(lambda row: row + torch.rand(4), randomness="different", chunk_size=2)(x), torch.rand(2)


@case(vec(3, 4))
def chunks_of_the_same_random_numbers(x):
    return torch.vmap(lambda row: row + torch.rand(4), randomness="same", chunk_size=2)(x), torch.rand(2)


@case(vec(3, 4))
def no_chunks(x):
    try:
        return torch.vmap(lambda row: row, chunk_size=0)(x)
    except ValueError as error:
        return str(error)


@case(vec(3, 4))
def element_at_a_computed_place(x):
    return torch.vmap(lambda row: row[row.argmax()])(x)


# -- batches of gradients


@case(leaf, fullgraph=True)
def gradients_of_rows(x):
    y = (x * x).sin()
    rows = torch.autograd.grad(y, x, torch.eye(4), retain_graph=True, is_grads_batched=True)
    y.sum().backward()
    return rows, x.grad


@case(leaf, fullgraph=True)
def gradients_of_rows_differentiated(x):
    (rows,) = torch.autograd.grad(x**3, x, torch.eye(4), create_graph=True, is_grads_batched=True)
    rows.diagonal().sum().backward()
    return rows.detach(), x.grad


@case(two, fullgraph=True)
def gradients_of_rows_to_several(x, y):
    z = x * y.sin()
    return torch.autograd.grad((z, x * 2), (x, y), (torch.eye(4), torch.eye(4)), is_grads_batched=True)


@case(two, fullgraph=True)
def gradients_of_rows_where_one_is_unused(x, y):
    return torch.autograd.grad(x * x, (x, y), torch.eye(4), is_grads_batched=True, allow_unused=True)


@case(vec(2, 4), factory=True, fullgraph=True)
def gradients_of_rows_to_parameters():
    model = net()

    def fn(x):
        return torch.autograd.grad(model(x).sum(0), [*model.parameters()], torch.eye(2), is_grads_batched=True)

    return fn, model


@case(leaf)
def gradients_of_rows_after_freeing(x):
    y = (x * x).sin()
    torch.autograd.grad(y, x, torch.eye(4), is_grads_batched=True)
    return torch.autograd.grad(y, x, torch.eye(4), is_grads_batched=True)


@case(two)
def gradients_of_rows_unused_error(x, y):
    return torch.autograd.grad(x * x, (x, y), torch.eye(4), is_grads_batched=True)


@case(leaf)
def gradients_of_rows_that_do_not_depend_on_them(x):
    return torch.autograd.grad(x.sum(), x, torch.ones(3), is_grads_batched=True)


test_all = make_test(__name__)
