"""Fusion: which values become one kernel.

Every computed value starts as a group of its own. Pairs of groups that share data are ranked by the bytes of memory
traffic that merging would save, and merged from the top while the merge is legal and within budget. Legality follows
from the index expressions alone: all members must meet at the same points of one iteration space (see `space.py`),
and no other kernel may have to run in between. Refusals are kept with their reasons.

A group reduces the rows of its space. One that reduces the columns of the same matrix can join it (`Group.columns`):
the kernel reads each row once, and its columns' results are complete behind the last row.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..ir.failures import is_programs_own
from ..ir.graph import Node
from ..ir.spec import Dim, contiguous_stride, prod
from .alike import alike_results
from .expr import compute_dtype
from .index import Index, flatten, of, same
from .lower import Lowering
from .space import (
    Extent,
    Misaligned,
    Signature,
    Space,
    column_size,
    crosses,
    full_size,
    outer_size,
    same_signature,
    signature,
)
from .values import (
    Computed,
    HostScalar,
    Part,
    Pointwise,
    Probe,
    Product,
    Reduction,
    Scan,
    Scatter,
    Stored,
    Value,
    base_of,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one kernel, and how work weighs against memory traffic, on a kind of device."""

    #: expressions and distinct memory operands of a kernel
    expressions: int = 400
    buffers: int = 40
    #: what an addition weighs against a byte, when recomputing is weighed against storing
    bytes_per_operation: float = 0.5
    #: what a kernel more weighs, in bytes
    bytes_per_kernel: int = 1 << 13
    #: work per element above which a value is never recomputed
    cost: int = 40
    #: rows below which stages that depend on each other are kept apart: too few to share among threads, ...
    few_rows: int = 8
    #: ... where there are at least as many points as this
    large: int = 1 << 17
    #: results that count as one row where they, and not what is reduced, are neighbours in memory: as many as a thread
    #: has to compute side by side
    side_by_side: int = 16
    #: points of a matrix from which one kernel reduces both its rows and its columns; None: never
    crossed_points: int | None = None
    #: rows from which that is done, and bytes of the columns' partial results up to which
    crossed_rows: int = 64
    crossed_bytes: int = 1 << 18
    #: the most columns, which then must be known; None: any number
    crossed_columns: int | None = None
    #: how kernels add to computed places: "ordered" as the program does, or "unordered", which repeated runs may tell
    scatters: str = "ordered"
    #: operands of a kernel that does the same to many tensors, whose sizes are then known; None: any number and sizes
    batch_operands: int | None = None
    #: bytes of a result that others wait for, up to which such a kernel makes it
    batch_result: int = 1 << 62
    #: bytes that a value computed like many others must save to be part of another kernel than theirs
    saving: int = 1 << 16
    #: whether kernels convert floats of 8 bits
    float8: bool = False
    #: matrix products whose sums one kernel keeps, and those of few rows
    products: int = 2
    narrow_products: int = 4
    #: rows or columns of a product that one program has, so that it reads the other operand once
    product_tile: int = 64


@dataclass(eq=False, slots=True)
class Group:
    """Values computed by one kernel. `space` is None while all members are pointwise; then `numel` counts points.
    `columns` are the members with one element per column: reductions over the parallel axes, and what is made of these
    alone."""

    members: list[Value]
    space: Signature | None
    numel: Dim
    expressions: int = 0
    columns: frozenset[Value] = frozenset()
    #: groups and calls whose results this one reads, and those that read this one
    before: set[Any] = field(default_factory=set)
    after: set[Any] = field(default_factory=set)

    @property
    def position(self) -> int:
        return self.members[0].position

    @property
    def last(self) -> int:
        return self.members[-1].position

    @property
    def name(self) -> str:
        return "+".join(dict.fromkeys(m.describe() for m in self.members))

    def extent(self, value: Value) -> Extent:
        """For what `value` has one element each."""
        return Extent.POINTS if self.space is None else extent_in(value, self.space, self.columns)


