"""An op that writes to views, as one that writes to the memory that they show.

`base` takes the place of a view of it among the arguments of an op with the facet `in_place`; the view is made when the
op runs. So what the op writes is the value of `base` as a whole, and a backend may let it write to `base` itself.
"""

from __future__ import annotations

from typing import Any

import torch

from ..op import Op
from ..spec import Dim, TensorSpec
from .functional import InPlace, Making, Path, copied, in_place_of

#: a view of its base: sizes, strides, the offset from where the base begins, and the strides that the base has then
Geometry = tuple[tuple[Dim, ...], tuple[Dim, ...], Dim, tuple[Dim, ...]]

NAME = "ir.through_views"


def at(args: Any, kwargs: Any, path: Path) -> Any:
    """The argument at a path."""
    value = kwargs[path[0]] if isinstance(path[0], str) else args[path[0]]
    for key in path[1:]:
        value = value[key]
    return value


def put(args: Any, kwargs: Any, path: Path, value: Any) -> tuple[Any, Any]:
    """The arguments with another value at a path."""

    def replaced(tree: Any, rest: Path) -> Any:
        if not rest:
            return value
        if isinstance(tree, dict):
            return {**tree, rest[0]: replaced(tree[rest[0]], rest[1:])}
        return type(tree)(replaced(item, rest[1:]) if k == rest[0] else item for k, item in enumerate(tree))

    return (args, replaced(kwargs, path)) if isinstance(path[0], str) else (replaced(args, path), kwargs)


def through_views(inner: Op) -> Op:
    """The op `(args, kwargs, geometries)`: arguments of `inner`, and for each of its written ones how a view of it is
    written, or None. Its results are those of `inner`, with the value of all memory in place of that of views."""
    written = in_place_of(inner)
    assert written is not None
    call, paths = written.call, written.paths

    def in_place(args: Any, kwargs: Any, geometries: Any) -> Any:
        for path, geometry in zip(paths, geometries, strict=True):
            if geometry is not None:
                base = at(args, kwargs, path)
                shape, stride, offset, expected = geometry
                if any(a != b and size > 1 for a, b, size in zip(base.stride(), expected, base.size(), strict=True)):
                    raise RuntimeError(f"memory with strides {base.stride()} where {expected} were expected")
                args, kwargs = put(args, kwargs, path,
                                   torch.as_strided(base, shape, stride, base.storage_offset() + offset))
        return call(*args, **kwargs)

    def functional(args: Any, kwargs: Any, geometries: Any) -> Any:
        copies = []
        for path in paths:
            copies.append(copied(at(args, kwargs, path)))
            args, kwargs = put(args, kwargs, path, copies[-1])
        made = in_place(args, kwargs, geometries)
        return *(() if made is None else made if isinstance(made, tuple) else (made,)), *copies

    def infer(env: Any, args: Any, kwargs: Any, geometries: Any) -> Any:
        from . import infer as spec_of

        bases: list[TensorSpec] = [at(args, kwargs, path) for path in paths]
        for path, base, geometry in zip(paths, bases, geometries, strict=True):
            if geometry is not None:
                shape, stride, offset, _ = geometry
                view = base.with_(shape=shape, stride=stride, offset=base.offset + offset)
                args, kwargs = put(args, kwargs, path, view)
        made = spec_of(inner, env, args, kwargs, False)
        fresh = made[: len(made) - len(paths)] if isinstance(made, tuple) else ()
        return *fresh, *(base.with_(requires_grad=False, offset=0) for base in bases)

    def steps(recorded: Any, given: Any, making: Making) -> list[Any]:
        assert written is not None and written.step is not None
        args, kwargs, geometries = given
        views: list[Any] = []
        for path, geometry in zip(paths, geometries, strict=True):
            if geometry is not None:
                step, seen = making.view(at(args, kwargs, path), *geometry[:3])
                views.append(step)
                args, kwargs = put(args, kwargs, path, seen)
        made = written.step(recorded[0], args, making)
        return [*views, *made] if made else []

    own = tuple((1, *path) if isinstance(path[0], str) else (0, *path) for path in paths)
    facet = InPlace(in_place, own, None if written.step is None else steps)
    return Op(NAME, functional, infer=infer,
              in_place=facet, differentiable=False, is_recordable=True)


__all__ = ["NAME", "Geometry", "at", "put", "through_views"]
