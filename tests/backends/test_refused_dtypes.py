"""What eager's kernels refuse, compiled code refuses: kernels of our own would take it.

Dtypes, and numbers that say how something is computed.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import jitpy

CALLS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.dtype]] = {
    "argmax": (lambda x: torch.argmax(x, 1), torch.bool),
    "argmin": (lambda x: torch.argmin(x), torch.bool),
    "trunc": (lambda x: torch.trunc(x) | x, torch.bool),
    "floor": (lambda x: torch.floor(x), torch.bool),
    "glu": (lambda x: F.glu(x, -1), torch.bool),
    "smooth_l1": (lambda x: F.smooth_l1_loss(x, x + 1), torch.uint8),
    "smooth_l1_long": (lambda x: F.smooth_l1_loss(x, x + 1), torch.int64),
    "exp": (lambda x: x.exp() + 1, torch.int64),
    "sum": (lambda x: x.sum(0), torch.bool),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), torch.int64),
    "int_classes": (lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2, 5], dtype=torch.int32)), torch.float32),
    "smooth_l1_beta": (lambda x: F.smooth_l1_loss(x, x + 1, beta=-1.0), torch.float32),
    "softshrink": (lambda x: F.softshrink(x, -0.5), torch.float32),
    "softshrink_nan": (lambda x: F.softshrink(x, float("nan")), torch.float32),
    "roll_of_a_number": (lambda x: x.sum().roll(0, 0), torch.float32),
    "logsumexp_no_axes": (lambda x: x.logsumexp(()), torch.float32),
}


@pytest.mark.parametrize("name", CALLS)
def test_refused_alike(name: str) -> None:
    fn, dtype = CALLS[name]
    x = torch.ones(4, 6).to(dtype)

    def outcome(called: Callable[[torch.Tensor], torch.Tensor]) -> object:
        try:
            return called(x).tolist()
        except (RuntimeError, NotImplementedError, IndexError) as error:
            return type(error), str(error)

    jitted = jitpy.jit(fn)
    for _ in range(2):
        assert outcome(jitted) == outcome(fn)


def test_a_share_that_is_too_large_is_refused() -> None:
    def smoothed(x: torch.Tensor, share: float) -> torch.Tensor:
        return F.cross_entropy(x, torch.tensor([0, 1]), label_smoothing=share)

    x = torch.randn(2, 3, requires_grad=True)
    jitted = jitpy.jit(smoothed)
    for share in (0.1, 0.2, 0.3, 1.5, 0.4):
        if share > 1:
            with pytest.raises(RuntimeError, match="label_smoothing must be between"):
                jitted(x, share)
        else:
            torch.testing.assert_close(jitted(x, share), smoothed(x, share))
