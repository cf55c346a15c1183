"""Graphs as text, for tests of passes: `*.passes` files hold pairs of graphs, before and after.

    passes: captured                  the passes that run: that stage of `pipeline.py`, or passes by name, with a device
                                      where they take one: `fold_activations(cpu)`

    -- a product with one             a case
    x: float32[2, 3]                  inputs; `float32[n, 3]` has a symbolic size, `float32[2, 3] grad` requires grad,
    a = mul.Tensor(x, 1)                  `float32[2, 3] strides (1, 2)` has strides
    b = exp(a)                        `aten.` and `.default` are left out
    x <- b                            a write to an input
    return b
    =>                                the graph that the passes leave, by structure: names do not count
    b = exp(x)
    x <- b
    return b

`=> same` says that nothing changes, `=> 3 nodes` only how many nodes are left. Arguments are Python, with the dtypes of
torch by name. What both graphs compute is compared too: bit by bit, or, under `rounding: allowed`, nearly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from jitpy.ir import Graph, Mutation, Node, TensorSpec
from jitpy.ir.builder import Builder
from jitpy.ir.graph import CONSTANT, GETITEM
from jitpy.ir.printer import call_text
from jitpy.ir.spec import contiguous_stride

_DTYPES = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
_INPUT = re.compile(r"(\w+): (\w+)\[([^\]]*)\]( grad)?(?: strides (\(.*\)))?$")
_NODE = re.compile(r"([\w, ]+) = ([\w.]+)\((.*)\)$")


@dataclass
class Case:
    name: str
    options: dict[str, str]
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    expected: str = ""

    def graph(self) -> Graph:
        return parse(self.before)

    def wanted(self) -> Graph:
        inputs = [line for line in self.before if _INPUT.match(line)]
        return parse([*inputs, *self.after])


def cases(path: Path) -> Iterator[Case]:
    options: dict[str, str] = {}
    case: Case | None = None
    for line in [*path.read_text().splitlines(), "--"]:
        line = line.partition(" #")[0].strip()
        if line.startswith("--"):
            if case is not None:
                yield case
            case = Case(line[2:].strip(), options)
        elif line.startswith("=>") and case is not None:
            case.expected = line[2:].strip() or "graph"
        elif not line or line.startswith("#"):
            continue
        elif case is None:
            key, _, value = line.partition(":")
            options[key] = value.strip()
        else:
            (case.after if case.expected else case.before).append(line)


def parse(lines: list[str]) -> Graph:
    graph = Graph()
    known: dict[str, Any] = {**_DTYPES, "inf": float("inf"), "nan": float("nan")}
    builder = Builder(graph)
    for line in lines:
        if found := _INPUT.match(line):
            name, dtype, sizes, grad, strides = found.groups()
            position = len(graph.inputs)
            shape: list[Any] = []
            for axis, size in enumerate(filter(None, map(str.strip, sizes.split(",")))):
                if not size.isdigit() and size not in known:
                    known[size] = graph.sizes.new_symbol(2 + len(known) % 3, position, axis)
                shape.append(int(size) if size.isdigit() else known[size])
            stride = eval(strides, {}) if strides else contiguous_stride(tuple(shape))
            known[name] = graph.add_input(TensorSpec(_DTYPES[dtype], tuple(shape), stride, torch.device("cpu"),
                                                     bool(grad)), name)
        elif found := _NODE.match(line):
            names, op, arguments = found.groups()
            args, kwargs = eval(f"(lambda *args, **kwargs: (args, kwargs))({arguments})", {"torch": torch, **known})
            node = builder.call(f"aten.{op}" if "." in op else f"aten.{op}.default", *args, **kwargs)
            parts = [one.strip() for one in names.split(",")]
            known.update({parts[0]: node} if len(parts) == 1 else
                         {part: builder.getitem(node, k) for k, part in enumerate(parts) if part != "_"})
        elif line == "grad off" or line == "grad on":
            builder.grad_enabled = line == "grad on"
        elif "<-" in line:
            target, value = map(str.strip, line.split("<-"))
            graph.mutations.append(Mutation(graph.inputs.index(known[target]), known[value]))
        elif line.startswith("return"):
            graph.outputs = [known[name.strip()] for name in line.removeprefix("return").split(",") if name.strip()]
        else:
            raise SyntaxError(f"not a line of a graph: {line}")
    return graph


def structure(graph: Graph) -> str:
    """The graph with its nodes numbered in order."""
    numbers = {node.name: f"%{k}" for k, node in enumerate((*graph.inputs, *graph.nodes))}

    def line(node: Node) -> str:
        text = f"constant({node.args[0].tolist()})" if node.op is CONSTANT else call_text(node)
        named = re.sub(r"\b[A-Za-z_]\w*\b(?![.(=])", lambda found: numbers.get(found[0], found[0]), text)
        spec = "" if node.op is GETITEM else f"  # {node.spec}"
        return f"{numbers[node.name]} = {named}{'' if node.grad_enabled else ' (grad off)'}{spec}"

    writes = [f"{numbers[graph.inputs[m.input].name]} <- {numbers[m.value.name]}" for m in graph.mutations]
    returned = ", ".join(numbers[node.name] for node in graph.outputs)
    return "\n".join([*map(line, graph.nodes), *writes, f"return {returned}"])


def values(graph: Graph, seed: int) -> list[torch.Tensor]:
    """Inputs for a graph."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for node in graph.inputs:
        spec = node.tensor
        shape, stride = graph.sizes.hints(spec.shape), graph.sizes.hints(spec.stride)
        value = torch.empty_strided(shape, stride, dtype=spec.dtype)
        value.copy_(torch.randn(shape, generator=generator) if spec.dtype.is_floating_point
                    else torch.randint(0, 2, shape, generator=generator))
        made.append(value.requires_grad_(spec.requires_grad))
    return made
