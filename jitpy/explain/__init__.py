"""Reports: what became of a function (`report.py`), and what is on this machine (`doctor.py`).

The package shares its name with the function `jitpy.explain`: `jitpy/__init__.py` imports the package first, so that
the name `explain` of `jitpy` is the function, and `jitpy.explain.report` can still be imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .report import Report


def explain(fn: Callable[..., Any], keywords: dict[str, Any]) -> Callable[..., Report]:
    """As `report.explain`, which is imported now: it needs the engine."""
    from .report import explain as run

    return run(fn, keywords)
