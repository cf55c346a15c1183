"""Handles of hooks that the traced program registers."""

from __future__ import annotations

from torch.utils.hooks import RemovableHandle

from .registry import give_up


def new_hook_id():
    """A number that no other hook of the process has. Traced calls are answered by `tensors/hooks.py`."""
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
    """What `register_hook` of a tensor does with the dict of its hooks."""
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle
