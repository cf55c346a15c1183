"""Random numbers drawn a second time: what a mask costs to keep is the state of the generator that it was drawn from.

The forward half keeps the state in front of a random op (`ir.rng_state`); the backward half starts from that, runs the
op again and leaves the generator as it was (`ir.replay`).
"""

from __future__ import annotations

from typing import Any

import torch

from ..ir.graph import Graph, Node
from ..ir.op import Op
from ..ir.ops import get, infer
from ..ir.ops.random_state import READ, STATE
from ..ir.spec import TensorSpec

#: Bytes of a generator's state.
STATE_BYTES = int(STATE.numel)


def may_replay(node: Node) -> bool:
    """Whether a random op draws from the CPU's generator alone, and so draws the same again from the same state."""
    specs = node.spec if isinstance(node.spec, tuple) else (node.spec,)
    devices = {n.spec.device.type for n in node.input_nodes() if isinstance(n.spec, TensorSpec)}
    devices.update(spec.device.type for spec in specs if isinstance(spec, TensorSpec))
    return node.op.is_random and isinstance(node.op.target, torch._ops.OpOverload) and devices == {"cpu"} \
        and not any(isinstance(value, torch.Generator) for value in (*node.args, *node.kwargs.values()))


def keep_state(graph: Graph, node: Node) -> Node:
    """A node in front of a random one, with the state that the numbers are drawn from."""
    graph.add(get(READ), (), {}, STATE, node.loc, grad_enabled=False)
    made = graph.nodes.pop()
    graph.nodes.insert(graph.nodes.index(node), made)
    return made


def replaying(op: Op) -> Op:
    """The op that draws again what `op` drew: it takes the state before the arguments."""

    def target(state: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        before = torch.get_rng_state()
        torch.set_rng_state(state)
        try:
            return op.target(*args, **kwargs)
        finally:
            torch.set_rng_state(before)

    return Op("ir.replay", target, infer=lambda env, state, *args, **kwargs: infer(op, env, args, kwargs),
              aliasing=lambda *args, **kwargs: "copy")


__all__ = ["STATE_BYTES", "keep_state", "may_replay", "replaying"]
