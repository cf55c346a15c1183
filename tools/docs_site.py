"""The generated pages of the site: `index.md`, and `files.md` with the first sentence of every file's docstring.

mkdocs.yml names this file as a hook; `mkdocs build --strict` makes the site.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]


def first_sentence(text: str) -> str:
    """The first sentence of the first paragraph that is no heading, code or table."""
    for paragraph in re.split(r"\n\s*\n", text):
        if paragraph.strip() and not paragraph.startswith(("#", "    ", "|", "`" * 3, "- ")):
            return re.split(r"(?<=[.:])\s", " ".join(paragraph.split()) + " ")[0]
    return ""


def pages(nav: list[Any]) -> list[str]:
    """Lines of the index: the titles of the parts, and each page with its first sentence."""
    lines: list[str] = []
    for entry in nav:
        if isinstance(entry, dict):
            for title, inside in entry.items():
                lines += [f"\n## {title}\n", *pages(inside)] if isinstance(inside, list) else []
        elif (ROOT / "docs" / entry).exists():
            text = (ROOT / "docs" / entry).read_text()
            lines.append(f"- [{text.splitlines()[0].lstrip('# ')}]({entry}): {first_sentence(text)}")
    return lines


def modules() -> list[str]:
    lines: list[str] = []
    for folder in sorted({path.parent for path in (ROOT / "jitpy").rglob("*.py")}):
        lines += [f"\n## {folder.relative_to(ROOT)}\n", "| file | its job |", "| --- | --- |"]
        for path in sorted(folder.glob("*.py")):
            about = first_sentence(ast.get_docstring(ast.parse(path.read_text())) or "").replace("|", "\\|")
            lines += [f"| `{path.name}` | {about} |"] if about else []
    return lines


def on_files(files: Files, config: Any) -> Files:
    intro = first_sentence((ROOT / "README.md").read_text())
    made = {"index.md": ["# jitpy", "", intro, "", "[Every file](files.md) has one sentence.", *pages(config["nav"])],
            "files.md": ["# Every file", "", "Made from the docstrings of the modules.", *modules()]}
    for name, lines in made.items():
        files.append(File.generated(config, name, content="\n".join(lines) + "\n"))
    return files
