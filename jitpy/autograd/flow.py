"""Minimum cuts of small directed graphs, by augmenting along shortest paths (Edmonds and Karp, 1972)."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

INFINITE = float("inf")


class FlowGraph:
    """Edges with capacities between keys; `add` sums up parallel edges."""

    def __init__(self) -> None:
        self.edges: dict[Hashable, dict[Hashable, float]] = {}

    def add(self, start: Hashable, end: Hashable, capacity: float) -> None:
        out = self.edges.setdefault(start, {})
        out[end] = out.get(end, 0) + capacity
        self.edges.setdefault(end, {}).setdefault(start, 0)

    def sink_side(self, source: Hashable, sink: Hashable) -> set[Hashable] | None:
        """The keys on the sink's side of the cheapest cut that is nearest to it; None where every cut is infinite.

        Uses the graph up.
        """
        edges = self.edges
        edges.setdefault(source, {})
        edges.setdefault(sink, {})
        while True:
            came_from = self._reach(source, sink)
            if sink not in came_from:
                return self._leading_to(sink)
            path = [sink]
            while path[-1] != source:
                path.append(came_from[path[-1]])
            steps = [(b, a) for a, b in zip(path, path[1:], strict=False)]
            amount = min(edges[a][b] for a, b in steps)
            if amount == INFINITE:
                return None
            for a, b in steps:
                edges[a][b] -= amount
                edges[b][a] += amount

    def _leading_to(self, sink: Hashable) -> set[Hashable]:
        """The keys from which the sink can be reached. Each edge has one back, so that neighbours are known."""
        found = {sink}
        waiting = [sink]
        while waiting:
            here = waiting.pop()
            for there in self.edges[here]:
                if there not in found and self.edges[there][here] > 0:
                    found.add(there)
                    waiting.append(there)
        return found

    def _reach(self, source: Hashable, sink: Hashable) -> dict[Hashable, Hashable]:
        """The keys that can be reached from the source, each key with the one before it; ends early at the sink."""
        came_from: dict[Hashable, Hashable] = {source: source}
        waiting = deque([source])
        while waiting:
            here = waiting.popleft()
            for there, capacity in self.edges[here].items():
                if capacity > 0 and there not in came_from:
                    came_from[there] = here
                    if there == sink:
                        return came_from
                    waiting.append(there)
        return came_from
