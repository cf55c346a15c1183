"""Launches of Triton kernels that the program wrote: one op of the graph each.

The op works on copies of what the kernel writes to, and says how to work on the memory itself (`InPlace`). A plan calls
the kernel through Triton, or, on a GPU, launches its machine code as it does jitpy's own kernels (`UserKernel`).
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch

from jitpy import logs
from jitpy.ir import Node, Op, ScalarSpec
from jitpy.ir.ops.functional import InPlace, Making, copied
from jitpy.runtime.native_build import NativeUnavailable, load_native

from . import stores, worker
from .compile import Binary, KernelCompileError, Target
from .through_triton import POINTEES

OP_NAME = "ir.triton_kernel"

#: Triton's names of pointers, by dtype
_POINTERS = {dtype: f"*{name}" for name, dtype in POINTEES.items() if name != "u8"} | {torch.uint8: "*u8"}
#: ints divisible by this, and addresses, are compiled for that
_DIVISOR = 16


@dataclass(frozen=True, slots=True)
class Place:
    """Where a parameter's argument is: among the node's `tensors` or `numbers`, or a `constant` of the launch."""

    kind: str
    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """One launch in the program's code.

    kernel      what the program launches: a `JITFunction`, an interpreted function or an `Autotuner`
    positional  names of the parameters that it passes by position; the others come as keywords
    places      by parameter
    options     what else it passes (`num_warps`, ...)
    configs     for an `Autotuner` the parameters that each configuration sets: the node has a grid for each, in order
    tensors     the dtypes of the node's tensors
    """

    kernel: Any
    name: str
    positional: tuple[str, ...]
    places: dict[str, Place]
    options: dict[str, Any]
    configs: tuple[dict[str, Any], ...] | None
    tensors: tuple[torch.dtype, ...]

    def __repr__(self) -> str:
        return self.name

    def call(self, grids: Sequence[Sequence[int]], tensors: Sequence[torch.Tensor], numbers: Sequence[Any]) -> None:
        """Launch the kernel through Triton."""
        if self.configs is None and 0 in grids[0]:
            return
        sources = {"tensor": tensors, "number": numbers}
        values = {name: place.value if place.kind == "constant" else sources[place.kind][place.value]
                  for name, place in self.places.items()}
        args = [values.pop(name) for name in self.positional]
        grid: Any = tuple(grids[0])
        if self.configs is not None:
            def grid(meta: dict[str, Any]) -> tuple[int, ...]:
                return tuple(grids[self._config_of(meta)])

        self.kernel.run(*args, grid=grid, warmup=False, **values, **self.options)

    def _config_of(self, meta: dict[str, Any]) -> int:
        assert self.configs is not None
        return next(k for k, config in enumerate(self.configs) if all(meta[n] == v for n, v in config.items()))

    # -- for Triton's compiler

    def signature(self, chosen: dict[str, Any], numbers: Sequence[Any], wide: bool = False,
                  ) -> tuple[Any, dict[str, str], dict[str, Any]]:
        """The function, the types of its parameters, and the values of those that are no arguments of its machine code;
        `chosen` are parameters of a configuration. Sizes in `numbers` are ints of 32 bits, or with `wide` of 64.
        Raises ValueError for arguments that this module does not know."""
        function = _innermost(self.kernel)
        types: dict[str, str] = {}
        constants: dict[str, Any] = {}
        for number, parameter in enumerate(function.params):
            name = parameter.name
            place = self.places.get(name)
            if place is None:
                if name not in chosen and not parameter.has_default:
                    raise ValueError(f"nothing is known of {name}")
                place = Place("constant", chosen[name] if name in chosen else parameter.default)
            if place.kind == "tensor":
                types[name] = _POINTERS[self.tensors[place.value]]
                continue
            value = place.value if place.kind == "constant" else numbers[place.value]
            if number in function.constexprs or value is None:
                types[name], constants[name] = "constexpr", value
            elif type(value) is int and value == 1 and not parameter.do_not_specialize:
                types[name], constants[name] = "constexpr", 1
            else:
                types[name] = _type_of(value, wide)
        return function, types, constants

    def written(self, numbers: Sequence[Any]) -> tuple[int, ...]:
        """Which of the tensors the kernel writes to."""
        found: set[str] = set()
        for chosen in self.configs or ({},):
            found |= self._written_with(chosen, numbers)
        places = {self.places[name].value for name in found if name in self.places and
                  self.places[name].kind == "tensor"}
        return tuple(sorted(places))

    def _written_with(self, chosen: dict[str, Any], numbers: Sequence[Any]) -> frozenset[str]:
        pointers = frozenset(name for name, place in self.places.items() if place.kind == "tensor")
        try:
            function, types, constants = self.signature(chosen, numbers)
            return _written(function, function.cache_key, tuple(types.items()), _Constants(constants)) & pointers
        except Exception as error:  # Triton raises what it likes for kernels that it cannot read
            logs.log("fusion", f"{self.name} is taken to write to all of its tensors: {error}")
            return pointers


class _Constants(dict[str, Any]):
    """Constants as part of a cache's key."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple((name, type(value)) for name, value in self.items()))


