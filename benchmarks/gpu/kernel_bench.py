"""Programs of KernelBench (github.com/ScalingIntelligence/KernelBench) on a GPU, against eager and torch.compile.

    python -m benchmarks.gpu.kernel_bench FOLDER [--level N,N] [--only TEXT,TEXT] [--slice K/N] [--processes N]
                                          [--budget SECONDS] [--skip-compile] [--compiled FILE] [--kernels]
                                          [--json FILE]

FOLDER holds `level1`, `level2`, ... Each program runs as its benchmark does: float32 without TF32, no gradients, and
modules as they were made. Several processes compile programs side by side; one of them at a time measures. The ways
take turns; times are medians in milliseconds of one call, host and device. Results must be within 1e-3 of eager's,
or no further from float64.
`--compiled` takes torch.compile's times relative to eager's from the file of an earlier run. `--kernels` adds the
kernels of one call to the file, with their microseconds.
"""

from __future__ import annotations

import argparse
import copy
import fcntl
import gc
import importlib.util
import json
import math
import multiprocessing
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

WAYS = ("eager", "compile", "jitpy")
TOLERANCE, SLOW = 1e-3, 0.95
#: rounds that are timed, and seconds after which no more are begun
ROUNDS, ENOUGH = (5, 30), 0.8


@contextmanager
def held(path: str, how: int) -> Iterator[None]:
    """A lock among the processes."""
    with open(path, "a") as file:
        fcntl.flock(file, how)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def program_of(path: Path) -> tuple[Any, tuple[Any, ...]]:
    """The module and its inputs, on the GPU."""
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    source = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(source)
    torch.manual_seed(0)
    with torch.device("cuda"):
        model, inputs = source.Model(*source.get_init_inputs()), source.get_inputs()
    return model.cuda(), tuple(one.cuda() if isinstance(one, torch.Tensor) else one for one in inputs)


def is_close(found: Any, expected: Any) -> bool:
    if isinstance(expected, (tuple, list)):
        return len(found) == len(expected) and all(map(is_close, found, expected))
    if not isinstance(expected, torch.Tensor):
        return bool(found == expected)
    return found.dtype is expected.dtype and torch.allclose(found, expected, TOLERANCE, TOLERANCE, equal_nan=True)


def is_right(found: Any, expected: Any, model: Any, inputs: tuple[Any, ...]) -> bool:
    """Whether results are eager's. What eager itself gets wrong by more than the tolerance (sums that cancel) is
    compared with float64: it must be no further from that."""
    if is_close(found, expected):
        return True
    torch.manual_seed(1)
    exact = copy.deepcopy(model).double()(*(one.double() if isinstance(one, torch.Tensor) and one.is_floating_point()
                                            else one for one in inputs))
    if not isinstance(exact, torch.Tensor):
        return False
    mine, eagers = ((one.double() - exact).norm().item() for one in (found, expected))
    return bool(mine <= eagers)


