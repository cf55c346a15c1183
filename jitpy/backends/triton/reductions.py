"""Kernels with reductions. A program holds a few results and either whole rows, in registers, or walks the reduced
elements block by block, one loop a stage; where there are few results, several programs share each of them and a
second launch combines what they found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from ...ir.spec import Dim, prod
from ...schedule.expr import Expr, children, order, walk
from ...schedule.index import Axis, Index, of
from ...schedule.loops import Kernel, Reduce, Store
from ...schedule.values import HostScalar, Product
from .emitter import Emitter, KernelText, Program, stem_of
from .online import Follower, Squares, find_followers
from .printer import TYPES, cast, closed, literal, typed
from .tiles import Launch, Tile, power_of_two, reduction_launch, variations, widest


def print_reduction(kernel: Kernel, tune: bool = False, clusters: bool = False) -> Program:
    """The kernel as one launch or, shared among programs, as two; by clusters of programs, where the GPU has those."""
    followers = find_followers(kernel)
    stages = _stages(kernel)
    launch = reduction_launch(kernel, stages, stages - len(followers), clusters)
    scratch: list[int] = []
    program = Program([_print(kernel, launch, scratch)], scratch)
    if tune:
        others = [_print(kernel, other, []) for other in variations(launch, kernel)]
        program.variations.append([text for text in others if text.parameters == program.launches[0].parameters])
    if launch.splits > 1:
        outer = [s for s in kernel.stores if not is_inner(s)]
        parts = launch.splits * launch.groups
        program.launches.append(combine(kernel, launch.tiles[0].axes, parts, kernel.reductions, outer))
    return program


def _print(kernel: Kernel, launch: Launch, scratch: list[int]) -> KernelText:
    """The first launch; adds the scratch memory that it needs."""
    r = launch.r
    assert r is not None
    emitter = ReductionEmitter(kernel, launch, stem_of(kernel))
    if type(r.size) is int and r.size <= r.block:
        return emitter.persistent()
    if launch.held:
        return emitter.held(scratch)
    return emitter.looped(find_followers(kernel)) if launch.splits == 1 else emitter.parts(scratch)


def is_inner(store: Store) -> bool:
    """Whether a store has one element per point, not one per result."""
    return _depends(store.expr) or any(a.reduced for a in store.index.all_axes())


def _depends(expr: Expr) -> bool:
    """Whether the value changes along reduced axes."""
    return any(a.reduced for a in expr.axes)


def _stages(kernel: Kernel) -> int:
    """How many stages walk the reduced axes."""
    inner = [r.expr for r in kernel.reductions] + [s.expr for s in kernel.stores if is_inner(s)]
    return 1 + max((kernel.stage[e] for e in inner), default=0)


def accumulator(reduction: Reduce) -> torch.dtype:
    """The dtype of running values."""
    if reduction.kind in ("any", "all"):
        return torch.int32
    return torch.int32 if reduction.dtype is torch.bool else reduction.dtype


def initial(kind: str, dtype: torch.dtype) -> str:
    """The neutral element, as a number."""
    if kind in ("sum", "any"):
        return "0.0" if dtype.is_floating_point else "0"
    if kind in ("prod", "all"):
        return "1.0" if dtype.is_floating_point else "1"
    lowest = kind in ("max", "argmax")
    if dtype.is_floating_point:
        return f'float("{"-" if lowest else ""}inf")'
    limits = torch.iinfo(dtype)
    return literal(limits.min if lowest else limits.max, dtype)


#: Rows so few that they are read while the launch in front still runs.
FEW_ROWS = 64
_COMBINE = {"any": "max", "all": "min"}


def combine_name(kind: str) -> str:
    return f"combine_{_COMBINE.get(kind, kind)}"


@dataclass(frozen=True, slots=True)
class Aligned:
    """Rows that start anywhere, walked from the multiple of 16 bytes in front: the index of a row's start, and how
    many elements 16 bytes are."""

    row: Index
    unit: int


class ReductionEmitter(Emitter):
    """Reductions over the tile `r`."""

    #: reductions that are computed in an earlier pass than their stage says
    followers: dict[Reduce, Follower] = {}
    aligned: Aligned | None = None
    #: programs that take chunks in turn all have as many
    even_turns = False
    #: where the current block of `r` begins
    start = ""

    def __init__(self, kernel: Kernel, launch: Launch, stem: str) -> None:
        super().__init__(kernel, launch, stem)
        #: loads of rows that are held, with the starts of their blocks
        self.names_held: dict[tuple[Expr, str], str] = {}
        #: how often what is held has been walked
        self.walks = 0

    @property
    def r(self) -> Tile:
        assert self.launch.r is not None
        return self.launch.r

    @property
    def positions(self) -> torch.dtype:
        """The dtype of positions along `r`."""
        return torch.int64 if self.wide else torch.int32

    @property
    def nowhere(self) -> int:
        """The position of no element."""
        return int(torch.iinfo(self.positions).max)

    def kept(self, reduction: Reduce) -> list[torch.dtype]:
        """The dtypes of a reduction's running values."""
        own = accumulator(reduction)
        return [own, self.positions] if reduction.kind.startswith("arg") else [own]

    def operand_of(self, reduction: Reduce, *along: Tile) -> str:
        """The reduced operand, one for every point, in the accumulator's dtype; beyond the end of `r` (and of the tiles
        `along`) neutral."""
        expr, dtype = reduction.expr, accumulator(reduction)
        if expr.op == "const":
            value = int(expr.attr) if expr.dtype is torch.bool else expr.attr
            text = f"tl.full({self.shape}, {literal(value, dtype)}, {TYPES[dtype]})"
        else:
            text = self.names[expr]
            if expr.dtype is not dtype:
                text = f"{closed(text)}.to({TYPES[dtype]})"
            if self.tiles_of(expr.axes) != self.blocks:
                text = f"tl.broadcast_to({text}, {self.shape})"
        masks = self.masks([*along, self.r])
        if not masks:
            return text
        start = initial(reduction.kind, dtype)
        if dtype not in (torch.float32, torch.int32):
            start = f"tl.full([], {start}, {TYPES[dtype]})"
        return f"tl.where({' & '.join(masks)}, {text}, {start})"

    def fold(self, reduction: Reduce, running: list[str]) -> list[str]:
        """Running values (for arg-reductions with their positions) reduced along `r`."""
        kind, name, groups = reduction.kind, self.fresh(reduction.kind), self.launch.groups
        axis, keep = self.r.place, len(self.blocks) > 1
        if groups > 1:
            x = self.launch.tiles[0]
            running = [f"tl.reshape({text}, ({x.block}, {groups}, {self.r.block // groups}))" for text in running]
            axis, keep = 2, False
        end = ", keep_dims=True)" if keep else ")"
        if not kind.startswith("arg"):
            self.add(f"{name} = tl.reduce({running[0]}, {axis}, {combine_name(kind)}{end}")
            return [name]
        # the best value and the first position that has it: two plain reductions are less work than one of pairs
        values, best, found = (self.fresh(stem) for stem in ("values", "best", "hit"))
        self.add(f"{values} = {running[0]}")
        self.add(f"{best} = tl.reduce({values}, {axis}, {combine_name(kind.removeprefix('arg'))}, keep_dims=True)")
        hit = self._is_best(reduction, values, best)
        self.add(f"{found} = tl.where({hit}, {running[1]}, {typed(self.nowhere, self.positions)})")
        self.add(f"{name} = tl.reduce({found}, {axis}, combine_min{end}")
        if not keep:
            self.add(f"{best} = tl.reduce({best}, {axis}, {combine_name(kind.removeprefix('arg'))})")
        return [best, name]

    def conclude(self, reduction: Reduce, found: list[str]) -> None:
        """Name the result of a reduction, in its own dtype, from the folded running values."""
        dtype, target = accumulator(reduction), reduction.result.dtype
        if reduction.kind.startswith("arg"):  # nothing is better than the worst, which is everywhere then
            at = f"tl.where({found[1]} == {self.nowhere}, 0, {found[1]})"
            self.names[reduction.result] = cast(at, self.positions, target)
        elif target is torch.bool:
            self.names[reduction.result] = f"{found[0]} != 0"
        else:
            self.names[reduction.result] = found[0] if target is dtype else cast(found[0], dtype, target)

    def position(self, reduction: Reduce) -> str:
        assert reduction.position is not None
        text = self.index(reduction.position)
        tiles = self.tiles_of(reduction.position.all_axes())
        if self.positions is torch.int64:
            text = f"{closed(text)}.to(tl.int64)"
        text = text if tiles == self.blocks else f"tl.broadcast_to({text}, {self.shape})"
        return f"tl.where({self.r.name}_in, {text}, {typed(self.nowhere, self.positions)})" if self.r.masked else text

    # a whole row at once

    def persistent(self) -> KernelText:
        self.begin_program()
        self.define(self.r, "0")
        if self.kernel.hint(prod(tuple(a.size for a in self.kernel.parallel))) <= FEW_ROWS or \
                any(isinstance(one.value, Product) for one in self.kernel.reductions):
            self.start_loads(e for e in walk(self.kernel.roots()) if e.op == "load" and not children(e) and
                             e.attr[0] in self.kernel.steady and any(a.reduced for a in e.axes))
            self.add("await_results()")
            self.awaits = True
        self.row()
        return self.finish((prod(tuple(t.count for t in self.launch.tiles)),))

    def row(self) -> None:
        """All that is computed from a row, or some side by side, once `r` is defined."""
        waiting = self._loads_of_later_stages()
        self.start_loads(e for e in waiting if not children(e))
        for stage in range(_stages(self.kernel)):
            for reduction, found in self.folded(stage, waiting).items():
                self.conclude(reduction, found)
        self.stores(self.kernel.stores)

    def folded(self, stage: int, waiting: list[Expr]) -> dict[Reduce, list[str]]:
        """The reductions of a stage, each folded; sums two at a time, since threads wait for each other in each fold.
        Loads that are `waiting` start in front of the first one."""
        found: dict[Reduce, list[str]] = {}
        sums: dict[Reduce, str] = {}
        reductions = [r for r in self.kernel.reductions if self.kernel.stage[r.expr] == stage]
        self.emit([r.expr for r in reductions])
        self.start_loads(waiting)
        for reduction in reductions:
            if reduction.kind == "sum" and reduction.dtype is torch.float32:
                sums[reduction] = self._named(self.operand_of(reduction))
            elif reduction.kind.startswith("arg"):
                found[reduction] = self._where_best(reduction)
            else:
                found[reduction] = self.fold(reduction, [self.operand_of(reduction)])
        while len(sums) > 1:
            (one, x), (two, y) = sums.popitem(), sums.popitem()
            found[one], found[two] = names = [self.fresh("sum")], [self.fresh("sum")]
            keep = ", keep_dims=True" if len(self.blocks) > 1 else ""
            self.add(f"{names[0][0]}, {names[1][0]} = tl.reduce(({x}, {y}), {self.r.place}, combine_two_sums{keep})")
        return found | {one: self.fold(one, [text]) for one, text in sums.items()}

    def _loads_of_later_stages(self) -> list[Expr]:
        """Loads that differ by row, and that neither the first reduction needs nor a reduction's result precedes: under
        way while that is computed."""
        kernel, parallel = self.kernel, set(self.kernel.parallel)
        first = sorted(kernel.reductions, key=lambda r: kernel.stage[r.expr])[:1]
        needed = set(walk(r.expr for r in first))
        return [e for e in walk(kernel.roots()) if e.op == "load" and e not in needed and not kernel.stage[e]
                and e.axes & parallel and not isinstance(e.attr[0], HostScalar)]

    def start_loads(self, loads: Iterable[Expr]) -> None:
        """Have loads on their way, and name what they bring."""
        for expr in loads:
            if (expr, self.start) not in self.names_held:
                self.emit(list(children(expr)))
                name = self.fresh("kept")
                self.add(f"{name} = {self.loaded(expr)}")
                self.names_held[expr, self.start] = name

    def _where_best(self, reduction: Reduce) -> list[str]:
        """The best value of a row and its first position."""
        unit = 16 // min(16, widest(self.kernel))
        if self.blocks == [self.r] and self.r.block >= 64 * unit > 64:
            return self._where_best_is_near(reduction, unit)
        return self.fold(reduction, [self.operand_of(reduction), self.position(reduction)])

    def _where_best_is_near(self, reduction: Reduce, unit: int) -> list[str]:
        """The same by the neighbours that a thread reads at once: the first of these groups that has the best value,
        then the place in it, for which the group is computed once more."""
        groups, best, group, at = (self.fresh(stem) for stem in ("groups", "best", "group", reduction.kind))
        combine, count = combine_name(reduction.kind.removeprefix("arg")), self.r.block // unit
        self.add(f"{groups} = tl.reduce(tl.reshape({self.operand_of(reduction)}, ({count}, {unit})), 1, {combine})")
        self.add(f"{best} = tl.reduce({groups}, 0, {combine})")
        hit = self._is_best(reduction, groups, best)
        self.add(f"{group} = tl.reduce(tl.where({hit}, tl.arange(0, {count}), {count}), 0, combine_min)")
        near = Tile(f"{self.r.name}_near", self.r.axes, unit, reduced=True)
        inner = ReductionEmitter(self.kernel, replace(self.launch, r=near), self.stem)
        inner.lines, inner.depth, inner.counts, inner.values = self.lines, self.depth, self.counts, self.values
        inner.parameters, inner.sizes, inner.axis_names = self.parameters, self.sizes, dict(self.axis_names)
        inner.names = {expr: name for expr, name in self.names.items() if not _depends(expr)}
        inner.define(near, group)
        inner.emit([reduction.expr])
        value = inner.operand_of(reduction)
        found = f"tl.where({inner._is_best(reduction, value, best)}, {inner.position(reduction)}, "
        self.add(f"{at} = tl.reduce({found}{typed(self.nowhere, self.positions)}), 0, combine_min)")
        return [best, at]

    @staticmethod
    def _is_best(reduction: Reduce, values: str, best: str) -> str:
        """Which values are the best one: where there is a NaN, that is NaN, equal to nothing."""
        values = closed(values)
        hit = f"{values} == {best}"
        return f"({hit}) | ({values} != {values})" if accumulator(reduction).is_floating_point else hit

    # a whole row at once, as it is in memory

    def held(self, scratch: list[int]) -> KernelText:
        """One launch; adds the scratch memory that the programs of a cluster need for what they hand to each other."""
        kernel, cluster = self.kernel, self.launch.cluster
        self.begin_program()
        if cluster > 1:
            assert type(self.r.size) is int
            self.add(f"{self.r.name}_first = part * {self.r.size // cluster}")
        loads = [e for e in walk(kernel.roots()) if e.op == "load" and set(kernel.axes) <= e.axes]
        self._hold(loads)
        if self.launch.fetched:
            self.fetch(loads)
        inner = [s for s in kernel.stores if is_inner(s)]
        self.followers = find_followers(kernel) if cluster > 1 else {}
        for stage in range(_stages(kernel)):
            reductions = [r for r in kernel.reductions if kernel.stage[r.expr] == stage and r not in self.followers]
            if cluster > 1:
                self._across(self._stage(reductions, [], "0", ""), scratch)
                continue
            stores = [s for s in inner if kernel.stage[s.expr] == stage]
            for reduction, found in self._stage(reductions, stores, "0", "").items():
                self.conclude(reduction, found)
        if cluster > 1:
            self._stage([], inner, "0", "")
        outer = [s for s in kernel.stores if not is_inner(s)]
        if outer and cluster > 1:
            self.add("await_readers()")
            with self.block(f"if part == {cluster - 1}:"):
                self.stores(outer)
        else:
            self.stores(outer)
        return self.finish((prod(tuple(t.count for t in self.launch.tiles)) * cluster,))

    def held_operands(self, reduction: Reduce) -> Iterator[str]:
        """The reduced operands, for each held block."""
        outer = dict(self.names)
        self.walks += 1
        for start in self._blocks():
            self.names = dict(outer)
            self._begin_block(start)
            self.emit([reduction.expr])
            yield self._named(self.operand_of(reduction))
        self.names = outer

    def _across(self, folded: dict[Reduce, list[str]], scratch: list[int]) -> None:
        """Conclude the reductions of a stage, and those that follow them: the programs of a cluster hand over what each
        has found in its part, and each combines that in order."""
        if not folded:
            return
        followers = {second: follower for second, follower in self.followers.items() if follower.first in folded}
        found = dict(folded)
        for second, follower in followers.items():
            found[second] = [follower.held(self, folded[follower.first][0])]
        x, cluster = self.launch.tiles[0], self.launch.cluster
        parts: dict[Reduce, list[str]] = {}
        loads = []
        for reduction, names in found.items():
            parts[reduction] = [self.fresh("parts") for _ in names]
            for name, part, dtype in zip(names, parts[reduction], self.kept(reduction), strict=True):
                pointer = self.scratch(len(scratch), dtype)
                self.write(pointer, f"{x.name} * {cluster} + part", name, [])
                at = f"{x.name} * {cluster} + tl.arange(0, {cluster})"
                loads.append(f'{part} = tl.load({pointer} + ({at}), cache_modifier=".cg")')
                scratch.append(cluster * self.kernel.hint(x.size) * dtype.itemsize)
        self.add("hand_over()")
        for load in loads:
            self.add(load)
        whole = {reduction: self.fold(reduction, parts[reduction]) for reduction in folded}
        for second, follower in followers.items():
            both = [parts[follower.first][0], parts[second][0]]
            whole[second] = [follower.across(self, both, whole[follower.first][0])]
        for reduction, names in whole.items():
            self.conclude(reduction, names)

    def _hold(self, loads: list[Expr]) -> None:
        """Begin with all loads, so that all are under way at once."""
        outer = dict(self.names)
        for start in self._blocks():
            self.names = dict(outer)
            self._begin_block(start)
            self.start_loads(loads)
        self.names = outer

    def fetch(self, loads: list[Expr]) -> None:
        """Ask for what the program of a later row will read. It is on its way while those on the chip wait for each
        other and compute."""
        x, r, cluster = self.launch.tiles[0], self.r, self.launch.cluster
        assert type(r.size) is int
        part, later = r.size // cluster, f"{x.name} + {self.launch.fetched}"
        requests: dict[str, None] = {}
        for expr in loads:
            value, index = expr.attr
            step, amount = self._row_step(index), part * value.dtype.itemsize
            if step is not None and not expr.args and amount % 16 == 0 and not step * value.dtype.itemsize % 16:
                at = f"({later}) * {step}" + (f" + {self.r.name}_first" if cluster > 1 else "")
                at = at if index.const == 0 else f"{at} + {index.const}"
                requests[f"fetch({self.parameters[value]} + ({at}), {amount})"] = None
        if requests:
            with self.block(f"if {later} < {self.size(x.size)}:"):
                for request in requests:
                    self.add(request)

    def _row_step(self, index: Index) -> int | None:
        """How far apart rows begin, if each lies together and all have the same distance; else None."""
        terms, flat = self._regrouped(index)
        steps: dict[Tile | None, Dim] = {}
        for atom, step in (*terms, *flat):
            tile = atom if isinstance(atom, Tile) else self.tile_of.get(atom) if isinstance(atom, Axis) else None
            if tile is None or tile in steps or isinstance(atom, Axis) and sum(a.size != 1 for a in tile.axes) > 1:
                return None
            steps[tile] = step
        step = steps.get(self.launch.tiles[0])
        together = steps.get(self.r) == 1 and len(steps) == 2 and type(index.const) is int
        return step if together and type(step) is int else None

    def loaded(self, expr: Expr) -> str:
        """Where rows are held: what is in a register. It is converted again each time, because it needs less space."""
        name = self.names_held.get((expr, self.start))
        if name is None:
            return super().loaded(expr)
        return f"again({name})" if expr.attr[0].dtype.itemsize == 2 and self.walks > 1 else name

    def _blocks(self) -> Iterator[str]:
        """The starts of the blocks of a row."""
        size, cluster = self.r.size, self.launch.cluster
        assert type(size) is int
        if cluster > 1:
            self.r.inside = True
            yield from (f"{self.r.name}_first + {start}" for start in range(0, size // cluster, self.r.block))
            size = 0
        for start in range(0, size, self.r.block):
            self.r.inside = start + self.r.block <= size
            yield str(start)
        self.r.inside = False

    def _begin_block(self, start: str) -> None:
        """The indices of a block of `r` that starts there."""
        r = self.r
        self.start = start
        text = f"{start} + {self.lanes(r)}"
        if self.aligned is not None:
            self.add(f"{r.name}_at = {text}")
            text = f"{r.name}_at - skew"
        self.add(f"{r.name} = {text}")
        self.split_axes(r, "" if r.masked else start)

    def stores(self, stores: list[Store]) -> None:
        self.emit([s.expr for s in stores])
        for store in stores:
            self.store(store.value, store.index, store.expr)

    # block by block

    def looped(self, followers: dict[Reduce, Follower]) -> KernelText:
        kernel = self.kernel
        self.begin_program()
        self.followers = followers
        self._align()
        self.passes = _stages(kernel) - len(followers)
        for stage in range(_stages(kernel)):
            self.last_pass = stage == _stages(kernel) - 1
            reductions = [r for r in kernel.reductions if self._pass_of(r) == stage]
            stores = [s for s in kernel.stores if kernel.stage[s.expr] == stage and is_inner(s)]
            if reductions or stores:
                for reduction, found in self._stage(reductions, stores, "0", self.size(self.r.size)).items():
                    self.conclude(reduction, found)
        self.stores([s for s in kernel.stores if not is_inner(s)])
        return self.finish((prod(tuple(t.count for t in self.launch.tiles)),))

    def _align(self) -> None:
        """Where rows start anywhere, walk each from the multiple of 16 bytes in front of it, so that loads are wide."""
        kernel, r = self.kernel, self.r
        if any(isinstance(f, Squares) for f in self.followers.values()):
            return  # these count each lane's elements
        if type(r.size) is not int or len(r.axes) > 1 or r.size < 4 * r.block:
            return
        for expr in walk(kernel.roots()):
            if expr.op != "load" or not set(kernel.axes) <= expr.axes:
                continue
            value, index = expr.attr
            unit, row = 16 // value.dtype.itemsize, index - of(r.axes[0])
            steps = [row.const, *(step for _, step in row.terms)]
            if index.coefficient(r.axes[0]) == 1 and all(type(step) is int and step >= 0 for step in steps):
                if unit > 1 and any(step % unit for step in steps):
                    self.add(f"row = {self.index(row)}")
                    self.add(f"skew = row % {unit}")
                    self.add(f"row = tl.multiple_of(row - skew, {unit})")
                    self.aligned = Aligned(row, unit)
                    return

    def index(self, index: Index) -> str:
        """As for all kernels; an element of a row by its place behind the aligned one in front of the row."""
        if self.aligned is not None and self.r.axes[0] in index.all_axes():
            if index - of(self.r.axes[0]) == self.aligned.row:
                return f"row + {self.r.name}_at"
        return super().index(index)

    def _pass_of(self, reduction: Reduce) -> int:
        """In which loop a reduction is computed."""
        follower = self.followers.get(reduction)
        return self.kernel.stage[(reduction if follower is None else follower.first).expr]

    def _stage(
        self, reductions: list[Reduce], stores: list[Store], first: str, last: str, programs: int = 1
    ) -> dict[Reduce, list[str]]:
        """One loop over `r`, whose chunks are shared among programs; returns the folded values of each reduction."""
        followers = {r: self.followers[r] for r in reductions if r in self.followers}
        plain = [r for r in reductions if r not in followers]
        roots = [r.expr for r in plain] + [s.expr for s in stores]
        needed = order(roots, self.names)
        inner = {e for e in needed if _depends(e)}
        self.emit([e for e in needed if e not in inner and (e in roots or any(e in children(i) for i in inner))])
        running = [self.begin(reduction) for reduction in plain]
        for follower in followers.values():
            follower.start(self)
        r, outer = self.r, dict(self.names)

        def body(starts: list[str]) -> None:
            """Take these blocks, whose loads are under way together, into the running values."""
            operands: dict[Reduce, list[list[str]]] = {reduction: [] for reduction in plain}
            self.waiting = [] if len(starts) > 1 and not r.masked else None  # loads would wait for stores
            for start in starts:
                self.names = dict(outer)
                self._begin_block(start)
                self.emit(roots)
                for reduction in plain:
                    operands[reduction].append([self._named(text) for text in self._operands(reduction)])
                for store in stores:
                    self.store(store.value, store.index, store.expr)
            for line in self.waiting or ():
                self.add(line)
            self.waiting = None
            for reduction, names in zip(plain, running, strict=True):
                left = operands[reduction]
                for follower in followers.values():
                    if follower.first is reduction:
                        left = [[text] for text in follower.step(self, names[0], [one[0] for one in left])]
                for one in left:
                    self.step(reduction, names, one)

        start, chunk = f"{r.name}_start", r.block * self.launch.together
        starts = [start, *(f"{start} + {k * r.block}" for k in range(1, self.launch.together))]
        begun, whole = 0, 0
        if self.aligned is not None:
            begun = r.block
        if type(r.size) is int and first == "0":
            whole = begun + (r.size - begun) // chunk * chunk
        rest = r.size - whole + (self.aligned.unit - 1 if self.aligned is not None else 0)
        backward = self.launch.backward and self.last_pass and not reductions and whole > begun

        def front() -> None:
            """The first block of rows that start anywhere."""
            if begun:
                r.early = True
                body(["0"])
                r.early = False

        def middle() -> None:
            """Whole chunks, which need no masks."""
            if whole > begun:
                ends = (str(whole - chunk), str(begun - chunk), -chunk) if backward else (str(begun), str(whole), chunk)
                r.inside = True
                with self.block(f"for {start} in {self.range(*ends)}:"):
                    body(starts)
                r.inside = False

        def end() -> None:
            """The rest."""
            if not whole or rest > r.block:
                parts = starts if not whole and self._in_chunks() else [start]
                until = str(whole + rest) if self.aligned is not None else last
                step = programs * len(parts) * r.block
                if self.even_turns:  # a loop of known length: the compiler can have loads of several turns under way
                    with self.block(f"for {r.name}_turn in {self.range('0', until, step)}:"):
                        self.add(f"{start} = {first} + {r.name}_turn")
                        body(parts)
                    return
                with self.block(f"for {start} in {self.range(str(whole or first), until, step)}:"):
                    body(parts)
            elif r.size > whole:  # the last block is the only one that needs masks
                body([str(whole)])

        if self.launch.held:
            self.walks += 1
            for block in self._blocks():
                body([block])
        else:
            for part in (end, middle, front) if backward else (front, middle, end):
                part()
        self.names = outer
        found = {reduction: self.fold(reduction, names) for reduction, names in zip(plain, running, strict=True)}
        for reduction, follower in followers.items():
            names = running[plain.index(follower.first)]
            found[reduction] = [follower.fold(self, names[0], found[follower.first][0])]
        return found

    def range(self, first: str, last: str, step: int) -> str:
        if self.wide and first.isdigit():
            first = f"tl.full([], {first}, tl.int64)"
        return f"range({first}, {last}, {step})"

    def _in_chunks(self) -> bool:
        """Whether `r` consists of whole chunks of blocks that are read together, so that each part of it does too."""
        return type(self.r.size) is int and self.r.size % (self.r.block * self.launch.together) == 0

    def _operands(self, reduction: Reduce) -> list[str]:
        """The operands that a block brings to a reduction: values and, for arg-reductions, their positions."""
        values = self.operand_of(reduction)
        return [values, self.position(reduction)] if reduction.kind.startswith("arg") else [values]

    def _named(self, text: str) -> str:
        """A name for a text, which is about this block and no later one."""
        if text in self.names.values() and text.isidentifier():
            return text
        name = self.fresh("operand")
        self.add(f"{name} = {text}")
        return name

    def begin(self, reduction: Reduce) -> list[str]:
        """Running values, and for arg-reductions their positions."""
        dtype = accumulator(reduction)
        name = self.fresh("acc")
        self.add(f"{name} = tl.full({self.shape}, {initial(reduction.kind, dtype)}, {TYPES[dtype]})")
        if not reduction.kind.startswith("arg"):
            return [name]
        self.add(f"{name}_at = tl.full({self.shape}, {self.nowhere}, {TYPES[self.positions]})")
        return [name, f"{name}_at"]

    def step(self, reduction: Reduce, running: list[str], operands: list[str]) -> None:
        """Take one block into the running values."""
        name, text = running[0], operands[0]
        if reduction.kind.startswith("arg"):
            better = f"{name}_better"  # than what is in front of it; no number is better than none
            self.add(f"{better} = {combine_name(reduction.kind).replace('combine', 'is')}({text}, {name})")
            for old, new in zip(running, operands, strict=True):
                self.add(f"{old} = tl.where({better}, {new}, {old})")
        elif reduction.kind == "sum":
            self.add(f"{name} += {text}")
        elif reduction.kind == "prod":
            self.add(f"{name} *= {text}")
        else:
            self.add(f"{name} = {combine_name(reduction.kind)}({name}, {text})")

    # shared among programs

    def parts(self, scratch: list[int]) -> KernelText:
        """The first launch: each program reduces its part of `r` into scratch memory, `[part, result]`; groups of its
        threads, which then need not wait for each other, into `[part, group, result]`."""
        kernel, splits = self.kernel, self.launch.splits
        x, groups = self.launch.tiles[0], self.launch.groups
        self.begin_program(splits)
        part = "part" if groups == 1 else f"(part * {groups} + tl.arange(0, {groups}){self.shape_suffix(self.r)})"
        inner = [s for s in kernel.stores if is_inner(s)]
        for reduction, found in self._stage(kernel.reductions, inner, *self._share(splits)).items():
            for name, dtype in zip(found, self.kept(reduction), strict=True):
                pointer = self.scratch(len(scratch), dtype)
                self.write(pointer, f"{part} * {x.size} + {x.name}", name, self.masks([x]))
                scratch.append(splits * groups * self.kernel.hint(x.size) * dtype.itemsize)
        return self.finish((splits * prod(tuple(t.count for t in self.launch.tiles)),))

    def _share(self, splits: int) -> tuple[str, str, int]:
        """Where the loop over this program's share of `r` begins and ends, and how many programs take turns in it."""
        r = self.r
        width = r.block * (self.launch.together if self._in_chunks() else 1)
        first, last = f"{r.name}_first", f"{r.name}_last"
        if self.launch.turns:
            self.even_turns = type(r.size) is int and r.size % (splits * width) == 0
            if not self.even_turns:
                return f"part * {width}", self.size(r.size), splits
            self.add(f"{first} = part * {width}")
            return first, self.size(r.size), splits
        if type(r.size) is int and r.size % (splits * width) == 0:  # equal parts: their loops have a known length
            self.add(f"{first} = part * {r.size // splits}")
            self.add(f"{last} = {first} + {r.size // splits}")
        else:
            static = type(r.size) is int
            blocks = str(-(-r.size // width)) if static else f"({self.size(r.size + width - 1)} // {width})"
            self.add(f"{r.name}_part = ({blocks} + {splits - 1}) // {splits} * {width}")
            self.add(f"{first} = part * {r.name}_part")
            self.add(f"{last} = tl.minimum({first} + {r.name}_part, {self.size(r.size)})")
        return first, last, 1


def combine(kernel: Kernel, axes: list[Axis], parts: int, reductions: list[Reduce], stores: list[Store],
            narrowest: int = 1) -> KernelText:
    """The second launch: the partial results of `reductions`, which have one for each point of `axes`, in order, and
    what is computed from them. A program has `narrowest` neighbours at least."""
    results = prod(tuple(a.size for a in axes))
    rows = power_of_two(parts)
    width = max(1, min(power_of_two(kernel.hint(results)), max(narrowest, min(16, 2048 // rows))))
    x = Tile("x", axes, width)
    p = Tile("p", [Axis(parts, reduced=True)], rows, reduced=True)
    emitter = ReductionEmitter(kernel, Launch([x], max(1, min(8, width * rows // 256)), p), stem_of(kernel))
    emitter.begin_program()
    emitter.define(p, "0")
    masks = emitter.masks([x, p])
    number = 0
    for reduction in reductions:
        running = []
        for k, dtype in enumerate(emitter.kept(reduction)):
            name, other = emitter.fresh("part"), emitter.nowhere if k else initial(reduction.kind, dtype)
            mask = f", mask={' & '.join(masks)}, other={other}" if masks else ""
            emitter.add(f"{name} = tl.load({emitter.scratch(number, dtype)} + (p * {x.size} + x){mask})")
            running.append(name)
            number += 1
        emitter.conclude(reduction, emitter.fold(reduction, running))
    emitter.stores(stores)
    return emitter.finish((x.count,), "_combine")
