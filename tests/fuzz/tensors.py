"""Random programs about memory and gradients: views, writes in place, what autograd keeps, results that are views.

A program is a straight list of statements on tensors of known shapes. It runs eagerly and jitted on equal arguments;
then the program's caller writes into some arguments and results, and runs a backward pass. Compared: values, errors
with their texts, gradients, `requires_grad`, `is_leaf`, strides, who is a view of whom, who shares memory, and who is
the same object.

    python -m tests.fuzz --kind tensors --minutes 10
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import re
import textwrap
import time
import traceback
import warnings
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

Shape = tuple[int, ...]

#: what a program gets: leaves, plain tensors, a view of a larger one, results of earlier operations, a view of one
PARAMETERS: dict[str, Shape] = {
    "w": (2, 3), "v": (3,), "x": (2, 3), "y": (2, 3), "h": (2, 3), "g": (3,), "z": (3,), "s": (),
}


def arguments(alias: int) -> dict[str, torch.Tensor]:
    """`alias` chooses which arguments share memory."""
    generator = torch.Generator().manual_seed(3)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    w, v = randn(2, 3).requires_grad_(), randn(3).requires_grad_()
    x, base, z, s = randn(2, 3), randn(4, 3), randn(3), randn()
    rows = w * 2 + 1
    found = {"w": w, "v": v, "x": x, "y": base[1:3], "h": w * v, "g": rows[0], "z": z, "s": s}
    if alias == 1:
        found["z"] = x[1]
    elif alias == 2:
        found["y"] = x
    elif alias == 3:
        found["x"] = w.detach()
    elif alias == 4:
        found["x"], found["y"] = base[:2], base[1:3]
    elif alias == 5:
        found["h"] = rows
    elif alias == 6:  # laid out column by column
        found["x"], found["y"] = randn(3, 2).t(), randn(3, 2).t()
    elif alias == 7:
        found["x"], found["z"] = base[1:3], base[2]
    elif alias == 8:
        found["g"], found["h"] = found["h"][1], rows
    return found


#: how many numbers `arguments` takes
ALIASES = 9


@dataclasses.dataclass(frozen=True)
class TensorProgram:
    """lines: the function's body. result: what it returns. alias: see `arguments`; there is a call with `then` behind
    the first two. after: what the caller does when a call has returned."""

    lines: tuple[str, ...]
    result: tuple[str, ...]
    alias: int
    after: tuple[str, ...]
    then: int | None = None

    @property
    def source(self) -> str:
        body = "\n".join(self.lines)
        return (f"def fn({', '.join(PARAMETERS)}):\n    log = []\n{textwrap.indent(body, '    ')}\n"
                f"    return log, {', '.join(self.result)},\n")

    def text(self) -> str:
        after = "\n".join(f"# after: {line}" for line in self.after)
        then = "" if self.then is None else f" then {self.then}"
        return f"{self.source}\n# alias: {self.alias}{then}\n{after}\n"


def parsed(text: str) -> TensorProgram:
    """The program of what `text` wrote."""
    body = text[text.index("    log = []\n"):].split("\n", 1)[1]
    lines, end = body.split("    return log, ", 1)
    result = tuple(name.strip() for name in end.split("\n", 1)[0].split(",") if name.strip())
    alias, then = re.search(r"^# alias: (\d+)(?: then (\d+))?", text, re.M).groups()  # type: ignore[union-attr]
    return TensorProgram(tuple(statements(textwrap.dedent(lines))), result, int(alias),
                         tuple(re.findall(r"^# after: (.*)$", text, re.M)), None if then is None else int(then))


def statements(text: str) -> list[str]:
    """Top-level statements, blocks as one."""
    found: list[str] = []
    for line in text.splitlines():
        if line.startswith((" ", "except")) and found:
            found[-1] += "\n" + line
        elif line:
            found.append(line)
    return found


class Drawing:
    """Draws one program."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.shapes: dict[str, Shape] = dict(PARAMETERS)
        self.count = 0

    def program(self) -> TensorProgram:
        lines = [self.statement() for _ in range(self.random.randint(2, 9))]
        names = [name for name in self.shapes if name not in PARAMETERS]
        names = self.random.sample(names, min(len(names), self.random.randint(1, 4)))
        names += self.random.sample(list(PARAMETERS), self.random.choice((0, 0, 1)))
        result = tuple(names or ["x"])
        after = tuple(self.later(result) for _ in range(self.random.choice((0, 0, 1, 2))))
        alias = self.random.choice((0, 0, 0, *range(1, ALIASES)))
        then = self.random.randrange(ALIASES) if self.random.random() < 0.25 else None
        return TensorProgram(tuple(lines), result, alias, after, then)

    def some(self, shape: Shape | None = None) -> str:
        names = [name for name, own in self.shapes.items() if shape is None or own == shape]
        recent = names[-4:]
        return self.random.choice(recent if self.random.random() < 0.5 else names) if names else f"torch.ones({shape})"

    def new(self, shape: Shape) -> str:
        self.count += 1
        name = f"t{self.count}"
        self.shapes[name] = shape
        return name

    def operand(self, shape: Shape) -> str:
        """Something that broadcasts to a shape."""
        fitting = [shape, ()] + ([shape[-1:]] if shape else [])
        if self.random.random() < 0.25:
            return self.random.choice(("0.5", "2", "-1.5"))
        known = [s for s in fitting if s in self.shapes.values()]
        return self.some(self.random.choice(known))

    def statement(self) -> str:
        kind = self.random.random()
        if kind < 0.3:
            return self.compute()
        if kind < 0.55:
            return self.view()
        if kind < 0.8:
            return self.write()
        known = dict(self.shapes)
        if kind < 0.9:
            # no views: one of a value that requires grad is a tensor of an odd kind, which `requires_grad` tells only
            # where its base is seen
            inner = [self.random.choice((self.write, self.compute))() for _ in range(2)]
            if self.random.random() < 0.15:
                inner[0] = "with torch.enable_grad():\n" + textwrap.indent(inner[0], "    ")
            return "with torch.no_grad():\n" + textwrap.indent("\n".join(inner), "    ")
        if kind < 0.97:
            inner = [self.write()]
            self.shapes = known
            return "try:\n" + textwrap.indent("\n".join(inner), "    ") + \
                "\nexcept RuntimeError as error:\n    log.append(str(error))"
        name = self.some()
        return self.random.choice((f"log.append({name}.requires_grad)", f"log.append({name}.is_leaf)",
                                   f"log.append(tuple({name}.stride()))", "torch._C._is_tracing()"))

    def compute(self) -> str:
        a = self.some()
        shape = self.shapes.get(a, ())
        expression = self.random.choice((
            "{a} * {b}", "{a} + {b}", "{a} - {b}", "{a} * {b}", "torch.tanh({a})", "torch.sigmoid({a})",
            "torch.exp({a} * 0.25)", "torch.relu({a})", "torch.sin({a})", "{a}.clone()", "{a} * {a}",
            "{a} / ({b} * 0 + 2)", "torch.where({a} > 0, {a}, {b})", "{a}.clamp(-1, 1)", "{a}.contiguous()",
            "torch.nn.functional.gelu({a})", "torch.empty_like({a}).copy_({b})", "{a}.masked_fill({a} > 0.5, 1.0)",
        )).format(a=a, b=self.operand(shape))
        if shape and self.random.random() < 0.2:
            expression, shape = self.random.choice((
                (f"{a}.sum()", ()), (f"{a}.sum(-1)", shape[:-1]), (f"torch.softmax({a}, -1)", shape),
                (f"{a}.mean(0)", shape[1:]), (f"torch.cat([{a}, {a}])", (shape[0] * 2, *shape[1:])),
                (f"{a}.norm()", ()), (f"torch.view_as_real(torch.complex({a}, {a} * 2))", (*shape, 2)),
                (f"torch.complex({a}, {a}).conj().imag", shape),
            ))
        return f"{self.new(shape)} = {expression}"

    def view(self) -> str:
        a = self.some()
        shape = self.shapes.get(a, ())
        last = shape[-1] if shape else 0
        choices: list[tuple[str, Shape]] = [(f"{a}.detach()", shape), (f"{a}.unsqueeze(0)", (1, *shape)),
                                            (f"{a}.view_as({a})", shape)]
        if self.random.random() < 0.2:
            choices.append((f"{a}.data", shape))
        if shape:
            choices += [(f"{a}[0]", shape[1:]), (f"{a}[..., 1:]", (*shape[:-1], last - 1)),
                        (f"{a}.select(-1, 0)", shape[:-1]), (f"{a}.flatten()", (_numel(shape),)),
                        (f"{a}.expand(2, {', '.join(map(str, shape))})", (2, *shape)),
                        (f"{a}.narrow(-1, 0, 1)", (*shape[:-1], 1)), (f"{a}.unbind(0)[-1]", shape[1:]),
                        (f"{a}.split(1)[0]", (1, *shape[1:])), (f"{a}[:1]", (1, *shape[1:]))]
        if len(shape) == 2:
            choices += [(f"{a}.mT", shape[::-1]), (f"{a}.t()", shape[::-1]), (f"{a}.transpose(0, 1)", shape[::-1]),
                        (f"{a}.diagonal()", (min(shape),)), (f"{a}.reshape(-1)", (_numel(shape),)),
                        (f"{a}[:, 0]", shape[:1])]
        if _numel(shape) >= 4 and self.random.random() < 0.1:
            choices.append((f"{a}.as_strided((2, 2), (1, 2))", (2, 2)))
        expression, made = self.random.choice([c for c in choices if 0 not in c[1]])
        return f"{self.new(made)} = {expression}"

    def write(self) -> str:
        a = self.some()
        shape = self.shapes.get(a, ())
        b = self.operand(shape)
        choices = [f"{a}.mul_({b})", f"{a}.add_({b})", f"{a} += {b}", f"{a}.sub_({b})", f"{a}.fill_(0.5)",
                   f"{a}.zero_()", f"{a}.tanh_()", f"{a}.clamp_(-1, 1)", f"{a}.masked_fill_({a} > 0, 0.25)",
                   f"{a}.copy_({self.some(shape)})", f"{a}.sigmoid_()", f"{a}.mul_({a})", f"{a} *= 2"]
        if shape:
            part = self.some(shape[1:]) if shape[1:] in self.shapes.values() else "0.75"
            choices += [f"{a}[0] = {part}", f"{a}[0] += 1", f"{a}[{a} > 0] = 0.125", f"{a}[..., :1].mul_(3)",
                        f"{a}.index_put_((torch.tensor([0]),), torch.tensor(2.0))", f"{a}[0].add_({part})",
                        f"{a}.index_fill_(0, torch.tensor([0]), 1.5)"]
        if self.random.random() < 0.08:
            choices = [f"{a}.requires_grad_()", f"{a}.requires_grad = False", f"{a}.detach_()",
                       f"{a}.data.mul_({b})", f"{a}.detach().add_({b})"]
        elif self.random.random() < 0.05:
            choices = [f"torch.add({self.some(shape)}, {b}, out={a})", f"torch.mul({a}, {b}, out={a})",
                       f"torch.sin({self.some(shape)}, out={a})"]
        return self.random.choice(choices)

    def later(self, result: tuple[str, ...]) -> str:
        name = self.random.choice((*(f"out[{k}]" for k in range(len(result))), "args['x']", "args['w']", "args['z']",
                                   "args['h']"))
        # a hook on a view whose base was written to crashes torch itself until its `grad_fn` is looked at
        return self.random.choice((f"{name}.detach().add_(1)", f"{name}.mul_(2)", f"{name}[:1].detach().mul_(0.5)",
                                   f"{name} * 2", f"{name}.grad_fn; {name}.register_hook(lambda grad: grad * 3)",
                                   f"{name}.grad_fn; {name}.retain_grad(); watched.append({name})"))


