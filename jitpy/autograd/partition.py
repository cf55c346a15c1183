"""The values that the forward pass keeps for the backward pass: a cheapest cut between what only the forward pass can
compute and what the backward pass reads.

The idea is that of "Training Deep Nets with Sublinear Memory Cost" (https://arxiv.org/abs/1604.06174), as a minimum
cut. Cutting a value costs the bytes that it takes, twice if the forward pass would otherwise never write it to
memory. Values that may be computed again lie on paths that can be cut further up. How much may be computed again
depends on `config.activation_memory_budget`: at 1.0 only what fuses into kernels of the backward pass at next to no
cost, below it more, cheapest per byte first, until no more than that part of the memory is kept.

Of a region (`torch.utils.checkpoint`) only what it takes and what others read of it is kept; random numbers are drawn
again from the state of the generator, which is kept instead. The same goes for random numbers below a budget of 1.0.

Inputs and outputs are kept only where the gradient formulas themselves read them, and as copies where eager does not
keep them: the program may change those in place. Below a budget of 1.0 any input may be kept.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from .. import config, logs
from ..ir.graph import CONSTANT, GETITEM, INPUT, REGION, Node
from ..ir.op import NotCovered
from ..ir.sizes import SizeEnv
from ..ir.spec import Spec, TensorSpec
from ..ir.trees import tree_leaves
from .flow import INFINITE, FlowGraph
from .joint import Joint, ahead, behind_cotangents
from .replay import STATE_BYTES, may_replay
from .results import Bases


def choose_saved(joint: Joint) -> list[Node]:
    """The values to save, in the order of the graph: inputs, outputs and intermediates. Raises NotCovered."""
    facts = _Facts(joint)
    budget = config.activation_memory_budget
    saved = _cut(facts, facts.cheap | facts.regions)
    if budget < 1:
        saved = _within(facts, saved, budget)
    logs.log("graph", lambda: f"{joint.graph.name}: {facts.bytes_of(saved)} bytes saved: "
                              f"{', '.join(node.name for node in saved)}")
    return saved


def _within(facts: _Facts, saved: list[Node], budget: float) -> list[Node]:
    """The first choice that keeps no more than `budget` of the memory, computing ever more again."""
    limit = budget * facts.bytes_of(saved)
    ranked = sorted((node for node in facts.early if facts.may_recompute(node)),
                    key=lambda node: facts.work(node) / max(facts.size(node), 1))
    low, high = 0, len(ranked)
    best = _cut(facts, facts.regions.union(ranked), any_input=True)
    while low < high:
        middle = (low + high) // 2
        choice = _cut(facts, facts.regions.union(ranked[:middle]), any_input=True)
        if facts.bytes_of(choice) <= limit:
            best, high = choice, middle
        else:
            low = middle + 1
    return best


@dataclass
class _Facts:
    """The facts that decide the cut.

    late    nodes that depend on gradients: the backward pass
    early   nodes that the forward pass computes for its own results
    between nodes that are neither: what gradient formulas compute from values alone. They belong to the backward pass,
            and the forward pass runs those of them whose results are cheaper to keep than what they are made of.
    reads   values of the forward pass, and inputs, with the nodes behind it that read them
    border  what late nodes read that is not late itself, and gradients that depend on none
    """

    joint: Joint
    late: set[Node] = field(init=False)
    early: set[Node] = field(init=False)
    between: set[Node] = field(init=False)
    border: set[Node] = field(init=False)
    reads: dict[Node, list[Node]] = field(init=False)
    cheap: set[Node] = field(init=False)
    regions: set[Node] = field(init=False)

    def __post_init__(self) -> None:
        graph = self.joint.graph
        self.sizes: SizeEnv = graph.sizes
        self.bases = Bases(graph)
        self.late = behind_cotangents(self.joint)
        self.early = ahead(graph.nodes, self.joint.results)
        self.early.update(n for n in graph.nodes if n.op.is_random and n not in self.late)
        self.early.update(n for n in graph.nodes if n.op is GETITEM and n.args[0] in self.early)
        self.early.update(graph.inputs[:self.joint.n_inputs])
        needed = ahead(graph.nodes, self.joint.gradients)
        self.between = {n for n in graph.nodes if n in needed and n not in self.late and n not in self.early}
        self.border = {n for n in self.joint.gradients if n not in self.late}
        for node in graph.nodes:
            if node in self.late and node in needed:
                self.border.update(n for n in node.input_nodes() if n not in self.late)
        self.reads = {}
        self.users: dict[Node, list[Node]] = {}
        self.users_behind: dict[Node, list[Node]] = {}
        for node in graph.nodes:
            for source in dict.fromkeys(node.input_nodes()):
                if node in self.early:
                    self.users.setdefault(source, []).append(node)
                elif node in needed:
                    self.users_behind.setdefault(source, []).append(node)
                    if source in self.early:
                        self.reads.setdefault(source, []).append(node)
        self.read_memory = frozenset().union(*map(self.bases.of, self.reads))
        self.outputs = set(graph.outputs[:self.joint.n_outputs])
        self.shown = frozenset().union(*map(self.bases.of, self.outputs))
        regions = [node for node in self.early if region_of(node) is not None]
        self.regions = {node for node in regions if self.is_inside(node)}
        self.region_inputs = {n for node in regions for n in node.input_nodes() if n.op is INPUT}
        self.cheap = {node for node in self.early if self._is_cheap(node)}

    def is_view(self, node: Node) -> bool:
        return self.bases.is_view(node)

    def size(self, node: Node) -> int:
        """Bytes of a value, at the sizes of the traced call."""
        return _size(self.sizes, node.spec)

    def bytes_of(self, saved: Collection[Node]) -> int:
        """Bytes that are kept beyond inputs and outputs, which live on anyway."""
        return sum(self.size(node) for node in saved if node.op is not INPUT and node not in self.outputs)

    def may_recompute(self, node: Node) -> bool:
        """Whether a node gives the same again when it runs a second time: a random one from a state that is kept."""
        if node.op in (INPUT, CONSTANT) or not node.op.is_pure:
            return False
        return not node.op.is_random or may_replay(node)

    def is_inside(self, node: Node) -> bool:
        """Whether only a region reads a value that it computes: nothing of it is kept then."""
        region = region_of(node)
        return region is not None and node not in self.outputs and self.may_recompute(node) and all(
            self.is_inside(user) if self.is_view(user) or user.op is GETITEM else region_of(user) is region
            for user in self.users.get(node, ()))

    def work(self, node: Node) -> float:
        """Floating point operations of a node, roughly."""
        if self.is_view(node) or node.op is GETITEM:
            return 0
        elements = self.size(node) / 4
        sources = [n.spec for n in node.input_nodes() if isinstance(n.spec, TensorSpec)]
        if fuses(node):
            return elements * (1 if is_light(node) else 10)
        # a product, a convolution or attention: each element is a sum over a row
        widest = max((self.sizes.hint(spec.shape[-1]) for spec in sources if spec.shape), default=1)
        return 2 * elements * widest

    def _is_cheap(self, node: Node) -> bool:
        """Whether computing a value again in the backward pass costs less time than keeping it."""
        if not self.may_recompute(node) or node.op.is_random:
            return False
        if self.is_view(node) or node.op.kind == "factory":
            return True
        if node.op.kind != "pointwise" or not is_light(node):
            return False
        # what several kernels read is in memory already, and often far from where it is needed again
        if len(self._readers(node, self.users)) > 1 and self.in_memory(node):
            return False
        # what a library call of the backward pass reads has to be in memory: where it is already, it stays
        behind = self._readers(node, self.users_behind)
        return not (self.in_memory(node) and any(not fuses(reader) for reader in behind))

    def _readers(self, node: Node, users: dict[Node, list[Node]]) -> list[Node]:
        """The readers of a value in one of the passes, seen through views."""
        found: list[Node] = []
        for user in users.get(node, ()):
            found += self._readers(user, users) if self.is_view(user) else (user,)
        if users is self.users_behind:
            for user in self.users.get(node, ()):
                if self.is_view(user):
                    found += self._readers(user, users)
        return found

    def in_memory(self, node: Node) -> bool:
        """Whether the forward pass writes a value to memory anyway."""
        if node in self.between:
            return False
        if node in self.outputs or not fuses(node) or node.op.kind == "reduction":
            return True
        readers = self._readers(node, self.users)
        return len(readers) > 1 or any(not fuses(reader) for reader in readers)

    def cost(self, node: Node, any_input: bool) -> float:
        """The price of saving a value; infinite where it must not be saved."""
        if node.op is INPUT:
            if not isinstance(node.spec, TensorSpec):
                return 0
            if not any_input and node not in self.read_memory and node not in self.region_inputs:
                return INFINITE
            return 3 * self.size(node) if node in self.joint.changeable else 0
        if node in self.regions or not isinstance(node.spec, TensorSpec) or self.bases.kind(node) != "copy":
            return INFINITE
        if node in self.outputs:
            if node in self.joint.changeable:
                return 3 * self.size(node)  # a copy, which may still be smaller than what is computed from it
            return self.size(node) if node in self.reads else INFINITE
        if not self.shown.isdisjoint(self.bases.of(node)):
            return INFINITE
        if node in self.between and (region_of(node) is not None or not self.may_recompute(node)):
            return INFINITE
        return max(self.size(node), 1) * (1 if self.in_memory(node) else 2)


def _cut(facts: _Facts, again: Collection[Node], any_input: bool = False) -> list[Node]:
    """The cheapest values to save, if the nodes in `again` may be computed again. Raises NotCovered where there are
    none."""
    graph = facts.joint.graph
    flow = FlowGraph()
    region: list[Node] = []
    wanted = set(facts.border)
    for node in (*reversed(graph.nodes), *graph.inputs):
        if node not in wanted or node.op is CONSTANT:
            continue
        region.append(node)
        flow.add((node, 0), (node, 1), facts.cost(node, any_input))
        if node in facts.border:
            flow.add((node, 1), "backward", INFINITE)
        if node.op is INPUT or node not in again and node not in facts.between and node.op is not GETITEM:
            flow.add("forward", (node, 0), INFINITE)
            continue
        if node.op.is_random:
            flow.add("forward", (node, 0), STATE_BYTES)
        for source in dict.fromkeys(node.input_nodes()):
            if source.op is not CONSTANT:
                flow.add((source, 1), (node, 0), INFINITE)
                wanted.add(source)
    side = flow.sink_side("forward", "backward")
    if side is None:
        raise NotCovered("a value that the backward pass needs and that must not be kept")
    saved = {node for node in region if (node, 1) in side and (node, 0) not in side}
    return [node for node in graph.all_nodes() if node in saved]


def is_light(node: Node) -> bool:
    """Whether an elementwise op is next to free."""
    on_gpu = isinstance(node.spec, TensorSpec) and (node.spec.device.type == "cuda" or config.triton_on_cpu)
    return ("cuda" if on_gpu else "cpu") in node.op.cheap_on


def fuses(node: Node) -> bool:
    """Whether a node becomes loops that fuse with others, and no call of a library."""
    op = node.op
    if op is GETITEM:
        return fuses(node.args[0])
    return op.kind in ("pointwise", "reduction", "view", "factory", "constant") or op.scalar is not None or (
        op.decompose is not None and op.kind != "matmul") or op.element is not None


def region_of(node: Node) -> object | None:
    """The region that a node belongs to: whatever backward passes compute again as a whole."""
    return (node.args[0] if node.op is GETITEM else node).meta.get(REGION)


def _size(sizes: SizeEnv, spec: Spec) -> int:
    return sum(sizes.hint(part.nbytes) if isinstance(part, TensorSpec) else 8 for part in tree_leaves(spec))
