"""A graph to kernels' text and a `Plan`: where every value lives, and the order of allocations, kernels, calls and
frees. What differs between devices is the `Target`'s part."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from jitpy import config

from ..ir.alias import alias_kind, copies_before_write
from ..ir.failures import may_fail
from ..ir.graph import CONSTANT, DROPS_GRAD, GETITEM, INPUT, OWNED, Graph, Node, map_nodes, visit_nodes
from ..ir.spec import Dim, TensorSpec, contiguous_stride
from ..runtime.plan import (
    AllocStep,
    CallStep,
    CopyStep,
    FreeStep,
    KernelStep,
    LaunchStep,
    Plan,
    ScheduleNotes,
    Size,
    SizeRef,
    SlotRef,
    Step,
    ViewStep,
    Workspace,
)
from ..schedule.batches import Batch, batch_kernel, gather
from ..schedule.fuse import Call, Fusion, Group
from ..schedule.index import Axis, Index, flatten, of
from ..schedule.loops import Kernel, build
from ..schedule.lower import Lowering, lower
from ..schedule.memory import Scratch, can_write_over
from ..schedule.order import Memory, in_order
from ..schedule.values import Computed, HostScalar, Stored, Value, View, base_of
from .size_table import SizeTable
from .target import Printed, Target


@dataclass(slots=True)
class KernelInfo:
    """One kernel call of the graph, for reports."""

    name: str
    function: str
    nodes: list[str]
    bytes_read: int
    bytes_written: int
    style: str


@dataclass(slots=True)
class _Unit:
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


class Planner:
    """Schedules one graph for a target. `text()` is the source of all kernels ('' if there is none), `plan()` compiles
    them and gives the plan that calls them.

    Raises NotCovered where the graph has sizes that no kernel takes.
    """

    def __init__(self, graph: Graph, target: Target) -> None:
        self.graph = graph
        self.target = target
        self.env = graph.sizes
        self.table = SizeTable(graph)
        self.low: Lowering = lower(graph, target.limits.scatters, target.device)
        #: the values whose sizes, or numbers, tell symbols, with the nodes that say so
        self.tellers: dict[Value, list[Node]] = {}
        for node in self.table.told_by:
            self.tellers.setdefault(self.low.values[node], []).append(node)
        self.copies: dict[Value, Value] = {}
        self.kernels: list[KernelInfo] = []
        #: values that must be in memory under their own strides, by the node or call that wants them
        self._want()
        self.fusion = Fusion(self.low, self.required, self._calls(), config.fusion, target.limits, self._checking())
        self.refusals = self.fusion.refusals
        self._build_kernels()
        self._find_lifetimes()
        self._reuse_in_place()
        self._print()

    # what must be in memory

    def _want(self) -> None:
        self.required: dict[Value, None] = {}
        self.output_values: list[Any] = [self._in_memory(self.low.in_memory(n)) for n in self.graph.outputs]
        self.mutation_values = [self._in_memory(self.low.in_memory(m.value)) for m in self.graph.mutations]
        self.call_arguments: dict[Node, Any] = {}
        self._used_calls()

    def _used_calls(self) -> None:
        """The eager calls that matter: those needed for outputs, and those with effects, last first."""
        self.live_calls: list[Node] = []
        for node in self.low.calls:
            arguments = map_nodes((node.args, node.kwargs), self._argument)
            self.call_arguments[node] = arguments
            self.live_calls.append(node)

    def _argument(self, node: Node) -> Any:
        return _Argument(self._in_memory(self.low.in_memory(node)))

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
        for node in self.live_calls:
            operands: list[Value] = []
            _visit(self.call_arguments[node], operands.append)
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
        batches = config.fusion and self.target.limits.batches
        units = gather(fusion, kernels) if batches else [*fusion.groups, *fusion.calls]
        self.units: list[_Unit] = []
        for unit in in_order(fusion, units, self._memory(units, kernels)):
            if isinstance(unit, Call):
                self.units.append(_Unit(call=unit))
            elif isinstance(unit, Batch):
                self.units.append(_Unit(kernel=batch_kernel([kernels[group] for group in unit.groups])))
            else:
                kernel = kernels[unit]
                self.units.append(_Unit(kernel=kernel, checks=any(e.op == "check" for e in kernel.stage)))

    def _memory(self, units: list[Any], kernels: dict[Group, Kernel]) -> Memory:
        """What units read and write that has memory of its own."""
        touched: dict[Any, tuple[list[Value], list[Value]]] = {}
        calls = dict(zip(self.fusion.calls, self._calls(), strict=True))
        kept = {base_of(v) for v in (*_flat(self.output_values), *self.mutation_values) if isinstance(v, Value)}
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
        return build(group, name, fusion.inlined, stored, self.env)

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
                _visit(self.call_arguments[unit.call.node], operands.append)
                for value in operands:
                    touch(value, k)
                made = self.low.values[unit.call.node]
                for value in made if isinstance(made, tuple) else (made,):
                    touch(value, k)
                if self._may_alias(unit.call.node):
                    self.keep.update(base_of(v) for v in operands)
                    self.keep.update(v for v in (made if isinstance(made, tuple) else (made,)) if isinstance(v, Value))
        for value in (*_flat(self.output_values), *self.mutation_values):
            touch(value, end)
        for value in self.keep:
            self.last[value] = end

    def _may_alias(self, node: Node) -> bool:
        """Whether an eager call's result may share memory with an argument."""
        return alias_kind(self.graph, node) != "copy"

    def _reuse_in_place(self) -> None:
        """Kernels write over operands that nobody reads afterwards, and over inputs that receive their result."""
        outputs = {base_of(v) for v in _flat(self.output_values) if isinstance(v, Value)}
        mutated = {}
        for mutation, value in zip(self.graph.mutations, self.mutation_values, strict=True):
            mutated.setdefault(value, []).append(self.low.values[self.graph.inputs[mutation.input]])
        self.last_failure = max((k for k, unit in enumerate(self.units) if unit.may_fail), default=-1)
        self.home: dict[Value, Value] = {}  # value -> the value whose memory it takes over
        self.in_input: set[Value] = set()
        for k, unit in enumerate(self.units):
            kernel = unit.kernel
            if kernel is None:
                continue
            for target in kernel.writes:
                found = self._input_home(kernel, target, mutated, outputs, k, unit)
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
                        if self._same_layout(target, source) and can_write_over(kernel, target, source, self.env):
                            found = source
                            break
                if found is not None:
                    unit.in_place[target] = found
                    self.home[target] = found

    def _input_home(
        self, kernel: Kernel, target: Value, mutated: dict[Any, list[Any]], outputs: set[Value], k: int, unit: _Unit
    ) -> Value | None:
        """The input that `target` is copied to at the end, if the kernel may write there at once."""
        if self.tellers or k < self.last_failure:
            return None  # the call may still be given up, and then nothing may have changed
        wanted = mutated.get(target)
        if wanted is None or len(wanted) != 1 or target in outputs or unit.checks:
            return None
        source = wanted[0]
        if any(self._reads_later(value, source) for value in (*_flat(self.output_values), *self.mutation_values)):
            return None
        if self.last.get(source, k) > k or not self._same_layout(target, source):
            return None
        if not can_write_over(kernel, target, source, self.env):
            return None
        self.in_input.add(target)
        return source

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

    def _print(self) -> None:
        for unit in self.units:
            kernel = unit.kernel
            if kernel is None:
                continue
            self._sizes_used = unit.sizes
            unit.printed = self.target.print_kernel(kernel, self._size_index, unit.in_place)
            self.kernels.append(
                KernelInfo(
                    unit.printed.function,
                    unit.printed.function,
                    [node.name for node in kernel.nodes],
                    sum(self._bytes(v) for v in kernel.reads),
                    sum(self._bytes(v) for v in kernel.writes),
                    kernel.style,
                )
            )

    def _size_index(self, expr: sympy.Expr) -> int:
        found = self.table.ref(expr)
        assert not isinstance(found, int)
        self._sizes_used.add(found.index)
        return found.index

    def _size_ref(self, size: Dim) -> Size:
        found = self.table.ref(size)
        if isinstance(found, SizeRef):
            self._sizes_used.add(found.index)
        return found

    def _bytes(self, value: Value) -> int:
        return self.env.hint(value.numel) * value.dtype.itemsize

    def text(self) -> str:
        """The source of every kernel; '' where there is none."""
        self._steps()
        return self.target.text(self.table)

    def report(self) -> str:
        """What was fused, and what was not."""
        lines = [f"{self.graph.name}: {len(self.kernels)} kernels, {len(self.low.calls)} eager calls"]
        for kernel in self.kernels:
            lines.append(
                f"  {kernel.name} ({kernel.style}): {', '.join(kernel.nodes)}; "
                f"reads {kernel.bytes_read} bytes, writes {kernel.bytes_written}"
            )
        lines.extend(f"  eager {node.name}: {reason}" for node, reason in self.low.reasons.items())
        lines.extend(f"  kept apart: {refusal}" for refusal in self.refusals)
        return "\n".join(lines)

    # steps

    def _steps(self) -> None:
        """Fill `self.steps`, once."""
        if hasattr(self, "steps"):
            return
        self.steps: list[Step] = []
        self.slots: dict[Value, int] = {}
        self.views: dict[Value, int] = {}
        self.scratch = Scratch()
        self.places: dict[Value, int] = {}
        self.kernel_sizes: dict[int, set[int]] = {}
        self.n_slots = len(self.graph.inputs)
        self.free_at: dict[int, list[int]] = {}
        self.overwritten: list[int] = []
        for k, node in enumerate(self.graph.inputs):
            value = self.low.values[node]
            if value is not None:
                self.slots[value] = k
        self.tensor_users = self._tensor_users()
        for k, unit in enumerate(self.units):
            if k == self.last_failure + 1:
                self._drop_gradients()
            if unit.kernel is not None:
                self._kernel(k, unit)
            else:
                self._call(k, unit)
            done = self.free_at.pop(k, None)
            if done:
                self.steps.append(FreeStep(tuple(sorted(done))))
        self._copy_back()
        owners: dict[int, Any] = dict(enumerate(self.graph.inputs))
        self.outputs = tuple(
            self._output(n, v, owners) for n, v in zip(self.graph.outputs, self.output_values, strict=True)
        )
        self.table.finish()
        self.table.require_order(self.steps, self._entries_used)

    def _drop_gradients(self) -> None:
        """Former gradients go as soon as nothing can fail any more."""
        found = [node for node in self.graph.inputs if DROPS_GRAD in node.meta]
        if self.target.device.type == "cpu" and not self.tellers and \
                sum(self.env.hint(node.tensor.nbytes) for node in found) >= LARGE_BYTES:
            leaves = tuple(SlotRef(self._slot(self.low.values[node])) for node in found)
            self.steps.append(CallStep(drop_gradients, leaves, {}, (self._new_slot(),)))

    def _entries_used(self, step: Step) -> set[int]:
        """The entries of the size table that a step needs."""
        if isinstance(step, (KernelStep, LaunchStep)):
            return self.kernel_sizes[id(step)]
        if isinstance(step, CallStep):
            return sizes_in((step.args, step.kwargs))
        if isinstance(step, AllocStep):
            return sizes_in((step.shape, step.stride))
        return sizes_in((step.shape, step.stride, step.offset)) if isinstance(step, ViewStep) else set()

    def _output(self, node: Any, value: Any, owners: dict[int, Any]) -> int:
        """The slot of a result: a tensor of its own, also where it is a view that looks like what it views."""
        if isinstance(value, View):
            # strides that the caller sees: none of them may be a product with a size of 0
            for symbol in self.env.unbacked_in_all(node.spec.stride):
                self.env.require(sympy.Ne(symbol, 0), "the strides of a view")
        slot = self._slot(value)
        if owners.setdefault(slot, node) is node or not isinstance(node.spec, TensorSpec):
            return slot
        alias = self._new_slot()
        owners[alias] = node
        ref = self.table.ref
        self.steps.append(ViewStep(alias, slot, tuple(map(ref, node.spec.shape)), tuple(map(ref, node.spec.stride)), 0))
        return alias

    def _tensor_users(self) -> set[Value]:
        """Values that calls, outputs or mutations read: these need a tensor, not just memory."""
        found: set[Value] = set()
        for arguments in self.call_arguments.values():
            _visit(arguments, lambda v: found.add(base_of(v)))
        for value in (*_flat(self.output_values), *self.mutation_values):
            if isinstance(value, Value):
                found.add(base_of(value))
        grown = True
        while grown:  # memory taken over must be a tensor if the new owner must
            grown = False
            for target, source in self.home.items():
                if target in found and source not in found:
                    found.add(source)
                    grown = True
        return found

    def _new_slot(self) -> int:
        self.n_slots += 1
        return self.n_slots - 1

    def _slot(self, value: Any) -> int:
        """The slot of a value in memory, or of a view of one, made now if need be."""
        if isinstance(value, tuple):
            raise AssertionError("a tuple has no slot")
        found = self.slots.get(value)
        if found is not None:
            return found
        if isinstance(value, View):
            base = base_of(value)
            shape, stride, offset = strided(value)  # type: ignore[misc]
            slot = self.slots[value] = self._new_slot()
            ref = self.table.ref
            sizes, strides = tuple(map(ref, shape)), tuple(map(ref, stride))
            self.steps.append(ViewStep(slot, self._slot(base), sizes, strides, ref(offset)))
            return slot
        assert isinstance(value, Stored) and value.node.op is CONSTANT, f"{value} is read before it is made"
        slot = self.slots[value] = self._new_slot()
        self.steps.append(CallStep(_same, (value.node.args[0],), {}, (slot,)))
        return slot

    def _kernel(self, k: int, unit: _Unit) -> None:
        kernel = unit.kernel
        assert kernel is not None and unit.printed is not None
        writes: list[int] = []
        for value in kernel.writes:
            source = unit.in_place.get(value)
            if source is not None:
                self._take_over(value, source, writes)
            else:
                self._allocate(value)
        scratch: list[Workspace] = []
        for size in unit.printed.scratch:
            scratch.append(Workspace(self.scratch.place(size, k, k).offset))
        pointers = {value: self._pointer(value) for value in (*kernel.reads, *kernel.writes)}
        self._sizes_used = unit.sizes
        for step in self.target.steps(unit.printed, pointers, scratch, self._size_ref, tuple(writes)):
            if isinstance(step, CallStep):
                step.slots = (self._new_slot(),)
            self.kernel_sizes[id(step)] = unit.sizes
            self.steps.append(step)
        for value in {*kernel.reads, *kernel.writes}:
            self._free_after(value, k)

    def _pointer(self, value: Value) -> SlotRef | Workspace:
        return Workspace(self.places[value]) if value in self.places else SlotRef(self._slot(value))

    def _take_over(self, value: Value, source: Value, writes: list[int]) -> None:
        if source in self.places:
            self.places[value] = self.places[source]
            return
        slot = self.slots[value] = self._slot(source)
        if slot < len(self.graph.inputs):
            (writes if value in self.in_input else self.overwritten).append(slot)

    def _allocate(self, value: Value) -> None:
        numel = value.numel
        if value not in self.tensor_users and isinstance(numel, int) and self._bytes(value) < LARGE_BYTES:
            last = self._last_of_chain(value)
            region = self.scratch.place(numel * value.dtype.itemsize, self.first[value], last)
            self.places[value] = region.offset
            return
        slot = self.slots[value] = self._new_slot()
        ref = self.table.ref
        sizes, strides = tuple(map(ref, value.shape)), tuple(map(ref, self._fresh_stride(value)))
        self.steps.append(AllocStep(slot, sizes, strides, value.dtype, self.target.device))

    def _fresh_stride(self, value: Value) -> tuple[Dim, ...]:
        """The strides as torch gives them to a new tensor: a size of 0, which data may decide on, counts as 1."""
        if not any(map(self.env.is_unbacked, value.stride)):
            return value.stride
        if value.stride == contiguous_stride(value.shape):
            return contiguous_stride(tuple(sympy.Max(s, 1) if self.env.is_unbacked(s) else s for s in value.shape))
        counted = {symbol: sympy.Max(symbol, 1) for symbol in self.env.unbacked_in_all(value.stride)}
        return tuple(s if isinstance(s, int) else s.xreplace(counted) for s in value.stride)

    def _last_of_chain(self, value: Value) -> int:
        """When the memory of a value is given up, by itself or by those that take it over."""
        last = self.last[value]
        for target, source in self.home.items():
            if source is value:
                last = max(last, self._last_of_chain(target))
        return last

    def _free_after(self, value: Value, k: int) -> None:
        if self.last.get(value) != k or value in self.home.values():
            return
        slot = self.slots.get(value)
        if (
            slot is not None
            and slot >= len(self.graph.inputs)
            and not (isinstance(value, Stored) and value.node.op is CONSTANT)
        ):
            self.free_at.setdefault(k, [])
            if slot not in self.free_at[k]:
                self.free_at[k].append(slot)

    def _call(self, k: int, unit: _Unit) -> None:
        assert unit.call is not None
        node = unit.call.node
        temporary: list[int] = []

        def resolve(value: Any) -> Any:
            if isinstance(value, _Argument):
                inner = value.value
                if isinstance(inner, tuple):
                    return tuple(resolve(_Argument(v)) for v in inner)
                if isinstance(inner, Stored) and inner.node.op is CONSTANT and inner not in self.slots:
                    return inner.node.args[0]
                if not isinstance(inner, Value):
                    return inner
                known = inner in self.slots
                slot = self._slot(inner)
                if isinstance(inner, View) and not known:
                    temporary.append(slot)
                return SlotRef(slot)
            if isinstance(value, sympy.Basic):
                return self.table.ref(value)  # type: ignore[arg-type]
            if isinstance(value, tuple):
                return tuple(map(resolve, value))
            if isinstance(value, list):
                return list(map(resolve, value))
            if isinstance(value, dict):
                return {key: resolve(item) for key, item in value.items()}
            return value

        args, kwargs = resolve(self.call_arguments[node])
        made = self.low.values[node]
        if isinstance(made, tuple):
            slots: list[int | None] = []
            for part in made:
                if isinstance(part, Value) and part in self.last:
                    self.slots[part] = self._new_slot()
                    slots.append(self.slots[part])
                else:
                    slots.append(None)
            self.steps.append(CallStep(node.op.target, args, kwargs, tuple(slots), multiple=True))
            for part in made:
                self._bind(part)
            for part in made:
                if isinstance(part, Stored) and part in self.last:
                    self._conform(node, part)
        else:
            slot = self._new_slot()
            if isinstance(made, Value):
                self.slots[made] = slot
            into = self._write_variant(node, made)
            if into is None:
                self.steps.append(CallStep(node.op.target, args, kwargs, (slot,)))
            else:
                sizes, strides = (tuple(map(self.table.ref, dims)) for dims in (made.shape, made.stride))
                self.steps.append(AllocStep(slot, sizes, strides, made.dtype, self.target.device))
                self.steps.append(CallStep(into, args, {**kwargs, "out": SlotRef(slot)}, (slot,)))
            self._bind(made)
            if isinstance(made, Stored):
                self._conform(node, made)
        operands: list[Value] = []
        _visit(self.call_arguments[node], operands.append)
        for value in {base_of(v) for v in operands} | {
            v for v in (made if isinstance(made, tuple) else (made,)) if isinstance(v, Value)
        }:
            self._free_after(value, k)
        if temporary and not self._may_alias(node):
            for value in [v for v, s in self.slots.items() if s in temporary]:
                del self.slots[value]
            self.free_at.setdefault(k, []).extend(temporary)

    def _write_variant(self, node: Node, made: Any) -> Any:
        """The overload that writes a large result into memory of the pool, where eager would ask the system for it each
        time; None if there is none."""
        overload = _WRITE_VARIANTS.get(node.op.name)
        if overload is None or not isinstance(made, Stored) or self.env.unbacked_in_all(made.shape):
            return None
        if node.tensor.device != self.target.device:
            return None
        return overload if made in self.last and self._bytes(made) >= POOLED_BYTES else None

    def _bind(self, value: Any) -> None:
        """Read the symbols that a call's result tells, as soon as it is there."""
        if isinstance(value, Value):
            for node in self.tellers.get(value, ()):
                self.steps += self.table.bind(node, self.slots[value])

    def _conform(self, node: Node, made: Stored) -> None:
        """Kernels and views rely on the strides of the spec; eager may have its own mind about those of a result."""
        if node.op.name in _ROW_MAJOR or len(made.shape) < 2 or _is_plain_matmul(node):
            return
        before, slot = self.slots[made], self._new_slot()
        stride = tuple(map(self.table.ref, made.stride))
        self.steps.append(CallStep(_with_stride, (SlotRef(before), stride), {}, (slot,)))
        self.steps.append(FreeStep((before,)))
        self.slots[made] = slot

    def _copy_back(self) -> None:
        first = copies_before_write(self.graph)
        sources: list[int | None] = []
        for mutation, value in zip(self.graph.mutations, self.mutation_values, strict=True):
            if value in self.in_input:
                sources.append(None)
                continue
            slot = self._slot(value)
            if mutation.value in first:
                copy = self._new_slot()
                self.steps.append(CallStep(torch.ops.aten.clone.default, (SlotRef(slot),), {}, (copy,)))
                slot = copy
            sources.append(slot)
        for mutation, source in zip(self.graph.mutations, sources, strict=True):
            if source is not None:
                self.steps.append(CopyStep(mutation.input, source))

    def plan(self) -> Plan:
        """The plan, with its kernels compiled. Raises CompilerError."""
        self._steps()
        linked = self.target.link(self.table)
        return Plan(
            len(self.graph.inputs),
            self.n_slots,
            self.outputs,
            self.steps,
            symbols=self.table.symbols,
            n_sizes=len(self.table),
            size_function=linked.size_function,
            size_function_py=self.table.python_function(),
            size_entries=self.table.start_entries,
            n_symbols=self.table.n_symbols,
            workspace=self.scratch.size,
            overwritten=tuple(dict.fromkeys(self.overwritten)),
            device=self.target.device,
            several_devices=any(map(self.low.is_on_host, self.live_calls)),
            keep_alive=linked.keep_alive,
            notes=ScheduleNotes(
                self.kernels, {node.name: why for node, why in self.low.reasons.items()}, self.refusals
            ),
        )


