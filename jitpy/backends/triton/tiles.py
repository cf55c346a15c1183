"""How a loop nest is cut into programs: a small model of what one program should hold.

A tile is a run of loop axes, taken as one flat index, of which a program holds `block` neighbours side by side. Tiles
with a block of 1 are plain numbers in the program. The numbers here are for GPUs with some hundred multiprocessors and
16-byte loads; they decide speed, never results.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ...ir.sizes_expr import floordiv
from ...ir.spec import Dim, prod
from ...schedule.expr import COST, Expr, walk
from ...schedule.index import Axis, Index
from ...schedule.loops import Kernel
from ...schedule.values import Product

#: Programs that fill the chip a few times over.
ENOUGH_PROGRAMS = 1024
#: The longest row that is kept in registers.
LONGEST_ROW = 16384
#: Points of a kernel that is bound by bandwidth alone.
LARGE = 1 << 25
#: Bytes of a row up to which the second level cache holds all the rows that the chip works on at a time.
CACHED_ROW = 3 << 16
#: Bytes of a row that a program of 32 warps can hold, in half of its registers.
HELD_ROW = 1 << 17
#: Bytes of a row of which a program of a cluster holds a part: four such programs fill a multiprocessor.
SHARED_PART = 1 << 15
#: Bytes of a row up to which one program that reads it once more, from the cache, is as fast as a cluster.
CLUSTERED_ROW = CACHED_ROW
#: Cost of what is computed for each element behind the last reduction (of a SiLU, say) from which a cluster is faster
#: with rows of `HELD_ROW` bytes, too: the parts of four rows fill a multiprocessor, and compute in turn.
COSTLY = 16
#: Cost from which a program of 32 warps that holds such a row is faster than a cluster of twice as many programs, and
#: from which parts larger than `SHARED_PART` are slower than walking the row twice.
LIGHTEST = 5
#: Programs of a cluster that every GPU with clusters can run. Of longer rows each has more threads: 128 bytes of a row
#: for each, up to what the largest program can hold.
LARGEST_CLUSTER = 8
THREADS_PART, LARGEST_PART = 128, 1 << 17
#: Bytes between the row that a program holds and the one that it asks the second level cache for: half of what all
#: programs hold at a time, which is under way to memory while they compute.
FETCHED_AHEAD = 6 << 20
#: Multiprocessors of the GPU for whose kernels all programs are at work at the same time.
MULTIPROCESSORS = 132
#: The longest row of these: a program holds the next one, too, and a number for each column.
LONGEST_AHEAD = 8192
#: The longest of these: the time for computing, when nothing is read, grows with it.
LONGEST_HELD = 32768
#: Parts of a row that is scanned: each program reads what all those in front of it have found.
MOST_PARTS = 4096
#: Side of the tiles of transposing kernels, in elements.
SQUARE = 64


@dataclass(slots=True, eq=False)
class Tile:
    """Axes (outermost first) as one index `name`, `block` neighbours a program."""

    name: str
    axes: list[Axis]
    block: int
    reduced: bool = False
    #: position among the tensor's axes in the program; None for a number
    place: int | None = None
    #: while what is printed is known to stay within the size
    inside: bool = False
    #: while what is printed begins in front of the first element, and ends inside
    early: bool = False
    size: Dim = field(init=False)

    def __post_init__(self) -> None:
        self.size = prod(tuple(a.size for a in self.axes))

    @property
    def masked(self) -> bool:
        """Whether blocks may reach beyond the end."""
        if self.early:
            return True
        return self.block > 1 and not self.inside and not (type(self.size) is int and self.size % self.block == 0)

    @property
    def count(self) -> Dim:
        """How many blocks there are."""
        return ceil_div(self.size, self.block)


@dataclass(slots=True)
class Launch:
    """How a kernel is cut: `tiles` share out the programs, first one outermost; `r` is walked by each program."""

    tiles: list[Tile]
    warps: int
    r: Tile | None = None
    #: programs that share a reduction, and add to scratch memory; 1: none do
    splits: int = 1
    #: groups of a program's threads, warps as it were, that leave a result each
    groups: int = 1
    #: these take chunks in turn, so that what they read at a time lies together, not a part each
    turns: bool = False
    #: blocks of `r` that are read together in a loop: loads under way while others are added up
    together: int = 1
    #: rows are read more than once, and what the chip works on at a time fits its cache
    cached: bool = False
    #: the last pass begins with what the one before it read last, and a cache still has
    backward: bool = False
    #: a program holds its whole row in registers, as it is in memory, in blocks of `r`
    held: bool = False
    #: how many rows ahead of its own a program asks the second level cache for; 0: it does not
    fetched: int = 0
    #: programs that hold a row together, each a part of it, and hand their results to each other
    cluster: int = 1
    #: the most registers a thread, so that several programs share a multiprocessor; None: as the compiler likes
    registers: int | None = None


def ceil_div(size: Dim, width: Dim) -> Dim:
    """Into how many pieces of `width` the size falls."""
    return floordiv(size + width - 1, width)


def power_of_two(number: int) -> int:
    """The least power of two that is no smaller."""
    return 1 << max(0, number - 1).bit_length()


def place_tiles(tiles: list[Tile]) -> list[Tile]:
    """Number the tiles that become axes of the program's tensors; returns these."""
    found = [tile for tile in tiles if tile.block > 1]
    for k, tile in enumerate(found):
        tile.place = k
    return found