@functools.lru_cache(maxsize=4096)
def _written(function: Any, key: str, types: tuple[tuple[str, str], ...], constants: _Constants) -> frozenset[str]:
    from triton.backends.compiler import GPUTarget

    text = stores.ttir_of(function, dict(types), dict(constants), GPUTarget("cuda", 90, 32))
    return stores.written_through(text, [name for name, kind in types if kind != "constexpr"])


def _innermost(kernel: Any) -> Any:
    """The function below tuners and heuristics, as Triton compiles it."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    while not isinstance(kernel, (JITFunction, InterpretedFunction)):
        kernel = kernel.fn
    return stores.without_interpreter(kernel)


def _type_of(value: Any, wide: bool) -> str:
    """Triton's type of a number; anything but a Python number is one that the graph computes, or a size."""
    if type(value) is bool:
        return "i1"
    if type(value) is float:
        return "fp32"
    if type(value) is int:
        if -(1 << 63) <= value < 1 << 63:
            return "i64" if wide or not -(1 << 31) <= value < 1 << 31 else "i32"
        raise ValueError(f"{value} as an argument of a kernel")
    if isinstance(value, Node):
        assert isinstance(value.spec, ScalarSpec)
        return "i1" if value.spec.kind is bool else "fp32" if value.spec.kind is float else "i64"
    if type(value) in (str, tuple, list, dict):
        raise ValueError(f"a {type(value).__name__} as an argument of a kernel")
    return "i64" if wide else "i32"


def op_of(launch: Launch, written: tuple[int, ...]) -> Op:
    """The op of a launch: `op(grids, tensors, numbers)` gives the new values of what the kernel writes to."""

    def functional(grids: Any, tensors: Any, numbers: Any) -> Any:
        own = list(tensors)
        for place in written:
            own[place] = copied(own[place])
        launch.call(grids, own, numbers)
        return tuple(own[place] for place in written)

    def infer(env: Any, grids: Any, tensors: Any, numbers: Any) -> Any:
        return tuple(tensors[place].with_(requires_grad=False, offset=0) for place in written)

    in_place = InPlace(launch.call, tuple((1, place) for place in written),
                       functools.partial(_launch_step, launch))
    return Op(OP_NAME, functional, infer=infer, in_place=in_place, differentiable=False)


# -- launched natively


@dataclass(eq=False, slots=True)
class UserKernel:
    """A kernel of the program's for arguments of these types; what a `LaunchStep` asks of a `GpuKernel`."""

    function: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    divisible: frozenset[str]
    options: dict[str, Any]
    source: str = ""
    _binaries: dict[Target, Future[Binary]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.function.__name__)

    @property
    def parameters(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, kind) for name, kind in self.signature.items() if kind != "constexpr")

    def without_facts(self) -> UserKernel:
        return dataclasses.replace(self, divisible=frozenset(), _binaries={}) if self.divisible else self

    def submit(self, target: Target) -> Future[Binary]:
        """As `compile.submit`. Triton compiles it here, and keeps it."""
        found = self._binaries.get(target)
        if found is None:
            found = self._binaries[target] = Future()
            try:
                found.set_result(self._compiled(target))
            except Exception as error:
                found.set_exception(KernelCompileError(f"kernel {self.name}: {error}"))
        return found

    def _compiled(self, target: Target) -> Binary:
        import triton
        from triton.backends.compiler import GPUTarget

        attributes = {(index,): [["tt.divisibility", _DIVISOR]]
                      for index, name in enumerate(self.signature) if name in self.divisible}
        source = triton.compiler.ASTSource(self.function, self.signature, self.constants, attributes)
        with _compiling:
            compiled = triton.compile(source, target=GPUTarget(target.backend, target.arch, target.warp_size),
                                      options=dict(self.options))
        facts, code, text = worker.binary_of(compiled, self.name, len(self.parameters), target.backend,
                                             target.warp_size)
        return Binary(self, self.name, code, text, overlaps=False, cluster=1, **facts)  # type: ignore[arg-type]


_compiling = threading.Lock()


