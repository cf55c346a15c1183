"""Differentiable graphs as a whole: results that share memory, symbolic sizes, parts without gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jitpy
from jitpy.autograd import compile


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that were made differentiable by jitpy itself."""
    made: list[Any] = []
    original = compile.make_differentiable

    def make(forward: Any, spec: Any) -> Any:
        made.append(spec)
        return original(forward, spec)

    monkeypatch.setattr(compile, "make_differentiable", make)
    return made


def views_of_one(x: Any, w: Any) -> Any:
    y = (x @ w).tanh()
    return y, y.view(-1), y.t()


def view_of_what_is_kept(x: Any, w: Any) -> Any:
    return ((x @ w).exp().view(-1),)


def inputs_and_their_views(x: Any, w: Any) -> Any:
    return w, x, (x @ w).sum(), w.view(-1), x.t()


def chunks(x: Any, w: Any) -> Any:
    y = x @ w
    a, b = y.chunk(2, 0)
    return a, b, y.sum()


def twice(x: Any, w: Any) -> Any:
    y = x @ w
    return y, y


def detached(x: Any, w: Any) -> Any:
    y = (x @ w).relu()
    return y, y.detach()


@pytest.mark.parametrize("fn", [views_of_one, view_of_what_is_kept, inputs_and_their_views, chunks, twice, detached])
def test_results_that_share_memory(fn: Callable[..., Any], nodes: list[Any]) -> None:
    x, start = torch.randn(4, 4), torch.randn(4, 4)
    seen = []
    for run in (fn, jitpy.jit(fn)):
        w = start.clone().requires_grad_()
        results = run(x, w)
        facts = [(t.requires_grad, t._is_view(), t is w, t is x) for t in results]
        same = [(a is b, a._base is not None and a._base is b._base) for a in results for b in results]
        sum((t * (i + 1)).sum() for i, t in enumerate(results) if t.requires_grad).backward()
        seen.append((facts, same, [t.detach() for t in results], w.grad))
    assert len(nodes) == 1
    assert seen[0][:2] == seen[1][:2]
    torch.testing.assert_close(seen[0][2:], seen[1][2:])


def test_a_write_to_a_result_that_is_kept_is_an_error(nodes: list[Any]) -> None:
    """Also where the write goes through a view."""
    w = torch.randn(4, requires_grad=True)
    for fn in (lambda w: w.exp(), lambda w: w.exp().view(2, 2)):
        result = jitpy.jit(fn)(w)
        with torch.no_grad():
            result.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()
    assert len(nodes) == 2


def test_a_write_to_indices_that_are_kept_is_an_error(nodes: list[Any]) -> None:
    values, indices = jitpy.jit(lambda w: w.cummax(0))(torch.randn(4, requires_grad=True))
    indices.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        values.sum().backward()
    assert len(nodes) == 1


MODEL = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))


def loss_of_classes(x: Any) -> Any:
    return F.cross_entropy(MODEL(x), torch.zeros(x.shape[0], dtype=torch.long))


def part_of_a_softmax(x: Any) -> Any:
    return (MODEL(x).softmax(-1)[:, :2]).mean()


def times_the_batch(x: Any) -> Any:
    return (MODEL(x).view(-1, 2).sum(0) * x.shape[0]).sum()


def joined(x: Any) -> Any:
    return torch.cat([MODEL(x), x[:, :3]], 1).relu().sum()


@pytest.mark.parametrize("fn", [loss_of_classes, part_of_a_softmax, times_the_batch, joined])
def test_symbolic_batches(fn: Callable[..., Any], nodes: list[Any]) -> None:
    compiled = jitpy.jit(fn)
    parameters = list(MODEL.parameters())
    for batch in (3, 5, 7, 4):
        x = torch.randn(batch, 8)
        wanted, found = (torch.autograd.grad(run(x), parameters) for run in (fn, compiled))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert len(nodes) == 2  # one for the first size, one for all


def test_undefined_gradients_stay_undefined(nodes: list[Any]) -> None:
    a, b, c = (torch.randn(5, requires_grad=True) for _ in range(3))
    compiled = jitpy.jit(lambda a, b, c: (a * c, b.sin() + c))
    for used, expected in ((0, (True, False, True)), (1, (False, True, True))):
        grads = torch.autograd.grad(compiled(a, b, c)[used].sum(), (a, b, c), allow_unused=True)
        assert tuple(g is not None for g in grads) == expected
    assert len(nodes) == 1


def test_parts_without_gradients(nodes: list[Any]) -> None:
    def fn(x: Any, w: Any) -> Any:
        with torch.no_grad():
            scale = (x @ w).abs().max()
        return (x @ w / scale).pow(2).sum() + (w.detach() * w).sum(), scale

    x, start = torch.randn(3, 4), torch.randn(4, 2)
    seen = []
    for run in (fn, jitpy.jit(fn)):
        w = start.clone().requires_grad_()
        loss, scale = run(x, w)
        loss.backward()
        assert not scale.requires_grad
        seen.append((loss.detach(), scale, w.grad))
    torch.testing.assert_close(seen[0], seen[1])
    assert len(nodes) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_dtypes(dtype: torch.dtype, nodes: list[Any]) -> None:
    """Gradients have the dtypes of their inputs."""
    x, w = torch.randn(3, 4, dtype=dtype, requires_grad=True), torch.randn(4, 2, requires_grad=True)
    grads = torch.autograd.grad(jitpy.jit(lambda x, w: ((x.float() @ w) * x[:, :1]).sum())(x, w), (x, w))
    wanted = torch.autograd.grad(((x.float() @ w) * x[:, :1]).sum(), (x, w))
    assert [g.dtype for g in grads] == [dtype, torch.float32]
    torch.testing.assert_close(grads, wanted, rtol=2e-2, atol=2e-2)
    assert len(nodes) == 1


@pytest.mark.parametrize("named", [("x",), ("weight",), ("bias",), ("x", "bias"), ("x", "weight", "bias")])
@pytest.mark.parametrize("op", ["conv2d", "batch_norm"])
def test_only_the_gradients_asked_for_are_computed(nodes: list[Any], op: str, named: tuple[str, ...]) -> None:
    tensors = {"x": torch.randn(2, 3, 6, 6), "weight": torch.randn(4, 3, 3, 3), "bias": torch.randn(4)}
    if op == "batch_norm":
        tensors |= {"weight": torch.rand(3), "bias": torch.rand(3)}
    for tensor in tensors.values():
        tensor.requires_grad_()

    def fn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        if op == "batch_norm":
            return F.batch_norm(x, None, None, weight, bias, training=True)
        return F.conv2d(x, weight, bias)

    jitted = jitpy.jit(fn)
    asked = [tensors[name] for name in named]

    def gradients(function: Any) -> tuple[Any, list[str]]:
        result = function(*tensors.values())
        with torch.profiler.profile(record_shapes=True) as profile:
            found = torch.autograd.grad(result, asked, torch.ones_like(result))
        masks = [event.concrete_inputs[-1] for event in profile.events() if "convolution_backward" in event.name]
        return found, masks

    (wanted, expected), (found, masks) = gradients(fn), gradients(jitted)
    torch.testing.assert_close(found, wanted)
    assert len(nodes) == 1
    if op == "conv2d":
        assert masks[0] == expected[0] == [name in named for name in tensors]