@dataclass(eq=False, slots=True)
class Call:
    """An eager call, as a unit of the schedule."""

    node: Node
    position: int
    before: set[Any] = field(default_factory=set)
    after: set[Any] = field(default_factory=set)

    @property
    def last(self) -> int:
        return self.position


@dataclass(slots=True)
class Refusal:
    """Two groups that share data and were kept apart."""

    first: str
    second: str
    reason: str
    bytes: int

    def __str__(self) -> str:
        return f"{self.first} | {self.second}: {self.reason} ({self.bytes} bytes not saved)"


class Refused(Exception):
    """Why two groups cannot be one."""


class Fusion:
    """Groups the computed values that `required` ones depend on.

    required    values that must be in memory when the graph ends or an eager call reads them
    checking    values that must be computed at every point, because computing them may raise
    calls       eager calls with the values they read and make, in order
    """

    def __init__(
        self,
        low: Lowering,
        required: Iterable[Value],
        calls: list[tuple[Node, list[Value], list[Value]]],
        enabled: bool = True,
        limits: Limits | None = None,
        checking: Iterable[Value] = (),
    ) -> None:
        self.low = low
        self.limits = limits or Limits()
        self.env = low.env
        self.required = set(required)
        self.enabled = enabled
        self.inlined: set[Value] = set()
        self.refusals: list[Refusal] = []
        self.group_of: dict[Value, Any] = {}
        self._probes: dict[Value, Probe] = {}
        self._collect()
        self._require_checking(checking)
        self._inline_free()
        self._make_units(calls)
        if enabled:
            called = {base_of(operand) for _, operands, _ in calls for operand in operands}
            self.alike = alike_results(self.live, self.readers, called, self.probe)
            self._merge()
            if self._inline_cheap():  # then other values may meet: the groups are made once more
                self._make_units(calls)
                self.refusals.clear()
                self._merge()
                self._inline_cheap()

    # reading

    def probe(self, value: Value) -> Probe:
        found = self._probes.get(value)
        if found is None:
            found = self._probes[value] = InliningProbe(value, self.inlined)
        return found

    def reads(self, value: Value) -> list[tuple[Value, tuple[Index, ...]]]:
        return self.probe(value).reads

    def bytes(self, value: Value) -> int:
        return self.env.hint(value.numel) * value.dtype.itemsize

    # preparation

    def _require_checking(self, checking: Iterable[Value]) -> None:
        """Checking values that nobody reads, or not everywhere, are written to memory."""
        whole = set(self.required)
        for value in reversed(self.live):
            if any(reader in whole and self._reads_all(reader, value) for reader in self.readers.get(value, ())):
                whole.add(value)
        missing = [value for value in checking if value not in whole]
        if missing:
            self.required.update(missing)
            self._collect()

    def _reads_all(self, reader: Value, value: Value) -> bool:
        """Whether a reader surely reads every element: at its own position, or with an axis of its own for each."""
        probe = self.probe(reader)

        def at_every(index: tuple[Index, ...]) -> bool:
            whole = [(i, size) for i, size in zip(index, value.shape, strict=True) if not same(size, 1)]
            axes = {axis: axis.size for axis in probe.axes}
            found = [axis for i, size in whole for axis, its in axes.items() if i == of(axis) and same(its, size)]
            return len(whole) == len(set(found))

        return any(operand is value and (self._identity(probe, value, index) or at_every(index))
                   for operand, index in probe.reads)

    def _collect(self) -> None:
        """The live values, and who reads each."""
        self.live: list[Value] = []
        self.readers: dict[Value, list[Value]] = {}
        seen: set[Value] = set()
        stack = [base_of(v) for v in self.required]
        while stack:
            value = stack.pop()
            if value in seen or not isinstance(value, Computed):
                continue
            seen.add(value)
            self.live.append(value)
            for operand, _ in self.reads(value):
                readers = self.readers.setdefault(operand, [])
                if value not in readers:
                    readers.append(value)
                stack.append(operand)
        self.live.sort(key=lambda v: v.position)
        self.required.update(v.start for v in self.live if isinstance(v, Scatter) and isinstance(v.start, Computed))
        self.required.update(operand for value in self.live if isinstance(value, Part)
                             for operand, _ in self.reads(value) if isinstance(operand, Computed))

    def _inline_free(self) -> None:
        """Values that read no memory, or that are only read at fewer points than they have, are computed where they are
        read."""
        candidates = [v for v in self.live if v not in self.required and isinstance(v, Pointwise)]
        for value in candidates:
            probe = self.probe(value)
            if not probe.reads and probe.cost <= self.limits.cost:
                self._inline(value)
        if self.enabled:
            for value in reversed(candidates):
                if value not in self.inlined and self._sparsely_read(value, self.readers.get(value, [])):
                    self._inline(value)
        self.live = [v for v in self.live if v not in self.inlined]

    def _sparsely_read(self, value: Value, readers: list[Value]) -> bool:
        """Whether readers at other positions take far fewer elements than there are: all of them, or some, if for the
        others it is as cheap to read what the value is made of."""
        points, elements, everywhere = 0, 0, False
        for reader in readers:
            probe = self.probe(reader)
            if any(operand is value and self._identity(probe, value, index) for operand, index in probe.reads):
                everywhere = True
            else:
                points += self.env.hint(prod(probe.shape))
                elements += self._elements_read(reader, value)
        numel = self.env.hint(value.numel)
        if not 0 < points * 2 <= numel or elements > numel:
            return False
        probe = self.probe(value)
        large = {operand for operand, _ in probe.reads if self.env.hint(operand.numel) * 2 > numel}
        return not everywhere or probe.cost <= 4 and len(large) <= 1

    def _elements_read(self, reader: Value, value: Value) -> int:
        """How many elements of `value` the reader takes, counted as often as it does: windows that overlap take most
        of them several times."""
        probe = self.probe(reader)
        if isinstance(reader, Product):
            return self.env.hint(value.numel)
        return self.env.hint(prod(probe.shape)) * sum(operand is value for operand, _ in probe.reads)

    def _inline(self, value: Value) -> None:
        """Have every reader compute `value` itself."""
        operands = [operand for operand, _ in self.reads(value)]
        self.inlined.add(value)
        readers = self.readers.pop(value, [])
        for reader in readers:
            self._probes.pop(reader, None)
        for operand in dict.fromkeys(operands):
            known = [r for r in self.readers.get(operand, []) if r is not value]
            known.extend(r for r in readers if r not in known)
            self.readers[operand] = known

    def _identity(self, probe: Probe, value: Value, index: tuple[Index, ...]) -> bool:
        """Whether the reader's point and the element read have the same row-major position."""
        if not same(value.numel, prod(probe.shape)):
            return False
        return flatten(index, contiguous_stride(value.shape)) == flatten(probe.index, contiguous_stride(probe.shape))

    def _make_units(self, calls: list[tuple[Node, list[Value], list[Value]]]) -> None:
        self._call_of: dict[Value, Call] = {}
        self.calls: list[Call] = []
        self.groups: list[Group] = []
        wholes: dict[Any, Group] = {}
        for value in self.live:
            if isinstance(value, Part) and value.whole in wholes:
                group = self.group_of[value] = wholes[value.whole]
                group.members.append(value)
                continue
            probe = self.probe(value)
            space = signature(value.source_shape, value.dims) if isinstance(value, Reduction) else None
            group = Group([value], space, prod(probe.shape), len(probe.e._table))
            self.group_of[value] = group
            self.groups.append(group)
            if isinstance(value, Part):
                wholes[value.whole] = group
        for node, _, results in calls:
            call = Call(node, max([r.position for r in results], default=0))
            self.calls.append(call)
            for result in results:
                self._call_of[result] = call
        for node_call, (_, operands, _) in zip(self.calls, calls, strict=True):
            for operand in operands:
                self._link(self.unit_of(base_of(operand)), node_call)
        for value in self.live:
            for operand, _ in self.reads(value):
                self._link(self.unit_of(operand), self.group_of[value])
        self._link_calls()
        self._link_sizes()

    def _link_calls(self) -> None:
        """Calls with side effects, on the random state or others, keep their order."""
        last = None
        for call in self.calls:
            op = call.node.op
            if op.is_random or not op.is_pure or op.kind == "host" or is_programs_own(op):
                if last is not None:
                    self._link(last, call)
                last = call

    def _link_sizes(self) -> None:
        """A unit that mentions an unbacked symbol runs after the call that binds it."""
        bound = self.low.graph.unbacked_bindings()
        if not bound:
            return
        bindings = {symbol: self.unit_of(self.low.values[node]) for symbol, (node, _) in bound.items()}
        mentions = self.env.unbacked_in_all
        for call in self.calls:
            node = call.node
            used = mentions((node.args, node.kwargs)) | (mentions(node.spec) - {
                symbol for symbol, unit in bindings.items() if unit is call})
            for symbol in used & bindings.keys():
                self._link(bindings[symbol], call)
        for value in self.live:
            places = [dim for _, index in self.reads(value) for part in index for dim in part.dims()]
            used = mentions((value.shape, places, *((n.args, n.kwargs) for n in value.nodes)))
            for symbol in used & bindings.keys():
                self._link(bindings[symbol], self.group_of[value])

    @staticmethod
    def _link(first: Any, second: Any) -> None:
        if first is not None and second is not None and first is not second:
            first.after.add(second)
            second.before.add(first)

    # merging

    def _merge(self) -> None:
        heap: list[tuple[int, int, int, Group, Group]] = []
        alive = set(self.groups)
        tick = 0

        def push(group: Group) -> None:
            nonlocal tick
            for other in self._neighbours(group):
                if other in alive and other is not group:
                    saved = self._saved(group, other)
                    if saved > 0:
                        first, second = sorted((group, other), key=lambda g: g.position)
                        tick += 1
                        heapq.heappush(heap, (-saved, first.position, tick, first, second))

        refused: dict[tuple[Group, Group], Refusal] = {}
        for group in self.groups:
            push(group)
        while heap:
            saved, _, _, first, second = heapq.heappop(heap)
            if first not in alive or second not in alive or (first, second) in refused:
                continue
            try:
                space, columns = self._check(first, second)
            except Refused as reason:
                refused[first, second] = Refusal(first.name, second.name, str(reason), -saved)
                continue
            merged = self._joined(first, second, space, columns)
            alive -= {first, second}
            alive.add(merged)
            push(merged)
        self.groups = sorted(alive, key=lambda g: g.position)
        self.refusals.extend(r for (a, b), r in refused.items() if a in alive and b in alive)

    def _neighbours(self, group: Group) -> list[Group]:
        found: dict[Group, None] = {}
        for value in group.members:
            for operand, _ in self.reads(value):
                for other in (operand, *self.readers.get(operand, ())[:8]):
                    if other in self.group_of:
                        found[self.group_of[other]] = None
            for reader in self.readers.get(value, ()):
                if reader in self.group_of:
                    found[self.group_of[reader]] = None
        return list(found)

    def _saved(self, a: Group, b: Group) -> int:
        """Bytes that need not be read or written if the groups are one."""
        both = {*a.members, *b.members}
        saved = 0
        reads_a = {operand for v in a.members for operand, _ in self.reads(v)}
        reads_b = {operand for v in b.members for operand, _ in self.reads(v)}
        for made, read in ((a, reads_b), (b, reads_a)):
            for value in made.members:
                if value in read:
                    saved += self.bytes(value)
                    if value not in self.required and all(r in both for r in self.readers.get(value, ())):
                        saved += self.bytes(value) * 9 // 8  # no memory, either
        for operand in reads_a & reads_b:
            if operand not in both and not isinstance(operand, HostScalar):
                saved += self.bytes(operand)
        return saved

    def _check(self, a: Group, b: Group) -> tuple[Signature | None, frozenset[Value]]:
        """The space and the columns of the merged group. Raises Refused."""
        if any(isinstance(m, (Scan, Scatter, Part)) for m in (*a.members, *b.members)):
            raise Refused("a scan, a scatter or attention is a kernel of its own")
        space, columns = self._joint_space(a, b)
        if a.expressions + b.expressions > self.limits.expressions:
            raise Refused("the kernel would be too long")
        both = {*a.members, *b.members}
        operands = {operand for v in both for operand, _ in self.reads(v)} - both
        stored = [v for v in both if v in self.required or any(r not in both for r in self.readers.get(v, ()))]
        if len(operands) + len(stored) > self.limits.buffers:
            raise Refused("the kernel would use too many buffers")
        if self._path(a, b) or self._path(b, a):
            raise Refused("another kernel or call must run in between")
        if columns:
            self._check_columns(both, space, columns)
        connected = self._check_positions(a, b, space, columns) | self._check_positions(b, a, space, columns)
        self._check_products(a, b, space, connected)
        alike = self._is_alike(a), self._is_alike(b)
        if (alike[0] != alike[1] or alike[0] and not connected) and self._saved(a, b) < self.limits.saving:
            raise Refused("one of many kernels that do the same, and that run together")
        if not connected and not self._shares_positions(a, b):
            raise Refused("they read shared inputs in different orders")
        if space is not None and self._depends_on_rows(both, space, columns):
            rows, points = self.env.hint(outer_size(space)), self.env.hint(full_size(space))
            if self._reduces_across(both - columns):
                rows //= self.limits.side_by_side
            if rows < self.limits.few_rows and points >= self.limits.large:
                raise Refused("too few rows to share among threads")
            if any(self._looks_around(value) for value in both):
                raise Refused("windows would be read again in every stage")
        return space, columns

    def _check_products(self, a: Group, b: Group, space: Signature | None, connected: bool) -> None:
        """Raises Refused for what a product's kernel does not take: all but what is made of its results, point by
        point, and a second product of the same shape that these are combined with; or others of the same few rows."""
        members = (*a.members, *b.members)
        products = [value for value in members if isinstance(value, Product)]
        if not products:
            return
        narrow = all(value.sizes.is_narrow for value in products) and self._read_as_they_are(products)
        if not connected and not (narrow and all(set(one.members) & set(products) for one in (a, b))):
            raise Refused("a product's kernel takes nothing but what belongs to its results")
        if len(products) > (self.limits.narrow_products if narrow else self.limits.products):
            raise Refused("more products than a kernel has room for")
        if any(isinstance(value, Reduction) and value not in products for value in members):
            raise Refused("a product's kernel does not reduce anything else")
        first, size = products[0], outer_size(space or ())
        if any(one.sizes.dtype is not first.sizes.dtype or not all(map(same, one.source_shape, first.source_shape))
               for one in products):
            raise Refused("products of different shapes or dtypes")
        if any(not same(value.numel, size) for value in members if not isinstance(value, Product)):
            raise Refused("a product's kernel takes nothing but what belongs to its results")

    def _read_as_they_are(self, products: list[Product]) -> bool:
        """Whether products have whole rows, or operands of their own in memory: tensor cores would wait for several
        conversions in each step."""
        operands = [{operand for operand, _ in self.reads(one)} for one in products]
        shared = set.intersection(*operands)
        return all(one.sizes.is_row or all(isinstance(operand, Stored) and operand.dtype is one.sizes.dtype
                                           for operand in own - shared)
                   for one, own in zip(products, operands, strict=True))

    def _check_columns(self, members: set[Value], space: Signature | None, columns: frozenset[Value]) -> None:
        """Raises Refused where rows and columns are not to be reduced by one kernel."""
        assert space is not None and self.limits.crossed_points is not None
        sums = [value for value in columns if isinstance(value, Reduction)]
        if any(value.kind.startswith("arg") for value in sums):
            raise Refused("positions along columns are found by kernels of their own")
        if any(operand in columns for value in members - columns for operand, _ in self.reads(value)):
            raise Refused("the results of columns are complete only behind the last row")
        if self.env.hint(outer_size(space)) < self.limits.crossed_rows:
            raise Refused("too few rows for reducing rows and columns together")
        if self.env.hint(full_size(space)) < self.limits.crossed_points:
            raise Refused("the matrix is so small that reading it again costs little")
        width = sum(compute_dtype(value.dtype).itemsize for value in sums)
        if self.env.hint(column_size(space)) * width > self.limits.crossed_bytes:
            raise Refused("the columns' partial results would not stay in the cache")
        most, size = self.limits.crossed_columns, column_size(space)
        if most is not None and not (type(size) is int and size <= most):
            raise Refused("the columns are not known, or more than a program can hold beside a row")
        if self._reduces_across(members - columns):
            raise Refused("the rows do not lie in memory as rows")

    def _reduces_across(self, members: set[Value]) -> bool:
        """Whether the results of the reductions, not what they reduce, are neighbours in memory."""
        sizes = {True: 0, False: 0}
        for value in members:
            if isinstance(value, Reduction):
                for operand, index in self.reads(value):
                    axes = self.probe(value).axes
                    step = flatten(index, operand.stride)
                    for k, axis in enumerate(axes):
                        if step.coefficient(axis) == 1 and not same(axis.size, 1):
                            sizes[k not in value.dims] += self.bytes(operand)
        return sizes[True] > sizes[False]

    def _looks_around(self, value: Value) -> bool:
        """Whether each element is made of several of one operand."""
        if not isinstance(value, Pointwise):
            return False
        operands = [operand for operand, _ in self.reads(value)]
        return any(operands.count(operand) > 2 and self.bytes(operand) >= self.limits.large
                   for operand in set(operands))

    def _is_alike(self, group: Group) -> bool:
        return bool(self.alike) and self.alike.issuperset(group.members)

    def _joint_space(self, a: Group, b: Group) -> tuple[Signature | None, frozenset[Value]]:
        columns = a.columns | b.columns
        if a.space is None and b.space is None:
            if not same(a.numel, b.numel):
                raise Refused("different numbers of elements")
            return None, columns
        if a.space is not None and b.space is not None:
            if same_signature(a.space, b.space):
                return a.space, columns
            if self.limits.crossed_points is None or not crosses(a.space, b.space):
                raise Refused("they reduce over different axes")
            rows, other = (a.space, b) if a.space[-1][1] else (b.space, a)
            return rows, columns.union(v for v in other.members if other.extent(v) is Extent.ROWS)
        (space, known), other = (a.space, a), b
        if space is None:
            (space, known), other = (b.space, b), a
        assert space is not None
        if known.columns and same(other.numel, column_size(space)) and self._touches(other, known.columns):
            return space, columns.union(other.members)
        if not same(other.numel, full_size(space)) and not same(other.numel, outer_size(space)):
            raise Refused("different numbers of elements")
        return space, columns

    def _touches(self, group: Group, values: frozenset[Value]) -> bool:
        """Whether members of the group read some of `values`, or are read by them."""
        return any(operand in values for value in group.members for operand, _ in self.reads(value)) or any(
            reader in values for value in group.members for reader in self.readers.get(value, ()))

    def _check_positions(
        self, made: Group, reading: Group, space: Signature | None, columns: frozenset[Value]
    ) -> bool:
        """Every element that `reading` takes from `made` must be the one made at the same point."""
        found = False
        members = set(made.members)
        for value in reading.members:
            for operand, index in self.reads(value):
                if operand in members:
                    found = True
                    if not self._same_point(value, operand, index, space, columns):
                        raise Refused(f"{value.describe()} reads {operand.describe()} at other positions")
        return found

    def _same_point(
        self, value: Value, operand: Value, index: tuple[Index, ...], space: Signature | None, columns: frozenset[Value]
    ) -> bool:
        probe = self.probe(value)
        alike = (value in columns) == (operand in columns) or isinstance(value, Reduction)
        if alike and not isinstance(operand, Reduction) and self._identity(probe, operand, index):
            return True
        if space is None:
            return False
        try:
            grid = Space(space)
            own = Extent.POINTS if isinstance(value, Reduction) else extent_in(value, space, columns)
            its = extent_in(operand, space, columns)
            grid.refine(probe.shape, own)
            grid.refine(operand.shape, its)
            grid.make_axes()
            mapping = dict(zip(probe.axes, grid.place(probe.shape, own), strict=True))
            moved = tuple(i.replace(mapping) for i in index)
            return moved == grid.place(operand.shape, its)
        except Misaligned:
            return False

    def _shares_positions(self, a: Group, b: Group) -> bool:
        """Whether some operand is read in the same order by both."""
        orders: dict[Value, set[Index]] = {}
        for group in (a, b):
            for value in group.members:
                probe = self.probe(value)
                flat = flatten(probe.index, contiguous_stride(probe.shape))
                for operand, index in probe.reads:
                    position = flatten(index, contiguous_stride(operand.shape))
                    key = _shape_key(probe, position) if position != flat else Index()
                    if group is a:
                        orders.setdefault(operand, set()).add(key)
                    elif key in orders.get(operand, ()):
                        return True
        return False

    def _depends_on_rows(self, members: set[Value], space: Signature, columns: frozenset[Value]) -> bool:
        """Whether some value of the full space depends on a reduction of the same group."""
        tainted: set[Value] = set()
        for value in sorted(members, key=lambda v: v.position):
            sources = [operand for operand, _ in self.reads(value) if operand in members]
            if any(isinstance(s, Reduction) or s in tainted for s in sources):
                if isinstance(value, Reduction) or extent_in(value, space, columns) is Extent.POINTS:
                    return True
                tainted.add(value)
        return False

    def _path(self, start: Group, goal: Group) -> bool:
        """Whether `goal` depends on `start` through some other unit."""
        stack = [u for u in start.after if u is not goal]
        seen = set(stack)
        while stack:
            unit = stack.pop()
            for following in unit.after:
                if following is goal:
                    return True
                if following not in seen:
                    seen.add(following)
                    stack.append(following)
        return False

    def _joined(self, a: Group, b: Group, space: Signature | None, columns: frozenset[Value]) -> Group:
        members = sorted((*a.members, *b.members), key=lambda v: v.position)
        numel = a.numel if a.space is not None or b.space is None else b.numel
        merged = Group(members, space, numel, a.expressions + b.expressions, columns)
        merged.before = (a.before | b.before) - {a, b}
        merged.after = (a.after | b.after) - {a, b}
        for unit in merged.before:
            unit.after -= {a, b}
            unit.after.add(merged)
        for unit in merged.after:
            unit.before -= {a, b}
            unit.before.add(merged)
        for value in members:
            self.group_of[value] = merged
        return merged

    # recomputing

    def _inline_cheap(self) -> bool:
        """Values that other kernels read, and that are cheaper to compute again than to store. Returns whether some
        took others along that their own kernel made for them."""
        deep = False
        for value in reversed(list(self.live)):
            if value in self.required or value in self.inlined or not isinstance(value, Pointwise):
                continue
            group = self.group_of[value]
            outside = [r for r in self.readers.get(value, ()) if self.group_of.get(r) is not group]
            sources = self._sources(value, group) if outside else None
            if sources is None or any(self._reads_again(reader, value) for reader in outside):
                continue
            probe = InliningProbe(value, self.inlined.union(sources)) if sources else self.probe(value)
            stored, again = self._traffic(value, probe, outside, len(outside) < len(self.readers[value]))
            if probe.cost > self.limits.cost or again > stored or self._in_windows(value, probe.cost, outside):
                names = "+".join(r.describe() for r in outside)
                reason = "stored: computing it again would cost more"
                self.refusals.append(Refusal(value.describe(), names, reason, 2 * self.bytes(value)))
                continue
            deep = deep or bool(sources)
            for one in (value, *sources):
                self._drop_member(one, group)
        return deep

    def _reads_again(self, reader: Value, value: Value) -> bool:
        """Whether several programs of a product need the same elements of an operand."""
        if not isinstance(reader, Product):
            return False
        probe, tile = self.probe(reader), self.limits.product_tile
        parallel = [axis for axis in probe.axes if not axis.reduced]
        return any(self.env.hint(prod(tuple(axis.size for axis in parallel if axis not in used))) > tile
                   for operand, index in probe.reads if operand is value
                   for used in [{axis for one in index for axis in one.all_axes()}])

    def _in_windows(self, value: Value, cost: int, readers: list[Value]) -> bool:
        """Whether a reader with windows would compute elements several times, which takes longer than moving them."""
        work = 2 * cost * self.limits.bytes_per_operation  # of a window, as bytes
        return any(sum(operand is value for operand, _ in self.reads(reader)) > 2 for reader in readers
                   if not isinstance(reader, Product)) and work > value.dtype.itemsize

    def _sources(self, value: Value, group: Group) -> list[Value] | None:
        """The values of its group that `value` is made of, readers first; None where these are not for it to take
        along: in memory themselves, or no pointwise ones."""
        found: dict[Value, None] = {}
        stack = [value]
        while stack:
            for operand, _ in self.reads(stack.pop()):
                if self.group_of.get(operand) is not group or operand in found:
                    continue
                if operand in self.required or not isinstance(operand, Pointwise):
                    return None
                if any(self.group_of.get(reader) is not group for reader in self.readers[operand]):
                    return None
                found[operand] = None
                stack.append(operand)
        return sorted(found, key=lambda v: -v.position)

    def _traffic(self, value: Value, probe: Probe, outside: list[Value], stays: bool) -> tuple[float, float]:
        """Bytes moved if `value` is stored for the readers `outside`, and if these compute it themselves; arithmetic
        counts as bytes, and so do a load, as an addition, and a kernel. Values that are read several times come from a
        cache then, so their memory is read once. `stays`: it is computed for its own group in any case."""
        operands = list(dict.fromkeys(operand for operand, _ in probe.reads))
        points = [self._elements_read(r, value) for r in outside]

        def moved(what: Value) -> int:
            return sum(min(self.bytes(what), p * what.dtype.itemsize) for p in points)

        stored = self.bytes(value) + moved(value) + self.limits.bytes_per_operation * sum(points)
        stored += 0 if stays else self.limits.bytes_per_kernel
        computed = sum(points) - (0 if stays else self.env.hint(value.numel))
        return stored, sum(map(moved, operands)) + self.limits.bytes_per_operation * probe.cost * computed

    def _drop_member(self, value: Value, group: Group) -> None:
        readers = list(self.readers.get(value, ()))
        self._inline(value)
        group.members.remove(value)
        del self.group_of[value]
        if not group.members:
            self.groups.remove(group)
            for unit in group.before:
                unit.after.discard(group)
            for unit in group.after:
                unit.before.discard(group)
        for reader in readers:
            for operand, _ in self.reads(reader):
                self._link(self.unit_of(operand), self.group_of.get(reader))
        self.live.remove(value)

    def unit_of(self, value: Value) -> Any:
        """The group or call that makes a value; None for inputs."""
        return self.group_of.get(value) or self._call_of.get(value)


class InliningProbe(Probe):
    """A probe that looks through inlined values."""

    def __init__(self, value: Value, inlined: set[Value]) -> None:
        self._inlined = inlined
        super().__init__(value)

    def resolve(self, value: Value, index: tuple[Index, ...]) -> Any:
        if value in self._inlined:
            assert isinstance(value, Pointwise)
            return value.body(self, index)
        return super().resolve(value, index)


def extent_in(value: Value, space: Signature, columns: frozenset[Value]) -> Extent:
    """The extent of a group's member."""
    if value in columns:
        return Extent.COLUMNS
    outer = isinstance(value, Reduction) or not same(value.numel, full_size(space))
    return Extent.ROWS if outer else Extent.POINTS


def _shape_key(probe: Probe, position: Index) -> Any:
    terms = tuple((probe.axes.index(atom) if atom in probe.axes else atom, c) for atom, c in position.terms)
    return terms, position.const, probe.shape


__all__ = ["Call", "Fusion", "Group", "Limits", "Refusal", "Stored"]
