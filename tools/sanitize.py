"""Run tests with native modules and kernels that sanitizers watch: `make sanitize`, `python -m tools.sanitize`.

AddressSanitizer and UndefinedBehaviorSanitizer see the frame hook, the native runtime and every generated kernel: reads
and writes beyond a tensor, use of freed memory, undefined arithmetic. Each folder of tests runs in a process of its
own; reports go to build/sanitize/reports, and any makes this fail. By default a sample of the tests runs, chosen by a
hash of the name; `--all` runs all. `--jobs` shares the tests of all folders out to so many processes. `--seconds` ends
the tests then, and counts those that have run. `--threads` runs tools/threads.py under ThreadSanitizer instead.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "sanitize"
#: The folders of tests, and one test in how many is in the sample.
FOLDERS = {"tests/guards": 1, "tests/runtime": 4, "tests/semantics": 50, "tests/robustness": 3, "tests/training": 15}
#: Tests of resident memory, of which sanitizers take a share, and of the pool, which hands out each block for itself
#: under AddressSanitizer.
LEFT_OUT = ("--ignore=tests/runtime/test_pool.py", "--ignore=tests/runtime/gpu",
            "--ignore=tests/robustness/test_leaks.py",
            "--deselect=tests/robustness/test_threads.py::test_ten_thousand_calls_with_changing_shapes")


def environment(sanitizers: str, reports: Path) -> dict[str, str]:
    """Variables of a process whose native code is built with these sanitizers."""
    library = {"address,undefined": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}[sanitizers]
    names = (*library, "libstdc++.so.6")  # exceptions are thrown through the sanitizer, which looks for this first
    preload = " ".join(_library(name) for name in names)
    cache = WORK / sanitizers.replace(",", "-")
    (cache / "kernels").mkdir(parents=True, exist_ok=True)
    return {
        **os.environ,
        "LD_PRELOAD": preload,
        "JITPY_SANITIZE": sanitizers,
        "JITPY_NATIVE_DIR": str(cache),
        "JITPY_CACHE_DIR": str(cache / "kernels"),
        "JITPY_TEST_CACHE": str(cache / "kernels"),
        "PYTHONMALLOC": "malloc",
        # a test asks for more memory than there is
        "ASAN_OPTIONS": f"detect_leaks=0:halt_on_error=0:allocator_may_return_null=1:log_path={reports}/asan",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": f"suppressions={ROOT / 'tools' / 'thread_sanitizer.supp'}:log_path={reports}/tsan",
    }


def _library(name: str) -> str:
    compiler = os.environ.get("CXX", "g++")
    path = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
    if not os.path.isabs(path.strip()):
        raise SystemExit(f"[sanitize] {compiler} has no {name}")
    return path.strip()


def summaries(reports: Path) -> list[str]:
    """The first line of each report. Those on undefined behaviour come on stderr: they are in the file `output`."""
    texts = [path.read_text(errors="replace") for path in sorted(reports.iterdir()) if path.is_file()]
    first_line = r"^.*(?:ERROR: \w*Sanitizer|WARNING: \w*Sanitizer: |runtime error: ).*$"
    return [line for text in texts for line in re.findall(first_line, text, re.M)]


def counts(text: str) -> str:
    """How many tests passed, failed, ... so far: pytest says it of each, and once more of those that failed."""
    outcome = "(PASSED|FAILED|SKIPPED|ERROR|XFAIL)"
    found = re.findall(rf"^\[gw\d+\] (?:\[ *\d+%\] )?{outcome} tests/", text, re.M) or \
        re.findall(rf"^(?:tests/\S+::.*)?{outcome}(?: \(.*\))?(?: +\[ *\d+%\])?$", text, re.M)
    return ", ".join(f"{count} {name.lower()}" for name, count in Counter(found).most_common()) or "no tests"


def run_tests(folders: list[str], sample: int, jobs: int, seconds: float | None) -> bool:
    """Run the tests of some folders in one process, or in `jobs`. Those that no time is left for make this fail."""
    name = folders[0].replace("/", "-") if len(folders) == 1 else "all"
    reports = WORK / "reports" / name
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir(parents=True)
    variables = {**environment("address,undefined", reports), "JITPY_TEST_SAMPLE": str(sample)}
    started = time.monotonic()
    with open(reports / "output", "w") as output:
        def start(*words: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen([sys.executable, "-m", *words], cwd=ROOT, env=variables, stdout=output,
                                    stderr=subprocess.STDOUT, start_new_session=True)

        start("jitpy", "build").wait()  # once, before the processes share what is built
        spread = ["-n", str(jobs), "--dist", "worksteal"] if jobs > 1 else ["-n", "0"]
        tests = start("pytest", *LEFT_OUT, *spread, "-s", "-vv", *folders)
        status = wait(tests, None if seconds is None else started + seconds - time.monotonic())
    found = summaries(reports)
    print(f"[sanitize] {' '.join(folders)}: {status}, {counts((reports / 'output').read_text(errors='replace'))}, "
          f"{len(found)} reports, {time.monotonic() - started:.0f} s (see {reports.relative_to(ROOT)})", flush=True)
    for line in dict.fromkeys(found):
        print(f"    {line}", flush=True)
    return not found and tests.returncode == 0


def wait(tests: subprocess.Popen[bytes], seconds: float | None) -> str:
    """Wait for pytest, or end it once the time is up."""
    try:
        return f"exit status {tests.wait(seconds)}"
    except subprocess.TimeoutExpired:
        os.killpg(tests.pid, signal.SIGKILL)
        tests.wait()
        return "out of time"


def run_threads() -> bool:
    reports = WORK / "reports" / "threads"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir(parents=True)
    done = subprocess.run([sys.executable, "-m", "tools.threads"], cwd=ROOT, env=environment("thread", reports))
    found = summaries(reports)
    print(f"[sanitize] threads: exit status {done.returncode}, {len(found)} reports", flush=True)
    return not found and done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="*", default=list(FOLDERS))
    parser.add_argument("--all", action="store_true", help="all tests, not a sample")
    parser.add_argument("--threads", action="store_true", help="ThreadSanitizer on dispatchers and the memory pool")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the tests (with --all)")
    parser.add_argument("--seconds", type=float, help="end the tests of a folder, or of all in so many processes, then")
    options = parser.parse_args()
    if options.threads:
        return 0 if run_threads() else 1
    groups = [options.folders] if options.all and options.jobs > 1 else [[folder] for folder in options.folders]
    good = [run_tests(group, 1 if options.all else FOLDERS.get(group[0], 1), options.jobs, options.seconds)
            for group in groups]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
