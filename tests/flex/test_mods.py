"""`flex_attention` with each kind of score and mask function: one graph, and eager's results and gradients."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    and_masks,
    create_block_mask,
    create_mask,
    flex_attention,
    or_masks,
)

import jitpy
from tests.counting import variants

BATCH, HEADS, LENGTH, WIDTH = 2, 4, 16, 8


pytestmark = pytest.mark.usefixtures("plain_eager")


def tensors(key_heads: int = HEADS, dtype: torch.dtype = torch.float32, length: int = LENGTH,
            keys: int | None = None) -> list[torch.Tensor]:
    shape = BATCH, key_heads, length if keys is None else keys, WIDTH
    return [torch.randn(BATCH, HEADS, length, WIDTH, dtype=dtype), *(torch.randn(shape, dtype=dtype) for _ in range(2))]


def values_of(fn: Callable[..., Any], given: list[Any], captured: list[torch.Tensor], backward: bool) -> list[Any]:
    """The results, and the gradients of the tensors given and captured."""
    given = [t.detach().clone().requires_grad_(backward) if isinstance(t, torch.Tensor) else t for t in given]
    for tensor in captured:
        tensor.grad = None
    found = fn(*given)
    results = [part for part in (found if isinstance(found, tuple) else (found,)) if part is not None]
    results = [one for part in results for one in (part if isinstance(part, tuple) else (part,)) if one is not None]
    if not backward:
        return results
    weights = (torch.arange(part.numel(), dtype=torch.float32).cos().view(part.shape) for part in results)
    sum((part.float() * weight).sum() for part, weight in zip(results, weights, strict=True)).backward()
    grads = [t.grad for t in (*given, *captured) if isinstance(t, torch.Tensor) and t.requires_grad]
    return [*(part.detach() for part in results), *(None if grad is None else grad.clone() for grad in grads)]


def check(fn: Callable[..., Any], given: list[Any], *captured: torch.Tensor, backward: bool = True,
          backend: str = "codegen", **tolerance: float) -> None:
    expected = values_of(fn, given, list(captured), backward)
    jitted = jitpy.jit(fn, backend=backend, fullgraph=True)
    found = values_of(jitted, given, list(captured), backward)
    torch.testing.assert_close(found, expected, **tolerance)
    for own, other in zip(found, expected, strict=True):
        assert own is None or own.stride() == other.stride()


def causal(b, h, q, k):
    return q >= k


def window(b, h, q, k):
    return (q - k).abs() < 5


def prefix(b, h, q, k):
    return (k < 4) | (q >= k)


def soft_cap(score, b, h, q, k):
    return 20 * torch.tanh(score / 20)


def causal_score(score, b, h, q, k):
    return torch.where(q >= k, score, float("-inf"))


def alibi() -> tuple[Any, list[torch.Tensor]]:
    slopes = torch.rand(HEADS)
    return (lambda score, b, h, q, k: score + slopes[h] * (k - q)), []


def relative() -> tuple[Any, list[torch.Tensor]]:
    bias = torch.randn(HEADS, 2 * LENGTH, requires_grad=True)
    return (lambda score, b, h, q, k: score + bias[h, q - k + LENGTH]), [bias]


def read_twice() -> tuple[Any, list[torch.Tensor]]:
    table = torch.randn(LENGTH, LENGTH, requires_grad=True)
    return (lambda score, b, h, q, k: score * table[q, k] + table[k, q] + table[h, 0]), [table]


def scalars() -> tuple[Any, list[torch.Tensor]]:
    factor, shift, number = torch.tensor(1.5), torch.tensor(0.3), 2.5
    return (lambda score, b, h, q, k: score * factor.exp() + shift * q - number), []


def low_precision() -> tuple[Any, list[torch.Tensor]]:
    bias = torch.randn(HEADS, LENGTH, dtype=torch.bfloat16, requires_grad=True)
    return (lambda score, b, h, q, k: score + bias[h, k]), [bias]


def within(size, b, h, q, k):
    return (q - k).abs() < size


def within_named(b, h, q, k, size):
    return (q - k).abs() < size


class Causal:
    """A callable object, and a method, as functions of masks."""

    def __call__(self, b, h, q, k):
        return q >= k

    def within(self, size, b, h, q, k):
        return (q - k).abs() < size


class Scaled:
    """A method as a function of scores."""

    def __init__(self) -> None:
        self.by = torch.rand(BATCH)

    def mod(self, score, b, h, q, k):
        return score * self.by[b]


def of_batch(by, score, b, h, q, k):
    return score * by[b]


SCORES: dict[str, Callable[[], tuple[Any, list[torch.Tensor]]]] = {
    "none": lambda: (None, []),
    "soft_cap": lambda: (soft_cap, []),
    "causal_score": lambda: (causal_score, []),
    "alibi": alibi,
    "relative": relative,
    "read_twice": read_twice,
    "scalars": scalars,
    "low_precision": low_precision,
    "method": lambda: (Scaled().mod, []),
    "partial": lambda: (functools.partial(of_batch, torch.rand(BATCH)), []),
}


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", SCORES)
def test_score(name, backend):
    mod, captured = SCORES[name]()
    tolerance = 2e-2 if name == "low_precision" else 1e-4  # eager adds its gradient up in bfloat16
    check(lambda q, k, v: flex_attention(q, k, v, score_mod=mod), tensors(), *captured, backend=backend,
          atol=tolerance, rtol=tolerance)


def test_gradients_of_scalars_which_eager_refuses():
    factor, shift = (torch.tensor(one, dtype=torch.float64, requires_grad=True) for one in (1.5, 0.3))

    def mod(score, b, h, q, k):
        return score * factor.exp() + shift * q * k

    def written_out(q, k, v):
        product = torch.arange(LENGTH)[:, None] * torch.arange(LENGTH)
        return (q @ k.transpose(-1, -2) / WIDTH ** 0.5 * factor.exp() + shift * product).softmax(-1) @ v

    given, captured = tensors(dtype=torch.float64), [factor, shift]
    expected = values_of(written_out, given, captured, True)
    for backend in ("eager", "codegen"):
        jitted = jitpy.jit(lambda q, k, v: flex_attention(q, k, v, score_mod=mod), backend=backend, fullgraph=True)
        torch.testing.assert_close(values_of(jitted, given, captured, True), expected)


def test_an_element_that_is_read_axis_by_axis():
    """Eager's gradient of `table[k][q]` is wrong in torch 2.13."""
    table = torch.randn(LENGTH, LENGTH, requires_grad=True)
    given = tensors()
    at_once = jitpy.jit(lambda q, k, v: flex_attention(q, k, v, lambda score, b, h, qi, ki: score + table[ki, qi]))
    by_axis = jitpy.jit(lambda q, k, v: flex_attention(q, k, v, lambda score, b, h, qi, ki: score + table[ki][qi]),
                        fullgraph=True)
    torch.testing.assert_close(values_of(by_axis, given, [table], True), values_of(at_once, given, [table], True))


