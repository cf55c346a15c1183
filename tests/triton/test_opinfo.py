"""torch's own float32 samples of the operators that become Triton kernels, in the interpreter against eager.

A part of them by default; all of them with JITPY_TEST_ALL=1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.opinfo.core import OpInfo

import jitpy
from jitpy import config
from tests.ops.test_opinfo import OPS, check, label, run, sample_of

pytest.importorskip("triton")
#: Of every so many operators one is tested by default.
SHARE = 1 if os.environ.get("JITPY_TEST_ALL") else 9
LARGEST = 3000


@pytest.fixture(autouse=True)
def _interpreted() -> Iterator[None]:
    with config.patch(triton_on_cpu=True):
        yield


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", OPS[::SHARE], ids=label)
def test_like_eager(op: OpInfo) -> None:
    if torch.float32 not in op.supported_dtypes("cpu"):
        pytest.skip("no float32")
    sample = sample_of(op, torch.float32, False)
    if sample is None or isinstance(sample.input, torch.Tensor) and sample.input.numel() > LARGEST:
        pytest.skip("no small sample of strided tensors")
    try:
        expected, _ = run(op.op, sample, False)
    except (RuntimeError, NotImplementedError, ImportError) as error:
        pytest.skip(f"eager refuses: {type(error).__name__}")
    jitpy.reset()

    def called(first: Any, args: Any, kwargs: Any) -> Any:
        return op.op(first, *args, **kwargs)

    compiled = jitpy.jit(called)
    with torch.no_grad():
        found, _ = run(lambda first, *args, **kwargs: compiled(first, args, kwargs), sample, False)
    check(found, expected, torch.float32)
