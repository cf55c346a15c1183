"""Writes the table of passes in docs/passes.md from `jitpy/ir/passes/pipeline.py`: `python tools/pass_table.py`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
PAGE = ROOT / "docs" / "passes.md"
BEGIN, END = "<!-- begin: tools/pass_table.py -->\n", "<!-- end -->\n"
BACKENDS = {"": "", "cpp": "C++", "triton": "Triton"}


def table() -> str:
    """Every pass of every stage, in order, as a table of Markdown."""
    from jitpy.ir.passes.pipeline import STAGES

    rows = ["| stage | pass | what it does | backend | where |", "| --- | --- | --- | --- | --- |"]
    for stage, passes in STAGES.items():
        rows += [f"| {stage} | `{one.name}` (`{one.module}.py`) | {one.about} | {BACKENDS[one.backend]} | {one.when} |"
                 for one in passes]
    return "\n".join(rows) + "\n"


def renewed(page: str) -> str:
    """The page with the table as it is now."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
