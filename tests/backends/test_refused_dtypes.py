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


HANDLED: dict[str, tuple[Callable[[torch.Tensor], object], torch.dtype]] = {
    "add_unsigned": (lambda x: x + x, torch.uint16),
    "compare_unsigned": (lambda x: x > 1, torch.uint64),
    "flip_unsigned": (lambda x: x.flip(0), torch.uint16),
    "largest_unsigned": (lambda x: x.amax((0, 1)), torch.uint16),
    "add_float8": (lambda x: x + x, torch.float8_e4m3fn),
    "sum_along_an_axis": (lambda x: x.sum(0), torch.float8_e5m2),
    "mean_in_float8": (lambda x: x.float().mean(dtype=x.dtype), torch.float8_e4m3fn),
    "softmax_in_float8": (lambda x: torch.softmax(x.float(), 0, dtype=x.dtype), torch.float8_e4m3fn),
    "drawn_in_place": (lambda x: x.clone().random_(), torch.uint16),
    "drawn_complex": (lambda x: x.clone().random_(3), torch.complex64),
    "dropped": (lambda x: F.dropout(x, 0.5), torch.complex64),
    "normal_integers": (lambda x: torch.randn(2, dtype=x.dtype), torch.int64),
    "uniform_truths": (lambda x: torch.rand_like(x.float(), dtype=x.dtype), torch.bool),
    "permutation": (lambda x: torch.randperm(1 << 40, dtype=x.dtype), torch.uint16),
    "identity": (lambda x: torch.eye(3, dtype=x.dtype), torch.uint32),
    "range": (lambda x: torch.arange(5000, dtype=x.dtype), torch.bool),
    "running_sum": (lambda x: x.long().cumsum(0, dtype=x.dtype), torch.bool),
    "steps": (lambda x: torch.linspace(0, 1, 3, dtype=x.dtype), torch.uint16),
    "the_same_memory": (lambda x: torch.equal(x, x), torch.float8_e4m3fn),
    "equal_memory": (lambda x: torch.equal(x, x.clone()), torch.float8_e4m3fn),
}


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", HANDLED)
def test_a_handler_sees_what_a_kernel_refuses(name: str, backend: str) -> None:
    call, dtype = HANDLED[name]

    def fn(x: torch.Tensor, done: list[int]) -> object:
        done.append(len(done))
        try:
            found = call(x)
        except (RuntimeError, NotImplementedError) as error:
            return type(error), str(error)
        return found

    x = torch.ones(4, 6).to(dtype)
    jitted = jitpy.jit(fn, backend=backend)
    wanted, found = list[int](), list[int]()
    for _ in range(2):
        state = torch.get_rng_state()
        expected = fn(x, wanted)
        drawn = torch.get_rng_state()
        torch.set_rng_state(state)
        assert repr(jitted(x, found)) == repr(expected)
        assert wanted == found
        assert torch.equal(torch.get_rng_state(), drawn)
