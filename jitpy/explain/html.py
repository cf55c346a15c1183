"""A report as one page of HTML, without anything fetched: the program's lines with the graph that each belongs to and
the places where graphs end, then each frame with its graph, kernels, refused fusions, guards and times.

    jitpy.explain(model)(x).to_html("report.html")
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from ..frontend.breaks import BreakRecord

if TYPE_CHECKING:
    from .report import FrameReport, KernelReport, Report

#: lines shown around those that something is said of, and the largest gap that is not left out
_AROUND, _GAP = 2, 6

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --bad: #d33; --good: #2a7 }
body { font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
body { max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem } h3 { font-size: 1rem }
pre, code, .source { font: 13px/1.5 ui-monospace, monospace }
pre { white-space: pre-wrap; background: var(--soft); padding: .6rem .8rem; border-radius: 6px }
table { border-collapse: collapse } td, th { padding: .15rem .7rem .15rem 0; text-align: left; vertical-align: top }
th { font-weight: 600; border-bottom: 1px solid var(--line) } td.n, th.n { text-align: right; white-space: nowrap }
.source, .kernels { width: 100% }
.source { table-layout: fixed } .source td { padding: 0 .8rem 0 0 }
.source col.number { width: 4rem } .source col.graphs { width: 3rem } .source col:last-child { width: 0 }
.source col.why { width: 25% }
.source td.code { white-space: pre-wrap; padding-left: 4ch; text-indent: -4ch }
.source tr.graph td.code { background: color-mix(in srgb, hsl(var(--hue) 70% 50%) 14%, transparent) }
.source tr.break td.code { background: color-mix(in srgb, var(--bad) 18%, transparent) }
.source td.no { color: #888; text-align: right; user-select: none }
.source td.why { color: var(--bad); white-space: normal }
.gap td { color: #888 } .break-card { border-left: 4px solid var(--bad); padding: .1rem .8rem; margin: .8rem 0 }
.none { color: var(--good) } details { margin: .4rem 0 } summary { cursor: pointer }
.bar { display: flex; height: .8rem; max-width: 40rem } .bar span { min-width: 1px }
"""


def page(report: Report) -> str:
    """The whole page. Source lines come from the files as they are now (`linecache`)."""
    parts = [
        f"<h1>{escape(report.name)}</h1>",
        f"<p>{escape(report.headline())}</p>",
        _breaks(report.break_reasons),
        _source(report),
        "<h2>Frames</h2>",
        *(_frame(frame) for frame in report.frames),
        _times("Compile time", report.compile_times),
    ]
    head = f'<meta charset="utf-8"><title>{escape(report.name)}</title><style>{_STYLE}</style>'
    body = "\n".join(part for part in parts if part)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


# -- breaks -------------------------------------------------------------------------------------------------


def _breaks(records: list[BreakRecord]) -> str:
    if not records:
        return '<p class="none">No graph breaks.</p>'
    times: dict[BreakKey, int] = {}
    first: dict[BreakKey, BreakRecord] = {}
    for record in records:
        key = _key(record)
        times[key] = times.get(key, 0) + 1
        first.setdefault(key, record)
    cards = []
    for key, record in first.items():
        often = f" ({times[key]} times)" if times[key] > 1 else ""
        detail = f": {escape(record.detail)}" if record.detail else ""
        hint = f"<br>What to do: {escape(record.hint)}" if record.hint else ""
        where = f"{record.filename}:{record.line} in {record.function}"
        cards.append(
            f'<div class="break-card"><b>{escape(record.reason.title)}</b> [{escape(record.reason.id)}]{often}{detail}'
            f"<br><code>{escape(where)}</code><pre>{escape(record.source_line)}</pre>"
            f"{escape(record.reason.explanation)}{hint}</div>"
        )
    return "<h2>Graph breaks</h2>\n" + "\n".join(cards)


BreakKey = tuple[str, str, int, str]


def _key(record: BreakRecord) -> BreakKey:
    return record.reason.id, record.filename, record.line, record.detail


# -- source -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Line:
    """The facts about one line of the program."""

    graphs: list[int] = field(default_factory=list)
    breaks: list[str] = field(default_factory=list)


def _source(report: Report) -> str:
    files: dict[str, dict[int, _Line]] = {}

    def line(filename: str, number: int) -> _Line:
        return files.setdefault(filename, {}).setdefault(number, _Line())

    for frame in report.frames:
        if frame.graph is None or frame.graph_number is None:
            continue
        for node in frame.graph.nodes:
            if node.loc is not None and frame.graph_number not in line(node.loc.filename, node.loc.line).graphs:
                line(node.loc.filename, node.loc.line).graphs.append(frame.graph_number)
    for record in report.break_reasons:
        said = f"{record.reason.title}: {record.detail}" if record.detail else record.reason.title
        if said not in line(record.filename, record.line).breaks:
            line(record.filename, record.line).breaks.append(said)
    shown = [_file(name, lines) for name, lines in files.items() if linecache.getlines(name)]
    return "<h2>Source</h2>\n" + "\n".join(shown) if shown else ""