def infinite_score(score, b, h, q, k):
    return torch.where((q == 3) & (k == 2), float("inf"), score)


def test_an_infinite_score():
    """Its row is NaN, and its statistic infinite: the weights of other keys are 0."""
    def both(q, k, v):
        out, lse = flex_attention(q, k, v, score_mod=infinite_score, return_lse=True)
        return out, lse.clamp(max=100)

    check(both, tensors(), equal_nan=True, atol=1e-4, rtol=1e-4)
    given = tensors()
    (_, expected), (_, found) = (fn(*given, score_mod=infinite_score, return_lse=True)
                                 for fn in (flex_attention, jitpy.jit(flex_attention)))
    assert expected.isinf().sum() == BATCH * HEADS
    torch.testing.assert_close(found, expected)


def test_scores_that_overflow():
    """They are scaled behind the product, as by eager."""
    query, key, value = tensors()
    for mod in (None, causal_score):
        check(lambda q, k, v, mod=mod: flex_attention(q, k, v, score_mod=mod, return_lse=True),
              [query * 1e19, key * 1e19, value], backward=False, equal_nan=True)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_statistics_of_scores_in_another_dtype(dtype, backend):
    check(lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, q, k: s.to(dtype), return_lse=True),
          tensors(), backend=backend, backward=False, atol=2e-2, rtol=2e-2)
    check(lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, q, k: (q - k).to(dtype), return_lse=True),
          tensors(), backend=backend, backward=False, atol=2e-2, rtol=2e-2)


def test_a_score_that_is_not_read():
    def written_out(q, k, v):
        scores = (torch.arange(LENGTH) * 0.5).expand(BATCH, HEADS, LENGTH, LENGTH)
        return scores.softmax(-1).to(v.dtype) @ v + 0 * (q.sum() + k.sum())

    jitted = jitpy.jit(lambda q, k, v: flex_attention(q, k, v, score_mod=lambda score, b, h, q, k: k * 0.5))
    given = tensors()
    torch.testing.assert_close(values_of(jitted, given, [], True), values_of(written_out, given, [], True))


def documents() -> Any:
    document = torch.tensor([0] * 6 + [1] * 6 + [2] * 4).expand(BATCH, LENGTH).contiguous()
    return lambda b, h, q, k: document[b, q] == document[b, k]


def by_head() -> Any:
    lengths = torch.tensor([3, 7, 12, 16])
    return lambda b, h, q, k: k < lengths[h]


