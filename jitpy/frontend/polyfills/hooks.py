"""Handles of hooks that the traced program registers."""

from __future__ import annotations

from torch.utils.hooks import RemovableHandle

from .registry import give_up


def new_hook_id():
    """A number that no other hook of the process has. Traced calls are answered by `tensors/hooks.py`."""
    return give_up("the number of a hook")


def initialize(self, hooks_dict, *, extra_dict=None):
    """`RemovableHandle.__init__`, for a handle that never leaves the trace."""
    self.id = new_hook_id()
    self.hooks_dict_ref = lambda: hooks_dict
    if isinstance(extra_dict, dict):
        extra_dict = [extra_dict]
    self.extra_dict_ref = tuple([(lambda d=d: d) for d in extra_dict or ()])


def register(hooks, hook):
    """What `register_hook` of a tensor does with the dict of its hooks."""
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle
