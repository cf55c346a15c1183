"""`mode="max-autotune"`: whether a template or the library computes a product, with all that its kernel has fused.

The part of the graph that a product's kernel computes is planned both ways, and the two are timed in turns, on random
operands from memory. Results are kept on disk for the kind of GPU.
"""

from __future__ import annotations

import json
import time
from typing import Any

import torch

from jitpy import logs
from jitpy.runtime import cache

from ...ir.graph import CONSTANT, INPUT, Graph, Node, map_nodes
from ...ir.op import NotCovered
from ...ir.spec import TensorSpec
from ...runtime.gpu.compile import triton_version
from ...schedule.loops import Kernel
from ...schedule.products import Choice

_SUFFIX = ".product"
_ROUNDS = 15
#: what the library's call is given up for: less may be chance
_GAIN = 0.97
#: milliseconds with a template, and with the library, by key
_known: dict[str, tuple[float, ...]] = {}


class MeasuredChoice(Choice):
    """Products whose kernels are faster than the library's call and the kernels around it."""

    def objection_to(self, kernel: Kernel) -> str:
        """'' where the template is faster."""
        part = part_of(self.graph, kernel)
        if part is None:
            return "a product whose sizes or operands cannot be made up"
        device = next(node.tensor.device for node in part.outputs)
        name = ", ".join(node.name for node in part.outputs)
        key = cache.key_of("product-1", torch.cuda.get_device_name(device), torch.__version__, str(triton_version()),
                           str(part))
        known = cache.read(key, _SUFFIX)
        if key in _known:
            times = _known[key]
        elif known is not None:
            times = _known[key] = tuple(json.loads(known))
        else:
            started = time.perf_counter()
            times = _known[key] = _times(part, device)
            cache.store(key, _SUFFIX, json.dumps(times).encode())
            taken = time.perf_counter() - started
            logs.log("timing", f"{name}: template and library took "
                               f"{' and '.join(f'{one * 1e3:.1f}' for one in times)} us, measured in {taken:.1f} s")
        template, library = times
        return "" if template < _GAIN * library else "the library's product measures as fast"


def part_of(graph: Graph, kernel: Kernel) -> Graph | None:
    """The nodes that a kernel computes as a graph of their own, with views of what it reads; None where sizes are not
    known, or operands are not on the kernel's device."""
    ends = dict.fromkeys(value.nodes[0] if value.nodes else value.origin for value in kernel.writes)
    if None in ends:
        return None
    inside = {*kernel.nodes, *ends}
    part = Graph("product", sizes=graph.sizes)
    made: dict[Node, Node] = {}

    def build(node: Node) -> Node:
        if node not in made:
            if node.op is CONSTANT:
                made[node] = part.add(CONSTANT, node.args, {}, node.spec)
            elif node.op is INPUT or not (node in inside or node.op.is_view):
                made[node] = part.add_input(node.tensor)
            else:
                args, kwargs = map_nodes(node.args, build), map_nodes(node.kwargs, build)
                made[node] = part.add(node.op, args, kwargs, node.spec, node.loc, grad_enabled=node.grad_enabled)
        return made[node]

    try:
        part.outputs = [build(node) for node in ends if node is not None]
    except AssertionError:  # an operand that is no tensor
        return None
    device = part.outputs[0].tensor.device
    specs = [node.spec for node in part.all_nodes()]
    if not all(isinstance(spec, TensorSpec) and spec.is_static and spec.device == device for spec in specs):
        return None
    return part


def _times(part: Graph, device: torch.device) -> tuple[float, float]:
    """Milliseconds with a template, and with the library."""
    from ...runtime.gpu.autotune import AutotunedExecutable, medians
    from .backend import plan_graph

    inputs = [_made_up(node.tensor) for node in part.inputs]
    try:
        plans = [plan_graph(part, tune=True, products=products, rewritten=True) for products in ("all", "none")]
        runs: dict[int, Any] = {}
        with torch.cuda.device(device), torch.no_grad():
            for number, plan in enumerate(plans):
                runs[number] = AutotunedExecutable(plan, lambda _, run: run)
                runs[number](*inputs)
            found = medians(runs, inputs, device, _ROUNDS)
    except (NotCovered, RuntimeError) as error:  # it does not compile, or there is no memory for what is made up
        logs.log("timing", f"no template for {part.outputs[0].name}: {error}")
        return 1.0, 0.0
    return found[0], found[1]


def _made_up(spec: TensorSpec) -> torch.Tensor:
    """A tensor of random numbers, zeros where these may be positions."""
    made = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=spec.device)  # type: ignore[arg-type]
    if spec.dtype.itemsize == 1 and spec.dtype is not torch.bool:
        made.view(torch.uint8).random_(0, 100)
        return made
    return made.normal_() if spec.dtype.is_floating_point else made.zero_()


__all__ = ["MeasuredChoice", "part_of"]
