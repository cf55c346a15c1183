"""`data[i: i + n]` where the graph computes `i`: as long as it says, or what eager makes of it."""

import random

import pytest
import torch

import jitpy
from tests.semantics.harness import jit

DATA = torch.arange(100.0).reshape(50, 2)


def batch(ix):
    return torch.stack([DATA[i:i + 8] for i in ix]).reshape(-1, 8, 2).sum((1, 2)) + torch.ones(len(ix))


def batch_of_numbers(ix):
    return torch.stack([DATA[i:i + 8].view(16) * 2 for i in ix.tolist()])


def shifted(ix):
    x, y = (torch.stack([DATA[i + k:i + k + 8] for i in ix]) for k in (0, 1))
    return (x.view(-1, 4, 4) @ y.view(-1, 4, 4)).sum()


def backwards(ix):
    i = ix[0].item()
    return DATA[i - 4:i].view(8), DATA[i - 2:i + 2].mean(), DATA[i:i + 4].shape


def crop(ix):
    i, j = random.randint(0, 3), random.randint(0, 3)
    return torch.arange(49.0).view(7, 7)[i:i + 4, j:j + 4].reshape(16) * ix.sum()


def written(ix):
    x = torch.zeros(50)
    i = ix[0].item()
    x[i:i + 4] = 1
    x[i + 4:i + 6] += ix[1]
    return x


def open_ended(ix):
    i = ix[0].item()
    return DATA[i:].sum(), DATA[:i].sum(), DATA[i:i].sum(), DATA[i + 3:i].shape, DATA[i:40].sum()


def steps(ix):
    i = ix[0].item()
    return DATA[i:i + 8:2].sum(), DATA[i:i + 8:3].shape


def of_a_view(ix):
    base = torch.arange(64).view(8, 8).t()
    i = ix[0] % 4
    return base[:, i:i + 4].contiguous(), base[i:i + 4, 2:].stride()


CASES = [batch, batch_of_numbers, shifted, backwards, crop, written, open_ended, steps, of_a_view]


@pytest.mark.parametrize("fn", CASES)
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_as_in_eager(fn, backend):
    jitpy.reset()
    compiled = jit(fn, backend=backend)
    # the second ones are clamped, the third ones count from the end, the last are beyond it
    for ix in ([5, 30], [48, 46], [-3, -20], [5, 17], [0, 49], [-48, 2], [60, 3]):
        results = []
        for f in (fn, compiled):
            random.seed(3)
            try:
                results.append(f(torch.tensor(ix)))
            except RuntimeError as error:
                results.append(str(error))
        wanted, found = results
        if isinstance(wanted, torch.Tensor):
            torch.testing.assert_close(wanted, found)
            assert wanted.stride() == found.stride()
        else:
            assert str(wanted) == str(found), ix


@pytest.mark.parametrize("fn", [batch, batch_of_numbers, shifted, backwards, crop, written])
def test_captured_whole(fn):
    jitpy.reset()
    report = jitpy.explain(fn)(torch.tensor([5, 30]))
    assert not report.break_reasons, report


def test_training_on_random_pieces():
    tokens = torch.randint(65, (500,), generator=torch.Generator().manual_seed(1))

    def run(wrap):
        torch.manual_seed(0)
        embed, head = torch.nn.Embedding(65, 8), torch.nn.Linear(8, 65)
        optimizer = torch.optim.SGD([*embed.parameters(), *head.parameters()], 0.1)

        def step():
            ix = torch.randint(len(tokens) - 16, (4,))
            x = torch.stack([tokens[i:i + 16] for i in ix])
            y = torch.stack([tokens[i + 1:i + 1 + 16] for i in ix])
            b, t = x.shape
            scores = head(embed(x).view(b, t, 2, 4).transpose(1, 2).reshape(b, 2, t * 4).view(b, t, 8))
            loss = torch.nn.functional.cross_entropy(scores.view(-1, 65), y.view(-1))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            return loss.item()

        call = wrap(step)
        return [call() for _ in range(4)], torch.rand(1).item(), step

    jitpy.reset()
    wanted, found = run(lambda f: f), run(lambda f: jit(f, fullgraph=True))
    assert wanted[0] == pytest.approx(found[0]) and wanted[1] == found[1]
    assert " 0 kernels" not in repr(jitpy.explain(found[2])())  # sizes are known before the kernels that read pieces


def test_history_of_pieces():
    w = torch.ones(20, requires_grad=True)

    def fn(ix):
        i = ix.item()
        return (w[i:i + 4] * torch.arange(4.0)).sum()

    compiled = jit(fn)
    for i in (3, 7, 18):
        gradients = []
        for f in (fn, compiled):
            if i == 18:
                with pytest.raises(RuntimeError):
                    f(torch.tensor(i))
                continue
            f(torch.tensor(i)).backward()
            gradients.append(w.grad.clone())
            w.grad = None
        if gradients:
            torch.testing.assert_close(*gradients)
