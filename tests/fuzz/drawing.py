"""Drawing parts of a program: one of several, with a chance, a variable of a kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

#: draws an integer between the bounds, both included
Draw = Callable[[int, int], int]


class Drawing:
    """What the program drawn so far has used up, and how choices are made."""

    def __init__(self, draw: Draw, exact: bool) -> None:
        self.draw = draw
        self.exact = exact
        self.fresh = 0
        self.budget = 34
        self.loops = 0
        self.functions = 0
        #: whether `break` and `continue` are possible here
        self.in_loop = False
        #: variables that the innermost function may rebind; others it can only read
        self.own: set[str] = set()
        #: the carriers that occur in the program
        self.carriers: set[str] = set()

    def one(self, options: Sequence[Any]) -> Any:
        return options[self.draw(0, len(options) - 1)]

    def chance(self, percent: int) -> bool:
        return self.draw(0, 99) >= 100 - percent  # shrinks towards no

    def risky(self, form: str, safe: str) -> str:
        """Mostly the safe form: a program that raises early shows little."""
        return form if self.chance(20) else safe

    def name(self, prefix: str) -> str:
        self.fresh += 1
        return f"{prefix}{self.fresh}"

    def variable(self, scope: dict[str, str], kind: str) -> str | None:
        names = [name for name, its in scope.items() if its == kind]
        return self.one(names) if names else None

    def assignable(self, scope: dict[str, str], kind: str) -> str | None:
        names = [name for name, its in scope.items() if its == kind and name in self.own]
        return self.one(names) if names else None


def indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]
