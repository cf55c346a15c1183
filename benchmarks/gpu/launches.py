"""Launch parameters by measuring: the cases of `benchmarks.gpu.kernels` with launches of one's own choice.

    python -m benchmarks.gpu.launches CASE LAUNCH [LAUNCH ...] [CASE LAUNCH ...]
    python -m benchmarks.gpu.launches --file FILE       # lines `CASE: LAUNCH, LAUNCH, ...`

A launch is a list of changes to what `backends/triton/tiles.py` chooses: `x64` (or y, r) sets a tile's block, `w8` the
warps, `s32` the programs that share a reduction, `t4` the blocks read together, `a3` the steps that loads of a loop
are ahead, `m64` the most registers a thread, `c` the hints for rows that stay in the cache, `b` a last pass from the
end of the row (`f`: from its beginning), `o` the other order of tiles, `q8` the warps of the launch that combines;
`-` changes nothing.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu.kernels import CASES, Case, big, copy_bandwidth, device_time, distance
from jitpy.backends.triton import maps, plan_graph, reductions
from jitpy.backends.triton.tiles import Launch, Tile
from jitpy.runtime.executable import make_executable
from jitpy.runtime.gpu.compile import KernelCompileError, submit
from jitpy.runtime.gpu.load import target_of
from jitpy.runtime.plan import LaunchStep, Plan
from jitpy.schedule.loops import Kernel
from tests.graph_tools import trace


def layer_norm_gradient(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    _, mean, rstd = torch.native_layer_norm(x, (x.shape[-1],), w, b, 1e-5)
    return torch.ops.aten.native_layer_norm_backward(g, x, (x.shape[-1],), mean, rstd, w, b, [True, True, True])


MORE = [
    Case("log softmax 50k", lambda x: torch.log_softmax(x.float(), -1), lambda: (big(torch.bfloat16, 4096, 50257),)),
    Case("softmax gradient 50k",
         lambda g, y: torch.ops.aten._log_softmax_backward_data(g, y, -1, torch.float32).bfloat16(),
         lambda: (big(torch.float32, 4096, 50257), big(torch.float32, 4096, 50257))),
    Case("small layer norm gradient", layer_norm_gradient,
         lambda: (big(torch.float32, 4096, 768), big(torch.float32, 4096, 768), big(torch.float32, 768),
                  big(torch.float32, 768))),
    Case("bias gradient", lambda g, x: (F.gelu(x) * g).sum(0),
         lambda: (big(torch.bfloat16, 4096, 3072), big(torch.bfloat16, 4096, 3072))),
    Case("wide layer norm", lambda x, w, b: F.layer_norm(x, (16384,), w, b),
         lambda: (big(torch.bfloat16, 4096, 16384), big(torch.bfloat16, 16384), big(torch.bfloat16, 16384))),
    Case("columns of matrices", lambda x: x.sum(1), lambda: (big(torch.float32, 64, 4096, 4095),)),
    Case("even columns of matrices", lambda x: x.sum(1), lambda: (big(torch.float32, 64, 4096, 4096),)),
    Case("small column sum", lambda x: x.sum(0), lambda: (big(torch.bfloat16, 4096, 768),)),
]


def changed(launch: Launch, text: str) -> Launch:
    """The launch with the changes that the text lists."""
    numbers = {name: int(number) for name, number in re.findall(r"([a-z])(\d+)", text)}

    def tile(old: Tile | None) -> Tile | None:
        return None if old is None else Tile(old.name, old.axes, numbers.get(old.name, old.block), old.reduced)

    tiles = [found for found in map(tile, launch.tiles) if found is not None]
    if "o" in text.split():
        tiles.reverse()
    return dataclasses.replace(
        launch, tiles=tiles, r=tile(launch.r), warps=numbers.get("w", launch.warps),
        splits=numbers.get("s", launch.splits), together=numbers.get("t", launch.together),
        ahead=numbers.get("a", launch.ahead), cached="c" in text.split() or launch.cached,
        backward=("b" in text.split() or launch.backward) and "f" not in text.split())


def plan_with(case: Case, inputs: tuple[torch.Tensor, ...], text: str) -> Plan:
    """The case's plan, its large kernels launched as the text says."""
    def patched(original: Callable[..., Launch]) -> Callable[..., Launch]:
        def choose(kernel: Kernel, *rest: Any) -> Launch:
            launch = original(kernel, *rest)
            return changed(launch, text) if kernel.hint(kernel.points) > 1 << 20 else launch
        return choose

    kept = maps.map_launch, reductions.reduction_launch
    maps.map_launch, reductions.reduction_launch = map(patched, kept)
    try:
        plan = plan_graph(trace(case.fn, inputs))
    finally:
        maps.map_launch, reductions.reduction_launch = kept
    registers, warps = re.search(r"\bm(\d+)", text), re.search(r"\bq(\d+)", text)
    for k, step in enumerate(plan.steps):
        if isinstance(step, LaunchStep):
            second = step.kernel.name.endswith("_combine")
            change = {"num_warps": int(warps[1])} if warps and second else {}
            if registers and not second:
                change = {"max_registers": int(registers[1])}
            plan.steps[k] = dataclasses.replace(step, kernel=dataclasses.replace(step.kernel, **change))
    return plan