def seeded(call: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
    torch.manual_seed(1)
    return call(*inputs)


def in_turns(ways: dict[str, Callable[..., Any]], inputs: tuple[Any, ...]) -> dict[str, float]:
    """Median milliseconds of a call of each way."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    least, most = ROUNDS
    ends = time.perf_counter() + ENOUGH
    for number in range(most + 2):
        if number > least + 1 and time.perf_counter() > ends:
            break
        for name, call in ways.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            start.record()
            call(*inputs)
            end.record()
            end.synchronize()
            if number > 1:
                taken[name].append(start.elapsed_time(end))
    return {name: statistics.median(times) for name, times in taken.items()}


def kernels_of(call: Callable[..., Any], inputs: tuple[Any, ...]) -> list[tuple[str, float]]:
    """The kernels of a call, with the microseconds of each."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as run:
        call(*inputs)
        torch.cuda.synchronize()
    return [(event.name[:100], event.device_time_total) for event in run.events() if event.device_time_total > 0]


def measured(path: Path, arguments: argparse.Namespace, lock: str) -> dict[str, Any]:
    """All that is found out about a program."""
    import jitpy

    jitpy.reset()
    model, inputs = program_of(path)
    ways: dict[str, Callable[..., Any]] = {"eager": model}
    found: dict[str, Any] = {"program": f"{path.parent.name}/{path.stem}"}
    if not arguments.skip_compile:
        torch.compiler.reset()
        ways["compile"] = torch.compile(model)
    ways["jitpy"] = jitpy.jit(model)
    with torch.no_grad():
        for name, call in ways.items():
            if name != "eager":
                started = time.perf_counter()
                call(*inputs)
                torch.cuda.synchronize()
                found[f"first {name}"] = time.perf_counter() - started
        with held(lock, fcntl.LOCK_EX):
            expected = seeded(model, inputs)
            found["right"] = is_right(seeded(ways["jitpy"], inputs), expected, model, inputs)
            del expected
            found |= in_turns(ways, inputs)
            if arguments.kernels:
                found["kernels"] = {name: kernels_of(call, inputs) for name, call in ways.items()}
    return found


def work(arguments: argparse.Namespace, folder: str, programs: Any, results: Any) -> None:
    """Measure programs until there are no more."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    ends = time.time() + arguments.budget
    for path in iter(programs.get, None):
        found: dict[str, Any] = {"program": f"{path.parent.name}/{path.stem}", "error": "no time was left"}
        for alone in (False, True):
            if time.time() > ends:
                break
            with held(f"{folder}/memory", fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
                try:
                    found = measured(path, arguments, f"{folder}/device")
                except torch.OutOfMemoryError:
                    found["error"] = "out of memory"
                except Exception as error:
                    found["error"] = f"{type(error).__name__}: {error}".split("\n")[0][:300]
                gc.collect()
                torch.cuda.empty_cache()
            if found.get("error") != "out of memory":
                break
        results.put(found)


def chosen(arguments: argparse.Namespace) -> list[Path]:
    def number(path: Path) -> int:
        return int(re.match(r"\d+", path.name)[0])  # type: ignore[index]

    paths = [path for level in arguments.level.split(",")
             for path in sorted(Path(arguments.folder, f"level{level}").glob("[0-9]*.py"), key=number)]
    if arguments.only:
        paths = [path for path in paths
                 if any(text in f"{path.parent.name}/{path.stem}" for text in arguments.only.split(","))]
    first, step = map(int, arguments.slice.split("/"))
    return paths[first::step]


def geometric_mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


def report(rows: list[dict[str, Any]], compiled: dict[str, float]) -> None:
    """Means by level, and the programs that are slower than eager or wrong."""
    for level in sorted({row["program"].split("/")[0] for row in rows}):
        mine = [row for row in rows if row["program"].startswith(level + "/")]
        done = [row for row in mine if "jitpy" in row]
        ratios = {"jitpy": [row["eager"] / row["jitpy"] for row in done],
                  "torch.compile": [compiled[row["program"]] for row in done if row["program"] in compiled]}
        print(f"{level}: {len(done)} of {len(mine)} programs; eager over "
              + "; ".join(f"{name} {geometric_mean(of):.3f} ({sum(one < SLOW for one in of)} below {SLOW})"
                          for name, of in ratios.items() if of))
        for row in sorted(done, key=lambda row: row["eager"] / row["jitpy"]):
            if row["eager"] / row["jitpy"] < SLOW:
                print(f"  slower: {row['eager'] / row['jitpy']:.2f} {row['program']}")
        for row in mine:
            if "jitpy" not in row or not row["right"]:
                print(f"  {row.get('error', 'WRONG')}: {row['program']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--level", default="1,2")
    parser.add_argument("--only", default="")
    parser.add_argument("--slice", default="0/1")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--budget", type=float, default=3600.0)
    parser.add_argument("--skip-compile", action="store_true")
    parser.add_argument("--compiled")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    compiled: dict[str, float] = {}
    if arguments.compiled:
        compiled = {row["program"]: row["eager"] / row["compile"]
                    for row in json.loads(Path(arguments.compiled).read_text()) if "compile" in row}
    paths = chosen(arguments)
    context = multiprocessing.get_context("spawn")
    programs, results = context.Queue(), context.Queue()
    for path in [*paths, *[None] * arguments.processes]:
        programs.put(path)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        workers = [context.Process(target=work, args=(arguments, folder, programs, results))
                   for _ in range(arguments.processes)]
        for worker in workers:
            worker.start()
        for _ in paths:
            row = results.get()
            rows.append(row)
            if "compile" in row:
                compiled[row["program"]] = row["eager"] / row["compile"]
            shown = "  ".join(f"{name} {row[name]:8.3f}" for name in WAYS if name in row)
            ratio = f"  {row['eager'] / row['jitpy']:5.2f}" if "jitpy" in row else f"  {row['error']}"
            if row["program"] in compiled:
                ratio += f" (compile {compiled[row['program']]:5.2f})"
            print(f"{row['program'][:60]:60} {shown}{ratio}{'' if row.get('right', True) else '  WRONG'}", flush=True)
            if arguments.json:
                Path(arguments.json).write_text(json.dumps(rows))
        for worker in workers:
            worker.join()
    report(rows, compiled)


if __name__ == "__main__":
    main()
