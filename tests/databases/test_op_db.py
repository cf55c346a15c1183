"""torch's operator database through `jitpy.jit`: every operator as a function, as a method, in place, with `out=`, with
gradients, and with the arguments that it refuses, each compared with eager.

By default the first samples of each operator run, under the `eager` backend, which shows what was captured. Gradients
are compared in float64, those of our own rules with those of torch's autograd (the backend `halves`).
JITPY_TEST_ALL=1 runs all samples, and two of each operator under the default backend too. What is not captured is
listed with its reason in `not_captured.py`: what breaks and is not listed fails, and so does what is listed and
captured. Of operators that break for some samples only, the full run says whether one still does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from tests.databases.comparing import ALL, Tally, Trial, copied, tensors_in, trial
from tests.databases.not_captured import OPERATORS, SOMETIMES

#: samples of each operator and variant
SAMPLES = None if ALL else 2

#: Results that are memory as it was found.
UNINITIALISED = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}

#: Variants of which only the behaviour is checked: breaks are as good as capturing.
ODD = {"refused", "out resized"}

#: `variant of an operator -> (function, its arguments)` for each sample
Cases = dict[str, Iterator[tuple[Callable[..., Any], tuple[Any, Any]]]]


def label(op: OpInfo) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def dtype_of(op: OpInfo) -> torch.dtype | None:
    """float32 where the operator takes it."""
    supported = op.supported_dtypes("cpu")
    return next((d for d in (torch.float32, torch.int64, torch.complex64, torch.bool) if d in supported), None)


def cases(op: OpInfo, dtype: torch.dtype) -> Cases:
    """The variants of an operator; samples are made anew for each, as making them is lazy."""

    def samples() -> Iterator[SampleInput]:
        torch.manual_seed(0)
        return itertools.islice(op.sample_inputs("cpu", dtype), SAMPLES)

    found: Cases = {"function": ((op.op, arguments(s)) for s in samples())}
    if op.method_variant is not None:
        found["method"] = ((op.method_variant, arguments(s)) for s in samples())
    if op.inplace_variant is not None:
        found["inplace"] = ((op.inplace_variant, arguments(s)) for s in samples())
    for alias in op.aliases:
        found[f"alias {alias.name}"] = itertools.islice(((alias.op, arguments(s)) for s in samples()), 1)
    if op.supports_out:
        found["out"] = with_out(op, samples(), resized=False)
        found["out resized"] = with_out(op, samples(), resized=True)
    if op.supports_autograd and torch.float64 in op.supported_dtypes("cpu"):
        found["gradients"] = differentiable(op)
    found["refused"] = refused(op)
    return found


def differentiable(op: OpInfo) -> Iterator[tuple[Callable[..., Any], tuple[Any, Any]]]:
    """Arguments in float64 that require gradients."""
    torch.manual_seed(0)
    samples = op.sample_inputs("cpu", torch.float64, requires_grad=True)
    for sample in itertools.islice(samples, None if ALL else 1):
        yield op.op, arguments(sample)


def arguments(sample: SampleInput) -> tuple[Any, Any]:
    return (sample.input, *sample.args), sample.kwargs


def with_out(
    op: OpInfo, samples: Iterator[SampleInput], resized: bool
) -> Iterator[tuple[Callable[..., Any], tuple[Any, Any]]]:
    """The first samples with `out=` tensors of the result's sizes, or with empty ones."""
    for sample in itertools.islice(samples, 2):
        args, kwargs = copied(arguments(sample))
        try:
            result = op.op(*args, **kwargs)
        except Exception:
            continue
        parts = tensors_in(result)
        if not parts or any(t.layout is not torch.strided for t in parts):
            continue
        made = [torch.empty(0, dtype=t.dtype) if resized else torch.zeros_like(t) for t in parts]
        out = made[0] if isinstance(result, torch.Tensor) else tuple(made)
        yield op.op, ((sample.input, *sample.args), {**sample.kwargs, "out": out})


