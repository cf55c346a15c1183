"""The form of an attention mask, read off the nodes that compute it.

Models compare positions (`arange`) with each other to say which keys a query sees. Where nothing is hidden, or what
comes later is, attention has kernels that need no mask in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from ..folding import known_value
from ..graph import CONSTANT, Node
from ..op import OpRules
from ..ops.table import fill_value
from ..spec import Dim, TensorSpec


@dataclass(frozen=True, slots=True)
class Uniform:
    """The same value everywhere."""

    value: bool | int


@dataclass(frozen=True, slots=True)
class Ramp:
    """`start`, `start + 1`, ... along `axis` (counted from the last, which is -1), `size` of them."""

    axis: int
    start: Dim
    size: Dim


@dataclass(frozen=True, slots=True)
class Band:
    """Of the last two axes: True where `column - row <= last`; with `below=False` the opposite."""

    last: Dim
    below: bool = True


Form = Uniform | Ramp | Band

#: Elements of masks whose values are looked at, and nodes that compute them.
_ELEMENTS, _NODES = 1 << 24, 128
#: Where a node keeps what its values said.
_LOOKED_AT = "mask_form"

#: `(node, seen) -> form`, by op.
_RULES = OpRules()


def known_mask(mask: Node) -> Form | None:
    """The form of a bool or integer tensor; None where nothing is known."""
    form = _form(mask, {})
    if form is not None or mask.tensor.dtype is not torch.bool or not mask.tensor.is_static or not mask.args:
        return form
    if _LOOKED_AT not in mask.meta:  # of positions only, in a way that has no rule: each layer of a model asks again
        value = known_value(mask, _NODES, _ELEMENTS, ("cpu", "cuda"))
        mask.meta[_LOOKED_AT] = None if value is None else _of_values(value)
    return mask.meta[_LOOKED_AT]


def hides_nothing(mask: Node) -> bool:
    """Whether a bool mask of what takes part is True everywhere, or what is added to scores 0."""
    if mask.tensor.dtype.is_floating_point:
        return not mask.tensor.requires_grad and _is_zero(mask)
    return mask.tensor.dtype is torch.bool and known_mask(mask) == Uniform(True)


def is_causal(mask: Node, queries: Dim, keys: Dim) -> bool:
    """Whether a bool mask of what takes part, for so many queries and as many keys, lets each query see itself and
    what is before it."""
    spec = mask.tensor
    if spec.dtype is not torch.bool or spec.ndim < 2 or spec.shape[-2:] != (queries, keys) or queries != keys:
        return False
    return known_mask(mask) == Band(0)


def _form(node: Any, seen: dict[Node, Form | None]) -> Form | None:
    """The form of an argument: a node or a number."""
    if isinstance(node, (bool, int)):
        return Uniform(node)
    if not isinstance(node, Node) or not isinstance(node.spec, TensorSpec) or node.spec.dtype.is_floating_point:
        return None
    if node not in seen:
        seen[node] = None
        if node.op is CONSTANT:
            seen[node] = _of_values(node.args[0])
        else:
            rule = _RULES.get(node.op.name)
            seen[node] = rule(node, seen) if rule is not None else _filled(node)
    return seen[node]


def _is_zero(node: Any) -> bool:
    """Whether an argument, a node or a number, is 0 everywhere: made so, and only seen or copied otherwise since."""
    while isinstance(node, Node) and _RULES.get(node.op.name) in _PASSED_ON:
        node = node.args[0]
    if not isinstance(node, Node):
        return isinstance(node, (int, float)) and node == 0
    return node.op.fill is not None and _is_zero(fill_value(node))


def _of_values(value: torch.Tensor) -> Form | None:
    """The form of a bool tensor."""
    if value.dtype is not torch.bool or not 0 < value.numel() <= _ELEMENTS:
        return None
    value = value.cpu()
    if bool(value.all()):
        return Uniform(True)
    if value.ndim < 2:
        return None
    every = torch.ones(value.shape[-2:], dtype=torch.bool)
    for form, found in ((Band(0), every.tril()), (Band(0, below=False), every.triu(1))):
        if torch.equal(value, found.expand_as(value)):
            return form
    return None


def _argument(node: Node, position: int, name: str, default: Any = None) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def _is_int(value: Any) -> bool:
    return not isinstance(value, (bool, float, Node)) and value is not None


@_RULES.of("arange", "arange.start", "arange.start_step")
def _arange(node: Node, seen: dict[Node, Form | None]) -> Form | None:
    numbers = node.args
    start, step = (0, 1) if len(numbers) == 1 else (numbers[0], numbers[2] if len(numbers) > 2 else 1)
    if not all(map(_is_int, numbers)) or step != 1 or node.tensor.dtype not in (torch.int32, torch.int64):
        return None
    return Ramp(-1, start, node.tensor.shape[0])


def _filled(node: Node) -> Form | None:
    """Of ops that repeat a number."""
    value = fill_value(node)
    if not isinstance(value, (bool, int)):
        return None
    return Uniform(bool(value) if node.tensor.dtype is torch.bool else int(value))


@_RULES.of("_to_copy", "to.dtype", "to.device", "to.dtype_layout", "to.other", "clone", "alias", "detach", "contiguous",
           "lift_fresh")
def _same(node: Node, seen: dict[Node, Form | None]) -> Form | None:
    """Copies and conversions between integers, or of bools."""
    form, source, target = _form(node.args[0], seen), node.args[0].tensor.dtype, node.tensor.dtype
    if source is target:
        return form
    if target is torch.bool:
        return Uniform(bool(form.value)) if isinstance(form, Uniform) else None
    kept = source is not torch.bool and source.is_signed and target in (torch.int32, torch.int64)
    return form if kept and isinstance(form, (Uniform, Ramp)) else None


def _placed(form: Form | None, node: Node, axis: int) -> Form | None:
    """A ramp whose axis is now number `axis` (from the front) of the node's."""
    return replace(form, axis=axis - node.tensor.ndim) if isinstance(form, Ramp) else form


