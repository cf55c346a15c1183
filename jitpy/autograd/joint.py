"""The joint graph: a forward graph and its gradients in one, so that the passes see both; and its two halves."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .. import config
from ..ir import ops
from ..ir.algebra import sympy
from ..ir.alias import needs_grad, plain
from ..ir.autograd_function import lower
from ..ir.graph import GETITEM, INPUT, OWNED, REENTRANT, REGION, Graph, Node, bare_symbols, map_nodes
from ..ir.op import NotCovered, Op
from ..ir.passes.cleanup import remove_dead_code
from ..ir.passes.pipeline import run_stage
from ..ir.sizes import SizeEnv
from ..ir.spec import ScalarSpec, Spec, TensorSpec, contiguous_stride
from ..ir.specialize import specialize
from ..ir.trees import tree_leaves
from .accumulation import order_of_accumulation
from .replay import keep_state, replaying
from .results import Bases, Views, separate
from .reverse import vjp
from .watching import Place, Watched, counter_at_run_time, counter_of, kept_by_eager

#: Ops of which only some results are differentiable, whatever their specs say: positions.
_DIFFERENTIABLE_PARTS = {"aten._native_batch_norm_legit_functional.default": (0,)}


@dataclass
class Joint:
    """A forward graph with its gradients.

    graph          inputs: those of the forward graph, then the gradients of the differentiated results; outputs: those
                   of the forward graph, then the gradients of `grad_inputs`; mutations: those of the forward graph.
                   Nothing in it requires grad.
    n_inputs, n_outputs  of the forward graph; the new values of `written` are the last outputs
    grad_outputs   positions of the results that are differentiated
    grad_inputs    positions of the inputs that have gradients, in the order in which eager comes to them
    source         the graph whose results these are, before anything was done to it
    views          how the results of `source` are made from those of this graph; None where they are the same
    watched        what eager keeps of inputs and outputs
    changeable     inputs and outputs that eager does not keep: the program may change them in place
    through_data   inputs that eager keeps through `.data`: it reads what the program has made of them
    written        inputs that get a history with what is written to them
    """

    graph: Graph
    n_inputs: int
    n_outputs: int
    grad_outputs: tuple[int, ...]
    grad_inputs: tuple[int, ...]
    source: Graph
    views: Views | None
    watched: list[Watched]
    changeable: set[Node]
    through_data: set[Node]
    written: tuple[int, ...]
    _behind: set[Node] = field(default_factory=set)

    @property
    def cotangents(self) -> list[Node]:
        return self.graph.inputs[self.n_inputs:]

    @property
    def n_returned(self) -> int:
        """How many outputs the forward half returns."""
        return self.n_outputs - len(self.written)

    @property
    def gradients(self) -> list[Node]:
        return self.graph.outputs[self.n_outputs:]

    @property
    def results(self) -> list[Node]:
        """The values that the forward half must compute: outputs and values of mutations."""
        return [*self.graph.outputs[:self.n_outputs], *(m.value for m in self.graph.mutations)]


def differentiate(graph: Graph, all_views: bool = False) -> Joint:
    """The joint graph of `graph`, which stays as it is. Raises NotCovered for what only torch's autograd can do.

    With `all_views` no result of the joint graph is a view.
    """
    joint = specialize(graph, {})
    narrow_specs(joint)
    check(joint)
    bases = Bases(joint)
    shown = {counter_of(bases, node)[0] for node in joint.outputs}
    views = separate(joint, all_views)
    seen = [mutation for mutation in joint.mutations if mutation.gives_history]
    joint.outputs += [mutation.value for mutation in seen]
    source = specialize(joint, {})
    n_inputs, n_outputs = len(joint.inputs), len(joint.outputs)
    grad_outputs = tuple(k for k, node in enumerate(joint.outputs) if needs_grad(node.spec))
    wanted = order_of_accumulation(joint, [k for k, node in enumerate(joint.inputs) if needs_grad(node.spec)])
    if not grad_outputs or not wanted:
        raise NotCovered("nothing to differentiate")
    if len(grad_outputs) == len(seen) == 1:
        wanted.sort(key=lambda k: k != seen[0].input)  # torch asks for the gradient of what is overwritten first
    outputs, inputs = [joint.outputs[k] for k in grad_outputs], [joint.inputs[k] for k in wanted]
    cotangents = [joint.add_input(_gradient_spec(node.tensor), f"{node.name}_grad") for node in outputs]
    grads = vjp(joint, outputs, cotangents, inputs)
    found = [(k, grad) for k, grad in zip(wanted, grads, strict=True) if grad is not None]
    if not found:
        raise NotCovered("no gradient reaches an input")
    joint.outputs += [grad for _, grad in found]
    lower(joint, together=False)
    _share_parts(joint)
    for node in joint.all_nodes():
        node.spec = plain(node.spec)
        node.grad_enabled = False
    for mutation in joint.mutations:
        mutation.grad_enabled = None
    run_stage(joint, "joint")
    kept = kept_by_eager(source)
    if not shown.isdisjoint(kept.counters):
        raise NotCovered("a result that is the `.data` of what the backward pass reads through it")
    if views is not None and _counted_apart(views, kept.places):
        raise NotCovered("a result that shows what the backward pass reads, with a version counter of its own")
    changeable = {node for kind, nodes in (("input", joint.inputs[:n_inputs]), ("output", joint.outputs[:n_outputs]))
                  for k, node in enumerate(nodes) if (kind, k) not in kept.places and isinstance(node.spec, TensorSpec)}
    if config.activation_memory_budget < 1:
        changeable -= set(joint.inputs)  # to take less memory than eager, any input may be kept
    for node in joint.nodes:
        if REGION in node.meta:
            changeable.difference_update(node.input_nodes())  # eager holds what it computes a region from
    changeable.update(joint.inputs[mutation.input] for mutation in joint.mutations)
    changeable.update(mutation.value for mutation in seen  # which is not laid out as the input
                      if mutation.value.tensor.stride != joint.inputs[mutation.input].tensor.stride)
    through_data = {node for k, node in enumerate(joint.inputs[:n_inputs]) if ("input", k) in kept.through_data}
    return Joint(joint, n_inputs, n_outputs, grad_outputs, tuple(k for k, _ in found), source, views, kept.watched,
                 changeable - through_data, through_data, tuple(mutation.input for mutation in seen))


def _counted_apart(views: Views, places: Collection[Place]) -> bool:
    """Whether writes to a result do not count as writes to the output at one of these places, which it shows."""
    bases = Bases(views.graph)
    sources = {node: place for node, place in zip(views.graph.inputs, views.sources, strict=True)
               if place[0] == "output" and place in places}
    return any(counter_at_run_time(bases, node) is not None and counter_of(bases, node)[1] is None
               and any(base in sources for base in bases.of(node)) for node in views.graph.outputs)


def _gradient_spec(spec: TensorSpec) -> TensorSpec:
    """How the gradient of a result is laid out when the backward half gets it: as the result, where that has each
    element once and no gaps."""
    axes = sorted((stride, size) for stride, size in zip(spec.stride, spec.shape, strict=True) if size != 1) \
        if spec.is_static else []
    expected = 1
    dense = True
    for stride, size in axes:
        dense &= stride == expected
        expected *= size
    return TensorSpec(spec.dtype, spec.shape, spec.stride if dense else contiguous_stride(spec.shape), spec.device)


def _share_parts(graph: Graph) -> None:
    """Each result of an op is one node: what the backward pass keeps may be what the program gets."""
    first: dict[tuple[Node, int], Node] = {}
    mapping: dict[Node, Node] = {}
    for node in graph.nodes:
        if node.op is GETITEM and (known := first.setdefault((node.args[0], node.args[1]), node)) is not node:
            mapping[node] = known
    shared = [n for n in graph.outputs if n in mapping]
    for node in shared:
        del mapping[node]
    graph.nodes[:] = [node for node in graph.nodes if node not in mapping]
    graph.replace(mapping)


def narrow_specs(graph: Graph) -> None:
    """Results that have no gradient do not require grad."""
    for node in graph.nodes:
        kept = _DIFFERENTIABLE_PARTS.get(node.op.name)
        if kept is not None and isinstance(node.spec, tuple):
            node.spec = tuple(spec if k in kept else plain(spec) for k, spec in enumerate(node.spec))
    for node in graph.nodes:
        if node.op.kind == "getitem":
            node.spec = node.args[0].spec[node.args[1]]


def check(graph: Graph) -> None:
    """Raises NotCovered for graphs that only torch's autograd can differentiate."""
    if graph.sizes.has_unbacked:
        raise NotCovered("sizes that depend on data")
    for mutation in graph.mutations:
        if not mutation.gives_history and (
                needs_grad(graph.inputs[mutation.input].spec) or needs_grad(mutation.value.spec)):
            raise NotCovered("a write that autograd must not see")
    for node in graph.all_nodes():
        for spec in node.spec if isinstance(node.spec, tuple) else (node.spec,):
            if isinstance(spec, TensorSpec) and spec.dtype.is_complex:
                raise NotCovered("complex numbers")
            if spec is not None and not isinstance(spec, (TensorSpec, ScalarSpec)):
                raise NotCovered("nested results")


