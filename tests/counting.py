"""How often something was compiled."""

from __future__ import annotations

from jitpy.engine import all_engines


def variants() -> int:
    """Compiled variants of everything alive, since the last `jitpy.reset()`."""
    return sum(len(engine.variants) for engine in all_engines())