def _launch_step(launch: Launch, recorded: tuple[Any, ...], given: tuple[Any, ...], making: Making) -> list[Any]:
    """A step that launches the kernel natively, or none where Triton has to. See `InPlace.step`."""
    from ..plan import LaunchStep
    from .load import target_of

    hint, device = making.hint, making.device
    if device.type != "cuda" or torch.version.hip is not None:
        return []
    grids, tensors, numbers = given
    try:
        load_native("runtime")
        best = _tuned(launch, recorded, hint, device)
        usual, general = variants(launch, recorded[2], hint, best)
        usual.submit(target_of(device)).result()
    except (NativeUnavailable, KernelCompileError, ValueError, KeyError) as error:
        logs.log("fusion", f"{launch.name} is launched by Triton: {error}")
        return []
    sources = {"tensor": tensors, "number": numbers}
    arguments = []
    chosen = {} if launch.configs is None else launch.configs[best]
    for name, _ in usual.parameters:
        place = launch.places.get(name)
        if place is None:
            parameter = usual.function.params[usual.function.arg_names.index(name)]
            place = Place("constant", chosen[name] if name in chosen else parameter.default)
        value = place.value if place.kind == "constant" else sources[place.kind][place.value]
        arguments.append(int(value) if type(value) is bool else value)
    return [LaunchStep(usual, tuple(grids[best]), tuple(arguments), launch.name, making.writes,  # type: ignore[arg-type]
                       general)]  # type: ignore[arg-type]


def _tuned(launch: Launch, recorded: tuple[Any, ...], hint: Callable[[Any], int], device: torch.device) -> int:
    """Which configuration is the best for tensors of these sizes, full of zeros: Triton measures them where it has not
    yet. ValueError where a number is missing, or Triton fails."""
    if launch.configs is None or len(launch.configs) == 1:
        return 0
    grids, nodes, numbers = recorded
    if any(isinstance(number, Node) for number in (*numbers, *(size for grid in grids for size in grid))):
        raise ValueError("a number that the graph computes")
    tensors = []
    for node in nodes:
        spec = node.tensor
        made = torch.empty_strided(tuple(map(hint, spec.shape)), tuple(map(hint, spec.stride)), dtype=spec.dtype,
                                   device=device)
        made.untyped_storage().fill_(0)  # type: ignore[attr-defined]
        tensors.append(made)
    try:
        with torch.cuda.device(device):
            launch.call([tuple(map(hint, grid)) for grid in grids], tensors,
                        [number if isinstance(number, (bool, float)) else hint(number) for number in numbers])
        return int(launch.kernel.configs.index(launch.kernel.best_config))
    except Exception as error:  # of any kind: a kernel that was never compiled before
        raise ValueError(str(error)) from error


def variants(launch: Launch, numbers: Sequence[Any], hint: Callable[[Any], int], best: int = 0,
             ) -> tuple[UserKernel, UserKernel]:
    """The kernel for arguments like the captured ones, and the one for any."""
    from triton import knobs

    options, chosen = launch.options, {}
    if launch.configs is not None:
        chosen, config = launch.configs[best], launch.kernel.configs[best]
        options = options | {name: value for name, value in config.all_kwargs().items() if name not in config.kwargs}
    function, types, constants = launch.signature(chosen, numbers)
    if function.debug or knobs.runtime.debug:
        options = {"debug": True, **options}
    divisible = set()
    for parameter in function.params:
        name, place = parameter.name, launch.places.get(parameter.name)
        if place is None or name in constants:
            continue
        if parameter.do_not_specialize or parameter.do_not_specialize_on_alignment:
            continue
        if place.kind == "tensor" or _is_divisible(numbers[place.value], hint):
            divisible.add(name)
    _, wide, _ = launch.signature(chosen, numbers, wide=True)
    return (UserKernel(function, types, constants, frozenset(divisible), options),
            UserKernel(function, wide, constants, frozenset(), options))


def _is_divisible(number: Any, hint: Callable[[Any], int]) -> bool:
    """Whether a number is usually divisible by 16."""
    if isinstance(number, (bool, float, Node)):
        return False
    return hint(number) % _DIVISOR == 0


class SameKernel:
    """Whether a `JITFunction` is what it was when it was compiled, as Triton itself asks at each launch."""

    def __init__(self, function: Any) -> None:
        self.key = function.cache_key
        self.used = [(name, value, space) for (name, _), (value, space) in function.used_global_vals.items()]

    def __call__(self, function: Any) -> bool:
        return function.hash == self.key and not function.pre_run_hooks and all(
            name in space and bool(space[name] == value) for name, value, space in self.used)


__all__ = ["OP_NAME", "Launch", "Place", "SameKernel", "UserKernel", "op_of"]
