"""Random programs about memory and gradients: views, writes in place, what autograd keeps, results that are views.

A program is a straight list of statements on tensors of known shapes (`tensor_programs.py`). It runs eagerly and jitted
on equal arguments; then the program's caller writes into some arguments and results, and runs a backward pass.
Compared: values, errors with their texts, gradients, `requires_grad`, `is_leaf`, dtypes, strides, who is a view of
whom, who shares memory, and who is the same object.

    python -m tests.fuzz --kind tensors --minutes 10
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import re
import time
import traceback
import types
import warnings
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .tensor_programs import PARAMETERS, Drawing, TensorProgram, arguments, parsed, statements

__all__ = ["Drawing", "TensorProgram", "check", "main", "parsed", "search", "shrunk", "statements"]


def observe(fn: Callable[..., Any], program: TensorProgram, alias: int | None = None) -> list[Any]:
    """All that a caller sees of one call, and of a backward pass behind it. `alias`: another one than the program's."""
    args = arguments(program.alias if alias is None else alias)
    torch.manual_seed(5)
    out: tuple[torch.Tensor, ...] = ()
    facts: list[Any] = []
    watched: list[torch.Tensor] = []
    try:
        log, *results = fn(**args)
        out = tuple(results)
        facts.append([_without_names(item) if isinstance(item, str) else item for item in log])
    except Exception as error:
        facts.append(_named(error))
    facts.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))  # an error leaves blocks, too
    facts.append(torch.get_default_dtype())
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    for line in program.after:
        try:
            exec(line, {"out": out, "args": args, "watched": watched})
        except Exception as error:  # of what the program does not have as well
            facts.append(_named(error))
    tensors = [*args.values(), *out]
    facts += _facts(tensors)
    try:
        parts = [(_real(t) * (k + 1)).sum() for k, t in enumerate(tensors) if t.requires_grad]
        if parts:
            sum(parts).backward()  # type: ignore[union-attr]
        facts.append("backward")
    except Exception as error:
        facts.append(_named(error))
        return facts  # which gradients had arrived by then is nobody's business
    for name in ("w", "v"):
        grad = args[name].grad if args[name].is_leaf else None
        facts += _of_gradient(grad)
    return facts + [fact for t in watched for fact in _of_gradient(t.grad)]


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.real + 2 * tensor.imag if tensor.is_complex() else tensor


def _of_gradient(grad: torch.Tensor | None) -> list[Any]:
    return [None] if grad is None else [(grad.stride(), grad.dtype, grad.requires_grad), grad.clone()]


def _without_names(text: str) -> str:
    """An error's text without how often a tensor was written to, by which node of autograd's it was made, and the
    places in C++."""
    text = re.sub(r"Exception raised from .*", "", text, flags=re.DOTALL)
    text = re.sub(r"Output \d+ of \w+ is", "This is", re.sub(r"version \d+", "version N", text))
    return re.sub(r", which is output [0-9]+ of [A-Za-z0-9:]+,", "", text)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {_without_names(str(error))}"


def _facts(tensors: list[torch.Tensor]) -> list[Any]:
    objects: dict[int, int] = {}
    memories: dict[int, int] = {}
    for t in tensors:
        objects.setdefault(id(t), len(objects))
    args = {id(t): objects[id(t)] for t in tensors[:len(PARAMETERS)]}
    found: list[Any] = []
    for t in tensors:
        try:
            leaf: Any = t.is_leaf
        except RuntimeError as error:
            leaf = _without_names(str(error))
        base = t._base
        memory = memories.setdefault(t.untyped_storage()._cdata, len(memories))
        # a base that the program made may be missing
        of = None if base is None or not t.requires_grad else args.get(id(base))
        layout = tuple(t.shape), t.stride(), t.storage_offset(), t.dtype, t.is_conj(), t.is_neg(), t.is_inference()
        found.append((objects[id(t)], memory, t.requires_grad, leaf, layout, of))
        found.append(t.detach().clone())
    return found


def difference(wanted: list[Any], found: list[Any], tolerance: float = 1e-4) -> str | None:
    """Where two observations differ, in words."""
    for number, (a, b) in enumerate(zip(wanted, found, strict=False)):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            if a.shape != b.shape or a.dtype != b.dtype or \
                    not torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True):
                return f"value {number}: {a} became {b}"
        elif type(a) is not type(b) or not isinstance(a, torch.Tensor) and a != b:
            return f"fact {number}: {a} became {b}"
    return None if len(wanted) == len(found) else f"{len(wanted)} facts became {len(found)}"


class _Looked(TorchFunctionMode):
    """Asks each operand and result so far for its `grad_fn` before an operation, as a tracer may that is handed all
    that is alive; `writes`: as many are forgotten of a tensor that comes to require grad (one more, where it is
    negative)."""

    def __init__(self, writes: int = 0) -> None:
        super().__init__()
        self.writes = writes
        self.known: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.writes and func in _TURNS:
            torch._C._autograd._unsafe_set_version_counter((args[0],), (max(args[0]._version - self.writes, 0),))
        self.known += [operand for operand in args if isinstance(operand, torch.Tensor)]
        for tensor in self.known:
            try:
                tensor.grad_fn  # noqa: B018
            except RuntimeError:
                pass  # which the operation itself raises, where that matters
        result = func(*args, **(kwargs or {}))
        self.known += [result] if isinstance(result, torch.Tensor) else []
        return result


