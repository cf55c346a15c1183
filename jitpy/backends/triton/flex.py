"""Attention with computed scores: each program has a block of queries, or of keys, and walks the blocks of the other
side that its row of the block mask lists.

Scores stay in registers. The forward pass keeps running maxima and sums of exponentials; the backward pass computes the
scores again, once by rows of queries and once by rows of keys, where heads that share a key are summed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ...ir.sizes_expr import floordiv
from ...ir.spec import Dim, prod
from ...schedule.expr import Expr, children, order
from ...schedule.flex import Added, BlockLists, Operand
from ...schedule.index import Axis
from ...schedule.loops import Kernel
from ...schedule.values import HostScalar, Value
from .emitter import Emitter, KernelText, Program, makes_steps
from .flex_blocks import Blocks, forward_blocks, key_blocks, query_blocks, shared_blocks
from .printer import TYPES, ExprPrinter, closed
from .tiles import Launch, Tile, power_of_two

#: The size of torch's block where a mask has no structure.
WHOLE = 1 << 30
LOG2E = math.log2(math.e)
STEM = "flex_attention"
_SAFE_TOTAL = "tl.where(total == 0.0, 1.0, total)"
#: Names of the programs' own.
_NAMES = ("b", "h", "q", "k", "e", "f", "row", "pid", "start", "step", "queries", "keys", "values", "grads", "score",
          "weights", "top", "grown", "safe", "shrunk", "total", "acc", "lse", "delta", "inside", "exists", "grad",
          "grad_weights", "grad_key", "grad_value", "shared", "member", "changed", "grad_score")


def print_flex(kernel: Kernel) -> Program:
    """The kernel as launches: one forwards, two backwards and those that clear the gradients of captures."""
    attention = kernel.attention
    assert attention is not None
    results, written = attention.results, set(kernel.writes)
    if attention.parts > 1:
        return Program([_Shared(kernel, shared_blocks(attention)).text(), _Joined(kernel, Blocks(16, 16, 4, 1)).text()])
    if attention.gradients is None:
        return Program([_Forward(kernel, forward_blocks(attention)).text()])
    launches = [_cleared(kernel, part) for name, part in results.items() if name.isdigit() and part in written]
    if written - {results["query"]}:
        launches.append(_KeyGradients(kernel, key_blocks(attention)).text())
    if results["query"] in written:
        launches.append(_QueryGradients(kernel, query_blocks(attention)).text())
    return Program(launches)


def _cleared(kernel: Kernel, value: Value) -> KernelText:
    """The launch that fills a sum with zeros."""
    x = Tile("x", [Axis(value.numel)], 1024)
    emitter = Emitter(kernel, Launch([x], 4), STEM)
    emitter.begin_program()
    emitter.write(emitter.parameters[value], "x", "0.0", emitter.masks([x]))
    return emitter.finish((x.count,), "_clear")


@dataclass(slots=True, eq=False)
class _Side(Tile):
    """Queries or keys. `open`: blocks may reach beyond the end."""

    open: bool = False

    @property
    def masked(self) -> bool:
        return self.open


class _Pass(Emitter):
    """Prints one launch. `self.walked` is the side whose blocks a program walks, `self.own` the other one."""

    suffix = ""
    turned = False

    def __init__(self, kernel: Kernel, blocks: Blocks) -> None:
        attention = kernel.attention
        assert attention is not None
        self.attention = attention
        batch, head, query, key = attention.axes
        self.q, self.k = _Side("q", [query], blocks.queries), _Side("k", [key], blocks.keys)
        self.b, self.h = Tile("b", [batch], 1), Tile("h", [head], 1)
        self.own, self.walked = (self.k, self.q) if self.turned else (self.q, self.k)
        self.own.open = not _divides(self.own.block, self.own.size)
        self.sparse = attention.target.block[0 if self.turned else 1]
        self.own_sparse = attention.target.block[1 if self.turned else 0]
        #: whether one block of the mask is all that there is
        self.whole = self.sparse >= (self.walked.size if type(self.walked.size) is int else WHOLE)
        self.walked.open = not _divides(self.walked.block if self.whole else self.sparse, self.walked.size)
        super().__init__(kernel, Launch([self.b, self.h, self.own, self.walked], blocks.warps), STEM)
        self.stages = blocks.stages
        self.dtype = attention.query.value.dtype
        short = self.dtype is not torch.float32 and not any(map(makes_steps, kernel.stage))
        self.printer = ExprPrinter(lambda expr: self.names[expr], short)
        loaded = {expr.attr[0] for expr in kernel.stage if expr.op == "load"}
        self.wide = any(_reach(value) >= 1 << 31 for value in loaded)
        self.counts = dict.fromkeys(_NAMES, 1)
        self.axis_names = dict(zip(attention.axes, ("b", "h", "q", "k"), strict=True))
        self.exact = ', input_precision="ieee"' if self.dtype is torch.float32 and not _is_tf32() else ""
        self.divisor = "total" if math.isnan(attention.target.empty) else _SAFE_TOTAL
        #: what scores are multiplied with for exponentials to base 2
        self.folded = not attention.changes_score and attention.target.scale > 0
        self.factor = repr(attention.target.scale * LOG2E if self.folded else LOG2E)
        #: Statistics of changed scores are to base e: the least floats, by which programs hide keys, stay finite.
        self.unit, self.natural = ("", f" * {math.log(2)!r}") if self.folded else (f" * {LOG2E!r}", "")
        logarithm = "tl.log2(total)" if self.folded else f"tl.log2(total) * {math.log(2)!r}"
        #: the logarithm of a row's sum of exponentials; infinite where a score is
        self.log_sum = f'tl.where(top == float("inf"), top, top + {logarithm})'

    # names of places

    def _value(self, expr: Expr) -> str:
        return self.axis_names[expr.attr] if expr.op == "place" else super()._value(expr)

    def _atom(self, atom: Any) -> str:
        if isinstance(atom, Expr) and atom.op == "cast" and atom.args[0].dtype is torch.int32:
            inner = closed(self.names[atom.args[0]])
            return f"{inner}.to(tl.int64)" if self.wide else inner
        return super()._atom(atom)

    def begin(self, heads: int, head: str) -> None:
        """Which block of which head this program has: the last blocks first, which a causal mask makes the longest."""
        count = self.size(self.own.count)
        narrow = "" if type(self.own.count) is int else ".to(tl.int32)"
        self.add("pid = tl.program_id(0)")
        turn = "" if self.turned else f"{count} - 1 - "
        for name, text in (("row", f"{turn}pid % {count}"), (head, f"pid // {count} % {heads}"),
                           ("b", f"pid // {count} // {heads}")):
            self.add(f"{name} = ({text}){narrow}" if narrow else f"{name} = {text}")
        self.add(f"{self.own.name} = row * {self.own.block} + {self.lanes(self.own)}")
        if self.own.open:
            self.add(f"{self.own.name}_in = {self.own.name} < {self.size(self.own.size)}")

    def lanes(self, tile: Tile) -> str:
        return f"tl.arange(0, {tile.block}){self.shape_suffix(tile)}"

    def at(self, operand: Operand, axis: int, index: str) -> str:
        """The step to an index along an axis. Those of batch and heads may be left out."""
        step = operand.step(axis) if axis < 2 else operand.stride[axis]
        if axis < 2 and type(step) is int and step == 0:
            return ""
        return f" + {index} * {self.size(step)}" if not (type(step) is int and step == 1) else f" + {index}"

    def base(self, operand: Operand, head: str) -> str:
        """The pointer to a head's matrix."""
        text = self.parameters[operand.value]
        if not (type(operand.offset) is int and operand.offset == 0):
            text += f" + {self.size(operand.offset)}"
        return text + self.at(operand, 0, "b.to(tl.int64)") + self.at(operand, 1, f"{head}.to(tl.int64)")

    def tile_at(self, name: str, operand: Operand, head: str, side: _Side) -> None:
        """Name the pointers to the first block of rows of a head's matrix."""
        rows, columns = self.at(operand, 2, _rows(side)), self.at(operand, 3, _columns(operand))
        self.add(f"{name} = {self.base(operand, head)}{rows}{columns}")

    def tile_load(self, name: str, at: str, operand: Operand, side: _Side, start: str) -> None:
        """Load a block of rows that begins at `start`."""
        self.add(f"{name} = tl.load({at}{self.at(operand, 2, _wide(start, operand, side))}"
                 f"{_loaded(self.inside(operand, side, start))})")

    def inside(self, operand: Operand, side: _Side, start: str) -> list[str]:
        """The mask of a block of rows."""
        rows = f"({start} + {_rows(side)} < {self.size(side.size)})"
        return [*([rows] if side.open else []), *_columns_in(operand)]

    @property
    def rows_in(self) -> list[str]:
        """The mask of a program's queries."""
        return ["q_in"] if self.q.open else []

    def row_load(self, name: str, operand: Operand, head: str) -> None:
        """Load a statistic for each query."""
        self.add(f"{name} = tl.load({self.base(operand, head)}{self.at(operand, 2, 'q')}{_loaded(self.rows_in)})")

    def store_tile(self, value: Value, name: str, side: _Side, start: str, head: str) -> None:
        """Store a block of rows of a result."""
        result = Operand(value, value.shape, value.stride, 0)
        at = self.at(result, 2, _wide(f"{start} + {_rows(side)}", result, side)) + self.at(result, 3, _columns(result))
        self.add(f"tl.store({self.base(result, head)}{at}, {name}.to({TYPES[value.dtype]})"
                 f"{_masked(self.inside(result, side, start))})")

    def store_row(self, value: Value, text: str) -> None:
        result = Operand(value, value.shape, value.stride, 0)
        self.add(f"tl.store({self.base(result, 'h')}{self.at(result, 2, 'q')}, {text}{_masked(self.rows_in)})")

    # loops

    def ahead(self, roots: Iterable[Expr], varying: set[Axis]) -> None:
        """Name what does not change along the axes that vary."""
        wanted = order(list(roots), self.names)
        used = {child for expr in wanted if expr.axes & varying for child in children(expr)}
        used.update(roots)
        self.emit([expr for expr in wanted if expr in used and not expr.axes & varying and expr.op != "const"])

    def walk(self, lists: BlockLists | None, masked: bool, comment: str) -> None:
        """The loop over the blocks that a row of the mask lists, or over all of one block."""
        outside = dict(self.names)
        self.add(f"# {comment}")
        steps = self.size(self.walked.count)
        if lists is not None:
            counted = self.row_of(lists.count)
            each = steps if self.whole else str(self.sparse // self.walked.block)
            steps = self.fresh("step_count")
            most = self.size(lists.indices.shape[3])
            self.add(f"{steps} = (tl.minimum(tl.load({counted}).to(tl.int32), {most}) * {each}).to(tl.int32)")
        first, end = self.own_steps(steps)
        listed = None if self.whole or lists is None else self.next_block(lists.indices, first)
        with self.block(f"for step in range({first}, {end}):"):
            if listed is None:
                self.add(f"start = step * {self.walked.block}")
            else:
                # lists are the program's: nothing outside of memory is read for wrong ones, and they do not count
                last = self.size(floordiv(self.walked.size - 1, self.sparse))
                self.add(f"inside = tl.minimum(tl.maximum({listed[0]}, 0), {last})")
                self.add(f"exists = inside == {listed[0]}")
                per_block = self.sparse // self.walked.block
                inner = f" + step % {per_block} * {self.walked.block}" if per_block > 1 else ""
                self.add(f"start = inside * {self.sparse}{inner}")
                self.add(f"{listed[0]} = {listed[1]}")
            name = self.walked.name
            self.add(f"{name} = start + {self.lanes(self.walked)}")
            if self.walked.open:
                self.add(f"{name}_in = {name} < {self.size(self.walked.size)}")
            self.step(masked)
        self.names = outside

    def row_of(self, operand: Operand) -> str:
        """The pointer to a row of the lists."""
        return f"{self.base(operand, self.list_head)}{self.at(operand, 2, closed(self.list_row()))}"

    def next_block(self, indices: Operand, first: str) -> tuple[str, str]:
        """Name the block of the first step; and how that of the next one is read."""
        per_block, last = self.sparse // self.walked.block, self.size(indices.shape[3] - 1)
        at, block = self.fresh("listed_at"), self.fresh("next_block")
        self.add(f"{at} = {self.row_of(indices)}")

        def read(step: str) -> str:
            place = f"tl.minimum({step if per_block == 1 else f'{step} // {per_block}'}, {last})"
            return f"tl.load({at}{self.at(indices, 3, place)}).to(tl.int32)"

        self.add(f"{block} = {read(first)}")
        return block, read("(step + 1)")

    def existing(self, text: str, other: str) -> str:
        """A value for each row; `other` where the list names a block that does not exist."""
        return text if self.whole else f'tl.where(exists, {text}, float("{other}"))'

    def exponential(self, statistic: str) -> str:
        """That of `changed` over a statistic."""
        if self.folded:
            return f"tl.exp2(changed * {self.factor} - {statistic})"
        return f"tl.exp2((changed - {statistic}){self.unit})"

    #: the head whose lists of blocks a program walks
    list_head = "h"

    def list_row(self) -> str:
        """The row of the lists."""
        per_row = self.own_sparse // self.own.block
        return "row" if per_row == 1 else f"row // {per_row}"

    def own_steps(self, steps: str) -> tuple[str, str]:
        """Between which steps a program walks."""
        return "0", steps

    def step(self, masked: bool) -> None:
        """Print what is done for one block of each side."""
        raise NotImplementedError

    def both(self) -> None:
        """The loops over the blocks that need no mask, and over those that do."""
        attention = self.attention
        masked, full = (attention.turned_masked, attention.turned_full) if self.turned else \
            (attention.masked, attention.full)
        if full is not None:
            self.walk(full, False, "blocks that need no mask")
        self.walk(masked, True, "blocks that need the mask")

    def score(self, masked: bool) -> None:
        """Name `score`, as it is in exponents but for `factor`; -inf where it does not count."""
        attention, names = self.attention, self.names
        left, right = ("keys", "queries") if self.turned else ("queries", "keys")
        self.add(f"score = tl.dot({left}, tl.trans({right}){self.exact})")
        if not self.folded:
            self.add(f"score = score * {attention.target.scale!r}")
        names[attention.given] = "score"
        found = "score"
        if attention.changes_score:
            self.emit([attention.score])
            found = self.full_text(attention.score)
        seen = self.conditions(masked)
        if seen:
            found = f'tl.where({seen}, {found}, float("-inf"))'
        self.add(f"changed = {found}")

    def conditions(self, masked: bool) -> str:
        """Whether a query sees a key, as text; '' where it does."""
        found = self.sides()
        if masked and self.attention.mask is not None:
            self.emit([self.attention.mask])
            found.append(closed(self.printer.argument(self.attention.mask)))
        return " & ".join(found)

    def sides(self) -> list[str]:
        """The ends that matter."""
        return [f"{self.walked.name}_in"] if self.walked.open else []

    def full_text(self, expr: Expr) -> str:
        """An expression as a whole tile."""
        text = self.printer.argument(expr)
        if self.tiles_of(expr.axes) == self.blocks:
            return text
        return f"tl.broadcast_to({text}, {self.shape})" if expr.axes & {*self.q.axes, *self.k.axes} else \
            f"tl.full({self.shape}, 0.0, tl.float32) + {closed(text)}"


def _masked(conditions: list[str]) -> str:
    """The mask of a store as an argument."""
    return f", mask={' & '.join(conditions)}" if conditions else ""


def _loaded(conditions: list[str]) -> str:
    """That of a load, with what is not read."""
    return f"{_masked(conditions)}, other=0.0" if conditions else ""


def _columns_in(operand: Operand) -> list[str]:
    return [f"({_columns(operand)} < {operand.shape[3]})"] if _width(operand) != operand.shape[3] else []


def _width(operand: Operand) -> int:
    """Columns of a tile that holds a head's rows."""
    return max(16, power_of_two(int(operand.shape[3])))


def _rows(side: _Side) -> str:
    return f"tl.arange(0, {side.block})[:, None]"


def _columns(operand: Operand) -> str:
    return f"tl.arange(0, {_width(operand)})[None, :]"


def _wide(index: str, operand: Operand, side: _Side) -> str:
    """The index of a row, so wide that its product with the stride is right."""
    step = operand.stride[2]
    if type(side.size) is int and type(step) is int and (side.size + side.block) * step < 1 << 31:
        return closed(index)
    return f"{closed(index)}.to(tl.int64)"


def _divides(block: int, size: Dim) -> bool:
    return type(size) is int and size % block == 0


def _reach(value: Value) -> int:
    """How far a value reaches in memory, a lot where that is not known."""
    if isinstance(value, HostScalar):
        return 0
    reach: Dim = 1
    for size, stride in zip(value.shape, value.stride, strict=True):
        reach = reach + (size - 1) * stride
    return reach if type(reach) is int else 1 << 62


def _is_tf32() -> bool:
    try:
        return bool(torch._C._get_cublas_allow_tf32())
    except RuntimeError:  # set in parts
        return False


class _Forward(_Pass):
    """The results, and the statistics of rows."""

    def text(self) -> KernelText:
        attention, results = self.attention, self.attention.results
        self.begin(int(attention.query.shape[1]), "h")
        self.add(f"shared = h // {attention.group}")
        self.tile_at("queries_at", attention.query, "h", self.q)
        self.tile_load("queries", "queries_at", attention.query, self.q, f"row * {self.q.block}")
        self.loops()
        written = self.kernel.writes
        if results["out"] in written:
            self.add(f"acc = acc / {self.divisor}")
            self.store_tile(results["out"], "acc", self.q, f"row * {self.q.block}", "h")
        if results["lse"] in written:
            self.store_row(results["lse"], self.log_sum + self.natural)
        if results["top"] in written:
            self.store_row(results["top"], f"top{self.natural}")
        return self.finish((prod((self.q.count, *attention.query.shape[:2])),))

    def loops(self) -> None:
        """Walk all keys."""
        attention = self.attention
        self.tile_at("keys_at", attention.key, "shared", self.k)
        self.tile_at("values_at", attention.value, "shared", self.k)
        self.add(f'top = tl.full([{self.q.block}, 1], float("-inf"), tl.float32)')
        self.add(f"total = tl.full([{self.q.block}, 1], 0.0, tl.float32)")
        self.add(f"acc = tl.full([{self.q.block}, {_width(attention.value)}], 0.0, tl.float32)")
        self.ahead(attention.roots(), {*self.k.axes})
        self.both()

    def step(self, masked: bool) -> None:
        attention = self.attention
        self.tile_load("keys", "keys_at", attention.key, self.k, "start")
        self.score(masked)
        most = f"tl.reduce(changed, 1, combine_max, keep_dims=True){f' * {self.factor}' * self.folded}"
        self.add(f"grown = tl.maximum(top, {self.existing(most, '-inf')})")
        self.add('safe = tl.where(grown == float("-inf"), 0.0, grown)')
        self.add(f"shrunk = tl.exp2((top - safe){self.unit})")
        self.add(f"weights = {self.exponential(self.existing('safe', 'inf'))}")
        self.add("total = total * shrunk + tl.reduce(weights, 1, combine_sum, keep_dims=True)")
        self.add("acc = acc * shrunk")
        self.tile_load("values", "values_at", attention.value, self.k, "start")
        self.add(f"acc = tl.dot(weights.to({TYPES[self.dtype]}), values, acc{self.exact})")
        self.add("top = grown")


class _Shared(_Forward):
    """The result of one program, where several share the keys of few queries: it has all heads that share keys."""

    suffix = "_part"
    list_head = "shared"

    def __init__(self, kernel: Kernel, blocks: Blocks) -> None:
        super().__init__(kernel, blocks)
        self.tile_of[self.attention.axes[1]] = self.q

    def list_row(self) -> str:
        return "0"

    def own_steps(self, steps: str) -> tuple[str, str]:
        first, end = self.fresh("first_step"), self.fresh("end_step")
        parts = self.attention.parts
        self.add(f"{first} = {steps} * part // {parts}")
        self.add(f"{end} = {steps} * (part + 1) // {parts}")
        return first, end

    def text(self) -> KernelText:
        attention, results = self.attention, self.attention.results
        query, group, parts = attention.query, attention.group, attention.parts
        count, shared, block = int(query.shape[2]), int(attention.key.shape[1]), self.q.block
        self.add("pid = tl.program_id(0)")
        self.add(f"part = pid % {parts}")
        self.add(f"shared = pid // {parts} % {shared}")
        self.add(f"b = pid // {parts * shared}")
        self.add(f"row = tl.arange(0, {block})[:, None]")
        self.add(f"q = row % {count}")
        self.add(f"h = shared * {group} + row // {count}")
        self.q.open = group * count != block
        if self.q.open:
            self.add(f"q_in = row < {group * count}")
        at = f"{self.base(query, 'h')}{self.at(query, 2, 'q')}{self.at(query, 3, _columns(query))}"
        self.add(f"queries = tl.load({at}{_loaded([*self.rows_in, *_columns_in(query)])})")
        self.loops()
        self.add(f"acc = acc / {_SAFE_TOTAL}")
        part = results["part_out"]
        rows = f"((part * {self.size(query.shape[0])} + b) * {query.shape[1]} + h).to(tl.int64) * {count} + q"
        self.add(f"place = {rows}")
        at = f"{self.parameters[part]} + place * {part.shape[4]} + {_columns(attention.value)}"
        mask = _masked(self.rows_in)
        self.add(f"tl.store({at}, acc{_masked([*self.rows_in, *_columns_in(attention.value)])})")
        self.add(f"tl.store({self.parameters[results['part_total']]} + place, total{mask})")
        self.add(f"tl.store({self.parameters[results['part_top']]} + place, top{mask})")
        return self.finish((prod((query.shape[0], shared, parts)),), self.suffix)


class _Joined(_Pass):
    """The results from those of all parts: a program for each query."""

    suffix = "_joined"

    def text(self) -> KernelText:
        attention, results = self.attention, self.attention.results
        query, parts = attention.query, attention.parts
        out, written = results["out"], self.kernel.writes
        rows = prod(query.shape[:3])
        self.add("pid = tl.program_id(0).to(tl.int64)")
        for name, text in (("q", f"pid % {query.shape[2]}"), ("h", f"pid // {query.shape[2]} % {query.shape[1]}"),
                           ("b", f"pid // {query.shape[2] * query.shape[1]}")):
            self.add(f"{name} = {text}")
        self.q.open = False
        self.add(f"place = tl.arange(0, {parts})[:, None] * {self.size(rows)} + pid")
        columns = _columns(attention.value)
        inside = _columns_in(attention.value)
        self.add(f"total = tl.load({self.parameters[results['part_total']]} + place)")
        self.add(f"grown = tl.load({self.parameters[results['part_top']]} + place)")
        self.add("top = tl.reduce(grown, 0, combine_max, keep_dims=True)")
        self.add('safe = tl.where(top == float("-inf"), 0.0, top)')
        self.add(f"weights = tl.exp2((grown - safe){self.unit}) * total")
        self.add("total = tl.reduce(weights, 0, combine_sum, keep_dims=True)")
        at = f"{self.parameters[results['part_out']]} + place * {out.shape[3]} + {columns}"
        self.add(f"acc = tl.load({at}{_loaded(inside)})")
        self.add(f"acc = tl.reduce(acc * weights, 0, combine_sum, keep_dims=True) / {self.divisor}")
        one = "tl.full([1, 1], 0, tl.int32)"
        if out in written:
            own = Operand(out, out.shape, out.stride, 0)
            at = f"{self.base(own, 'h')}{self.at(own, 2, 'q')}{self.at(own, 3, columns)}"
            self.add(f"tl.store({at}, acc.to({TYPES[out.dtype]}){_masked(inside)})")
        self.add(f"q = q + {one}")
        if results["lse"] in written:
            self.store_row(results["lse"], self.log_sum + self.natural)
        if results["top"] in written:
            self.store_row(results["top"], f"top{self.natural}")
        return self.finish((rows,), self.suffix)


class _Gradient(_Pass):
    """Code that the launches of a backward pass share."""

    def statistics(self, head: str) -> None:
        """Load what the forward pass found of each query."""
        gradients = self.attention.gradients
        assert gradients is not None
        self.row_load("lse", gradients.lse, head)
        self.add(f'lse = tl.where(lse == float("-inf"), 0.0, lse{f" * {LOG2E!r}" * self.folded})')
        self.row_load("delta", gradients.delta, head)

    def weights(self, masked: bool) -> None:
        self.score(masked)
        self.add(f"weights = {self.exponential(self.existing('lse', 'inf'))}")

    def grad(self, masked: bool) -> None:
        """Name `grad`, the gradient of the score, from that of weights."""
        gradients = self.attention.gradients
        assert gradients is not None
        self.add("grad = weights * (grad_weights - delta)")
        self.names[gradients.given] = "grad"
        self.emit([*([gradients.score] if self.result != "grad" else []), *self.more()])
        if self.result == "grad":
            return
        found = self.full_text(gradients.score)
        seen = self.conditions(masked)
        if seen:
            found = f"tl.where({seen}, {found}, 0.0)"
        self.add(f"grad_score = {found}")

    def more(self) -> list[Expr]:
        return []

    @property
    def result(self) -> str:
        gradients = self.attention.gradients
        assert gradients is not None
        return "grad" if gradients.score is gradients.given else "grad_score"


class _QueryGradients(_Gradient):
    """The gradient of queries, by blocks of these."""

    suffix = "_queries"

    def text(self) -> KernelText:
        attention, gradients = self.attention, self.attention.gradients
        assert gradients is not None
        self.begin(int(attention.query.shape[1]), "h")
        self.add(f"shared = h // {attention.group}")
        start = f"row * {self.q.block}"
        for name, operand, head, side in (("queries", attention.query, "h", self.q),
                                          ("grads", gradients.output, "h", self.q),
                                          ("keys", attention.key, "shared", self.k),
                                          ("values", attention.value, "shared", self.k)):
            self.tile_at(f"{name}_at", operand, head, side)
        self.tile_load("queries", "queries_at", attention.query, self.q, start)
        self.tile_load("grads", "grads_at", gradients.output, self.q, start)
        self.statistics("h")
        self.add(f"acc = tl.full([{self.q.block}, {_width(attention.query)}], 0.0, tl.float32)")
        roots = [attention.score, gradients.score, *([attention.mask] if attention.mask is not None else [])]
        self.ahead(roots, {*self.k.axes})
        self.both()
        self.add(f"acc = acc * {attention.target.scale!r}")
        self.store_tile(attention.results["query"], "acc", self.q, start, "h")
        return self.finish((prod((self.q.count, *attention.query.shape[:2])),), self.suffix)

    def step(self, masked: bool) -> None:
        self.tile_load("keys", "keys_at", self.attention.key, self.k, "start")
        self.weights(masked)
        self.tile_load("values", "values_at", self.attention.value, self.k, "start")
        self.add(f"grad_weights = tl.dot(grads, tl.trans(values){self.exact})")
        self.grad(masked)
        self.add(f"acc = tl.dot({self.result}.to({TYPES[self.dtype]}), keys, acc{self.exact})")


class _KeyGradients(_Gradient):
    """The gradients of keys, values and captures, by blocks of keys."""

    suffix = "_keys"
    turned = True

    def text(self) -> KernelText:
        attention, gradients = self.attention, self.attention.gradients
        assert gradients is not None
        shared = int(attention.key.shape[1])
        self.begin(shared, "shared")
        start = f"row * {self.k.block}"
        for name, operand in (("keys", attention.key), ("values", attention.value)):
            self.tile_at(f"{name}_at", operand, "shared", self.k)
            self.tile_load(name, f"{name}_at", operand, self.k, start)
        for name, operand in (("grad_key", attention.key), ("grad_value", attention.value)):
            self.add(f"{name} = tl.full([{self.k.block}, {_width(operand)}], 0.0, tl.float32)")
        if attention.group == 1:
            self.add("h = shared")
            self.head()
        else:
            with self.block(f"for member in range(0, {attention.group}):"):
                self.add(f"h = shared * {attention.group} + member")
                self.head()
        self.add(f"grad_key = grad_key * {attention.target.scale!r}")
        for name, part in (("grad_key", "key"), ("grad_value", "value")):
            if attention.results[part] in self.kernel.writes:
                self.store_tile(attention.results[part], name, self.k, start, "shared")
        return self.finish((prod((self.k.count, attention.key.shape[0], shared)),), self.suffix)

    def head(self) -> None:
        """The part that one head of queries adds."""
        attention, gradients = self.attention, self.attention.gradients
        assert gradients is not None
        outside = dict(self.names)
        self.tile_at("queries_at", attention.query, "h", self.q)
        self.tile_at("grads_at", gradients.output, "h", self.q)
        self.ahead(attention.roots(), {*self.q.axes})
        self.both()
        self.names = outside

    def sides(self) -> list[str]:
        own = self.k.open and bool(self.attention.gradients and self.attention.gradients.added)
        return [*super().sides(), *(["k_in"] if own else [])]

    def step(self, masked: bool) -> None:
        attention, gradients = self.attention, self.attention.gradients
        assert gradients is not None
        short = TYPES[self.dtype]
        self.tile_load("queries", "queries_at", attention.query, self.q, "start")
        self.statistics("h")
        self.weights(masked)
        self.tile_load("grads", "grads_at", gradients.output, self.q, "start")
        self.add(f"grad_value = tl.dot(weights.to({short}), grads, grad_value{self.exact})")
        self.add(f"grad_weights = tl.dot(values, tl.trans(grads){self.exact})")
        self.grad(masked)
        self.add(f"grad_key = tl.dot({self.result}.to({short}), queries, grad_key{self.exact})")
        seen = self.conditions(masked)
        for added in gradients.added:
            if attention.results[added.result] in self.kernel.writes:
                self.add_to(added, seen)

    def more(self) -> list[Expr]:
        gradients = self.attention.gradients
        assert gradients is not None
        return [expr for added in gradients.added for expr in added.roots()]

    def add_to(self, added: Added, seen: str) -> None:
        """Add to the gradient of a capture: sums over the axes along which the place stays the same."""
        text = self.full_text(added.value)
        if seen:
            text = f"tl.where({seen}, {text}, 0.0)"
        masks, varying = [], self.tiles_of(added.index.all_axes())
        for number, tile in enumerate(self.blocks):
            if tile not in varying:
                text = f"tl.reduce({text}, {number}, combine_sum, keep_dims=True)"
            elif tile.masked:
                masks.append(f"{tile.name}_in")
        index = self.index(added.index)
        shape = ", ".join(str(tile.block) if tile in varying else "1" for tile in self.blocks)
        pointer = self.parameters[self.attention.results[added.result]]
        at = f"{pointer} + ({index} + tl.full([{shape}], 0, tl.int32))"
        mask = f", mask=tl.broadcast_to({' & '.join(masks)}, [{shape}])" if masks else ""
        self.add(f'tl.atomic_add({at}, {text}{mask}, sem="relaxed")')


__all__ = ["print_flex"]
