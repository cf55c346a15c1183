"""Handles of hooks that the traced program registers."""

from __future__ import annotations

import torch
from torch.utils.hooks import RemovableHandle

from .registry import give_up


def new_hook_id():
    """A number that no other hook of the process has. Traced calls are answered by `models/tensors/tensor_hooks.py`."""
    return give_up("the number of a hook")


def reference_to_hooks(hooks_dict):
    """A weak reference to the dict that a handle removes its hook from. Traced calls are answered there, too."""
    return give_up("a reference to hooks")


def initialize(self, hooks_dict, *, extra_dict=None):
    """`RemovableHandle.__init__`."""
    self.hooks_dict_ref = reference_to_hooks(hooks_dict)
    self.id = new_hook_id()
    self.extra_dict_ref = ()
    if isinstance(extra_dict, dict):
        self.extra_dict_ref = (reference_to_hooks(extra_dict),)
    elif isinstance(extra_dict, list):
        self.extra_dict_ref = tuple([reference_to_hooks(d) for d in extra_dict])


def register(hooks, hook):
    """The change of `register_hook` of a tensor in the dict of its hooks."""
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


#: where the dict of a tensor's hooks has the one that `retain_grad` makes, which is called behind all others
RETAINS = "retain_grad"


def kept(tensor):
    """The gradient that a tensor has retained. Traced calls are answered by `models/tensors/tensor_hooks.py`."""
    return give_up("a retained gradient")


def keep(tensor, grad):
    """It has another one from now on. Traced calls are answered there, too."""
    return give_up("a retained gradient")


def retain(hooks, tensor):
    """The effect of `retain_grad`."""

    def add(grad):
        before = kept(tensor)
        keep(tensor, grad.clone(memory_format=torch.contiguous_format) if before is None else before + grad)

    hooks[RETAINS] = add
