"""Agents and trainers: buffers, searches, callbacks, metrics."""

from __future__ import annotations

import abc
import collections
import copy
import dataclasses
import enum
import math
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from .program import program


@program
def ppo_with_gae(jit):
    class Buffer:
        fields = ("obs", "act", "logp", "rew", "val", "done")

        def __init__(self):
            self.clear()

        def clear(self):
            for f in self.fields:
                setattr(self, f, [])

        def add(self, **kw):
            for k, v in kw.items():
                getattr(self, k).append(v)

        def __len__(self):
            return len(self.rew)

        def stacked(self):
            return {f: torch.stack([torch.as_tensor(v) for v in getattr(self, f)]) for f in self.fields}

    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.pi = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
            self.v = nn.Linear(3, 1)
            self.log_std = nn.Parameter(torch.zeros(1))

        def dist(self, o):
            return torch.distributions.Categorical(logits=self.pi(o))

        @torch.no_grad()
        def act(self, o):
            d = self.dist(o)
            a = d.sample()
            return a, d.log_prob(a), self.v(o).squeeze(-1)

    class PPO:
        def __init__(self, agent, gamma=0.9, lam=0.8, clip=0.2):
            self.agent, self.gamma, self.lam, self.clip = agent, gamma, lam, clip
            self.opt = torch.optim.Adam(agent.parameters(), 0.01)
            self.kl_stop = 0
            self.updates = 0

        def gae(self, rew, val, done, last):
            adv, run = torch.zeros_like(rew), 0.0
            for t in reversed(range(len(rew))):
                nxt = val[t + 1] if t + 1 < len(rew) else last
                delta = rew[t] + self.gamma * nxt * (1 - done[t]) - val[t]
                run = delta + self.gamma * self.lam * (1 - done[t]) * run
                adv[t] = run
            return adv, adv + val

        def update(self, buf, last, epochs=2):
            b = buf.stacked()
            adv, ret = self.gae(b["rew"], b["val"], b["done"], last)
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            logs = collections.defaultdict(float)
            for e in range(epochs):
                for idx in torch.randperm(len(buf)).split(4):
                    d = self.agent.dist(b["obs"][idx])
                    lp = d.log_prob(b["act"][idx])
                    ratio = (lp - b["logp"][idx]).exp()
                    pg = -torch.min(ratio * adv[idx], ratio.clamp(1 - self.clip, 1 + self.clip) * adv[idx]).mean()
                    vf = F.mse_loss(self.agent.v(b["obs"][idx]).squeeze(-1), ret[idx])
                    loss = pg + 0.5 * vf - 0.01 * d.entropy().mean()
                    self.opt.zero_grad()
                    loss.backward()
                    gn = nn.utils.clip_grad_norm_(self.agent.parameters(), 0.5)
                    self.opt.step()
                    self.updates += 1
                    logs["loss"] += loss.item()
                    logs["gn"] += float(gn)
                with torch.no_grad():
                    kl = (b["logp"] - self.agent.dist(b["obs"]).log_prob(b["act"])).mean()
                if kl > 0.5:
                    self.kl_stop += 1
                    break
            return dict(logs)

    ag = Agent()
    ppo = PPO(ag)
    buf = Buffer()
    act, update = jit(ag.act), jit(ppo.update)
    out = []
    o = torch.randn(3)
    for it in range(3):
        for t in range(6 + it):
            a, lp, v = act(o)
            r = float(a) - 0.3
            buf.add(obs=o, act=a, logp=lp, rew=r, val=v, done=float(t % 5 == 4))
            o = torch.randn(3)
        out.append(update(buf, act(o)[2]))
        buf.clear()
    return out, [ppo.updates, ppo.kl_stop, *ag.parameters()]


