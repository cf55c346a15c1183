"""Sequences: decoders, filters, taggers, language models."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import re
from typing import NamedTuple, Optional

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from .program import program


@program
def ctc_greedy_and_prefix_decoder(jit):
    class Hypothesis(NamedTuple):
        text: tuple
        blank: float
        nonblank: float

        @property
        def total(self):
            return np.logaddexp(self.blank, self.nonblank)

    class Decoder:
        def __init__(self, alphabet, blank=0):
            self.alphabet, self.blank = alphabet, blank
            self.seen = collections.Counter()

        def greedy(self, logits, lengths):
            best = logits.argmax(-1)
            texts = []
            for row, n in zip(best, lengths):
                collapsed = torch.unique_consecutive(row[:n])
                kept = collapsed[collapsed != self.blank]
                text = "".join(self.alphabet[i] for i in kept.tolist())
                self.seen[text] += 1
                texts.append(text)
            return texts

        def prefix(self, logp, width=3):
            beams = {(): (0.0, -math.inf)}
            for frame in logp.tolist():
                nxt = collections.defaultdict(lambda: (-math.inf, -math.inf))
                for text, (pb, pnb) in beams.items():
                    for symbol, p in enumerate(frame):
                        nb, nnb = nxt[text]
                        if symbol == self.blank:
                            nxt[text] = (np.logaddexp(nb, np.logaddexp(pb, pnb) + p), nnb)
                            continue
                        grown = text + (symbol,)
                        gb, gnb = nxt[grown]
                        if text and text[-1] == symbol:
                            nxt[grown] = (gb, np.logaddexp(gnb, pb + p))
                            nb, nnb = nxt[text]
                            nxt[text] = (nb, np.logaddexp(nnb, pnb + p))
                        else:
                            nxt[grown] = (gb, np.logaddexp(gnb, np.logaddexp(pb, pnb) + p))
                beams = dict(sorted(nxt.items(), key=lambda kv: np.logaddexp(*kv[1]), reverse=True)[:width])
            return Hypothesis(*max(((t, *p) for t, p in beams.items()), key=lambda h: np.logaddexp(h[1], h[2])))

    dec = Decoder("-abc")
    greedy, prefix = jit(dec.greedy), jit(dec.prefix)
    out = []
    for t in (6, 7, 5):
        logits = torch.randn(2, t, 4)
        out.append(greedy(logits, [t, t - 1]))
        h = prefix(logits[0].log_softmax(-1))
        out += [h.text, float(h.total)]
    return out, [dict(dec.seen)]


@program
def kalman_filter(jit):
    class KalmanFilter(nn.Module):
        def __init__(self, dim_x, dim_z, dt=0.1):
            super().__init__()
            eye = torch.eye(dim_x)
            f = eye.clone()
            for i in range(dim_x - dim_z):
                f[i, i + dim_z] = dt
            self.register_buffer("F", f)
            self.register_buffer("H", eye[:dim_z])
            self.log_q = nn.Parameter(torch.full((dim_x,), -2.0))
            self.log_r = nn.Parameter(torch.full((dim_z,), -1.0))
            self.reset()

        def reset(self, batch=1):
            n = self.F.shape[0]
            self.x, self.P = torch.zeros(batch, n, 1), torch.eye(n).expand(batch, n, n).clone()
            self.nll = 0.0

        def predict(self):
            self.x = self.F @ self.x
            self.P = self.F @ self.P @ self.F.mT + self.log_q.exp().diag()

        def update(self, z):
            y = z.unsqueeze(-1) - self.H @ self.x
            s = self.H @ self.P @ self.H.mT + self.log_r.exp().diag()
            chol = torch.linalg.cholesky(s)
            k = torch.cholesky_solve(self.H @ self.P, chol).mT
            self.x = self.x + k @ y
            i_kh = torch.eye(self.P.shape[-1]) - k @ self.H
            self.P = i_kh @ self.P @ i_kh.mT + k @ self.log_r.exp().diag() @ k.mT
            maha = (y.mT @ torch.cholesky_solve(y, chol)).squeeze()
            self.nll = self.nll + 0.5 * (maha + 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1))
            return self.x.squeeze(-1)

        def forward(self, zs, missing=()):
            self.reset(zs.shape[0])
            states = []
            for t, z in enumerate(zs.unbind(1)):
                self.predict()
                states.append(self.update(z) if t not in missing else self.x.squeeze(-1))
            return torch.stack(states, 1), self.nll.mean()

    kf = KalmanFilter(4, 2)
    run = jit(kf)
    opt = torch.optim.Adam(kf.parameters(), lr=0.05)
    out = []
    for i, (t, missing) in enumerate([(5, ()), (6, {2}), (5, {1, 3}), (7, ())]):
        opt.zero_grad()
        states, loss = run(torch.randn(3, t, 2).cumsum(1), missing)
        loss.backward()
        opt.step()
        out += [states.detach(), loss.item(), kf.P.detach()]
    return out, list(kf.parameters())


@program
def hmm_forward_and_viterbi(jit):
    class HMM(nn.Module):
        def __init__(self, n, m):
            super().__init__()
            self.n = n
            for name, shape in (("pi", (n,)), ("trans", (n, n)), ("emit", (n, m))):
                setattr(self, f"_{name}", nn.Parameter(torch.randn(shape)))

        def __getattr__(self, name):
            if name in ("pi", "trans", "emit"):
                return super().__getattr__(f"_{name}").log_softmax(-1)
            return super().__getattr__(name)

        def log_prob(self, obs, lengths):
            alpha = self.pi + self.emit[:, obs[:, 0]].T
            alphas = [alpha]
            for t in range(1, obs.shape[1]):
                alpha = torch.logsumexp(alpha[:, :, None] + self.trans, 1) + self.emit[:, obs[:, t]].T
                alphas.append(alpha)
            stacked = torch.stack(alphas, 1).logsumexp(-1)
            return stacked.gather(1, (lengths - 1)[:, None]).squeeze(1)

        @torch.no_grad()
        def viterbi(self, obs):
            delta, back = self.pi + self.emit[:, obs[0]], []
            for o in obs[1:]:
                scores = delta[:, None] + self.trans
                best, arg = scores.max(0)
                delta = best + self.emit[:, o]
                back.append(arg)
            path = [int(delta.argmax())]
            for arg in reversed(back):
                path.append(int(arg[path[-1]]))
            return path[::-1], delta.max().item()

    hmm = HMM(3, 5)
    logp, viterbi = jit(hmm.log_prob), jit(hmm.viterbi)
    opt = torch.optim.SGD(hmm.parameters(), 0.1, momentum=0.9)
    out = []
    for t in (4, 6, 5):
        obs = torch.randint(0, 5, (4, t))
        loss = -logp(obs, torch.tensor([t, t - 1, t, 2])).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        out += [loss.item(), viterbi(obs[0])]
    return out, list(hmm.parameters())


@program
def tokenizer_and_dataset_loop(jit):
    class Vocab:
        special = ("<pad>", "<unk>", "<eos>")

        def __init__(self, texts, min_count=1):
            counts = collections.Counter(w for t in texts for w in self.split(t))
            self.words = [*self.special, *(w for w, c in sorted(counts.items()) if c >= min_count)]
            self.index = {w: i for i, w in enumerate(self.words)}

        @staticmethod
        @functools.lru_cache(maxsize=None)
        def split(text):
            return tuple(re.findall(r"[a-z]+|[.!?]", text.lower()))

        def __len__(self):
            return len(self.words)

        def __call__(self, text, max_len=None):
            ids = [self.index.get(w, 1) for w in self.split(text)] + [2]
            return ids[:max_len]

        def __contains__(self, word):
            return word in self.index

    class Texts(torch.utils.data.Dataset):
        def __init__(self, rows, vocab):
            self.rows, self.vocab = rows, vocab

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, i):
            text, label = self.rows[i]
            return torch.tensor(self.vocab(text)), label

    def collate(batch):
        xs, ys = zip(*batch)
        lens = torch.tensor([len(x) for x in xs])
        return nn.utils.rnn.pad_sequence(xs, batch_first=True), lens, torch.tensor(ys)

    rows = [("The cat sat.", 0), ("A dog barked!", 1), ("the dog sat?", 1), ("Cat and dog.", 0), ("birds", 1)]
    vocab = Vocab(t for t, _ in rows)
    emb, fc = nn.Embedding(len(vocab), 6, padding_idx=0), nn.Linear(6, 2)
    params = [*emb.parameters(), *fc.parameters()]
    opt = torch.optim.AdamW(params, 0.05)
    stats = collections.defaultdict(list)

    def epoch(loader, train=True):
        total = correct = 0
        with torch.set_grad_enabled(train):
            for x, lens, y in loader:
                mask = torch.arange(x.size(1))[None] < lens[:, None]
                h = (emb(x) * mask[..., None]).sum(1) / lens[:, None]
                logits = fc(h)
                loss = F.cross_entropy(logits, y, label_smoothing=0.1)
                if train:
                    opt.zero_grad()
                    loss.backward()
                    opt.step()
                total += len(y)
                correct += (logits.argmax(1) == y).sum().item()
                stats["train" if train else "val"].append(loss.item())
        return correct / total, "zebra" in vocab, "cat" in vocab

    epoch = jit(epoch)
    loader = torch.utils.data.DataLoader(Texts(rows, vocab), batch_size=2, collate_fn=collate)
    return [epoch(loader), epoch(loader), epoch(loader, train=False)], [dict(stats), params]


@program
def transformer_rotary_alibi_gqa(jit):
    @dataclasses.dataclass(frozen=True)
    class Config:
        d: int = 16
        heads: int = 4
        kv_heads: int = 2
        positions: str = "rope"
        window: Optional[int] = None
        theta: float = 10000.0

        @property
        def head_dim(self):
            return self.d // self.heads

    class Rotary:
        _cache: dict = {}

        @classmethod
        def table(cls, n, dim, theta):
            key = (n, dim, theta)
            if key not in cls._cache:
                freq = theta ** (-torch.arange(0, dim, 2) / dim)
                angle = torch.arange(n)[:, None] * freq
                cls._cache[key] = (angle.cos().repeat(1, 2), angle.sin().repeat(1, 2))
            return cls._cache[key]

        @classmethod
        def apply(cls, x, offset, theta):
            cos, sin = cls.table(offset + x.size(-2), x.size(-1), theta)
            a, b = x.chunk(2, -1)
            return x * cos[offset:] + torch.cat([-b, a], -1) * sin[offset:]

    class PagedCache:
        def __init__(self, page=4):
            self.page, self.pages, self.length = page, [], 0

        def append(self, k, v):
            for i in range(k.size(2)):
                if self.length % self.page == 0:
                    self.pages.append(
                        (k.new_zeros(*k.shape[:2], self.page, k.size(-1)),) * 1
                        + (torch.zeros_like(v[:, :, :1]).repeat(1, 1, self.page, 1),)
                    )
                for store, new in zip(self.pages[-1], (k, v)):
                    store[:, :, self.length % self.page] = new[:, :, i]
                self.length += 1
            return tuple(torch.cat(x, 2)[:, :, : self.length] for x in zip(*self.pages))

    class Attention(nn.Module):
        def __init__(self, cfg):
            super().__init__()
            self.cfg = cfg
            self.wq = nn.Linear(cfg.d, cfg.heads * cfg.head_dim)
            self.wkv = nn.Linear(cfg.d, 2 * cfg.kv_heads * cfg.head_dim)
            self.wo = nn.Linear(cfg.heads * cfg.head_dim, cfg.d)

        def slopes(self):
            return torch.tensor([2 ** (-8 * (i + 1) / self.cfg.heads) for i in range(self.cfg.heads)])

        def forward(self, x, cache=None):
            c, (b, t, _) = self.cfg, x.shape
            offset = cache.length if cache is not None else 0
            q = self.wq(x).view(b, t, c.heads, -1).transpose(1, 2)
            k, v = self.wkv(x).view(b, t, 2, c.kv_heads, -1).permute(2, 0, 3, 1, 4)
            if c.positions == "rope":
                q, k = (Rotary.apply(z, offset, c.theta) for z in (q, k))
            if cache is not None:
                k, v = cache.append(k, v)
            k, v = (z.repeat_interleave(c.heads // c.kv_heads, 1) for z in (k, v))
            i, j = torch.arange(offset, offset + t)[:, None], torch.arange(k.size(2))[None]
            mask = j <= i
            if c.window is not None:
                mask &= j > i - c.window
            bias = torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))
            if c.positions == "alibi":
                bias = bias + self.slopes()[:, None, None] * (j - i)
            return self.wo(F.scaled_dot_product_attention(q, k, v, bias).transpose(1, 2).flatten(2))

    out = []
    for cfg in (Config(), Config(positions="alibi", window=3), Config(kv_heads=1, theta=500.0)):
        torch.manual_seed(1)
        a = Attention(cfg)
        f = jit(a)
        x = torch.randn(2, 7, 16)
        full = f(x)
        full.sum().backward()
        out += [full.detach(), a.wq.weight.grad.norm().item()]
        with torch.no_grad():
            cache, parts = PagedCache(), []
            for chunk in x.split([3, 1, 1, 2], 1):
                parts.append(f(chunk, cache=cache))
            out += [torch.cat(parts, 1), cache.length, len(cache.pages)]
    return out, [sorted(Rotary._cache)]


@program
def speculative_sampling(jit):
    class Bigram(nn.Module):
        def __init__(self, n, temp):
            super().__init__()
            self.table, self.temp = nn.Embedding(n, n), temp

        def forward(self, tokens):
            return (self.table(tokens) / self.temp).softmax(-1)

    draft, target = Bigram(6, 2.0), Bigram(6, 1.0)
    accepted = collections.deque(maxlen=4)

    @torch.no_grad()
    def generate(prompt, n, k):
        tokens = list(prompt)
        while len(tokens) < n:
            guess, probs = tokens[-1:], []
            for _ in range(k):
                p = draft(torch.tensor(guess[-1:]))[0]
                guess.append(torch.multinomial(p, 1).item())
                probs.append(p)
            q = target(torch.tensor(guess))
            for i, (token, p) in enumerate(zip(guess[1:], probs)):
                if torch.rand(()) < q[i, token] / p[token]:
                    tokens.append(token)
                else:
                    left = (q[i] - p).clamp(min=0)
                    tokens.append(torch.multinomial(left / left.sum(), 1).item())
                    accepted.append(i)
                    break
            else:
                tokens.append(torch.multinomial(q[-1], 1).item())
                accepted.append(k)
        return tokens[:n]

    generate = jit(generate)
    return [generate((0, 1), 8, 2), generate([3], 7, 3), generate((2,), 6, 2)], [list(accepted)]
