"""Models on a GPU in bf16 autocast: milliseconds a call, and seconds of the first one.

    python -m benchmarks.gpu.models [--only bert,gpt2] [--what inference,training] [--modes default,reduce-overhead]
                                    [--no-compile] [--jobs 3] [--part 0/2] [--budget SECONDS] [--json FILE]
                                    [--kernels N]

Without `--what`, inference of each, and training of some. `--kernels` shows the N kernels of each version in the first
mode that take most of the GPU's time.

Each model runs with random weights, in inference under `torch.inference_mode()`, and in training as forward, loss and
backward (the optimizer is none of it). Times are CUDA events around some calls, the median of rounds in which the
versions take turns, so that both the GPU's and the host's time count. `first` is the time from wrapping the model
(where torch.compile imports what it needs; jitpy does so in the call) to the first result. `error` is the distance from
a float64 run (of the logits or, in training, of the loss and all gradients together), beside that of eager in bf16 (it
says nothing of `bert-padded`, whose dropout differs from run to run).

Every row is a process. `--jobs` of them compile side by side, and then are timed one after another, while the others
wait: so only first calls share the processor, those of all versions alike. `--part K/N` takes every N-th row, for
several GPUs. What does not fit into the budget is left out, torch.compile first.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import statistics
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

import jitpy

from .networks import NETWORKS, TIMM, TRAINED, Network

ROUNDS, CALLS = 7, 5

#: milliseconds of versions, `first <version>` in s, `error <version>`
Figures = dict[str, float]
Step = Callable[[], Any]


def first_tensor(result: Any) -> torch.Tensor:
    """What versions are compared by: the result, its logits, or its first item."""
    if isinstance(result, torch.Tensor):
        return result
    return result.logits if hasattr(result, "logits") else first_tensor(result[0])


def inference(network: Network, model: torch.nn.Module, inputs: dict[str, Any], wrap: Any,
              dtype: torch.dtype = torch.bfloat16) -> Step:
    called = wrap(model)
    needs_labels = type(model).__name__.startswith("T5")  # which makes the decoder's input of them
    given = {name: value for name, value in inputs.items() if name != "labels" or needs_labels}

    def step() -> list[torch.Tensor]:
        with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
            return [first_tensor(called(**given))]

    return step


def training(network: Network, model: torch.nn.Module, inputs: dict[str, Any], wrap: Any,
             dtype: torch.dtype = torch.bfloat16) -> Step:
    called = wrap(model)
    parameters = list(model.parameters())

    def step() -> list[torch.Tensor]:
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = network.loss(called(**inputs), inputs)
        loss.backward()
        found = [loss.detach(), *(parameter.grad for parameter in parameters if parameter.grad is not None)]
        for parameter in parameters:
            parameter.grad = None
        return found

    return step


def exact_results(network: Network, model: torch.nn.Module, inputs: dict[str, Any], prepare: Any) -> list[torch.Tensor]:
    """The results of a step in float64."""
    doubled = {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
    step = prepare(network, copy.deepcopy(model).double(), doubled, lambda one: one, torch.float64)
    return step()  # type: ignore[no-any-return]


def distance(found: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """How far results are from what is exact, all together, relative to its size."""
    off = sum((one.double() - other).square().sum().item() for one, other in zip(found, exact, strict=True))
    return (off / sum(other.square().sum().item() for other in exact)) ** 0.5  # type: ignore[no-any-return]


def timed(step: Step, calls: int) -> float:
    """Milliseconds a call."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        step()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / calls


def device_time(step: Step, most: int) -> str:
    """The GPU's time in a call by kernel, those first that take longest."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for _ in range(CALLS):
            step()
        torch.cuda.synchronize()
    rows = sorted(((event.self_device_time_total / CALLS, event.count / CALLS, event.key)
                   for event in found.key_averages()), reverse=True)
    lines = [f"{sum(row[0] for row in rows):.0f} us in {sum(row[1] for row in rows):.0f} launches"]
    return "\n      ".join(lines + [f"{time:7.1f} us {count:4.0f} x {name[:110]}" for time, count, name in rows[:most]])


def versions_of(modes: list[str], with_compile: bool) -> dict[str, Any]:
    made: dict[str, Any] = {"eager": lambda model: model}
    for mode in modes:
        made[f"jitpy {mode}"] = lambda model, mode=mode: jitpy.jit(model, mode=mode)
    for mode in modes if with_compile else ():
        made[f"compile {mode}"] = lambda model, mode=mode: torch.compile(model, mode=mode)
    return made


def measure(network: Network, what: str, modes: list[str], with_compile: bool, kernels: int, end: float,
            turn: Callable[[], None]) -> Figures:
    """Figures of one model. Versions whose turn comes after `end` (of `time.time`) are left out. `turn` waits until the
    GPU is this process's alone. `kernels`: how many of a version are shown."""
    torch.manual_seed(0)
    model, inputs = network.make()
    model = model.to("cuda").train(what == "training")
    prepare = inference if what == "inference" else training
    exact = exact_results(network, model, inputs, prepare)
    figures: Figures = {}
    steps: dict[str, Step] = {}
    for name, wrap in versions_of(modes, with_compile).items():
        torch.cuda.empty_cache()
        if time.time() > end:
            print(f"no time for {name}", flush=True)
            continue
        try:
            copied = copy.deepcopy(model)
            started = time.perf_counter()
            step = prepare(network, copied, inputs, wrap)
            step()
            torch.cuda.synchronize()
            figures[f"first {name}"] = time.perf_counter() - started
            for _ in range(4):
                step()
            figures[f"error {name}"] = distance(step(), exact)
            steps[name] = step
        except Exception:
            traceback.print_exc()
    del exact
    torch.cuda.empty_cache()
    turn()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(ROUNDS + 1):
        for name, step in steps.items():
            taken = timed(step, CALLS)
            if number:  # the first one warms up
                times[name].append(taken)
    for name, step in steps.items():
        if kernels and (name == "eager" or name.endswith(modes[0])):
            print(f"    {name}: {device_time(step, kernels)}", flush=True)
    return {**figures, **{name: statistics.median(taken) for name, taken in times.items()}}


