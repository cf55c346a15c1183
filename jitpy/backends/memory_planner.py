"""Decides what is fused, in which order kernels and calls run, and whose memory each result takes over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jitpy import config

from ..ir.alias import alias_kind
from ..ir.failures import may_fail
from ..ir.graph import CONSTANT, INPUT, OWNED, Graph, Node, map_nodes
from ..ir.ops import through_views
from ..ir.ops.functional import in_place_of
from ..ir.spec import contiguous_stride
from ..schedule.batches import Batch, batch_kernel, gather
from ..schedule.fuse import Call, Fusion, Group
from ..schedule.loops import Kernel, build
from ..schedule.lower import Lowering, lower
from ..schedule.memory import can_write_over
from ..schedule.order import Memory, in_order
from ..schedule.products import Choice
from ..schedule.values import Computed, HostScalar, Stored, Value, View, base_of
from .arguments import Argument, flat, strided, visit
from .size_table import SizeTable
from .target import Printed, Target

#: Bytes from which a value between kernels has memory of its own, free for others when it is read; smaller ones share
#: what is there for the whole call.
LARGE_BYTES = 1 << 20


@dataclass(slots=True)
class Unit:
    """A kernel or call with what it touches."""

    kernel: Kernel | None = None
    call: Call | None = None
    printed: Printed | None = None
    in_place: dict[Value, Value] = field(default_factory=dict)
    checks: bool = False
    #: entries of the size table that the kernel reads
    sizes: set[int] = field(default_factory=set)

    @property
    def may_fail(self) -> bool:
        """Whether values that it reads may make it raise."""
        return self.checks or self.call is not None and may_fail(self.call.node)


class MemoryPlanner:
    """The units of one graph for a target. Raises NotCovered where the graph has sizes that no kernel takes."""

    def __init__(self, graph: Graph, target: Target) -> None:
        self.graph = graph
        self.target = target
        self.env = graph.sizes
        self.table = SizeTable(graph)
        products = target.product_choice(graph)
        self._schedule(products)
        while products is not None and products.refuse(
                [unit.kernel for unit in self.units if unit.kernel], self.required):
            self._schedule(products)
        self._find_lifetimes()
        self._reuse_in_place()

    def _schedule(self, products: Choice | None) -> None:
        """Lower, fuse and build kernels, with the products that are chosen so far."""
        limits = self.target.limits
        self.low: Lowering = lower(self.graph, limits.scatters, self.target.device, products, limits.float8)
        #: the values whose sizes, or numbers, bind unbacked symbols, with their nodes
        self.binding_nodes: dict[Value, list[Node]] = {}
        for node in self.table.bindings:
            self.binding_nodes.setdefault(self.low.values[node], []).append(node)
        self.copies: dict[Value, Value] = {}
        self._want()
        self.fusion = Fusion(self.low, self.required, self._calls(), config.fusion, self.target.limits,
                             self._checking())
        self.refusals = self.fusion.refusals
        self._build_kernels()

    # what must be in memory

    def _want(self) -> None:
        #: what kernels have to write to memory: others than kernels read it
        self.required: dict[Value, None] = {}
        self.output_values: list[Any] = [self._in_memory(self.low.in_memory(n)) for n in self.graph.outputs]
        self.mutation_values = [self._in_memory(self.low.in_memory(m.value)) for m in self.graph.mutations]
        self.call_arguments = {node: map_nodes((node.args, node.kwargs), self._argument) for node in self.low.calls}

    def _argument(self, node: Node) -> Any:
        return Argument(self._in_memory(self.low.in_memory(node)))

    def _in_memory(self, value: Any) -> Any:
        """The value itself or, where it is no strided view of memory, a copy. Its memory becomes required."""
        if isinstance(value, tuple):
            return tuple(self._in_memory(v) for v in value)
        if not isinstance(value, Value) or isinstance(value, HostScalar):
            return value
        if isinstance(value, View) and strided(value) is None:
            found = self.copies.get(value)
            if found is None:
                self.low._node = value.nodes[0] if value.nodes else None
                found = self.copies[value] = self.low.copy(value)
                found.nodes = list(value.nodes)
                found.position = value.position
            value = found
        base = base_of(value)
        if isinstance(base, Computed):
            self.required[base] = None
        return value

    def _calls(self) -> list[tuple[Node, list[Value], list[Value]]]:
        result = []
        for node in self.low.calls:
            operands: list[Value] = []
            visit(self.call_arguments[node], operands.append)
            made = self.low.values[node]
            results = [v for v in (made if isinstance(made, tuple) else (made,)) if isinstance(v, Value)]
            result.append((node, [base_of(v) for v in operands], results))
        return result

    def _checking(self) -> list[Value]:
        """The values of kernels whose computation may raise, for whoever reads them or not."""
        found: dict[Value, None] = {}
        for node in self.graph.nodes:
            made = self.low.values[node]
            for value in made if isinstance(made, tuple) else (made,):
                if isinstance(value, Value) and may_fail(node) and isinstance(base_of(value), Computed):
                    found[base_of(value)] = None
        return list(found)

    # kernels

    def _build_kernels(self) -> None:
        fusion = self.fusion
        kernels = {group: self._kernel_of(group, f"kernel{k}") for k, group in enumerate(fusion.groups)}
        units = gather(fusion, kernels) if config.fusion else [*fusion.groups, *fusion.calls]
        self.units: list[Unit] = []
        for unit in in_order(fusion, units, self._memory(units, kernels)):
            if isinstance(unit, Call):
                self.units.append(Unit(call=unit))
            elif isinstance(unit, Batch):
                self.units.append(Unit(kernel=batch_kernel([kernels[group] for group in unit.groups], unit.style)))
            else:
                kernel = kernels[unit]
                # a check that fails on a GPU leaves nothing behind: neither memory nor the device can be used again
                checks = self.target.device.type == "cpu" and any(e.op == "check" for e in kernel.stage)
                self.units.append(Unit(kernel=kernel, checks=checks))

    def _memory(self, units: list[Any], kernels: dict[Group, Kernel]) -> Memory:
        """The values with memory of their own that units read and write."""
        touched: dict[Any, tuple[Sequence[Value], Sequence[Value]]] = {}
        calls = dict(zip(self.fusion.calls, self._calls(), strict=True))
        kept = {base_of(v) for v in (*flat(self.output_values), *self.mutation_values) if isinstance(v, Value)}
        for unit in units:
            if isinstance(unit, Call):
                _, operands, results = calls[unit]
                touched[unit] = list(dict.fromkeys(operands)), results
                if self._may_alias(unit.node):
                    kept.update((*operands, *results))
            else:
                parts = [kernels[group] for group in (unit.groups if isinstance(unit, Batch) else [unit])]
                touched[unit] = (list(dict.fromkeys(value for kernel in parts for value in kernel.reads)),
                                 [value for kernel in parts for value in kernel.writes])
        in_input = {value: self.low.values[self.graph.inputs[mutation.input]]
                    for mutation, value in zip(self.graph.mutations, self.mutation_values, strict=True)}

        def size(value: Value) -> int:
            if isinstance(value, HostScalar) or isinstance(value, Stored) and not self._is_own(value):
                return 0
            found = self._bytes(value)
            return found if found >= LARGE_BYTES else 0

        inputs = [self.low.values[node] for node in self.graph.inputs]
        at_start = sum(size(value) for value in inputs if isinstance(value, Stored))
        return Memory(touched, size, kept, in_input, at_start)

    def _is_own(self, value: Stored) -> bool:
        """Whether a value's memory is the call's: made by it, or given up to it."""
        return value.node.meta.get(OWNED, False) if value.node.op is INPUT else value.node.op is not CONSTANT

    def _kernel_of(self, group: Group, name: str) -> Kernel:
        fusion = self.fusion
        members = set(group.members)
        stored = [
            v for v in group.members
            if v in fusion.required or any(r not in members for r in fusion.readers.get(v, ()))
        ]
        kernel = build(group, name, fusion.inlined, stored, self.env)
        written = {self.graph.inputs[mutation.input] for mutation in self.graph.mutations}
        kernel.steady = frozenset(value for value in kernel.reads if isinstance(value, Stored)
                                  and value.node.op is INPUT and value.node not in written and not self._is_own(value))
        return kernel

    def _find_lifetimes(self) -> None:
        """For each value in memory the units that first and last touch it; views of calls' results keep these alive."""
        self.first: dict[Value, int] = {}
        self.last: dict[Value, int] = {}
        end = len(self.units)

        def touch(value: Any, k: int) -> None:
            if isinstance(value, Value):
                value = base_of(value)
                self.first.setdefault(value, k)
                self.last[value] = max(self.last.get(value, k), k)

        self.keep: set[Value] = set()  # owners whose results may be views: their memory must outlive the results
        for k, unit in enumerate(self.units):
            if unit.kernel is not None:
                for value in (*unit.kernel.reads, *unit.kernel.writes):
                    touch(value, k)
            else:
                assert unit.call is not None
                operands: list[Value] = []
                visit(self.call_arguments[unit.call.node], operands.append)
                for value in operands:
                    touch(value, k)
                made = self.low.values[unit.call.node]
                for value in made if isinstance(made, tuple) else (made,):
                    touch(value, k)
                if self._may_alias(unit.call.node):
                    self.keep.update(base_of(v) for v in operands)
                    self.keep.update(v for v in (made if isinstance(made, tuple) else (made,)) if isinstance(v, Value))
        #: without results
        self.last_unit = {**self.last, **dict.fromkeys(self.keep, end)}
        for value in (*flat(self.output_values), *self.mutation_values):
            touch(value, end)
        for value in self.keep:
            self.last[value] = end

    def _may_alias(self, node: Node) -> bool:
        """Whether an eager call's result may share memory with an argument."""
        return alias_kind(self.graph, node) != "copy"

    def _reuse_in_place(self) -> None:
        """Kernels write over operands that nobody reads afterwards, and over inputs that receive their result."""
        outputs = {base_of(v) for v in flat(self.output_values) if isinstance(v, Value)}
        mutated: dict[Any, list[Any]] = {}
        for mutation, value in zip(self.graph.mutations, self.mutation_values, strict=True):
            mutated.setdefault(shown_whole(value), []).append(self.low.values[self.graph.inputs[mutation.input]])
        self.last_failure = max((k for k, unit in enumerate(self.units) if unit.may_fail and not self._puts(unit)),
                                default=-1)
        self.last_check = max((k for k, unit in enumerate(self.units) if unit.checks), default=-1)
        self.home: dict[Value, Value] = {}  # value -> the value whose memory it takes over
        self.in_input: set[Value] = set()
        self._follow_writes(mutated)
        for k, unit in enumerate(self.units):
            kernel = unit.kernel
            if kernel is None:
                self._call_in_place(k, unit, mutated, outputs)
                continue
            for target in kernel.writes:
                # the call may still be given up, and then nothing may have changed
                late = unit.checks or k < (self.last_check if self.graph.runs_once else self.last_failure)
                found = None if late else self._input_home(target, mutated, outputs, k)
                if found is not None and not can_write_over(kernel, target, found, self.env):
                    found = None
                if found is not None:
                    self.in_input.add(target)
                if found is None:
                    for source in kernel.part_of(target).reads:
                        if source in unit.in_place.values() or not self._dies_here(source, k, outputs):
                            continue
                        if target in outputs and self.env.unbacked_in_all(target.stride):
                            continue  # the strides of a result without elements are those of a fresh tensor
                        if self._is_in_input(source) and (target in outputs or self.target.device.type != "cpu"):
                            continue  # results are fresh tensors
                        if target in outputs and target.stride != source.stride:
                            continue  # those of axes with one element show
                        fits = self._same_layout(target, source) or \
                            target not in outputs and not self._is_in_input(source) and _reshaped(target, source)
                        if fits and can_write_over(kernel, target, source, self.env):
                            found = source
                            break
                if found is not None:
                    unit.in_place[target] = found
                    self.home[target] = found

    def _follow_writes(self, mutated: dict[Any, list[Any]]) -> None:
        """Memory that several ops of the program write in turn is written where the last of them writes."""
        for unit in reversed(self.units):
            for target, source in self._written_by(unit):
                if target in mutated and isinstance(source, (Stored, Computed)) and not self._is_in_input(source):
                    mutated.setdefault(source, mutated[target])

    def _written_by(self, unit: Unit) -> list[tuple[Value, Any]]:
        """The values that a call of a program's op writes to: the new and the old one of each."""
        in_place = None if unit.call is None else in_place_of(unit.call.node.op)
        if unit.call is None or in_place is None:
            return []
        made = self.low.values[unit.call.node]
        parts = made if isinstance(made, tuple) else (made,)
        args, kwargs = self.call_arguments[unit.call.node]
        found = []
        for target, path in zip(parts[len(parts) - len(in_place.paths):], in_place.paths, strict=True):
            values: list[Any] = []
            visit(through_views.at(args, kwargs, path), values.append)
            found.append((target, values[0]))
        return found

    def _call_in_place(self, k: int, unit: Unit, mutated: dict[Any, list[Any]], outputs: set[Value]) -> None:
        """Let a call of torch's that puts elements into a copy put them into what it would copy, where nobody needs
        that any more. On GPUs: there a call that fails has changed nothing, or the device is lost. Ops of the program's
        write to the graph's own memory anywhere, and to inputs in a graph that runs once."""
        assert unit.call is not None
        node = unit.call.node
        operands: list[Value] = []
        visit(self.call_arguments[node], operands.append)
        owners = [base_of(value) for value in operands]
        for target, source in self._written_by(unit):
            if not isinstance(source, (Stored, Computed)) or owners.count(source) > 1:
                continue
            if self.graph.runs_once and self.last_check < k and \
                    self._input_home(target, mutated, outputs, k, source) is not None:
                self.in_input.add(target)
            elif not self._dies_here(source, k, outputs) or self._is_in_input(source) or \
                    not self._same_layout(target, source):
                continue
            unit.in_place[target] = source
            self.home[target] = source
        if not self._puts(unit):
            return
        target, source = self.low.values[node], operands[0]
        if not isinstance(target, Stored) or not isinstance(source, (Stored, Computed)) or owners.count(source) > 1:
            return
        if k >= self.last_failure and self._input_home(target, mutated, outputs, k) is source:
            unseen = self.graph.unseen_inputs()
            if any(self.low.values[self.graph.inputs[number]] is source for number in unseen):
                return  # torch's own call would move its version
            self.in_input.add(target)
        elif not self._dies_here(source, k, outputs) or self._is_in_input(source) or \
                not self._same_layout(target, source):
            return
        unit.in_place[target] = source
        self.home[target] = source

    def _puts(self, unit: Unit) -> bool:
        """Whether a call puts elements into a copy, on a GPU: where it fails, the device is lost."""
        return unit.call is not None and unit.call.node.op.in_place_call is not None and \
            self.low.scatters != "ordered" and not self.low.is_on_host(unit.call.node)

    def _input_home(
        self, target: Value, mutated: dict[Any, list[Any]], outputs: set[Value], k: int, written: Value | None = None
    ) -> Value | None:
        """The input that `target` is copied to at the end, if it may be written there at once: as the new value of
        `written`, which is there already."""
        wanted = mutated.get(target)
        if self.binding_nodes or wanted is None or len(wanted) != 1 or target in outputs:
            return None
        source = wanted[0]
        if written is not None and written is not source:
            while written in self.home:
                if self.last.get(written, k) > k:
                    return None  # another unit reads what is there now
                written = self.home[written]
            if written is not source:
                return None
        # (results that are views of an input show what is written to it, whenever that is)
        shown = [value for value in flat(self.output_values) if written is None or not isinstance(value, View)]
        if any(self._reads_later(value, source) for value in (*shown, *self.mutation_values)):
            return None
        last = self.last if written is None else self.last_unit
        fits = self._same_layout(target, source) or _reshaped(target, source) and not self._is_call_operand(target)
        return source if fits and last.get(source, k) <= k else None

    def _is_call_operand(self, value: Value) -> bool:
        found: list[Value] = []
        visit(tuple(self.call_arguments.values()), found.append)
        return any(base_of(operand) is value for operand in found)

    def _is_in_input(self, value: Value) -> bool:
        """Whether a value's memory came with an input."""
        while value in self.home:
            value = self.home[value]
        return isinstance(value, Stored) and value.node.op is INPUT

    def _reads_later(self, value: Any, source: Value) -> bool:
        return isinstance(value, Value) and base_of(value) is source

    def _dies_here(self, source: Value, k: int, outputs: set[Value]) -> bool:
        """Whether memory of the graph's own is read for the last time by unit `k`."""
        if self.last.get(source) != k or source in outputs or source in self.keep or source in self.in_input:
            return False
        if isinstance(source, HostScalar):
            return False
        if isinstance(source, Stored):
            return self._is_own(source) and (source.node.op is INPUT or not self._may_alias(source.node))
        return True

    def _same_layout(self, target: Value, source: Value) -> bool:
        return (
            target.dtype is source.dtype
            and len(target.shape) == len(source.shape)
            and all(a == b for a, b in zip(target.shape, source.shape, strict=True))
            and all(a == b or s == 1 for a, b, s in zip(target.stride, source.stride, target.shape, strict=True))
        )

    def _bytes(self, value: Value) -> int:
        return self.env.hint(value.numel) * value.dtype.itemsize


def shown_whole(value: Any) -> Any:
    """The value of which a view shows all in the order of memory, in another shape; any other value is itself."""
    if not isinstance(value, View):
        return value
    base, found = base_of(value), strided(value)
    is_whole = found == (value.shape, contiguous_stride(value.shape), 0) and value.numel == base.numel and \
        base.stride == contiguous_stride(base.shape)
    return base if is_whole else value


def _reshaped(target: Value, source: Value) -> bool:
    """Whether two values are the same bytes in memory, of other shapes."""
    return target.dtype is source.dtype and all(
        all(type(size) is int for size in value.shape) and value.stride == contiguous_stride(value.shape)
        for value in (target, source)) and target.numel == source.numel


__all__ = ["LARGE_BYTES", "MemoryPlanner", "Unit", "shown_whole"]