@program
def mcts_value_net(jit):
    net = nn.Sequential(nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, 10))

    class Node:
        __slots__ = ("prior", "visits", "total", "children", "board", "player")

        def __init__(self, prior, board=None, player=1):
            self.prior, self.visits, self.total, self.children, self.board, self.player = (
                prior,
                0,
                0.0,
                {},
                board,
                player,
            )

        @property
        def value(self):
            return self.total / self.visits if self.visits else 0.0

        def select(self, c=1.4):
            return max(
                self.children.items(),
                key=lambda kv: -kv[1].value + c * kv[1].prior * math.sqrt(self.visits) / (1 + kv[1].visits),
            )

        def expand(self, probs):
            for m in [i for i, b in enumerate(self.board) if b == 0]:
                nb = list(self.board)
                nb[m] = self.player
                self.children[m] = Node(probs[m], tuple(nb), -self.player)

    LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]

    def winner(b):
        for i, j, k in LINES:
            if b[i] and b[i] == b[j] == b[k]:
                return b[i]
        return 0

    def evaluate(board, player):
        with torch.no_grad():
            o = net(torch.tensor(board, dtype=torch.float) * player)
        legal = torch.tensor([b == 0 for b in board])
        p = o[:9].masked_fill(~legal, -1e9).softmax(0)
        return p.tolist(), torch.tanh(o[9]).item()

    evaluate = jit(evaluate)

    def search(board, sims):
        root = Node(0, board)
        root.expand(evaluate(board, 1)[0])
        for _ in range(sims):
            node, path = root, [root]
            while node.children:
                _, node = node.select()
                path.append(node)
            w = winner(node.board)
            if w or 0 not in node.board:
                v = w * node.player
            else:
                probs, v = evaluate(node.board, node.player)
                node.expand(probs)
            for n in reversed(path):
                n.visits += 1
                n.total += v
                v = -v
        return {m: c.visits for m, c in root.children.items()}, round(root.value, 4)

    winner = jit(winner)
    return [search((0,) * 9, 8), search((1, -1, 0, 0, 1, 0, -1, 0, 0), 10)], []


@program
def moco_queue(jit):
    class MoCo(nn.Module):
        def __init__(self, dim=4, k=8, m=0.9, t=0.2):
            super().__init__()
            self.q = nn.Linear(5, dim)
            self.k = copy.deepcopy(self.q)
            self.m, self.t = m, t
            for p in self.k.parameters():
                p.requires_grad_(False)
            self.register_buffer("queue", F.normalize(torch.randn(dim, k), dim=0))
            self.register_buffer("ptr", torch.zeros(1, dtype=torch.long))

        @torch.no_grad()
        def _momentum(self):
            for a, b in zip(self.q.parameters(), self.k.parameters()):
                b.data = b.data * self.m + a.data * (1.0 - self.m)

        @torch.no_grad()
        def _enqueue(self, keys):
            n = keys.shape[0]
            p = int(self.ptr)
            assert self.queue.shape[1] % n == 0
            self.queue[:, p : p + n] = keys.T
            self.ptr[0] = (p + n) % self.queue.shape[1]

        def forward(self, a, b):
            q = F.normalize(self.q(a), dim=1)
            with torch.no_grad():
                self._momentum()
                perm = torch.randperm(len(b))
                k = F.normalize(self.k(b[perm]), dim=1)[perm.argsort()]
            pos = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
            neg = torch.einsum("nc,ck->nk", q, self.queue.clone().detach())
            logits = torch.cat([pos, neg], 1) / self.t
            self._enqueue(k)
            return logits, torch.zeros(len(q), dtype=torch.long)

    m = MoCo()
    f = jit(m)
    opt = torch.optim.SGD(m.q.parameters(), 0.1, nesterov=True, momentum=0.9)
    out = []
    for i in range(5):
        lg, y = f(torch.randn(2, 5), torch.randn(2, 5))
        l = F.cross_entropy(lg, y)
        opt.zero_grad()
        l.backward()
        opt.step()
        out += [l.item(), m.ptr.item(), m.queue.clone()]
    return out, list(m.parameters())


