"""Generative models: adversaries, autoencoders, diffusion, generation of text."""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import nn

from .program import program


@program
def gan(jit):
    G = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 4))
    # No biases: while no hinge is closed their gradients are 0 but for rounding, which Adam's steps blow up.
    D = nn.Sequential(nn.Linear(4, 16, bias=False), nn.LeakyReLU(0.2), nn.Linear(16, 1, bias=False))
    og, od = torch.optim.Adam(G.parameters(), 1e-2, betas=(0.5, 0.9)), torch.optim.Adam(D.parameters(), 1e-2)

    def step(real):
        z = torch.randn(real.size(0), 8)
        fake = G(z)
        ld = F.relu(1 - D(real)).mean() + F.relu(1 + D(fake.detach())).mean()
        od.zero_grad()
        ld.backward()
        od.step()
        lg = -D(fake).mean()
        og.zero_grad()
        lg.backward()
        og.step()
        return ld.item(), lg.item()

    step = jit(step)
    return [step(torch.randn(n, 4)) for n in (6, 6, 5, 7)], list(G.parameters()) + list(D.parameters())


@program
def wgan_gp(jit):
    D = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 1))
    opt = torch.optim.Adam(D.parameters(), 1e-2)

    def step(real, fake):
        eps = torch.rand(real.size(0), 1)
        x = (eps * real + (1 - eps) * fake).requires_grad_(True)
        d = D(x)
        (g,) = torch.autograd.grad(
            d, x, grad_outputs=torch.ones_like(d), create_graph=True, retain_graph=True
        )
        gp = ((g.view(g.size(0), -1).norm(2, dim=1) - 1) ** 2).mean()
        loss = D(fake).mean() - D(real).mean() + 10 * gp
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item(), gp.item()

    step = jit(step)
    return [step(torch.randn(5, 4), torch.randn(5, 4)) for _ in range(4)], list(D.parameters())


@program
def vae(jit):
    class VAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Linear(10, 8)
            self.mu = nn.Linear(8, 3)
            self.lv = nn.Linear(8, 3)
            self.dec = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 10), nn.Sigmoid())

        def encode(self, x):
            h = F.relu(self.enc(x))
            return self.mu(h), self.lv(h)

        def reparameterize(self, mu, lv):
            if self.training:
                return mu + torch.randn_like(mu) * torch.exp(0.5 * lv)
            return mu

        def forward(self, x):
            mu, lv = self.encode(x)
            z = self.reparameterize(mu, lv)
            return self.dec(z), mu, lv

    m = VAE()
    f = jit(m)
    opt = torch.optim.RMSprop(m.parameters(), 1e-2)
    out = []
    for i in range(5):
        if i == 3:
            m.eval()
        x = torch.rand(4 + i % 2, 10)
        r, mu, lv = f(x)
        loss = F.binary_cross_entropy(r, x, reduction="sum") - 0.5 * torch.sum(1 + lv - mu.pow(2) - lv.exp())
        opt.zero_grad()
        loss.backward()
        opt.step()
        out.append((loss.item(), mu.detach()))
    return out, list(m.parameters())


