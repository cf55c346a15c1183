"""What graphs on a GPU call, found without one: `python -m tests.triton.cuda_captures FOLDER` prints it as JSON.

Inputs on the CPU are captured as if they were on a GPU, forward and backward halves are planned, and nothing runs.
torch asks a device's guard even about tensors without memory, so where there is no GPU a guard that does nothing is
installed; that lasts as long as the process, so this is one of its own.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["JITPY_RAISE"] = "1"

import torch
import torch.nn.functional as F
from torch import nn

import jitpy
from jitpy.autograd.joint import differentiate, split
from jitpy.autograd.partition import choose_saved
from jitpy.backends import codegen
from jitpy.backends.triton import plan_graph
from jitpy.frontend.capture import inputs
from jitpy.ir import Graph
from jitpy.ir.passes.cleanup import remove_dead_code
from jitpy.ir.passes.grouped_heads import group_heads
from jitpy.runtime.gpu import philox
from jitpy.runtime.plan import AllocStep, CallStep, LaunchStep

CUDA = torch.device("cuda", 0)
GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
using Guard = c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>;
extern "C" void install() {
  static c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::CUDA, new Guard());
}
"""


def compiler() -> str | None:
    return shutil.which(os.environ.get("CXX") or "c++") or shutil.which("g++")


def pretend(folder: Path) -> None:
    """Let capture see a GPU."""
    if not torch.cuda.is_available():
        source, library, root = folder / "guard.cpp", folder / "guard.so", Path(torch.__file__).parent
        source.write_text(GUARD)
        subprocess.run([str(compiler()), "-std=c++20", "-DNDEBUG", "-O1", "-shared", "-fPIC", f"-I{root}/include",
                        str(source), "-o", str(library), f"-L{root}/lib", "-lc10"], check=True)
        ctypes.CDLL(str(library)).install()
    torch.cuda._lazy_init = lambda: None
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    torch.cuda.get_device_capability = lambda *args: (9, 0)
    philox.blocks_of = lambda device: 0  # as where torch was built without CUDA: no generator can be read
    torch.cuda.is_bf16_supported = lambda *args, **kwargs: True
    real = inputs.TensorSpec
    inputs.TensorSpec = lambda dtype, shape, stride, device, *rest: real(dtype, shape, stride, CUDA, *rest)


class Captured(Exception):
    """Ends a call when its graph is known."""


def capture(fn: Callable[..., Any], *args: Any, dynamic: bool | None = None) -> Graph:
    """The one graph of a function."""
    found: list[Graph] = []

    def backend(graph: Graph, options: Any = None) -> Any:
        found.append(graph)
        raise Captured

    codegen.compile_graph = backend
    try:
        jitpy.jit(fn, fullgraph=True, dynamic=dynamic)(*args)
    except Captured:
        pass
    jitpy.reset()
    (graph,) = found
    return graph


def planned(graph: Graph) -> list[str]:
    """The kernels and calls of a graph's plan."""
    return [step.kernel.name if isinstance(step, LaunchStep) else getattr(step.function, "__name__", str(step.function))
            for step in plan_graph(graph, products="none").steps if isinstance(step, (CallStep, LaunchStep))]


def both_halves(graph: Graph) -> list[str]:
    joint = differentiate(graph)
    halves = split(joint, choose_saved(joint))
    return planned(halves.forward) + planned(halves.backward)


class Layer(nn.Module):
    """A layer of an encoder, as libraries write it."""

    def __init__(self, mask: Callable[[torch.Tensor, torch.Tensor], torch.Tensor | None], dropout: float = 0.0) -> None:
        super().__init__()
        self.mask, self.dropout = mask, dropout
        self.query, self.key, self.value, self.out = (nn.Linear(128, 128) for _ in range(4))
        self.up, self.down = nn.Linear(128, 256), nn.Linear(256, 128)
        self.norm1, self.norm2 = nn.LayerNorm(128), nn.LayerNorm(128)

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (one(x).view(batch, length, 2, 64).transpose(1, 2) for one in (self.query, self.key, self.value))
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask(x, keep), dropout_p=self.dropout)
        x = self.norm1(x + self.out(found.transpose(1, 2).reshape(batch, length, width)))
        return self.norm2(x + self.down(F.gelu(self.up(x)))).float().sum()


