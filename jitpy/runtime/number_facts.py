"""Facts about numbers that change (`frontend/guards/guard_set.py`, `NumberFact`), made callable."""

from __future__ import annotations

import math
import re
from typing import Any

from .guard_checks import constants_equal
from .size_relations import TEXT_NAMES, value_text

_NAMES = re.compile(r"\b([pq])(\d+)\b")


def number_check(fact: Any) -> Any:
    """A fact as a function of the numbers at its sources and the values of `symbols`, those in its sizes."""
    symbols = tuple(sorted({symbol for size in fact.sizes for symbol in size.free_symbols}, key=str))
    names: dict[str, Any] = {"constants_equal": constants_equal, "math": math, **TEXT_NAMES}
    sizes = [value_text(size, names) for size in fact.sizes]
    text = _NAMES.sub(lambda m: m[0] if m[1] == "p" else sizes[int(m[2])], fact.text)
    parameters = [*(f"p{i}" for i in range(len(fact.sources))), *map(str, symbols)]
    function = eval(f"lambda {', '.join(parameters)}: {text}", names)
    function.__name__ = "numbers"
    function.symbols = symbols
    function.text = _NAMES.sub(lambda m: str((fact.sources if m[1] == "p" else fact.sizes)[int(m[2])]), fact.text)
    return function
