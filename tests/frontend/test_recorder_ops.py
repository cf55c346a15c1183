"""Every operator of torch's own samples, recorded and run against eager: results, layout, specs and gradients."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

from jitpy.frontend.capture.graph_builder import TracedTensor, Uncapturable
from tests.frontend.recording import Recording, call, find_proxies

#: Operators that eager cannot be compared with: uninitialised memory, other layouts, a size that depends on data.
_SKIPPED = (
    "empty",
    "new_empty",
    "to_sparse",
    "sparse.",
    "nn.functional.multi_head_attention_forward",
    "as_strided",
    "_refs",
    "ops.",
    "resize",
    "unique",
    "nonzero",
    "masked_select",
    "argwhere",
    "combinations",
    "linalg.lstsq",
    "cov",
    "corrcoef",
    "nn.functional.ctc_loss",
    "nn.functional.gaussian_nll_loss",
    "nn.functional.rrelu",
    "tensor_split",
    "narrow",
    "allclose",
    "item",
    "equal",
    "jiterator",
    "linalg.eig",
    "cauchy",
    "exponential",
    "geometric",
    "log_normal",
    "uniform",
    "normal",
)

#: Operators whose layout torch's own shape functions predict wrongly.
_LAYOUT = (
    "svd_lowrank",
    "pca_lowrank",
    "fft.",
    "linalg.",
    "native_batch_norm",
    "_native_batch_norm_legit",
    "svd",
    "_batch_norm",
)

OPERATORS = [op for op in op_db if torch.float32 in op.dtypes and not op.name.startswith(_SKIPPED)]


@pytest.mark.parametrize(
    "op", OPERATORS, ids=lambda op: op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
)
def test_operator(op: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in itertools.islice(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd), 2):
            check(op, sample)


def check(op: Any, sample: Any) -> None:
    leaves, structure = tree_flatten((sample.input, sample.args, sample.kwargs))
    inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def fn(*tensors: Any) -> Any:
        rest = iter(tensors)
        first, args, kwargs = tree_unflatten(
            [next(rest) if isinstance(v, torch.Tensor) else v for v in leaves], structure
        )
        proxies = find_proxies((first, args, kwargs))
        if proxies and type(op.op).__name__ in ("method_descriptor", "wrapper_descriptor"):
            return call(proxies[0].builder, op.op, (first, *args), kwargs)
        return op.op(first, *args, **kwargs)

    try:
        expected = run(fn, inputs)
    except NotImplementedError:
        return
    if not inputs:
        return
    try:
        recording = Recording(fn, *inputs)
    except Uncapturable as error:
        pytest.fail(f"not captured: {error}")
    found = run(recording, inputs)
    assert len(expected[0]) == len(found[0])
    for own, other in zip(found[0], expected[0], strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(own, other, equal_nan=True, rtol=1e-4, atol=1e-5, check_stride=True)
            assert own.requires_grad == other.requires_grad
        else:
            assert own == other
    for own, other in zip(found[1], expected[1], strict=True):
        assert (own is None) == (other is None)
        if own is not None:
            torch.testing.assert_close(own, other, equal_nan=True, rtol=1e-4, atol=1e-4)
    for payload, value in zip(recording.live, [v for v in found[0] if isinstance(v, torch.Tensor)], strict=False):
        if isinstance(payload, TracedTensor) and not op.name.startswith(_LAYOUT):
            spec = payload.spec
            assert (spec.dtype, spec.shape, spec.requires_grad) == (
                value.dtype,
                tuple(value.shape),
                value.requires_grad,
            )
            assert all(a == b or size <= 1 for a, b, size in zip(spec.stride, value.stride(), value.shape, strict=True))


def run(fn: Any, inputs: list[torch.Tensor]) -> tuple[list[Any], tuple[Any, ...]]:
    """The results, and the gradients of the inputs that require grad."""
    copies = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]
    torch.manual_seed(42)
    results = tree_flatten(fn(*copies))[0]
    outputs = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    wanted = [t for t in copies if t.requires_grad]
    if not outputs or not wanted:
        return results, ()
    torch.manual_seed(7)
    return results, torch.autograd.grad(outputs, wanted, [torch.randn_like(o) for o in outputs], allow_unused=True)
