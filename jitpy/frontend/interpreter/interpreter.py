"""The symbolic interpreter: runs bytecode on Values.

One `SymbolicInterpreter` traces one call of one frame. Calls of Python functions push a `Frame` instead of recursing,
so that a graph break finds the whole chain of frames, each at an instruction where it can be resumed. Where a C
function
must call back (`sorted(key=...)`, `__bool__` of a user class), `call_sync` runs a nested loop; a break in there cannot
be resumed in the middle of the C function, so the whole instruction that led to it breaks instead.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ... import config, logs
from ...ir import Loc, SizeUnknown
from ..breaks import GraphBreak, RestartAnalysis
from ..bytecode.code import Ins
from ..bytecode.handlers import DECLARED_BREAKS, HANDLERS
from ..bytecode.resume_codes import origin_code
from ..capture import tensor_flags
from ..capture.front_calls import FrontCall
from ..capture.known_numbers import pin
from ..models.builtins import iteration, plain_parts, sets, symbolic_text
from ..values import ConstValue, ExceptionValue, GeneratorValue, TraceContext, Value
from . import attributes, calls, constant_folding, hash_keys, keyed_items, operators, subscripts
from .callees import is_looking, keep_callers
from .frame import PUSHED, Frame, Share, TracedException
from .library_code import is_library, is_polyfill, stands_for_c

#: The instructions that begin a function, and those that finish one that is being made: code that goes on in between
#: has no cells, or a function without its closure
_NO_PLACE_TO_STOP = frozenset(("MAKE_CELL", "COPY_FREE_VARS", "RESUME", "RETURN_GENERATOR", "SET_FUNCTION_ATTRIBUTE"))

#: How many instructions a recorded operation may take, on average, in a program that is longer than the limit.
INSTRUCTIONS_PER_NODE = 500


class SymbolicInterpreter:
    """Traces one call. `forced` maps step numbers to the breaks that earlier attempts found there."""

    def __init__(self, context: TraceContext, forced: dict[int, GraphBreak]) -> None:
        if "triton.runtime.jit" in sys.modules:
            from ..models.tensors import triton_kernels  # noqa: F401  (registers what launches kernels)
        self.context = context
        self.builder = context.builder
        self.forced = forced
        self.frames: list[Frame] = []
        self.handled: Value | None = None  # the exception being handled
        self.step = 0
        self.builder.step, self.builder.step_behind = self.step_to_break, self.step_behind
        self.total = 0
        self.sync_depth = 0
        self.result: Value | None = None
        #: calls to carry out for their effect on the outside (print, logging), in order
        self.host_calls: list[tuple[Any, list[Value], dict[str, Value]]] = []
        #: what these calls go through: the holder, the attribute (None: any), what to do if that is changed
        self.said_through: list[tuple[Any, str | None, RestartAnalysis]] = []
        #: calls whose result is known, made for their effect before anything is changed: functions under `lru_cache`
        self.early_calls: list[tuple[Any, list[Value], dict[str, Value]]] = []
        #: calls whose results are inputs of the graph, made in front of it
        self.front_calls: list[FrontCall] = []
        #: objects that stand for ones which a cache may hold already, by id: which objects they are is not known
        self.uncached: dict[int, Value] = {}
        #: callbacks up to this depth are ordinary calls of the program's
        self.ordinary_depth = 0
        #: the `backward` of an autograd function that is being traced: see `autograd_functions`
        self.custom_backward: Any = None
        self.shares: dict[int, Share] = {}
        #: weak references that the program makes, by the id of the Value referred to
        self.weak_references: dict[int, Value] = {}
        #: generators that were started
        self.generators: list[GeneratorValue] = []

    # -- the loop -------------------------------------------------------------------------------------------

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    def loc(self) -> Loc:
        """The user's place, and the innermost module whose code runs."""
        frame = self.shown_frame()
        module = next((module for f in reversed(self.frames) if (module := f.module())), "")
        return Loc(frame.code.co_filename, frame.line(), frame.code.co_name, module)

    def shown_frame(self) -> Frame:
        """The frame that reports point at: the innermost one outside library code, or of a module, or of all."""
        frames = self.frames[::-1]
        return next((frame for frame in frames if not is_library(frame.code.co_filename)), None) or \
            next((frame for frame in frames if frame.module()), frames[0])

    def run(self, frame: Frame) -> Value:
        """Trace from a root frame to its return. GraphBreak, RestartAnalysis and Skip come out as exceptions."""
        self.push_frame(frame)
        self.context.place = lambda: self.loc() if self.frames else ""  # guards are added when tracing has ended, too
        try:
            return self.run_until(0)
        except TracedException as error:
            step = error.value.step
            cause = GraphBreak("exception", error.value.cls.__name__, tail=True)
            cause.raises, cause.found_under = error.value.cls, self.context.guards.subjects()
            # what the raising instruction read is not looked at when it is left to plain Python
            cause.keep(self.context.guards)
            raise RestartAnalysis(step if step >= 0 else self.step, cause) from None

    def run_until(self, base: int) -> Value:
        """Execute until only `base` frames are left; the value that the last one returned."""
        frames = self.frames
        context = self.context
        graph = self.builder.graph
        trace = logs.enabled("trace")
        limit = config.unroll_limit
        sync = self.sync_depth
        #: the step that is another try of an instruction
        pinned = -1
        while True:
            frame = frames[-1]
            ins = frame.instructions[frame.ip]
            frame.ip += 1
            frame.ran += 1
            self.total += 1
            if sync == 0:
                self.step += 1
                if self.step in self.forced:
                    frame.ip -= 1
                    cause = self.forced[self.step]
                    if any(map(is_looking, frame.stack)):  # a later finding forced the break, and did not know
                        keep_callers(self, cause)
                    for source, kind, arg in cause.guards:
                        if kind == "class":
                            context.guard_class_like(arg)
                        else:
                            context.guard(source, kind, arg)
                    raise cause
                stack_before, names_before = frame.stack.copy(), frame.kw_names
                depth_before = len(frames)
                state_before = (len(graph.nodes), context.writes, len(self.host_calls))
            if trace:
                logs.log("trace", f"{'  ' * len(frames)}{frame.code.co_name} {ins} | {len(frame.stack)}")
            run = ins.run
            if run is None:
                run = ins.run = HANDLERS.get(ins.name) or _undeclared(ins.name)
            try:
                if self.total > limit and self.is_too_long(frame.ran) and ins.name not in _NO_PLACE_TO_STOP:
                    raise GraphBreak("too_long", f"more than {limit} instructions", tail=True)
                run(self, frame, ins)
            except (TracedException, GraphBreak, SizeUnknown) as found:
                if isinstance(found, TracedException):
                    self.unwind(found.value, base)
                    continue
                cause = found if isinstance(found, GraphBreak) else GraphBreak("data_dependent_branch", str(found))
                if sync:
                    raise cause from None
                outer = self.polyfill_caller() if cause.reason.id != "changing_value" else self.library_caller()
                if outer is not None:
                    raise RestartAnalysis(outer, cause) from None
                if pinned == self.step:  # break in front of the first try, without the guards of the second one
                    raise RestartAnalysis(self.step - 1, cause) from None
                clean = state_before == (len(graph.nodes), context.writes, len(self.host_calls))
                if not clean or len(frames) != depth_before or frames[-1] is not frame:
                    raise RestartAnalysis(self.step, cause) from None
                frame.ip -= 1
                frame.kw_names = names_before
                frame.stack[:] = stack_before
                if cause.reason.id != "changing_value" and self._pin_operands(frame, ins):
                    pinned = self.step + 1
                    continue
                raise cause from None
            if len(frames) == base:
                result = self.result
                assert result is not None
                self.result = None
                return result

    def is_too_long(self, ran: int) -> bool:
        """Whether to leave the rest to plain Python, `ran` instructions into a frame. A loop is unrolled up to the
        limit; the calls of a model with many layers may take more together, as long as they record operations."""
        limit = config.unroll_limit
        return ran > limit or self.total > limit + INSTRUCTIONS_PER_NODE * len(self.builder.graph.nodes)

    def _pin_operands(self, frame: Frame, ins: Ins) -> bool:
        """Put the values of known numbers in the place of an instruction's operands, guarded: it may be traced then.
        The store of an attribute does not depend on the stored value."""
        if ins.name == "STORE_ATTR":
            return False
        count = ins.arg + 3 if ins.name.startswith(("CALL", "BUILD_")) and type(ins.arg) is int else 3
        found = False
        for position in range(max(0, len(frame.stack) - count), len(frame.stack)):
            value = frame.stack[position]
            if value.scalar is not None and value.traced.known is not None:
                number = pin(self.builder, value.traced, f"an operand of {ins.name}, {self.loc()}")
                frame.stack[position] = ConstValue(number, value.source)
                found = True
            elif value.is_text and value.source is None:
                try:
                    frame.stack[position] = ConstValue(self.context.pin(value))
                except GraphBreak:
                    continue
                found = True
        return found

    def polyfill_caller(self) -> int | None:
        """The step of the user's call that the innermost frames stand for, if those are polyfills: a break in there
        is a break of that call, which then runs the C function itself."""
        step = None
        for frame in reversed(self.frames):
            if not is_polyfill(frame.code):
                break
            step = frame.entered
        return step

    def step_to_break(self) -> int:
        """The step at which a graph that is traced again can break, for what happens now."""
        outer = None if self.sync_depth else self.polyfill_caller()
        return self.step if outer is None else outer

    def step_behind(self, step: int) -> int:
        """The step of the outermost call that was made after `step` and is running; `step_to_break` where there is
        none."""
        found = self.step_to_break()
        return next((callee.entered for callee in self.frames[1:] if step < callee.entered <= found), found)

    def library_caller(self) -> int | None:
        """The step of the call by which the program entered library code, if that is running. Code behind a value that
        changes gets what was computed from it, and would be compiled for each: the call as a whole hides it.
        """
        step = None
        for frame in reversed(self.frames[1:]):
            if not is_library(frame.code.co_filename):
                break
            step = frame.entered
        return step

    def in_polyfill(self) -> bool:
        """Whether the running frame is the body of a polyfill."""
        return stands_for_c(self.frames[-1].code)

    def unwind(self, exception: ExceptionValue, base: int) -> None:
        """Go on at the handler of an exception, or leave the loop with it."""
        if exception.step < 0:
            exception.step = self.step
        while True:
            frame = self.frames[-1]
            ins = frame.current
            handler = ins.handler
            if handler is not None:
                del frame.stack[handler.depth:]
                if handler.push_lasti:
                    frame.stack.append(ConstValue(ins.index))
                frame.stack.append(exception)
                frame.ip = handler.target
                return
            self.pop_frame()
            if frame.lookup is not None and exception.tell_lookup(*frame.lookup):
                exception.step = frame.entered  # plain Python, too, has to be the one that looks it up
                if exception.source is not None:
                    cause = GraphBreak("unsupported_value", "an AttributeError from outside is told what was looked up")
                    raise RestartAnalysis(frame.entered, cause)
            if frame.generator is not None:
                self._end_generator(frame.generator)
                if issubclass(exception.cls, StopIteration):
                    exception = self.stop_iteration_error(exception)
            if len(self.frames) == base:
                raise TracedException(exception)

    # -- frames ---------------------------------------------------------------------------------------------

    def push_frame(self, frame: Frame) -> None:
        if len(self.frames) >= config.inline_depth:
            raise GraphBreak("depth", frame.code.co_name)
        frame.entered, frame.nodes = self.step, len(self.builder.graph.nodes)
        self.frames.append(frame)

    def pop_frame(self) -> Frame:
        """Take the innermost frame off, and count what it took."""
        frame = self.frames.pop()
        self.share_of(frame).add(self.step - frame.entered, len(self.builder.graph.nodes) - frame.nodes)
        return frame

    def share_of(self, frame: Frame) -> Share:
        code = origin_code(frame.code)
        return self.shares.setdefault(id(code), Share(code))

    def counted(self) -> list[Share]:
        """The shares of all functions, once the trace has come to its end: that of the root is first."""
        depth = len(self.frames)
        for position, frame in enumerate(self.frames):
            share = self.share_of(frame)
            share.add(self.step - frame.entered, len(self.builder.graph.nodes) - frame.nodes)
            share.at_break = max(share.at_break, depth - position)
        return sorted(self.shares.values(), key=lambda share: -share.instructions)

    def leave(self, value: Value) -> None:
        """Return `value` from the innermost frame."""
        frame = self.pop_frame()
        if frame.generator is not None:
            self._end_generator(frame.generator)
        if frame.finish is not None:
            frame.finish(self, value)
        elif self.frames and not (self.sync_depth and frame is self._sync_root):
            self.frames[-1].stack.append(value)
        self.result = value

    def _end_generator(self, generator: GeneratorValue) -> None:
        generator.frame = None
        generator.running = False
        self.handled = generator.outer

    _sync_root: Frame | None = None

    def call_sync(self, fn: Value, args: list[Value], kwargs: dict[str, Value] | None = None) -> Value:
        """Call and wait for the result, in a nested loop. For callbacks of C code only."""
        self.sync_depth += 1
        try:
            result = self.call(fn, args, kwargs or {})
        finally:
            self.sync_depth -= 1
        return self.finish_sync(result)

    @contextlib.contextmanager
    def calling_ordinarily(self) -> Iterator[None]:
        """A callback in here is as ordinary a call of the program's as the one that it comes from."""
        outer = self.ordinary_depth
        if self.sync_depth <= outer:
            self.ordinary_depth = self.sync_depth + 1
        try:
            yield
        finally:
            self.ordinary_depth = outer

    def finish_sync(self, result: Any) -> Value:
        """The value of a `call` that may have pushed a frame: runs that frame to its end."""
        if result is not PUSHED:
            return result
        root_before, self._sync_root = self._sync_root, self.frames[-1]
        base = len(self.frames) - 1
        self.sync_depth += 1
        try:
            return self.run_until(base)
        finally:
            self.sync_depth -= 1
            self._sync_root = root_before

    # -- the data model -------------------------------------------------------------------------------------

    call = calls.call
    instantiate = calls.instantiate
    call_function = calls.call_function
    call_object = calls.call_object
    record = calls.record
    recording = calls.recording
    from_payload = calls.from_payload
    getattr = attributes.load_attr
    getattr_of_c = attributes.c_attribute
    descriptor_get = attributes.descriptor_get
    is_data_descriptor = attributes.is_data_descriptor
    attribute_error = attributes.attribute_error
    setattr = attributes.store_attr
    delattr = attributes.delete_attr
    hasattr = attributes.has_attr
    getitem = subscripts.get_item
    setitem = subscripts.set_item
    delitem = subscripts.delete_item
    contains = subscripts.contains
    binary = operators.binary
    unary = operators.unary
    compare = operators.compare
    equal = operators.equal
    same_object = operators.same_object
    truth = operators.truth
    truth_or_number = operators.truth_or_number
    truth_of_number = operators.truth_of_number
    known_number = operators.known_number
    number_of_size = operators.number_of_size
    joined = operators.joined
    format_percent = symbolic_text.format_percent
    set_binary = sets.set_binary
    answers = plain_parts.answers
    count_of_number = tensor_flags.count_of
    fold = operators.fold_constants
    fold_numpy_numbers = constant_folding.fold_numpy_numbers
    as_int = calls.as_int
    index_of = subscripts.index_of
    iterate = iteration.iterate
    mutate = operators.mutate
    own_methods = calls.own_methods
    no_torch_function = calls.no_torch_function
    plain_part = plain_parts.plain_part
    instance_key = hash_keys.instance_key
    identity_key = hash_keys.identity_key
    read_by_key = keyed_items.read_by_key
    length = operators.length

    # -- exceptions -----------------------------------------------------------------------------------------

    def make_exception(self, cls: type[BaseException], *args: Any) -> ExceptionValue:
        return ExceptionValue(cls, [a if isinstance(a, Value) else ConstValue(a) for a in args])

    def stop_iteration_error(self, stop: ExceptionValue) -> ExceptionValue:
        """The exception for a StopIteration that leaves a generator."""
        replaced = self.make_exception(RuntimeError, "generator raised StopIteration")
        replaced.cause = replaced.context = stop
        replaced.suppress_context = True
        replaced.step = self.step
        return replaced

    def throw(self, cls: type[BaseException], *args: Any) -> TracedException:
        """The exception to `raise` in a handler so that the traced program raises `cls(*args)`."""
        value = self.make_exception(cls, *args)
        return self.raise_value(value)

    def raise_value(self, value: ExceptionValue) -> TracedException:
        if self.handled is not None and self.handled is not value:
            _cut_context(self.handled, value)
            value.context = self.handled
        if value.step < 0:
            value.step = self._user_step()
        return TracedException(value)

    def _user_step(self) -> int:
        """The step of the user's instruction that is being executed, where polyfills stand for part of it."""
        step = self.step
        for frame in reversed(self.frames):
            if not stands_for_c(frame.code):
                break
            step = frame.entered
        return step

    def raise_real(self, error: BaseException) -> TracedException:
        """As `throw`, for a live exception that an eager evaluation of constants raised."""
        from ..models.builtins.exception_state import read_state

        value = ExceptionValue(type(error), [self.context.const_object(a) for a in error.args])
        if not isinstance(error, (AttributeError, NameError)):  # these are told what was looked up
            value.members = read_state(self, error, {})
        return self.raise_value(value)


def _cut_context(chain: Value, value: ExceptionValue) -> None:
    """Take `value` out of the contexts of `chain`, which is to become its context."""
    while chain.is_exception and chain.context is not None:
        if chain.context is value:
            chain.context = None
            return
        chain = chain.context


def _undeclared(name: str) -> Callable[[Any, Any, Ins], None]:
    reason = DECLARED_BREAKS.get(name, "opcode")

    def break_here(interp: SymbolicInterpreter, frame: Frame, ins: Ins) -> None:
        raise GraphBreak(reason, name)

    return break_here
