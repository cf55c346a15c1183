"""Hooks that a captured backward pass calls, or that are gone when the graph ends: no break is needed for them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jitpy

#: name -> (maker of `fn(x)` and of the objects that it changes, whether it is one graph)
CASES: dict[str, tuple[Callable[[], tuple[Callable[..., Any], list[Any]]], bool]] = {}


def case(captured: bool) -> Any:
    def register(make: Any) -> Any:
        CASES[make.__name__] = make, captured
        return make

    return register


def linear() -> nn.Linear:
    layer = nn.Linear(3, 3)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(9.0).view(3, 3) / 9)
        layer.bias.zero_()
    return layer


@case(captured=True)
def doubled():
    def fn(x):
        y = x.sin()
        y.register_hook(lambda g: g * 2)
        loss = (y * y).sum()
        loss.backward()
        return loss.detach()

    return fn, []


@case(captured=True)
def seen_in_order():
    """The first use is older than the hook: its gradient counts, too."""
    seen: list[Any] = []

    def fn(x):
        y = x.sin()
        z = y * 2
        y.register_hook(lambda g: seen.append(("y", g)))
        z.register_hook(lambda g: seen.append(("z", g)) or g + 1)
        z.register_hook(lambda g: seen.append(("z again", g)))
        (z * y).sum().backward()

    return fn, seen


@case(captured=True)
def kept_gradients():
    """They are not the memory of what becomes of them."""
    seen: list[Any] = []

    def fn(x):
        a = x.sin()
        a.register_hook(seen.append)
        x.register_hook(seen.append).remove()
        (a * a).sum().backward()
        seen[-1].add_(1)
        return x.grad + 0

    return fn, seen


@case(captured=False)
def one_gradient_for_two():
    """Both hooks are given the same memory, which they keep."""
    seen: list[Any] = []

    def fn(x):
        a, b = x.sin(), x.cos()
        a.register_hook(lambda g: seen.append(g))
        b.register_hook(lambda g: seen.append(g))
        c = a + b
        (c * c).sum().backward()
        return x.grad + 0

    def changing(x):
        fn(x)
        seen[-2].add_(10)

    return changing, seen


@case(captured=True)
def one_gradient_for_two_that_let_it_go():
    def fn(x):
        a, b = x.sin(), x.cos()
        a.register_hook(lambda g: g * 2)
        b.register_hook(lambda g: g * 3)
        c = a + b
        (c * c).sum().backward()
        return x.grad + 0

    return fn, []


@case(captured=False)
def the_gradient_that_the_program_gave():
    seen: list[Any] = []

    def fn(x):
        y, grad = x.sin(), torch.ones(3)
        y.register_hook(lambda g: seen.append(g))
        y.backward(grad)
        grad.mul_(2)

    return fn, seen


@case(captured=True)
def a_leaf_between_others():
    """The gradient of a leaf is complete before the pass has come to older values."""
    seen: list[Any] = []
    layer = linear()

    def fn(x):
        y = x.sin()
        y.register_hook(lambda g: seen.append(("y", g)))
        handle = layer.weight.register_hook(lambda g: seen.append(("weight", g)) or g * 3)
        z = layer(y)
        z.register_hook(lambda g: seen.append(("z", g)))
        z.sum().backward()
        handle.remove()

    return fn, [seen, layer]


@case(captured=True)
def clipped_in_autograd_grad():
    def fn(x):
        y = x * 3
        y.register_hook(lambda g: g.clamp(-0.5, 0.5))
        return torch.autograd.grad((y * y).sum(), x)

    return fn, []


@case(captured=False)
def the_gradient_of_what_has_hooks():
    """Between others it is what the hooks get, else what they return."""
    def fn(x):
        y = x * 3
        y.register_hook(lambda g: g.clamp(-0.5, 0.5))
        loss = (y * y).sum()
        return torch.autograd.grad(loss, [y, x], retain_graph=True), torch.autograd.grad(loss, y)

    return fn, []


@case(captured=False)
def a_result_that_is_kept_and_returned():
    seen: list[Any] = []

    def fn(x):
        y = x.view(3, 1)

        def keep(g):
            seen.append(g * 2)
            return seen[-1]

        y.register_hook(keep)
        (g,) = torch.autograd.grad((y * y).sum(), x)
        g.add_(1)
        return g

    return fn, seen

    return fn, []


@case(captured=True)
def not_on_the_way():
    seen: list[Any] = []

    def fn(x):
        y, z = x.sin(), x.cos()
        y.register_hook(seen.append)
        return torch.autograd.grad((y * z).sum(), [z])

    return fn, seen


@case(captured=True)
def a_penalty_through_a_hook():
    def fn(x):
        y = x.sin()
        y.register_hook(lambda g: g * g)
        (g,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
        g.sum().backward()
        return g.detach()

    return fn, []


@case(captured=True)
def with_a_side_effect():
    norms: dict[str, Any] = {"passes": 0}

    def fn(x):
        def note(g):
            norms["passes"] += 1
            norms["last"] = g.norm()

        y = x.sin()
        y.register_hook(note)
        (y * 2).sum().backward(retain_graph=False)

    return fn, [norms]


@case(captured=True)
def removed_in_front_of_the_pass():
    seen: list[Any] = []

    def fn(x):
        y = x.sin()
        handle = y.register_hook(lambda g: seen.append(g))
        with y.register_hook(lambda g: g * 100):
            z = y * 2
        handle.remove()
        return z.sum()

    return fn, seen


@case(captured=True)
def removes_itself():
    def fn(x):
        y = x.sin()
        handles = []

        def once(g):
            handles.pop().remove()
            return g * 2

        handles.append(y.register_hook(once))
        loss = (y * y).sum()
        loss.backward(retain_graph=True)
        loss.backward()

    return fn, []


@case(captured=False)
def a_pass_outside():
    def fn(x):
        y = x.sin()
        y.register_hook(lambda g: g * 2)
        return (y * y).sum()

    return fn, []


@case(captured=False)
def both_passes():
    def fn(x):
        y = x.sin()
        y.register_hook(lambda g: g * 2)
        loss = (y * y).sum()
        loss.backward(retain_graph=True)
        return loss

    return fn, []


@case(captured=False)
def left_on_a_parameter():
    """It is called by each pass from then on."""
    layer = linear()
    seen: list[Any] = []

    def fn(x):
        if len(seen) < 2:
            layer.weight.register_hook(lambda g: seen.append(g) or g * 2)
        layer(x).sum().backward()

    return fn, [layer, seen]


@case(captured=False)
def changed_in_place():
    def fn(x):
        y = x.sin()

        def double(g):
            g.mul_(2)

        y.register_hook(double)
        (y * 3).sum().backward()

    return fn, []


@case(captured=False)
def another_shape():
    def fn(x):
        y = x.sin()
        y.register_hook(lambda g: g.sum())
        try:
            (y * 3).sum().backward()
        except RuntimeError as error:
            return str(error).partition(" at ")[0]

    return fn, []


@case(captured=False)
def raising():
    def fn(x):
        y = x.sin()

        def fail(g):
            raise KeyError("from the hook")

        y.register_hook(fail)
        try:
            (y * 3).sum().backward()
        except KeyError as error:
            return str(error)

    return fn, []


@case(captured=False)
def breaking():
    seen: list[Any] = []

    def fn(x):
        y = x.sin()
        y.register_hook(lambda g: jitpy.graph_break() or seen.append(g))
        (y * 3).sum().backward()

    return fn, seen


@case(captured=False)
def a_pass_in_a_hook():
    def fn(x):
        y, z = x.sin(), x.cos().sum()
        y.register_hook(lambda g: g * torch.autograd.grad(z, x)[0])
        (y * 3).sum().backward()

    return fn, []


@case(captured=True)
def forward_hook():
    layer = linear()
    seen: list[Any] = []

    def fn(x):
        handle = layer.register_forward_hook(lambda module, args, out: seen.append(out.detach()) or out * 2)
        y = layer(x)
        handle.remove()
        handle.remove()
        return (y + layer(x)).sum()

    return fn, [layer, seen]


@case(captured=True)
def features():
    model = nn.Sequential(linear(), nn.Tanh(), linear())

    def fn(x):
        found = {}
        handles = []
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                def keep(module, args, out, name=name):
                    found[name] = out
                handles.append(module.register_forward_hook(keep))
        model(x)
        for handle in handles:
            handle.remove()
        return found["0"].sum() + found["2"].sum()

    return fn, [model]


@case(captured=True)
def beside_another_hook():
    layer = linear()
    layer.register_forward_hook(lambda module, args, out: out + 1)

    def fn(x):
        def double(module, args, kwargs, out):
            return out * 2

        with layer.register_forward_hook(double, with_kwargs=True, always_call=True), \
                layer.register_forward_pre_hook(lambda module, args: (args[0] * 3,)):
            y = layer(x)
        return y.sum() + layer(x).sum()

    return fn, [layer]


@case(captured=True)
def left_on_a_module():
    layer = linear()
    seen: list[Any] = []

    def fn(x):
        seen.append(layer.register_forward_hook(lambda module, args, out: out * 2).id)
        return layer(x).sum()

    return fn, [layer, seen]


@case(captured=True)
def left_on_modules_by_a_function_that_calls_itself():
    model = nn.Sequential(linear(), nn.Sequential(linear(), nn.Tanh()))
    seen: list[Any] = []

    def install(module, name):
        for child_name, child in module.named_children():
            install(child, f"{name}.{child_name}")
        if isinstance(module, nn.Linear):
            def keep(module, args, out):
                seen.append((name, out.detach()))

            module.register_forward_hook(keep, prepend=True)

    def fn(x):
        if not model[0]._forward_hooks:
            install(model, "")
        return model(x).sum()

    return fn, [model, seen]


@case(captured=True)
def its_handle_is_kept():
    layer = linear()
    handles: list[Any] = []

    def fn(x):
        if not handles:
            handles.append(layer.register_forward_hook(lambda module, args, out: out * 2, always_call=True))
            handles.append(layer.register_forward_pre_hook(lambda module, args: (args[0] + 1,)))
        return layer(x).sum()

    return fn, [layer, handles]


@case(captured=False)
def the_handle_of_a_tensor_is_kept():
    handles: list[Any] = []

    def fn(x):
        y = x.sin()
        handles.append(y.register_hook(lambda g: g * 2))
        (y * y).sum().backward()

    return fn, [handles]


@case(captured=True)
def its_number_is_read():
    layer = linear()
    seen: list[Any] = []

    def fn(x):
        handle = layer.register_forward_hook(lambda module, args, out: out * 2)
        y = layer(x)
        handle.remove()
        seen.append(handle.id)
        return y.sum()

    return fn, [layer, seen]


@case(captured=False)
def its_number_is_looked_at():
    layer = linear()
    seen: list[Any] = []

    def fn(x):
        handle = layer.register_forward_hook(lambda module, args, out: out * 2)
        number = handle.id
        seen.append((isinstance(number, int), type(number) is int, number > 4999, number == number + 0,
                     [key == number for key in layer._forward_hooks]))
        y = layer(x)
        handle.remove()
        return y.sum()

    return fn, [layer, seen]


@case(captured=False)
def still_there_at_a_break():
    layer = linear()

    def fn(x):
        with layer.register_forward_hook(lambda module, args, out: out * 2):
            y = layer(x)
            jitpy.graph_break()
            y = y + layer(x)
        return y.sum()

    return fn, [layer]


def compare(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, nn.Module):
        for module, other in zip(found.modules(), expected.modules(), strict=True):
            assert list(module._forward_hooks) == list(other._forward_hooks)
            assert list(module._forward_pre_hooks) == list(other._forward_pre_hooks)
        for parameter, other in zip(found.parameters(), expected.parameters(), strict=True):
            compare(parameter.grad, other.grad)
            assert list(parameter._backward_hooks or ()) == list(other._backward_hooks or ())
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected)
        assert found.requires_grad == expected.requires_grad
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            compare(one, other)
    elif isinstance(expected, torch.utils.hooks.RemovableHandle):
        assert found.id == expected.id
        assert (found.hooks_dict_ref() is None) == (expected.hooks_dict_ref() is None)
        assert [list(ref()) for ref in found.extra_dict_ref] == [list(ref()) for ref in expected.extra_dict_ref]
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        compare(list(found.values()), list(expected.values()))
    else:
        assert found == expected


def run(fn: Callable[..., Any], state: list[Any], calls: int = 4) -> list[Any]:
    """What calls leave: values, gradients, state, and the number of the next hook, relative to the first."""
    handles = torch.utils.hooks.RemovableHandle
    handles.next_id = 5000
    history = []
    for number in range(calls):
        x = (torch.arange(3.0) / 3 + number).requires_grad_()
        result = fn(x)
        if isinstance(result, torch.Tensor) and result.requires_grad:
            result.backward()
        history.append((result, x.grad, handles.next_id))
    return [history, state]


def made(name: str) -> tuple[Callable[..., Any], list[Any]]:
    torch.utils.hooks.RemovableHandle.next_id = 1000
    return CASES[name][0]()


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name: str, backend: str) -> None:
    jitpy.reset()
    (plain, expected), (fn, found) = made(name), made(name)
    compare(run(jitpy.jit(fn, backend=backend), found), run(plain, expected))


@pytest.mark.parametrize("name", CASES)
def test_breaks(name: str) -> None:
    fn, _ = made(name)
    report = jitpy.explain(fn)(torch.arange(3.0).requires_grad_())
    assert (not report.break_reasons) == CASES[name][1], [str(record) for record in report.break_reasons]


def test_a_handle_that_is_returned_removes_its_hook() -> None:
    layer = linear()

    @jitpy.jit
    def install(x):
        return layer.register_forward_hook(lambda module, args, out: out * 2), layer(x)

    handle, result = install(torch.ones(3))
    torch.testing.assert_close(layer(torch.ones(3)), result)
    assert type(handle.hooks_dict_ref) is weakref.ref
    assert handle.hooks_dict_ref() is layer._forward_hooks
    handle.remove()
    assert not layer._forward_hooks
    torch.testing.assert_close(layer(torch.ones(3)) * 2, result)
