"""The rules that keep the parts apart: who imports whom, what stays out of the process, how long a file may be."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "jitpy").rglob("*.py"))
#: torch's own compiler; only these files may touch it, late, for backends that ask for it
COMPILER = ("torch._dynamo", "torch._inductor", "torch._functorch")
MAY_IMPORT_COMPILER = {"torch_compile.py", "backends/inductor.py", "backends/symbolic_examples.py"}


def rules() -> dict[str, tuple[str, set[str]]]:
    """The table of docs/architecture.md: part -> ('only' or 'all but', parts it may (not) import)."""
    found: dict[str, tuple[str, set[str]]] = {}
    for line in (ROOT / "docs" / "architecture.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| `jitpy/") or len(cells) != 3:
            continue
        named = set(re.findall(r"`([^`]*)`", cells[2]))
        everything = cells[2].startswith("everything")
        assert everything or named or cells[2] == "nothing", f"cannot read the rule {cells[2]!r}"
        for part in re.findall(r"`jitpy/([^`]*)`", cells[0]):
            found[part.removesuffix("/").removesuffix(".py")] = ("all but" if everything else "only", named)
    return found


RULES = rules()


def module_of(file: Path) -> str:
    """A file's module as a path below jitpy: `ir/ops/nn`; `__init__` for the package's own."""
    name = file.relative_to(ROOT / "jitpy").with_suffix("").as_posix()
    return name.removesuffix("/__init__")


def part_of(module: str) -> str:
    """The row of the table that a module belongs to: the longest that matches."""
    matching = [part for part in RULES if module == part or module.startswith(part + "/")]
    return max(matching, key=len, default="")


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import of a file, those inside functions included."""
    package = file.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{prefix}.{alias.name}"


def target(dotted: str) -> str:
    """The module below jitpy that an imported name comes from: `jitpy.ir.ops.get` -> `ir/ops`."""
    parts = dotted.split(".")
    while len(parts) > 1:
        path = ROOT.joinpath(*parts)
        if path.with_suffix(".py").is_file() or (path / "__init__.py").is_file() or path.is_dir():
            return "/".join(parts[1:])
        parts.pop()
    return "__init__"


def covers(named: str, module: str, importer: str) -> bool:
    """Whether a name of the table stands for a module, as `importer` may read it."""
    if module == named:
        return True
    if not module.startswith(named + "/"):
        return False
    inside = importer == named or importer.startswith(named + "/")
    return not inside or part_of(module) == named


def allowed(importer: str, module: str) -> bool:
    here, there = part_of(importer), part_of(module)
    if here == there:
        return True
    mode, named = RULES[here]
    if mode == "all but":
        return not any(covers(name, module, here) for name in named)
    return any(covers(name, module, here) for name in named)


def test_every_file_has_a_row() -> None:
    assert [module_of(file) for file in FILES if not part_of(module_of(file))] == []


def test_every_row_has_files() -> None:
    assert [part for part in RULES if not (ROOT / "jitpy" / part).is_dir()
            and not (ROOT / "jitpy" / f"{part}.py").is_file()] == []


@pytest.mark.parametrize("part", sorted(RULES))
def test_imports(part: str) -> None:
    wrong = []
    for file in FILES:
        importer = module_of(file)
        if part_of(importer) != part:
            continue
        for line, name in imports(file):
            if name.split(".")[0] == "jitpy" and not allowed(importer, target(name)):
                wrong.append(f"{file.relative_to(ROOT)}:{line} imports {name}")
    assert wrong == []


def test_the_check_sees_what_it_should() -> None:
    """The rules are read as meant: arrows that must not be."""
    assert allowed("engine", "frontend/interpreter/trace_context") and not allowed("engine", "api")
    assert allowed("ir/passes/pattern", "ir/ops") and allowed("ir/passes/pattern", "ir/graph")
    assert not allowed("ir/graph", "ir/passes") and not allowed("ir/ops/nn", "ir/passes/rules")
    assert not allowed("ir/graph", "config") and allowed("schedule/fuse", "ir/ops/table")
    assert not allowed("schedule/fuse", "backends/cpp") and not allowed("frontend/interpreter/trace_context",
                                                                        "runtime/guards")
    assert not allowed("frontend/polyfills/objects", "frontend/breaks")
    assert not allowed("frontend/hook", "frontend/bytecode/code") and allowed("frontend/hook", "runtime/native_build")


def test_torchs_compiler_is_imported_nowhere() -> None:
    wrong = [f"{file.relative_to(ROOT)}:{line} imports {name}"
             for file in FILES if file.relative_to(ROOT / "jitpy").as_posix() not in MAY_IMPORT_COMPILER
             for line, name in imports(file) if any(name == c or name.startswith(c + ".") for c in COMPILER)]
    assert wrong == []


#: `aten.add.Tensor`, `ir.seed`, `py.add`; not `aten.`, which begins the names of all of ATen's ops.
OP_NAME = re.compile(r"(aten|prims|prim|ir|py)(\.|::)\w[\w.]*")
OVERLOADS = "torch.ops.aten"
#: Tables of rules, one for each op: inverses of views, what composite ops are recorded as, numbers of TorchScript.
RULES_BY_OP = {"frontend/capture/aliasing.py": 1, "frontend/capture/composites.py": 1,
               "frontend/models/tensors/scripted.py": 1}


