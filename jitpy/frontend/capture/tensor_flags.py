"""Branches on flags and counters: tensors of one element from outside (`if self.initialised:`, `if self.steps == 0:`),
and what such a tensor counts (`for i in range(steps):`, `layers[k]`); branches on masks (`if mask.all():`).

The program's question is a guard, evaluated when a call begins, as long as the graph has not written to the tensor.
Each answer is compiled for itself, without a break. Where a place has given many answers, it is left to breaks.
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from jitpy.ir import INPUT, Node
from jitpy.ir.sizes_expr import evaluate
from jitpy.ir.trees import tree_leaves, tree_map

from ...ir.algebra import sympy
from ..guards.observations import MANY
from .traced import TracedScalar

if TYPE_CHECKING:
    from jitpy.ir.graph import Loc

    from ..values import Interpreter

#: How many truth values code is compiled for, over all questions about one tensor.
_MOST_ANSWERS = 6
_LARGEST_MASK = 1 << 16
#: Where tensors lie that are asked. The program waits for a GPU's answer too.
_DEVICES: dict[type[int], tuple[str, ...]] = {bool: ("cpu", "cuda"), int: ("cpu",)}


@dataclass(frozen=True, slots=True)
class Question:
    """Guard: what is computed from a tensor is this truth value or integer. `steps` are (function, arguments,
    keywords), of which the first argument is what the step before it gave. `axes` tell which axis a symbol is; `loc`
    is the program's line that asks."""

    steps: tuple[tuple[Any, tuple[Any, ...], tuple[tuple[str, Any], ...]], ...]
    kind: type[int]
    answer: int
    axes: tuple[tuple[sympy.Symbol, int], ...]
    loc: Loc

    def __call__(self, tensor: torch.Tensor) -> bool:
        return self.ask(tensor) == self.answer

    def ask(self, tensor: torch.Tensor) -> int:
        found: Any = tensor.detach()
        sizes = {symbol: tensor.shape[axis] for symbol, axis in self.axes}
        for function, args, kwargs in self.steps:
            if sizes:
                args = tree_map(lambda leaf: evaluate(leaf, sizes) if isinstance(leaf, sympy.Basic) else leaf, args)
            found = function(found, *args, **dict(kwargs))
        return self.kind(found)

    def __repr__(self) -> str:
        line = linecache.getline(self.loc.filename, self.loc.line).strip()
        return f"in `{line}` is {self.answer}"


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
        if not node.op.is_question or not node.args:
            return None
        steps.append((node.op.target, node.args[1:], tuple(node.kwargs.items())))
        node = node.args[0]
        if not isinstance(node, Node):
            return None
    entry = builder.inputs[builder.graph.inputs.index(node)]
    tensor = entry.value
    if not isinstance(tensor, torch.Tensor) or tensor.device.type not in _DEVICES[kind] or \
            tensor.numel() != 1 and not (kind is bool and _is_mask(tensor)):
        return None
    axes = tuple((size, axis) for axis, size in enumerate(entry.payload.spec.shape) if isinstance(size, sympy.Symbol))
    known = {symbol for symbol, _ in axes}
    if any(_is_computed(step[1:], known) for step in steps):
        return None
    asked = Question(tuple(reversed(steps)), kind, 0, axes, interp.loc())
    answer = asked.ask(tensor)
    fact = hash((str(asked.steps), kind, answer))
    most = _MOST_ANSWERS if kind is bool else MANY
    if interp.context.may_break and interp.context.history.is_needed_often((entry.source.key(), kind.__name__), fact,
                                                                           most):
        return None
    builder.guards.add(entry.source, "python", replace(asked, answer=answer), f"a branch, {asked.loc}")
    return answer


def _is_mask(tensor: torch.Tensor) -> bool:
    """Whether it may be asked at each call, as the program does: a few integers or truth values."""
    return tensor.numel() <= _LARGEST_MASK and not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)


def _is_computed(value: Any, known: set[sympy.Symbol]) -> bool:
    plain = (bool, int, float, type(None), str, torch.dtype, torch.device, torch.layout)
    return not all(isinstance(leaf, plain) or isinstance(leaf, sympy.Basic) and leaf.free_symbols <= known
                   for leaf in tree_leaves(value))


__all__ = ["count_of", "truth_of_flag"]
