"""mode="reduce-overhead" in training: what the program holds between steps, watches, draws, and of which sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import jitpy
from jitpy.runtime.gpu import graphs


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs also where they do not pay."""
    monkeypatch.setattr(graphs, "_REPLAY_MICROSECONDS", 0.0)


@pytest.fixture(autouse=True)
def _whole_float32() -> Iterator[None]:
    """Convolutions that keep all bits: their algorithms may differ from run to run."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def pair(make: Any, cuda: torch.device) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    ours, theirs = make().to(cuda), make().to(cuda)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def test_results_computed_from_results_are_watched(cuda: torch.device) -> None:
    def step(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = (x @ w).relu()
        z = (y @ w).sin()
        return y, z, (z * z).sum()

    jitted = jitpy.jit(step, mode="reduce-overhead")
    w = torch.randn(64, 64, device=cuda) / 8
    held: list[tuple[torch.Tensor, torch.Tensor]] = []
    for _ in range(8):
        x = torch.randn(32, 64, device=cuda)
        seen: list[list[torch.Tensor]] = []
        for function in (jitted, step):
            weight = w.clone().requires_grad_()
            y, z, loss = function(x, weight)
            found: list[torch.Tensor] = []
            y.register_hook(found.append)
            z.retain_grad()
            (between,) = torch.autograd.grad(z.sum(), y, retain_graph=True)
            (loss + y.mean()).backward()
            seen.append([y.detach(), z.detach(), between, z.grad, weight.grad, *found])
        for one, other in zip(*seen, strict=True):
            close(one, other)
            held.append((one, other.clone()))
    for one, other in held:
        close(one, other)


class Parts(nn.Module):
    """Each result is computed from the one before, so that each part is a graph of its own, and large gradients go from
    one to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512))
        self.second = nn.Linear(512, 4096)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = self.first(x).tanh()
        logits = self.second(hidden.sin())
        return hidden, logits, F.cross_entropy(logits, target)


@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("always", [False, True])
def test_recordings_settle_soon(cuda: torch.device, monkeypatch: pytest.MonkeyPatch, moves: bool, always: bool) -> None:
    """Two recordings at most for each half of each part, whether inputs move or not, and none behind the fourth step;
    also where a part launches little."""
    if not always:
        monkeypatch.setattr(graphs, "_REPLAY_MICROSECONDS", 14.0)
    made: list[Any] = []
    record = graphs.GraphedExecutable._record

    def counted(self: Any, *arguments: Any) -> Any:
        made.append(self)
        return record(self, *arguments)

    monkeypatch.setattr(graphs.GraphedExecutable, "_record", counted)
    ours, theirs = pair(Parts, cuda)
    jitted = jitpy.jit(ours, mode="reduce-overhead")
    x, target = torch.randn(2048, 256, device=cuda), torch.randint(0, 4096, (2048,), device=cuda)
    held, counts = [], []
    for _ in range(20):
        if moves:
            held.append(x := torch.randn(2048, 256, device=cuda))
        found = []
        for model, call in ((ours, jitted), (theirs, theirs)):
            *_, loss = call(x, target)
            loss.backward()
            found.append([loss.detach(), *(one.grad for one in model.parameters())])
            model.zero_grad(set_to_none=True)
        for one, other in zip(*found, strict=True):
            close(one, other)
        del found, loss, one, other  # a gradient that is held keeps its recording from being replayed
        counts.append(len(made))
    assert counts[3] == counts[-1] <= 2 * 6, counts


def test_gradients_and_outputs_that_are_held(cuda: torch.device) -> None:
    """Gradients add up over steps; those of former steps, and losses, stay what they were."""
    ours, theirs = pair(lambda: nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)), cuda)
    jitted = jitpy.jit(ours, mode="reduce-overhead")
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for number in range(12):
        x = torch.randn(16, 32, device=cuda)
        for model, call in ((ours, jitted), (theirs, theirs)):
            out = call(x)
            out.square().mean().backward()
            if model is ours:
                mine = out
        kept.append((mine, out.detach().clone()))
        if number % 3 == 2:
            kept += [(one.grad, other.grad.clone())
                     for one, other in zip(ours.parameters(), theirs.parameters(), strict=True)]
            for model in (ours, theirs):
                model.zero_grad(set_to_none=True)
    for one, other in kept:
        close(one, other)


def test_sizes_that_alternate_between_forward_and_backward(cuda: torch.device) -> None:
    """Two steps of different sizes are under way at once, and their backward passes run in either order."""
    ours, theirs = pair(lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3)), cuda)
    jitted = jitpy.jit(ours, mode="reduce-overhead")
    for number in range(10):
        inputs = [torch.randn(batch, 3, 16, 16, device=cuda) for batch in (2 + number % 3, 5)]
        for call in (jitted, theirs):
            losses = [call(x).square().mean() for x in inputs]
            for loss in losses if number % 2 else reversed(losses):
                loss.backward()
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            close(one.grad, other.grad)
            one.grad = other.grad = None


