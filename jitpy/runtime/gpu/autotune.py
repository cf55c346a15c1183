"""`mode="max-autotune"`: launch parameters chosen by measuring, and remembered on disk for the kind of GPU.

The first call of a plan runs its steps one by one. Where a launch has candidates, each is timed on copies of the
launch's arguments, and the fastest takes the place of the usual kernel in the plan that later calls run.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch

from jitpy import logs
from jitpy.runtime import cache

from ..executable import Executable, PythonExecutable, check_plan, make_executable
from ..plan import LaunchStep, Plan, SlotRef, Workspace
from .compile import KernelCompileError, key_of, submit
from .kernel import GpuKernel
from .load import target_of

_SUFFIX = ".tuned"
_ROUNDS, _WARMUP = 7, 2
_FINALISTS = 3
#: what the usual kernel is given up for: less may be chance, or where the memory lies
_GAIN = 0.98
#: a round writes this much elsewhere first, so that arguments come from memory and not from the GPU's cache
_FLUSHED_BYTES = 256 << 20

Choice = tuple[GpuKernel, tuple[Any, ...]]


class AutotunedExecutable:
    """An executable that measures on its first call."""

    def __init__(self, plan: Plan, finish: Callable[[Plan, Executable], Any]) -> None:
        """`finish` makes what is called from the plan with the chosen kernels and its executable."""
        self.plan = plan
        self._finish = finish
        check_plan(plan)
        target = target_of(plan.device)
        for step in plan.steps:  # all at once, in the workers
            if isinstance(step, LaunchStep):
                for kernel, _ in step.candidates:
                    submit(kernel, target)
        self._tuned: Any = None

    def steps_text(self) -> str:
        """The program as readable text, one step per line."""
        return make_executable(self.plan).steps_text()

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        if self._tuned is None:
            if torch.cuda.is_current_stream_capturing():
                return make_executable(self.plan)(*inputs)
            self.plan = self._measure(inputs)
            self._tuned = self._finish(self.plan, make_executable(self.plan))
        return self._tuned(*inputs)

    def _measure(self, inputs: tuple[Any, ...]) -> Plan:
        """The plan with the fastest kernels. The program's own inputs are not written to."""
        taken = tuple(map(_copy, inputs))
        chosen: dict[int, Choice] = {}
        runner = _Measuring(self.plan, chosen)
        with torch.cuda.device(self.plan.device), torch.no_grad(), torch.random.fork_rng([self.plan.device]):
            runner(*taken)
        steps = [dataclasses.replace(step, kernel=chosen[id(step)][0], grid=chosen[id(step)][1], functions=None)  # type: ignore[arg-type]
                 if id(step) in chosen else step for step in self.plan.steps]
        return dataclasses.replace(self.plan, steps=steps)


class _Measuring(PythonExecutable):
    """Runs the steps of a plan natively, one by one, and times the candidates of each launch on the way."""

    def __init__(self, plan: Plan, chosen: dict[int, Choice]) -> None:
        super().__init__(plan)
        for number, step in enumerate(plan.steps):
            if isinstance(step, LaunchStep):
                self._actions[number] = self._timed(step, chosen)

    def _timed(self, step: LaunchStep, chosen: dict[int, Choice]) -> Any:
        def run(call: Any) -> None:
            arguments = [call.slots[value.slot] if isinstance(value, SlotRef) else
                         _scratch(call, call.size(value.offset)) if isinstance(value, Workspace) else call.size(value)
                         for value in step.arguments]

            def launcher(kernel: GpuKernel, grid: tuple[Any, ...]) -> Executable:
                one = dataclasses.replace(
                    step, kernel=kernel, grid=tuple(call.resolve(grid)), functions=None, candidates=(),
                    arguments=tuple(SlotRef(n) for n in range(len(arguments))), writes=(),
                    general_grid=None if step.general_grid is None else tuple(call.resolve(step.general_grid)))
                return make_executable(Plan(len(arguments), len(arguments), (), [one], device=self.plan.device))

            if step.candidates:
                chosen[id(step)] = _choose(step, arguments, launcher, self.plan.device)
            launcher(step.kernel, step.grid)(*arguments)

        return run


def _copy(value: Any) -> Any:
    """A tensor of the same layout in a copy of its whole memory: kernels have strides and offsets built in."""
    if not isinstance(value, torch.Tensor):
        return value
    memory = torch.empty(0, dtype=value.dtype, device=value.device)
    return memory.set_(value.untyped_storage().clone(), value.storage_offset(), value.shape, value.stride())


def _scratch(call: Any, offset: int) -> torch.Tensor:
    if call.scratch is None:
        return torch.empty(0, dtype=torch.uint8, device=torch.device("cuda"))
    return call.scratch[call.workspace - call.scratch.data_ptr() + offset:]


def _choose(step: LaunchStep, arguments: list[Any], launcher: Any, device: torch.device) -> Choice:
    """The fastest of a step's kernels for these arguments: looked up, else measured."""
    target = target_of(device)
    choices: list[Choice] = [(step.kernel, step.grid), *step.candidates]
    facts = [[list(value.shape), list(value.stride()), value.data_ptr() % 16] if isinstance(value, torch.Tensor)
             else value for value in arguments]
    key = cache.key_of("tuned-2", torch.cuda.get_device_name(device), json.dumps(facts),
                       *(key_of(kernel, target) for kernel, _ in choices))
    known = cache.read(key, _SUFFIX)
    if known is not None:
        return choices[json.loads(known)["fastest"]]
    copies = list(map(_copy, arguments))
    runs: dict[int, Executable] = {}
    for number, (kernel, grid) in enumerate(choices):
        try:
            run = launcher(kernel, grid)
            run(*copies)
            runs[number] = run
        except KernelCompileError as error:  # too much shared memory, say
            logs.log("timing", f"{step.name}: a candidate does not compile: {error.reason}")
    if 0 not in runs:
        return choices[0]  # whose error is the caller's to see
    times = medians(runs, copies, device, _ROUNDS)
    # a second look at the best ones: what is faster by chance is so once
    best = sorted(times, key=times.__getitem__)[:_FINALISTS]
    finals = medians({number: runs[number] for number in {0, *best}}, copies, device, 3 * _ROUNDS)
    fastest = min(finals, key=finals.__getitem__)
    if finals[fastest] > _GAIN * finals[0]:
        fastest = 0
    times |= finals
    logs.log("timing", lambda: f"{step.name}: takes {fastest} of "
                               f"{', '.join(f'{time * 1e3:.1f}' for time in times.values())} us")
    cache.store(key, _SUFFIX, json.dumps({"fastest": fastest, "milliseconds": list(times.values())}).encode())
    return choices[fastest]


def medians(
    runs: Mapping[int, Executable], arguments: list[Any], device: torch.device, rounds: int
) -> dict[int, float]:
    """Median milliseconds of each launch. They take turns, so that all meet the same clock; arguments come from memory
    and not from the cache."""
    flushed = torch.empty(_FLUSHED_BYTES, dtype=torch.uint8, device=device)
    found: dict[int, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {number: [] for number in runs}
    for _ in range(_WARMUP + rounds):
        for number, run in runs.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            flushed.zero_()
            start.record()
            run(*arguments)
            end.record()
            found[number].append((start, end))
    torch.cuda.synchronize(device)
    return {number: statistics.median(start.elapsed_time(end) for start, end in events[_WARMUP:])
            for number, events in found.items()}
