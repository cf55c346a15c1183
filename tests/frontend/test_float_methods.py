"""Methods of floats that change from call to call, and sizes asked for by keyword, are captured whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy

X, Y = torch.arange(12.0).reshape(3, 4), torch.arange(20.0).reshape(5, 4)
FLOATS = [(X, f) for f in (0.5, 1.5, 2.0, -3.0, 3.25, 0.0, math.inf, math.nan, 1e300)]

CASES: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {
    "is_integer": (lambda x, f: x * 2 if f.is_integer() else x + 1, FLOATS),
    "is_integer of a class": (lambda x, f: x * 2 if float.is_integer(f) else x + 1, FLOATS),
    "is_integer of a quotient": (lambda x: x * 2 if (x.shape[0] / 2).is_integer() else x, [(X,), (Y,), (X[:2],)]),
    "conjugate": (lambda x, f: x * f.conjugate() + f.real + f.imag, FLOATS),
    "constants": (lambda x: (x * 2, (2.5).hex(), (0.75).as_integer_ratio(), (2.0).is_integer()), [(X,)]),
    "size": (lambda x: x * x.size(dim=0) + x.size(dim=-1), [(X,), (Y,)]),
    "stride": (lambda x: x * x.stride(dim=0), [(X,), (X.t(),)]),
}


@pytest.mark.parametrize("kind", CASES)
def test_like_eager(kind: str) -> None:
    fn, calls = CASES[kind]
    assert jitpy.explain(fn)(*calls[0]).graph_break_count == 0
    compiled = jitpy.jit(fn, fullgraph=True)
    for args in calls:
        expected, found = fn(*args), compiled(*args)
        if isinstance(expected, tuple):
            assert found[1:] == expected[1:]
            found, expected = found[0], expected[0]
        torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize(("fn", "error"), [
    (lambda x: x.size(dim=9), IndexError), (lambda x: x.size(wrong=0), TypeError),
    (lambda x: x.stride(dim=-3), IndexError),
    (lambda x: (x.shape[0] / 2).is_integer(1), TypeError),
])  # fmt: skip
def test_errors(fn: Callable[..., Any], error: type[Exception]) -> None:
    with pytest.raises(error) as expected:
        fn(X)
    for x in (X, Y):
        with pytest.raises(error) as found:
            jitpy.jit(fn)(x)
        assert str(found.value) == str(expected.value)
