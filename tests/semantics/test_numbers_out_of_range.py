"""Numbers that torch refuses, or that a dtype does not hold, given to operations on tensors: known when the function is
compiled, or only later, when they have begun to change.

Kernels are compiled for one dtype in three by default, by a hash; for all with JITPY_TEST_ALL=1.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy

ALL = os.environ.get("JITPY_TEST_ALL") == "1"


def _set_item(t: torch.Tensor, n: Any) -> torch.Tensor:
    t = t.clone()
    t[0] = n
    return t


_OPS: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "add": lambda t, n: t + n, "rsub": lambda t, n: n - t, "mul": lambda t, n: t * n, "div": lambda t, n: t / n,
    "compare": lambda t, n: t > n, "remainder": lambda t, n: t % n, "clamp": lambda t, n: t.clamp(n),
    "full": lambda t, n: torch.full((2,), n), "full_like": torch.full_like,
    "fill": lambda t, n: t.clone().fill_(n), "masked_fill": lambda t, n: t.masked_fill(t > 0, n),
    "where": lambda t, n: torch.where(t > 0, n, t), "alpha": lambda t, n: torch.add(t, t, alpha=n),
    "item": _set_item, "computed": lambda t, n: t * (n + 1),
}
_INTS = (3, 5, 300, 70000, 1 << 31, (1 << 63) - 1, 1 << 63, 1 << 64, -(1 << 63), -(1 << 63) - 1, -(1 << 70), 7)
_FLOATS = (2.5, 3.5, 300.0, 1e6, -1e300, float("inf"), float("nan"), 4.0)


def _answer(fn: Callable[..., torch.Tensor], *args: Any) -> tuple[Any, ...]:
    try:
        result = fn(*args)
    except (RuntimeError, OverflowError, TypeError, ValueError) as error:
        return type(error), str(error).partition("\n")[0]
    return result.dtype, [repr(value) for value in result.tolist()]


@pytest.mark.parametrize("op", _OPS)
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_number(op: str, backend: str) -> None:
    function = _OPS[op]
    # torch 2.11 leaves a NaN bound out of account, later ones do not
    floats = tuple(n for n in _FLOATS if op != "clamp" or n == n)
    dtypes = (torch.float32, torch.int64, torch.float16)
    for dtype in dtypes if ALL or backend == "eager" else (dtypes[zlib.crc32(op.encode()) % 3],):
        t = torch.ones(3, dtype=dtype)
        # where floats that change are not looked at: they become float32
        wide = dtype is torch.float32 or op == "full" or dtype is torch.int64 and op in ("clamp", "where")
        small, large = _INTS[:6], (*_INTS[6:], *floats[3:])
        for changing in (small, () if wide else floats, *((*small[:2], n) for n in large[:6])):
            jitted = jitpy.jit(function, backend=backend)
            for n in changing:
                assert _answer(jitted, t, n) == _answer(function, t, n), (dtype, n)
        for n in large:
            assert _answer(jitpy.jit(function, backend=backend), t, n) == _answer(function, t, n), (dtype, n)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("op", _OPS)
def test_element_of_a_uint64_tensor(op: str, backend: str) -> None:
    function = _OPS[op]

    def fn(t: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return function(t, u[0].item())

    for dtype in (torch.float32, torch.int64):
        jitted, t = jitpy.jit(fn, backend=backend), torch.ones(3, dtype=dtype)
        for n in (3, (1 << 64) - 1, 5, 1 << 63):
            u = torch.tensor([n], dtype=torch.uint64)
            assert _answer(jitted, t, u) == _answer(fn, t, u), (dtype, n)


_VAST = 10 ** 5000  # Python makes no text of it


def _slice_to(x: torch.Tensor, n: int) -> Any:
    return x[:_VAST], x[-_VAST:], x[n - _VAST:]


_VAST_PROGRAMS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "less": lambda x, n: x * 2 if n < _VAST and x.shape[0] < _VAST else x,
    "equal": lambda x, n: x * 2 if n == _VAST or n != -_VAST or n >= _VAST or n > _VAST else x,
    "from the left": lambda x, n: x * 2 if n > -_VAST < x.shape[0] else x,
    "sum": lambda x, n: (x * 2, n + _VAST - _VAST, n * _VAST // _VAST, n % _VAST, _VAST % n),
    "largest": lambda x, n: x + min(n, _VAST, x.shape[0]) - max(n, -_VAST),
    "computed": lambda x, n: (x * 2, x.sum().long().item() < _VAST, x.sum().item() < _VAST),
    "slice": _slice_to,
    "float": lambda x, n: x * (n / _VAST),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", _VAST_PROGRAMS)
def test_numbers_of_thousands_of_digits(name: str, dynamic: bool | None) -> None:
    fn = _VAST_PROGRAMS[name]
    compiled = jitpy.jit(fn, backend="eager", dynamic=dynamic)
    for n in (3, 4, 5):
        torch.testing.assert_close(compiled(torch.ones(n), n), fn(torch.ones(n), n))


_MADE: dict[str, Callable[..., Any]] = {
    "empty": lambda x, n: torch.empty(n, 2),
    "empty_strided": lambda x, n: torch.empty_strided((n, 2), (2, 1)),
    "zeros": lambda x, n: torch.zeros(n),
    "full": lambda x, n: torch.full((n,), 1.0),
    "eye": lambda x, n: torch.eye(n),
    "new_empty": lambda x, n: x.new_empty((n, 2)),
    "new_full": lambda x, n: x.new_full((n, 2), 1.0),
    "repeat": lambda x, n: x.repeat(n),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", _MADE)
def test_sizes_that_become_negative(name: str, dynamic: bool | None) -> None:
    """Also where only the size is asked for, so that nothing is made."""
    make = _MADE[name]
    compiled = jitpy.jit(lambda x, n: make(x, n).shape, dynamic=dynamic)
    for n in (2, 3, 4, -1, 0, 5, -2):
        if n >= 0:
            assert compiled(torch.ones(3), n) == make(torch.ones(3), n).shape
        else:
            with pytest.raises(RuntimeError):
                compiled(torch.ones(3), n)
