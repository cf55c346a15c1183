"""torch's module samples through `jitpy.jit`, in eval and train mode: results, buffers, the random state and gradients
of inputs and parameters are eager's, in two calls.

The backend `halves` shows what was captured, and what our gradients are. The default backend, which compiles kernels,
runs the first sample of each module in eval mode without gradients, and that of some modules in train mode with them.
There, what differs from eager by more than noise must be as near to the same in float64 as eager is. JITPY_TEST_ALL=1
runs all samples every way. What is not captured is listed in `not_captured.py`: a break that is not listed fails, and
so does a listed one that is gone.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput, module_db
from torch.utils._pytree import tree_map

import jitpy
from tests.databases.comparing import ALL, SEED, Outcome, Tally, break_reasons, compare, copied, further_off, observe
from tests.databases.not_captured import MODULES, SOME_MODULES

SAMPLES = None if ALL else 3

#: Modules of which the default backend compiles both halves in every test run.
COMPILED = {
    "nn.BatchNorm2d", "nn.Conv2d", "nn.CrossEntropyLoss", "nn.Embedding", "nn.GELU", "nn.GroupNorm", "nn.GRU",
    "nn.LayerNorm", "nn.Linear", "nn.LogSoftmax", "nn.MaxPool2d", "nn.MultiheadAttention", "nn.PReLU",
    "nn.SmoothL1Loss", "nn.TransformerEncoderLayer",
}


def samples(info: ModuleInfo, training: bool) -> Iterator[tuple[torch.nn.Module, ModuleInput]]:
    """Modules with the arguments of a call."""
    torch.manual_seed(0)
    inputs = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
    for sample in itertools.islice(inputs, SAMPLES):
        made = sample.constructor_input
        module = info.module_cls(*made.args, **made.kwargs).train(training)
        yield module, sample


def check(
    module: torch.nn.Module, sample: ModuleInput, backend: str, gradients: bool
) -> tuple[str | None, tuple[str, ...]]:
    """The first difference from eager in two calls, and why the module was not captured whole."""
    arguments: tuple[Any, Any] = (sample.forward_input.args, sample.forward_input.kwargs)
    plain, other, exact = module, copy.deepcopy(module), copy.deepcopy(module).double()
    jitpy.reset()
    compiled = jitpy.jit(other, backend=backend)
    for number in range(2):
        with torch.set_grad_enabled(gradients):
            expected = observe(plain, arguments, gradients, module=plain)
            found = observe(compiled, arguments, gradients, module=other)
            difference = compare(expected, found)
            if difference is not None and backend == "codegen" and is_deterministic(expected):
                # only values may differ
                difference = compare(expected, found, values=False)
                reference = observe(exact, in_float64(arguments), gradients, module=exact)
                difference = difference or further_off(expected, found, reference)
            elif backend == "codegen":
                observe(exact, in_float64(arguments), module=exact)  # its buffers follow
        if difference is not None:
            return f"call {number}: {difference}", ()
        if expected.error is not None:
            return None, ()
    return None, break_reasons()


def is_deterministic(outcome: Outcome) -> bool:
    """Whether a call drew no random numbers: in float64 they are others."""
    torch.manual_seed(SEED)
    return outcome.error is None and torch.equal(outcome.random, torch.get_rng_state())


def in_float64(arguments: Any) -> Any:
    def convert(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype is torch.float32:
            return value.detach().double().requires_grad_(value.requires_grad)
        return value

    return tree_map(convert, copied(arguments))


def ways(name: str, number: int, training: bool) -> Iterator[tuple[str, bool]]:
    """`(backend, whether gradients are wanted)` for a sample."""
    yield "halves", True
    if ALL or number == 0 and not training:
        yield "codegen", False
    if ALL or number == 0 and training and name in COMPILED:
        yield "codegen", True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("info", [pytest.param(info, id=info.formatted_name) for info in module_db])
def test_like_eager(info: ModuleInfo, training: bool, tally: Tally) -> None:
    breaks: list[str] = []
    wrong: list[str] = []
    for number, (module, sample) in enumerate(samples(info, training)):
        for backend, gradients in ways(info.name, number, training):
            difference, reasons = check(module, sample, backend, gradients)
            tally.count(difference, reasons)
            if difference is not None:
                wrong.append(f"sample {number}, {backend}, gradients {gradients}: {difference}")
            breaks += reasons[:1]
    assert not wrong, "\n".join(wrong)
    mode = "train" if training else "eval"
    listed = MODULES.get(info.name) or MODULES.get(f"{info.name}/{mode}")
    sometimes = SOME_MODULES.get(info.name)
    ids = [id for why in (listed, sometimes) if why is not None for id in why.id.split()]
    assert all(reason.split(":")[0] in ids for reason in breaks), "\n".join(breaks)
    assert breaks or listed is None, "captured now: take it off the list"
    assert breaks or not ALL or sometimes is None, "captured now: take it off the list"
