"""`JITPY_DEBUG=1` keeps every stage of a graph as text, in a folder below `jitpy_debug` (or JITPY_DEBUG_DIR)."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

from jitpy import logs

from .stages import Stages

_numbers = itertools.count()


def keep_stages(stages: Stages, kernels: str, more: dict[str, str] | None = None) -> None:
    """Write the graph, the schedule, the kernels (to a file of this name), the plan, and `more` files by name."""
    from ..runtime.executable import plan_text

    graph = stages.graph
    root = Path(os.environ.get("JITPY_DEBUG_DIR") or "jitpy_debug")
    folder = root / f"{os.getpid()}_{next(_numbers)}_{re.sub(r'[^0-9A-Za-z_]', '_', graph.name)}"
    folder.mkdir(parents=True, exist_ok=True)
    files = {"graph.py": str(graph), "schedule.txt": stages.planner.report(), kernels: stages.text,
             "plan.txt": plan_text(stages.plan), **(more or {})}
    for name, content in files.items():
        (folder / name).write_text(content)
    logs.log("output_code", f"{graph.name}: every stage is in {folder}")
