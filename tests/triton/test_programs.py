"""Whole programs through `jitpy.jit` with Triton kernels in the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitpy
from jitpy import config
from jitpy.ir.passes import statistics

pytest.importorskip("triton")
Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def _interpreted() -> Iterator[None]:
    with config.patch(triton_on_cpu=True):
        yield
    jitpy.reset()


def same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


def kernels(fn: Callable[..., Any], *args: Any) -> int:
    return sum(len(graph.kernels) for graph in jitpy.explain(fn)(*args).graphs)


def test_a_small_network() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.GELU(), torch.nn.LayerNorm(30), torch.nn.Linear(30, 5))
    x = torch.randn(7, 20)
    with torch.no_grad():
        same(jitpy.jit(net)(x), net(x))


def test_sizes_that_change() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.softmax(x * 2, -1), x.sum(0), x.t() + 1

    jitted = jitpy.jit(fn)
    for rows, columns in ((5, 40), (6, 40), (9, 33), (70, 130), (300, 3)):
        x = torch.randn(rows, columns)
        same(jitted(x), fn(x))


def test_inputs_that_change() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        x.add_(y)
        y.mul_(2)
        return x * y

    inputs, copies = [torch.randn(5, 40) for _ in range(2)], []
    copies = [x.clone() for x in inputs]
    same(jitpy.jit(fn)(*inputs), fn(*copies))
    same(inputs, copies)


def test_views_of_larger_memory() -> None:
    def fn(x: Tensor) -> Tensor:
        return x * 2 + 1

    jitted = jitpy.jit(fn)
    base = torch.randn(41, 40)
    for x in (base[1:, 3:], base[:, 1:30:2], base.t(), base[0]):
        same(jitted(x), fn(x))


def test_numbers_known_at_run_time() -> None:
    def fn(x: Tensor, scale: float, count: int) -> Tensor:
        return x * scale + count

    jitted = jitpy.jit(fn)
    x = torch.randn(33)
    for scale, count in ((0.5, 1), (0.7, 2), (0.9, 3), (1.3, 40)):
        same(jitted(x, scale, count), fn(x, scale, count))


def test_library_calls_between_kernels() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return F.relu(x @ w + 1) @ w.t() * 2

    x, w = torch.randn(20, 30), torch.randn(30, 40)
    same(jitpy.jit(fn)(x, w), fn(x, w))


def test_dropout_draws_eagers_numbers() -> None:
    def fn(x: Tensor) -> Tensor:
        return F.dropout(x * 2, 0.3) + torch.rand(5)

    x = torch.randn(40, 5)
    torch.manual_seed(3)
    expected = fn(x)
    torch.manual_seed(3)
    same(jitpy.jit(fn)(x), expected)


def test_indices_out_of_range() -> None:
    def fn(w: Tensor, i: Tensor) -> Tensor:
        return w[i] * 2

    jitted = jitpy.jit(fn)
    w = torch.randn(5, 3)
    same(jitted(w, torch.tensor([1, -1])), fn(w, torch.tensor([1, -1])))
    with pytest.raises(Exception, match="out of (range|bounds)"):
        jitted(w, torch.tensor([1, 5]))


def test_sizes_that_depend_on_data() -> None:
    def fn(x: Tensor) -> Tensor:
        return x[x > 0] * 2 + 1

    x = torch.randn(40)
    same(jitpy.jit(fn)(x), fn(x))


def test_gradients() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.GELU(), torch.nn.LayerNorm(30), torch.nn.Linear(30, 5))
    table = torch.nn.Parameter(torch.randn(11, 20))

    def fn(i: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(net(F.embedding(i, table)), target)

    i, target = torch.randint(0, 11, (7,)), torch.randint(0, 5, (7,))
    parameters = [table, *net.parameters()]
    expected = torch.autograd.grad(fn(i, target), parameters)
    same(torch.autograd.grad(jitpy.jit(fn)(i, target), parameters), expected)


def test_debug_folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITPY_DEBUG_DIR", str(tmp_path))
    with config.patch(debug=True):
        jitpy.jit(lambda x: torch.softmax(x * 2, -1))(torch.randn(5, 40))
    (folder,) = tmp_path.iterdir()
    kept = {file.name: file.read_text() for file in folder.iterdir()}
    assert "aten.softmax" in kept["graph.py"] and "1 kernels" in kept["schedule.txt"]
    assert "def fused_mul_softmax(in0, out0):" in kept["kernels.py"] and "test_programs.py" in kept["kernels.py"]
    assert "launch" in kept["plan.txt"]


def test_a_step_of_a_convolutional_network() -> None:
    """Its images are in channels-last inside; batch statistics, pooling and their gradients follow."""
    def network() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
            torch.nn.MaxPool2d(3, 2, 1),
            torch.nn.Conv2d(16, 24, 3, 2), torch.nn.BatchNorm2d(24), torch.nn.ReLU(), torch.nn.Conv2d(24, 8, 1),
            torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())

    net, plain = network(), network()
    x = torch.randn(5, 3, 14, 12)
    for model, call in ((net, jitpy.jit(net)), (plain, plain)):
        call(x).square().sum().backward()
        assert all(p.grad is not None and p.grad.is_contiguous() for p in model.parameters())
    for p, q in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-4)
    same(list(net.buffers()), list(plain.buffers()))


@pytest.mark.parametrize("logarithm", [False, True])
def test_probabilities_computed_again(logarithm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backward pass has the scores in 16 bits and two numbers a row."""
    monkeypatch.setattr(statistics, "LARGE", 0)
    function = torch.log_softmax if logarithm else torch.softmax

    def weighted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = (q @ k) * 0.25
        scores = scores.masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), -torch.inf if not logarithm else -9.0)
        return function(scores.float(), -1).to(v.dtype) @ v

    torch.manual_seed(0)
    ours, theirs = ([torch.randn(2, 6, 6, dtype=torch.bfloat16).requires_grad_() for _ in range(3)] for _ in range(2))
    for one, other in zip(theirs, ours, strict=True):
        one.data.copy_(other.data)
    found, expected = jitpy.jit(weighted)(*ours), weighted(*theirs)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    found.float().square().sum().backward()
    expected.float().square().sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=5e-2, atol=5e-2)