def is_accident(wanted: list[Any], found: list[Any], fn: Callable[..., Any], program: TensorProgram,
                alias: int) -> bool:
    """Whether eager answers otherwise once somebody has looked at a `grad_fn`: a view of what came to require grad
    later may not be written until then. Or whether it answers as jitted where only the number of writes before a tensor
    came to require grad is another: its views are leaves, or not, depending on whether anything was written since."""
    with _Looked():
        if difference(wanted, observe(fn, program, alias)) is not None:
            return True
    for writes in (-1, 1, 2, 3, 4):
        with _Looked(writes):
            if difference(observe(fn, program, alias), found) is None:
                return True
    return False


#: What makes a tensor require grad.
_TURNS = (torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__)  # type: ignore[attr-defined]


def check(program: TensorProgram, backend: str) -> str | None:
    """How the jitted run of a program differs from its eager run, if that is no accident."""
    import jitpy


    space: dict[str, Any] = {"torch": torch, "jitpy": jitpy, "types": types}
    exec(compile(program.source, "<tensors>", "exec"), space)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jitpy.reset()
        jitted = jitpy.jit(space["fn"], backend=backend)
        tolerance = 0.05 if "autocast" in program.source else 1e-4  # 16 bits
        try:
            for call, alias in enumerate(program.calls):
                wanted, seen = observe(space["fn"], program, alias), observe(jitted, program, alias)
                found = difference(wanted, seen, tolerance)
                if found is not None and not is_accident(wanted, seen, space["fn"], program, alias):
                    return f"call {call}: {found}"
        except Exception:
            return traceback.format_exc()
    return None


def _kind(difference: str) -> str:
    """What differences of one cause have in common."""
    return re.sub(r"tensor\(.*?\)|\d+|call|[-.\s\[\],]", "", difference)[:60]


def shrunk(program: TensorProgram, backend: str, kind: str) -> TensorProgram:
    """The program without all that the difference does without."""
    def still(smaller: TensorProgram) -> bool:
        try:
            found = check(smaller, backend)
        except Exception:  # it is no program any more
            return False
        return found is not None and _kind(found) == kind and "NameError" not in found

    if program.then is not None and still(smaller := dataclasses.replace(program, then=None)):
        program = smaller
    changed = True
    while changed:
        changed = False
        for name in ("after", "lines", "result"):
            items = getattr(program, name)
            for k in reversed(range(len(items))):
                if name == "result" and len(items) == 1:
                    break
                smaller = dataclasses.replace(program, **{name: (*items[:k], *items[k + 1:])})
                if still(smaller):
                    program, items, changed = smaller, getattr(smaller, name), True
    return program


def search(backend: str, first: int, goes_on: Callable[[int], bool], known: Collection[str] = (),
           started: Callable[[TensorProgram], object] = lambda program: None,
           ) -> tuple[int, list[tuple[TensorProgram, str]]]:
    """Programs from seed `first` on, while `goes_on(programs)`: how many, and those that differ, made small; equal
    differences once, those of a kind in `known` not at all. `started` is told each program before it runs."""
    found: dict[str, tuple[TensorProgram, str]] = {}
    count = 0
    while goes_on(count):
        program = Drawing(first + count).program()
        started(program)
        count += 1
        problem = check(program, backend)
        if problem is not None and _kind(problem) not in found and _kind(problem) not in known:
            found[_kind(problem)] = shrunk(program, backend, _kind(problem)), problem
    return count, list(found.values())


def main(options: argparse.Namespace) -> int:
    """`python -m tests.fuzz --kind tensors`: the number of findings, which are printed."""
    if options.program is not None:
        problem = check(parsed(options.program.read_text()), "eager" if options.backend == "mixed" else options.backend)
        print(problem or "agrees")
        return int(problem is not None)
    first = options.first if options.first is not None else random.SystemRandom().randrange(1 << 40)
    backends = ("eager", "codegen") if options.backend == "mixed" else (options.backend,)
    total = 0

    def started(program: TensorProgram) -> None:  # for those that end the process
        if options.out is not None:
            (options.out / "running").write_text(program.text())

    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    for backend in backends:
        end = time.time() + options.minutes * 60 / len(backends)
        files = options.out.glob("tensors_*.py") if options.out is not None else ()
        known = [line[7:] for file in files for line in file.read_text().splitlines() if line.startswith("# kind ")]
        programs, findings = search(backend, first, lambda _, end=end: time.time() < end, known, started)
        for program, problem in findings:
            kind = _kind(problem)
            text = f"{program.text()}\n# {backend}\n# kind {kind}\n'''\n{problem}\n'''\n"
            print(text)
            if options.out is not None:
                name = re.sub(r"\W+", "_", kind)
                (options.out / f"tensors_{name}.py").write_text(text)
        print(f"{backend}: {programs} programs from seed {first}, {len(findings)} different findings", flush=True)
        total += len(findings)
    return min(total, 100)
