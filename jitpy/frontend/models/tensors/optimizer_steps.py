"""Optimizers whose Python code asks what data say, traced as arithmetic on tensors.

Some ask for the number of the step. Their forms that are free of such questions by themselves (`capturable`), and those
that autograd watches, are traced as they stand. And GradScaler asks whether a gradient overflowed, to skip the step
then: the step is traced, and all that it writes to tensors is chosen between what was there and what it computed.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import asgd, radam

from ...breaks import GraphBreak
from ...capture.traced import Storage, TracedTensor
from ...interpreter.callees import builtin
from ...interpreter.calls import inline_library
from ...interpreter.frame import TracedException
from ...values import NULL, TupleValue, Value
from ...values.tree import dict_of
from .higher_order import state_of

if TYPE_CHECKING:
    from ...values import Interpreter

_aten = torch.ops.aten

Tensors = Sequence[torch.Tensor]


def _stands_for(*originals: types.FunctionType) -> Callable[[Any], Any]:
    """Trace the decorated function in the place of these, in their plain forms."""

    def register(body: Any) -> Any:
        for original in originals:
            def model(interp: Interpreter, args: list[Value], kwargs: dict[str, Value],
                      original: types.FunctionType = original) -> Any:
                special = (kwargs.get(name, NULL) for name in ("capturable", "differentiable", "has_complex"))
                plain = all(flag.literal is False for flag in special)
                if not plain or kwargs.get("lr", NULL).tensor is not None:
                    return inline_library(interp, original, args, kwargs)
                return interp.call(interp.context.const_object(body), args, kwargs)

            builtin(original)(model)
        return body

    return register


@_stands_for(radam._single_tensor_radam, radam._multi_tensor_radam)
def _radam(params: Tensors, grads: Tensors, exp_avgs: Tensors, exp_avg_sqs: Tensors, state_steps: Tensors, *,
           beta1: float, beta2: float, lr: float, weight_decay: float, eps: float, decoupled_weight_decay: bool,
           maximize: bool, **forms: bool) -> None:
    longest = 2 / (1 - beta2) - 1  # length of the moving average, in the end
    for param, grad, exp_avg, exp_avg_sq, steps in zip(params, grads, exp_avgs, exp_avg_sqs, state_steps, strict=True):
        if maximize:
            grad = -grad
        steps += 1
        step = steps.to(device=param.device, dtype=torch.float64)
        if weight_decay != 0:
            if decoupled_weight_decay:
                param.mul_(1 - lr * weight_decay)
            else:
                grad = grad.add(param, alpha=weight_decay)
        exp_avg.lerp_(grad, 1 - beta1)
        exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        rest = beta2**step
        length = longest - 2 * step * rest / (1 - rest)
        known = length > 5.0  # from then on the variance is
        part = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
        rate = torch.where(known, (1 - rest).sqrt() * part.sqrt(), 1.0)
        divisor = torch.where(known, exp_avg_sq.sqrt().add(eps), 1.0)
        param.sub_(exp_avg / (1 - beta1**step) * lr * (rate / divisor))


@_stands_for(asgd._single_tensor_asgd, asgd._multi_tensor_asgd)
def _asgd(params: Tensors, grads: Tensors, axs: Tensors, mus: Tensors, etas: Tensors, state_steps: Tensors, *,
          lambd: float, lr: float, t0: float, alpha: float, weight_decay: float, maximize: bool,
          **forms: bool) -> None:
    for param, grad, ax, mu, eta, steps in zip(params, grads, axs, mus, etas, state_steps, strict=True):
        if maximize:
            grad = -grad
        steps += 1
        step = steps.double()
        if weight_decay != 0:
            grad = grad.add(param, alpha=weight_decay)
        param.mul_(1 - lambd * eta.double())
        param.sub_(grad * eta)
        ax.copy_(torch.where(mu == 1, param, ax + (param - ax) * mu))
        eta.copy_(lr / (1 + lambd * lr * step) ** alpha)
        mu.copy_(1 / (step - t0).clamp(min=1))


# -- GradScaler ---------------------------------------------------------------------------------------------


def _overflowed(optimizer_state: dict[str, Any]) -> torch.Tensor:
    flags = [found != 0 for found in optimizer_state["found_inf_per_device"].values()]
    result = flags[0]
    for flag in flags[1:]:
        result = result | flag.to(result.device)
    return result


def _step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
    return optimizer.step(*args, **kwargs)


@builtin(torch.amp.GradScaler._maybe_opt_step)
def _maybe_step(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`optimizer.step(*args, **kwargs)`, unless a gradient overflowed."""
    _, optimizer, optimizer_state, *rest = args
    skipped = interp.call_sync(interp.context.const_object(_overflowed), [optimizer_state])
    if skipped.tensor is None or skipped.traced.shape:
        raise _unskippable("its overflow is no single number")
    given = [optimizer, TupleValue(rest), dict_of(interp, kwargs)]
    with interp.recording("GradScaler.step"):
        return _unless(interp, skipped.traced, interp.context.const_object(_step), given)


