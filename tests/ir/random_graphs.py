"""Random small graphs of ops that the passes rewrite, and the comparison of two runs bit by bit."""

from __future__ import annotations

import math
import random
from typing import Any

import torch

from jitpy.ir import Graph, Mutation, Node, NotCovered, TensorSpec
from jitpy.ir.alias import any_needs_grad
from jitpy.ir.builder import Builder
from jitpy.ir.interpret import resolve

SPECIAL = [0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 1e-45, 3.5, -2.25, 65504.0, 1e38]
CONSTANTS: list[Any] = [0, 1, 2, -1, 0.0, -0.0, 1.0, 0.5, 8, 3.0, True]
DTYPES = [torch.float32, torch.float16, torch.int64, torch.bool, torch.float64]
SHAPES: list[tuple[int, ...]] = [(2, 3), (2, 3), (3,), (6,), (1, 3), ()]


def make_value(rng: random.Random, dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool) -> torch.Tensor:
    count = math.prod(shape)
    if dtype.is_floating_point:
        numbers = [rng.choice(SPECIAL) if rng.random() < 0.6 else rng.uniform(-4, 4) for _ in range(count)]
    else:
        numbers = [rng.randint(-3, 3) for _ in range(count)]
    value = torch.tensor(numbers, dtype=torch.float64 if dtype.is_floating_point else torch.int64)
    return value.to(dtype).reshape(shape).clone().requires_grad_(requires_grad)


def random_graph(seed: int, size: int = 12, *, grad: bool = False, dynamic: bool = False,
                 mutate: bool = True) -> tuple[Graph, list[torch.Tensor]]:
    """A graph and inputs for it. With `grad`, some inputs require grad; with `dynamic`, a size of 2 is a symbol."""
    rng = random.Random(seed)
    graph = Graph()
    symbol = graph.sizes.new_symbol(2, None, 0) if dynamic else 2
    inputs = []
    for _ in range(rng.randint(1, 3)):
        dtype, shape = rng.choice(DTYPES), rng.choice(SHAPES)
        if dynamic and not inputs:
            shape = (2, 3)
        needs = grad and dtype.is_floating_point and rng.random() < 0.7
        value = make_value(rng, dtype, shape, needs)
        sizes = tuple(symbol if n == 2 else n for n in shape)
        graph.add_input(TensorSpec(dtype, sizes, value.stride(), requires_grad=needs), "x")
        inputs.append(value)
    nodes: list[Node] = list(graph.inputs)
    values: dict[Node, Any] = dict(zip(nodes, inputs, strict=True))
    while len(nodes) < size:
        builder = Builder(graph, grad_enabled=not grad or rng.random() < 0.8)
        node = _random_call(rng, builder, nodes)
        if node is None:
            continue
        try:
            with torch.set_grad_enabled(node.grad_enabled):
                values[node] = node.op.target(*resolve(node.args, values, {symbol: 2}))
        except (RuntimeError, NotImplementedError):
            graph.nodes.remove(node)  # a kernel that does not exist for this dtype
            continue
        if any_needs_grad([node]) != _requires_grad(values[node]):
            graph.nodes.remove(node)  # a view made under no_grad of what requires grad
        elif isinstance(node.spec, tuple):
            for i in rng.sample(range(len(node.spec)), rng.randint(0, len(node.spec))):
                nodes.append(builder.getitem(node, i))
                values[nodes[-1]] = values[node][i]
        else:
            nodes.append(node)
    graph.outputs = [rng.choice(nodes) for _ in range(rng.randint(1, 3))]
    if mutate:
        for i in range(len(graph.inputs)):
            own = graph.inputs[i].tensor
            fits = [n for n in nodes if (n.tensor.dtype, n.tensor.shape) == (own.dtype, own.shape)]
            if rng.random() < 0.3 and not own.requires_grad:
                value = rng.choice(fits)
                if not value.tensor.requires_grad:
                    graph.mutations.append(Mutation(i, value))
    return graph, inputs