class Grouped(nn.Module):
    """Attention with a head of keys and values for four heads of queries, which is repeated for each."""

    def __init__(self, repeat: Callable[[torch.Tensor], torch.Tensor], shows: bool = False) -> None:
        super().__init__()
        self.repeat, self.shows = repeat, shows
        self.query, self.key, self.value = nn.Linear(128, 512), nn.Linear(128, 128), nn.Linear(128, 128)

    def forward(self, x: torch.Tensor) -> Any:
        batch, length, width = x.shape
        q, k, v = (one(x).view(batch, length, -1, 64).transpose(1, 2) for one in (self.query, self.key, self.value))
        k, v = self.repeat(k.float() * 2), self.repeat(v)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, -1)
        return (found, k) if self.shows else found.float().sum()


def by_expansion(x: torch.Tensor) -> torch.Tensor:
    batch, heads, length, width = x.shape
    return x[:, :, None].expand(batch, heads, 4, length, width).reshape(batch, heads * 4, length, width)


def in_another_order(x: torch.Tensor) -> torch.Tensor:
    """The first four heads of queries see different keys."""
    batch, heads, length, width = x.shape
    return x[:, None].expand(batch, 4, heads, length, width).reshape(batch, heads * 4, length, width)


REPEATS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "expansion": by_expansion,
    "repeat_interleave": lambda x: torch.repeat_interleave(x, 4, dim=1),
    "another order": in_another_order,
    "repeat": lambda x: x.repeat(1, 4, 1, 1),
}


class Head(nn.Module):
    """The end of a language model: so many words that rows of logits are no multiple of 16 bytes."""

    def __init__(self, words: int = 5025) -> None:
        super().__init__()
        self.words = nn.Linear(128, words, bias=False)

    def forward(self, x: torch.Tensor, word: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.words(x).float(), word)


class Convolution(nn.Module):
    """A part of a network for images, after training."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.norm(self.one(x)) + x)


def by_hand(x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Attention whose author knows of no kernel."""
    scores = x @ x.transpose(-1, -2) * 0.125
    return (scores if bias is None else scores + bias).softmax(-1) @ x


def strides(graph: Graph) -> list[str]:
    """Those of the results, and of the gradients that a joint graph computes."""
    return [f"{list(node.tensor.shape)} {list(node.tensor.stride)}" for node in graph.outputs]


def numbers(x: torch.Tensor) -> torch.Tensor:
    """Numbers that programs keep in tensors on the CPU."""
    y = torch.zeros_like(x)
    y[..., 0] = 3
    y[..., 1:] = x[..., 1:] * torch.tensor(0.5, device="cpu")
    return y


def sizes(graph: Graph) -> list[str]:
    """The tensors with memory of their own between kernels and calls."""
    steps = plan_graph(graph, products="none").steps
    return [f"{str(step.dtype).removeprefix('torch.')}{list(step.shape)}" for step in steps
            if isinstance(step, AllocStep)]