def _numel(shape: Shape) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


# -- running and comparing


def observe(fn: Callable[..., Any], program: TensorProgram, alias: int | None = None) -> list[Any]:
    """All that a caller sees of one call, and of a backward pass behind it. `alias`: another one than the program's."""
    args = arguments(program.alias if alias is None else alias)
    out: tuple[torch.Tensor, ...] = ()
    facts: list[Any] = []
    watched: list[torch.Tensor] = []
    try:
        log, *results = fn(**args)
        out = tuple(results)
        facts.append([_without_names(item) if isinstance(item, str) else item for item in log])
    except Exception as error:
        facts.append(_named(error))
    for line in program.after:
        try:
            exec(line, {"out": out, "args": args, "watched": watched})
        except Exception as error:  # of what the program does not have as well
            facts.append(_named(error))
    tensors = [*args.values(), *out]
    facts += _facts(tensors)
    try:
        parts = [(t * (k + 1)).sum() for k, t in enumerate(tensors) if t.requires_grad]
        if parts:
            sum(parts).backward()  # type: ignore[union-attr]
        facts.append("backward")
    except Exception as error:
        facts.append(_named(error))
        return facts  # which gradients had arrived by then is nobody's business
    for name in ("w", "v"):
        grad = args[name].grad if args[name].is_leaf else None
        facts.append(None if grad is None else grad.clone())
    return facts + [None if t.grad is None else t.grad.clone() for t in watched]


