"""Graphs with products whose number of rows changes: a plan each for few rows and for many, made when first needed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any

from ...ir.graph import Graph
from ...ir.sizes import python_text
from ...ir.spec import Dim
from ...schedule.products import FEW_ROWS

Run = Callable[..., tuple[Any, ...]]
_READ = {"size": "given[{}].shape[{}]", "stride": "given[{}].stride({})", "offset": "given[{}].storage_offset()",
         "value": "given[{}]"}


class ByRows:
    """The executable of the plan for the rows of a call. `make` compiles one, for the values of symbols in `sizes`."""

    def __init__(self, graph: Graph, rows: Iterable[Dim], make: Callable[[], Run], first: Run) -> None:
        names = {symbol: _READ[kind].format(position, dim)
                 for symbol, (position, kind, dim) in graph.symbol_bindings().items()}
        texts = [", ".join(python_text(one, names) for one in found) for found in (rows, names)]
        self._rows, self._values = (eval(f"lambda given: ({text},)") for text in texts)
        self._symbols, self._sizes, self._make = tuple(names), graph.sizes, make
        self._runs = {self._bucket(graph.sizes.hints(rows)): first}

    @staticmethod
    def _bucket(rows: Iterable[int]) -> tuple[int, ...]:
        return tuple(bisect_left(FEW_ROWS, one) for one in rows)

    def __call__(self, *given: Any) -> tuple[Any, ...]:
        bucket = self._bucket(self._rows(given))
        run = self._runs.get(bucket)
        if run is None:
            with self._sizes.assuming(dict(zip(self._symbols, self._values(given), strict=True))):
                run = self._runs[bucket] = self._make()
        return run(*given)


__all__ = ["ByRows"]
