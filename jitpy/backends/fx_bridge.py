"""Backends as torch.compile takes them, `(torch.fx.GraphModule, example_inputs) -> callable`, as backends of jitpy.

A graph of constant sizes is handed over once, with tensors of zeros as examples. A graph with symbolic sizes, or with
numbers among its inputs, is handed over once as well, with symbolic examples (`symbolic_examples.py`). The backend may
ask questions about the symbols: the answers are checked at each call, and a call with other answers gets another
variant. A backend that raises for symbolic examples gets a static graph for each combination of sizes and numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from jitpy import config, logs

from ..errors import BackendError
from ..ir import Graph, ScalarSpec
from ..ir.failures import has_effect, may_fail
from ..ir.fx import example_inputs, size_inputs, to_fx
from ..ir.interpret import as_recorded
from ..ir.ops.oracle import zeros
from ..ir.specialize import specialize
from ..runtime.compile_lock import may_wait
from ..runtime.dispatch import resume_hook, suspend_hook
from ..runtime.tensor_facts import count_writes
from . import eager
from .symbolic_examples import SymbolicExamples, can_be_symbolic, exact

Compiled = Callable[..., tuple[Any, ...]]
GraphBackend = Callable[[Graph, dict[str, Any]], Compiled]


def adapt(fn: Callable[..., Callable[..., Any]], name: str | None = None) -> GraphBackend:
    """The jitpy backend that hands graphs to `fn`. Autograd is as the returned callable does it.

    Raises BackendError where `fn` raises or does not return a callable. Where what it compiled returns the wrong
    results, that is raised at the call with `options["fullgraph"]`, and where the graph must not run twice; else the
    graph runs with eager kernels from then on, with a warning.
    """
    chosen = name or str(getattr(fn, "__name__", type(fn).__name__))
    backend = _Backend(fn, chosen)

    def compile_graph(graph: Graph, options: dict[str, Any]) -> Compiled:
        if graph.sizes.has_unbacked:
            logs.log("backends", lambda: f"{graph.name} runs with eager kernels, not by {chosen!r}: it computes sizes")
            return eager.compile_graph(graph, options)  # its sizes, and the checks of them, need a plan
        if graph.symbol_bindings() or any(isinstance(node.spec, ScalarSpec) for node in graph.inputs):
            return _Variants(graph, backend, options)
        return _Falling(graph, backend, backend.constant_sizes(graph), options)

    compile_graph.__name__ = chosen
    return compile_graph


def guarded(fn: GraphBackend, name: str) -> GraphBackend:
    """A user's backend `(Graph, options) -> callable` under the same conditions."""
    backend = _Backend(fn, name)

    def compile_graph(graph: Graph, options: dict[str, Any]) -> Compiled:
        return _Falling(graph, backend, backend.compile((graph, options), len(graph.outputs)), options)

    return compile_graph


