"""Classes that a function makes with help of the library: autograd functions, dataclasses, named tuples."""

from __future__ import annotations

import torch

from tests.semantics.harness import case, make_test

X = lambda: (torch.randn(3),)  # noqa: E731
G = lambda: (torch.randn(3, requires_grad=True),)  # noqa: E731


@case(X, lambda: (torch.randn(4),), fullgraph=True)
def masked_sum(x):
    return torch.masked.sum(x, 0, mask=x > 0)


@case(X, G, fullgraph=True)
def masked_softmax(x):
    masked = torch.masked
    return (masked.softmax(x, 0, mask=x > 0), masked.mean(x, 0, mask=x > 0), masked.amax(x, 0), masked.cumsum(x, 0),
            masked.normalize(x, 2.0, 0), masked.logsumexp(x, 0), masked.var(x, 0))


@case(X, G, fullgraph=True)
def local_function(x):
    scale = x.shape[0]
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * scale
        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * scale * x
    return Scaled.apply(x + 1).sin()


@case(X, fullgraph=True)
def local_function_escapes(x):
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2
        @staticmethod
        def backward(ctx, g):
            return g * 5
    return Twice.apply(x), Twice.__name__, [Twice], Twice._backward_cls.__name__


test_all = make_test(__name__)
