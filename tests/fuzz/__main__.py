"""`python -m tests.fuzz --minutes 60`: random programs until the time is up; what fails is made small and kept.

Programs run in worker processes, so that a crash of the interpreter is a finding like any other. Each finding is a file
with the program, its calls and the error; equal errors are kept once. The exit status is the number of findings.

    python -m tests.fuzz --program FILE     runs a finding again
    python -m tests.fuzz --kind tensors     programs about memory and gradients: see tensors.py
"""

from __future__ import annotations

import argparse
import os
import pathlib
import random
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable

#: seconds that one worker process goes on, so that no leak or odd state lasts
_TURN = 600.0


def _file(folder: pathlib.Path, name: str) -> pathlib.Path:
    return folder / (re.sub(r"\W+", "_", name)[:120] + ".py")


def worker(options: argparse.Namespace) -> int:
    """One turn of `options.worker` seconds; what it finds is a file. Returns 0 also then: another status is a crash."""
    from .search import search

    folder: pathlib.Path = options.out
    known = [line for file in folder.glob("*.py") for line in [file.read_text().split("\n", 1)[0][2:]]]
    progress = search(options.backend, options.worker, options.shrink, options.first, known=known,
                      started=lambda source: (folder / "running").write_text(source) and None)
    finding = progress.finding
    if finding is not None:
        head = f"# {finding.signature}\n# backend {options.backend}\n"
        _file(folder, finding.signature).write_text(head + finding.text())
        print(f"FOUND {finding.signature}", flush=True)
    (folder / "running").write_text(f"done {progress.programs}")
    return 0


def replay(path: pathlib.Path, backend: str) -> int:
    """Run a finding's program again: 0 where eager and jitted agree."""
    from . import calls

    text = path.read_text()
    made = [eval(line[2:], vars(calls)) for line in text.splitlines() if line.startswith("# Call(")]
    try:
        calls.compare(text, made, backend, str(path.resolve()))
    except Exception:
        traceback.print_exc()
        return 1
    print("agrees")
    return 0


def _forked(function: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Run it in a child process, which needs no imports of its own; the exit status, negative for a signal."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = function(options)
        except Exception:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def campaign(options: argparse.Namespace) -> int:
    """Turns of worker processes until the time is up; the number of findings."""
    from . import search  # noqa: F401  (once for all workers)

    folder: pathlib.Path = options.out or pathlib.Path(tempfile.mkdtemp(prefix="jitpy-fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    end, programs, turn = time.time() + options.minutes * 60, 0, 0
    seed = options.first if options.first is not None else random.SystemRandom().randrange(1 << 40)
    print(f"fuzzing for {options.minutes:g} min from seed {seed}; findings go to {folder}", flush=True)
    while (left := end - time.time()) > 1:
        backend = options.backend
        if backend == "mixed":
            backend = "codegen" if turn % 5 == 4 else "eager"
        turns = {"backend": backend, "first": seed + turn, "worker": min(left, _TURN), "out": folder}
        status = _forked(worker, argparse.Namespace(**{**vars(options), **turns}))
        state = (folder / "running").read_text()
        if status == 0 and state.startswith("done "):
            programs += int(state.split()[1])
        else:
            print(f"CRASH with status {status}", flush=True)
            _file(folder, f"crash {status} {turn}").write_text(f"# crash {status} {turn}\n{state}")
        turn += 1
    findings = list(folder.glob("*.py"))
    print(f"{programs} programs, {len(findings)} different findings in {folder}")
    return min(len(findings), 100)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--kind", choices=("python", "tensors"), default="python", help="which programs to draw")
    parser.add_argument("--backend", default="mixed", help="eager, codegen, or mixed: four of five turns eager")
    parser.add_argument("--first", type=int, help="seed of the first turn; random without it")
    parser.add_argument("--out", type=pathlib.Path, help="folder of the findings")
    parser.add_argument("--shrink", type=float, default=60.0, help="seconds to spend on making each finding small")
    parser.add_argument("--program", type=pathlib.Path, help="run one finding again")
    options = parser.parse_args()
    # Before torch and jitpy are imported, which is why their users are imported late: internal errors raise, and
    # kernels go where those of test runs go.
    import tests.conftest  # noqa: F401

    if options.kind == "tensors":
        from . import tensors

        return tensors.main(options)
    if options.program is not None:
        return replay(options.program, "eager" if options.backend == "mixed" else options.backend)
    return campaign(options)


if __name__ == "__main__":
    sys.exit(main())
