"""The passes, in order. `run_passes` is the whole list; users add to it with `register_pass`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ... import config, logs
from ..graph import Graph
from ..verify import verify
from .cleanup import fold_constants, remove_dead_code, share_subexpressions
from .pattern import Rules, apply
from .rules import BUILT_IN

#: A pass changes the graph in place and returns what it did, one text per change (or None), or a new graph.
Pass = Callable[[Graph], Any]


def simplify(graph: Graph) -> list[str]:
    """The built-in rewrites."""
    return apply(graph, BUILT_IN)


def run_passes(graph: Graph, extra: Iterable[Pass | Rules] = ()) -> Graph:
    """Simplify `graph` in place and return it (or what a user's pass returned instead).

    `extra` are passes or rules that run once, after the built-in ones and before dead code is removed. The outputs,
    their aliasing, the mutations and every bit of every value stay the same, as far as users' own passes do not
    change them.
    """
    steps = (
        Step("fold_constants", fold_constants),
        Step("simplify", simplify),
        Step("share_subexpressions", share_subexpressions),
        *(Step(pass_name(one), as_pass(one)) for one in extra),
        Step("remove_dead_code", remove_dead_code),
    )
    for step in _with_registered(steps):
        graph = _run(step, graph)
    return graph


@dataclass(frozen=True)
class Step:
    """A named pass."""

    name: str
    run: Pass


#: The names that `before=` and `after=` of `register_pass` may use.
STEP_NAMES = ("fold_constants", "simplify", "share_subexpressions", "remove_dead_code")


@dataclass(frozen=True, eq=False)
class RegisteredPass:
    """Handle of a user's pass: `unregister()`, or use it as a context manager."""

    name: str
    run: Pass
    before: str | None
    after: str | None

    def unregister(self) -> None:
        """Take the pass out again; twice does no harm."""
        if self in _registered:
            _registered.remove(self)

    def __enter__(self) -> RegisteredPass:
        return self

    def __exit__(self, *exc: object) -> None:
        self.unregister()


_registered: list[RegisteredPass] = []


def register_pass(fn_or_rules: Pass | Rules, *, before: str | None = None, after: str | None = None,
                  name: str | None = None) -> RegisteredPass:
    """Add a pass to every later compilation; returns a handle with `unregister()`.

    fn_or_rules  a function that takes the `Graph`, changes it in place and returns None, a list of texts that say
                 what it did, or
                 another Graph; or `Rules`
    before/after the built-in step or registered pass next to which it runs; without either, before `remove_dead_code`
    name         for logs, and for `before`/`after` of others

    Raises TypeError for anything else, ValueError for an unknown step or a name that is taken.
    """
    if not (isinstance(fn_or_rules, Rules) or callable(fn_or_rules)):
        raise TypeError(f"register_pass takes a function of a Graph, or Rules, not {type(fn_or_rules).__name__}")
    if before is not None and after is not None:
        raise ValueError("register_pass takes before= or after=, not both")
    names = [*STEP_NAMES, *(one.name for one in _registered)]
    for place in (before, after):
        if place is not None and place not in names:
            raise ValueError(f"no pass is called {place!r}; the passes are: {', '.join(names)}")
    chosen = name or pass_name(fn_or_rules)
    if name is not None and name in names:
        raise ValueError(f"a pass called {name!r} exists already")
    base, count = chosen, 1
    while chosen in names:
        count += 1
        chosen = f"{base}_{count}"
    handle = RegisteredPass(chosen, as_pass(fn_or_rules), before, after)
    _registered.append(handle)
    return handle


def pass_name(one: Pass | Rules) -> str:
    return "rules" if isinstance(one, Rules) else getattr(one, "__name__", type(one).__name__)


def as_pass(one: Pass | Rules) -> Pass:
    if isinstance(one, Rules):
        return lambda graph: apply(graph, one)
    return one


def registered_names() -> tuple[str, ...]:
    """The registered passes: part of what a cached artefact depends on."""
    return tuple(one.name for one in _registered)


def _with_registered(steps: Iterable[Step]) -> list[Step]:
    order = list(steps)
    for one in _registered:
        names = [step.name for step in order]
        target = one.after or one.before or "remove_dead_code"
        # a pass placed next to one that was unregistered since goes to the default place
        position = names.index(target) if target in names else names.index("remove_dead_code")
        order.insert(position + (one.after is not None and target in names), Step(one.name, one.run))
    return order


def _run(step: Step, graph: Graph) -> Graph:
    start = time.perf_counter()
    before = str(graph) if logs.enabled("graph") else ""
    result = step.run(graph)
    if isinstance(result, Graph):
        graph = result
    seconds = time.perf_counter() - start
    logs.log("timing", f"pass {step.name} on {graph.name}: {seconds * 1e3:.2f} ms")
    if before:
        after = str(graph)
        if after != before:
            notes = "".join(f"\n# {text}" for text in result) if isinstance(result, (list, tuple)) else ""
            logs.log("graph", f"after {step.name} ({seconds * 1e3:.2f} ms):{notes}\n{after}")
    if config.debug or config.raise_errors:
        verify(graph, after=step.name)
    return graph
