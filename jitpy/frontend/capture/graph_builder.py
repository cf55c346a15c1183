"""The graph builder: turns the torch calls of a traced frame into graph nodes.

The graph is functional. A tensor of the program is a `TracedTensor` that knows its storage; a write replaces the
storage's value and brings aliases up to date when they are read again. What the program did to its inputs becomes
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
from jitpy.ir.autograd_function import NAME as AUTOGRAD_FUNCTION
from jitpy.ir.graph import IN_INFERENCE_MODE, OWN_VERSIONS
from jitpy.ir.ops.functional import COPYING
from jitpy.ir.ops.random_order import filling_order, fills_alike, fills_by_index
from jitpy.ir.ops.views import PARTS, with_first_position

from ...ir.algebra import sympy
from ...runtime.autograd_node import history_is_late
from ..codegen.final_graph import finish_graph, no_view
from ..guards.guard_set import GuardSet
from ..guards.source import Source
from ..models.tensors import tensor_calls as torch_calls
from ..models.tensors.scalars import record_scalar_op, with_sample_numbers
from ..models.tensors.state import TorchState, guard_attention
from ..models.tensors.tensor_attributes import read_attribute
from ..models.tensors.tensor_calls import is_torch_callable
from . import aliasing, layouts, overlap
from . import graph_effects as effects
from .autograd_facts import WRITES_STATISTICS, keepers, keeps_result, requires_grad, saved_values, shows
from .default_dtypes import name_dtype
from .history import History
from .inference_blocks import InferenceBlocks
from .inputs import (
    ask_leaf,
    check_write_under_grad,
    guard_history,
    is_unrecorded,
    make_tensor_input,
    related_views,
    sharing_arrays,
)
from .number_checks import (
    check_converted,
    check_dtypes,
    check_numbers,
    check_traced_numbers,
    check_written,
    with_fixed_numbers,
)
from .parameters import Parameters
from .schemas import SchemaFacts, has_size_rule, makes_quantised, schema_facts
from .speculation import Speculation
from .strided_views import strided_base
from .traced import (
    Finished,
    GraphInput,
    Storage,
    StructPayload,
    TracedScalar,
    TracedTensor,
    Uncapturable,
    UserError,
    ViewStep,
    tensors_in,
)

_aten = torch.ops.aten
_ATTENTION = table.get(_aten.scaled_dot_product_attention.default)

__all__ = [
    "Finished",
    "GraphBuilder",
    "StructPayload",
    "TracedScalar",
    "TracedTensor",
    "Uncapturable",
    "UserError",
    "is_torch_callable",
]


#: Views that torch refuses of tensors whose conjugation or negation is pending.
_OF_RESOLVED = frozenset({_aten.view_as_real.default, _aten.view_as_complex.default, _aten.view.dtype})

#: Ops of torch whose schemas say new memory, and which return an argument that is as they want it.
_MAY_RETURN_ARGUMENTS = frozenset({_aten.dequantize.self, _aten.dequantize.tensors})

_LEAF_WRITTEN = "a leaf Variable that requires grad is being used in an in-place operation."
_NOT_OUTSIDE = "an inference tensor is changed outside inference mode"

#: How far the recording was: numbers of nodes, inputs, relations, guards and journal entries.
Mark = tuple[int, int, int, int, int]


class GraphBuilder:
    """Records one graph.

    `sizes` and `guards` receive the size relations and the facts that recording relies on.
    """

    def __init__(self, sizes: SizeEnv, guards: GuardSet, name: str = "graph") -> None:
        self.sizes = sizes
        self.guards = guards
        self.graph = Graph(name, sizes=sizes)
        self.loc: Loc | None = None
        self._inputs: list[GraphInput] = []
        self._by_id: dict[int, TracedTensor] = {}
        self.has_arrays = False  # whether an input is an array of numpy's
        self._ints: dict[Source, sympy.Symbol] = {}
        self._storages: dict[int, list[int]] = {}
        #: the inputs that are views of a tensor, by its id
        self._views: dict[int, list[int]] = {}
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
        self._first_grad_node: int | None = None
        self._only_looks = False  # see `seen_as_nodes`
        #: whether a node does what cannot be undone: it may write to an input at once, or is there for its effect alone
        self.acts = False
        #: whether the program handles errors of calls recorded so far
        self.handles_errors = False
        # undo log: callables in order
        self._journal: list[Callable[[], None]] = []
        self.state = TorchState(guards, self._journal)
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
        self._inputs.append(GraphInput(value, source, symbol))
        self._ints[source] = symbol
        self._journal.append(lambda: self._ints.pop(source))
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
            self._refresh(value)
        if storage.lost_grad and self.state.grad_enabled and not value.is_detached and not detached:
            self.speculation.begin_again(storage)
            self._refresh(value)
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
            self._save(value)
            value.asked = value.storage.generation

    def ask_leaf(self, value: TracedTensor) -> bool:
        """Whether a tensor from outside is a leaf."""
        assert value.storage.input is not None
        tensor = self._inputs[value.storage.input].value
        leaf = ask_leaf(tensor)
        if leaf and is_unrecorded(tensor):
            raise Uncapturable("unsupported_tensor", "a view that is a leaf, of a tensor that requires grad")
        return leaf

    def number_of(self, tensor: torch.Tensor) -> int:
        """Which input a tensor from outside is."""
        return next(i for i, entry in enumerate(self._inputs) if entry.value is tensor)

    def check_replaced(self, storage: Storage) -> None:
        """A tensor is to look at other memory than this. What autograd keeps of it, it looks at there, too: also what
        was written to an input, which the graph would keep by itself."""
        spoiled = keepers(self, storage.values, self._first_grad_node or 0, storage.writers)
        at = storage.written_at if storage.input is not None else None
        self.speculation.spoil(spoiled, ".data = ... on a tensor that autograd keeps for the backward pass", at)

    def _refresh(self, value: TracedTensor, view: Callable[[ViewStep, Node], Node] | None = None,
                 owner: Node | None = None) -> None:
        """Rebuild an alias from its storage's base, or from what stands for that; `view` applies a step."""
        storage = value.storage
        self._save(value)
        node = storage.base if owner is None else owner
        for step in value.chain:
            node = view(step, node) if view is not None else self._apply_step(step, node)
        value.node, value.generation, value.anchored = node, storage.generation, True
        requires_grad = node.tensor.requires_grad or value._spec.requires_grad and (
            storage.lost_grad or storage.leaf is value or value.stands_for is not None)
        if requires_grad != value._spec.requires_grad:
            value._spec = value._spec.with_(requires_grad=requires_grad)
        if not value.unasked:
            value.is_leaf = value.is_leaf and (storage.input is not None or storage.leaf is value)

    def _apply_step(self, step: ViewStep, base: Node, as_made: bool = False) -> Node:
        """The view of `base`; `as_made`: together with the views that were made at once with it."""
        # an autograd function connects its result with other tensors than the one that it looks at
        connected = base.tensor.requires_grad or step.op.name == AUTOGRAD_FUNCTION
        requires_grad = connected and step.grad_enabled and step.op.target is not _aten.detach.default
        if step.parts is not None and as_made:
            specs = tuple([s.with_(requires_grad=requires_grad) for s in step.parts.specs])
            whole = self.graph.add(step.parts.op, (base, *step.parts.args), step.parts.kwargs, specs, self.loc,
                                   grad_enabled=step.grad_enabled)
            if step.inference:
                whole.meta[IN_INFERENCE_MODE] = True
            return self._part(whole, step.parts.index)
        spec = step.spec
        if spec.requires_grad != requires_grad:
            spec = spec.with_(requires_grad=requires_grad)
        node = self.graph.add(step.op, (base, *step.args), step.kwargs, spec, self.loc, grad_enabled=step.grad_enabled)
        if step.is_data:
            node.meta[OWN_VERSIONS] = step
        if step.inference:
            node.meta[IN_INFERENCE_MODE] = True
        return node

    def emit(
        self, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, spec: Spec | None = None
    ) -> Node:
        """Add a node whose arguments are nodes and constants already; the table infers the spec if none is given."""
        op = self.op(overload)
        grad = self.state.grad_enabled
        if op is _ATTENTION:
            guard_attention(self, args[0].spec.device.type)
            if self.state.attention != self.state.initial["attention"]:
                raise Uncapturable("unsupported_op", "attention where the program chooses its kernel")
        if self.state.default_dtype is not self.state.initial["default_dtype"]:
            args, kwargs = name_dtype(self, overload, args, kwargs or {}, spec)
        args, kwargs = with_fixed_numbers(overload, args, kwargs or {}, self.sizes)
        check_numbers(overload, args, kwargs, self.sizes)
        check_dtypes(overload, args, kwargs, self.sizes)
        if spec is None:
            try:
                spec = table.infer(op, self.sizes, args, kwargs or {}, grad)
            except NotCovered:
                sampled = with_sample_numbers(overload, args)
                if sampled is None:
                    raise
                spec = table.infer(op, self.sizes, sampled, kwargs or {}, grad)
        if op.name in PARTS:
            args, kwargs = with_first_position(self.sizes, op, args, kwargs or {})
        if grad and self._first_grad_node is None and requires_grad(spec):
            self._first_grad_node = len(self.graph.nodes)
        return self.graph.add(op, args, kwargs, spec, self.loc, grad_enabled=grad)

    def emit_view(self, overload: Any, base: Node, args: tuple[Any, ...]) -> Node:
        """A view of a node, not tied to any storage."""
        return self.emit(overload, (base, *args))

    def emit_scatter(self, overload: Any, base: Node, value: Node, args: tuple[Any, ...]) -> Node:
        """`base` with a part replaced by `value`, in the layout of `base`."""
        grad = self.state.grad_enabled and (base.tensor.requires_grad or value.tensor.requires_grad)
        return self.emit(overload, (base, value, *args), {}, base.tensor.with_(requires_grad=grad))

    def to_node(self, payload: Any) -> Any:
        """A payload as a node's argument."""
        kind = type(payload)
        if kind is TracedTensor:
            return self.node(payload)
        if kind is TracedScalar:
            return payload.node
        if kind is tuple:
            return tuple([self.to_node(p) for p in payload])
        if kind is list:
            return [self.to_node(p) for p in payload]
        if kind is dict:
            return {k: self.to_node(v) for k, v in payload.items()}
        if kind is StructPayload:
            return tuple([self.to_node(p) for p in payload.items])
        if kind is slice:
            return slice(self.to_node(payload.start), self.to_node(payload.stop), self.to_node(payload.step))
        if isinstance(payload, torch.Tensor):
            return self.constant(payload)
        return payload

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
            return self._record_write(facts, args, kwargs, spec)
        if facts.dynamic and not facts.on_host and not has_size_rule(overload, args):
            raise Uncapturable("dynamic_shape", f"the result of {overload} depends on the values of its arguments")
        if facts.is_view:
            return self._record_view(facts, args, kwargs, spec)
        if not facts.returns:
            return effects.record_effect(self, overload, args, kwargs)
        if overload in _MAY_RETURN_ARGUMENTS:
            raise Uncapturable("unsupported_op", f"{overload} may return its argument")
        node = self.emit(overload, self.to_node(args), self.to_node(kwargs), spec)
        if makes_quantised(args, kwargs, node.spec):
            raise Uncapturable("unsupported_tensor", f"{overload} makes a quantised tensor")
        return self._results(node, node.spec)

    def _results(self, node: Node, spec: Spec) -> Any:
        if type(spec) is TensorSpec:
            return TracedTensor(self, self._memory(node), (), node, spec)
        if type(spec) is ScalarSpec:
            return TracedScalar(node)
        if type(spec) is tuple:
            return tuple([self._results(self._part(node, i), s) if s is not None else None for i, s in enumerate(spec)])
        return None

    def _part(self, node: Node, index: int) -> Node:
        return self.graph.add(
            GETITEM, (node, index), {}, node.spec[index], self.loc, name=node.name, grad_enabled=node.grad_enabled
        )

    def _record_view(self, facts: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any], spec: Spec | None) -> Any:
        base: TracedTensor = args[0] if args else kwargs["self"]
        if not args:
            args, kwargs = (base,), {k: v for k, v in kwargs.items() if k != "self"}
        overload = facts.overload
        if overload is _aten.as_strided.default:
            base, args, kwargs = strided_base(self, base, args, kwargs)
        elif overload in _OF_RESOLVED and True in base.lazy_bits:
            raise Uncapturable("exception", f"{overload} of a tensor whose conjugation or negation is pending")
        if base.storage.inference and overload is _aten.detach.default and not self.state.inference_mode:
            raise Uncapturable("unsupported_op", "an inference tensor that is detached outside inference mode")
        source = self.node(base, detached=overload is _aten.detach.default)
        if overload is _aten.as_strided.default and base.chain and (
                source.tensor.offset != base.spec.offset or not layouts.same_layout(source.tensor, base.spec)):
            raise Uncapturable("unsupported_op", "as_strided of a view that was written to")
        node = self.emit(overload, (source, *self.to_node(args[1:])), self.to_node(kwargs), spec)
        shift = base.spec.offset - source.tensor.offset
        if spec is None and shift != 0:  # `source` is what was written to the base, not where the base lies
            node.spec = layouts.shifted(node.spec, shift)
        grad = self.state.grad_enabled
        if type(node.spec) is TensorSpec:
            step = ViewStep(node.op, node.args[1:], node.kwargs, node.spec, grad, inference=self._in_block(base, node))
            return self.alias(base, step, node)
        if overload not in aliasing.MULTI_VIEWS:
            raise Uncapturable("unsupported_op", f"{overload} returns several views")
        steps = aliasing.split_steps(self, overload, base.spec, node.args[1:], node.kwargs, node.spec,
                                     self._in_block(base, node))
        return tuple([self.alias(base, step, self._part(node, i)) for i, step in enumerate(steps)])

    def _in_block(self, base: TracedTensor, view: Node) -> bool:
        """Whether a view of `base` that is made now remembers that it was made in inference mode."""
        found = self.inference.is_inside() and not base.storage.inference
        if found:
            view.meta[IN_INFERENCE_MODE] = True
        return found

    def alias(self, base: TracedTensor, step: ViewStep, node: Node) -> TracedTensor:
        """A new tensor object: `base` looked at through `step`, whose present value is `node`."""
        if base.storage.leaf is base and node.tensor.requires_grad:
            base = self.parameters.seen_by_views(base)
        elif base.storage.leaf is base and base._spec.requires_grad and step.op.target is not _aten.detach.default:
            self.parameters.note_view(step)
        restricts = (step.multi or not step.grad_enabled) and step.op.target is not _aten.detach.default
        if restricts and (step.multi or not base.storage.restricted):
            self._save(base.storage)
            base.storage.restricted = True
            if step.multi and step.grad_enabled and base.spec.requires_grad:
                base.storage.split = (*base.storage.split, step)
        result = TracedTensor(self, base.storage, (*base.chain, step), node, node.tensor, base.anchored)
        result.generation = base.generation
        return result

    # -- writes

    def _record_write(
        self, facts: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any], spec: Spec | None
    ) -> Any:
        functional = facts.functional_for(args, kwargs)
        if functional is None:
            raise Uncapturable("unsupported_op", f"{facts.overload} writes to its arguments and has no functional form")
        if facts.inplace_view:
            return self._record_inplace_view(facts, args, kwargs)
        is_programs = functional.namespace == COPYING
        if not functional._schema.returns:  # nothing to write to was given
            return effects.record_effect(self, functional, args, kwargs)
        if is_programs:
            effects.check_write(self, facts, args, kwargs)
        overlap.check_operands(self, facts, args, kwargs)
        if self.state.grad_enabled and not facts.outs:
            self._check_late(facts, args, kwargs)
        if not facts.outs and not is_programs:
            check_written(facts.overload, self.seen_as_nodes(args), self.seen_as_nodes(kwargs))
        if facts.overload is _aten.normal_.default and not fills_alike(self.sizes, args[0].spec):
            raise Uncapturable("unsupported_op", "normal_() of memory with gaps, which draws its own numbers")
        if facts.overload is _aten.copy_.default:
            target, source = args[:2]
            if not isinstance(source, TracedTensor):  # a number
                source = self.record(_aten.full.default, ([], source), {"dtype": target.dtype,
                                                                        "device": target.spec.device})
            self.write(target, layouts.copy_into(self, self.node(source), target.spec, target), replaces=True)
            return target
        outs = facts.outs
        call_args, call_kwargs = facts.functional_call(args, kwargs)
        if is_programs:
            call_args, call_kwargs = table.normalize(table.get(functional), call_args, call_kwargs)
        fresh = 0 if outs else sum(name is None for name in facts.returns)
        if spec is not None:
            needs = self.state.grad_enabled and table.get(functional).has_derivative and any(
                t.spec.requires_grad for t in tensors_in((call_args, call_kwargs)))
            spec = (*spec[:fresh], *_with_grad(spec[fresh:], needs)) if type(spec) is tuple else _with_grad(spec, needs)
        under_grad = self.state.grad_enabled
        if under_grad and not table.get(functional).has_derivative:
            self.state.set("grad_enabled", False)
        if facts.overload is _aten.bernoulli_.float and not fills_by_index(call_args[0].spec):
            order = filling_order(self.sizes, call_args[0].spec)
            inner = self.emit(_aten.permute.default, (self.node(call_args[0]), order))
            drawn = self.emit(functional, (inner, *self.to_node(call_args[1:])), self.to_node(call_kwargs))
            node = self.emit(_aten.permute.default, (drawn, [order.index(axis) for axis in range(len(order))]))
        elif is_programs:
            return effects.record_write(self, facts, functional, call_args, call_kwargs, spec)
        else:
            node = self.emit(functional, self.to_node(call_args), self.to_node(call_kwargs), spec)
        if under_grad != self.state.grad_enabled:
            self.state.set("grad_enabled", under_grad)
        if functional in WRITES_STATISTICS:
            node.spec = (*node.spec[:fresh], *_with_grad(node.spec[fresh:], False))
        if requires_grad(node.spec):
            targets = [facts.argument(name, args, kwargs) for name in facts.mutated]
            operands = [facts.argument(name, args, kwargs) for name in facts.names if name not in facts.mutated]
            self._check_own_operands(targets, operands, node)
        parts = (
            [node]
            if type(node.spec) is TensorSpec
            else [self._part(node, i) if type(s) is TensorSpec else None for i, s in enumerate(node.spec)]
        )
        if type(node.spec) is tuple and any(type(s) is tuple for s in node.spec):
            raise Uncapturable("unsupported_op", f"{facts.overload} writes to lists of tensors")
        results = [self.fresh(p) if p is not None else None for p in parts[:fresh]]
        written: dict[str, TracedTensor] = {}
        tensors: list[TracedTensor] = []
        names: list[str] = []
        for name in facts.mutated:
            value = facts.argument(name, args, kwargs)
            if value is None:
                continue
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                tensors.append(tensor)
                names.append(name)
        for name, tensor, part in zip(names, tensors, parts[fresh:], strict=True):
            if outs and tensor.dtype != part.tensor.dtype:
                check_converted(facts.overload, part.op, self.seen_as_nodes(args), self.seen_as_nodes(kwargs),
                                {tensor.dtype, part.tensor.dtype})
            if outs and self._resizes(tensor, part):
                self._replace_memory(tensor, part)
            else:
                self.write(tensor, part, bool(outs), unseen=functional in WRITES_STATISTICS)
            written[name] = tensor
        ordered = [written[n] if n is not None else results.pop(0) for n in facts.returns]
        if not ordered:
            return None
        return ordered[0] if len(ordered) == 1 else tuple(ordered)

    def _check_late(self, facts: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Eager's error for a write to a view that it takes for a leaf."""
        for name in facts.mutated:
            for target in tensors_in(facts.argument(name, args, kwargs)):
                if target.is_late:
                    raise UserError(RuntimeError(_LEAF_WRITTEN))
                if target.unasked and history_is_late(self._inputs[target.storage.input].value):
                    raise Uncapturable("input_mutation", "a view older than the history of its base is written to")

    def _record_inplace_view(self, facts: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TracedTensor:
        """`t_`, `squeeze_` and the like: this object looks at its memory in another way from now on."""
        target: TracedTensor = args[0]
        assert facts.functional is not None
        if facts.overload is _aten.detach_.default and not target.spec.requires_grad and not target.chain and \
                target.input is None:
            return target
        if target.storage.inference and not self.state.inference_mode:
            raise Uncapturable("input_mutation", _NOT_OUTSIDE)
        if target.input is not None:
            raise Uncapturable("input_mutation", f"{facts.overload} changes the sizes of a tensor from outside")
        if facts.overload is _aten.detach_.default:
            raise Uncapturable("unsupported_op", f"{facts.overload}")
        if self.speculation.is_leaf(target) or target in self.parameters.data:
            raise Uncapturable("unsupported_op", f"{facts.overload} changes the sizes of a tensor that requires grad")
        if self.state.grad_enabled and target.chain and not target.is_detached and (
            target.spec.requires_grad or target.storage.base.tensor.requires_grad
        ):
            self._check_view_change(target)
        view = self.record(facts.functional, args, kwargs)
        self._save(target)
        target.restore(view.state())
        return target

    def _check_view_change(self, target: TracedTensor) -> None:
        """Autograd takes `view.t_()` for a write to the view."""
        storage = target.storage
        what = "an in-place operation on a view that autograd restricts"
        if target.is_unrecorded:  # eager says so first
            raise Uncapturable("unsupported_op", what)
        if storage.input is not None:
            check_write_under_grad(self, self._inputs[storage.input], target)
        if storage.split or storage.restricted or storage.lost_grad or storage.frozen:
            raise Uncapturable("unsupported_op", what)

    def _resizes(self, target: TracedTensor, value: Node) -> bool:
        """Whether an out= argument gets new memory: an empty tensor of the program's own making."""
        return (
            target.spec.numel == 0
            and value.tensor.shape != target.shape
            and not target.chain
            and target.storage.input is None
            and target.dtype == value.tensor.dtype
        )

    def _replace_memory(self, target: TracedTensor, value: Node) -> None:
        self._save(target)
        memory = Storage(value, inference=target.storage.inference)
        target.storage, target.node, target.generation, target.anchored = memory, value, 0, True
        target._spec = value.tensor

    def write(self, target: TracedTensor, value: Node, is_out: bool = False, replaces: bool = False,
              unseen: bool = False) -> None:
        """`target` receives `value` in place; every alias sees it. `replaces`: what was there. `unseen`: its version
        counter stays."""
        spec, storage = target.spec, target.storage
        self._check_write(target, value, is_out)
        writer = value.args[0] if value.op is GETITEM else value
        self._check_saved(storage, writer, unseen, target.is_data)
        written = value
        value = layouts.conform(self, value, target, spec)
        levels = [storage.base]
        for step in target.chain[:-1]:
            levels.append(self._apply_step(step, levels[-1]))
        new = value
        for step, base in zip(reversed(target.chain), reversed(levels), strict=False):
            new = aliasing.write_back(self, base, new, step)
        lost = storage.lost_grad
        if storage.base.tensor.requires_grad:
            if not self.state.grad_enabled or target.is_detached:
                lost = True
            elif not new.tensor.requires_grad or replaces and shows(new, {value}):
                new = layouts.with_history(self, storage.base, new)
                value = value if target.chain else new
        if target.chain:
            new = layouts.in_layout(self, new, storage)
        if storage.input is None and new.tensor.requires_grad and not lost:
            # what is computed from the tensor from now on is computed from the one that the program sees
            owned = no_view(self, new)
            value, new = owned if value is new else value, owned
        self._save(storage)
        self._save(target)
        storage.base, storage.written, storage.lost_grad = new, True, lost
        if storage.written_at is None:
            storage.written_at = self.step()
        if lost or storage.leaf is not None:
            storage.lost_at = self.step()
        storage.seen += not (target.is_data or unseen)
        if not target.is_detached and keeps_result(self, writer, written):
            self.speculation.keep(storage, written, writer)
        if storage.history is None and storage.input is not None and new.tensor.requires_grad and not lost:
            storage.history = self.step()
        before = levels[0] if storage.input is None else self.graph.inputs[storage.input]
        if new.tensor.requires_grad and not lost and not before.tensor.requires_grad and storage.turned is None:
            storage.turned = storage.generation + 1
        storage.values = (*storage.values, *dict.fromkeys((written, value, new)))
        if not unseen:
            storage.writers = (*storage.writers, writer)
        storage.generation += 1
        if target.chain and self.state.grad_enabled and (new.tensor.requires_grad or spec.requires_grad):
            target.made = storage.generation  # its history begins anew, behind the write
            step = target.chain[-1]
            if id(step) not in self.rebased:
                self.rebased[id(step)] = step
                self._journal.append(lambda: self.rebased.pop(id(step)))
        alike = value.tensor.stride == spec.stride if target.chain else layouts.same_layout(value.tensor, spec)
        if not alike or not lost and (
            new.tensor.requires_grad != value.tensor.requires_grad or target.chain and value.tensor.requires_grad
        ):
            return  # rebuilt from the base when it is read: with a history it is a view of that
        target.node, target.generation, target.anchored = value, storage.generation, not target.chain
        if not lost and storage.leaf is not target:
            target._spec = spec.with_(requires_grad=value.tensor.requires_grad)
        elif target.input is None:
            target._spec = spec

    def _check_write(self, target: TracedTensor, value: Node, is_out: bool) -> None:
        spec, storage, grad = target.spec, target.storage, self.state.grad_enabled
        shape = value.tensor.shape
        if len(shape) != len(spec.shape) or not all(
            self.sizes.equal(a, b) for a, b in zip(shape, spec.shape, strict=True)
        ):
            raise Uncapturable("unsupported_op", "a write that changes a tensor's size")
        if self._may_overlap(spec):
            raise Uncapturable("unsupported_op", "a write to a tensor whose elements share memory")
        if storage.inference and not self.state.inference_mode:
            raise Uncapturable("input_mutation", _NOT_OUTSIDE)
        if storage.unrecorded:
            raise Uncapturable("input_mutation", "a write to a view that was made under no_grad")
        if storage.frozen:
            raise Uncapturable("unsupported_op", "a write to memory of a tensor that was told to require grad")
        if self.speculation.counts_versions(target):
            raise Uncapturable("unsupported_op", "a write to a tensor whose .data was assigned")
        base = storage.base.tensor
        if storage.leaf is target and spec.requires_grad and grad:
            raise UserError(RuntimeError(_LEAF_WRITTEN))
        if base.requires_grad and (not grad or target.is_detached):
            # An input's copy-back is made with grad mode or without: not one after the other.
            if storage.input is None or any(
                node.tensor.requires_grad and node not in self.speculation.leaves for node in storage.values[1:]
            ):
                raise Uncapturable(
                    "unsupported_op", "a write under no_grad or through detach() to a tensor that requires grad"
                )
        if storage.split:
            self.speculation.outdate(target)
        if target.is_detached:
            if value.tensor.requires_grad:
                raise Uncapturable("unsupported_op", "a write of a value that requires grad through detach()")
        elif grad and (base.requires_grad or spec.requires_grad or value.tensor.requires_grad):
            if target.is_unrecorded:
                raise Uncapturable("unsupported_op", "a write to a view that was made under no_grad")
            if storage.input is not None:
                check_write_under_grad(self, self._inputs[storage.input], target)
            elif target.is_leaf and spec.requires_grad:
                raise UserError(RuntimeError(_LEAF_WRITTEN))
            if is_out:
                raise Uncapturable("unsupported_op", "out= with tensors that require grad")
            if storage.lost_grad:
                raise Uncapturable("unsupported_op", "a write to a tensor that was changed under no_grad")
            if storage.restricted:
                raise Uncapturable("unsupported_op", "a write to memory with views that autograd restricts")
        if storage.input is not None:
            self._check_input_write(storage.input)

    def _may_overlap(self, spec: TensorSpec) -> bool:
        """Whether elements may share memory: some axis steps to within what the axes below it reach."""
        sizes, strides = self.sizes.hints(spec.shape), self.sizes.hints(spec.stride)
        reach = 0
        for stride, size in sorted((s, n) for s, n in zip(strides, sizes, strict=True) if n != 1):
            if stride <= reach and 0 not in sizes:
                return True
            reach += (size - 1) * stride
        return False

    def _check_own_operands(self, targets: list[Any], operands: list[Any], node: Node) -> None:
        """`x.mul_(x)`: autograd keeps the operand that the op itself overwrites, and eager's backward pass fails."""
        written = {t.storage for t in tensors_in(targets)}
        shared = {t.node for t in tensors_in(operands) if t.storage in written}
        if shared and not shared.isdisjoint(saved_values(self, node)[0]):
            raise Uncapturable("unsupported_op", "a write to a tensor that autograd keeps for the backward pass")

    def _check_saved(self, storage: Storage, writer: Node, unseen: bool, is_data: bool) -> None:
        """Eager's backward pass fails if a value that autograd keeps is overwritten; the graph's would not. Where it
        does not see that, it reads the new value, but for batch norms, which do not read it at all."""
        first = self._first_grad_node
        if first is None:
            return
        nodes, start = self.graph.nodes, storage.values[0]
        position = len(nodes)
        while position > first and nodes[position - 1] is not start:
            position -= 1
        spoiled = keepers(self, storage.values, position, (*storage.writers, writer))
        if unseen:
            spoiled = [node for node in spoiled if node.op.target not in WRITES_STATISTICS]
        # what was written to an input, and is kept, is to be in its memory when that is written to through `.data`
        at = storage.written_at if is_data and storage.input is not None else None
        self.speculation.spoil(spoiled, "a write to a tensor that autograd keeps for the backward pass", at)

    def memory_of(self, index: int) -> int:
        """The address of what holds an input's memory."""
        return self._inputs[index].value.untyped_storage()._cdata

    def shares_memory(self, index: int) -> bool:
        """Whether another input shows the memory of this one."""
        return len(self._storages.get(self.memory_of(index), ())) > 1

    def _check_input_write(self, index: int) -> None:
        entry = self._inputs[index]
        real: torch.Tensor = entry.value
        if real.is_inference() and not self.state.inference_mode:
            raise Uncapturable("input_mutation", _NOT_OUTSIDE)
        if self._may_overlap(self.graph.inputs[index].tensor):
            raise Uncapturable("input_mutation", "a part of a tensor is changed whose elements share memory")
        if self.shares_memory(index) or sharing_arrays(self, real, entry.source):
            raise Uncapturable("input_mutation", "a tensor is changed whose memory another input shares")
        if any(other != index for other in related_views(self, real)):
            raise Uncapturable("input_mutation", "a tensor is changed of which another input was a view")

    # -- scalars

    def scalar_op(self, function: Callable[..., Any], *args: Any) -> TracedScalar:
        """Python arithmetic or comparison with at least one `TracedScalar`, as a `py.*` node."""
        return record_scalar_op(self, function, args)

    # -- calls

    def call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], loc: Loc | None = None) -> Any:
        """Record a call of a torch function on payloads; returns its payload.

        Raises Uncapturable where it cannot be part of the graph, UserError where eager would raise.
        """
        self.loc = loc
        mark = self.checkpoint()
        try:
            return torch_calls.dispatch(self, fn, args, kwargs)
        except Uncapturable:
            self.rollback(mark)
            raise
        except UserError:
            facts = self.guards.guards[mark[3] :]
            self.rollback(mark)
            for guard in facts:  # the error is for inputs of which these hold
                self.guards.add(guard.source, guard.kind, guard.arg, guard.why)
            self._specialize((args, kwargs), f"{getattr(fn, '__name__', fn)} raises")
            raise
        except NotCovered as error:
            self.rollback(mark)
            raise Uncapturable("unsupported_op", str(error)) from error
        except SizeUnknown as error:
            self.rollback(mark)
            raise Uncapturable("dynamic_shape", str(error)) from error

    def _specialize(self, payload: Any, why: str) -> None:
        """Fix every size in what a call was given, and which tensors are leaves: it raises for these, and who knows for
        which others."""
        if isinstance(payload, TracedTensor):
            entry = None if payload.storage.input is None else self._inputs[payload.storage.input]
            if entry is not None and entry.value.requires_grad:
                guard_history(self, entry, why)
            self._specialize((payload.spec.shape, payload.spec.stride, payload.spec.offset), why)
        elif isinstance(payload, sympy.Basic):
            self.sizes.specialize(payload, why)
        elif isinstance(payload, (tuple, list)):
            for item in payload:
                self._specialize(item, why)
        elif isinstance(payload, dict):
            self._specialize(list(payload.values()), why)
        elif isinstance(payload, slice):
            self._specialize((payload.start, payload.stop, payload.step), why)

    def attribute(self, tensor: TracedTensor, name: str) -> Any:
        """The payload of `tensor.<name>` for attributes that are no methods."""
        return read_attribute(self, tensor, name)

    # -- undoing

    def _save(self, thing: Any) -> None:
        state = thing.state()
        self._journal.append(lambda: thing.restore(state))

    def checkpoint(self) -> Mark:
        """A mark for `rollback`. Cheap."""
        return (
            len(self.graph.nodes),
            len(self.graph.inputs),
            self.sizes.checkpoint(),
            self.guards.checkpoint(),
            len(self._journal),
        )

    def rollback(self, mark: Mark) -> None:
        """Undo everything recorded since `mark` was made."""
        nodes, inputs, relations, guards, journal = mark
        while len(self._journal) > journal:
            self._journal.pop()()
        del self.graph.nodes[nodes:]
        if self._first_grad_node is not None and self._first_grad_node >= nodes:
            self._first_grad_node = None
        if len(self.graph.inputs) > inputs:
            del self.graph.inputs[inputs:], self._inputs[inputs:]
        if self.sizes.checkpoint() > relations:
            self.sizes.rollback(relations)
            self.templates.clear()
        if len(self.guards) > guards:
            self.guards.rollback(guards)

    # -- the end

    def finish(self, live: Iterable[TracedTensor | TracedScalar]) -> Finished:
        """Close the graph: its outputs are what the live payloads need, its mutations what was written to inputs."""
        return finish_graph(self, list(live))


def _with_grad(spec: Any, requires_grad: bool) -> Any:
    """The spec of new values of arguments: they require grad if any argument does."""
    if type(spec) is tuple:
        return tuple([_with_grad(s, requires_grad) for s in spec])
    if type(spec) is TensorSpec and (spec.dtype.is_floating_point or spec.dtype.is_complex):
        return spec.with_(requires_grad=requires_grad)
    return spec