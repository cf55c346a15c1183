"""`mode="reduce-overhead"`: a plan's launches recorded as a CUDA graph, and replayed by one call.

A recording is made for the addresses of its inputs, its sizes and its numbers, and is replayed only where all of them
are the same again: the caller holds the inputs, so that their memory is alive. Inputs that come from elsewhere each
time are copied into memory of ours first. Outputs are in memory of their own, not in the graphs' pool: each recording
has its own (what operators return is allocated in a pool of the recording's), and is not replayed while anything else
still holds that memory; then a second recording serves, and while both are held, the plan runs without a graph. So no
result that a program can still see is ever overwritten. Memory that the graphs use in between comes from one pool for
all of them, which is right as long as replays do not overlap: a replay on another stream waits for the last one.

Two cases are left to the program, as with torch's own graphs: memory given up by Python while another stream still
reads it (`Tensor.record_stream`) may be written by the next replay; and while one thread records, torch refuses its
default generator of that GPU to other threads, with an error.
"""

from __future__ import annotations

import contextlib
import operator
import struct
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from jitpy import logs
from jitpy.runtime.native_build import load_native

from ...ir import ops
from ...ir.ops.functional import copied
from ...ir.ops.philox import STATE
from ...ir.trees import tree_leaves
from ..plan import BindStep, CallStep, CopyStep, KernelStep, LaunchStep, Plan, Size, SizeRef, SymbolBinding, ViewStep
from ..tensor_facts import count_writes
from .rewrite import with_given_outputs, with_results_enclosed

#: host time of a replay with its checks, of an operator, and of a kernel, as measured on an H200's host
_REPLAY_MICROSECONDS, _CALL_MICROSECONDS, _LAUNCH_MICROSECONDS = 14.0, 7.0, 3.0

#: unused memory of torch's allocator that is given back before a recording takes its own
_UNUSED_BYTES = 64 << 20

Run = Callable[..., tuple[Any, ...]]

#: recordings for one set of sizes and numbers: beyond, inputs whose addresses change are copied
_ADDRESSES = 4
#: recordings for one set of sizes and numbers made, or begun, of which none paid
_RECORDINGS = 24
#: replays that a recording pays by
_PAID = 16
#: sets of sizes and numbers with recordings of their own; other calls run without a graph
_KEYS = 16
#: inputs up to this size are copied at once where their address changes: cheaper than recordings
_COPIED_BYTES = 1 << 20


def unfit(plan: Plan) -> str:
    """Why a plan cannot be recorded; '' where it can."""
    if plan.device.type != "cuda":
        return "it does not run on a GPU"
    if plan.autograd:
        return "its operators run under autograd"
    if plan.several_devices:
        return "some of its tensors are on the CPU"
    for step in plan.steps:
        if isinstance(step, BindStep):
            return "sizes depend on data"
        if isinstance(step, KernelStep):
            return f"{step.name} runs on the host"
        if isinstance(step, ViewStep) and not step.relative and step.base < plan.n_inputs:
            return "a view reads around an input, which may be a copy here"
        if isinstance(step, CallStep):
            why = _unfit_call(step)
            if why:
                return why
    if not any(isinstance(step, (CallStep, LaunchStep)) for step in plan.steps):
        return "it launches nothing"
    return ""


def is_worthwhile(plan: Plan) -> bool:
    """Whether a replay takes the host less time than the plan's steps, about."""
    taken = sum(_CALL_MICROSECONDS if isinstance(step, CallStep) else _LAUNCH_MICROSECONDS
                for step in plan.steps if isinstance(step, (CallStep, LaunchStep)))
    return taken > _REPLAY_MICROSECONDS


class Chain:
    """The plans of one graph: its parts, forward and backward. Those behind one that is worth a recording are recorded
    as well, whatever they launch: their results are the inputs of others, and stay where they are only in a
    recording."""

    def __init__(self) -> None:
        self._recorded = False

    def records(self, plan: Plan) -> bool:
        """Is this plan to be recorded?"""
        self._recorded = self._recorded or is_worthwhile(plan)
        return self._recorded


