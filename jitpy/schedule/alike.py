"""Values that are computed in the same way from different tensors, as an optimizer's are for each parameter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable

from ..ir.spec import contiguous_stride
from .expr import Expr, walk
from .index import Index, flatten
from .values import HostScalar, Pointwise, Probe, Value

#: Values of one kind from which they count as alike.
MANY = 4

#: Operations that depend on where an element is, or that belong to a kernel of another kind.
_PLACED = frozenset({"index", "size", "check", "reduced", "cell"})


def body_key(roots: Iterable[Expr], place: Callable[[Index], Hashable | None]) -> tuple[Hashable, ...] | None:
    """A key of the computation of expressions, with the tensors numbered in place of named. `place` says where an
    access is, relative to the point that is computed; None, there or here, for what is not the same at every
    point."""
    roots = list(roots)
    numbers: dict[Expr, int] = {}
    buffers: dict[Value, int] = {}
    found: list[Hashable] = []
    for expr in walk(roots):
        attr: Hashable = expr.attr
        if expr.op in _PLACED:
            return None
        if expr.op == "load":
            buffer, index = expr.attr
            where = place(index)
            if where is None:
                return None
            kind = buffer.kind if isinstance(buffer, HostScalar) else buffer.dtype
            attr = (buffers.setdefault(buffer, len(buffers)), kind, where)
        elif expr.op == "const":
            attr = (repr(expr.attr), type(expr.attr))
        numbers[expr] = len(numbers)
        found.append((expr.op, tuple(numbers[a] for a in expr.args), expr.dtype, attr))
    return (*found, *(numbers[root] for root in roots))


def alike_results(
    live: list[Value], readers: dict[Value, list[Value]], called: set[Value], probe: Callable[[Value], Probe]
) -> set[Value]:
    """The values that are computed like many others, and that nothing reads but more of their kind: the ends of a
    graph, which may be computed when all else is done. `called` are those that eager calls read."""
    keys: dict[Value, tuple[Hashable, ...]] = {}
    for value in reversed(live):  # readers first
        if not isinstance(value, Pointwise) or value in called or any(r not in keys for r in readers.get(value, ())):
            continue
        key = _value_key(probe(value))
        if key is not None:
            keys[value] = key
    while True:  # what is read by one of a few is no end of a graph
        counts = Counter(keys.values())
        kept = {value: key for value, key in keys.items()
                if counts[key] >= MANY and all(reader in keys for reader in readers.get(value, ()))}
        if len(kept) == len(keys):
            return set(kept)
        keys = kept


def _value_key(probe: Probe) -> tuple[Hashable, ...] | None:
    own = flatten(probe.index, contiguous_stride(probe.shape))

    def place(index: Index) -> Hashable | None:
        if index == own:
            return "own"
        return index.const if not index.terms and type(index.const) is int else None

    return body_key([probe.result], place)
