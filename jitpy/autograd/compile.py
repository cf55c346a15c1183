"""From a graph whose results need gradients to a callable with a node in torch's autograd graph."""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable
from typing import Any, cast

import torch

from .. import config, logs
from ..ir import ops
from ..ir.autograd_function import lower
from ..ir.builder import Builder
from ..ir.graph import GETITEM, REENTRANT, Graph, Node, own_generators
from ..ir.op import NotCovered
from ..ir.ops import normalize
from ..ir.ops.layout import axis_order
from ..ir.ops.quiet import without_saved_tensor_hooks
from ..ir.passes.cleanup import remove_dead_code
from ..ir.spec import Spec, TensorSpec
from ..ir.specialize import specialize
from ..ir.trees import tree_map
from ..runtime import beside_dynamo
from ..runtime.autograd_node import Backward, BackwardPass, NodeSpec, has_nodes, make_differentiable
from .joint import Halves, Joint, differentiate, split
from .partition import choose_saved
from .paths import find_paths, read_unchecked
from .results import Views, separate
from .variants import select
from .watching import Watched

Compiled = Callable[..., tuple[Any, ...]]
#: A backend's compilation of a graph.
Compile = Callable[[Graph], Compiled]
#: The same in two steps: the second one waits for kernels that compile elsewhere since the first.
Begin = Callable[[Graph], Callable[[], Compiled]]


def compile_differentiable(graph: Graph, compile: Compile, compile_eager: Compile,
                           begin: Begin | None = None) -> Compiled:
    """Make a graph callable whose results need gradients: `compiled(*inputs) -> tuple`.

    compile        for graphs in which nothing requires grad
    compile_eager  for graphs that run op by op under torch's autograd, for derivatives of derivatives
    begin    `compile` in two steps, where kernels compile elsewhere

    The forward half is compiled now, a backward half when it first runs; with `begin` the usual one begins to compile
    beside the forward half. Raises NotCovered where the graph has to run under torch's own autograd.
    """
    if not has_nodes():
        raise NotCovered("nodes of compiled code need the native runtime")
    started = time.perf_counter()
    joint, halves = _halves(graph)
    watched = _watched(joint, halves)
    backward = BackwardHalf(halves, compile, compile_eager)
    graph.pending.append(functools.partial(_compile_usual, weakref.ref(backward), _usual(joint)))
    again = without_mutations(joint.source)
    kept = used_inputs(again)
    again.inputs = [again.inputs[i] for i in kept]
    changed = {mutation.input for mutation in graph.mutations}
    tensors_kept = any(isinstance(node.spec, TensorSpec) for node in halves.backward.inputs[:len(halves.saved)])
    is_linear = bool(changed) and not tensors_kept  # gradients of gradients follow from these alone
    copies = () if is_linear else _copies(halves.forward, joint.n_returned, [i for i in kept if i in changed])
    logs.log("timing", lambda: f"{graph.name}: differentiated in {time.perf_counter() - started:.3f} s")
    logs.log("graph", lambda: f"forward half:\n{halves.forward}\nbackward half:\n{halves.backward}")

    def run_again() -> Compiled:
        return _reading(kept, compile_eager(again))

    if begin is None:
        forward = compile(halves.forward)
    else:
        finish = begin(halves.forward)
        backward.begin(begin, joint)
        forward = finish()
    node = make_differentiable(forward, NodeSpec(
        n_inputs=joint.n_inputs,
        n_outputs=joint.n_returned,
        saved=halves.saved,
        grad_outputs=joint.grad_outputs,
        grad_inputs=joint.grad_inputs,
        backward=backward.variant,
        linear=backward.linear,
        eager=None if is_linear else lambda: _for_all_leaves(run_again()) if _is_reentrant(again) else run_again(),
        kept=() if is_linear else tuple(i for i in kept if i not in changed),
        copies=copies,
        random=any(node.op.is_random for node in again.nodes),
        generators=own_generators(again),
        changes=bool(changed),
        watched=tuple((*one.place, one.text) for one in watched),
        paths=lambda: find_paths(joint, halves, watched),
        written=joint.written,
    ))
    return node if joint.views is None else _with_views(node, joint.views, compile_eager)


def _halves(graph: Graph) -> tuple[Joint, Halves]:
    joint = differentiate(graph)
    try:
        halves = split(joint, choose_saved(joint))
    except NotCovered:
        # a result that is a view may share memory with what has to be kept
        joint = differentiate(graph, all_views=True)
        halves = split(joint, choose_saved(joint))
    if config.activation_memory_budget == 1 and (unchecked := read_unchecked(joint, halves)):
        joint.changeable |= unchecked
        halves = split(joint, choose_saved(joint))
    return joint, halves


def _watched(joint: Joint, halves: Halves) -> list[Watched]:
    """The values to watch besides the kept inputs: those torch checks itself, and names as eager would. It does so
    behind all that is watched, so that one in front of others, of which eager would tell first, is watched, too."""
    apart = [bool(one.text) or one.place not in halves.saved for one in joint.watched]
    return [one for k, one in enumerate(joint.watched) if any(apart[k:])]


