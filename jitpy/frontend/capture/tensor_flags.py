"""Branches on flags and counters: tensors of one element from outside (`if self.initialised:`, `if self.steps == 0:`),
and what such a tensor counts (`for i in range(steps):`, `layers[k]`).

The program's question is a guard, evaluated when a call begins, as long as the graph has not written to the tensor.
Each answer is compiled for itself, without a break. Where a place has given many answers, it is left to breaks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from jitpy.ir import INPUT, Node
from jitpy.ir.trees import tree_leaves

from ..guards.observations import MANY
from .traced import TracedScalar

if TYPE_CHECKING:
    from ..values import Interpreter

#: How many truth values code is compiled for, over all questions about one tensor.
_MOST_ANSWERS = 6


@dataclass(frozen=True, slots=True)
class Question:
    """Guard: what is computed from a tensor is this truth value or integer. `steps` are (function, arguments,
    keywords), of which the first argument is what the step before it gave."""

    steps: tuple[tuple[Any, tuple[Any, ...], tuple[tuple[str, Any], ...]], ...]
    kind: type[int]
    answer: int

    def __call__(self, tensor: torch.Tensor) -> bool:
        return self.ask(tensor) == self.answer

    def ask(self, tensor: torch.Tensor) -> int:
        found: Any = tensor.detach()
        for function, args, kwargs in self.steps:
            found = function(found, *args, **dict(kwargs))
        return self.kind(found)


def truth_of_flag(interp: Interpreter, scalar: TracedScalar) -> bool | None:
    """The truth of a number that is computed from a flag, which becomes a guard; None for any other."""
    answer = _answer(interp, scalar, bool)
    return None if answer is None else bool(answer)


def count_of(interp: Interpreter, scalar: TracedScalar) -> int | None:
    """An integer that is computed from a counter, which becomes a guard; None for any other."""
    return _answer(interp, scalar, int) if scalar.kind in (int, bool) else None


def _answer(interp: Interpreter, scalar: TracedScalar, kind: type[int]) -> int | None:
    builder = interp.builder
    steps: list[tuple[Any, tuple[Any, ...], tuple[tuple[str, Any], ...]]] = []
    node = scalar.node
    while node.op is not INPUT:
        if not node.op.is_question or not node.args or any(_is_computed(a) for a in (*node.args[1:],
                                                                                       *node.kwargs.values())):
            return None
        steps.append((node.op.target, node.args[1:], tuple(node.kwargs.items())))
        node = node.args[0]
        if not isinstance(node, Node):
            return None
    entry = builder.inputs[builder.graph.inputs.index(node)]
    tensor = entry.value
    if not isinstance(tensor, torch.Tensor) or tensor.numel() != 1 or tensor.device.type != "cpu":
        return None
    asked = Question(tuple(reversed(steps)), kind, 0)
    answer = asked.ask(tensor)
    fact = hash((str(asked.steps), kind, answer))
    most = _MOST_ANSWERS if kind is bool else MANY
    if interp.context.may_break and interp.context.history.is_needed_often((entry.source.key(), kind.__name__), fact,
                                                                           most):
        return None
    builder.guards.add(entry.source, "python", Question(asked.steps, kind, answer), f"a branch, {interp.loc()}")
    return answer


def _is_computed(value: Any) -> bool:
    plain = (bool, int, float, type(None), torch.dtype, torch.device, torch.layout)
    return not all(isinstance(leaf, plain) for leaf in tree_leaves(value))


__all__ = ["count_of", "truth_of_flag"]
