"""`torch._foreach_*`: one call for many tensors, recorded as the calls for one tensor each.

That is what eager does where it has no kernel for lists. In a graph the single operations are worth more than one that
takes lists: they fuse with what comes before and after them, across the list as well.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from ..traced import DECLINED, GraphBuilder, TracedTensor, Uncapturable, tensors_in

_aten = torch.ops.aten
_PREFIX = "_foreach_"

#: Operations whose name for one tensor is another.
_NAMES = {"maximum": "clamp_min", "minimum": "clamp_max", "norm": "linalg_vector_norm"}

#: The argument by which an operation for one tensor takes the last operand of the one for lists.
_KEYWORDS = {"addcmul": "value", "addcdiv": "value"}

#: Operations in place through which eager's backward pass does not go: of the last two, those with numbers.
_WITHOUT_DERIVATIVE = frozenset({"copy", "maximum", "minimum"})

#: The facts about memory that the operation for lists has, and the one for one tensor need not be told.
_DROPPED = frozenset({"non_blocking"})


def foreach_name(fn: Any) -> str | None:
    """`add_` of `torch._foreach_add_`, and of its overloads; None for any other function."""
    name = getattr(fn, "__name__", "").partition(".")[0]
    return name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else None


def run(builder: GraphBuilder, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The payload of `torch._foreach_<name>(*args, **kwargs)`: a tuple of tensors, or None of an operation in place.
    DECLINED for arguments that no list of calls stands for."""
    stem = name.removesuffix("_")
    if stem != name:
        _check_writes(builder, stem, args, kwargs)
    count = _length(args, kwargs)
    single = getattr(_aten, _NAMES.get(stem, stem) + ("_" if stem != name else ""), None)
    if count is None or single is None or stem in ("mm", "powsum"):
        return DECLINED
    if stem in _KEYWORDS and len(args) == 4:
        args, kwargs = args[:3], {**kwargs, "scalars": args[3]}
    if stem == "norm" and len(args) < 2 and "ord" not in kwargs:
        kwargs = {**kwargs, "ord": 2}
    keywords = {_keyword(stem, key): value for key, value in kwargs.items() if key not in _DROPPED}
    if isinstance(keywords.get("value"), TracedTensor):
        return DECLINED  # numbers in a tensor
    results = [
        builder.call(single, tuple(_element(a, k) for a in args), {n: _element(a, k) for n, a in keywords.items()},
                      builder.loc)
        for k in range(count)
    ]
    return None if stem != name else tuple(results)


def _check_writes(builder: GraphBuilder, stem: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises Uncapturable where an operation in place is not what it is for one tensor after the other."""
    written = list(tensors_in((args or tuple(kwargs.values()))[0]))
    if any(True in tensor.lazy_bits for tensor in written):
        raise Uncapturable("unsupported_op", "lists of tensors whose conjugation or negation is pending, written to")
    operands = list(tensors_in((args, kwargs)))
    if not builder.state.grad_enabled or not any(_has_history(tensor) for tensor in operands):
        return
    if stem in _WITHOUT_DERIVATIVE:
        raise Uncapturable("unsupported_op", f"_foreach_{stem}_ has no derivative")
    # autograd looks at all operands before the first is written, and raises there, too
    uses = Counter(id(tensor.storage) for tensor in operands)
    if any(uses[id(tensor.storage)] > 1 for tensor in written):
        raise Uncapturable(
            "unsupported_op",
            f"_foreach_{stem}_ under autograd with operands that share memory, of which it writes one: the gradient "
            "is not that of one operation after the other",
        )
    if any(tensor.chain and tensor.made < tensor.storage.generation for tensor in written):
        raise Uncapturable("exception", f"_foreach_{stem}_ writes a view that is older than a write to its base")
    if any(tensor.spec.requires_grad and tensor.is_leaf for tensor in written):
        raise Uncapturable("exception", f"_foreach_{stem}_ writes a leaf that requires grad")


def _has_history(tensor: TracedTensor) -> bool:
    return bool(tensor.spec.requires_grad or tensor.storage.base.tensor.requires_grad)


def _length(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """The length of the lists; None where they have several, or none."""
    lengths = {len(value) for value in (*args, *kwargs.values()) if isinstance(value, (list, tuple))}
    return lengths.pop() if len(lengths) == 1 and 0 not in lengths else None


def _element(value: Any, index: int) -> Any:
    return value[index] if isinstance(value, (list, tuple)) else value


def _keyword(stem: str, name: str) -> str:
    return _KEYWORDS[stem] if stem in _KEYWORDS and name in ("value", "scalars") else name


__all__ = ["foreach_name", "run"]
