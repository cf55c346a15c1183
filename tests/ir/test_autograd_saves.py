"""What autograd keeps of an op, asked without its kernels, is what it keeps of real tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from jitpy.ir import Graph, TensorSpec
from jitpy.ir.autograd_saves import saved_by
from jitpy.ir.builder import Builder
from jitpy.ir.graph import Node, map_nodes
from jitpy.ir.ops import get

CALLS: dict[str, tuple[tuple[tuple[int, ...], ...], tuple[Any, ...]]] = {  # name -> (shapes, other arguments)
    "aten.add.Tensor": (((3, 4), (4,)), ()),
    "aten.mul.Tensor": (((3, 4), (4,)), ()),
    "aten.div.Tensor": (((3, 4), (3, 4)), ()),
    "aten.pow.Tensor_Scalar": (((3, 4),), (3,)),
    "aten.exp.default": (((3, 4),), ()),
    "aten.tanh.default": (((3, 4),), ()),
    "aten.relu.default": (((3, 4),), ()),
    "aten.gelu.default": (((3, 4),), ()),
    "aten.mean.default": (((3, 4),), ()),
    "aten.mean.dim": (((3, 4),), ([1],)),
    "aten.sum.dim_IntList": (((3, 4),), ([1],)),
    "aten.amax.default": (((3, 4),), ([1],)),
    "aten.var.correction": (((3, 4),), ([1],)),
    "aten.std.correction": (((3, 4),), ([1],)),
    "aten.softmax.int": (((3, 4),), (1,)),
    "aten.log_softmax.int": (((3, 4),), (1,)),
    "aten.logsumexp.default": (((3, 4),), ([1],)),
    "aten.cumsum.default": (((3, 4),), (1,)),
    "aten.linear.default": (((3, 4), (5, 4), (5,)), ()),
    "aten.matmul.default": (((2, 3, 4), (4, 5)), ()),
    "aten.addmm.default": (((5,), (3, 4), (4, 5)), ()),
    "aten.layer_norm.default": (((3, 4),), ([4],)),
    "aten.batch_norm.default": (((3, 4, 5), (4,), (4,)), (None, None, True, 0.1, 1e-5, False)),
    "aten.group_norm.default": (((3, 4, 5),), (2,)),
    "aten.conv2d.default": (((1, 3, 8, 8), (4, 3, 3, 3), (4,)), ()),
    "aten.max_pool2d_with_indices.default": (((1, 3, 8, 8),), ([2, 2],)),
    "aten.cat.default": (((3, 4),), ()),
    "aten.transpose.int": (((3, 4),), (0, 1)),
    "aten.view.default": (((3, 4),), ([12],)),
    "aten.clone.default": (((3, 4),), ()),
    "aten._to_copy.default": (((3, 4),), ()),
    "aten.where.self": (((3, 4), (3, 4)), ()),
}


def kept_of_real(target: Any, args: Any, inputs: list[torch.Tensor]) -> tuple[set[int], set[int], bool]:
    """Positions of operands and results that autograd keeps, and whether it keeps anything."""
    kept: set[int] = set()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.add(tensor.untyped_storage()._cdata)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = target(*args)
    results = result if isinstance(result, (tuple, list)) else (result,)

    def among(values: Any) -> set[int]:
        return {i for i, value in enumerate(values) if value.untyped_storage()._cdata in kept}

    return among(inputs), among(results), bool(kept)


@pytest.mark.parametrize("needing", ["all", "first", "last"])
@pytest.mark.parametrize("name", CALLS)
def test_real_tensors_are_kept_alike(name: str, needing: str) -> None:
    shapes, rest = CALLS[name]
    wanted = {"all": range(len(shapes)), "first": [0], "last": [len(shapes) - 1]}[needing]
    graph = Graph("f")
    nodes = [graph.add_input(TensorSpec(torch.float32, shape, torch.empty(shape).stride(), torch.device("cpu"),
                                        i in wanted), f"x{i}") for i, shape in enumerate(shapes)]
    tensors = [torch.rand(shape).requires_grad_(i in wanted) for i, shape in enumerate(shapes)]
    if name == "aten.cat.default":
        args: tuple[Any, ...] = ([nodes[0], nodes[0]],)
    elif name == "aten.where.self":
        mask = graph.add_input(TensorSpec(torch.bool, (3, 4), (4, 1), torch.device("cpu")), "mask")
        args, nodes, tensors = (mask, *nodes), [mask, *nodes], [torch.rand(3, 4) > 0.5, *tensors]
    elif name == "aten._to_copy.default":
        args = (nodes[0],)
    else:
        args = (*nodes, *rest)
    made = Builder(graph).call(name, *args)
    node = made[0].args[0] if isinstance(made, tuple) else made
    assert isinstance(node, Node) and node.op is get(name)
    found = saved_by(graph.sizes, node)
    assert found is not None
    real = dict(zip(nodes, tensors, strict=True))
    expected = kept_of_real(node.op.target, map_nodes(args, real.__getitem__), [real[n] for n in node.input_nodes()])
    assert (set(found.operands), set(found.results), found.anything) == expected
