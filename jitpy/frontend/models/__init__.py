"""Models of C code: of builtins, the standard library, numpy and torch, by callable.

`load` imports the modules that register models. Nothing else in `frontend/` imports a module for its registrations.
All are loaded at once: that is 9 of the 100 ms that the engine's import takes.
"""

from __future__ import annotations

import importlib

from ..values import IS_CAPTURED

_MODULES = (
    "families",
    "user_marks",
    "builtins.class_writes",
    "builtins.clocks",
    "builtins.copies",
    "builtins.draws",
    "builtins.exception_calls",
    "builtins.library",
    "builtins.live_iterators",
    "builtins.modelled_types",
    "builtins.plain_parts",
    "builtins.shown_tensors",
    "builtins.signatures",
    "builtins.strings",
    "builtins.weak_references",
    "tensors.autograd_functions",
    "tensors.backward_calls",
    "tensors.checkpoints",
    "tensors.compiler_controls",
    "tensors.data",
    "tensors.flex_attention",
    "tensors.functional_gradients",
    "tensors.higher_order",
    "tensors.inference_mode",
    "tensors.leaves",
    "tensors.legacy_constructors",
    "tensors.linear_maps",
    "tensors.optimizer_steps",
    "tensors.out_dtype",
    "tensors.scan_loops",
    "tensors.size_checks",
    "tensors.subclasses",
    "tensors.tensor_hooks",
    "tensors.torch_functions",
    "tensors.torch_objects",
    "tensors.transforms",
)


def load() -> None:
    """Import the models; those of numpy's functions where arrays are captured."""
    for name in _MODULES:
        importlib.import_module(f"{__name__}.{name}")
    if IS_CAPTURED:
        importlib.import_module(f"{__name__}.arrays.array_operations")
