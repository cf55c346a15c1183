"""Handlers of bytecode instructions, by family. Importing this package registers them all."""

from . import calls, classes, containers, exceptions, flow, stack  # noqa: F401
