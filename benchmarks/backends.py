"""The same backend under jitpy and under torch.compile, and jitpy as a backend of torch.compile.

    python -m benchmarks.backends [--count N] [--only functions models] [--json FILE]

Functions: `(x + 1).sin() * 2` on 16 floats, with constant and with symbolic sizes; microseconds a call. The custom
backend returns the module's own `forward`. First calls are of new functions, in seconds; compilers take turns.

Models: `torch.compile(model, backend="jitpy")` beside `jitpy.jit(model)`, milliseconds a call. The column Dynamo has a
backend that returns the result of its first call: this is what torch.compile itself adds to each call.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks import timing

timing.fresh_caches()

import torch  # noqa: E402 - the caches' folders must be known first

import jitpy  # noqa: E402
from benchmarks.training import SUBJECTS  # noqa: E402

#: a model, its calls (they take turns: their figures are averages), and what compilers are told
Subject = tuple[torch.nn.Module, list[Callable[[Any], torch.Tensor]], dict[str, Any]]


def custom(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
    return module.forward


BACKENDS: dict[str, Any] = {"eager": "eager", "custom": custom, "aot_eager": "aot_eager", "inductor": "inductor"}


def new_function(number: int) -> Callable[..., Any]:
    """A small function that nobody has seen."""
    text = f"def fn{number}(x):\n    return (x + {number}.25).sin() * 2\n"
    namespace: dict[str, Any] = {}
    exec(compile(text, f"<backends {number}>", "exec"), namespace)
    return namespace[f"fn{number}"]


def bert(hidden: int, layers: int, batch: int, length: int) -> Subject:
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(hidden_size=hidden, num_hidden_layers=layers, intermediate_size=4 * hidden,
                                 num_attention_heads=max(2, hidden // 64), vocab_size=8192)).eval()
    ids = torch.randint(0, 8192, (batch, length))
    mask = torch.ones_like(ids)
    return model, [lambda fn: fn(ids, attention_mask=mask).last_hidden_state], {}


def gpt2(hidden: int, layers: int, lengths: tuple[int, ...]) -> Subject:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_embd=hidden, n_layer=layers, n_head=max(2, hidden // 64), vocab_size=8192,
                                       n_positions=256, bos_token_id=1, eos_token_id=2)).eval()
    texts = [torch.randint(0, 8192, (2, length)) for length in lengths]
    return model, [lambda fn, ids=ids: fn(ids, use_cache=False).logits for ids in texts], {"dynamic": True}


def resnet() -> Subject:
    model, inputs, loss_of = SUBJECTS["ResNet, 32x3x64x64"]()

    def step(fn: Any) -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        with torch.enable_grad():
            loss = loss_of(fn(*inputs))
        loss.backward()
        return loss

    return model, [step], {}


MODELS: dict[str, Callable[[], Subject]] = {
    "BERT, 2 layers, 2x8x32": lambda: bert(32, 2, 2, 8),
    "GPT-2, 2 layers, 2x(5, 8, 13, 21)x32": lambda: gpt2(32, 2, (5, 8, 13, 21)),
    "BERT, 4 layers, 8x128x256": lambda: bert(256, 4, 8, 128),
    "GPT-2, 4 layers, 2x(64, 96, 128, 200)x256": lambda: gpt2(256, 4, (64, 96, 128, 200)),
    "ResNet training step, 32x3x64x64": resnet,
}


def first_result(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
    kept: list[Any] = []

    def run(*args: Any) -> Any:
        return kept[0] if kept else kept.append(module(*args)) or kept[0]

    return run


def measure_model(make: Callable[[], Subject]) -> dict[str, float]:
    """Seconds a call by rival. AssertionError where values are off."""
    jitpy.reset()
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, calls, options = make()
    rivals: dict[str, Any] = {"eager": model, "jitpy.jit": jitpy.jit(model, **options),
                              "torch.compile": torch.compile(model, backend="jitpy", **options)}
    expected = [call(model).detach() for call in calls]
    for _, fn in itertools.product(range(2), rivals.values()):
        for call, wanted in zip(calls, expected, strict=True):
            torch.testing.assert_close(call(fn).detach(), wanted, rtol=1e-3, atol=1e-4)
    if all(parameter.grad is None for parameter in model.parameters()):  # there is no backward pass
        rivals["Dynamo"] = torch.compile(model, backend=first_result, **options)
        for call in calls:
            call(rivals["Dynamo"])
    seconds = timing.interleaved({key: (lambda fn=fn: [call(fn) for call in calls]) for key, fn in rivals.items()},
                                 budget=4)
    return {key: value / len(calls) for key, value in seconds.items()}


def main() -> None:
    options = timing.parser(__doc__)
    options.add_argument("--count", type=int, default=7)
    options.add_argument("--only", nargs="+", choices=("functions", "models"), default=("functions", "models"))
    chosen = options.parse_args()
    timing.build_native()
    figures: dict[str, dict[str, float]] = {}
    if "functions" in chosen.only:
        measure_functions(chosen.count, figures)
    if "models" in chosen.only:
        measure_models(figures)
    timing.save(chosen.json, figures)


def measure_models(figures: dict[str, dict[str, float]]) -> None:
    rows = []
    with torch.no_grad():
        for title, make in MODELS.items():
            found = figures[title] = measure_model(make)
            rows.append([title, *(f"{found[key] * 1e3:.3f}" for key in ("eager", "jitpy.jit", "torch.compile")),
                         f"{found['Dynamo'] * 1e3:.3f}" if "Dynamo" in found else "-",
                         f"{found['jitpy.jit'] / found['torch.compile']:.2f}"])
    print(timing.table(["jitpy behind torch.compile, ms", "eager", "jitpy.jit", "torch.compile", "Dynamo", "ratio"],
                       rows))


def measure_functions(count: int, figures: dict[str, dict[str, float]]) -> None:
    x = torch.randn(16)
    number = 0
    rows: list[list[str]] = []

    def row(title: str, seconds: dict[str, float], unit: float) -> None:
        figures[title] = seconds
        ratio = seconds["torch.compile"] / seconds["jitpy"]
        rows.append([title, *(f"{value * unit:.2f}" for value in seconds.values()), f"{ratio:.2f}"])

    for name, backend in BACKENDS.items():
        for dynamic in (False, True):
            number += 1
            plain = new_function(number)
            fns = {"jitpy": jitpy.jit(plain, backend=backend, dynamic=dynamic),
                   "torch.compile": torch.compile(plain, backend=backend, dynamic=dynamic)}
            for fn in fns.values():
                torch.testing.assert_close(fn(x), plain(x))
            calls = {key: (lambda fn=fn: fn(x)) for key, fn in fns.items()}
            kind = "symbolic" if dynamic else "constant"
            row(f"{name}, {kind} sizes: us a call", timing.interleaved_small(calls), 1e6)
    compilers = {"jitpy": jitpy.jit, "torch.compile": torch.compile}
    for name in ("custom", "inductor"):
        for dynamic in (False, True):
            taken: dict[str, list[float]] = {key: [] for key in compilers}
            for turn in range(count):
                for key, compiler in list(compilers.items())[::1 if turn % 2 else -1]:
                    number += 1
                    fn = compiler(new_function(number), backend=BACKENDS[name], dynamic=dynamic)
                    taken[key].append(timing.seconds_of(lambda fn=fn: fn(x)))
            medians = {key: statistics.median(values) for key, values in taken.items()}
            row(f"{name}, {'symbolic' if dynamic else 'constant'} sizes: first call, ms", medians, 1e3)
    print(timing.table(["(x + 1).sin() * 2 on 16 floats", "jitpy", "torch.compile", "ratio"], rows))


if __name__ == "__main__":
    main()