def positions(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    at = torch.arange(x.shape[1], device=x.device)
    return at[None, None, :, None], at[None, None, None, :]


def all_true(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    rows, _ = positions(x)
    return (rows >= 0).expand(x.shape[0], -1, x.shape[1], x.shape[1])


def causal(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    rows, columns = positions(x)
    return (x.new_ones((), dtype=torch.bool) & (columns <= rows)).expand(x.shape[0], -1, -1, -1)


def padding(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return keep[:, None, None, :].expand(-1, 1, x.shape[1], -1)


def by_rows(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return keep[:, None, :, None].expand(-1, 1, -1, x.shape[1])


def zeros(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """A bias where there is none, as models add it to scores."""
    return torch.zeros(1, 2, x.shape[1], x.shape[1], device=x.device, dtype=x.dtype)[:, :, -x.shape[1]:]


MASKS = {"none": lambda x, keep: None, "zeros": zeros, "all_true": all_true, "causal": causal, "padding": padding,
         "by_rows": by_rows}


def packed(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """A product with weights of four bits."""
    return torch.ops.aten._weight_int4pack_mm(x, weight, 32, scales) * 2


def main() -> None:
    pretend(Path(sys.argv[1]))
    found: dict[str, list[str]] = {}
    x, keep = torch.randn(4, 64, 128), torch.ones(4, 64, dtype=torch.bool)
    for name, mask in MASKS.items():
        with torch.autocast("cuda", torch.bfloat16):
            with torch.inference_mode():
                found[f"{name} inference"] = planned(capture(Layer(mask), x, keep))
            found[f"{name} training"] = both_halves(capture(Layer(mask, 0.1), x, keep))
    with torch.autocast("cuda", torch.bfloat16), torch.inference_mode():
        found["dynamic"] = planned(capture(Layer(MASKS["none"]), x, keep, dynamic=True))
    for name in ("none", "causal", "padding"):
        with torch.autocast("cuda", torch.bfloat16):
            found[f"dynamic {name} training"] = both_halves(capture(Layer(MASKS[name], 0.1), x, keep, dynamic=True))
    for name, repeat in REPEATS.items():
        for shows in (False, True):
            with torch.autocast("cuda", torch.bfloat16):
                graph = capture(Grouped(repeat, shows), x)
            changed = len(group_heads(graph))
            remove_dead_code(graph)
            found[f"{name}{' shown' * shows}"] = [str(changed), *(node.op.name for node in graph.nodes)]
            if not shows:
                found[f"{name} training"] = both_halves(graph)
    with torch.autocast("cuda", torch.bfloat16):
        joint = differentiate(capture(Head(), torch.randn(4096, 128), torch.zeros(4096, dtype=torch.int64)))
    halves = split(joint, choose_saved(joint))
    found["head"], found["head memory"] = planned(halves.forward) + planned(halves.backward), sizes(halves.backward)
    with torch.autocast("cuda", torch.bfloat16), torch.inference_mode():
        found["convolution"] = planned(capture(Convolution().eval(), torch.randn(2, 16, 8, 8)))
    for which in ("input", "weight", "none"):
        formats = [torch.channels_last if which == one else torch.contiguous_format for one in ("input", "weight")]
        image = torch.randn(2, 16, 8, 8).to(memory_format=formats[0]).requires_grad_()
        one = nn.Conv2d(16, 16, 3, padding="same", bias=False).to(memory_format=formats[1])
        with torch.autocast("cuda", torch.bfloat16):
            graph = capture(lambda x, one=one: F.relu(one(x)), image)
        joint = differentiate(graph)
        found[f"channels-last {which}"] = strides(joint.graph)
        both_halves(graph)
    frozen = Convolution()
    frozen.norm.eval()
    with torch.autocast("cuda", torch.bfloat16):
        found["frozen norm"] = both_halves(capture(lambda x: frozen(x).float().sum(), torch.randn(2, 16, 8, 8)))
    heads = torch.randn(4, 8, 64, 64, dtype=torch.bfloat16)
    found["by hand"] = planned(capture(by_hand, heads))
    found["by hand, biased"] = planned(capture(by_hand, heads, torch.randn(8, 64, 64, dtype=torch.bfloat16)[None]))
    found["numbers"] = planned(capture(numbers, x))
    short, weight = torch.randn(4, 128, dtype=torch.bfloat16), torch.zeros(8, 1, 32, 4, dtype=torch.int32)
    for dynamic in (False, True):
        found[f"packed {dynamic}"] = planned(capture(packed, short, weight, torch.randn(4, 64, 2).bfloat16(),
                                                     dynamic=dynamic))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
