"""Models on a GPU in bf16 autocast: milliseconds a call, and seconds of the first one.

    python -m benchmarks.gpu.models [--only bert,gpt2] [--what inference,training] [--modes default,reduce-overhead]
                                    [--no-compile] [--budget SECONDS] [--json FILE]

Each model runs with random weights, in inference under `torch.inference_mode()`, and in training as forward, loss and
backward (the optimizer is none of it). Times are CUDA events around some calls, the median of rounds in which the
versions take turns, so that both the GPU's and the host's time count. `first` is the time from wrapping the model
(where torch.compile imports what it needs; jitpy does so in the call) to the first result. `error` is the distance from
a float32 run, relative to eager's own in bf16 (it says nothing of `bert-padded`, whose dropout differs from run to
run). What does not fit into the budget is left out, torch.compile first.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

import jitpy

from .networks import NETWORKS, Network

ROUNDS, CALLS = 7, 5

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

    def step() -> Any:
        with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16, enabled=dtype != torch.float32):
            return first_tensor(called(**given))

    return step


def training(network: Network, model: torch.nn.Module, inputs: dict[str, Any], wrap: Any,
             dtype: torch.dtype = torch.bfloat16) -> Step:
    called = wrap(model)
    parameters = list(model.parameters())

    def step() -> Any:
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype != torch.float32):
            loss = network.loss(called(**inputs), inputs)
        loss.backward()
        norm = torch.stack([p.grad.float().norm() for p in parameters[:3] if p.grad is not None])
        for parameter in parameters:
            parameter.grad = None
        return norm

    return step


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


def versions_of(modes: list[str], with_compile: bool) -> dict[str, Any]:
    made: dict[str, Any] = {"eager": lambda model: model}
    for mode in modes:
        made[f"jitpy {mode}"] = lambda model, mode=mode: jitpy.jit(model, mode=mode)
    for mode in modes if with_compile else ():
        made[f"compile {mode}"] = lambda model, mode=mode: torch.compile(model, mode=mode)
    return made


def measure(network: Network, what: str, modes: list[str], with_compile: bool, end: float,
            keep: Callable[[dict[str, float]], None]) -> dict[str, float]:
    """Figures of one model: `<version>` in ms, `first <version>` in s, `error <version>`. Versions whose turn comes
    after `end` (of `time.monotonic`) are left out. `keep` gets what there is so far."""
    torch.manual_seed(0)
    model, inputs = network.make()
    model = model.to("cuda").train(what == "training")
    prepare = inference if what == "inference" else training
    exact = prepare(network, copy.deepcopy(model), inputs, lambda one: one, torch.float32)().detach().clone()
    figures: dict[str, float] = {}
    steps: dict[str, Step] = {}
    for name, wrap in versions_of(modes, with_compile).items():
        if time.monotonic() > end:
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
                found = step()
            difference = (found.double() - exact.double()).norm() / exact.double().norm()
            figures[f"error {name}"] = difference.item()
            steps[name] = step
            figures[name] = timed(step, CALLS)
            keep(figures)
        except Exception:
            traceback.print_exc()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(ROUNDS):
        if number > 2 and time.monotonic() > end + 5:
            break
        for name, step in steps.items():
            times[name].append(timed(step, CALLS))
    return {**figures, **{name: statistics.median(taken) for name, taken in times.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(NETWORKS))
    parser.add_argument("--what", default="inference,training")
    parser.add_argument("--modes", default="default,reduce-overhead")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds")
    parser.add_argument("--json")
    chosen = parser.parse_args()
    modes = chosen.modes.split(",")
    end = time.monotonic() + chosen.budget
    table: dict[str, dict[str, float]] = {}

    def keep(row: str, figures: dict[str, float]) -> None:
        table[row] = figures
        if chosen.json:
            with open(chosen.json, "w") as file:
                json.dump(table, file, indent=1)

    for name in chosen.only.split(","):
        for what in chosen.what.split(","):
            row = f"{name} {what}"
            figures = measure(NETWORKS[name], what, modes, not chosen.no_compile, end,
                              lambda figures, row=row: keep(row, figures))
            keep(row, figures)
            base = figures.get("eager", float("nan"))
            print(f"{name} {what}: eager {base:.2f} ms (error {figures.get('error eager', -1):.1e})", flush=True)
            for version in versions_of(modes, not chosen.no_compile):
                if version != "eager" and version in figures:
                    print(f"    {version:26} {figures[version]:8.2f} ms  x{base / figures[version]:.2f} of eager"
                          f"  first {figures['first ' + version]:.1f} s  error {figures['error ' + version]:.1e}",
                          flush=True)
            jitpy.reset()
            torch.compiler.reset()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
