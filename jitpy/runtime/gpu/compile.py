"""Kernels to machine code: in worker processes, each kernel once, kept on disk.

    pending = [submit(kernel, target) for kernel in kernels]     # returns at once
    binaries = [one.result() for one in pending]                 # KernelCompileError

An entry of the disk cache is keyed by all that decides its content: the kernel, the target, Triton's version and what
of the environment Triton reads. No GPU is needed to compile.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import os
import queue
import select
import socket
import subprocess
import sys
import threading
import weakref
import zlib
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jitpy import config, logs
from jitpy.runtime import cache

from . import worker
from .kernel import GpuKernel

_SUFFIX = ".kernel"


class KernelCompileError(RuntimeError):
    """A kernel does not compile here. `reason` is one line; the message adds what the compiler said."""

    def __init__(self, reason: str, details: str = ""):
        self.reason = reason
        super().__init__(f"{reason}\n{details}" if details else reason)


@dataclass(frozen=True, slots=True)
class Target:
    """The device to compile for: `Target("cuda", 90)` is compute capability 9.0, `Target("hip", "gfx942", 64)` an
    MI300."""

    backend: str
    arch: int | str
    warp_size: int = 32


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Binary:
    """A kernel as machine code, with what a launch needs to know of it."""

    kernel: GpuKernel
    key: str
    code: bytes
    assembly: str
    entry: str
    threads: int
    shared: int
    #: pointers (always null) that the entry takes behind the kernel's own parameters
    extra_parameters: int
    #: whether it may begin before the launch in front of it has ended
    overlaps: bool
    #: programs that run side by side
    cluster: int


_lock = threading.Lock()
_known: weakref.WeakValueDictionary[str, Binary] = weakref.WeakValueDictionary()
_in_flight: dict[str, Future[Binary]] = {}


@functools.cache
def triton_version() -> str | None:
    """Triton's version, None where it is not installed. Does not import it where its package tells."""
    import importlib.metadata
    import importlib.util

    if importlib.util.find_spec("triton") is None:
        return None
    for package in ("triton", "pytorch-triton", "triton-rocm"):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    import triton

    return triton.__version__


def submit(kernel: GpuKernel, target: Target) -> Future[Binary]:
    """Start compiling. The future's result is the Binary, or raises KernelCompileError."""
    key = key_of(kernel, target)
    with _lock:
        done = _known.get(key)
        if done is None and key in _in_flight:
            return _in_flight[key]
        future: Future[Binary] = Future()
        if done is not None:
            future.set_result(done)
            return future
        stored = _read(kernel, key)
        if stored is not None:
            _known[key] = stored
            future.set_result(stored)
            return future
        _in_flight[key] = future
    folder, keep = config.cache_dir, config.disk_cache
    _pool().submit(_compile, future, kernel, target, key, folder, keep)
    return future


def compile_kernels(kernels: list[GpuKernel], target: Target) -> list[Binary]:
    """Compile all, side by side. Raises KernelCompileError for the first that does not compile."""
    pending = [submit(kernel, target) for kernel in kernels]
    return [one.result() for one in pending]


def start_workers() -> None:
    """Prepare for work on kernels where a GPU is in use: importing Triton takes a second. Returns at once."""
    import torch

    from .load import target_of

    if torch.cuda.is_initialized() and triton_version() is not None:
        _pool().prepare(target_of(torch.device("cuda", torch.cuda.current_device())))


def key_of(kernel: GpuKernel, target: Target) -> str:
    """The key of the cache entry. Raises KernelCompileError where Triton is missing."""
    version = triton_version()
    if version is None:
        raise KernelCompileError("Triton is not installed")
    environment = {name: value for name, value in os.environ.items()
                   if name.startswith("TRITON_") and name not in ("TRITON_CACHE_DIR", "TRITON_INTERPRET")}
    return cache.key_of("gpu-kernel-2", version, json.dumps(_request(kernel, target), sort_keys=True),
                        json.dumps(environment, sort_keys=True))


def _request(kernel: GpuKernel, target: Target) -> dict[str, Any]:
    fields = dataclasses.asdict(kernel)
    return {**fields, "divisible": sorted(kernel.divisible), "target": dataclasses.astuple(target)}


def _compile(future: Future[Binary], kernel: GpuKernel, target: Target, key: str, folder: str, keep: bool) -> None:
    """Runs in a thread of the pool; sets the future."""
    try:
        facts, code, text = _pool().ask(_request(kernel, target))
        if "error" in facts:
            raise KernelCompileError(f"kernel {kernel.name}: {facts['error']}", facts["details"])
        facts.pop("lengths", None)
        with config.patch(cache_dir=folder, disk_cache=keep):
            _write(key, facts, code, text)
        binary = Binary(kernel, key, code, text.decode(), **facts)
        with _lock:
            _known[key] = binary
            _in_flight.pop(key, None)
        future.set_result(binary)
    except BaseException as error:
        with _lock:
            _in_flight.pop(key, None)
        future.set_exception(error)


def _write(key: str, facts: dict[str, Any], code: bytes, text: bytes) -> None:
    """An entry: a line of JSON, the machine code, the compressed assembly."""
    header = json.dumps({**facts, "code": len(code)}).encode()
    try:
        cache.store(key, _SUFFIX, header + b"\n" + code + zlib.compress(text))
    except OSError as error:
        logs.log("cache", f"kernel {key} is not kept: {error}")


def _read(kernel: GpuKernel, key: str) -> Binary | None:
    content = cache.read(key, _SUFFIX)
    if content is None:
        return None
    header, _, rest = content.partition(b"\n")
    facts = json.loads(header)
    size = facts.pop("code")
    return Binary(kernel, key, rest[:size], zlib.decompress(rest[size:]).decode(), **facts)


