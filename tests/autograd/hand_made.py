"""A function made differentiable by hand, and the same in plain eager: what the tests of the node compare.

    s, index, e = F(x, w)       with h = x + 1, s = sin(h) * w, index = argsort(x), e = exp(x)

Eager saves h (for sin), sin(h) and w (for mul), and e (for exp); so does the node, but for sin(h).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from jitpy.runtime.autograd_node import BackwardPass, NodeSpec, Paths, make_differentiable

SIN, MUL, EXP = 1, 2, 4


def eager(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x + 1).sin() * w, x.argsort(), x.exp()


def forward(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = x + 1
    return h.sin() * w, x.argsort(), x.exp(), h


class Passes:
    """Makes backward passes, and notes which were asked for."""

    def __init__(self) -> None:
        self.made: list[tuple[int, int]] = []

    def __call__(self, defined: int, wanted: int) -> BackwardPass:
        self.made.append((defined, wanted))

        def run(h: torch.Tensor, w: torch.Tensor, e: torch.Tensor, *grads: torch.Tensor) -> list[torch.Tensor]:
            given = iter(grads)
            gs = next(given) if defined & 1 else None
            ge = next(given) if defined & 2 else None
            results = []
            if wanted & 1:  # what else is asked for may have come without the values for this
                gx = [g for g in (gs * w * h.cos() if gs is not None else None, ge * e if ge is not None else None)
                      if g is not None]
                results.append(sum(gx[1:], gx[0]))
            return results + ([gs * h.sin()] if wanted & 2 and gs is not None else [])

        present = [True] if wanted & 1 else []
        present += [bool(defined & 1)] if wanted & 2 else []
        return BackwardPass(run, (None,) * defined.bit_count(), None if all(present) else tuple(present))


def spec(**changes: Any) -> NodeSpec:
    fields: dict[str, Any] = {
        "n_inputs": 2, "n_outputs": 3, "saved": (("extra", 0), ("input", 1), ("output", 2)), "grad_outputs": (0, 2),
        "grad_inputs": (0, 1), "backward": Passes(), "eager": lambda: eager, "kept": (0, 1),
        "paths": lambda: Paths((SIN | MUL, EXP), (SIN | MUL | EXP, MUL), ((3, 0), (1, 0), (0, 1)), (SIN, MUL, EXP), ()),
    }
    return NodeSpec(**{**fields, **changes})


def made(**changes: Any) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The function of this file as a node; plain `eager` is what it must equal."""
    return make_differentiable(forward, spec(**changes))
