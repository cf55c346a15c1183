"""The C++ backend: `CppGenerator`."""

from .backend import CppGenerator, plan_graph

__all__ = ["CppGenerator", "plan_graph"]
