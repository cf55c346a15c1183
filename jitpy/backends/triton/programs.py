"""Which emitter prints a kernel, as how many launches."""

from __future__ import annotations

from ...schedule.loops import Kernel
from .batches import print_batch
from .clusters import ClusterEmitter
from .crossed import print_crossed
from .emitter import KernelText, Program, stem_of
from .maps import print_map
from .online import find_followers
from .reductions import ReductionEmitter, combine, is_inner, stages_of
from .scans import print_scan
from .scatters import print_scatter
from .tiles import Launch, reduction_launch, variations


def print_program(kernel: Kernel, tune: bool = False, clusters: bool = False) -> Program:
    """A loop nest as launches, with `tune` also other launches to choose from; `clusters`: whether neighbouring
    programs can wait for each other. Raises NotCovered for operations that Triton lacks."""
    if kernel.style == "batch":
        return print_batch(kernel)
    if kernel.style == "scan":
        return print_scan(kernel)
    if kernel.style == "scatter":
        return print_scatter(kernel)
    if kernel.columns:
        return print_crossed(kernel)
    return print_reduction(kernel, tune, clusters) if kernel.reductions else print_map(kernel, tune)


def print_reduction(kernel: Kernel, tune: bool = False, clusters: bool = False) -> Program:
    """The kernel as one launch or, shared among programs that do not wait for each other, as two. `clusters`: whether
    programs can."""
    followers = find_followers(kernel)
    stages = stages_of(kernel)
    launch = reduction_launch(kernel, stages, stages - len(followers), clusters)
    scratch: list[int] = []
    program = Program([_print(kernel, launch, scratch)], scratch)
    if tune:
        others = [_print(kernel, other, []) for other in variations(launch, kernel)]
        program.variations.append([text for text in others if text.parameters == program.launches[0].parameters])
    if launch.splits > 1:
        outer = [s for s in kernel.stores if not is_inner(s)]
        program.launches.append(combine(kernel, launch.tiles[0].axes, launch.splits, kernel.reductions, outer))
    return program


def _print(kernel: Kernel, launch: Launch, scratch: list[int]) -> KernelText:
    """The first launch; adds the scratch memory that it needs."""
    r = launch.r
    assert r is not None
    if launch.cluster > 1:
        return ClusterEmitter(kernel, launch, stem_of(kernel), scratch).shared()
    emitter = ReductionEmitter(kernel, launch, stem_of(kernel))
    if type(r.size) is int and r.size <= r.block:
        return emitter.persistent()
    if launch.held:
        return emitter.held()
    return emitter.looped(find_followers(kernel)) if launch.splits == 1 else emitter.parts(scratch)
