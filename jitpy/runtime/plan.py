"""The program that a backend hands to the runtime: a straight-line program over numbered slots.

Slots 0..n_inputs-1 hold the graph's inputs when the program starts; steps fill further slots. A slot holds
a tensor or a Python number. `jitpy/runtime/executable.py` turns a `Plan` into a native callable (or, where
the native part cannot be built, into a Python one with the same meaning).

Sizes in a plan are ints, or `SizeRef(k)`: entry k of the size table. `Plan.size_function` fills the entries that follow
from the inputs at the start of each call; those that depend on data are filled by `BindStep`s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..ir.sizes import SizeCheckFailed
from ..ir.trees import tree_leaves
from .gpu.kernel import GpuKernel
from .tensor_facts import count_writes

__all__ = [
    "AllocStep", "BindStep", "BoundSymbol", "CallStep", "CopyStep", "FreeStep", "KernelStep", "LaunchStep", "Plan",
    "ScheduleNotes", "Size", "SizeCheckFailed", "SizeRef", "SlotRef", "Step", "SymbolBinding", "ViewStep", "Workspace",
    "counted_writes", "freed_early", "slots_filled", "slots_in", "slots_read",
]


@dataclass(frozen=True, slots=True)
class SizeRef:
    """Entry `index` of the size table."""

    index: int


Size = int | SizeRef


@dataclass(frozen=True, slots=True)
class SymbolBinding:
    """Where a symbol's value is read: size `dim` of the tensor in input slot `slot`, or, with `dim=None`,
    the int in that slot. `stride=True` reads the stride of `dim` instead."""

    slot: int
    dim: int | None = None
    stride: bool = False


@dataclass(frozen=True, slots=True)
class SlotRef:
    """Inside `CallStep` arguments: the value of a slot."""

    slot: int


@dataclass(frozen=True, slots=True)
class Workspace:
    """A kernel pointer into the call's scratch memory, which is on the plan's device: `offset` bytes from its start."""

    offset: Size


@dataclass(slots=True)
class AllocStep:
    """A fresh uninitialised tensor in `slot` (from the pool, where it is large)."""

    slot: int
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(slots=True)
class KernelStep:
    """Call a compiled kernel: `void kernel(void* const* pointers, const int64_t* sizes)`.

    `address` is the function's address; `sizes` the whole size table. `pointers[i]` is the data
    pointer of a slot's tensor, an address inside the workspace, or, for a slot that holds a number, the
    address of an int64_t (int, bool) or double (float) with its value. `name` is for reports. `writes` lists
    the inputs' slots that the kernel writes to, so that their version counters move.
    """

    address: int
    pointers: tuple[SlotRef | Workspace, ...]
    name: str
    writes: tuple[int, ...] = ()


@dataclass(slots=True)
class LaunchStep:
    """Launch a Triton kernel on the plan's device, on torch's current stream.

    `grid` is one to three numbers of programs; where one of them is 0 nothing is launched. `arguments` are those of the
    kernel's signature that are no constexpr, in its order: for a pointer the SlotRef of a tensor or a Workspace; for a
    number an int or float, a SizeRef, or the SlotRef of a slot that holds a number.

    The kernel's assumptions about its arguments (`GpuKernel.divisible`, ints that fit their type) is checked at
    each launch; where it does not hold, `general` runs instead: it takes the same arguments, over `general_grid` (None:
    the same grid). Without it that is the kernel compiled without these facts, and an int that does not fit its type
    raises OverflowError. `writes` lists the inputs' slots that the kernel writes to, so that their version counters
    move. `name` is for reports and profilers. `candidates` are kernels of the same arguments that compute the same
    with other launch parameters, each with its grid: what `mode="max-autotune"` chooses from.
    """

    kernel: GpuKernel
    grid: tuple[Size, ...]
    arguments: tuple[SlotRef | Workspace | SizeRef | int | float, ...]
    name: str
    writes: tuple[int, ...] = ()
    general: GpuKernel | None = None
    general_grid: tuple[Size, ...] | None = None
    candidates: tuple[tuple[GpuKernel, tuple[Size, ...]], ...] = ()
    #: filled by `make_executable`: the native GpuFunction of `kernel`, and a callable that gives the one of `general`
    functions: tuple[Any, Callable[[], Any]] | None = None


@dataclass(slots=True)
class CallStep:
    """Call an eager operator. `function` is the Python callable (an `OpOverload` or any other); `args` and `kwargs`
    are nested tuples/lists of constants, `SlotRef`s and `SizeRef`s. One result goes to `slots[0]`;
    with several slots the result is a sequence and `None` in `slots` drops a part.
    `grad` is the grad mode to run under; None leaves it as it is. `writes` lists the inputs' slots that it writes to.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    slots: tuple[int | None, ...]
    multiple: bool = False
    grad: bool | None = None
    writes: tuple[int, ...] = ()


