"""`Builder`: what decompositions and passes use to put new nodes into a graph."""

from __future__ import annotations

from typing import Any

import torch

from .graph import CONSTANT, GETITEM, REGION, Graph, Loc, Node, short_name
from .op import Op
from .sizes import SizeEnv
from .spec import Spec, TensorSpec


class Builder:
    """Adds nodes at one place of a graph.

    graph    the graph that receives the nodes
    before   new nodes go in front of this one, in the order of the calls; None appends at the end. New nodes
             inherit its `loc` and `grad_enabled`.
    into     a list that receives the nodes instead of `graph.nodes`, for passes that rebuild the whole list

    region   what the new nodes belong to (`REGION` in their `meta`)

    Specs come from the op table's `infer`, or from the `spec=` argument of `call`.
    """

    def __init__(self, graph: Graph, before: Node | None = None, *, into: list[Node] | None = None,
                 loc: Loc | None = None, grad_enabled: bool | None = None, region: Any = None) -> None:
        self.graph = graph
        self._into = graph.nodes if into is None else into
        self._position: int | None = None
        if before is not None and into is None:
            self._position = graph.nodes.index(before)
        self.loc = loc if loc is not None or before is None else before.loc
        if grad_enabled is None:
            grad_enabled = True if before is None else before.grad_enabled
        self.grad_enabled = grad_enabled
        self.region = region
        #: the nodes made so far
        self.created: list[Node] = []

    @property
    def env(self) -> SizeEnv:
        """The sizes of the graph, for shape arithmetic."""
        return self.graph.sizes

    def call(self, op: Op | str | Any, *args: Any, spec: Spec | None = None, name: str | None = None,
             **kwargs: Any) -> Node:
        """A new node that runs `op` (an `Op`, a name such as `"aten.add.Tensor"`, or an overload).

        Raises what the op table's `infer` raises where the op does not accept these arguments.
        """
        from . import ops

        found = op if isinstance(op, Op) else ops.get(op)
        if spec is None:
            spec = ops.infer(found, self.env, args, kwargs, self.grad_enabled)
        return self._add(found, args, kwargs, spec, name)

    def getitem(self, node: Node, index: int) -> Node:
        """Part `index` of a multi-output node."""
        if not isinstance(node.spec, tuple):
            raise TypeError(f"{node.name} has one result, {node.spec}: nothing to index")
        return self._add(GETITEM, (node, index), {}, node.spec[index], node.name)

    def constant(self, tensor: torch.Tensor, name: str = "constant") -> Node:
        """A tensor that the graph owns from now on; nobody may write to it."""
        spec = TensorSpec(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.device,
                          tensor.requires_grad, tensor.storage_offset())
        return self._add(CONSTANT, (tensor,), {}, spec, name)

    def _add(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], spec: Spec, name: str | None) -> Node:
        node = Node(op, args, kwargs, spec, self.graph.unique_name(name or short_name(op)), self.loc, self.grad_enabled)
        if self.region is not None:
            node.meta[REGION] = self.region
        if self._position is None:
            self._into.append(node)
        else:
            self._into.insert(self._position, node)
            self._position += 1
        self.created.append(node)
        return node
