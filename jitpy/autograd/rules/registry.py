"""Where rules are kept, and how an op finds its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...ir.op import NotCovered, Op, OpRules, full_name
from ...ir.ops.table import get
from ..pullback import Pullback

#: See the package's docstring.
Rule = Callable[..., Any]

RULES = OpRules()

#: Ops whose rules give gradients that must not be differentiated again.
ONCE: set[str] = set()

#: Ops whose rules are right for complex numbers as well; others conjugate nothing.
COMPLEX: set[str] = set()


def rule(*names: str, once: bool = False, complex: bool = False) -> Callable[[Rule], Rule]:
    """Register the rule of ops by name. `once`: it is made of ops without gradients, or keeps values whose part in a
    second derivative it leaves out; for gradients with a history torch's own way is recorded. `complex`: it is right
    for complex numbers; what is real gets the real part of its gradient."""

    def register(fn: Rule) -> Rule:
        RULES.of(*names)(fn)
        if once:
            ONCE.update(map(full_name, names))
        if complex:
            COMPLEX.update(map(full_name, names))
        return fn

    return register


def by_kernel(*names: str, results: Sequence[str] = (), once: bool = False,
              **others: Callable[[dict[str, Any]], Any]) -> None:
    """The rule of ops whose gradients torch computes in one kernel, `<op>_backward`. That takes the gradient of the
    first result, then by their names arguments of the op, its `results`, and `others`, which are functions of these. A
    list of truth values says which gradients are wanted. The gradients are those of the op's first tensors."""

    def pull(p: Pullback, *values: Any, **options: Any) -> tuple[Any, ...]:
        count = len(p.node.spec) if isinstance(p.node.spec, tuple) else 1
        grad, *statistics = values[:count]
        op: Any = p.node.op.target
        declared = op._schema.arguments
        given = {one.name: one.default_value for one in declared if one.has_default_value()}
        given |= dict(zip((one.name for one in declared), values[count:], strict=False)) | options
        kernel = get(p.node.op.name.replace(".default", "_backward.default"))
        schema = kernel.target._schema  # type: ignore[attr-defined]
        tensors = [one.name for one in declared if "Tensor" in str(one.type)]
        mask = [p.needs(given[name]) for name in tensors[:len(schema.returns)]]
        if grad is None or any(one is not None for one in statistics) or \
                any(p.needs(given[name]) for name in tensors[len(mask):]):
            raise NotCovered(f"other gradients than those of {kernel}")
        given |= {name: p.part(k) for k, name in enumerate(results) if name}
        given |= {name: value(given) for name, value in others.items()}
        taken: dict[str, Any] = {one.name: mask if str(one.type) == "List[bool]" else given[one.name]
                                 for one in schema.arguments[1:]}
        named: dict[str, Any] = {one.name: taken.pop(one.name) for one in schema.arguments if one.kwarg_only}
        back = p.call(kernel, grad, *taken.values(), **named)
        found = dict(zip(tensors, p.parts(back, mask) if len(mask) > 1 else [back], strict=False))
        return tuple(found.get(one.name) for one in declared if not one.kwarg_only)

    rule(*names, once=once)(pull)


def covers(op: Op) -> bool:
    """Whether an op has a rule of its own."""
    return op.name in RULES or op.vjp is not None


def rule_for(op: Op, create_graph: bool = False) -> Rule | None:
    """The rule of an op, if one was written; if `create_graph`, one whose gradients have derivatives."""
    if create_graph and op.name in ONCE:
        return None
    return RULES.get(op.name) or op.vjp