def widest(kernel: Kernel) -> int:
    """The item size of most of the memory that is touched."""
    large = [v for v in (*kernel.reads, *kernel.writes) if kernel.hint(v.numel) * 4 >= kernel.hint(kernel.points)]
    return max((v.dtype.itemsize for v in large), default=4)


def block_of(kernel: Kernel) -> int:
    """Elements of a program of a pointwise kernel: two or so wide loads a thread and operand."""
    block = {1: 2048, 2: 2048, 4: 1024, 8: 512}[widest(kernel)]
    conditional = any(e.op == "load" and e.args for e in kernel.stage)
    return block // 2 if conditional or len(kernel.reads) + len(kernel.writes) > 8 else block


def map_launch(kernel: Kernel) -> Launch:
    """Tiles of a kernel without reductions."""
    across = _axis_across(kernel)
    if across is not None:
        assert kernel.vector is not None
        return _square_launch(kernel, across, kernel.vector)
    hint = kernel.hint
    points = hint(kernel.points)
    block = min(block_of(kernel), power_of_two(max(points // ENOUGH_PROGRAMS, 128)), max(power_of_two(points), 2))
    warps = max(1, min(4, block // 128))
    vector = kernel.vector
    if vector is not None and len(kernel.axes) > 1 and type(vector.size) is int:
        width = block
        while vector.size % width and width > block // 4:
            width //= 2
        if vector.size % width and vector.size >= 8 * block:
            width = block
        if width >= 128 and (vector.size % width == 0 or vector.size >= 8 * block):
            outer = [a for a in kernel.axes if a is not vector]
            rows = _rows_side_by_side(kernel, outer, block // width)
            return Launch([Tile("y", outer, rows), Tile("x", [vector], width)], max(1, min(4, rows * width // 128)))
    return Launch([Tile("x", list(kernel.axes), block)], warps)


def _rows_side_by_side(kernel: Kernel, outer: list[Axis], most: int) -> int:
    """How many short rows a program takes: all that fit, where operands that all rows share would be read for each."""
    shared = sum(kernel.hint(v.numel) == kernel.hint(kernel.vector.size) for v in kernel.reads) if kernel.vector else 0
    return min(most, power_of_two(kernel.hint(prod(tuple(a.size for a in outer))))) if shared > 2 else 1


def _axis_across(kernel: Kernel) -> Axis | None:
    """An axis along which some operand is contiguous while the vector axis strides over it."""
    vector = kernel.vector
    if vector is None or kernel.hint(vector.size) < 16:
        return None
    indices = [s.index for s in kernel.stores]
    indices += [e.attr[1] for e in kernel.stage if e.op == "load"]
    for index in indices:
        for axis in kernel.parallel:
            if axis is not vector and kernel.hint(axis.size) >= 16 and _is_across(kernel, index, vector, axis):
                return axis
    return None


def _is_across(kernel: Kernel, index: Index, vector: Axis, other: Axis) -> bool:
    step = index.coefficient(vector)
    if step is None or type(step) is int and step in (0, 1) or kernel.hint(step) < 16:
        return False
    return index.coefficient(other) == 1 and not any(isinstance(atom, Expr) for atom, _ in index.terms)


def _square_launch(kernel: Kernel, other: Axis, vector: Axis) -> Launch:
    hint = kernel.hint
    outer = [a for a in kernel.axes if a is not vector and a is not other]
    side = SQUARE if widest(kernel) <= 2 else SQUARE // 2
    length = SQUARE
    if side == SQUARE and hint(kernel.points) >= LARGE and len(kernel.reads) + len(kernel.writes) <= 3:
        side = length = 2 * SQUARE
    y = Tile("y", [other], min(side, power_of_two(hint(other.size))))
    x = Tile("x", [vector], min(length, power_of_two(hint(vector.size))))
    tiles = [y, x]
    if outer:
        tiles.insert(0, Tile("z", outer, 1))
    return Launch(tiles, 8 if y.block * x.block >= 4096 else 4)


def reduction_launch(kernel: Kernel, stages: int, passes: int, clusters: bool = False) -> Launch:
    """Tiles of a kernel with reductions in so many stages, for which long rows are read in so many passes. One stage
    can be shared by several programs; where the GPU has clusters of programs, several stages can."""
    hint = kernel.hint
    reduced, parallel = kernel.reduced, kernel.parallel
    length: Dim = prod(tuple(a.size for a in reduced))
    count = hint(prod(tuple(a.size for a in parallel)))
    rows = kernel.vector is None or kernel.vector.reduced
    row = power_of_two(hint(length))
    static = type(length) is int
    if rows:
        tile = 2048 if widest(kernel) <= 2 else 1024
        # long rows leave no registers for what all of them share: it is read block by block
        shares = passes > 1 and row > LONGEST_ROW // 2 and _shared_bytes(kernel) >= 2 * _row_bytes(kernel)
        if static and row <= LONGEST_ROW and not shares and not (stages == 1 and count < 64 and row > 4096):
            is_product = any(isinstance(one.value, Product) for one in kernel.reductions)
            tile = 4096 // max(2, widest(kernel)) if is_product else tile
            width = max(1, min(tile // row, power_of_two(count), power_of_two(max(1, count // ENOUGH_PROGRAMS))))
            reads = not any(a.reduced for store in kernel.stores for a in store.index.all_axes())
            each = 1024 if stages > 1 and (row >= 4096 or reads) else 512
            warps = max(1, min(16, width * row // each))
            if is_product:  # a wide load a thread, and two of long rows
                bytes_ = width * row * widest(kernel)
                warps = max(min(warps, 4), min(32, bytes_ // 1024), min(8, bytes_ // 512) if width == 1 else 1)
            return _launch(parallel, width, reduced, max(row, 2), warps)
        if passes > 1 and clusters:
            shared = _cluster_launch(kernel, length)
            if shared is not None:
                return shared
        short = row <= LONGEST_HELD and not shares or _cost_behind(kernel) >= LIGHTEST
        if passes > 1 and short and _row_bytes(kernel) <= HELD_ROW and _start_aligned(kernel, length):
            warps = 32 if 2 * _row_bytes(kernel) > HELD_ROW else 16
            launch = _launch(parallel, 1, reduced, warps * 256, warps)  # a wide load or two a thread and block
            launch.held, launch.registers = True, 64
            if warps == 32:  # two programs of 16 take turns anyway
                launch.fetched = FETCHED_AHEAD // _row_bytes(kernel)
            return launch
        if stages == 1 and count < ENOUGH_PROGRAMS // 2 and hint(kernel.points) >= LARGE:
            block, warps, together = 4 * tile, 16, 1  # one block a program: two wide loads a thread
        elif stages == 1:  # many programs with a few blocks each
            block, warps, together = 4096 if widest(kernel) <= 4 else 2048, 4, 1
        elif passes > 1 and _row_bytes(kernel) > CACHED_ROW:  # what a row's last part left in the cache is read first
            block, warps, together = 8192 if widest(kernel) <= 2 else 4096, 32, 2
        elif passes > 1 and _start_aligned(kernel, length):  # few rows at a time, in the cache for the next pass
            block, warps, together = 4096, 16, 4
        elif passes > 1:  # the same with narrower loads
            block, warps, together = 2048, 16, 4
        else:
            block, warps, together = 4096, 16, 4
        block = min(row, block)
        launch = _launch(parallel, 1, reduced, max(block, 2), max(1, min(warps, block // 128)))
        launch.together, launch.cached = together, passes > 1
        launch.registers = 64 if warps == 16 and passes > 1 else None
        launch.backward = passes > 1 and _row_bytes(kernel) > CACHED_ROW
    else:
        width = min(power_of_two(hint(parallel[-1].size)), 256 // widest(kernel))
        if static and row * width <= 8192 and (stages > 1 or row <= 64):
            while row * width < 1024 and width < hint(parallel[-1].size):
                width *= 2
            return _launch(parallel, max(width, 1), reduced, max(row, 2), max(1, min(8, row * width // 512)))
        if stages == 1 and hint(kernel.points) >= LARGE:
            launch = _launch(parallel, width, reduced, max(min(row, 1024 // width), 2), 4)
            launch.turns = True
            launch.groups = launch.warps if width > 1 else 1
            large = sum(2 * hint(v.numel) >= hint(kernel.points) for v in kernel.reads)
            launch.together = max(1, 8 // widest(kernel) // max(1, large))  # four wide loads a thread
        else:
            launch = _launch(parallel, width, reduced, max(min(row, max(16, 2048 // width)), 2), 4)
            launch.together = 2
    if stages == 1 and launch.r is not None:
        launch.splits = _splits(kernel, launch, count)
    if launch.splits == 1:
        launch.groups = 1
        last = parallel[-1:]
        if not rows and len(parallel) > 1 and hint(last[0].size) >= 4 * width and hint(last[0].size) % width:
            # neighbours of one row only: else threads cannot tell that they lie together
            launch.tiles = [Tile("y", list(parallel[:-1]), 1), Tile("x", last, width)]
    return launch


def _cluster_launch(kernel: Kernel, length: Dim) -> Launch | None:
    """Rows that are held by clusters, each program with an equal part in its registers, in whole blocks of wide loads;
    None where rows are shorter or longer, or do not come out even."""
    if type(length) is not int or any(type(a.size) is not int for a in kernel.parallel):
        return None
    bytes_ = _row_bytes(kernel)
    cluster = min(LARGEST_CLUSTER, power_of_two(-(-bytes_ // SHARED_PART)))
    if cluster < 2 or bytes_ > LARGEST_CLUSTER * LARGEST_PART:
        return None
    cost = _cost_behind(kernel)
    if bytes_ == HELD_ROW and length > LONGEST_HELD and cost < LIGHTEST:
        cluster *= 2
    elif bytes_ <= CLUSTERED_ROW and not (bytes_ == HELD_ROW and length > LONGEST_HELD and cost >= COSTLY):
        return None
    if bytes_ > LARGEST_CLUSTER * SHARED_PART and not _is_light(kernel):
        return None
    most = max(8 if _shared_bytes(kernel) else 4, power_of_two(-(-bytes_ // (cluster * THREADS_PART * 32))))
    for warps in (8, 4) if most == 8 else (most,):
        block = warps * 32 * 16 // widest(kernel)
        if length % (cluster * block) == 0:
            if warps == 16 and _shared_bytes(kernel):
                warps, block = 32, 2 * block
            launch = _launch(kernel.parallel, 1, kernel.reduced, block, warps)
            launch.held, launch.cluster = True, cluster
            launch.registers = 64
            launch.fetched = FETCHED_AHEAD // bytes_
            return launch
    return None


def _is_light(kernel: Kernel) -> bool:
    """Whether programs that have a multiprocessor to themselves, or half of it, compute for a short time only while
    nothing is read. With rows of 262,144 softmax, norms and softmax's gradient gain; other gradients lose."""
    points, stages = kernel.hint(kernel.points), max(kernel.stage.values(), default=0)
    operands = sum(2 * kernel.hint(value.numel) >= points for value in kernel.reads)
    return _cost_behind(kernel) < LIGHTEST and (operands < 2 or stages < 2)


def _cost_behind(kernel: Kernel) -> int:
    """The cost of what is computed for each element from the results of the last reduction."""
    last = max(kernel.stage.values(), default=0)
    found = walk(s.expr for s in kernel.stores if any(a.reduced for a in s.expr.axes))
    return sum(COST.get(e.op, 1) for e in found
               if kernel.stage[e] == last and e.args and e.op != "load" and any(a.reduced for a in e.axes))


def scan_launch(kernel: Kernel) -> Launch:
    """Tiles of a running combination: programs walk rows in blocks or, where rows are few, have a chunk of one each."""
    hint = kernel.hint
    along, others = kernel.reduced, kernel.parallel
    length: Dim = prod(tuple(a.size for a in along))
    width = 1 if kernel.vector is None else min(32, power_of_two(hint(others[-1].size)))
    block = max(2, min(power_of_two(hint(length)), 2048 // width))
    launch = _launch(others, width, along, block, max(1, min(8, block * width // 256)))
    x, r = launch.tiles[0], launch.r
    assert r is not None
    if type(length) is int and type(x.size) is int and length >= 8 * block:
        programs = ceil_div(x.size, width)
        if hint(programs) < ENOUGH_PROGRAMS // 2:
            wanted = power_of_two(length * x.size // (4 * ENOUGH_PROGRAMS))
            r.block = max(block, max(4096, min(8192 if width == 1 else 4096, wanted)) // width)
            launch.warps = max(1, min(16, r.block * width // 1024))
            launch.splits = hint(ceil_div(length, r.block))
            while launch.splits > MOST_PARTS:
                launch.together *= 2
                launch.splits = hint(ceil_div(length, r.block * launch.together))
    return launch


def crossed_launch(kernel: Kernel) -> Launch:
    """Tiles of a kernel that reduces rows and columns: programs, all of them at work at the same time, take rows in
    turn, sixteen elements a thread, or eight of what is wider."""
    hint = kernel.hint
    length = hint(prod(tuple(a.size for a in kernel.reduced)))
    row, count = max(2, power_of_two(length)), hint(prod(tuple(a.size for a in kernel.parallel)))
    each = 512 if _row_bytes(kernel) <= 4 * length else 256
    warps = max(4, min(32, row // each))
    width = max(1, min(each * warps // row, power_of_two(count)))
    launch = _launch(kernel.parallel, width, kernel.reduced, row, warps)
    launch.registers = min(128, 2048 // warps)
    launch.splits = max(2, min(MULTIPROCESSORS * 2048 // (launch.registers * warps), -(-count // (8 * width))))
    return launch


def _splits(kernel: Kernel, launch: Launch, count: int) -> int:
    """How many programs share a reduction: so many that the chip is full, each with a few blocks to walk."""
    assert launch.r is not None
    if any(type(tile.size) is not int for tile in launch.tiles):
        return 1
    programs = 1
    for tile in launch.tiles:
        programs *= -(-kernel.hint(tile.size) // tile.block)
    blocks = -(-kernel.hint(launch.r.size) // launch.r.block)
    if programs >= ENOUGH_PROGRAMS // 2 or blocks < 4:
        return 1
    wanted, most = ENOUGH_PROGRAMS, blocks // max(2, launch.together)
    if kernel.hint(kernel.points) >= LARGE:  # short programs for rows, long ones for columns
        rows = len(launch.tiles) == 1 and launch.tiles[0].block == 1
        wanted, most = (8 * ENOUGH_PROGRAMS, blocks) if rows else (ENOUGH_PROGRAMS, most)
    return max(1, min(most, -(-wanted // programs), 8192))


def _row_bytes(kernel: Kernel) -> int:
    """The bytes of the operands that belong to one row."""
    hint = kernel.hint
    rows = max(1, hint(prod(tuple(a.size for a in kernel.parallel))))
    large = [v for v in kernel.reads if 2 * hint(v.numel) >= hint(kernel.points)]
    return sum(hint(v.numel) * v.dtype.itemsize for v in large) // rows


def _shared_bytes(kernel: Kernel) -> int:
    """The bytes of the operands that all rows share."""
    hint = kernel.hint
    length = hint(prod(tuple(a.size for a in kernel.reduced)))
    return sum(length * v.dtype.itemsize for v in kernel.reads if hint(v.numel) == length)


def _start_aligned(kernel: Kernel, length: Dim) -> bool:
    """Whether rows of so many elements start at multiples of 16 bytes."""
    return type(length) is int and length * widest(kernel) % 16 == 0


def _launch(parallel: list[Axis], width: int, reduced: list[Axis], block: int, warps: int) -> Launch:
    return Launch([Tile("x", list(parallel), width)], warps, Tile("r", list(reduced), block, reduced=True))


def variations(launch: Launch, kernel: Kernel) -> list[Launch]:
    """Launches of the same kernel that may be faster than `launch`: what tuning measures. Programs that share a
    reduction stay as many."""
    r = launch.r
    if launch.cluster > 1:
        return []  # its parts are as large as a program can hold
    found: dict[tuple[object, ...], Launch] = {}

    def add(warps: int, blocks: dict[str, int], together: int) -> None:
        tiles = [_resized(tile, blocks) for tile in launch.tiles]
        walked = None if r is None else _resized(r, blocks)
        points = 1
        for tile in (*tiles, *([walked] if walked is not None else [])):
            points *= tile.block
        if not 1 <= warps <= 32 or not warps * 32 <= 2 * points <= warps * 32 * 128:
            return
        whole = r is not None and type(r.size) is int and r.size <= r.block
        if walked is not None and not whole and type(walked.size) is int and walked.size <= walked.block * together:
            return
        key = (warps, together, *(tile.block for tile in tiles), walked.block if walked is not None else 0)
        found[key] = replace(launch, tiles=tiles, warps=warps, r=walked, together=together)

    warps = launch.warps
    wide = [tile for tile in launch.tiles if tile.block > 1]
    for number in (warps // 2, warps * 2):
        add(number, {}, launch.together)
    if r is None or type(r.size) is int and r.size <= r.block:  # pointwise, or whole rows
        for tile in wide:
            for factor in (0.5, 2):
                for number in (warps, int(warps * factor)):
                    add(number, {tile.name: int(tile.block * factor)}, 1)
        if len(wide) == 2:
            add(warps, {tile.name: 2 * tile.block for tile in wide}, 1)
        if r is not None and not wide:
            for width in (2, 4):
                add(warps * width, {tile.name: width for tile in launch.tiles[-1:]}, 1)
    else:
        for block, number, together in ((r.block // 2, warps, 2 * launch.together), (r.block * 2, warps, 1),
                                        (r.block, warps, 1), (r.block, warps, 4), (r.block // 4, warps // 2, 4),
                                        (r.block // 4, warps // 4, 4), (r.block // 4, warps, 4)):
            add(number, {r.name: block}, together)
    own = (warps, launch.together, *(tile.block for tile in launch.tiles), r.block if r is not None else 0)
    found.pop(own, None)
    return list(found.values())[:8]


def _resized(tile: Tile, blocks: dict[str, int]) -> Tile:
    """A fresh tile of the same axes. A tile that is an axis of the program's tensors stays one."""
    block = blocks.get(tile.name, tile.block)
    return Tile(tile.name, tile.axes, max(block, 2 if tile.block > 1 else 1), tile.reduced)