def compile_with_views(graph: Graph, compile: Compile, compile_eager: Compile) -> Compiled:
    """Make a graph callable in which nothing requires grad, its results that are views by torch itself."""
    graph = specialize(graph, {})
    views = separate(graph, all_views=False)
    return compile(graph) if views is None else _with_views(compile(graph), views, compile_eager)


def _with_views(node: Compiled, views: Views, compile_eager: Compile) -> Compiled:
    early, late, order = views.in_order()
    make_late = _maker(late, compile_eager)
    if early is None:
        return lambda *inputs: make_late(inputs, node(*inputs))
    make_early = _maker(early, compile_eager)

    def call_in_order(*inputs: Any) -> tuple[Any, ...]:
        first = make_early(inputs, ())
        results = *make_late(inputs, node(*inputs)), *first
        return tuple([results[k] for k in order])

    return call_in_order


def _maker(views: Views, compile_eager: Compile) -> Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]:
    """(inputs of the whole, outputs of the node) -> results."""
    make = compile_eager(views.graph)
    sources = tuple((kind == "output", i) for kind, i in views.sources)
    return lambda inputs, outputs: make(*[outputs[i] if is_output else inputs[i] for is_output, i in sources])


def _reading(positions: tuple[int, ...], run: Compiled) -> Compiled:
    """A function of all inputs, which reads those at these positions."""

    def call(*inputs: Any) -> tuple[Any, ...]:
        return run(*[inputs[i] for i in positions])

    return call


def _copies(forward: Graph, n_outputs: int, positions: list[int]) -> tuple[tuple[int, int], ...]:
    """Let the forward half return these inputs as they were before it changes them: (position, number of the extra).
    They come first, so that the new values may be written where the old ones were."""
    b = Builder(forward, forward.nodes[0] if forward.nodes else None, grad_enabled=False)
    made = {node.args[0]: node for node in forward.outputs[n_outputs:] if node.op.name == "aten.clone.default"}
    found = []
    for i in positions:
        copy = made.get(forward.inputs[i])
        if copy is None:
            copy = b.call("aten.clone.default", forward.inputs[i])
            forward.outputs.append(copy)
        found.append((i, forward.outputs.index(copy, n_outputs) - n_outputs))
    return tuple(found)


def without_mutations(graph: Graph) -> Graph:
    """A copy that only computes its outputs."""
    copy = specialize(graph, {})
    copy.mutations = []
    remove_dead_code(copy)
    _without_statistics(copy)
    return copy


def _without_statistics(graph: Graph) -> None:
    """Let batch norms that normalize by the batch read no running statistics, where their new values are not read."""
    name = "aten._native_batch_norm_legit_functional.default"
    read = {(node.args[0], node.args[1]) for node in graph.nodes if node.op is GETITEM}
    for node in graph.nodes:
        if node.op.name == name and not any((node, part) in read for part in (3, 4)):
            x, weight, bias, _, _, training, momentum, eps = normalize(node.op, node.args, node.kwargs)[0]
            if training:
                node.op, node.kwargs = ops.get("aten.native_batch_norm.default"), {}
                node.args = (x, weight, bias, None, None, True, momentum, eps)
                node.spec = cast("tuple[Spec, ...]", node.spec)[:3]


def used_inputs(graph: Graph) -> tuple[int, ...]:
    """The positions of the inputs that are read, as values or for their sizes."""
    used = {source for node in graph.nodes for source in node.input_nodes()} | set(graph.outputs)
    sized = {position for position, _, _ in graph.symbol_bindings().values()}
    return tuple(k for k, node in enumerate(graph.inputs) if node in used or k in sized)


