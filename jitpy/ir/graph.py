"""The graph: what a captured frame computes on tensors, in order, without side effects.

A `Graph` is a list of `Node`s in execution order. Inputs come first, each with `ir.input` as its op.
Everything is functional: what eager does in place is a new node here, and `Graph.mutations` says which
inputs receive a new value when the graph ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import Any

import torch

from .algebra import sympy
from .op import Op
from .sizes import SizeEnv
from .spec import ScalarSpec, Spec, TensorSpec
from .trees import tree_map

#: In a node's `meta`: the region (any object) whose values the backward pass computes again.
REGION = "checkpoint"
#: In an input's `meta`: the graph was compiled for the numbers of this tensor.
FIXED = "fixed"
#: In an input's `meta`: the graph is given the tensor for good, and nobody else sees it.
OWNED = "owned"
#: In a node's `meta`: its region is a reentrant checkpoint, through which only a pass to all leaves may go.
REENTRANT = "reentrant"
#: In an input's `meta`: its `.grad` is assigned when the graph has run. What is in it now may go once nothing can fail.
DROPS_GRAD = "drops .grad"
#: In the `meta` of a view of an input: the program made it before it wrote to that input. Autograd tells the order.
BEFORE_WRITES = "made before writes"
#: of a result that is a view: older than the history of what it shows, and to be made as a view
LATE_HISTORY = "late history"
#: In the `meta` of a detach() that is `.data`: which one (an object). It has a version counter of its own.
OWN_VERSIONS = "own versions"
#: In the `meta` of a view: the program made it in inference mode, of a tensor that is none of that mode's.
IN_INFERENCE_MODE = "made in inference mode"


@dataclass(frozen=True, slots=True)
class Loc:
    """A place in the user's source; `module` is the innermost nn.Module whose code runs: its class and its path."""

    filename: str
    line: int
    function: str
    module: str = ""

    def __str__(self) -> str:
        return f"{self.filename}:{self.line} in {self.function}"


class Node:
    """One value of the graph.

    `args` and `kwargs` hold Nodes, Python constants, torch dtypes and the like, sizes (int or
    sympy expressions), and tuples, lists and slices of those. A multi-output op has a tuple as its
    spec; `ir.getitem` nodes take its parts. `grad_enabled` and `autocast`-like state are those under
    which the user ran the op.
    """

    __slots__ = ("op", "args", "kwargs", "spec", "name", "loc", "grad_enabled", "meta")

    def __init__(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], spec: Spec, name: str,
                 loc: Loc | None = None, grad_enabled: bool = True) -> None:
        self.op = op
        self.args = args
        self.kwargs = kwargs
        self.spec = spec
        self.name = name
        self.loc = loc
        self.grad_enabled = grad_enabled
        self.meta: dict[str, Any] = {}

    @property
    def tensor(self) -> TensorSpec:
        """The spec, which must be that of a tensor."""
        assert isinstance(self.spec, TensorSpec), f"{self.name} is no tensor: {self.spec}"
        return self.spec

    def input_nodes(self) -> list[Node]:
        """The nodes read by this one, in argument order, with repeats."""
        found: list[Node] = []
        visit_nodes(self.args, found.append)
        if self.kwargs:
            visit_nodes(tuple(self.kwargs.values()), found.append)
        return found

    def replace_inputs(self, mapping: Callable[[Node], Node]) -> None:
        """Rewrite the arguments in place, node by node."""
        self.args = map_nodes(self.args, mapping)
        if self.kwargs:
            self.kwargs = {k: map_nodes(v, mapping) for k, v in self.kwargs.items()}

    def __repr__(self) -> str:
        return self.name


@dataclass(slots=True)
class Mutation:
    """When the graph ends, input number `input` receives the value of `value` (as `copy_`).

    All mutations happen at once: every `value` is read before any input is written. `grad_enabled` is the grad
    mode of the copy; None means that of the value's own node. `unseen`: the input's version counter stays, so that
    autograd does not see the write (through `.data`, or by an op like eager's batch norm). `writes`: by how much the
    version counter moves otherwise, once for each write of the program's. `through_view`: the program wrote to a view;
    eager's node of that frees itself in a backward pass.
    """

    input: int
    value: Node
    grad_enabled: bool | None = None
    unseen: bool = False
    writes: int = 1
    through_view: bool = False

    @property
    def runs_with_grad(self) -> bool:
        """The grad mode under which the copy is made."""
        return self.value.grad_enabled if self.grad_enabled is None else self.grad_enabled

    @property
    def gives_history(self) -> bool:
        """Whether autograd records the write: the input gets the history of its new value."""
        spec = self.value.spec
        return self.runs_with_grad and not self.unseen and isinstance(spec, TensorSpec) and spec.requires_grad


