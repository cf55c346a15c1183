"""jitpy makes PyTorch code fast: `@jitpy.jit` on a function or a module, and that is all.

    @jitpy.jit
    def gelu(x): ...

    fast = jitpy.jit(model)
    print(jitpy.explain(model)(x))
"""

from . import config, logs
from .api import (
    allow_in_graph,
    disable,
    explain,
    graph_break,
    is_compiling,
    jit,
    list_backends,
    mark_dynamic,
    mark_static,
    register_backend,
    register_pass,
    reset,
)
from .errors import BackendError, FullGraphError, GraphBreakError
from .runtime import vector_math
from .torch_compile import register as _register

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "FullGraphError",
    "GraphBreakError",
    "allow_in_graph",
    "config",
    "disable",
    "explain",
    "graph_break",
    "is_compiling",
    "jit",
    "list_backends",
    "logs",
    "mark_dynamic",
    "mark_static",
    "register_backend",
    "register_pass",
    "reset",
]

vector_math.resolve()  # as early as can be: programs call eager functions too, on threads of their own
_register()
