"""Many architectures in bf16 autocast on a GPU beside eager: results as good, calls as fast, graphs whole?

    python -m benchmarks.gpu.zoo [--only bert,timm] [--what inference,training] [--modes default,reduce-overhead]
                                 [--part 0/4] [--budget SECONDS] [--json FILE]

The tiny models of `tests/models`, usual sizes of models of transformers, and models of timm where it is installed, all
with random weights and without dropout. `--only` takes beginnings of names; `--part K/N` every N-th model, for several
processes side by side.

A line has the milliseconds of a call (medians of rounds in which the versions take turns), how many graph breaks there
were in all modes together, the error against float64 (the distance of all results, in training also of all gradients,
each relative to its size) beside eager's own, and what is wrong: a tensor much farther from float64 than eager's,
strides that are not eager's, a call slower than eager's.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import jitpy
from jitpy.engine import all_engines
from tests.models.tiny import MODELS, outputs

from .models import timed

ROUNDS = 5
#: a tensor's error may be this many times eager's, and as much of its size
FACTOR, FLOOR = 2.0, 2e-3

Subject = tuple[torch.nn.Module, dict[str, Any]]

#: model -> (class, config, its arguments, kind of input)
BASES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", {"num_hidden_layers": 4}, "tokens"),
    "distilbert": ("DistilBertForMaskedLM", "DistilBertConfig", {"n_layers": 3}, "tokens"),
    "electra": ("ElectraForPreTraining", "ElectraConfig", {"num_hidden_layers": 4}, "tokens"),
    "albert": ("AlbertForMaskedLM", "AlbertConfig", {"hidden_size": 768, "intermediate_size": 3072,
                                                     "num_attention_heads": 12, "num_hidden_layers": 4}, "tokens"),
    "deberta-v2": ("DebertaV2ForMaskedLM", "DebertaV2Config", {
        "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "num_hidden_layers": 3,
        "relative_attention": True, "position_buckets": 256, "pos_att_type": ["p2c", "c2p"]}, "tokens"),
    "opt": ("OPTForCausalLM", "OPTConfig", {"num_hidden_layers": 4}, "tokens"),
    "gpt-neo": ("GPTNeoForCausalLM", "GPTNeoConfig", {"hidden_size": 768, "num_layers": 4, "num_heads": 12,
                                                      "attention_types": [[["global", "local"], 2]]}, "tokens"),
    "gpt-neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {
        "hidden_size": 768, "num_hidden_layers": 4, "num_attention_heads": 12, "intermediate_size": 3072}, "tokens"),
    "mistral": ("MistralForCausalLM", "MistralConfig", {
        "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4,
        "intermediate_size": 3584}, "tokens"),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {
        "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8,
        "intermediate_size": 3072, "head_dim": 64}, "tokens"),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {
        "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
        "intermediate_size": 4096, "head_dim": 128, "vocab_size": 32000}, "tokens"),
    "bart": ("BartForConditionalGeneration", "BartConfig", {
        "d_model": 768, "encoder_layers": 3, "decoder_layers": 3, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072,
        "encoder_attention_heads": 12, "decoder_attention_heads": 12}, "pairs"),
    "t5": ("T5ForConditionalGeneration", "T5Config", {"num_layers": 3}, "pairs"),
    "vit": ("ViTForImageClassification", "ViTConfig", {"num_hidden_layers": 4}, "images"),
    "dinov2": ("Dinov2Model", "Dinov2Config", {"num_hidden_layers": 4}, "images"),
    "swin": ("SwinForImageClassification", "SwinConfig", {}, "images"),
    "convnext": ("ConvNextForImageClassification", "ConvNextConfig", {}, "images"),
    "resnet": ("ResNetForImageClassification", "ResNetConfig", {}, "images"),
    "segformer": ("SegformerForImageClassification", "SegformerConfig", {}, "images"),
    "wav2vec2": ("Wav2Vec2Model", "Wav2Vec2Config", {"num_hidden_layers": 3}, "waves"),
    "whisper": ("WhisperForConditionalGeneration", "WhisperConfig", {"encoder_layers": 3, "decoder_layers": 3},
                "spectra"),
}

TIMM = ("resnet18", "resnet50d", "resnext50_32x4d", "efficientnet_b0", "mobilenetv3_large_100", "mobilenetv2_100",
        "convnext_tiny", "swin_tiny_patch4_window7_224", "vit_tiny_patch16_224", "deit_small_patch16_224",
        "mixer_b16_224", "regnety_008", "densenet121", "inception_v3", "ghostnet_100", "beit_base_patch16_224",
        "cait_xxs24_224", "poolformer_s12", "levit_128", "maxvit_tiny_tf_224", "coat_tiny", "dpn68", "vgg16_bn",
        "nfnet_l0", "repvgg_a2", "hrnet_w18_small", "pvt_v2_b0", "twins_svt_small", "xcit_tiny_12_p16_224",
        "mobilevit_s", "eva02_tiny_patch14_224", "fastvit_t8", "edgenext_small", "tnt_s_patch16_224", "volo_d1_224")


def _inputs(kind: str) -> dict[str, Any]:
    ids = torch.randint(5, 5000, (8, 256))
    return {
        "tokens": lambda: {"input_ids": ids},
        "pairs": lambda: {"input_ids": ids, "decoder_input_ids": ids[:, :128]},
        "images": lambda: {"pixel_values": torch.randn(16, 3, 224, 224)},
        "waves": lambda: {"input_values": torch.randn(4, 16000)},
        "spectra": lambda: {"input_features": torch.randn(4, 80, 3000), "decoder_input_ids": ids[:4, :64]},
    }[kind]()


def _base(name: str) -> Subject:
    import transformers

    model, config, arguments, kind = BASES[name]
    settings = getattr(transformers, config)(**arguments)
    if hasattr(settings, "use_cache"):
        settings.use_cache = False
    for key, off in (("apply_spec_augment", False), ("mask_time_prob", 0.0), ("mask_feature_prob", 0.0)):
        if hasattr(settings, key):
            setattr(settings, key, off)
    return getattr(transformers, model)(settings), _inputs(kind)


def _timm(name: str) -> Subject:
    import timm

    model = timm.create_model(name, num_classes=100)
    size = model.default_cfg.get("input_size", (3, 224, 224))
    return model, {"x": torch.randn(16, *size)}


def subjects() -> dict[str, Callable[[], Subject]]:
    made: dict[str, Callable[[], Subject]] = {f"base {name}": lambda name=name: _base(name) for name in BASES}
    try:
        import timm

        known = set(timm.list_models())
        made |= {f"timm {name}": lambda name=name: _timm(name) for name in TIMM if name in known}
    except ImportError:
        print("timm is not installed")
    made |= {f"tiny {name}": lambda tiny=tiny: (tiny.make(), tiny.inputs(4, 32)) for name, tiny in MODELS.items()}
    return made


def without_dropout(model: torch.nn.Module) -> torch.nn.Module:
    """Nothing random is left, so that runs can be compared."""
    for holder in (*model.modules(), *(module.config for module in model.modules() if hasattr(module, "config"))):
        for name, value in list(vars(holder).items()):
            if ("drop" in name or isinstance(holder, torch.nn.modules.dropout._DropoutNd) and name == "p") and (
                    isinstance(value, float)):
                setattr(holder, name, 0.0)
    return model


def step_of(called: Any, model: torch.nn.Module, inputs: dict[str, Any], what: str, exact: bool) -> Callable[[], Any]:
    """A call whose results are tensors: what the model returns, and in training gradients of all parameters."""
    parameters = [one for one in model.parameters() if one.requires_grad]

    def step() -> list[torch.Tensor | None]:
        with torch.set_grad_enabled(what == "training"), torch.autocast("cuda", torch.bfloat16, enabled=not exact):
            found = [one for one in outputs(called(**inputs)) if one.is_floating_point()]
            if what == "inference":
                return list(found)
            loss = sum(one.float().square().mean() for one in found if one.requires_grad)
        loss.backward()
        results = [*(one.detach() for one in found), *(one.grad for one in parameters)]
        for one in parameters:
            one.grad = None
        return results

    return step


def errors(found: list[Any], exact: list[Any]) -> list[float]:
    """The distance of each tensor from what is exact, relative to its size; -1.0 where there is none in both. Of what
    is nothing but rounding errors (gradients of the keys' biases) the size is that of a small part of the largest."""
    sizes = [0.0 if other is None else other.double().norm().item() for other in exact]
    least = 1e-4 * max(sizes, default=0.0) or 1.0
    made = []
    for one, other, size in zip(found, exact, sizes, strict=True):
        if one is None or other is None:
            made.append(-1.0 if one is other else math.inf)
        else:
            off = (one.double() - other.double()).norm().item() / max(size, least)
            made.append(math.inf if math.isnan(off) else off)
    return made


def measure(make: Callable[[], Subject], what: str, modes: list[str]) -> dict[str, Any]:
    torch.manual_seed(0)
    model, given = make()
    model = without_dropout(model).cuda().train(what == "training")
    inputs = {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in given.items()}
    doubled = {name: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
               for name, value in inputs.items()}
    reference = copy.deepcopy(model).double()
    exact = step_of(reference, reference, doubled, what, True)()
    copies = {"eager": copy.deepcopy(model), **{mode: copy.deepcopy(model) for mode in modes}}
    figures: dict[str, Any] = {"wrong": []}
    steps: dict[str, Callable[[], Any]] = {}
    for name, copied in copies.items():
        called = copied if name == "eager" else jitpy.jit(copied, mode=name)
        step = step_of(called, copied, inputs, what, False)
        started = time.perf_counter()
        found = step()
        torch.cuda.synchronize()
        figures[f"first {name}"] = time.perf_counter() - started
        if name == "eager":
            theirs, own = found, errors(found, exact)
            figures["error eager"] = _whole(own)
        for number in range(1 if name == "eager" else 4):
            if number:
                found = step()
            off = errors(found, exact)
            figures[f"error {name}"] = _whole(off)
            ratios = [one / max(other, FLOOR) for one, other in zip(off, own, strict=True)]
            worst, which = max(zip(ratios, range(len(off)), strict=True))
            if not worst <= FACTOR:
                figures["wrong"].append(f"{name}, call {number}: {worst:.1f} times eager's error in "
                                        f"{_name(copied, which, len(off))}")
                break
            if any(one is not None and one.stride() != other.stride() for one, other in zip(found, theirs, strict=True)
                   if other is not None):
                figures["wrong"].append(f"{name}, call {number}: other strides")
                break
        steps[name] = step
    engines = all_engines()
    breaks = [one.break_record for engine in engines for one in engine.variants if one.break_record is not None]
    figures["breaks"] = len(breaks)
    figures["where"] = sorted({f"{Path(one.filename).name}:{one.line} {one.reason.id} {one.detail}" for one in breaks})
    figures["skipped"] = sum(len(engine.skipped) for engine in engines)
    figures |= _times(steps)
    figures["wrong"] += [f"{mode}: slower than eager" for mode in modes if figures[mode] > 1.05 * figures["eager"]]
    return figures


def _name(model: torch.nn.Module, which: int, count: int) -> str:
    """Which of `count` tensors that a step returns this is: in training the last ones are gradients."""
    names = [name for name, one in model.named_parameters() if one.requires_grad]
    first = count - len(names)
    return f"result {which}" if which < max(first, 1) else f"the gradient of {names[which - first]}"


def _whole(off: list[float]) -> float:
    kept = [one for one in off if one >= 0]
    return math.sqrt(sum(one * one for one in kept) / max(len(kept), 1))


def _times(steps: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Milliseconds a call."""
    calls = max(1, min(10, int(40 / timed(steps["eager"], 2))))
    for step in steps.values():
        timed(step, 2)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            times[name].append(timed(step, calls))
    return {name: statistics.median(taken) for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--what", default="inference,training")
    parser.add_argument("--modes", default="default,reduce-overhead")
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds")
    parser.add_argument("--json")
    chosen = parser.parse_args()
    modes = chosen.modes.split(",")
    part, parts = map(int, chosen.part.split("/"))
    end = time.monotonic() + chosen.budget
    wanted = tuple(name for name in chosen.only.split(",") if name)
    table: dict[str, Any] = {}
    rows = [(name, what, make) for name, make in subjects().items() if not wanted or name.startswith(wanted)
            for what in chosen.what.split(",")]
    for name, what, make in rows[part::parts]:
        if time.monotonic() > end:
            print("the time is over")
            break
        try:
            one = table[f"{name} {what}"] = measure(make, what, modes)
            times = "  ".join(f"{mode} {one[mode]:.2f} ms (x{one['eager'] / one[mode]:.2f}, first "
                              f"{one[f'first {mode}']:.1f} s, error {one[f'error {mode}']:.1e})" for mode in modes)
            print(f"{name} {what}: eager {one['eager']:.2f} ms (error {one['error eager']:.1e})  {times}  "
                  f"breaks {one['breaks']}, skipped {one['skipped']}  {'; '.join(one['wrong'])}",
                  *one["where"][:3], sep="\n    ", flush=True)
        except Exception as error:
            table[f"{name} {what}"] = {"error": repr(error)}
            print(f"{name} {what}: {type(error).__name__}: {error}", flush=True)
            traceback.print_exc()
        if chosen.json:
            with open(chosen.json, "w") as file:
                json.dump(table, file, indent=1)
        jitpy.reset()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
