"""The frontend by numbers that may only fall: import circles, tests for kinds of values, ladders of these."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import networkx

FRONTEND = Path(__file__).parents[1] / "jitpy" / "frontend"
#: files in import circles; late imports and those for annotations count
IN_CIRCLES = 0
#: lines outside of `values/` that test for a kind of value
KIND_TESTS = 16
#: functions that test for three or more kinds
LADDERS = 0
#: functions outside of `values/` that ask a value three or more of QUESTIONS, which is a ladder by other means
QUESTIONERS = 20
#: the attributes by which a value says what it is (`docs/folders/values.md`)
QUESTIONS = {"base", "code", "expr", "is_array", "is_computed", "is_constant", "is_exception", "is_function_block",
             "is_generator", "is_instance", "is_iterator", "is_modelled", "is_text", "opaque", "plain", "scalar",
             "tensor"}


def _files() -> Iterator[tuple[str, Path]]:
    for file in sorted(FRONTEND.rglob("*.py")):
        yield file.relative_to(FRONTEND).with_suffix("").as_posix().removesuffix("/__init__"), file


def _imports(module: str, file: Path, known: set[str]) -> Iterator[str]:
    """The modules of the frontend that a file imports, in whatever place."""
    package = module.split("/") if file.name == "__init__.py" else module.split("/")[:-1]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and 0 < node.level <= len(package) + 1:
            base = package[: len(package) - node.level + 1] + (node.module or "").split(".")
            path = "/".join(part for part in base if part)
            for alias in node.names:
                found = next((name for name in (f"{path}/{alias.name}".lstrip("/"), path) if name in known), None)
                if found is not None and found != module:
                    yield found


def test_no_import_circles() -> None:
    files = dict(_files())
    graph = networkx.DiGraph((module, other) for module, file in files.items()
                             for other in _imports(module, file, set(files)))
    circles = [sorted(found) for found in networkx.strongly_connected_components(graph) if len(found) > 1]
    assert sum(map(len, circles)) <= IN_CIRCLES, circles


def test_kinds_are_asked_for_in_values_only() -> None:
    test = re.compile(r"isinstance\([^)]*Value\b")
    found = {module: sum(bool(test.search(line)) for line in file.read_text().splitlines())
             for module, file in _files() if not module.startswith("values")}
    assert sum(found.values()) <= KIND_TESTS, sorted(found.items(), key=lambda item: -item[1])[:20]


def _kinds_tested(function: ast.AST) -> set[str]:
    kinds: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            kinds |= {name.id for name in ast.walk(node.args[1])
                      if isinstance(name, ast.Name) and name.id.endswith("Value")}
    return kinds


def test_ladders_go() -> None:
    ladders = [f"{module}: {node.name}" for module, file in _files() for node in ast.walk(ast.parse(file.read_text()))
               if isinstance(node, ast.FunctionDef) and len(_kinds_tested(node)) >= 3]
    assert len(ladders) <= LADDERS, ladders


def _questions(function: ast.AST) -> set[str]:
    """`value.is_text` in whatever place; `value.tensor` where it is compared."""
    asked = {node.attr for node in ast.walk(function)
             if isinstance(node, ast.Attribute) and node.attr.startswith("is_")}
    compared = {node.left.attr for node in ast.walk(function)
                if isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute)}
    return (asked | compared) & QUESTIONS


def test_ladders_of_questions_go() -> None:
    found = [f"{module}: {node.name}" for module, file in _files() if not module.startswith("values")
             for node in ast.walk(ast.parse(file.read_text()))
             if isinstance(node, ast.FunctionDef) and len(_questions(node)) >= 3]
    assert len(found) <= QUESTIONERS, found
