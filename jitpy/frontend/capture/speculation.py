"""The graph builder's assumptions about autograd's history until the graph ends.

*Leaves*: a history may begin inside a graph, at a tensor of the program's own that is told to require grad, or at a
parameter that was changed under no_grad. A graph has no form for that, but needs none where backward passes that are
captured have used the history up.

*Hooks* of tensors are called by the passes that are captured, and by no others.

*Spoiled* nodes: autograd keeps for them what was written to since. Eager raises when a backward pass comes through one,
and most never do.

*Writes* whose result autograd keeps (`tanh_()`): in eager that is the memory that is written to, and what is written
there later through `.data`, which nobody notices, is what the backward pass reads. In a graph it is in other memory.

*Views that were made several at once* (`split`, `unbind`, or a parameter that is unpacked) of what requires grad: eager
refuses to read them once that is written to, which an optimizer does, and most programs have long done with them.

*Tensors whose `.data` was assigned*: what autograd keeps of them has their version counters, which no node knows.

Each is an assumption. Where it is violated (the history of a result leads there), tracing starts again, and breaks the
graph at the step that made it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from jitpy.ir import CONSTANT, GETITEM, INPUT, Node
from jitpy.ir.alias import needs_grad
from jitpy.ir.graph import OWN_VERSIONS

from ..breaks import GraphBreak, RestartAnalysis
from ..polyfills.hooks import RETAINS
from .autograd_facts import saved_values, shows
from .history import plain
from .traced import GraphBuilder, Storage, TracedTensor, Uncapturable, ViewStep

_ALIAS = torch.ops.aten.alias.default
_TURNED = "requires_grad_() that changes a tensor"


@dataclass(frozen=True, slots=True)
class Assumption:
    """The step that made it, and the break that is due there if it is lost."""

    step: int
    reason: str
    detail: str
    #: whether all that is needed is that another graph begins at the step
    split: bool = False

    def violated(self) -> RestartAnalysis:
        return RestartAnalysis(self.step, GraphBreak(self.reason, self.detail, split=self.split))


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor at whose present value a history begins; `input` is its number among the inputs, None: made here.
    `chain`: what it was a view by until then, which autograd still takes it for."""

    tensor: TracedTensor
    input: int | None
    assumption: Assumption
    chain: tuple[ViewStep, ...]


@dataclass(frozen=True, slots=True)
class Hooks:
    """The hooks that the program has given a tensor: a dict, whose values `run` calls with a gradient."""

    tensor: TracedTensor
    hooks: Any
    is_leaf: bool
    assumption: Assumption
    #: (gradient, whether the pass is recorded, nodes whose memory others hold) -> what the hooks make of the gradient
    run: Callable[[Node, bool, set[Node]], Node]

    @property
    def retains(self) -> bool:
        """Whether the tensor was told to retain its gradient."""
        return RETAINS in self.hooks.vals

    @property
    def only_retains(self) -> bool:
        """Whether it has no other hooks."""
        return self.retains and len(self.hooks.vals) == 1


