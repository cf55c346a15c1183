"""Fields: graphs, sequences of tags, sound, operators, detection, trees, images."""

from __future__ import annotations

import collections
import dataclasses
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from .program import program


@program
def gnn(jit):
    class Conv(nn.Module):
        def __init__(self, i, o):
            super().__init__()
            self.l = nn.Linear(i, o, bias=False)
            self.b = nn.Parameter(torch.zeros(o))

        def forward(self, x, ei):
            row, col = ei
            n = x.size(0)
            deg = torch.zeros(n).scatter_add_(0, col, torch.ones(col.size(0)))
            dis = deg.pow(-0.5)
            dis[dis == float("inf")] = 0
            norm = dis[row] * dis[col]
            h = self.l(x)
            out = torch.zeros_like(h)
            out.index_add_(0, col, norm.unsqueeze(-1) * h[row])
            return out + self.b

    c1, c2 = Conv(5, 8), Conv(8, 2)
    ps = [*c1.parameters(), *c2.parameters()]
    opt = torch.optim.Adam(ps, 0.01, weight_decay=5e-4)

    def step(x, ei, y, mask):
        opt.zero_grad(set_to_none=True)
        h = F.dropout(F.relu(c1(x, ei)), 0.3, training=True)
        o = F.log_softmax(c2(h, ei), 1)
        loss = F.nll_loss(o[mask], y[mask])
        loss.backward()
        opt.step()
        acc = (o.argmax(1)[mask] == y[mask]).float().mean()
        return loss.detach(), acc

    step = jit(step)
    res = []
    for n, e in ((6, 12), (6, 14), (8, 20), (7, 9)):
        res.append(
            step(
                torch.randn(n, 5),
                torch.randint(0, n, (2, e)),
                torch.randint(0, 2, (n,)),
                torch.arange(n) % 3 != 1,
            )
        )
    return res, ps


@program
def crf(jit):
    trans = nn.Parameter(torch.randn(4, 4))
    opt = torch.optim.SGD([trans], 0.1)

    def nll(em, tags, lengths):
        alpha = em[:, 0]
        score = em[:, 0].gather(1, tags[:, :1]).squeeze(1)
        for t in range(1, em.size(1)):
            nxt = torch.logsumexp(alpha.unsqueeze(2) + trans.unsqueeze(0) + em[:, t].unsqueeze(1), 1)
            on = t < lengths
            alpha = torch.where(on.unsqueeze(1), nxt, alpha)
            score = score + torch.where(
                on,
                em[:, t].gather(1, tags[:, t : t + 1]).squeeze(1) + trans[tags[:, t - 1], tags[:, t]],
                torch.zeros(()),
            )
        return (torch.logsumexp(alpha, 1) - score).mean()

    def viterbi(em):
        score, back = em[0], []
        for e in em[1:]:
            s, i = (score.unsqueeze(1) + trans + e).max(0)
            score = s
            back.append(i)
        best = [int(score.argmax())]
        for b in reversed(back):
            best.append(b[best[-1]].item())
        return best[::-1]

    nll, viterbi = jit(nll), jit(torch.no_grad()(viterbi))
    out = []
    for L in (4, 5, 6):
        loss = nll(torch.randn(3, L, 4), torch.randint(0, 4, (3, L)), torch.tensor([L, L - 1, 2]))
        opt.zero_grad()
        loss.backward()
        opt.step()
        out += [loss.item(), viterbi(torch.randn(L, 4))]
    return out, [trans]


