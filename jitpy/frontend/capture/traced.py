"""The values that the interpreter holds instead of tensors and numbers while a frame is traced.

A `TracedTensor` is one Python tensor object of the traced program. It points at a `Storage` (the memory that eager
would share) and knows by which chain of view ops it looks at it. The graph is functional, so a write through any alias
replaces the storage's base value, and the other aliases are rebuilt from it when they are next read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from jitpy.ir import Graph, Node, Op, ScalarSpec, TensorSpec
from jitpy.ir.autograd_function import NAME as AUTOGRAD_FUNCTION
from jitpy.ir.op import Uncapturable as Uncapturable
from jitpy.ir.trees import tree_leaves

from ..guards.source import Source

_DETACH = torch.ops.aten.detach.default
_CONJ = torch.ops.aten._conj.default
_NEG = torch.ops.aten._neg_view.default

#: The result of a shortcut for a call that it does not handle.
DECLINED = object()


@dataclass(frozen=True, slots=True)
class Parts:
    """Several views made at once by `op(base, *args, **kwargs)`, of which one is number `index`."""

    op: Op
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    specs: tuple[TensorSpec, ...]
    index: int


@dataclass(frozen=True, slots=True, eq=False)
class ViewStep:
    """One view op of an alias: `op(base, *args, **kwargs)` gives a tensor of `spec`.

    `grad_enabled` is the mode under which the view was made; `multi` says that eager made it as one of
    several outputs (split, unbind: `parts`), whose in-place use autograd restricts; `is_data` that it is `.data`, whose
    writes autograd does not see; `inference` that it was made in inference mode, of a tensor that is none of that
    mode's.
    """

    op: Op
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    spec: TensorSpec
    grad_enabled: bool = True
    multi: bool = False
    parts: Parts | None = None
    is_data: bool = False
    inference: bool = False


class Storage:
    """Memory as eager would have it.

    base          the node with the present value of the whole memory
    values        all nodes whose values have been in this memory, the first base first
    writers       the nodes that computed what was written, but for those that keep what they overwrite as it will be
    generation    counts writes; an alias with another number is out of date
    input         the index of the graph input whose memory this is, or None
    written       whether it was written to since it was made
    restricted    it has views (of split or unbind, or made under no_grad) that eager refuses to read after a write
    split         it requires grad, and these views of split or unbind: eager refuses to read them after any write
    lost_grad     it requires grad and was written to without grad mode: reading it under grad mode has no graph form
    lost_at       the step of the last such write
    seen          its version counter moves: not all writes went through `.data`, or were those of running statistics
    history       the step at which a value with a history was written to an input, the first; None: at none
    turned        the generation at which memory that did not require grad came to; None: at none
    written_at    the step of the first write; None: there was none
    frozen        a leaf that was made here shows this memory: it is not written to
    leaf          the parameter that was made of this memory, if one was
    inference     what shows it are inference tensors: it was made here in inference mode
    unrecorded    what came from outside is a view that was made under no_grad: to eager it requires grad, as its base
                  does, and is a leaf without a gradient
    """

    __slots__ = ("base", "values", "writers", "generation", "input", "written", "lost_grad", "lost_at", "restricted",
                 "seen", "split", "history", "turned", "written_at", "frozen", "leaf",
                 "inference", "unrecorded")

    def __init__(self, base: Node, input: int | None = None, inference: bool = False) -> None:
        self.base = base
        self.values: tuple[Node, ...] = (base,)
        self.writers: tuple[Node, ...] = ()
        self.generation = 0
        self.input = input
        self.written = False
        self.restricted = False
        self.split: tuple[ViewStep, ...] = ()
        self.lost_grad = False
        self.lost_at = 0
        self.seen = 0  # writes that autograd sees
        self.history: int | None = None
        self.turned: int | None = None
        self.written_at: int | None = None
        self.frozen = False
        self.leaf: TracedTensor | None = None
        self.inference = inference
        self.unrecorded = False

    def state(self) -> tuple[Any, ...]:
        return (self.base, self.values, self.writers, self.generation, self.written, self.restricted, self.split,
                self.lost_grad, self.lost_at, self.seen, self.history, self.turned, self.written_at, self.frozen,
                self.leaf)

    def restore(self, state: tuple[Any, ...]) -> None:
        (self.base, self.values, self.writers, self.generation, self.written, self.restricted, self.split,
         self.lost_grad, self.lost_at, self.seen, self.history, self.turned, self.written_at, self.frozen,
         self.leaf) = state


class GraphBuilder(Protocol):
    """The interface of the graph builder for the rest of the frontend (`TracedGraphBuilder`).

    It stands beside `TracedTensor`, as each names the other. Payloads are traced tensors and numbers, sizes, and plain
    Python values and containers of these. `call` and `record` raise `Uncapturable` for what a graph cannot hold, and
    where eager raises.
    """

    sizes: Any
    guards: Any
    graph: Graph
    loc: Any
    #: torch's global state; what backward passes ran through; assumptions on histories; parameters made; inference mode
    state: Any
    history: Any
    speculation: Any
    parameters: Any
    inference: Any
    #: the inputs, and which of them share memory or are views of one tensor
    inputs: list[GraphInput]
    known_inputs: dict[int, TracedTensor]
    inputs_by_memory: dict[int, list[int]]
    input_views: dict[int, list[int]]
    has_arrays: bool
    float_inputs: dict[Source, TracedScalar]
    pinned: dict[Source, str]
    items: dict[Node, TracedScalar]
    size_numbers: dict[Any, TracedScalar]
    templates: dict[Any, Any]
    rebased: dict[int, ViewStep]
    first_grad_node: int | None
    acts: bool
    own_step: int
    handles_errors: bool
    #: how to undo what was recorded, in order
    journal: list[Callable[[], Any]]
    need: Callable[[Any, int, str], None] | None
    step: Callable[[], int]
    step_behind: Callable[[int], int]

    # inputs
    def tensor_input(self, tensor: torch.Tensor, source: Source,
                     dims: tuple[Any, ...] | None = None) -> TracedTensor: ...
    def int_input(self, value: int, source: Source, general: bool = False) -> Any: ...
    def number_of(self, tensor: torch.Tensor) -> int: ...

    # torch's calls and attributes, on payloads
    def call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], loc: Any = None) -> Any: ...
    def record_call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def record(self, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any], spec: Any = None) -> Any: ...
    def attribute(self, tensor: TracedTensor, name: str) -> Any: ...
    def scalar_op(self, function: Callable[..., Any], *args: Any) -> TracedScalar: ...
    def write(self, target: TracedTensor, value: Node, is_out: bool = False, replaces: bool = False,
              unseen: bool = False) -> None: ...

    # nodes
    def op(self, overload: Any) -> Op: ...
    def node(self, value: TracedTensor, detached: bool = False, is_result: bool = False) -> Node: ...
    def to_node(self, payload: Any) -> Any: ...
    def seen_as_nodes(self, payload: Any) -> Any: ...
    def emit(self, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None,
             spec: Any = None) -> Node: ...
    def emit_view(self, overload: Any, base: Node, args: tuple[Any, ...]) -> Node: ...
    def emit_scatter(self, overload: Any, base: Node, value: Node, args: tuple[Any, ...]) -> Node: ...
    def constant(self, tensor: torch.Tensor) -> Node: ...
    def fresh(self, node: Node) -> TracedTensor: ...
    def part(self, node: Node, index: int) -> Node: ...
    def results(self, node: Node, spec: Any) -> Any: ...

    # views and memory
    def alias(self, base: TracedTensor, step: ViewStep, node: Node) -> TracedTensor: ...
    def refresh(self, value: TracedTensor, view: Any = None, owner: Node | None = None) -> None: ...
    def apply_step(self, step: ViewStep, base: Node, as_made: bool = False) -> Node: ...
    def memory_of(self, index: int) -> int: ...
    def shares_memory(self, index: int) -> bool: ...

    # histories
    def ask_history(self, value: TracedTensor) -> None: ...
    def ask_leaf(self, value: TracedTensor) -> bool: ...
    def check_replaced(self, storage: Storage) -> None: ...

    # undoing
    def save(self, thing: Any) -> None: ...
    def put(self, table: dict[Any, Any], key: Any, value: Any) -> None: ...
    def set(self, thing: Any, name: str, value: Any) -> None: ...
    def checkpoint(self) -> Any: ...
    def rollback(self, mark: Any) -> None: ...


class TracedTensor:
    """One tensor object of the traced program.

    node          its value as of `generation`; `graph builder.node(t)` brings it up to date
    anchored      `node` is built by view ops from the storage's base node (not just equal to that)
    is_leaf       whether eager's `t.is_leaf` reads True although it requires grad (see `unasked`)
    made          the storage's generation when this object was made, or written to as a view
    asked         the storage's generation when autograd was last asked for this view's history
    stands_for    the number of the input that this leaf is, whose `.data` was assigned; None once its history has begun
    """

    __slots__ = ("builder", "storage", "chain", "node", "generation", "anchored", "_is_leaf", "made", "asked",
                 "stands_for", "_spec")

    def __init__(
        self,
        builder: GraphBuilder,
        storage: Storage,
        chain: tuple[ViewStep, ...],
        node: Node,
        spec: TensorSpec,
        anchored: bool = True,
        is_leaf: bool | None = False,
    ) -> None:
        self.builder = builder
        self.storage = storage
        self.chain = chain
        self.node = node
        self.generation = self.made = self.asked = storage.generation
        self.anchored = anchored
        self._is_leaf = is_leaf
        self.stands_for: int | None = None
        self._spec = spec

    @property
    def spec(self) -> TensorSpec:
        """dtype, shape, strides, device and `requires_grad` as eager would read them now."""
        if self.generation != self.storage.generation:
            self.builder.seen_as_nodes(self)
        return self._spec

    @property
    def unasked(self) -> bool:
        """Whether this is a view from outside of which nobody has asked autograd if it is a leaf. Behind a write, that
        makes the view's history anew, of what the view and its base show at that moment: `.data = ...` changes it. So
        it is asked when the program uses the view under autograd."""
        return self._is_leaf is None

    @property
    def is_late(self) -> bool:
        """Whether this view is older than the history of what it shows, and nobody has asked for its own since. To
        eager it requires grad, and is a leaf until somebody asks: it may not be written to under grad mode."""
        turned = self.storage.turned
        return turned is not None and bool(self.chain) and max(self.made, self.asked) < turned and not any(
            step.op.target is _DETACH or step.multi or not step.grad_enabled for step in self.chain)

    @property
    def is_leaf(self) -> bool:
        if self._is_leaf is None:
            self._is_leaf = self.builder.ask_leaf(self)
        return self._is_leaf

    @is_leaf.setter
    def is_leaf(self, value: bool | None) -> None:
        self._is_leaf = value

    @property
    def dtype(self) -> torch.dtype:
        return self._spec.dtype

    @property
    def shape(self) -> tuple[Any, ...]:
        return self._spec.shape

    @property
    def ndim(self) -> int:
        return len(self._spec.shape)

    @property
    def input(self) -> int | None:
        """The index of the graph input that this very object is, or None."""
        return self.storage.input if not self.chain else None

    @property
    def is_detached(self) -> bool:
        """Whether autograd does not connect this view with its base."""
        return any(step.op.target is _DETACH for step in self.chain)

    @property
    def root(self) -> tuple[Storage, ViewStep | None]:
        """Autograd's base of this view, if it is one: the memory, or the last detach() on the way."""
        detached = [step for step in self.chain if step.op.target is _DETACH]
        return self.storage, detached[-1] if detached else None

    @property
    def is_data(self) -> bool:
        """Whether autograd does not see what is written to this view."""
        return any(step.is_data for step in self.chain)

    @property
    def is_unrecorded(self) -> bool:
        """Whether it is a view that was made under no_grad, of a tensor that may require grad."""
        return self.storage.unrecorded or any(
            not step.grad_enabled and step.op.target is not _DETACH for step in self.chain)

    @property
    def hides_history(self) -> bool:
        """Whether it is a view that was made under no_grad, that requires grad to eager as its base does. The result
        of an autograd function has its history from that."""
        begin = max((k + 1 for k, step in enumerate(self.chain) if step.op.name == AUTOGRAD_FUNCTION), default=0)
        storage = self.storage
        return not self.is_detached and (storage.unrecorded or (storage.base.tensor.requires_grad or storage.lost_grad)
                                         and any(not step.grad_enabled for step in self.chain[begin:])) and all(
            step.spec.dtype.is_floating_point or step.spec.dtype.is_complex for step in self.chain)

    @property
    def lazy_bits(self) -> tuple[bool, bool]:
        """Whether a conjugation, and whether a negation, is pending on this view."""
        if not self.chain:
            return False, False
        targets = [step.op.target for step in self.chain]
        return targets.count(_CONJ) % 2 == 1, targets.count(_NEG) % 2 == 1

    def state(self) -> tuple[Any, ...]:
        return (self.storage, self.chain, self.node, self.generation, self.anchored, self._is_leaf, self.made,
                self.asked, self.stands_for, self._spec)

    def restore(self, state: tuple[Any, ...]) -> None:
        (self.storage, self.chain, self.node, self.generation, self.anchored, self._is_leaf, self.made,
         self.asked, self.stands_for, self._spec) = state

    def __repr__(self) -> str:
        return f"TracedTensor({self.node.name}: {self._spec})"


