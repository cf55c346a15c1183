"""Holds the language of the documents: `python tools/prose.py`. Exits with 1 where it finds something.

Sentences have at most 25 words, none begins with "What" unless it is a question, and names are the field's
(`NAMES`). Code, tables' headings and links' addresses do not count; a cell of a table is a sentence.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONGEST = 25
#: private words, with the field's term
NAMES = {
    r"\bWorld\b": "TraceContext", r"\bExecutor\b": "SymbolicInterpreter", r"\bRecorder\b": "GraphBuilder",
    r"\bbets?\b": "assumption", r"\bshadows?\b": "fake tensor", r"\bmortals?\b": "weakly held",
    r"\btellers?\b": "unbacked-symbol binding", r"\btwins?\b": "proxy class", r"\bstand-ins?\b": "model, or fake",
    r"\blate histor(y|ies)\b": "lazy grad_fn regeneration", r"\bArrangement\b": "MemoryPlanner",
    r"\bfinish/": "codegen/", r"\bframes_below\b": "frame_policy",
}


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each paragraph, list item and table cell, without code."""
    text = re.sub(r"^```.*?^```", lambda found: "\n" * found[0].count("\n"), text, flags=re.S | re.M)
    start, lines = 0, []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        ends = not line.strip() or re.match(r"\s*([-*|#]|\d+\.|    )", line)
        if ends and lines:
            yield start, " ".join(lines)
            lines = []
        if line.startswith("    ") and not lines:
            continue
        if line.startswith("|"):
            yield from ((number, cell) for cell in line.strip("|").split(" | "))
        elif line.strip():
            start, lines = start if lines else number, [*lines, line.strip()]


def sentences(text: str) -> Iterator[str]:
    text = re.sub(r"`[^`]*`", "§", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    yield from re.split(r"(?<=[.!?])[)*\"']*\s+(?=[\"'(*\[]*[A-Z§])", text.strip(" -*#|"))


def problems(path: Path) -> Iterator[str]:
    for line, text in paragraphs(path.read_text()):
        where = f"{path.relative_to(ROOT)}:{line}"
        for name, better in NAMES.items():
            if re.search(name, text):
                yield f"{where}: {re.search(name, text)[0]!r}: say {better!r}"  # type: ignore[index]
        for sentence in sentences(text):
            count = len(re.findall(r"[\w'-]+", sentence))
            if count > LONGEST:
                yield f"{where}: {count} words: {sentence[:900]}"
            if sentence.startswith("What ") and not sentence.endswith("?"):
                yield f"{where}: begins with What: {sentence[:900]}"


if __name__ == "__main__":
    files = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    found = [problem for path in files for problem in problems(path)]
    print(*found, sep="\n")
    sys.exit(bool(found))
