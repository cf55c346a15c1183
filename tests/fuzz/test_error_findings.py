"""Programs of the tensors kind whose errors had other texts than eager's."""

from __future__ import annotations

import textwrap

import pytest

from tests.fuzz.tensors import TensorProgram, check, statements

_PROGRAMS: dict[str, TensorProgram] = {}


def _finding(name: str, lines: str, alias: int = 0) -> None:
    caught = "\n".join(("try:", textwrap.indent(textwrap.dedent(lines).strip(), "    "),
                        "except (RuntimeError, IndexError, TypeError) as error:", "    log.append(str(error))"))
    _PROGRAMS[name] = TensorProgram(tuple(statements(caught)), ("x",), alias, ())


# Eager looks at the memory of the operands first, then at their sizes.
_finding("write_that_overlaps_and_has_another_size", "z[..., :1].mul_(z)")
_finding("write_to_what_another_argument_shows", "z.mul_(x)", alias=1)


@pytest.mark.parametrize("name", _PROGRAMS)
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_finding(name: str, backend: str) -> None:
    assert check(_PROGRAMS[name], backend) is None
