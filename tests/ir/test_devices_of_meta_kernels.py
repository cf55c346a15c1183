"""Meta kernels that ask which device they stand for: torch's fake tensors say it, and so do those of jitpy."""

from __future__ import annotations

import pytest
import torch

from jitpy.ir import SizeEnv, TensorSpec, ops
from jitpy.ir.ops.derived import derive
from jitpy.ir.ops.fake_tensors import FakeTensor

INT4_PRODUCT = torch.ops.aten._weight_int4pack_mm.default


@pytest.mark.parametrize("device", ["cuda:0", "xpu:0"])
def test_products_of_packed_integers(device: str) -> None:
    def spec(dtype: torch.dtype, *shape: int) -> TensorSpec:
        like = torch.empty(shape, device="meta")
        return TensorSpec(dtype, shape, like.stride(), torch.device(device))

    packed = (64, 8) if device == "xpu:0" else (8, 1, 32, 4)
    given = spec(torch.bfloat16, 4, 128), spec(torch.int32, *packed), 32, spec(torch.bfloat16, 4, 64, 2)
    found = derive(ops.get(INT4_PRODUCT), SizeEnv(), given, {}).spec
    assert (found.shape, found.dtype, found.device) == ((4, 64), torch.bfloat16, torch.device(device))


def test_fake_tensors_of_the_capture() -> None:
    assert FakeTensor(torch.empty(2, device="meta"), torch.device("cuda:0")).meta.fake_device.type == "cuda"
