"""Blocks of inference mode that the traced program enters and leaves."""

from __future__ import annotations

import torch

from .registry import give_up, substitute


def begin(mode):
    """Inference mode on or off; the modes before, for `end`. Traced calls are answered by
    `models/tensors/inference_mode.py`."""
    return give_up("inference mode")


def end(before):
    """The modes that `begin` returned are put back. Traced calls are answered there, too."""
    return give_up("inference mode")


class Block:
    """The state of `torch.inference_mode` while its block runs. One that is left behind is never entered again."""

    def __init__(self, mode):
        self.mode = mode
        self.before = None

    def __enter__(self):
        self.before = begin(self.mode)

    def __exit__(self, kind, error, traceback):
        if self.before is None:
            give_up("the end of an inference mode that did not begin")
        end(self.before)
        self.before = None


@substitute(torch._C._InferenceMode)
def block(mode, /):
    return Block(mode)
