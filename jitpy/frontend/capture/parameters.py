"""Parameters that the program makes while it is traced: `torch.nn.Parameter(data)`.

A parameter shows the memory of its data as `data.detach()` does, and is a leaf. Under no_grad it is read, and written
to by initialisers and optimizers, like any other view of that memory. Where it is read under grad mode, a history
begins at its value of that moment: a leaf of the graph (`speculation.py`), in whose place the graph has the value
itself once captured passes have used the history up. Results get the data, of which the compiled code makes a
parameter.
"""

from __future__ import annotations

import torch

from jitpy.ir import Node

from .speculation import Assumption
from .traced import GraphBuilder, Storage, TracedTensor, Uncapturable, ViewStep

_DETACH = torch.ops.aten.detach.default
_UNRECORDED = "a view, made under no_grad, of a parameter that was made here"


class Parameters:
    """data: what each parameter was made of. shown: memory that the views of a leaf show, by the node of that leaf."""

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder
        self.data: dict[TracedTensor, TracedTensor] = {}
        self._leaves: dict[TracedTensor, tuple[int, Node]] = {}
        self._shown: dict[Node, Storage] = {}
        #: the memory, and its generation, that such memory stands for
        self._stand_for: dict[Storage, tuple[Storage, int]] = {}
        #: the steps of views of parameters that were made under no_grad: torch says of these that they require grad
        self._unrecorded: dict[ViewStep, Assumption] = {}

    def make(self, data: TracedTensor, requires_grad: bool) -> TracedTensor:
        """`torch.nn.Parameter(data, requires_grad)`."""
        builder, storage = self._builder, data.storage
        if builder.state.inference_mode or storage.inference or builder.state.transforms:
            raise Uncapturable("unsupported_op", "a parameter that is made in or of inference mode, or in a transform")
        if storage.leaf is not None or storage.frozen or True in data.lazy_bits:
            raise Uncapturable("unsupported_op", "a parameter made of another one, or of a tensor that requires grad")
        made: TracedTensor = builder.record(_DETACH, (data,), {})
        if storage.lost_grad or made.spec.requires_grad:
            raise Uncapturable("unsupported_op", "a parameter made of one that was changed")
        builder.save(storage)
        storage.leaf, storage.lost_at = made, builder.step()
        builder.put(self.data, made, data)
        self.turn(made, requires_grad)
        return made

    def turn(self, tensor: TracedTensor, requires_grad: bool) -> None:
        """A parameter's flag."""
        self._builder.save(tensor)
        tensor._spec = tensor.spec.with_(requires_grad=requires_grad)
        tensor.is_leaf = True

    def read(self, tensor: TracedTensor) -> Node:
        """A tensor in a parameter's memory, up to date, is read under grad mode."""
        if tensor.storage.leaf is tensor and tensor._spec.requires_grad:
            return self.root(tensor)
        if self.unrecorded(tensor) is not None:
            raise Uncapturable("unsupported_op", _UNRECORDED)
        return tensor.node

    def root(self, tensor: TracedTensor) -> Node:
        """The tensor that autograd knows, whatever mode is on: of a parameter, the leaf with its present value."""
        builder, storage = self._builder, tensor.storage
        node = builder.node(tensor, detached=True) if tensor in self.data else builder.node(tensor)
        if tensor not in self.data or not tensor.spec.requires_grad:
            return node
        known = self._leaves.get(tensor)
        if known is not None and known[0] == storage.generation:
            return known[1]
        step = builder.step_behind(storage.lost_at)
        assumption = Assumption(step, "new_history", "a parameter that was made or changed here",
                                split=step > storage.lost_at)
        leaf = builder.speculation.begin_at(node, tensor, assumption)
        builder.save(storage)
        storage.values = (*storage.values, node, leaf)
        self._leaves[tensor] = storage.generation, leaf

        def undo() -> None:
            self._leaves.pop(tensor) if known is None else self._leaves.__setitem__(tensor, known)

        builder.journal.append(undo)
        return leaf

    def seen_by_views(self, tensor: TracedTensor) -> TracedTensor:
        """A parameter as the base of a view that has a history: views are of the leaf, in memory of its own."""
        leaf = self.root(tensor)
        memory = self._shown.get(leaf)
        if memory is None:
            memory = self._shown[leaf] = Storage(leaf)
            memory.frozen = True
            self._stand_for[memory] = tensor.storage, tensor.storage.generation
            self._builder.journal.append(lambda: self._stand_for.pop(self._shown.pop(leaf)))  # type: ignore[arg-type,return-value]
        return TracedTensor(self._builder, memory, (), leaf, leaf.tensor)

    def note_view(self, step: ViewStep) -> None:
        """A view of a parameter is made under no_grad."""
        self._unrecorded[step] = Assumption(self._builder.step(), "unsupported_op", _UNRECORDED)

    def unrecorded(self, tensor: TracedTensor) -> Assumption | None:
        """The assumption that nobody asks for the history of such a view, unless it is none."""
        found = None
        for step in tensor.chain:
            found = None if step.op.target is _DETACH else self._unrecorded.get(step, found)
        return found

    def is_stale(self, tensor: TracedTensor) -> bool:
        """Whether it is a view of a leaf whose parameter was changed since."""
        memory, generation = self._stand_for.get(tensor.storage, (None, 0))
        return memory is not None and memory.generation != generation


__all__ = ["Parameters"]
