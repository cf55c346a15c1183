"""Example inputs with symbolic sizes, as torch.compile's backends know them: SymInts and fake tensors.

A backend's result depends on the questions that it asks about the symbols while it compiles:
`SymbolicExamples.check` asks them again.
This file belongs to the bridge to torch's compiler: making a ShapeEnv imports that.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from ..ir import Graph, ScalarSpec, TensorSpec
from ..ir.algebra import sympy
from ..ir.fx import size_inputs
from ..ir.sizes import evaluate

#: sizes from here on are never 0 or 1, as in torch's own symbols of sizes
_LEAST = 2

#: torch makes no fake tensors of these with symbolic sizes
_QUANTIZED = {torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4}

#: larger ints are constants to the backend: torch computes with 64 bits
_LARGEST = 1 << 62


def exact(value: Any) -> tuple[Any, ...]:
    """A key that is equal for numbers that are the same in all respects: 0.0 is not -0.0, and NaN is itself."""
    if type(value) is float:
        return float, value.hex()
    if type(value) is complex:
        return complex, value.real.hex(), value.imag.hex()
    return type(value), value


def can_be_symbolic(graph: Graph) -> bool:
    """Whether `SymbolicExamples` can be made for a graph."""
    return not any(isinstance(node.spec, TensorSpec) and node.spec.dtype in _QUANTIZED for node in graph.inputs)


class SymbolicExamples:
    """Examples for a graph whose `symbols` and `numbers` (positions among its inputs) have these `values` now.

    `inputs` are SymInts for the symbols of `size_inputs`, then one for each input of the graph. A float is a tensor of
    which torch knows no value: caches of torch's compiled graphs keep no conditions on floats.
    """

    def __init__(self, graph: Graph, symbols: list[sympy.Symbol], numbers: list[int], values: tuple[Any, ...]) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        self.env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True)
        self.count = len(values)
        #: the name of each symbol of torch's -> its place among the values
        self.places: dict[str, int] = {}
        #: values that are constants to the backend, by place
        self.constants: dict[int, Any] = {}
        self.sizes: dict[sympy.Symbol, Any] = {}
        for place, (symbol, value) in enumerate(zip(symbols, values, strict=False)):
            info = graph.sizes.symbols[symbol]
            self.sizes[symbol] = self._int(place, str(symbol), value, info.low >= _LEAST <= value)
        found = {i: self._number(len(symbols) + k, graph.inputs[i].name, values[len(symbols) + k])
                 for k, i in enumerate(numbers)}
        self.inputs = [self.sizes[symbol] for symbol in size_inputs(graph)]
        for i, node in enumerate(graph.inputs):
            spec = node.spec
            if isinstance(spec, ScalarSpec):
                self.inputs.append(found[i] if i in found else self.sizes[spec.expr])
            else:
                self.inputs.append(self._tensor(node.tensor))

    def tracing(self) -> AbstractContextManager[Any]:
        """The context in which a backend of torch's looks for the symbols' environment."""
        from torch._guards import TracingContext, tracing

        return tracing(TracingContext(self.mode))

    def check(self) -> Callable[[tuple[Any, ...]], bool]:
        """Whether values would have given the backend the same answers."""
        from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP
        from torch.utils._sympy.printers import PythonPrinter

        self.env.freeze()
        known, printer = set(self.places), PythonPrinter()
        texts: set[str] = set()
        used: set[str] = set()
        for guard in self.env.guards:
            names = {str(symbol) for symbol in guard.expr.free_symbols}
            if not names <= known:
                raise ValueError(f"{guard.expr} is about other symbols than those of the inputs")
            used |= names
            texts.add(f"({printer.doprint(guard.expr)})")
        constants = [(place, exact(value)) for place, value in self.constants.items()]
        if not texts:
            return lambda v: all(exact(v[place]) == value for place, value in constants)
        arguments = ", ".join(f"v[{self.places[name]}]" for name in sorted(used))
        ask = eval(f"lambda {', '.join(sorted(used))}: {' and '.join(sorted(texts))}", dict(SYMPY_INTERP))
        answer = eval(f"lambda v: ask({arguments})", {"ask": ask})
        if not constants:
            return answer
        return lambda v: all(exact(v[place]) == value for place, value in constants) and answer(v)

    def _int(self, place: int, name: str, value: int, is_size: bool) -> Any:
        from torch._dynamo.source import ConstantSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        source = ConstantSource(name)
        make = self.env.create_symbol if is_size else self.env.create_unspecified_symbol
        if abs(value) > _LARGEST:
            self.constants[place] = value
            return value
        symbol = make(value, source, DimDynamic.DYNAMIC)
        self.places[str(symbol)] = place
        return self.env.create_symintnode(symbol, hint=value, source=source)

    def _number(self, place: int, name: str, value: Any) -> Any:
        if type(value) is int:
            return self._int(place, name, value, False)
        if type(value) is float:
            return self.mode.from_tensor(torch.tensor(value, dtype=torch.float64, device="cpu"))
        self.constants[place] = value
        return value

    def _tensor(self, spec: TensorSpec) -> torch.Tensor:
        shape, stride, offset = ([evaluate(d, self.sizes) for d in spec.shape],
                                 [evaluate(d, self.sizes) for d in spec.stride], evaluate(spec.offset, self.sizes))
        with torch._C.DisableTorchFunction(), torch.inference_mode(False), self.mode:
            made = torch.empty_strided(shape, stride, dtype=spec.dtype, device=spec.device)
            if type(offset) is not int or offset:
                base = torch.empty(offset + made.untyped_storage().nbytes() // spec.dtype.itemsize, dtype=spec.dtype,
                                   device=spec.device)
                made = base.as_strided(shape, stride, offset).detach()
            return made.requires_grad_(spec.requires_grad)
