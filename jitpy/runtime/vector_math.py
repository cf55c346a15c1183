"""MKL's vector functions, resolved before threads can meet in them.

torch computes `sin`, `exp`, `sqrt` and their like on the CPU by MKL's vector math. MKL chooses the kernel of each
function at its first call; where threads make that call together, one of them may get a kernel of low accuracy
(pytorch#188792). So each function is called once on one element, which one thread computes.
"""

from __future__ import annotations

import torch

#: The functions that torch's ATen/cpu/vml.h hands to MKL, for float32 and float64.
FUNCTIONS = ("acos", "asin", "atan", "cos", "erf", "erfc", "erfinv", "exp", "log", "log10", "log2", "sin", "sqrt",
             "tan", "tanh", "trunc")


def resolve() -> None:
    """Call each function once; it takes a millisecond in a new process."""
    if not torch.backends.mkl.is_available():
        return
    with torch.inference_mode(), torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        for dtype in (torch.float32, torch.float64):
            x = torch.full((1,), 0.5, dtype=dtype, device="cpu")
            for name in FUNCTIONS:
                getattr(torch, name)(x)
