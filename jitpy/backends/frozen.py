"""`options={"freezing": True}`: a graph compiled for the values that parameters and buffers have, until one changes.

Parameters share their memory with copies of torch's own that are made when somebody writes (`torch._lazy_clone`): any
write through torch, `.data` included, gives the parameter other memory first. So a call compares addresses. Where one
is another, numbers are compared: if they are the same (saving a model moves memory, too), addresses are noted anew,
else the graph as it was captured runs from then on. Memory that torch cannot share so (numpy's, files') is not frozen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from jitpy import config, logs

from ..ir.alias import any_needs_grad, shows_grad_input
from ..ir.graph import Graph
from ..ir.passes.freezing import freeze, frozen_inputs
from ..ir.specialize import specialize
from ..runtime.native_build import load_or_none

Compile = Callable[[Graph], Callable[..., tuple[Any, ...]]]

#: how often parameters may move without a change of their numbers
_MOVES = 16


def can_freeze(graph: Graph) -> bool:
    """Whether a graph has parameters to freeze, and no gradients."""
    return not any_needs_grad(graph.nodes) and not shows_grad_input(graph) and any(True for _ in frozen_inputs(graph))


@dataclass(frozen=True, slots=True)
class _State:
    """Code that is compiled for the values of some inputs: copies that share their memory, by position; `given` are the
    positions of the inputs that are passed on, in front of `constants`."""

    copies: dict[int, torch.Tensor]
    run: Callable[..., tuple[Any, ...]]
    given: tuple[int, ...]
    constants: tuple[torch.Tensor, ...]
    #: where the memory is
    addresses: dict[int, int]
    #: how native code asks for all addresses, and its answer
    question: tuple[int, tuple[int, ...]]
    answer: bytes | None

    @staticmethod
    def of(inputs: tuple[Any, ...], copies: dict[int, torch.Tensor], run: Callable[..., tuple[Any, ...]],
           given: tuple[int, ...], constants: tuple[torch.Tensor, ...]) -> _State:
        index = next((copy.get_device() for copy in copies.values()), -1)
        question = index, tuple(k for k in range(len(inputs)) if k not in copies)
        return _State(copies, run, given, constants, {k: _address(inputs[k]) for k in copies}, question,
                      _addresses(inputs, *question))

    def holds(self, inputs: tuple[Any, ...]) -> bool:
        """Whether all parameters are where they were."""
        if self.answer is not None and (found := _addresses(inputs, *self.question)) is not None:
            return found == self.answer
        return all(_address(inputs[k]) == address for k, address in self.addresses.items())


class FrozenGraph:
    """A graph as a callable, `compile` making graphs callable. It is frozen in the first call."""

    def __init__(self, graph: Graph, compile: Compile, options: dict[str, Any]) -> None:
        self._captured = graph
        self._compile = compile
        self._flags = {name: value for name, value in options.items() if name in config.FLAGS}
        self._state: _State | None = None
        self._usual: Callable[..., tuple[Any, ...]] | None = None
        self._moves = 0
        #: what runs at present
        self.graph = graph

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        state = self._state
        if state is None or not state.holds(inputs):
            state = self._looked_at(state, inputs)
            if state is None:
                assert self._usual is not None
                return self._usual(*inputs)
        return state.run(*(inputs[k] for k in state.given), *state.constants)

    def _looked_at(self, state: _State | None, inputs: tuple[Any, ...]) -> _State | None:
        """The state for these inputs; None where the graph is not frozen any more."""
        if self._usual is not None:
            return None
        if state is None:
            found = self._frozen(inputs)
        elif self._moves < _MOVES and all(_is_same(inputs[k], copy) for k, copy in state.copies.items()):
            self._moves += 1
            copies = _shared(inputs, state.copies)
            found = None if len(copies) < len(state.copies) else _State.of(inputs, copies, state.run, state.given,
                                                                           state.constants)
        else:
            found = None
        self._state = found
        if found is None:
            logs.log("fusion", f"{self._captured.name} is not frozen: parameters change, or lie in others' memory")
            self.graph = self._captured
            self._usual = self._compiled(self._captured)
        return found

    def _frozen(self, inputs: tuple[Any, ...]) -> _State | None:
        """The graph compiled for the values that its parameters have now; None where there is nothing to gain."""
        copies = _shared(inputs, frozen_inputs(self._captured))
        graph = specialize(self._captured, {})
        frozen = freeze(graph, {graph.inputs[k]: copy for k, copy in copies.items()})
        if not frozen.done:
            return None
        logs.log("fusion", lambda: f"{graph.name} is frozen: {'; '.join(frozen.done)}")
        read = {*graph.outputs, *(source for node in graph.nodes for source in node.input_nodes())}
        count = len(self._captured.inputs)
        given = tuple(k for k in range(count) if k not in copies or graph.inputs[k] in read)
        graph.inputs[:] = [graph.inputs[k] for k in given] + graph.inputs[count:]
        self.graph = graph
        run = self._compiled(specialize(graph, {}))
        return _State.of(inputs, copies, run, given, tuple(frozen.constants))

    def _compiled(self, graph: Graph) -> Callable[..., tuple[Any, ...]]:
        with config.patch(**self._flags):
            return self._compile(graph)


def _shared(inputs: tuple[Any, ...], positions: Iterable[int]) -> dict[int, torch.Tensor]:
    """Copies of inputs that share their memory until somebody writes. Others are left out."""
    copies = {}
    for k in positions:
        with contextlib.suppress(RuntimeError), torch.no_grad():
            copies[k] = torch._lazy_clone(inputs[k].detach())
    return copies


#: where a tensor begins, without a copy of what is shared
_address: Callable[[torch.Tensor], int] = torch._C._data_address  # type: ignore[attr-defined]


def _addresses(inputs: tuple[Any, ...], device: int, skip: tuple[int, ...]) -> bytes | None:
    """Where the tensors are, but for those that are skipped; None where native code cannot tell."""
    native = load_or_none("runtime")
    return None if native is None else native.addresses(inputs, device, skip)


def _is_same(tensor: torch.Tensor, copy: torch.Tensor) -> bool:
    """Whether a tensor has the same numbers, NaN and signs of zeros included, in the same order in memory."""
    if tensor.shape != copy.shape or tensor.stride() != copy.stride() or tensor.dtype is not copy.dtype:
        return False
    if _address(tensor) == _address(copy):
        return True
    with torch.no_grad():
        return bool(torch.equal(*(one.detach().clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)
                                  for one in (tensor, copy))))


__all__ = ["FrozenGraph", "can_freeze"]
