"""Each function of numpy's that is captured, on every dtype and special values: exact types, values to rounding."""

from __future__ import annotations

import operator
import subprocess
import sys
import warnings

import numpy as np
import pytest

import jitpy
from jitpy.frontend.polyfills.arrays import FUNCTIONS, METHODS, UFUNCS
from jitpy.frontend.values import TORCH_DTYPES

FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, 1e-3, 700.0, -1e6, np.inf, -np.inf, np.nan]
INTEGERS = [0, 1, 2, 3, 100, 127]


def numbers(dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "f":
        with np.errstate(all="ignore"):
            return np.array(FLOATS, dtype=dtype)
    if dtype.kind == "c":
        return np.array([0, 1, 1 + 2j, -3.5, 2j], dtype=dtype)
    values = INTEGERS if dtype.kind == "u" else [*INTEGERS, -1, -7, -128]
    return np.array(values).astype(dtype)


def pairs(dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    values = numbers(dtype)
    return np.repeat(values, len(values)), np.tile(values, len(values))


#: which of two zeros is the larger one, neither numpy nor torch says; and running sums begin with a zero
UNSIGNED = {"cumsum", "maximum", "minimum", "fmax", "fmin", "sort", "clip", "max", "min"}


def same(expected: object, found: object, signed: bool = True) -> None:
    assert type(expected) is type(found)
    if isinstance(expected, (tuple, list)):
        for left, right in zip(expected, found, strict=True):
            same(left, right, signed)
        return
    assert expected.dtype is found.dtype and expected.shape == found.shape and expected.strides == found.strides
    rounding = {2: 4e-3, 4: 3e-6, 8: 1e-12}.get(expected.dtype.itemsize, 0) if expected.dtype.kind in "fc" else 0
    np.testing.assert_allclose(found, expected, rtol=rounding, atol=0)
    if signed and expected.dtype.kind == "f":
        numbered = ~np.isnan(expected)
        assert (np.signbit(expected) == np.signbit(found))[numbered].all()


def checked(function, *args: np.ndarray, name: str = "") -> None:
    jitpy.reset()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = function(*args)
        except (TypeError, ValueError):
            return
        compiled = jitpy.jit(function, backend="eager")
        same(expected, compiled(*args), name not in UNSIGNED)
        same(expected, compiled(*args), name not in UNSIGNED)


@pytest.mark.parametrize("name", sorted(UFUNCS))
def test_ufunc(name: str) -> None:
    ufunc = getattr(np, name)
    for dtype in TORCH_DTYPES:
        if name == "matmul":
            checked(lambda a, b: np.matmul(a, b), np.ones((2, 3), dtype), np.ones((3, 2), dtype))
        elif ufunc.nin == 1:
            checked(lambda a: ufunc(a), numbers(dtype))
        else:
            checked(lambda a, b: ufunc(a, b), *pairs(dtype), name=name)
            checked(lambda a: (ufunc(a, 2), ufunc(a, 2.5), ufunc(3, a), ufunc(a, True)), numbers(dtype), name=name)


def test_ufuncs_of_two_types() -> None:
    for first in TORCH_DTYPES:
        a = numbers(first)[:5]
        for second in TORCH_DTYPES:
            b = numbers(second)[:5]
            checked(lambda a, b: (a + b, a * b, np.maximum(a, b), a == b), a, b)


_SHAPES = {
    "reshape": lambda f, a: f(a, (3, 2)), "swapaxes": lambda f, a: f(a, 0, 1), "moveaxis": lambda f, a: f(a, 0, 1),
    "expand_dims": lambda f, a: f(a, 1), "concatenate": lambda f, a: f([a, a]), "stack": lambda f, a: f([a, a]),
    "vstack": lambda f, a: f([a, a]), "hstack": lambda f, a: f([a, a]), "split": lambda f, a: f(a, 2),
    "tile": lambda f, a: f(a, 2), "repeat": lambda f, a: f(a, 2), "roll": lambda f, a: f(a, 1),
    "take": lambda f, a: f(a, [0, 1]), "where": lambda f, a: f(a > 1, a, 2), "clip": lambda f, a: f(a, 0, 1),
    "dot": lambda f, a: f(a, a.T), "outer": lambda f, a: f(a, a), "einsum": lambda f, a: f("ij,ij->i", a, a),
    "tensordot": lambda f, a: f(a, a.T, 1), "isclose": lambda f, a: f(a, a), "trace": lambda f, a: f(a[:, :2]),
}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_function(name: str) -> None:
    function, call = operator.attrgetter(name)(np), _SHAPES.get(name, lambda f, a: f(a))
    for dtype in TORCH_DTYPES:
        small = (numbers(dtype)[1:5].clip(0, 3) if dtype.kind != "c" else numbers(dtype)[1:5])
        for array in (np.resize(small, (2, 3)), np.resize(small, (3, 2)).T):
            checked(lambda a: call(function, a), array, name=name)


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin", "sort", "any", "all", "clip", "round"])
def test_reduction_of_special_values(name: str) -> None:
    function, call = getattr(np, name), _SHAPES.get(name, lambda f, a: f(a))
    for dtype in TORCH_DTYPES:
        checked(lambda a: call(function, a), numbers(dtype), name=name)
        checked(lambda a: call(function, a), numbers(dtype)[:-1], name=name)


def test_methods_are_numpys() -> None:
    assert all(callable(operator.attrgetter(name)(np)) for name in (*FUNCTIONS, *UFUNCS))
    assert all(hasattr(np.ndarray, name) or name in FUNCTIONS for name in METHODS)


def test_nothing_of_torchs_own_numpy_is_imported() -> None:
    program = "import sys, numpy, jitpy; jitpy.jit(lambda a: numpy.sin(a) + 1, backend='eager')(numpy.ones(3)); " \
              "print([m for m in sys.modules if m.startswith(('torch._numpy', 'torch._dynamo'))])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


NORMS = {
    "all": lambda a: np.linalg.norm(a), "rows": lambda a: np.linalg.norm(a, axis=1),
    "both axes": lambda a: np.linalg.norm(a, axis=(0, 1), keepdims=True),
    "ones": lambda a: np.linalg.norm(a, 1, axis=-1, keepdims=True), "counts": lambda a: np.linalg.norm(a, 0, axis=0),
    "largest": lambda a: np.linalg.norm(a, np.inf, axis=0), "least": lambda a: np.linalg.norm(a, ord=-np.inf, axis=0),
    "cubes": lambda a: np.linalg.norm(a[0], 3), "method": lambda a: a / np.linalg.norm(a, axis=1, keepdims=True),
    "real part": lambda a: a.real * 2,
}


@pytest.mark.parametrize("kind", NORMS)
def test_norms(kind: str) -> None:
    for dtype in (np.float32, np.float64, np.int64):
        array = np.arange(1, 7, dtype=dtype).reshape(2, 3)
        checked(NORMS[kind], array)
        if kind != "real part" or dtype is np.float32:
            assert jitpy.explain(NORMS[kind])(array).graph_break_count == 0


def test_errors_of_norms_are_numpys() -> None:
    compiled = jitpy.jit(lambda a: np.linalg.norm(a, axis=5))
    with pytest.raises(np.exceptions.AxisError, match="axis 5 is out of bounds"):
        compiled(np.ones((2, 3), np.float32))
