"""A graph to kernels' text and a `Plan`: the steps that allocate, run kernels and calls, and free, for what
`memory_planner.py` has decided. Differences between devices are the `Target`'s part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..ir.algebra import sympy
from ..ir.alias import alias_kind, copies_before_write
from ..ir.graph import CONSTANT, DROPS_GRAD, Graph, Node
from ..ir.ops import through_views
from ..ir.ops.functional import InPlace, Making, copied, in_place_of
from ..ir.ops.registered import looks_at_grad_mode
from ..ir.spec import Dim, TensorSpec, contiguous_stride
from ..ir.trees import tree_leaves, tree_map
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
    counted_writes,
)
from ..schedule.memory import Scratch
from ..schedule.values import Stored, Value, View, base_of
from .arguments import Argument, flat, strided, visit
from .memory_planner import LARGE_BYTES, MemoryPlanner, Unit, shown_whole
from .naming import title
from .target import Target

#: Bytes from which results are put into the pool's memory.
POOLED_BYTES = 1 << 16


@dataclass(slots=True)
class KernelInfo:
    """One kernel call of the graph, for reports."""

    name: str
    function: str
    nodes: list[str]
    bytes_read: int
    bytes_written: int
    style: str


class Planner(MemoryPlanner):
    """Schedules one graph for a target. `text()` is the source of all kernels ('' if there is none), `plan()` compiles
    them and gives the plan that calls them.

    Raises NotCovered where the graph has sizes that no kernel takes.
    """

    def __init__(self, graph: Graph, target: Target) -> None:
        super().__init__(graph, target)
        self.kernels: list[KernelInfo] = []
        self._print()

    def _print(self) -> None:
        for unit in self.units:
            kernel = unit.kernel
            if kernel is None:
                continue
            self._sizes_used = unit.sizes
            unit.printed = self.target.print_kernel(kernel, self._size_index, unit.in_place)
            unit.printed.title = title(kernel.nodes, self.graph.half)
            self.kernels.append(
                KernelInfo(
                    unit.printed.title,
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

    def text(self) -> str:
        """The source of every kernel; '' where there is none."""
        self._steps()
        return self.target.text(self.table)

    def report(self) -> str:
        """The fused kernels, and the refused fusions."""
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
        self.runs_once = False
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
        owners = self._owners()
        self.outputs = tuple(
            self._output(n, v, owners) for n, v in zip(self.graph.outputs, self.output_values, strict=True)
        )
        self.table.finish()
        self.table.require_order(self.steps, self._entries_used)

    def _drop_gradients(self) -> None:
        """Former gradients go as soon as nothing can fail any more."""
        found = [node for node in self.graph.inputs if DROPS_GRAD in node.meta]
        if self.target.device.type == "cpu" and not self.binding_nodes and \
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

    def _owners(self) -> dict[int, Any]:
        """Of slots that inputs or several results have: who owns the memory, to the program; None: a tensor that it
        does not see any more."""
        found: dict[int, Any] = dict(enumerate(self.graph.inputs))
        sharing: dict[Value, dict[Any, None]] = {}
        for node, value in zip(self.graph.outputs, self.output_values, strict=True):
            if isinstance(value, Value) and not isinstance(value, View):
                sharing.setdefault(value, {})[node] = None
        for value, nodes in sharing.items():
            if len(nodes) > 1:
                own = [node for node in nodes if alias_kind(self.graph, node) not in ("view", "self")]
                found.setdefault(self._slot(value), own[0] if own else None)
        return found

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
            visit(arguments, lambda v: found.add(base_of(v)))
        for value in (*flat(self.output_values), *self.mutation_values):
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

    def _kernel(self, k: int, unit: Unit) -> None:
        kernel = unit.kernel
        assert kernel is not None and unit.printed is not None
        writes: list[int] = []
        for value in kernel.writes:
            source = unit.in_place.get(value)
            if source is not None:
                self._take_over(value, source, writes, k)
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

    def _take_over(self, value: Value, source: Value, writes: list[int], k: int) -> None:
        if source in self.places:
            self.places[value] = self.places[source]
            return
        slot = self._slot(source)
        if value not in self.in_input and tuple(value.shape) != tuple(source.shape):
            shown = self.slots[value] = self._new_slot()
            self.steps.append(ViewStep(shown, slot, tuple(value.shape), tuple(value.stride), 0))  # type: ignore[arg-type]
            self.free_at.setdefault(k, []).append(slot)
            return
        self.slots[value] = slot
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
        self._allocate_in(slot, value)

    def _allocate_in(self, slot: int, value: Value) -> None:
        ref = self.table.ref
        sizes, strides = tuple(map(ref, value.shape)), tuple(map(ref, self._fresh_stride(value)))
        self.steps.append(AllocStep(slot, sizes, strides, value.dtype, self.target.device))

    def _is_uninitialised(self, node: Node, made: Any) -> bool:
        """Whether a call makes memory that nobody has written to: a step does that in less time."""
        return (node.op.is_uninitialised and isinstance(made, Stored) and made in self.last
                and node.tensor.device == self.target.device and node.kwargs.get("pin_memory") in (None, False)
                and not self.env.unbacked_in_all((made.shape, made.stride))
                and not torch.are_deterministic_algorithms_enabled())  # eager fills it then

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

    def _call(self, k: int, unit: Unit) -> None:
        assert unit.call is not None
        node = unit.call.node
        temporary: list[int] = []

        def resolve(value: Any) -> Any:
            if isinstance(value, Argument):
                inner = value.value
                if isinstance(inner, tuple):
                    return tuple(resolve(Argument(v)) for v in inner)
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
            return value

        args, kwargs = tree_map(resolve, self.call_arguments[node])
        made = self.low.values[node]
        grad = False if looks_at_grad_mode(node.op) else None
        source = unit.in_place.get(made) if isinstance(made, Value) else None
        in_place = in_place_of(node.op)
        if in_place is not None:
            self._call_writing(unit, in_place, made, args, kwargs)
        elif isinstance(made, Stored) and source is not None:
            assert node.op.in_place_call is not None
            slot, again = self._slot(source), self._new_slot()
            writes = (slot,) if made in self.in_input else ()
            self.steps.append(CallStep(node.op.in_place_call, args, kwargs, (again,), grad=False, writes=writes))
            self.steps.append(FreeStep((again,)))
            self.slots[made] = slot
            self._bind(made)
        elif isinstance(made, tuple):
            slots: list[int | None] = []
            for part in made:
                if isinstance(part, Value) and part in self.last:
                    self.slots[part] = self._new_slot()
                    slots.append(self.slots[part])
                else:
                    slots.append(None)
            self.steps.append(CallStep(node.op.target, args, kwargs, tuple(slots), multiple=True, grad=grad))
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
            if self._is_uninitialised(node, made):
                self._allocate_in(slot, made)
            elif into is None:
                self.steps.append(CallStep(node.op.target, args, kwargs, (slot,), grad=grad))
            else:
                sizes, strides = (tuple(map(self.table.ref, dims)) for dims in (made.shape, made.stride))
                self.steps.append(AllocStep(slot, sizes, strides, made.dtype, self.target.device))
                self.steps.append(CallStep(into, args, {**kwargs, "out": SlotRef(slot)}, (slot,)))
            self._bind(made)
            if isinstance(made, Stored):
                self._conform(node, made)
        operands: list[Value] = []
        visit(self.call_arguments[node], operands.append)
        for value in {base_of(v) for v in operands} | {
            v for v in (made if isinstance(made, tuple) else (made,)) if isinstance(v, Value)
        }:
            self._free_after(value, k)
        if temporary and not self._may_alias(node):
            for value in [v for v, s in self.slots.items() if s in temporary]:
                del self.slots[value]
            self.free_at.setdefault(k, []).extend(temporary)

    def _call_writing(self, unit: Unit, in_place: InPlace, made: Any, args: Any, kwargs: Any) -> None:
        """Call what writes to its arguments: to their memory where nobody needs the old values, else to copies."""
        assert unit.call is not None
        parts = made if isinstance(made, tuple) else (made,)
        fresh = len(parts) - len(in_place.paths)
        writes: list[int] = []
        for part, path in zip(parts[fresh:], in_place.paths, strict=True):
            source = unit.in_place.get(part)
            if source is not None:
                slot = self._slot(source)
                if part in self.in_input:
                    writes.append(slot)
                    self.runs_once = True
            else:
                slot = self._new_slot()
                self.steps.append(CallStep(copied, (through_views.at(args, kwargs, path),), {}, (slot,), grad=False))
                args, kwargs = through_views.put(args, kwargs, path, SlotRef(slot))
            self.slots[part] = slot
        if in_place.step is not None and self._are_as_recorded(unit.call.node, in_place):
            making = Making(self.env.hint, self.target.device, tuple(writes), self._view_of)
            steps = in_place.step(unit.call.node.args, args, making)
            if steps:
                self.kernel_sizes[id(steps[-1])] = sizes_in((steps[-1].grid, steps[-1].arguments))
                self.steps += steps
                return
        slots = tuple(self._new_slot() if isinstance(part, Value) else None for part in parts[:fresh])
        # (autograd has no say, but the kernels of the program's may ask for its grad mode)
        self.steps.append(CallStep(in_place.call, args, kwargs, slots or (self._new_slot(),), multiple=len(slots) > 1,
                                   grad=False, writes=tuple(writes)))
        for part, made_slot in zip(parts[:fresh], slots, strict=True):
            if isinstance(part, Value):
                assert made_slot is not None
                self.slots[part] = made_slot
                if isinstance(part, Stored):
                    self._conform(unit.call.node, part)
        for part in parts:
            self._bind(part)

    def _are_as_recorded(self, node: Node, in_place: InPlace) -> bool:
        """Whether what a call writes to has the strides that the program knows."""
        for path in in_place.paths:
            found: list[Value] = []
            visit(through_views.at(*self.call_arguments[node], path), found.append)  # type: ignore[call-arg]
            if found[0].stride != through_views.at(node.args, node.kwargs, path).tensor.stride:
                return False
        return True

    def _view_of(self, base: SlotRef, shape: Any, stride: Any, offset: Any) -> tuple[Step, SlotRef]:
        slot = self._new_slot()
        return ViewStep(slot, base.slot, shape, stride, offset), SlotRef(slot)

    def _write_variant(self, node: Node, made: Any) -> Any:
        """The overload that writes a large result into memory of the pool, where eager would ask the system for it each
        time; None if there is none."""
        overload = node.op.out_call
        if overload is None or not isinstance(made, Stored) or self.env.unbacked_in_all(made.shape):
            return None
        if node.tensor.device != self.target.device:
            return None
        return overload if made in self.last and self._bytes(made) >= POOLED_BYTES else None

    def _bind(self, value: Any) -> None:
        """Bind the unbacked symbols of a call's result, as soon as it is there."""
        if isinstance(value, Value):
            for node in self.binding_nodes.get(value, ()):
                self.steps += self.table.bind(node, self.slots[value])

    def _conform(self, node: Node, made: Stored) -> None:
        """Kernels and views rely on the strides of the spec; eager may have its own mind about those of a result."""
        if node.op.is_row_major or made.stride in ((), (1,)) or _is_plain_matmul(node):
            return
        before, slot = self.slots[made], self._new_slot()
        stride = tuple(map(self.table.ref, made.stride))
        self.steps.append(CallStep(with_stride, (SlotRef(before), stride), {}, (slot,)))
        self.steps.append(FreeStep((before,)))
        self.slots[made] = slot

    def _copy_back(self) -> None:
        first = copies_before_write(self.graph)
        sources: list[int | None] = []
        for mutation, value in zip(self.graph.mutations, self.mutation_values, strict=True):
            if shown_whole(value) in self.in_input:
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
        self.steps += counted_writes(self.graph.more_writes())

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
            unseen=self.graph.unseen_inputs(),
            more_writes=self.graph.more_writes(),
            device=self.target.device,
            several_devices=any(map(self.low.is_on_host, self.low.calls)),
            runs_once=self.runs_once,
            keep_alive=linked.keep_alive,
            notes=ScheduleNotes(
                self.kernels, {node.name: why for node, why in self.low.reasons.items()}, self.refusals
            ),
        )


def _is_plain_matmul(node: Node) -> bool:
    """Whether a matmul does not swap its operands, so that its result is row-major."""
    if node.op.name != "aten.matmul.default":
        return False
    a, b = (len(x.tensor.shape) for x in node.args)
    return a >= b >= 2


def with_stride(tensor: torch.Tensor | None, stride: tuple[int, ...]) -> torch.Tensor | None:
    """The tensor itself if it has these strides (axes of size 1 do not count), else a copy that has them. Without
    elements any strides will do. A gradient that its mask leaves out is None."""
    if tensor is None or tensor.stride() == stride or not tensor.numel() or all(
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
    return {leaf.index for leaf in tree_leaves(value) if isinstance(leaf, SizeRef)}


__all__ = ["KernelInfo", "Planner"]
