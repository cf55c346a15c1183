"""Random numbers drawn outside torch: `random` and `numpy.random`.

The result of a call is asked of a copy of the generator while tracing: a number, an array of known sizes, a list of
numbers. Compiled code draws in front of the graph, from the real one (`capture/front_calls.py`).
"""

from __future__ import annotations

import copy
import functools
import random
import sys
import types
from collections.abc import Callable
from types import NoneType
from typing import Any

import torch

from jitpy.ir import TensorSpec

from ...breaks import GraphBreak
from ...capture.front_calls import FrontCall, example, frozen, is_loadable, make, new_source, number_input
from ...capture.traced import GraphInput, Storage, TracedTensor
from ...guards.source import CallSource
from ...interpreter.callees import CLASS, METHOD, OBJECT, Args, Kwargs, builtin, family, handler_of
from ...values import IS_CAPTURED, NONE, TORCH_DTYPES, ArrayValue, Interpreter, ListValue, PyValue, TupleValue, Value

_NUMBERS = (int, float, bool)
#: ints beyond these do not fit a graph
_LIMIT = 1 << 62
#: lists that are taken apart into numbers are no longer than this
_LONGEST = 64


def _not_drawn(what: str, why: str) -> GraphBreak:
    return GraphBreak("unsupported_call", f"{what}: {why}")


class Method:
    """A method of a generator, by name."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, generator: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(generator, self.__name__)(*args, **kwargs)


def draw(interp: Interpreter, what: str, function: Callable[..., Any], args: Args, kwargs: Kwargs,
         bounds: tuple[Any, Any] | None = None) -> Value:
    """`function(generator, *args, **kwargs)` in front of the graph: what stands for its result."""
    generator, given = args[0], [*args[1:], *kwargs.values()]
    if generator.source is None or type(generator.opaque) not in _GENERATORS:
        raise _not_drawn(what, "its generator is no plain one")
    if any(not node.op.is_pure or node.op.kind == "custom" for node in interp.builder.graph.nodes):
        raise _not_drawn(what, "an operation with effects of its own comes before it")
    if not all(is_loadable(interp, value) for value in given):
        raise _not_drawn(what, "its arguments are computed by the graph")
    args, kwargs = [generator,
                    *(frozen(interp, v) for v in args[1:])], {k: frozen(interp, v) for k, v in kwargs.items()}
    try:
        found = function(copy.deepcopy(generator.obj), *(example(interp, v) for v in args[1:]),
                         **{k: example(interp, v) for k, v in kwargs.items()})
    except Exception as error:
        raise _not_drawn(what, f"it raises {type(error).__name__}") from None
    if found is None:
        make(interp, FrontCall(function, args, kwargs, (), generator=generator))
        return NONE
    if type(found) in _NUMBERS:
        if abs(found) > _LIMIT or bounds is not None and max(map(abs, bounds)) > _LIMIT:
            raise _not_drawn(what, "a large number")
        source = new_source(interp, function)
        make(interp, FrontCall(function, args, kwargs, (source,), generator=generator))
        return number_input(interp.builder, type(found), source, bounds)
    if not all(value.is_fixed(interp) for value in given):
        raise _not_drawn(what, "how much is drawn changes from call to call")
    if type(found) in (list, tuple) and len(found) <= _LONGEST and all(type(v) in _NUMBERS for v in found) and \
            len(set(map(type, found))) <= 1:
        return _several(interp, function, args, kwargs, generator, found)
    if IS_CAPTURED and getattr(found, "dtype", None) in TORCH_DTYPES:
        return _array(interp, what, function, args, kwargs, generator, found)
    raise _not_drawn(what, f"it returns a {type(found).__name__}")


def _several(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs, generator: PyValue, found: Any) -> Value:
    first = new_source(interp, function).number
    sources = tuple(CallSource(first + k, f"{function.__name__}()[{k}]") for k in range(len(found)))
    make(interp, FrontCall(function, args, kwargs, sources, unpack=True, generator=generator))
    items = [number_input(interp.builder, type(v), source, None) for v, source in zip(found, sources, strict=True)]
    return ListValue(items) if type(found) is list else TupleValue(items)


def _array(interp: Interpreter, what: str, function: Any, args: Args, kwargs: Kwargs, generator: PyValue,
           found: Any) -> Value:
    """An array or scalar of numpy's, whose numbers enter the graph as a tensor."""
    builder = interp.builder
    source = new_source(interp, function)
    real = _as_tensor(found)
    spec = TensorSpec(real.dtype, tuple(real.shape), tuple(real.stride()), real.device, False)
    make(interp, FrontCall(AsTensor(function), args, kwargs, (source,), generator=generator))
    node = builder.graph.add_input(spec, "drawn", source=source)
    traced = TracedTensor(builder, Storage(node), (), node, spec, is_leaf=True)
    builder.inputs.append(GraphInput(None, source, None))
    return ArrayValue(traced, type(found))


