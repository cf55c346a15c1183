"""torch.func: vmap, grad and the other transforms. PYTEST_DONT_REWRITE: cases run as they are written."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)
from torch.utils.checkpoint import checkpoint

from tests.semantics.harness import case, make_test


def vec(*sizes: int) -> torch.Tensor:
    return torch.randn(*(sizes or (4,)))


def one():
    return (vec(),)


def matrix():
    return (vec(3, 4),)


def leaf():
    return (vec().requires_grad_(),)


@case(matrix, lambda: (vec(5, 4),), fullgraph=True)
def vmap_simple(x):
    return vmap(lambda row: row.sin() + row.sum())(x) * 2


@case(matrix)
def vmap_public_name(x):
    return torch.vmap(torch.dot)(x, x)


@case(matrix, fullgraph=True)
def vmap_in_dims(x):
    return vmap(lambda a, b: a @ b, in_dims=(1, None))(x, x[:, 0])


@case(matrix, fullgraph=True)
def vmap_out_dims(x):
    return vmap(lambda a: (a * 2, a.sum()), out_dims=(1, 0))(x)


@case(matrix, fullgraph=True)
def vmap_nested(x):
    return vmap(vmap(lambda s: s * s + 1))(x)


@case(matrix, fullgraph=True)
def vmap_dict_argument(x):
    return vmap(lambda d: d["a"] + d["b"], in_dims=({"a": 0, "b": None},))({"a": x, "b": x[0]})


@case(matrix, fullgraph=True)
def vmap_captured_tensor(x):
    w = x.mean(0)
    return vmap(lambda row: (row - w).relu())(x)


@case(matrix)
def vmap_sees_sizes(x):
    shapes = []

    def body(row):
        shapes.append((row.shape, row.ndim, row.dtype))
        return row / row.shape[0]

    return vmap(body)(x), shapes


@case(matrix, matrix, factory=True)
def vmap_changing_closure():
    state = {"scale": 1.0}

    def fn(x):
        state["scale"] += 1
        return vmap(lambda row: row * state["scale"])(x)

    return fn, state


@case(matrix)
def vmap_print(x):
    def body(row):
        print("once", row.shape)
        return row + 1

    return vmap(body)(x)


@case(matrix, fullgraph=True)
def vmap_in_place_local(x):
    def body(row):
        y = row.clone()
        y.add_(1)
        y[0] = 0
        return y

    return vmap(body)(x)


@case(matrix)
def vmap_in_place_argument(x):
    def body(row):
        row.mul_(2)
        return row.sum()

    return vmap(body)(x), x


@case(matrix, fullgraph=True)
def vmap_factory(x):
    return vmap(lambda row: row + torch.ones(4) + torch.arange(4))(x)


@case(matrix)
def vmap_item_error(x):
    return vmap(lambda row: row.sum().item())(x)


@case(matrix)
def vmap_branch_error(x):
    return vmap(lambda row: row if row.sum() > 0 else -row)(x)


@case(matrix)
def vmap_bad_in_dims(x):
    return vmap(lambda row: row, in_dims=2)(x)


@case(matrix)
def vmap_non_tensor_result(x):
    return vmap(lambda row: "text")(x)


@case(matrix)
def vmap_error_caught(x):
    try:
        return vmap(lambda row: row @ row[:2])(x)
    except RuntimeError:
        return x + 1


@case(matrix, fullgraph=True)
def vmap_random_same(x):
    return vmap(lambda row: row + torch.rand(4), randomness="same")(x)


@case(matrix, fullgraph=True)
def vmap_random_different(x):
    return vmap(lambda row: row + torch.rand(4), randomness="different")(x), torch.rand(2)


@case(matrix)
def vmap_random_error(x):
    return vmap(lambda row: row + torch.rand(4))(x)


@case(matrix)
def vmap_chunked(x):
    return vmap(lambda row: row * 2, chunk_size=2)(x)


@case(lambda: (vec(3, 4).requires_grad_(),), fullgraph=True)
def vmap_backward(x):
    return vmap(lambda row: (row * row).sum())(x)


@case(matrix, fullgraph=True)
def vmap_list_of_results(x):
    return vmap(lambda row: [row, {"s": row.sum()}])(x)


@case(lambda: (vec(3, 2, 4),), fullgraph=True)
def vmap_linear_layer(x):
    return vmap(lambda t: torch.nn.functional.linear(t, t[:, :4]).softmax(-1))(x)


@case(one, lambda: (vec(6),), fullgraph=True)
def grad_simple(x):
    return grad(lambda t: (t.sin() * t).sum())(x)


@case(one, fullgraph=True)
def grad_of_grad(x):
    return grad(lambda t: grad(lambda u: (u**3).sum())(t).sum())(x)


@case(one, fullgraph=True)
def grad_argnums(x):
    return grad(lambda a, b: (a * b).sum(), argnums=(0, 1))(x, x + 1)


@case(one, fullgraph=True)
def grad_has_aux(x):
    return grad(lambda t: ((t * t).sum(), {"aux": t + 1}), has_aux=True)(x)


@case(one, fullgraph=True)
def value_and_gradient(x):
    return grad_and_value(lambda t: t.exp().sum())(x)


@case(one, fullgraph=True)
def grad_captured(x):
    w = x + 1
    return grad(lambda t: (t * w).tanh().sum())(x)


@case(leaf, fullgraph=True)
def grad_under_autograd(x):
    return grad(lambda t: (t**3).sum())(x)


@case(one, fullgraph=True)
def grad_no_grad_inside(x):
    def body(t):
        with torch.no_grad():
            s = t.sum()
        return (t * s).sum()

    return grad(body)(x)


@case(one, fullgraph=True)
def grad_detach_inside(x):
    return grad(lambda t: (t * t.detach()).sum())(x)


@case(one)
def grad_not_scalar(x):
    return grad(lambda t: t * 2)(x)


@case(one)
def grad_of_integers(x):
    return grad(lambda t: t.sum())(torch.arange(3))


@case(one)
def grad_side_effect(x):
    seen = []

    def body(t):
        seen.append(t.shape)
        return t.sum()

    return grad(body)(x), seen


@case(one)
def grad_unused(x):
    return grad(lambda a, b: a.sum(), argnums=1)(x, x + 1)


@case(one, fullgraph=True)
def grad_in_place(x):
    def body(t):
        y = t * 2
        y.mul_(t)
        return y.sum()

    return grad(body)(x)


@case(matrix, fullgraph=True)
def per_sample_gradients(x):
    w = x.mean(0)
    return vmap(grad(lambda p, row: (p * row).sum().sigmoid()), in_dims=(None, 0))(w, x)


@case(one, fullgraph=True)
def jacobian_reverse(x):
    return jacrev(lambda t: t.sin() * t[0])(x)


@case(one, fullgraph=True)
def jacobian_forward(x):
    return jacfwd(lambda t: t.sin() * t[0])(x)


@case(one, fullgraph=True)
def hessian_matrix(x):
    return hessian(lambda t: (t**3).sum())(x)


@case(one, fullgraph=True)
def jvp_simple(x):
    return jvp(lambda t: t.sin(), (x,), (torch.ones_like(x),))


@case(one)
def vjp_simple(x):
    out, pull = vjp(lambda t: t.sin(), x)
    return out, pull(torch.ones_like(out))


@case(one)
def vjp_has_aux(x):
    out, pull, aux = vjp(lambda t: (t * 2, t.sum()), x, has_aux=True)
    return out, pull(out), aux


@case(one)
def linearized(x):
    out, push = torch.func.linearize(lambda t: t * t, x)
    return out, push(x)


@case(one, fullgraph=True)
def grad_around_a_break(x):
    y = x * 2
    g = grad(lambda t: (t * t).sum())(y)
    return g + y


def make_mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


@case(matrix, matrix, factory=True, fullgraph=True)
def call_with_other_parameters():
    model = make_mlp()
    other = {k: v.detach() * 2 for k, v in model.named_parameters()}

    def fn(x):
        return functional_call(model, other, (x,)) + model(x)

    return fn, model


@case(matrix, factory=True)
def call_with_some_parameters():
    model = make_mlp()

    def fn(x):
        return functional_call(model, {"0.bias": torch.zeros(3)}, (x,))

    return fn, model


@case(matrix, factory=True)
def call_with_unknown_parameter():
    model = make_mlp()

    def fn(x):
        return functional_call(model, {"none": torch.zeros(3)}, (x,), strict=True)

    return fn, model


@case(matrix, factory=True, fullgraph=True)
def gradient_of_functional_call():
    model = make_mlp()

    def fn(x):
        params = dict(model.named_parameters())

        def loss(p, row):
            return functional_call(model, p, (row,)).pow(2).mean()

        return grad(loss)(params, x)

    return fn, model


@case(lambda: (vec(5, 4),), factory=True)
def ensemble():
    torch.manual_seed(0)
    models = [nn.Linear(4, 2) for _ in range(3)]
    base = nn.Linear(4, 2)

    def fn(x):
        params, buffers = stack_module_state(models)

        def run(p, b, data):
            return functional_call(base, (p, b), (data,))

        return vmap(run, in_dims=(0, 0, None))(params, buffers, x)

    return fn, nn.ModuleList(models)


@case(lambda: (vec(5, 4),), factory=True, fullgraph=True)
def per_sample_gradients_of_a_model():
    model = make_mlp()
    params = {k: v.detach() for k, v in model.named_parameters()}

    def loss(p, row):
        return functional_call(model, p, (row.unsqueeze(0),)).sum()

    def fn(x):
        return vmap(grad(loss), in_dims=(None, 0))(params, x)

    return fn, model


@case(matrix, factory=True, fullgraph=True)
def transform_made_outside():
    per_row = vmap(lambda row: row.cumsum(0))

    def fn(x):
        return per_row(x) + 1

    return fn


@case(lambda: (vec(3, 4, 5),), lambda: (vec(3, 6, 5),), lambda: (vec(3, 7, 5),), fullgraph=True)
def vmap_changing_sizes(x):
    return vmap(lambda t: t.mean(0) - t[0])(x)


@case(lambda: (vec(3, 4), vec(4)))
def vmap_in_place_captured(x, w):
    def body(row):
        w.add_(1)
        return row * w

    return vmap(body)(x), w


@case(lambda: (vec(3, 4), vec(4)))
def vmap_in_place_captured_error(x, w):
    def body(row):
        w.add_(row)
        return row

    return vmap(body)(x), w


@case(matrix, fullgraph=True)
def vmap_view_result(x):
    return vmap(lambda row: row[1:])(x), x


@case(matrix, fullgraph=True)
def vmap_identity_result(x):
    return vmap(lambda row: row)(x), x


@case(one, fullgraph=True)
def grad_identity_aux(x):
    return grad(lambda t: (t.sum(), t), has_aux=True)(x)


@case(matrix)
def vmap_break_inside(x):
    import jitpy

    def body(row):
        row = row + 1
        jitpy.graph_break()
        return row * 2

    return vmap(body)(x) + 1


@case(matrix)
def vmap_writes_examples_to_shared_memory(x):
    def body(row):
        y = torch.zeros(4)
        y.add_(row)
        return y

    return vmap(body)(x)


@case(matrix)
def vmap_leaks_a_tensor(x):
    seen = []

    def body(row):
        seen.append(row)
        return row * 2

    return vmap(body)(x), len(seen)


@case(one)
def grad_reads_requires_grad(x):
    return grad(lambda t: (t * (2 if t.requires_grad else 3)).sum())(x)


@case(one, lambda: (vec().requires_grad_(),))
def grad_reads_is_leaf(x):
    return grad(lambda t: (t * (2 if t.is_leaf else 3) * (2 if (t * 1).is_leaf else 3)).sum())(x)


@case(one, lambda: (vec().requires_grad_(),))
def vmap_reads_what_autograd_knows(x):
    def fn(t):
        return t * (2 if t.requires_grad else 3) * (2 if t.is_leaf else 3)

    return vmap(fn)(x), vmap(grad(fn))(x), grad(lambda t: vmap(fn)(t).sum())(x)


@case(one)
def grad_of_a_checkpoint(x):
    return grad(lambda t: checkpoint(torch.sin, t, use_reentrant=False).sum())(x)


@case(one)
def vmap_asks_for_memory(x):
    found = []
    for asked in (lambda t: t.numpy(), lambda t: t.tolist()):
        try:
            found.append(vmap(lambda t, asked=asked: t * len(asked(t)))(x))
        except RuntimeError as error:
            found.append(str(error))
    return found


@case(one)
def vmap_reads_data(x):
    try:
        return vmap(lambda t: t.data * 2)(x)
    except RuntimeError as error:
        return type(error).__name__


@case(one)
def grad_with_grad_mode_off(x):
    with torch.no_grad():
        return grad(lambda t: (t * t).sum() * (2 if torch.is_grad_enabled() else 3))(x)


@case(lambda: (vec().requires_grad_(), vec().requires_grad_()))
def second_order_through_autograd(x, w):
    return grad(lambda t: (t * w).sin().sum())(x) * w


@case(one)
def transform_returned(x):
    f = grad(lambda t: (t * x).sum())
    return f(x), f.__name__


@case(one, factory=True)
def transform_leaves():
    held = []

    def fn(x):
        held.append(vmap(lambda t: t * 2))
        return held[-1](x)

    return fn


@case(lambda: (vec(3, 4), vec(2, 4)))
def vmap_different_sizes(x, y):
    return vmap(lambda a, b: a + b)(x, y)


@case(matrix)
def vmap_item_of_captured(x):
    s = x.sum()
    return vmap(lambda row: row * 2 if s.item() > 1e9 else row * 3)(x)


@case(matrix)
def vmap_dropout(x):
    return vmap(lambda row: torch.nn.functional.dropout(row, 0.5), randomness="different")(x)


@case(lambda: (vec(3, 2, 4, 4), vec(5, 2, 3, 3)))
def vmap_convolution(x, w):
    return vmap(lambda image: torch.nn.functional.conv2d(image[None], w)[0])(x)


@case(lambda: (vec(3, 4), torch.tensor([0, 2, 1])))
def vmap_index(x, i):
    return vmap(lambda row, k: row[k.clamp(max=2)] if False else row.gather(0, k.view(1)))(x, i)


@case(matrix, factory=True)
def function_that_changes_a_dict():
    seen = {"calls": 0}

    def fn(x):
        def body(row):
            seen["calls"] += 1
            return row * seen["calls"]

        return vmap(body)(x)

    return fn, seen


@case(matrix, factory=True)
def function_that_deletes_and_sets():
    seen = {"a": 1, "b": 2}

    def fn(x):
        def body(row):
            a = seen.pop("a")
            seen["a"] = a
            return row * a

        return vmap(body)(x), list(seen)

    return fn, seen


@case(matrix, factory=True)
def module_under_vmap():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.GELU())

    def fn(x):
        return vmap(model)(x)

    return fn, model


@case(matrix, factory=True)
def batch_norm_under_vmap():
    torch.manual_seed(0)
    model = nn.BatchNorm1d(4)

    def fn(x):
        return vmap(model)(torch.stack([x, x + 1]))

    return fn, model


@case(one)
def functionalized(x):
    return torch.func.functionalize(lambda t: t.clone().add_(1))(x)


@case(factory=True, fullgraph=True)
def ensemble_over_a_skeleton():
    models = [make_mlp() for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)
    skeleton = copy.deepcopy(models[0]).to("meta")

    def one_model(params, buffs, x):
        return torch.func.functional_call(skeleton, (params, buffs), (x,))

    def fn(x):
        return torch.func.vmap(one_model, in_dims=(0, 0, None))(parameters, buffers, x)

    return (lambda: fn(torch.arange(8.0).reshape(2, 4))), parameters


@case(one)
def derivative_of_a_number(x):
    errors = []
    for transform in (torch.func.grad, torch.func.jacrev):
        try:
            transform(lambda number: number.sum() * x)(3)
        except ValueError as error:
            errors.append(str(error))
    return errors, x * 2


test_all = make_test(__name__)