def _unless(interp: Interpreter, skipped: TracedTensor, fn: Value, args: list[Value]) -> Value:
    """Trace `fn(*args)`, which returns None, so that it leaves all as it was where `skipped` is true."""
    builder = interp.builder
    known = {tensor.storage for tensor in _tensors(interp)}
    before = {storage: (storage.generation, storage.base) for storage in known}
    views = {tensor: (tensor.storage, tensor.chain) for tensor in _tensors(interp)}
    start = len(builder.graph.nodes)
    state = state_of(interp)
    try:
        result = interp.call_sync(fn, args)
    except TracedException as error:
        raise _unskippable(f"it raises {error.value.cls.__name__}") from None
    if state_of(interp) != state or any((t.storage, t.chain) != found for t, found in views.items()):
        raise _unskippable("it changes more than the values of tensors: the first one makes the optimizer's state")
    if result.literal is not None:
        raise _unskippable("it returns something")
    if any(node.op.is_random for node in builder.graph.nodes[start:]):
        raise _unskippable("it draws random numbers")
    flags = {skipped.spec.device: builder.node(skipped)}
    with builder.state.grad_mode(False):
        for storage in dict.fromkeys(tensor.storage for tensor in _tensors(interp)):
            generation, old = before.get(storage, (0, storage.values[0]))
            if storage.generation == generation or storage.input is None and storage not in known:
                continue
            device = old.tensor.device
            if device not in flags:
                flags[device] = builder.emit(_aten._to_copy.default, (builder.node(skipped),), {"device": device})
            _choose(interp, storage, flags[device], old)
    return result


def _choose(interp: Interpreter, storage: Storage, skipped: Any, old: Any) -> None:
    """Put back what was in this memory before, where the step is skipped."""
    builder = interp.builder
    new = storage.base
    if new.tensor.requires_grad:
        raise _unskippable("autograd records it")
    whole = TracedTensor(builder, storage, (), new, new.tensor)
    builder.write(whole, builder.emit(_aten.where.self, (skipped, old, new)))


def _tensors(interp: Interpreter) -> list[TracedTensor]:
    """All tensors that the program knows by now."""
    return list({id(value.traced): value.traced for value in interp.context.tensors.values()}.values())


def _unskippable(why: str) -> GraphBreak:
    return GraphBreak("data_dependent_branch", f"GradScaler skips a step where gradients overflow; of this one: {why}")


# -- the first optimizer of a class in a process


@builtin(torch.optim.Optimizer._patch_step_function)
def _patch_step(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
    """The first optimizer of a class wraps the class' `step`. For torch's own classes that is done here and now: the
    class is the same then, whoever makes the first one."""
    cls = args[0].cls if args else object
    looked_at = any(lookup.cls is cls and "step" in lookup.names for lookup in interp.context.lookups())
    if cls.__module__.startswith("torch.optim.") and not looked_at and not getattr(cls.step, "hooked", False):
        cls.step = torch.optim.Optimizer.profile_hook_step(cls.step)
        cls.step.hooked = True
    return inline_library(interp, torch.optim.Optimizer._patch_step_function, args, kwargs)
