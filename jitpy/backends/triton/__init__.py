"""The Triton backend: `TritonGenerator`."""

from .backend import TritonGenerator, plan_graph

__all__ = ["TritonGenerator", "plan_graph"]
