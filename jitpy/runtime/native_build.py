"""Build jitpy's own native modules on first use, into the disk cache, and import them.

`load_native("hook")` and `load_native("iterators")` are plain C on Python's headers; `load_native("runtime")` is C++ on
torch's headers. Each source
file becomes an object that is cached by the text of the file and of the headers of jitpy that it includes, by flags,
compiler, Python ABI and torch build, so that an edit compiles one file again, and a build that was killed goes on where
it was. Processes that start together build once. Where the cache folder has no room, a folder for temporary files is
used, which later processes find.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import importlib.machinery
import importlib.util
import os
import re
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Self, TextIO

from jitpy import config, logs
from jitpy.runtime import cache, compiler

NATIVE_FOLDER = Path(__file__).resolve().parent.parent / "native"
LOCK_TIMEOUT_SECONDS = 600.0
_ROOM = 32 << 20  # bytes that a build may need in its folder: objects, also in a scratch folder, and the module
_SECONDS_BETWEEN_LINES = 10.0
_JOBS = min(4, os.cpu_count() or 1)  # a file with torch headers takes a gigabyte of memory to compile
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


class NativeUnavailable(RuntimeError):
    """A native module cannot be had here; `reason` says why. Callers fall back to pure Python."""

    def __init__(self, reason: str):
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True)
class NativeModule:
    """How one extension module is made. `sources` and `headers` are patterns relative to jitpy/native."""

    title: str
    module: str
    sources: tuple[str, ...]
    language: str
    flags: tuple[str, ...]
    torch: bool
    pythons: tuple[tuple[int, int], ...] = ()  # the versions it is written for; empty: all that jitpy supports


MODULES = {
    "hook": NativeModule(
        title="frame hook",
        module="_jitpy_hook",
        sources=("hook.c",),
        language="c",
        flags=("-O2", "-std=gnu11", "-fvisibility=hidden", "-fno-strict-aliasing", "-Wall"),
        torch=False,
        pythons=((3, 11), (3, 12), (3, 13)),
    ),
    "iterators": NativeModule(
        title="iterators",
        module="_jitpy_iterators",
        sources=("iterators.c",),
        language="c",
        flags=("-O2", "-std=gnu11", "-fvisibility=hidden", "-fno-strict-aliasing", "-Wall"),
        torch=False,
        pythons=((3, 11), (3, 12), (3, 13)),
    ),
    "runtime": NativeModule(
        title="native runtime",
        module="_jitpy_runtime",
        sources=("runtime/*.cpp",),
        language="c++",
        flags=("-O2", "-pipe", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-g0", "-w"),
        torch=True,
    ),
}

_lock = threading.RLock()
_loaded: dict[str, ModuleType] = {}
_failed: dict[str, str] = {}


def load_native(name: str) -> ModuleType:
    """The native module of this name, built first where needed. Raises NativeUnavailable, in a process always the same.

    name: a key of MODULES ("hook" or "runtime"); others are a ValueError.
    """
    if name not in MODULES:
        raise ValueError(f"unknown native module {name!r}; there are: {', '.join(MODULES)}")
    if not config.native:
        raise NativeUnavailable("native code is turned off (JITPY_NATIVE=0)")
    with _lock:
        if name in _loaded:
            return _loaded[name]
        if name in _failed:
            raise NativeUnavailable(_failed[name])
        try:
            with _own_folder():
                module = _loaded[name] = _load(MODULES[name])
            return module
        except NativeUnavailable as error:
            _failed[name] = error.reason
            raise


def load_or_none(name: str) -> ModuleType | None:
    """Like `load_native`, but None where the module cannot be had."""
    try:
        return load_native(name)
    except NativeUnavailable:
        return None


def is_built(name: str) -> bool:
    """Would `load_native` find the module without compiling anything?"""
    if name in _loaded:
        return True
    chosen = compiler.find_compiler()
    if chosen is None or not _sources(MODULES[name]):
        return False
    with _own_folder():
        return _find(_Build(MODULES[name], chosen).link_key()) is not None


def _own_folder() -> contextlib.AbstractContextManager[None]:
    """Native modules are kept on disk whatever is said of kernels: building them takes long."""
    return config.patch(cache_dir=config.native_dir or config.cache_dir, disk_cache=True)


def _spare_folders() -> Iterator[str]:
    """The user's own folders among temporary files. `cache` refuses one that belongs to somebody else."""
    seen: dict[str, None] = dict.fromkeys((tempfile.gettempdir(), "/var/tmp", "/dev/shm"))
    for base in seen:
        if os.path.isdir(base):
            yield os.path.join(base, f"jitpy-{os.geteuid()}")


