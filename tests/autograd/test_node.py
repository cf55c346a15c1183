"""The autograd node against eager: programs are run with both, and must do the same, errors included."""

from __future__ import annotations

import functools
import gc
import re
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from .hand_made import BUILDERS, MAKERS, Passes, eager, spec

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
        text = re.sub(r"output \d of \w+", "output of a node", str(error))
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
    s.grad_fn.register_hook(lambda results, grads: seen.append(len(results)))
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


@pytest.mark.parametrize("maker", list(MAKERS))
@pytest.mark.parametrize("fn", PROGRAMS, ids=[fn.__name__ for fn in PROGRAMS])
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_program(fn: Callable[[Function], Any], maker: str) -> None:
    expected = outcome(fn, eager)
    found = outcome(fn, MAKERS[maker]())
    if maker == "python" and fn in FREES_AT_ONCE:
        assert found[0] == "RuntimeError" and "second time" in found[1]
        return
    assert_same(found, expected)


#: the node in Python frees everything when it has run, as a `torch.autograd.Function` does
FREES_AT_ONCE = {outputs_that_share_nothing, inputs_one_by_one_of_separate_outputs}


# -- what lives how long ---------------------------------------------------------------------------------------


@pytest.fixture(params=list(MAKERS))
def make(request: pytest.FixtureRequest) -> Callable[..., Function]:
    made = functools.partial(MAKERS[request.param])
    made.name = request.param
    return made


class Token:
    """What a saved tensor is packed into: it goes when the node frees it."""

    living: weakref.WeakSet[Token] = weakref.WeakSet()

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.detach()  # not its history, which leads to the node
        Token.living.add(self)