class _Backend:
    """A user's backend: what it compiles takes the inputs of the graph, and returns the tuple of its outputs."""

    def __init__(self, fn: Callable[..., Callable[..., Any]], name: str) -> None:
        self.fn = fn
        self.name = name
        #: of what it was said already that the backend does it
        self.warned: set[str] = set()

    def warn_once(self, what: str, text: str) -> None:
        if what not in self.warned:
            self.warned.add(what)
            warn(text)
        else:
            logs.log("backends", text)

    def constant_sizes(self, graph: Graph) -> Compiled:
        """A graph whose inputs are tensors of constant sizes. Where the backend refuses tensors of zeros, numbers that
        the graph computes (`.item()`) become symbols."""
        try:
            return self.static(graph, example_inputs(graph, zeros))
        except BackendError as refused:
            if not any(isinstance(node.spec, ScalarSpec) for node in graph.nodes):
                raise
            try:
                examples = SymbolicExamples(graph, [], [], ())
                with examples.tracing():
                    return self.static(graph, examples.inputs, symbolic=True)
            except Exception as error:
                raise refused from error

    def static(self, graph: Graph, examples: list[Any], symbolic: bool = False) -> Compiled:
        run = self.compile((to_fx(graph, examples, symbolic=symbolic), examples), len(graph.outputs))
        more, count = graph.more_writes(), len(graph.inputs)
        if not more:
            return run

        def counting(*inputs: Any) -> tuple[Any, ...]:
            result = run(*inputs)
            for position, number in more.items():
                count_writes(number, inputs[position - count])  # symbols may be in front
            return result

        return counting

    def compile(self, args: tuple[Any, ...], n_outputs: int) -> Compiled:
        name = self.name
        try:
            with may_wait():
                compiled = call_backend(self.fn, args)
        except Exception as error:
            raise BackendError(name, f"raised {type(error).__name__}: {error}") from error
        if not callable(compiled):
            raise BackendError(name, f"returned {type(compiled).__name__}, not a callable")

        def run(*inputs: Any) -> tuple[Any, ...]:
            result = call_backend(compiled, inputs)
            if n_outputs == 1 and isinstance(result, torch.Tensor):
                result = (result,)
            elif n_outputs == 0 and result is None:
                result = ()
            found = len(result) if isinstance(result, (tuple, list)) else type(result).__name__
            if found != n_outputs:
                raise BackendError(name, f"compiled a graph of {n_outputs} results to a function that returns {found}")
            return result if type(result) is tuple else tuple(result)

        return run


