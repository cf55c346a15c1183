"""Recurrent layers."""

from __future__ import annotations

from typing import Any

from ...ir.graph import Node
from ...ir.op import NotCovered
from ..pullback import Pullback
from .registry import rule


@rule("ir.recurrent_layer", once=True)
def _layer(p: Pullback, g: Node, kept_grad: Any, x: Node, h: Node, w_ih: Node, w_hh: Node, b_ih: Node | None,
           b_hh: Node | None, kind: str, reverse: bool) -> tuple[Any, ...]:
    if p.create_graph:
        raise NotCovered("second derivatives of a recurrent layer")
    mask = [p.needs(n) for n in (x, h, w_ih, w_hh, b_ih, b_hh)]
    back = p.call("ir.recurrent_layer_backward", g, x, h, w_ih, w_hh, p.part(0), p.part(1), b_ih is not None, kind,
                  reverse, mask)
    return tuple(p.parts(back, mask))
