"""Functions that seed random generators, and read and set their state: nodes between those that draw."""

from __future__ import annotations

from typing import Any

import torch

from jitpy.ir.ops.random_state import READ, SEED, STATE, WRITE

from ....ir.algebra import sympy
from ..torch_state import refuses, torch_state_functions
from ..traced import GraphBuilder, TracedTensor, Uncapturable

_Generator = torch.Generator
_CPU = torch.default_generator


def _own(generator: Any) -> Any:
    """A generator as an argument of a node."""
    if generator.device.type != "cpu":
        raise Uncapturable("rng_state", "the state of a GPU's random generator is read or set")
    return generator


def _changed(builder: GraphBuilder, generator: Any, seed: Any) -> None:
    """A generator's state is another one now; `seed` None: one that nobody knows while tracing."""
    state = builder.state
    state.set("generator_writes", state.generator_writes + 1)
    known = {**state.seeds, generator: seed % (1 << 64)} if type(seed) is int else \
        {key: value for key, value in state.seeds.items() if key is not generator}
    state.set_seeds(known)


def _seed(builder: GraphBuilder, generator: Any, seed: Any) -> Any:
    if type(seed) is bool or not isinstance(seed, (int, sympy.Basic)):
        raise Uncapturable("rng_state", "a seed that is no int, or that the graph computes")
    if isinstance(seed, int) and not -(1 << 63) <= seed < 1 << 64:
        raise Uncapturable("rng_state", "a seed that torch refuses")
    builder.emit(SEED, (seed,) if generator is None else (seed, _own(generator)))
    _changed(builder, generator or _CPU, seed)
    return generator or _CPU


def _manual_seed(builder: GraphBuilder, args: Any, kwargs: Any) -> Any:
    return _seed(builder, None, args[0] if args else kwargs.get("seed"))


def _seed_of(builder: GraphBuilder, args: Any, kwargs: Any) -> Any:
    return _seed(builder, args[0], args[1] if len(args) > 1 else kwargs.get("seed"))


def _read(builder: GraphBuilder, args: Any, kwargs: Any) -> Any:
    return builder.fresh(builder.emit(READ, tuple(map(_own, args))))


def _write(builder: GraphBuilder, generator: Any, state: Any) -> Any:
    if not isinstance(state, TracedTensor) or (state.dtype, state.spec.device) != (STATE.dtype, STATE.device) or \
            state.spec.shape != STATE.shape:
        raise Uncapturable("rng_state", "a state that is not one of a CPU's generator")
    node = builder.node(state, detached=True)
    builder.emit(WRITE, (node,) if generator is None else (node, _own(generator)))
    _changed(builder, generator or _CPU, None)
    return generator


def _set_rng_state(builder: GraphBuilder, args: Any, kwargs: Any) -> Any:
    return _write(builder, None, args[0] if args else kwargs.get("new_state"))


def _set_state_of(builder: GraphBuilder, args: Any, kwargs: Any) -> Any:
    return _write(builder, args[0], args[1] if len(args) > 1 else kwargs.get("new_state"))


def _initial_seed(builder: GraphBuilder, args: Any, kwargs: Any) -> int:
    seed = builder.state.seeds.get(args[0] if args else _CPU)
    if seed is None:
        raise Uncapturable("rng_state", "the seed that a generator was given elsewhere")
    return int(seed)


torch_state_functions.update({
    torch.manual_seed: _manual_seed,
    _Generator.manual_seed: _seed_of,
    torch.get_rng_state: _read,
    _Generator.get_state: _read,
    torch.set_rng_state: _set_rng_state,
    _Generator.set_state: _set_state_of,
    torch.initial_seed: _initial_seed,
    _Generator.initial_seed: _initial_seed,
})
refuses("rng_state", "a seed that the system draws", torch.seed, _Generator.seed)
refuses("rng_state", "a generator is made, a new one at each call", _Generator.clone_state,
        _Generator.graphsafe_get_state)
refuses("rng_state", "a generator takes over another one's state", _Generator.graphsafe_set_state)
