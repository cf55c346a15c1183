"""Forward passes of models: Hugging Face ones from tiny random configs, and a Transformer block of some size.

    python -m benchmarks.models [--only NAME ...] [--no-compile] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import timing

timing.fresh_caches()

import torch  # noqa: E402 - the caches' folders must be known first

import jitpy  # noqa: E402
from benchmarks.cases import make_block  # noqa: E402
from tests.models.tiny import MODELS, outputs  # noqa: E402


def subjects() -> dict[str, Callable[[], tuple[torch.nn.Module, dict[str, Any]]]]:
    """Makers of (model, keyword arguments)."""
    made: dict[str, Callable[[], tuple[torch.nn.Module, dict[str, Any]]]] = {
        f"{name} (tiny)": (lambda tiny=tiny: (tiny.make(), tiny.inputs(4, 32))) for name, tiny in MODELS.items()
    }
    made["transformer block 4x128x256"] = lambda: (make_block(), {"x": torch.randn(4, 128, 256)})
    made["transformer block 8x256x512"] = lambda: (make_block(512), {"x": torch.randn(8, 256, 512)})
    return made


def measure(make: Callable[[], tuple[torch.nn.Module, dict[str, Any]]], with_compile: bool) -> dict[str, float]:
    """Seconds of a call, and of the first one, per rival. AssertionError where one's values are off."""
    model, inputs = make()
    rivals: dict[str, Any] = {"eager": model, "jitpy": jitpy.jit(model)}
    if with_compile:
        rivals["compile"] = torch.compile(model)
    expected = outputs(model(**inputs))
    figures = {}
    for name, fn in rivals.items():
        figures[f"first {name}"] = timing.seconds_of(lambda fn=fn: fn(**inputs))
        for found, wanted in zip(outputs(fn(**inputs)), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
    calls = {name: (lambda fn=fn: fn(**inputs)) for name, fn in rivals.items()}
    return {**figures, **timing.interleaved(calls)}


def main() -> None:
    options = timing.parser(__doc__)
    options.add_argument("--only", nargs="+", default=[], metavar="NAME")
    chosen = options.parse_args()
    timing.build_native()
    rows, figures = [], {}
    with torch.no_grad():
        for name, make in subjects().items():
            if chosen.only and name.split()[0] not in chosen.only:
                continue
            one = figures[name] = measure(make, not chosen.no_compile)
            cells = [f"{one[key] * 1e3:.2f}" if key in one else "-" for key in ("eager", "compile", "jitpy")]
            firsts = [f"{one[key]:.2f}" if key in one else "-" for key in ("first compile", "first jitpy")]
            rows.append([name, *cells, f"{one['eager'] / one['jitpy']:.2f}", *firsts])
            print(" ".join(rows[-1]), flush=True)
    headings = ["model", "eager ms", "compile ms", "jitpy ms", "eager/jitpy", "first compile s", "first jitpy s"]
    print("\n" + timing.table(headings, rows))
    timing.save(chosen.json, figures)


if __name__ == "__main__":
    main()
