"""Blocks of `torch.inference_mode()` that begin and end inside a graph.

Nodes recorded there are like those of `no_grad`. Only the tensors that they make are special: autograd takes none of
them, and outside of the mode nobody may write to them. Whether a tensor is one is decided where it is made, and a graph
makes those that leave it when it has run. A graph of whose results all are such tensors runs in inference mode; of
others, single results are turned into such tensors. Where autograd would see one, the block is a break: an assumption
like those of `speculation.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from jitpy.ir import Node

from .autograd_facts import requires_grad
from .speculation import Assumption
from .traced import GraphBuilder, TracedTensor, Uncapturable


@dataclass(frozen=True, slots=True)
class _Block:
    """An outermost block: the nodes before it, and its own once it has ended."""

    assumption: Assumption
    first: int
    nodes: frozenset[Node] | None = None


class InferenceBlocks:
    """The blocks of one graph, in order."""

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder
        self._blocks: tuple[_Block, ...] = ()
        #: of those that change nothing and have not ended: nested ones, `inference_mode(False)` outside of the mode
        self._idle: tuple[Assumption, ...] = ()

    def begin(self, step: int, mode: bool) -> tuple[bool, bool]:
        """Enter a block; grad mode and inference mode as they were."""
        state = self._builder.state
        before = state.grad_enabled, state.inference_mode
        if state.inference_mode and not mode:
            raise Uncapturable("skipped", "inference mode ends inside of it")
        assumption = Assumption(step, "skipped", "inference mode begins")
        if mode and not state.inference_mode:
            self._set((*self._blocks, _Block(assumption, len(self._builder.graph.nodes))), self._idle)
            state.set("inference_mode", True)
        else:
            self._set(self._blocks, (*self._idle, assumption))
        state.set("grad_enabled", not mode)
        return before

    def end(self, grad_enabled: bool, inference_mode: bool) -> None:
        """Leave a block: both modes are what they were at its begin."""
        state = self._builder.state
        if state.inference_mode and not inference_mode:
            last = self._blocks[-1]
            ended = replace(last, nodes=frozenset(self._builder.graph.nodes[last.first:]))
            self._set((*self._blocks[:-1], ended), self._idle)
        else:
            self._set(self._blocks, self._idle[:-1])
        state.set("inference_mode", inference_mode)
        state.set("grad_enabled", grad_enabled)

    def is_inside(self) -> bool:
        """Whether a block has begun in this graph, and not ended."""
        return bool(self._blocks) and self._blocks[-1].nodes is None

    def _set(self, blocks: tuple[_Block, ...], idle: tuple[Assumption, ...]) -> None:
        before = self._blocks, self._idle

        def undo() -> None:
            self._blocks, self._idle = before

        self._builder.journal.append(undo)
        self._blocks, self._idle = blocks, idle

    def settle(self, live: Sequence[Any]) -> bool | None:
        """The graph has ended: whether it runs in inference mode, or None where some of the results have to be turned
        into inference tensors. Raises RestartAnalysis for a block that is a break."""
        for block in self._blocks:
            if block.nodes is None:
                raise block.assumption.violated()
        for assumption in self._idle:
            raise assumption.violated()
        if not self._blocks:
            return False
        violated = self._blocks[0].assumption.violated
        builder = self._builder
        if self._seen_by_autograd():
            raise violated()
        made = [p for p in live if isinstance(p, TracedTensor) and not _is_argument(builder, p)]
        inside = [p for p in made if p.storage.inference]
        written = any(isinstance(entry.payload, TracedTensor) and entry.payload.storage.written
                      and entry.value.is_inference() for entry in builder.inputs)
        if len(inside) == len(made) and not any(requires_grad(node.spec) for node in builder.graph.nodes):
            return bool(inside or written)
        if written:
            raise violated()
        return None if inside else False

    def _seen_by_autograd(self) -> bool:
        """Whether something with a history is computed of what was made in a block, or would be in eager: a view made
        there of a tensor that requires grad requires grad itself."""
        inside: set[Node] = set().union(*(block.nodes or () for block in self._blocks))
        leaves = {node for node in self._builder.graph.nodes if node in inside and node.op.is_view and
                  any(requires_grad(base.spec) for base in node.input_nodes())}
        for node in self._builder.graph.nodes:
            if node in leaves or node in inside and not leaves.isdisjoint(node.input_nodes()) and node.op.is_view:
                leaves.add(node)
            elif node not in inside and not inside.isdisjoint(node.input_nodes()):
                if requires_grad(node.spec) or not leaves.isdisjoint(node.input_nodes()):
                    return True
                if node.op.is_view:
                    inside.add(node)
        return False


def _is_argument(builder: GraphBuilder, payload: TracedTensor) -> bool:
    """Whether a payload is the very object that was passed."""
    return payload.input is not None and builder.inputs[payload.input].payload is payload


def in_inference_mode(compiled: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """A compiled graph whose results are inference tensors."""

    def run(*inputs: Any) -> tuple[Any, ...]:
        with torch._C._InferenceMode(True):
            return compiled(*inputs)

    return run


def as_inference_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Another look at the memory of a tensor that has no history."""
    with torch._C._InferenceMode(True):
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return made.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


__all__ = ["InferenceBlocks", "as_inference_tensor", "in_inference_mode"]
