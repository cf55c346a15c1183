"""Pointwise ops and their gradients where numbers end: zeros of both signs, infinities, NaN, limits of activations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, OpInfo, UnaryUfuncInfo

import jitpy

inf, nan = float("inf"), float("nan")
#: enough of them that eager's vectorised loops see each
VALUES = torch.tensor([
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 3.0, -3.0, 6.0, -6.0, 1e-20, -1e-20, 1e20, -1e20, inf, -inf, nan, 2.0, -2.0, 20.0,
    -20.0, 100.0, -100.0, 0.25, 1.5, 2.5, -2.5, 7.0, 1e5, -1e5, 1e-5, 4.0])

ACTIVATIONS = ("celu", "elu", "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "logsigmoid",
               "mish", "relu", "relu6", "selu", "silu", "softplus", "softshrink", "softsign", "tanhshrink", "threshold")

#: What not to ask of these ops, where eager's vectorised loops are not like its plain ones or lose what is exact.
SKIPPED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **dict.fromkeys(("nn.functional.celu", "nn.functional.elu", "nn.functional.selu"), torch.isnan),
    "nn.functional.gelu": torch.isinf,
    # remainders of quotients beyond the range of floats
    **dict.fromkeys(("fmod", "remainder", "__rmod__"), lambda v: (v.abs() == 1e20) | (v.abs() == 1e-20)),
}


def _calls(op: OpInfo) -> Iterator[tuple[Callable[..., Any], tuple[torch.Tensor, ...]]]:
    values = VALUES[~SKIPPED[op.name](VALUES)] if op.name in SKIPPED else VALUES
    if isinstance(op, BinaryUfuncInfo):
        a, b = torch.meshgrid(values, values, indexing="ij")
        yield op.op, (a.flatten(), b.flatten())
        return
    seen = set()
    torch.manual_seed(0)
    for sample in itertools.islice(op.sample_inputs("cpu", torch.float32), 6):
        key = repr((sample.args, sample.kwargs))
        if key not in seen and not any(isinstance(a, torch.Tensor) for a in (*sample.args, *sample.kwargs.values())):
            seen.add(key)
            yield lambda x, sample=sample: op.op(x, *sample.args, **sample.kwargs), (values,)


def _observe(fn: Callable[..., Any], args: tuple[torch.Tensor, ...], gradients: bool) -> list[Any]:
    leaves = [a.clone().requires_grad_(gradients) for a in args]
    found = fn(*leaves)
    results = [one for one in (found if isinstance(found, tuple) else (found,)) if isinstance(one, torch.Tensor)]
    with_history = [one for one in results if one.requires_grad]
    if with_history:
        torch.autograd.backward(with_history, [torch.ones_like(one) for one in with_history])
    return [*(one.detach() for one in results), *(leaf.grad for leaf in leaves)]


OPS = [op for op in op_db if torch.float32 in op.supported_dtypes("cpu") and not op.name.startswith("jiterator") and (
    isinstance(op, BinaryUfuncInfo) or isinstance(op, UnaryUfuncInfo) and op.ref is not None
    or op.name.removeprefix("nn.functional.") in ACTIVATIONS)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", [pytest.param(op, id=op.name + "." * bool(op.variant_test_name) + op.variant_test_name)
                                for op in OPS])
def test_like_eager(op: OpInfo) -> None:
    for fn, args in _calls(op):
        for gradients in (False, True) if op.supports_autograd else (False,):
            wanted = _observe(fn, args, gradients)
            jitpy.reset()
            found = _observe(jitpy.jit(fn), args, gradients)
            torch.testing.assert_close(found, wanted, rtol=2e-5, atol=1e-6, equal_nan=True)


LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "l1": lambda x, y: F.l1_loss(x, y, reduction="none"),
    "mse": lambda x, y: F.mse_loss(x, y, reduction="sum"),
    "smooth_l1": lambda x, y: F.smooth_l1_loss(x, y, reduction="none"),
    "smooth_l1 with beta": lambda x, y: F.smooth_l1_loss(x, y, beta=0.5, reduction="none"),
    "smooth_l1 without beta": lambda x, y: F.smooth_l1_loss(x, y, beta=0.0, reduction="none"),
    "huber": lambda x, y: F.huber_loss(x, y, reduction="none"),
    "huber with delta": lambda x, y: F.huber_loss(x, y, delta=0.5, reduction="none"),
    "logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"),
    "kl_div": lambda x, y: F.kl_div(x, y, reduction="none"),
    "poisson": lambda x, y: F.poisson_nll_loss(x, y, log_input=False, full=True, reduction="none"),
    "hinge": lambda x, y: F.hinge_embedding_loss(x - y, torch.ones_like(x), reduction="none"),
    "cross_entropy": lambda x, y: F.cross_entropy(torch.stack([x, y], 1), torch.zeros(len(x)).long(), reduction="none"),
    "max": lambda x, y: torch.cat([x, y]).max(),
    "min of numbers": lambda x, y: torch.cat([x.nan_to_num(), y.nan_to_num()]).min(),
    "amax": lambda x, y: torch.stack([x, y, x], 1).amax(1),
    "nansum": lambda x, y: torch.stack([x, y], 1).nansum(1),
    "nanmean": lambda x, y: torch.stack([x, y], 1).nanmean(1),
    "norm": lambda x, y: torch.stack([x, y], 1).norm(dim=1),
    "norm of greatest": lambda x, y: torch.stack([x, y], 1).norm(inf, dim=1),
    "std": lambda x, y: torch.stack([x, y, x], 1).std(1),
    "logsumexp": lambda x, y: torch.stack([x, y], 1).logsumexp(1),
    "softmax": lambda x, y: torch.stack([x, y], 1).softmax(1),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_reductions(name: str) -> None:
    values = VALUES[(VALUES.abs() < 1e20) | ~VALUES.isfinite()]
    args = tuple(side.flatten() for side in torch.meshgrid(values, values, indexing="ij"))
    for expected, found in zip(_observe(LOSSES[name], args, True), _observe(jitpy.jit(LOSSES[name]), args, True),
                               strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 4, 40])
def test_functions_of_functions_keep_nan(count: int, dtype: torch.dtype) -> None:
    """Compilers know that sin(atan(x)) is a root, which loses a NaN."""
    x = torch.tensor([nan, -1.0, 2.0, inf, 0.5], dtype=dtype).repeat(8)[:count]

    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        angle, area = torch.atan(x), torch.atanh(x)
        return [angle.sin(), angle.cos(), angle.tan(), area.sinh(), area.cosh(), x.exp().log(), x.log().exp(),
                x.exp().sqrt(), x.neg().abs().cos(), (x * x).sqrt(), x.sin() / x.cos(), x.log2().exp2()]

    torch.testing.assert_close(jitpy.jit(fn)(x), fn(x), equal_nan=True)


@pytest.mark.parametrize("dynamic", [None, True])
def test_gradients_at_places_without_one(dynamic: bool | None) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(x, -1).sum() + torch.atan2(y[0], y[1]).sum()

    x = torch.tensor([[-inf, -inf, -inf], [0.0, inf, 1.0], [0.0, -inf, 2.0]])
    y = torch.tensor([[0.0, -0.0, 0.0, 1.0], [0.0, 0.0, -0.0, 0.0]])
    found = [_observe(one, (x, y), True)[1:] for one in (fn, jitpy.jit(fn, dynamic=dynamic))]
    torch.testing.assert_close(found[1], found[0], equal_nan=True)


def test_an_alpha_of_zero_raises_as_in_eager() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.celu(x, 0.0)

    for gradients in (False, True):
        with pytest.raises(RuntimeError, match="alpha cannot be 0"):
            jitpy.jit(fn)(torch.ones(3, requires_grad=gradients))


def test_a_step_that_is_a_symbolic_float() -> None:
    def fn(step: float) -> torch.Tensor:
        return torch.arange(0, 1, step)

    jitted = jitpy.jit(fn, dynamic=True)
    for step in (0.1, 0.25, 0.3):
        torch.testing.assert_close(jitted(step), fn(step))