def _without_names(text: str) -> str:
    """An error's text without how often a tensor was written to and by which node of autograd's it was made."""
    text = re.sub(r"Output \d+ of \w+ is", "This is", re.sub(r"version \d+", "version N", text))
    return re.sub(r", which is output [0-9]+ of [A-Za-z0-9:]+,", "", text)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {_without_names(str(error))}"


def _facts(tensors: list[torch.Tensor]) -> list[Any]:
    objects: dict[int, int] = {}
    memories: dict[int, int] = {}
    for t in tensors:
        objects.setdefault(id(t), len(objects))
    args = {id(t): objects[id(t)] for t in tensors[:len(PARAMETERS)]}
    found: list[Any] = []
    for t in tensors:
        try:
            leaf: Any = t.is_leaf
        except RuntimeError as error:
            leaf = _without_names(str(error))
        base = t._base
        memory = memories.setdefault(t.untyped_storage()._cdata, len(memories))
        # a base that the program made may be missing
        of = None if base is None or not t.requires_grad else args.get(id(base))
        layout = tuple(t.shape), t.stride(), t.storage_offset()
        found.append((objects[id(t)], memory, t.requires_grad, leaf, layout, of))
        found.append(t.detach().clone())
    return found


def difference(wanted: list[Any], found: list[Any]) -> str | None:
    """Where two observations differ, in words."""
    for number, (a, b) in enumerate(zip(wanted, found, strict=False)):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            if a.shape != b.shape or not torch.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True):
                return f"value {number}: {a} became {b}"
        elif type(a) is not type(b) or not isinstance(a, torch.Tensor) and a != b:
            return f"fact {number}: {a} became {b}"
    return None if len(wanted) == len(found) else f"{len(wanted)} facts became {len(found)}"


