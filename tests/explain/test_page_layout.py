"""The HTML report's layout: each text wraps in its own column, however long it is. The rules of the page's style are
applied to its elements as browsers apply them."""

from __future__ import annotations

import html.parser
import re

import torch

import jitpy

VOID = {"meta", "col", "br"}
INHERITED = {"white-space", "overflow-wrap"}


class Element:
    def __init__(self, tag: str, classes: set[str], parent: Element | None) -> None:
        self.tag, self.classes, self.parent = tag, classes, parent
        self.children: list[Element] = []
        self.text = ""

    def below(self, tag: str) -> list[Element]:
        own = [child for child in self.children if child.tag == tag]
        return own + [found for child in self.children for found in child.below(tag)]

    def matches(self, simple: str) -> bool:
        """A selector without blanks: `tag.class`, with `:last-child`."""
        name, last, _ = simple.partition(":last-child")
        tag, *classes = name.split(".")
        if last and (self.parent is None or self.parent.children[-1] is not self):
            return False
        return tag in ("", self.tag) and set(classes) <= self.classes

    def selected(self, selector: str) -> bool:
        *above, last = selector.split()
        if not self.matches(last):
            return False
        if not above:
            return True
        parent = self.parent
        while parent is not None:
            if parent.selected(" ".join(above)):
                return True
            parent = parent.parent
        return False


class Page(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.root = self.here = Element("", set(), None)
        self.rules: list[tuple[str, dict[str, str]]] = []
        self.feed(text)
        style = self.root.below("style")[0].text
        for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", style):
            found = dict(part.strip().split(": ", 1) for part in body.split(";") if part.strip())
            self.rules += [(selector.strip(), found) for selector in selectors.split(",")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        made = Element(tag, set((dict(attrs).get("class") or "").split()), self.here)
        self.here.children.append(made)
        if tag not in VOID:
            self.here = made

    def handle_endtag(self, tag: str) -> None:
        assert self.here.tag == tag and self.here.parent is not None
        self.here = self.here.parent

    def handle_data(self, data: str) -> None:
        self.here.text += data

    def style(self, element: Element, name: str) -> str | None:
        """The value that wins: of the most specific rule, then of the last; else the parent's if inherited."""
        found = [((len(re.findall(r"[.:]", selector)), len(re.findall(r"(?:^| )[a-z]", selector)), number), rule[name])
                 for number, (selector, rule) in enumerate(self.rules)
                 if name in rule and element.selected(selector)]
        if found:
            return max(found)[1]
        return self.style(element.parent, name) if name in INHERITED and element.parent is not None else None


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        jitpy.graph_break("a_reason_without_a_blank_" * 20)
        return x.sin() + x.cos() + x.tan() + x.exp() + x.abs() + x.neg() + x.sigmoid() + x.tanh() + x.relu() + x.sin()


def test_long_texts_wrap_in_their_own_column() -> None:
    page = Page(jitpy.explain(torch.nn.Sequential(Scaled(), torch.nn.Linear(4, 4)))(torch.randn(4)).to_html())
    tables = page.root.below("table")
    assert {name for table in tables for name in table.classes} == {"source", "kernels"}
    for table in tables:
        assert page.style(table, "width") == "100%"  # of the page, which has a greatest width
    texts = [element for tag in ("td", "pre", "code", "p", "h3", "summary", "div") for element in page.root.below(tag)]
    assert len(texts) > 50
    for element in texts:
        wraps = page.style(element, "overflow-wrap") == "anywhere" and \
            page.style(element, "white-space") in (None, "normal", "pre-wrap")
        is_number = re.fullmatch(r"[\d,]+", element.text) and page.style(element, "white-space") == "nowrap"
        assert wraps or is_number, (element.tag, element.classes, element.text)
    for number in (element for element in page.root.below("td") if "n" in element.classes):
        assert page.style(number, "white-space") == "nowrap"


def test_columns_of_the_source_keep_their_widths() -> None:
    page = Page(jitpy.explain(Scaled())(torch.randn(4)).to_html())
    tables = [table for table in page.root.below("table") if "source" in table.classes]
    assert tables
    for table in tables:
        assert page.style(table, "table-layout") == "fixed"  # else the longest text decides
        assert [page.style(column, "width") for column in table.below("col")] == ["4rem", "3rem", None, "25%"]
        rows = table.below("tr")
        assert {len(row.below("td")) for row in rows if row.classes != {"gap"}} == {4}
        for row in rows:
            code, why = ([cell for cell in row.below("td") if name in cell.classes] for name in ("code", "why"))
            for cell in code:
                assert page.style(cell, "white-space") == "pre-wrap"  # the program's blanks stay
                assert page.style(cell, "text-indent") == "-4ch" and page.style(cell, "padding-left") == "4ch"
            for cell in why:
                assert page.style(cell, "white-space") == "normal"


def test_a_program_without_breaks_has_no_column_for_them() -> None:
    page = Page(jitpy.explain(lambda x: (x + 1).sin())(torch.randn(4)).to_html())
    for table in page.root.below("table"):
        if "source" in table.classes:
            assert [page.style(column, "width") for column in table.below("col")] == ["4rem", "3rem", None, "0"]
