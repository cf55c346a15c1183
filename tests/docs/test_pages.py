"""The documentation: its code runs, its quotations are true, its language is plain, and the site builds."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.S | re.M)


def run(page: Path, code: str) -> None:
    """In a process of its own: pages add ops and passes."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, f"{page.relative_to(ROOT)}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name == "howto"], ids=lambda page: page.stem)
def test_the_code_of_a_how_to_runs(page: Path) -> None:
    """Block after block; one that begins with `# jitpy/...` is a quotation."""
    code = [block for block in BLOCK.findall(page.read_text()) if not block.startswith("# jitpy/")]
    assert code
    run(page, "\n".join(code))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_quotations_and_paths_are_true(page: Path) -> None:
    """Quotations from a file are in it; files that are named exist."""
    text = page.read_text()
    for block in BLOCK.findall(text):
        if block.startswith("# jitpy/"):
            head, _, body = block.partition("\n")
            assert body.strip() in (ROOT / head[2:]).read_text(), f"{head} does not say so any more"
    for path in re.findall(r"`((?:jitpy|tests|benchmarks|examples|tools)/[\w/.]+)`", text):
        assert (ROOT / path).exists() or list(ROOT.glob(path + "*")), f"{path} does not exist"


def test_the_language_is_plain() -> None:
    done = subprocess.run([sys.executable, "tools/prose.py"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed")
def test_the_site_builds(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)],
                          capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "graph_builder.py" in (tmp_path / "files" / "index.html").read_text()


def test_the_path_of_a_softmax() -> None:
    """Each function of the table is called, in the table's order."""
    text = (ROOT / "docs" / "softmax.md").read_text()
    table = re.findall(r"^\| \d+ \| `jitpy/([\w/.]+)` \| `(?:\w+\.)?(\w+)` \|", text, re.M)
    assert len(table) == 12
    program = f"""
import sys
def profile(frame, event, arg):
    name = frame.f_code.co_filename.rpartition("/jitpy/")[2], frame.f_code.co_name
    if event == "call":
        seen.setdefault(name, len(seen))
seen = {{}}
{BLOCK.findall(text)[0].replace("attention_weights(torch", "sys.setprofile(profile); attention_weights(torch")}
sys.setprofile(None)
order = [seen.get(name, name) for name in {table}]
assert all(isinstance(place, int) for place in order) and order == sorted(order), order
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
