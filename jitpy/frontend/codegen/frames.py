"""From the end of tracing to bytecode: returns, and the ways in which a frame goes on after a graph break."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from bytecode import Instr, Label, TryBegin, TryEnd

from ... import config
from ...ir.failures import graph_may_fail, has_effect, is_effect, is_programs_own, may_fail
from ...ir.graph import DROPS_GRAD, GETITEM, Graph, Node
from ...ir.ops.functional import in_place_of
from ..breaks import BreakRecord, GraphBreak, RestartAnalysis, Skip
from ..bytecode.code import Ins, all_positional, param_names
from ..bytecode.handlers import pops_of
from ..bytecode.resume_codes import Resumable, behind, calls_inner, is_resume_code, origin_code, origin_of, raises_at
from ..capture.final_graph import NOT_BEHIND_ITS_WRITE
from ..capture.front_calls import (
    FrontCall,
    call_in_front,
    is_late,
    put_back,
    reads_late,
    states_of,
    violated_assumption,
)
from ..capture.history import bring_up_to_date, without_history
from ..capture.inference_blocks import as_inference_tensor, in_inference_mode
from ..capture.traced import Uncapturable
from ..guards.source import CallSource, attr
from ..interpreter.frame import Frame, first_argument
from ..interpreter.keyed_items import check_keyed
from ..interpreter.library_code import is_library
from ..interpreter.trace_context import SymbolicTraceContext
from ..models.builtins.caches import changed_result
from ..models.builtins.generators import abandoned
from ..models.builtins.host_effects import lost_way
from ..polyfills.construct import looked_up
from ..values import (
    NULL,
    CellValue,
    Interpreter,
    Value,
    const,
)
from . import builders, live_generators, live_iterator_code  # noqa: F401  (register how objects are rebuilt)
from .checked import Checked, runs_once
from .code_writer import JUMP_IF_NOT_NONE, later
from .frame_code import Emitter
from .hand_over import TailCall, let_go, run_to_end
from .plain_loops import Loop, PlainLoops
from .resume import ResumePoint, raises_instead
from .side_effects import replay

_PY311 = sys.version_info < (3, 12)
_PY313 = sys.version_info >= (3, 13)

#: where the states of generators are kept that calls in front of the graph advance
_STATES = "___states"

#: instructions whose meaning depends on the frame that runs them
_FRAME_BOUND = {"IMPORT_NAME", "LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_BUILD_CLASS"}


@dataclass(slots=True)
class Finished:
    """The result of one capture: the code that replaces the frame, and what reports want to know."""

    code: Any
    context: SymbolicTraceContext
    graph: Any
    compiled: Callable[..., Any] | None
    needs_hook: bool
    break_record: BreakRecord | None = None
    inlined: list[Any] = field(default_factory=list)


#: Bytes from which a tensor is not copied to be written.
_MUCH = 1 << 20


class FrameCodegen:
    """Writes the code of one capture. `compile_graph(graph)` makes the callable, `resume(point)` the continuation
    (`captured` says whether it is to be traced itself)."""

    def __init__(self, interp: Interpreter, code: Any, compile_graph: Callable[[Any], Any],
                 resume: Callable[[ResumePoint, bool, dict[int, Any]], Any], loops: PlainLoops,
                 fullgraph: bool) -> None:
        self.interp = interp
        self.context = interp.context
        self.code = code
        self.compile_graph = compile_graph
        self.resume = resume
        self.loops = loops
        self.fullgraph = fullgraph
        self.globals_by_id: dict[int, Any] = {}
        self.needs_hook = False
        #: the frame's own code, where the code made for it may turn to that
        self.plain: Any = None
        #: the exception that the rest of the program raises, as tracing found
        self.expected: type[BaseException] | None = None
        self.why = ""  # the title of the break that the frame ends in

    # -- the two passes -------------------------------------------------------------------------------------

    def finish(self, write: Callable[[Emitter], None]) -> tuple[Any, Any, Any]:
        """Write the body twice (see codegen): (code object, graph, compiled graph)."""
        builder = self.context.builder
        probe = Emitter(self.context, self.code)
        write(probe)
        for generator in abandoned(self.interp):
            if not probe.has_built(generator):
                # eager closes it when it drops it, which runs code
                cause = GraphBreak("finalizer", f"{generator.describe()} is left half-way", tail=True)
                raise RestartAnalysis(generator.born, cause)
        violated = lost_way(self.interp)
        if violated is not None:
            raise violated
        check_keyed(self.context)
        changed = changed_result(self.interp, probe.has_built)
        if changed is not None:
            raise RestartAnalysis(changed, GraphBreak("unsupported_call",
                                                      "a cached function whose result is changed or kept"))
        live = probe.live
        try:
            finished = builder.finish(live)
        except Uncapturable as error:
            raise Skip(error.reason_id, error.detail) from None
        violated = violated_assumption(self.interp)
        if violated is not None:
            raise violated
        self._let_gradients_go(finished)
        graph = finished.graph
        compiled = None
        emitter = Emitter(self.context, self.code)
        emitter.places = []
        prologue: list[Any] = []
        begin, failed, instead = None, Label(), raises_instead(self.code)
        graph.runs_once = builder.acts and self._runs_once(graph)
        may_fail = graph.sizes.has_unbacked or graph_may_fail(graph)
        emitter.out = prologue
        self._write_front_calls(emitter, may_fail)
        if finished.connected:  # in front of what the graph writes: that came later
            emitter.run(bring_up_to_date, *(_loader(emitter, node) for node in finished.connected))
        emitter.out = emitter.body
        if any(call.late for call in self.interp.front_calls):
            graph.nodes[:] = [node for node in graph.nodes if not reads_late(node)]
        if may_fail and any(runs_once(n) for n in graph.nodes):
            raise Skip("unsupported_call", "a function with effects runs beside operations that may raise")
        if graph.outputs or graph.mutations or graph.sizes.run_time_checks() or any(map(has_effect, graph.nodes)):
            compiled = self._in_parts(graph, finished.written) if finished.written else self.compile_graph(graph)
            run = in_inference_mode(compiled) if finished.inference else compiled
            emitter.out = prologue
            loads = [_loader(emitter, node) for node in graph.inputs]
            plan = getattr(compiled, "plan", None)
            once = any(is_effect(node.op) for node in graph.nodes) or plan is not None and plan.runs_once
            checked = Checked(run, graph) if may_fail and not once else None
            if instead is not None:
                emitter.out.append(begin := TryBegin(failed, False, 0))
            emitter.call(run if checked is None else checked, *loads)
            if begin is not None:
                emitter.out.append(TryEnd(begin))
            if checked is not None:
                self._write_plain_run(emitter, checked)
            names: dict[int, str] = {}
            if graph.outputs:
                emitter.emit("UNPACK_SEQUENCE", len(graph.outputs))
                for i in range(len(graph.outputs)):
                    names[i] = emitter.store_temp()
            else:
                emitter.emit("POP_TOP")
            emitter.out = emitter.body
        else:
            names = {}
        emitter.out = prologue
        self._write_calls_beside(emitter, [call for call in self.interp.front_calls if call.late])
        for where in finished.inside:
            emitter.call(as_inference_tensor, lambda name=names[where]: emitter.emit("LOAD_FAST", name))
            emitter.emit("STORE_FAST", names[where])
        emitter.out = emitter.body
        marked: set[int] = set()
        for kind, where in finished.places:
            if kind == "input":
                emitter.places.append(("input", graph.inputs[where].meta["source"]))
            else:
                emitter.places.append(("output", names[where]))
            if kind == "gone" and where not in marked:
                marked.add(where)
                emitter.out = prologue
                emitter.call(without_history, lambda name=names[where]: emitter.emit("LOAD_FAST", name),
                             *(_loader(emitter, node) for node in finished.gone[where]))
                emitter.emit("STORE_FAST", names[where])
                emitter.out = emitter.body
        write(emitter)
        emitter.body[:0] = prologue
        if begin is not None:
            emitter.out.append(failed)
            self._write_failure(emitter, instead)
        return emitter.assemble(), graph, compiled

    def _in_parts(self, graph: Graph, written: dict[Node, int]) -> Callable[..., Any]:
        """A graph that writes to inputs what results are computed from. Raises RestartAnalysis where it cannot be
        cut."""
        from ...autograd.written_inputs import cut_at_writes, in_order

        parts = cut_at_writes(graph, list(written))
        if parts is None:
            raise RestartAnalysis(min(written.values()), GraphBreak("unsupported_op", NOT_BEHIND_ITS_WRITE))
        return in_order(graph, parts, [self.compile_graph(part.graph) for part in parts])

    def _runs_once(self, graph: Graph) -> bool:
        """Whether a graph with ops of the program's that write or have effects is run without a second try: what it
        raises is the program's exception. Where other changes come before what may raise, and little is written, it
        writes to copies, so that plain Python can make up for it. Else the graph is broken at the first change, if it
        may be."""
        acts = any(is_effect(node.op) for node in graph.nodes)
        may_try_again = graph.sizes.has_unbacked or bool(graph.sizes.run_time_checks())
        if acts and may_try_again:
            raise Skip("unsupported_call", "an operator with effects runs beside sizes that depend on data")
        if may_try_again:
            return False
        builder = self.context.builder
        steps = [self.context.changed_at]
        for mutation in graph.mutations:
            node = mutation.value.args[0] if mutation.value.op is GETITEM else mutation.value
            if in_place_of(node.op) is None:
                steps.append(builder.inputs[mutation.input].payload.storage.written_at)
        changed = min((step for step in steps if step is not None), default=None)
        if changed is None or changed > builder.own_step and not any(
            may_fail(node) and not is_programs_own(node.op) for node in graph.nodes
        ):
            return True
        size = sum(graph.sizes.hint(graph.inputs[m.input].tensor.nbytes) for m in graph.mutations)
        is_once = acts or size >= _MUCH
        if is_once and not self.fullgraph:
            raise RestartAnalysis(changed, GraphBreak("unsupported_call", "a change in front of what runs once and "
                                                                          "may raise"))
        return is_once

    def _generators(self) -> list[Value]:
        """Those that calls in front of the graph advance."""
        found = {id(call.generator): call.generator for call in self.interp.front_calls if call.generator is not None}
        return [g for g in found.values() if not isinstance(g.source, CallSource)]  # others are made by the call

    def _write_front_calls(self, emitter: Emitter, may_fail: bool) -> None:
        generators = self._generators()
        if generators and may_fail:
            emitter.call(states_of, *(lambda g=g: emitter.load(g) for g in generators))
            emitter.emit("STORE_FAST", _STATES)
        self._write_calls_beside(emitter, [call for call in self.interp.front_calls if not call.late])

    def _write_calls_beside(self, emitter: Emitter, calls: list[FrontCall]) -> None:
        """Calls beside the graph, whose results go to temporaries."""
        for call in calls:
            emitter.call(call_in_front, lambda c=call: emitter.const(c.function),
                         lambda c=call: emitter.emit("BUILD_TUPLE", emitter.load_many(c.args)),
                         lambda c=call: _load_keywords(emitter, c.kwargs))
            if call.unpack:
                emitter.emit("UNPACK_SEQUENCE", len(call.results))
            elif not call.results:
                emitter.emit("POP_TOP")
            for source in call.results:
                emitter.emit("STORE_FAST", emitter.result_name(source))

    def _let_gradients_go(self, finished: Any) -> None:
        """Whoever assigns `.grad` may have the memory of the former gradient back before the graph has run: the graph
        does not take that where it does not read it."""
        graph: Graph = finished.graph
        leaves = {id(value.real): value.real.grad for value in self.context.dirty
                  if value.tensor is not None and value.source is not None and value.grad_assigned
                  and isinstance(value.real.grad, torch.Tensor)}
        former = set(map(id, leaves.values()))
        read = {node for user in graph.nodes for node in user.input_nodes()}.union(graph.outputs)
        wanted = {where for kind, where in finished.places if kind == "input"}
        wanted.update(mutation.input for mutation in graph.mutations)
        wanted.update(position for position, _, _ in graph.symbol_bindings().values())
        kept: list[int] = []
        for k, (node, entry) in enumerate(zip(graph.inputs, self.context.builder.inputs, strict=True)):
            if id(entry.value) in leaves:
                node.meta[DROPS_GRAD] = True
            if is_late(node):
                continue
            if id(entry.value) not in former or node in read or k in wanted:
                kept.append(k)
        number = {old: new for new, old in enumerate(kept)}
        graph.inputs[:] = [graph.inputs[k] for k in kept]
        for mutation in graph.mutations:
            mutation.input = number[mutation.input]
        finished.places[:] = [(kind, number[where] if kind == "input" else where) for kind, where in finished.places]

    def _write_failure(self, emitter: Emitter, instead: Any) -> None:
        """The graph raised an exception that no graph is expected to raise (memory is short, the user interrupts): the
        `with` and `try` blocks around it are left with it."""
        error = emitter.store_temp()
        function = later(emitter.call, instead, later(emitter.const, self.context.root_globals),
                         self._push_cells(emitter))
        self._hand_over(emitter, later(emitter.const, None), function, [*param_names(self.code), error])

    def _write_plain_run(self, emitter: Emitter, checked: Checked) -> None:
        """Where the graph gave None it failed: the frame runs as plain Python from its start."""
        go_on = Label()
        emitter.emit("COPY", 1)
        emitter.emit(JUMP_IF_NOT_NONE, go_on)
        emitter.emit("POP_TOP")
        self.plain = all_positional(self.code)
        if self._generators():
            emitter.run(put_back, lambda: emitter.emit("LOAD_FAST", _STATES))
        constants = self.plain, self.context.root_globals, self.plain.co_name, None
        function = later(emitter.call, types.FunctionType, *(later(emitter.const, obj) for obj in constants),
                         self._push_cells(emitter))
        self._hand_over(emitter, later(emitter.call, checked.take_failure), function, param_names(self.code))
        emitter.out.append(go_on)

    def _push_cells(self, emitter: Emitter) -> Callable[[], None]:
        """The code that pushes the frame's closure."""
        return later(emitter.closure_cells, self.code.co_freevars, ())

    def _hand_over(self, emitter: Emitter, expected: Callable[[], None], function: Callable[[], None],
                   arguments: Sequence[str | Callable[[], None]]) -> None:
        """`return function(*arguments)`, which a resume function leaves to the code that called it. `expected` pushes
        the exception that is to come, or None; an argument may be a variable."""
        def pack() -> None:
            for push in (expected, function, *arguments):
                if isinstance(push, str):
                    emitter.emit("LOAD_FAST", push)
                else:
                    push()
            emitter.emit("BUILD_TUPLE", len(arguments) + 2)

        if is_resume_code(self.code):
            emitter.call(TailCall, pack)
            emitter.emit("RETURN_VALUE")
        else:
            emitter.return_call(run_to_end, pack)

    # -- returning ------------------------------------------------------------------------------------------

    def write_return(self, emitter: Emitter, result: Value) -> None:
        """Effects, then `return result`."""
        emitter.load(result)
        name = emitter.store_temp()
        self.write_effects(emitter)
        emitter.emit("LOAD_FAST", name)
        emitter.emit("RETURN_VALUE")

    def write_effects(self, emitter: Emitter) -> None:
        self._write_calls(emitter, self.interp.early_calls)
        replay(emitter)
        self._write_calls(emitter, self.interp.host_calls)
        for name, value in self.context.builder.state.changes().items():
            self._write_state(emitter, name, value)

    def _write_calls(self, emitter: Emitter, calls: list[Any]) -> None:
        for function, args, kwargs in calls:
            emitter.run(_call_host, lambda f=function: emitter.const(f),
                        lambda a=args: emitter.emit("BUILD_TUPLE", emitter.load_many(a)),
                        lambda k=kwargs: _load_keywords(emitter, k))

    def _write_state(self, emitter: Emitter, name: str, value: Any) -> None:
        from ..capture.torch_state import apply_change

        emitter.run(apply_change, lambda: emitter.const(name), lambda: emitter.const(value))

    # -- breaking -------------------------------------------------------------------------------------------

    def write_break(self, emitter: Emitter, cause: GraphBreak) -> None:
        """Effects, the instruction that cannot be traced, and the call of what goes on after it."""
        emitter.is_break = True
        self.why = cause.reason.title
        frames = self.interp.frames
        last = frames[-1]
        ins = last.instructions[last.ip]
        self._leave_recursion(frames, cause)
        self._leave_handlers(frames, cause)
        # the step that raises may have looked at more than was looked at before it
        self.expected = cause.raises if cause.found_under <= self.context.guards.subjects() else None
        pops = pops_of(ins)
        frames = self._with_lookups(frames)
        state = self._materialize(emitter, frames)
        self.write_effects(emitter)
        if cause.split:
            self._write_resume(emitter, frames, state, list(last.stack), _call_start(last, ins.index), captured=True)
            return
        if cause.tail or pops is None or (len(frames) > 1 and ins.name in _FRAME_BOUND):
            self._write_tail(emitter, frames, state, ins)
            return
        loop = self._plain_loop(frames, ins)
        if loop is not None:
            self._write_plain_loop(emitter, frames, state, ins, loop)
            return
        self._write_instruction(emitter, frames, state, ins, pops)

    def _with_lookups(self, frames: list[Frame]) -> list[Frame]:
        """A frame around each that looks an attribute up, for what C code does there with its AttributeError."""
        out = []
        for frame in frames:
            if frame.lookup is not None:
                value, name = frame.lookup
                around = Frame(None, looked_up.__code__, self.context.globals_of(looked_up.__globals__))
                around.locals.update(obj=value, name=const(name))
                around.ip = next(k for k, ins in enumerate(around.instructions) if ins.name == "CALL") + 1
                around.entered = frame.entered
                out.append(around)
            out.append(frame)
        return out

    def _leave_handlers(self, frames: list[Frame], cause: GraphBreak) -> None:
        """A break while an exception is handled: break where it was raised, and let plain Python raise it. So the
        exception, its traceback and what `sys.exc_info()` says are the program's own."""
        steps = [v.current.step for f in frames for v in f.stack if v.current is not None and v.current.is_exception]
        if steps:
            raise RestartAnalysis(min(steps), GraphBreak(cause.reason.id, cause.detail, tail=True))

    def _leave_recursion(self, frames: list[Frame], cause: GraphBreak) -> None:
        """A break in a function that calls itself: break at the call of the inner one instead. Where every level
        breaks, resuming them all at once would make other resume functions for each depth."""
        outer: dict[int, list[Frame]] = {id(origin_code(frames[0].code)): [frames[0]]}
        for callee in frames[1:]:
            known = outer.get(id(callee.code), ())
            if not is_library(callee.code.co_filename) and any(not _close_over_others(callee, f) for f in known):
                found = GraphBreak("recursion", f"{callee.code.co_name}: {cause.reason.title}")
                found.recursive = callee.code
                raise RestartAnalysis(callee.entered, found)
            outer.setdefault(id(origin_code(callee.code)), []).append(callee)

    def _materialize(self, emitter: Emitter, frames: list[Frame]) -> dict[int, str]:
        """Build everything that is live, so that every way on finds it in a temporary: id of Value -> name."""
        names: dict[int, str] = {}

        def keep(value: Any) -> None:
            if value is NULL or id(value) in names:
                return
            emitter.load(value)
            names[id(value)] = emitter.store_temp()

        for frame in frames:
            for value in (*frame.stack, *frame.locals.values(), *frame.cells.values(),
                          first_argument(frame, self.context) or NULL):
                keep(value)
        return names

    def _point(self, frame: Frame, stack: list[Value], index: int, inner: ResumePoint | None,
               raises: bool = False) -> ResumePoint:
        layout = tuple("null" if value is NULL else "value" for value in stack)
        space = frame.globals.real_dict
        self.globals_by_id[id(space)] = space
        code, place = origin_of(frame.code, index)
        names = tuple(sorted(n for n in frame.locals if not n.startswith("___")))
        # An outer frame's place is where the call's result arrives: behind the call instruction.
        return ResumePoint(code, place + 1 if inner is not None else place, layout, names, tuple(_cell_order(frame)),
                           id(space), inner, raises, first=first_argument(frame, self.context) is not None)

    def _outer_points(self, frames: list[Frame], inner: ResumePoint) -> ResumePoint:
        """Wrap the innermost point in those of the frames around it."""
        for frame, callee in zip(reversed(frames[:-1]), reversed(frames[1:]), strict=True):
            if callee.finish is not None or callee.generator is not None:
                raise RestartAnalysis(callee.entered, GraphBreak("nested_call", f"{callee.code.co_name}: {self.why}"))
            inner = self._point(frame, frame.stack, frame.ip - 1, inner)
        return inner

    def _arguments(self, frames: list[Frame], stack: list[Any]) -> list[Any]:
        """The arguments of a resume call, the closure first: Values, names of temporaries, tuples of cells, or None."""
        out: list[Any] = []
        for depth, frame in enumerate(frames):
            if not depth or _cell_order(frame):
                out.append(tuple(frame.cells[n] for n in _cell_order(frame)) or None)
            first = first_argument(frame, self.context)
            out += [first] if first is not None else []
            own = stack if depth == len(frames) - 1 else frame.stack
            out += [v for v in own if v is not NULL]
            out += [frame.locals[n] for n in sorted(n for n in frame.locals if not n.startswith("___"))]
        return out

    def _write_resume(self, emitter: Emitter, frames: list[Frame], names: dict[int, str], stack: list[Any],
                      index: int, captured: bool, raises: str | None = None, loop: Loop | None = None) -> None:
        """`return resume(...)`, which a resume function leaves to the code that called it."""
        try:
            inner = self._point(frames[-1], stack, index, None, raises is not None)
            if loop is not None:
                inner = replace(inner, until=loop.exit if len(frames) == 1 else -1, depth=loop.depth)
            point = self._outer_points(frames, inner)
            target = self.resume(point, captured, self.globals_by_id)
        except Resumable as error:
            raise RestartAnalysis(frames[1].entered, GraphBreak("nested_call", str(error))) if len(frames) > 1 else \
                Skip("opcode", str(error)) from None
        arguments = self._arguments(frames, stack)
        if raises is not None:
            arguments.append(raises)

        def push(item: Any) -> None:
            if isinstance(item, str):
                emitter.emit("LOAD_FAST", item)
            elif item is None:
                emitter.emit("LOAD_CONST", None)
            elif isinstance(item, tuple):
                for cell in item:
                    push(cell)
                emitter.emit("BUILD_TUPLE", len(item))
            else:
                emitter.emit("LOAD_FAST", names[id(item)])

        # with symbolic sizes, what raised for some of them need not raise for all that the guards let through
        expected = self.expected if config.raise_errors and not self.context.sizes.symbols else None
        self._hand_over(emitter, later(emitter.const, expected), later(emitter.const, target),
                        [later(push, item) for item in arguments])

    def _plain_loop(self, frames: list[Frame], ins: Ins) -> Loop | None:
        """The loop that a break closes, if nothing of it is worth compiling."""
        last = frames[-1]
        if first_argument(last, self.context) is not None or last.is_handling():
            return None
        try:
            code, at = origin_of(last.code, _call_start(last, ins.index))
            _, after = origin_of(last.code, behind(last.code, ins.index))
        except Resumable:
            return None
        loop = self.loops.closed_by(self.code, code, at, after, len(last.stack), self.context.builder.graph)
        return loop if loop is not None and (len(frames) == 1 or loop.ends_function(code)) else None

    def _write_plain_loop(self, emitter: Emitter, frames: list[Frame], names: dict[int, str], ins: Ins,
                          loop: Loop) -> None:
        """Run the loop as plain Python, from the instruction to its exit. An inlined function, which ends there, is
        plain Python, and those around it are traced again."""
        self.needs_hook = True
        frame = frames[-1]
        self._write_resume(emitter, frames, names, list(frame.stack), _call_start(frame, ins.index),
                           captured=len(frames) > 1, loop=loop)

    def _write_tail(self, emitter: Emitter, frames: list[Frame], names: dict[int, str], ins: Ins) -> None:
        """Run the rest as plain Python, from the instruction itself."""
        self.needs_hook = True
        frame = frames[-1]
        index = ins.index
        if calls_inner(frame.code, index):
            raise Skip("nested_call", frame.code.co_name)  # plain Python runs the resume function as it is
        if raises_at(frame.code, index):
            exc = names[id(frame.stack[-1])]
            self._write_resume(emitter, frames, names, frame.stack[:-1], index, captured=False, raises=exc)
            return
        self._write_resume(emitter, frames, names, list(frame.stack), _call_start(frame, index), captured=False)

    def _write_instruction(self, emitter: Emitter, frames: list[Frame], names: dict[int, str], ins: Ins,
                           pops: int) -> None:
        """The instruction in plain Python, then a resume call on every way out of it."""
        self.needs_hook = True
        frame = frames[-1]
        rest = frame.stack[: len(frame.stack) - pops]
        operands = frame.stack[len(frame.stack) - pops:]
        for value in operands:
            if value is NULL:
                emitter.emit("PUSH_NULL")
            else:
                emitter.emit("LOAD_FAST", names[id(value)])
        # what the code behind does not need ends where the instruction drops it
        needed = {names[id(value)] for item in self._arguments(frames, rest) if item is not None
                  for value in (item if isinstance(item, tuple) else (item,))}
        if is_resume_code(self.code):
            emitter.run(let_go)
        emitter.let_go(needed)
        # what an inner frame raises is raised again there, for its traceback
        covered = len(frames) > 1 or ins.handler is not None
        failed = Label()
        begin = TryBegin(failed, False, 0)
        if covered:
            emitter.out.append(begin)
        jump = Label() if ins.target >= 0 else None
        first = len(emitter.out)
        instruction, pushes = self._native(emitter, frame, ins, jump)
        emitter.out.append(instruction)
        root = frames[0]
        line = root.view.bytecode[root.current.item].location if len(frames) > 1 else instruction.location
        for part in emitter.out[first:]:
            part.location = line  # PRECALL may do what CALL stands for, and TO_BOOL calls `__bool__`
        if covered:
            emitter.out.append(TryEnd(begin))
        results = [emitter.store_temp() for _ in range(pushes)][::-1]
        keeps = operands[:1] if ins.name == "FOR_ITER" else []
        after: list[Any] = [*rest, *_with_null(ins, results)]
        if ins.name in ("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP"):
            after = list(rest)
        elif keeps:
            after = [*rest, *results]
        self._write_resume(emitter, frames, names, after, behind(frame.code, ins.index), captured=True)
        if jump is not None:
            emitter.out.append(jump)
            index = ins.target
            jumped: list[Any] = list(rest)
            if ins.name == "FOR_ITER":
                if not _PY311:
                    emitter.emit("END_FOR")
                    index += 1
                if _PY313:
                    emitter.emit("POP_TOP")
                    index += 1
            elif ins.name.startswith("JUMP_IF_"):
                jumped.append(emitter.store_temp())
            self._write_resume(emitter, frames, names, jumped, index, captured=True)
        if covered:
            emitter.out.append(failed)
            exc = emitter.store_temp()
            emitter.run(_forget_frame, lambda: emitter.emit("LOAD_FAST", exc))
            left = [*rest, *(v if v is NULL or names[id(v)] in needed else None for v in operands)]
            self._write_resume(emitter, frames, names, left, _call_start(frame, ins.index), captured=True, raises=exc)

    def _native(self, emitter: Emitter, frame: Frame, ins: Ins, jump: Label | None) -> tuple[Instr, int]:
        """The instruction to run, and how many values it leaves when it does not jump."""
        name, arg = ins.name, ins.arg
        original = frame.view.bytecode[ins.item]
        if name == "CALL":
            start = _call_start(frame, ins.index)
            if frame.instructions[start].name == "KW_NAMES":
                emitter.emit("KW_NAMES", frame.instructions[start].arg)
            if _PY311:
                emitter.emit("PRECALL", arg)
        elif name == "LOAD_METHOD":
            name = "LOAD_ATTR"
        elif name == "LOAD_ATTR" and isinstance(arg, tuple):
            arg = (False, arg[1])
        elif name == "LOAD_GLOBAL":
            arg = (False, arg[1])
        elif name == "LOAD_SUPER_ATTR":
            # without arguments, `super` would look for them in the generated frame
            plain = frame.stack[-3].opaque is super
            arg = (False, plain or arg[1], arg[2])
        if _PY313 and name in ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "UNARY_NOT"):
            emitter.emit("TO_BOOL")
        if jump is not None:
            if _PY311 and name.startswith("POP_JUMP_BACKWARD"):
                name = name.replace("BACKWARD", "FORWARD")  # in the new code the way out lies behind
            instruction = Instr(name, jump, location=original.location)
            pushes = 2 if name == "FOR_ITER" else 0
            return instruction, pushes
        unchanged = name == ins.name and arg is ins.arg
        instruction = original.copy() if unchanged else Instr(name, arg, location=original.location)
        if name in ("CALL", "CALL_FUNCTION_EX", "CALL_KW"):
            return instruction, 1
        if name == "IMPORT_FROM" or name in ("GET_LEN", "MATCH_MAPPING", "MATCH_SEQUENCE"):
            return instruction, 2
        if name == "MATCH_KEYS":
            return instruction, 3
        return instruction, instruction.stack_effect(jump=False) + (pops_of(ins) or 0)


