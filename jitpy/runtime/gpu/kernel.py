"""A backend's description of one Triton kernel."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

#: what a constexpr may be: values whose `repr` is their source
Constant = int | float | bool | str | None


@dataclass(frozen=True, slots=True)
class GpuKernel:
    """Triton source with all that decides what it compiles to. Equal kernels compile once.

    `source` is the text of a module that imports what it uses (`triton`, `triton.language as tl`) and defines the
    `@triton.jit` function `name`, with helpers if need be. `signature` lists all of its parameters in order with their
    Triton types: `*fp32`, `*bf16`, `*i1`, ... for pointers, `i1`, `i32`, `i64`, `fp32`, `fp64` for numbers, `constexpr`
    for those that `constexprs` has the values of. `divisible` names the pointers (in bytes) and ints that are divisible
    by 16, and so make wide loads possible; launches check it.
    """

    source: str
    name: str
    signature: tuple[tuple[str, str], ...]
    constexprs: tuple[tuple[str, Constant], ...] = ()
    divisible: frozenset[str] = frozenset()
    num_warps: int = 4
    num_stages: int = 3
    #: contract a * b + c to one rounding, as nvcc does for eager's kernels
    fp_fusion: bool = True
    #: at most this many registers a thread; None leaves it to the compiler
    max_registers: int | None = None
    #: libdevice's functions may take numbers below 2**-126 as zero: much shorter code
    flush_tiny: bool = False
    #: whether `tl.device_assert` counts: a failure stops the kernel with CUDA's error, as in eager's kernels
    checks: bool = False
    #: it may begin before the launch in front of it has ended, and waits for its results itself (`HOPPER`)
    overlaps: bool = False
    #: programs, one after another, that run side by side and can wait for each other (`has_clusters`)
    cluster: int = 1

    def __post_init__(self) -> None:
        names = [name for name, _ in self.signature]
        constants = {name for name, kind in self.signature if kind == "constexpr"}
        given = {name for name, _ in self.constexprs}
        if len(set(names)) != len(names) or constants != given or not self.divisible <= set(names) - constants:
            raise ValueError(f"kernel {self.name}: parameters {names}, constexprs {sorted(given)} and divisible "
                             f"{sorted(self.divisible)} do not agree")

    @property
    def parameters(self) -> tuple[tuple[str, str], ...]:
        """The parameters that a launch passes: those that are no constexpr."""
        return tuple((name, kind) for name, kind in self.signature if kind != "constexpr")

    def without_facts(self) -> GpuKernel:
        """The kernel for arguments that are not divisible by 16."""
        return dataclasses.replace(self, divisible=frozenset()) if self.divisible else self