def _find(key: str) -> Path | None:
    """The finished module, in the cache folder or where a former process had to put it."""
    path = cache.lookup(key, ".so")
    if path is None:
        for spare in filter(os.path.isdir, _spare_folders()):
            with config.patch(cache_dir=spare):
                path = path or cache.lookup(key, ".so")
    return path


def _choose_folder() -> str:
    """Where to build: the cache folder, else a spare one with room. Raises NativeUnavailable where there is none."""
    cache_folder = cache.folder()
    if cache.is_lasting() and cache.has_room(cache_folder, _ROOM):
        return config.cache_dir
    needed = f"{_ROOM >> 20} MiB"
    way_out = "set JITPY_NATIVE_DIR, or JITPY_CACHE_DIR, to a folder with room"
    for spare in _spare_folders():
        with config.patch(cache_dir=spare):
            found = cache.folder()
            if not cache.is_lasting() or not cache.has_room(found, _ROOM):
                continue
        cache.warn_once(f"the cache folder {cache.wanted_folder()} does not take the {needed} that native code needs "
                        f"while it is built; it goes to {found} ({way_out})")
        return spare
    raise NativeUnavailable(f"no folder takes the {needed} that native code needs while it is built, neither "
                            f"{cache.wanted_folder()} nor {', '.join(_spare_folders())}; {way_out}")


def _load(table: NativeModule) -> ModuleType:
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise NativeUnavailable("free-threaded Python is not supported by the native code")
    if sys.implementation.name != "cpython":
        raise NativeUnavailable(f"native code needs CPython, not {sys.implementation.name}")
    if table.pythons and sys.version_info[:2] not in table.pythons:
        known = ", ".join(f"{major}.{minor}" for major, minor in table.pythons)
        raise NativeUnavailable(f"the {table.title} knows CPython {known}, not {sys.version.split()[0]}")
    if not _sources(table):
        raise NativeUnavailable(f"the sources of the {table.title} are missing below {NATIVE_FOLDER}")
    try:
        chosen = compiler.require_compiler()
        build = _Build(table, chosen)
        key = build.link_key()
        path = _find(key) or _build_once(build, key)
        try:
            return _import(table.module, path)
        except ImportError as error:
            logs.log("cache", f"{path.name} does not import ({error}); building it again")
        cache.drop(path)
        return _import(table.module, _build_once(build, key))
    except compiler.CompilerError as error:
        raise NativeUnavailable(f"the {table.title} could not be built: {error}") from error
    except ImportError as error:
        raise NativeUnavailable(f"the {table.title} was built but does not import: {error}") from error
    except OSError as error:
        raise NativeUnavailable(f"the {table.title} could not be built: {error}") from error


def _build_once(build: _Build, key: str) -> Path:
    """Build under the lock of all processes; whoever waited finds the finished module."""
    started = time.monotonic()
    with config.patch(cache_dir=_choose_folder()), \
            cache.lock(f"build-{build.table.module}", LOCK_TIMEOUT_SECONDS) as held:
        if held and time.monotonic() - started > 0.02:
            path = cache.lookup(key, ".so")
            if path is not None:
                return path
        with _Progress(build.table.title, len(build.sources)) as progress:
            return build.run(key, progress)


