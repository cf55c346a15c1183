"""Training steps on the CPU: a Transformer block, BERT with two layers, a ResNet with batch normalisation.

A step is the forward pass, a loss and `backward()`; rows marked `+AdamW` update the parameters too. The rivals take
turns in one process. Memory is that of a process each: how far the resident set peaks over a few steps, above where it
is between steps with all caches emptied (the operating system counts, so that every allocator is seen).
What a tiny call with `requires_grad` costs is in `benchmarks.small_call`.

    python -m benchmarks.training [--only NAME ...] [--no-compile] [--no-memory] [--json FILE]
"""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from benchmarks import timing

timing.fresh_caches()

import torch  # noqa: E402 - the caches' folders must be known first
from torch.nn import functional as F  # noqa: E402

import jitpy  # noqa: E402
from benchmarks.cases import Block  # noqa: E402
from jitpy.runtime.executable import set_pool_limit  # noqa: E402

#: A model and what its forward pass takes; the loss is made of the result.
Subject = tuple[torch.nn.Module, tuple[Any, ...], Callable[[Any], torch.Tensor]]


class Residual(torch.nn.Module):
    """Two 3x3 convolutions with batch normalisation, around which the input is added."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.norm1 = torch.nn.BatchNorm2d(out)
        self.conv2 = torch.nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = torch.nn.BatchNorm2d(out)
        self.shortcut: torch.nn.Module = torch.nn.Identity()
        if stride != 1 or out != channels:
            self.shortcut = torch.nn.Sequential(
                torch.nn.Conv2d(channels, out, 1, stride, bias=False), torch.nn.BatchNorm2d(out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, channels, height, width) -> (batch, out, height / stride, width / stride)."""
        h = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(h)) + self.shortcut(x))


def resnet(width: int = 32, classes: int = 10) -> torch.nn.Module:
    """Three stages of two residual blocks behind a convolution and a max pooling."""
    stages: list[torch.nn.Module] = [
        torch.nn.Conv2d(3, width, 3, 1, 1, bias=False),
        torch.nn.BatchNorm2d(width),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(3, 2, 1),
    ]
    channels = width
    for stage in range(3):
        out = width << stage
        stages += [Residual(channels, out, 1 if stage == 0 else 2), Residual(out, out, 1)]
        channels = out
    return torch.nn.Sequential(*stages, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
                               torch.nn.Linear(channels, classes))


def _block() -> Subject:
    return Block(512, 8).train(), (torch.randn(32, 128, 512),), lambda out: out.square().mean()


def _bert() -> Subject:
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(BertConfig(num_hidden_layers=2, hidden_size=256, num_attention_heads=4,
                                       intermediate_size=1024, vocab_size=8192)).train()
    ids = torch.randint(0, 8192, (8, 128))
    mask = torch.ones_like(ids)
    mask[:2, 100:] = 0
    labels = torch.randint(0, 8192, (8, 128))
    return model, (ids, mask), lambda out: F.cross_entropy(out.logits.view(-1, 8192), labels.view(-1))


def _resnet() -> Subject:
    labels = torch.randint(0, 10, (32,))
    return resnet().train(), (torch.randn(32, 3, 64, 64),), lambda out: F.cross_entropy(out, labels)


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "Transformer block, 32x128x512": _block,
    "BERT, 2 layers, 8x128x256": _bert,
    "ResNet, 32x3x64x64": _resnet,
}


def trainer(make: Callable[[], Subject], rival: str, optimize: bool) -> Callable[[], torch.Tensor]:
    """A function that makes one step and returns the loss."""
    torch.manual_seed(0)
    model, inputs, loss_of = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4) if optimize else None
    wrap: Callable[[Any], Any] = {"eager": lambda f: f, "jitpy": jitpy.jit, "compile": torch.compile}[rival]

    def forward(*arguments: Any) -> torch.Tensor:
        return loss_of(model(*arguments))

    compiled = wrap(forward)

    def step() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        loss = compiled(*inputs)
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        return loss

    return step


