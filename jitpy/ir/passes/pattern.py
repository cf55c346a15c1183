"""Patterns over the graph, and tables of rewrites that add with `+`.

    double_negation = Rules(
        rule(P.neg(P.neg(P.any("x"))), lambda b, x: x),
    )

`P.<name>(...)` matches a call of any overload of `aten.<name>`; `P.op("aten.add.Tensor", ...)` matches one. Arguments
are patterns, or constants, which match an equal constant (1 matches 1.0; 0 does not match -0.0). A trailing `...` lets
further positional and keyword arguments be anything; without it there may be none, but for keyword arguments given in
the pattern. `add` and `mul` match in both orders.

A rule's replacement is called with a `Builder` and what the pattern's names are bound to, and returns the Node that has
the same value (a bound one, or one it builds), or None where it does not apply after all. `apply` checks that the new
value has the same dtype, shape and strides, and that no memory begins to be shared, or stops to be, where the caller
could see it; otherwise the rewrite does not happen (a node built with another dtype or shape is an error).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..alias import AliasGroups, alias_kind, any_needs_grad, hidden_history, shown_results
from ..builder import Builder
from ..graph import IN_INFERENCE_MODE, REGION, Graph, Node
from ..spec import Dim, TensorSpec

Bindings = dict[str, Any]


class Pattern:
    """Base of patterns: `match` extends `bindings` or returns False, leaving them in any state."""

    def match(self, value: Any, bindings: Bindings) -> bool:
        raise NotImplementedError


@dataclass(frozen=True)
class AnyPattern(Pattern):
    """Anything; the same name twice matches only the same node, or equal constants. `where` is a further condition."""

    name: str | None = None
    where: Callable[[Any], bool] | None = None

    def match(self, value: Any, bindings: Bindings) -> bool:
        if self.where is not None and not self.where(value):
            return False
        if self.name is None:
            return True
        if self.name in bindings:
            return _equal(bindings[self.name], value)
        bindings[self.name] = value
        return True


@dataclass(frozen=True)
class CallPattern(Pattern):
    """A node that calls an op of the given base name (`add`), or of the full name (`aten.add.Tensor`). `name`: what it
    is called in the bindings."""

    op: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()
    open_end: bool = False
    name: str | None = None

    def named(self, name: str) -> CallPattern:
        """The same pattern, whose node is among the bindings."""
        return replace(self, name=name)

    @property
    def base(self) -> str:
        return base_name(self.op) if "." in self.op else self.op

    def match(self, value: Any, bindings: Bindings) -> bool:
        if not isinstance(value, Node) or not value.op.name.startswith("aten."):
            return False
        if (value.op.name if "." in self.op else base_name(value.op.name)) != self.op:
            return False
        if self._match_args(value, value.args, bindings):
            return True
        if value.op.commutes and len(value.args) == 2 and len(self.args) == 2:
            return self._match_args(value, value.args[::-1], bindings)
        return False

    def _match_args(self, node: Node, args: tuple[Any, ...], bindings: Bindings) -> bool:
        if len(args) < len(self.args) or len(args) > len(self.args) and not self.open_end:
            return False
        trial = dict(bindings)
        for pattern, arg in zip(self.args, args, strict=False):
            if not match_value(pattern, arg, trial):
                return False
        expected = dict(self.kwargs)
        for key, pattern in expected.items():
            if key not in node.kwargs or not match_value(pattern, node.kwargs[key], trial):
                return False
        if not self.open_end and any(key not in expected and value is not None for key, value in node.kwargs.items()):
            return False
        bindings.clear()
        bindings.update(trial)
        if self.name is not None:
            bindings[self.name] = node
        return True


class _PatternFactory:
    """`P`: see the module's text."""

    def any(self, name: str | None = None, where: Callable[[Any], bool] | None = None) -> Pattern:
        """Any node or constant."""
        return AnyPattern(name, where)

    def node(self, name: str | None = None, where: Callable[[Node], bool] | None = None) -> Pattern:
        """Any node."""
        return AnyPattern(name, lambda v: isinstance(v, Node) and (where is None or where(v)))

    def const(self, name: str | None = None, where: Callable[[Any], bool] | None = None) -> Pattern:
        """Any constant: an argument that holds no node."""
        return AnyPattern(name, lambda v: not _holds_node(v) and (where is None or where(v)))

    def op(self, name: str, *args: Any, **kwargs: Any) -> CallPattern:
        """A call of one overload, by its full name."""
        open_end = bool(args) and args[-1] is ...
        return CallPattern(name, args[:-1] if open_end else args, tuple(kwargs.items()), open_end)

    def __getattr__(self, name: str) -> Callable[..., CallPattern]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self.op(name, *args, **kwargs)


P = _PatternFactory()


