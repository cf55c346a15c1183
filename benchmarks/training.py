"""Training steps on the CPU: a Transformer block, BERT with two layers, a ResNet with batch normalisation.

A step is the forward pass, a loss and `backward()`. In rows marked `+AdamW` it updates the parameters too, and each
rival compiles what it can: jitpy the whole step as one function, torch.compile the forward pass and `optimizer.step`.
The rivals take turns in one process. Memory is counted, whoever allocates it (`benchmarks/tracked.py`): the most bytes
in use during two steps, above those before the first of them, without gradients. What allocators keep for later does
not count, neither the C library's free blocks nor jitpy's pool, which is off meanwhile.
What a tiny call with `requires_grad` costs is in `benchmarks.small_call`.

    python -m benchmarks.training [--only NAME ...] [--no-compile] [--budget SECONDS] [--json FILE]
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from benchmarks import timing, tracked

if __name__ == "__main__":
    tracked.restart_tracked()
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


def trainer(
    make: Callable[[], Subject], rival: str, optimize: bool
) -> tuple[Callable[[], torch.Tensor], torch.nn.Module]:
    """A function that makes one step and returns the loss, and the model that it trains."""
    torch.manual_seed(0)
    model, inputs, loss_of = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4) if optimize else None
    wrap: Callable[[Any], Any] = {"eager": lambda f: f, "jitpy": jitpy.jit, "compile": torch.compile}[rival]
    whole = rival == "jitpy" and optimize

    def forward(*arguments: Any) -> torch.Tensor:
        return loss_of(model(*arguments))

    run = forward if whole else wrap(forward)
    update = None if optimizer is None else optimizer.step if whole else wrap(optimizer.step)

    def step() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        loss = run(*inputs)
        loss.backward()
        if update is not None:
            update()
        return loss

    return wrap(step) if whole else step, model


def peak_growth(step: Callable[[], torch.Tensor], model: torch.nn.Module) -> int:
    """Bytes by which what is in use peaks during two steps over its level before."""
    for _ in range(2):  # a step that finds no gradients may be compiled by itself
        step()
        model.zero_grad(set_to_none=True)
    gc.collect()
    set_pool_limit(0)
    try:
        level = tracked.restart_peak()
        for _ in range(2):
            step()
        return tracked.peak() - level
    finally:
        set_pool_limit(jitpy.config.pool_bytes)


def measure(name: str, optimize: bool, rivals: list[str], budget: float) -> dict[str, float]:
    """Median seconds of a step of each rival, seconds of its first two steps (the second may compile more: optimizers
    have state by then), and the peak of its memory."""
    jitpy.reset()
    trainers = {rival: trainer(SUBJECTS[name], rival, optimize) for rival in rivals}
    figures: dict[str, float] = {}
    for rival, (step, model) in trainers.items():
        torch.manual_seed(1)
        figures[f"first {rival}"] = timing.seconds_of(lambda step=step: (step(), step()))
        if tracked.is_tracked():
            figures[f"memory {rival}"] = peak_growth(step, model)
    figures |= timing.interleaved({rival: step for rival, (step, _) in trainers.items()}, budget)
    return figures


def main() -> None:
    options = timing.parser(__doc__)
    options.add_argument("--only", nargs="+", default=[], metavar="NAME", help="words that the names begin with")
    options.add_argument("--budget", type=float, default=4.0, help="seconds for each rival and row")
    chosen = options.parse_args()
    timing.build_native()
    rivals = ["eager", "jitpy"] if chosen.no_compile else ["eager", "compile", "jitpy"]
    rows, figures = [], {}
    for name in SUBJECTS:
        if chosen.only and not any(name.startswith(word) for word in chosen.only):
            continue
        for optimize in (False, True):
            label = f"{name} +AdamW" if optimize else name
            one = figures[label] = measure(name, optimize, rivals, chosen.budget)
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
