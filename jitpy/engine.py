"""The engine: from a call that no compiled variant fits to a new variant.

One `Engine` serves one jitted function: the function itself, the resume functions of its graph breaks, and the frames
below it that the hook hands over. Each of those has a dispatcher (native, see runtime/dispatch.py) whose misses come
here. A miss traces the call, lowers the graph through the backend, and adds an entry to the dispatcher.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import linecache
import sys
import time
import types
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from . import config, frame_policy, logs
from .backends.registry import get_backend
from .errors import BackendError, FullGraphError, SpecializationError
from .frontend import bytecode, models
from .frontend.breaks import BreakRecord, GraphBreak, Reason, RestartAnalysis, Signal, Skip, TraceAgain
from .frontend.bytecode.code import CodeTable, all_positional, has_own_builtins, is_readable, param_names
from .frontend.bytecode.resume_codes import is_resume_code, origin_code
from .frontend.codegen.frame_code import Unreconstructable
from .frontend.codegen.frames import FrameCodegen
from .frontend.codegen.loop_bodies import with_compiled_bodies
from .frontend.codegen.plain_loops import PlainLoops
from .frontend.codegen.resume import LoopExit, ResumePoint, resume_code, start_in
from .frontend.guards.observations import Observations
from .frontend.guards.source import LocalSource
from .frontend.interpreter.frame import Frame
from .frontend.interpreter.growing import tensors_grow
from .frontend.interpreter.interpreter import SymbolicInterpreter
from .frontend.interpreter.library_code import is_library
from .frontend.interpreter.non_aliasing import guard_separate
from .frontend.interpreter.trace_context import SymbolicTraceContext
from .frontend.models.tensors.compiler_controls import breaks_are_errors, disabled_alone, runs_by_itself
from .frontend.values import CellValue, Lazy, Value
from .instances import is_method_call, split
from .ir import Graph, ScalarSpec, interrupts
from .ir.alias import any_needs_grad
from .ir.ops.quiet import without_saved_tensor_hooks
from .ir.passes import run_passes
from .jitted import LazyEngine, collector_off, shown_callable
from .options import Options
from .profitability import Reviews, worth_of
from .runtime import beside_dynamo, compile_lock
from .runtime.compiler import CompilerError
from .runtime.dispatch import explain_miss, make_dispatcher
from .runtime.gpu import compile as gpu_compile
from .runtime.guards import build_guards
from .runtime.tensor_facts import as_around, plain_getters

bytecode.load()
models.load()


@dataclass(slots=True)
class Variant:
    """One compiled variant of one frame, as reports show it."""

    name: str
    filename: str
    line: int
    graph: Graph | None
    guards: Any
    compiled: Callable[..., Any] | None
    break_record: BreakRecord | None
    specialized: list[str]
    times: dict[str, float]
    side_effects: list[str]
    is_resume: bool = False


def _said_of_sizes(context: SymbolicTraceContext) -> str:
    """The symbols of a capture with their sources and values, and what became constant."""
    symbols = [f"{symbol} = {info.hint}, {info.source or 'from data'}" +
               ("" if info.dim is None else f", axis {info.dim}")
               for symbol, info in context.builder.sizes.symbols.items()]
    return "\n".join([*(symbols or ["no symbolic sizes"]), *(f"constant: {text}" for text in context.specialized)])


class Engine:
    """Compiles what one jitted function runs."""

    def __init__(self, options: Options, splits: bool = True) -> None:
        self.options = options
        #: whether a method that reaches the recompile limit is split by instance (`instances.py`)
        self.splits = splits
        self._root: Any = None
        self._selves: set[int] = set()  # the instances (their ids) for which the method was compiled
        self.backend = get_backend(options.backend)
        self._has_warned = False  # of a backend that fails
        if options.backend == "codegen":
            gpu_compile.start_workers()
        self.variants: list[Variant] = []
        #: where `explain` asks: all variants that were made, those that went with a function of the program's too
        self.made: list[Variant] | None = None
        self.skipped: list[BreakRecord] = []
        self._histories: CodeTable[Observations] = CodeTable()
        #: the dispatchers of frames below, as long as all that was compiled of these has no tensor operation
        self._idle: CodeTable[weakref.ref[Any]] = CodeTable()
        self._resumes: dict[tuple[ResumePoint, bool], Any] = {}
        self._loops = PlainLoops()
        self._dispatchers: weakref.WeakSet[Any] = weakref.WeakSet()
        #: the functions and classes with which entries of a dispatcher went: these count as recompilations
        self._dropped: weakref.WeakKeyDictionary[Any, list[str]] = weakref.WeakKeyDictionary()
        self._reviews = Reviews()
        #: functions whose first call was only looked at, as a stance of torch.compiler asks
        self._observed: weakref.WeakSet[Any] = weakref.WeakSet()
        _engines.add(self)

    # -- dispatchers ----------------------------------------------------------------------------------------

    def dispatcher(self, function: types.FunctionType) -> Any:
        """The dispatcher that stands for a function."""
        return make_dispatcher(function.__code__, function.__globals__, name=function.__name__,
                               qualname=function.__qualname__, on_miss=LazyEngine(self.options, self),
                               original=function, native=None if config.native else False)

    def expect(self, dispatcher: Any, source: LocalSource, example: Any) -> None:
        """Let sizes and numbers of an argument be symbolic from the start, where they are in an example of it."""
        history = self._histories.setdefault(dispatcher.code, Observations)
        if isinstance(example, torch.Tensor):
            history.dynamic_dims[source.key()] = {
                axis for axis, size in enumerate(example.shape) if isinstance(size, torch.SymInt)}
        elif isinstance(example, torch.SymInt):
            history.dynamic_ints.add(source.key())
        self._observed.add(dispatcher)  # who compiled the graph has seen to the stance

    def on_miss(self, dispatcher: Any, params: tuple[Any, ...], globals: dict[str, Any], closure: Any) -> Any:
        """Compile for this call; None runs it as plain Python."""
        stance = beside_dynamo.stance()
        if stance in ("force_eager", "eager_on_recompile"):
            return None
        with interrupts.handlers_guarded(), compile_lock.turn() as is_ours:
            return self._compiled(dispatcher, params, globals, closure, stance) if is_ours else None

    def _compiled(self, dispatcher: Any, params: tuple[Any, ...], globals: dict[str, Any], closure: Any,
                  stance: str) -> Any:
        with collector_off(), config.patch(**self.options.options), without_saved_tensor_hooks(), \
                plain_getters() if torch._C._len_torch_function_stack() else contextlib.nullcontext():
            if not config.enabled or torch.compiler.is_compiling() or _watched_op_by_op():
                return None
            self._note(dispatcher, params)
            if self._root is not None and dispatcher is self._root():
                self._selves.add(id(params[0]))
            limit = config.recompile_limit
            reasons: list[str] = []
            if dispatcher.entries or dispatcher in self._dropped:
                with as_around():
                    for entry in dispatcher.entries:
                        if entry.guard is None or entry.guard.check(params, globals, closure):
                            return entry  # another thread compiled it meanwhile
                reasons = self._explain_miss(dispatcher, params, globals, closure)
                if len(dispatcher.entries) + len(self._dropped.get(dispatcher, ())) >= limit:
                    return self._give_up(dispatcher, limit, reasons)
            if stance == "fail_on_recompile":
                raise RuntimeError("\n  ".join((f"{dispatcher.__qualname__} has to be compiled, which the stance "
                                               "'fail_on_recompile' of torch.compiler.set_stance forbids", *reasons)))
            if stance.endswith("eager_then_compile") and self._observe(dispatcher, params, globals, closure):
                return None
            try:
                return self._compile(dispatcher, params, globals, closure)
            except (BackendError, FullGraphError, SpecializationError):
                raise
            except Skip as skip:
                return self._skip(dispatcher, skip)
            except CompilerError as error:
                if error.is_about_text and config.raise_errors:
                    raise
                warnings.warn(f"jitpy: {error}; {dispatcher.__qualname__} runs eagerly", stacklevel=2)
                dispatcher.run_original_always = True
                return None
            except (KeyboardInterrupt, SystemExit):
                raise
            except (Exception, Signal) as error:
                if config.raise_errors:
                    raise
                warnings.warn(f"jitpy: internal error while compiling {dispatcher.__qualname__} "
                              f"({type(error).__name__}: {error}); it runs eagerly. JITPY_RAISE=1 shows where: please "
                              "report that traceback.", stacklevel=2)
                dispatcher.run_original_always = True
                return None

    def _observe(self, dispatcher: Any, params: tuple[Any, ...], globals: dict[str, Any], closure: Any) -> bool:
        """Note the sizes of a function's first call, which then runs as plain Python: the second one compiles with
        symbols for those that differ. False for other calls."""
        if dispatcher.original is None or dispatcher.entries or dispatcher in self._observed:
            return False
        self._observed.add(dispatcher)
        context, interp = self._tracer(dispatcher.code, globals, {})
        with contextlib.suppress(Exception, Signal):
            interp.run(_root_frame(context, dispatcher.code, params, closure))
        return True

    def _note(self, dispatcher: Any, params: tuple[Any, ...]) -> None:
        """Remember a dispatcher of this engine, and whether the first one is a method's."""
        if dispatcher in self._dispatchers:
            return
        self._dispatchers.add(dispatcher)
        if _is_below(dispatcher):
            self._idle.set(dispatcher.code, weakref.ref(dispatcher))
        else:
            frame_policy.own(dispatcher.code, self)
        if self.splits and self._root is None and is_method_call(dispatcher, params):
            self._root = weakref.ref(dispatcher)

    def _explain_miss(self, dispatcher: Any, params: tuple[Any, ...], globals: dict[str, Any],
                      closure: Any) -> list[str]:
        from .explain.misses import grouped

        reasons = grouped([failing for _, failing in explain_miss(dispatcher, params, globals, closure)])
        logs.log("recompiles", lambda: f"{dispatcher.__qualname__}:\n  " + "\n  ".join(reasons))
        return reasons

    def _give_up(self, dispatcher: Any, limit: int, reasons: list[str]) -> Any:
        root = self._root() if self._root is not None else None
        if root is not None:
            self._root = None
            entry = split(self, root)
            if dispatcher is root:
                return entry
            dispatcher.run_original_always = True
            return None
        gone = (f"{name}, which is gone" for name in self._dropped.get(dispatcher, ()))
        changed = "\n  ".join(dict.fromkeys((*reasons, *gone)))
        # what goes on behind a break is mostly a loop's body, and tries all variants in vain for each of its items
        keeps = dispatcher.entries and not dispatcher.closure_first
        warnings.warn(f"jitpy: {dispatcher.__qualname__} was compiled {limit} times and still does not fit "
                      f"(jitpy.config.recompile_limit); {'calls that no variant fits run' if keeps else 'it runs'} "
                      f"eagerly from now on. These kept changing:\n  {changed}", stacklevel=2)
        if keeps:
            dispatcher.closed = True
        else:
            dispatcher.run_original_always = True
        return None

    def _skip(self, dispatcher: Any, skip: Skip) -> Any:
        """Run a frame as plain Python from now on; what it calls may still be compiled."""
        code = dispatcher.code
        record = _record_at(skip.reason, skip.detail, code, code.co_firstlineno)
        self.skipped.append(record)
        logs.log("graph_breaks", f"{dispatcher.__qualname__} is not captured: {record}")
        if self.options.fullgraph or breaks_are_errors():
            raise FullGraphError(record)
        if runs_by_itself(code, dispatcher.globals):
            dispatcher.run_original_always = True
            return None
        if code.co_flags & (0x20 | 0x80 | 0x200) or dispatcher.entries:
            dispatcher.run_original_always = True
            return None
        return self._run_plain(dispatcher)

    def is_loser(self, code: types.CodeType) -> bool:
        """Whether a function that the hook hands over is not worth compiling: a review of one that calls it says so."""
        return code in self._reviews.losers

    def _run_plain(self, dispatcher: Any) -> Any:
        """Let a function without entries run as plain Python; what it calls may be compiled."""
        if dispatcher.original is None:
            dispatcher.run_original_always = True  # the hook is on already
            return None
        frame_policy.install()
        plain = all_positional(dispatcher.code)
        frame_policy.own(plain, self)
        return dispatcher.add_entry(None, plain, True, None)

    def _review(self, dispatcher: Any) -> None:
        """A function has settled: leave it to Python if its graph breaks cost more than its graphs save."""
        with compile_lock.turn() as is_ours, config.patch(**self.options.options):
            if not is_ours:
                dispatcher.review_in = 1  # at the next call
                return
            known = list(self._dispatchers)
            for one in self._reviews.watched_in_vain(known, dispatcher):
                self._unwatch(one)
            for one in self._reviews.losing(known, dispatcher):
                self._leave(one, watched=self._reviews.watches(known, one))
                if one.entries:
                    self._reviews.left(one)
                if not is_resume_code(one.code):
                    logs.log("graph_breaks", f"{one.__qualname__} runs as plain Python from now on: its graph breaks "
                                             "cost more than its graphs save")

    def _unwatch(self, dispatcher: Any) -> None:
        """Leave the frames below a function to Python, and itself where it is plain already."""
        for entry in dispatcher.entries:
            if entry.guard is None:
                self._leave(dispatcher, watched=False)
            entry.needs_hook = False
        if dispatcher.original is not None:
            logs.log("graph_breaks", f"nothing below {dispatcher.__qualname__} is compiled from now on: the frame hook "
                                     "costs more than that saves")

    def _leave(self, dispatcher: Any, watched: bool) -> None:
        """Give up what was compiled of a function, or of its rest behind a break."""
        guards = {id(entry.guard) for entry in dispatcher.entries}
        self.variants[:] = [variant for variant in self.variants if id(variant.guards) not in guards]
        dispatcher.clear()
        if watched:
            self._run_plain(dispatcher)
        else:
            dispatcher.run_original_always = True

    # -- compiling ------------------------------------------------------------------------------------------

    def _compile(self, dispatcher: Any, params: tuple[Any, ...], globals: dict[str, Any], closure: Any) -> Any:
        code = dispatcher.code
        if code.co_flags & (0x20 | 0x80 | 0x200):
            raise Skip("async" if code.co_flags & (0x80 | 0x200) else "generator", code.co_name)
        if not is_readable(code):
            raise Skip("opcode", code.co_name)
        if has_own_builtins(code, globals):
            raise Skip("skipped", f"{code.co_name}: it has builtins of its own")
        if runs_by_itself(code, globals):
            raise Skip("compiled_by_torch", dispatcher.__qualname__)
        plain = disabled_alone(code, globals, closure)
        if plain is not None:
            frame_policy.keep_plain(plain)
            raise Skip("disabled", dispatcher.__qualname__)
        history = self._histories.setdefault(code, Observations)
        history.compilations += 1
        forced: dict[int, GraphBreak] = {}
        times: dict[str, float] = {}
        start = time.perf_counter()
        while True:
            try:
                result = self._trace(code, params, globals, closure, dict(forced), times)
                frame_policy.hand_over(cause.recursive for cause in forced.values())
                break
            except TraceAgain:
                continue
            except RestartAnalysis as restart:
                if restart.step in forced and not restart.cause.tail:
                    raise Skip(restart.cause.reason.id, restart.cause.detail) from restart
                cause = restart.cause
                if restart.step in forced:
                    raise Skip(cause.reason.id, cause.detail) from restart
                forced = {k: v for k, v in forced.items() if k < restart.step}
                forced[restart.step] = cause
        context, interp, made, graph, compiled, record, needs_hook = result
        pinned = context.sizes.pinned_marks()
        if pinned:
            names = {symbol: f"axis {info.dim} of {info.source}" for symbol, info in context.sizes.symbols.items()}
            raise SpecializationError(code.co_name, pinned, names)
        floats = context.builder.pinned
        context.specialized.extend(f"{source}: {what}" for source, what in floats.items())
        guard_start = time.perf_counter()
        guard_separate(context)
        guards = build_guards(context.guards, context.sizes, native=None if config.native else False)
        times["guards"] = time.perf_counter() - guard_start
        with as_around():
            holds = guards.check(params, globals, closure)
        if not holds:
            failing = guards.explain(params, globals, closure)
            raise RuntimeError(f"guards of {code.co_name} do not hold right after tracing: {failing}")
        frame_policy.own(made, self)
        beside_dynamo.hide(made)
        if needs_hook:
            frame_policy.install()
        with interrupts.held():  # all of an entry's registration, or none of it
            worth = worth_of(graph, record is not None, interp, made)
            needs_hook = needs_hook and self._reviews.watches(self._dispatchers, dispatcher)
            entry = dispatcher.add_entry(guards, made, needs_hook, worth)
            times["total"] = time.perf_counter() - start
            name, shown = shown_callable(origin_code(code), closure)
            variant = Variant(name or dispatcher.__qualname__, shown.co_filename, shown.co_firstlineno, graph, guards,
                              compiled, record, list(context.specialized), times, _effects(interp),
                              is_resume_code(code))
            self.variants.append(variant)
            if self.made is not None:
                self.made.append(variant)
            self._drop_with_its_own(dispatcher, variant)
            if self.options.backend == "codegen":
                self._reviews.expect(self._dispatchers, dispatcher, worth.breaks, self._review)
        self._log(variant)
        self._leave_alone(origin_code(code), variant)
        return entry

    def _leave_alone(self, code: types.CodeType, variant: Variant) -> None:
        """A frame below that came to its end without a tensor operation is plain Python from now on."""
        if variant.graph is not None and any(not isinstance(node.spec, ScalarSpec) for node in variant.graph.nodes):
            self._idle.pop(code)
        elif variant.break_record is None and (idle := self._idle.pop(code)) is not None:
            dispatcher = idle()
            if dispatcher is not None:
                dispatcher.run_original_always = True

    def _drop_with_its_own(self, dispatcher: Any, variant: Variant) -> None:
        """Forget a variant as soon as a function or class that its guards are about is gone: they cannot hold again."""
        engine_ref, dispatcher_ref, guards = weakref.ref(self), weakref.ref(dispatcher), variant.guards

        def drop(name: str, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
            if finalizing():
                return  # modules are being taken apart
            engine, its_dispatcher = engine_ref(), dispatcher_ref()
            if engine is not None and its_dispatcher is not None and not sys.is_finalizing():
                engine._drop(its_dispatcher, guards_ref(), name)

        guards_ref = weakref.ref(guards)
        guards.watch_weakly_held(drop)

    def _drop(self, dispatcher: Any, guards: Any, name: str) -> None:
        for entry in dispatcher.entries:
            if guards is not None and entry.guard is guards:
                dispatcher.remove(entry)
                self._dropped.setdefault(dispatcher, []).append(name)
        self.variants[:] = [variant for variant in self.variants if variant.guards is not guards]

    def _trace(self, code: types.CodeType, params: tuple[Any, ...], globals: dict[str, Any], closure: Any,
               forced: dict[int, GraphBreak], times: dict[str, float]) -> Any:
        start = time.perf_counter()
        context, interp = self._tracer(code, globals, forced)
        return self._capture(context, interp, _root_frame(context, code, params, closure), code, times, start)

    def _tracer(self, code: types.CodeType, globals: dict[str, Any],
                forced: dict[int, GraphBreak]) -> tuple[SymbolicTraceContext, SymbolicInterpreter]:
        history, dynamic = self._histories.setdefault(code, Observations), self._dynamic()
        dynamic = "always" if history.fills_state and dynamic == "auto" else dynamic
        context = SymbolicTraceContext(history, globals, dynamic)
        context.breakable = not self.options.fullgraph
        # what differs between instances does not change: their variants are told apart, and split at the limit
        context.several_selves = self._root is not None and len(self._selves) >= 2
        if is_resume_code(code):
            context.computed.names = frozenset(param_names(code)).difference(param_names(origin_code(code)))
        return context, SymbolicInterpreter(context, forced)

    def _capture(self, context: SymbolicTraceContext, interp: SymbolicInterpreter, frame: Frame, code: types.CodeType,
                 times: dict[str, float],
                 start: float) -> Any:
        cause: GraphBreak | None = None
        returned: Value | None = None
        try:
            returned = interp.run(frame)
        except GraphBreak as error:
            cause = error
        if self._dynamic() == "auto" and tensors_grow(context):
            raise TraceAgain
        context.breakable = False
        times["trace"] = time.perf_counter() - start
        record = None
        if cause is not None:
            record = _record(interp, cause)
            if (self.options.fullgraph or breaks_are_errors(context)) and cause.reason.id != "exception":
                raise FullGraphError(record)
            logs.log("graph_breaks", lambda: str(record))
        # torch's module hooks put hooks on nodes of their own
        watched = cause is not None and cause.reason.id == "autograd_nodes" and \
            not is_library(interp.frame.code.co_filename)
        finisher = FrameCodegen(interp, code, lambda graph: self._lower(graph, times, watched), self.resume,
                                self._loops, self.options.fullgraph)

        def write(emitter: Any) -> None:
            if cause is None:
                assert returned is not None
                finisher.write_return(emitter, returned)
            else:
                finisher.write_break(emitter, cause)

        try:
            made, graph, compiled = finisher.finish(write)
        except Unreconstructable as error:
            raise Skip(error.cause.reason.id, error.cause.detail) from None
        if finisher.plain is not None:
            frame_policy.own(finisher.plain, self)
        logs.log("bytecode", lambda: f"{made.co_qualname}:\n{dis.Bytecode(made).dis()}")
        logs.log("sizes", lambda: _said_of_sizes(context))
        return context, interp, made, graph, compiled, record, finisher.needs_hook

    def _lower(self, graph: Graph, times: dict[str, float], watched: bool) -> Callable[..., Any]:
        """Make a graph callable. `watched`: the program looks at autograd's nodes next, which are to be eager's."""
        start = time.perf_counter()
        logs.log("graph", lambda: f"captured:\n{graph}")
        backend = get_backend("eager") if watched and any_needs_grad(graph.nodes) else self.backend
        if backend is self.backend:
            graph = run_passes(graph)
        passes_end = time.perf_counter()
        told = {"mode": self.options.mode, **self.options.options, "dynamic": self._dynamic(),
                "fullgraph": self.options.fullgraph}
        try:
            compiled = backend(graph, told)
        except BackendError as error:
            if self.options.fullgraph:
                raise
            self._warn_of(error, graph)
            compiled = get_backend("eager")(graph, told)
        times["passes"] = times.get("passes", 0.0) + passes_end - start
        times["backend"] = times.get("backend", 0.0) + time.perf_counter() - passes_end
        return compiled

    def _warn_of(self, error: BackendError, graph: Graph) -> None:
        """Say once that the backend fails."""
        text = f"jitpy: {error}; {graph.name} runs with eager kernels"
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(f"{text}, and so does what it refuses later", stacklevel=2)
        logs.log("backends", text)

    def _dynamic(self) -> str:
        return {None: config.dynamic, True: "always", False: "never"}[self.options.dynamic]

    def _log(self, variant: Variant) -> None:
        logs.log("guards", lambda: variant.guards.source_text)
        logs.log("timing", lambda: f"{variant.name}: " + ", ".join(f"{k} {v * 1e3:.1f} ms"
                                                                  for k, v in variant.times.items()))

    # -- going on after a break -----------------------------------------------------------------------------

    def resume(self, point: ResumePoint, captured: bool, globals_by_id: dict[int, Any]) -> Any:
        """The callable `(closure, *values)` that goes on at a point: traced itself, or plain Python."""
        key = (point, captured)
        found = self._resumes.get(key)
        if found is None:
            leaves = point.until is not None and point.until >= 0
            code = resume_code(point, globals_by_id, LoopExit(point, self.resume, globals_by_id) if leaves else None)
            space = globals_by_id[point.globals_id]
            if not captured and point.until is None:
                code = with_compiled_bodies(code, start_in(code), frozenset(point.locals),
                                            lambda body: self._continuation(body, space))
            found = self._continuation(code, space)
            if captured:
                found.plainly = functools.partial(self.resume, point, False, globals_by_id)
            else:
                found.run_original_always = True
            self._resumes[key] = found
        return found

    def _continuation(self, code: types.CodeType, space: dict[str, Any]) -> Any:
        """The dispatcher of a part of a function: `(closure, *values)`."""
        frame_policy.own(code, self)
        return make_dispatcher(code, space, on_miss=self.on_miss, native=None if config.native else False)

    def release(self) -> None:
        """The function that the engine served is gone."""
        frame_policy.forget(self)

    def reset(self) -> None:
        """Forget everything that was compiled."""
        for dispatcher in list(self._dispatchers):
            dispatcher.clear()
            dispatcher.run_original_always = dispatcher.closed = False
            dispatcher.review_in = 0
        self._resumes.clear()
        self._loops = PlainLoops()
        self._dropped.clear()
        self._observed.clear()
        self._reviews = Reviews()
        self._histories.clear()
        self._idle.clear()
        self.variants.clear()
        self.skipped.clear()
        self._dispatchers.clear()
        self._root = None


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def all_engines() -> list[Engine]:
    return list(_engines)


def reset_all() -> None:
    """Forget everything that was compiled, by all engines."""
    with compile_lock.turn():
        frame_policy.forget()
        for engine in all_engines():
            engine.reset()


beside_dynamo.on_new_marks(reset_all)


def _is_below(dispatcher: Any) -> bool:
    """Whether the hook asked for the dispatcher: the function itself was not jitted."""
    return dispatcher.original is None and not is_resume_code(dispatcher.code)


def _watched_op_by_op() -> bool:
    """Whether somebody has to see each operation: a dispatch mode (fake tensors, counters), or torch.jit.trace."""
    return torch._C._len_torch_dispatch_stack() > 0 or torch._C._get_tracing_state() is not None


def _root_frame(context: SymbolicTraceContext, code: types.CodeType, params: tuple[Any, ...], closure: Any) -> Frame:
    """The frame to trace: parameters by their sources, closure cells of the function."""
    frame = Frame(None, code, context.globals_of(context.root_globals))
    star = code.co_argcount + code.co_kwonlyargcount if code.co_flags & inspect.CO_VARARGS else -1
    for index, (name, value) in enumerate(zip(param_names(code), params, strict=True)):
        frame.locals[name] = _lazy_local(context, value, LocalSource(index, name, index == star))
    for index, (name, cell) in enumerate(zip(code.co_freevars, closure or (), strict=True)):
        frame.cells[name] = context.closure_cell(index, name, cell)
    return frame


def _lazy_local(context: SymbolicTraceContext, value: Any, source: LocalSource) -> Value:
    return context.force(Lazy(value, source))


def _record(interp: SymbolicInterpreter, cause: GraphBreak) -> BreakRecord:
    """Describe a break at the innermost frame of the user's."""
    stack = [f"{f.code.co_filename}:{_line_of(f)} in {f.code.co_name}" for f in interp.frames]
    chosen = interp.shown_frame()
    record = _record_at(cause.reason, cause.detail, chosen.code, _line_of(chosen))
    record.stack = stack
    return record


def _line_of(frame: Frame) -> int:
    ins = frame.instructions[min(frame.ip, len(frame.instructions) - 1)]
    return ins.line or frame.line()


def _record_at(reason: Reason, detail: str, code: types.CodeType, line: int) -> BreakRecord:
    text = linecache.getline(code.co_filename, line).strip()
    return BreakRecord(reason, detail, code.co_filename, line, code.co_name, text)


def _effects(interp: SymbolicInterpreter) -> list[str]:
    out = []
    for value in interp.context.dirty:
        if value.source is not None:
            what = "closure variable" if isinstance(value, CellValue) else value.cls.__name__
            out.append(f"{what} {value.source}")
    out += [f"{getattr(f, '__name__', f)}()" for f, _, _ in interp.host_calls]
    return out


beside_dynamo.hide_all(globals())

__all__ = ["Engine", "FullGraphError", "Options", "Variant", "all_engines", "reset_all"]
