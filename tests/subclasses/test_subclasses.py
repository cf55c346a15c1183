"""Tensor subclasses: eager's results, classes, calls and errors, in one graph."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import jitpy
from tests.subclasses import kinds
from tests.subclasses.kinds import Counting, Named, Opaque, OwnParameter, Scaled, scaled

MODES = (torch.no_grad, torch.inference_mode, torch.enable_grad)
X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def assert_same(want, got):
    assert type(want) is type(got)
    if isinstance(want, Scaled):
        assert_same((want.data8, want.scale, want.note), (got.data8, got.scale, got.note))
    elif isinstance(want, torch.Tensor):
        assert vars(want) == vars(got) and want.requires_grad == got.requires_grad
        torch.testing.assert_close(got.as_subclass(torch.Tensor), want.as_subclass(torch.Tensor))
    elif isinstance(want, (tuple, list)):
        assert len(want) == len(got)
        for one, other in zip(want, got, strict=True):
            assert_same(one, other)
    elif isinstance(want, float):
        assert got == pytest.approx(want, rel=1e-4, abs=1e-5)
    else:
        assert want == got


def linear(w, x):
    return F.linear(x, w), F.linear(x, w, torch.ones(w.shape[0]))


def matmul(w, x):
    return x @ w.t()


def wrapped(w, x):
    return w * 2, (w * x.sum()).t()


def in_place(w, x):
    w.mul_(2)
    return w


def metadata(w, x):
    return (w.shape, w.dtype, w.size(), w.size(0), w.dim(), w.numel(), w.stride(), w.is_contiguous(), w.requires_grad,
            w.device, w.is_leaf, w.grad_fn, len(w), w.layout, w.ndim)


def operators(w, x):
    return w + 1, 1 - w, -w, abs(w), w == 0, w / 2, 2 * w


def classes(w, x):
    return isinstance(w, Scaled), isinstance(w, torch.Tensor), isinstance(w, torch.nn.Parameter), type(w).__name__


def joined(w, x):
    return torch.cat([w, w]), torch.stack((w, w))


def subscripts(w, x):
    return w[1], w[:, 0], w[w > 0]


def made(w, x):
    return Scaled(w.data8, w.scale * 3, "new").t(), w.detach(), w.clone()


def reductions(w, x):
    return w.sum(), w.mean(0), w.view(-1), F.softmax(w, -1), bool(w.sum() > 100)


def attributes(w, x):
    w.note = "changed"
    return w.note + "!", w.data8.is_contiguous(), w.T


def iterated(w, x):
    first, *rest = w
    return first + len(rest)


def as_key(w, x):
    return {w: 1}[w], w is w


PROGRAMS = [linear, matmul, wrapped, in_place, metadata, operators, classes, joined, subscripts, made, reductions,
            attributes, iterated, as_key]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_wrapper_is_captured(program, mode):
    """The class hears of the operations that eager tells it of, also in later calls."""
    compiled = jitpy.jit(program, fullgraph=program is not subscripts)
    with mode():
        Scaled.calls.clear()
        want = program(scaled(), X)
        heard = list(Scaled.calls)
        for _ in range(2):
            Scaled.calls.clear()
            got = compiled(scaled(), X)
            assert Scaled.calls == heard
            assert_same(want, got)


def test_metadata_is_guarded():
    compiled = jitpy.jit(lambda w: (w * 2).note, fullgraph=True)
    with torch.no_grad():
        assert [compiled(scaled(note=note)) for note in ("a", "b", "a")] == ["a*", "b*", "a*"]


def test_class_and_sizes_are_guarded():
    class Other(Scaled):
        def dequantize(self):
            return super().dequantize() * 10

    def program(w, x):
        return x @ w.t().dequantize() if type(w) is Scaled else x @ w.dequantize().t()

    compiled = jitpy.jit(program)
    with torch.no_grad():
        for rows in (6, 2, 5, 6):
            w = scaled(rows)
            other = Other(w.data8, w.scale)
            assert_same(program(w, X), compiled(w, X))
            assert_same(program(other, X), compiled(other, X))


def test_parts_are_inputs():
    """New numbers in the parts need no new code."""
    compiled = jitpy.jit(lambda w, x: F.linear(x, w), fullgraph=True)
    with torch.no_grad():
        for seed in range(3):
            w = scaled(seed=seed)
            torch.testing.assert_close(compiled(w, X), F.linear(X, w))
            w.scale.mul_(3)
            torch.testing.assert_close(compiled(w, X), F.linear(X, w))
    assert len(jitpy.explain(lambda w, x: F.linear(x, w))(scaled(), X).frames) == 1


def test_module_with_a_wrapper_as_parameter():
    module = torch.nn.Sequential(torch.nn.Linear(4, 6, bias=False), torch.nn.ReLU(), torch.nn.Linear(6, 2))
    module[0].weight = torch.nn.Parameter(scaled(), requires_grad=False)
    assert isinstance(module[0].weight, Scaled)
    compiled = jitpy.jit(module, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), module(X))
        module[0].weight = torch.nn.Parameter(scaled(seed=3), requires_grad=False)
        torch.testing.assert_close(compiled(X), module(X))


def test_gradient_through_a_dispatch_breaks():
    """A gradient at the wrapper is made by autograd above the class: eager runs the operation."""
    def program(w, x):
        y = x * 2
        return F.linear(y, w).sum() + y.sum()

    x, other = X.clone().requires_grad_(), X.clone().requires_grad_()
    program(scaled(), x).backward()
    jitpy.jit(program)(scaled(), other).backward()
    torch.testing.assert_close(other.grad, x.grad)
    report = jitpy.explain(program)(scaled(), X.clone().requires_grad_())
    assert [record.reason.id for record in report.break_reasons] == ["autograd"]


def test_opaque_class_breaks_once():
    def program(w, x):
        return (w * 2).inner.sum() + x

    w = Opaque(torch.randn(4))
    report = jitpy.explain(program)(w, X)
    torch.testing.assert_close(report.result, program(w, X))
    assert report.graph_break_count == 1, report


# -- classes of tensors with elements ---------------------------------------------------------------------------


def simple(w, x):
    return w + 1, x + w, 1 - w, w.split(1), F.softmax(w, -1) @ w.t(), torch.stack([w, x])


def facts(w, x):
    return w.shape, w.sum().item(), isinstance(w, Named), type(w).__name__, w.dtype, w.T, w[0]


def written(w, x):
    w.add_(1)
    w.extra = 3
    y = w * 2
    y.tag = 1
    return w, y, w.extra


def converted(w, x):
    return w, w.as_subclass(torch.Tensor), x.as_subclass(Named), torch.zeros_like(w), w.detach()


def summed(w, x):
    total = 0
    for row in w:
        total = total + row
    return total


def subclass(cls):
    data = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    return cls(data) if issubclass(cls, torch.nn.Parameter) else data.as_subclass(cls)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cls", [Named, Counting, OwnParameter])
@pytest.mark.parametrize("program", [simple, facts, written, converted, summed])
def test_subclass_is_captured(program, cls, mode):
    compiled = jitpy.jit(program, fullgraph=True)
    with mode():
        if program is written and cls is OwnParameter and mode is torch.enable_grad:
            pytest.skip("eager refuses to write to a leaf")
        Counting.seen.clear()
        want = program(subclass(cls), X)
        heard = list(Counting.seen)
        for _ in range(2):
            Counting.seen.clear()
            got = compiled(subclass(cls), X)
            assert Counting.seen == heard
            assert_same(want, got)


@pytest.mark.parametrize("cls", [Named, OwnParameter])
def test_gradient_to_a_subclass(cls):
    def program(w, x):
        return (w * x).sum()

    leaves = [subclass(cls).detach().requires_grad_() if cls is Named else subclass(cls) for _ in range(3)]
    program(leaves[0], X).backward()
    compiled = jitpy.jit(program, fullgraph=True)
    for leaf in leaves[1:]:
        compiled(leaf, X).backward()
        torch.testing.assert_close(leaf.grad.as_subclass(torch.Tensor), leaves[0].grad.as_subclass(torch.Tensor))
        assert type(leaf.grad) is type(leaves[0].grad)


def test_functions_called_with_classes_asked_and_not():
    """The same code inside and outside of a block that keeps classes from being asked."""
    def program(w):
        return w + 1

    compiled = jitpy.jit(program)
    w = subclass(Named)
    for _ in range(2):
        assert type(compiled(w)) is Named
        with torch._C.DisableTorchFunctionSubclass():
            assert type(compiled(w)) is torch.Tensor


def test_break_inside_a_block():
    def program(w, x):
        with torch._C.DisableTorchFunctionSubclass():
            y = w + x
            kinds.opaque(y)
            y = y * 2
        return y, w + 1

    w = subclass(Named)
    assert_same(program(w, X), jitpy.jit(program)(w, X))


def test_parts_in_slots():
    def program(w, x):
        made = kinds.Slotted(x * 2, 4)
        w.factor = w.factor + 1
        return w + x, made + 1, made, w.factor

    want, got = kinds.Slotted(X.clone(), 2), kinds.Slotted(X.clone(), 2)
    compiled = jitpy.jit(program, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            wanted, found = program(want, X), compiled(got, X)
            assert want.factor == got.factor and wanted[3] == found[3]
            assert_same(wanted[:2], found[:2])
            assert_same((wanted[2].inner, wanted[2].factor), (found[2].inner, found[2].factor))