# -- halves -------------------------------------------------------------------------------------------------------


def behind(nodes: Iterable[Node], sources: Iterable[Node]) -> set[Node]:
    """`sources`, and the nodes of a list that depend on them."""
    found = set(sources)
    for node in nodes:
        if any(n in found for n in node.input_nodes()):
            found.add(node)
    return found


def ahead(nodes: Sequence[Node], results: Iterable[Node], stop: Iterable[Node] = ()) -> set[Node]:
    """The nodes of a list that `results` depend on, `results` included, not looking beyond the nodes in `stop`."""
    stop = set(stop)
    found = {n for n in results if n not in stop}
    for node in reversed(nodes):
        if node in found:
            found.update(n for n in node.input_nodes() if n not in stop)
    return found


@dataclass
class Halves:
    """A joint graph cut in two.

    forward    outputs: the user's, then the extras to save
    backward   inputs: the saved values, then the gradients of outputs; outputs: the gradients of inputs
    saved      as in NodeSpec
    """

    forward: Graph
    backward: Graph
    saved: tuple[tuple[str, int], ...]


def split(joint: Joint, saved: Sequence[Node]) -> Halves:
    """Cut at the values to save: everything that the backward half needs besides them it computes from them.

    Inputs and outputs in `joint.changeable` are saved as copies.
    """
    graph = joint.graph
    saved = _in_eagers_order(joint, saved)
    replayed = replays(joint, saved)
    saved = [*saved, *replayed.values(), *_size_bindings(joint, saved)]
    forward = graph.derived(graph.name)
    forward.half = "forward"
    forward.inputs = graph.inputs[:joint.n_inputs]
    forward._names = dict(graph._names)
    forward.mutations = [replace(m) for m in graph.mutations]
    outputs = graph.outputs[:joint.n_outputs]
    extras: list[Node] = []
    copies: dict[Node, Node] = {}
    places: list[tuple[str, int]] = []
    for node in saved:
        place = ("extra", len(extras))
        if node.op is INPUT:
            place = ("data" if node in joint.through_data else "input", graph.inputs.index(node))
        elif node in outputs:
            place = ("output", outputs.index(node))
        if node in joint.changeable:
            place = ("extra", len(extras))
            clone = ops.get("aten.clone.default")
            spec = ops.infer(clone, graph.sizes, (node,), {}, False)  # without the gaps between its elements
            copies[node] = Node(clone, (node,), {}, spec, graph.unique_name("clone"), grad_enabled=False)
            node = copies[node]
        if place[0] == "extra":
            extras.append(node)
        places.append(place)
    forward.outputs = [*outputs[:joint.n_returned], *extras]
    forward.nodes = [*(node for node in graph.nodes if node not in behind_cotangents(joint)), *copies.values()]
    remove_dead_code(forward)
    owned = {node for node, (kind, _) in zip(saved, places, strict=True) if kind == "extra"}
    specs = {node: copy.spec for node, copy in copies.items()}
    return Halves(forward, backward_half(joint, saved, replayed, owned, specs), tuple(places))


