"""The statements of an ATen overload's schema about memory: which arguments it writes to, which results are views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..op import NotCovered
from .functional import copying_of, functional_of
from .table import get

OpOverload = torch._ops.OpOverload


@dataclass(slots=True)
class SchemaFacts:
    """Facts about one overload, computed once.

    names        the arguments' names in order
    mutated      names of the arguments that are written to
    returns      for each result: the name of the mutated argument that it is, else None
    is_view      a result may share memory with an argument that is not written to
    functional   the overload that computes the same without writing, else None; its results are the results of this
                 overload that are no arguments, then the new values of the mutated arguments in order
    is_random    it draws from a generator
    dynamic      its result's size, or a number on the host, depends on the data
    inplace_view it changes the sizes and strides of its argument, not its data
    on_host      its results are numbers for the host
    outs         names of the out= arguments
    defaults     arguments that have a default here and none in the functional form
    """

    overload: OpOverload
    names: tuple[str, ...]
    mutated: tuple[str, ...]
    returns: tuple[str | None, ...]
    is_view: bool
    functional: OpOverload | None
    is_random: bool
    dynamic: bool
    on_host: bool
    inplace_view: bool
    outs: frozenset[str]
    defaults: tuple[tuple[str, Any], ...]
    position: dict[str, int]

    @property
    def base_name(self) -> str:
        """`add` of `aten::add.Tensor`."""
        return self.overload._schema.name.split("::")[1]

    def functional_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the functional form for these arguments."""
        if self.outs:
            kwargs = {k: v for k, v in kwargs.items() if k not in self.outs}
        for name, value in self.defaults:
            if self.position[name] >= len(args) and name not in kwargs:
                kwargs = {**kwargs, name: value}
        return args, kwargs

    def functional_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpOverload | None:
        """The functional form for these arguments: how many tensors a list has decides on some."""
        if self.functional is not None or self.outs:
            return self.functional
        try:
            return copying_of(self.overload, lambda name: self.argument(name, args, kwargs))
        except NotCovered:
            return None

    def argument(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The value passed for the argument `name`, None if it was left out."""
        index = self.position[name]
        return args[index] if index < len(args) else kwargs.get(name)


_FACTS: dict[OpOverload, SchemaFacts] = {}


def schema_facts(overload: OpOverload) -> SchemaFacts:
    """The facts of an overload. Cached."""
    found = _FACTS.get(overload)
    if found is None:
        found = _FACTS[overload] = _read(overload)
    return found


def _read(overload: OpOverload) -> SchemaFacts:
    schema = overload._schema
    names = tuple(a.name for a in schema.arguments)
    mutated = tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    by_set = {
        frozenset(a.alias_info.before_set): a.name
        for a in schema.arguments
        if a.alias_info is not None and a.alias_info.is_write
    }
    returns: list[str | None] = []
    is_view = False
    for result in schema.returns:
        info = result.alias_info
        if info is not None and info.is_write:
            returns.append(by_set[frozenset(info.before_set)])
        else:
            returns.append(None)
            is_view = is_view or info is not None
    tags = overload.tags
    functional = _functional(overload) if mutated else None
    defaults: list[tuple[str, Any]] = []
    if functional is not None:
        without = {a.name for a in functional._schema.arguments if not a.has_default_value()}
        defaults = [(a.name, a.default_value) for a in schema.arguments if a.name in without and a.has_default_value()]
    return SchemaFacts(
        overload,
        names,
        mutated,
        tuple(returns),
        is_view,
        functional,
        torch.Tag.nondeterministic_seeded in tags,
        torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags,
        bool(schema.returns)
        and all(str(r.type) in ("bool", "int", "float", "number", "Scalar") for r in schema.returns),
        torch.Tag.inplace_view in tags,
        frozenset(a.name for a in schema.arguments if a.is_out),
        tuple(defaults),
        {name: i for i, name in enumerate(names)},
    )


#: Functional forms that torch has and whose derivative is wrong or missing.
_UNUSABLE = frozenset({"aten::rrelu_with_noise_functional"})


def _functional(overload: OpOverload) -> OpOverload | None:
    try:
        found = functional_of(overload)
        return None if found.name() in _UNUSABLE else found
    except NotCovered:
        return None


def has_size_rule(overload: OpOverload, args: tuple[Any, ...]) -> bool:
    """Whether the op table can say what an op makes whose result's size torch says to depend on data: an index without
    masks, or an op whose rule names the size by a symbol."""
    return bool(get(overload).sizes_by_data) or overload is torch.ops.aten._unsafe_index.Tensor and not any(
        t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1])


def names_sizes(overload: OpOverload, args: tuple[Any, ...]) -> bool:
    """Whether the rule of an op makes a symbol for a size of its result."""
    facet = get(overload).sizes_by_data
    return facet if isinstance(facet, bool) else facet(args)


def is_user_op(fn: Any) -> bool:
    """Whether this is an operator whose kernel is not torch's own: it may raise anything."""
    return isinstance(fn, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)) and not str(fn).startswith(
        ("aten.", "prims.", "prim.")
    )
