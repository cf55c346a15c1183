"""Programs whose sizes, places and samples are drawn at each step, by torch, numpy or `random`."""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from .program import program


@program
def speech_with_masked_spectrograms(jit):
    class Mask(nn.Module):
        """Hides stripes whose place and size `random` draws, shorter ones for shorter utterances."""

        def forward(self, x, lengths):
            if not self.training:
                return x
            x = x.clone()
            for b in range(x.size(0)):
                band = random.randint(0, 3)
                low = random.randint(0, x.size(2) - band)
                x[b, :, low : low + band] = 0
                time = random.randint(0, min(4, int(lengths[b])))
                start = random.randint(0, int(lengths[b]) - time)
                x[b, start : start + time] = 0
                x[b, int(lengths[b]) :] = 0
            return x

    class Recogniser(nn.Module):
        def __init__(self, d=8, letters=6):
            super().__init__()
            self.mask = Mask()
            self.shrink = nn.Sequential(nn.Conv2d(1, 3, 3, 2, 1), nn.ReLU())
            self.project = nn.Linear(3 * 5, d)
            self.rnn = nn.GRU(d, d, bidirectional=True, batch_first=True)
            self.out = nn.Linear(2 * d, letters)

        def forward(self, x, lengths):
            h = self.shrink(self.mask(x, lengths).unsqueeze(1))
            b, c, t, f = h.shape
            h = self.project(h.permute(0, 2, 1, 3).reshape(b, t, c * f))
            lengths = torch.div(lengths - 1, 2, rounding_mode="floor") + 1
            packed = nn.utils.rnn.pack_padded_sequence(h, lengths, batch_first=True, enforce_sorted=False)
            h, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=t)
            return self.out(h).log_softmax(-1), lengths

    def errors(found, wanted):
        row = list(range(len(wanted) + 1))
        for i, a in enumerate(found, 1):
            before, row[0] = row[0], i
            for j, b in enumerate(wanted, 1):
                before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
        return row[-1]

    model = Recogniser()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    loss_of = nn.CTCLoss(zero_infinity=True)

    def train(x, lengths, letters, counts):
        scores, lengths = model(x, lengths)
        loss = loss_of(scores.transpose(0, 1), letters, lengths, counts)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        return loss.item(), norm

    @torch.no_grad()
    def evaluate(x, lengths, letters):
        scores, lengths = model(x, lengths)
        total = 0
        for best, n, wanted in zip(scores.argmax(-1), lengths, letters):
            found = [t for t in torch.unique_consecutive(best[:n]).tolist() if t != 0]
            total += errors(found, wanted.tolist())
        return total

    train, evaluate = jit(train), jit(evaluate)
    out = []
    for i in range(5):
        frames = (20, 24, 22)[i % 3]
        x, lengths = torch.randn(2, frames, 10), torch.tensor([frames, frames - 5])
        letters = torch.randint(1, 6, (2, 3))
        model.train()
        out.append(train(x, lengths, letters, torch.tensor([3, 2])))
        model.eval()
        out.append(evaluate(x, lengths, letters))
    return out, list(model.parameters())