class BackwardHalf:
    """A backward half, in the variants that passes ask for. Raises NotCovered for gradients in symbolic layouts."""

    def __init__(self, halves: Halves, compile: Compile, compile_eager: Compile) -> None:
        self.graph = halves.backward
        self.n_saved = len(halves.saved)
        for node in self.graph.inputs[self.n_saved:]:
            gradient_layout(node.tensor)  # raises now: once the forward half has run, torch's autograd cannot take over
        self.compile = compile
        self.compile_eager = compile_eager
        #: the variant that compiles beside the forward half: its masks, what `_selected` gave, and the second step
        self.begun: tuple[tuple[int, int], tuple[Graph, list[bool]], Callable[[], Compiled]] | None = None
        self.compiled = False
        self._linear: dict[tuple[int, int], Backward] = {}

    def begin(self, begin: Begin, joint: Joint) -> None:
        """Let the variant compile that the first pass will probably ask for."""
        masks = _usual(joint)
        mark, known = self.graph.sizes.checkpoint(), len(self.graph.lowered)
        try:
            selected = self._selected(*masks)
            finish = begin(selected[0]) if selected[0].outputs else None
        except Exception as error:  # as it would be when the pass runs, which then tells
            finish = None
            logs.log("fusion", f"{self.graph.name} does not begin to compile: {type(error).__name__}: {error}")
        if self.graph.sizes.checkpoint() != mark:  # see `_compiled`
            self.graph.sizes.rollback(mark)
            del self.graph.lowered[known:]
        elif finish is not None:
            self.begun = masks, selected, finish

    def variant(self, defined: int, wanted: int) -> Backward:
        """See NodeSpec.backward."""
        self.compiled = True
        with without_saved_tensor_hooks():
            begun, self.begun = self.begun, None
            if begun is not None and begun[0] == (defined, wanted):
                graph, present = begun[1]
                run = begun[2]()
            else:
                graph, present = self._selected(defined, wanted)
                run = self._compiled(graph) if graph.outputs else _nothing
            if _is_reentrant(graph):
                run = _for_all_leaves(run)
        return _backward_pass(graph.inputs[self.n_saved:], present, run)

    def linear(self, defined: int, wanted: int) -> Backward:
        """See NodeSpec.linear."""
        found = self._linear.get((defined, wanted))
        if found is None:
            with without_saved_tensor_hooks():
                graph, present = self._selected(defined, wanted)
                grads = graph.inputs[self.n_saved:]
                _give_history(graph, grads)
                read = used_inputs(graph)
                graph.inputs = [graph.inputs[k] for k in read]
                run = _reading(read, self.compile_eager(graph))
                found = self._linear[defined, wanted] = _backward_pass(grads, present, run)
        return found

    def _selected(self, defined: int, wanted: int) -> tuple[Graph, list[bool]]:
        graph, present = select(self.graph, self.n_saved, defined, wanted)
        lower(graph)
        return graph, present

    def _compiled(self, graph: Graph) -> Compiled:
        """The guards are made already: a compilation that asks for more about sizes than they say does not count."""
        mark, known = graph.sizes.checkpoint(), len(graph.lowered)
        run = self.compile(graph)
        if graph.sizes.checkpoint() == mark:
            return run
        graph.sizes.rollback(mark)
        del graph.lowered[known:]
        logs.log("fusion", graph.leave_to_eager("it asks for more about sizes than the guards say"))
        return self.compile_eager(graph)


def _compile_usual(half: weakref.ref[BackwardHalf], masks: tuple[int, int]) -> None:
    """Compile the variant of the usual pass for a report, where no pass has come so far."""
    backward = half()
    if backward is not None and not backward.compiled:
        backward.variant(*masks)


def _usual(joint: Joint) -> tuple[int, int]:
    """The masks of the pass that will probably come: all gradients, from all results or, where one of these is a
    number, from that loss."""
    outputs = [joint.graph.outputs[k].tensor for k in joint.grad_outputs]
    losses = [k for k, spec in enumerate(outputs) if spec.ndim == 0]
    return 1 << losses[0] if len(losses) == 1 else (1 << len(outputs)) - 1, (1 << len(joint.grad_inputs)) - 1


def _backward_pass(grads: list[Node], present: list[bool], run: Compiled) -> BackwardPass:
    return BackwardPass(run, tuple(gradient_layout(node.tensor) for node in grads),
                        None if all(present) else tuple(present))


def _give_history(graph: Graph, sources: list[Node]) -> None:
    """Let autograd follow what is computed from `sources`."""
    flowing = set(sources)
    for node in graph.nodes:
        node.grad_enabled = True
        if not flowing.isdisjoint(node.input_nodes()):
            flowing.add(node)
    for node in flowing:
        node.spec = _with_history(node.spec)


def _with_history(spec: Spec) -> Spec:
    return tree_map(lambda part: part.with_(requires_grad=True) if isinstance(part, TensorSpec) and (
        part.dtype.is_floating_point or part.dtype.is_complex) else part, spec)


def _is_reentrant(graph: Graph) -> bool:
    """Whether a graph computes anything of a reentrant checkpoint."""
    return any(REENTRANT in node.meta for node in graph.nodes)


def _for_all_leaves(run: Compiled) -> Compiled:
    """The backward pass through a reentrant checkpoint: as in eager, only if it goes to all leaves."""

    def call(*values: Any) -> tuple[Any, ...]:
        if not torch.autograd._is_checkpoint_valid():  # type: ignore[attr-defined]
            raise RuntimeError(_NOT_TO_ALL_LEAVES)
        return run(*values)

    return call


_NOT_TO_ALL_LEAVES = (
    "When use_reentrant=True, torch.utils.checkpoint is incompatible with .grad() or passing an `inputs` parameter to "
    ".backward(). To resolve this error, you can either set use_reentrant=False, or call .backward() without passing "
    "the `inputs` argument."
)


def _nothing(*values: Any) -> tuple[Any, ...]:
    return ()


def gradient_layout(spec: TensorSpec) -> tuple[int, ...] | None:
    """The layout that a gradient must have, as `BackwardPass.layouts` has it. Raises NotCovered for one with gaps whose
    sizes are symbolic."""
    if spec.is_contiguous():
        return None
    if spec.is_static:
        return spec.stride  # type: ignore[return-value]
    order = axis_order(spec)
    if order is None:
        raise NotCovered("symbolic strides of a gradient that has gaps")
    return tuple([-1 - axis for axis in order])


beside_dynamo.hide_all(globals())