def _random_call(rng: random.Random, b: Builder, nodes: list[Node]) -> Node | None:
    # recent nodes are more likely, so that chains come about
    x = nodes[max(rng.randrange(len(nodes)), rng.randrange(len(nodes)))]
    ndim, shape = x.tensor.ndim, x.tensor.shape
    same = [n for n in nodes if n.tensor.shape == shape and n.tensor.dtype == x.tensor.dtype]
    y = rng.choice(same)
    c = rng.choice(CONSTANTS)
    axis = rng.randrange(-ndim, ndim) if ndim else 0
    other = rng.randrange(-ndim, ndim) if ndim else 0
    order = rng.sample(range(ndim), ndim)
    calls: list[tuple[Any, ...]] = [
        ("aten.mul.Tensor", x, c), ("aten.mul.Tensor", x, y), ("aten.add.Tensor", x, c), ("aten.add.Tensor", x, y),
        ("aten.add.Tensor", x, c), ("aten.sub.Tensor", x, c), ("aten.div.Tensor", x, c), ("aten.div.Tensor", x, y),
        ("aten.neg.default", x), ("aten.abs.default", x), ("aten.relu.default", x), ("aten.exp.default", x),
        ("aten.logical_not.default", x), ("aten.bitwise_not.default", x), ("aten.clone.default", x),
        ("aten.contiguous.default", x), ("aten.copy.default", y, x),
        ("aten.where.self", rng.choice(nodes), x, rng.choice([x, y])),
        ("aten.to.dtype", x, rng.choice([x.tensor.dtype, torch.float64, torch.float32, torch.float16])),
        ("aten.dropout.default", x, rng.choice([0.0, 0.5]), False), ("aten.type_as.default", x, rng.choice(nodes)),
        ("aten.cat.default", [x]), ("aten.cat.default", [x, y]), ("aten.sum.default", x),
        ("aten.view.default", x, list(shape)), ("aten.reshape.default", x, [-1]),
        ("aten.view.default", x, [-1]), ("aten.expand.default", x, list(shape)),
        ("aten.unsqueeze.default", x, axis), ("aten.squeeze.dim", x, axis),
        ("aten.expand.default", x, [2, *shape]), ("aten.copy.default", rng.choice(nodes), x),
        ("aten.transpose.int", x, axis, other),
        ("aten.transpose.int", x, other, axis), ("aten.permute.default", x, order), ("aten.t.default", x),
        ("aten.slice.Tensor", x, axis, 0, rng.choice([2**63 - 1, 1, 3])), ("aten.detach.default", x),
        ("aten.full.default", [3], 2.0), ("aten.arange.default", 3),
    ]
    calls += [("aten.split.Tensor", x, 2, axis), ("aten.unbind.int", x, axis), ("aten.max.dim", x, axis),
              ("aten.sort.default", x, axis), ("aten.chunk.default", x, 2, axis), ("aten.select.int", x, axis, 0)]
    name, *args = rng.choice(calls)
    if name == "aten.copy.default" and any(arg.tensor.requires_grad for arg in args):
        return None  # torch has no gradient for it
    try:
        return b.call(name, *args)
    except (RuntimeError, IndexError, TypeError, ValueError, NotCovered):
        return None


def _requires_grad(value: Any) -> bool:
    return any(map(_requires_grad, value)) if isinstance(value, (tuple, list)) else value.requires_grad


def clones(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal metadata and bits, all NaNs alike."""
    if (a.dtype, a.shape, a.stride(), a.requires_grad) != (b.dtype, b.shape, b.stride(), b.requires_grad):
        return False
    a, b = a.detach(), b.detach()
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    nan = a.isnan()
    return torch.equal(nan, b.isnan()) and torch.equal(a[~nan], b[~nan]) and \
        torch.equal(a[~nan].signbit(), b[~nan].signbit())


def sharing(tensors: list[torch.Tensor]) -> list[tuple[bool, bool]]:
    """For each pair: whether it is one object, and whether it shares memory."""
    return [(a is b, a.untyped_storage()._cdata == b.untyped_storage()._cdata)
            for i, a in enumerate(tensors) for b in tensors[:i]]
