"""The C++ compiler of the machine: find it, run it, and keep what it makes in the disk cache."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jitpy import config, logs
from jitpy.runtime import cache

TIMEOUT_SECONDS = 900.0
_LAST_LINES = 15
_CANDIDATES = ("g++", "clang++", "c++")


class CompilerError(RuntimeError):
    """The compiler is missing, failed or was killed. The message names the command and its last lines.

    command: the command as a string ("" where no compiler was found); output: all that it printed.
    """

    def __init__(self, reason: str, command: str = "", output: str = ""):
        self.reason, self.command, self.output = reason, command, output
        text = reason
        if command:
            text += f"\n  command: {command}"
        tail = [line for line in output.splitlines() if line.strip()][-_LAST_LINES:]
        if tail:
            text += "\n  its last lines:\n" + "\n".join(f"    {line}" for line in tail)
        super().__init__(text)

    @property
    def is_about_text(self) -> bool:
        """Whether the compiler found an error in the text that it was given: an error of whoever wrote that."""
        return "<stdin>:" in self.output and " error: " in self.output


@dataclass(frozen=True)
class Compiler:
    """A compiler: the words that call it, and the first line of what `--version` prints."""

    command: tuple[str, ...]
    version: str

    def compile_shared(
        self,
        source: str | Sequence[str | Path],
        output: Path,
        flags: Sequence[str] = (),
        language: str = "c++",
    ) -> None:
        """Make a shared library. `source` is one text, or paths of source and object files. Raises CompilerError."""
        self.run(source, output, ("-shared", "-fPIC", *flags), language)

    def compile_object(
        self, source: str | Sequence[str | Path], output: Path, flags: Sequence[str] = (), language: str = "c++"
    ) -> None:
        """Make an object file fit for a shared library. Raises CompilerError."""
        self.run(source, output, ("-c", "-fPIC", *flags), language)

    def run(self, source: str | Sequence[str | Path], output: Path, flags: Sequence[str], language: str) -> None:
        """Run the compiler on a text (by standard input) or on files; `-l...` flags are put behind the sources."""
        libraries = [flag for flag in flags if flag.startswith("-l")]
        others = [flag for flag in flags if not flag.startswith("-l")]
        if isinstance(source, str):
            text, files = source, ["-x", language, "-"]
        else:
            text, files = None, [str(path) for path in source]
            if not all(path.endswith((".o", ".a")) for path in files):
                files = ["-x", language, *files]
        words = [*self.command, *others, *files, "-o", str(output), *libraries]
        started = time.perf_counter()
        _execute(words, text)
        logs.log("timing", lambda: f"{self.command[0]} {time.perf_counter() - started:.2f} s: {Path(output).name}")


def find_compiler() -> Compiler | None:
    """The compiler in use: `config.cxx`, `$CXX`, g++, clang++, c++, the first that runs; None where there is none.

    A compiler that is named explicitly is not replaced by another one.
    """
    return _find(config.cxx, os.environ.get("CXX", ""), os.environ.get("PATH", ""))


def require_compiler() -> Compiler:
    """Like `find_compiler`, but raises CompilerError that says what was looked for."""
    compiler = find_compiler()
    if compiler is None:
        named = config.cxx or os.environ.get("CXX", "")
        tried = f"{named!r} does not run" if named else f"looked for {', '.join(_CANDIDATES)} on PATH"
        raise CompilerError(f"no C++ compiler found ({tried}); set JITPY_CXX or CXX to one")
    return compiler


def sanitizer_flags() -> tuple[str, ...]:
    """Flags for `config.sanitize`. Programs run with the sanitizer's library preloaded, and go on after a report."""
    if not config.sanitize:
        return ()
    recover = () if config.sanitize == "thread" else ("-fsanitize-recover=all", "-fno-sanitize=vptr")
    return (f"-fsanitize={config.sanitize}", *recover, "-O1", "-g1", "-fno-omit-frame-pointer")


def text_key(text: str, flags: Sequence[str], compiler: Compiler, language: str = "c++") -> str:
    """The cache key of a text compiled with these flags on this machine."""
    native = any(flag in ("-march=native", "-mcpu=native", "-mtune=native") for flag in flags)
    machine = cpu_identity() if native else ""
    return cache.key_of("text", text, "\0".join(flags), compiler.version, language, platform.machine(), machine)


