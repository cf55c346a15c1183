"""Why a graph breaks: the registry of reasons, and the exceptions that carry them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from ..ir.op import Signal


@dataclass(frozen=True, slots=True)
class Reason:
    """One kind of graph break. `hint` says what the user can do about it."""

    id: str
    title: str
    explanation: str
    hint: str

    @property
    def anchor(self) -> str:
        return f"docs/graph_breaks.md#{self.id}"


REASONS: dict[str, Reason] = {}


def _reason(id: str, title: str, explanation: str, hint: str) -> None:
    REASONS[id] = Reason(id, title, explanation, hint)


_reason("user", "jitpy.graph_break() was called", "The program asked for a break here.", "Remove the call.")
_reason("data_dependent_branch", "Branch on the value of a tensor",
        "Which way the program goes depends on numbers that exist only when the graph has run. (Where one way only "
        "raises, the graph checks that it is the other one, without a break. Flags, counters and small masks "
        "from outside are looked at when a call begins, as long as the graph has not changed them. Counters lie on the "
        "CPU.)",
        "Use torch.where, or move the branch out of the jitted function. Both ways are captured separately.")
_reason("unsupported_call", "Call of a function that cannot be traced",
        "It is implemented in C, and jitpy does not know what it does to its arguments.",
        "Wrap it in jitpy.allow_in_graph if it is a function of tensors, or call it outside the jitted function.")
_reason("disabled", "Call of a function marked with jitpy.disable or torch.compiler.disable",
        "It runs as plain Python.", "Remove the mark.")
_reason("compiled_by_torch", "Call of a function that torch.compile compiles",
        "It is one call, which torch.compile serves.",
        "Call the function itself, or use torch.compile(backend='jitpy') around the whole.")
_reason("skipped", "Call of a function that jitpy does not enter",
        "Functions of this module are run as they are.", "Call it outside the jitted function.")
_reason("dynamic_shape", "The size of a result depends on data",
        "The operation's output size is known only when it has run.",
        "Use a formulation with a static size (torch.where, masks), or keep it outside the jitted function.")
_reason("unsupported_value", "Operation on an object that cannot be traced",
        "The object's behaviour is implemented in C, and jitpy has no model of it.",
        "Convert to plain Python values or tensors before the jitted function.")
_reason("unsupported_tensor", "A tensor of a kind that is not captured",
        "Sparse, quantised and otherwise special tensors run in eager mode, as do opaque subclasses.",
        "Convert to an ordinary dense tensor.")
_reason("unsupported_op", "A torch operation that cannot be captured", "It runs in eager mode.",
        "Use an equivalent that works on plain tensors.")
_reason("numpy", "A call of numpy that torch has no equal of",
        "numpy calls become torch calls where those give the same types, layouts, aliases and numbers. Others run as "
        "they are: results whose size depends on data, views that run backwards or are read-only, and dtypes that "
        "torch does not know. So do divisions of integers by numbers that may be zero, and code under "
        "np.errstate(...='raise').",
        "Use tensors, or a form of the call that docs/usage.md lists.")
_reason("opaque_iterator", "Iteration over an iterator made outside",
        "Iterators over builtin containers, `enumerate`, `zip`, `map` and `filter` are read ahead. The items of "
        "others (generators, those of itertools) exist only at run time. So do the items of one whose container was "
        "changed.",
        "Pass a list or tuple instead of an iterator.")
_reason("generator", "A generator is alive at a graph break",
        "A half-run generator cannot be handed over to plain Python.", "Consume the generator before the break.")
_reason("finalizer", "An object whose end is noticed",
        "When the last reference to it goes, code of the program runs: `__del__`, or the rest of a generator that is "
        "left half-way. Or a weak reference is asked that may tell. Only real frames drop their objects when Python "
        "would, so the rest of the running functions is plain Python. Functions that they call are captured by "
        "themselves, and so are bodies of `for` loops, such as those under tqdm.",
        "Make the object outside the jitted function, or close it (with statement, close()) where its work is done.")
_reason("async", "Coroutine or async generator", "Asynchronous code runs as plain Python.",
        "Jit the synchronous functions that it calls.")
_reason("opcode", "A bytecode instruction that is not traced", "It runs as plain Python.", "")
_reason("frame_access", "The code looks at its own frame",
        "locals(), exec and the like need a real frame.", "Pass the values explicitly.")
_reason("rng_state", "The state of a random generator that the graph does not know",
        "The CPU's generators are seeded, read and set in the graph. These exist outside of it only. Examples are a "
        "generator that is made anew at each call, a seed that the system draws, and the state of a GPU's generator.",
        "Make generators outside the jitted function, and seed GPUs there.")
_reason("lock", "A lock is taken, released or asked for",
        "Data under a lock are read while it is held and written before it is released. So a graph begins behind the "
        "taking of it, where guards are checked and inputs are read. It ends, with its changes made, in front of the "
        "release.",
        "Take locks around the call of the jitted function.")
_reason("clock", "A clock is read between operations",
        "The operations before it and those after it are graphs of their own, so that it says how long each takes.",
        "Read clocks outside of the jitted function, or behind its last operation.")
_reason("gpu_state", "The state of the GPU is read or set",
        "Streams, devices, waiting and memory are the host's business.", "Move it out of the jitted function.")
_reason("higher_order", "A function given to torch.cond, torch.while_loop or torch.func that does not fit",
        "It has side effects, or returns other things than are expected of it. `scan` and `map` of "
        "`torch._higher_order_ops` are captured up to 64 steps; torch compiles longer ones, and `associative_scan`.",
        "Return new tensors of equal sizes and dtypes, and change nothing outside.")
_reason("flex_attention", "A call of flex_attention that cannot be captured",
        "Its score_mod or mask_mod has side effects, or depends on numbers that exist only when the graph has run. "
        "Or it computes an element from more than single elements of tensors. Eager runs the call as a whole.",
        "Compute the score or the truth value of one element from its indices, and read tensors by `x[b, h]`.")
_reason("transform", "A torch.func transform that cannot be captured",
        "Its function has side effects, or torch's own transform refuses it.",
        "Transform a function of tensors that changes nothing outside.")
_reason("torch_mode", "A mode that changes what torch calls do is active",
        "A torch-function or dispatch mode, a torch.func transform, or the implementation of a custom operation.",
        "Enter the mode inside the jitted function, or call the jitted function outside of it.")
_reason("autograd", "A backward pass that cannot be captured",
        "It reaches what was computed before the frame, is watched by hooks, or adds to a gradient with a history.",
        "Run the forward pass, loss.backward() and the optimizer's step in one jitted function.")
_reason("autograd_nodes", "The program looks at autograd's nodes",
        "It reads a tensor's grad_fn. The graph in front of the break runs op by op, so that the nodes are eager's "
        "(but for views that change nothing). The nodes of graphs that were left before are compiled ones.",
        "Look at nodes outside the jitted function.")
_reason("plain_loop", "A loop of which nothing is compiled",
        "Its body breaks the graph and has no operation of tensors: plain Python runs it up to its end.", "")
_reason("depth", "Calls are nested too deeply to be inlined", "", "Raise jitpy.config.inline_depth.")
_reason("too_long", "The traced program is too long", "A loop was unrolled past the limit.",
        "Raise jitpy.config.unroll_limit, or move the loop out of the jitted function.")
_reason("exception", "The program raises here",
        "The rest runs as plain Python so that the exception is the program's own.", "")
_reason("nested_call", "A callback inside a C function breaks the graph",
        "The whole call runs as plain Python, because a C function cannot be resumed in its middle.",
        "Write the loop out in Python.")
_reason("local_class", "A class that is made at each call",
        "Plain Python makes it, so code that is compiled for one class does not fit the next.",
        "Define the class at the top of the module, or outside of the jitted function.")
_reason("changing_value", "A number, text or container that changes from call to call is needed",
        "The program's path depends on it, such as the number of items or a key. Code compiled for each value would "
        "fit few calls. After some of them plain Python does this one step for all values.",
        "Use it as a number in tensor operations, or stack the items in a tensor of one size.")
_reason("recursion", "A function that calls itself breaks the graph",
        "The inner call is made as a call and compiled by itself: once, not once for each depth.",
        "Remove the break inside the function.")
_reason("input_mutation", "A change of a tensor that cannot be written back", "", "Change a copy of the tensor.")
_reason("new_history", "A tensor with a history that begins anew",
        "A parameter was made in the function, or changed under no_grad, as by an optimizer's step. It is read with "
        "gradients, and a result has its history from there. One graph makes or changes it, and another one begins "
        "where it is read.",
        "Read it under torch.no_grad(), return detached results, or run their backward pass in the function too.")
_reason("import", "Import with effects", "The module was not imported before; importing runs arbitrary code.",
        "Import at the top of the module.")


#: Advice about calls and objects of a kind, where the reason is a broad one: by how its detail begins, or, after
#: " on ", by what it names.
_ADVICE: tuple[tuple[tuple[str, ...], str], ...] = (
    (("Random.", "random.", "numpy.random", "secrets."),
     "Numbers from plain generators are captured where the arguments are known before the graph runs. Draw others "
     "before the call and pass them in, or draw them with torch."),
    (("time.", "datetime.", " on datetime"),
     "time.time() and the like are captured in front of the first operation and behind the last one; read other clocks "
     "outside of the jitted function."),
    (("lock.", "RLock.", "_thread.", "threading.", "Condition.", "Semaphore."),
     "Take locks, and ask for threads, around the call of the jitted function."),
    (("ContextVar.", " on ContextVar", " on _thread._local"),
     "Read it outside of the jitted function and pass the value in."),
    (("io.", "_IOBase.", "_io.", "TextIOWrapper.", "BufferedReader.", "BufferedWriter.", "posix.", "nt.",
      "subprocess."),
     "Files and the operating system are asked outside of the jitted function."),
    (("_pickle.", "pickle.", "_json.", "marshal.", "zlib.", "_hashlib."), "Do it outside of the jitted function."),
    (("numpy.",), "Use torch's function for it, or call it outside of the jitted function."),
)


def advice(reason: Reason, detail: str) -> str:
    """The advice about a break: the reason's, or that of its kind."""
    if reason.id in ("unsupported_call", "unsupported_value", "skipped"):
        for kinds, text in _ADVICE:
            if any(kind in detail if kind.startswith(" on ") else detail.startswith(kind) for kind in kinds):
                return text
    return reason.hint


