"""Which code is jitpy's own or a library's, by the file that it comes from."""

from __future__ import annotations

import os
import types

import torch

_POLYFILLS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "polyfills", "")


def stands_for_c(code: types.CodeType) -> bool:
    """Whether code is the library's own, for what plain Python runs without a frame."""
    return code.co_filename.startswith(_POLYFILLS)


def is_polyfill(code: types.CodeType) -> bool:
    """Whether code stands for a C function, and must not be seen by the program."""
    return stands_for_c(code) and not code.co_filename.endswith("construct.py")


def keeps_hooks(code: types.CodeType) -> bool:
    """Whether code is of torch, which looks for the number of a hook only among those of other hooks."""
    return code.co_filename.startswith((_TORCH, os.path.join(_POLYFILLS, "hooks.py")))


_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_LIBRARY_PARTS = ("/torch/", "/jitpy/frontend/polyfills/", "/jitpy/jitted.py", "<frozen", "/lib/python3")


def is_library(filename: str) -> bool:
    """Whether a file is library code: not what a report should point at."""
    return any(part in filename for part in _LIBRARY_PARTS) and "/site-packages/transformers" not in filename