#: A kernel that needs of the compiler what most do.
_FIRST = GpuKernel("""import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def total(a, b):
    return a + b


@triton.jit
def first(source, result, count):
    at = tl.program_id(0) * 256 + tl.arange(0, 256)
    value = libdevice.rsqrt(tl.load(source + at, mask=at < count, other=0.0))
    tl.store(result + tl.program_id(0), tl.reduce(value, 0, total))
""", "first", (("source", "*fp32"), ("result", "*fp32"), ("count", "i32")), divisible=frozenset(["source"]))


class _Maker:
    """The process that makes workers: see worker.py. It compiles one kernel for `target` itself."""

    def __init__(self, target: Target) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self.control, theirs = socket.socketpair()
        try:
            # not `-m`: the process must not import jitpy, and with it torch
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(Path(worker.__file__)), json.dumps(_request(_FIRST, target))],
                stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=environment,
                start_new_session=True)  # a Ctrl-C is for this process, which then closes the sockets
        finally:
            theirs.close()

    def close(self) -> None:
        self.control.close()
        try:
            self.process.wait(0.3)  # it removes its files
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class _Worker:
    """A process that compiles. A single thread talks to it at a time."""

    def __init__(self, maker: _Maker) -> None:
        self.connection, theirs = socket.socketpair()
        try:
            socket.send_fds(maker.control, [b"1"], [theirs.fileno()])
        finally:
            theirs.close()
        self.stream = self.connection.makefile("rwb")
        self.pid: int | None = None

    def is_alive(self) -> bool:
        """Of a worker that has nothing to do: it says nothing, and its socket is open."""
        return not select.select([self.connection], [], [], 0)[0]

    def ask(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes, bytes]:
        """Raises EOFError or OSError where the process is gone."""
        stream = self.stream
        stream.write(json.dumps(request).encode() + b"\n")
        stream.flush()
        if self.pid is None:
            self.pid = int(stream.readline() or -1)
        line = stream.readline()
        if not line:
            raise EOFError("the compiling process ended")
        facts = json.loads(line)
        code, text = (stream.read(length) for length in facts["lengths"])
        if [len(code), len(text)] != facts["lengths"]:
            raise EOFError("the compiling process ended")
        return facts, code, text

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it is gone already
            self.connection.shutdown(socket.SHUT_RDWR)
            self.stream.close()
        self.connection.close()


def _cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Pool:
    """Threads that hand requests to worker processes. Workers start when they are first needed."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.size = max(1, min(config.compile_workers or _cores(), 32))
        self.threads = concurrent.futures.ThreadPoolExecutor(self.size, thread_name_prefix="jitpy-kernels")
        self.idle: queue.LifoQueue[_Worker] = queue.LifoQueue()
        self.lock = threading.Lock()
        self.workers: list[_Worker] = []
        self.here = threading.Lock()
        self.making = threading.Lock()
        self.maker: _Maker | None = None
        self.broken = False

    def submit(self, function: Any, *arguments: Any) -> None:
        self.threads.submit(function, *arguments)

    def prepare(self, target: Target) -> None:
        """Have workers made for this target."""
        self.threads.submit(self._made, target)

    def _made(self, target: Target) -> _Maker:
        with self.making:
            if self.maker is None or self.maker.process.poll() is not None:
                self.maker = _Maker(target)
            return self.maker

    def ask(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes, bytes]:
        """The answer of a worker; where there is none to be had, of this process. A kernel that ends three workers ends
        no process of the user's: it does not compile."""
        for _ in range(3):
            chosen = self._take(Target(*request["target"]))
            if chosen is None:
                with self.here:  # Triton's compiler is not made for threads
                    return worker.answer(request)
            try:
                answer = chosen.ask(request)
            except (OSError, EOFError, ValueError) as error:
                # killed for its memory, perhaps: once more in a fresh one
                logs.log("cache", f"a compiling process failed: {error}")
                self._drop(chosen)
                continue
            self.idle.put(chosen)
            return answer
        raise KernelCompileError(f"kernel {request['name']}: Triton's compiler ended its process three times")

    def _take(self, target: Target) -> _Worker | None:
        while True:
            try:
                waiting = self.idle.get_nowait()
            except queue.Empty:
                return self._start(target)
            if waiting.is_alive():
                return waiting
            self._drop(waiting)

    def _start(self, target: Target) -> _Worker | None:
        if self.broken:
            return None
        try:
            maker = self._made(target)
            try:
                started = _Worker(maker)
            except ConnectionError:  # it has just ended
                maker.process.wait()
                started = _Worker(self._made(target))
        except OSError as error:
            logs.log("cache", f"kernels compile in this process: {error}")
            self.broken = True
            return None
        with self.lock:
            self.workers.append(started)
        return started

    def _drop(self, dead: _Worker) -> None:
        with self.lock:
            self.workers.remove(dead)
        dead.close()

    def close(self) -> None:
        if self.pid != os.getpid():
            return  # a forked child: the processes belong to its parent
        self.threads.shutdown(wait=False, cancel_futures=True)
        for one in self.workers:
            one.close()
        if self.maker is not None:
            self.maker.close()


_current: _Pool | None = None
_pool_lock = threading.Lock()


def _pool() -> _Pool:
    global _current
    with _pool_lock:
        if _current is None:
            _current = _Pool()
            atexit.register(_current.close)
        return _current


def _after_fork() -> None:
    """The child of a fork has none of the threads, and leaves the processes to its parent."""
    global _current, _lock, _pool_lock
    _current, _lock, _pool_lock = None, threading.Lock(), threading.Lock()
    _in_flight.clear()


os.register_at_fork(after_in_child=_after_fork)
