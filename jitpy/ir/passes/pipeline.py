"""Every pass over graphs, in the order in which they run. Users add to the first stage with `register_pass`."""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from ... import config, logs
from ..graph import Graph
from ..verify import verify
from .pattern import Rules, apply

#: A pass changes the graph in place and returns what it did, one text per change (or None), or a new graph.
Run = Callable[..., Any]


@dataclass(frozen=True)
class Pass:
    """One pass of jitpy's own.

    name     of the function, or of the table of rules, in `module`; that is imported when the pass first runs
    about    what it does, in one sentence
    backend  the code generator that it is for: "cpp" or "triton"; "" for both
    when     the condition under which it changes something, for the reader; "" if there is none
    takes    what it is given besides the graph
    """

    name: str
    module: str
    about: str
    backend: str = ""
    when: str = ""
    takes: tuple[str, ...] = ()

    @functools.cached_property
    def run(self) -> Run:
        return as_pass(getattr(importlib.import_module(f".{self.module}", __package__), self.name))


_FOLD = Pass("fold_constants", "cleanup", "computes small results that depend on constants only")
_SIMPLIFY = Pass("simplify", "rules", "applies the tables of exact rewrites: arithmetic, conversions and copies, views")
_SHARE = Pass("share_subexpressions", "cleanup", "computes once what is computed twice")
_REMOVE = Pass("remove_dead_code", "cleanup", "drops what nobody reads")
_SWEEP = replace(_REMOVE, when="a pass in front of it changed something")
_DRAW = Pass("draw_in_kernels", "random_numbers", "lets kernels draw eager's random numbers themselves", "triton",
             "the GPU's generator can be read", ("blocks",))
_CHANNELS_LAST = Pass("use_channels_last", "channels_last", "lets regions around convolutions run in channels-last",
                      when="it saves more bytes than it converts")
_COMPRESS = Pass("compress_saved_tensors", "saved_tensor_compression", "lets gradient formulas read fewer bytes", "cpp")

#: The stages of a graph's way, in order, each with its passes.
STAGES: dict[str, tuple[Pass, ...]] = {
    # as it was captured
    "captured": (_FOLD, _SIMPLIFY, _SHARE, _REMOVE),
    # before gradients, for the device
    "device": (
        _DRAW,
        Pass("share_keys", "masked_attention", "runs attention of one query a head as flex attention", "triton"),
        Pass("group_heads", "grouped_heads", "reads keys and values of attention in groups of heads", "triton",
             "keys are repeated for groups of heads"),
        _SWEEP,
    ),
    # with gradients
    "joint": (
        _FOLD, _SIMPLIFY, _SHARE, _REMOVE, _CHANNELS_LAST, replace(_COMPRESS, backend=""),
        Pass("keep_statistics", "statistics", "computes large softmaxes of GPUs again from two numbers a row",
             when="a gradient reads them"),
    ),
    # each half by itself, before it is scheduled
    "kernels": (
        Pass("compute_negations", "negations", "computes negations that torch leaves pending"),
        Pass("ATTENTION", "attention", "turns attention written out by hand into the fused operator"),
        Pass("use_integer_products", "int8_products", "multiplies the integers of dequantised operands", "cpp",
             "both have 8 bits"),
        Pass("LINEAR", "matmuls", "writes `linear` as the product of matrices that it is", "cpp"),
        _DRAW,
        Pass("multiply_points", "points", "computes convolutions of single pixels as products", "triton", "16 bits"),
        Pass("choose_layouts", "layouts", "lays values row-major where eager has their last two axes swapped", "triton",
             "more of the kernels around them read rows"),
        Pass("align_products", "alignment", "pads products of sizes that tensor cores cannot read in whole pieces",
             "triton", "that pays"),
        _CHANNELS_LAST,
        Pass("pad_groups", "groups", "pads groups of channels to the sizes of cuDNN's kernels", "triton", "16 bits"),
        Pass("use_integer_convolutions", "int8_products", "convolves the integers of dequantised images", "cpp",
             "both have 8 bits"),
        Pass("pack_weights", "packing", "puts fixed weights of convolutions in the library's order", "cpp",
             "parameters are frozen"),
        _COMPRESS,
        Pass("fold_batch_norms", "batch_norms", "makes a batch norm part of the convolution in front of it", "triton",
             "relu follows, in bfloat16 under autocast"),
        Pass("fold_activations", "activations", "makes biases and activations part of a product's call", "triton",
             "16 bits"),
        Pass("add_biases_later", "convolution_biases", "adds a convolution's bias in the kernel behind it", "triton"),
        _SWEEP,
    ),
}


