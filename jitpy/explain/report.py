"""`jitpy.explain(fn)(*args, **kwargs)`: runs a function once, compiled anew, and reports what became of it.

    report = jitpy.explain(model)(x)
    print(report)                     # all of it as text
    report.to_html("report.html")     # the program's lines with their graphs and breaks, as a page
    report.graph_break_count, report.break_reasons, report.kernels, report.to_dict()
"""

from __future__ import annotations

import os
import types
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from .. import frame_policy
from .. import options as _options
from ..engine import Engine, Variant
from ..frontend.breaks import BreakRecord
from ..ir import CONSTANT, GETITEM, Graph
from ..jitted import LazyEngine, SharingObject, forwarding_function
from ..marks import DISABLED, original_of
from ..options import Options
from . import html


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One kernel call: what it computes, and the bytes that it reads and writes (at the sizes of this run).

    name, function  as profilers show it, and as the source of the kernels names it
    modules         the modules that it belongs to: class and path
    """

    name: str
    function: str
    graph: int
    ops: list[str]
    lines: list[str]
    modules: list[str]
    style: str
    bytes_read: int
    bytes_written: int

    def __str__(self) -> str:
        where = f"  [{', '.join(self.lines)}]" if self.lines else ""
        owners = f" of {', '.join(self.modules)}" if self.modules else ""
        return (f"{self.function}{owners} ({self.style}): {' + '.join(self.ops)}; reads {_bytes(self.bytes_read)}, "
                f"writes {_bytes(self.bytes_written)}{where}")


@dataclass(frozen=True, slots=True)
class FrameReport:
    """One captured frame: the function, or what goes on behind a graph break, or a function called between graphs.

    graph_number   its place in `Report.graphs`, or None where nothing was recorded
    eager          operations that run as torch's own kernels: (op, why)
    left_to_eager  graphs, or forward or backward halves, that have no kernels at all: name and why
    refusals       fusions that were not made, with the reason
    """

    name: str
    filename: str
    line: int
    is_resume: bool
    graph_number: int | None
    graph: Graph | None
    op_count: int
    kernels: list[KernelReport]
    eager: list[tuple[str, str]]
    left_to_eager: list[str]
    refusals: list[str]
    guards: str
    side_effects: list[str]
    specialized: list[str]
    break_record: BreakRecord | None
    times: dict[str, float]


class Report:
    """The findings of `jitpy.explain`. `str(report)` is the whole text.

    result           what the call returned
    frames           a FrameReport for each captured frame, in the order in which they were compiled
    graphs           the graphs after the passes (`jitpy.ir.Graph`: printable, `to_fx()`)
    graph_count, graph_break_count, op_count
    break_reasons    a BreakRecord for each break: `.reason.id`, `.filename`, `.line`, `.source_line`, `.detail`
    kernels          a KernelReport for each kernel call, those of backward passes among them
    left_to_eager    graphs, or forward or backward halves, that codegen left whole to eager kernels, with the reason
    guards           the guard function of each frame, as text
    specialized      sizes and numbers that became constants of the code although they might change
    side_effects     what is written back to objects outside, and calls made for their effect
    compile_times    seconds by stage, over all frames
    """

    def __init__(self, name: str, options: Options, frames: list[FrameReport], skipped: list[BreakRecord],
                 result: Any) -> None:
        self.name = name
        self.options = options
        self.frames = frames
        self.result = result
        self.graphs = [frame.graph for frame in frames if frame.graph is not None]
        self.break_reasons = [frame.break_record for frame in frames if frame.break_record is not None] + skipped
        self.kernels = [kernel for frame in frames for kernel in frame.kernels]
        self.left_to_eager = [text for frame in frames for text in frame.left_to_eager]
        self.guards = [frame.guards for frame in frames]
        self.specialized = [text for frame in frames for text in frame.specialized]
        self.side_effects = [text for frame in frames for text in frame.side_effects]
        self.graph_count = len(self.graphs)
        self.graph_break_count = len(self.break_reasons)
        self.op_count = sum(frame.op_count for frame in frames)
        self.compile_times: dict[str, float] = {}
        for frame in frames:
            for stage, seconds in frame.times.items():
                self.compile_times[stage] = self.compile_times.get(stage, 0.0) + seconds

    def __str__(self) -> str:
        lines = [self.headline(), ""]
        for number, record in enumerate(self.break_reasons, 1):
            lines += [f"Break {number}: {record}", f"    why: {record.reason.explanation}"]
            lines += [f"    docs: {record.reason.anchor}", ""]
        for frame in self.frames:
            lines += [*_frame_text(frame), ""]
        if self.compile_times:
            lines.append(f"Compile time: {_times(self.compile_times)}")
        return "\n".join(lines).rstrip()

    def __repr__(self) -> str:
        return f"<{self.headline()}>"

    def headline(self) -> str:
        """Name and counts in one line."""
        text = (f"{self.name}: {_count(self.graph_count, 'graph')}, {_count(self.graph_break_count, 'graph break')}, "
                f"{_count(self.op_count, 'op')}, {_count(len(self.kernels), 'kernel')}")
        return text + (f", {len(self.left_to_eager)} left to eager kernels" if self.left_to_eager else "")

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """The report as one page of HTML that needs nothing else; written to `path` where one is given."""
        text = html.page(self)
        if path is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        return text

    def to_dict(self) -> dict[str, Any]:
        """The report in plain containers, strings and numbers (the result is left out)."""
        return {
            "name": self.name,
            "graph_count": self.graph_count,
            "graph_break_count": self.graph_break_count,
            "op_count": self.op_count,
            "break_reasons": [record.to_dict() for record in self.break_reasons],
            "frames": [_frame_dict(frame) for frame in self.frames],
            "compile_times": dict(self.compile_times),
        }


# -- running ------------------------------------------------------------------------------------------------


def explain(fn: Callable[..., Any], keywords: dict[str, Any]) -> Callable[..., Report]:
    """See `jitpy.explain`. TypeError and ValueError as `jitpy.jit` raises them."""
    if not callable(fn):
        raise TypeError(f"jitpy.explain takes a callable, not {type(fn).__name__}")
    options = _merged(fn, keywords)

    def run(*args: Any, **kwargs: Any) -> Report:
        engine = Engine(options)
        function, bound = _function_of(fn)
        name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
        if function in DISABLED:
            return Report(name, options, [], [], fn(*args, **kwargs))
        made = engine.made = []
        with frame_policy.asked_anew():
            result = engine.dispatcher(function)(*bound, *args, **kwargs)
        for variant in made:
            for compile in variant.graph.pending if variant.graph is not None else ():
                compile()
        return Report(name, options, _frames(made), list(engine.skipped), result)

    return run


def _merged(fn: Any, keywords: dict[str, Any]) -> Options:
    """The options of a jitted `fn`, changed by keywords."""
    known = ("backend", "mode", "fullgraph", "dynamic", "options")
    for name in keywords:
        if name not in known:
            raise TypeError(f"jitpy.explain got an unexpected keyword {name!r}; it takes: {', '.join(known)}")
    base = Options()
    on_miss = getattr(getattr(fn, "__func__", fn), "on_miss", None)
    if isinstance(fn, SharingObject) and fn._jitpy_options is not None:
        base = fn._jitpy_options
    elif isinstance(on_miss, LazyEngine):
        base = on_miss.options
    chosen = replace(base, **keywords)
    return _options.check(chosen.backend, chosen.mode, chosen.fullgraph, chosen.dynamic, chosen.options)


def _function_of(fn: Any) -> tuple[types.FunctionType, tuple[Any, ...]]:
    """The plain function behind a callable, and the arguments that it is bound to."""
    if isinstance(fn, SharingObject):
        fn = fn._jitpy_plain
    if isinstance(fn, types.MethodType):
        function, bound = _function_of(fn.__func__)
        return function, (*bound, fn.__self__)
    found = original_of(fn) or fn
    if isinstance(found, types.FunctionType):
        return found, ()
    return forwarding_function(fn), ()


def _frames(variants: list[Variant]) -> list[FrameReport]:
    frames: list[FrameReport] = []
    count = 0
    for variant in variants:
        graph = variant.graph if variant.graph is not None and variant.graph.nodes else None
        number = count if graph is not None else None
        count += graph is not None
        frames.append(_frame(variant, graph, number))
    return frames


def _frame(variant: Variant, graph: Graph | None, number: int | None) -> FrameReport:
    kernels: list[KernelReport] = []
    eager: list[tuple[str, str]] = []
    refusals: list[str] = []
    left: list[str] = []
    parts = graph.lowered if graph is not None and number is not None else ()
    for part in parts:
        if part.notes is None:
            left.append(f"{part.name}: {part.reason}")
            continue
        for kernel in part.notes.kernels:
            members = [part.ops[name] for name in kernel.nodes if name in part.ops]
            lines = dict.fromkeys(f"{os.path.basename(loc.filename)}:{loc.line}" for _, loc in members if loc)
            modules = dict.fromkeys(loc.module for _, loc in members if loc and loc.module)
            kernels.append(KernelReport(kernel.name, kernel.function, number or 0,
                                        [op for op, _ in members] or list(kernel.nodes), list(lines), list(modules),
                                        kernel.style, kernel.bytes_read, kernel.bytes_written))
        eager += [(part.ops[name][0] if name in part.ops else name, why) for name, why in part.notes.eager.items()]
        refusals += [str(refusal) for refusal in part.notes.refusals]
    ops = [n for n in graph.nodes if n.op is not GETITEM and n.op is not CONSTANT] if graph is not None else []
    if not any(part.notes is not None for part in parts):
        eager = [(str(node.op), "the backend makes no kernels for this graph") for node in ops]
    return FrameReport(variant.name, variant.filename, variant.line, variant.is_resume, number, graph, len(ops),
                       kernels, eager, left, refusals, variant.guards.source_text, variant.side_effects,
                       variant.specialized, variant.break_record, variant.times)


# -- text ---------------------------------------------------------------------------------------------------


def _frame_text(frame: FrameReport) -> list[str]:
    what = "continues" if frame.is_resume else "captured"
    title = f"{frame.name} {what} ({frame.filename}:{frame.line})"
    lines = [title, "-" * len(title)]
    if frame.graph is None:
        lines.append("no tensor operations")
    else:
        lines += [f"graph {frame.graph_number}: {_count(frame.op_count, 'op')}", *_indented(str(frame.graph))]
    if frame.kernels:
        lines += ["kernels:", *(f"  {kernel}" for kernel in frame.kernels)]
    if frame.left_to_eager:
        lines += ["left to eager kernels:", *(f"  {text}" for text in frame.left_to_eager)]
    if frame.eager:
        lines += ["eager operations:", *(f"  {op}: {why}" for op, why in _grouped(frame.eager))]
    if frame.refusals:
        lines += ["not fused:", *(f"  {text}" for text in frame.refusals)]
    if frame.specialized:
        lines += ["specialised:", *(f"  {text}" for text in frame.specialized)]
    if frame.side_effects:
        lines += ["side effects:", *(f"  {text}" for text in frame.side_effects)]
    lines += ["guards:", *_indented(frame.guards), f"times: {_times(frame.times)}"]
    return lines


def _grouped(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Equal pairs once, with their number."""
    counts: dict[tuple[str, str], int] = {}
    for pair in pairs:
        counts[pair] = counts.get(pair, 0) + 1
    return [(op if n == 1 else f"{op} ({n} times)", why) for (op, why), n in counts.items()]


def _frame_dict(frame: FrameReport) -> dict[str, Any]:
    return {
        "name": frame.name,
        "file": frame.filename,
        "line": frame.line,
        "is_resume": frame.is_resume,
        "graph": None if frame.graph is None else str(frame.graph),
        "op_count": frame.op_count,
        "kernels": [asdict(kernel) for kernel in frame.kernels],
        "eager": [{"op": op, "why": why} for op, why in frame.eager],
        "left_to_eager": list(frame.left_to_eager),
        "refusals": list(frame.refusals),
        "guards": frame.guards,
        "side_effects": list(frame.side_effects),
        "specialized": list(frame.specialized),
        "break": None if frame.break_record is None else frame.break_record.to_dict(),
        "times": dict(frame.times),
    }


def _indented(text: str, by: int = 2) -> list[str]:
    return [" " * by + line for line in text.splitlines()]


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _bytes(n: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} bytes"


def _times(times: dict[str, float]) -> str:
    return ", ".join(f"{stage} {seconds * 1e3:.1f} ms" for stage, seconds in times.items())
