"""Ways to learn: meta-learning, policies, adapters, experts, contrast, privacy, own optimizers."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from .program import program


@program
def maml(jit):
    m = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    opt = torch.optim.SGD(m.parameters(), 0.1)

    def inner(params, x, y):
        for _ in range(2):
            loss = F.mse_loss(torch.func.functional_call(m, params, (x,)), y)
            grads = torch.autograd.grad(loss, list(params.values()), create_graph=True)
            params = {k: p - 0.05 * g for (k, p), g in zip(params.items(), grads)}
        return params

    def step(tasks):
        opt.zero_grad()
        total = 0.0
        for xs, ys, xq, yq in tasks:
            p = inner(dict(m.named_parameters()), xs, ys)
            total = total + F.mse_loss(torch.func.functional_call(m, p, (xq,)), yq)
        total.backward()
        opt.step()
        return total.detach()

    step = jit(step)
    t = lambda: tuple(torch.randn(5, k) for k in (3, 1, 3, 1))
    return [step([t(), t()]) for _ in range(4)], list(m.parameters())


@program
def policy_gradient(jit):
    pi = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    vf = nn.Linear(4, 1)
    opt = torch.optim.Adam([*pi.parameters(), *vf.parameters()], 1e-2)
    rng = np.random.RandomState(0)

    def act(obs):
        d = torch.distributions.Categorical(logits=pi(torch.as_tensor(obs, dtype=torch.float32)))
        a = d.sample()
        return a.item(), d.log_prob(a)

    act = jit(act)

    def gae(rew, val, gamma=0.99, lam=0.95):
        adv, last = [], 0.0
        for r, v, nv in zip(reversed(rew), reversed(val[:-1]), reversed(val[1:])):
            delta = r + gamma * nv - v
            last = delta + gamma * lam * last
            adv.insert(0, last)
        return adv

    def update(obs, acts, adv, old):
        for _ in range(2):
            d = torch.distributions.Categorical(logits=pi(obs))
            lp = d.log_prob(acts)
            ratio = torch.exp(lp - old)
            clip = torch.clamp(ratio, 0.8, 1.2) * adv
            loss = (
                -torch.min(ratio * adv, clip).mean()
                + 0.5 * (vf(obs).squeeze(-1) - adv).pow(2).mean()
                - 0.01 * d.entropy().mean()
            )
            kl = (old - lp).mean().item()
            opt.zero_grad()
            loss.backward()
            opt.step()
            if kl > 1.5:
                break
        return loss.item(), kl

    update = jit(update)
    out = []
    for ep in range(3):
        obs, acts, lps, rews = [], [], [], []
        for t in range(6):
            o = rng.randn(4)
            a, lp = act(o)
            obs.append(o)
            acts.append(a)
            lps.append(lp)
            rews.append(float(a) + 0.1 * t)
        ob = torch.tensor(np.stack(obs), dtype=torch.float32)
        with torch.no_grad():
            v = vf(ob).squeeze(-1).tolist() + [0.0]
        adv = torch.tensor(gae(rews, v))
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        out.append((acts, update(ob, torch.tensor(acts), adv, torch.stack(lps).detach())))
    return out, list(pi.parameters())


@program
def lora(jit):
    class LoRA(nn.Module):
        def __init__(self, base, r=2, alpha=4):
            super().__init__()
            self.base = base
            base.weight.requires_grad_(False)
            base.bias.requires_grad_(False)
            self.A = nn.Parameter(torch.randn(r, base.in_features) * 0.1)
            self.B = nn.Parameter(torch.zeros(base.out_features, r))
            self.scale = alpha / r
            self.merged = False

        def merge(self):
            self.base.weight.data += self.B @ self.A * self.scale
            self.merged = True

        def forward(self, x):
            y = self.base(x)
            return y if self.merged else y + (x @ self.A.T @ self.B.T) * self.scale

    m = nn.Sequential(LoRA(nn.Linear(4, 8)), nn.GELU(), LoRA(nn.Linear(8, 2)))
    f = jit(m)
    opt = torch.optim.SGD([p for p in m.parameters() if p.requires_grad], 0.5, momentum=0.9)
    out = []
    for i in range(4):
        x = torch.randn(3, 4)
        loss = f(x).pow(2).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        out.append(loss.item())
    for l in (m[0], m[2]):
        l.merge()
    out.append(f(torch.randn(3, 4)).detach())
    m.requires_grad_(False)
    out.append(f(torch.randn(3, 4)))
    return out, list(m.parameters())


@program
def moe(jit):
    class MoE(nn.Module):
        def __init__(self, d, n, k):
            super().__init__()
            self.gate = nn.Linear(d, n)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d)) for _ in range(n)
            )
            self.k = k
            self.register_buffer("load", torch.zeros(n))

        def forward(self, x):
            flat = x.view(-1, x.shape[-1])
            w, idx = self.gate(flat).softmax(-1).topk(self.k)
            w = w / w.sum(-1, keepdim=True)
            out = torch.zeros_like(flat)
            for e, expert in enumerate(self.experts):
                tok, slot = torch.where(idx == e)
                if tok.numel() == 0:
                    continue
                out[tok] += expert(flat[tok]) * w[tok, slot, None]
                self.load[e] += tok.numel()
            return out.view_as(x)

    m = MoE(4, 4, 2)
    f = jit(m)
    opt = torch.optim.AdamW(m.parameters(), 1e-2)
    out = []
    for i in range(4):
        y = f(torch.randn(2, 3 + i % 2, 4))
        loss = y.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        out.append(loss.item())
    return out, list(m.parameters()) + [m.load]


@program
def per_sample_grads(jit):
    m = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    params = {k: v.detach() for k, v in m.named_parameters()}

    def loss(p, x, y):
        return F.cross_entropy(torch.func.functional_call(m, p, (x[None],)), y[None])

    def dp(p, x, y, clip):
        g = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(p, x, y)
        norm = torch.stack([v.flatten(1).norm(dim=1) for v in g.values()]).norm(dim=0)
        s = (clip / (norm + 1e-6)).clamp(max=1.0)
        return {k: (v * s.view(-1, *[1] * (v.dim() - 1))).mean(0) for k, v in g.items()}

    f = jit(dp)
    return [
        f(params, torch.randn(n, 3), torch.randint(0, 2, (n,)), c) for n, c in ((4, 1.0), (5, 0.5), (6, 0.7))
    ], []


@program
def contrastive(jit):
    class Queue:
        def __init__(self, n, d):
            self.q = F.normalize(torch.randn(n, d), dim=1)
            self.p = 0

        def push(self, k):
            n = k.size(0)
            self.q[self.p : self.p + n] = k
            self.p = (self.p + n) % self.q.size(0)

    enc, mom = nn.Linear(6, 4), nn.Linear(6, 4)
    mom.load_state_dict(enc.state_dict())
    mom.requires_grad_(False)
    Q = Queue(12, 4)
    opt = torch.optim.SGD(enc.parameters(), 0.1, momentum=0.9, nesterov=True)

    def step(a, b):
        q = F.normalize(enc(a), dim=1)
        with torch.no_grad():
            for p, t in zip(enc.parameters(), mom.parameters()):
                t.data.mul_(0.99).add_(p.data, alpha=0.01)
            k = F.normalize(mom(b), dim=1)
        lpos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        lneg = torch.einsum("nc,ck->nk", q, Q.q.clone().detach().T)
        logits = torch.cat([lpos, lneg], 1) / 0.07
        loss = F.cross_entropy(logits, torch.zeros(logits.shape[0], dtype=torch.long))
        opt.zero_grad()
        loss.backward()
        opt.step()
        Q.push(k)
        return loss.item()

    step = jit(step)
    return [step(torch.randn(4, 6), torch.randn(4, 6)) for _ in range(5)] + [Q.q, Q.p], list(
        enc.parameters()
    ) + list(mom.parameters())


@program
def custom_optimizer(jit):
    class Lion(torch.optim.Optimizer):
        def __init__(self, params, lr=1e-2, betas=(0.9, 0.99), wd=0.01):
            super().__init__(params, dict(lr=lr, betas=betas, wd=wd))

        @torch.no_grad()
        def step(self, closure=None):
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    state = self.state[p]
                    if len(state) == 0:
                        state["m"] = torch.zeros_like(p)
                        state["step"] = 0
                    state["step"] += 1
                    m, (b1, b2) = state["m"], group["betas"]
                    p.mul_(1 - group["lr"] * group["wd"])
                    p.add_(torch.sign(m * b1 + p.grad * (1 - b1)), alpha=-group["lr"])
                    m.mul_(b2).add_(p.grad, alpha=1 - b2)
            return loss

    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    opt = Lion(net.parameters())
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=8)

    def step(x, y):
        def closure():
            opt.zero_grad()
            l = F.huber_loss(net(x), y)
            l.backward()
            return l

        return opt.step(closure)

    step = jit(step)
    out = []
    for _ in range(6):
        out.append(step(torch.randn(4, 3), torch.randn(4, 1)).item())
        sched.step()
    return out + [[s["step"] for s in opt.state.values()]], list(net.parameters())


@program
def spectral_and_weight_norm(jit):
    m = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 6)),
        nn.ReLU(),
        nn.utils.parametrizations.weight_norm(nn.Linear(6, 2)),
    )
    f = jit(m)
    opt = torch.optim.SGD(m.parameters(), 0.1)
    out = []
    for i in range(4):
        l = f(torch.randn(3, 4)).square().sum()
        opt.zero_grad()
        l.backward()
        opt.step()
        out.append(l.item())
    m.eval()
    out.append(f(torch.ones(2, 4)).detach())
    return out, list(m.parameters())


@program
def accumulate_amp(jit):
    m = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )
    opt = torch.optim.AdamW(m.parameters(), 1e-2)
    seen = []

    def micro(x, y, k):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(m(x), y, label_smoothing=0.1) / k
        loss.backward()
        return loss.detach()

    micro = jit(micro)
    for i in range(4):
        tot = 0
        for j in range(2):
            tot = tot + micro(torch.randn(4, 3, 8, 8), torch.randint(0, 3, (4,)), 2)
        n = nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        seen.append((float(tot), float(n)))
    return seen, list(m.parameters()) + list(m.buffers())


@program
def activation_recorder(jit):
    acts = {}
    m = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

    def hook(name):
        def h(mod, inp, out):
            acts.setdefault(name, []).append(out.detach().mean().item())

        return h

    hs = [l.register_forward_hook(hook(n)) for n, l in m.named_children()]
    f = jit(m)
    out = [f(torch.ones(2, 3) * i) for i in range(3)]
    hs[0].remove()
    out.append(f(torch.ones(2, 3)))
    m[0].register_forward_pre_hook(lambda mod, a: (a[0] * 2,))
    out.append(f(torch.ones(2, 3)))
    sal = {}

    def bh(mod, gi, go):
        sal["g"] = go[0].clone()

    m[1].register_full_backward_hook(bh)
    y = f(torch.ones(2, 3))
    y.sum().backward()
    out.append(sal["g"])
    return out + [acts], [p.grad for p in m.parameters()]