def _in_eagers_order(joint: Joint, saved: Sequence[Node]) -> list[Node]:
    """The values to save, those that eager keeps in the order in which it looks whether they were changed in place."""
    ranks: dict[Node, int] = {}
    for rank, (kind, i) in enumerate(one.place for one in joint.watched):
        ranks.setdefault((joint.graph.inputs if kind == "input" else joint.graph.outputs)[i], rank)
    return sorted(saved, key=lambda node: ranks.get(node, len(ranks)))


def replays(joint: Joint, saved: Sequence[Node]) -> dict[Node, Node]:
    """The random nodes that the backward half runs again, each with the node of the state that it starts from."""
    graph = joint.graph
    again = ahead(graph.nodes, joint.gradients, saved) - behind_cotangents(joint)
    return {node: keep_state(graph, node) for node in list(graph.nodes) if node in again and node.op.is_random}


def _size_bindings(joint: Joint, saved: Sequence[Node]) -> list[Node]:
    """Numbers to save, for symbols that the backward half mentions: a pass may come without the gradient, and without
    the kept tensor, that would bind one. Symbols that no input of the graph binds are left to these tensors."""
    graph = joint.graph
    needed = ahead(graph.nodes, joint.gradients, saved)
    mentioned: set[sympy.Symbol] = set()
    for node in graph.nodes:
        if node in needed:
            mentioned |= symbols_in((node.args, node.kwargs, node.spec))
    for node in (*saved, *joint.cotangents):
        mentioned |= symbols_in(node.spec)
    if not mentioned:
        return []
    mentioned |= standing_for(graph.sizes, mentioned)
    told = {symbol for node in (*saved, *joint.cotangents) for symbol, _ in bare_symbols(node.spec)}
    places = graph.symbol_bindings()
    found: list[Node] = []
    for symbol in sorted(mentioned, key=str):
        position, kind, dim = places.get(symbol, (0, "", None))
        source = graph.inputs[position]
        if kind == "value":
            found.append(source)
        elif kind in ("size", "stride") and position < joint.n_inputs:
            op = ops.get(f"aten.sym_{kind}.int")
            found.append(graph.add(op, (source, dim), {}, ScalarSpec(int, symbol), grad_enabled=False))
        elif symbol not in told:
            raise NotCovered(f"nothing tells the backward pass the size {symbol}")
    return [node for node in found if node not in saved]


