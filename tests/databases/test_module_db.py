"""torch's module samples through `jitpy.jit`, in eval and train mode: results, buffers, the random state and gradients
of inputs and parameters are eager's.

The `eager` backend shows what was captured. The default backend compiles kernels where no gradients are wanted: the
first sample of each module runs there in eval mode. JITPY_TEST_ALL=1 runs all samples, and all of them both ways. What
is not captured is listed in `not_captured.py`: a break that is not listed fails, and so does a listed one that is gone.
"""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput, module_db

import jitpy
from tests.databases.comparing import break_reasons, compare, observe
from tests.databases.not_captured import MODULES, SOME_MODULES

ALL = os.environ.get("JITPY_TEST_ALL") == "1"
SAMPLES = None if ALL else 3


def samples(info: ModuleInfo, training: bool) -> Iterator[tuple[torch.nn.Module, ModuleInput]]:
    """Modules with the arguments of a call."""
    torch.manual_seed(0)
    inputs = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
    for sample in itertools.islice(inputs, SAMPLES):
        made = sample.constructor_input
        module = info.module_cls(*made.args, **made.kwargs).train(training)
        yield module, sample


def check(module: torch.nn.Module, sample: ModuleInput, backend: str) -> tuple[str | None, tuple[str, ...]]:
    """The first difference from eager in two calls, and why the module was not captured whole."""
    gradients = backend == "eager"
    arguments: tuple[Any, Any] = (sample.forward_input.args, sample.forward_input.kwargs)
    plain, other = module, copy.deepcopy(module)
    jitpy.reset()
    compiled = jitpy.jit(other, backend=backend)
    tolerance = None if backend == "eager" else 1e-4
    for number in range(2):
        with torch.set_grad_enabled(gradients):
            expected = observe(plain, arguments, gradients, module=plain)
            found = observe(compiled, arguments, gradients, module=other)
        difference = compare(expected, found, tolerance=tolerance)
        if difference is not None:
            return f"call {number}: {difference}", ()
        if expected.error is not None:
            return None, ()
    return None, break_reasons()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("info", [pytest.param(info, id=info.formatted_name) for info in module_db])
def test_like_eager(info: ModuleInfo, training: bool) -> None:
    breaks: list[str] = []
    wrong: list[str] = []
    for number, (module, sample) in enumerate(samples(info, training)):
        for backend in ("eager", "codegen") if ALL or number == 0 and not training else ("eager",):
            difference, reasons = check(module, sample, backend)
            if difference is not None:
                wrong.append(f"sample {number}, {backend}: {difference}")
            breaks += reasons[:1]
    assert not wrong, "\n".join(wrong)
    mode = "train" if training else "eval"
    listed = MODULES.get(info.name) or MODULES.get(f"{info.name}/{mode}")
    sometimes = SOME_MODULES.get(info.name)
    ids = [why.id for why in (listed, sometimes) if why is not None]
    assert all(reason.split(":")[0] in ids for reason in breaks), "\n".join(breaks)
    assert breaks or listed is None, "captured now: take it off the list"
    assert breaks or not ALL or sometimes is None, "captured now: take it off the list"
