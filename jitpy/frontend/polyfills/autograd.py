"""`torch.autograd.Function.apply`: `forward` is traced, and where gradients are asked for `backward` as well."""

from __future__ import annotations

import torch
from torch.autograd.function import BackwardCFunction, Function, FunctionCtx, _SingleLevelFunction

from .registry import ORIGINALS, give_up, substitute


class Context(FunctionCtx):
    """The context of `forward` and `backward`. A real one belongs to C code that must have made it: this one never
    leaves the trace."""

    to_save = None
    saved_for_forward = None
    non_differentiable = None
    materialize_grads = True

    def __init__(self, needs_input_grad):
        self.needs_input_grad = needs_input_grad
        self.unpacked = ()
        self.dirty = ()

    @property
    def saved_tensors(self):
        return self.unpacked  # they are saved after `forward`

    def mark_dirty(self, *args):
        self.dirty = args

    def __getattr__(self, name):
        return give_up("an attribute of the context of an autograd function that was not set")


#: code generation refuses to make instances of what stands for a type of C: the call of `apply` breaks the graph then
ORIGINALS[Context] = BackwardCFunction


@substitute(Function.apply.__func__)
def apply(cls, /, *args, **kwargs):
    needs_input_grad = tuple([isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args])
    before = torch.is_grad_enabled()
    given = (*args, *kwargs.values())
    if kwargs and before and any([isinstance(arg, torch.Tensor) and arg.requires_grad for arg in given]):
        give_up("keyword arguments of an autograd function")
    ctx = Context(needs_input_grad)
    torch.set_grad_enabled(False)
    try:
        if cls.setup_context is _SingleLevelFunction.setup_context:
            made = cls.forward(ctx, *args, **kwargs)
        else:
            code = cls.forward.__code__
            if kwargs or code.co_kwonlyargcount or code.co_argcount != len(args):
                give_up("arguments of an autograd function left to their defaults")
            made = cls.forward(*args)
            cls.setup_context(ctx, args, made)
            for saved in ctx.to_save or ():
                if _is_in(saved, args) and _is_in(saved, made if isinstance(made, tuple) else (made,)):
                    give_up("an argument is returned and saved: eager refuses")
        if ctx.dirty and (True in needs_input_grad or not _are_in(ctx.dirty, made) or not _are_in(ctx.dirty, args)):
            give_up("mark_dirty")  # counts as a change of the tensors
        if not before or True not in needs_input_grad:
            if isinstance(made, tuple):
                return tuple([_result(one, args, ctx.dirty) for one in made])
            return _result(made, args, ctx.dirty)
    finally:
        torch.set_grad_enabled(before)
    return with_gradients(cls, ctx, args, made, ctx.to_save, ctx.non_differentiable, ctx.materialize_grads)


class Registered:
    """Stands for the autograd function that torch makes for an operator."""

    def __init__(self, definition):
        self.definition = definition

    def backward(self, ctx, *grads):
        return self.definition._backward_fn(ctx, *grads)


def registered(operator, definition, count, *args):
    """A call of an operator whose gradient the program registered, under grad mode. `count`: of the arguments without
    defaults at the end, which torch's dispatcher drops."""
    ctx = Context(tuple([isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args[:count]]))
    torch.set_grad_enabled(False)
    try:
        made = operator(*args)
        if definition._setup_context_fn:
            definition._setup_context_fn(ctx=ctx, inputs=args, output=made)
        if ctx.dirty:
            give_up("mark_dirty")
    finally:
        torch.set_grad_enabled(True)
    return with_gradients(Registered(definition), ctx, args, made, ctx.to_save, ctx.non_differentiable,
                          ctx.materialize_grads)


def _is_in(tensor, others):
    return isinstance(tensor, torch.Tensor) and any([tensor is other for other in others])


def _are_in(tensors, others):
    return all([_is_in(tensor, others if isinstance(others, tuple) else (others,)) for tensor in tensors])


def _result(made, args, dirty):
    """An argument that is returned as it came gives a tensor of its own, unless it was changed."""
    if not isinstance(made, torch.Tensor) or _is_in(made, dirty):
        return made
    if _is_in(made, args):
        return made.detach() if made.requires_grad else made.view_as(made)
    if made.requires_grad:
        give_up("an autograd function whose result requires grad by itself")
    return made


def with_gradients(cls, ctx, args, made, saved, non_differentiable, materialize):
    """The results with a history. The tracer's model stands for it: see
    `frontend/models/tensors/autograd_functions.py`."""
    give_up("torch.autograd.Function.apply of tensors that require grad")


def unpack(ctx, saved):
    ctx.unpacked = saved


def backward(cls, ctx, grads):
    """`cls.backward`; a gradient given as (size, dtype, device) is zeros."""
    if torch.is_autocast_enabled("cuda"):
        give_up("an autograd function under autocast")
    filled = [torch.zeros(g[0], dtype=g[1], device=g[2]) if isinstance(g, tuple) else g for g in grads]
    if torch.is_autocast_enabled("cpu"):
        with torch.autocast("cpu", enabled=False):
            return cls.backward(ctx, *filled)
    return cls.backward(ctx, *filled)


def without_grad(function, *args, **kwargs):
    """The result of `once_differentiable` for a function, as far as its first results go."""
    with torch.no_grad():
        return function(*args, **kwargs)


def batched_gradients(outputs, inputs, grads, create_graph):
    """`torch.autograd.grad(..., is_grads_batched=True)`, but that it keeps what the pass came through."""

    def one_pass(*row):
        return torch.autograd.grad(outputs, inputs, row, True, create_graph)

    with torch.set_grad_enabled(create_graph):
        return torch.func.vmap(one_pass)(*grads)


def variable(data, requires_grad=False):
    """`torch.autograd.Variable`."""
    made = data.detach()
    return made.requires_grad_(True) if requires_grad else made
