"""Forward passes of models: Hugging Face ones from tiny random configs, and a Transformer block of some size.

Each row has the times of a call, the seconds of the first one, and into how many graphs jitpy's capture fell: its graph
breaks, and its variants (captured pieces) after a second batch size and length.

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
from jitpy.engine import all_engines  # noqa: E402
from tests.models.tiny import MODELS, outputs  # noqa: E402

Subject = tuple[torch.nn.Module, Callable[[int, int], dict[str, Any]]]

#: Batch and length of the calls that are timed, and of one more.
SIZES, OTHER_SIZES = (4, 32), (3, 24)


def subjects() -> dict[str, Callable[[], Subject]]:
    """Makers of (model, maker of the keyword arguments for a batch and a length)."""
    made: dict[str, Callable[[], Subject]] = {
        f"{name} (tiny)": (lambda tiny=tiny: (tiny.make(), tiny.inputs)) for name, tiny in MODELS.items()
    }
    made["transformer block 4x128x256"] = lambda: (make_block(), lambda b, n: {"x": torch.randn(b, 4 * n, 256)})
    made["transformer block 8x256x512"] = lambda: (make_block(512), lambda b, n: {"x": torch.randn(2 * b, 8 * n, 512)})
    return made


def measure(make: Callable[[], Subject], with_compile: bool) -> dict[str, float]:
    """Seconds of a call, and of the first one, per rival; jitpy's breaks and variants. AssertionError where values are
    off."""
    jitpy.reset()
    model, inputs_of = make()
    inputs = inputs_of(*SIZES)
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
    figures |= timing.interleaved(calls)
    rivals["jitpy"](**inputs_of(*OTHER_SIZES))
    variants = [variant for engine in all_engines() for variant in engine.variants]
    skipped = sum(len(engine.skipped) for engine in all_engines())
    breaks = sum(variant.break_record is not None for variant in variants) + skipped
    return {**figures, "breaks": breaks, "variants": len(variants)}


def main() -> None:
    options = timing.parser(__doc__)
    options.add_argument("--only", nargs="+", default=[], metavar="NAME")
    chosen = options.parse_args()
    timing.build_native()
    rows, figures = [], {}
    with torch.no_grad():
        for name, make in subjects().items():
            if chosen.only and name.removesuffix(" (tiny)") not in chosen.only:
                continue
            one = figures[name] = measure(make, not chosen.no_compile)
            cells = [f"{one[key] * 1e3:.2f}" if key in one else "-" for key in ("eager", "compile", "jitpy")]
            firsts = [f"{one[key]:.2f}" if key in one else "-" for key in ("first compile", "first jitpy")]
            pieces = [str(one["breaks"]), str(one["variants"])]
            rows.append([name, *cells, f"{one['eager'] / one['jitpy']:.2f}", *firsts, *pieces])
            print(" ".join(rows[-1]), flush=True)
    headings = ["model", "eager ms", "compile ms", "jitpy ms", "eager/jitpy", "first compile s", "first jitpy s",
                "breaks", "variants"]
    print("\n" + timing.table(headings, rows))
    timing.save(chosen.json, figures)


if __name__ == "__main__":
    main()
