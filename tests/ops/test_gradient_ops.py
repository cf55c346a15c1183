"""Ops of backward passes as generated kernels: no further from a float64 reference than eager's kernels are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from jitpy.backends.codegen import compile_graph
from jitpy.ir import Graph, ops
from jitpy.ir.graph import GETITEM
from jitpy.schedule.lower import lower
from tests.graph_tools import spec_of
from tests.ops.gradient_calls import Call, recorded

#: Ops, and the operators of torch's database whose samples call them.
OPS: dict[str, tuple[str, ...]] = {
    "threshold_backward": ("nn.functional.relu", "nn.functional.threshold"),
    "gelu_backward": ("nn.functional.gelu",),
    "silu_backward": ("nn.functional.silu",),
    "mish_backward": ("nn.functional.mish",),
    "tanh_backward": ("tanh", "nn.functional.tanhshrink"),
    "sigmoid_backward": ("sigmoid",),
    "softplus_backward": ("nn.functional.softplus",),
    "hardtanh_backward": ("nn.functional.hardtanh", "nn.functional.relu6"),
    "hardswish_backward": ("nn.functional.hardswish",),
    "hardsigmoid_backward": ("nn.functional.hardsigmoid",),
    "hardshrink_backward": ("nn.functional.hardshrink",),
    "softshrink_backward": ("nn.functional.softshrink",),
    "leaky_relu_backward": ("nn.functional.leaky_relu",),
    "elu_backward": ("nn.functional.elu", "nn.functional.selu", "nn.functional.celu"),
    "log_sigmoid_backward": ("nn.functional.logsigmoid",),
    "glu_backward": ("nn.functional.glu",),
    "_softmax_backward_data": ("softmax", "nn.functional.softmin"),
    "_log_softmax_backward_data": ("log_softmax", "nn.functional.cross_entropy"),
    "mse_loss_backward": ("nn.functional.mse_loss",),
    "smooth_l1_loss_backward": ("nn.functional.smooth_l1_loss",),
    "huber_loss_backward": ("nn.functional.huber_loss",),
    "nll_loss_forward": ("nn.functional.nll_loss", "nn.functional.cross_entropy"),
    "nll_loss_backward": ("nn.functional.nll_loss", "nn.functional.cross_entropy"),
    "nll_loss2d_forward": ("nn.functional.nll_loss", "nn.functional.cross_entropy"),
    "nll_loss2d_backward": ("nn.functional.nll_loss", "nn.functional.cross_entropy"),
    "native_layer_norm_backward": ("nn.functional.layer_norm", "native_layer_norm"),
    "native_group_norm": ("nn.functional.group_norm",),
    "native_group_norm_backward": ("nn.functional.group_norm",),
    "native_batch_norm_backward": ("nn.functional.batch_norm", "nn.functional.instance_norm"),
    "slice_backward": ("__getitem__", "narrow"),
    "select_backward": ("__getitem__", "select"),
    "diagonal_backward": ("diagonal", "linalg.diagonal"),
    "embedding_dense_backward": ("nn.functional.embedding",),
    "max_pool2d_with_indices": ("nn.functional.max_pool2d",),
    "max_pool2d_with_indices_backward": ("nn.functional.max_pool2d",),
    "avg_pool2d": ("nn.functional.avg_pool2d",),
    "avg_pool2d_backward": ("nn.functional.avg_pool2d",),
    "_adaptive_avg_pool2d": ("nn.functional.adaptive_avg_pool2d",),
    "_adaptive_avg_pool2d_backward": ("nn.functional.adaptive_avg_pool2d",),
}


def randn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype)


#: Calls for which the database has no samples that kernels take, by dtype.
OWN: dict[str, Callable[[torch.dtype], list[tuple[Any, ...]]]] = {
    "upsample_nearest2d": lambda t: [
        (randn(2, 3, 4, 5, dtype=t), [8, 10], 2.0, 2.0),
        (randn(2, 3, 4, 5, dtype=t), [12, 5]),
        (randn(1, 2, 7, 3, dtype=t), [49, 21], 7.0, 7.0),
    ],
    "upsample_nearest2d_backward": lambda t: [
        (randn(2, 3, 8, 10, dtype=t), [8, 10], [2, 3, 4, 5], 2.0, 2.0),
        (randn(2, 3, 12, 5, dtype=t), [12, 5], [2, 3, 4, 5]),
    ],
    "index_add": lambda t: [
        (torch.zeros(5, 70, dtype=t), 0, torch.tensor([0, 3, 3, 4, 0, 3]), randn(6, 70, dtype=t)),
        (randn(3, 5, 4, dtype=t), 1, torch.tensor([2, 2]), randn(3, 2, 4, dtype=t)),
        (randn(6, dtype=t), 0, torch.tensor([5, 1, 5], dtype=torch.int32), randn(3, dtype=t)),
    ],
    "scatter_add": lambda t: [
        (torch.zeros(4, 5, dtype=t), 1, torch.randint(0, 5, (4, 9)), randn(4, 9, dtype=t)),
        (randn(4, 5, dtype=t), 0, torch.randint(0, 4, (3, 2)), randn(6, 4, dtype=t)),
        (torch.zeros(9, dtype=t), 0, torch.randint(0, 9, (40,)), randn(40, dtype=t)),
        (torch.zeros(30, 7, 33, dtype=t), 1, torch.randint(0, 7, (30, 7, 33)), randn(30, 7, 33, dtype=t)),
    ],
    "index_put": lambda t: [
        (torch.zeros(6, 40, dtype=t), [torch.tensor([1, -1, 1, 5])], randn(4, 40, dtype=t), True),
        (randn(6, 4, 5, dtype=t), [None, torch.tensor([[0, 3], [3, 3]])], randn(6, 2, 2, 5, dtype=t), True),
        (torch.zeros(6, 4, 5, dtype=t), [torch.tensor([0, 5]), None, torch.tensor([2, 2])], randn(4, dtype=t), True),
        (torch.zeros(6, 4, dtype=t), [torch.tensor([[1], [2]]), torch.tensor([0, 0, 3])], randn(1, dtype=t), True),
    ],
    "embedding_dense_backward": lambda t: [
        (randn(50, 64, dtype=t), torch.randint(0, 9, (50,)), 9, -1, False),
        (randn(3, 4, 24, dtype=t), torch.randint(0, 9, (3, 4), dtype=torch.int32), 9, 2, False),
    ],
    "slice_scatter": lambda t: [(randn(5, 6, dtype=t), randn(5, 2, dtype=t), 1, 1, 5, 2)],
    "select_scatter": lambda t: [(randn(5, 6, dtype=t), randn(5, dtype=t), 1, -2)],
    "diagonal_scatter": lambda t: [(randn(5, 6, 3, dtype=t), randn(6, 3, dtype=t), -2, 0, 2)],
    "max_pool2d_with_indices": lambda t: [
        (randn(2, 3, 9, 12, dtype=t).index_fill(3, torch.tensor([2, 5]), torch.nan), [3, 3], [2, 2], [1, 1]),
        (torch.full((1, 1, 5, 5), -torch.inf, dtype=t), [2, 2]),
    ],
}


def compiled(call: Call) -> Any:
    """The call as a graph of its own through the C++ backend, and whether kernels do all of it."""
    graph = Graph()

    def node(value: Any) -> Any:
        return graph.add_input(spec_of(value)) if isinstance(value, torch.Tensor) else value

    args, kwargs = tree_map(node, call.args), tree_map(node, call.kwargs)
    op = ops.get(call.op)
    spec = ops.infer(op, graph.sizes, args, kwargs, False)
    made = graph.add(op, args, kwargs, spec)
    if isinstance(spec, tuple):
        graph.outputs = [
            graph.add(GETITEM, (made, k), {}, part) for k, part in enumerate(spec) if part is not None
        ]
    else:
        graph.outputs = [made]
    return compile_graph(graph), lower(graph).reasons


def wide(value: Any) -> Any:
    """The argument in float64."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value


def tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]


def error(found: torch.Tensor, reference: torch.Tensor) -> float:
    same = (found == reference) | (found.isnan() & reference.isnan())
    return float(torch.where(same, 0.0, (found.double() - reference).abs()).nan_to_num(torch.inf).max())


def check(call: Call) -> bool:
    """Compare one call; whether kernels did it."""
    eager = tensors(call.op(*call.args, **call.kwargs))
    reference = tensors(call.op(*tree_map(wide, call.args), **tree_map(wide, call.kwargs)))
    run, reasons = compiled(call)
    found = run(*tensors((call.args, call.kwargs)))
    assert len(found) == len(eager), call.origin
    for got, wanted, exact in zip(found, eager, reference, strict=True):
        assert got.dtype is wanted.dtype and got.shape == wanted.shape and got.stride() == wanted.stride(), call.origin
        if not got.is_floating_point():
            assert torch.equal(got, wanted), call.origin
        if not got.numel() or not got.is_floating_point():
            continue
        # the reference is no more exact than float64 results are
        unit = 1e-12 if got.dtype is torch.float64 else torch.finfo(got.dtype).eps
        slack = unit * max(1.0, float(exact.nan_to_num(0, 0, 0).abs().max()))
        assert error(got, exact) <= 1.1 * error(wanted, exact) + 4 * slack, call.origin
    return not reasons


#: whose 16-bit forms are eager's, which add in float32 and round once
ADDED_IN_FLOAT32 = ("index_add", "scatter_add")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", sorted({*OPS, *OWN}))
def test_no_further_off_than_eager(name: str, dtype: torch.dtype) -> None:
    op = getattr(torch.ops.aten, name).default
    torch.manual_seed(0)
    own = [Call(op, args, {}, f"own call {k}") for k, args in enumerate(OWN[name](dtype) if name in OWN else ())]
    calls = recorded(OPS.get(name, ()), frozenset({str(op)}), dtype)
    if not calls and not own:
        assert dtype is torch.bfloat16
        pytest.skip("no samples of this dtype")
    native = [check(call) for call in calls[:: -(-len(calls) // 6) or 1]]
    own_native = [check(call) for call in own]
    if dtype is torch.bfloat16 and name in ADDED_IN_FLOAT32:
        return
    assert not calls or any(native), "every call was left to eager"
    assert all(own_native)


def test_rms_norm_backward() -> None:
    """torch has this kernel on other devices only: compared with its own derivative."""
    x, weight, grad = torch.randn(4, 6, 32), torch.randn(32), torch.randn(4, 6, 32)
    inputs = [x.double().requires_grad_(), weight.double().requires_grad_()]
    exact = torch.autograd.grad(torch.nn.functional.rms_norm(inputs[0], [32], inputs[1], 1e-5), inputs, grad.double())
    scale = (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()
    op = torch.ops.aten._fused_rms_norm_backward.default
    run, reasons = compiled(Call(op, (grad, x, [32], scale, weight, [True, True]), {}, "rms_norm"))
    assert not reasons
    for got, wanted in zip(run(grad, x, scale, weight), exact, strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)
