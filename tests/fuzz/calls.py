"""Arguments for the calls of a random program, and the comparison of its eager and its jitted run."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import linecache
import signal
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from .drawing import Draw
from .programs import EVENTS, Program

#: which arguments share memory, or are the same object
ALIASES = ("none", "none", "same", "view", "list", "overlap", "dict", "object")


@dataclasses.dataclass(frozen=True)
class Call:
    """One call's arguments as plain data, so that equal ones can be made twice and a failure can be printed."""

    size: int
    seed: int
    n: int
    f: float
    flag: bool
    ints: tuple[int, ...]
    table: tuple[tuple[str, int], ...]
    alias: str
    grad: bool
    deep: bool
    double: bool = False
    #: what the program does before this call: `event0` and so on, or nothing
    event: int | None = None

    def arguments(self, module: types.ModuleType) -> tuple[Any, ...]:
        """What `programs.PARAMETERS` names, in its order."""
        generator = torch.Generator().manual_seed(self.seed)
        x = torch.randn(self.size, generator=generator)
        if self.grad:
            x.requires_grad_()
        y = torch.randn(self.size, generator=generator)
        if self.alias == "same":
            y = x
        elif self.alias == "view":
            y = x.view(-1)
        elif self.alias == "overlap":
            both = torch.randn(self.size + 1, generator=generator)
            x, y = both[:-1], both[1:]
        vecs = [torch.randn(self.size, generator=generator) for _ in range(self.seed % 3)]
        if self.alias == "list":
            vecs.append(x)
        box = module.BOXES[self.deep](self.n, self.f)  # type: ignore[attr-defined]
        named = {"p": torch.randn(self.size, generator=generator)}
        if self.alias == "dict":
            named["q"] = y
        elif self.alias == "object":
            box.extra, box.child, box.named = x, module.BOXES[0](self.n, self.f), named  # type: ignore[attr-defined]
        idx = torch.randint(-3, 4, (self.size,), generator=generator)
        w = torch.randn(self.size, 2, generator=generator)
        if self.grad:
            w.requires_grad_()
        if self.double:
            x, y, w = x.detach().double(), y.double(), w.detach().double()
        queue = collections.deque(self.ints, maxlen=5 if self.flag else None)
        made = x, y, self.n, self.f, self.flag, list(self.ints), vecs, dict(self.table), box, idx, named, w, queue
        if self.event is not None:
            with contextlib.suppress(Exception):  # what it did until then counts
                module.EVENTS[self.event](*made)  # type: ignore[attr-defined]
        return made


def draw_calls(draw: Draw) -> list[Call]:
    """Two to four calls; each differs from the one before it in few things, as calls do."""
    call = Call(size=draw(2, 4), seed=draw(0, 5), n=draw(0, 9), f=draw(-8, 8) / 4, flag=bool(draw(0, 1)),
                ints=tuple(draw(-2, 9) for _ in range(draw(0, 4))),
                table=tuple(zip("abc", (draw(0, 9) for _ in range(draw(0, 3))), strict=False)),
                alias=ALIASES[draw(0, 7)], grad=draw(0, 4) == 4, deep=bool(draw(0, 1)))
    calls = [call]
    for _ in range(draw(1, 3)):
        changes: dict[str, Any] = {
            "size": draw(0, 6), "seed": draw(0, 5), "n": draw(-1, 12), "f": draw(-8, 8) / 4, "flag": not call.flag,
            "ints": (*call.ints, draw(0, 5)), "table": call.table[1:], "alias": ALIASES[draw(1, 7)],
            "grad": not call.grad, "deep": not call.deep, "double": not call.double, "event": draw(0, EVENTS - 1),
        }
        names = list(changes)
        chosen = {names[draw(0, len(names) - 1)] for _ in range(draw(0, 3))}
        call = dataclasses.replace(call, **{"event": None, **{name: changes[name] for name in chosen}})
        calls.append(call)
    return calls


class Hang(Exception):
    """A program did not end in time."""


@contextlib.contextmanager
def _limit(seconds: int) -> Iterator[None]:
    """Hang after this time of the processor's, so that a slow machine does not matter; a wait ends at ten times it."""
    def stop(*_: object) -> None:
        raise Hang(f"still running after {seconds} s")

    clocks = (signal.SIGPROF, signal.ITIMER_PROF, seconds), (signal.SIGALRM, signal.ITIMER_REAL, 10 * seconds)
    before = [signal.signal(name, stop) for name, _, _ in clocks]
    try:
        for _, clock, limit in clocks:
            signal.setitimer(clock, limit)
        yield
    finally:
        for (name, clock, _), handler in zip(clocks, before, strict=True):
            signal.setitimer(clock, 0)
            signal.signal(name, handler)


def warm_up(backend: str) -> None:
    """Build what is built once for a machine, which takes long."""
    import jitpy

    jitpy.jit(lambda t: (t * 2).sum(), backend=backend)(torch.ones(3))


def draw_program(draw: Draw, backend: str) -> tuple[str, list[Call]]:
    """A program's text and its calls. Raises SyntaxError where the text is not Python."""
    source = Program(draw, exact=backend == "eager").source
    compile(source, "<program>", "exec")
    return source, draw_calls(draw)


def compare(source: str, calls: list[Call], backend: str, path: str = "/jitpy-fuzz/program.py") -> None:
    """AssertionError where the jitted run differs from the eager one; whatever jitpy itself raises passes through."""
    from tests.semantics import harness

    module = types.ModuleType("jitpy_fuzz_program")
    module.__file__ = path
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, path, "exec"), module.__dict__)
        made = {"counter": lambda: 3, "shared": lambda: [1, 2], "scale": lambda: 0.5,
                "helper": lambda: None, "ticks": list}
        one = harness.Case(module.world, tuple(lambda c=c: c.arguments(module) for c in calls), None, None, True, made,
                           2e-4, 1)
        with _limit(120), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            harness.check(one, backend)
    finally:
        del sys.modules[module.__name__]
        linecache.cache.pop(path, None)