def _row(pipe: Connection, name: str, what: str, *arguments: Any) -> None:
    """What a process does: it says when it waits for its turn, and what it found."""
    def turn() -> None:
        pipe.send("ready")
        pipe.recv()

    try:
        pipe.send(measure({**NETWORKS, **TIMM}[name], what, *arguments, turn))
    except Exception:
        traceback.print_exc()
        pipe.send({})


def measured(rows: list[tuple[str, str]], jobs: int, arguments: tuple[Any, ...],
             keep: Callable[[str, Figures], None]) -> None:
    """Rows in groups: those of a group compile side by side, and are timed one after another."""
    context = multiprocessing.get_context("spawn")
    for first in range(0, len(rows), jobs):
        if time.time() > arguments[-1]:
            print(f"no time for {', '.join(map(' '.join, rows[first:]))}")
            break
        running = []
        for name, what in rows[first:first + jobs]:
            pipe, other = context.Pipe()
            process = context.Process(target=_row, args=(other, name, what, *arguments))
            process.start()
            other.close()
            running.append((f"{name} {what}", pipe, process))
        ready = [(row, pipe) for row, pipe, _ in running if _received(pipe) == "ready"]
        for row, pipe in ready:
            pipe.send("go")
            keep(row, _received(pipe) or {})
        for _, _, process in running:
            process.join()


def _received(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError:  # the process died
        return None


def line_of(version: str, figures: Figures) -> str:
    base = figures.get("eager", float("nan"))
    return (f"    {version:26} {figures[version]:8.2f} ms  x{base / figures[version]:.2f} of eager"
            f"  first {figures['first ' + version]:5.1f} s  error {figures['error ' + version]:.2e}")


def means(table: dict[str, Figures], modes: list[str]) -> list[str]:
    """Geometric means over torch.compile, and the largest share of its first calls' seconds."""
    lines = []
    for mode in modes:
        both = [row for row in table.values() if f"jitpy {mode}" in row and f"compile {mode}" in row]
        if both:
            speeds = [row[f"compile {mode}"] / row[f"jitpy {mode}"] for row in both]
            firsts = [row[f"first jitpy {mode}"] / row[f"first compile {mode}"] for row in both]
            mean = statistics.geometric_mean(speeds)
            lines.append(f"{mode}: {mean:.2f} times torch.compile's speed over {len(both)} rows "
                         f"(least {min(speeds):.2f}), first calls at most {max(firsts):.2f} of its seconds")
    return lines


def table_of(table: dict[str, Figures], modes: list[str]) -> list[str]:
    """Milliseconds of each row, for a page."""
    names = ["eager", *(f"{one} {mode}" for mode in modes for one in ("compile", "jitpy"))]
    lines = [f"| model | {' | '.join(names)} |", f"| --- |{' ---: |' * len(names)}"]
    for row, figures in table.items():
        cells = [f"{figures[name]:.3f}" if name in figures else "" for name in names]
        lines.append(f"| {row.removeprefix('timm/')} | {' | '.join(cells)} |")
    return lines


def main(only: tuple[str, ...] = tuple(NETWORKS), trained: tuple[str, ...] = TRAINED,
         about: str | None = __doc__) -> None:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(only))
    parser.add_argument("--what", default="")
    parser.add_argument("--modes", default="default,reduce-overhead")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds")
    parser.add_argument("--kernels", type=int, default=0)
    parser.add_argument("--json")
    chosen = parser.parse_args()
    modes = chosen.modes.split(",")
    part, parts = map(int, chosen.part.split("/"))
    rows = [(name, what) for what in (chosen.what or "inference,training").split(",")
            for name in chosen.only.split(",") if chosen.what or what == "inference" or name in trained]
    table: dict[str, Figures] = {}

    def keep(row: str, figures: Figures) -> None:
        table[row] = figures
        print(row, flush=True)
        for version in versions_of(modes, not chosen.no_compile):
            if version in figures:
                print(line_of(version, figures), flush=True)
        if chosen.json:
            with open(chosen.json, "w") as file:
                json.dump(table, file, indent=1)

    arguments = modes, not chosen.no_compile, chosen.kernels, time.time() + chosen.budget
    measured(rows[part::parts], chosen.jobs, arguments, keep)
    print("\n".join([*means(table, modes), *table_of(table, modes)]))


if __name__ == "__main__":
    main()