class _Looked(TorchFunctionMode):
    """Asks each operand for its `grad_fn` before an operation; `writes`: as many are forgotten of a tensor that comes
    to require grad (one more, where it is negative)."""

    def __init__(self, writes: int = 0) -> None:
        super().__init__()
        self.writes = writes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.writes and func in _TURNS:
            torch._C._autograd._unsafe_set_version_counter((args[0],), (max(args[0]._version - self.writes, 0),))
        for operand in args:
            if isinstance(operand, torch.Tensor):
                try:
                    operand.grad_fn  # noqa: B018
                except RuntimeError:
                    pass  # which the operation itself raises, where that matters
        return func(*args, **(kwargs or {}))


def is_accident(wanted: list[Any], found: list[Any], fn: Callable[..., Any], program: TensorProgram,
                alias: int) -> bool:
    """Whether eager answers otherwise once somebody has looked at a `grad_fn`: a view of what came to require grad
    later may not be written until then. Or whether it answers as jitted where only the number of writes before a tensor
    came to require grad is another: its views are leaves, or not, depending on whether anything was written since."""
    with _Looked():
        if difference(wanted, observe(fn, program, alias)) is not None:
            return True
    for writes in (-1, 1, 2, 3, 4):
        with _Looked(writes):
            if difference(observe(fn, program, alias), found) is None:
                return True
    return False


#: What makes a tensor require grad.
_TURNS = (torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__)  # type: ignore[attr-defined]


