"""What tensors carry besides numbers: grad, requires_grad, data, hooks, attributes, memory. PYTEST_DONT_REWRITE."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.semantics.harness import case, make_test

LOG: Any = None
KEPT: Any = None


def vec() -> torch.Tensor:
    return torch.randn(4)


def one():
    return (vec(),)


def two():
    return vec(), vec()


def leaf():
    return (torch.randn(4, requires_grad=True),)


def inner():
    x = torch.randn(4, requires_grad=True)
    return x * 1, x


def with_grad():
    x = torch.randn(4, requires_grad=True)
    (x * 3).sum().backward()
    return (x,)


# -- requires_grad, detach, data


@case(leaf, one, inner, fullgraph=True)
def flags_read(x, *rest):
    return x.requires_grad, x.is_leaf, (x * 2).requires_grad, (x * 2).is_leaf, x.detach().is_leaf


@case(one, leaf)
def requires_grad_method(x):
    x.requires_grad_()
    return x * 2


@case(one, leaf)
def requires_grad_assigned(x):
    x.requires_grad = True
    y = x * 2
    return y, y.requires_grad


@case(leaf, inner)
def requires_grad_assigned_to_a_result(x, *rest):
    y = x * 2
    try:
        y.requires_grad = True
    except RuntimeError as error:
        return str(error), y
    return y


@case(leaf, inner)
def requires_grad_taken_from_a_result(x, *rest):
    y = x * 2
    said = []
    for flag in (False, True, 0):
        try:
            y.requires_grad = flag
        except (RuntimeError, TypeError) as error:
            said.append((type(error), str(error)))
    return said, y


@case(leaf)
def requires_grad_off(x):
    x.requires_grad_(False)
    return x * 2


@case(inner)
def requires_grad_off_a_result(y, x):
    y.requires_grad_(False)
    return y


@case(one)
def leaf_made_inside(x):
    w = torch.ones(4).requires_grad_()
    return w * x, w


@case(one)
def leaf_made_by_constructor(x):
    w = torch.zeros(4, requires_grad=True)
    v = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    return (w + v) * x, w.is_leaf, v


@case(one)
def result_made_a_leaf(x):
    y = (x * 2).requires_grad_()
    return y * y, y, y.is_leaf


@case(one)
def detached_copy_requires_grad(x):
    y = x.detach().requires_grad_()
    return y * 2, y, x.requires_grad


@case(lambda: (torch.arange(4),))
def requires_grad_of_ints(x):
    x.requires_grad_()
    return x


@case(leaf, inner, fullgraph=True)
def detach_shares(x, *rest):
    y = x.detach()
    return y, y.requires_grad, x * y


@case(leaf)
def detach_then_write(x):
    y = x.detach()
    y.mul_(2)
    return x * 3, y


@case(one, inner)
def detach_in_place(x, *rest):
    y = (x * 2).detach_()
    return y * 2, y.is_leaf


@case(inner)
def detach_an_input(y, x):
    y.detach_()
    return y * x


@case(leaf, one)
def data_read(x):
    return x.data * 2, x.data.requires_grad, x.data


@case(leaf, one)
def data_written_in_place(x):
    x.data.mul_(0.5)
    return x * 2


@case(leaf, one)
def data_assigned(x):
    x.data = torch.ones(4) * 3
    return x * 2


@case(leaf)
def data_assigned_other_size(x):
    x.data = torch.ones(2, 3)
    return x * 2, x.shape


@case(lambda: (torch.randn(4, requires_grad=True), torch.randn(4)))
def data_aliases(x, y):
    x.data = y
    y.add_(1)
    return x * 1


@case(leaf)
def parameter_data_swapped(x):
    saved = x.data
    x.data = saved * 2
    y = x * 1
    x.data = saved
    return y, x * 1


# -- grad


@case(with_grad, leaf, one)
def grad_read(x):
    if x.grad is None:
        return x * 2
    return x.grad * 2


@case(with_grad)
def grad_cleared(x):
    x.grad = None
    return x.grad is None, x * 2


@case(with_grad, leaf)
def grad_assigned(x):
    x.grad = torch.ones(4)
    return x.grad + 1


@case(with_grad)
def grad_changed_in_place(x):
    x.grad.mul_(2)
    x.grad.zero_()
    return x.grad + x.detach()


@case(with_grad)
def grad_replaced_by_product(x):
    x.grad = x.grad * 2
    return x.grad.sum()


@case(leaf)
def grad_assigned_wrong(x):
    x.grad = torch.ones(3)
    return x


@case(with_grad)
def grad_deleted(x):
    del x.grad
    return x.grad


@case(with_grad, factory=True)
def grad_appears_between_calls():
    p = nn.Parameter(torch.ones(4))
    calls = [0]

    def fn(x):
        return x * (p.grad if p.grad is not None else 1)

    def outside(x):
        calls[0] += 1
        p.grad = None if calls[0] % 3 == 1 else torch.full((4,), float(calls[0]))
        return fn(x)

    return outside, [p, calls]


@case(leaf)
def retained_grad(x):
    y = x * 2
    y.retain_grad()
    z = y * 3
    return z, y


@case(leaf)
def backward_inside(x):
    y = (x * x).sum()
    y.backward()
    return x.grad * 1


@case(leaf)
def backward_twice(x):
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    return x.grad.clone()


@case(leaf)
def backward_of_freed_graph(x):
    y = (x * x).sum()
    y.backward()
    y.backward()
    return x


@case(leaf)
def autograd_grad_inside(x):
    y = (x**3).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    return g * 2


@case(leaf)
def autograd_grad_of_constant(x):
    (g,) = torch.autograd.grad((x.detach() * 2).sum() + 0 * x.sum(), x)
    return g


@case(leaf)
def grad_function_read(x):
    y = x * 2
    return type(y.grad_fn).__name__, x.grad_fn, y


@case(leaf)
def versions(x):
    y = x * 2
    before = y._version
    y.add_(1)
    return before, y._version, y


@case(one)
def version_of_input(x):
    x.add_(1)
    x[0].mul_(2)
    return x._version > 0


# -- hooks


@case(leaf)
def tensor_hook(x):
    y = x * 2
    y.register_hook(lambda g: g * 10)
    return y * 3


@case(leaf)
def tensor_hook_on_input(x):
    handle = x.register_hook(lambda g: g * 10)
    y = x * 3
    return y, handle is not None


@case(leaf)
def tensor_hook_removed(x):
    y = x * 2
    handle = y.register_hook(lambda g: g * 10)
    handle.remove()
    return y * 3


@case(leaf, globals={"LOG": list})
def hook_logs(x):
    y = x * 2
    y.register_hook(lambda g: LOG.append(float(g.sum())))
    return y * 3


@case(leaf, globals={"LOG": list})
def accumulate_hook(x):
    x.register_post_accumulate_grad_hook(lambda p: LOG.append(float(p.grad.sum())))
    return x * 3


def hooked_before():
    x = torch.randn(4, requires_grad=True)
    x.register_hook(lambda g: g * 5)
    return (x,)


@case(hooked_before, leaf, fullgraph=True)
def input_with_hook(x):
    return x * 3


# -- attributes


def tagged():
    x = vec()
    x.tag = "one"
    return (x,)


@case(tagged, one)
def attribute_read(x):
    return x * 2 if getattr(x, "tag", None) == "one" else x * 3


@case(one, tagged)
def attribute_appears(x):
    return hasattr(x, "tag"), x * 2


@case(one, tagged)
def attribute_written(x):
    x.tag = 5
    return x + x.tag


@case(tagged)
def attribute_deleted(x):
    del x.tag
    return hasattr(x, "tag")


@case(one)
def attribute_on_result(x):
    y = x * 2
    y.note = {"k": [1]}
    z = y + 1
    return y, z, hasattr(z, "note")


@case(one)
def attribute_holds_tensor(x):
    y = x * 2
    y.original = x
    return y.original + 1, y


def shadowing():
    x = vec()
    x.relu = lambda: 7
    return (x,)


@case(one, shadowing)
def attribute_shadows_method(x):
    return x.relu(), x * 2


@case(shadowing, one)
def attribute_shadows_method_first(x):
    return x.relu()


@case(one)
def attribute_shadows_method_inside(x):
    x.exp = lambda: "mine"
    return x.exp(), torch.exp(x)


def shadowing_property():
    x = vec()
    x.__dict__["shape"] = "not this"
    return (x,)


@case(one, shadowing_property)
def data_descriptors_win(x):
    return x.shape, x * 2


@case(lambda: (nn.Parameter(torch.randn(3)),), factory=True)
def parameter_attributes():
    p = nn.Parameter(torch.ones(3))
    calls = [0]

    def fn(x):
        return x * p * (2 if hasattr(p, "frozen") else 1)

    def outside(x):
        calls[0] += 1
        if calls[0] == 2:
            p.frozen = True
        return fn(x)

    return outside, [p, calls]


@case(one, factory=True)
def method_shadowed_on_global_tensor():
    t = torch.ones(4)
    calls = [0]

    def fn(x):
        return x + t.sum()

    def outside(x):
        calls[0] += 1
        if calls[0] == 2:
            t.sum = lambda: 100.0
        return fn(x)

    return outside, [calls]


# -- parameters and memory


@case(one)
def parameter_made_inside(x):
    p = nn.Parameter(torch.ones(4))
    return p * x, isinstance(p, nn.Parameter), p.requires_grad


@case(one)
def parameter_from_result(x):
    p = nn.Parameter(x * 2)
    return p * x, p


@case(one)
def parameter_of_input_shares(x):
    p = nn.Parameter(x, requires_grad=False)
    p.add_(1)
    return x, p


@case(one)
def buffer_made_inside(x):
    b = nn.Buffer(torch.ones(4))
    return b * x, type(b).__name__


@case(two)
def copy_in(x, y):
    x.copy_(y * 2)
    return x + 1


@case(lambda: (torch.randn(2, 3), torch.randn(3)))
def copy_broadcasts(x, y):
    x.copy_(y)
    x[0].copy_(y.int())
    return x


@case(two)
def set_memory(x, y):
    x.set_(y)
    y.add_(1)
    return x * 2


@case(one)
def resize(x):
    x.resize_(2, 2)
    return x.shape, x[0]


@case(one)
def resize_result(x):
    y = x * 2
    y.resize_(2)
    return y


@case(two)
def swap_tensors(x, y):
    torch.utils.swap_tensors(x, y)
    return x * 2, y


@case(one)
def storage_reads(x):
    y = x[1:]
    return y.storage_offset(), y.untyped_storage().nbytes(), x.data_ptr() == x.view(2, 2).data_ptr()


@case(lambda: (torch.randn(2, 3),))
def expanded_memory_refuses(x):
    y = x[:, :1].expand(2, 3)
    y.add_(1)
    return y


@case(one)
def expanded_memory_of_result(x):
    y = (x * 2)[:1].expand(4)
    y.add_(1)
    return y


@case(lambda: (torch.randn(6),))
def overlapping_windows(x):
    y = x.unfold(0, 3, 1)
    y.add_(1)
    return x


@case(lambda: (torch.randn(6),))
def overlapping_copy(x):
    x[1:].copy_(x[:-1])
    return x


@case(leaf)
def leaf_changed(x):
    x.add_(1)
    return x


@case(leaf)
def leaf_changed_through_view(x):
    x[0] = 1
    return x


@case(leaf)
def leaf_changed_without_grad(x):
    with torch.no_grad():
        x.add_(1)
    return x * 2


@case(inner)
def inner_changed(y, x):
    y.mul_(2)
    return y * 3


@case(inner)
def inner_changed_through_view(y, x):
    y[1:].mul_(2)
    return y * 3


@case(inner)
def saved_value_changed(y, x):
    z = y.exp()
    z.add_(1)
    return z


@case(lambda: (torch.randn(4, requires_grad=True) * 1,))
def unbound_views_changed(y):
    a, b, *_ = y.unbind()
    a.mul_(2)
    return y


@case(leaf)
def view_made_without_grad_changed(x):
    y = x * 1
    with torch.no_grad():
        v = y[:2]
    v.mul_(2)
    return y


@case(lambda: (torch.randn(3, 4),))
def views_of_views(x):
    a = x.t()
    b = a[1:]
    c = b.reshape(-1)
    b.mul_(2)
    a[0].add_(10)
    return x, c, b


@case(lambda: (torch.zeros(2, 3),))
def base_and_view_returned(x):
    v = x[0]
    v.add_(1)
    return x, v, v._base is x, v._is_view()


@case(lambda: (torch.zeros(4), torch.zeros(4)), lambda: (lambda t: (t, t))(torch.zeros(4)),
      lambda: (lambda t: (t[:4], t[2:6]))(torch.zeros(6)))
def inputs_may_overlap(a, b):
    a.add_(1)
    b.mul_(3)
    return a + b


@case(one, globals={"KEPT": list})
def kept_alias_changed_next_call(x):
    KEPT.append(x[:2])
    KEPT[0].add_(1)
    return x * 1


@case(lambda: (torch.randn(4, dtype=torch.complex64),))
def views_of_complex(x):
    x.real.mul_(2)
    y = torch.view_as_real(x)
    y[0] = 0
    return x, x.imag


@case(one)
def tensor_is_itself(x):
    y = x.contiguous()
    z = x.to(torch.float32)
    return y is x, z is x, x.clone() is x, x.float() is x, x[:] is x, x.detach() is x


@case(two, factory=True)
def weak_references():
    import weakref

    def fn(x, y):
        ref = weakref.ref(x)
        return ref() is x, x * y

    return fn


@case(leaf, globals={"LOG": list})
def autograd_graph_hooks(x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: LOG.append("pack") or t, lambda t: t):
        y = x.exp()
    return y


@case(leaf)
def save_on_cpu(x):
    with torch.autograd.graph.save_on_cpu():
        y = x.exp() * x
    return y


@case(lambda: (torch.randn(3, requires_grad=True),), fullgraph=True)
def view_without_grad_mode_of_what_was_computed(x):
    y = x * 2
    with torch.no_grad():
        view = y.view_as(y)
        part = y[1:]
        plain = y.detach()[1:]
    return view, view.requires_grad, view.is_leaf, part.requires_grad, plain.requires_grad, plain


@case(lambda: (torch.randn(3, requires_grad=True),), fullgraph=True)
def view_without_grad_mode_of_an_argument(x):
    with torch.no_grad():
        view = x[1:]
    return view, view.requires_grad, view.is_leaf


@case(lambda: (torch.randn(3, requires_grad=True),), fullgraph=True)
def view_without_grad_mode_after_a_backward_pass(x):
    y = x * 2
    y.sum().backward()
    with torch.no_grad():
        return y[1:] + 1


@case(lambda: (torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)), fullgraph=True)
def gradients_of_nothing(x, y):
    errors = []
    for tensors in ([y], [x, y], [x, x, y, y]):
        try:
            torch.autograd.grad((x * 2).sum(), tensors)
        except RuntimeError as error:
            errors.append(str(error))
    return errors, x * 2


@case(lambda: (torch.randn(4),), fullgraph=True, factory=True)
def gradient_deleted():
    layer = nn.Linear(4, 2)

    def fn(x):
        layer(x).sum().backward()
        kept = layer.weight.grad
        del layer.weight.grad
        return kept, layer.weight.grad is None, layer.bias.grad

    return fn, layer


@case(lambda: (torch.randn(4, requires_grad=True),), fullgraph=True)
def leaf_retains_its_gradient(x):
    x.retain_grad()
    (x.sin() * x).sum().backward()
    return x.grad


@case(lambda: (torch.randn(4, requires_grad=True) * 2,), lambda: (torch.randn(4),))
def others_retain_theirs(x):
    x.retain_grad()
    return x.sin() * x


test_cases = make_test(__name__)
