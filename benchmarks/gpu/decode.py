"""`generate` of a Llama, one token after another: microseconds a token, and the share of the time that weights need.

    python -m benchmarks.gpu.decode [--layers 8] [--hidden 2048] [--prompt 128] [--tokens 128] [--batch 1]
                                    [--only TEXT] [--no-compile] [--own-compile] [--device cpu] [--budget SECONDS]
                                    [--json FILE]

Each version has a model of its own with the same random weights, whose forward is wrapped; nothing else of the program
changes. `loop` calls the model with a static cache and takes the likeliest token, without the rest of `generate`. A
token's time is that of `generate` less that of `generate` for one token, over the tokens between, as the median of
rounds in which versions take turns. `share` is the time to read all weights at the bandwidth of a copy, over a token's
time. `same` counts the tokens that agree with eager's, and `first` is the time of the first `generate`.
On GPUs `generate` compiles models with a static cache by torch.compile of its own accord. Here it does so only with
`--own-compile`. On a CPU: `--device cpu --layers 2 --hidden 64 --tokens 32`.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import jitpy

from ..timing import seconds_of
from .kernels import copy_bandwidth

ROUNDS = 7
CACHES = ("dynamic", "static", "loop")
Generate = Callable[[int], torch.Tensor]


def made(layers: int, hidden: int, device: str) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=hidden, intermediate_size=hidden * 11 // 4, num_hidden_layers=layers,
                         num_attention_heads=16, num_key_value_heads=4, vocab_size=32000, eos_token_id=None,
                         pad_token_id=0)
    with torch.device(device):
        return LlamaForCausalLM(config).to(torch.bfloat16).eval()


def versions_of(with_compile: bool) -> dict[str, Callable[[Any], Any]]:
    """How each version wraps a forward."""
    wraps: dict[str, Callable[[Any], Any]] = {"eager": lambda forward: forward}
    for mode in ("default", "reduce-overhead"):
        wraps[f"jitpy {mode}"] = lambda forward, mode=mode: jitpy.jit(forward, mode=mode)
    for mode in ("default", "reduce-overhead") if with_compile else ():
        wraps[f"compile {mode}"] = lambda forward, mode=mode: torch.compile(forward, mode=mode)
    return wraps


def generation(model: Any, ids: torch.Tensor, cache: str, own_compile: bool) -> Generate:
    """A call that makes so many tokens."""
    def call(tokens: int) -> torch.Tensor:
        return model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False,  # type: ignore[no-any-return]
                              cache_implementation=None if cache == "dynamic" else cache,
                              disable_compile=not own_compile)

    return call


def loop(model: Any, ids: torch.Tensor, most: int) -> Generate:
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=ids.shape[1] + most)

    @torch.no_grad()
    def call(tokens: int) -> torch.Tensor:
        cache.reset()
        found = [ids]
        positions = torch.arange(ids.shape[1], device=ids.device)[None]
        for _ in range(tokens):
            logits = model(found[-1], position_ids=positions, past_key_values=cache, logits_to_keep=1).logits
            found.append(logits[:, -1:].argmax(-1))
            positions = positions[:, -1:] + 1
        return torch.cat(found, 1)

    return call


def weight_bytes(model: Any) -> int:
    """All parameters but the embedding, of which a token reads a row."""
    embedding = model.get_input_embeddings().weight
    return sum(one.nbytes for one in model.parameters() if one is not embedding)


def bandwidth_of(device: str) -> float:
    """Bytes a second that a copy reads and writes."""
    if device == "cuda":
        return copy_bandwidth() * 1e9
    source, target = torch.ones(1 << 26), torch.ones(1 << 26)
    return 2 * source.nbytes / statistics.median(seconds_of(lambda: target.copy_(source)) for _ in range(5))


def measure(chosen: argparse.Namespace, cache: str, bandwidth: float, ends: float) -> dict[str, dict[str, float]]:
    model = made(chosen.layers, chosen.hidden, chosen.device)
    ids = torch.randint(1, 32000, (chosen.batch, chosen.prompt), device=chosen.device)
    calls: dict[str, Generate] = {}
    rows: dict[str, dict[str, float]] = {}
    expected = None
    for name, wrap in versions_of(not chosen.no_compile).items():
        if chosen.only not in name and name != "eager" or time.monotonic() > ends:
            continue
        own = copy.deepcopy(model)
        own.forward = wrap(own.forward)
        call = loop(own, ids, chosen.tokens) if cache == "loop" else generation(own, ids, cache, chosen.own_compile)
        try:
            first = seconds_of(lambda call=call: call(chosen.tokens))
            for _ in range(2):
                call(chosen.tokens)
            result = call(chosen.tokens)
        except Exception as error:
            print(f"{cache} {name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        expected = result if expected is None else expected
        rows[name] = {"first": first, "same": (result == expected)[:, chosen.prompt:].sum(1).float().mean().item()}
        calls[name] = call
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            # `tolist` waits for the last token
            whole, one = (seconds_of(lambda n=n, call=call: call(n).tolist()) for n in (chosen.tokens, 1))
            taken[name].append((whole - one) / (chosen.tokens - 1))
    least = weight_bytes(model) / bandwidth
    for name, times in taken.items():
        rows[name] |= {"us": statistics.median(times) * 1e6, "share": least / statistics.median(times)}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 8), ("hidden", 2048), ("prompt", 128), ("tokens", 128), ("batch", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--caches", default=",".join(CACHES))
    parser.add_argument("--only", default="")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--own-compile", action="store_true")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds until no version is begun")
    parser.add_argument("--json")
    chosen = parser.parse_args()
    if not chosen.no_compile:
        torch._dynamo.config.recompile_limit = 64  # its caches belong to the code that all versions share
    card = torch.cuda.get_device_name() if chosen.device == "cuda" else "CPU"
    ends, bandwidth = time.monotonic() + chosen.budget, bandwidth_of(chosen.device)
    print(f"{card}, torch {torch.__version__}: copy {bandwidth / 1e9:.0f} GB/s", flush=True)
    table = {}
    for cache in chosen.caches.split(","):
        table[cache] = measure(chosen, cache, bandwidth, ends)
        for name, row in table[cache].items():
            print(f"{cache:8} {name:24} {row['us']:8.0f} us a token  share {row['share']:.2f}  "
                  f"same {row['same']:.0f}  first {row['first']:.1f} s", flush=True)
        if chosen.json:
            with open(chosen.json, "w") as file:
                json.dump({"card": card, "bandwidth": bandwidth, "caches": table}, file, indent=1)


if __name__ == "__main__":
    main()
