"""Matrix products: each program has a tile of the result, and walks the inner axis tile by tile on the tensor cores.

A kernel of style `product` has one product or some of the same shape (`schedule/products.py`). Computations behind
their operands run on the tiles as they are loaded, and those on the results run on the sums in registers, before
these are rounded and stored. """

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import torch

from ...ir.op import NotCovered
from ...ir.spec import prod
from ...schedule.expr import Expr, ScalarBuilder
from ...schedule.index import Axis, Index
from ...schedule.loops import Kernel
from ...schedule.products import FEW_ROWS, SPLIT_TILES, ProductAxes, Sizes, axes_of
from ...schedule.values import Product, Value
from .emitter import Emitter, KernelText, Program, stem_of
from .printer import TYPES, rounded
from .tiles import Launch, Tile, power_of_two

#: Rows of tiles that neighbouring programs share: what they read of both operands stays in the cache.
BAND = 8
#: Multiprocessors of the GPU that these numbers are for, and programs that keep most of it busy.
PROCESSORS, BUSY = 132, 80


@dataclass(frozen=True, slots=True)
class Blocks:
    """The launch parameters of a product. `work` is the share of the peak rate that a multiprocessor reaches; `parts`
    are the programs that share the inner axis of one tile."""

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int
    work: float = 1.0
    parts: int = 1


#: Few rows: the right operand is read once, and all is about having enough of it on its way.
_FEW = (
    Blocks(16, 64, 128, 4, 6), Blocks(16, 32, 256, 4, 4), Blocks(16, 16, 256, 2, 5),
    Blocks(32, 64, 128, 4, 6), Blocks(32, 32, 128, 4, 5), Blocks(32, 16, 256, 4, 4),
    Blocks(64, 64, 128, 4, 4), Blocks(64, 32, 128, 4, 5), Blocks(64, 16, 128, 4, 6),
)
_MANY = (
    Blocks(128, 256, 64, 8, 3, 1.0), Blocks(128, 128, 64, 8, 4, 0.85), Blocks(128, 64, 64, 4, 4, 0.75),
    Blocks(64, 128, 64, 4, 4, 0.75), Blocks(64, 64, 128, 4, 4, 0.6), Blocks(64, 32, 128, 4, 5, 0.4),
)
#: The inner axis from which two programs share it where all tiles have a multiprocessor of their own. On an H200 16
#: rows by (8192, 2048) take 13.9 us in bfloat16 (16.1 alone), and 10.3 with weights in int8 (14.9); 64 rows take 17.0
#: (19.2). Shorter ones, and more programs, lose.
_LONG = 8192
#: Products of which a program needs one or two steps.
_SMALL = (Blocks(128, 64, 64, 4, 2), Blocks(64, 64, 64, 4, 2))
#: Products of float32 that are split: the tiles of `SPLIT_TILES`.
_SPLIT = tuple(Blocks(rows, columns, 32, warps, stages)
               for (rows, columns, *_), warps, stages in zip(SPLIT_TILES, (8, 4, 4), (3, 3, 4), strict=True))
_FLOAT32 = (Blocks(64, 64, 32, 4, 2), Blocks(32, 32, 32, 4, 2), Blocks(16, 32, 64, 4, 3))


def blocks_of(sizes: Sizes, products: int) -> list[Blocks]:
    """Launch parameters for so many products of these sizes in one kernel, best first."""
    products = power_of_two(products)

    def programs(blocks: Blocks) -> int:
        return sizes.batch * -(-sizes.rows // blocks.rows) * -(-sizes.columns // (blocks.columns // products))

    rows, columns = power_of_two(sizes.rows), power_of_two(sizes.columns)
    if sizes.is_split:
        times = {blocks: sizes.split_time(*tile) for blocks, tile in zip(_SPLIT, SPLIT_TILES, strict=True)}
        return sorted(_SPLIT, key=times.__getitem__)
    if sizes.dtype is torch.float32:
        return [b for b in _FLOAT32 if b.rows <= max(16, rows) and b.columns <= max(16, columns)] or [_FLOAT32[-1]]
    if sizes.inner <= 128 and sizes.batch > 1:
        height = max(16, min(rows, 128 if columns >= 64 else 64))
        first = Blocks(height, max(16 * products, min(64, columns * products)), 64, 4 if height >= 32 else 2, 2)
        return [first, *(b for b in _SMALL if b != first and b.columns >= 16 * products)]
    if sizes.rows <= 64:
        height = max(16, rows)
        found = [b for b in _FEW if b.rows == height and b.columns >= 16 * products]
        return sorted(found, key=lambda b: (programs(b) < BUSY, -b.columns if programs(b) >= BUSY else b.columns))

    def time(blocks: Blocks) -> float:
        return -(-programs(blocks) // PROCESSORS) * blocks.rows * blocks.columns / blocks.work

    small = _SMALL if sizes.inner <= 128 else ()
    return [*sorted((b for b in _MANY if b.columns >= 16 * products), key=time), *small]


def shared(sizes: Sizes, products: int, blocks: Blocks) -> Blocks:
    """The same for a GPU with clusters: two programs share a long inner axis of a product with few rows."""
    if sizes.packed and blocks.rows == 16 and sizes.inner % 256 == 0:
        return replace(blocks, parts=2)  # 16 rows by (2048, 2048) take 5.7 us on an H200 (7.7 alone)
    alone = -(-sizes.columns // blocks.columns) <= PROCESSORS and products == 1 and blocks.rows in (16, 64)
    if not (alone and sizes.is_narrow and sizes.inner >= _LONG and sizes.inner % (2 * blocks.inner) == 0):
        return blocks
    wide = [one for one in _FEW if one.rows == blocks.rows == 64 and one.columns == 32]
    return replace(wide[0] if wide else blocks, parts=2)


def print_product(kernel: Kernel, tune: bool = False, clusters: bool = False) -> Program:
    """The kernel as one launch. Raises NotCovered where operands do not have the axes of a product."""
    axes = axes_of(kernel)
    first = kernel.reductions[0].value
    if axes is None or not isinstance(first, Product):
        raise NotCovered("a product whose operands do not lie along its axes")
    count, scratch = len(kernel.reductions), [0] * len(kernel.reductions)
    found = blocks_of(first.sizes, count)[:None if tune else 1]
    if clusters:
        found = [shared(first.sizes, count, blocks) for blocks in found]
    texts = [_Emitter(kernel, axes, blocks, scratch).text() for blocks in found]
    return Program(texts[:1], scratch if scratch[0] else [], variations=[texts[1:]] if tune else [])


class _Emitter(Emitter):
    """Prints one launch."""

    #: products of split operands: whether there may be infinities
    careful = False

    def __init__(self, kernel: Kernel, axes: ProductAxes, blocks: Blocks, scratch: list[int]) -> None:
        count = power_of_two(len(kernel.reductions))
        first = kernel.reductions[0].value
        assert isinstance(first, Product)
        self.dtype, self.sums, self.split = first.sizes.dtype, first.dtype, first.sizes.is_split
        self.packed = first.sizes.packed
        high, wide = (kernel.hint(prod(tuple(axis.size for axis in found))) for found in (axes.rows, axes.columns))
        #: whether the right operand has the rows of tiles: the longer side, where the product was turned
        self.turned = high == first.sizes.columns and wide == first.sizes.rows and high < wide
        if self.turned:
            axes = ProductAxes(axes.batch, axes.columns, axes.rows, axes.inner)
        inner = prod(tuple(axis.size for axis in axes.inner))
        depth = max(16 if self.dtype.itemsize > 1 else 32, min(blocks.inner, power_of_two(kernel.hint(inner))))
        while depth > 32 and kernel.hint(inner) % depth:
            depth //= 2  # whole steps need no mask
        depth = prod(tuple(axis.size for axis in axes.inner[1:])) if self.packed else depth  # tiles of words
        self.x, self.y = Tile("x", axes.rows, blocks.rows), Tile("y", axes.columns, blocks.columns // count)
        #: the inner axis, as it lies in the left operand's tiles and in those of the right one
        self.r, self.s = (Tile(name, axes.inner, depth, reduced=True) for name in "rs")
        #: the columns as the rows of a tile of packed numbers, whose neighbours along the inner axis are a word's
        self.c = Tile("lane_y", axes.columns, self.y.block)
        self.z = Tile("z", axes.batch, 1)
        tiles = [*([self.z] if axes.batch else []), self.x, self.y]
        super().__init__(kernel, Launch(tiles, blocks.warps, self.r, cluster=blocks.parts), stem_of(kernel))
        self.stages, self.parts, self.areas = blocks.stages, blocks.parts, scratch
        operands = (*kernel.reads, *kernel.writes)
        rows = {axis.size for axis in axes.rows if not isinstance(axis.size, int)}
        if rows and all(isinstance(size, int) or size in rows for value in operands for size in value.shape):
            # these are few: see `Choice.few`
            self.wide = any(kernel.hint(prod(tuple(FEW_ROWS[-1] if size in rows else size for size in value.shape)))
                            >= 1 << 30 for value in operands)
        #: words of a step that hold two numbers each, while packed numbers are computed
        self.words: dict[tuple[Value, Index], str] | None = None

    def text(self) -> KernelText:
        kernel = self.kernel
        self._begin()
        shape = f"[{self.x.block}, {self.y.block}]"
        sums = [self.fresh("sums") for _ in kernel.reductions]
        self._walk(shape, sums)
        if self.split:  # nothing is known of the small parts of infinities: these are left out where there are any
            self.careful = True
            with self.block(f"if {' or '.join(f'has_unknown({name})' for name in sums)}:"):
                self._walk(shape, sums)
        self._look_at(self.x, self.y)
        grid = prod(tuple(tile.count for tile in self.launch.tiles))
        if self.parts == 1:
            self._conclude(sums)
            return self.finish((grid,))
        at = f"tl.arange(0, {self.x.block})[:, None] * {self.y.block} + tl.arange(0, {self.y.block})[None, :]"
        self.add(f"place = {at}")
        size, pointers = self.x.block * self.y.block, [self.scratch(k, self.sums) for k in range(len(sums))]
        for number, (pointer, name) in enumerate(zip(pointers, sums, strict=True)):
            self.write(pointer, f"(tile * {self.parts} + part) * {size} + place", name, [])
            self.areas[number] = max(self.areas[number], kernel.hint(grid) * self.parts * size * 4)
        self.add("hand_over()")
        with self.block("if part == 0:"):
            for pointer, name in zip(pointers, sums, strict=True):
                for part in range(1, self.parts):
                    self.add(f"{name} += tl.load({pointer} + ((tile * {self.parts} + {part}) * {size} + place), "
                             'cache_modifier=".cg")')
            self._conclude(sums)
        return self.finish((grid * self.parts,))

    def _conclude(self, sums: list[str]) -> None:
        """Compute and store the results."""
        for reduction, name in zip(self.kernel.reductions, sums, strict=True):
            self.names[reduction.result] = name
        self.emit([store.expr for store in self.kernel.stores])
        for store in self.kernel.stores:
            self.store(store.value, store.index, store.expr)

    def _walk(self, shape: str, sums: list[str]) -> None:
        """Compute the sums."""
        for name in sums:
            self.add(f"{name} = tl.full({shape}, 0, {TYPES[self.sums]})")
        if self.r.count == 1:
            self._step(sums, "0")
        else:
            first, end = "0", self.size(self.r.size)
            if self.parts > 1:
                part = self.kernel.hint(self.r.size) // self.parts
                first, end = f"part * {part}", f"part * {part} + {part}"
            with self.block(f"for at in range({first}, {end}, {self.r.block}):"):
                self._step(sums, "at")

    def _begin(self) -> None:
        """Which tile this program has: programs that follow each other share rows and columns of tiles."""
        high, wide = self.x.count, self.y.count
        self.add("pid = tl.program_id(0)" + (".to(tl.int64)" if self.wide else ""))
        if self.parts > 1:
            self.add(f"part, tile = pid % {self.parts}, pid // {self.parts}")
            self.add("pid = tile")
        self._look_at(self.x, self.y)
        if self.z in self.launch.tiles:
            self.define(self.z, f"pid // {self.size(high * wide)}")
            self.add(f"pid = pid % {self.size(high * wide)}")
        if high == 1:
            self.add("row, column = 0, pid")
        elif self.kernel.hint(high) <= BAND:
            self.add(f"row, column = pid % {self.size(high)}, pid // {self.size(high)}")
        else:
            self.add(f"first = pid // {self.size(BAND * wide)} * {BAND}")
            self.add(f"band = tl.minimum({self.size(high)} - first, {BAND})")
            self.add(f"pid = pid % {self.size(BAND * wide)}")
            self.add("row, column = first + pid % band, pid // band")
        self.define(self.x, "row")
        self.define(self.y, "column")
        if self.packed:
            self._look_at(self.c, self.s)
            self.define(self.c, "column")

    def _look_at(self, *tiles: Tile) -> None:
        """From now on these are the axes of the program's tensors."""
        self.blocks = list(tiles)
        for tile in tiles:
            self.tile_of.update(dict.fromkeys(tile.axes, tile))

    def _step(self, sums: list[str], at: str) -> None:
        """Add the products of one tile of each operand."""
        outside = dict(self.names)
        pairs = [reduction.expr.args[::-1] if self.turned else reduction.expr.args
                 for reduction in self.kernel.reductions]
        sides = []
        across = (self.c, self.s) if self.packed else (self.s, self.y)
        for side, (tiles, inner) in enumerate((((self.x, self.r), self.r), (across, self.s))):
            self.names = dict(outside)
            self._look_at(*tiles)
            lanes = self.lanes(inner)
            self.add(f"{inner.name} = {lanes if at == '0' else f'{at} + {lanes}'}")
            self.split_axes(inner)
            self.zero_outside = True
            known: dict[Expr, str] = {}
            for pair in pairs:
                if pair[side] not in known:
                    known[pair[side]] = self._operand(pair[side], inner, "left" if side == 0 else "right", at)
            self.zero_outside = False
            sides.append([known[pair[side]] for pair in pairs])
        self.names = outside
        if self.split:
            self._add_split(sums, *sides)
            return
        options = {torch.float32: ', input_precision="ieee"', torch.int8: ", out_dtype=tl.int32"}.get(self.dtype, "")
        for name, left, right in zip(sums, *sides, strict=True):
            right = f"tl.trans({right})" if self.packed else right
            self.add(f"{name} = tl.dot({left}, {right}, {name}{options})")

    def _add_split(self, sums: list[str], lefts: list[str], rights: list[str]) -> None:
        """Add the products of tiles in float32, each the sum of three tiles in bfloat16. The tensor cores cut what does
        not fit their sums, so these begin anew at each step, with what is small."""
        parts = {side: [self.fresh(f"{side}_{size}") for size in ("large", "middle", "small")]
                 for side in dict.fromkeys((*lefts, *rights))}
        for side, names in parts.items():
            self.add(f"{', '.join(names)} = three_parts({side})")
        for total, left, right in zip(sums, lefts, rights, strict=True):
            found = self.fresh("found")
            for number, (i, k) in enumerate(((2, 0), (0, 2), (1, 1), (1, 0), (0, 1), (0, 0))):
                if self.careful and (i, k) == (0, 0):
                    self.add(f"{found} = tl.where({found} == {found}, {found}, 0.0)")
                before = f", {found}" if number else ""
                self.add(f"{found} = tl.dot({parts[left][i]}, {parts[right][k]}{before})")
            self.add(f"{total} += {found}")

    def _unpacked(self, expr: Expr, at: str) -> str:
        """A tile of packed numbers. The numbers of a word are computed apart, each for all words, and joined: where
        threads have words, tensor cores expect what is in them."""
        step, *words, eighth, pair, odd = self.s.axes
        tile = Tile("lane_s", [step, pair, *words], self.s.block // 8, reduced=True)
        self._look_at(self.c, tile)
        self.add(f"{tile.name} = {'' if at == '0' else f'{at} // 8 + '}{self.lanes(tile)}")
        self.split_axes(tile)
        self.axis_names[step] = at if at == "0" else f"{at} // {self.s.block}"  # the same for the whole step
        self.words = {}
        parts = []
        for place in itertools.product(range(4), range(2)):
            one = _at(expr, {axis: Index(const=number) for axis, number in zip((eighth, odd), place, strict=True)})
            self.emit([one])
            parts.append(rounded(self.printer.tensor(one), self.dtype))
        self.words = None
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [f"tl.join({one}, {other})" for one, other in zip(parts[:half], parts[half:], strict=True)]
        split = f"tl.reshape({parts[0]}, [{self.c.block}, 4, {self.s.block // 32}, 4, 2])"
        return f"tl.reshape(tl.permute({split}, (0, 2, 3, 1, 4)), [{self.c.block}, {self.s.block}])"

    def _load(self, expr: Expr) -> str:
        """Two neighbours in bfloat16 beside packed numbers are read as a word: shorter loads are not under way ahead.
        Eager's kernel needs words in memory, too."""
        value, index = expr.attr
        if self.words is None or value.dtype is not torch.bfloat16 or any(step % 2 for _, step in index.terms):
            return super()._load(expr)
        place = Index(tuple((atom, step // 2) for atom, step in index.terms), index.const // 2)
        name = self.words.get((value, place))
        if name is None:
            name = self.words[value, place] = self.fresh("word_of")
            masks = self.masks(self.tiles_of(expr.axes))
            mask = f", mask={' & '.join(masks)}, other=0" if masks else ""
            pointer = f"{self.parameters[value]}.to(tl.pointer_type(tl.int32))"
            self.add(f"{name} = tl.load({pointer} + ({self.index(place)}){mask})")
        half = f"{name} & -65536" if index.const % 2 else f"{name} << 16"
        return f"({half}).to(tl.float32, bitcast=True)"

    def _operand(self, expr: Expr, inner: Tile, stem: str, at: str) -> str:
        """A tile of an operand in its own dtype: zeros behind the end of the inner axis."""
        name = self.fresh(stem)
        if expr.op == "load" and expr.attr[0].dtype is self.dtype and not expr.args:
            self.add(f"{name} = {self.loaded(expr)}")
            return name
        if expr.op == "round_to" and expr.attr is self.dtype:
            expr = expr.args[0]
        if self.packed and stem == "right":
            self.add(f"{name} = {self._unpacked(expr, at)}")
            return name
        self.emit([expr])
        text = self.printer.tensor(expr)
        text = f"tl.where({inner.name}_in, {text}, 0)" if inner.masked else text
        self.add(f"{name} = {text if expr.dtype is self.dtype else rounded(text, self.dtype)}")
        return name


def _at(expr: Expr, places: dict[Axis, Index]) -> Expr:
    """The expression where some axes are numbers."""
    if not expr.axes.intersection(places):
        return expr
    builder, args = ScalarBuilder(), tuple(_at(one, places) for one in expr.args)
    if expr.op == "index":
        return builder.index(expr.attr.replace(places))
    if expr.op == "cast":
        return builder.cast(args[0], expr.dtype)
    return builder.make(expr.op, args, expr.dtype, expr.attr)


__all__ = ["Blocks", "blocks_of", "print_product", "shared"]
