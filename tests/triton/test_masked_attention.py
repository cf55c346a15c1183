"""Attention written out with a mask, by the kernel of flex attention in Triton's interpreter, against eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F

import jitpy
from jitpy import config
from jitpy.ir.passes import masked_attention as masked
from jitpy.schedule import flex
from tests.triton.cases import BF16, HALF, Tensor

pytest.importorskip("triton")

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 4, 20, 70, 24
INF = float("inf")
Fn = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(masked, "_DTYPES", {"cpu": masked._DTYPES["cuda"]})
    torch.manual_seed(0)
    with config.patch(triton_on_cpu=True):
        yield
    jitpy.reset()


def repeated(x: Tensor, times: int) -> Tensor:
    batch, heads, length, width = x.shape
    return x[:, :, None].expand(batch, heads, times, length, width).reshape(batch, heads * times, length, width)


def operands(dtype: torch.dtype, times: int = 1) -> list[Tensor]:
    return [torch.randn(BATCH, HEADS, QUERIES, WIDTH).to(dtype),
            *(torch.randn(BATCH, HEADS // times, KEYS, WIDTH).to(dtype) for _ in range(2))]


def added(scores: Tensor, mask: Tensor) -> Tensor:
    return scores / WIDTH ** 0.5 + mask


def added_first(scores: Tensor, mask: Tensor) -> Tensor:
    return mask + scores * -0.3


def hidden(scores: Tensor, mask: Tensor) -> Tensor:
    return (scores * 0.2).masked_fill(mask, -INF)


def shown(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, scores * 0.2, -INF)


def attention(change: Fn, times: int = 1) -> Fn:
    def fn(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        k, v = repeated(k, times), repeated(v, times)
        return torch.softmax(change(q @ k.transpose(2, 3), mask), -1) @ v

    return fn


def check(fn: Fn, *given: Tensor, is_flexible: bool = True) -> Tensor:
    """As far from the result in float64 as eager's own is, and NaN where eager's is."""
    with torch.no_grad():
        expected, found = fn(*given), jitpy.jit(fn)(*given)
        report = str(jitpy.explain(fn)(*given)).partition("guards:")[0].partition("kernels:")[2]
        exact = fn(*(one.double() if one is not None and one.is_floating_point() else one for one in given))
    assert ("flex_attention" in report) == is_flexible, report
    assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride())
    assert torch.equal(found.isnan(), expected.isnan())
    fine = ~expected.isnan()
    error = (expected[fine].double() - exact[fine]).abs().max()
    assert (found[fine].double() - exact[fine]).abs().max() <= 1.5 * error + 1e-3
    return expected


MASKS = [(BATCH, 1, QUERIES, KEYS), (1, 1, QUERIES, KEYS), (BATCH, 1, 1, KEYS), (1, HEADS, QUERIES, 1)]


@pytest.mark.parametrize("dtype", [BF16, HALF])
@pytest.mark.parametrize("shape", MASKS)
@pytest.mark.parametrize("change", [added, added_first, hidden, shown])
@pytest.mark.parametrize("times", [1, 2])
def test_masks(times: int, change: Fn, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    mask = torch.rand(shape) > 0.4
    mask[-1, 0, 0] = change is hidden  # a row that hides all
    if change in (added, added_first):
        mask = torch.randn(shape).to(dtype).masked_fill(~mask, -INF)
    assert check(attention(change, times), *operands(dtype, times), mask).isnan().any()


@pytest.mark.parametrize("dtype", [BF16, HALF])
@pytest.mark.parametrize("times", [1, 2])
def test_the_least_number_hides(times: int, dtype: torch.dtype) -> None:
    """As models have it. A row that has nothing else is the mean of all values, not NaN."""
    mask = torch.zeros(BATCH, 1, QUERIES, KEYS, dtype=dtype)
    mask.masked_fill_(torch.rand(mask.shape) > 0.5, torch.finfo(dtype).min)
    mask[1, 0, :3] = torch.finfo(dtype).min
    q, *rest = operands(dtype, times)
    assert not check(attention(added, times), q * 0.1, *rest, mask).isnan().any()
    with torch.no_grad():  # the sum with a score is rounded to that number again
        found, mean = jitpy.jit(attention(added, times))(q, *rest, mask)[1, :, :3], repeated(rest[1], times)[1].mean(1)
    torch.testing.assert_close(found, mean[:, None].expand(-1, 3, -1), rtol=0, atol=1e-2)


def test_the_largest_number_chooses() -> None:
    mask = torch.zeros(BATCH, 1, QUERIES, KEYS, dtype=BF16)
    mask[:, :, :, 3] = torch.finfo(BF16).max
    assert not check(attention(added), *operands(BF16), mask).isnan().any()


@pytest.mark.parametrize("change", [added, hidden])
def test_memory_that_lies_otherwise(change: Fn) -> None:
    """Heads inside rows, slices, and masks that are turned, expanded, or parts of others."""
    q, k, v = (torch.randn(BATCH, length, HEADS, 2 * WIDTH).to(BF16)[..., :WIDTH].transpose(1, 2)
               for length in (QUERIES, KEYS, KEYS))
    mask = torch.rand(KEYS, QUERIES + 3, 1, BATCH) > 0.5
    whole = mask if change is hidden else torch.randn(mask.shape).to(BF16)
    turned = whole.permute(3, 2, 1, 0)[:, :, 3:]
    check(attention(change), q, k, v, turned)
    check(attention(change), q, k, v, turned[:1, :, :, :].expand(BATCH, HEADS, QUERIES, KEYS))


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("kind", [None, "shown", "added"])
def test_one_query(kind: str | None, times: int, queries: int) -> None:
    """Torch's operator for one token: rows that hide all are 0."""
    def fn(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(q, repeated(k, times), repeated(v, times), mask)

    q, k, v = operands(BF16, times)
    shown = torch.rand(BATCH, 1, queries, KEYS) > 0.4
    shown[1] = kind == "added"
    masks = {None: None, "shown": shown, "added": torch.randn(shown.shape).to(BF16).masked_fill(~shown, -INF)}
    check(fn, q[:, :, :queries], k, v, masks[kind], is_flexible=queries == 1)  # type: ignore[arg-type]


def test_one_query_and_more_and_more_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs share keys of which there are few at first, and parts without keys count for nothing."""
    monkeypatch.setattr(flex, "_LEAST_KEYS", 16)
    fn = jitpy.jit(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), dynamic=True)
    for length in (5, 6, 40, 200):
        q, k, v = (torch.randn(1, heads, rows, 16).to(BF16) for heads, rows in ((4, 1), (2, length), (2, length)))
        torch.testing.assert_close(fn(q, k, v), F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
                                   atol=2e-2, rtol=2e-2)


def test_masks_that_are_computed() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        causal = torch.ones(QUERIES, KEYS, dtype=torch.bool).tril(KEYS - QUERIES)
        bias = torch.zeros(BATCH, 1, QUERIES, KEYS, dtype=q.dtype)
        bias = bias.masked_fill(~(causal & keep[:, None, None]), torch.finfo(BF16).min)
        return F.dropout(torch.softmax(q @ k.mT * 0.2 + bias, -1), 0.1, training=False) @ v

    check(fn, *operands(BF16), torch.rand(BATCH, KEYS) > 0.3)


def test_forms_that_stay_written_out() -> None:
    """Masks of another dtype, weights that are computed wider, and dropout."""
    given, wide = operands(BF16), torch.randn(BATCH, 1, QUERIES, KEYS)

    def converted(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT + mask.to(q.dtype), -1, dtype=torch.float32).to(q.dtype) @ v

    def promoted(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT + mask, -1) @ v.to(mask.dtype)

    def dropped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.dropout(torch.softmax(q @ k.mT + mask, -1), 1.0) @ v

    check(converted, *given, wide.bfloat16(), is_flexible=False)
    check(promoted, *given, wide, is_flexible=False)
    check(dropped, *given, wide.bfloat16(), is_flexible=False)


@pytest.mark.parametrize("place", range(4))
def test_gradients_keep_it_written_out(place: int) -> None:
    given = [*operands(BF16), torch.randn(BATCH, 1, QUERIES, KEYS).bfloat16()]
    given[place].requires_grad_()
    fn, found = attention(added), []
    for run in (fn, jitpy.jit(fn)):
        (run(*given) * torch.linspace(-1, 1, WIDTH)).sum().backward()
        found.append(given[place].grad)
        given[place].grad = None
    torch.testing.assert_close(found[1], found[0], atol=0.05, rtol=0.05)