@program
def diffusion(jit):
    betas = torch.linspace(1e-4, 0.02, 20)
    alphas = torch.cumprod(1 - betas, 0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4 + 8, 16)
            self.b = nn.Linear(16, 4)

        def forward(self, x, t):
            half = 4
            fr = torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float32) / half)
            args = t[:, None].float() * fr[None]
            emb = torch.cat([torch.cos(args), torch.sin(args)], -1)
            return self.b(F.silu(self.a(torch.cat([x, emb], -1))))

    m = Net()
    ema = {k: v.clone() for k, v in m.state_dict().items()}
    opt = torch.optim.AdamW(m.parameters(), 1e-2)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)

    def train(x):
        t = torch.randint(0, 20, (x.shape[0],))
        noise = torch.randn_like(x)
        a = alphas[t][:, None]
        loss = F.mse_loss(m(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()
        with torch.no_grad():
            for k, v in m.state_dict().items():
                ema[k].mul_(0.9).add_(v, alpha=0.1)
        return loss.item()

    train = jit(train)

    def sample(n):
        x = torch.randn(n, 4)
        for i in reversed(range(20)):
            t = torch.full((n,), i)
            eps = m(x, t)
            a, b = alphas[i], betas[i]
            x = (x - b / (1 - a).sqrt() * eps) / (1 - b).sqrt()
            if i > 0:
                x = x + b.sqrt() * torch.randn_like(x)
        return x

    sample = jit(torch.no_grad()(sample))
    out = []
    for i in range(6):
        out.append(train(torch.randn(5, 4)))
        sched.step()
    return out + [sample(3), sample(2)], list(m.parameters()) + list(ema.values())


@program
def generate_kv_cache(jit):
    torch.manual_seed(0)

    class Attn(nn.Module):
        def __init__(self, d, h):
            super().__init__()
            self.h = h
            self.qkv = nn.Linear(d, 3 * d)
            self.o = nn.Linear(d, d)

        def forward(self, x, cache=None):
            B, T, C = x.shape
            q, k, v = self.qkv(x).split(C, dim=2)
            q, k, v = (t.view(B, T, self.h, C // self.h).transpose(1, 2) for t in (q, k, v))
            if cache is not None:
                if "k" in cache:
                    k = torch.cat([cache["k"], k], 2)
                    v = torch.cat([cache["v"], v], 2)
                cache["k"], cache["v"] = k, v
            mask = torch.ones(T, k.size(2), dtype=torch.bool).tril(k.size(2) - T)
            a = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
            a = a.masked_fill(~mask, float("-inf")).softmax(-1)
            return self.o((a @ v).transpose(1, 2).reshape(B, T, C))

    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Embedding(20, 16)
            self.blocks = nn.ModuleList(Attn(16, 2) for _ in range(2))
            self.head = nn.Linear(16, 20)

        def forward(self, idx, caches=None):
            x = self.e(idx)
            for i, b in enumerate(self.blocks):
                x = x + b(x, caches[i] if caches is not None else None)
            return self.head(x[:, -1:])

    m = LM().eval()
    f = jit(m)

    @torch.no_grad()
    def generate(idx, n):
        caches = [{} for _ in m.blocks]
        out = idx
        for _ in range(n):
            logits = f(idx, caches)
            logits = logits[:, -1] / 0.8
            v, _ = torch.topk(logits, 5)
            logits[logits < v[:, [-1]]] = -float("inf")
            idx = torch.multinomial(F.softmax(logits, -1), 1)
            out = torch.cat([out, idx], 1)
            if (idx == 3).all():
                break
        return out

    torch.manual_seed(1)
    return [generate(torch.tensor([[1, 2, 3], [4, 5, 6]]), 8), generate(torch.tensor([[1, 2]]), 5)], []


@program
def beam_search(jit):
    W = torch.randn(10, 10)

    def search(start, width, steps):
        beams = [([start], 0.0)]
        for _ in range(steps):
            cand = []
            for seq, score in beams:
                lp = F.log_softmax(W[seq[-1]], -1)
                top = lp.topk(width)
                for s, i in zip(top.values.tolist(), top.indices.tolist()):
                    cand.append((seq + [i], score + s))
            beams = sorted(cand, key=lambda b: -b[1])[:width]
        return beams

    f = jit(search)
    return [f(0, 3, 4), f(1, 2, 3), f(2, 3, 4)], []


@program
def lstm_lm(jit):
    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Embedding(12, 6)
            self.r = nn.LSTM(6, 8, 2, dropout=0.2, batch_first=True)
            self.d = nn.Linear(8, 12)

        def forward(self, x, h=None):
            y, h = self.r(self.e(x), h)
            return self.d(y), h

    m = LM()
    f = jit(m)
    opt = torch.optim.Adagrad(m.parameters(), 0.1)
    h = None
    out = []
    for i in range(5):
        x = torch.randint(0, 12, (2, 7))
        if h is not None:
            h = tuple(t.detach() for t in h)
        y, h = f(x[:, :-1], h)
        loss = F.cross_entropy(y.reshape(-1, 12), x[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(m.parameters(), 0.5)
        opt.step()
        out.append(loss.item())
    return out, list(m.parameters())


@program
def nerf(jit):
    m = nn.Sequential(nn.Linear(3 + 3 * 2 * 4, 16), nn.ReLU(), nn.Linear(16, 4))
    opt = torch.optim.Adam(m.parameters(), 5e-3)

    def enc(x, L=4):
        return torch.cat(
            [x] + [fn(2.0**i * math.pi * x) for i in range(L) for fn in (torch.sin, torch.cos)], -1
        )

    def render(ro, rd, near=2.0, far=6.0, N=8, perturb=True):
        z = torch.linspace(near, far, N).expand(ro.shape[0], N)
        if perturb:
            mid = 0.5 * (z[..., 1:] + z[..., :-1])
            lo, up = torch.cat([z[..., :1], mid], -1), torch.cat([mid, z[..., -1:]], -1)
            z = lo + (up - lo) * torch.rand_like(z)
        pts = ro[:, None] + rd[:, None] * z[..., None]
        raw = m(enc(pts))
        rgb, sig = torch.sigmoid(raw[..., :3]), F.relu(raw[..., 3])
        d = torch.cat([z[..., 1:] - z[..., :-1], torch.full_like(z[..., :1], 1e10)], -1)
        al = 1 - torch.exp(-sig * d)
        w = al * torch.cumprod(torch.cat([torch.ones_like(al[:, :1]), 1 - al + 1e-10], -1), -1)[:, :-1]
        return (w[..., None] * rgb).sum(1), w

    def step(ro, rd, t):
        rgb, w = render(ro, rd)
        loss = ((rgb - t) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return -10 * math.log10(loss.item())

    step = jit(step)
    view = jit(torch.no_grad()(functools.partial(render, perturb=False)))
    return [
        step(torch.randn(6, 3), F.normalize(torch.randn(6, 3), dim=-1), torch.rand(6, 3)) for _ in range(3)
    ] + [view(torch.zeros(2, 3), torch.ones(2, 3))], list(m.parameters())