@_RULES.of("unsqueeze")
def _unsqueeze(node: Node, seen: dict[Node, Form | None]) -> Form | None:
    form = _form(node.args[0], seen)
    if isinstance(form, Uniform):
        return form
    new = node.args[1] % node.tensor.ndim
    if isinstance(form, Ramp):
        axis = form.axis + node.args[0].tensor.ndim
        return _placed(form, node, axis + (new <= axis))
    return form if new <= node.tensor.ndim - 3 else None  # a band stays one in front of its two axes


@_RULES.of("view", "reshape", "_unsafe_view", "squeeze", "squeeze.dim")
def _view(node: Node, seen: dict[Node, Form | None]) -> Form | None:
    """Axes of one element come or go."""
    form, before, after = _form(node.args[0], seen), node.args[0].tensor.shape, node.tensor.shape
    if form is None or isinstance(form, Uniform):
        return form
    if isinstance(form, Ramp):
        places = [k for k, size in enumerate(after) if size != 1]
        if [size for size in before if size != 1] != [form.size] or [after[k] for k in places] != [form.size]:
            return None
        return _placed(form, node, places[0])
    fronts = (*before[:-2], *after[:-2])
    return form if before[-2:] == after[-2:] and all(size == 1 for size in fronts) else None


@_RULES.of("expand")
def _expand(node: Node, seen: dict[Node, Form | None]) -> Form | None:
    form, before = _form(node.args[0], seen), node.args[0].tensor.shape
    if isinstance(form, Ramp):
        return form if before[form.axis] == node.tensor.shape[form.axis] else None
    if isinstance(form, Band):
        return form if before[-2:] == node.tensor.shape[-2:] else None
    return form


@_RULES.of("slice.Tensor")
def _slice(node: Node, seen: dict[Node, Form | None]) -> Form | None:
    form = _form(node.args[0], seen)
    if form is None or isinstance(form, Uniform):
        return form
    ndim, axis = node.tensor.ndim, _argument(node, 1, "dim", 0)
    axis, first = axis % ndim - ndim, _argument(node, 2, "start")
    first = 0 if first is None else first
    if _argument(node, 4, "step", 1) != 1 or not _is_int(first) or not _not_negative(first):
        return None
    if isinstance(form, Ramp):
        return Ramp(axis, form.start + first, node.tensor.shape[axis]) if axis == form.axis else form
    if axis < -2 or first == 0:
        return form
    return replace(form, last=form.last + (first if axis == -2 else -first))


def _add(sign: int) -> Any:
    def rule(node: Node, seen: dict[Node, Form | None]) -> Form | None:
        a, b = (_form(value, seen) for value in node.args[:2])
        if _argument(node, 2, "alpha", 1) != 1 or node.tensor.dtype is torch.bool:
            return None
        if isinstance(b, Ramp) and sign > 0:
            a, b = b, a
        if isinstance(a, Ramp) and isinstance(b, Uniform):
            return replace(a, start=a.start + sign * int(b.value))
        return None

    return rule


