"""Gradients: reverse mode over the graph, and what to keep for it."""

from __future__ import annotations

from .compile import compile_differentiable
from .reverse import vjp

__all__ = ["compile_differentiable", "vjp"]
