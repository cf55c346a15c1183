"""The Triton backend: `compile_graph(graph, options)`."""

from .backend import compile_graph, plan_graph

__all__ = ["compile_graph", "plan_graph"]