class AsTensor:
    """A function of numpy's whose result is taken as a tensor."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = function.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return _as_tensor(self.function(*args, **kwargs))


def _as_tensor(found: Any) -> torch.Tensor:
    import numpy as np

    return torch.from_numpy(np.asarray(found))


# -- the generators ---------------------------------------------------------------------------------------------------


_GENERATORS: set[type] = {random.Random}

_Bounds = Callable[[list[Any]], tuple[Any, Any]]


def _model(owner: type, name: str, bounds: _Bounds | None = None) -> None:
    method = getattr(owner, name, None)
    if method is None:
        return
    what, function = f"{owner.__module__}.{name}" if owner is not random.Random else f"random.{name}", Method(name)

    def handler(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        known = None
        if bounds is not None and not kwargs and all(
                type(v.literal) in _NUMBERS for v in args[1:]):
            known = bounds([v.value for v in args[1:]])  # type: ignore[union-attr]
        return draw(interp, what, function, args, kwargs, known)

    builtin(method)(handler)


def _unit(args: list[Any]) -> tuple[Any, Any]:
    return 0.0, 1.0


def _between(args: list[Any]) -> tuple[Any, Any]:
    return min(args[:2]), max(args[:2])


def _below(args: list[Any]) -> tuple[Any, Any]:
    """Of `randrange(stop)` and `randrange(start, stop)`."""
    return (0, args[0] - 1) if len(args) == 1 else (args[0], args[1] - 1)


for _name in ("triangular", "choice", "choices", "sample", "gauss", "normalvariate", "lognormvariate", "expovariate",
              "vonmisesvariate", "gammavariate", "betavariate", "paretovariate", "weibullvariate", "binomialvariate",
              "getrandbits", "seed"):
    _model(random.Random, _name)
_model(random.Random, "random", _unit)
_model(random.Random, "uniform", _between)
_model(random.Random, "randint", _between)
_model(random.Random, "randrange", _below)


def _shuffled(generator: random.Random, items: list[Any]) -> list[Any]:
    generator.shuffle(items)
    return items


def _shuffle(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if len(args) != 2 or kwargs or args[1].cls is not list or not args[1].items:
        raise _not_drawn("random.shuffle", "not of a list")
    found: Any = draw(interp, "random.shuffle", _shuffled, args, kwargs)
    args[1].change(interp.context, "clear")
    for item in found.items:
        args[1].change(interp.context, "append", item)
    return NONE


builtin(random.Random.shuffle)(_shuffle)

def _made_by(function: Callable[..., Any], what: str) -> Callable[[Interpreter, Args, Kwargs], Any]:
    """The model of what makes a generator: compiled code makes one at each call."""

    def handler(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        if not all((v.is_constant or v.expr is not None) and
                   type(example(interp, v)) in (int, float, str, bytes, NoneType)
                   for v in (*args, *kwargs.values())):
            raise _not_drawn(what, "its seed is not known in front of the graph")
        try:
            made = function(*(example(interp, v) for v in args), **{k: example(interp, v) for k, v in kwargs.items()})
        except Exception as error:
            raise _not_drawn(what, f"it raises {type(error).__name__}") from None
        source = new_source(interp, function)
        make(interp, FrontCall(function, args, kwargs, (source,)))
        return PyValue(made, source, pinned=False)

    return handler


builtin(random.Random)(_made_by(random.Random, "random.Random"))

#: methods of numpy's generators
_OF_NUMPY = ("beta", "binomial", "bytes", "chisquare", "choice", "dirichlet", "exponential", "f", "gamma", "geometric",
             "gumbel", "hypergeometric", "integers", "laplace", "logistic", "lognormal", "logseries", "multinomial",
             "multivariate_normal", "negative_binomial", "noncentral_chisquare", "noncentral_f", "normal", "pareto",
             "permutation", "permuted", "poisson", "power", "rayleigh", "seed", "standard_cauchy",
             "standard_exponential", "standard_gamma", "standard_normal", "standard_t", "triangular", "uniform",
             "vonmises", "wald", "weibull", "zipf", "rand", "randint", "randn", "random", "random_sample")


@functools.cache
def _know_numpy(module: types.ModuleType) -> None:
    for owner in (module.RandomState, module.Generator):
        _GENERATORS.add(owner)
        for name in _OF_NUMPY:
            _model(owner, name)
    builtin(module.seed)(_seed_numpy)
    for maker in (module.default_rng, module.RandomState):
        builtin(maker)(_made_by(maker, f"numpy.random.{maker.__name__}"))


def _seed_numpy(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    """`numpy.random.seed()`, which seeds the generator of the module's functions."""
    generator = sys.modules["numpy.random"].mtrand._rand
    if type(generator._bit_generator).__name__ != "MT19937":
        raise _not_drawn("numpy.random.seed", "another bit generator")
    return draw(interp, "numpy.random.seed", Method("seed"), [interp.context.const_object(generator), *args], kwargs)


def _late_model(function: Any) -> Callable[[Interpreter, Args, Kwargs], Any] | None:
    """The model of a numpy generator or one of its methods, whose module a program imports when it needs it."""
    module = sys.modules.get("numpy.random")
    if module is None or not IS_CAPTURED:
        return None
    _know_numpy(module)
    return handler_of(function)


@family("late", _late_model, METHOD, CLASS, OBJECT)
def _call_late(interp: Interpreter, fn: Value, obj: Any, found: Any, args: Args, kwargs: Kwargs) -> Any:
    return found(interp, args, kwargs)