def _compare(flipped: bool, strict: bool) -> Any:
    """`a >= b`, `a > b` (strict); with `flipped` the operands change places."""

    def rule(node: Node, seen: dict[Node, Form | None]) -> Form | None:
        a, b = (_form(value, seen) for value in node.args[:2])
        if flipped:
            a, b = b, a
        if isinstance(a, Ramp) and isinstance(b, Uniform):
            return Uniform(True) if _not_negative(a.start - int(b.value) - strict) else None
        if isinstance(a, Uniform) and isinstance(b, Ramp):
            return Uniform(True) if _not_negative(int(a.value) - (b.start + b.size - 1) - strict) else None
        if not isinstance(a, Ramp) or not isinstance(b, Ramp):
            return None
        ndim = node.tensor.ndim
        if ndim < 2 or (a.size, b.size) != (node.tensor.shape[a.axis], node.tensor.shape[b.axis]):
            return None
        if (a.axis, b.axis) == (-2, -1):  # row + s >= column + t
            return Band(a.start - b.start - strict)
        if (a.axis, b.axis) == (-1, -2):  # column + s >= row + t: not column - row <= t - s - 1
            return Band(b.start - a.start - 1 + strict, below=False)
        return None

    return rule


@_RULES.of("bitwise_and.Tensor", "logical_and", "__and__.Tensor")
def _and(node: Node, seen: dict[Node, Form | None]) -> Form | None:
    if node.tensor.dtype is not torch.bool:
        return None
    for one, other in (node.args[:2], node.args[1::-1]):
        if _form(one, seen) == Uniform(True):
            return _broadcast(other, node, seen)
    return None


@_RULES.of("bitwise_or.Tensor", "logical_or", "__or__.Tensor")
def _or(node: Node, seen: dict[Node, Form | None]) -> Form | None:
    if node.tensor.dtype is not torch.bool:
        return None
    for one, other in (node.args[:2], node.args[1::-1]):
        form = _form(one, seen)
        if form == Uniform(True):
            return form
        if form == Uniform(False):
            return _broadcast(other, node, seen)
    return None


def _broadcast(value: Any, node: Node, seen: dict[Node, Form | None]) -> Form | None:
    """The form of a bool operand, as large as the node."""
    form = _form(value, seen)
    if isinstance(form, Band) and value.tensor.shape[-2:] != node.tensor.shape[-2:]:
        return None
    return None if isinstance(form, Ramp) else form


@_RULES.of("bitwise_not", "logical_not")
def _not(node: Node, seen: dict[Node, Form | None]) -> Form | None:
    form = _form(node.args[0], seen)
    if node.args[0].tensor.dtype is not torch.bool:
        return None
    if isinstance(form, Uniform):
        return Uniform(not form.value)
    return replace(form, below=not form.below) if isinstance(form, Band) else None


def _triangle(lower: bool) -> Any:
    def rule(node: Node, seen: dict[Node, Form | None]) -> Form | None:
        diagonal = _argument(node, 1, "diagonal", 0)
        if _form(node.args[0], seen) != Uniform(True) or node.tensor.dtype is not torch.bool or not _is_int(diagonal):
            return None
        return Band(diagonal) if lower else Band(diagonal - 1, below=False)

    return rule


def _not_negative(value: Dim) -> bool:
    """Whether a number is at least 0 for all sizes."""
    if isinstance(value, int):
        return value >= 0
    return bool(value.is_nonnegative)


_RULES.of("add.Tensor", "add.Scalar")(_add(1))
_RULES.of("sub.Tensor", "sub.Scalar")(_add(-1))
_RULES.of("ge.Tensor", "ge.Scalar")(_compare(False, False))
_RULES.of("gt.Tensor", "gt.Scalar")(_compare(False, True))
_RULES.of("le.Tensor", "le.Scalar")(_compare(True, False))
_RULES.of("lt.Tensor", "lt.Scalar")(_compare(True, True))
_RULES.of("tril")(_triangle(True))
_RULES.of("triu")(_triangle(False))

#: Rules of ops whose result has the elements of the first operand, and no others.
_PASSED_ON = (_same, _unsqueeze, _view, _expand, _slice)

__all__ = ["Band", "Form", "Ramp", "Uniform", "hides_nothing", "is_causal", "known_mask"]
