"""Score and mask functions that cannot be captured: one break with their name and line, and eager's result or error."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import jitpy

TABLE = torch.randn(2, 16)
SEEN: list[int] = []
COUNT = torch.zeros(2)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def tensors() -> list[torch.Tensor]:
    return [torch.randn(2, 2, 16, 8) for _ in range(3)]


def of_rows(score, b, h, q, k):
    return score + TABLE[b].sum()


def of_bits(score, b, h, q, k):
    return (score.view(torch.int32) // 65536 * 65536).view(torch.float32)


def with_effect(score, b, h, q, k):
    SEEN.append(1)
    return score


def with_write(score, b, h, q, k):
    COUNT.add_(1)
    return score


def with_branch(score, b, h, q, k):
    if q > 3:
        return score
    return score * 2


def halved(score, b, h, q, k):
    return score / 2


@pytest.mark.parametrize("mod", [of_rows, of_bits, with_effect, with_branch])
def test_the_report_names_function_and_line(mod):
    def fn(q, k, v, is_captured):
        return None if is_captured else flex_attention(q, k, v, score_mod=mod)

    given = tensors()
    try:
        expected: Any = fn(*given, False)
    except Exception as error:
        expected = type(error)
    if isinstance(expected, type):
        with pytest.raises(expected):
            jitpy.jit(fn)(*given, False)
    else:
        torch.testing.assert_close(jitpy.jit(fn)(*given, False), expected)
        report = str(jitpy.explain(fn)(*given, False))
        assert "1 graph break," in report and f"score_mod {mod.__name__}()" in report and "test_refusals.py:" in report
        assert f":{mod.__code__.co_firstlineno + 1} in {mod.__name__}" in report


def test_functions_that_write():
    """They write as often as in eager."""
    def writing(b, h, q, k):
        COUNT.add_(1)
        return q >= k

    def by_mask(q, k, v):
        return flex_attention(q, k, v, block_mask=create_block_mask(writing, None, None, 16, 16, device="cpu"))

    def by_score(q, k, v):
        return flex_attention(q, k, v, score_mod=with_write)

    given = tensors()
    for fn, name in ((by_mask, "writing()"), (by_score, "score_mod with_write()")):
        counts = [COUNT.clone()]
        for call in (fn, jitpy.jit(fn)):
            found = call(*given)
            counts.append(COUNT.clone())
        torch.testing.assert_close(found, fn(*given))
        assert torch.equal(counts[1] - counts[0], counts[2] - counts[1])
        report = str(jitpy.explain(fn)(*given))
        assert f"{name}, test_refusals.py:" in report and "writes to a tensor from outside" in report


def test_another_function_is_captured_afterwards():
    def fn(q, k, v, mod):
        return flex_attention(q, k, v, score_mod=mod) + 1

    for jitted in (jitpy.jit(fn), jitpy.jit(flex_attention)):
        given = tensors()
        plain = getattr(jitted, "__wrapped__", fn)
        for mod in (of_rows, halved, of_rows):
            torch.testing.assert_close(jitted(*given, mod), plain(*given, mod))


def test_a_mask_function_that_is_refused():
    def by_sum(b, h, q, k):
        return TABLE[b].sum() > q - k

    def fn(q, k, v):
        mask = create_block_mask(by_sum, 2, None, 16, 16, device="cpu")
        return flex_attention(q, k, v, block_mask=mask)

    given = tensors()
    torch.testing.assert_close(jitpy.jit(fn)(*given), fn(*given))
    assert "mask_mod" in str(jitpy.explain(fn)(*given))


def bad_calls() -> dict[str, Any]:
    q, k, v = tensors()
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 16, 16, device="cpu")
    return {
        "gradients on the CPU": lambda: flex_attention(q.clone().requires_grad_(), k, v),
        "heads": lambda: flex_attention(q, k[:, :1], v[:, :1]),
        "features": lambda: flex_attention(q, k[..., :4], v),
        "length of the mask": lambda: flex_attention(q[:, :, :8], k, v, block_mask=mask),
        "axes": lambda: flex_attention(q[0], k[0], v[0]),
        "both kinds of statistics": lambda: flex_attention(q, k, v, return_lse=True, return_aux=(True, False)),
        "maximum on the CPU": lambda: flex_attention(q, k, v, return_aux=torch.nn.attention.flex_attention.AuxRequest(
            max_scores=True)),
        "sliced": lambda: flex_attention(q, k, v, block_mask=mask[:, :, :1]),
        "score mod as a mask": lambda: create_block_mask(halved, None, None, 16, 16, device="cpu"),
    }


@pytest.mark.parametrize("name", bad_calls())
def test_errors_are_eagers(name):
    call = bad_calls()[name]
    with pytest.raises(Exception) as expected:
        call()
    with pytest.raises(type(expected.value)) as found:
        jitpy.jit(call)()
    assert str(found.value) == str(expected.value)