@dataclass(slots=True)
class ViewStep:
    """`slot` becomes a view of the tensor in `base`, as `as_strided` makes it (offset absolute, in elements of the
    storage, or relative to the base's own offset with `relative=True`)."""

    slot: int
    base: int
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size
    relative: bool = True


@dataclass(slots=True)
class CopyStep:
    """`target.copy_(source)` for an input that the user's code mutates."""

    target: int
    source: int


@dataclass(frozen=True, slots=True)
class BoundSymbol:
    """A symbol whose value is known once `place.slot` is filled: number `number`, within `low..high` (None: open)."""

    number: int
    place: SymbolBinding
    low: int | None = None
    high: int | None = None


@dataclass(slots=True)
class BindStep:
    """Read symbols from slots, fill the entries of the size table that become known by them, and check what the
    program takes for granted about them: `checks` are entries that must not be 0, with a text for the error.

    `function` and `function_py` are as `Plan.size_function` and `Plan.size_function_py`. Raises SizeCheckFailed.
    """

    symbols: tuple[BoundSymbol, ...]
    entries: tuple[int, ...] = ()
    function: int = 0
    function_py: Callable[[tuple[int, ...]], list[int]] | None = None
    checks: tuple[tuple[int, str], ...] = ()


@dataclass(slots=True)
class FreeStep:
    """Drop slots that nothing reads any more."""

    slots: tuple[int, ...]


Step = AllocStep | KernelStep | LaunchStep | CallStep | ViewStep | CopyStep | BindStep | FreeStep


@dataclass(slots=True)
class ScheduleNotes:
    """The part of a plan that reports show: its kernel calls (`KernelInfo` of the backend), the graph nodes that run
    eagerly with the reason for each, and the fusions that were refused (each printable)."""

    kernels: list[Any]
    eager: dict[str, str]
    refusals: list[Any]


@dataclass(slots=True)
class Plan:
    """A compiled graph. Calling it returns the tuple of the values in `outputs`.

    `size_function` is the address of `void sizes(const int64_t* symbols, int64_t* table)`, 0 where there is none;
    `size_function_py` the same as a Python callable (tuple of all symbols -> list of the values of `size_entries`, None
    meaning all entries), used where there is no address. `n_symbols` counts those that BindSteps add as well.
    `workspace` is the scratch size in bytes. `overwritten` lists the slots of inputs that steps use as memory of their
    own: the executable puts copies there, but for tensors that it was given for good and that nobody else sees.
    `unseen` lists those whose version counters stay where steps write to them. `more_writes` (slot -> number) says by
    how much others move beyond the one of such a step; the last step sees to it.
    `device` is where it and the kernels of LaunchSteps are, with its index.
    `keep_alive` holds what the addresses belong to.
    """

    n_inputs: int
    n_slots: int
    outputs: tuple[int, ...]
    steps: list[Step]
    symbols: tuple[SymbolBinding, ...] = ()
    n_sizes: int = 0
    size_function: int = 0
    size_function_py: Callable[[tuple[int, ...]], list[int]] | None = None
    size_entries: tuple[int, ...] | None = None
    n_symbols: int = 0
    workspace: Size = 0
    overwritten: tuple[int, ...] = ()
    unseen: tuple[int, ...] = ()
    more_writes: dict[int, int] = field(default_factory=dict)
    device: torch.device = torch.device("cpu")
    keep_alive: list[Any] = field(default_factory=list)
    #: True where a call must run under autograd (inputs require grad): nothing may be freed early
    autograd: bool = False
    #: calls take or give tensors on the CPU too
    several_devices: bool = False
    #: calls write to inputs before all is computed
    runs_once: bool = False
    notes: ScheduleNotes | None = None


