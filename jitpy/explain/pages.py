"""Pages of the documentation that are made from the program: `python -m jitpy.explain.pages > docs/graph_breaks.md`."""

from __future__ import annotations

from ..frontend.breaks import REASONS


def graph_breaks_page() -> str:
    """docs/graph_breaks.md: every reason for which a graph breaks, by id."""
    parts = [
        "# Graph breaks",
        "Where jitpy cannot capture an operation, it ends the graph before it and runs that one operation as plain\n"
        "Python. Another graph goes on behind it. `jitpy.explain(fn)(...)` and `JITPY_LOGS=graph_breaks`\n"
        "list each break with its file, line and one of the ids below; `fullgraph=True` makes a break an error\n"
        "(`jitpy.FullGraphError`). A break costs the fusion across it and some microseconds a call.",
        *(f"- [{reason.id}](#{reason.id}): {reason.title}" for reason in REASONS.values()),
    ]
    text = "\n\n".join(parts[:2]) + "\n\n" + "\n".join(parts[2:])
    for reason in REASONS.values():
        text += f"\n\n## {reason.id}\n\n**{reason.title}.**"
        if reason.explanation:
            text += f" {reason.explanation}"
        if reason.hint:
            text += f"\n\nThe way out: {reason.hint}"
    return text + "\n"


if __name__ == "__main__":
    print(graph_breaks_page(), end="")
