"""`flex_attention`: attention whose scores and mask are computed by graphs of their own.

Such a graph computes one element. Its inputs are 0-d tensors that say which one, then captures: numbers, 0-d tensors,
and tensors of which it reads one element by `aten.index.Tensor` with an index for each axis. A capture that no node
reads tells a size. All nodes have 0-d results.

The targets here are the dense reference: they compute all scores at once, on any device. A kernel may skip blocks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .graph import Graph
from .interpret import bind_symbols, resolve
from .op import Op
from .ops.layout import stride_less
from .sizes import SizeEnv
from .spec import Dim, Spec, TensorSpec, contiguous_spec, prod

NAME = "ir.flex_attention"
BACKWARD = "ir.flex_attention_backward"

#: The tensors of a block mask. First those to walk through keys: how many blocks each row of blocks has, and which; the
#: same for blocks that need no mask, or None. Then the same four to walk through queries, or None. All are None where
#: the mask is to be asked everywhere.
Blocks = Sequence[torch.Tensor | None]


@dataclass(slots=True)
class FlexAttention:
    """The forward pass: `(query, key, value, blocks, captures) -> (out, lse, max_scores)`.

    score           (score, batch, head, query, key, captures) -> score, in the dtype that scores are computed in; None
                    leaves scores as they are
    mask            (batch, head, query, key, captures) -> bool; None allows all
    score_captures  how many captures are those of `score`; the others are those of `mask`
    block           how many queries and keys a block has
    layout          the axes of `out`, innermost first
    options         what the program asks of kernels
    empty           the result of a row without keys, 0 or NaN

    Key and value have the batch size of the query. Blocks that are listed nowhere are skipped. A row without keys has
    -inf for its statistics. `lse` and `max_scores` are to base e, float64 for float64 and float32 otherwise.
    """

    score: Graph | None
    mask: Graph | None
    score_captures: int
    scale: float
    block: tuple[int, int]
    layout: tuple[int, ...] = (3, 2, 1, 0)
    options: dict[str, Any] = field(default_factory=dict)
    empty: float = 0.0

    def op(self, specs: Spec) -> Op:
        """The op of the one node that runs this."""
        return Op(NAME, self, infer=lambda env, *args, **kwargs: specs, aliasing=lambda *args, **kwargs: "copy",
                  differentiable=(True, True, False), keeps_all="FlexAttentionAutogradOpBackward")

    def __call__(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, blocks: Blocks,
                 captures: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        grid = _grid(query, key)
        scores = self.scores(grid, query, key, self.allowed(grid, query, key, blocks, captures), captures)[1]
        softmax = torch.softmax if math.isnan(self.empty) else torch._safe_softmax
        out = softmax(scores, -1).to(query.dtype) @ _for_heads(value, query).to(query.dtype)
        return _laid_out(out, self.layout), scores.logsumexp(-1), scores.detach().amax(-1)

    def scores(self, grid: Sequence[torch.Tensor], query: torch.Tensor, key: torch.Tensor, allowed: torch.Tensor,
               captures: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores in front of `score`, and behind it and the mask."""
        dtype = score_dtype(query.dtype)
        scores = query.to(dtype) @ _for_heads(key, query).to(dtype).transpose(-2, -1) * self.scale
        changed = scores
        if self.score is not None:
            (changed,) = _at_all(self.score, (scores, *grid, *captures[:self.score_captures]))
        return scores, torch.where(allowed, changed, float("-inf")).expand(scores.shape)

    def allowed(self, grid: Sequence[torch.Tensor], query: torch.Tensor, key: torch.Tensor, blocks: Blocks,
                captures: Sequence[Any]) -> torch.Tensor:
        """Whether a query sees a key."""
        count, indices, full_count, full_indices = blocks[:4]
        found = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=query.device)
        if count is not None and indices is not None:
            found = self._listed(count, indices, query, key)
        if self.mask is not None:
            found = found & _at_all(self.mask, (*grid, *captures[self.score_captures:]))[0]
        if full_count is not None and full_indices is not None:
            found = found | self._listed(full_count, full_indices, query, key)
        return found

    def _listed(self, count: torch.Tensor, indices: torch.Tensor, query: torch.Tensor,
                key: torch.Tensor) -> torch.Tensor:
        """Whether the block of a query and a key is listed."""
        device, columns = count.device, -(-key.size(2) // self.block[1])
        is_used = torch.arange(indices.size(-1), device=device) < count[..., None]
        # what is not used may be any number, and blocks that do not exist are nowhere
        places = torch.where(is_used & (indices >= 0), indices, columns).clamp(max=columns)
        dense = torch.zeros((*count.shape, columns + 1), dtype=torch.bool, device=device)
        dense.scatter_(-1, places.long(), True)
        rows, columns_of = (torch.arange(t.size(2), device=device) // size
                            for t, size in zip((query, key), self.block, strict=True))
        return dense[..., rows, :][..., columns_of]


@dataclass(slots=True)
class FlexAttentionBackward:
    """The gradients: `(grad_out, grad_lse, out, lse, query, key, value, blocks, captures) -> (gradients of query, key,
    value, and of each capture that `reads` names, in ascending order)`. `grad_lse` is None where it is zero.

    score_gradient  (score, batch, head, query, key, gradient of the changed score, captures of the scores) ->
                    (gradient of the score, then for each of `reads` the gradient of the element that was read, and its
                    indices); None hands the gradient on
    reads           for each read its capture's number, and how many indices it has: none for a 0-d capture. The
                    gradients of all elements that are allowed are added where these were read.
    layouts         the axes of the gradients of query, key and value, innermost first; captures' are row-major
    """

    forward: FlexAttention
    score_gradient: Graph | None
    reads: tuple[tuple[int, int], ...] = ()
    layouts: tuple[tuple[int, ...], ...] = ((3, 2, 1, 0),) * 3

    def op(self, specs: Spec) -> Op:
        """The op of the one node that runs this."""
        return Op(BACKWARD, self, infer=lambda env, *args, **kwargs: specs, aliasing=lambda *args, **kwargs: "copy",
                  differentiable=False, failure="never")

    def __call__(self, grad_out: torch.Tensor, grad_lse: torch.Tensor | None, out: torch.Tensor, lse: torch.Tensor,
                 query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, blocks: Blocks,
                 captures: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        forward, grid = self.forward, _grid(query, key)
        allowed = forward.allowed(grid, query, key, blocks, captures)
        scores, changed = forward.scores(grid, query, key, allowed, captures)
        heads = _for_heads(key, query), _for_heads(value, query)
        weights = torch.where(lse[..., None] == float("-inf"), 0, torch.exp(changed - lse[..., None]))
        wide = grad_out.to(weights.dtype)
        grad_weights = wide @ heads[1].to(weights.dtype).transpose(-2, -1)
        grad_weights = grad_weights - (out.to(weights.dtype) * wide).sum(-1, keepdim=True)
        if grad_lse is not None:
            grad_weights = grad_weights + grad_lse[..., None]
        grad = torch.where(allowed, weights * grad_weights, 0)
        found: list[torch.Tensor] = []
        if self.score_gradient is not None:
            given = captures[:forward.score_captures]
            grad, *rest = _at_all(self.score_gradient, (scores, *grid, grad, *given))
            found = self._added(rest, allowed.expand(scores.shape), captures)
        grad = torch.where(allowed, (grad * forward.scale).to(query.dtype), 0)
        parts = (grad @ heads[0], _over_heads(grad.transpose(-2, -1) @ query, key),
                 _over_heads(weights.to(query.dtype).transpose(-2, -1) @ grad_out, value))
        return (*map(_laid_out, parts, self.layouts), *found)

    def _added(self, results: list[torch.Tensor], allowed: torch.Tensor, captures: Sequence[Any]) -> list[torch.Tensor]:
        """The gradients of captures, each the sum of what was read where."""
        sums = {number: torch.zeros(captures[number].shape, dtype=score_dtype(captures[number].dtype),
                                    device=allowed.device) for number in sorted({number for number, _ in self.reads})}
        rest = iter(results)
        for number, count in self.reads:
            into = sums[number]
            value = torch.where(allowed, next(rest), 0).to(into.dtype)
            indices = tuple(next(rest).expand(allowed.shape) for _ in range(count))
            if indices:
                into.index_put_(indices, value, accumulate=True)
            else:
                into += value.sum()
        return [into.to(captures[number].dtype) for number, into in sums.items()]


def score_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that scores of queries of this dtype are computed in."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def results_of(query: TensorSpec, value: TensorSpec, layout: Sequence[int]) -> tuple[TensorSpec, ...]:
    """The specs of the forward pass' results, without requires_grad."""
    shape = query.shape[:3]
    statistics = contiguous_spec(score_dtype(query.dtype), shape, query.device)
    full = (*shape, value.shape[3])
    return TensorSpec(query.dtype, full, strides_of(full, layout), query.device), statistics, statistics


def layout_of(env: SizeEnv, strides: Sequence[Dim], shape: Sequence[Dim]) -> tuple[int, ...]:
    """The axes of a result of this shape, innermost first: as those of an operand with these strides, of
    equal ones the later first; but elements along the last axis are neighbours (torch's `_permute_strides`)."""

    def compare(a: int, b: int) -> int:
        if strides[a] == strides[b]:
            return b - a
        return -1 if stride_less(env, strides[a], strides[b]) else 1

    layout = sorted(range(4), key=functools.cmp_to_key(compare))
    if any(shape[axis] != 1 for axis in layout[:layout.index(3)]):
        layout.remove(3)
        layout.insert(0, 3)
    return tuple(layout)


def strides_of(shape: Sequence[Any], layout: Sequence[int]) -> tuple[Any, ...]:
    """The strides of dense memory whose axes are `layout`, innermost first."""
    return tuple(prod(shape[a] for a in layout[:layout.index(axis)]) for axis in range(len(shape)))


def _grid(query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The numbers of batch, head, query and key, each along its own axis."""
    sizes = (*query.shape[:3], key.size(2))
    return tuple(torch.arange(size, device=query.device).view([-1 if a == axis else 1 for a in range(4)])
                 for axis, size in enumerate(sizes))


def _at_all(graph: Graph, inputs: Sequence[Any]) -> list[torch.Tensor]:
    """The results of a graph of one element, for all elements at once. 0-d tensors have four axes here, so that types
    are promoted as for one element."""

    def wide(value: Any) -> Any:
        return value.view(1, 1, 1, 1) if isinstance(value, torch.Tensor) and not value.ndim else value

    values = dict(zip(graph.inputs, map(wide, inputs), strict=True))
    symbols = bind_symbols(graph, inputs)
    for node in graph.nodes:
        args, kwargs = resolve(node.args, values, symbols), resolve(node.kwargs, values, symbols)
        values[node] = wide(node.op.target(*args, **kwargs))
    return [values[node] for node in graph.outputs]


def _for_heads(tensor: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Keys or values for each head of the query."""
    return tensor.repeat_interleave(query.size(1) // tensor.size(1), 1)


def _over_heads(grad: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The gradient of keys or values from those of what `_for_heads` made of them."""
    return grad.unflatten(1, (tensor.size(1), -1)).sum(2)


def _laid_out(tensor: torch.Tensor, layout: Sequence[int]) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, strides_of(tensor.shape, layout), dtype=tensor.dtype,
                               device=tensor.device).copy_(tensor)


__all__ = ["BACKWARD", "NAME", "Blocks", "FlexAttention", "FlexAttentionBackward", "layout_of", "results_of",
           "score_dtype", "strides_of"]