@program
def trainer_with_callbacks_and_metrics(jit):
    class Metric(abc.ABC):
        def __init__(self, name=None):
            self.name = name or type(self).__name__.lower()
            self.reset()

        @abc.abstractmethod
        def reset(self): ...
        @abc.abstractmethod
        def update(self, out, y): ...
        def __iadd__(self, pair):
            self.update(*pair)
            return self

        def __float__(self):
            return float(self.compute())

        def __repr__(self):
            return f"{self.name}={float(self):.3f}"

    class Accuracy(Metric):
        def reset(self):
            self.n = self.c = 0

        def update(self, out, y):
            self.c += (out.argmax(1) == y).sum().item()
            self.n += y.numel()

        def compute(self):
            return self.c / max(self.n, 1)

    class Mean(Metric):
        def reset(self):
            self.total, self.count = torch.zeros(()), 0

        def update(self, out, y):
            self.total += F.cross_entropy(out.detach(), y)
            self.count += 1

        def compute(self):
            return self.total / self.count

    class Event(enum.Enum):
        START = enum.auto()
        STEP = enum.auto()
        END = enum.auto()

    class EarlyStopping(Exception):
        pass

    class Trainer:
        def __init__(self, model, opt, sched):
            self.model, self.opt, self.sched = model, opt, sched
            self.handlers = collections.defaultdict(list)
            self.metrics = [Accuracy(), Mean("loss")]
            self.history = []
            self.best = math.inf
            self.bad = 0
            self.ema = None

        def on(self, event):
            def deco(f):
                self.handlers[event].append(f)
                return f

            return deco

        def fire(self, e, **kw):
            for h in self.handlers[e]:
                h(self, **kw)

        def run(self, batches):
            self.fire(Event.START)
            try:
                for i, (x, y) in enumerate(batches):
                    out = self.model(x)
                    loss = F.cross_entropy(out, y)
                    self.opt.zero_grad()
                    loss.backward()
                    self.opt.step()
                    self.sched.step()
                    for j in range(len(self.metrics)):
                        self.metrics[j] += out, y
                    self.fire(Event.STEP, i=i, loss=loss.item())
            except EarlyStopping as e:
                self.history.append(str(e))
            finally:
                self.fire(Event.END)
            return {m.name: float(m) for m in self.metrics}

    model = nn.Sequential(nn.Linear(3, 8, bias=False), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 3))
    opt = torch.optim.AdamW(model.parameters(), 0.05)
    t = Trainer(model, opt, torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=40))

    @t.on(Event.START)
    def reset(tr):
        [m.reset() for m in tr.metrics]

    @t.on(Event.STEP)
    def ema(tr, i, loss):
        tr.ema = loss if tr.ema is None else 0.9 * tr.ema + 0.1 * loss

    @t.on(Event.STEP)
    def stop(tr, i, loss):
        if loss < tr.best:
            tr.best, tr.bad = loss, 0
        else:
            tr.bad += 1
        if tr.bad > 2:
            raise EarlyStopping(f"step {i}")

    @t.on(Event.END)
    def log(tr):
        tr.history.append(repr(tr.metrics))

    run = jit(t.run)
    out = []
    for e in range(3):
        out.append(run([(torch.randn(4, 3), torch.randint(0, 3, (4,))) for _ in range(3 + e)]))
    return out + t.history + [t.ema, t.best, t.bad, opt.param_groups[0]["lr"]], list(model.parameters())