class GraphBreak(Signal):
    """The current instruction cannot be traced: run it as plain Python and go on after it.

    `tail` asks for the rest of the frame to run as plain Python too; `split`: nothing does, and another graph begins
    with the instruction.
    """

    def __init__(self, reason_id: str, detail: str = "", tail: bool = False, split: bool = False) -> None:
        super().__init__(f"{reason_id}: {detail}")
        self.reason = REASONS[reason_id]
        self.detail = detail
        self.tail = tail
        self.split = split
        #: guards (source, kind, argument) of the break itself: where they fail, tracing again may get further
        self.guards: list[tuple[Any, str, Any]] = []
        #: what the rest of the program raises, as tracing found where guards were on `found_under`
        self.raises: type[BaseException] | None = None
        self.found_under: frozenset[Any] = frozenset()
        #: the code of a function whose frames are to be compiled by themselves, although it is compiled already
        self.recursive: CodeType | None = None

    def keep(self, guards: Iterable[Any]) -> None:
        """Make what was read so far guards of the break itself."""
        self.guards = [(guard.source, guard.kind, guard.arg) for guard in guards if guard.kind in _KEPT_GUARDS]


#: Guards that hold for another attempt at tracing as they stand; the others are about symbols of one attempt.
_KEPT_GUARDS = {"type", "id", "weak_id", "weak_type", "eq", "len", "keys", "haskey", "nokey", "same", "python", "empty",
                "class", "function"}