@dataclass(frozen=True, eq=False, slots=True)
class _Argument:
    """A value inside the arguments of a call."""

    value: Any


#: Overloads with an `out` argument, of kernels that write there without a copy.
_WRITE_VARIANTS = {
    f"aten.{name}.default": getattr(torch.ops.aten, name).out for name in ("mm", "bmm", "addmm", "baddbmm")
}
#: Bytes from which results are put into the pool's memory.
POOLED_BYTES = 1 << 16

#: Bytes from which a value between kernels has memory of its own, free for others when it is read; smaller ones share
#: what is there for the whole call.
LARGE_BYTES = 1 << 20

#: Eager kernels whose results are always row-major.
_ROW_MAJOR = {f"aten.{name}.default" for name in ("mm", "bmm", "addmm", "baddbmm", "linear")}


def _is_plain_matmul(node: Node) -> bool:
    """Whether a matmul does not swap its operands, so that its result is row-major."""
    if node.op.name != "aten.matmul.default":
        return False
    a, b = (len(x.tensor.shape) for x in node.args)
    return a >= b >= 2


def _with_stride(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """The tensor itself if it has these strides (axes of size 1 do not count), else a copy that has them. Without
    elements any strides will do."""
    if tensor.stride() == stride or not tensor.numel() or all(
        a == b or n == 1 for a, b, n in zip(tensor.stride(), stride, tensor.shape, strict=True)
    ):
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def drop_gradients(*leaves: torch.Tensor) -> int:
    """Sets `.grad` to None."""
    for leaf in leaves:
        leaf.grad = None
    return 0


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def sizes_in(value: Any) -> set[int]:
    """The entries of the size table inside nested arguments of a step."""
    if isinstance(value, SizeRef):
        return {value.index}
    if isinstance(value, dict):
        value = tuple(value.values())
    return set().union(*map(sizes_in, value)) if isinstance(value, (tuple, list)) else set()


def _visit(arguments: Any, fn: Any) -> None:
    """Call `fn` on every Value inside call arguments."""
    if isinstance(arguments, _Argument):
        _visit(arguments.value, fn)
    elif isinstance(arguments, Value):
        fn(arguments)
    elif isinstance(arguments, (tuple, list)):
        for item in arguments:
            _visit(item, fn)
    elif isinstance(arguments, dict):
        for item in arguments.values():
            _visit(item, fn)


def _flat(values: list[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        found.extend(_flat(list(value)) if isinstance(value, tuple) else [value])
    return found


def strided(value: View) -> tuple[tuple[Dim, ...], tuple[Dim, ...], Dim] | None:
    """`(shape, stride, offset)` of a view over its base's memory, None where no strides describe it."""
    axes = [Axis(size) for size in value.shape]
    index: tuple[Index, ...] = tuple(of(a) if not (type(a.size) is int and a.size == 1) else Index() for a in axes)
    current: Value = value
    while isinstance(current, View):
        index = current.remap(index)
        current = current.base
    position = flatten(index, current.stride)
    steps = []
    known = set(axes)
    if any(not isinstance(atom, Axis) or atom not in known for atom, _ in position.terms):
        return None
    for k, axis in enumerate(axes):
        step = position.coefficient(axis)
        assert step is not None
        if type(axis.size) is int and axis.size == 1 and value.spec is not None:
            step = value.spec.stride[k]  # any will do: eager's
        steps.append(step)
    return value.shape, tuple(steps), position.const


__all__ = ["GETITEM", "KernelInfo", "Planner", "Size", "strided", "visit_nodes"]
