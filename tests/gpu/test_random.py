"""Dropout by numbers that kernels draw: those that eager draws, and the generator goes on alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitpy

MODES = ["default", "reduce-overhead"]


def run(fn: Callable[..., Any], *args: Any) -> tuple[Any, Tensor]:
    """What a function returns from a fixed state, and the state behind it."""
    torch.cuda.manual_seed(1234567890123)
    torch.rand(3, device="cuda")
    result = fn(*args)
    return result, torch.cuda.get_rng_state()


def agree(fn: Callable[..., Any], *args: Any, mode: str = "default", calls: int = 4) -> Any:
    jitted = jitpy.jit(fn, mode=mode)
    expected, state = run(fn, *args)
    for _ in range(calls):
        result, after = run(jitted, *args)
        assert torch.equal(after, state)
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
    return jitted


SHAPES = [(1,), (3,), (6,), (12,), (257,), (1000, 8), (33, 6), (64, 4100), (1024, 1024), (1536, 1500), (4096, 4096)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_eagers_numbers(shape: tuple[int, ...], dtype: torch.dtype, cuda: torch.device) -> None:
    x = torch.randn(shape, device=cuda, dtype=dtype)
    agree(lambda x: F.dropout(x * 2, 0.3, True), x, calls=2)


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 1 / 3, 0.999, 1.0])
def test_probabilities(probability: float, cuda: torch.device) -> None:
    x = torch.randn(300, 512, device=cuda)
    x[0, :4] = torch.tensor([float("inf"), float("nan"), -0.0, -float("inf")])
    agree(lambda x: F.dropout(x, probability, True), x, calls=2)


@pytest.mark.parametrize("make", [
    lambda x: x.t(), lambda x: x[1:], lambda x: x[:, 3:], lambda x: x.reshape(-1)[1:], lambda x: x.reshape(-1)[4:-4],
    lambda x: x.view(8, 4, 8, -1).permute(0, 3, 1, 2)])
def test_layouts(make: Callable[[Tensor], Tensor], cuda: torch.device) -> None:
    x = torch.randn(64, 128, device=cuda)
    agree(lambda x: F.dropout(make(x), 0.4, True), x, calls=2)
    agree(lambda x: F.dropout(x, 0.4, True) + 1, make(x), calls=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_symbolic_sizes(dtype: torch.dtype, cuda: torch.device) -> None:
    """One graph for all of them; where sizes do not tell who draws for which element, torch's kernels draw."""
    def fn(x: Tensor) -> Tensor:
        return F.dropout(F.dropout(x * 2, 0.3, True) + 1, 0.1, True)

    for width in (64, 12, 3):
        jitted = jitpy.jit(fn, dynamic=True)
        for rows in (2, 3, 37, 1000, 4096, 33333, 5):
            x = torch.randn(rows, width, device=cuda, dtype=dtype)
            expected, state = run(fn, x)
            result, after = run(jitted, x)
            assert torch.equal(after, state)
            torch.testing.assert_close(result, expected, rtol=0, atol=0)