def check(program: TensorProgram, backend: str) -> str | None:
    """How the jitted run of a program differs from its eager run, if that is no accident."""
    import jitpy

    space: dict[str, Any] = {"torch": torch, "jitpy": jitpy}
    exec(compile(program.source, "<tensors>", "exec"), space)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jitpy.reset()
        jitted = jitpy.jit(space["fn"], backend=backend)
        aliases = [program.alias] * 2 + ([] if program.then is None else [program.then])
        try:
            for call, alias in enumerate(aliases):
                wanted, seen = observe(space["fn"], program, alias), observe(jitted, program, alias)
                found = difference(wanted, seen)
                if found is not None and not is_accident(wanted, seen, space["fn"], program, alias):
                    return f"call {call}: {found}"
        except Exception:
            return traceback.format_exc()
    return None


def _kind(difference: str) -> str:
    """What differences of one cause have in common."""
    return re.sub(r"tensor\(.*?\)|\d+|call|[-.\s\[\],]", "", difference)[:60]


def shrunk(program: TensorProgram, backend: str, kind: str) -> TensorProgram:
    """The program without all that the difference does without."""
    def still(smaller: TensorProgram) -> bool:
        try:
            found = check(smaller, backend)
        except Exception:  # it is no program any more
            return False
        return found is not None and _kind(found) == kind and "NameError" not in found

    if program.then is not None and still(smaller := dataclasses.replace(program, then=None)):
        program = smaller
    changed = True
    while changed:
        changed = False
        for name in ("after", "lines", "result"):
            items = getattr(program, name)
            for k in reversed(range(len(items))):
                if name == "result" and len(items) == 1:
                    break
                smaller = dataclasses.replace(program, **{name: (*items[:k], *items[k + 1:])})
                if still(smaller):
                    program, items, changed = smaller, getattr(smaller, name), True
    return program


def search(backend: str, first: int, goes_on: Callable[[int], bool], known: Collection[str] = (),
           started: Callable[[TensorProgram], object] = lambda program: None,
           ) -> tuple[int, list[tuple[TensorProgram, str]]]:
    """Programs from seed `first` on, while `goes_on(programs)`: how many, and those that differ, made small; equal
    differences once, those of a kind in `known` not at all. `started` is told each program before it runs."""
    found: dict[str, tuple[TensorProgram, str]] = {}
    count = 0
    while goes_on(count):
        program = Drawing(first + count).program()
        started(program)
        count += 1
        problem = check(program, backend)
        if problem is not None and _kind(problem) not in found and _kind(problem) not in known:
            found[_kind(problem)] = shrunk(program, backend, _kind(problem)), problem
    return count, list(found.values())


def main(options: argparse.Namespace) -> int:
    """`python -m tests.fuzz --kind tensors`: the number of findings, which are printed."""
    if options.program is not None:
        problem = check(parsed(options.program.read_text()), "eager" if options.backend == "mixed" else options.backend)
        print(problem or "agrees")
        return int(problem is not None)
    first = options.first if options.first is not None else random.SystemRandom().randrange(1 << 40)
    backends = ("eager", "codegen") if options.backend == "mixed" else (options.backend,)
    total = 0

    def started(program: TensorProgram) -> None:  # for those that end the process
        if options.out is not None:
            (options.out / "running").write_text(program.text())

    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    for backend in backends:
        end = time.time() + options.minutes * 60 / len(backends)
        files = options.out.glob("tensors_*.py") if options.out is not None else ()
        known = [line[7:] for file in files for line in file.read_text().splitlines() if line.startswith("# kind ")]
        programs, findings = search(backend, first, lambda _, end=end: time.time() < end, known, started)
        for program, problem in findings:
            kind = _kind(problem)
            text = f"{program.text()}\n# {backend}\n# kind {kind}\n'''\n{problem}\n'''\n"
            print(text)
            if options.out is not None:
                name = re.sub(r"\W+", "_", kind)
                (options.out / f"tensors_{name}.py").write_text(text)
        print(f"{backend}: {programs} programs from seed {first}, {len(findings)} different findings", flush=True)
        total += len(findings)
    return min(total, 100)
