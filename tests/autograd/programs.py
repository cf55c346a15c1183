"""Programs that use a function F with gradients (see hand_made.py): what they return or raise is compared."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

Function = Callable[..., tuple[torch.Tensor, ...]]
grad = torch.autograd.grad


def leaves(*requires: bool) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x, w = (torch.randn(2, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    for tensor, needed in zip((x, w), requires or (True, True), strict=True):
        tensor.requires_grad_(needed)
    return x, w


PROGRAMS: list[Callable[[Function], Any]] = []


def program(fn: Callable[[Function], Any]) -> Callable[[Function], Any]:
    """`fn(F)` uses F and returns what must be equal."""
    PROGRAMS.append(fn)
    return fn


def outcome(fn: Callable[[Function], Any], function: Function) -> Any:
    """What a program returns, or the error it raises without the names of nodes."""
    try:
        return fn(function)
    except Exception as error:
        # of a tensor that was changed eager names the one it saved, which may be a part of what the node saved
        text = re.sub(r"\[torch\.\w+ \[[\d, ]*\]\](, which is output \d of [\w:]+,)?", "a tensor", str(error))
        text = re.sub(r"version \d+", "some version", text)
        return type(error).__name__, re.sub(r"\b\w+Backward\d*\b", "a node", text)


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert isinstance(found, torch.Tensor)
        assert found.requires_grad == expected.requires_grad
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected)
    elif isinstance(expected, (tuple, list)):
        assert type(found) is type(expected) and len(found) == len(expected), (found, expected)
        for a, b in zip(found, expected, strict=True):
            assert_same(a, b)
    else:
        assert found == expected


# -- values and masks ------------------------------------------------------------------------------------------


@program
def outputs(F):
    x, w = leaves()
    s, index, e = F(x, w)
    return s, index, e, [t.is_leaf for t in (s, index, e)]


@program
def backward_of_all(F):
    x, w = leaves()
    s, _, e = F(x, w)
    (s.sum() + e.sum()).backward()
    return x.grad, w.grad


@program
def backward_of_the_first(F):
    x, w = leaves()
    F(x, w)[0].sum().backward()
    return x.grad, w.grad


@program
def backward_of_the_last_leaves_none(F):
    x, w = leaves()
    F(x, w)[2].sum().backward()
    return x.grad, w.grad


@program
def unused_input_is_an_error(F):
    x, w = leaves()
    return grad(F(x, w)[2].sum(), [x, w])


@program
def unused_input_is_none(F):
    x, w = leaves()
    return grad(F(x, w)[2].sum(), [x, w], allow_unused=True), grad(F(x, w)[2].sum(), [w], materialize_grads=True,
                                                                   allow_unused=None)


@program
def gradients_of_some(F):
    x, w = leaves()
    return grad(F(x, w)[0].sum(), x), grad(F(x, w)[0].sum(), w), x.grad


@program
def backward_with_inputs(F):
    x, w = leaves()
    F(x, w)[0].sum().backward(inputs=[w])
    return x.grad, w.grad


@program
def a_leaf_without_grad(F):
    x, w = leaves(True, False)
    s, _, e = F(x, w)
    (s.sum() + e.sum()).backward()
    return x.grad, w.grad


@program
def one_tensor_twice(F):
    x, _ = leaves()
    F(x, x)[0].sum().backward()
    return x.grad


@program
def not_leaves(F):
    x, w = leaves()
    s, _, e = F(x * 2, w.t().contiguous().t())
    (s * e).sum().backward()
    return x.grad, w.grad


@program
def called_twice(F):
    x, w = leaves()
    s, _, e = F(*F(x, w)[::2])
    (s.sum() * e.mean()).backward()
    return x.grad, w.grad


@program
def accumulates(F):
    x, w = leaves()
    x.grad = torch.ones_like(x)
    kept = x.grad
    for _ in range(3):
        F(x, w)[0].sum().backward()
    return x.grad, w.grad, kept is x.grad


@program
def gradients_in_other_layouts(F):
    x, w = leaves()
    found = []
    for g in (torch.ones(()).double().expand(2, 4), torch.arange(8.0).double().reshape(4, 2).t(),
              torch.arange(16.0).double().reshape(2, 8)[:, ::2]):
        found += [t.contiguous() for t in grad(F(x, w)[0], [x, w], g)]
        F(x, w)[0].backward(g)
    return found, x.grad, w.grad


@program
def a_lazy_negative(F):
    x, w = leaves()
    g = torch.complex(torch.zeros(2, 4), torch.ones(2, 4)).conj().imag.double()
    return grad(F(x, w)[0], [x, w], torch._neg_view(g))


@program
def gradient_of_the_wrong_shape(F):
    x, w = leaves()
    F(x, w)[0].backward(torch.ones(3, dtype=torch.float64))


@program
def gradient_of_the_wrong_type(F):
    x, w = leaves()
    return grad(F(x, w)[0], [x, w], torch.ones(2, 4, dtype=torch.float64) * 2)


@program
def integers_have_no_gradient(F):
    x, w = leaves()
    F(x, w)[1].sum().backward()


@program
def a_detached_result(F):
    x, w = leaves()
    s = F(x, w)[0]
    d = s.detach()
    d.zero_()
    return s, d.requires_grad


# -- what is saved ---------------------------------------------------------------------------------------------


@program
def backward_twice(F):
    x, w = leaves()
    s = F(x, w)[0].sum()
    s.backward()
    s.backward()


@program
def backward_twice_retained(F):
    x, w = leaves()
    s = F(x, w)[0].sum()
    s.backward(retain_graph=True)
    s.backward()
    return x.grad, w.grad


@program
def outputs_that_share_nothing(F):
    x, w = leaves()
    s, _, e = F(x, w)
    s.sum().backward()
    e.sum().backward()
    return x.grad, w.grad


@program
def outputs_that_share_nothing_and_one_again(F):
    x, w = leaves()
    s, _, e = F(x, w)
    e.sum().backward()
    s.sum().backward()
    e.sum().backward()


@program
def inputs_one_by_one(F):
    x, w = leaves()
    s = F(x, w)[0].sum()
    first = grad(s, w)
    return first, grad(s, x)


@program
def inputs_one_by_one_of_separate_outputs(F):
    x, w = leaves()
    s, _, e = F(x, w)
    return grad(e.sum(), x), grad(s.sum(), w), outcome(lambda _: grad(s.sum(), x), F)


@program
def a_saved_output_changed(F):
    x, w = leaves()
    e = F(x, w)[2]
    e.mul_(2)
    e.sum().backward()


@program
def an_output_changed_that_is_not_saved(F):
    x, w = leaves()
    s = F(x, w)[0]
    s.mul_(w)
    s.sum().backward()
    return x.grad, w.grad


@program
def a_view_of_an_output_changed(F):
    x, w = leaves()
    s = F(x, w)[0]
    s[0].mul_(3)
    s.sum().backward()
    return x.grad, w.grad


@program
def a_saved_leaf_changed(F):
    x, w = leaves()
    s = F(x, w)[0]
    with torch.no_grad():
        w.add_(1)
    s.sum().backward()


@program
def a_saved_intermediate_changed(F):
    x, w = leaves()
    v = w * 2
    s = F(x, v)[0]
    v.add_(1)
    s.sum().backward()


@program
def a_leaf_changed_that_is_not_saved(F):
    x, w = leaves()
    s = F(x, w)[0]
    with torch.no_grad():
        x.add_(1)
    s.sum().backward()
    return x.grad, w.grad


@program
def saved_tensor_hooks(F):
    x, w = leaves()
    packed, unpacked = [], []

    def pack(t):
        packed.append(t)
        return t.detach().numpy().copy()

    def unpack(array):
        unpacked.append(array)
        return torch.from_numpy(array)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        s, _, e = F(x, w)
    (s.sum() + e.sum()).backward()
    return x.grad, w.grad, len(packed) > 2, len(unpacked) > 2


@program
def saved_tensor_hooks_and_a_second_pass(F):
    x, w = leaves()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
        s = F(x, w)[0].sum()
    s.backward()
    s.backward()


@program
def a_pack_hook_that_raises(F):
    def pack(t):
        raise KeyError("no")

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        F(*leaves())


@program
def saved_on_cpu(F):
    x, w = leaves()
    with torch.autograd.graph.save_on_cpu():
        s, _, e = F(x, w)
    (s * e).sum().backward()
    return x.grad, w.grad


@program
def saving_forbidden(F):
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        return F(*leaves())[0]


# -- differentiable passes -------------------------------------------------------------------------------------


@program
def gradient_penalty(F):
    x, w = leaves()
    s, _, e = F(x, w)
    gx, = grad((s * e).sum(), x, create_graph=True)
    ((gx ** 2).sum() + s.sum()).backward()
    return gx, x.grad, w.grad


@program
def penalty_of_not_leaves(F):
    x, w = leaves()
    s, _, e = F(x * w, w.exp())
    gx, gw = grad(s.sum() + e.sum(), [x, w], create_graph=True)
    (gx * gw).sum().backward()
    return gx, gw, x.grad, w.grad


@program
def third_order(F):
    x, w = leaves()
    y = F(x, w)[0].sum()
    for _ in range(3):
        y = grad(y, x, create_graph=True)[0].sum()
    return y, grad(y, [x, w])


@program
def created_and_not_retained(F):
    x, w = leaves()
    s = F(x, w)[0].sum()
    gx, = grad(s, x, create_graph=True, retain_graph=False)
    return gx, grad(gx.sum(), [x, w]), outcome(lambda _: grad(s, x), F)


@program
def penalty_with_hooks(F):
    x, w = leaves()
    h = x * 1
    h.register_hook(lambda g: g * 2)
    s = F(h, w)[0]
    s.register_hook(lambda g: g * 3)
    gx, = grad(s.sum(), x, create_graph=True)
    return gx, grad(gx.sum(), [x, w])


@program
def penalty_again_and_again(F):
    x, w = leaves()
    found = []
    for _ in range(7):
        s, _, e = F(x, w)
        gx, = grad((s * e).sum(), x, create_graph=True)
        (gx ** 2).sum().backward()
        found.append(gx)
    return found, x.grad, w.grad


@program
def input_changed_before_a_differentiable_pass(F):
    x, w = leaves()
    s = F(x, w)[0].sum()
    with torch.no_grad():
        w.mul_(2)
    return grad(s, x, create_graph=True)


@program
def hessian(F):
    x, w = leaves(False, False)
    return torch.autograd.functional.hessian(lambda a: F(a, w)[0].sum(), x)


@program
def jacobian_by_rows_at_once(F):
    x, w = leaves(False, False)
    return torch.autograd.functional.jacobian(lambda a, b: F(a, b)[::2], (x, w), vectorize=True)


@program
def batched_gradients(F):
    x, w = leaves()
    s = F(x, w)[0]
    return grad(s, [x, w], torch.eye(8, dtype=torch.float64).reshape(8, 2, 4), is_grads_batched=True)


@program
def checked_by_gradcheck(F):
    return (torch.autograd.gradcheck(lambda a, b: F(a, b)[::2], leaves()),
            torch.autograd.gradgradcheck(lambda a, b: F(a, b)[::2], leaves()))


# -- hooks and the like ----------------------------------------------------------------------------------------


@program
def tensor_hooks(F):
    x, w = leaves()
    order = []
    for name, tensor in (("x", x), ("w", w)):
        tensor.register_hook(lambda g, name=name: order.append(name))
    x.register_hook(lambda g: g * 10)
    s, _, e = F(x, w)
    s.register_hook(lambda g: order.append("s"))
    s.register_hook(lambda g: g + 1)
    e.register_hook(lambda g: order.append("e"))
    (s.sum() + e.sum()).backward()
    return sorted(order[:2]), sorted(order[2:]), x.grad, w.grad


@program
def retained_gradients(F):
    x, w = leaves()
    h = x * 2
    h.retain_grad()
    s, _, e = F(h, w)
    s.retain_grad()
    (s * e).sum().backward()
    return h.grad, s.grad, x.grad


@program
def post_accumulate_hooks(F):
    x, w = leaves()
    w.register_post_accumulate_grad_hook(lambda t: t.grad.mul_(5))
    F(x, w)[0].sum().backward()
    return w.grad


@program
def node_hooks(F):
    x, w = leaves()
    s = F(x, w)[0]
    seen = []
    handle = s.grad_fn.register_prehook(lambda grads: tuple(g * 2 if g is not None else None for g in grads))
    s.grad_fn.register_hook(lambda results, grads: seen.append(grads[0]))
    s.sum().backward()
    handle.remove()
    return x.grad, w.grad, seen


@program
def module_hooks(F):
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(leaves()[1].detach())

        def forward(self, x):
            return F(x, self.w)[0]

    seen = []
    module = Module()
    module.register_full_backward_pre_hook(lambda m, grads: seen.append(("pre", grads[0])))
    module.register_full_backward_hook(lambda m, gi, go: seen.append(("post", gi[0], go[0])))
    x = leaves()[0]
    (module(x) * 3).sum().backward()
    return x.grad, module.w.grad, seen


@program
def a_hook_that_raises(F):
    x, w = leaves()

    def fail(g):
        raise KeyError("hook")

    x.register_hook(fail)
    F(x, w)[0].sum().backward()


@program
def a_pass_inside_a_hook(F):
    x, w = leaves()
    v = w.detach().requires_grad_()

    def again(g):
        F(v, v)[0].sum().backward()

    s = F(x, w)[0]
    s.register_hook(again)
    s.sum().backward()
    return x.grad, w.grad, v.grad


@program
def the_graph_can_be_walked(F):
    x, w = leaves()
    s, _, e = F(x, w)
    node = s.grad_fn
    reached, waiting = set(), [node]
    while waiting:
        current = waiting.pop()
        reached.add(getattr(current, "variable", None))
        waiting += [n for n, _ in current.next_functions if n is not None]
    return isinstance(node.name(), str), x in reached, w in reached, node.metadata, repr(s).count("grad_fn") > 0


@program
def gradients_at_an_edge(F):
    x, w = leaves()
    h = x * 2
    s = F(h, w)[0]
    edge = torch.autograd.graph.get_gradient_edge(h)
    return grad(s.sum(), [edge, w])


@program
def checkpointed(F):
    x, w = leaves()
    s, _, e = checkpoint(F, x, w, use_reentrant=False)
    (s * e).sum().backward()
    return x.grad, w.grad


@program
def checkpointed_reentrant(F):
    x, w = leaves()
    s, _, e = checkpoint(F, x, w, use_reentrant=True)
    (s * e).sum().backward()
    return x.grad, w.grad


@program
def nan_in_anomaly_mode(F):
    x, w = leaves()
    with pytest.warns(UserWarning), torch.autograd.detect_anomaly():
        F(x, w)[2].sqrt().sub(F(x, w)[2].sqrt()).sqrt().sum().backward()


@program
def multiplied_by_infinity_in_anomaly_mode(F):
    x, w = leaves()
    with torch.autograd.detect_anomaly(check_nan=False):
        s = F(x, w)[0]
        found = "multiplied_by_infinity" in "".join(s.grad_fn.metadata["traceback_"])
        s.backward(torch.full_like(s, float("inf")))
    return found, x.grad.isfinite().any()


@program
def under_no_grad(F):
    x, w = leaves()
    s, _, e = F(x.detach(), w.detach())
    return s.requires_grad, e.requires_grad, s