@program
def prioritised_replay(jit):
    class Step(NamedTuple):
        state: np.ndarray
        action: int
        reward: float
        next: np.ndarray
        done: bool

    class Cart:
        def __init__(self):
            self.draw = np.random.RandomState(3)
            self.reset()

        def reset(self):
            self.state, self.t = self.draw.uniform(-0.05, 0.05, 4), 0
            return self.state.astype(np.float32)

        def step(self, action):
            x, v, angle, turn = self.state
            force = 10.0 if action else -10.0
            push = (force + 0.05 * turn**2 * np.sin(angle)) / 1.1
            bend = (9.8 * np.sin(angle) - np.cos(angle) * push) / (0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1))
            self.state = self.state + 0.05 * np.array([v, push - 0.05 * bend * np.cos(angle) / 1.1, turn, bend])
            self.t += 1
            return self.state.astype(np.float32), 1.0, bool(abs(self.state[2]) > 0.3 or self.t > 12)

    class Buffer:
        def __init__(self, size):
            self.size, self.at, self.steps = size, 0, []
            self.weight = np.zeros(size, np.float32)

        def push(self, step):
            top = self.weight.max() if self.steps else 1.0
            if len(self.steps) < self.size:
                self.steps.append(step)
            else:
                self.steps[self.at] = step
            self.weight[self.at] = top
            self.at = (self.at + 1) % self.size

        def sample(self, n):
            p = self.weight[: len(self.steps)] ** 0.6
            p = p / p.sum()
            places = np.random.choice(len(self.steps), n, p=p)
            w = (len(self.steps) * p[places]) ** -0.4
            return Step(*zip(*[self.steps[i] for i in places])), places, torch.as_tensor(w / w.max(), dtype=torch.float32)

    class Duel(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 16), nn.ReLU())
            self.value, self.advantage = nn.Linear(16, 1), nn.Linear(16, 2)

        def forward(self, x):
            h = self.body(x)
            a = self.advantage(h)
            return self.value(h) + a - a.mean(-1, keepdim=True)

    net, target, buffer, cart = Duel(), Duel(), Buffer(12), Cart()
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-3)

    @torch.no_grad()
    def act(state, chance):
        return random.randrange(2) if random.random() < chance else net(torch.Tensor(state[None])).argmax(1).item()

    def learn():
        batch, places, weight = buffer.sample(6)
        state, after = torch.from_numpy(np.stack(batch.state)), torch.FloatTensor(np.array(batch.next))
        action = torch.LongTensor(batch.action).unsqueeze(1)
        reward, done = torch.tensor(batch.reward), torch.tensor(batch.done, dtype=torch.float32)
        value = net(state).gather(1, action).squeeze(1)
        with torch.no_grad():
            best = net(after).argmax(1, keepdim=True)
            wanted = reward + 0.9 * (1 - done) * target(after).gather(1, best).squeeze(1)
        loss = (weight * F.smooth_l1_loss(value, wanted, reduction="none")).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        buffer.weight[places] = ((wanted - value).abs() + 1e-5).detach().numpy()
        for slow, fast in zip(target.parameters(), net.parameters()):
            slow.data.copy_(0.9 * slow.data + 0.1 * fast.data)
        return loss.item()

    act, learn = jit(act), jit(learn)
    out = []
    state = cart.reset()
    for i in range(20):
        action = act(state, 0.9**i)
        after, reward, done = cart.step(action)
        buffer.push(Step(state, action, reward, after, done))
        state = cart.reset() if done else after
        out.append((action, learn() if i > 8 else None))
    return out, [buffer.weight, *net.parameters(), *target.parameters()]


@program
def cellular_automaton_on_a_ring(jit):
    class Cells(nn.Module):
        """A world that goes on at the other side; which cells are renewed is drawn, and how often."""

        def __init__(self, channels=5):
            super().__init__()
            slope = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
            own = F.pad(torch.ones(1, 1), [1] * 4)
            self.register_buffer("look", torch.stack([own, slope, slope.T]).repeat(channels, 1, 1)[:, None])
            self.change = nn.Sequential(nn.Conv2d(3 * channels, 8, 1), nn.ReLU(), nn.Conv2d(8, channels, 1, bias=False))
            nn.init.normal_(self.change[2].weight, std=0.1)

        def alive(self, x):
            return F.max_pool2d(x[:, 3:4], 3, 1, 1) > 0.1

        def forward(self, x, steps):
            for _ in range(steps):
                before = self.alive(x)
                seen = F.conv2d(F.pad(x, [1] * 4, mode="circular"), self.look, groups=x.shape[1])
                x = x + self.change(seen) * (torch.rand_like(x[:, :1]) <= 0.5)
                x = x * (before & self.alive(x))
            return x

    cells = Cells()
    optimizer = torch.optim.Adam(cells.parameters(), 2e-3)
    pool = torch.zeros(6, 5, 6, 6)
    pool[:, 3:, 3, 3] = 1

    def train(chosen, steps):
        x = cells(pool[chosen], steps)
        loss = (x[:, :4] - 0.5).square().mean()
        optimizer.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in cells.parameters():
                p.grad /= p.grad.norm() + 1e-8
        optimizer.step()
        pool[chosen] = x.detach()
        worst = ((x.detach()[:, :4] - 0.5) ** 2).mean((1, 2, 3)).argmax()
        pool[chosen[worst]] = 0
        pool[chosen[worst], 3:, 3, 3] = 1
        return loss.item()

    train = jit(train)
    return [train(torch.randperm(6)[:3], 2 + i % 2) for i in range(5)], [pool, *cells.parameters()]
