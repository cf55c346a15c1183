"""Kernels that torch has for whole optimizer steps and for the scaling of losses, as tensor operations that fuse with
what stands around them.

Their arithmetic is that of the kernels: 16-bit tensors in float32, numbers about the step in float64.
"""

from __future__ import annotations

import torch

from .registry import give_up, substitute


@substitute(torch._amp_foreach_non_finite_check_and_unscale_)
def non_finite_check_and_unscale_(self, found_inf, inv_scale):
    if torch.is_grad_enabled() or not len(self):
        give_up("unscaling gradients that autograd watches, or none")
    for one in (found_inf, inv_scale):
        if one.numel() != 1 or one.dtype is not torch.float32 or one.device != self[0].device:
            give_up("a scale that is not one float32 number beside the gradients")
    found = found_inf.reshape(())
    scale = inv_scale.reshape(())
    for grad in self:
        if grad.dtype is not self[0].dtype or grad.device != self[0].device or not grad.is_floating_point():
            give_up("unscaling tensors of several kinds")
        found = torch.where(torch.isfinite(grad).all(), found, 1.0)
    found_inf.copy_(found.reshape(found_inf.shape))
    for grad in self:
        grad.copy_(_wide(grad) * scale)


@substitute(torch._amp_update_scale_)
def update_scale_(self, growth_tracker, found_inf, scale_growth_factor, scale_backoff_factor, growth_interval):
    numbers = (self, growth_tracker, found_inf)
    if torch.is_grad_enabled() and any([one.requires_grad for one in numbers]):
        give_up("a scale that autograd watches")
    for one, dtype in zip(numbers, (torch.float32, torch.int32, torch.float32), strict=True):
        if one.numel() != 1 or one.dtype is not dtype or one.device != self.device:
            give_up("a scale that is not one number of the usual kind")
    overflow = (found_inf != 0).reshape(self.shape)
    steps = growth_tracker.reshape(self.shape) + 1
    due = steps == growth_interval
    grown = (self.double() * scale_growth_factor).float()
    smaller = (self.double() * scale_backoff_factor).float()
    growing = due & torch.isfinite(grown)
    new = torch.where(overflow, smaller, torch.where(growing, grown, self))
    growth_tracker.copy_(torch.where(overflow | due, 0, steps).reshape(growth_tracker.shape))
    self.copy_(new)
    return self


@substitute(torch._fused_sgd_)
def fused_sgd_(self, grads, momentum_buffer_list, *, weight_decay, momentum, lr, dampening, nesterov, maximize,
               is_first_step, grad_scale=None, found_inf=None):
    _check(self)
    lr = _number(lr)
    for k in range(len(self)):
        param = self[k]
        p = _wide(param)
        grad = _direction(p, grads[k], weight_decay, maximize, grad_scale, found_inf)
        if momentum != 0:
            buffer = momentum_buffer_list[k]
            average = grad if is_first_step else _wide(buffer) * momentum + grad * (1 - dampening)
            _store(buffer, average, found_inf)
            grad = grad + average * momentum if nesterov else average
        _store(param, p - lr * grad, found_inf)


@substitute(torch._fused_adagrad_)
def fused_adagrad_(self, grads, state_sums, state_steps, *, lr, lr_decay, weight_decay, eps, maximize, grad_scale=None,
                   found_inf=None):
    _check(self)
    lr = _number(lr)
    for k in range(len(self)):
        param = self[k]
        p = _wide(param)
        grad = _direction(p, grads[k], weight_decay, maximize, grad_scale, found_inf)
        total = _wide(state_sums[k]) + grad * grad
        rate = lr / (1 + (state_steps[k].double() - 1) * lr_decay)
        _store(state_sums[k], total, found_inf)
        _store(param, p - rate * grad / (total.sqrt() + eps), found_inf)


@substitute(torch._fused_adam_)
def fused_adam_(*args, **kwargs):
    _adam(False, *args, **kwargs)


@substitute(torch._fused_adamw_)
def fused_adamw_(*args, **kwargs):
    _adam(True, *args, **kwargs)


def _adam(decoupled, params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, *, lr, beta1, beta2,
          weight_decay, eps, amsgrad, maximize, grad_scale=None, found_inf=None):
    _check(params)
    lr = _number(lr)
    for k in range(len(params)):
        param = params[k]
        step = state_steps[k].double()
        correction1 = 1 - beta1**step
        correction2 = (1 - beta2**step).sqrt()
        p = _wide(param)
        grad = _direction(p, grads[k], 0 if decoupled else weight_decay, maximize, grad_scale, found_inf)
        if decoupled and weight_decay != 0:
            p = p * (1 - lr * weight_decay)
        mean = _wide(exp_avgs[k])
        mean = mean + (1 - beta1) * (grad - mean)
        square = _wide(exp_avg_sqs[k]) * beta2 + grad * grad * (1 - beta2)
        largest = square
        if amsgrad:
            largest = torch.maximum(_wide(max_exp_avg_sqs[k]), square)
            _store(max_exp_avg_sqs[k], largest, found_inf)
        _store(exp_avgs[k], mean, found_inf)
        _store(exp_avg_sqs[k], square, found_inf)
        _store(param, p - (lr / correction1) * mean / (largest.sqrt() / correction2 + eps), found_inf)


def _check(params):
    if torch.is_grad_enabled():
        give_up("a fused optimizer that autograd watches")
    if any([not param.is_floating_point() for param in params]):
        give_up("a fused optimizer of numbers that are not real")


def _wide(tensor):
    """The tensor in the dtype in which the kernels compute."""
    narrow = tensor.dtype is torch.float16 or tensor.dtype is torch.bfloat16
    return tensor.float() if narrow else tensor


def _number(lr):
    return lr.double() if isinstance(lr, torch.Tensor) else lr


def _direction(p, grad, weight_decay, maximize, grad_scale, found_inf):
    """The gradient without its scale, towards the smaller loss, with the decay of the weights `p`."""
    grad = _unscaled(grad, grad_scale, found_inf)
    if maximize:
        grad = -grad
    return grad + p * weight_decay if weight_decay != 0 else grad


def _unscaled(grad, grad_scale, found_inf):
    """The gradient without its scale; the kernels leave it so in memory."""
    if grad_scale is None:
        return _wide(grad)
    found = _wide(grad) / grad_scale
    _store(grad, found, found_inf)
    return found


def _store(target, new, found_inf):
    """Write a new value, where no gradient overflowed."""
    target.copy_(new if found_inf is None else torch.where(found_inf == 1, target, new.to(target.dtype)))