def test_running_statistics(cuda: torch.device) -> None:
    """Buffers that a recording writes, in training, evaluation, and training again. Of their versions only that of the
    number of batches moves, as in eager."""
    ours, theirs = pair(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3),
                                              nn.BatchNorm2d(8)), cuda)
    jitted = jitpy.jit(ours, mode="reduce-overhead")
    for number in range(14):
        for model in (ours, theirs):
            model.train(number % 7 != 5)
        x = torch.randn(4, 3, 12, 12, device=cuda)
        before = [one._version for one in ours.buffers()]
        found, expected = jitted(x), theirs(x)
        close(found, expected)
        for out in (found, expected):
            out.square().mean().backward()
        for one, other in zip(ours.buffers(), theirs.buffers(), strict=True):
            close(one, other)
        if ours.training:
            assert all(one._version > version for one, version in zip(ours.buffers(), before, strict=True)
                       if not one.is_floating_point())
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=2e-3, atol=1e-3)
            one.grad = other.grad = None


def test_random_masks(cuda: torch.device) -> None:
    """Others at each step, the same for the same seed, and the backward pass sees the forward's."""
    def step(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x * 2, 0.5, True).sin()

    jitted = jitpy.jit(step, mode="reduce-overhead")

    def run() -> list[torch.Tensor]:
        torch.manual_seed(3)
        found = []
        for _ in range(6):
            x = torch.ones(1000, device=cuda, requires_grad=True)
            y = jitted(x)
            y.sum().backward()
            dropped = y == 0
            assert torch.equal(x.grad == 0, dropped) and 300 < dropped.sum() < 700
            found.append(dropped)
        return found

    run()
    first, second = run(), run()
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(first[-1], first[-2])


def test_parameters_that_move(cuda: torch.device) -> None:
    """Weights get other memory between steps: what was recorded for the former is not replayed."""
    ours, theirs = pair(lambda: nn.Linear(64, 64), cuda)
    jitted = jitpy.jit(ours, mode="reduce-overhead")
    for number in range(12):
        x = torch.randn(16, 64, device=cuda)
        for call in (jitted, theirs):
            call(x).square().mean().backward()
        close(ours.weight.grad, theirs.weight.grad)
        for model in (ours, theirs):
            with torch.no_grad():
                model.weight -= 0.1 * model.weight.grad
            if number % 4 == 3:
                model.weight.data = model.weight.data.clone()
            model.zero_grad(set_to_none=True)
        close(ours.weight, theirs.weight)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("mask", ["causal", "none"])
def test_grouped_heads(cuda: torch.device, mode: str, mask: str) -> None:
    """Keys and values that are repeated for groups of heads, in training: as far from float64 as eager is."""
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        batch, heads, length, width = k.shape
        k, v = (one[:, :, None].expand(batch, heads, 4, length, width).reshape(batch, heads * 4, length, width)
                for one in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=mask == "causal")

    jitted = jitpy.jit(attend, mode=mode)
    for _ in range(4):
        shapes = ((2, 128, 16, 64), (2, 128, 4, 64), (2, 128, 4, 64))
        inputs = [torch.randn(shape, device=cuda, dtype=torch.bfloat16).transpose(1, 2) for shape in shapes]
        weight = torch.randn(2, 16, 128, 64, device=cuda, dtype=torch.bfloat16)
        found = []
        for function, dtype in ((jitted, torch.bfloat16), (attend, torch.bfloat16), (attend, torch.float64)):
            given = [one.detach().to(dtype).requires_grad_() for one in inputs]
            out = function(*given)
            found.append([out, *torch.autograd.grad(out, given, weight.to(dtype))])
        for ours, theirs, exact in zip(*found, strict=True):
            scale = exact.norm()
            assert (ours.double() - exact).norm() / scale <= 1.5 * (theirs.double() - exact).norm() / scale + 1e-4


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("biased", [False, True])
def test_attention_by_hand_obeys_no_switches(cuda: torch.device, mode: str, biased: bool) -> None:
    """The formula is right whichever kernels are allowed, when it is compiled and later."""
    def attend(q: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        scores = q @ q.transpose(-1, -2) * 0.125
        return (scores if bias is None else scores + bias).softmax(-1) @ q

    everything = [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
    bias = torch.randn(1, 8, 64, 64, device=cuda) if biased else None
    q = torch.randn(2, 8, 64, 64, device=cuda)
    for first in ([SDPBackend.FLASH_ATTENTION], everything):  # there is no flash attention in float32
        jitted = jitpy.jit(attend, mode=mode)
        for backends in (first, [SDPBackend.FLASH_ATTENTION], [SDPBackend.MATH], everything):
            with sdpa_kernel(backends):
                for _ in range(3):
                    torch.testing.assert_close(jitted(q, bias), attend(q, bias), rtol=2e-3, atol=2e-3)
