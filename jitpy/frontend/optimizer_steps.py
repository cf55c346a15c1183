"""Optimizers whose Python code asks for the number of the step, traced as arithmetic on the tensor that holds it.

The forms that are free of such questions by themselves (`capturable`), and those that autograd watches, are traced as
they stand.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import asgd, radam

from .calls import builtin, call, inline_library
from .values.base import ConstValue, TensorValue, Value

if TYPE_CHECKING:
    from .executor import Executor

Tensors = Sequence[torch.Tensor]


def _stands_for(*originals: types.FunctionType) -> Callable[[Any], Any]:
    """Trace the decorated function in the place of these, in their plain forms."""

    def register(body: Any) -> Any:
        for original in originals:
            def model(ex: Executor, args: list[Value], kwargs: dict[str, Value],
                      original: types.FunctionType = original) -> Any:
                special = (kwargs.get(name) for name in ("capturable", "differentiable", "has_complex"))
                plain = all(isinstance(flag, ConstValue) and flag.value is False for flag in special)
                if not plain or isinstance(kwargs.get("lr"), TensorValue):
                    return inline_library(ex, original, args, kwargs)
                return call(ex, ex.world.const_object(body), args, kwargs)

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
