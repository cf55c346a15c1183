"""Flags and logs: reading, setting, environment variables, and errors that name what there is."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from jitpy import config, logs


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False,
                          env={**os.environ, **environment})


def test_read_set_and_patch() -> None:
    assert config.recompile_limit == 8
    with config.patch(recompile_limit=3, simd="scalar"):
        assert config.recompile_limit == 3 and config.simd == "scalar"
        with config.patch(recompile_limit=4):
            assert config.recompile_limit == 4 and config.simd == "scalar"
        assert config.recompile_limit == 3
    assert config.recompile_limit == 8
    config.recompile_limit = 9
    assert config.as_dict()["recompile_limit"] == 9
    config.recompile_limit = 8


def test_patch_ends_with_an_exception() -> None:
    with pytest.raises(KeyError):
        with config.patch(fusion=False):
            raise KeyError
    assert config.fusion is True


def test_patch_holds_for_one_thread() -> None:
    seen = []
    with config.patch(recompile_limit=3):
        thread = threading.Thread(target=lambda: seen.append(config.recompile_limit))
        thread.start()
        thread.join()
    assert seen == [8]


@pytest.mark.parametrize(("name", "value"), [("recompile_limit", "8"), ("recompile_limit", True), ("fusion", 1),
                                             ("simd", None), ("recompile_limit", 2.0)])
def test_wrong_types(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=name):
        setattr(config, name, value)
    with pytest.raises(TypeError, match=name):
        config.patch(**{name: value})


def test_unknown_names() -> None:
    for action in (lambda: config.nonsense, lambda: setattr(config, "nonsense", 1), lambda: config.patch(nonsense=1)):
        with pytest.raises(AttributeError, match="nonsense.*recompile_limit"):
            action()


def test_environment() -> None:
    program = "from jitpy import config; print(config.recompile_limit, config.fusion, config.raise_errors)"
    plain = {"JITPY_RECOMPILE_LIMIT": "5", "JITPY_FUSION": "off", "JITPY_RAISE": "1"}
    assert run(program, **plain).stdout.split() == ["5", "False", "True"]
    for name, value in (("JITPY_RECOMPILE_LIMIT", "many"), ("JITPY_FUSION", "perhaps")):
        done = run(program, **{name: value})
        assert done.returncode != 0 and name in done.stderr and value in done.stderr


def test_every_flag_is_typed_and_explained() -> None:
    """What type checkers see is the table of flags."""
    tree = ast.parse(Path(config.__file__).read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    declared = {ast.unparse(line.target): ast.unparse(line.annotation)
                for block in blocks for line in block.body if isinstance(line, ast.AnnAssign)}
    assert declared == {name: flag.type.__name__ for name, flag in config.FLAGS.items()}
    for flag in config.FLAGS.values():
        assert flag.doc and type(flag.default) is flag.type


def test_logs() -> None:
    lines: list[str] = []
    before = logs.set_sink(lines.append)
    was_on = {name for name in logs.NAMES if logs.enabled(name)}
    try:
        logs.disable()
        logs.log("guards", "unheard")
        logs.enable("guards")
        logs.log("guards", "heard")
        logs.log("guards", lambda: "made")
        logs.log("fusion", lambda: pytest.fail("made for nobody"))
        assert lines == ["[jitpy guards] heard", "[jitpy guards] made"]
        logs.enable("all")
        assert all(logs.enabled(name) for name in logs.NAMES)
        with pytest.raises(ValueError, match="nonsense.*graph_breaks"):
            logs.enable("nonsense")
    finally:
        logs.disable()
        logs.enable(*was_on)
        logs.set_sink(before)


def test_logs_from_the_environment() -> None:
    program = "from jitpy import logs; print(sorted(n for n in logs.NAMES if logs.enabled(n)))"
    done = run(program, JITPY_LOGS="graph, guards")
    assert done.stdout.strip() == "['graph', 'guards']"
    done = run("from jitpy import logs", JITPY_LOGS="nonsense")
    assert done.returncode != 0 and "nonsense" in done.stderr and "graph_breaks" in done.stderr
