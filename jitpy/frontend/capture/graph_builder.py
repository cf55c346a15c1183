"""The graph builder: turns the torch calls of a traced frame into graph nodes.

The graph is functional. A tensor of the program is a `TracedTensor` that knows its storage; a write replaces the
storage's value and brings aliases up to date when they are read again. The program's writes to its inputs become
`Graph.mutations`, and results that share memory are emitted as views of one node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from jitpy.ir import (
    CONSTANT,
    GETITEM,
    Graph,
    Loc,
    Node,
    NotCovered,
    Op,
    ScalarSpec,
    SizeEnv,
    SizeUnknown,
    Spec,
    TensorSpec,
)
from jitpy.ir import ops as table
from jitpy.ir.failures import is_programs_own
from jitpy.ir.ops.oracle import QUANTISED
from jitpy.ir.ops.parts import PARTS, with_first_position
from jitpy.ir.ops.schemas import has_size_rule, schema_facts
from jitpy.ir.trees import tree_map

from ...ir.algebra import sympy
from ..guards.guard_set import GuardSet
from ..guards.source import Source
from . import graph_effects as effects
from . import views, writes
from .autograd_facts import keepers, requires_grad
from .final_graph import finish_graph
from .history import History
from .inference_blocks import InferenceBlocks
from .inputs import (
    ask_leaf,
    is_unrecorded,
    make_tensor_input,
)
from .number_checks import (
    check_call,
    check_devices,
    check_traced_numbers,
    with_fixed_numbers,
)
from .parameters import Parameters
from .speculation import Speculation
from .torch_calls import tensor_calls as torch_calls
from .torch_calls.scalars import record_scalar_op
from .torch_calls.tensor_attributes import read_attribute
from .torch_calls.tensor_calls import is_torch_callable
from .torch_state import TorchState, guard_attention
from .traced import (
    Finished,
    GraphInput,
    Storage,
    StructPayload,
    TracedScalar,
    TracedTensor,
    Uncapturable,
    ViewStep,
)

_aten = torch.ops.aten
_ATTENTION = table.get(_aten.scaled_dot_product_attention.default)

__all__ = [
    "Finished",
    "StructPayload",
    "TracedGraphBuilder",
    "TracedScalar",
    "TracedTensor",
    "Uncapturable",
    "is_torch_callable",
]


#: How far the recording was: numbers of nodes, inputs, relations, guards and journal entries.
Mark = tuple[int, int, int, int, int]


class TracedGraphBuilder:
    """Builds one graph; what the rest of the frontend may ask of it is declared as `GraphBuilder` (`traced.py`).

    `sizes` and `guards` receive the size relations and the facts that recording relies on.
    """

    def __init__(self, sizes: SizeEnv, guards: GuardSet, name: str = "graph") -> None:
        self.sizes = sizes
        self.guards = guards
        self.graph = Graph(name, sizes=sizes)
        self.loc: Loc | None = None
        self.inputs: list[GraphInput] = []
        self.known_inputs: dict[int, TracedTensor] = {}
        self.has_arrays = False  # whether an input is an array of numpy's
        self._ints: dict[Source, sympy.Symbol] = {}
        self.inputs_by_memory: dict[int, list[int]] = {}
        #: the inputs that are views of a tensor, by its id
        self.input_views: dict[int, list[int]] = {}
        #: the last steps of views that were written to under grad mode, by their ids
        self.rebased: dict[int, ViewStep] = {}
        #: recordings of calls with symbolic sizes (`derived_calls`)
        self.templates: dict[Any, Any] = {}
        #: what `.item()` of a value gave, by the value's node: the same number is the same size
        self.items: dict[Node, TracedScalar] = {}
        #: floats that are inputs of the graph, by place; and those whose values the program asked for, with the reason
        self.float_inputs: dict[Source, TracedScalar] = {}
        self.pinned: dict[Source, str] = {}
        #: see `TraceContext.need`
        self.need: Callable[[Any, int, str], None] | None = None
        #: sizes that depend on data, as numbers of the graph
        self.size_numbers: dict[Any, TracedScalar] = {}
        #: position of the first node whose result requires grad
        self.first_grad_node: int | None = None
        self._only_looks = False  # see `seen_as_nodes`
        #: whether a node does what cannot be undone: it may write to an input at once, or is there for its effect alone
        self.acts = False
        #: the step of the last call of an operator of the program's
        self.own_step = 0
        #: whether the program handles errors of calls recorded so far
        self.handles_errors = False
        # undo log: callables in order
        self.journal: list[Callable[[], None]] = []
        self.state = TorchState(guards, self.journal)
        #: what backward passes have run through
        self.history = History(self)
        #: what is taken for granted of histories, and the step at which to break where that turns out wrong
        self.speculation = Speculation(self)
        #: parameters that the program has made
        self.parameters = Parameters(self)
        self.inference = InferenceBlocks(self)
        self.step: Callable[[], int] = lambda: 0
        self.step_behind: Callable[[int], int] = lambda step: 0

    # -- inputs

    def tensor_input(self, tensor: torch.Tensor, source: Source, dims: tuple[Any, ...] | None = None) -> TracedTensor:
        """The payload of a real tensor found at `source`.

        `dims` says for each axis whether it is an int (this size only), 'dynamic' (a symbol) or ('dynamic', min, max);
        None makes all static. The same object at a second source is the same payload. Uncapturable for tensors of
        special kinds.
        """
        return make_tensor_input(self, tensor, source, dims)

    def int_input(self, value: int, source: Source, general: bool = False) -> sympy.Symbol:
        """A symbol for an int found at `source`, and a graph input that brings its value. It stands for numbers from 2
        on, where the value is one, unless it is `general`."""
        known = self._ints.get(source)
        if known is not None:
            return known
        symbol = self.sizes.new_symbol(value, source, None, low=2 if value >= 2 and not general else -(1 << 62))
        self.guards.add(source, "int", symbol)
        self.graph.add_input(ScalarSpec(int, symbol), "int", source=source)
        self.inputs.append(GraphInput(value, source, symbol))
        self.put(self._ints, source, symbol)
        return symbol

    # -- nodes

    def op(self, overload: Any) -> Op:
        """The table's entry of an overload or name."""
        return table.get(overload)

    def node(self, value: TracedTensor, detached: bool = False, is_result: bool = False) -> Node:
        """The node with the present value of a tensor. `detached` says that autograd will not connect it, `is_result`
        that it is what an autograd function has computed under no_grad and gets its history from that."""
        storage = value.storage
        if storage.frozen:
            self.speculation.check_view(value)
        if value.generation != storage.generation:
            if storage.split:
                self.speculation.check_date(value)
            views.refresh(self, value)
        if storage.lost_grad and self.state.grad_enabled and not value.is_detached and not detached:
            self.speculation.begin_again(storage)
            views.refresh(self, value)
        if value.stands_for is not None and self.state.grad_enabled and not detached:
            self.speculation.begin_at_data(value)
        if self.state.grad_enabled and not detached and not self._only_looks:
            if value.unasked:
                value.is_leaf = self.ask_leaf(value)
            self.ask_history(value)
        if storage.leaf is not None and self.state.grad_enabled and not detached:
            return self.parameters.read(value)
        if self.state.grad_enabled and not detached and not is_result and value.hides_history:
            raise Uncapturable("unsupported_op", "a view that was made under no_grad, used under grad mode: a leaf")
        return value.node

    def ask_history(self, value: TracedTensor) -> None:
        """Autograd is asked for the history of a view, and finds one if what it shows has got one."""
        if value.chain and value.asked != value.storage.generation:
            self.save(value)
            value.asked = value.storage.generation

    def ask_leaf(self, value: TracedTensor) -> bool:
        """Whether a tensor from outside is a leaf."""
        assert value.storage.input is not None
        tensor = self.inputs[value.storage.input].value
        leaf = ask_leaf(tensor)
        if leaf and is_unrecorded(tensor):
            raise Uncapturable("unsupported_tensor", "a view that is a leaf, of a tensor that requires grad")
        return leaf

    def number_of(self, tensor: torch.Tensor) -> int:
        """Which input a tensor from outside is."""
        return next(i for i, entry in enumerate(self.inputs) if entry.value is tensor)

    def check_replaced(self, storage: Storage) -> None:
        """A tensor is to look at other memory than this. Autograd looks at the parts that it keeps there, too: also
        what was written to an input, which the graph would keep by itself."""
        spoiled = keepers(self, storage.values, self.first_grad_node or 0, storage.writers)
        at = storage.written_at if storage.input is not None else None
        self.speculation.spoil(spoiled, ".data = ... on a tensor that autograd keeps for the backward pass", at)

    def emit(
        self, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, spec: Spec | None = None
    ) -> Node:
        """Add a node whose arguments are nodes and constants already; the table infers the spec if none is given."""
        op = self.op(overload)
        grad = self.state.grad_enabled
        if is_programs_own(op):
            self.own_step = self.step()
        if op is _ATTENTION:
            guard_attention(self, args[0].spec.device.type)
            if self.state.attention != self.state.initial["attention"]:
                raise Uncapturable("unsupported_op", "attention where the program chooses its kernel")
        args, kwargs = with_fixed_numbers(overload, args, kwargs or {}, self.sizes)
        check_call(overload, args, kwargs, self.sizes)
        if spec is None:
            spec = table.infer(op, self.sizes, args, kwargs, grad)
        if op.name in PARTS:
            args, kwargs = with_first_position(self.sizes, op, args, kwargs or {})
        if grad and self.first_grad_node is None and requires_grad(spec):
            self.first_grad_node = len(self.graph.nodes)
        node = self.graph.add(op, args, kwargs, spec, self.loc, grad_enabled=grad)
        operands = [one.spec for one in node.input_nodes() if isinstance(one.spec, TensorSpec)]
        if len({one.device for one in operands}) > 1:
            check_devices(node)
        specs = (node.spec, *operands)
        if not op.is_view and any(isinstance(one, TensorSpec) and one.dtype in QUANTISED for one in specs):
            raise Uncapturable("unsupported_tensor", f"{overload} of a quantised tensor")
        return node

    def emit_view(self, overload: Any, base: Node, args: tuple[Any, ...]) -> Node:
        """A view of a node, not tied to any storage."""
        return self.emit(overload, (base, *args))

    def emit_scatter(self, overload: Any, base: Node, value: Node, args: tuple[Any, ...]) -> Node:
        """`base` with a part replaced by `value`, in the layout of `base`."""
        grad = self.state.grad_enabled and (base.tensor.requires_grad or value.tensor.requires_grad)
        return self.emit(overload, (base, value, *args), {}, base.tensor.with_(requires_grad=grad))

    def to_node(self, payload: Any) -> Any:
        """A payload as a node's argument."""
        kind = type(payload)  # the walk of every call: quicker than `tree_map`
        if kind is TracedTensor:
            return self.node(payload)
        if kind is tuple:
            return tuple([self.to_node(p) for p in payload])
        if kind is list:
            return [self.to_node(p) for p in payload]
        if kind is TracedScalar:
            return payload.node
        if kind is StructPayload:
            return self.to_node(payload.items)
        if isinstance(payload, torch.Tensor):
            return self.constant(payload)
        return tree_map(self.to_node, payload) if kind in (dict, slice) else payload

    def seen_as_nodes(self, payload: Any) -> Any:
        """As `to_node`, for who only wants to know what an operation would do."""
        before, self._only_looks = self._only_looks, True
        try:
            return self.to_node(payload)
        finally:
            self._only_looks = before

    def constant(self, tensor: torch.Tensor) -> Node:
        """A tensor that the graph owns."""
        spec = TensorSpec(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.device)
        return self.graph.add(CONSTANT, (tensor,), {}, spec, self.loc, name="constant")

    def fresh(self, node: Node) -> TracedTensor:
        """The tensor object of a node's result, in memory of its own."""
        return TracedTensor(self, self._memory(node), (), node, node.tensor)

    def _memory(self, node: Node) -> Storage:
        return Storage(node, inference=self.state.inference_mode)

    # -- ATen calls

    def record(self, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any], spec: Spec | None = None) -> Any:
        """One call of an ATen overload on payloads: nodes, new aliases, writes. Returns payloads.

        `spec` is that of the (functional form's) whole result where the caller knows it.
        """
        facts = schema_facts(overload)
        check_traced_numbers(self, overload, args, kwargs)
        if facts.mutated:
            return writes.record_write(self, facts, args, kwargs, spec)
        if facts.dynamic and not facts.on_host and not has_size_rule(overload, args):
            raise Uncapturable("dynamic_shape", f"the result of {overload} depends on the values of its arguments")
        if facts.is_view:
            return views.record_view(self, facts, args, kwargs, spec)
        if not facts.returns:
            return effects.record_effect(self, overload, args, kwargs)
        if table.get(overload).may_return_argument:
            raise Uncapturable("unsupported_op", f"{overload} may return its argument")
        node = self.emit(overload, self.to_node(args), self.to_node(kwargs), spec)
        return self.results(node, node.spec)

    def results(self, node: Node, spec: Spec) -> Any:
        if type(spec) is TensorSpec:
            return TracedTensor(self, self._memory(node), (), node, spec)
        if type(spec) is ScalarSpec:
            return TracedScalar(node)
        if type(spec) is tuple:
            return tuple([self.results(self.part(node, i), s) if s is not None else None for i, s in enumerate(spec)])
        return None

    def part(self, node: Node, index: int) -> Node:
        return self.graph.add(
            GETITEM, (node, index), {}, node.spec[index], self.loc, name=node.name, grad_enabled=node.grad_enabled
        )

    # -- writes

    # -- views and writes

    alias = views.alias
    refresh = views.refresh
    apply_step = views.apply_step
    write = writes.write
    memory_of = writes.memory_of
    shares_memory = writes.shares_memory

    # -- calls of operations

    record_call = torch_calls.record_call

    # -- scalars

    def scalar_op(self, function: Callable[..., Any], *args: Any) -> TracedScalar:
        """Python arithmetic or comparison with at least one `TracedScalar`, as a `py.*` node."""
        return record_scalar_op(self, function, args)

    # -- calls

    def call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], loc: Loc | None = None) -> Any:
        """Record a call of a torch function on payloads; returns its payload.

        Raises Uncapturable where it cannot be part of the graph.
        """
        self.loc = loc
        mark = self.checkpoint()
        try:
            return torch_calls.dispatch(self, fn, args, kwargs)
        except Uncapturable:
            self.rollback(mark)
            raise
        except NotCovered as error:
            self.rollback(mark)
            raise Uncapturable("unsupported_op", str(error)) from error
        except SizeUnknown as error:
            self.rollback(mark)
            raise Uncapturable("dynamic_shape", str(error)) from error

    def attribute(self, tensor: TracedTensor, name: str) -> Any:
        """The payload of `tensor.<name>` for attributes that are no methods."""
        return read_attribute(self, tensor, name)

    # -- undoing

    def put(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        """`table[key] = value` for a new key, until a rollback."""
        table[key] = value
        self.journal.append(lambda: table.pop(key))

    def set(self, thing: Any, name: str, value: Any) -> None:
        """`thing.name = value`, until a rollback."""
        before = getattr(thing, name)
        self.journal.append(lambda: setattr(thing, name, before))
        setattr(thing, name, value)

    def save(self, thing: Any) -> None:
        state = thing.state()
        self.journal.append(lambda: thing.restore(state))

    def checkpoint(self) -> Mark:
        """A mark for `rollback`. Cheap."""
        return (
            len(self.graph.nodes),
            len(self.graph.inputs),
            self.sizes.checkpoint(),
            self.guards.checkpoint(),
            len(self.journal),
        )

    def rollback(self, mark: Mark) -> None:
        """Undo everything recorded since `mark` was made."""
        nodes, inputs, relations, guards, journal = mark
        while len(self.journal) > journal:
            self.journal.pop()()
        del self.graph.nodes[nodes:]
        if self.first_grad_node is not None and self.first_grad_node >= nodes:
            self.first_grad_node = None
        if len(self.graph.inputs) > inputs:
            del self.graph.inputs[inputs:], self.inputs[inputs:]
        if self.sizes.checkpoint() > relations:
            self.sizes.rollback(relations)
            self.templates.clear()
        if len(self.guards) > guards:
            self.guards.rollback(guards)

    # -- the end

    def finish(self, live: Iterable[TracedTensor | TracedScalar]) -> Finished:
        """Close the graph: its outputs are what the live payloads need, its mutations what was written to inputs."""
        return finish_graph(self, list(live))