def _import(name: str, path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, str(path), loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[name] = module
    return module


class _Build:
    """One module with one compiler: its keys, its objects and the link."""

    def __init__(self, table: NativeModule, chosen: compiler.Compiler):
        self.table = table
        self.compiler = chosen
        self.sources = _sources(table)
        self.sanitizers = compiler.sanitizer_flags()
        self.flags = (*table.flags, *_python_flags(), *(_torch_flags() if table.torch else ()), *self.sanitizers)
        self.environment = _python_identity() + (_torch_identity() if table.torch else "")
        self.libraries = _torch_libraries() if table.torch else ()

    def object_key(self, source: Path) -> str:
        texts = [part for path in _with_headers(source) for part in (path.name, path.read_bytes())]
        # The files in a folder are part of the texts and of the environment; where the folder is does not matter.
        flags = "\0".join(flag for flag in self.flags if not flag.startswith("-I"))
        return cache.key_of("object", self.compiler.version, self.environment, self.table.language, flags, *texts)

    def link_key(self) -> str:
        keys = (self.object_key(source) for source in self.sources)
        return cache.key_of("module", self.table.module, "\0".join(self.libraries), *keys)

    def run(self, key: str, progress: _Progress) -> Path:
        """Compile what is not in the cache, some files at a time, and link. Raises CompilerError."""
        with cache.scratch() as work:
            objects = self._objects(work, progress)
            output = work / f"{self.table.module}.so"
            driver = "c++" if self.table.torch else "c"
            self.compiler.compile_shared(objects, output, (*self.sanitizers, *self.libraries), language=driver)
            return cache.store_file(key, ".so", output)

    def _objects(self, work: Path, progress: _Progress) -> list[Path]:
        pool = concurrent.futures.ThreadPoolExecutor(_JOBS)
        try:
            sources = sorted(self.sources, key=_compile_cost, reverse=True)  # the slow ones first, side by side
            return list(pool.map(functools.partial(self._object, work, config.cache_dir, progress), sources))
        finally:
            pool.shutdown(cancel_futures=True)

    def _object(self, work: Path, folder: str, progress: _Progress, source: Path) -> Path:
        with config.patch(cache_dir=folder, disk_cache=True):  # flags set for a block hold for one thread
            path = self._object_here(work, source)
        progress.count()
        return path

    def _object_here(self, work: Path, source: Path) -> Path:
        key = self.object_key(source)
        path = cache.lookup(key, ".o")
        if path is not None:
            return path
        output = work / f"{source.stem}.o"
        self.compiler.compile_object([source], output, self.flags, language=self.table.language)
        return cache.store_file(key, ".o", output)


def _sources(table: NativeModule) -> list[Path]:
    return sorted(path for pattern in table.sources for path in NATIVE_FOLDER.glob(pattern))


def _compile_cost(source: Path) -> tuple[int, int]:
    """Orders files by how long they take: reading torch's own headers takes longer than all else."""
    texts = [path.read_bytes() for path in _with_headers(source)]
    return sum(text.count(b"#include <torch/") for text in texts), sum(len(text) for text in texts)


def _with_headers(source: Path) -> list[Path]:
    """The file and every file of jitpy that it includes with quotes, directly or not."""
    seen: dict[Path, None] = {}
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen[path] = None
        for name in _INCLUDE.findall(path.read_text()):
            for base in (path.parent, NATIVE_FOLDER):
                header = (base / name).resolve()
                if header.is_file():
                    waiting.append(header)
                    break
    return list(seen)


def _python_flags() -> tuple[str, ...]:
    include = sysconfig.get_path("include")
    if not (Path(include) / "Python.h").is_file():
        raise NativeUnavailable(f"Python's headers are not installed ({include}/Python.h is missing)")
    return (f"-I{include}", f"-I{NATIVE_FOLDER}")


def _python_identity() -> str:
    return f"{sys.implementation.cache_tag} {sys.version} {sysconfig.get_config_var('SOABI')}"


def _torch_flags() -> tuple[str, ...]:
    import torch

    include = Path(torch.__file__).parent / "include"
    if not (include / "torch" / "csrc").is_dir():
        raise NativeUnavailable(f"this torch has no C++ headers ({include} is missing)")
    version = tuple(int(digits) for digits in re.findall(r"\d+", torch.__version__)[:2])
    return (
        "-std=c++20" if version >= (2, 13) else "-std=c++17",  # what torch itself is built with
        f"-I{include}",
        f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
    )


def _torch_identity() -> str:
    import torch

    return f" torch {torch.__version__} {torch.version.git_version}"


def _torch_libraries() -> tuple[str, ...]:
    import torch

    folder = Path(torch.__file__).resolve().parent / "lib"
    names = ("torch_python", "torch", "torch_cpu", "c10")
    return (f"-L{folder}", f"-Wl,-rpath,{folder}", "-Wl,--no-as-needed", *_loaded_runtime(),
            *(f"-l{name}" for name in names))


def _loaded_runtime() -> list[str]:
    """The C++ runtime library that torch brought into the process: a compiler that only has a static one would give
    the module a second, and exceptions would not pass between the two."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    return sorted({line.split()[-1] for line in maps.read_text().splitlines() if "libstdc++.so" in line})


class _Progress:
    """Says on stderr how many files of a build are done: one line, rewritten in place, where that is a terminal."""

    def __init__(self, title: str, files: int, stream: TextIO | None = None):
        self.title, self.files, self.done = title, files, 0
        self.stream = stream or sys.stderr
        self.in_place = self.stream.isatty()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self.started = self.told = time.monotonic()
        self._write(f"building {self.title} (once): {self.files} files")
        return self

    def count(self) -> None:
        """One more file is done."""
        with self._lock:
            self.done += 1
            now = time.monotonic()
            if self.in_place or now - self.told >= _SECONDS_BETWEEN_LINES:
                self.told = now
                self._write(f"building {self.title}: {self.done} of {self.files} files")

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        outcome = "building {} failed after {:.0f} s" if kind else "built {} in {:.0f} s"
        self._write(outcome.format(self.title, time.monotonic() - self.started), last=True)

    def _write(self, text: str, last: bool = False) -> None:
        start, end = ("\r", "\x1b[K" + "\n" * last) if self.in_place else ("", "\n")
        self.stream.write(f"{start}jitpy: {text}{end}")
        self.stream.flush()
