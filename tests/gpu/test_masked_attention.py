"""Attention written out with a mask, by the kernel of flex attention: no further from float64 than eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import jitpy
from jitpy.engine import all_engines

Tensor = torch.Tensor
Fn = Callable[..., Tensor]
INF = float("inf")
#: batch, heads, heads of keys, queries, keys, size
SHAPES = [(2, 8, 8, 256, 256, 64), (2, 8, 2, 300, 523, 128), (1, 4, 1, 65, 1000, 80)]


def repeated(x: Tensor, times: int) -> Tensor:
    batch, heads, length, width = x.shape
    return x[:, :, None].expand(batch, heads, times, length, width).reshape(batch, heads * times, length, width)


def added(scores: Tensor, mask: Tensor) -> Tensor:
    return scores * 0.1 + mask


def hidden(scores: Tensor, mask: Tensor) -> Tensor:
    return (scores * 0.1).masked_fill(mask, -INF)


def shown(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, scores * 0.1, -INF)


def attention(change: Fn) -> Fn:
    def fn(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        times = q.shape[1] // k.shape[1]
        k, v = repeated(k, times), repeated(v, times)
        return torch.softmax(change(q @ k.transpose(2, 3), mask), -1) @ v

    return fn


def operands(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    batch, heads, shared, queries, keys, size = shape
    return [torch.randn(batch, count, length, size, device="cuda").to(dtype)
            for count, length in ((heads, queries), (shared, keys), (shared, keys))]


def styles() -> list[str]:
    return [kernel.style for engine in all_engines() for variant in engine.variants if variant.graph is not None
            for part in variant.graph.lowered if part.notes is not None for kernel in part.notes.kernels]


def wide(one: Tensor) -> Tensor:
    return one.double() if one.is_floating_point() else one


def check(fn: Fn, *given: Tensor) -> Tensor:
    """NaN where eager is, and elsewhere as near to float64."""
    jitpy.reset()
    with torch.no_grad():
        compiled = jitpy.jit(fn, fullgraph=True)
        expected, found, exact = fn(*given), compiled(*given), fn(*map(wide, given))
    assert "flex" in styles()
    assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride())
    fine = expected.isfinite() & exact.isfinite()
    torch.testing.assert_close(found[~fine], expected[~fine], equal_nan=True)
    error = (expected[fine].double() - exact[fine]).norm()
    assert (found[fine].double() - exact[fine]).norm() <= 1.2 * error + 1e-3
    return expected


@pytest.mark.parametrize("axes", ["b1qk", "11qk", "b11k", "1h1k", "1hq1", "bhqk"])
@pytest.mark.parametrize("change", [added, hidden, shown])
@pytest.mark.parametrize("shape", SHAPES)
def test_masks(shape: tuple[int, ...], change: Fn, axes: str, cuda: torch.device) -> None:
    """Of all shapes; some hide a row altogether."""
    dtype = torch.float16 if shape[0] == 1 else torch.bfloat16
    sizes = dict(zip("bhqk1", (shape[0], shape[1], shape[3], shape[4], 1), strict=True))
    mask = torch.rand([sizes[axis] for axis in axes], device=cuda) > 0.4
    mask[-1, 0, 0] = change is hidden
    if change is added:
        mask = torch.randn(mask.shape, device=cuda).to(dtype).masked_fill(~mask, -INF)
    assert check(attention(change), *operands(shape, dtype), mask).isnan().any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_least_number_hides(shape: tuple[int, ...], dtype: torch.dtype, cuda: torch.device) -> None:
    """A row that has nothing else is the mean of all values, not NaN."""
    mask = torch.zeros(shape[0], 1, *shape[3:5], dtype=dtype, device=cuda)
    mask.masked_fill_(torch.rand_like(mask) > 0.5, torch.finfo(dtype).min)
    mask[-1, 0, :3] = torch.finfo(dtype).min
    given = operands(shape, dtype)
    assert not check(attention(added), given[0] * 0.1, *given[1:], mask).isnan().any()


def test_the_largest_number_chooses(cuda: torch.device) -> None:
    mask = torch.zeros(2, 1, 256, 256, dtype=torch.bfloat16, device=cuda)
    mask[..., 3] = torch.finfo(torch.bfloat16).max
    assert not check(attention(added), *operands(SHAPES[0], torch.bfloat16), mask).isnan().any()


@pytest.mark.parametrize("bad", [float("nan"), INF, -INF])
@pytest.mark.parametrize("change", [added, hidden])
def test_operands_that_are_no_numbers(change: Fn, bad: float, cuda: torch.device) -> None:
    for position in range(3):
        given = operands(SHAPES[0], torch.bfloat16)
        given[position][0, 0, 3, 2] = bad
        mask = torch.rand(2, 1, 256, 256, device=cuda) > 0.5
        if change is added:
            mask = torch.zeros(mask.shape, device=cuda, dtype=torch.bfloat16).masked_fill(mask, -INF)
        check(attention(change), *given, mask)


def test_memory_that_lies_otherwise(cuda: torch.device) -> None:
    """Heads inside rows, and masks that are turned, parts of others, and expanded."""
    q, k, v = (torch.randn(2, length, 8, 128, device=cuda).half()[..., :64].transpose(1, 2)
               for length in (300, 260, 260))
    mask = torch.randn(260, 303, 1, 2, device=cuda).half().permute(3, 2, 1, 0)[:, :, 3:]
    check(attention(added), q, k, v, mask)
    check(attention(added), q, k, v, mask[:1].expand(2, 8, 300, 260))


@pytest.mark.parametrize("change", [added, hidden, shown])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients(shape: tuple[int, ...], change: Fn, cuda: torch.device) -> None:
    """Whatever way is taken then."""
    mask = torch.rand(shape[0], 1, *shape[3:5], device=cuda) > 0.4
    if change is added:
        mask = torch.zeros(mask.shape, device=cuda, dtype=torch.bfloat16).masked_fill(mask, -INF)
    given = [one.requires_grad_() for one in operands(shape, torch.bfloat16)]
    grad = torch.randn_like(given[0])
    fn = attention(change)

    def gradients(call: Fn, given: list[Tensor], mask: Tensor, grad: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(call(*given, mask), given, grad))

    double = [one.detach().double().requires_grad_() for one in given]
    exact = gradients(fn, double, wide(mask), grad.double())
    expected = gradients(fn, given, mask, grad)
    for found, other, own in zip(gradients(jitpy.jit(fn), given, mask, grad), expected, exact, strict=True):
        assert (found.double() - own).norm() <= 1.2 * (other.double() - own).norm() + 1e-3


@pytest.mark.parametrize("kind", ["flex_attention", "sdpa", "eager"])
def test_padding_masks_of_hugging_face(kind: str, cuda: torch.device) -> None:
    """One graph: whether a mask hides anything is asked when a call begins."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=256, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, use_cache=False, attn_implementation=kind)
    model = transformers.LlamaForCausalLM(config).eval().to(cuda, torch.bfloat16)
    plain = transformers.LlamaForCausalLM(config).eval().to(cuda)
    plain.load_state_dict(model.state_dict())
    plain.set_attn_implementation("eager")

    def logits(model: torch.nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
        return model(ids, attention_mask=mask).logits * mask.unsqueeze(-1)

    compiled = jitpy.jit(logits, fullgraph=True)
    with torch.no_grad():
        for batch, length in ((2, 40), (3, 170)):
            ids = torch.randint(0, 64, (batch, length), device=cuda)
            for out in (0, 3):
                mask = (torch.arange(length, device=cuda) >= out).long().repeat(batch, 1)
                exact = logits(plain, ids, mask)
                assert (compiled(model, ids, mask).double() - exact).norm() <= 0.02 * exact.norm()


def test_a_branch_on_a_mask(cuda: torch.device) -> None:
    """The answer is a guard, as on the CPU."""
    def fn(x: Tensor, mask: Tensor) -> Tensor:
        y = x * 2
        return y + 1 if mask.all() else y * mask

    x, compiled = torch.randn(8, 16, device=cuda), jitpy.jit(fn, fullgraph=True)
    for mask in (torch.ones(8, 16, device=cuda, dtype=torch.bool), torch.rand(8, 16, device=cuda) > 0.5):
        for _ in range(2):
            assert torch.equal(compiled(x, mask), fn(x, mask))
        mask[3] = ~mask[3]
        assert torch.equal(compiled(x, mask), fn(x, mask))