@dataclass(frozen=True, slots=True)
class LoweredPart:
    """A backend's result for a graph, or for a half or part of one, for reports.

    notes    its kernels, eager calls and refused fusions; None where all of it was left to eager kernels
    reason   why it was; None where it was not
    ops      name -> (op, place in the program) of the nodes that `notes` mention
    """

    name: str
    notes: Any = None
    reason: str | None = None
    ops: dict[str, tuple[str, Loc | None]] = field(default_factory=dict)


@dataclass(slots=True)
class Graph:
    """A captured computation.

    inputs      `ir.input` nodes, in calling order
    nodes       everything else, in execution order
    outputs     the returned nodes, in order (a node may be an input, or repeat)
    mutations   copy-backs into inputs, carried out after everything else was computed
    sizes       the symbols that specs and arguments mention
    runs_once   ops of the program's may write to inputs at once, or have effects: plain Python does not make up for a
                call that fails then (a plan says whether it does so: `Plan.runs_once`)
    lowered     what a backend made of it and of the graphs made from it, which share the list
    half        "forward" or "backward" where it is one of the halves that gradients were given; else ""
    pending     functions that compile what is compiled when it is first needed, for reports; shared as well

    Calling convention of whatever a backend makes of it: `compiled(*inputs) -> tuple(outputs)`, with
    tensors and Python numbers in the order of `inputs`. Two outputs share memory with each other or
    with an input exactly where view ops connect them in the graph.
    """

    name: str = "graph"
    inputs: list[Node] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    outputs: list[Node] = field(default_factory=list)
    mutations: list[Mutation] = field(default_factory=list)
    sizes: SizeEnv = field(default_factory=SizeEnv)
    runs_once: bool = False
    half: str = ""
    lowered: list[LoweredPart] = field(default_factory=list, repr=False)
    pending: list[Callable[[], object]] = field(default_factory=list, repr=False)
    _names: dict[str, int] = field(default_factory=dict)

    def derived(self, name: str) -> Graph:
        """An empty graph that will compute a part of this one, or the same in another way."""
        return Graph(name, sizes=self.sizes, half=self.half, lowered=self.lowered, pending=self.pending)

    def leave_to_eager(self, reason: object) -> str:
        """Note that eager kernels run all of it. Returns the line for the log."""
        self.lowered.append(LoweredPart(self.name, reason=str(reason)))
        return f"{self.name} is left to eager kernels: {reason}"

    def add_input(self, spec: TensorSpec | ScalarSpec, hint: str = "arg", **meta: Any) -> Node:
        """Append an input; `meta` is kept on the node (`source`, `is_parameter`, ...)."""
        node = Node(INPUT, (), {}, spec, self.unique_name(hint))
        node.meta.update(meta)
        self.inputs.append(node)
        return node

    def add(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any] | None, spec: Spec,
            loc: Loc | None = None, name: str | None = None, grad_enabled: bool = True) -> Node:
        """Append a node."""
        node = Node(op, args, kwargs or {}, spec, self.unique_name(name or short_name(op)), loc, grad_enabled)
        self.nodes.append(node)
        return node

    def unique_name(self, hint: str) -> str:
        """`hint` as an identifier, with a number where the graph has that name already."""
        if not hint.isidentifier() or iskeyword(hint):
            hint = re.sub(r"\W", "_", hint)
            hint = f"_{hint}" if not hint or hint[0].isdigit() else hint
            hint = f"{hint}_" if iskeyword(hint) else hint
        count = self._names.get(hint, 0)
        self._names[hint] = count + 1
        if not count:
            return hint
        name = f"{hint}_{count}"
        if name in self._names:
            return self.unique_name(name)
        self._names[name] = 1
        return name

    def all_nodes(self) -> Iterator[Node]:
        yield from self.inputs
        yield from self.nodes

    def users(self) -> dict[Node, list[Node]]:
        """For each node the nodes that read it (each reader once); outputs and mutations are not readers."""
        result: dict[Node, list[Node]] = {n: [] for n in self.all_nodes()}
        for node in self.nodes:
            for source in dict.fromkeys(node.input_nodes()):
                result[source].append(node)
        return result

    def symbol_bindings(self) -> dict[sympy.Symbol, tuple[int, str, int | None]]:
        """Where the value of each symbol is read when the graph runs: `(input position, kind, dim)`.

        `kind` is `"size"`, `"stride"` or `"offset"` of a tensor input, or `"value"` of an int input. Only inputs
        whose spec mentions the bare symbol count; the first one wins, values before sizes, sizes before strides.
        """
        values: dict[sympy.Symbol, tuple[int, str, int | None]] = {}
        found: dict[sympy.Symbol, tuple[int, str, int | None]] = {}
        strides: dict[sympy.Symbol, tuple[int, str, int | None]] = {}
        for position, node in enumerate(self.inputs):
            spec = node.spec
            if isinstance(spec, ScalarSpec):
                if isinstance(spec.expr, sympy.Symbol):
                    values.setdefault(spec.expr, (position, "value", None))
            elif isinstance(spec, TensorSpec):
                for dim, (size, stride) in enumerate(zip(spec.shape, spec.stride, strict=True)):
                    if isinstance(size, sympy.Symbol):
                        found.setdefault(size, (position, "size", dim))
                    if isinstance(stride, sympy.Symbol):
                        strides.setdefault(stride, (position, "stride", dim))
                if isinstance(spec.offset, sympy.Symbol):
                    strides.setdefault(spec.offset, (position, "offset", None))
        return {**strides, **found, **values}

    def unbacked_bindings(self) -> dict[sympy.Symbol, tuple[Node, int | None]]:
        """Where the value of each unbacked symbol is read: size `dim` of the node's tensor, or with None its number.

        The first node counts whose spec has the bare symbol and whose arguments do not mention it.
        """
        found: dict[sympy.Symbol, tuple[Node, int | None]] = {}
        if not self.sizes.has_unbacked:
            return found
        for node in self.nodes:
            for symbol, dim in bare_symbols(node.spec):
                if symbol not in found and self.sizes.is_unbacked(symbol):
                    if symbol not in self.sizes.unbacked_in_all((node.args, node.kwargs)):
                        found[symbol] = node, dim
        return found

    def replace(self, mapping: Mapping[Node, Node]) -> None:
        """Make every reader, output and mutation of a key read its value instead. Values are not looked up again."""
        if not mapping:
            return
        for node in self.nodes:
            node.replace_inputs(lambda n: mapping.get(n, n))
        self.replace_results(mapping)

    def more_writes(self) -> dict[int, int]:
        """Inputs whose version counters move by more than the one that writing their value back brings: how much."""
        return {m.input: m.writes - 1 for m in self.mutations if not m.unseen and m.writes > 1}

    def unseen_inputs(self) -> tuple[int, ...]:
        """The inputs that are written without autograd's seeing it."""
        return tuple(mutation.input for mutation in self.mutations if mutation.unseen)

    def replace_results(self, mapping: Mapping[Node, Node]) -> None:
        """As `replace`, for outputs and mutations only."""
        self.outputs = [mapping.get(n, n) for n in self.outputs]
        for mutation in self.mutations:
            if mutation.value in mapping:
                mutation.grad_enabled = mutation.runs_with_grad
                mutation.value = mapping[mutation.value]

    def to_fx(self, example: Sequence[Any] | None = None) -> Any:
        """The graph as a `torch.fx.GraphModule`; see `jitpy.ir.fx.to_fx`."""
        from .fx import to_fx

        return to_fx(self, example)

    def __str__(self) -> str:
        from .printer import to_text

        return to_text(self)