class TracedScalar:
    """A Python number that only exists when the graph runs (`.item()` and arithmetic on it)."""

    __slots__ = ("node", "known")

    def __init__(self, node: Node, known: Any = None) -> None:
        self.node = node
        #: `known_numbers.Known` where the number follows from inputs that are numbers, else None
        self.known = known

    @property
    def spec(self) -> ScalarSpec:
        assert isinstance(self.node.spec, ScalarSpec)
        return self.node.spec

    @property
    def kind(self) -> type:
        """int, float, bool or complex."""
        return self.spec.kind

    def __repr__(self) -> str:
        return f"TracedScalar({self.node.name}: {self.spec})"


@dataclass(frozen=True, slots=True)
class StructPayload:
    """A named tuple of torch (`torch.return_types.max` ...): `cls(items)` rebuilds it."""

    cls: type
    items: tuple[Any, ...]


@dataclass(slots=True)
class GraphInput:
    """A tensor or number that entered the graph: the real value, where it was found, and what stands for it."""

    value: Any
    source: Source
    payload: Any


@dataclass(slots=True)
class Finished:
    """The graph builder's result: for each live payload `('input', i)`, the very object passed as input i, `('output',
    k)`,
    or `('gone', k)`: output k, to which a backward pass has been (see `history.without_history`). `gone` has the inputs
    of which it was computed. `connected`: inputs of which something was computed under autograd that nothing needs.
    `inference`: whether it runs in inference mode; if not, `inside` are the outputs to be made inference tensors.
    `written`: inputs from whose new values results with a history are computed, with the steps that wrote these."""

    graph: Graph
    places: list[tuple[str, int]]
    gone: dict[int, list[Node]]
    connected: list[Node]
    inference: bool
    inside: list[int]
    written: dict[Node, int]


def tensors_in(value: Any) -> Iterable[TracedTensor]:
    """The traced tensors inside nested payloads."""
    kind = type(value)
    if kind is TracedTensor:
        yield value
    elif kind is StructPayload:
        yield from tensors_in(value.items)
    elif kind in (tuple, list, dict, slice):
        for leaf in tree_leaves(value):
            yield from tensors_in(leaf)
