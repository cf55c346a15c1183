"""Every instruction of the running Python has a handler or a declared break, and every break a registered reason."""

from __future__ import annotations

import ast
import dis
import sys
from pathlib import Path

import pytest

import jitpy
from jitpy.frontend import bytecode
from jitpy.frontend.breaks import REASONS
from jitpy.frontend.bytecode.code import IGNORED
from jitpy.frontend.bytecode.handlers import DECLARED_BREAKS, HANDLERS

#: no code object that Python code can reach holds these: the interpreter's own entry frames, optimised traces
INTERNAL = {"INTERPRETER_EXIT", "RESERVED", "ENTER_EXECUTOR", "EXIT_INIT_CHECK"}

#: instructions that not every supported version has, by version; the handlers of all of them are registered everywhere
bytecode.load()
JUMPS_3_11 = {f"POP_JUMP_{way}_IF_{what}" for way in ("FORWARD", "BACKWARD")
              for what in ("TRUE", "FALSE", "NONE", "NOT_NONE")}
JUMPS_SINCE_3_12 = {f"POP_JUMP_IF_{what}" for what in ("TRUE", "FALSE", "NONE", "NOT_NONE")}
UNTIL_3_12 = {"FORMAT_VALUE", "KW_NAMES", "LOAD_CLOSURE"}
SINCE_3_12 = JUMPS_SINCE_3_12 | {
    "BINARY_SLICE", "CALL_INTRINSIC_1", "CALL_INTRINSIC_2", "CLEANUP_THROW", "END_FOR", "END_SEND",
    "LOAD_FAST_AND_CLEAR", "LOAD_FAST_CHECK", "LOAD_FROM_DICT_OR_DEREF", "LOAD_FROM_DICT_OR_GLOBALS", "LOAD_LOCALS",
    "LOAD_SUPER_ATTR", "RETURN_CONST", "STORE_SLICE",
}
VERSIONS: dict[tuple[int, int], set[str]] = {
    (3, 11): UNTIL_3_12 | JUMPS_3_11 | {
        "ASYNC_GEN_WRAP", "IMPORT_STAR", "JUMP_IF_FALSE_OR_POP", "JUMP_IF_TRUE_OR_POP", "LIST_TO_TUPLE",
        "LOAD_CLASSDEREF", "LOAD_METHOD", "PRECALL", "PREP_RERAISE_STAR", "PRINT_EXPR", "UNARY_POSITIVE",
    },
    (3, 12): UNTIL_3_12 | SINCE_3_12,
    (3, 13): SINCE_3_12 | {
        "CALL_KW", "CONVERT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "LOAD_FAST_LOAD_FAST",
        "SET_FUNCTION_ATTRIBUTE", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST", "TO_BOOL",
    },
}


def in_code_objects() -> set[str]:
    """The running version's instructions, without those that code objects never show."""
    real = {name for name, number in dis.opmap.items() if number < 256 and not name.startswith("INSTRUMENTED_")}
    return real - IGNORED - INTERNAL


def test_every_instruction_is_declared() -> None:
    assert in_code_objects() - set(HANDLERS) - set(DECLARED_BREAKS) == set()


def test_no_instruction_is_declared_twice() -> None:
    assert set(HANDLERS) & set(DECLARED_BREAKS) == set()


@pytest.mark.skipif(sys.version_info[:2] not in VERSIONS, reason="a version whose instructions are not listed")
def test_every_declared_instruction_exists() -> None:
    """What is registered is an instruction of the running version, or listed for another one only."""
    elsewhere = set().union(*VERSIONS.values()) - VERSIONS[sys.version_info[:2]]
    assert set(HANDLERS) | set(DECLARED_BREAKS) == in_code_objects() | elsewhere


def test_declared_breaks_have_reasons() -> None:
    assert set(DECLARED_BREAKS.values()) <= set(REASONS)


def break_reasons() -> list[tuple[str, str]]:
    """(place, reason id) of every break that jitpy's source raises with a literal id."""
    found: list[tuple[str, str]] = []
    root = Path(jitpy.__file__).parent
    for file in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id not in ("GraphBreak", "Skip", "Uncapturable", "_refuse", "Assumption") or not node.args:
                continue
            first = node.args[node.func.id == "Assumption"]
            choices = [first.body, first.orelse] if isinstance(first, ast.IfExp) else [first]
            found += [(f"{file.relative_to(root)}:{node.lineno}", choice.value) for choice in choices
                      if isinstance(choice, ast.Constant)]
    return found


def test_every_reason_is_registered() -> None:
    reasons = break_reasons()
    assert len(reasons) > 100, "the scan has lost its way"
    assert [(place, reason) for place, reason in reasons if reason not in REASONS] == []


def test_every_registered_reason_is_used() -> None:
    used = {reason for _, reason in break_reasons()} | set(DECLARED_BREAKS.values())
    assert set(REASONS) - used == set()