def run_stage(graph: Graph, stage: str, backend: str = "", **given: Any) -> list[str]:
    """Run the passes of a stage behind "captured" in place; what they did. `given` is what passes take."""
    done: list[str] = []
    for one in STAGES[stage]:
        if one.backend in ("", backend) and (done or one is not _SWEEP):
            done += one.run(graph, *(given[name] for name in one.takes))
    return done


def run_passes(graph: Graph, extra: Iterable[Run | Rules] = ()) -> Graph:
    """Simplify `graph` as it was captured in place and return it (or what a user's pass returned instead).

    `extra` are passes or rules that run once, before dead code is removed. The outputs, their aliasing, the mutations
    and every bit of every value stay the same, as far as users' own passes do not change them.
    """
    for step in _with_registered(extra):
        graph = _run(step, graph)
    return graph


@dataclass(frozen=True)
class Step:
    """A named pass."""

    name: str
    run: Run


#: The names that `before=` and `after=` of `register_pass` may use.
STEP_NAMES = tuple(one.name for one in STAGES["captured"])


@dataclass(frozen=True, eq=False)
class RegisteredPass:
    """Handle of a user's pass: `unregister()`, or use it as a context manager."""

    name: str
    run: Run
    before: str | None
    after: str | None

    def unregister(self) -> None:
        """Take the pass out again; twice does no harm."""
        if self in _registered:
            _registered.remove(self)

    def __enter__(self) -> RegisteredPass:
        return self

    def __exit__(self, *exc: object) -> None:
        self.unregister()


_registered: list[RegisteredPass] = []


def register_pass(fn_or_rules: Run | Rules, *, before: str | None = None, after: str | None = None,
                  name: str | None = None) -> RegisteredPass:
    """Add a pass to every later compilation; returns a handle with `unregister()`.

    fn_or_rules  a function that takes the `Graph`, changes it in place and returns None, a list of texts that say
                 what it did, or
                 another Graph; or `Rules`
    before/after the built-in step or registered pass next to which it runs; without either, before `remove_dead_code`
    name         for logs, and for `before`/`after` of others

    Raises TypeError for anything else, ValueError for an unknown step or a name that is taken.
    """
    if not (isinstance(fn_or_rules, Rules) or callable(fn_or_rules)):
        raise TypeError(f"register_pass takes a function of a Graph, or Rules, not {type(fn_or_rules).__name__}")
    if before is not None and after is not None:
        raise ValueError("register_pass takes before= or after=, not both")
    names = [*STEP_NAMES, *(one.name for one in _registered)]
    for place in (before, after):
        if place is not None and place not in names:
            raise ValueError(f"no pass is called {place!r}; the passes are: {', '.join(names)}")
    chosen = name or pass_name(fn_or_rules)
    if name is not None and name in names:
        raise ValueError(f"a pass called {name!r} exists already")
    base, count = chosen, 1
    while chosen in names:
        count += 1
        chosen = f"{base}_{count}"
    handle = RegisteredPass(chosen, as_pass(fn_or_rules), before, after)
    _registered.append(handle)
    return handle


def pass_name(one: Run | Rules) -> str:
    return "rules" if isinstance(one, Rules) else getattr(one, "__name__", type(one).__name__)


def as_pass(one: Run | Rules) -> Run:
    if isinstance(one, Rules):
        return lambda graph: apply(graph, one)
    return one


def registered_names() -> tuple[str, ...]:
    """The registered passes: part of what a cached artefact depends on."""
    return tuple(one.name for one in _registered)


def _with_registered(extra: Iterable[Run | Rules]) -> list[Step]:
    *first, last = (Step(one.name, one.run) for one in STAGES["captured"])
    order = [*first, *(Step(pass_name(one), as_pass(one)) for one in extra), last]
    for one in _registered:
        names = [step.name for step in order]
        target = one.after or one.before or "remove_dead_code"
        # a pass placed next to one that was unregistered since goes to the default place
        position = names.index(target) if target in names else names.index("remove_dead_code")
        order.insert(position + (one.after is not None and target in names), Step(one.name, one.run))
    return order


def _run(step: Step, graph: Graph) -> Graph:
    start = time.perf_counter()
    before = str(graph) if logs.enabled("graph") else ""
    result = step.run(graph)
    if isinstance(result, Graph):
        graph = result
    seconds = time.perf_counter() - start
    logs.log("timing", f"pass {step.name} on {graph.name}: {seconds * 1e3:.2f} ms")
    if before:
        after = str(graph)
        if after != before:
            notes = "".join(f"\n# {text}" for text in result) if isinstance(result, (list, tuple)) else ""
            logs.log("graph", f"after {step.name} ({seconds * 1e3:.2f} ms):{notes}\n{after}")
    if config.debug or config.raise_errors:
        verify(graph, after=step.name)
    return graph