def base_name(op_name: str) -> str:
    """`aten.add.Tensor` -> `add`."""
    parts = op_name.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def match_value(pattern: Any, value: Any, bindings: Bindings) -> bool:
    if isinstance(pattern, Pattern):
        return pattern.match(value, bindings)
    if isinstance(pattern, (tuple, list)) and isinstance(value, (tuple, list)):
        return len(pattern) == len(value) and all(
            match_value(p, v, bindings) for p, v in zip(pattern, value, strict=True))
    return _equal(pattern, value)


def _equal(a: Any, b: Any) -> bool:
    """Equality of arguments: nodes by identity, numbers by value and sign, everything else by type and `==`."""
    if isinstance(a, Node) or isinstance(b, Node):
        return a is b
    numbers = (int, float)
    if isinstance(a, numbers) and isinstance(b, numbers):
        return a == b and math.copysign(1, a) == math.copysign(1, b)
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return a is b
    return type(a) is type(b) and bool(a == b)


def _holds_node(value: Any) -> bool:
    if isinstance(value, Node):
        return True
    return isinstance(value, (tuple, list)) and any(map(_holds_node, value))


@dataclass(frozen=True)
class Rule:
    """One rewrite."""

    pattern: CallPattern
    replacement: Callable[..., Node | None]
    name: str


def rule(pattern: Pattern, replacement: Callable[..., Node | None], name: str | None = None) -> Rule:
    """A rewrite of what `pattern` matches. Raises TypeError for a pattern that is not a call."""
    if not isinstance(pattern, CallPattern):
        raise TypeError(f"a rule's pattern must be a call such as P.add(P.any('x'), 0), not {pattern!r}")
    return Rule(pattern, replacement, name or pattern.base)


class Rules:
    """A table of rewrites, tried in order. Tables add with `+`."""

    def __init__(self, *rules: Rule) -> None:
        self.rules = rules
        self.by_base: dict[str, list[Rule]] = {}
        for one in rules:
            self.by_base.setdefault(one.pattern.base, []).append(one)

    def __add__(self, other: Rules) -> Rules:
        return Rules(*self.rules, *other.rules)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)


#: A node is rewritten at most this often in one sweep: rules that undo each other must end.
_MOST_REWRITES = 16


def apply(graph: Graph, rules: Rules) -> list[str]:
    """Rewrite `graph` in place in one sweep from the inputs on. Returns what was done, one text per rewrite.

    ValueError names a rule whose replacement has another dtype or shape than what it replaces.
    """
    done: list[str] = []
    if not any(base_name(node.op.name) in rules.by_base for node in graph.nodes):
        return done
    rewriter = Rewriter(graph)
    for node in rewriter.sweep():
        current = node
        for _ in range(_MOST_REWRITES):
            replaced = _rewrite_once(rewriter, rules, current, done)
            if replaced is None:
                break
            current = replaced
            if current not in rewriter.fresh:
                break
        rewriter.settle(node, current)
    rewriter.finish()
    return done


def _rewrite_once(rewriter: Rewriter, rules: Rules, node: Node, done: list[str]) -> Node | None:
    for one in rules.by_base.get(base_name(node.op.name), ()):
        bindings: Bindings = {}
        if not one.pattern.match(node, bindings) or rewriter.looks_through(one.pattern, node):
            continue
        builder = rewriter.builder(node)
        sizes = rewriter.graph.sizes
        mark = sizes.checkpoint()
        new = one.replacement(builder, **bindings)
        if sizes.checkpoint() != mark:
            # the guards are made already: what holds for these sizes only is no reason to rewrite
            sizes.rollback(mark)
            continue
        if new is None or new is node or rewriter.refusal(node, new, one.name):
            continue
        rewriter.accept(builder.created)
        rewriter.substitute(node, new)
        done.append(f"{one.name}: {node.name} -> {new.name}")
        return new
    return None


