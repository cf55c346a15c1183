"""Graphs as text: Python (`to_text`), a table (`to_table`), Graphviz (`to_dot`). The same graph gives the same text."""

from __future__ import annotations

import os
from typing import Any

import torch

from .algebra import sympy
from .graph import CONSTANT, GETITEM, Graph, Node
from .spec import ScalarSpec, Spec, TensorSpec


def to_text(graph: Graph, *, locations: bool = True) -> str:
    """The graph as one Python function, one line per node, with the node's spec and the user's line as a comment."""
    lines = [f"def {graph.name}("]
    for node in graph.inputs:
        source = node.meta.get("source")
        origin = f"  {source}" if source is not None and str(source) != node.name else ""
        lines.append(f"    {node.name},  # {spec_text(node.spec)}{origin}")
    lines.append("):")
    if not graph.inputs:
        lines = [f"def {graph.name}():"]
    lines.extend(f"    {line}" for line in _symbol_lines(graph))
    grad = True
    for node in graph.nodes:
        if node.grad_enabled != grad:
            grad = node.grad_enabled
            lines.append(f"    torch.set_grad_enabled({grad})")
        where = f"  {os.path.basename(node.loc.filename)}:{node.loc.line}" if locations and node.loc else ""
        lines.append(f"    {node.name} = {call_text(node)}  # {spec_text(node.spec)}{where}")
    for mutation in graph.mutations:
        lines.append(f"    {graph.inputs[mutation.input].name}.copy_({mutation.value.name})")
    names = ", ".join(node.name for node in graph.outputs)
    lines.append(f"    return ({names}{',' if len(graph.outputs) == 1 else ''})")
    return "\n".join(lines)


def to_table(graph: Graph) -> str:
    """The graph as aligned columns: name, op, arguments, spec, place."""
    rows: list[tuple[str, ...]] = [("name", "op", "arguments", "value", "where")]
    for node in graph.inputs:
        rows.append((node.name, str(node.op), "", spec_text(node.spec), str(node.meta.get("source") or "")))
    for node in graph.nodes:
        where = f"{os.path.basename(node.loc.filename)}:{node.loc.line}" if node.loc else ""
        rows.append((node.name, str(node.op), arguments_text(node), spec_text(node.spec), where))
    for mutation in graph.mutations:
        rows.append((graph.inputs[mutation.input].name, "copy_", mutation.value.name, "", ""))
    rows.append(("return", "", ", ".join(node.name for node in graph.outputs), "", ""))
    widths = [min(max(len(row[i]) for row in rows), 60) for i in range(5)]
    rows.insert(1, tuple("-" * width for width in widths))
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                     for row in rows)


def to_dot(graph: Graph) -> str:
    """The graph for Graphviz. Dashed edges are copy-backs into inputs."""
    lines = [f'digraph "{graph.name}" {{', "  node [shape=box, fontname=monospace];"]

    def label(node: Node, title: str) -> str:
        text = f"{title}\n{spec_text(node.spec)}"
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    for node in graph.inputs:
        lines.append(f'  "{node.name}" [label="{label(node, node.name)}", shape=ellipse];')
    for node in graph.nodes:
        lines.append(f'  "{node.name}" [label="{label(node, f"{node.name} = {call_text(node)}")}"];')
        for source in dict.fromkeys(node.input_nodes()):
            lines.append(f'  "{source.name}" -> "{node.name}";')
    for mutation in graph.mutations:
        target = graph.inputs[mutation.input].name
        lines.append(f'  "{mutation.value.name}" -> "{target}" [style=dashed, label="copy_"];')
    for i, node in enumerate(graph.outputs):
        lines.append(f'  "return {i}" [shape=plaintext];')
        lines.append(f'  "{node.name}" -> "return {i}";')
    return "\n".join([*lines, "}"])


def call_text(node: Node) -> str:
    """The right-hand side of a node's line."""
    if node.op is GETITEM:
        return f"{node.args[0]}[{node.args[1]}]"
    if node.op is CONSTANT:
        return f"ir.constant({value_text(node.args[0])})"
    return f"{node.op}({arguments_text(node)})"


def arguments_text(node: Node) -> str:
    parts = [value_text(arg) for arg in node.args]
    parts += [f"{key}={value_text(value)}" for key, value in node.kwargs.items()]
    return ", ".join(parts)


def value_text(value: Any) -> str:
    """One argument as it would be written."""
    if isinstance(value, Node):
        return value.name
    if isinstance(value, tuple):
        return f"({', '.join(map(value_text, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {value_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, slice):
        return f"slice({value_text(value.start)}, {value_text(value.stop)}, {value_text(value.step)})"
    if isinstance(value, sympy.Basic):
        return str(value)
    if isinstance(value, torch.Tensor):
        return f"<{str(value.dtype).removeprefix('torch.')}{list(value.shape)}>"
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f"float('{value}')"
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    text = repr(value)
    # an address would make the text differ from run to run
    return text if " at 0x" not in text else f"<{type(value).__name__}>"


def spec_text(spec: Spec) -> str:
    if isinstance(spec, tuple):
        return f"({', '.join(map(spec_text, spec))})"
    if isinstance(spec, (TensorSpec, ScalarSpec)):
        return str(spec)
    return "None"


def _symbol_lines(graph: Graph) -> list[str]:
    lines = []
    for symbol, (position, kind, dim) in sorted(graph.symbol_bindings().items(), key=lambda item: str(item[0])):
        name = graph.inputs[position].name
        text = {"size": f"{name}.size({dim})", "stride": f"{name}.stride({dim})",
                "offset": f"{name}.storage_offset()", "value": name}[kind]
        lines.append(f"{symbol} = {text}")
    return lines
