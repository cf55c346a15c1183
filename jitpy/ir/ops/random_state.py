"""The state of random generators, read and set between the nodes that draw from them.

Nodes that draw and these keep their order (`Op.is_random`), and none of them goes because nothing reads it. `generator`
None stands for torch's own: the one of the CPU, and of all devices where they are seeded.
"""

from __future__ import annotations

from typing import Any

import torch

from ..sizes import SizeEnv
from ..spec import TensorSpec
from .table import define

SEED, READ, WRITE = "ir.seed", "ir.rng_state", "ir.set_rng_state"

STATE = TensorSpec(torch.uint8, tuple(torch.get_rng_state().shape), (1,), torch.device("cpu"))
_NOTHING = TensorSpec(torch.uint8, (0,), (1,), torch.device("cpu"))


def _seed(seed: int, generator: torch.Generator | None = None) -> torch.Tensor:
    if generator is None:
        torch.manual_seed(seed)
    else:
        generator.manual_seed(seed)
    return torch.empty(0, dtype=torch.uint8, device="cpu")


def _read(generator: torch.Generator | None = None) -> torch.Tensor:
    return torch.get_rng_state() if generator is None else generator.get_state()


def _write(state: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    if generator is None:
        torch.set_rng_state(state)
    else:
        generator.set_state(state)
    return torch.empty(0, dtype=torch.uint8, device="cpu")


def _nothing(env: SizeEnv, *args: Any) -> TensorSpec:
    return _NOTHING


def _state(env: SizeEnv, *args: Any) -> TensorSpec:
    return STATE


def _copies(*args: Any, **kwargs: Any) -> str:
    return "copy"


define(SEED, target=_seed, infer=_nothing, is_random=True, aliasing=_copies, differentiable=False, failure="never")
define(READ, target=_read, infer=_state, is_random=True, aliasing=_copies, differentiable=False, failure="never")
define(WRITE, target=_write, infer=_nothing, is_random=True, aliasing=_copies, differentiable=False)
