"""Views that are made in one mode of what was made in another: what they require, and what autograd says of writes.

A third of the programs by default, by a hash of the name; all of them with JITPY_TEST_ALL=1.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy

ALL = os.environ.get("JITPY_TEST_ALL") == "1"

_MODES = {"no_grad": torch.no_grad, "inference": torch.inference_mode, "grad": torch.enable_grad}

_VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "index": lambda t: t[None], "select": lambda t: t[0], "chunk": lambda t: t.chunk(2)[0],
    "unbind": lambda t: t.unbind(0)[0], "split": lambda t: t.split(1)[0], "view": lambda t: t.view(-1),
    "reshape": lambda t: t.reshape(-1), "T": lambda t: t.T, "expand": lambda t: t.expand(2, 2, 3),
    "view_as": lambda t: t.view_as(t), "detach": lambda t: t.detach(), "data": lambda t: t.data,
    "of_part": lambda t: t.unbind(0)[0][:2], "of_view": lambda t: t.view(-1).view(3, 2),
    "of_detached": lambda t: t.detach().view(-1), "part_of_view": lambda t: t.view(-1).split(2)[0],
    "flatten": lambda t: t.flatten(), "whole": lambda t: t, "contiguous": lambda t: t.contiguous(),
    "copied": lambda t: t.T.reshape(-1), "as_strided": lambda t: t.as_strided((2,), (1,)),
}

_BASES: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "leaf": lambda w, h, x: w, "history": lambda w, h, x: h, "plain": lambda w, h, x: x,
    "computed": lambda w, h, x: w * 2, "made": lambda w, h, x: x * 2, "view": lambda w, h, x: (w * 2)[:],
}

_FORMS: dict[str, Callable[[torch.Tensor, torch.Tensor], tuple[Any, ...]]] = {
    "alone": lambda view, base: (view,), "both": lambda view, base: (view, base),
    "asked": lambda view, base: (view, view.requires_grad, view.is_inference()),
    "asked_only": lambda view, base: (view.requires_grad, view.shape),
    "read": lambda view, base: (view * 2, view.requires_grad),
}


def _arguments() -> tuple[torch.Tensor, ...]:
    w = torch.arange(6.0).reshape(2, 3).requires_grad_()
    return w, w * 3, torch.arange(6.0).reshape(2, 3)


def _error(action: Callable[[], Any]) -> str | None:
    try:
        action()
    except RuntimeError as error:
        text = str(error)
        return text.replace(text[text.find("Output"):text.find(" is a view")], "") if "Output" in text else text
    return None


def _of_tensor(t: torch.Tensor) -> list[Any]:
    base = t._base
    facts = [t.requires_grad, t.is_inference(), t.shape, t.stride(), t.detach().clone().tolist(),
             _error(lambda: t.is_leaf) or t.is_leaf]
    meta = "DEFAULT" if base is None or not t.requires_grad else str(torch._C._autograd._get_creation_meta(t))
    return [*facts, meta.removeprefix("CreationMeta.")]  # the base of an ordinary view may be missing


def _observed(fn: Callable[..., Any], around: str) -> list[Any]:
    facts: list[Any] = []
    for write in range(4):
        w, h, x = _arguments()
        with _MODES[around]():
            try:
                results = fn(w, h, x)
            except RuntimeError as error:
                facts.append(str(error))
                continue
        tensors = [r for r in (*results, w, h, x) if isinstance(r, torch.Tensor)]
        facts += [_of_tensor(r) if isinstance(r, torch.Tensor) else r for r in results]
        facts += [(a is b, a.untyped_storage()._cdata == b.untyped_storage()._cdata) for a in tensors for b in tensors]
        if write == 1:
            facts.append(_error(lambda: tensors[0].mul_(2)))  # noqa: B023
        elif write == 2:
            facts.append(_error(lambda: tensors[-1 if around == "inference" else 1].mul_(2)))  # noqa: B023
        elif write == 3:
            with torch.no_grad():
                facts.append(_error(lambda: tensors[0].add_(1)))  # noqa: B023
        facts += map(_of_tensor, tensors)
        wanted = [t for t in tensors if t.requires_grad]
        facts.append(_error(lambda: sum(t.sum() for t in wanted).backward()) if wanted else None)  # noqa: B023
        facts.append(None if w.grad is None else w.grad.tolist())
    return facts


def _program(inner: str, base: str, view: str, form: str) -> Callable[..., Any]:
    mode, make, look, give = _MODES[inner], _BASES[base], _VIEWS[view], _FORMS[form]

    def fn(w: torch.Tensor, h: torch.Tensor, x: torch.Tensor) -> tuple[Any, ...]:
        tensor = make(w, h, x)
        with mode():
            shown = look(tensor)
        return give(shown, tensor)

    def asked_inside(w: torch.Tensor, h: torch.Tensor, x: torch.Tensor) -> tuple[Any, ...]:
        tensor = make(w, h, x)
        with mode():
            shown = look(tensor)
            return give(shown, tensor)

    return asked_inside if form in ("asked", "asked_only", "read") else fn


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("inner", _MODES)
@pytest.mark.parametrize("around", _MODES)
@pytest.mark.parametrize("base", _BASES)
def test_view(around: str, inner: str, base: str, backend: str) -> None:
    if around != "grad" and backend == "codegen":
        pytest.skip("nothing has a history: the graphs are those of the other backend")
    differing = []
    for view in _VIEWS:
        for form in _FORMS:
            name = f"{around} {inner} {base} {backend} {view} {form}"
            if not ALL and zlib.crc32(name.encode()) % 3:
                continue
            jitpy.reset()
            fn = _program(inner, base, view, form)
            if _observed(jitpy.jit(fn, backend=backend), around) != _observed(fn, around):
                differing.append((view, form))
    assert not differing
