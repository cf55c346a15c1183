"""The native build as a user meets it: how it tells of its progress, is killed, and finds no room."""

from __future__ import annotations

import io
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jitpy.runtime import native_build

PARTS = ("a", "b", "c", "d")
PROGRAM = """
import sys
from pathlib import Path
from jitpy.runtime import native_build
native_build.NATIVE_FOLDER = Path(sys.argv[1])
native_build._JOBS = 1
table = native_build.NativeModule("small module", "_jitpy_small", ("*.c",), "c", ("-O1",), torch=False)
native_build.MODULES["small"] = table
try:
    print(native_build.load_native("small").get())
except native_build.NativeUnavailable as error:
    print(error)
"""


class Build:
    """A module of a few files, and processes that load it. Their compiler notes what it compiles."""

    def __init__(self, folder: Path):
        self.sources, self.cache, self.spare = folder / "sources", folder / "cache", folder / "temporary"
        self.sources.mkdir()
        self.spare.mkdir()
        for part in PARTS:
            (self.sources / f"{part}.c").write_text(f"int value_{part}(void) {{ return {ord(part)}; }}\n")
        values = " + ".join(f"value_{part}()" for part in PARTS)
        (self.sources / "module.c").write_text(
            "#include <Python.h>\n" + "".join(f"int value_{part}(void);\n" for part in PARTS)
            + f"static PyObject *get(PyObject *m, PyObject *a) {{ return PyLong_FromLong({values}); }}\n"
            'static PyMethodDef methods[] = {{"get", get, METH_NOARGS, 0}, {0}};\n'
            'static struct PyModuleDef d = {PyModuleDef_HEAD_INIT, "_jitpy_small", 0, -1, methods};\n'
            "PyMODINIT_FUNC PyInit__jitpy_small(void) { return PyModule_Create(&d); }\n"
        )
        self.log, self.hold = folder / "log", folder / "hold"
        compiler = folder / "noting-compiler"
        compiler.write_text(
            f'#!/bin/sh\nfor word; do case "$word" in *.c) echo "${{word##*/}}" >>{self.log};; esac; done\n'
            f'case "$*" in *a.c*) [ -e {self.hold} ] && sleep 60;; esac\nexec {shutil.which("g++")} "$@"\n'
        )
        compiler.chmod(0o755)
        self.environment = {**os.environ, "JITPY_CXX": str(compiler), "JITPY_NATIVE_DIR": str(self.cache),
                            "TMPDIR": str(self.spare)}

    value = f"{sum(map(ord, PARTS))}\n"
    files = [*(f"{part}.c" for part in PARTS), "module.c"]

    def start(self, *before: str, preexec: Callable[[], None] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*before, sys.executable, "-c", PROGRAM, str(self.sources)],
            env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            preexec_fn=preexec,
        )

    def run(self, *before: str, preexec: Callable[[], None] | None = None) -> tuple[str, str]:
        process = self.start(*before, preexec=preexec)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        return out, err

    def compiled(self) -> list[str]:
        """The files that were compiled since the last question."""
        text = self.log.read_text() if self.log.exists() else ""
        self.log.unlink(missing_ok=True)
        return text.split()


@pytest.fixture
def build(tmp_path: Path) -> Build:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    return Build(tmp_path)


def test_a_killed_build_goes_on_where_it_was(build: Build) -> None:
    build.hold.touch()
    process = build.start()
    try:
        deadline = time.monotonic() + 60
        while "a.c" not in (build.log.read_text() if build.log.exists() else ""):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    started = build.compiled()
    assert started[-1] == "a.c" and 1 < len(started) < len(build.files)

    build.hold.unlink()
    assert build.run()[0] == build.value
    assert sorted(build.compiled()) == sorted({*build.files} - {*started[:-1]})
    assert build.run() == (build.value, "") and build.compiled() == []


def test_progress_counts_files(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def told(stream: io.StringIO) -> str:
        with native_build._Progress("parts", 3, stream) as progress:
            for _ in range(3):
                progress.count()
        return stream.getvalue()

    lines = [line for line in told(Terminal()).split("\r") if line]
    assert lines[0] == "jitpy: building parts (once): 3 files\x1b[K"
    assert lines[2] == "jitpy: building parts: 2 of 3 files\x1b[K"
    assert lines[-1] == "jitpy: built parts in 0 s\x1b[K\n" and len(lines) == 5
    assert told(io.StringIO()) == "jitpy: building parts (once): 3 files\njitpy: built parts in 0 s\n"
    monkeypatch.setattr(native_build, "_SECONDS_BETWEEN_LINES", 0.0)
    assert told(io.StringIO()).splitlines()[2] == "jitpy: building parts: 2 of 3 files"


def _check_spare_folder(build: Build, out: str, err: str) -> None:
    found = build.spare / f"jitpy-{os.geteuid()}"
    assert out == build.value
    warnings = [line for line in err.splitlines() if str(found) in line]
    assert len(warnings) == 1 and str(build.cache) in warnings[0] and "JITPY_NATIVE_DIR" in warnings[0], err
    assert sorted(build.compiled()) == sorted(build.files) and list(found.rglob("*.so"))


def test_a_cache_folder_without_room(build: Build) -> None:
    build.cache.mkdir()
    small = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
             f'mount -t tmpfs -o size=2m none {build.cache} && exec "$@"', "sh")
    if subprocess.run([*small, "true"], capture_output=True).returncode:
        pytest.skip("needs leave to mount a small file system")
    _check_spare_folder(build, *build.run(*small))
    assert build.run(*small) == (build.value, "") and build.compiled() == []  # later processes find it


def test_a_cache_folder_that_cannot_be_made(build: Build) -> None:
    build.cache.write_text("a file is in its place")
    _check_spare_folder(build, *build.run())
    out, err = build.run()
    assert out == build.value and "building" not in err and build.compiled() == []


def test_no_folder_has_room(build: Build) -> None:
    out, err = build.run(preexec=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)))
    assert "32 MiB" in out and str(build.cache) in out and str(build.spare) in out and "JITPY_NATIVE_DIR" in out
    assert build.compiled() == [] and "building" not in err


def test_room_is_tried_by_writing(tmp_path: Path) -> None:
    program = "import sys; from pathlib import Path; from jitpy.runtime import cache; " \
              "print(cache.has_room(Path(sys.argv[1]), 4 << 20), cache.has_room(Path(sys.argv[1]), 1 << 60))"
    limits = {"limited": 1 << 20, "free": resource.RLIM_INFINITY}
    found = {
        name: subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True,
            preexec_fn=lambda limit=limit: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        ).stdout.split()
        for name, limit in limits.items()
    }
    assert found == {"limited": ["False", "False"], "free": ["True", "False"]}
    assert list(tmp_path.iterdir()) == []
