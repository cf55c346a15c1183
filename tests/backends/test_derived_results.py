"""What is computed of results whose dtype, sizes or strides meta kernels tell otherwise than the CPU's kernels have
them: kernels read memory as the rule says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitpy

_F = torch.nn.functional
_ROWS, _COLUMNS = torch.rand(5, 5), torch.rand(5, 5).t()
_TABLE, _IDS, _OFFSETS = torch.randn(5, 3), torch.tensor([1, 2, 3, 4, 0, 0]), torch.tensor([0, 4])


def _bags(mode: int, with_end: bool = False) -> Callable[..., Any]:
    return lambda table, ids, offsets: torch.embedding_bag(table, ids, offsets, False, mode, False, None, with_end)


CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "losses of two dtypes": (
        lambda x, y: _F.huber_loss(x, y, reduction="none"), (_ROWS.half(), _ROWS.double() + 1)),
    "operands of two dtypes in two orders": (torch.special.xlog1py, (_ROWS.double(), _COLUMNS.int())),
    "zeta": (torch.special.zeta, (_ROWS.double() + 2, _COLUMNS.int() + 1)),
    "composed of other ops": (torch.ldexp, (torch.ones(10, 1, 5) > 0, torch.ones(5, 10).t() > 0)),
    "two orders": (
        lambda grad, mask: torch.ops.aten.native_dropout_backward(grad, mask, 2.0),
        (torch.rand(2, 3, 4, 5).transpose(1, 3), torch.ones(2, 5, 4, 3) > 0)),
    "normal": (torch.normal, (torch.zeros(1, 2, 3), torch.rand(2, 5, 3).half().transpose(0, 1))),
    "vectors of complex matrices": (
        lambda x: torch.linalg.svd(x, full_matrices=False)[1:], (torch.randn(2, 4, 3, dtype=torch.complex64),)),
    "svd": (lambda x: torch.svd(x)[1:], (torch.randn(4, 3, dtype=torch.complex64),)),
    **{f"bags {mode}": (_bags(mode), (_TABLE, _IDS, _OFFSETS)) for mode in range(3)},
    "bags with an end": (_bags(0, True), (_TABLE, _IDS, torch.tensor([0, 4, 6]))),
}


def _several(found: Any) -> tuple[Tensor, ...]:
    return (found,) if isinstance(found, Tensor) else tuple(found)


@pytest.mark.parametrize("dynamic", ["never", "always"])
@pytest.mark.parametrize("name", CALLS)
def test_like_eager(name: str, dynamic: str) -> None:
    call, args = CALLS[name]

    def fn(*args: Any) -> tuple[Tensor, ...]:
        made = _several(call(*args))
        return *made, *(part * 2 for part in made)

    torch.manual_seed(3)
    wanted = fn(*args)
    torch.manual_seed(3)
    with jitpy.config.patch(dynamic=dynamic):
        results = jitpy.jit(fn)(*args)
    for found, expected in zip(results, wanted, strict=True):
        assert (found.dtype, found.stride()) == (expected.dtype, expected.stride())
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("loss", [_F.mse_loss, _F.l1_loss, _F.smooth_l1_loss])
def test_losses_of_several_dtypes(loss: Callable[..., Tensor]) -> None:
    """The first operand's dtype is not always the result's: a loss of integers and floats was cut to integers."""
    x, y = torch.tensor([3.7, -1.2, 0.4]), torch.tensor([1.3, 2.6, 0.1])
    operands = [(x.int(), y), (x.double(), y), (x, y.double()), (x, y.long()), (x[0].int(), y[0])]
    integers = [(x.int(), y.int())] if loss is _F.l1_loss else []

    def fn() -> list[Tensor]:
        found = [loss(a, b, reduction=reduction) for a, b in operands for reduction in ("none", "sum", "mean")]
        return found + [loss(a, b, reduction=reduction) for a, b in integers for reduction in ("none", "sum")]

    for found, expected in zip(jitpy.jit(fn)(), fn(), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_gradient_that_eager_refuses_is_refused_in_the_backward_pass() -> None:
    x, y = torch.rand(5).half().requires_grad_(), torch.rand(5)
    found = jitpy.jit(lambda x, y: _F.huber_loss(x, y, reduction="none"))(x, y)
    assert torch.equal(found, _F.huber_loss(x, y, reduction="none")) and found.requires_grad
    with pytest.raises(RuntimeError, match="Found dtype Float but expected Half"):
        found.sum().backward()


def test_random_numbers_like_a_tensor_with_a_history_have_none() -> None:
    x = torch.ones(5, requires_grad=True)

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        like = torch.randint_like(x, 10)
        return like, like * x, torch.randint_like(x, 2, 10, dtype=torch.float64), torch.randint_like(x.detach(), 4)

    torch.manual_seed(3)
    wanted = fn(x)
    torch.manual_seed(3)
    for found, expected in zip(jitpy.jit(fn)(x), wanted, strict=True):
        assert (found.dtype, found.requires_grad) == (expected.dtype, expected.requires_grad)
        assert torch.equal(found, expected)
