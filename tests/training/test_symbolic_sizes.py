"""Training steps whose batch changes: one graph for all sizes from the second on, with eager's gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jitpy
from tests.counting import variants

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

#: From a layer's results of shape (batch, 8) and values of the same shape between 0 and 1 to a loss.
LOSSES: dict[str, Loss] = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "huber": lambda h, t: F.huber_loss(h, t, delta=0.5),
    "smooth_l1": lambda h, t: F.smooth_l1_loss(h, t, beta=0.3),
    "bce": lambda h, t: F.binary_cross_entropy(h.sigmoid(), t),
    "bce_sum": lambda h, t: F.binary_cross_entropy(h.sigmoid(), t, weight=t + 1, reduction="sum"),
    "bce_of_logits": F.binary_cross_entropy_with_logits,
    "bce_of_targets": lambda h, t: F.binary_cross_entropy_with_logits(t, h.sigmoid()),
    "bce_weighted": lambda h, t: F.binary_cross_entropy_with_logits(h, t, weight=t + 1, pos_weight=t[0] + 1),
    "cross_entropy": lambda h, t: F.cross_entropy(h, t.argmax(1), label_smoothing=0.1),
    "cross_entropy_ignoring": lambda h, t: F.cross_entropy(h, t.argmax(1), ignore_index=2, label_smoothing=0.3),
    "class_images": lambda h, t: F.cross_entropy(h.view(-1, 2, 2, 2), t[:, :4].round().view(-1, 2, 2).long()),
    "kl": lambda h, t: F.kl_div(h.log_softmax(-1), t.softmax(-1), reduction="batchmean"),
    "cosine": lambda h, t: F.cosine_similarity(h, t).sum(),
    "triplet": lambda h, t: F.triplet_margin_loss(h, t, 1 - t),
    "distances": lambda h, t: torch.cdist(h, t + 2).sum(),
    "std": lambda h, t: h.std(0).sum() + h.var(1).sum(),
    "prod": lambda h, t: (h.prod(0) + h.prod(1, keepdim=True).sum()).sum(),
    "logcumsumexp": lambda h, t: (h.logcumsumexp(0) * t).sum(),
    "clamped": lambda h, t: (torch.clamp_min(h, t) * t).sum() + torch.clamp_max(t, h).sum(),
    "prelu": lambda h, t: (F.prelu(h, t[0, :1]) * t).sum(),
    "padded": lambda h, t: F.pad(h, (1, 1, 2, 0)).square().sum() + F.pad(h[:, None], (2, 1), "reflect").square().sum(),
    "around": lambda h, t: F.pad(h.view(-1, 2, 2, 2), (1, 2, 0, 1), "circular").square().sum(),
    "hinge": lambda h, t: F.hinge_embedding_loss(h, t.round() * 2 - 1),
    "cosine_embedding": lambda h, t: F.cosine_embedding_loss(h, t, t[:, 0].round() * 2 - 1),
    "cut": lambda h, t: torch.stack([part[:, 0].square().sum() for part in torch.unsafe_split(h, 3, 1)]).prod(),
    "bilinear": lambda h, t: F.interpolate(h.view(-1, 2, 2, 2), scale_factor=2.0, mode="bilinear").square().sum(),
    "nearest": lambda h, t: F.interpolate(h.view(-1, 2, 2, 2), size=(5, 3)).square().sum(),
    "bicubic": lambda h, t: F.interpolate(h.view(-1, 2, 2, 2), size=(5, 3), mode="bicubic").square().sum(),
    "linear": lambda h, t: F.interpolate(h.view(-1, 2, 4), size=7, mode="linear", align_corners=True).square().sum(),
    "sampled": lambda h, t: F.grid_sample(h.view(-1, 2, 2, 2), t.view(-1, 2, 2, 2), align_corners=False).square().sum(),
    "elementwise": lambda h, t: (h.tan() + h.exp() ** (t + 1) + torch.lerp(h, t, 0.3) + torch.addcmul(t, t, h)
                                 + torch.fmax(h, t) + torch.atan2(h, t) + torch.fmod(h, 0.7) + F.elu(h)).sum(),
    "chosen": lambda h, t: (h.amax(0) * t[0]).sum() + h.max(1).values.sum() + h.topk(2).values.square().sum()
        + (h.sort(0).values * t).sum(),
    "parts": lambda h, t: h.repeat(2, 1).square().sum() + h.unfold(1, 2, 2).square().sum()
        + h.narrow(1, 2, 3).square().sum(),
    "scans": lambda h, t: (h.cumsum(0) * t).sum() + (h.cumsum(1) * t).sum(),
    "products": lambda h, t: torch.outer(h[:, 0], t[0]).square().sum() + torch.mv(h, t[0]).square().sum(),
    "transposed": lambda h, t: F.conv_transpose2d(h.view(-1, 2, 2, 2), t[:2].view(2, 2, 2, 2), stride=2).square().sum(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_batches_of_many_sizes_share_a_graph(name: str) -> None:
    torch.manual_seed(1)
    layer = nn.Linear(4, 8)

    def step(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        layer.zero_grad()
        loss = LOSSES[name](layer(x), target)
        loss.backward()
        return loss.detach()

    jitted = jitpy.jit(step, backend="eager", fullgraph=True)
    counts = []
    for batch in (6, 5, 9, 7):
        x, target = torch.randn(batch, 4), torch.rand(batch, 8)
        want, grads = step(x, target), [p.grad for p in layer.parameters()]
        got = jitted(x, target)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close([p.grad for p in layer.parameters()], grads)
        counts.append(variants())
    assert counts[0] < counts[1] == counts[2] == counts[3]


def test_gradients_are_added_to_former_ones_where_all_sizes_are_symbolic() -> None:
    layer = nn.Linear(4, 8)

    def step(x: torch.Tensor) -> None:
        layer(x).square().sum().backward()

    jitted = jitpy.jit(step, backend="eager", dynamic=True, fullgraph=True)
    for batch in (3, 4, 5):
        x = torch.randn(batch, 4)
        before = [None if p.grad is None else p.grad.clone() for p in layer.parameters()]
        step(x)
        want = [p.grad for p in layer.parameters()]
        for parameter, grad in zip(layer.parameters(), before, strict=True):
            parameter.grad = grad
        jitted(x)
        torch.testing.assert_close([p.grad for p in layer.parameters()], want)


#: What a critic has between its layers, of 8 features each.
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU, "leaky_relu": lambda: nn.LeakyReLU(0.2), "elu": nn.ELU, "selu": nn.SELU, "celu": nn.CELU,
    "gelu": nn.GELU, "gelu_tanh": lambda: nn.GELU("tanh"), "silu": nn.SiLU, "mish": nn.Mish, "softplus": nn.Softplus,
    "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "hardtanh": nn.Hardtanh, "hardswish": nn.Hardswish, "prelu": nn.PReLU,
    "softmax": lambda: nn.Softmax(-1), "log_softmax": lambda: nn.LogSoftmax(-1),
    "layer_norm": lambda: nn.LayerNorm(8), "group_norm": lambda: nn.GroupNorm(2, 8), "rms_norm": lambda: nn.RMSNorm(8),
    "images": lambda: nn.Sequential(nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 2, 3, padding=1), nn.Flatten()),
    "max_pool": lambda: nn.Sequential(nn.Unflatten(1, (2, 2, 2)), nn.ReflectionPad2d(1), nn.MaxPool2d(2), nn.Flatten()),
}


@pytest.mark.parametrize("name", LAYERS)
def test_gradient_penalties_of_many_sizes_share_a_graph(name: str) -> None:
    """Derivatives of gradients, of which no op has a rule of its own, are recorded with symbols for sizes."""
    jitpy.reset()  # nothing else is counted
    if name == "images" and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        pytest.skip("the shape code of convolution_backward takes no symbols in older versions")
    torch.manual_seed(1)
    critic = nn.Sequential(nn.Linear(4, 8), LAYERS[name](), nn.Linear(8, 1))

    def step(x: torch.Tensor) -> torch.Tensor:
        critic.zero_grad()
        x = x.detach().clone().requires_grad_()
        (grad,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
        loss = ((grad.norm(2, dim=1) - 1) ** 2).mean()
        loss.backward()
        return loss.detach()

    jitted = jitpy.jit(step, fullgraph=True)
    counts = []
    for batch in (6, 5, 9, 7):
        x = torch.randn(batch, 4)
        state = {name: value.clone() for name, value in critic.state_dict().items()}
        want, grads = step(x), [p.grad for p in critic.parameters()]
        critic.load_state_dict(state)
        got = jitted(x)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close([p.grad for p in critic.parameters()], grads)
        counts.append(variants())
    assert counts == [1, 2, 2, 2]


@pytest.mark.parametrize("layer", [nn.SiLU, nn.Mish])
def test_gradients_whose_kernels_have_no_derivative(layer: type[nn.Module]) -> None:
    """A graph that is left to torch in front of a break has the gradients that eager would differentiate."""

    def penalty(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().clone().requires_grad_()
        (grad,) = torch.autograd.grad(layer()(x).sum(), x, create_graph=True)
        jitpy.graph_break()
        grad.square().sum().backward()
        assert x.grad is not None
        return x.grad

    jitted = jitpy.jit(penalty)
    for size in (3, 5, 4):
        x = torch.randn(size)
        torch.testing.assert_close(jitted(x), penalty(x))


def test_rows_that_data_chooses_share_a_graph_with_their_gradients() -> None:
    """Also of ops without a gradient rule of their own, and where no row is chosen, or one."""
    torch.manual_seed(1)
    layer = nn.Linear(4, 8)

    def step(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        layer.zero_grad()
        kept = target[:, 0] > 0.5
        rows, others = layer(x)[kept], target[kept]
        loss = (rows.tan() + torch.atan2(rows, others) + torch.lerp(rows, others, 0.3) + torch.fmod(rows, 0.7)).sum()
        loss = loss + rows.repeat(2, 1).square().sum() + (rows.cumsum(0) * others).sum()
        loss.backward()
        return loss.detach()

    jitted = jitpy.jit(step, fullgraph=True)
    for count in (3, 5, 1, 0, 6):
        x, target = torch.randn(6, 4), torch.rand(6, 8)
        target[:, 0] = (torch.arange(6) < count).float()
        want, grads = step(x, target), [p.grad for p in layer.parameters()]
        torch.testing.assert_close(jitted(x, target), want)
        torch.testing.assert_close([p.grad for p in layer.parameters()], grads)