def call_backend(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call code that is not the program's: its frames are not compiled. Grad mode and autocast are as a graph's ops
    were recorded."""
    grad = torch.is_grad_enabled()
    calls = suspend_hook()
    try:
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            with as_recorded():
                return function(*args)
        return function(*args)
    finally:
        resume_hook(calls)
        torch._C._set_grad_enabled(grad)


def warn(text: str) -> None:
    logs.log("backends", text)
    warnings.warn(f"jitpy: {text}", stacklevel=5)


class _Falling:
    """A backend's callable; torch's own kernels once its results turn out to be wrong."""

    def __init__(self, graph: Graph, backend: _Backend, run: Compiled, options: dict[str, Any]) -> None:
        self.graph = graph
        self.backend = backend
        self.run = run
        #: whether a wrong number of results is an error: the graph has changed something, or nothing else may run it
        self.raises = bool(options.get("fullgraph") or graph.mutations or any(
            has_effect(node) and not may_fail(node) for node in graph.nodes))

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        try:
            return self.run(*inputs)
        except BackendError as error:
            if self.raises:
                raise
            self.backend.warn_once("results", f"{error}; {self.graph.name} runs with eager kernels, and so do later "
                                              "graphs for which its results are wrong")
            self.run = eager.compile_graph(self.graph, {})
            return self.run(*inputs)


class _Variant:
    """A graph as a backend compiled it, and for which values of its symbols and numbers."""

    __slots__ = ("fits", "run")

    def __init__(self, fits: Callable[[tuple[Any, ...]], bool], run: Callable[[tuple[Any, ...], tuple[Any, ...]], Any]):
        self.fits = fits
        self.run = run


class _Variants(_Falling):
    """A graph with symbolic sizes or numbers among its inputs. Past the recompile limit, what no variant fits runs op
    by op."""

    def __init__(self, graph: Graph, backend: _Backend, options: dict[str, Any]) -> None:
        super().__init__(graph, backend, self._choose, options)
        #: whether the backend gets symbolic examples
        self.symbolic = options.get("dynamic") != "never" and can_be_symbolic(graph)
        self.limit: int = config.recompile_limit
        self.symbols = sorted(graph.symbol_bindings(), key=str)
        self.numbers = [i for i, node in enumerate(graph.inputs)
                        if isinstance(node.spec, ScalarSpec) and node.spec.expr is None]
        self.values_of = _values_function(graph, self.symbols, self.numbers)
        self.eager: Compiled | None = None
        hints = [graph.sizes.hint(symbol) for symbol in self.symbols]
        known = all("value" in graph.inputs[i].meta for i in self.numbers)
        if known:
            hints += [graph.inputs[i].meta["value"] for i in self.numbers]
        #: numbers that the graph's caller computes are known at the first call
        self.variants = [self._compile(tuple(hints))] if known else []

    def _choose(self, *inputs: Any) -> tuple[Any, ...]:
        values = self.values_of(*inputs)
        for variant in self.variants:
            if variant.fits(values):
                return variant.run(values, inputs)
        if len(self.variants) >= self.limit:
            return self._run_eagerly(inputs)
        variant = self._compile(values)
        self.variants.append(variant)
        return variant.run(values, inputs)

    def _compile(self, values: tuple[Any, ...]) -> _Variant:
        """A variant for these values: for more of them where the backend takes symbols."""
        refused: Exception | None = None
        if self.symbolic:
            try:
                return self._compile_symbolic(values)
            except Exception as error:
                refused = error
        graph = specialize(self.graph, dict(zip(self.symbols, values, strict=False)))
        examples = example_inputs(graph, zeros)
        for i, value in zip(self.numbers, values[len(self.symbols):], strict=True):
            examples[i] = value
        run = self.backend.static(graph, examples)
        if refused is not None:
            self._warn_of_static_graphs(refused)
        key = [exact(value) for value in values]
        return _Variant(lambda found: [exact(value) for value in found] == key, lambda _, inputs: run(*inputs))

    def _compile_symbolic(self, values: tuple[Any, ...]) -> _Variant:
        graph, n_symbols = self.graph, len(self.symbols)
        examples = SymbolicExamples(graph, self.symbols, self.numbers, values)
        with examples.tracing():
            run = self.backend.static(graph, examples.inputs, symbolic=True)
        lifted = [self.symbols.index(symbol) for symbol in size_inputs(graph)]
        floats = [i for i in self.numbers if graph.inputs[i].spec.kind is float]  # type: ignore[union-attr]
        assert n_symbols + len(self.numbers) == len(values)

        def call(found: tuple[Any, ...], inputs: tuple[Any, ...]) -> Any:
            if floats:
                own = list(inputs)
                for i in floats:
                    own[i] = torch.tensor(own[i], dtype=torch.float64, device="cpu")
                inputs = tuple(own)
            return run(*[found[k] for k in lifted], *inputs)

        return _Variant(examples.check(), call)

    def _warn_of_static_graphs(self, refused: Exception) -> None:
        refused = refused.__cause__ if isinstance(refused.__cause__, Exception) else refused
        self.backend.warn_once("symbols", f"the backend {self.backend.name!r} refuses graphs with symbolic sizes or "
                               f"numbers ({type(refused).__name__}: {refused}): it gets one for each combination of "
                               "them, up to jitpy.config.recompile_limit")

    def _run_eagerly(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if self.eager is None:
            what = ", ".join([*map(str, self.symbols), *(self.graph.inputs[i].name for i in self.numbers)])
            warn(f"{self.graph.name} was handed to its backend for {self.limit} combinations of the sizes and numbers "
                 f"{what} (jitpy.config.recompile_limit); further ones run with eager kernels")
            self.eager = eager.compile_graph(self.graph, {})
        return self.eager(*inputs)


def _values_function(graph: Graph, symbols: list[Any], numbers: list[int]) -> Callable[..., tuple[Any, ...]]:
    """The function of the inputs that returns the values of the symbols and of the numbers among the inputs."""
    bindings = graph.symbol_bindings()
    reads = {"value": "x{0}", "size": "x{0}.size({1})", "stride": "x{0}.stride({1})", "offset": "x{0}.storage_offset()"}
    parts = [reads[bindings[symbol][1]].format(bindings[symbol][0], bindings[symbol][2]) for symbol in symbols]
    parts += [f"x{i}" for i in numbers]
    names = ", ".join(f"x{i}" for i in range(len(graph.inputs)))
    return eval(f"lambda {names}: ({''.join(part + ', ' for part in parts)})")