def standing_for(sizes: SizeEnv, symbols: Iterable[sympy.Symbol]) -> set[sympy.Symbol]:
    """The symbols that a backend writes in place of others, because the program's sizes are known to agree."""
    return set().union(*(symbols_in(sizes.canonical(symbol)) for symbol in symbols))


def symbols_in(value: Any) -> set[sympy.Symbol]:
    """The symbols that sizes inside a spec, or a nested argument, mention."""
    found: set[sympy.Symbol] = set()
    for leaf in tree_leaves(value):
        if isinstance(leaf, sympy.Basic):
            found |= leaf.free_symbols  # type: ignore[arg-type]
        elif isinstance(leaf, TensorSpec) and not leaf.is_static:
            found |= symbols_in((leaf.shape, leaf.stride))
        elif isinstance(leaf, ScalarSpec):
            found |= symbols_in(leaf.expr)
    return found


def behind_cotangents(joint: Joint) -> set[Node]:
    """The nodes that only a backward pass can compute."""
    if not joint._behind:
        joint._behind = behind(joint.graph.nodes, joint.cotangents)
    return joint._behind


def backward_half(joint: Joint, saved: Sequence[Node], replayed: Mapping[Node, Node], owned: set[Node],
                  specs: Mapping[Node, Spec]) -> Graph:
    """The backward half, given what is saved, of which nobody but the node sees what is in `owned`, and some is laid
    out as `specs` say. NotCovered where that is not enough."""
    graph = joint.graph
    needed = ahead(graph.nodes, joint.gradients, saved)
    if any(node in needed for node in graph.inputs[:joint.n_inputs]):
        raise NotCovered("an input that is not saved")
    made = graph.derived(f"{graph.name}_backward")
    made.half = "backward"
    mapping: dict[Node, Node] = {}
    for node in (*saved, *joint.cotangents):
        spec = specs.get(node, node.spec)
        assert isinstance(spec, (TensorSpec, ScalarSpec))
        mapping[node] = made.add_input(spec, node.name, **node.meta)
        if node in owned:
            mapping[node].meta[OWNED] = True
    for node in _regions_late([node for node in graph.nodes if node in needed]):
        op, args = node.op, map_nodes(node.args, mapping.__getitem__)
        if node in replayed:
            op, args = replaying(op), (mapping[replayed[node]], *args)
        kwargs = {key: map_nodes(value, mapping.__getitem__) for key, value in node.kwargs.items()}
        spec = node.spec
        if any(mapping[n].spec != n.spec for n in node.input_nodes()):
            spec = _laid_out_anew(made, op, args, kwargs)
        mapping[node] = made.add(op, args, kwargs, spec, node.loc, node.name, False)
        if REENTRANT in node.meta:
            mapping[node].meta[REENTRANT] = True
    made.outputs = [mapping[node] for node in joint.gradients]
    return made


def _laid_out_anew(graph: Graph, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Spec:
    """The spec of a node whose operands are not laid out as they were when it was made."""
    if "as_strided" in op.name:
        raise NotCovered("places in memory that is laid out in another way")
    if op is GETITEM:
        source, part = args
        assert isinstance(source.spec, tuple)
        return source.spec[part]
    return ops.infer(op, graph.sizes, args, kwargs, False)


def _regions_late(nodes: list[Node]) -> list[Node]:
    """The nodes in another order: regions are computed again when they are first read, so that no two of them take up
    memory at the same time."""
    if not any(REGION in node.meta for node in nodes):
        return nodes
    waiting = {node for node in nodes if REGION in node.meta}
    order: list[Node] = []
    for node in nodes:
        if node in waiting:
            continue
        stack = [(node, iter(node.input_nodes()))]
        while stack:
            top, sources = stack[-1]
            source = next((n for n in sources if n in waiting), None)
            if source is None:
                order.append(top)
                stack.pop()
            else:
                waiting.discard(source)
                stack.append((source, iter(source.input_nodes())))
    return order + [node for node in nodes if node in waiting]
