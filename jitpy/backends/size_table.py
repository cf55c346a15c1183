"""The size table of a plan: each size expression that is not a constant gets one entry, filled at the start of a
call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy

from ..ir import Graph, NotCovered
from ..ir.sizes import c_text, python_text, size_function
from ..ir.spec import Dim
from ..runtime.plan import Size, SizeRef, SymbolBinding


class SizeTable:
    """Hands out `SizeRef`s for expressions of one graph, equal ones once.

    Raises `NotCovered` where a symbol cannot be read from the graph's inputs by a `SymbolBinding`.
    """

    def __init__(self, graph: Graph) -> None:
        self._bindings = graph.symbol_bindings()
        self._symbols: dict[sympy.Symbol, int] = {}
        self._entries: dict[sympy.Expr, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def ref(self, size: Dim) -> Size:
        """An int as it is, an expression as its entry in the table."""
        if isinstance(size, int):
            return size
        if size.is_Integer:
            return int(size)
        index = self._entries.get(size)
        if index is None:
            for symbol in sorted(size.free_symbols, key=str):
                self._bind(symbol)
            index = self._entries[size] = len(self._entries)
        return SizeRef(index)

    def _bind(self, symbol: sympy.Symbol) -> None:
        if symbol in self._symbols:
            return
        binding = self._bindings.get(symbol)
        if binding is None or binding[1] == "offset":
            raise NotCovered(f"no input carries the size {symbol}")
        self._symbols[symbol] = len(self._symbols)

    @property
    def symbols(self) -> tuple[SymbolBinding, ...]:
        """Where the symbols' values are read, for `Plan.symbols`."""
        result = []
        for symbol in self._symbols:
            position, kind, dim = self._bindings[symbol]
            result.append(SymbolBinding(position, dim, stride=kind == "stride"))
        return tuple(result)

    def python_function(self) -> Callable[[tuple[int, ...]], list[int]] | None:
        """For `Plan.size_function_py`; None where the table is empty."""
        return size_function(self._entries, list(self._symbols)) if self._entries else None

    def c_function(self, name: str) -> str:
        """The text of `void name(const int64_t* symbols, int64_t* table)`."""
        names = {symbol: f"symbols[{i}]" for i, symbol in enumerate(self._symbols)}
        lines = [f"    table[{i}] = {c_text(expr, names)};  // {python_text(expr)}"
                 for expr, i in self._entries.items()]
        return "\n".join([f"void {name}(const int64_t* symbols, int64_t* table) {{", *lines, "}"])

    def refs(self, value: Any) -> Any:
        """A nested argument with every expression replaced by its entry."""
        if isinstance(value, sympy.Basic):
            return self.ref(value)
        if isinstance(value, tuple):
            return tuple(map(self.refs, value))
        if isinstance(value, list):
            return list(map(self.refs, value))
        return value