def counted_writes(more: dict[int, int]) -> list[Step]:
    """The last step of a plan with these `more_writes`: their version counters move."""
    return [CallStep(count_writes, (number, *(SlotRef(slot) for slot in more if more[slot] == number)), {}, (),
                     multiple=True) for number in sorted(set(more.values()))]


# -- which slots steps read and fill ------------------------------------------------------------------------


def slots_in(value: Any) -> Iterator[int]:
    """The slots that nested arguments mention."""
    return (leaf.slot for leaf in tree_leaves(value) if isinstance(leaf, SlotRef))


_READS: dict[type, Callable[[Any], Iterable[int]]] = {
    AllocStep: lambda step: (),
    KernelStep: lambda step: slots_in(step.pointers),
    LaunchStep: lambda step: slots_in(step.arguments),
    CallStep: lambda step: slots_in((step.args, step.kwargs)),
    ViewStep: lambda step: (step.base,),
    CopyStep: lambda step: (step.target, step.source),
    BindStep: lambda step: (symbol.place.slot for symbol in step.symbols),
    FreeStep: lambda step: (),
}


def slots_read(step: Step) -> Iterable[int]:
    return _READS[type(step)](step)


def slots_filled(step: Step) -> list[int]:
    if isinstance(step, CallStep):
        return [slot for slot in step.slots if slot is not None]
    return [step.slot] if isinstance(step, (AllocStep, ViewStep)) else []


def freed_early(steps: Sequence[Step], n_inputs: int, outputs: Iterable[int]) -> list[Step]:
    """`steps` with a FreeStep after each one that mentions some slots for the last time."""
    kept = {*range(n_inputs), *outputs}
    result: list[Step] = []
    for step in reversed(steps):
        last = sorted({*slots_read(step), *slots_filled(step)} - kept)
        kept.update(last)
        result += [FreeStep(tuple(last)), step] if last else [step]
    return result[::-1]


def last_reads(plan: Plan) -> list[tuple[int, ...]]:
    """For each step the inputs that no later one reads."""
    later = set(plan.outputs)
    found: list[tuple[int, ...]] = []
    for step in reversed(plan.steps):
        read = set(slots_read(step)) - later
        later |= read
        found.append(tuple(slot for slot in sorted(read) if slot < plan.n_inputs))
    return found[::-1]


def plain_views(plan: Plan) -> tuple[int, ...]:
    """The slots of views without the bookkeeping of autograd and version counters: nobody sees them as tensor objects,
    or nobody sees anything else that shares their memory."""
    if plan.autograd:
        return ()
    visible = {*range(plan.n_inputs), *plan.outputs}
    home: dict[int, int] = {}  # by slot, the one whose memory it shows, where an AllocStep made that
    views: list[int] = []
    for step in plan.steps:
        if isinstance(step, CallStep):
            visible.update(slots_read(step))
        elif isinstance(step, CopyStep):
            visible.add(step.target)
        owner = home.get(step.base, -1) if isinstance(step, ViewStep) else -1
        for slot in slots_filled(step):
            home[slot] = slot if isinstance(step, AllocStep) else owner
        views += [step.slot] if isinstance(step, ViewStep) else []
    seen = Counter(home[view] for view in views if view in visible)
    return tuple(view for view in views if view not in visible or
                 home[view] >= 0 and home[view] not in visible and seen[home[view]] == 1)
