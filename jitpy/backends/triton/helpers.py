"""Functions that kernels call, as Triton text: combinations for reductions and scans, and arithmetic as torch has it.

A kernel's module holds those that it uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ...ir.ops.philox import ANGLE

HEAD = """import triton
import triton.language as tl
from triton.language.extra import libdevice
"""

#: what helpers ask of the GPU that they are compiled for, and the answer where nobody gives one: its kind, and whether
#: it is one of NVIDIA's since Hopper
_SAID: dict[str, str | bool] = {"MACHINE": "cuda", "HOPPER": False}


def _functions() -> Iterator[tuple[str, str]]:
    """The functions of `device_functions.py`: names and texts."""
    _, *texts = Path(__file__).with_name("device_functions.py").read_text().split("\n@triton.jit\n")
    for text in texts:
        yield text[4:text.index("(")], f"@triton.jit\n{text.strip()}".replace("ANGLE", repr(ANGLE))


HELPERS = dict(_functions())


def module(body: str) -> str:
    """The text of a module with these kernels and the helpers that they need."""
    needed: dict[str, None] = {}

    def visit(text: str) -> None:
        for word in re.findall(r"\b\w+\b", text):
            if word in HELPERS and word not in needed:
                visit(HELPERS[word].split("\n", 2)[2])
                needed[word] = None

    visit(body)
    head = HEAD
    for name, value in _SAID.items():
        if any(name in HELPERS[helper] for helper in needed):
            head += f"#: what compiles this says so\n{name} = tl.constexpr({value!r})\n"
    return "\n\n".join([head, *(HELPERS[name] + "\n" for name in needed), body])
