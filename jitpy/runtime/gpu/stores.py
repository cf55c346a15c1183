"""Which pointers a Triton kernel of the program's writes through, read off its TTIR.

A pointer has come from arguments: what computes pointers from pointers passes that on, loads only read, and whatever
else takes a pointer counts as a write. Where that cannot be told, every pointer is taken to be written.
"""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Iterator
from typing import Any

#: An op of the text: its results, its name, and the rest of the line.
_OP = re.compile(r'^\s*(?:(?P<results>%[\w$.-]+(?::\d+)?(?:, %[\w$.-]+)*) = )?'
                 r'"?(?P<name>[a-z_]\w*\.\w[\w.]*)"?(?P<rest>.*)$')
_NAME = re.compile(r"%[\w$.-]+(?:#\d+)?")
_PAIR = re.compile(r"(%[\w$.-]+) = (%[\w$.-]+(?:#\d+)?)")
_BLOCK = re.compile(r"^\s*\^\w+\((?P<arguments>.*)\):")
_ENTRY = re.compile(r"^\s*tt\.func .*?\((?P<parameters>.*)\)")
#: ops whose results are the same pointers, moved or laid out in another way
_MOVES = frozenset({"tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.bitcast",
                    "tt.join", "tt.split", "tt.cat", "arith.select", "tt.make_tensor_ptr", "tt.advance",
                    "tt.make_tensor_descriptor", "ttg.convert_layout", "tt.unsplat", "tt.gather"})
_READS = frozenset({"tt.load", "tt.descriptor_load", "tt.descriptor_gather"})
_YIELDS = frozenset({"scf.yield", "scf.condition"})
_LOOPS = frozenset({"scf.for", "scf.if", "scf.while"})


class _Unsure(Exception):
    pass


def written_through(ttir: str, names: list[str]) -> frozenset[str]:
    """The parameters, of these names in the order of the function's, through which the only function of a module
    writes; all of them where that cannot be told."""
    try:
        return _Reader(ttir, names).read()
    except _Unsure:
        return frozenset(names)


class _Region:
    """An `scf` op whose regions are being read: its results, and the arguments that go round in a loop."""

    def __init__(self, result: str | None, inner: list[str]) -> None:
        self.result = result
        self.inner = inner
        #: what the first region of a loop that asks first passes on, and the names that it has in the second
        self.passed: list[frozenset[str]] = []
        self.block: list[str] = []


