"""The size table of a plan: each size expression that is not a constant gets one entry.

Entries that follow from the inputs are filled at the start of a call. The others depend on data: `bind` makes a step
behind the one that computes an unbacked symbol, and `finish` gives each such step the entries, and the checks, that it
makes possible.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from ..ir import Graph, Node, NotCovered
from ..ir.algebra import sympy
from ..ir.sizes import c_text, python_text, size_function
from ..ir.spec import Dim
from ..ir.trees import tree_map
from ..runtime.plan import BindStep, BoundSymbol, Size, SizeRef, Step, SymbolBinding


class SizeTable:
    """Hands out `SizeRef`s for expressions of one graph, equal ones once.

    Raises `NotCovered` where nothing says what a symbol is.
    """

    def __init__(self, graph: Graph) -> None:
        self.sizes = graph.sizes
        self._bindings = graph.symbol_bindings()
        self._symbols: dict[sympy.Symbol, int] = {}
        self._entries: dict[sympy.Basic, int] = {}
        #: the unbacked symbols that a node binds, with the axis (None: the number itself)
        self.bindings: dict[Node, list[tuple[sympy.Symbol, int | None]]] = {}
        self._unbacked: set[sympy.Symbol] = set()
        for symbol, (node, dim) in graph.unbacked_bindings().items():
            self.bindings.setdefault(node, []).append((symbol, dim))
            self._unbacked.add(symbol)
        # unbacked symbols in the order in which steps bind them
        self._bound: dict[sympy.Symbol, int] = {}
        self._binds: list[tuple[BindStep, list[tuple[sympy.Symbol, SymbolBinding]]]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def ref(self, size: Dim) -> Size:
        """An int as it is, an expression as its entry in the table."""
        if isinstance(size, int):
            return size
        if size.is_Integer:
            return int(size)
        return SizeRef(self._entry(size))

    def _entry(self, expr: sympy.Basic) -> int:
        index = self._entries.get(expr)
        if index is None:
            for symbol in sorted(expr.free_symbols, key=str):
                self._note(symbol)
            index = self._entries[expr] = len(self._entries)
        return index

    def _note(self, symbol: sympy.Symbol) -> None:
        if symbol in self._symbols or symbol in self._unbacked:
            return
        binding = self._bindings.get(symbol)
        if binding is None or binding[1] == "offset":
            raise NotCovered(f"no input carries the size {symbol}")
        self._symbols[symbol] = len(self._symbols)

    # sizes that depend on data

    def bind(self, node: Node, slot: int) -> list[Step]:
        """The step to run as soon as `slot` holds the node's value, if that binds symbols."""
        bound = [(symbol, dim) for symbol, dim in self.bindings.get(node, ()) if symbol not in self._bound]
        if not bound:
            return []
        step = BindStep(())
        for symbol, _ in bound:
            self._bound[symbol] = len(self._bound)
        self._binds.append((step, [(symbol, SymbolBinding(slot, dim)) for symbol, dim in bound]))
        return [step]

    def finish(self) -> None:
        """Fill in the steps that `bind` made; call it when every size has its entry."""
        checks = self.sizes.run_time_checks()
        for relation, _ in checks:
            self._entry(relation)
        known: set[sympy.Symbol] = set()
        done: set[sympy.Basic] = set()
        for step, bound in self._binds:
            symbols = []
            for symbol, place in bound:
                info = self.sizes.symbols[symbol]
                symbols.append(BoundSymbol(self._number(symbol), place, info.low, info.high))
                known.add(symbol)
            step.symbols = tuple(symbols)
            ready = [expr for expr in self._data_entries() if expr not in done and self._told(expr) <= known]
            done.update(ready)
            step.entries = tuple(self._entries[expr] for expr in ready)
            step.function_py = self._python(ready)
            step.checks = tuple((self._entries[relation], f"{relation} does not hold ({why})")
                                for relation, why in checks if relation in ready)
        missing = [expr for expr in self._data_entries() if expr not in done]
        if missing:
            raise NotCovered(f"nothing says what {missing[0]} is")

    def require_order(self, steps: Iterable[Step], used: Callable[[Step], Collection[int]]) -> None:
        """NotCovered where a step uses a size (`used(step)`: the entries) before it is known."""
        pending = {self._entries[expr] for expr in self._data_entries()}
        for step in steps if pending else ():
            if isinstance(step, BindStep):
                pending.difference_update(step.entries)
            elif not pending.isdisjoint(used(step)):
                raise NotCovered("a kernel would run before its sizes are known")

    def _told(self, expr: sympy.Basic) -> set[sympy.Symbol]:
        return expr.free_symbols & self._unbacked

    def _data_entries(self) -> list[sympy.Basic]:
        return [expr for expr in self._entries if self._told(expr)] if self._unbacked else []

    def _number(self, symbol: sympy.Symbol) -> int:
        number = self._symbols.get(symbol)
        return len(self._symbols) + self._bound[symbol] if number is None else number

    # what plans hold

    @property
    def symbols(self) -> tuple[SymbolBinding, ...]:
        """Where the symbols' values are read at the start, for `Plan.symbols`."""
        result = []
        for symbol in self._symbols:
            position, kind, dim = self._bindings[symbol]
            result.append(SymbolBinding(position, dim, stride=kind == "stride"))
        return tuple(result)

    @property
    def n_symbols(self) -> int:
        return len(self._symbols) + len(self._bound)

    @property
    def start_entries(self) -> tuple[int, ...]:
        """The entries that follow from the inputs."""
        return tuple(index for expr, index in self._entries.items() if not self._told(expr))

    def python_function(self) -> Callable[[tuple[int, ...]], list[int]] | None:
        """For `Plan.size_function_py`; None where nothing follows from the inputs."""
        return self._python([expr for expr in self._entries if not self._told(expr)])

    def _python(self, exprs: list[sympy.Basic]) -> Callable[[tuple[int, ...]], list[int]] | None:
        return size_function(exprs, [*self._symbols, *self._bound]) if exprs else None

    def c_functions(self, name: str) -> str:
        """The text of `void name(const int64_t* symbols, int64_t* table)` for the start of a call, and of `name<k>` for
        the k-th BindStep."""
        functions = [self._c_function(name, self.start_entries)]
        functions += [self._c_function(f"{name}{k}", step.entries) for k, (step, _) in enumerate(self._binds)
                      if step.entries]
        return "\n".join(functions)

    def link(self, name: str, address: Callable[[str], int]) -> None:
        """Give the BindSteps their functions of `c_functions(name)`, by `address(function's name)`."""
        for k, (step, _) in enumerate(self._binds):
            if step.entries:
                step.function = address(f"{name}{k}")

    def _c_function(self, name: str, entries: tuple[int, ...]) -> str:
        names = {symbol: f"symbols[{self._number(symbol)}]" for symbol in (*self._symbols, *self._bound)}
        wanted = set(entries)
        lines = [f"    table[{i}] = {c_text(expr, names, total=True)};  // {python_text(expr)}"
                 for expr, i in self._entries.items() if i in wanted]
        return "\n".join([f'extern "C" void {name}(const int64_t* symbols, int64_t* table) {{', *lines, "}"])

    def refs(self, value: Any) -> Any:
        """A nested argument with every expression replaced by its entry."""
        return tree_map(lambda leaf: self.ref(leaf) if isinstance(leaf, sympy.Basic) else leaf, value)
