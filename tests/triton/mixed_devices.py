"""Which operations on tensors of a GPU and of the CPU break the graph, where nobody reads the results. No GPU is
needed: `python -m tests.triton.mixed_devices FOLDER` prints it as JSON.

Tensors whose last axis has 7 elements, single elements and places stay on the CPU; others are captured as on a GPU.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import jitpy
from jitpy.backends import codegen
from jitpy.frontend.capture import inputs
from jitpy.ir import TensorSpec
from tests.triton import cuda_captures

Operation = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], Any]

#: operations that eager refuses: x, the number and the places are on the CPU, y is on the GPU
REFUSED: dict[str, Operation] = {
    "sum": lambda x, y, number, places: x.T + y,
    "in_place": lambda x, y, number, places: y.add_(x.T[:, :1]),
    "into_number": lambda x, y, number, places: number.mul_(y[0, 0]),
    "product": lambda x, y, number, places: x @ y,
    "batches": lambda x, y, number, places: torch.bmm(x[None], y[None]),
    "linear": lambda x, y, number, places: F.linear(x, y.T),
    "joined": lambda x, y, number, places: torch.cat([x.T, y], 1),
    "stacked_numbers": lambda x, y, number, places: torch.stack([number, y[0, 0]]),
    "embedding": lambda x, y, number, places: F.embedding(places, y),
    "gather": lambda x, y, number, places: y.gather(0, places[:, None]),
    "scatter": lambda x, y, number, places: y.scatter(0, places[:, None], 1.0),
    "selected": lambda x, y, number, places: y.index_select(0, places),
    "places_on_gpu": lambda x, y, number, places: x[y.long()[:, 0] % 3],
    "searched": lambda x, y, number, places: torch.searchsorted(y[:, 0], number),
    "loss": lambda x, y, number, places: F.mse_loss(x.T[:, :1], y),
    "put": lambda x, y, number, places: y.index_put((places,), x.T[:, :1]),
}
#: those that it takes
TAKEN: dict[str, Operation] = {
    "scaled": lambda x, y, number, places: y * number,
    "powers": lambda x, y, number, places: number**y,
    "chosen": lambda x, y, number, places: torch.where(y > 0, y, number),
    "masked": lambda x, y, number, places: y.masked_fill(y > 0, number),
    "between": lambda x, y, number, places: torch.lerp(y, y, number),
    "bounded": lambda x, y, number, places: y.clamp(number),
    "numbers": lambda x, y, number, places: (y / number).sum() * number,
    "filled": lambda x, y, number, places: y.fill_(number),
    "indexed": lambda x, y, number, places: y[places],
    "put_number": lambda x, y, number, places: y.index_put((places,), number),
    "moved": lambda x, y, number, places: x.to(y.device)[:, :1] + y[:3],
    "copied": lambda x, y, number, places: torch.empty_like(y).copy_(x.T[:, :1]),
    "made": lambda x, y, number, places: torch.zeros(7, 1, device=y.device) + y,
}


def breaks(operation: Operation) -> bool:
    """Whether capture of a function breaks at an operation whose result it drops."""

    def fn(x: torch.Tensor, y: torch.Tensor, number: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        operation(x, y, number, places)
        return y * 2

    def backend(graph: Any, options: Any = None) -> Any:
        raise cuda_captures.Captured

    codegen.compile_graph = backend
    jitpy.reset()
    try:
        jitpy.jit(fn, fullgraph=True)(torch.ones(3, 7), torch.ones(7, 1), torch.tensor(2.0), torch.zeros(7).long())
    except cuda_captures.Captured:
        return False
    except jitpy.FullGraphError:
        return True
    raise AssertionError


def main(folder: str) -> None:
    cuda_captures.pretend(Path(folder))
    on_gpu: Any = inputs.TensorSpec
    inputs.TensorSpec = lambda dtype, shape, *rest: (  # type: ignore[assignment, misc]
        TensorSpec if shape[-1:] in ((), (7,)) else on_gpu)(dtype, shape, *rest)
    print(json.dumps({name: breaks(operation) for name, operation in {**REFUSED, **TAKEN}.items()}))


if __name__ == "__main__":
    main(sys.argv[1])