class Speculation:
    """leaves: by the node that stands for the value. based: what became a leaf, as the base of views that were made of
    it before, which require grad since then. spoiled: nodes of which autograd keeps what was written to. hooked: by the
    node of the tensor's value. handed: gradients that hooks were given, by the node in whose memory they are in eager.
    off: leaves from outside that were told not to require grad, with their states before. seen_off: as what views of
    them are made since, of which none may outlive the graph: it would be no view of the tensor. turned: inputs that
    were told to require grad. No other input shows their memory: views that were made before come to require grad with
    them. replaced: inputs whose `.data` was assigned, with the last step that did it. renewed: what stands for leaves
    that were made here since their `.data` was assigned, with what did before. assigned: the steps of views by which
    inputs look at what was assigned. kept: what was written under autograd to a memory, where autograd keeps it, with
    the node that computed it.
    """

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder
        self.kept: list[tuple[Storage, Node, Node, Assumption]] = []
        self.replaced: dict[int, int] = {}
        self.assigned: dict[ViewStep, Assumption] = {}
        self.renewed: dict[TracedTensor, TracedTensor] = {}
        self.outdated: dict[ViewStep, Assumption] = {}
        self.leaves: dict[Node, Leaf] = {}
        self.based: dict[tuple[Storage, ViewStep | None], Assumption] = {}
        self.spoiled: dict[Node, Assumption] = {}
        self.off: dict[TracedTensor, tuple[Any, ...]] = {}
        self.seen_off: dict[ViewStep, Assumption] = {}
        self.turned: dict[int, Assumption] = {}
        self.hooked: dict[Node, Hooks] = {}
        self.handed: dict[Node, list[tuple[TracedTensor, Assumption]]] = {}
        self._shared: list[tuple[TracedTensor, Assumption]] = []
        #: copies of what eager returns as it is: with the tensors that show it, their memories' generations, the
        #: assumption
        self._copies: tuple[tuple[TracedTensor, tuple[tuple[Storage, int], ...], Assumption], ...] = ()
        #: what stands for a gradient, or for what was saved, while a `backward` of the program's is traced
        self.placeholders: set[TracedTensor] = set()
        #: nodes of leaves to which passes have gone whose gradients have a history
        self.differentiated: set[Node] = set()
        #: whether a hook of a pass is running
        self.in_pass = False

    def hook(self, node: Node, hooks: Hooks) -> None:
        """A tensor gets its first hook."""
        self._builder.put(self.hooked, node, hooks)

    def retains(self, tensor: TracedTensor) -> bool:
        """Whether a tensor was told to retain its gradient."""
        return any(hooked.tensor is tensor and hooked.retains for hooked in self.hooked.values())

    def spoil(self, nodes: Iterable[Node], detail: str, at: int | None = None) -> None:
        """Tensors that autograd keeps for `nodes` are written to; `at`: the step at which to break, if not at this
        one."""
        assumption = Assumption(self._builder.step() if at is None else at, "unsupported_op", detail)
        for node in nodes:
            if node not in self.spoiled:
                self._builder.put(self.spoiled, node, assumption)

    def outdate(self, target: TracedTensor) -> None:
        """A memory is written to of which there are views made several at once."""
        detail, steps = "a write to memory with views that were made several at once", target.storage.split
        if any(step in steps for step in target.chain):
            raise Uncapturable("unsupported_op", detail)
        assumption = Assumption(self._builder.step(), "unsupported_op", detail)
        self._builder.set(self, "outdated", {**dict.fromkeys(steps, assumption), **self.outdated})

    def check_date(self, tensor: TracedTensor) -> None:
        """Raises RestartAnalysis for one of several views, or a view of one, of what was written to since."""
        for step in tensor.chain:
            if step in self.outdated:
                raise self.outdated[step].violated()

    def keep(self, storage: Storage, value: Node, writer: Node) -> None:
        """`writer` computes the `value` that is written to a memory, and autograd keeps it there."""
        assumption = Assumption(self._builder.step(), "unsupported_op",
                                "a write of what autograd keeps for the backward pass")
        self.kept.append((storage, value, writer, assumption))
        self._builder.journal.append(lambda: self.kept.pop() and None)

    def check_pass(self, nodes: Collection[Node]) -> None:
        """A backward pass comes through `nodes`. Raises RestartAnalysis where eager would raise an error."""
        for node in nodes:
            if node in self.spoiled:
                raise self.spoiled[node].violated()

    def hand(self, memory: Node, tensor: TracedTensor, assumption: Assumption, is_shared: bool) -> None:
        """A hook gets a gradient in memory of its own, which in eager is that of `memory`: shared with other hooks that
        were given it, and perhaps with the program. Nobody sees the difference unless it is kept or written to."""
        others = self.handed.setdefault(memory, [])
        if is_shared:
            self._shared += [*others, (tensor, assumption)]
        others.append((tensor, assumption))

    def share(self, memory: Node) -> None:
        """In eager a tensor of the program's is in this memory, which hooks may have been given."""
        self._shared += self.handed.get(memory, ())

    def copied(self, copy: TracedTensor, shown: Iterable[TracedTensor]) -> None:
        """A gradient that is a copy is, in eager, in the memory of `shown`, if not the very object. Nobody sees the
        difference unless it outlives the graph, or one of them is written to."""
        others = tuple((tensor.storage, tensor.storage.generation) for tensor in shown)
        assumption = Assumption(self._builder.step(), "autograd", "a gradient that is another tensor's memory")
        self._builder.set(self, "_copies", (*self._copies, (copy, others, assumption)))

    def check_identity(self, tensor: TracedTensor) -> None:
        """The program asks which object a tensor is. Raises where that may be another one in eager: a gradient that
        passes are given, or that is passed on as it is."""
        if tensor in self.placeholders:
            raise GraphBreak("autograd", "identity of a tensor that a backward pass is given")
        for other, assumption in (*self._shared, *((copy, assumption) for copy, _, assumption in self._copies)):
            if other is tensor:
                raise assumption.violated()

    def begin_again(self, storage: Storage) -> None:
        """A leaf from outside that was changed under no_grad is read: its history begins at its present value."""
        detail = "a tensor that requires grad is read after it was changed under no_grad"
        step = self._builder.step_behind(storage.lost_at)
        entry = None if storage.input is None else self._builder.inputs[storage.input]
        if entry is None or storage.restricted or not isinstance(entry.payload, TracedTensor) or \
                not entry.payload.is_leaf or not entry.value.requires_grad:
            raise Uncapturable("input_mutation", detail)
        self._builder.save(storage)
        assumption = Assumption(step, "new_history", f"{entry.source}, changed under no_grad",
                                split=step > storage.lost_at)
        storage.base = self.begin_at(storage.base, entry.payload, assumption, storage.input)
        storage.lost_grad = False
        storage.values = (*storage.values, storage.base)
        storage.generation += 1

    def turn_off(self, tensor: TracedTensor) -> None:
        """A leaf from outside is told not to require grad: from now on it is seen through `detach()`."""
        builder, storage = self._builder, tensor.storage
        if tensor.input is None or storage.frozen:
            raise Uncapturable("unsupported_op", _TURNED)
        state = tensor.state()
        view = builder.record(torch.ops.aten.detach.default, (tensor,), {})
        builder.save(tensor)
        tensor.restore(view.state())
        tensor.is_leaf = True
        builder.put(self.off, tensor, state)
        builder.put(self.seen_off, tensor.chain[-1], Assumption(builder.step(), "unsupported_op", _TURNED))

    def turn_on(self, tensor: TracedTensor) -> None:
        """A tensor from outside is told to require grad: as it did before it was told not to, or for the first time."""
        builder = self._builder
        before = self.off.get(tensor)
        if before is None:
            if tensor.input is None or tensor.storage.written:  # which its memory has to see
                raise Uncapturable("unsupported_op", _TURNED)
            builder.put(self.turned, tensor.input, Assumption(builder.step(), "unsupported_op", _TURNED))
            self.begin(tensor, tensor.input)
            return
        storage, generation = before[0], tensor.storage.generation
        builder.save(tensor)
        tensor.restore(before)
        tensor.generation, tensor.node = generation, storage.base
        del self.off[tensor]
        builder.journal.append(lambda: self.off.__setitem__(tensor, before))

    def replace(self, number: int, tensor: TracedTensor) -> None:
        """The `.data` of an input is assigned: `tensor` stands for it from now on."""
        step = self._builder.step()
        self._builder.set(self, "replaced", {**self.replaced, number: step})
        detail = "autograd keeps a tensor whose .data was assigned"
        self.assigned[tensor.chain[-1]] = Assumption(step, "unsupported_op", detail)

    def counts_versions(self, tensor: TracedTensor) -> bool:
        """Whether the version counter of a tensor from outside, whose `.data` was assigned, goes up with a write."""
        steps = [step for step in tensor.chain if step.is_data]
        return bool(steps) and steps[-1] in self.assigned

    def _check_assigned(self, live: Iterable[object]) -> None:
        for payload in live if self.assigned else ():
            chain = payload.chain if isinstance(payload, TracedTensor) else ()
            for step, view in zip(chain, chain[1:], strict=False):
                if step in self.assigned and not view.is_data:  # it would be no view of the tensor
                    raise self.assigned[step].violated()
        for node in self._builder.graph.nodes if self.assigned else ():
            if needs_grad(node.spec) and not node.op.is_view and node.op is not GETITEM:
                for value in saved_values(self._builder, node)[0]:
                    while value.op.is_view and value.meta.get(OWN_VERSIONS) not in self.assigned:
                        value = value.input_nodes()[0]
                    if (step := value.meta.get(OWN_VERSIONS)) in self.assigned:
                        raise self.assigned[step].violated()

    def renew(self, old: TracedTensor, tensor: TracedTensor) -> None:
        """The `.data` of a leaf that was made here is assigned: `tensor` stands for it from now on."""
        self._builder.put(self.renewed, tensor, old)
        self.begin(tensor)

    def begin_at_data(self, tensor: TracedTensor) -> None:
        """A leaf whose `.data` was assigned is read under autograd: its history begins at what it shows."""
        builder, number = self._builder, tensor.stands_for
        assert number is not None
        builder.save(tensor)
        tensor.stands_for = None
        before = self.replaced[number]
        step = builder.step_behind(before)
        detail = f"{builder.inputs[number].source}, whose .data was assigned"
        assumption = Assumption(step, "new_history", detail, split=step > before)
        self.begin(tensor, number, assumption)

    def begin(self, tensor: TracedTensor, number: int | None = None, assumption: Assumption | None = None) -> None:
        """A tensor of the program's own, or input `number`, is told to require grad. From then on nothing may write to
        its memory."""
        builder, detail = self._builder, _TURNED
        if tensor.storage.input is not None and not tensor.chain and number is None or \
                not tensor.dtype.is_floating_point or builder.state.inference_mode or tensor.storage.inference:
            raise Uncapturable("unsupported_op", detail)
        if tensor.storage.input is not None and tensor.storage.written and number is None:
            raise Uncapturable("unsupported_op", detail)  # it stays in that input's memory
        source = builder.node(tensor)
        builder.save(tensor)
        builder.save(tensor.storage)
        tensor.storage.frozen = True
        assumption, root = assumption or Assumption(builder.step(), "unsupported_op", detail), tensor.root
        if not tensor.chain or tensor.chain[-1] is root[1]:
            builder.put(self.based, root, assumption)
        node = self.begin_at(source, tensor, assumption, number)
        tensor.storage, tensor.chain = Storage(node, number), ()
        tensor.storage.frozen = True
        tensor.node, tensor.generation, tensor.anchored, tensor.is_leaf = node, 0, True, True
        tensor._spec = node.tensor

    def begin_at(self, source: Node, tensor: TracedTensor, assumption: Assumption, number: int | None = None) -> Node:
        """The node at which a history of a tensor begins, with the value that `source` has."""
        builder = self._builder
        if builder.first_grad_node is None:
            builder.first_grad_node = len(builder.graph.nodes)
        node = builder.graph.add(builder.op(_ALIAS), (source,), {}, source.tensor.with_(requires_grad=True),
                                  builder.loc, grad_enabled=True)
        builder.put(self.leaves, node, Leaf(tensor, number, assumption, tensor.chain))
        return node

    def check_view(self, tensor: TracedTensor) -> None:
        """Raises Uncapturable for a view of what came to require grad when the view was there already."""
        if tensor.storage.frozen and tensor.root in self.based:
            raise Uncapturable("unsupported_op", "a view of a tensor that came to require grad after it was made")
        if tensor.storage.frozen and self._builder.parameters.is_stale(tensor):
            raise Uncapturable("unsupported_op", "a view of a parameter that was changed under no_grad since")

    def is_leaf(self, tensor: TracedTensor) -> bool:
        """Whether a history begins at this tensor, here."""
        if tensor.storage.leaf is tensor:
            return True
        leaf = self.leaves.get(tensor.storage.base)
        return leaf is not None and leaf.tensor is tensor

    def is_own_leaf(self, tensor: TracedTensor) -> bool:
        """Whether a tensor that was made here, and is no parameter, was told to require grad, and nobody watches it."""
        leaf = self.leaves.get(tensor.storage.base)
        return leaf is not None and leaf.tensor is tensor and leaf.input is None and not tensor.chain and \
            tensor not in self._builder.parameters.data and \
            not any(hooked.tensor is tensor for hooked in self.hooked.values())

    def has_history(self, tensor: TracedTensor) -> bool:
        """Whether a tensor that requires grad was computed, here or before: a write that autograd records makes of an
        argument that is a leaf one that is not."""
        storage = tensor.storage
        if self.is_leaf(tensor):
            return False
        if tensor.unasked and not self._builder.state.grad_enabled:
            return True  # nearly always, and without grad mode nobody asks
        return not tensor.is_leaf or storage.written and not storage.lost_grad and storage.base.tensor.requires_grad

    def nodes_of(self, tensor: TracedTensor) -> set[Node]:
        """All nodes that have stood for a leaf, by its present value or by a former one."""
        found = {node for node, leaf in self.leaves.items() if leaf.tensor is tensor}
        if tensor.input is not None:
            found.add(self._builder.graph.inputs[tensor.input])
        return found | self.nodes_of(self.renewed[tensor]) if tensor in self.renewed else found

    def _passed_on_to_fail(self, node: Node, live: list[object]) -> bool:
        """Whether a pass from a result whose history is spent would bring a gradient to another one before it raises.
        """
        builder = self._builder
        if not builder.history.freed:
            return False
        behind = {node}
        for one in builder.graph.nodes:
            if not behind.isdisjoint(one.input_nodes()):
                behind.add(one)
        behind.remove(node)
        spent = [builder.node(value) for value in live if isinstance(value, TracedTensor) and value.spec.requires_grad]
        return any(one in behind and not needs_grad(one.spec) for one in spent)

    def _forget_unreachable(self, live: list[object]) -> None:
        """Leaves that were made here for gradients with a history, and that nobody can look at when the graph has run:
        no pass needs to come to them. A tensor with a history by them alone loses it, unless it is a result: then
        they stay, and their assumptions are lost."""
        shown = {tensor.storage.base for tensor in live if isinstance(tensor, TracedTensor)}
        gone = {node for node, leaf in self.leaves.items() if leaf.input is None and node in self.differentiated
                and node not in shown and not any(leaf.tensor is tensor for tensor in live)}
        graph = self._builder.graph
        if not any(needs_grad(node.spec) for node in gone):
            return
        connected = {node for node in (*graph.inputs, *self.leaves) if needs_grad(node.spec)} - gone
        without: list[Node] = []
        for node in graph.nodes:
            if not needs_grad(node.spec) or node in connected:
                continue
            if node not in gone and (node.op is CONSTANT or any(n in connected for n in node.input_nodes())):
                connected.add(node)
            else:
                without.append(node)
        results = {*graph.outputs, *(mutation.value for mutation in graph.mutations)}
        if results.isdisjoint(without):
            for node in without:
                node.spec, node.grad_enabled = plain(node.spec), False

    def settle(self, live: Iterable[object]) -> None:
        """The graph has ended, and has the history that is needed. Raises RestartAnalysis where an assumption is lost;
        leaves give way to what they stand for."""
        for node, assumption in self.spoiled.items():
            if needs_grad(node.spec):
                raise assumption.violated()
        live = list(live)
        self._check_assigned(live)
        memories = {tensor.storage for tensor in live if isinstance(tensor, TracedTensor)} if self.kept else set()
        for storage, value, writer, assumption in self.kept:
            apart = storage.input is not None or storage in memories and not shows(storage.base, {value})
            if apart and needs_grad(writer.spec):
                raise assumption.violated()
        for number, assumption in self.turned.items():
            if self._builder.shares_memory(number):
                raise assumption.violated()
        parameters = self._builder.parameters
        for tensor in live:
            if isinstance(tensor, TracedTensor) and self.outdated:
                self.check_date(tensor)
            if isinstance(tensor, TracedTensor) and parameters.is_stale(tensor):
                raise self.leaves[tensor.storage.base].assumption.violated()
            assumption = parameters.unrecorded(tensor) if isinstance(tensor, TracedTensor) else None
            if assumption is not None:
                raise assumption.violated()
        seen = set(map(id, live))
        live += [made for made, data in parameters.data.items() if id(data) in seen]
        for payload in live if self.seen_off else ():
            for step in payload.chain[:-1] if isinstance(payload, TracedTensor) else ():
                if step in self.seen_off:
                    raise self.seen_off[step].violated()
        for node, hooked in self.hooked.items():
            is_live = any(value is hooked.tensor for value in live)
            seen = node.op is INPUT or needs_grad(node.spec) or is_live
            if hooked.only_retains:
                # the compiled code has what leaves it retain its gradient; nobody can ask what does not leave it
                if is_live and (self._builder.node(hooked.tensor) is not node or self._passed_on_to_fail(node, live)):
                    raise hooked.assumption.violated()
            elif hooked.hooks.vals and seen:
                raise hooked.assumption.violated()
        for copy, shown, assumption in self._copies:
            if copy.storage.written or any(value is copy for value in live) or \
                    any(storage.generation != generation for storage, generation in shown):
                raise assumption.violated()
        for tensor, assumption in self._shared:
            if tensor.storage.written or any(value is tensor for value in live):
                raise assumption.violated()
        for tensor in live:
            if isinstance(tensor, TracedTensor) and tensor.root in self.based:
                raise self.based[tensor.root].violated()
            if isinstance(tensor, TracedTensor) and tensor.storage.base in self.leaves:
                leaf = self.leaves[tensor.storage.base]
                if leaf.tensor is not tensor and leaf.input in self.turned:  # it shares memory with an input
                    raise leaf.assumption.violated()
        kept = set(map(id, live))
        self._forget_unreachable(live)
        mapping: dict[Node, Node] = {}
        for node, leaf in self.leaves.items():
            held = leaf.input is None and id(leaf.tensor) in kept and leaf.tensor not in parameters.data
            if needs_grad(node.spec) or held:
                raise leaf.assumption.violated()
            source: Node = node.args[0]
            mapping[node] = mapping.get(source, source)
        graph = self._builder.graph
        graph.nodes[:] = [node for node in graph.nodes if node not in mapping]
        graph.replace(mapping)


__all__ = ["Assumption", "Speculation", "Hooks", "Leaf"]
