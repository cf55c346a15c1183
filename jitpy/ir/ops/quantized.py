"""Operators on packed weights of `torch.ao`: the shape rules, which torch has none of."""

from __future__ import annotations

from typing import Any

import torch

from ..op import NotCovered
from ..sizes import SizeEnv
from ..spec import TensorSpec, contiguous_spec
from .table import define


def _linear(env: SizeEnv, x: TensorSpec, packed: Any, *options: Any) -> TensorSpec:
    """A product with a packed weight, of which the object itself tells the size."""
    weight = packed.unpack()[0] if isinstance(packed, torch._C.ScriptObject) else None  # type: ignore[attr-defined]
    if weight is None or x.ndim < 1 or x.dtype is not torch.float32 or x.device.type != "cpu" or \
            not env.equal(x.shape[-1], weight.shape[1], "a product with a packed weight"):
        raise NotCovered("a product with a packed weight")
    return contiguous_spec(torch.float32, (*x.shape[:-1], weight.shape[0]), x.device)


define("quantized.linear_dynamic.default", "quantized.linear_relu_dynamic.default",
       "quantized.linear_dynamic_fp16.default", "quantized.linear_relu_dynamic_fp16.default", infer=_linear)