def peak_growth(name: str, rival: str, optimize: bool) -> int:
    """Bytes by which the resident set of a fresh process peaks over its level before the first step."""
    command = [sys.executable, "-m", "benchmarks.training", "--measure", name, rival, str(int(optimize))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout.split()[-1])


def _status(field: str) -> int:
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(field))
    return int(line.split()[1]) * 1024


def _measure(name: str, rival: str, optimize: bool) -> int:
    step = trainer(SUBJECTS[name], rival, optimize)
    for _ in range(2):  # compilers, threads and libraries have their memory after that
        step()
    gc.collect()
    set_pool_limit(0)  # no cache counts as being there before
    set_pool_limit(jitpy.config.pool_bytes)
    ctypes.CDLL(None).malloc_trim(0)
    level = _status("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak counts from here on
    for _ in range(3):
        step()
    return _status("VmHWM") - level


def measure(name: str, optimize: bool, rivals: list[str], budget: float) -> dict[str, float]:
    """Median seconds of a step of each rival. AssertionError where losses are apart."""
    jitpy.reset()
    steps = {rival: trainer(SUBJECTS[name], rival, optimize) for rival in rivals}
    figures: dict[str, float] = {}
    for rival, step in steps.items():
        torch.manual_seed(1)
        figures[f"first {rival}"] = timing.seconds_of(step)
    figures |= timing.interleaved(steps, budget)
    return figures


def main() -> None:
    options = timing.parser(__doc__)
    options.add_argument("--only", nargs="+", default=[], metavar="NAME", help="words that the names begin with")
    options.add_argument("--no-memory", action="store_true", help="leave the peaks out")
    options.add_argument("--budget", type=float, default=8.0, help="seconds for each rival and row")
    options.add_argument("--measure", nargs=3, help="the memory of one rival, in this process")
    chosen = options.parse_args()
    timing.build_native()
    if chosen.measure:
        name, rival, optimize = chosen.measure
        print(_measure(name, rival, bool(int(optimize))))
        return
    rivals = ["eager", "jitpy"] if chosen.no_compile else ["eager", "compile", "jitpy"]
    rows, figures = [], {}
    for name in SUBJECTS:
        if chosen.only and not any(name.startswith(word) for word in chosen.only):
            continue
        for optimize in (False, True):
            label = f"{name} +AdamW" if optimize else name
            one = figures[label] = measure(name, optimize, rivals, chosen.budget)
            if not chosen.no_memory:
                one |= {f"memory {rival}": peak_growth(name, rival, optimize) for rival in rivals}
            cells = [f"{one[rival] * 1e3:.1f}" if rival in one else "-" for rival in ("eager", "compile", "jitpy")]
            ratios = [f"{one[rival] / one['jitpy']:.2f}" if rival in one else "-" for rival in ("eager", "compile")]
            peaks = [f"{one[key] / 2**20:.0f}" if key in one else "-"
                     for key in ("memory eager", "memory compile", "memory jitpy")]
            firsts = [f"{one[key]:.2f}" if key in one else "-" for key in ("first compile", "first jitpy")]
            rows.append([label, *cells, *ratios, *peaks, *firsts])
            print(" ".join(rows[-1]), flush=True)
    headings = ["step", "eager ms", "compile ms", "jitpy ms", "eager/jitpy", "compile/jitpy", "eager MiB",
                "compile MiB", "jitpy MiB", "first compile s", "first jitpy s"]
    print("\n" + timing.table(headings, rows))
    for rival in rivals[:-1]:
        mean = timing.geometric_mean([one[rival] / one["jitpy"] for one in figures.values()])
        print(f"{rival}/jitpy, geometric mean: {mean:.2f}")
    timing.save(chosen.json, figures)


if __name__ == "__main__":
    main()