@program
def stft_loss(jit):
    f = nn.Conv1d(1, 1, 5, padding=2)
    opt = torch.optim.Adam(f.parameters(), 1e-2)

    def step(x):
        y = f(x).squeeze(1)
        tot = 0
        for n in (16, 32):
            w = torch.hann_window(n)
            a = torch.stft(y, n, n // 4, window=w, return_complex=True).abs()
            b = torch.stft(x.squeeze(1), n, n // 4, window=w, return_complex=True).abs()
            tot = (
                tot + torch.norm(a - b) / torch.norm(b) + F.l1_loss(torch.log(a + 1e-5), torch.log(b + 1e-5))
            )
        opt.zero_grad()
        tot.backward()
        opt.step()
        return tot.item()

    step = jit(step)
    return [step(torch.randn(2, 1, 128)) for _ in range(3)], list(f.parameters())


@program
def fno(jit):
    class Spectral(nn.Module):
        def __init__(self, c, m):
            super().__init__()
            self.w = nn.Parameter(torch.randn(c, c, m, dtype=torch.cfloat) / c)
            self.m = m

        def forward(self, x):
            X = torch.fft.rfft(x)
            out = torch.zeros(x.size(0), x.size(1), x.size(-1) // 2 + 1, dtype=torch.cfloat)
            out[:, :, : self.m] = torch.einsum("bix,iox->box", X[:, :, : self.m], self.w)
            return torch.fft.irfft(out, n=x.size(-1))

    s, c = Spectral(3, 4), nn.Conv1d(3, 3, 1)
    ps = [*s.parameters(), *c.parameters()]
    opt = torch.optim.SGD(ps, 0.01)

    def step(x):
        y = F.gelu(s(x) + c(x))
        l = y.square().mean()
        opt.zero_grad()
        l.backward()
        opt.step()
        return l.item()

    step = jit(step)
    return [step(torch.randn(2, 3, n)) for n in (16, 16, 24)], ps


@program
def kmeans(jit):
    def km(x, k, iters=10, tol=1e-4):
        c = x[torch.randperm(x.size(0))[:k]].clone()
        for it in range(iters):
            d = torch.cdist(x, c)
            a = d.argmin(1)
            new = torch.stack([x[a == j].mean(0) if (a == j).any() else c[j] for j in range(k)])
            shift = (new - c).norm()
            c = new
            if shift < tol:
                break
        return c, a, it

    f = jit(km)
    return [f(torch.randn(20, 2), 3), f(torch.randn(20, 2), 3), f(torch.randn(15, 2), 2)], []


@program
def detection(jit):
    def iou(a, b):
        area = lambda t: (t[:, 2] - t[:, 0]) * (t[:, 3] - t[:, 1])
        lt = torch.max(a[:, None, :2], b[:, :2])
        rb = torch.min(a[:, None, 2:], b[:, 2:])
        wh = (rb - lt).clamp(min=0)
        inter = wh[..., 0] * wh[..., 1]
        return inter / (area(a)[:, None] + area(b) - inter)

    def nms(boxes, scores, thr):
        keep, order = [], scores.argsort(descending=True)
        while order.numel() > 0:
            i = order[0]
            keep.append(i.item())
            if order.numel() == 1:
                break
            o = iou(boxes[i : i + 1], boxes[order[1:]])[0]
            order = order[1:][o <= thr]
        return keep

    f = jit(nms)

    def mk(n):
        xy = torch.rand(n, 2) * 10
        return torch.cat([xy, xy + torch.rand(n, 2) * 5], 1), torch.rand(n)

    return [f(*mk(n), 0.3) for n in (6, 8, 7)], []


@program
def ode(jit):
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
    opt = torch.optim.Adam(net.parameters(), 1e-2)

    def rk4(f, y, t0, t1, n):
        h = (t1 - t0) / n
        t = t0
        for _ in range(n):
            k1 = f(t, y)
            k2 = f(t + h / 2, y + h / 2 * k1)
            k3 = f(t + h / 2, y + h / 2 * k2)
            k4 = f(t + h, y + h * k3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            t += h
        return y

    def step(y0, y1, T):
        p = rk4(lambda t, y: net(y) * math.cos(t), y0, 0.0, T, 4)
        l = F.mse_loss(p, y1)
        opt.zero_grad()
        l.backward()
        opt.step()
        return l.item()

    step = jit(step)
    return [step(torch.randn(3, 2), torch.randn(3, 2), T) for T in (1.0, 1.5, 2.0, 2.5)], list(
        net.parameters()
    )


@program
def config_objects(jit):
    @dataclasses.dataclass
    class Config:
        d: int = 4
        layers: int = 2
        act: str = "gelu"
        drop: float = 0.1
        stats: dict = dataclasses.field(default_factory=dict)

    @dataclasses.dataclass
    class Output:
        loss: object = None
        logits: object = None
        hidden: tuple = ()

    ACT = {"gelu": F.gelu, "relu": F.relu, "silu": F.silu}

    class M(nn.Module):
        def __init__(self, cfg):
            super().__init__()
            self.cfg = cfg
            self.ls = nn.ModuleList(nn.Linear(cfg.d, cfg.d) for _ in range(cfg.layers))
            self.ns = nn.ModuleDict({f"n{i}": nn.LayerNorm(cfg.d) for i in range(cfg.layers)})

        def forward(self, x, labels=None, *, output_hidden=False, **kw):
            hid = []
            for i, l in enumerate(self.ls):
                x = x + F.dropout(ACT[self.cfg.act](l(self.ns[f"n{i}"](x))), self.cfg.drop, self.training)
                if output_hidden:
                    hid.append(x)
                self.cfg.stats[f"calls{i}"] = self.cfg.stats.get(f"calls{i}", 0) + 1
            loss = None if labels is None else F.mse_loss(x, labels)
            return Output(loss=loss, logits=x, hidden=tuple(hid))

    c = Config()
    m = M(c)
    f = jit(m)
    out = []
    for i in range(5):
        if i == 2:
            c.act = "relu"
        if i == 3:
            c.drop = 0.5
        o = f(torch.randn(2, 4), torch.randn(2, 4) if i % 2 else None, output_hidden=i > 2)
        if o.loss is not None:
            o.loss.backward()
        out.append((o.loss, o.logits, o.hidden, dict(c.stats)))
    return out, [p.grad for p in m.parameters()]


@program
def yolo_targets(jit):
    def build(targets, anchors, n):
        B = int(targets[:, 0].max().item()) + 1
        out = torch.zeros(B, len(anchors), n, n, 5)
        obj = 0
        for t in targets:
            b, x, y, w, h = t.tolist()
            best, bi = 0, -1
            for i, (aw, ah) in enumerate(anchors):
                r = min(w, aw) * min(h, ah) / max(w, aw) / max(h, ah)
                if r > best:
                    best, bi = r, i
            gx, gy = min(int(x * n), n - 1), min(int(y * n), n - 1)
            out[int(b), bi, gy, gx] = torch.tensor([x * n - gx, y * n - gy, w, h, 1.0])
            obj += 1
        return out, obj

    f = jit(build)
    mk = lambda k: torch.cat([torch.randint(0, 2, (k, 1)).float(), torch.rand(k, 4)], 1)
    return [f(mk(3), [(0.2, 0.3), (0.5, 0.6)], 4), f(mk(4), [(0.2, 0.3), (0.5, 0.6)], 4)], []


@program
def numpy_pipeline(jit):
    def aug(img, boxes, rng_flip):
        img = img.astype(np.float32) / 255.0
        if rng_flip:
            img = np.ascontiguousarray(img[:, ::-1])
            w = img.shape[1]
            boxes = boxes.copy()
            boxes[:, [0, 2]] = w - boxes[:, [2, 0]]
        mean, std = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)
        img = (img - mean) / std
        t = torch.from_numpy(img.transpose(2, 0, 1)).unsqueeze(0)
        t = F.interpolate(t, size=(8, 8), mode="bilinear", align_corners=False)
        return t, torch.as_tensor(boxes), np.clip(boxes, 0, 5).sum()

    f = jit(aug)
    r = np.random.RandomState(0)
    return [
        f(r.randint(0, 255, (6, 6, 3)).astype(np.uint8), r.rand(2, 4).astype(np.float32) * 6, fl)
        for fl in (True, False, True)
    ], []


@program
def tree_recursion(jit):
    Node = collections.namedtuple("Node", "value left right")
    W = nn.Linear(4, 2, bias=False)
    E = nn.Embedding(5, 2)

    def enc(n):
        if n is None:
            return torch.zeros(2)
        return torch.tanh(W(torch.cat([enc(n.left), enc(n.right)]))) + E(torch.tensor(n.value))

    f = jit(enc)
    a = Node(1, Node(2, None, None), Node(3, Node(4, None, None), None))
    b = Node(0, a, None)
    out = []
    for t in (a, b, a):
        y = f(t)
        y.sum().backward()
        out.append(y.detach())
    return out, [W.weight.grad, E.weight.grad]