def _file(filename: str, lines: dict[int, _Line]) -> str:
    text = linecache.getlines(filename)
    rows: list[str] = []
    for start, stop in _stretches(lines, len(text)):
        if rows:
            rows.append('<tr class="gap"><td></td><td></td><td>...</td></tr>')
        for number in range(start, stop + 1):
            rows.append(_row(number, text[number - 1].rstrip("\n"), lines.get(number, _Line())))
    why = ' class="why"' * any(line.breaks for line in lines.values())
    columns = f'<colgroup><col class="number"><col class="graphs"><col><col{why}></colgroup>'
    return f'<h3><code>{escape(filename)}</code></h3>\n<table class="source">{columns}' + "\n".join(rows) + "</table>"


def _row(number: int, text: str, known: _Line) -> str:
    kind = "break" if known.breaks else "graph" if known.graphs else ""
    hue = f' style="--hue: {known.graphs[0] * 67 % 360}"' if known.graphs else ""
    graphs = " ".join(f'<a href="#graph{g}">{g}</a>' for g in known.graphs)
    return (f'<tr class="{kind}"{hue}><td class="no">{number}</td><td class="no">{graphs}</td>'
            f'<td class="code">{escape(text)}</td><td class="why">{escape("; ".join(known.breaks))}</td></tr>')


def _stretches(numbers: Iterable[int], last: int) -> Iterator[tuple[int, int]]:
    """First and last lines of what is shown: each line with its neighbours, stretches that nearly meet as one."""
    start = stop = 0
    for number in sorted(n for n in numbers if 1 <= n <= last):
        low, high = max(1, number - _AROUND), min(last, number + _AROUND)
        if start and low > stop + _GAP:
            yield start, stop
            start = 0
        start, stop = start or low, high
    if start:
        yield start, stop


# -- frames -------------------------------------------------------------------------------------------------


def _frame(frame: FrameReport) -> str:
    what = "continues" if frame.is_resume else "captured"
    number = frame.graph_number
    title = f"{escape(frame.name)} {what}, <code>{escape(frame.filename)}:{frame.line}</code>"
    parts = [f'<h3 id="graph{number}">Graph {number}: {title}</h3>' if number is not None else f"<h3>{title}</h3>"]
    if frame.graph is None:
        parts.append("<p>No tensor operations.</p>")
    else:
        parts += [_kernels(frame.kernels), _folded(f"graph, operations: {frame.op_count}", str(frame.graph))]
    parts += [
        _listed("left to eager kernels", frame.left_to_eager),
        _listed("operations of torch's own kernels", (f"{op}: {why}" for op, why in frame.eager)),
        _listed("not fused", frame.refusals),
        _listed("specialised", frame.specialized),
        _listed("side effects", frame.side_effects),
        _folded("guards", frame.guards),
        _times("times", frame.times),
    ]
    return "\n".join(part for part in parts if part)


def _kernels(kernels: list[KernelReport]) -> str:
    if not kernels:
        return ""
    rows = "".join(
        f"<tr><td><code>{escape(k.function)}</code></td><td>{escape(', '.join(k.modules))}</td>"
        f"<td>{escape(k.style)}</td><td>{escape(' + '.join(k.ops))}</td>"
        f'<td class="n">{k.bytes_read:,}</td><td class="n">{k.bytes_written:,}</td>'
        f"<td>{escape(', '.join(k.lines))}</td></tr>"
        for k in kernels
    )
    heads = ('<tr><th>kernel</th><th>modules</th><th>kind</th><th>operations</th><th class="n">bytes read</th>'
             '<th class="n">written</th><th>lines</th></tr>')
    return f'<table class="kernels">{heads}{rows}</table>'


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>" if text else ""


def _listed(title: str, items: Iterable[str]) -> str:
    return _folded(title, "\n".join(dict.fromkeys(items)))


def _times(title: str, times: dict[str, float]) -> str:
    """The stages in proportion. `total` is their sum and what lies between them, and is not a stage."""
    stages = {stage: seconds for stage, seconds in times.items() if stage != "total"}
    whole = sum(stages.values())
    if not whole:
        return ""
    text = ", ".join(f"{stage} {seconds * 1e3:.1f} ms" for stage, seconds in stages.items())
    bar = ""
    for i, (stage, seconds) in enumerate(stages.items()):
        colour = f"background: hsl({i * 67 % 360} 60% 55%)"
        bar += f'<span title="{escape(stage)}" style="flex: {seconds / whole:.4f}; {colour}"></span>'
    return f'<p>{escape(title)}: {escape(text)}</p><div class="bar">{bar}</div>'
