"""The facts about a value in the graph before it runs: tensors and host scalars."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from .algebra import sympy

#: One size, stride or offset: a plain int, or a sympy expression over a `SizeEnv`'s symbols.
Dim: TypeAlias = int | sympy.Expr

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, eq=True)
class TensorSpec:
    """A tensor's metadata.

    `shape` and `stride` are tuples of `Dim` of equal length (stride in elements), `offset` the storage
    offset in elements. `requires_grad` is what eager's `t.requires_grad` would read at this point.
    """

    dtype: torch.dtype
    shape: tuple[Dim, ...]
    stride: tuple[Dim, ...]
    device: torch.device = CPU
    requires_grad: bool = False
    offset: Dim = 0

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> Dim:
        return prod(self.shape)

    @property
    def is_static(self) -> bool:
        return all(type(d) is int for d in self.shape) and all(type(d) is int for d in self.stride)

    @property
    def nbytes(self) -> Dim:
        return self.numel * self.dtype.itemsize

    def is_contiguous(self) -> bool:
        """Whether the strides are those of a fresh row-major tensor (axes of size 1 do not count)."""
        expected: Dim = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size == 1:
                continue
            if stride != expected:
                return any(d == 0 for d in self.shape)
            expected = expected * size
        return True

    def swapped(self) -> TensorSpec:
        """The spec of a view with the last two axes swapped."""
        return self.with_(**{name: (*value[:-2], value[-1], value[-2])
                             for name, value in (("shape", self.shape), ("stride", self.stride))})

    def with_(self, **changes: object) -> TensorSpec:
        """A copy with some fields replaced."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        text = f"{name}[{', '.join(map(str, self.shape))}]"
        if self.stride != contiguous_stride(self.shape):
            text += f" stride=[{', '.join(map(str, self.stride))}]"
        if self.device.type != "cpu":
            text += f" {self.device}"
        return text + (" grad" if self.requires_grad else "")


@dataclass(frozen=True, slots=True)
class ScalarSpec:
    """A Python number that is computed while the graph runs: `kind` is `int`, `float`, `bool` or `complex`.

    `expr` is set for graph inputs that stand for a symbol of the `SizeEnv` (an int argument made
    dynamic): other nodes then mention the symbol itself.
    """

    kind: type
    expr: sympy.Expr | None = None

    def __str__(self) -> str:
        return f"{self.kind.__name__}" + (f"={self.expr}" if self.expr is not None else "")


#: The values that a node may produce. A tuple is a multi-output op; `None` is an op run for its effect, or an
#: output that the op leaves undefined; `list`-returning ops have tuples as well.
Spec = TensorSpec | ScalarSpec | None | tuple["Spec", ...]


def prod(sizes: Iterable[Dim]) -> Dim:
    """The product of sizes, an int wherever all are."""
    result: Dim = 1
    for size in sizes:
        result = result * size
    return result


def contiguous_stride(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Row-major strides as torch gives a fresh tensor: sizes of 0 count as 1."""
    strides: list[Dim] = []
    step: Dim = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * (size if not isinstance(size, int) else max(size, 1))
    return tuple(reversed(strides))


def contiguous_spec(
    dtype: torch.dtype,
    shape: tuple[Dim, ...],
    device: torch.device = CPU,
    requires_grad: bool = False,
) -> TensorSpec:
    """The spec of a fresh row-major tensor."""
    return TensorSpec(dtype, shape, contiguous_stride(shape), device, requires_grad)