def names_an_op(node: ast.AST, aliases: tuple[str, ...]) -> bool:
    """Whether an expression is the name of an op, or begins one with a text of its own, or is torch's overload, in
    which `aliases` stand for `torch.ops.aten`."""
    if isinstance(node, ast.JoinedStr):
        first = node.values[0]
        return isinstance(first, ast.Constant) and str(first.value).startswith(("aten.", "ir.", "py."))
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and OP_NAME.fullmatch(node.value) is not None
    return isinstance(node, ast.Attribute) and ast.unparse(node).startswith(aliases)


def op_name_sets(tree: ast.AST) -> list[int]:
    """The lines on which collections, or keys of dictionaries, name two or more ops. Constants of the module count."""
    assigned = [(target.id, node.value) for node in ast.walk(tree) if isinstance(node, ast.Assign)
                for target in node.targets if isinstance(target, ast.Name)]
    aliases = (f"{OVERLOADS}.", *(f"{name}." for name, value in assigned if ast.unparse(value) == OVERLOADS))
    names = {name for name, value in assigned if names_an_op(value, aliases)}
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Set(elts=members) | ast.List(elts=members) | ast.Tuple(ctx=ast.Load(), elts=members) | \
                    ast.Dict(keys=members):
                least = 2
            case ast.SetComp(elt=member) | ast.ListComp(elt=member) | ast.GeneratorExp(elt=member) | \
                    ast.DictComp(key=member):
                least, members = 1, [member]
            case _:
                continue
        if sum(names_an_op(m, aliases) or isinstance(m, ast.Name) and m.id in names for m in members if m) >= least:
            found.append(node.lineno)
    return found


def test_op_facts_are_fields_of_ops() -> None:
    """No file outside ir/ops lists ops: what is true of several of them is a field of `Op`, which `declare` sets."""
    found = {file.relative_to(ROOT / "jitpy").as_posix(): op_name_sets(ast.parse(file.read_text())) for file in FILES}
    outside = {name: len(lines) for name, lines in found.items() if lines and not name.startswith("ir/ops/")}
    assert outside == RULES_BY_OP


@pytest.mark.parametrize("program", [
    'X = {"aten.add.Tensor", "aten.mul.Tensor"}', 'X = {"aten.add.Tensor": 1, "ir.seed": 2}',
    'A = "aten.add.Tensor"\nX = (A, "aten.mul.Tensor")', 'X = frozenset(f"aten.{n}.default" for n in ("a", "b"))',
    "X = (torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor)", 'X = {"aten::add", "aten::mul"}',
    "aten = torch.ops.aten\nX = (aten.add.Tensor, aten.mul.Tensor)"])
def test_sets_of_op_names_are_seen(program: str) -> None:
    assert op_name_sets(ast.parse(program))


@pytest.mark.parametrize("program", [
    'X = "aten.add.Tensor", 1', 'X = name.startswith(("aten.", "prims."))',
    'rule("aten.add.Tensor", "aten.mul.Tensor")(f)'])
def test_other_texts_are_no_sets_of_op_names(program: str) -> None:
    assert op_name_sets(ast.parse(program)) == []


def run(program: str) -> list[str]:
    """What a fresh Python prints, line by line."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_torchs_compiler_stays_out_of_the_process() -> None:
    """Compiling and running, with gradients, symbolic sizes and a graph break, loads nothing of torch's compiler
    (beyond the parts of torch._functorch that `import torch` itself loads)."""
    program = f"""
import sys, torch
before = set(sys.modules)
import jitpy
def f(x, w):
    y = torch.nn.functional.layer_norm(x @ w, (w.shape[1],)).relu()
    jitpy.graph_break()
    return y.sum(-1) * 2
g = jitpy.jit(f)
for n in (3, 5, 7):
    x, w = torch.randn(n, 4), torch.randn(4, 6, requires_grad=True)
    torch.testing.assert_close(g(x, w), f(x, w))
    g(x, w).sum().backward()
print(*[name for name in set(sys.modules) - before if name.startswith({COMPILER!r})], sep="\\n")
"""
    assert [line for line in run(program) if line] == []


def test_importing_jitpy_is_light() -> None:
    """The engine and sympy wait for the first compilation."""
    program = """
import sys, torch
before = set(sys.modules)
import jitpy
print(*sorted(set(sys.modules) - before), sep="\\n")
"""
    new = run(program)
    assert "jitpy.api" in new
    heavy = ("jitpy.engine", "jitpy.frontend", "jitpy.ir", "jitpy.schedule", "jitpy.backends.cpp", "sympy", "bytecode",
             "networkx")
    assert [name for name in new if name.startswith(heavy)] == []


@pytest.mark.parametrize("folder", ["jitpy", "tests", "benchmarks", "examples"])
def test_files_stay_readable(folder: str) -> None:
    """Nobody reads on after 900 lines."""
    lengths = {str(file.relative_to(ROOT)): len(file.read_text().splitlines())
               for file in (ROOT / folder).rglob("*.py")}
    assert {name: length for name, length in lengths.items() if length > 900} == {}


def test_imports_are_declared() -> None:
    """A fresh environment has nothing but what pyproject.toml names (Triton is an extra, and optional)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {re.match(r"[\w-]+", text).group() for text in project["dependencies"]}  # type: ignore[union-attr]
    known = declared | {"triton", "jitpy"} | sys.stdlib_module_names
    found = {name.split(".")[0] for file in FILES for _, name in imports(file)}
    assert found - known == set()