MASKS: dict[str, Callable[[], Any]] = {
    "causal": lambda: causal,
    "window": lambda: window,
    "prefix": lambda: prefix,
    "documents": documents,
    "by_head": by_head,
    "and_or": lambda: or_masks(and_masks(causal, window), prefix),
    "partial": lambda: functools.partial(within, 3),
    "partial_named": lambda: functools.partial(within_named, size=3),
    "partial_method": lambda: functools.partial(Causal().within, 3),
    "object": Causal,
    "nothing": lambda: (lambda b, h, q, k: q < -1),
}


def blocks_of(mod: Any, length: int = LENGTH, **options: Any) -> BlockMask:
    return create_block_mask(mod, BATCH, HEADS, length, length, device="cpu", BLOCK_SIZE=4, **options)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", MASKS)
def test_mask_made_outside(name, backend):
    mask = blocks_of(MASKS[name]())
    check(lambda q, k, v: flex_attention(q, k, v, block_mask=mask), tensors(), backend=backend)


@pytest.mark.parametrize("name", MASKS)
def test_mask_made_inside(name):
    mod = MASKS[name]()
    check(lambda q, k, v: flex_attention(q, k, v, block_mask=blocks_of(mod)), tensors())


def parts(mask: BlockMask) -> list[Any]:
    return [part for part in mask.as_tuple() if isinstance(part, torch.Tensor)]


@pytest.mark.parametrize("name", MASKS)
def test_the_parts_of_a_mask_made_inside(name):
    mod = MASKS[name]()
    found = jitpy.jit(lambda: parts(blocks_of(mod)), fullgraph=True)()
    torch.testing.assert_close(found, parts(blocks_of(mod)))


@pytest.mark.parametrize("block", [128, (8, 4)])
def test_masks_of_other_blocks(block):
    def make():
        return parts(create_block_mask(causal, None, None, 13, 21, device="cpu", BLOCK_SIZE=block))

    torch.testing.assert_close(jitpy.jit(make, fullgraph=True)(), make())


def test_dense_masks():
    mod, _ = alibi()
    for one in (causal, mod, causal_score):
        found = jitpy.jit(lambda one=one: create_mask(one, BATCH, None, 5, 7, device="cpu"), fullgraph=True)()
        torch.testing.assert_close(found, create_mask(one, BATCH, None, 5, 7, device="cpu"))