def _unfit_call(step: CallStep) -> str:
    function = step.function
    if isinstance(function, torch._ops.OpOverload):
        if {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(function.tags):
            return f"{function} waits for the GPU"
        name = function.name().removeprefix("aten::")
        if name.startswith("as_strided"):
            return f"{function} may read around its input, which may be a copy here"
        if ops.get(function).waits:
            return f"{function} waits for the GPU"
        if function.namespace != "aten":
            return f"{function} may do what cannot be recorded"
        return ""
    if function is ops.get(STATE).target or function is copied:
        return ""
    if function is operator.getitem or getattr(function, "__module__", "").startswith("jitpy.backends."):
        return ""
    return f"{getattr(function, '__name__', function)} runs on the host"


@dataclass(slots=True)
class _Output:
    """How an output is made anew for each call: an alias of `tensor`, or a view of an input (`offset` relative)."""

    tensor: torch.Tensor
    input: int | None = None
    offset: int = 0
    #: the input itself
    whole: bool = False

    def make(self, inputs: tuple[Any, ...]) -> torch.Tensor:
        if self.input is None:
            if torch.is_inference_mode_enabled():  # where an alias would be an ordinary tensor, as its memory is
                return torch.empty(0, dtype=self.tensor.dtype, device=self.tensor.device).set_(self.tensor)  # type: ignore[call-overload]
            return self.tensor.detach()
        base = inputs[self.input]
        if self.whole:
            return base
        return base.as_strided(self.tensor.shape, self.tensor.stride(), base.storage_offset() + self.offset)


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Recording:
    """A CUDA graph with what it was recorded for, and where its outputs are."""

    graph: Any
    addresses: bytes
    outputs: list[_Output]
    #: the memory of outputs: (storage, its address, how often it is held while the program holds nothing of it)
    memory: list[tuple[Any, int, int]]
    #: the pool in which operators allocated outputs
    pool: _ResultPool
    replays: int = 0

    def is_free(self) -> bool:
        """Does the program hold nothing of the last replay's outputs, and is their memory still where it was?"""
        return all(torch._C._storage_Use_Count(storage._cdata) <= held and storage.data_ptr() == address
                   for storage, address, held in self.memory)


_live: weakref.WeakSet[_Recording] = weakref.WeakSet()


@dataclass(slots=True)
class _Site:
    """All recordings for one set of sizes and numbers."""

    calls: int = 0
    made: int = 0
    #: the addresses of the last call that no recording was for
    seen: bytes = b""
    recordings: list[_Recording] = field(default_factory=list)
    #: inputs that are copied before a replay: number -> the memory that the graphs read (and write)
    copied: dict[int, torch.Tensor] = field(default_factory=dict)


class GraphedExecutable:
    """An executable that replays CUDA graphs. It computes what `run` does, and falls back to it."""

    def __init__(self, plan: Plan, run: Any, make: Callable[[Plan], Run]) -> None:
        self.plan = plan
        self._run = run
        self._device = plan.device
        changed, self._given = with_given_outputs(plan)
        self._results = _Results(plan.device)
        self._filled: Run = make(with_results_enclosed(changed, self._results.enter, self._results.leave))
        self._mutated = tuple(sorted(
            {step.target for step in plan.steps if isinstance(step, CopyStep)}
            | {slot for step in plan.steps if isinstance(step, (CallStep, LaunchStep)) for slot in step.writes}))
        self._symbols = tuple(binding for binding in plan.symbols if binding.dim is not None)
        #: the inputs that are numbers: known at the first call
        self._numbers: tuple[int, ...] | None = None
        self._addresses = load_native("runtime").addresses
        self._sites: dict[tuple[Any, ...], _Site] = {}
        #: why there is no graph; '' while there may be
        self.reason = ""

    def steps_text(self) -> str:
        """The program as readable text, one step per line."""
        return self._run.steps_text()

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        if self.reason or torch.cuda.is_current_stream_capturing():
            return self._run(*inputs)
        key: tuple[Any, ...] = tuple(_symbol(binding, inputs) for binding in self._symbols)
        if self._numbers is None:
            self._numbers = tuple(n for n, value in enumerate(inputs) if not isinstance(value, torch.Tensor))
        if self._numbers:
            key += tuple((type(inputs[number]), inputs[number]) for number in self._numbers)
        with _pool.lock:
            return self._call(key, inputs)

    def _call(self, key: tuple[Any, ...], inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        site = self._sites.get(key)
        if site is None:
            if len(self._sites) >= _KEYS:
                return self._run(*inputs)
            site = self._sites[key] = _Site()
        found = self._addresses(inputs, self._device.index, tuple(site.copied))
        if found is None:
            return self._run(*inputs)  # an input elsewhere: for this call there is no recording
        site.calls += 1
        if site.calls == 1:  # operators set themselves up, kernels load; addresses may settle
            site.seen = found
            return self._run(*inputs)
        fitting = [one for one in site.recordings if one.addresses == found]
        for one in fitting:
            if one.is_free():
                return self._replay(one, site, inputs)
        if len(fitting) >= 2 or site.made >= _RECORDINGS:
            return self._run(*inputs)  # the program holds both; or it never settles
        if not fitting:
            self._settle(site, found, inputs)
            found = self._addresses(inputs, self._device.index, tuple(site.copied))
        site.made += 1
        try:
            made = self._record(site, found, inputs)
        except torch.OutOfMemoryError:
            self._forget(site)
            return self._run(*inputs)
        except RuntimeError as error:  # whatever does not like to be captured
            self._give_up(str(error).splitlines()[0])
            return self._run(*inputs)
        site.recordings.append(made)
        return self._replay(made, site, inputs)

    def _settle(self, site: _Site, addresses: bytes, inputs: tuple[Any, ...]) -> None:
        """No recording has these addresses: which inputs shall be copied from now on? Those that have moved, unless
        they are likely to stay where they are now; and once there are some, all small ones that may move, because each
        recording takes as long as hundreds of copies, and what it returns moves, too, for those who read it."""
        now = _numbers(addresses)
        recorded = {one.addresses for one in site.recordings}
        before = [_numbers(one) for one in (site.seen, *recorded)]
        candidates = [number for number, address in enumerate(now) if number not in site.copied and address
                      and self._may_copy(number, inputs)]
        varying = [number for number in candidates if any(one[number] != now[number] for one in before)]
        # as with a new cache for each text
        has_paid = bool(recorded) and all(one.replays >= _PAID for one in site.recordings)
        if len(recorded) >= _ADDRESSES and has_paid:
            self._forget(site)
            site.made, recorded = 0, set()
        crowded = len(recorded) >= _ADDRESSES
        if not crowded:
            returned = {address for one in _live for _, address, _ in one.memory}
            candidates = [number for number in candidates
                          if not self._stays(number, inputs[number], returned, has_paid)]
            varying = [number for number in varying if number in candidates]
            if varying:
                varying = [number for number in candidates if number in varying or
                           inputs[number].nbytes <= _COPIED_BYTES and number not in self._mutated]
        for number in varying:
            value = inputs[number]
            site.copied[number] = _memory(value.shape, value.stride(), value.dtype, self._device)
        if varying or crowded:
            self._forget(site)
        site.seen = addresses

    def _stays(self, number: int, value: torch.Tensor, returned: set[int], is_settled: bool) -> bool:
        """Will an input that has moved stay where it is now? A value that another recording returns does (or this one
        is made anew with that), and so do parameters and what a plan writes to: the state of a program. Small ones do
        so where they have stayed before."""
        if isinstance(value, torch.nn.Parameter) or value.untyped_storage().data_ptr() in returned:
            return True
        return number in self._mutated and (value.nbytes > _COPIED_BYTES or is_settled)

    def _may_copy(self, number: int, inputs: tuple[Any, ...]) -> bool:
        """Would the plan do the same to a copy? Not where it shows the same memory by another input as well, nor where
        elements share their memory."""
        value = inputs[number]
        if any(size > 1 and stride == 0 for size, stride in zip(value.shape, value.stride(), strict=True)):
            return False
        if not self._mutated:
            return True
        memory = value.untyped_storage().data_ptr()
        tensors = [other for other in inputs if isinstance(other, torch.Tensor)]
        return sum(other.untyped_storage().data_ptr() == memory for other in tensors) == 1

    def _forget(self, site: _Site) -> None:
        """Drop the recordings, when the GPU is done with them."""
        torch.cuda.synchronize(self._device)
        site.recordings.clear()

    def _give_back(self) -> None:
        """Return to the GPU what plain calls took and nothing uses: a recording has memory of its own."""
        unused = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        if unused >= _UNUSED_BYTES:
            with contextlib.suppress(RuntimeError):  # another thread captures
                torch.cuda.empty_cache()

    def _record(self, site: _Site, addresses: bytes, inputs: tuple[Any, ...]) -> _Recording:
        """Capture the plan. Nothing is computed by that: the graph has to be replayed."""
        device = self._device
        self._give_back()
        taken = [site.copied.get(number, value) for number, value in enumerate(inputs)]
        table = _size_table(self.plan, inputs)
        given = [_memory(list(map(table, step.shape)), list(map(table, step.stride)), step.dtype, device)
                 for step in self._given]
        current, side = torch.cuda.current_stream(device), _pool.side(device)
        side.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(side), torch.no_grad():
            handle = _pool.handle(device)
            pool = self._results.begin(handle)
            began = False
            try:
                graph.capture_begin(pool=handle, capture_error_mode="thread_local")
                began = True
                results = self._filled(*taken, *given)
                outputs = [self._output(result, taken, given) for result in results]
                began = False
                graph.capture_end()
            except BaseException:
                self._results.abandon()
                _pool.abandon(graph if began else None, device)
                raise
        current.wait_stream(side)
        del results, given, taken
        storages = {one.tensor.untyped_storage()._cdata: one.tensor.untyped_storage()
                    for one in outputs if one.input is None}
        made = _Recording(graph, addresses, outputs, [], pool)
        made.memory = [(storage, storage.data_ptr(), torch._C._storage_Use_Count(address))
                       for address, storage in storages.items()]
        _live.add(made)
        logs.log("timing", f"recorded a CUDA graph of {len(self.plan.steps)} steps")
        return made

    def _output(self, result: Any, taken: list[Any], given: list[torch.Tensor]) -> _Output:
        """Where a result is, with the graph's last step for it: what is in the graphs' pool is copied out of it."""
        if not isinstance(result, torch.Tensor):
            raise RuntimeError(f"a result is no tensor but {type(result).__name__}")
        storage = result.untyped_storage()._cdata
        for number, value in enumerate(taken):
            if isinstance(value, torch.Tensor) and value.untyped_storage()._cdata == storage:
                return _Output(_shape_of(result), number, result.storage_offset() - value.storage_offset(),  # type: ignore[arg-type]
                               whole=result is value)
        if any(one.untyped_storage()._cdata == storage for one in given) or self._results.holds(storage):
            return _Output(result)
        if storage in self._results.copied:
            raise RuntimeError("results of an operator share their memory")
        self._results.copied.add(storage)
        self._results.enter()
        kept = _memory(result.shape, result.stride(), result.dtype, result.device)
        self._results.leave((), {}, (kept,))
        kept.copy_(result)
        return _Output(kept)

    def _replay(self, one: _Recording, site: _Site, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        stream = torch.cuda.current_stream(self._device)
        _pool.enter(self._device, stream)
        with torch.cuda.device(self._device), torch.no_grad():
            if site.copied:
                torch._foreach_copy_(list(site.copied.values()), [inputs[number] for number in site.copied])
            one.graph.replay()
            one.replays += 1
            for number in self._mutated:
                if number in site.copied:
                    (inputs[number].data if number in self.plan.unseen else inputs[number]).copy_(site.copied[number])
                elif number not in self.plan.unseen and not inputs[number].is_inference():
                    torch.autograd.graph.increment_version(inputs[number])
            for number, more in self.plan.more_writes.items():
                count_writes(more, inputs[number])
            return tuple(output.make(inputs) for output in one.outputs)

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        self._sites.clear()
        logs.log("fusion", f"runs without a CUDA graph: {reason}")


class _ResultPool:
    """A pool of torch's allocator for the outputs of one recording. No other recording may write there: what it frees
    while it is recorded is taken again by itself alone."""

    def __init__(self, device: int) -> None:
        self._device = device
        self.handle = torch.cuda.graph_pool_handle()
        torch._C._cuda_beginAllocateCurrentThreadToPool(self._device, self.handle)
        torch._C._cuda_endAllocateToPool(self._device, self.handle)

    def __del__(self) -> None:
        with contextlib.suppress(RuntimeError, AttributeError, TypeError):  # the interpreter ends
            torch._C._cuda_releasePool(self._device, self.handle)


class _Results:
    """Where operators allocate while a plan is recorded: between `enter` and `leave` in the recording's own pool, else
    in the pool of all graphs."""

    def __init__(self, device: torch.device) -> None:
        self._device = device.index
        self._pool: _ResultPool | None = None
        self._shared: Any = None
        #: the storages in the recording's pool, and those that were copied into it (as addresses)
        self._storages: set[int] = set()
        self.copied: set[int] = set()

    def begin(self, shared: Any) -> _ResultPool:
        """A recording begins, whose other memory comes from the pool `shared`."""
        self._pool, self._shared = _ResultPool(self._device), shared
        self._storages, self.copied = set(), set()
        # a library's handle cannot be made during capture; its workspace outlives recordings, and is none's alone
        torch._C._cuda_beginAllocateCurrentThreadToPool(self._device, shared)
        try:
            torch._C._cuda_getCurrentBlasHandle()
        finally:
            torch._C._cuda_endAllocateToPool(self._device, shared)
            torch._C._cuda_releasePool(self._device, shared)
        return self._pool

    def enter(self) -> None:
        assert self._pool is not None
        self._switch(self._shared, self._pool.handle)

    def leave(self, args: Any, kwargs: Any, results: Any) -> None:
        """An operator took `args` and `kwargs`, and returned `results`."""
        assert self._pool is not None
        self._switch(self._pool.handle, self._shared)
        self._storages |= _storages_of(results) - _storages_of((args, kwargs))

    def holds(self, storage: int) -> bool:
        return storage in self._storages

    def abandon(self) -> None:
        """The recording failed, somewhere."""
        if self._pool is not None:
            with contextlib.suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(self._device, self._pool.handle)
            self._pool = None

    def _switch(self, old: Any, new: Any) -> None:
        """This thread allocates in another pool. Both are in use for a moment: torch's allocator never looks as if no
        capture were under way."""
        torch._C._cuda_beginAllocateCurrentThreadToPool(self._device, new)
        torch._C._cuda_endAllocateToPool(self._device, old)
        torch._C._cuda_releasePool(self._device, new)  # who made the pool counts as its user already


class _Pool:
    """The state that all graphs share: the memory for what is between, and the stream that they were last replayed
    on."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._handles: dict[int, Any] = {}
        self._sides: dict[int, Any] = {}
        self._streams: dict[int, Any] = {}
        self._marks: dict[int, torch.Tensor] = {}
        self._keepers: list[Any] = []

    def handle(self, device: torch.device) -> Any:
        """The pool's handle. A small graph keeps the pool while there are no others: torch takes no handle again whose
        last graph went."""
        if device.index not in self._handles:
            self._open(device)
        return self._handles[device.index]

    def _open(self, device: torch.device) -> None:
        if device.index not in self._marks:
            self._marks[device.index] = _memory((1,), (1,), torch.float32, device)
        mark = self._marks[device.index]
        handle, keeper, side = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph(), self.side(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side), torch.inference_mode(False):
            keeper.capture_begin(pool=handle, capture_error_mode="thread_local")
            mark.zero_()
            keeper.capture_end()
        self._handles[device.index] = handle
        self._keepers.append(keeper)

    def side(self, device: torch.device) -> Any:
        if device.index not in self._sides:
            self._sides[device.index] = torch.cuda.Stream(device)
        return self._sides[device.index]

    def abandon(self, graph: Any, device: torch.device) -> None:
        """A capture failed, on the current stream. torch leaves its allocator and its random state as if it went on:
        the former is told that it ended, and the latter learns it from the next capture, which opens another pool."""
        if graph is not None:
            with contextlib.suppress(RuntimeError):  # which says the same again
                graph.capture_end()
        with contextlib.suppress(RuntimeError, AttributeError):
            torch._C._cuda_endAllocateToPool(device.index, self._handles[device.index])
        self._open(device)

    def enter(self, device: torch.device, stream: Any) -> None:
        """A replay begins on a stream: it may not overlap the last one, with which it shares memory."""
        last = self._streams.get(device.index)
        if last is not None and last != stream:
            stream.wait_stream(last)
        self._streams[device.index] = stream


_pool = _Pool()


def _numbers(addresses: bytes) -> tuple[int, ...]:
    return struct.unpack(f"{len(addresses) // 8}Q", addresses)


def _storages_of(value: Any) -> set[int]:
    """The storages of the tensors in nested sequences and dicts."""
    return {leaf.untyped_storage()._cdata for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)}


def _memory(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor for many calls, whatever mode this one is under."""
    with torch.inference_mode(False):
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)


def _shape_of(tensor: torch.Tensor) -> torch.Tensor:
    """A placeholder with the sizes and strides of a view, which keeps no memory."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _size_table(plan: Plan, inputs: tuple[Any, ...]) -> Callable[[Size], int]:
    """Reads sizes of a plan for these inputs."""
    table: dict[int, int] = {}
    if plan.size_function_py is not None:
        symbols = tuple(_symbol(binding, inputs) for binding in plan.symbols)
        entries = range(plan.n_sizes) if plan.size_entries is None else plan.size_entries
        table = dict(zip(entries, plan.size_function_py(symbols), strict=True))
    return lambda size: table[size.index] if isinstance(size, SizeRef) else size


def _symbol(binding: SymbolBinding, inputs: tuple[Any, ...]) -> int:
    value = inputs[binding.slot]
    if binding.dim is None:
        return value
    return value.stride(binding.dim) if binding.stride else value.size(binding.dim)