def _close_over_others(a: Frame, b: Frame) -> bool:
    """Whether two frames of one code object are those of different functions: a decorator's, around other ones."""
    pairs = [(_function_in(cell), _function_in(b.cells[name])) for name, cell in a.cells.items() if name in b.cells]
    return any(x is not None and y is not None and x is not y for x, y in pairs)


def _function_in(cell: CellValue) -> types.FunctionType | None:
    """The function from outside that a cell holds, if it is one. It decides where to break only: there is no guard."""
    if cell.held is not None and cell.held.code is not None:
        return cell.held.known
    if cell.content is not None or cell.real is None:
        return None
    try:
        held = cell.real.cell_contents
    except ValueError:  # nothing, as yet
        return None
    return held if isinstance(held, types.FunctionType) else None


def _call_start(frame: Frame, index: int) -> int:
    """The first of the instructions that make one call: KW_NAMES and PRECALL come before CALL."""
    instructions = frame.instructions
    if instructions[index].name == "CALL" and index and instructions[index - 1].name == "PRECALL":
        index -= 1
    if instructions[index].name in ("CALL", "PRECALL") and index and instructions[index - 1].name == "KW_NAMES":
        index -= 1
    return index


def _with_null(ins: Ins, results: list[Any]) -> list[Any]:
    """The stack as tracing models it behind instructions that push NULL beside their result."""
    method = ins.name == "LOAD_METHOD" or ins.name in ("LOAD_ATTR", "LOAD_GLOBAL", "LOAD_SUPER_ATTR") and \
        isinstance(ins.arg, tuple) and bool(ins.arg[0])
    if not method:
        return results
    return [*results, NULL] if _PY313 else [NULL, *results]


def _cell_order(frame: Frame) -> list[str]:
    return sorted(n for n in frame.cells if not n.startswith("___"))


def _loader(emitter: Emitter, node: Any) -> Callable[[], None]:
    source = node.meta["source"]
    return lambda: emitter.load_source(attr(source, "data") if node.meta.get("as_data") else source)


def _load_keywords(emitter: Emitter, kwargs: dict[str, Value]) -> None:
    for key, value in kwargs.items():
        emitter.const(key)
        emitter.load(value)
    emitter.emit("BUILD_MAP", len(kwargs))


def _forget_frame(error: BaseException) -> None:
    """Take the generated frame, which stands for several, off a traceback: the resume functions add the real ones."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def _call_host(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    function(*args, **kwargs)