def test_a_mask_that_is_adjusted_or_sliced():
    mask = blocks_of(causal, 32)

    def adjusted(q, k, v):
        return flex_attention(q, k, v, block_mask=mask._adjust(LENGTH, LENGTH))

    def sliced(q, k, v):
        first = blocks_of(causal)[:, 1:2]
        first.mask_mod = causal
        return flex_attention(q, k, v, block_mask=first)

    check(adjusted, tensors())
    check(sliced, tensors())


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_blocks_that_are_not_listed_are_skipped(backend):
    """As by torch.compile; eager asks the mask function alone, which sees all here."""
    listed = torch.tensor([[1, 0, 0, 1], [0, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.int32)
    which = listed.argsort(dim=-1, descending=True, stable=True).int()
    mask = BlockMask.from_kv_blocks(listed.sum(-1, dtype=torch.int32)[None, None], which[None, None], BLOCK_SIZE=4)
    seen = listed.bool().repeat_interleave(4, 0).repeat_interleave(4, 1)

    def written_out(q, k, v):
        scores = (q @ k.transpose(-1, -2) / WIDTH ** 0.5).masked_fill(~seen, float("-inf"))
        return torch._safe_softmax(scores, -1) @ v

    given = tensors()
    jitted = jitpy.jit(lambda q, k, v: flex_attention(q, k, v, block_mask=mask), backend=backend, fullgraph=True)
    torch.testing.assert_close(values_of(jitted, given, [], True), values_of(written_out, given, [], True))


def test_grouped_heads_with_everything():
    bias, captured = relative()
    mask = blocks_of(causal)
    check(lambda q, k, v: flex_attention(q, k, v, bias, mask, scale=0.3, enable_gqa=True), tensors(2), *captured)


def test_keys_of_another_length_and_values_of_another_width():
    query, key, _ = tensors(keys=9)
    check(lambda q, k, v: flex_attention(q, k, v, score_mod=soft_cap), [query, key, torch.randn(BATCH, HEADS, 9, 3)])


def test_one_batch_of_keys():
    query, key, value = tensors()
    mask = blocks_of(causal)
    check(lambda q, k, v: flex_attention(q, k, v, block_mask=mask), [query, key[:1], value[:1]])


def test_statistics_and_their_gradients():
    check(lambda q, k, v: flex_attention(q, k, v, score_mod=soft_cap, return_lse=True), tensors())
    check(lambda q, k, v: flex_attention(q, k, v, return_aux=AuxRequest(lse=True)), tensors())
    check(lambda q, k, v: flex_attention(q, k, v, return_lse=True)[1], tensors())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(dtype):
    bias, captured = relative()
    tolerance = {} if dtype is torch.float64 else {"atol": 2e-2, "rtol": 2e-2}
    check(lambda q, k, v: flex_attention(q, k, v, score_mod=bias, return_lse=True), tensors(dtype=dtype), *captured,
          **tolerance)


def test_autocast():
    def fn(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            return flex_attention(q, k, v, score_mod=soft_cap)

    check(fn, tensors(), atol=2e-2, rtol=2e-2)


def test_layouts_are_those_of_the_query():
    def fn(q, k, v):
        return flex_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), score_mod=soft_cap)

    check(fn, tensors())


def test_without_gradients():
    mod, _ = alibi()
    check(lambda q, k, v: flex_attention(q, k, v, score_mod=mod), tensors(), backward=False)


def test_called_directly():
    check(flex_attention, tensors())


def test_options_of_kernels():
    check(lambda q, k, v: flex_attention(q, k, v, kernel_options={"BLOCK_M": 32, "PRESCALE_QK": True}), tensors())


LENGTHS = (16, 24, 32, 17, 48, 20)


@pytest.mark.parametrize("backward", [False, True])
def test_lengths_compile_twice(backward):
    mod, _ = alibi()

    def inside(q, k, v):
        mask = create_block_mask(causal, None, None, q.size(2), k.size(2), device="cpu", BLOCK_SIZE=16)
        return flex_attention(q, k, v, score_mod=mod, block_mask=mask)

    def outside(q, k, v, mask):
        return flex_attention(q, k, v, score_mod=mod, block_mask=mask)

    for fn in (inside, outside):
        jitted = jitpy.jit(fn, fullgraph=True)
        before = variants()
        for length in LENGTHS:
            torch._dynamo.reset()
            given = tensors(length=length)
            if fn is outside:
                given.append(blocks_of(causal, length))
            torch.testing.assert_close(values_of(jitted, given, [], backward), values_of(fn, given, [], backward),
                                       atol=1e-4, rtol=1e-4)
        assert variants() - before == 2


def test_numbers_that_change_compile_twice():
    def fn(q, k, v, size, cap, scale):
        def near(b, h, q, k):
            return (q - k).abs() <= size

        def capped(score, b, h, q, k):
            return torch.tanh(score / cap) * cap

        mask = create_block_mask(near, None, None, q.size(2), k.size(2), device="cpu")
        return flex_attention(q, k, v, capped, mask, scale=scale)

    jitted = jitpy.jit(fn, fullgraph=True)
    before = variants()
    for number in range(2, 8):
        torch._dynamo.reset()
        given = [*tensors(dtype=torch.float64), number, number + 0.5, number / 10]
        torch.testing.assert_close(values_of(jitted, given, [], True), values_of(fn, given, [], True))
    assert variants() - before == 2


def test_functions_made_at_each_call_compile_once():
    def fn(q, k, v, shift):
        def mod(score, b, h, q, k):
            return score + shift[h]

        return flex_attention(q, k, v, score_mod=mod)

    jitted = jitpy.jit(fn, fullgraph=True)
    before = variants()
    for _ in range(3):
        given = [*tensors(), torch.randn(HEADS)]
        torch.testing.assert_close(values_of(jitted, given, [], True), values_of(fn, given, [], True),
                                   atol=1e-4, rtol=1e-4)
    assert variants() - before == 1


def test_captured_tensors_are_read_at_each_call():
    shift = torch.zeros(HEADS)

    def mod(score, b, h, q, k):
        return score * (shift[h] + 1)

    jitted = jitpy.jit(lambda q, k, v: flex_attention(q, k, v, score_mod=mod), fullgraph=True)
    given = tensors()
    for _ in range(2):
        torch.testing.assert_close(jitted(*given), flex_attention(*given, score_mod=mod))
        shift.add_(1)


def test_nothing_warns_that_it_is_not_compiled():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jitpy.jit(lambda q, k, v: flex_attention(q, k, v, score_mod=soft_cap), fullgraph=True)(*tensors())


def test_second_derivatives_which_eager_refuses():
    def squared(attention):
        def fn(q, k, v):
            (grad,) = torch.autograd.grad(attention(q, k, v).square().sum(), q, create_graph=True)
            return grad.square().sum()
        return fn

    def written_out(q, k, v):
        return (q @ k.transpose(-1, -2) / WIDTH ** 0.5).softmax(-1) @ v

    given = tensors(dtype=torch.float64)
    expected = values_of(squared(written_out), given, [], True)
    torch.testing.assert_close(values_of(jitpy.jit(squared(flex_attention)), given, [], True), expected)
    torch.testing.assert_close(values_of(squared(jitpy.jit(flex_attention)), given, [], True), expected)
