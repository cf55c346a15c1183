"""What eager's autograd keeps of an op: found by running the op on meta tensors and watching what it saves.

Eager refuses to run a backward pass when a tensor that it kept was changed in place meanwhile. In a functional graph
nothing changes, so the recorder has to know, and leaves such writes to eager.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import sympy
import torch

from jitpy.ir import CONSTANT, GETITEM, INPUT, Node, Op, ScalarSpec, Spec, TensorSpec, map_nodes
from jitpy.ir.ops.quiet import without_compiler_import

from .scalars import SAMPLES

if TYPE_CHECKING:
    from .recorder import Recorder


#: Ops whose backward pass needs no input, and ops whose backward pass does not need the result: asked too often to run
#: them.
_KEEPS_NO_INPUT = frozenset(
    {"add", "sub", "rsub", "neg", "clone", "_to_copy", "sum", "mean", "cat", "stack", "fill", "zero"}
)
_KEEPS_NO_RESULT = _KEEPS_NO_INPUT | {
    "mul",
    "div",
    "linear",
    "matmul",
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "embedding",
    "layer_norm",
    "native_layer_norm",
    "gelu",
    "silu",
    "conv1d",
    "conv2d",
    "conv3d",
    "convolution",
    "index",
    "where",
    "masked_fill",
    "select_scatter",
    "slice_scatter",
    "index_put",
}


def keeps_value(recorder: Recorder, values: Iterable[Node], since: int, writers: Collection[Node]) -> bool:
    """Whether autograd keeps one of `values`, which have been in one memory, or a view of one. What a backward pass has
    run through is kept no longer.

    Looks at the ops that made them, and at the nodes recorded from position `since` on. `writers`, which computed what
    was written, may keep what they read: eager's in-place ops see to that themselves.
    """
    memory = set(values)
    freed = recorder.history.freed
    for value in values:
        producer, index = (value.args[0], value.args[1]) if value.op is GETITEM else (value, 0)
        if (
            producer.op not in (INPUT, CONSTANT)
            and short_name(producer.op) not in _KEEPS_NO_RESULT
            and requires_grad(value.spec)
            and producer not in freed
            and index in saved_values(recorder, producer)[1]
        ):
            return True
    for node in recorder.graph.nodes[since:]:
        if node in writers:
            continue
        reads = [n for n in node.input_nodes() if n in memory]
        if not reads:
            continue
        if node.op.is_view or node.op is GETITEM:
            memory.add(node)
        elif (
            requires_grad(node.spec)
            and node not in freed
            and short_name(node.op) not in _KEEPS_NO_INPUT
            and not saved_values(recorder, node)[0].isdisjoint(reads)
        ):
            return True
    return False


def saved_values(recorder: Recorder, node: Node) -> tuple[set[Node], set[int]]:
    """The inputs that autograd keeps for a node's backward pass, and the positions of the results that it keeps."""
    found = _watched(recorder, node)
    if found is None:  # not known: assume the worst
        return set(node.input_nodes()), set(range(len(node.spec) if isinstance(node.spec, tuple) else 1))
    stand_ins, result, kept = found
    inputs = {
        source
        for source, value in stand_ins.items()
        if isinstance(value, torch.Tensor) and value.untyped_storage()._cdata in kept
    }
    results = result if isinstance(result, (tuple, list)) else (result,)
    return inputs, {
        i for i, r in enumerate(results) if isinstance(r, torch.Tensor) and r.untyped_storage()._cdata in kept
    }


def keeps_anything(recorder: Recorder, node: Node) -> bool:
    """Whether autograd keeps any tensor for a node's backward pass, be it one that only the op knows."""
    if node.op is GETITEM:
        return False
    found = _watched(recorder, node)
    return found is None or bool(found[2])


def _watched(recorder: Recorder, node: Node) -> tuple[dict[Node, Any], Any, set[int]] | None:
    """A node's op run on meta tensors: what stood for its inputs, its result, and the memory that autograd kept. None
    where it does not run on them."""
    hints = recorder.sizes.hints
    stand_ins: dict[Node, Any] = {}

    def stand_in(source: Node) -> Any:
        if source not in stand_ins:
            spec = source.spec
            if isinstance(spec, ScalarSpec):
                stand_ins[source] = SAMPLES[spec.kind]
            elif isinstance(spec, TensorSpec):
                tensor = torch.empty_strided(hints(spec.shape), hints(spec.stride), dtype=spec.dtype, device="meta")
                stand_ins[source] = tensor.requires_grad_(spec.requires_grad)
        return stand_ins[source]

    kept: set[int] = set()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.add(tensor.untyped_storage()._cdata)
        return tensor

    try:
        args, kwargs = (_plain(recorder, map_nodes(a, stand_in)) for a in (node.args, node.kwargs))
        with (
            without_compiler_import(),
            torch.enable_grad(),
            torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        ):
            result = node.op.target(*args, **kwargs)
    except Exception:
        return None
    return stand_ins, result, kept


def _plain(recorder: Recorder, value: Any) -> Any:
    """Sizes as ints, devices as meta."""
    if isinstance(value, sympy.Basic):
        return recorder.sizes.hint(value)
    if isinstance(value, torch.device):
        return torch.device("meta")
    if isinstance(value, (tuple, list)):
        return type(value)(_plain(recorder, v) for v in value)
    if isinstance(value, dict):
        return {k: _plain(recorder, v) for k, v in value.items()}
    return value


def short_name(op: Op) -> str:
    """`add` of `aten.add.Tensor`."""
    return op.name.split(".")[1]


def requires_grad(spec: Spec) -> bool:
    """Whether any tensor of a result requires grad."""
    if isinstance(spec, tuple):
        return any(map(requires_grad, spec))
    return isinstance(spec, TensorSpec) and spec.requires_grad