@program
def numpy_replay_dqn(jit):
    @dataclasses.dataclass
    class Transition:
        s: np.ndarray
        a: int
        r: float
        s2: np.ndarray
        done: bool

    class Replay:
        def __init__(self, cap):
            self.cap, self.data, self.pos, self.prio = cap, [], 0, np.zeros(cap)

        def push(self, t):
            if len(self.data) < self.cap:
                self.data.append(t)
            else:
                self.data[self.pos] = t
            self.prio[self.pos] = self.prio.max() or 1.0
            self.pos = (self.pos + 1) % self.cap

        def sample(self, n, beta):
            p = self.prio[: len(self.data)] ** 0.6
            p /= p.sum()
            idx = np.random.choice(len(self.data), n, p=p)
            w = (len(self.data) * p[idx]) ** -beta
            return idx, [self.data[i] for i in idx], torch.as_tensor(w / w.max(), dtype=torch.float32)

    class Dueling(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(3, 8)
            self.a, self.v = nn.Linear(8, 2), nn.Linear(8, 1)

        def forward(self, x):
            h = F.relu(self.f(x))
            a = self.a(h)
            return self.v(h) + a - a.mean(-1, keepdim=True)

    class Agent:
        def __init__(self):
            self.q, self.tq = Dueling(), Dueling()
            self.tq.load_state_dict(self.q.state_dict())
            self.mem = Replay(8)
            self.eps, self.steps = 1.0, 0
            self.opt = torch.optim.Adam(self.q.parameters(), 1e-2)
            self.losses = collections.deque(maxlen=3)

        def act(self, s):
            self.eps = max(0.2, self.eps * 0.95)
            self.steps += 1
            if np.random.rand() < self.eps:
                return int(np.random.randint(2))
            with torch.no_grad():
                return self.q(torch.from_numpy(s).unsqueeze(0)).argmax(1).item()

        def learn(self, beta=0.4):
            if len(self.mem.data) < 4:
                return None
            idx, batch, w = self.mem.sample(4, beta)
            s, a, r, s2, d = zip(*[dataclasses.astuple(t) for t in batch])
            s, s2 = torch.from_numpy(np.stack(s)), torch.from_numpy(np.stack(s2))
            a, r, d = torch.tensor(a), torch.tensor(r), torch.tensor(d, dtype=torch.float32)
            with torch.no_grad():
                best = self.q(s2).argmax(1, keepdim=True)
                y = r + 0.9 * (1 - d) * self.tq(s2).gather(1, best).squeeze(1)
            q = self.q(s).gather(1, a[:, None]).squeeze(1)
            td = y - q
            loss = (w * F.smooth_l1_loss(q, y, reduction="none")).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.mem.prio[idx] = td.detach().abs().numpy() + 1e-3
            for p, t in zip(self.q.parameters(), self.tq.parameters()):
                t.data.lerp_(p.data, 0.1)
            self.losses.append(loss.item())
            return sum(self.losses) / len(self.losses)

    ag = Agent()
    act, learn = jit(ag.act), jit(ag.learn)
    s = np.random.randn(3).astype(np.float32)
    out = []
    for i in range(14):
        a = act(s)
        s2 = np.random.randn(3).astype(np.float32)
        ag.mem.push(Transition(s, a, float(i % 3), s2, i % 5 == 4))
        s = s2
        out += [a, learn(min(1.0, 0.4 + i * 0.05))]
    return out + [ag.eps, ag.steps, list(ag.losses), ag.mem.prio], list(ag.q.parameters()) + list(ag.tq.parameters())


@program
def memory_bank_and_deques(jit):
    class Agent:
        __slots__ = ("q", "target", "buf", "eps", "n", "opt")

        def __init__(self):
            self.q, self.target = nn.Linear(3, 2), nn.Linear(3, 2)
            self.buf = collections.deque(maxlen=6)
            self.eps = 1.0
            self.n = 0
            self.opt = torch.optim.Adam(self.q.parameters(), 0.01)

        def act(self, s):
            self.eps = max(0.1, self.eps * 0.9)
            if random.random() < self.eps:
                return random.randrange(2)
            return self.q(s).argmax().item()

        def learn(self):
            b = random.sample(list(self.buf), 4)
            s, a, r, s2 = (torch.stack(t) if isinstance(t[0], torch.Tensor) else torch.tensor(t) for t in zip(*b))
            with torch.no_grad():
                tq = r + 0.9 * self.target(s2).max(1)[0]
            qa = self.q(s).gather(1, a.view(-1, 1)).squeeze(1)
            l = F.smooth_l1_loss(qa, tq)
            self.opt.zero_grad()
            l.backward()
            for p in self.q.parameters():
                p.grad.data.clamp_(-1, 1)
            self.opt.step()
            self.n += 1
            if self.n % 2 == 0:
                self.target.load_state_dict(self.q.state_dict())
            return l.item()

    ag = Agent()
    act, learn = jit(ag.act), jit(ag.learn)
    out = []
    s = torch.randn(3)
    for i in range(10):
        a = act(s)
        s2 = torch.randn(3)
        ag.buf.append((s, a, float(i) / 10, s2))
        s = s2
        out.append(a)
        if len(ag.buf) >= 5:
            out.append(learn())
    return out + [ag.eps, ag.n, len(ag.buf)], list(ag.q.parameters()) + list(ag.target.parameters())
