"""Layers under autocast on a GPU call what eager calls, and no more. No GPU is needed to see it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.triton import cuda_captures

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="torch's own choices decide on a GPU"),
    pytest.mark.skipif(cuda_captures.compiler() is None, reason="there is no compiler"),
    pytest.mark.skipif(not torch.__version__ >= "2.13", reason="this torch asks for more than a guard"),
]


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("cuda")
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-m", "tests.triton.cuda_captures", str(folder)], cwd=root, check=True,
                          capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def calls(steps: list[str], part: str) -> int:
    return sum(part in step for step in steps)


@pytest.mark.parametrize("mask", cuda_captures.MASKS)
def test_inference(plans: dict[str, list[str]], mask: str) -> None:
    steps = plans[f"{mask} inference"]
    assert calls(steps, "scaled_dot_product_attention") == 1
    assert calls(steps, "addmm") + calls(steps, "linear") == 6
    assert not calls(steps, "bmm") and not calls(steps, "softmax") and not calls(steps, "matmul")


@pytest.mark.parametrize("mask", cuda_captures.MASKS)
def test_training(plans: dict[str, list[str]], mask: str) -> None:
    steps = plans[f"{mask} training"]
    kernel = "efficient" if mask in ("padding", "by_rows") else "flash"
    assert calls(steps, f"_scaled_dot_product_{kernel}_attention.") == 1
    assert calls(steps, f"_scaled_dot_product_{kernel}_attention_backward.") == 1
    assert not calls(steps, "bmm") and not calls(steps, "softmax") and not calls(steps, "matmul")


def test_symbolic_sizes_cost_no_copies(plans: dict[str, list[str]]) -> None:
    dynamic, static = ([step for step in plans[name] if not step.startswith("fused")]
                       for name in ("dynamic", "none inference"))
    assert sorted(dynamic) == sorted(static) and not calls(plans["dynamic"], "clone")


@pytest.mark.parametrize("mask", ["none", "causal", "padding"])
def test_training_with_symbolic_sizes(plans: dict[str, list[str]], mask: str) -> None:
    dynamic, static = ([step for step in plans[name] if not step.startswith(("fused", "sym_size"))]
                       for name in (f"dynamic {mask} training", f"{mask} training"))
    assert sorted(dynamic) == sorted(static)


@pytest.mark.parametrize("what", ["inference", "training"])
def test_masks_that_say_nothing_cost_nothing(plans: dict[str, list[str]], what: str) -> None:
    assert plans[f"all_true {what}"] == plans[f"causal {what}"] == plans[f"none {what}"] == plans[f"zeros {what}"]


@pytest.mark.parametrize(("name", "kernel"), [("by hand", "_scaled_dot_product_flash_attention."),
                                              ("by hand, biased", "flex_attention")])
def test_attention_by_hand_asks_for_no_kernel(plans: dict[str, list[str]], name: str, kernel: str) -> None:
    """A kernel by its name: that which asks which kernels are allowed fails where none is."""
    steps = plans[name]
    assert calls(steps, kernel) == 1 and not calls(steps, "mm"), steps
    assert not any(step.endswith("scaled_dot_product_attention.default") for step in steps), steps


@pytest.mark.parametrize("name", ["expansion", "repeat_interleave"])
def test_repeated_heads_are_read_in_groups(plans: dict[str, list[str]], name: str) -> None:
    assert plans[name][0] == "1" and not calls(plans[name], "expand") and not calls(plans[name], "clone")
    assert calls(plans[f"{name} training"], "_scaled_dot_product_flash_attention_backward.") == 1


@pytest.mark.parametrize("name", ["another order", "repeat"])
def test_heads_in_another_order_are_no_groups(plans: dict[str, list[str]], name: str) -> None:
    assert plans[name][0] == "0" and calls(plans[name], "scaled_dot_product_attention") == 1


@pytest.mark.parametrize("name", cuda_captures.REPEATS)
def test_attention_depends_on_repeated_heads_that_are_a_result(plans: dict[str, list[str]], name: str) -> None:
    assert plans[f"{name} shown"][0] == "0"


def test_products_of_many_words_are_padded(plans: dict[str, list[str]]) -> None:
    steps = plans["head"]
    assert calls(steps, "mm.") == 2, "the logits, and the gradient of the weight"
    assert sum("constant_pad_nd" in step for step in steps) == 2, "the weight, and the gradient of the logits"
    assert all(step.startswith("fused") or "mm." in step for step in steps), steps


def test_gradients_of_losses_have_no_memory_between(plans: dict[str, list[str]]) -> None:
    """But for the padded gradient of the logits (and that before it is padded)."""
    large = [size for size in plans["head memory"] if size.startswith("float32[4096, 50")]
    assert not large, plans["head memory"]


def test_running_statistics_are_part_of_kernels(plans: dict[str, list[str]]) -> None:
    steps = [step for step in plans["convolution"] if not step.startswith("fused")]
    assert calls(steps, "convolution") == 1 and not calls(steps, "norm"), steps


@pytest.mark.parametrize("which", ["input", "weight", "none"])
def test_images_in_channels_last_stay_so(plans: dict[str, list[str]], which: str) -> None:
    """As cuDNN's kernels have it in eager: where either operand is, result and gradients are."""
    images, kernels = ("[1024, 1, 128, 16]", "[144, 1, 48, 16]") if which != "none" else \
        ("[1024, 64, 8, 1]", "[144, 9, 3, 1]")
    result, *gradients = plans[f"channels-last {which}"]
    assert result == f"[2, 16, 8, 8] {images}"
    assert set(gradients) == {f"[2, 16, 8, 8] {images}", f"[16, 16, 3, 3] {kernels}"}, gradients


def test_norms_that_do_not_learn_are_part_of_kernels(plans: dict[str, list[str]]) -> None:
    steps = [step for step in plans["frozen norm"] if not step.startswith("fused")]
    assert calls(steps, "convolution") == 2 and not calls(steps, "norm"), steps


def test_numbers_on_the_cpu_are_known_to_kernels(plans: dict[str, list[str]]) -> None:
    assert all(step.startswith("fused") for step in plans["numbers"]), plans["numbers"]


@pytest.mark.parametrize("dynamic", [False, True])
def test_products_of_packed_integers(plans: dict[str, list[str]], dynamic: bool) -> None:
    assert calls(plans[f"packed {dynamic}"], "weight_int4pack_mm") == 1
