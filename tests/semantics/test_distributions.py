"""`torch.distributions`: samples, densities, entropies, divergences, the validation of arguments included."""

from __future__ import annotations

import pytest
import torch
from torch import distributions as D

import jitpy

MAKERS = {
    "normal": lambda a, p: D.Normal(a, p),
    "independent": lambda a, p: D.Independent(D.Normal(a, p), 1),
    "categorical": lambda a, p: D.Categorical(logits=a),
    "categorical_probs": lambda a, p: D.Categorical(probs=p),
    "bernoulli": lambda a, p: D.Bernoulli(logits=a),
    "one_hot": lambda a, p: D.OneHotCategorical(logits=a),
    "uniform": lambda a, p: D.Uniform(a, a + p),
    "exponential": lambda a, p: D.Exponential(p),
    "laplace": lambda a, p: D.Laplace(a, p),
    "gumbel": lambda a, p: D.Gumbel(a, p),
    "log_normal": lambda a, p: D.LogNormal(a, p),
    "multivariate": lambda a, p: D.MultivariateNormal(a, scale_tril=torch.diag(p)),
    "poisson": lambda a, p: D.Poisson(p),
    "geometric": lambda a, p: D.Geometric(logits=a),
    "half_normal": lambda a, p: D.HalfNormal(p),
    "relaxed": lambda a, p: D.RelaxedBernoulli(torch.tensor(0.5), logits=a),
    "transformed": lambda a, p: D.TransformedDistribution(D.Normal(a, p), [D.transforms.TanhTransform()]),
    "mixture": lambda a, p: D.MixtureSameFamily(D.Categorical(logits=a), D.Normal(a, p)),
}
#: what a distribution of `MAKERS` is asked, besides samples and their density
WITHOUT_ENTROPY = {"poisson", "relaxed", "transformed", "mixture"}


def arguments() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([0.3, -0.7, 1.1]), torch.tensor([0.5, 1.5, 0.25])


@pytest.mark.parametrize("name", MAKERS)
def test_captured(name: str) -> None:
    make = MAKERS[name]

    def use(a: torch.Tensor, p: torch.Tensor) -> tuple[torch.Tensor, ...]:
        distribution = make(a, p)
        sample = distribution.sample()
        found = (sample, distribution.log_prob(sample))
        return found if name in WITHOUT_ENTROPY else (*found, distribution.entropy(), distribution.mean)

    jitted = jitpy.jit(use, fullgraph=True)
    for seed in range(3):
        torch.manual_seed(seed)
        expected = use(*arguments())
        after = torch.rand(1)
        torch.manual_seed(seed)
        found = jitted(*arguments())
        assert torch.equal(after, torch.rand(1))
        torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("wrong", [torch.tensor([0.5, -1.0, 0.25]), torch.tensor([float("nan")] * 3)])
def test_wrong_arguments_raise_as_in_eager(wrong: torch.Tensor) -> None:
    def density(a: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        return D.Normal(a, p, validate_args=True).log_prob(a)  # torch.compile switches the default off

    jitted = jitpy.jit(density)
    a, p = arguments()
    for scale in (p, wrong, p):
        try:
            expected = density(a, scale)
        except ValueError as error:
            with pytest.raises(ValueError) as caught:
                jitted(a, scale)
            assert str(caught.value) == str(error)
        else:
            torch.testing.assert_close(jitted(a, scale), expected)


def test_reparametrised_gradients() -> None:
    """A variational bound: gradients through samples, and a divergence."""

    def bound(mean: torch.Tensor, log_scale: torch.Tensor) -> torch.Tensor:
        posterior = D.Normal(mean, log_scale.exp())
        z = posterior.rsample()
        return D.Normal(z, 1.0).log_prob(torch.zeros(3)).sum() - D.kl_divergence(
            posterior, D.Normal(torch.zeros(3), torch.ones(3))).sum()

    jitted = jitpy.jit(bound)
    for seed in range(3):
        gradients = []
        for fn in (bound, jitted):
            torch.manual_seed(seed)
            inputs = [t.clone().requires_grad_() for t in arguments()]
            fn(*inputs).backward()
            gradients.append([t.grad for t in inputs])
        torch.testing.assert_close(*gradients)
    assert jitpy.explain(bound)(*arguments()).graph_break_count == 0
