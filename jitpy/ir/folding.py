"""Values that follow from constants alone: what constant folding computes, and what tracing may know of a tensor."""

from __future__ import annotations

from typing import Any

import torch

from .algebra import sympy
from .graph import CONSTANT, Node
from .spec import TensorSpec
from .trees import tree_leaves, tree_map

#: Largest result, in elements, that is computed and kept.
FOLD_LIMIT = 4096


def is_factory(node: Node) -> bool:
    """Whether the node makes a tensor of nothing but its arguments, which a kernel does as it goes."""
    op = node.op
    return op.kind == "factory" and not op.is_random and not op.is_uninitialised and not node.input_nodes()


def foldable(node: Node, values: dict[Node, torch.Tensor], elements: int = FOLD_LIMIT,
             devices: tuple[str, ...] = ("cpu",)) -> bool:
    """Whether the node can be computed from `values`: pure, on the CPU, small, of known sizes."""
    op, spec = node.op, node.spec
    if not op.name.startswith("aten.") or op.is_random or not op.is_pure or not isinstance(spec, TensorSpec):
        return False
    if spec.device.type not in devices or spec.requires_grad or not spec.is_static or int(spec.numel) > elements:
        return False
    if _mentions_symbol((node.args, tuple(node.kwargs.values()))):
        return False
    inputs = node.input_nodes()
    return all(n in values for n in inputs) if inputs else is_factory(node) or _of_numbers(node)


def _of_numbers(node: Node) -> bool:
    """`torch.div(7, 2, rounding_mode="trunc")`: arithmetic on plain numbers."""
    return not node.tensor.shape and node.op.kind == "pointwise"


def compute(node: Node, values: dict[Node, torch.Tensor]) -> torch.Tensor | None:
    """The value of a foldable node; None where eager raises, or makes something else than the node's spec says."""
    from .interpret import resolve

    try:
        with torch.inference_mode(False), torch.no_grad(), torch._C.DisableTorchFunction():
            args, kwargs = (_on_cpu(resolve(given, values, {})) for given in (node.args, node.kwargs))
            value = node.op.target(*args, **kwargs)
    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
        # eager raises it when the graph runs, and so shall the compiled code
        return None
    spec = node.tensor
    if not isinstance(value, torch.Tensor) or (value.dtype, tuple(value.shape), value.stride()) != (
            spec.dtype, spec.shape, spec.stride):
        return None
    return value


def _on_cpu(value: Any) -> Any:
    """Arguments with the CPU in place of other devices, on which nothing is computed now."""
    return tree_map(lambda leaf: torch.device("cpu") if isinstance(leaf, torch.device) else leaf, value)


def known_value(node: Node, limit: int = 64, elements: int = FOLD_LIMIT,
                devices: tuple[str, ...] = ("cpu",)) -> torch.Tensor | None:
    """The tensor that `node` computes in every call, made on the CPU; None where it depends on inputs, more than
    `limit` nodes, or tensors of more than `elements` elements or on other `devices`."""
    order: dict[Node, None] = {}
    pending = [node]
    while pending:
        one = pending.pop()
        order.pop(one, None)
        order[one] = None  # behind everything that reads it
        if len(order) > limit or not isinstance(one.spec, TensorSpec):
            return None
        pending.extend(one.input_nodes())
    values: dict[Node, torch.Tensor] = {}
    for one in reversed(order):
        value = one.args[0] if one.op is CONSTANT else compute(one, values) \
            if foldable(one, values, elements, devices) else None
        if value is None:
            return None
        values[one] = value
    return values[node]


def _mentions_symbol(value: Any) -> bool:
    return any(isinstance(leaf, sympy.Basic) for leaf in tree_leaves(value))
