"""Each case under eager, torch.compile and jitpy, in one process, at sizes several times the last-level cache.

    python -m benchmarks.suite [--only NAME ...] [--elements N] [--no-compile] [--json FILE]

Times are medians of interleaved calls. First calls include compilation, with empty caches on disk. Errors are against
the same computation in float64, relative to its largest value.
"""

from __future__ import annotations

from benchmarks import timing

timing.fresh_caches()

import torch  # noqa: E402 - the caches' folders must be known first

import jitpy  # noqa: E402
from benchmarks.cases import CASES, Case, arguments, as_double  # noqa: E402


def flat(result: object) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)  # type: ignore[call-overload]


def error(result: object, reference: object) -> float:
    """Largest deviation from float64, relative to the largest reference value."""
    worst = 0.0
    for found, wanted in zip(flat(result), flat(reference), strict=True):
        scale = max(wanted.abs().max().item(), 1e-30)
        worst = max(worst, ((found.double() - wanted).abs().max() / scale).item())
    return worst


def measure(case: Case, elements: int, with_compile: bool, budget: float) -> dict[str, float]:
    """The case's figures: seconds, first-call seconds, errors."""
    args = arguments(case, elements)
    rivals = {"eager": case.fn, "jitpy": jitpy.jit(case.fn)}
    if with_compile:
        rivals["compile"] = torch.compile(case.fn)
    figures: dict[str, float] = {}
    reference = case.fn(*as_double(case, args))
    for name in [name for name in ("compile", "jitpy") if name in rivals]:
        figures[f"first {name}"] = timing.seconds_of(lambda name=name: rivals[name](*args))
    for name, fn in rivals.items():
        figures[f"error {name}"] = error(fn(*args), reference)
    del reference
    calls = {name: (lambda fn=fn: fn(*args)) for name, fn in rivals.items()}
    for name, seconds in timing.interleaved(calls, budget).items():
        figures[name] = seconds
    return figures


def main() -> None:
    options = timing.parser(__doc__)
    options.add_argument("--only", nargs="+", default=[], metavar="NAME")
    options.add_argument("--elements", type=int, default=2 * timing.last_level_cache() // 4)
    options.add_argument("--budget", type=float, default=1.0, help="seconds of measuring per rival and case")
    chosen = options.parse_args()
    timing.build_native()
    unknown = set(chosen.only) - {case.name for case in CASES}
    if unknown:
        options.error(f"unknown cases {', '.join(sorted(unknown))}; there are: {', '.join(c.name for c in CASES)}")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {chosen.elements:,} elements\n")
    headings = ["case", "eager ms", "compile ms", "jitpy ms", "eager/jitpy", "compile/jitpy", "first compile s",
                "first jitpy s", "error eager", "error jitpy"]
    rows, figures = [], {}
    with torch.no_grad():
        for case in CASES:
            if chosen.only and case.name not in chosen.only:
                continue
            one = figures[case.name] = measure(case, chosen.elements, not chosen.no_compile, chosen.budget)
            rows.append(_row(case.name, one))
            print(" ".join(rows[-1]), flush=True)
    for rival in ("eager", "compile"):
        ratios = [one[rival] / one["jitpy"] for one in figures.values() if rival in one]
        if ratios:
            print(f"geometric mean {rival}/jitpy: {timing.geometric_mean(ratios):.2f}; lowest {min(ratios):.2f}")
    both = [one["eager"] / one["compile"] for one in figures.values() if "compile" in one]
    if both:
        print(f"geometric mean eager/compile: {timing.geometric_mean(both):.2f}")
    print("\n" + timing.table(headings, rows))
    timing.save(chosen.json, figures)


def _row(name: str, one: dict[str, float]) -> list[str]:
    def ms(key: str) -> str:
        return f"{one[key] * 1e3:.2f}" if key in one else "-"

    def ratio(key: str) -> str:
        return f"{one[key] / one['jitpy']:.2f}" if key in one else "-"

    first = [f"{one[key]:.2f}" if key in one else "-" for key in ("first compile", "first jitpy")]
    errors = [f"{one[key]:.1e}" for key in ("error eager", "error jitpy")]
    return [name, ms("eager"), ms("compile"), ms("jitpy"), ratio("eager"), ratio("compile"), *first, *errors]


if __name__ == "__main__":
    main()
