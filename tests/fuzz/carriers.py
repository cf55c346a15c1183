"""Ways for a value of any kind to travel through a construct of Python and come out as the object that it was.

Each function in `carried/` whose first parameter is `v` is a carrier; programs contain the text of those that they use.
A carrier calls `pause()` in the middle of its construct, and every program draws what that does (`PAUSES`): nothing,
break the graph, write, raise. So a construct is written once and met with breaks, exceptions and side effects inside.
"""

from __future__ import annotations

import ast
import functools
import pathlib
from typing import NamedTuple

#: bodies of `pause`
PAUSES = (
    "pass",
    "jitpy.graph_break()",
    "ticks.append(0)\nif len(ticks) % 2:\n    jitpy.graph_break()",
    "uncaptured(shared)",
    "print('paused')",
    "ticks.append(0)\nif len(ticks) % 5 == 0:\n    raise ValueError('paused')",
    "ticks.append(0)\nif len(ticks) % 4 == 3:\n    raise KeyError(len(ticks))",
    "if torch.rand(()) > 0.5:\n    shared.append(0)",
    "shared.append(int(torch.rand(()) * 9))",
    "torch.set_grad_enabled(not torch.is_grad_enabled())",
    "shared.append(len(shared))",
    "global counter\ncounter += 1",
    "sys._getframe().f_lineno",
    "ticks.append(sys.exc_info()[0])\nshared.append(str(ticks[-1]))",
)

_TOPICS = ("shared", "functions", "classes", "containers", "generators", "exceptions", "values", "iterators", "loops",
           "protocols", "keys")


class _Definition(NamedTuple):
    text: str
    #: names that occur in it
    names: frozenset[str]
    carries: bool


@functools.cache
def _definitions() -> dict[str, _Definition]:
    """What `carried/` defines, by name."""
    found = {}
    for topic in _TOPICS:
        text = (pathlib.Path(__file__).parent / "carried" / f"{topic}.py").read_text()
        lines = text.splitlines()
        for node in ast.parse(text).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name != "pause":
                start = min([node.lineno, *(one.lineno for one in node.decorator_list)]) - 1
                names = frozenset(one.id for one in ast.walk(node) if isinstance(one, ast.Name))
                carries = (isinstance(node, ast.FunctionDef) and not node.decorator_list
                           and [a.arg for a in node.args.args][:1] == ["v"])
                found[node.name] = _Definition("\n".join(lines[start:node.end_lineno]), names, carries)
    return found


@functools.cache
def carriers() -> tuple[str, ...]:
    """The names of the functions whose first parameter is `v`."""
    return tuple(name for name, one in _definitions().items() if one.carries)


def definitions(used: set[str]) -> str:
    """The text of these and of all that they need."""
    found, wanted, todo = _definitions(), {"uncaptured"}, list(used)
    while todo:
        name = todo.pop()
        if name in found and name not in wanted:
            wanted.add(name)
            todo += found[name].names
    return "".join(f"{one.text}\n\n\n" for name, one in found.items() if name in wanted)
