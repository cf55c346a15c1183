"""Programs whose calls make things anew: samples, matches, bars, views, tables by step."""

from __future__ import annotations

import collections
import io
import math
import random
import re

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from .program import program


@program
def dqn_with_sampled_tuples(jit):
    """Transitions as tuples of tensors and numbers, a target network, epsilon, prioritised draws at times."""
    Step = collections.namedtuple("Step", "state action reward after done")
    q, target = (nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)) for _ in range(2))
    target.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam(q.parameters(), lr=1e-2)
    memory: collections.deque = collections.deque(maxlen=150)

    @jit
    def act(state, epsilon):
        if random.random() < epsilon:
            return random.randrange(3)
        with torch.no_grad():
            return int(q(state).argmax())

    @jit
    def learn():
        batch = Step(*zip(*random.sample(memory, 24), strict=True))
        states, after = torch.stack(batch.state), torch.stack(batch.after)
        actions = torch.tensor(batch.action).unsqueeze(1)
        rewards, done = torch.tensor(batch.reward), torch.tensor(batch.done, dtype=torch.float32)
        with torch.no_grad():
            goal = rewards + 0.9 * target(after).max(1).values * (1 - done)
        loss = F.smooth_l1_loss(q(states).gather(1, actions).squeeze(1), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    @jit
    def follow():
        with torch.no_grad():
            for mine, its in zip(target.parameters(), q.parameters(), strict=True):
                mine.lerp_(its, 0.1)

    found = []
    state = torch.randn(4)
    for step in range(60):
        action = act(state, 1.0 / (1 + step))
        after = torch.randn(4) * 0.5 + state * 0.5
        memory.append(Step(state, action, float(after[action]), after, step % 7 == 0))
        state = after
        if len(memory) >= 30:
            found.append(learn())
            follow()
    return found, [p.detach().clone() for p in target.parameters()]


@program
def prioritised_replay(jit):
    """Draws by priority with numpy, importance weights, priorities written back item by item."""
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    items = [(np.random.randn(4).astype(np.float32), float(k % 5)) for k in range(60)]
    priorities = np.ones(60)

    @jit
    def learn():
        p = priorities / priorities.sum()
        chosen = np.random.choice(60, 16, p=p)
        samples = [items[i] for i in chosen]
        weights = torch.tensor((60 * p[chosen]) ** -0.4, dtype=torch.float32)
        x = torch.from_numpy(np.stack([state for state, _ in samples]))
        y = torch.tensor([value for _, value in samples])
        errors = net(x).squeeze(1) - y
        loss = (weights * errors.square()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for i, error in zip(chosen, errors.detach().abs().tolist(), strict=True):
            priorities[i] = error + 0.01
        return loss.item()

    return [learn() for _ in range(20)], priorities.copy()


@program
def radam_with_a_table_by_step(jit):
    """The rectified Adam of many repositories: what it computes for a step is kept in a table of ten lines."""

    class RAdam(torch.optim.Optimizer):
        def __init__(self, params, lr=1e-2, betas=(0.9, 0.999), eps=1e-8):
            super().__init__(params, dict(lr=lr, betas=betas, eps=eps, buffer=[[None, None, None] for _ in range(10)]))

        def step(self):
            for group in self.param_groups:
                beta1, beta2 = group["betas"]
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    grad, data, state = p.grad.data.float(), p.data.float(), self.state[p]
                    if len(state) == 0:
                        state.update(step=0, exp_avg=torch.zeros_like(data), exp_avg_sq=torch.zeros_like(data))
                    exp_avg, exp_avg_sq = state["exp_avg"], state["exp_avg_sq"]
                    exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
                    exp_avg.mul_(beta1).add_(grad, alpha=1 - beta1)
                    state["step"] += 1
                    line = group["buffer"][int(state["step"] % 10)]
                    if state["step"] == line[0]:
                        length, size = line[1], line[2]
                    else:
                        power = beta2 ** state["step"]
                        longest = 2 / (1 - beta2) - 1
                        length = longest - 2 * state["step"] * power / (1 - power)
                        size = 1 / (1 - beta1 ** state["step"])
                        if length >= 5:
                            size *= math.sqrt((1 - power) * (length - 4) / (longest - 4) * (length - 2) / length
                                              * longest / (longest - 2))
                        line[:] = [state["step"], length, size]
                    if length >= 5:
                        data.addcdiv_(exp_avg, exp_avg_sq.sqrt().add_(group["eps"]), value=-size * group["lr"])
                    else:
                        data.add_(exp_avg, alpha=-size * group["lr"])
                    p.data.copy_(data)

    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = RAdam(net.parameters())
    x = torch.randn(8, 4)

    @jit
    def step():
        optimizer.zero_grad()
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return [step() for _ in range(24)], optimizer.param_groups[0]["buffer"]


@program
def loop_under_a_bar(jit):
    """tqdm around a loader, with a description that changes."""
    try:
        from tqdm import tqdm
    except ImportError:  # it comes with transformers
        return None
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(6)]

    @jit
    def train_step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    @jit
    def epoch(number):
        total, out = 0.0, io.StringIO()
        bar = tqdm(data, file=out, desc=f"epoch {number}")
        for x, y in bar:
            loss = train_step(x, y)
            total += loss.item()
            bar.set_postfix(loss=f"{loss.item():.2f}")
        return total / len(data), f"epoch {number}" in out.getvalue()

    return [epoch(number) for number in range(4)]


@program
def checked_versions_and_flat_views(jit):
    """Code that asks for torch's version, and works on flat views of its parameters without gradients."""
    release = re.compile(r"(\d+)\.(\d+)")
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    messages: list[str] = []

    def is_new():
        found = release.match(torch.__version__)
        return found is not None and (int(found.group(1)), int(found.group(2))) >= (2, 0)

    @torch.no_grad()
    def norms():
        flat = [p.view(-1) for p in net.parameters()]
        messages.append("norms")
        print(end="")
        return torch.stack([one.norm() for one in flat]), sum(one.abs().sum() for one in flat)

    @jit
    def step(x):
        loss = net(x).square().mean() if is_new() else net(x).abs().mean()
        loss.backward()
        sizes, total = norms()
        with torch.no_grad():
            for p in net.parameters():
                p.sub_(p.grad, alpha=0.1)
                p.grad = None
        return loss.detach(), sizes, total

    return [step(torch.randn(5, 3)) for _ in range(8)], messages
