"""Random numbers that kernels draw themselves, the same ones that eager's CUDA kernels draw.

Those number the threads of their grid; each has a stream of Philox4x32-10 (Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3", 2011), whose key is the generator's seed and whose counter is (calls so far, number of the thread).
One call makes four numbers. Which thread draws for an element, and in which of its calls, is `Streams`. So a graph
draws the generator's state once (`ir.philox_state`: seed and offset, and the generator goes on by what eager would
have used), and everything else is a function of it: a mask need not be kept for the backward pass, it is drawn again.

    x -> aten.dropout(x, p)     becomes
    state = ir.philox_state(device, increment);  mask = ir.dropout_mask(state, x's shape, ...);  ir.masked(x, mask, p)

and `aten.rand`, `aten.randn` and their like become `ir.drawn` of a state: uniform numbers, or normal ones by the
formulas of Box and Muller, two from two, scaled and shifted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..op import NotCovered
from ..sizes import SizeEnv
from ..sizes_expr import floordiv, mod
from ..spec import Dim, TensorSpec
from .table import define

STATE, MASK, MASKED, DRAWN = "ir.philox_state", "ir.dropout_mask", "ir.masked", "ir.drawn"
UNIFORM, NORMAL = "uniform", "normal"

#: An angle for each number of 32 bits: 2 pi, as a float32, over their count.
ANGLE = 6.2831854820251465 * 2.0**-32
#: Threads of a block of eager's kernels, and numbers of a call.
_BLOCK, _LANES = 256, 4
_WORD = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Streams:
    """Who draws for which element: the threads of the grid, and how many neighbours each takes at a time.

    With `vector` 1 a call's four numbers are for elements that are `threads` apart; with 2 only two of them are used;
    else as many calls follow each other as the neighbours need."""

    threads: int
    vector: int

    def increment(self, elements: Dim) -> Dim:
        """How far the generator goes on."""
        return (floordiv(elements - 1, self.threads * _LANES) + 1) * _LANES


def streams_of(elements: Dim, vector: int, blocks: int) -> Streams:
    """The grid of eager's dropout: `blocks` is what the GPU holds at a time, `vector` what alignment allows. A symbolic
    number must be a multiple of `vector`; for small ones more threads than eager has draw the same, of which each draws
    once at most."""
    if not isinstance(elements, int):
        if mod(elements, vector) != 0:
            raise NotCovered("neighbours that eager's kernels draw for together depend on sizes")
        return Streams(_BLOCK * blocks, vector)
    while vector > 1 and elements % vector:
        vector //= 2
    return Streams(_BLOCK * min(blocks, -(-elements // _BLOCK)), vector)


#: Reads the state of a GPU's generator and lets it go on; what loads the CUDA runtime registers it.
_draw: Callable[[torch.device, int], torch.Tensor] | None = None


def draws_by(function: Callable[[torch.device, int], torch.Tensor]) -> None:
    """`function(device, increment)` gives seed and offset as a tensor of two int64 on the device."""
    global _draw
    _draw = function


def _state(device: torch.device, increment: int) -> torch.Tensor:
    if _draw is None:
        raise RuntimeError(f"nothing draws from the generator of {device}")
    return _draw(device, increment)


def _state_spec(env: SizeEnv, device: torch.device, increment: int) -> TensorSpec:
    return TensorSpec(torch.int64, (2,), (1,), device)


def dropout_mask(state: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...], keep: float, threads: int,
                 vector: int, skipped: int) -> torch.Tensor:
    """The elements that dropout keeps, as bools: `keep` is the probability, as a float32. `stride` (dense) is how the
    mask lies in memory, which is the order of elements where `vector` is more than 1; else they are in row-major
    order. `skipped` numbers of each stream have been drawn behind `state`."""
    mask = torch.empty_strided(shape, stride, dtype=torch.bool, device=state.device)
    numbers, lane = _calls(state, mask.numel(), threads, vector, skipped)
    kept = _unit(numbers.gather(0, lane[None])[0]) < keep
    if vector == 1:
        return mask.copy_(kept.view(shape))
    mask.as_strided((mask.numel(),), (1,)).copy_(kept)
    return mask


def drawn(state: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, kind: str,
          scale: float, shift: float, threads: int, skipped: int) -> torch.Tensor:
    """Numbers of a distribution, in a dense tensor, in the order of its memory: `scale` times such between 0 and 1, or
    such with deviation 1, plus `shift`, rounded once. Of uniform ones those that are rounded to the upper end become
    the lower one, as in eager."""
    result = torch.empty_strided(shape, stride, dtype=dtype, device=state.device)
    numbers, lane = _calls(state, result.numel(), threads, 1, skipped)
    if kind == UNIFORM:
        found = _unit(numbers.gather(0, lane[None])[0])
    else:
        first, second = numbers.gather(0, (lane & 2)[None])[0], numbers.gather(0, (lane | 1)[None])[0]
        angle = second.to(torch.float32).double() * ANGLE + ANGLE / 2
        angle = angle.to(torch.float32)
        found = torch.where(lane % 2 == 0, angle.sin(), angle.cos()) * (_unit(first).log() * -2.0).sqrt()
    values = (found.double() * scale + shift).to(torch.float32).to(dtype)
    if kind == UNIFORM:
        low, high = uniform_ends(scale, shift, dtype)
        values = torch.where(values == high, torch.full_like(values, low), values)
    result.as_strided((result.numel(),), (1,)).copy_(values)
    return result


def uniform_ends(scale: float, shift: float, dtype: torch.dtype) -> tuple[float, float]:
    """The lower end of uniform numbers, and the upper one, which is none of them."""
    return shift, torch.tensor(shift + scale, dtype=torch.float64).to(dtype).item()


def _calls(state: torch.Tensor, elements: int, threads: int, vector: int,
           skipped: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each element the four numbers of the call that draws for it, and which of these is its own."""
    at = torch.arange(elements, device=state.device)
    turn, thread = at // vector // threads, at // vector % threads
    if vector == 1:
        lane, call = turn % _LANES, turn // _LANES
    elif vector == 2:
        lane, call = at % 2, turn
    else:
        lane, call = at % _LANES, turn * (vector // _LANES) + at // _LANES % (vector // _LANES)
    return torch.stack(_philox(state[0], ((state[1] + skipped) >> 2) + call, thread)), lane


def _unit(number: torch.Tensor) -> torch.Tensor:
    """Numbers of 32 bits as ones above 0, up to 1."""
    return number.to(torch.float32) * 2.0**-32 + 2.0**-33


def _philox(seed: torch.Tensor, counter: torch.Tensor, stream: torch.Tensor) -> list[torch.Tensor]:
    """Four numbers of 32 bits for each counter of 64, in int64."""
    c = [counter & _WORD, counter >> 32 & _WORD, stream & _WORD, stream >> 32 & _WORD]
    key = [seed & _WORD, seed >> 32 & _WORD]
    for _ in range(10):
        first, second = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [second >> 32 & _WORD ^ c[1] ^ key[0], second & _WORD, first >> 32 & _WORD ^ c[3] ^ key[1], first & _WORD]
        key = [key[0] + 0x9E3779B9 & _WORD, key[1] + 0xBB67AE85 & _WORD]
    return c


def _mask_spec(env: SizeEnv, state: TensorSpec, shape: tuple[int, ...], stride: tuple[int, ...],
               *numbering: Any) -> TensorSpec:
    return TensorSpec(torch.bool, shape, stride, state.device)


def _drawn_spec(env: SizeEnv, state: TensorSpec, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype,
                *rest: Any) -> TensorSpec:
    return TensorSpec(dtype, shape, stride, state.device)


@functools.cache
def forward_scale(probability: float) -> float:
    """Eager's factor for kept elements: 1 / (1 - p) in float32."""
    return (1.0 / torch.tensor(1.0 - probability, dtype=torch.float32)).item()


@functools.cache
def kept_share(probability: float) -> float:
    """1 - p as eager's kernels compare with it."""
    return torch.tensor(1.0 - probability, dtype=torch.float32).item()


def _masked(x: torch.Tensor, mask: torch.Tensor, probability: float) -> torch.Tensor:
    return (x * mask) * forward_scale(probability)


def _masked_spec(env: SizeEnv, x: TensorSpec, mask: TensorSpec, probability: float) -> TensorSpec:
    return TensorSpec(x.dtype, x.shape, mask.stride, x.device)


def _masked_parts(b: Any, x: Any, mask: Any, probability: float) -> Any:
    return b.call("aten.mul.Tensor", b.call("aten.mul.Tensor", x, mask), forward_scale(probability))


def _copies(*args: Any, **kwargs: Any) -> str:
    return "copy"


define(STATE, target=_state, infer=_state_spec, is_random=True, aliasing=_copies, differentiable=False)
define(MASK, kind="pointwise", target=dropout_mask, infer=_mask_spec, aliasing=_copies, differentiable=False,
       cheap_on=("cuda",))
define(DRAWN, kind="pointwise", target=drawn, infer=_drawn_spec, aliasing=_copies, differentiable=False)
define(MASKED, kind="pointwise", target=_masked, infer=_masked_spec, decompose=_masked_parts, aliasing=_copies,
       cheap_on=("cuda",))

__all__ = ["ANGLE", "DRAWN", "MASK", "MASKED", "NORMAL", "STATE", "UNIFORM", "Streams", "drawn", "draws_by",
           "dropout_mask", "forward_scale", "kept_share", "streams_of", "uniform_ends"]