class Skip(Signal):
    """The frame cannot be captured at all: run it as plain Python from now on."""

    def __init__(self, reason_id: str, detail: str = "") -> None:
        super().__init__(f"{reason_id}: {detail}")
        self.reason = REASONS[reason_id]
        self.detail = detail


class RestartAnalysis(Signal):
    """Trace again from the start and break at step `step`: what went wrong cannot be resumed where it was found."""

    def __init__(self, step: int, cause: GraphBreak) -> None:
        super().__init__(step)
        self.step = step
        self.cause = cause


class TraceAgain(Signal):
    """Trace again from the start: what was noted since (`Observations`) has it come out in another way."""


@dataclass(slots=True)
class BreakRecord:
    """A graph break as reports show it."""

    reason: Reason
    detail: str
    filename: str
    line: int
    function: str
    source_line: str
    stack: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = f"{self.filename}:{self.line} in {self.function}: {self.reason.title} [{self.reason.id}]"
        if self.detail:
            text += f": {self.detail}"
        if self.source_line:
            text += f"\n    {self.source_line}"
        if self.hint:
            text += f"\n    hint: {self.hint}"
        return text

    @property
    def hint(self) -> str:
        return advice(self.reason, self.detail)

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.reason.id, "title": self.reason.title, "detail": self.detail, "file": self.filename,
                "line": self.line, "function": self.function, "source": self.source_line, "hint": self.hint,
                "explanation": self.reason.explanation, "docs": self.reason.anchor}
