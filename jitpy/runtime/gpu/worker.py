"""Kernel source in, machine code out. Runs in worker processes that import Triton and nothing else, or in this one.

As a program it makes workers: it imports Triton and compiles a small kernel, which takes a second; then each socket
that comes through stdin (which is a socket, too) gets a fork of it that has all that. A worker reads requests from its
socket and answers there, one after another: a line of JSON, which gives the lengths of the bytes that follow it. All
end when their sockets do.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import os
import re
import signal
import socket
import sys
import tempfile
import traceback
from typing import Any

_ENTRY = re.compile(r"\.entry\s+\w+\s*\((?P<parameters>[^)]*)\)")


def compile_request(request: dict[str, Any]) -> tuple[dict[str, Any], bytes, bytes]:
    """Compile one kernel: (facts for its launch, machine code, assembly text).

    `request` has the fields of a GpuKernel as JSON and the `target` (backend, arch, warp size). Raises whatever Triton
    raises, and ValueError for a kernel that needs memory which launches do not give it.
    """
    import triton
    from triton.backends.compiler import GPUTarget

    if request["cluster"] > 1 and not _is_hopper(request["target"]):
        raise ValueError(f"kernel {request['name']} needs clusters of programs, which this GPU has not")
    signature = {name: kind for name, kind in request["signature"]}
    function = _function(request["source"], request["name"], request["target"])
    attributes = {(index,): [["tt.divisibility", 16]]
                  for index, name in enumerate(signature) if name in request["divisible"]}
    source = triton.compiler.ASTSource(function, signature, dict(request["constexprs"]), attributes)
    options = {"num_warps": request["num_warps"], "num_stages": request["num_stages"],
               "enable_fp_fusion": request["fp_fusion"], "debug": request["checks"],
               "sanitize_overflow": False, "enable_reflect_ftz": request["flush_tiny"]}
    backend, arch, warp_size = request["target"]
    if request["max_registers"] is not None and backend == "cuda":
        options["maxnreg"] = request["max_registers"]
    compiled = triton.compile(source, target=GPUTarget(backend, arch, warp_size), options=options)
    passed = sum(kind != "constexpr" for kind in signature.values())
    facts, code, text = binary_of(compiled, request["name"], passed, backend, warp_size)
    facts["overlaps"] = request["overlaps"] and _is_hopper(request["target"])
    facts["cluster"] = request["cluster"]
    return facts, code, text.encode()


def binary_of(compiled: Any, name: str, passed: int, backend: str, warp_size: int) -> tuple[dict[str, Any], bytes, str]:
    """Facts for launches of a kernel that Triton has compiled, to which `passed` arguments are passed: facts, machine
    code, assembly text. Raises ValueError for one that needs memory which launches do not give it."""
    facts, assembly = compiled.metadata, compiled.asm
    code = assembly["cubin" if backend == "cuda" else "hsaco"]
    text = assembly["ptx" if backend == "cuda" else "amdgcn"]
    scratch = getattr(facts, "global_scratch_size", 0) or getattr(facts, "profile_scratch_size", 0)
    if scratch or getattr(facts, "num_ctas", 1) != 1:
        raise ValueError(f"kernel {name} needs {scratch} bytes of global scratch memory, or clusters")
    return {
        "entry": facts.name,
        "threads": facts.num_warps * warp_size,
        "shared": facts.shared,
        "extra_parameters": _parameters(text) - passed if backend == "cuda" else 0,
    }, code, text


def _parameters(ptx: str) -> int:
    """How many parameters the kernel has: Triton appends pointers to scratch memory, more or fewer by version."""
    found = _ENTRY.search(ptx)
    if found is None:
        raise ValueError("the kernel's PTX has no entry")
    return found["parameters"].count(".param")


def _is_hopper(target: tuple[str, Any, int]) -> bool:
    """Whether a launch can begin before the one in front of it has ended, and programs of a launch can wait for each
    other: on NVIDIA's GPUs since Hopper."""
    return target[0] == "cuda" and target[1] >= 90


def _function(source: str, name: str, target: tuple[str, Any, int]) -> Any:
    """The kernel as Triton's decorator makes it. Triton reads the text back by the function's file name."""
    import triton.language as tl

    file = f"<jitpy kernel {name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"__name__": f"jitpy_kernel_{name}", "__file__": file}
    exec(compile(source, file, "exec"), namespace)
    if "MACHINE" in namespace:
        namespace["MACHINE"] = tl.constexpr(target[0])
    if "HOPPER" in namespace:
        namespace["HOPPER"] = tl.constexpr(_is_hopper(target))
    return namespace[name]


def answer(request: dict[str, Any]) -> tuple[dict[str, Any], bytes, bytes]:
    """As `compile_request`; where it raises, the facts are `error` (one line) and `details`."""
    try:
        return compile_request(request)
    except Exception as error:  # whatever the compiler raises is the answer
        first = next(iter(str(error).strip().splitlines()), "")
        return {"error": f"{type(error).__name__}: {first}", "details": traceback.format_exc()}, b"", b""


def main() -> None:
    """Make workers until stdin ends. The argument is a request whose answer nobody waits for."""
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="jitpy-triton-") as folder:
        os.environ["TRITON_CACHE_DIR"] = folder  # jitpy keeps what comes out
        os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # only so that nothing is printed: it is always given
        os.environ.pop("TRITON_INTERPRET", None)
        _spare_hashes()
        answer(json.loads(sys.argv[1]))
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for workers
        while True:
            _, files, _, _ = socket.recv_fds(control, 1, 1)
            if not files:
                return
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                control.close()
                status = 1
                try:
                    serve(socket.socket(fileno=files[0]))
                    status = 0
                finally:
                    os._exit(status)  # what the maker of workers does at its end is not for them
            os.close(files[0])


def _spare_hashes() -> None:
    """Have Triton not hash its own files, which takes longer than a kernel: its cache ends with this process."""
    import triton.compiler.compiler
    import triton.runtime.cache

    for module in (triton.compiler.compiler, triton.runtime.cache):  # by version
        if hasattr(module, "triton_key"):
            module.triton_key = lambda: ""


def serve(connection: socket.socket) -> None:
    """Answer requests until there are no more."""
    stream = connection.makefile("rwb")
    stream.write(b"%d\n" % os.getpid())
    stream.flush()
    for line in stream:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            facts, code, text = answer(json.loads(line))
        if "error" in facts:
            facts["details"] += printed.getvalue()
        stream.write(json.dumps({**facts, "lengths": [len(code), len(text)]}).encode() + b"\n" + code + text)
        stream.flush()


if __name__ == "__main__":
    main()