def refused(op: OpInfo) -> Iterator[tuple[Callable[..., Any], tuple[Any, Any]]]:
    """Arguments for which the operator raises."""
    if op.error_inputs_func is None:
        return
    torch.manual_seed(0)
    for error in itertools.islice(op.error_inputs("cpu"), SAMPLES):
        yield op.op, arguments(error.sample_input)


def usable(args: Any) -> bool:
    """Whether eager itself can be asked: some samples are classes that only torch's own tests understand."""
    return not any(t.is_nested or type(t) not in (torch.Tensor, torch.nn.Parameter) for t in tensors_in(args))


def run(op: OpInfo, variant: str, fn: Callable[..., Any], args: tuple[Any, Any], backend: str = "eager") -> Trial:
    values = op.name not in UNINITIALISED and variant != "refused"  # some refused arguments are uninitialised, too
    tolerance = 1e-4 if backend == "codegen" else None
    return trial(fn, args, backend, gradients=variant == "gradients", values=values, tolerance=tolerance)


def check_listed(name: str, breaks: dict[str, list[str]]) -> None:
    """Breaks of variants, against the list."""
    for variant, reasons in breaks.items():
        keys = name, f"{name}/{variant}"
        allowed = [table[key] for table in (OPERATORS, SOMETIMES) for key in keys if key in table]
        for reason in reasons:
            assert any(reason.startswith(f"{one.id}:") for one in allowed), f"{variant} breaks: {reason}"
    assert name not in OPERATORS or any(breaks.values()), "captured now: take it off the list"
    for variant, reasons in breaks.items():
        assert reasons or f"{name}/{variant}" not in OPERATORS, f"{variant} is captured now: take it off the list"
        assert reasons or not ALL or f"{name}/{variant}" not in SOMETIMES, f"{variant} is captured: take it off"
    assert not ALL or name not in SOMETIMES or any(breaks.values()), "captured now: take it off the list"


@pytest.fixture(autouse=True)
def _seeds_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many operators of the database seed the generator themselves, which breaks the graph: `observe` does it here."""
    monkeypatch.setattr(common_methods_invocations, "wrapper_set_seed", lambda op, *args, **kwargs: op(*args, **kwargs))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", [pytest.param(op, id=label(op)) for op in op_db if dtype_of(op) is not None])
def test_like_eager(op: OpInfo, tally: Tally) -> None:
    dtype = dtype_of(op)
    assert dtype is not None
    breaks: dict[str, list[str]] = {}
    wrong: list[str] = []
    for variant, samples in cases(op, dtype).items():
        breaks[variant] = []
        for number, (fn, args) in enumerate(samples):
            if not usable(args):
                continue
            found = run(op, variant, fn, args, "halves" if variant == "gradients" else "eager")
            tally.count(found.difference, found.breaks, variant in ODD or found.error is not None)
            if found.difference is not None:
                wrong.append(f"{variant}, sample {number}: {found.difference}")
            if found.error is None and variant not in ODD:
                breaks[variant] += found.breaks[:1]
    assert not wrong, "\n".join(wrong)
    check_listed(label(op), breaks)


@pytest.mark.skipif(not ALL, reason="JITPY_TEST_ALL=1 runs it")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", [pytest.param(op, id=label(op)) for op in op_db if dtype_of(op) is not None])
def test_compiled(op: OpInfo, tally: Tally) -> None:
    """Under the default backend: the first samples, without and with gradients."""
    dtype = dtype_of(op)
    assert dtype is not None
    for gradients in (False, True) if op.supports_autograd and dtype.is_floating_point else (False,):
        torch.manual_seed(0)
        for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=gradients), 2):
            if usable(arguments(sample)):
                found = run(op, "gradients" if gradients else "function", op.op, arguments(sample), "codegen")
                tally.count(found.difference, found.breaks, found.error is not None)
                assert found.difference is None, found.difference


