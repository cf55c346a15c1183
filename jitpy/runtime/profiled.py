"""Plans that tell where their time and memory go: `JITPY_LOGS=steps`.

Each call logs its steps with microseconds and the bytes alive behind each, then what is alive at the peak. The steps
run one by one in Python: the kernels and calls are those of the native executable, what is around them is slower.
Inputs and memory inside library calls do not count.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from jitpy import logs

from .executable import PythonExecutable, step_text
from .plan import AllocStep, FreeStep, Plan


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that a call holds: by which step, what it looked like then, and its bytes."""

    step: int
    text: str
    bytes: int


@dataclass(slots=True)
class Profile:
    """One call. `seconds` and `alive` (bytes behind the step) have an entry for each step of the plan; `peak` is the
    step behind which most is alive, `buffers` what that is, the largest first."""

    seconds: list[float]
    alive: list[int]
    peak: int
    buffers: list[Buffer]

    @property
    def peak_bytes(self) -> int:
        return self.alive[self.peak] if self.alive else 0


class ProfiledExecutable(PythonExecutable):
    """Runs a plan in Python and logs a profile of each call."""

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        self._profile = Profile([], [], 0, [])
        self._ignored = {_memory(value) for value in inputs if isinstance(value, torch.Tensor)}
        self._made: dict[int, Buffer] = {}
        outputs = super().__call__(*inputs)
        self.profile = self._profile
        logs.log("steps", lambda: profile_text(self.plan, self.profile))
        return outputs

    def _run(self, call: Any) -> None:
        profile = self._profile
        for number, (step, action) in enumerate(zip(self.plan.steps, self._actions, strict=True)):
            started = time.perf_counter()
            action(call)
            profile.seconds.append(time.perf_counter() - started)
            held = self._held(call, number)
            profile.alive.append(sum(buffer.bytes for buffer in held))
            if not isinstance(step, FreeStep) and profile.alive[-1] > profile.peak_bytes:
                profile.peak, profile.buffers = number, sorted(held, key=lambda buffer: -buffer.bytes)

    def _held(self, call: Any, number: int) -> list[Buffer]:
        """The bytes that slots and scratch memory hold behind a step."""
        found: dict[int, Buffer] = {}
        for value in (*call.slots, call.scratch):
            if not isinstance(value, torch.Tensor) or (key := _memory(value)) in self._ignored:
                continue
            size = value.untyped_storage().nbytes()
            known = self._made.get(key)
            if known is None or known.bytes != size:
                dtype = str(value.dtype).removeprefix("torch.")
                known = self._made[key] = Buffer(number, f"{dtype}{list(value.shape)}", size)
            found[key] = known
        for key in self._made.keys() - found.keys():
            del self._made[key]
        return list(found.values())


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def profile_text(plan: Plan, profile: Profile, at_peak: int = 40) -> str:
    """A line for each step, then the `at_peak` largest buffers at the peak."""
    lines = [f"{sum(profile.seconds) * 1e3:.2f} ms in {len(plan.steps)} steps"]
    for number, (step, seconds, alive) in enumerate(zip(plan.steps, profile.seconds, profile.alive, strict=True)):
        if not isinstance(step, FreeStep):
            lines.append(f"{number:5} {seconds * 1e6:10.0f} us {alive / 2**20:9.2f} MiB  {step_text(step)}")
    lines.append(f"peak: {profile.peak_bytes / 2**20:.2f} MiB behind step {profile.peak}")
    for buffer in profile.buffers[:at_peak]:
        maker = plan.steps[buffer.step]
        if isinstance(maker, AllocStep) and buffer.step + 1 < len(plan.steps):
            maker = next(step for step in plan.steps[buffer.step + 1:] if not isinstance(step, AllocStep))
        lines.append(f"  {buffer.bytes / 2**20:9.2f} MiB  {buffer.text}, step {buffer.step}: {step_text(maker)}")
    return "\n".join(lines)