@dataclasses.dataclass
class Planned:
    """A case with the plans of its launches."""

    case: Case
    inputs: tuple[torch.Tensor, ...]
    plans: list[tuple[str, Plan]]

    @staticmethod
    def of(case: Case, texts: list[str]) -> Planned:
        """Plans each, and starts to compile its kernels."""
        torch.manual_seed(0)
        inputs = case.make()
        plans = []
        for text in texts:
            try:
                plan = plan_with(case, inputs, text)
            except Exception as error:  # such a launch cannot be printed
                print(f"{case.name:26}{text:26} {type(error).__name__}: {error}"[:160], flush=True)
                continue
            plans.append((text, plan))
            for step in plan.steps:
                if isinstance(step, LaunchStep):
                    submit(step.kernel, target_of(plan.device))
        return Planned(case, inputs, plans)

    def measure(self) -> None:
        """One line a launch: microseconds, and how far the result is from eager's."""
        case, inputs = self.case, self.inputs
        expected = case.fn(*inputs)
        for text, plan in self.plans:
            try:
                run = make_executable(plan)
                found = run(*inputs)
                wrong = distance(found if isinstance(expected, tuple) else found[0], expected)
                launches = sum(isinstance(step, LaunchStep) for step in plan.steps)
                del found
                time = device_time(lambda run=run: run(*inputs)) * 1e3
                print(f"{case.name:26}{text:26}{time:8.1f} us  launches {launches}  error {wrong:.1e}", flush=True)
            except (KernelCompileError, RuntimeError) as error:
                print(f"{case.name:26}{text:26} {type(error).__name__}: {error}".split("\n")[0][:160], flush=True)


def main() -> None:
    cases = {case.name: case for case in (*CASES, *MORE)}
    wanted: dict[str, list[str]] = {}
    if sys.argv[1] == "--file":
        with open(sys.argv[2]) as file:
            for line in filter(str.strip, file):
                name, _, texts = line.partition(":")
                wanted.setdefault(name.strip(), []).extend(text.strip() for text in texts.split(","))
    else:
        name = ""
        for word in sys.argv[1:]:
            if word in cases:
                name = word
            else:
                wanted.setdefault(name, []).append(word)
    print(f"{torch.cuda.get_device_name()}: copy {copy_bandwidth():.0f} GB/s")
    planned = [Planned.of(cases[name], texts) for name, texts in wanted.items()]
    while planned:  # what is measured gives its memory back
        planned.pop(0).measure()


if __name__ == "__main__":
    main()
