"""torch's own samples of each operator through `jitpy.jit`, against eager: values, and gradients where that is cheap.

One sample in float32 for each operator and variant, and for each third operator one in an integer and one in a 16-bit
type. The choice depends only on the operator's place in the list, so that every run tests the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

import jitpy

#: Results that eager does not repeat either, or that are too large to compare here.
RANDOM = {
    "bernoulli", "multinomial", "normal", "rand_like", "randint", "randint_like", "randn", "randn_like",
    "uniform", "cauchy", "exponential", "geometric", "log_normal", "nn.functional.rrelu", "empty",
    "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted",
    "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d", "pca_lowrank",
    "svd_lowrank", "linalg.eig", "linalg.eigvals",
}
LARGEST = 20_000


def label(op: OpInfo) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def usable(op: OpInfo) -> bool:
    return op.name not in RANDOM and not any(part in op.name for part in ("dropout", "jiterator", "_refs"))


OPS = [op for op in op_db if usable(op)]


def dtypes_of(number: int, op: OpInfo) -> Iterator[torch.dtype]:
    supported = op.supported_dtypes("cpu")
    if torch.float32 in supported:
        yield torch.float32
    if number % 3 == 0:
        for choice in ((torch.int64, torch.int32), (torch.bfloat16, torch.float16)):
            found = [dtype for dtype in choice if dtype in supported]
            yield from found[:1]


def sample_of(op: OpInfo, dtype: torch.dtype, gradients: bool) -> SampleInput | None:
    """The first sample of some content: not empty, not huge."""
    torch.manual_seed(0)
    fallback = None
    for position, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=gradients)):
        tensors = tensors_in((sample.input, sample.args, sample.kwargs))
        sizes = [t.numel() for t in tensors]
        if not tensors or max(sizes) > LARGEST or any(t.layout is not torch.strided for t in tensors):
            continue
        fallback = fallback or sample
        if min(sizes) > 0 and max(t.dim() for t in tensors) > 0:
            return sample
        if position > 20:
            break
    return fallback


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


def copied(value: Any) -> Any:
    """The argument again, with tensors of its own (some operators write into theirs)."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone(memory_format=torch.preserve_format).requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(copied(item) for item in value)
    return value


CASES = [
    pytest.param(op, dtype, id=f"{label(op)}-{str(dtype).removeprefix('torch.')}")
    for number, op in enumerate(OPS)
    for dtype in dtypes_of(number, op)
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_like_eager(op: OpInfo, dtype: torch.dtype) -> None:
    gradients = dtype is torch.float32 and op.supports_autograd
    sample = sample_of(op, dtype, gradients)
    if sample is None:
        pytest.skip("no sample of strided tensors")
    try:
        expected, wanted = run(op.op, sample, gradients)
    except (RuntimeError, NotImplementedError, ImportError) as error:
        pytest.skip(f"eager refuses: {type(error).__name__}")

    jitpy.reset()

    def called(first: Any, args: Any, kwargs: Any) -> Any:
        return op.op(first, *args, **kwargs)

    compiled = jitpy.jit(called)
    for _ in range(2):
        found, grads = run(lambda first, *args, **kwargs: compiled(first, args, kwargs), sample, gradients)
        check(found, expected, dtype)
        check(grads, wanted, dtype)


def run(op: Any, sample: SampleInput, gradients: bool) -> tuple[Any, list[torch.Tensor]]:
    """The result, and the gradients of its sum with respect to the inputs."""
    first, args, kwargs = copied(sample.input), copied(sample.args), copied(sample.kwargs)
    torch.manual_seed(1)
    result = op(first, *args, **kwargs)
    if not gradients:
        return result, []
    outputs = [t for t in tensors_in(result) if t.requires_grad and t.dtype in (torch.float32, torch.complex64)]
    inputs = [t for t in tensors_in((first, args, kwargs)) if t.requires_grad]
    if not outputs or not inputs:
        return result, []
    total = sum((t.abs() if t.is_complex() else t).sum() for t in outputs)
    found = torch.autograd.grad(total, inputs, allow_unused=True)  # type: ignore[arg-type]
    return result, [t for t in found if t is not None]


def check(found: Any, expected: Any, dtype: torch.dtype) -> None:
    """Same structure, dtypes, shapes, and values within what reordered rounding explains."""
    assert type(found) is type(expected) or (isinstance(found, tuple) and isinstance(expected, tuple))
    a, b = tensors_in(found), tensors_in(expected)
    assert len(a) == len(b)
    loose = dtype in (torch.float16, torch.bfloat16)
    for left, right in zip(a, b, strict=True):
        assert left.dtype is right.dtype and left.shape == right.shape and left.requires_grad == right.requires_grad
        tolerance = {"rtol": 2e-2, "atol": 2e-2} if loose else {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(left, right, equal_nan=True, check_stride=False, **tolerance)
    if not a:
        assert found == expected
