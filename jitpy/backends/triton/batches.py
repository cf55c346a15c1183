"""Several kernels as one launch: those that do the same to many tensors, as an optimizer's updates, and small ones.

All operands are parameters of the kernel. A program's number says which tensors are its own: it chooses their pointers,
and then does what the kernel for them alone does.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

from ...ir.spec import Dim
from ...schedule.loops import Kernel
from .emitter import Emitter, KernelText, Parameter, Program, stem_of
from .helpers import module
from .tiles import ENOUGH_PROGRAMS, Launch, Tile, block_of, ceil_div, power_of_two

#: The number of elements of the tensors that a program works on: a size that is only ever named.
COUNT: Any = object()


class _BatchEmitter(Emitter):
    """Prints the body of one part, for tensors of `count` elements."""

    def size(self, size: Dim) -> str:
        return "count" if size is COUNT else super().size(size)


def print_batch(batch: Kernel) -> Program:
    """The kernels of a batch as one launch. Their sizes are known, and their bodies are equal."""
    counts = [int(part.points) for part in batch.parts]
    total = sum(counts)
    block = min(block_of(batch.parts[0]), power_of_two(max(total // ENOUGH_PROGRAMS, 128)))
    return Program([_print(batch, counts, block if batch.parts[0].axes else 1)])


def _print(batch: Kernel, counts: list[int], block: int) -> KernelText:
    first = batch.parts[0]
    tile = Tile("x", list(first.axes), block)
    tile.size = COUNT
    emitter = _BatchEmitter(first, Launch([tile], max(1, min(4, block // 128))), stem_of(batch))
    emitter.wide = False
    names = dict(emitter.parameters)
    parameters: dict[Parameter, str] = {}
    for part in batch.parts:
        for value in (*part.reads, *part.writes):
            parameters.setdefault(value, f"p{len(parameters)}")
    grid = _choose_part(emitter, batch, names, parameters, counts, block)
    emitter.define(tile, "pid - start")
    emitter.emit([s.expr for s in first.stores])
    for store in first.stores:
        emitter.store(store.value, store.index, store.expr)
    emitter.parameters = parameters
    return emitter.finish((grid,))


def _choose_part(emitter: Emitter, batch: Kernel, names: dict[Parameter, str], parameters: dict[Parameter, str],
                 counts: list[int], block: int) -> int:
    """Give a program's operands the names that the body uses; returns how many programs there are."""
    operands = [[*part.reads, *part.writes] for part in batch.parts]
    starts = list(accumulate((int(ceil_div(count, block)) for count in counts), initial=0))
    emitter.add("pid = tl.program_id(0)")

    def choose(first: int, last: int) -> None:
        """Halve the parts until one is left: there may be hundreds."""
        middle = (first + last) // 2
        if middle > first:
            for head, part in ((f"if pid < {starts[middle]}:", (first, middle)), ("else:", (middle, last))):
                with emitter.block(head):
                    choose(*part)
            return
        emitter.add(f"start = {starts[first]}")
        emitter.add(f"count = {counts[first]}")
        for name, value in zip(names.values(), operands[first], strict=True):
            emitter.add(f"{name} = {parameters[value]}")

    choose(0, len(counts))
    return starts[-1]


def print_beside(kernel: Kernel, programs: list[Program]) -> Program:
    """Kernels that do not depend on each other, each a function that some of the programs call. Those that are several
    launches stay apart."""
    apart = [text for program in programs if len(program.launches) > 1 for text in program.launches]
    texts = [program.launches[0] for program in programs if len(program.launches) == 1]
    return Program([*apart, *([_beside(texts, stem_of(kernel))] if texts else [])])


def _beside(texts: list[KernelText], name: str) -> KernelText:
    kinds: dict[Parameter, tuple[str, str]] = {}
    divisible, functions, starts = set(), [], [0]
    lines = ["program = tl.program_id(0)"]
    for number, text in enumerate(texts):
        for (own, kind), parameter in zip(text.signature, text.parameters, strict=True):
            given, _ = kinds.setdefault(parameter, (f"p{len(kinds)}", kind))
            divisible |= {given} if own in text.divisible else set()
        function = text.source[text.source.rindex("@triton.jit"):]
        head, body = function.replace("tl.program_id(0)", "program").split("(", 1)
        functions.append(f"{head.replace(text.name, f'part{number}')}(program, {body}")
        passed = ", ".join([f"program - {starts[-1]}", *(kinds[one][0] for one in text.parameters)])
        starts.append(starts[-1] + int(text.grid[0]))
        lines += [f"if (program >= {starts[-2]}) & (program < {starts[-1]}):", f"    part{number}({passed})"]
    signature = list(kinds.values())
    head = f"@triton.jit\ndef {name}({', '.join(one for one, _ in signature)}):\n"
    whole = "\n\n".join([*functions, head + "".join(f"    {line}\n" for line in lines)])
    first = texts[0]
    return replace(first, source=module(whole), name=name, signature=signature, parameters=list(kinds),
                   grid=(starts[-1],), warps=max(text.warps for text in texts),
                   checks=any(text.checks for text in texts), short=all(text.short for text in texts),
                   divisible=frozenset(divisible),
                   values=list(dict.fromkeys(value for text in texts for value in text.values)))
