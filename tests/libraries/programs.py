"""Programs with well-known libraries: `make()` returns (the function that its author would jit, what to call it
with the n-th time). State (parameters, optimizers) lies in what the function closes over, so each rival makes its own.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Made = tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]


@dataclass(frozen=True)
class Program:
    name: str
    needs: tuple[str, ...]
    make: Callable[[], Made]
    light: bool


#: name -> the program
PROGRAMS: dict[str, Program] = {}


def program(*needs: str, light: bool = False) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    """light: one of the sample that runs with the other tests."""

    def register(make: Callable[[], Made]) -> Callable[[], Made]:
        PROGRAMS[make.__name__] = Program(make.__name__, needs, make, light)
        return make

    return register


def missing(program: Program) -> str | None:
    """The library that a program needs and that is not installed."""
    return next((name for name in program.needs if importlib.util.find_spec(name) is None), None)


def declare_torchvisions_operators() -> None:
    """A torchvision built for GPUs loads no operators beside a torch that was not, and its import fails then.

    No program here calls them: their schemas are enough.
    """
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        _KEPT.append(library)
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        importlib.import_module("torchvision")


_KEPT: list[Any] = []


class Field(nn.Module):
    """The right-hand side of an ordinary differential equation."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.net(y**3)


@program("torchdiffeq", light=True)
def ode_dopri5() -> Made:
    from torchdiffeq import odeint

    field, times = Field(), torch.linspace(0.0, 1.0, 5)

    def solve(y0: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return odeint(field, y0, times, method="dopri5")

    return solve, lambda n: (torch.randn(16, 2),)


@program("torchdiffeq")
def ode_dopri5_training() -> Made:
    from torchdiffeq import odeint

    field, times = Field(), torch.linspace(0.0, 1.0, 5)
    optimizer = torch.optim.Adam(field.parameters(), lr=1e-3)

    def step(y0: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (odeint(field, y0, times, method="dopri5")[-1] - target).abs().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step, lambda n: (torch.randn(16, 2), torch.randn(16, 2))


@program("torchdiffeq", light=True)
def ode_rk4() -> Made:
    from torchdiffeq import odeint

    field, times = Field(), torch.linspace(0.0, 1.0, 8)
    optimizer = torch.optim.Adam(field.parameters(), lr=1e-3)

    def step(y0: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (odeint(field, y0, times, method="rk4")[-1] - target).abs().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step, lambda n: (torch.randn(16, 2), torch.randn(16, 2))


@program("botorch", "gpytorch")
def botorch_fit_and_acquire() -> Made:
    from botorch.acquisition import LogExpectedImprovement
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    def propose(x: torch.Tensor, y: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        model = SingleTaskGP(x, y)
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        model.train()
        for _ in range(3):
            optimizer.zero_grad()
            loss = -mll(model(x), model.train_targets)
            loss.backward()
            optimizer.step()
        model.eval()
        return LogExpectedImprovement(model, best_f=y.max())(candidates)

    def inputs(n: int) -> tuple[torch.Tensor, ...]:
        x = torch.rand(20, 2, dtype=torch.float64)
        return x, (x * 6).sin().sum(-1, keepdim=True), torch.rand(8, 1, 2, dtype=torch.float64)

    return propose, inputs


@program("botorch", "gpytorch")
def botorch_acquisition() -> Made:
    from botorch.acquisition import LogExpectedImprovement
    from botorch.models import SingleTaskGP

    x = torch.rand(20, 2, dtype=torch.float64)
    y = (x * 6).sin().sum(-1, keepdim=True)
    model = SingleTaskGP(x, y).eval()
    acquisition = LogExpectedImprovement(model, best_f=y.max())

    def value_and_gradient(candidates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        value = acquisition(candidates)
        return value, torch.autograd.grad(value.sum(), candidates)[0]

    return value_and_gradient, lambda n: (torch.rand(8, 1, 2, dtype=torch.float64, requires_grad=True),)


@program("gpytorch")
def gpytorch_exact_training() -> Made:
    import gpytorch

    class Model(gpytorch.models.ExactGP):
        def __init__(self, x: torch.Tensor, y: torch.Tensor, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    x = torch.linspace(0, 1, 60)
    y = (x * 6).sin() + 0.1 * torch.randn(60)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Model(x, y, likelihood).train()
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    def step(targets: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = -mll(model(x), targets)
        loss.backward()
        optimizer.step()
        return loss

    return step, lambda n: ((x * 6).sin() + 0.1 * torch.randn(60),)


class SmallConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.relu1, self.pool = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2)
        self.conv2, self.relu2, self.out = nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Linear(8 * 5 * 5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.relu1(self.conv1(x)))
        return self.out(self.relu2(self.conv2(x)).flatten(1))


@program("captum", light=True)
def captum_integrated_gradients() -> Made:
    from captum.attr import IntegratedGradients

    method = IntegratedGradients(SmallConvNet().eval())
    return (lambda image: method.attribute(image, target=1, n_steps=8)), lambda n: (torch.randn(2, 3, 16, 16),)


@program("captum")
def captum_deep_lift() -> Made:
    from captum.attr import DeepLift

    method = DeepLift(SmallConvNet().eval())

    def attribute(image: torch.Tensor, baseline: torch.Tensor) -> torch.Tensor:
        return method.attribute(image, baseline, target=1)

    return attribute, lambda n: (torch.randn(2, 3, 16, 16), torch.zeros(2, 3, 16, 16))


@program("torchsde", light=True)
def sde_integration() -> Made:
    import torchsde

    class Equation(nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self) -> None:
            super().__init__()
            self.drift, self.diffusion = nn.Linear(3, 3), nn.Linear(3, 3)

        def f(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.drift(y).tanh()

        def g(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.diffusion(y).sigmoid() * 0.1

    equation, times = Equation(), torch.linspace(0, 1, 5)

    def solve(y0: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            noise = torchsde.BrownianInterval(0.0, 1.0, size=(8, 3), entropy=7)
            return torchsde.sdeint(equation, y0, times, bm=noise, dt=0.1, method="euler")

    return solve, lambda n: (torch.randn(8, 3),)


def _classifier_step(model: nn.Module) -> Callable[..., torch.Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


@program("timm", "torchvision")
def timm_convnext_training() -> Made:
    import timm

    model = timm.create_model("convnext_atto", pretrained=False, num_classes=10,
                              dims=(16, 32, 64, 96), depths=(1, 1, 2, 1))
    return _classifier_step(model.train()), lambda n: (torch.randn(4, 3, 64, 64), torch.randint(10, (4,)))


@program("timm", "torchvision")
def timm_rotary_vit_training() -> Made:
    from timm.models.eva import Eva

    model = Eva(img_size=32, patch_size=4, num_classes=10, embed_dim=64, depth=2, num_heads=4, use_rot_pos_emb=True,
                swiglu_mlp=True, scale_mlp=True, mlp_ratio=4 * 2 / 3, ref_feat_shape=(8, 8))
    return _classifier_step(model.train()), lambda n: (torch.randn(4, 3, 32, 32), torch.randint(10, (4,)))


def _two_images(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    one = torch.rand(2, 3, 192, 192)
    return one, (one + 0.1 * torch.rand_like(one)).clamp(0, 1)


@program("piq", "torchvision", light=True)
def piq_ssim() -> Made:
    import piq

    return (lambda a, b: piq.ssim(a, b, data_range=1.0)), _two_images


@program("piq", "torchvision")
def piq_multi_scale_ssim() -> Made:
    import piq

    return (lambda a, b: piq.multi_scale_ssim(a, b, data_range=1.0)), _two_images


@program("piq", "torchvision")
def piq_fsim() -> Made:
    import piq

    return (lambda a, b: piq.fsim(a, b, data_range=1.0)), _two_images


@program("torch_geometric", light=True)
def geometric_graph_classifier() -> Made:
    from torch_geometric.nn import GCNConv, global_mean_pool

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2, self.out = GCNConv(8, 32), GCNConv(32, 32), nn.Linear(32, 3)

        def forward(self, x: torch.Tensor, edges: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
            x = self.conv1(x, edges).relu()
            return self.out(global_mean_pool(self.conv2(x, edges).relu(), batch))

    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def step(x: torch.Tensor, edges: torch.Tensor, batch: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, edges, batch), labels)
        loss.backward()
        optimizer.step()
        return loss

    def inputs(n: int) -> tuple[torch.Tensor, ...]:
        batch = torch.arange(4).repeat_interleave(10)
        return torch.randn(40, 8), torch.randint(40, (2, 120)), batch, torch.randint(3, (4,))

    return step, inputs
