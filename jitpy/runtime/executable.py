"""A `Plan` made callable: natively where the native runtime can be built, else in Python with the same meaning.

    executable = make_executable(plan)
    outputs = executable(*inputs)          # a tuple
    print(executable.steps_text())

A call raises what eager execution of the failing step would raise, and TypeError for inputs of the wrong number or
type.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from jitpy import config, logs
from jitpy.runtime import beside_dynamo
from jitpy.runtime.gpu import through_triton
from jitpy.runtime.gpu.kernel import GpuKernel
from jitpy.runtime.gpu.load import load_kernels
from jitpy.runtime.gpu.through_triton import POINTEES
from jitpy.runtime.native_build import NativeUnavailable, load_native, load_or_none
from jitpy.runtime.plan import (
    AllocStep,
    BindStep,
    CallStep,
    CopyStep,
    FreeStep,
    KernelStep,
    LaunchStep,
    Plan,
    Size,
    SizeCheckFailed,
    SizeRef,
    SlotRef,
    Step,
    SymbolBinding,
    ViewStep,
    Workspace,
    slots_filled,
    slots_read,
)

from ..ir.trees import tree_leaves

_WORKSPACE_ALIGNMENT = 64
_POOL_FACTS = ("limit", "cached_bytes", "cached_blocks", "used_bytes", "used_blocks", "hits", "misses")
_KERNEL_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


def _keys(*names: str) -> int:
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, names[0]))
    for name in names[1:]:
        keys = keys.add(getattr(torch._C.DispatchKey, name))
    return keys.raw_repr()


#: dispatch keys of tensors whose memory does not hold their values
_NOT_PLAIN = _keys("Conjugate", "Negative", "ZeroTensor", "Python", "Functionalize", "FuncTorchBatched",
                   "FuncTorchGradWrapper")


class Executable(Protocol):
    """The result of `make_executable`."""

    @property
    def plan(self) -> Plan: ...

    def __call__(self, *inputs: Any) -> tuple[Any, ...]: ...

    def steps_text(self) -> str: ...


def make_executable(plan: Plan) -> Executable:
    """The plan as a callable. Raises ValueError or TypeError for a plan that is not well formed, KernelCompileError
    where a kernel does not compile."""
    if plan.device.type == "cpu" and any(isinstance(step, LaunchStep) for step in plan.steps):
        return PythonExecutable(plan)  # GPU kernels in Triton's interpreter
    if logs.enabled("steps"):
        from jitpy.runtime.profiled import ProfiledExecutable

        return ProfiledExecutable(plan)
    try:
        native = load_native("runtime")
    except NativeUnavailable as error:
        logs.log("cache", f"plans run in Python: {error.reason}")
        return PythonExecutable(plan)
    native.set_pool_limit(config.pool_bytes)
    check_plan(plan)
    if plan.device.type != "cpu":
        load_kernels(plan)
    return native.Executable(plan)


def set_pool_limit(limit: int) -> None:
    """Keep at most `limit` bytes of freed outputs and scratch memory; what is over goes back to the system now.
    It holds until the next executable is made, which sets `config.pool_bytes` again."""
    native = load_or_none("runtime")
    if native is not None:
        native.set_pool_limit(limit)


def pool_stats() -> dict[str, int]:
    """The state of the memory pool: `limit`, `cached_bytes`, `cached_blocks` (unused, kept), `used_bytes`,
    `used_blocks` (handed out), `hits`, `misses`. All zero where there is no native runtime, and so no pool."""
    native = load_or_none("runtime")
    return dict.fromkeys(_POOL_FACTS, 0) if native is None else native.pool_stats()


def empty_pool() -> None:
    """Return all unused memory of the pool to the system."""
    native = load_or_none("runtime")
    if native is not None:
        native.empty_pool()


def check_plan(plan: Plan) -> None:
    """Raises ValueError where a step reads a slot that nothing filled, or numbers are out of range."""
    filled = set(range(plan.n_inputs))

    def read(slot: int, what: str) -> None:
        if slot not in filled:
            raise ValueError(f"plan: {what} reads slot {slot}, which is empty there")

    for binding in plan.symbols:
        if not 0 <= binding.slot < plan.n_inputs:
            raise ValueError(f"plan: a symbol is read from slot {binding.slot}, which is no input")
    at_start = plan.n_sizes if plan.size_entries is None else len(plan.size_entries)
    if at_start and not (plan.size_function or plan.size_function_py):
        raise ValueError("plan: it has sizes, so it needs a size function")
    for number, step in enumerate(plan.steps):
        what = f"step {number} ({type(step).__name__})"
        if not isinstance(step, Step):
            raise TypeError(f"plan: not a step: {step!r}")
        for slot in slots_read(step):
            read(slot, what)
        filled.update(slots_filled(step))
        if isinstance(step, (KernelStep, LaunchStep)) and not set(step.writes) <= set(range(plan.n_inputs)):
            raise ValueError(f"plan: {what}: `writes` lists inputs only, not {step.writes}")
        if isinstance(step, LaunchStep):
            for kernel, grid in launch_variants(step):
                if len(kernel.parameters) != len(step.arguments) or not 1 <= len(grid) <= 3:
                    raise ValueError(f"plan: {what}: kernel {kernel.name} takes {len(kernel.parameters)} arguments and "
                                     f"1 to 3 grid dimensions, not {len(step.arguments)} and {len(grid)}")
        if isinstance(step, BindStep) and step.entries and not (step.function or step.function_py):
            raise ValueError(f"plan: {what} fills sizes, so it needs a size function")
        if isinstance(step, FreeStep):
            filled.difference_update(step.slots)
    for slot in plan.outputs:
        read(slot, "an output")
    if filled and not (min(filled) >= 0 and max(filled) < plan.n_slots):
        raise ValueError(f"plan: slots {sorted(filled)} do not fit into n_slots={plan.n_slots}")


def launch_variants(step: LaunchStep) -> list[tuple[GpuKernel, tuple[Size, ...]]]:
    """Every kernel that a step may launch, with its grid: the usual one, the general one, then candidates."""
    general = [] if step.general is None else [(step.general, step.general_grid or step.grid)]
    return [(step.kernel, step.grid), *general, *step.candidates]


class PythonExecutable:
    """The meaning of a plan in plain Python; the native `Executable` does the same faster."""

    def __init__(self, plan: Plan) -> None:
        check_plan(plan)
        self.plan = plan
        self._actions: list[Callable[[_Call], None]] = [_make_action(step, plan) for step in plan.steps]

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        plan = self.plan
        if len(inputs) != plan.n_inputs:
            raise TypeError(f"this executable takes {plan.n_inputs} positional arguments, got {len(inputs)}")
        for number, value in enumerate(inputs):
            if not isinstance(value, (torch.Tensor, int, float, complex)):
                raise TypeError(f"input {number} must be a tensor or a number, not {type(value).__name__}")
        slots = [*inputs, *[None] * (plan.n_slots - plan.n_inputs)]
        for slot in plan.overwritten:
            seen = slots[slot]
            own = torch.empty_strided(seen.shape, seen.stride(), dtype=seen.dtype, device=seen.device)
            slots[slot] = own.copy_(seen)
        call = _Call(slots, plan.n_sizes, max(plan.n_symbols, len(plan.symbols)))
        for number, binding in enumerate(plan.symbols):
            call.symbols[number] = _symbol(binding, slots)
        call.fill_sizes(plan.size_function, plan.size_function_py, plan.size_entries)
        call.open_workspace(call.size(plan.workspace), plan.device)
        # the graph holds autocast's casts as nodes already
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
            torch._C.DispatchKey.AutocastCUDA)
        below = contextlib.nullcontext() if plan.autograd else torch._C._AutoDispatchBelowAutograd()
        # the guard that was made first is entered first: in the other order keys stay excluded afterwards
        with below, torch._C._ExcludeDispatchKeyGuard(keys):
            self._run(call)
        return tuple(slots[slot] for slot in plan.outputs)

    def _run(self, call: _Call) -> None:
        for action in self._actions:
            action(call)

    def steps_text(self) -> str:
        """The program as readable text, one step per line."""
        return plan_text(self.plan)


class _Call:
    """The state of one call: slots, size table, scratch memory, and the dispatch state that the caller had."""

    def __init__(self, slots: list[Any], n_sizes: int, n_symbols: int) -> None:
        self.slots = slots
        self.sizes = (ctypes.c_int64 * n_sizes)()
        self.symbols = (ctypes.c_int64 * n_symbols)()
        self.workspace = 0
        self.scratch: torch.Tensor | None = None
        self.caller_keys = (torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set())

    def fill_sizes(self, address: int, function: Callable[[tuple[int, ...]], list[int]] | None,
                   entries: Sequence[int] | None) -> None:
        """Fill the entries of the size table that a size function computes."""
        if function is not None:
            for entry, value in zip(range(len(self.sizes)) if entries is None else entries,
                                    function(tuple(self.symbols)), strict=True):
                self.sizes[entry] = value
        elif address:
            _KERNEL_TYPE(address)(ctypes.addressof(self.symbols), ctypes.addressof(self.sizes))

    def open_workspace(self, size: int, device: torch.device) -> None:
        if size:
            self.scratch = torch.empty(size + _WORKSPACE_ALIGNMENT, dtype=torch.uint8, device=device)
            self.workspace = -(-self.scratch.data_ptr() // _WORKSPACE_ALIGNMENT) * _WORKSPACE_ALIGNMENT

    def size(self, size: Size) -> int:
        return self.sizes[size.index] if isinstance(size, SizeRef) else size

    def resolve(self, sizes: Sequence[Size]) -> list[int]:
        return [self.size(size) for size in sizes]

    def fill(self, value: Any) -> Any:
        """An argument with slots and sizes filled in; constants come back as they are."""
        if isinstance(value, SlotRef):
            return self.slots[value.slot]
        if isinstance(value, SizeRef):
            return self.sizes[value.index]
        if not _has_refs(value):
            return value
        if type(value) is tuple:
            return tuple(self.fill(item) for item in value)
        if type(value) is list:
            return [self.fill(item) for item in value]
        if type(value) is dict:
            return {key: self.fill(item) for key, item in value.items()}
        return slice(self.fill(value.start), self.fill(value.stop), self.fill(value.step))


def _has_refs(value: Any) -> bool:
    return any(isinstance(leaf, (SlotRef, SizeRef)) for leaf in tree_leaves(value))


def _symbol(binding: SymbolBinding, slots: list[Any]) -> int:
    value = slots[binding.slot]
    if binding.dim is None:
        if not isinstance(value, int):
            raise TypeError(f"input {binding.slot} must be an int")
        return int(value)
    if not isinstance(value, torch.Tensor) or value.dim() <= binding.dim:
        raise TypeError(f"input {binding.slot} must be a tensor with more than {binding.dim} dims")
    return value.stride(binding.dim) if binding.stride else value.size(binding.dim)


def _bind(step: BindStep, call: _Call) -> None:
    for symbol in step.symbols:
        value = _symbol(symbol.place, call.slots)
        if symbol.low is not None and value < symbol.low or symbol.high is not None and value > symbol.high:
            raise SizeCheckFailed(f"{value} is out of range for a size")
        call.symbols[symbol.number] = value
    call.fill_sizes(step.function, step.function_py, step.entries)
    for entry, text in step.checks:
        if not call.sizes[entry]:
            raise SizeCheckFailed(text)


def _make_action(step: Step, plan: Plan) -> Callable[[_Call], None]:
    if isinstance(step, KernelStep):
        return _kernel_action(step, plan)
    if isinstance(step, LaunchStep):
        return _launch_action(step, plan)
    if isinstance(step, CallStep):
        return _call_action(step, plan)
    if isinstance(step, AllocStep):
        def alloc(call: _Call) -> None:
            call.slots[step.slot] = torch.empty_strided(
                call.resolve(step.shape), call.resolve(step.stride), dtype=step.dtype, device=step.device
            )
        return alloc
    if isinstance(step, ViewStep):
        def view(call: _Call) -> None:
            base = call.slots[step.base]
            offset = call.size(step.offset) + (base.storage_offset() if step.relative else 0)
            call.slots[step.slot] = torch.as_strided(base, call.resolve(step.shape), call.resolve(step.stride), offset)
        return view
    if isinstance(step, CopyStep):
        def copy(call: _Call) -> None:
            follows_grad = plan.autograd and step.target not in plan.unseen
            with _callers_dispatch(call, plan), contextlib.nullcontext() if follows_grad else torch.no_grad():
                target = call.slots[step.target]
                (target.data if step.target in plan.unseen else target).copy_(call.slots[step.source])
        return copy
    if isinstance(step, BindStep):
        return lambda call: _bind(step, call)
    if isinstance(step, FreeStep):
        def free(call: _Call) -> None:
            for slot in step.slots:
                call.slots[slot] = None
        return free
    raise AssertionError(step)


def _kernel_action(step: KernelStep, plan: Plan) -> Callable[[_Call], None]:
    kernel = _KERNEL_TYPE(step.address)
    seen = [slot for slot in step.writes if slot not in plan.unseen]

    def run(call: _Call) -> None:
        numbers: list[Any] = []  # keeps the memory of host scalars during the call

        def address(pointer: SlotRef | Workspace) -> int:
            if isinstance(pointer, Workspace):
                return call.workspace + call.size(pointer.offset)
            value = call.slots[pointer.slot]
            if isinstance(value, torch.Tensor):
                if torch._C._dispatch_keys(value).raw_repr() & _NOT_PLAIN:
                    raise RuntimeError(
                        f"kernel {step.name} reads slot {pointer.slot}, whose memory does not hold its values "
                        "(a lazy conjugate or negative, or a wrapper)"
                    )
                return value.data_ptr()
            if isinstance(value, float):
                numbers.append(ctypes.c_double(value))
            elif isinstance(value, int):
                if not -(1 << 63) <= value < 1 << 63:
                    raise OverflowError("Python int too large to convert to C long")
                numbers.append(ctypes.c_int64(value))
            else:
                raise TypeError(f"a kernel takes tensors, int and float, not {type(value).__name__}")
            return ctypes.addressof(numbers[-1])

        pointers = (ctypes.c_void_p * len(step.pointers))(*[address(pointer) for pointer in step.pointers])
        kernel(ctypes.addressof(pointers), ctypes.addressof(call.sizes))
        for slot in seen:
            torch.autograd.graph.increment_version(call.slots[slot])

    return run


def _launch_action(step: LaunchStep, plan: Plan) -> Callable[[_Call], None]:
    kernel, grid = launch_variants(step)[1 if step.general is not None else 0]  # the one that takes all arguments
    seen = [slot for slot in step.writes if slot not in plan.unseen]

    def argument(call: _Call, value: Any, kind: str) -> Any:
        if isinstance(value, Workspace):
            dtype, scratch = POINTEES[kind.lstrip("*")], call.scratch
            if scratch is None:
                return torch.empty(0, dtype=dtype, device=plan.device)
            start = call.workspace + call.size(value.offset) - scratch.data_ptr()
            usable = (scratch.numel() - start) // dtype.itemsize * dtype.itemsize
            return scratch[start:start + usable].view(dtype)
        value = call.slots[value.slot] if isinstance(value, SlotRef) else call.size(value)
        if isinstance(value, torch.Tensor) != kind.startswith("*"):
            raise TypeError(f"kernel {step.name} takes a {kind}, not {type(value).__name__}")
        return value

    def run(call: _Call) -> None:
        arguments = [argument(call, value, kind)
                     for value, (_, kind) in zip(step.arguments, kernel.parameters, strict=True)]
        with torch.cuda.device(plan.device) if plan.device.type == "cuda" else contextlib.nullcontext():
            through_triton.launch(kernel, call.resolve(grid), arguments)
        for slot in seen:
            torch.autograd.graph.increment_version(call.slots[slot])

    return run


def _call_action(step: CallStep, plan: Plan) -> Callable[[_Call], None]:
    # users' operators may have no kernel below autograd
    skips_autograd = type(step.function) is torch._ops.OpOverload and step.function.namespace == "aten"
    is_sequence = step.multiple or len(step.slots) != 1

    def run(call: _Call) -> None:
        args, kwargs = call.fill(step.args), call.fill(step.kwargs)
        keys = contextlib.nullcontext() if skips_autograd else _callers_dispatch(call, plan)
        mode = contextlib.nullcontext() if step.grad is None else torch.set_grad_enabled(step.grad)
        with keys, mode:
            result = step.function(*args, **kwargs)
        if not is_sequence:
            call.slots[step.slots[0]] = result  # type: ignore[index]
        elif step.slots:
            parts = list(result)
            if len(parts) < len(step.slots):
                raise RuntimeError(
                    f"{step_name(step)} returned {len(parts)} values where the program takes {len(step.slots)}"
                )
            for slot, part in zip(step.slots, parts, strict=False):
                if slot is not None:
                    call.slots[slot] = part

    return run


def _callers_dispatch(call: _Call, plan: Plan) -> contextlib.AbstractContextManager[Any]:
    """The dispatcher as the caller left it, for what must see autograd as the caller does."""
    return contextlib.nullcontext() if plan.autograd else torch._C._ForceDispatchKeyGuard(*call.caller_keys)


def step_name(step: CallStep) -> str:
    """A short name of what a CallStep calls."""
    if isinstance(step.function, torch._ops.OpOverload):
        return str(step.function)
    return getattr(step.function, "__name__", None) or repr(step.function)


def plan_text(plan: Plan) -> str:
    """The program as readable text, one step per line: `%3` is slot 3, `n2` entry 2 of the size table."""
    lines = []
    for index, binding in enumerate(plan.symbols):
        lines.append(f"s{index} = {_place_text(binding)}")
    if plan.n_sizes:
        lines.append(f"n0..n{plan.n_sizes - 1} = sizes({', '.join(f's{i}' for i in range(len(plan.symbols)))})")
    if plan.workspace != 0:
        lines.append(f"workspace {_text(plan.workspace)} bytes")
    lines.extend(step_text(step) for step in plan.steps)
    inputs = ", ".join(f"%{slot}" for slot in range(plan.n_inputs))
    outputs = ", ".join(f"%{slot}" for slot in plan.outputs)
    body = "\n".join(f"    {line}" for line in lines)
    return f"program({inputs}){' with autograd' if plan.autograd else ''}:\n{body}\n    return {outputs}"


def step_text(step: Step) -> str:
    """A step as a line of text."""
    if isinstance(step, AllocStep):
        dtype = str(step.dtype).removeprefix("torch.")
        return f"%{step.slot} = alloc {dtype}{_text(list(step.shape))} stride {_text(list(step.stride))} {step.device}"
    if isinstance(step, KernelStep):
        writes = f" writes {', '.join(f'%{slot}' for slot in step.writes)}" if step.writes else ""
        return f"kernel {step.name}({', '.join(_text(pointer) for pointer in step.pointers)}){writes}"
    if isinstance(step, LaunchStep):
        writes = f" writes {', '.join(f'%{slot}' for slot in step.writes)}" if step.writes else ""
        grid, arguments = _text(list(step.grid)), ", ".join(_text(argument) for argument in step.arguments)
        return f"launch {step.name}{grid}({arguments}){writes}"
    if isinstance(step, CallStep):
        given = [_text(arg) for arg in step.args] + [f"{key}={_text(arg)}" for key, arg in step.kwargs.items()]
        targets = ", ".join("_" if slot is None else f"%{slot}" for slot in step.slots)
        targets += "," if step.multiple and len(step.slots) == 1 else ""
        grad = "" if step.grad is None else f" grad={step.grad}"
        return f"{targets}{' = ' if targets else ''}call {step_name(step)}({', '.join(given)}){grad}"
    if isinstance(step, ViewStep):
        offset = f"{'+' if step.relative else ''}{_text(step.offset)}"
        shape, stride = _text(list(step.shape)), _text(list(step.stride))
        return f"%{step.slot} = view %{step.base} {shape} stride {stride} at {offset}"
    if isinstance(step, CopyStep):
        return f"copy %{step.source} into %{step.target}"
    if isinstance(step, BindStep):
        return _bind_text(step)
    return f"free {', '.join(f'%{slot}' for slot in step.slots)}"


def _bind_text(step: BindStep) -> str:
    parts = [f"s{symbol.number} = {_place_text(symbol.place)}" for symbol in step.symbols]
    if step.entries:
        parts.append(f"{', '.join(f'n{entry}' for entry in step.entries)} = sizes()")
    return "; ".join([*parts, *(f"check n{entry}: {text}" for entry, text in step.checks)])


def _place_text(binding: SymbolBinding) -> str:
    what = "" if binding.dim is None else f".{'stride' if binding.stride else 'size'}({binding.dim})"
    return f"%{binding.slot}{what}"


def _text(value: Any) -> str:
    if isinstance(value, SlotRef):
        return f"%{value.slot}"
    if isinstance(value, SizeRef):
        return f"n{value.index}"
    if isinstance(value, Workspace):
        return f"workspace+{_text(value.offset)}"
    if type(value) is tuple:
        return f"({', '.join(_text(item) for item in value)}{',' if len(value) == 1 else ''})"
    if type(value) is list:
        return f"[{', '.join(_text(item) for item in value)}]"
    if type(value) is dict:
        return f"{{{', '.join(f'{key!r}: {_text(item)}' for key, item in value.items())}}}"
    if isinstance(value, torch.Tensor):
        return f"<{str(value.dtype).removeprefix('torch.')}{list(value.shape)}>"
    return repr(value)


beside_dynamo.hide_all(globals())