def bare_symbols(spec: Spec) -> list[tuple[sympy.Symbol, int | None]]:
    """The symbols that one tensor's sizes, or a number, are themselves: `(symbol, dim)`."""
    if isinstance(spec, TensorSpec):
        return [(size, dim) for dim, size in enumerate(spec.shape) if isinstance(size, sympy.Symbol)]
    return [(spec.expr, None)] if isinstance(spec, ScalarSpec) and isinstance(spec.expr, sympy.Symbol) else []


def short_name(op: Op) -> str:
    """`aten.add.Tensor` -> `add`."""
    parts = op.name.split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return name.strip("_") or name


def visit_nodes(value: Any, fn: Callable[[Node], Any]) -> None:
    """Call `fn` on every Node inside a nested argument."""
    if isinstance(value, Node):
        fn(value)
    elif isinstance(value, (tuple, list)):
        for item in value:
            visit_nodes(item, fn)
    elif isinstance(value, dict):
        for item in value.values():
            visit_nodes(item, fn)
    elif isinstance(value, slice):
        visit_nodes((value.start, value.stop, value.step), fn)


def map_nodes(value: Any, fn: Callable[[Node], Any]) -> Any:
    """A copy of a nested argument with every Node replaced by `fn(node)`."""
    if type(value) is Node:
        return fn(value)
    return tree_map(lambda leaf: fn(leaf) if type(leaf) is Node else leaf, value)


def own_generators(graph: Graph) -> tuple[torch.Generator, ...]:
    """The random generators that the program hands to the graph's nodes, each once."""
    found: dict[int, torch.Generator] = {}
    for node in graph.nodes:
        if node.op.is_random:
            found.update((id(value), value) for value in (*node.args, *node.kwargs.values())
                         if isinstance(value, torch.Generator))
    return tuple(found.values())


def _input_target(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("ir.input is a place, not a computation")


#: The op of graph inputs.
INPUT = Op("ir.input", _input_target, kind="input")

#: The op that takes part `index` of a multi-output node: args `(node, index)`.
GETITEM = Op("ir.getitem", lambda value, index: value[index], kind="getitem")

#: A constant that the graph owns: args `(tensor,)`. The tensor must never be written to.
CONSTANT = Op("ir.constant", lambda value: value, kind="constant")