class Rewriter:
    """Rebuilds a graph's node list front to back while nodes are replaced by others.

        for node in rewriter.sweep():         # node's arguments are the new nodes already
            rewriter.settle(node, same_or_other_node)
        rewriter.finish()
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._groups: AliasGroups | None = None
        self._autograd: bool | None = None
        self._watchable: set[Node] | None = None
        self.mapping: dict[Node, Node] = {}
        self.fresh: set[Node] = set()
        self._out: list[Node] = []
        self._pending: list[Node] = []

    @property
    def groups(self) -> AliasGroups:
        """Made when the first rewrite asks: most graphs have few."""
        if self._groups is None:
            self._groups = AliasGroups(self.graph)
        return self._groups

    @property
    def autograd(self) -> bool:
        """Whether the graph may run under autograd, which saves arguments and results for the backward pass."""
        if self._autograd is None:
            self._autograd = any_needs_grad(self.graph.all_nodes())
        return self._autograd

    @property
    def watchable(self) -> set[Node]:
        """Results whose gradients the program may watch: what is computed from one, and nothing else, depends on it."""
        if self._watchable is None:
            self._watchable = shown_results(self.graph)
        return self._watchable

    def looks_through(self, pattern: CallPattern, node: Node) -> bool:
        """Whether what a pattern matches may have such a result inside."""
        return bool(self.watchable) and any(
            isinstance(inner, CallPattern) and any(n in self.watchable or self.looks_through(inner, n)
                                                   for n in node.input_nodes())
            for inner in pattern.args)

    def sweep(self) -> Iterator[Node]:
        for node in self.graph.nodes:
            if self.mapping:
                node.replace_inputs(lambda n: self.mapping.get(n, n))
            yield node

    def builder(self, node: Node) -> Builder:
        return Builder(self.graph, into=[], loc=node.loc, grad_enabled=node.grad_enabled, region=node.meta.get(REGION))

    def accept(self, created: Iterable[Node]) -> None:
        """New nodes that the one being rewritten needs."""
        for node in created:
            self.groups.add(node)
            self.fresh.add(node)
            self._pending.append(node)

    def settle(self, node: Node, new: Node) -> None:
        """Decide what stands for `node` from here on."""
        self._out.extend(self._pending)
        self._pending.clear()
        if new is node:
            self._out.append(node)
        else:
            self.mapping[node] = new
            self.substitute(node, new)

    def substitute(self, node: Node, new: Node) -> None:
        """`new` now stands for `node`: whoever sees the one sees the other."""
        self.groups.substitute(node, new)
        if node in self.watchable:
            self.watchable.add(new)

    def finish(self) -> None:
        self.graph.nodes[:] = self._out
        self.graph.replace_results(self.mapping)

    def refusal(self, node: Node, new: Node, name: str) -> str | None:
        """Why `new` must not stand for `node`, or None. ValueError where the rule `name` is plainly wrong."""
        a, b = node.spec, new.spec
        if not (isinstance(a, TensorSpec) and isinstance(b, TensorSpec)):
            return None if a == b else "another kind of value"
        if (a.dtype, a.device) != (b.dtype, b.device) or not self._same_sizes(a.shape, b.shape):
            hints = self.graph.sizes.hints
            if new in self.groups or (a.dtype, a.device, hints(a.shape)) == (b.dtype, b.device, hints(b.shape)):
                return "another dtype, or a shape that is not known to be equal"
            raise ValueError(f"rule {name!r} replaces {node.name}: {a} by {new.name}: {b}")
        return self.why_not_share(node, new)

    def why_not_share(self, node: Node, new: Node) -> str | None:
        """Why an existing or new tensor must not stand for `node`, though its elements are the same."""
        a, b = node.tensor, new.tensor
        if not self._same_sizes(a.stride, b.stride):
            return "other strides"
        if a.requires_grad != b.requires_grad or (a.requires_grad and not node.grad_enabled):
            return "another requires_grad"
        if self.autograd and not a.requires_grad and hidden_history(self.graph, new) is not None:
            return "a view made under no_grad requires grad as what it shows does"
        if new not in self.groups:
            # built by the rule: its memory is new, or that of the arguments
            sources = self._memory_of(new)
        else:
            sources = [new]
            if self.groups.objects_must_differ(node, new):
                return "an output would be the same object as an input, a constant or another output"
            if new not in self.fresh and not self.watchable.isdisjoint((node, new)) and \
                    (node in self.watchable or new not in node.input_nodes()):
                return "the gradient of an output would have other parts"
        if node.op.is_view and (IN_INFERENCE_MODE in node.meta or any(
                n.op.is_view and (IN_INFERENCE_MODE in n.meta or n.grad_enabled != node.grad_enabled)
                for n in node.input_nodes())):
            return "a view remembers the modes that it, and what it shows, was made in"
        kind = self.groups.kind(node)
        node_shares = kind != "copy"
        if node_shares and self.groups.escapes(node):
            if kind == "unknown":
                return "whether an output shares memory is only known when the graph runs"
            if self.groups.is_one_of_views(node):
                return "outputs that show each other would have another base"
            if not any(self.groups.same(node, s) for s in sources):
                return "an output would stop to share memory"
        for source in sources:
            if node_shares and self.groups.same(node, source):
                continue
            if self.groups.escapes(node) and (self.groups.escapes(source) or self.groups.foreign(source)):
                return "an output would begin to share memory"
            if self.autograd and (self.groups.escapes(node) or self.groups.escapes(source)
                                  or self.groups.foreign(source)):
                # autograd may save this tensor; writing to the other one later would then be an error
                return "a saved tensor would share memory that the caller can write to"
        return None

    def _same_sizes(self, a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
        """Whether sizes are equal, also where one names a symbol that is known to equal the other."""
        if a == b:
            return True
        canonical = self.graph.sizes.canonical
        return len(a) == len(b) and all(canonical(x) == canonical(y) for x, y in zip(a, b, strict=True))

    def _memory_of(self, node: Node) -> list[Node]:
        """The nodes of the graph whose memory a node that a rule built may share."""
        if node in self.groups:
            return [node]
        if alias_kind(self.graph, node) == "copy":
            return []
        return [found for n in node.input_nodes() if isinstance(n.spec, TensorSpec) for found in self._memory_of(n)]
