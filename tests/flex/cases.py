"""Functions of scores and masks as graphs of one element, and block masks, for tests of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from jitpy.ir.flex_attention import FlexAttention, FlexAttentionBackward, results_of
from jitpy.ir.graph import GETITEM, Graph, Node
from jitpy.ir.spec import TensorSpec, contiguous_spec
from tests.graph_tools import spec_of, trace

Tensor = torch.Tensor
BF16, HALF = torch.bfloat16, torch.float16
at = torch.ops.aten.index.Tensor


def element(dtype: torch.dtype = torch.int32) -> Tensor:
    """A stand-in for a number of one element."""
    return torch.zeros((), dtype=dtype)


@dataclass(frozen=True)
class Mod:
    """A function of scores (`score`) or a mask (`mask`), with the tensors that each captures. `pull` is the gradient of
    the score and of each read of a capture, with its places: see `FlexAttentionBackward`."""

    score: Callable[..., Tensor] | None = None
    score_captures: tuple[Tensor, ...] = ()
    mask: Callable[..., Tensor] | None = None
    mask_captures: tuple[Tensor, ...] = ()
    pull: Callable[..., Any] | None = None
    reads: tuple[tuple[int, int], ...] = ()

    def forward(self, scale: float, block: tuple[int, int], options: dict[str, Any] | None = None) -> FlexAttention:
        places = [element() for _ in range(4)]
        score = None if self.score is None else trace(self.score, [element(torch.float32), *places,
                                                                   *map(Tensor.cpu, self.score_captures)])
        mask = None if self.mask is None else trace(self.mask, [*places, *map(Tensor.cpu, self.mask_captures)])
        return FlexAttention(score, mask, len(self.score_captures), scale, block, options=options or {})

    def backward(self, forward: FlexAttention) -> FlexAttentionBackward:
        pull = None
        if self.pull is not None:
            inputs = [element(torch.float32), *(element() for _ in range(4)), element(torch.float32)]
            pull = trace(self.pull, [*inputs, *map(Tensor.cpu, self.score_captures)])
        return FlexAttentionBackward(forward, pull, self.reads)

    @property
    def captures(self) -> tuple[Tensor, ...]:
        return self.score_captures + self.mask_captures


def dense_mask(mod: Mod, sizes: tuple[int, int, int, int]) -> Tensor:
    """Who sees whom, for all of batch, head, query and key."""
    grid = [torch.arange(size, dtype=torch.int32).view([-1 if a == k else 1 for a in range(4)])
            for k, size in enumerate(sizes)]
    if mod.mask is None:
        return torch.ones(sizes, dtype=torch.bool)
    return mod.mask(*grid, *mod.mask_captures).broadcast_to(sizes)


def block_lists(seen: Tensor, block: tuple[int, int], separate: bool = True) -> list[Tensor | None]:
    """The eight tensors of a block mask."""
    block = tuple(min(one, 256) for one in block)
    rows, columns = (-(-size // one) for size, one in zip(seen.shape[2:], block, strict=True))
    padded = torch.zeros((*seen.shape[:2], rows * block[0], columns * block[1]), dtype=torch.bool)
    padded[..., :seen.shape[2], :seen.shape[3]] = seen
    counts = padded.view(*seen.shape[:2], rows, block[0], columns, block[1]).sum((3, 5))
    full = counts == block[0] * block[1]
    some = (counts > 0) & ~full if separate else counts > 0

    def lists(which: Tensor) -> list[Tensor]:
        order = which.to(torch.int32).argsort(dim=-1, descending=True, stable=True)
        return [which.sum(-1).to(torch.int32), order.to(torch.int32).contiguous()]

    none: list[Tensor | None] = [None, None]
    return [*lists(some), *(lists(full) if separate else none),
            *lists(some.mT), *(lists(full.mT) if separate else none)]


@dataclass
class Case:
    """Inputs, and the graphs of both passes."""

    mod: Mod
    query: Tensor
    key: Tensor
    value: Tensor
    blocks: Sequence[Tensor | None]
    forward: FlexAttention
    #: whether sizes of batch, queries, keys and block lists are symbols
    dynamic: bool = False
    inputs: list[Tensor] = field(default_factory=list)
    _symbols: dict[str, Any] = field(default_factory=dict)

    def graph(self) -> Graph:
        """The forward pass."""
        graph = self._graph("forward")
        q, k, v, blocks, captures = self._inputs(graph)
        specs = results_of(q.spec, v.spec, self.forward.layout)
        node = graph.add(self.forward.op(specs), (q, k, v, blocks, captures), {}, specs)
        graph.outputs = [graph.add(GETITEM, (node, n), {}, spec) for n, spec in enumerate(specs)]
        return graph

    def gradients(self, grad_out: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor) -> Graph:
        """The backward pass."""
        graph = self._graph("backward")
        given = [None if t is None else graph.add_input(self._spec(t, self._rows()))
                 for t in (grad_out, grad_lse, out, lse)]
        target = self.mod.backward(self.forward)
        q, k, v, blocks, captures = self._inputs(graph)
        self.inputs = [*(t for t in (grad_out, grad_lse, out, lse) if t is not None), *self.inputs]
        numbers = sorted({number for number, _ in target.reads})
        specs = (*(contiguous_spec(node.spec.dtype, node.spec.shape, node.spec.device) for node in (q, k, v)),
                 *(spec_of(self.mod.captures[n].contiguous()) for n in numbers))
        node = graph.add(target.op(specs), (*given, q, k, v, blocks, captures), {}, specs)
        graph.outputs = [graph.add(GETITEM, (node, n), {}, spec) for n, spec in enumerate(specs)]
        return graph

    def _graph(self, name: str) -> Graph:
        graph = Graph(name)
        if self.dynamic:
            sizes = {"batch": self.query.size(0), "queries": self.query.size(2), "keys": self.key.size(2)}
            if self.blocks[0] is not None and self.blocks[1] is not None:
                sizes |= {"rows": self.blocks[0].size(2), "columns": self.blocks[1].size(3)}
            self._symbols = {name: graph.sizes.new_symbol(size, name, 0) for name, size in sizes.items()}
        return graph

    def _rows(self, side: str = "queries") -> dict[int, str]:
        return {0: "batch", 2: side}

    def _spec(self, tensor: Tensor, names: dict[int, str]) -> TensorSpec:
        """The spec, with symbols for the axes that have names."""
        spec = spec_of(tensor)
        if not self.dynamic:
            return spec
        shape = tuple(self._symbols[names[k]] if k in names else size for k, size in enumerate(spec.shape))
        return contiguous_spec(spec.dtype, shape, spec.device)

    def _inputs(self, graph: Graph) -> tuple[Any, ...]:
        self.inputs = [self.query, self.key, self.value, *(t for t in self.blocks if t is not None),
                       *self.mod.captures]
        q, k, v = (graph.add_input(self._spec(t, self._rows(side))) for t, side in
                   ((self.query, "queries"), (self.key, "keys"), (self.value, "keys")))
        blocks: list[Node | None] = []
        for n, tensor in enumerate(self.blocks):
            names = {2: "rows", 3: "columns"} if n < 4 else {2: "columns", 3: "rows"}
            blocks.append(None if tensor is None else graph.add_input(self._spec(tensor, names)))
        return q, k, v, tuple(blocks), tuple(graph.add_input(spec_of(t)) for t in self.mod.captures)


def case(mod: Mod, shape: tuple[int, int, int, int, int, int] = (2, 4, 2, 150, 170, 32),
         block: tuple[int, int] = (64, 64), dtype: torch.dtype = torch.float32, separate: bool = True,
         shared: bool = False, options: dict[str, Any] | None = None, value_size: int | None = None,
         dynamic: bool = False) -> Case:
    """`shape`: batch, heads, heads of keys, queries, keys, size. `shared`: one mask for all of batch and heads."""
    batch, heads, key_heads, queries, keys, size = shape
    q, k, v = (torch.randn(batch, *one).to(dtype) for one in
               ((heads, queries, size), (key_heads, keys, size), (key_heads, keys, value_size or size)))
    lists = block_lists(dense_mask(mod, (1, 1, queries, keys) if shared else (batch, heads, queries, keys)), block,
                        separate)
    return Case(mod, q, k, v, lists, mod.forward(size ** -0.5, block, options), dynamic)


def compare(found: Sequence[Tensor], eager: Sequence[Tensor], exact: Sequence[Tensor]) -> None:
    """No further from the exact results than the dense reference, but for what chance adds: in gradients of slopes,
    terms a hundred times as large as their sum cancel."""
    assert len(found) == len(eager) == len(exact)
    for one, like, right in zip(found, eager, exact, strict=True):
        assert one.dtype is like.dtype and one.shape == like.shape and one.stride() == like.stride()
        assert torch.equal(one.isinf(), right.isinf())
        finite = right.isfinite()
        size = right.double()[finite].norm().item() or 1.0
        errors = [(value.double() - right.double())[finite].norm().item() / size for value in (one, like)]
        assert errors[0] <= 1.2 * errors[1] + 6e-6, errors


def compare_passes(given: Case, run: Callable[..., tuple[Tensor, ...]], with_lse: bool = True) -> None:
    """Both passes against the dense reference, and that in double precision. `run(graph, inputs)` has kernels."""
    def reference(*tensors: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        query, key, value, grad, grad_lse = tensors
        results = given.forward(query, key, value, given.blocks, given.mod.captures)
        pull = given.mod.backward(given.forward)
        lse = torch.where(results[1].isinf(), 0, grad_lse) if with_lse else None
        return results, pull(grad, lse, results[0], results[1], query, key, value, given.blocks, given.mod.captures)

    grad = torch.randn(*given.query.shape[:3], given.value.shape[3]).to(given.query.dtype)
    tensors = (given.query, given.key, given.value, grad, torch.randn(given.query.shape[:3]))
    results, gradients = reference(*tensors)
    exact_results, exact_gradients = reference(*(one.double() for one in tensors))
    compare(run(given.graph(), given.inputs), results, exact_results)
    lse = torch.where(results[1].isinf(), 0, tensors[4]) if with_lse else None
    compare(run(given.gradients(grad, lse, results[0], results[1]), given.inputs), gradients, exact_gradients)


def with_wrong_blocks() -> Case:
    """Lists that name blocks which do not exist behind those that do."""
    given = case(MODS["soft cap"](), (2, 4, 2, 90, 100, 16), (32, 32), separate=True)
    for counts, indices in zip(given.blocks[::2], given.blocks[1::2], strict=True):
        assert counts is not None and indices is not None
        more = counts < indices.size(3)
        last = torch.arange(indices.size(3)) == counts[..., None]
        indices.copy_(torch.where(last, torch.tensor([-1, 9, 4, 7])[:indices.size(2), None], indices))
        counts += more
    return given


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def window(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q >= k) & (q - k <= 40)


def soft_cap(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return 5.0 * torch.tanh(score / 5.0)


def soft_cap_pull(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor, grad: Tensor) -> Tensor:
    t = torch.tanh(score / 5.0)
    return grad * (1 - t * t)


def alibi(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor, slopes: Tensor) -> Tensor:
    return score + at(slopes, [h]) * (k - q)


def alibi_pull(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor, grad: Tensor, slopes: Tensor) -> Any:
    return grad, grad * (k - q), h


def document(b: Tensor, h: Tensor, q: Tensor, k: Tensor, ids: Tensor) -> Tensor:
    return (at(ids, [q]) == at(ids, [k])) & (q >= k)


def relative(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor, table: Tensor) -> Tensor:
    return score + at(table, [h, q - k + 200])


def relative_pull(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor, grad: Tensor, table: Tensor) -> Any:
    return grad, grad, h, q - k + 200


def per_key(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor, bias: Tensor, factor: Tensor) -> Tensor:
    return score * factor + at(bias, [b, k])


def per_key_pull(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor, grad: Tensor, bias: Tensor,
                 factor: Tensor) -> Any:
    return grad * factor, grad, b, k, grad * score


def bias_of_keys(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor, table: Tensor) -> Tensor:
    return score + at(table, [h, k])


def nothing_for_some(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Rows that see nothing, in blocks that are listed and in those that are not."""
    return (q >= k) & (q % 7 != 3) & (q < 100)


def ids() -> Tensor:
    return (torch.arange(200) // 45).to(torch.int32)


#: by name; made anew for each test
MODS: dict[str, Callable[[], Mod]] = {
    "plain": Mod,
    "causal": lambda: Mod(mask=causal),
    "window": lambda: Mod(mask=window),
    "soft cap": lambda: Mod(soft_cap, mask=causal, pull=soft_cap_pull),
    "alibi": lambda: Mod(alibi, (torch.rand(4),), causal, pull=alibi_pull, reads=((0, 1),)),
    "document": lambda: Mod(mask=document, mask_captures=(ids(),)),
    "relative bias": lambda: Mod(relative, (torch.randn(4, 400),), causal, pull=relative_pull, reads=((0, 2),)),
    "bias of keys": lambda: Mod(per_key, (torch.randn(2, 170), torch.tensor(0.7)), window, pull=per_key_pull,
                                reads=((0, 2), (1, 0))),
    "rows without keys": lambda: Mod(mask=nothing_for_some),
}