def compile_text_cached(text: str, flags: tuple[str, ...], *, language: str = "c++") -> Path:
    """The shared library made of a source text, from the disk cache where possible.

    Raises CompilerError. To load the library use `load_text_cached`, which also survives one that does not load.
    """
    compiler = require_compiler()
    key = text_key(text, flags, compiler, language)
    path = cache.lookup(key, ".so")
    if path is not None:
        return path
    with cache.scratch() as work:
        output = work / "out.so"
        compiler.compile_shared(text, output, flags, language)
        try:
            return cache.store_file(key, ".so", output)
        except OSError as error:
            raise CompilerError(f"cannot keep the compiler's output: {error}", shlex.join(compiler.command)) from error


def load_text_cached(text: str, flags: tuple[str, ...]) -> ctypes.CDLL:
    """Compile (or find) and load a shared library. One that does not load is made again once. Raises CompilerError."""
    path = compile_text_cached(text, flags)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        logs.log("cache", f"{path.name} does not load ({error}); building it again")
    cache.drop(path)
    path = compile_text_cached(text, flags)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CompilerError(f"the compiled library does not load: {error}") from error


@functools.cache
def cpu_identity() -> str:
    """Model and instruction sets of the CPU: what `-march=native` depends on."""
    wanted = ("flags", "Features", "model name", "cpu family", "model", "CPU implementer", "CPU part")
    found: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() in wanted:
                    found.setdefault(name.strip(), " ".join(sorted(value.split())))
    except OSError:
        found["processor"] = platform.processor()
    return "\n".join(f"{name}: {value}" for name, value in sorted(found.items())) or platform.platform()


@functools.lru_cache(maxsize=8)
def _find(configured: str, environment: str, search_path: str) -> Compiler | None:
    named = configured or environment
    for candidate in (named,) if named else _CANDIDATES:
        words = shlex.split(candidate)
        if not words or shutil.which(words[0], path=search_path) is None:
            continue
        version = _version(tuple(words), search_path)
        if version is not None:
            return Compiler(tuple(words), version)
    return None


def _version(words: tuple[str, ...], search_path: str) -> str | None:
    """The version line; kept on disk by the binary's path, size and time, so that a warm start runs no compiler."""
    identity = []
    for word in words:
        path = shutil.which(word, path=search_path)
        if path is None:
            identity.append(word)
            continue
        status = os.stat(path)
        identity.append(f"{os.path.realpath(path)} {status.st_size} {status.st_mtime_ns}")
    key = cache.key_of("compiler version", *identity)
    known = cache.read(key, ".version")
    if known is not None:
        return known.decode()
    try:
        line = _execute([*words, "--version"], None, timeout=60.0).splitlines()[0].strip()
    except (CompilerError, IndexError) as error:
        logs.log("cache", f"{shlex.join(words)} does not tell its version: {error}")
        return None
    try:
        cache.store(key, ".version", line.encode())
    except OSError as error:
        logs.log("cache", f"cannot keep the compiler's version: {error}")
    return line


def _execute(words: Sequence[str], text: str | None, timeout: float = TIMEOUT_SECONDS) -> str:
    """Run a command; its output. Whatever goes wrong becomes CompilerError."""
    command = shlex.join(words)
    environment = {**os.environ, "LC_ALL": "C"}
    if config.sanitize:
        environment.pop("LD_PRELOAD", None)  # the compiler itself is not what is looked at
    try:
        done = subprocess.run(
            words,
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            encoding="utf-8",
            errors="replace",
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        output = error.stdout.decode("utf-8", "replace") if isinstance(error.stdout, bytes) else (error.stdout or "")
        raise CompilerError(f"the compiler did not end within {timeout:.0f} s", command, output) from error
    except OSError as error:
        raise CompilerError(f"the compiler does not start: {error}", command) from error
    if done.returncode < 0:
        try:
            name = signal.Signals(-done.returncode).name
        except ValueError:
            name = f"signal {-done.returncode}"
        raise CompilerError(f"the compiler was killed by {name}", command, done.stdout)
    if done.returncode:
        raise CompilerError(f"the compiler failed with exit status {done.returncode}", command, done.stdout)
    return done.stdout