@pytest.mark.parametrize("mode", MODES)
def test_among_other_random_calls(mode: str, cuda: torch.device) -> None:
    def fn(x: Tensor) -> Tensor:
        y = F.dropout(x, 0.1, True) + F.dropout(x + 1, 0.2, True)
        y = y + torch.rand_like(y)
        return F.dropout(y, 0.5, True), torch.randn(5, device=x.device)

    agree(fn, torch.randn(200, 768, device=cuda), mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_states_go_on(mode: str, cuda: torch.device) -> None:
    """Calls draw new numbers, as in eager; a state that is put back draws the same again."""
    x = torch.ones(64, 512, device=cuda)

    def fn(x: Tensor) -> Tensor:
        return F.dropout(x * 2, 0.5, True).sin() + F.dropout(x, 0.5, True).cos()

    jitted = jitpy.jit(fn, mode=mode)
    for call in (fn, jitted):
        torch.cuda.manual_seed(5)
        results = [call(x).clone() for _ in range(5)]
        state = torch.cuda.get_rng_state()
        if call is fn:
            expected, expected_state = results, state
    torch.testing.assert_close(results, expected, rtol=0, atol=0)
    assert torch.equal(state, expected_state)
    assert not torch.equal(results[0], results[1])


FILLS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x + torch.rand_like(x), lambda x: x * torch.rand(x.shape, device=x.device, dtype=x.dtype),
    lambda x: x + torch.randn_like(x), lambda x: x - torch.randn(x.shape, device=x.device, dtype=x.dtype),
    lambda x: x + torch.empty_like(x).uniform_(-1.7, 3.3), lambda x: x + torch.empty_like(x).normal_(0.3, 2.1),
    lambda x: torch.rand_like(x.t()) + 1, lambda x: torch.randn_like(x.t()).abs(),
    lambda x: (x - torch.rand_like(x), torch.randn_like(x) + x, F.dropout(x + 1, 0.2, True), x + torch.rand_like(x))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("number", range(len(FILLS)))
def test_random_tensors(number: int, dtype: torch.dtype, cuda: torch.device) -> None:
    for shape in ((3, 7), (64, 4100), (1024, 2048), (1000, 5000)):  # up to 2 ** 21 elements they are drawn in kernels
        x = torch.zeros(shape, device=cuda, dtype=dtype)
        agree(FILLS[number], x, calls=2)


def test_random_tensors_are_drawn_in_kernels(cuda: torch.device) -> None:
    """Two of them and what they are added to: one launch, and one for the generator's state."""
    x = torch.zeros(64, 512, device=cuda)

    def fn(x: Tensor) -> Tensor:
        return x + torch.rand_like(x) * torch.randn_like(x)

    assert "like.default: torch's kernel" not in str(jitpy.explain(fn)(x))
    agree(fn, x)
    y = torch.zeros(64, 512, device=cuda, requires_grad=True)
    agree(lambda y: torch.autograd.grad((fn(y) * torch.rand_like(y)).sum(), y)[0], y)


class Block(nn.Module):
    """The end of a transformer's layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.dropout(F.relu(self.up(x)), 0.1, self.training)
        return self.norm(x + F.dropout(self.down(hidden), 0.2, self.training))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training(dtype: torch.dtype, mode: str, cuda: torch.device) -> None:
    model = Block(256).to(cuda, dtype)
    x = torch.randn(64, 256, device=cuda, dtype=dtype, requires_grad=True)
    weights = torch.randn(64, 256, device=cuda)

    def step(call: Callable[[Tensor], Tensor]) -> list[Tensor]:
        model.zero_grad()
        x.grad = None
        y = call(x)
        torch.rand(7, device=cuda)  # between the passes: the backward pass draws the forward pass' numbers
        (y.float() * weights).sum().backward()
        return [y.detach().clone(), x.grad.clone(), *(p.grad.clone() for p in model.parameters())]

    expected, state = run(step, model)
    jitted = jitpy.jit(model, mode=mode)
    for _ in range(4):
        found, after = run(step, jitted)
        assert torch.equal(after, state)
        for one, other in zip(found, expected, strict=True):
            spread = other.float().abs().max().item()
            tolerance = (1e-4 if dtype is torch.float32 else 5e-2) * spread
            torch.testing.assert_close(one, other, rtol=0, atol=tolerance)


def test_gradients_are_eagers(cuda: torch.device) -> None:
    x = torch.randn(512, 1024, device=cuda, requires_grad=True)
    grad = torch.randn(512, 1024, device=cuda)

    def step(call: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.autograd.grad(call(x), x, grad)[0]

    def fn(x: Tensor) -> Tensor:
        return F.dropout(x * 3, 0.15, True)

    expected, state = run(step, fn)
    found, after = run(step, jitpy.jit(fn))
    assert torch.equal(after, state)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_masks_are_not_kept(cuda: torch.device) -> None:
    """The backward pass draws them again: 16 bytes are kept in place of a byte an element."""
    x = torch.randn(1 << 24, device=cuda, requires_grad=True)
    jitted = jitpy.jit(lambda x: F.dropout(x * 2, 0.5, True) * 3)
    jitted(x).sum().backward()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    y = jitted(x)
    assert torch.cuda.memory_allocated() - before < y.nbytes + (1 << 20)


def test_a_users_own_cuda_graph(cuda: torch.device) -> None:
    x = torch.ones(64, 512, device=cuda)

    def fn(x: Tensor) -> Tensor:
        return F.dropout(x * 2, 0.5, True) + F.dropout(x, 0.25, True)

    def replays(call: Callable[[Tensor], Tensor]) -> list[Tensor]:
        for _ in range(3):
            call(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = call(x)
        torch.cuda.manual_seed(7)
        found = []
        for _ in range(3):
            graph.replay()
            found.append(y.clone())
        return found

    found, expected = replays(jitpy.jit(fn)), replays(fn)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert not torch.equal(found[0], found[1])


class Attention(nn.Module):
    """Attention with dropout and, where lengths are given, padding."""

    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.is_causal = nn.Linear(128, 384), nn.Linear(128, 128), is_causal

    def forward(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (part.view(batch, length, 2, 64).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mask = None if lengths is None else (torch.arange(length, device=x.device) < lengths[:, None])[:, None, None]
        found = F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.is_causal)
        return x + F.dropout(self.out(found.transpose(1, 2).reshape(batch, length, -1)), 0.1, self.training)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["plain", "causal", "padded"])
def test_training_with_changing_lengths(kind: str, mode: str, cuda: torch.device) -> None:
    """One graph, differentiated with symbolic sizes, not left to torch's autograd."""
    model = Attention(kind == "causal").to(cuda)
    said: list[str] = []
    sink = jitpy.logs.set_sink(said.append)
    jitpy.logs.enable("fusion")
    try:
        jitted = jitpy.jit(model, mode=mode)
        for length in (64, 48, 33, 96, 200, 33):
            x = torch.randn(4, length, 128, device=cuda, requires_grad=True)
            lengths = torch.randint(1, length + 1, (4,), device=cuda) if kind == "padded" else None

            def step(call: Callable[..., Tensor], x: Tensor = x, lengths: Tensor | None = lengths) -> list[Tensor]:
                model.zero_grad()
                x.grad = None
                with torch.autocast("cuda", torch.bfloat16):
                    y = call(x, lengths)
                y.float().square().sum().backward()
                return [y.detach().clone(), x.grad.clone(), *(p.grad.clone() for p in model.parameters())]

            expected, state = run(step, model)
            found, after = run(step, jitted)
            assert torch.equal(after, state)
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=3e-2 * other.float().abs().max().item())
    finally:
        jitpy.logs.disable("fusion")
        jitpy.logs.set_sink(sink)
    assert not any("under torch's autograd" in text for text in said)