class _Reader:
    """One function as text. `roots` says for each name which parameters a pointer comes from."""

    def __init__(self, text: str, names: list[str]) -> None:
        self.lines = text.splitlines()
        self.names = names
        self.roots: dict[str, frozenset[str]] = {}
        self.written: set[str] = set()

    def read(self) -> frozenset[str]:
        entries = [match for line in self.lines if (match := _ENTRY.match(line))]
        if len(entries) != 1:
            raise _Unsure  # functions that call each other
        parameters = re.findall(r"(%[\w$.-]+): (\S+)", entries[0]["parameters"])
        if len(parameters) != len(self.names):
            raise _Unsure
        for (parameter, kind), name in zip(parameters, self.names, strict=True):
            if not _is_number(kind):
                self.roots[parameter] = frozenset([name])
        before = None
        while before != (now := (len(self.written), sum(map(len, self.roots.values())))):
            before = now
            self._pass()
        return frozenset(self.written)

    def _pass(self) -> None:
        regions: list[_Region | None] = []
        for line in self.lines:
            text = line.partition(" loc(")[0].rstrip()
            if _ENTRY.match(line):
                regions.append(None)
                continue
            block = _BLOCK.match(line)
            if block is not None:
                if not regions or regions[-1] is None:
                    raise _Unsure  # jumps
                regions[-1].block = re.findall(r"(%[\w$.-]+): ", block["arguments"])
                for name, roots in zip(regions[-1].block, regions[-1].passed, strict=False):
                    self._join(name, roots)
                continue
            if text.strip().startswith("}"):
                if not text.endswith("{") and regions:
                    regions.pop()
                continue
            match = _OP.match(text)
            if match is not None:
                opened = self._op(match, regions[-1] if regions else None)
                if text.endswith("{"):
                    regions.append(opened or _Region(None, []))

    def _op(self, match: re.Match[str], region: _Region | None) -> _Region | None:
        """Follow the pointers through an op; the region that it opens."""
        name, rest = match["name"], match["rest"]
        result = None if match["results"] is None else match["results"].split(":")[0]
        operands = _NAME.findall(rest)
        if name == "tt.call" or name.startswith("cf."):
            raise _Unsure
        if name in _LOOPS:
            _, _, carried = rest.partition("iter_args") if name == "scf.for" else ("", "", rest)
            pairs = _PAIR.findall(carried)
            for place, (inner, outer) in enumerate(pairs):
                self._join(inner, self._of(outer))
                if name == "scf.for":  # it may not go round at all
                    self._join(_part(result, place), self._of(outer))
            return _Region(result, [inner for inner, _ in pairs])
        if name in _YIELDS:
            if name == "scf.condition":
                operands = operands[1:]
            for place, operand in enumerate(operands if region is not None else ()):
                assert region is not None
                roots = self._of(operand)
                if name == "scf.condition" or not region.block:
                    self._join(_part(region.result, place), roots)
                if name == "scf.condition":
                    region.passed.append(roots)
                elif place < len(region.inner):
                    self._join(region.inner[place], roots)
            return None
        if name in _MOVES:
            for operand in operands[:1] if name == "tt.addptr" else operands:
                for made in _NAME.findall(match["results"] or ""):
                    self._join(made.partition(":")[0], self._of(operand))
        elif name not in _READS and name != "tt.return":
            for operand in operands:
                self.written |= self._of(operand)
        return None

    def _of(self, name: str) -> frozenset[str]:
        return self.roots.get(name.removesuffix("#0"), frozenset())

    def _join(self, name: str, roots: frozenset[str]) -> None:
        if roots:
            name = name.removesuffix("#0")
            self.roots[name] = self.roots.get(name, frozenset()) | roots


def _part(result: str | None, place: int) -> str:
    return f"{result}#{place}"


def _is_number(kind: str) -> bool:
    return re.match(r"(i|u|f|bf)\d+|index", kind) is not None


# -- from a kernel to its TTIR


def ttir_of(function: Any, signature: dict[str, str], constexprs: dict[str, Any], target: Any) -> str:
    """The TTIR of a `JITFunction` for arguments of these types, functions inlined. Raises what Triton raises."""
    from triton._C.libtriton import ir
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend

    source = ASTSource(function, signature, constexprs)
    backend = make_backend(target)
    options = backend.parse_options({"enable_fp_fusion": True})  # (said, so that Triton does not warn)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    module = source.make_ir(target, options, backend.get_codegen_implementation(options), backend.get_module_map(),
                            context)
    return str(stages["ttir"](module, {}))


def without_interpreter(kernel: Any) -> Any:
    """The kernel as Triton compiles it, also where the program made it for the interpreter."""
    from triton.runtime.interpreter import InterpretedFunction

    return _compiled(kernel) if isinstance(kernel, InterpretedFunction) else kernel


@functools.lru_cache(maxsize=1024)
def _compiled(kernel: Any) -> Any:
    from triton.runtime.jit import JITFunction

    function = kernel.fn
    space = dict(function.__globals__)
    copy = types.FunctionType(function.__code__, space, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, function.__annotations__
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    made = JITFunction(copy)
    _in_progress[id(kernel)] = made
    try:
        for name in _names(function.__code__):
            if name in space:
                space[name] = _converted(space[name])
    finally:
        del _in_progress[id(kernel)]
    return made


_in_progress: dict[int, Any] = {}
_modules: dict[int, types.ModuleType] = {}


def _converted(value: Any) -> Any:
    from triton.runtime.interpreter import InterpretedFunction

    if isinstance(value, InterpretedFunction):
        return _in_progress.get(id(value)) or _compiled(value)
    if isinstance(value, types.ModuleType) and value.__name__.startswith("triton"):
        found = _modules.get(id(value))
        if found is None:
            found = _modules[id(value)] = types.ModuleType(value.__name__)
            vars(found).update(vars(value))
            for name, member in vars(value).items():
                if isinstance(member, InterpretedFunction):
                    setattr(found, name, _in_progress.get(id(member)) or _compiled(member))
        return found
    return value


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from _names(value)
