"""The functions that jitpy must capture whole: equal to eager at several sizes, and fused as far as is settled."""

from __future__ import annotations

import pytest
import torch

import jitpy
from benchmarks.cases import CASES, Case, arguments, which_is_off


def ids(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_equal_to_eager(case: Case) -> None:
    compiled = jitpy.jit(case.fn, fullgraph=True)
    with torch.no_grad():
        for elements in (2**14, 2**16, 3 * 2**15, 2**14):
            args = arguments(case, elements)
            expected = case.fn(*args)
            for _ in range(2):
                found = compiled(*args)

                def told(text: str, args=args, found=found, expected=expected) -> str:
                    return f"{text}\n{which_is_off(case, args, found, expected)}"

                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, msg=told)


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_gradients(case: Case) -> None:
    """With inputs that require grad the result is differentiable, and its gradients are eager's.

    The sine of a sum near 1000 shows the sum's last bits, of which neither way of adding has the better ones.
    """
    compiled = jitpy.jit(case.fn, fullgraph=True)

    def run(fn: object) -> list[torch.Tensor]:
        args = [a.requires_grad_() if a.is_floating_point() else a for a in arguments(case, 2**14)]
        result = fn(*args)  # type: ignore[operator]
        parts = [result] if isinstance(result, torch.Tensor) else list(result)
        torch.stack([part.sin().sum() for part in parts]).sum().backward()
        return parts + [a.grad for a in args if a.grad is not None]

    for found, wanted in zip(run(compiled), run(case.fn), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=5e-4)


@pytest.mark.parametrize("case", [case for case in CASES if case.kernels is not None], ids=ids)
def test_kernel_count(case: Case) -> None:
    with torch.no_grad():
        report = jitpy.explain(case.fn)(*arguments(case, 2**16))
    assert report.graph_count == 1 and report.graph_break_count == 0
    assert len(report.kernels) == case.kernels


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("case", CASES, ids=ids)
def test_other_types(case: Case, dtype: torch.dtype) -> None:
    compiled = jitpy.jit(case.fn, fullgraph=True)
    tolerance = 3e-2 if dtype is torch.bfloat16 else 1e-9
    with torch.no_grad():
        args = arguments(case, 2**14, dtype)
        torch.testing.assert_close(compiled(*args), case.fn(*args), rtol=tolerance, atol=tolerance)