def with_tokens(F: Function, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    Token.living.clear()
    with torch.autograd.graph.saved_tensors_hooks(Token, lambda token: token.tensor):
        return F(x, w)


def test_saved_tensors_go_with_the_backward_pass(make):
    s, _, e = with_tokens(make(), *leaves())
    assert Token.living
    total = s.sum() + e.sum()
    total.backward(retain_graph=True)
    assert Token.living
    total.backward()
    assert not Token.living


def test_saved_tensors_go_with_the_results(make):
    results = with_tokens(make(), *leaves())
    assert Token.living
    del results
    assert not Token.living


def test_nothing_is_saved_where_no_gradient_is_needed(make):
    with_tokens(make(), *leaves(False, False))
    assert not Token.living


def test_inputs_are_not_held_after_the_backward_pass():
    F = MAKERS["native"]()
    x, w = leaves()
    h = x * 1
    s, _, e = F(h, w)
    alive = weakref.ref(h)
    del h
    assert alive() is not None
    (s.sum() + e.sum()).backward()
    assert alive() is None, "the inputs for a differentiable pass are still held"


def test_no_cycles(make):
    F = make()
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            x, w = leaves()
            s, index, e = F(x, w)
            alive = [weakref.ref(t) for t in (x, w, s, e)]
            (s * e).sum().backward()
            gx, = grad(F(x, w)[0].sum(), x, create_graph=True)
            del x, w, s, index, e, gx
            assert not any(ref() is not None for ref in alive)
    finally:
        gc.enable()


def test_a_thousand_steps_leak_nothing(make):
    F = make()
    x, w = leaves()

    def step(i: int) -> None:
        s, _, e = F(x, w)
        if i % 10 == 0:
            gx, = grad((s * e).sum(), x, create_graph=True)
            (gx ** 2).sum().backward()
        elif i % 10 != 1:  # some are dropped without a backward pass
            (s * e).sum().backward()

    for i in range(50):
        step(i)
    gc.collect()
    before = len(gc.get_objects())
    resident = _resident()
    for i in range(1000):
        step(i)
    gc.collect()
    assert len(gc.get_objects()) <= before + 20
    assert _resident() - resident < 8 << 20


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_the_function_goes_when_the_last_result_goes(make):
    F = make()
    passes = weakref.ref(F.spec.backward)
    s = F(*leaves())[0]
    del F
    gc.collect()
    assert passes() is not None
    s.sum().backward()
    del s
    gc.collect()
    assert passes() is None


def test_a_long_chain_is_freed_without_recursion(make):
    F = make()
    x, w = leaves()
    y = x
    for _ in range(20_000):
        y = F(y, w)[0]
    y.sum().backward()
    assert x.grad is not None
    del y


# -- passes that are made --------------------------------------------------------------------------------------


def test_each_pass_is_made_once_and_only_what_is_asked():
    passes = Passes()
    F = MAKERS["native"](backward=passes)
    x, w = leaves()
    for _ in range(3):
        F(x, w)[0].sum().backward()
        grad(F(x, w)[0].sum(), x)
        grad(F(x, w)[2].sum(), x)
    assert sorted(passes.made) == [(1, 1), (1, 3), (2, 1)]


def test_a_leaf_that_needs_none_is_not_asked_for(make):
    passes = Passes()
    x, w = leaves(True, False)
    make(backward=passes)(x, w)[0].sum().backward()
    assert passes.made == [(1, 1)]


def test_many_inputs_make_wide_masks():
    count = 150

    def forward(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (sum(tensors[1:], tensors[0]),)

    def backward(defined: int, wanted: int) -> Any:
        assert defined == 1
        return lambda g: [g * (i + 1) for i in range(count) if wanted >> i & 1]

    for maker in MAKERS:
        F = BUILDERS[maker](
            forward, spec(n_inputs=count, n_outputs=1, saved=(), grad_outputs=(0,), grad_inputs=tuple(range(count)),
                          backward=backward, eager=None, kept=(), under=(), over=()))
        tensors = [torch.zeros(2, requires_grad=i % 3 != 0) for i in range(count)]
        y, = F(*tensors)
        y.sum().backward()
        for i, tensor in enumerate(tensors):
            assert tensor.grad is None if i % 3 == 0 else tensor.grad.tolist() == [i + 1.0, i + 1.0]
        g, = grad(F(*tensors)[0].sum(), [tensors[133]])
        assert g.tolist() == [134.0, 134.0]


def test_a_backward_pass_that_cannot_be_made(make):
    def backward(defined: int, wanted: int) -> Any:
        raise ZeroDivisionError("no such pass")

    s = make(backward=backward)(*leaves())[0].sum()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="no such pass"):
            s.backward()


def test_too_few_gradients():
    F = MAKERS["native"](backward=lambda defined, wanted: lambda *values: [])
    with pytest.raises(RuntimeError, match="too few"):
        F(*leaves())[0].sum().backward()


def test_no_second_derivative(make):
    F = make(eager=None)
    x, w = leaves()
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        grad(F(x, w)[0].sum(), x, create_graph=True)


def test_watched_tensors_are_checked_and_not_held():
    F = MAKERS["native"](watched=(("output", 0), ("input", 0)), saved=(("extra", 0), ("input", 1), ("output", 2)))
    x, w = leaves()
    s = F(x, w)[0]
    total = s.sum()
    s.mul_(2)
    with pytest.raises(RuntimeError, match=r"inplace operation: \[torch.DoubleTensor \[2, 4\]\], which is output 0 of "
                                           r"JitBackward, is at version 1; expected version 0"):
        total.backward()
    s = F(x, w)[0].sum()
    with torch.no_grad():
        x.view(-1)[0] = 1  # a view shares the version
    with pytest.raises(RuntimeError, match=r"\[torch.DoubleTensor \[2, 4\]\] is at version 1"):
        s.backward()


def test_a_saved_intermediate_in_the_memory_of_a_result(make):
    """exp(x).t() is returned and exp(x) kept: changing the one is noticed by the other."""
    def forward(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = x.exp()
        return h.detach().t(), h

    F = BUILDERS[make.name](forward, spec(
        n_inputs=1, n_outputs=1, saved=(("extra", 0),), grad_outputs=(0,), grad_inputs=(0,), kept=(), eager=None,
        under=(), over=(), backward=lambda defined, wanted: lambda h, g: [g.t() * h]))
    x, _ = leaves()
    y, = F(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, x.exp())
    y, = F(x)
    assert not y._is_view()
    y.mul_(2)
    if make.name == "python":  # has copied it
        return y.sum().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_numbers_are_saved_as_they_are(make):
    F = BUILDERS[make.name](lambda x, n: (x * n, n + 1, 2.5), spec(
        n_inputs=2, n_outputs=1, saved=(("extra", 0), ("input", 1), ("extra", 1)), grad_outputs=(0,), grad_inputs=(0,),
        kept=(), eager=None, under=(), over=(), backward=lambda d, w: lambda m, n, half, g: [g * (n + m * 10 + half)]))
    x, _ = leaves()
    F(x, 3)[0].sum().backward()
    assert x.grad.unique().tolist() == [45.5]


def test_arguments_are_checked(make):
    F = make()
    x, w = leaves()
    with pytest.raises(TypeError, match="takes 2 positional arguments, got 1"):
        F(x)
    with pytest.raises(ValueError, match="no such inputs"):
        spec(kept=(2,))
    with pytest.raises(ValueError, match="no output 3"):
        spec(saved=(("output", 3),))


def test_random_numbers_are_drawn_again_for_a_differentiable_pass(make):
    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x ** 3 * torch.rand_like(x),)

    F = BUILDERS[make.name](run, spec(
        n_inputs=1, n_outputs=1, saved=(), grad_outputs=(0,), grad_inputs=(0,), kept=(0,), random=True,
        eager=lambda: run, under=(), over=(), backward=lambda d, w: lambda g: [g]))
    found = []
    for function in (run, F):
        torch.manual_seed(5)
        x, _ = leaves()
        y, = function(x)
        noise = torch.rand(3)
        g, = grad(y.sum(), x, create_graph=True)
        found.append((y, g, grad(g.sum(), x)[0], noise, torch.rand(3)))
    assert_same(found[1], found[0])


# -- threads ---------------------------------------------------------------------------------------------------


def test_threads(make):
    F = make()
    expected = [t.clone() for t in backward_of_all(eager)]
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(50):
                assert_same([t.clone() for t in backward_of_all(F)], expected)
                assert_same(gradient_penalty(F)[0].shape, torch.Size([2, 4]))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_one_graph_from_two_threads(make):
    x, w = leaves()
    s = make()(x, w)[0].sum()
    threads = [threading.Thread(target=lambda: s.backward(retain_graph=True)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reference, _ = leaves()
    eager(reference, w)[0].sum().backward()
    torch.testing.assert_close(x.grad, 8 * reference.grad)
