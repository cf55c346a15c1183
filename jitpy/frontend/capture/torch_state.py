"""The modes of torch as the traced program sees them, and the functions that read and set them.

`TorchState` starts as a copy of the process's modes, under a guard; setting a mode while tracing changes the copy
only, and the interpreter replays what changed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from jitpy.ir import interrupts

from ...runtime.tensor_facts import asks_classes
from ..guards.guard_set import Answers, GuardSet, TorchStateGuard
from ..guards.source import constant
from .default_devices import FunctionModes, function_modes
from .traced import Uncapturable

_NAMES = (
    "grad_enabled", "inference_mode", "autocast_cache_enabled", "autocast_nesting", "hooks_registered",
    "attention", "generator_writes",
)

#: Device types whose autocast mode is tracked.
_AUTOCAST_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class AutocastState:
    """Autocast for one device type."""

    enabled: bool
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class AutocastNesting:
    """Regions of autocast entered and left since the start of the frame.

    Torch forgets the weights that it has cast where the outermost region ends, or where it is told to.
    """

    #: regions that were open when the frame was traced; nothing that is replayed depends on it
    open: int
    #: regions entered less those left
    depth: int = 0
    #: the least depth there was: how many of the regions that were open at the start have ended
    floor: int = 0
    forgotten: bool = False


class TorchState:
    """Modes that change what torch calls do.

    grad_enabled, inference_mode, autocast (device type -> AutocastState), autocast_cache_enabled,
    autocast_nesting, hooks_registered, attention. Default dtypes and devices are those of the frame's start.

    `initial` is the state at the start of the frame, `changes()` what the interpreter has to replay.
    """

    def __init__(self, guards: GuardSet, journal: list[Callable[[], None]]) -> None:
        self._journal = journal
        self.grad_enabled = torch.is_grad_enabled()
        #: how often the program has asked whether grad mode is on, or whether a tensor requires grad
        self.grad_questions = 0
        #: how often code has asked for grad mode or autocast, but for torch's own blocks of these
        self.mode_questions = 0
        self.inference_mode = torch.is_inference_mode_enabled()
        self.default_dtype = torch.get_default_dtype()
        self.deterministic = torch.are_deterministic_algorithms_enabled()
        #: torch-function modes at the start of the frame
        self.function_modes: FunctionModes = function_modes()
        self.autocast = {
            kind: AutocastState(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in _AUTOCAST_DEVICES
        }
        self.autocast_cache_enabled = torch.is_autocast_cache_enabled()
        self.autocast_nesting = AutocastNesting(torch.autocast_increment_nesting() - 1)
        torch.autocast_decrement_nesting()
        #: which kernels scaled_dot_product_attention may be; under a guard once it matters: see `guard_attention`
        self.attention = attention_switches()
        #: handles of hooks that were made since the start of the frame: torch numbers them
        self.hooks_registered = 0
        #: how often a generator was seeded or given a state: nodes do that, and what may not have effects looks here
        self.generator_writes = 0
        #: seeds that generators were given since the start of the frame, where they are known
        self.seeds: dict[torch.Generator, int] = {}
        #: how many transforms of torch.func the function that is being traced is under
        self.transforms = 0
        #: whether the innermost of them is vmap
        self.batched = False
        #: whether the function that is being traced computes one element: there `x[i]` reads at a place that a tensor
        #: tells, and is no view
        self.of_element = False
        #: whether classes are asked for `__torch_function__`, but for the program's blocks that keep them from it; how
        #: many of these blocks are open, and how many `__torch_dispatch__` are running
        self.asks_classes = asks_classes()
        self.function_blocks = 0
        self.below_autograd = 0
        #: whether torch calls mean something else here, so that none can be captured
        self.is_foreign = _is_foreign(self)
        self.initial = self.snapshot()
        guards.add(None, "state", current_state_guard())
        if self.function_modes.contexts:
            guards.add(constant(torch, "torch"), "python", self.function_modes, "with torch.device(...)")

    def snapshot(self) -> dict[str, Any]:
        """Every mode by name."""
        return {**{name: getattr(self, name) for name in _NAMES}, "autocast": dict(self.autocast)}

    def set(self, name: str, value: Any) -> None:
        """Set a mode for the calls that follow. ValueError for a name that is no mode."""
        if name not in _NAMES and name != "autocast":
            raise ValueError(f"no torch mode {name!r}; the modes are: {', '.join((*_NAMES, 'autocast'))}")
        before = getattr(self, name)
        self._journal.append(lambda: setattr(self, name, before))
        setattr(self, name, value)

    @contextlib.contextmanager
    def grad_mode(self, enabled: bool) -> Iterator[None]:
        """The calls of a block run with grad mode on or off."""
        before = self.grad_enabled
        if enabled != before:
            self.set("grad_enabled", enabled)
        try:
            yield
        finally:
            if self.grad_enabled != before:
                self.set("grad_enabled", before)

    def set_seeds(self, seeds: dict[torch.Generator, int]) -> None:
        """The known seeds of generators from here on."""
        before = self.seeds
        self._journal.append(lambda: setattr(self, "seeds", before))
        self.seeds = seeds

    def changes(self) -> dict[str, Any]:
        """The modes that differ from those at the start of the frame."""
        return {name: value for name, value in self.snapshot().items()
                if value != self.initial[name] and name != "generator_writes"}

    def key(self) -> tuple[Any, ...]:
        """The key of a cached recording, as a hashable."""
        return (self.grad_enabled, self.inference_mode, self.default_dtype, self.deterministic, *self.autocast.values())

    @property
    def device_of_factories(self) -> torch.device | None:
        """Where factories make tensors that are told no device; None for the CPU by nobody's choice."""
        modes = self.function_modes
        return modes.contexts[-1] if modes.contexts else modes.default_device

    @property
    def autocast_enabled(self) -> bool:
        """Whether autocast is on for any device type."""
        return any(state.enabled for state in self.autocast.values())

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Make the process run under this state for a block (casts are not cached); signal handlers wait."""
        with interrupts.held(), contextlib.ExitStack() as stack:
            if self.inference_mode != torch.is_inference_mode_enabled():
                stack.enter_context(torch.inference_mode(self.inference_mode))
            stack.enter_context(_restored_grad_mode())
            torch._C._set_grad_enabled(self.grad_enabled)
            for kind, state in self.autocast.items():
                if state.enabled or torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, state.dtype, state.enabled, cache_enabled=False))
            yield


def _is_foreign(state: TorchState) -> bool:
    """Whether torch-function modes (other than default devices), dispatch modes, torch.func transforms, forward-mode
    gradients or an op's own implementation (below autograd) stand between a torch call and what it normally does; or
    whether grad mode is on in inference mode, where nothing has a history."""
    below_autograd = torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradCPU)
    return (
        state.function_modes.others > 0
        or torch._C._len_torch_dispatch_stack() > 0
        or below_autograd and not state.inference_mode
        or state.inference_mode and state.grad_enabled
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


@contextlib.contextmanager
def _restored_grad_mode() -> Iterator[None]:
    before = torch.is_grad_enabled()
    try:
        yield
    finally:
        torch._C._set_grad_enabled(before)


def current_state_guard() -> TorchStateGuard:
    """The process's present modes as a guard's argument."""
    device = torch.utils._device.CURRENT_DEVICE
    return TorchStateGuard(
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _AUTOCAST_DEVICES),
        torch.are_deterministic_algorithms_enabled(),
        None if device is None else str(device),
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
        torch.autograd.forward_ad._current_level >= 0,
        asks_classes(),
    )


# -- functions that read or set modes: (graph builder, args, kwargs) -> payload

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

torch_state_functions: dict[Any, Handler] = {}


def _handles(*functions: Any) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        for function in functions:
            torch_state_functions[function] = handler
        return handler

    return register


def _constant(value: Any, *functions: Any) -> None:
    for function in functions:
        torch_state_functions[function] = lambda builder, args, kwargs: value


def _arg(args: tuple[Any, ...], kwargs: dict[str, Any], index: int, name: str, default: Any = None) -> Any:
    return args[index] if len(args) > index else kwargs.get(name, default)


#: functions that read modes, and what each reads
_READS: dict[Any, Callable[[TorchState], Any]] = {
    torch.is_inference_mode_enabled: lambda state: state.inference_mode,
    torch.get_default_dtype: lambda state: state.default_dtype,
    torch.is_autocast_cpu_enabled: lambda state: state.autocast["cpu"].enabled,
    torch.get_autocast_cpu_dtype: lambda state: state.autocast["cpu"].dtype,
    torch.get_autocast_gpu_dtype: lambda state: state.autocast["cuda"].dtype,
    torch.is_autocast_cache_enabled: lambda state: state.autocast_cache_enabled,
    torch.are_deterministic_algorithms_enabled: lambda state: state.deterministic,
    # the program's own: under others nothing is captured
    torch._C._are_functorch_transforms_active: lambda state: state.transforms > 0,
}
torch_state_functions.update(
    (function, lambda builder, args, kwargs, read=read: read(builder.state)) for function, read in _READS.items())


@_handles(torch.is_grad_enabled)
def _is_grad_enabled(builder: Any, args: Any, kwargs: Any) -> bool:
    builder.state.grad_questions += 1
    return builder.state.grad_enabled


@_handles(torch._C._set_grad_enabled)
def _set_grad_enabled(builder: Any, args: Any, kwargs: Any) -> None:
    enabled = args[0]
    if not isinstance(enabled, bool):
        raise Uncapturable("unsupported_call", "grad mode set to something that is no bool")
    if enabled and builder.state.inference_mode:
        raise Uncapturable("unsupported_call", "grad mode on in inference mode: what that makes has no history")
    builder.state.set("grad_enabled", enabled)


@_handles(torch.is_autocast_enabled)
def _is_autocast_enabled(builder: Any, args: Any, kwargs: Any) -> bool:
    kind = _arg(args, kwargs, 0, "device_type", "cuda")
    if kind in _AUTOCAST_DEVICES or not isinstance(kind, str):
        return builder.state.autocast[_autocast_device(kind)].enabled
    enabled = torch.is_autocast_enabled(kind)
    same = Answers(lambda _: torch.is_autocast_enabled(kind), enabled)
    builder.guards.add(constant(torch, "torch"), "python", same, f"autocast on {kind!r}")
    return enabled


@_handles(torch.get_autocast_dtype)
def _get_autocast_dtype(builder: Any, args: Any, kwargs: Any) -> torch.dtype:
    return builder.state.autocast[_autocast_device(_arg(args, kwargs, 0, "device_type"))].dtype


def _autocast_device(kind: Any) -> str:
    if kind not in _AUTOCAST_DEVICES:
        raise Uncapturable("unsupported_call", f"autocast on {kind!r}")
    return kind


def _change_autocast(builder: Any, kind: Any, **changes: Any) -> None:
    kind = _autocast_device(kind)
    before = builder.state.autocast[kind]
    after = AutocastState(changes.get("enabled", before.enabled), changes.get("dtype", before.dtype))
    builder.state.set("autocast", {**builder.state.autocast, kind: after})


@_handles(torch.set_autocast_enabled)
def _set_autocast_enabled(builder: Any, args: Any, kwargs: Any) -> None:
    if len(args) + len(kwargs) == 1:
        args = ("cuda", *args)
    _change_autocast(builder, _arg(args, kwargs, 0, "device_type"), enabled=bool(_arg(args, kwargs, 1, "enabled")))


@_handles(torch.set_autocast_dtype)
def _set_autocast_dtype(builder: Any, args: Any, kwargs: Any) -> None:
    _change_autocast(builder, _arg(args, kwargs, 0, "device_type"), dtype=_arg(args, kwargs, 1, "dtype"))


@_handles(torch.set_autocast_cache_enabled)
def _set_autocast_cache_enabled(builder: Any, args: Any, kwargs: Any) -> None:
    builder.state.set("autocast_cache_enabled", bool(args[0]))


@_handles(torch.autocast_increment_nesting)
def _autocast_increment_nesting(builder: Any, args: Any, kwargs: Any) -> int:
    nesting = builder.state.autocast_nesting
    builder.state.set("autocast_nesting", replace(nesting, depth=nesting.depth + 1))
    return nesting.open + nesting.depth + 1


@_handles(torch.autocast_decrement_nesting)
def _autocast_decrement_nesting(builder: Any, args: Any, kwargs: Any) -> int:
    nesting = builder.state.autocast_nesting
    depth = nesting.depth - 1
    builder.state.set("autocast_nesting", replace(nesting, depth=depth, floor=min(depth, nesting.floor)))
    return nesting.open + depth


@_handles(torch.clear_autocast_cache)
def _clear_autocast_cache(builder: Any, args: Any, kwargs: Any) -> None:
    nesting = builder.state.autocast_nesting
    if nesting.open + nesting.depth != 0:  # else the last region has just ended, which says it already
        builder.state.set("autocast_nesting", replace(nesting, forgotten=True))


# -- kernels of scaled_dot_product_attention

#: Names of the kernels among torch's functions, and those that CPUs have.
KERNELS = ("flash", "mem_efficient", "math", "cudnn", "overrideable")
_ON_CPUS = ("flash", "math")
_READERS = tuple(getattr(torch._C, f"_get_{name}_sdp_enabled") for name in KERNELS)
_WRITERS = tuple(getattr(torch._C, f"_set_sdp_use_{name}") for name in KERNELS)

#: Whether each of them is allowed. The order in which torch tries them is no part of it: torch settles that at a
#: process's first attention on a GPU, and all that it decides is which of the kernels that fit runs.
AttentionSwitches = tuple[bool, ...]


def attention_switches() -> AttentionSwitches:
    """Which kernels the process allows now."""
    return tuple([read() for read in _READERS])


def set_attention_switches(switches: AttentionSwitches) -> None:
    """Have the process allow these kernels."""
    for write, flag in zip(_WRITERS, switches, strict=True):
        write(flag)


def guard_attention(builder: Any, device: str = "") -> None:
    """The capture holds for the kernels that are allowed where the frame starts."""
    initial = zip(KERNELS, builder.state.initial["attention"], strict=True)
    asked = _ON_CPUS if device == "cpu" else KERNELS
    builder.guards.add(None, "attention", tuple((name, allowed) for name, allowed in initial if name in asked),
                        "the kernels that scaled_dot_product_attention may be")


def _attention_switch(place: int) -> None:
    def read(builder: Any, args: Any, kwargs: Any) -> bool:
        guard_attention(builder)
        return builder.state.attention[place]

    def write(builder: Any, args: Any, kwargs: Any) -> None:
        if len(args) != 1 or kwargs or not isinstance(args[0], bool):
            raise Uncapturable("unsupported_call", "a switch of attention's kernels set to something that is no bool")
        guard_attention(builder)
        allowed = builder.state.attention
        builder.state.set("attention", (*allowed[:place], args[0], *allowed[place + 1:]))

    torch_state_functions[_READERS[place]] = read
    torch_state_functions[_WRITERS[place]] = write


for _place in range(len(KERNELS)):
    _attention_switch(_place)


@_handles(torch.get_default_device)
def _get_default_device(builder: Any, args: Any, kwargs: Any) -> torch.device:
    device = builder.state.device_of_factories or torch.device("cpu")
    if device.index is None and device.type not in ("cpu", "meta"):
        raise Uncapturable("gpu_state", "the current device")
    return device


def _of_process(*functions: Any) -> None:
    """Questions about the machine and the build, whose answers do not change while a process runs."""
    for function in functions:
        torch_state_functions[function] = lambda builder, args, kwargs, f=function: f(*args, **kwargs)


_of_process(
    torch._C._get_privateuse1_backend_name, torch._C._is_autocast_available, torch.amp.is_autocast_available,
    torch.cuda.is_available, torch.cuda.device_count, torch.cuda.is_bf16_supported,
    torch.accelerator.current_accelerator, torch.cuda.amp.common.amp_definitely_not_available,
)


def _of_settings(*questions: Callable[[], Any]) -> None:
    """Questions about settings that no traced code changes: the functions that do break the graph."""

    def ask(builder: Any, args: Any, kwargs: Any, question: Callable[[], Any]) -> Any:
        if args or kwargs:
            raise Uncapturable("unsupported_call", f"{question.__name__} with arguments")
        answer = question()
        builder.guards.add(constant(torch, "torch"), "python", Answers(lambda _: question(), answer), question.__name__)
        return answer

    for question in questions:
        torch_state_functions[question] = functools.partial(ask, question=question)


_of_settings(
    torch.get_num_threads, torch.is_anomaly_enabled, torch.is_anomaly_check_nan_enabled,
    torch._C._get_float32_matmul_precision, torch._C._get_deterministic_algorithms_warn_only,
    torch._C._get_deterministic_fill_uninitialized_memory, torch._C._get_qengine, torch._C._get_cudnn_enabled,
    torch._C._get_cudnn_benchmark, torch._C._get_cudnn_deterministic, torch._C._get_cudnn_allow_tf32,
    torch._C._get_cublas_allow_tf32, torch._C._get_mkldnn_enabled, torch.distributed.is_available,
    *([torch.distributed.is_initialized] if torch.distributed.is_available() else ()),
)


def refuses(reason: str, detail: str, *functions: Any) -> None:
    """Functions that break the graph."""

    def handler(builder: Any, args: Any, kwargs: Any) -> Any:
        raise Uncapturable(reason, detail)

    for function in functions:
        torch_state_functions[function] = handler


refuses(
    "rng_state", "the state of a GPU's random generator is read or set", torch.cuda.get_rng_state,
    torch.cuda.get_rng_state_all, torch.cuda.set_rng_state, torch.cuda.set_rng_state_all, torch.cuda.manual_seed,
    torch.cuda.manual_seed_all, torch.cuda.seed, torch.cuda.initial_seed,
)
refuses(
    "gpu_state", "the host waits for the GPU", torch.cuda.synchronize, torch.accelerator.synchronize,
)
refuses(
    "gpu_state", "the current stream or device", torch.cuda.current_stream, torch.cuda.default_stream,
    torch.cuda.set_stream, torch.cuda.stream, torch.cuda.StreamContext.__enter__, torch.cuda.StreamContext.__exit__,
    torch.cuda.current_device, torch.cuda.set_device, torch.cuda.device.__enter__, torch.cuda.device.__exit__,
    torch.cuda.is_current_stream_capturing,
)
refuses(
    "gpu_state", "the allocator of the GPU's memory", torch.cuda.empty_cache, torch.cuda.mem_get_info,
    torch.cuda.memory_allocated, torch.cuda.max_memory_allocated, torch.cuda.memory_reserved,
    torch.cuda.max_memory_reserved, torch.cuda.memory_stats, torch.cuda.reset_peak_memory_stats,
)
refuses(
    "unsupported_call", "a process-wide mode is set", torch.use_deterministic_algorithms, torch.set_default_dtype,
    torch._C._set_default_dtype, torch.set_default_device, torch.device.__enter__, torch.device.__exit__,
)

_constant(True, torch.compiler.is_dynamo_compiling)
_constant(
    False, torch.jit.is_scripting, torch.jit.is_tracing, torch._C._is_tracing, torch.compiler.is_exporting,
)
_constant(None, torch._C._get_tracing_state)


@_handles(torch._C._is_torch_function_mode_enabled)
def _is_function_mode(builder: Any, args: Any, kwargs: Any) -> bool:
    return _function_modes(builder, args, kwargs) > 0


@_handles(torch._C._len_torch_function_stack)
def _function_modes(builder: Any, args: Any, kwargs: Any) -> int:
    modes = builder.state.function_modes
    return modes.others + len(modes.contexts) + (modes.default_device is not None)


@_handles(torch._C._len_torch_dispatch_stack)
def _dispatch_modes(builder: Any, args: Any, kwargs: Any) -> int:
    return torch._C._len_torch_dispatch_stack()  # under the state guard


def _apply_autocast(states: dict[str, AutocastState]) -> None:
    for device, state in states.items():
        torch.set_autocast_enabled(device, state.enabled)
        torch.set_autocast_dtype(device, state.dtype)


def _count_hooks(registered: int) -> None:
    torch.utils.hooks.RemovableHandle.next_id += registered


def _apply_nesting(nesting: AutocastNesting) -> None:
    if nesting.forgotten:
        torch.clear_autocast_cache()
    for _ in range(-nesting.floor):
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
    for _ in range(nesting.depth - nesting.floor):
        torch.autocast_increment_nesting()


_APPLIES: dict[str, Callable[[Any], None]] = {
    "grad_enabled": torch._C._set_grad_enabled, "autocast": _apply_autocast,
    "autocast_cache_enabled": torch.set_autocast_cache_enabled, "attention": set_attention_switches,
    "hooks_registered": _count_hooks, "autocast_nesting": _apply_nesting,
}


def apply_change(name: str, value: Any) -> None:
    """Give a mode of the process the value that it has at this point of the traced program (run by compiled code)."""
    if name not in _APPLIES:
        raise RuntimeError(f"the torch mode {name!r} was changed by traced code and cannot be replayed")
    _APPLIES[name](value)
