"""Locks around what a function reads and changes."""

from __future__ import annotations

import threading
from typing import Any

import torch

from tests.semantics.harness import case, jit, make_test


class Counting(torch.nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.lock = kind()
        self.calls = 0
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.lock:
            self.calls += 1
            self.seen.append(self.calls)
            y = self.linear(x) * self.calls
        return y * 2


@case(lambda: (torch.ones(3),), factory=True, breaks=("lock", "lock"))
def around_a_part() -> Any:
    module = Counting(threading.Lock)
    return module, module.seen


@case(lambda: (torch.ones(3),), factory=True, breaks=("lock",) * 4)
def taken_twice() -> Any:
    lock = threading.RLock()

    def fn(x: torch.Tensor) -> Any:
        with lock:
            x = x + 1
            with lock:
                x = x * 2
        return x

    return fn


@case(lambda: (torch.ones(3),), factory=True)
def left_by_an_error() -> Any:
    lock = threading.Lock()
    log: list[Any] = []

    def fn(x: torch.Tensor) -> Any:
        try:
            with lock:
                log.append(lock.locked())
                raise ValueError("inside")
        except ValueError as error:
            log.append(str(error))
        log.append(lock.locked())
        return x + 1, lock.acquire(blocking=False), lock.acquire(timeout=0.001), lock.release()

    return fn, log


@case(lambda: (torch.ones(3),))
def made_inside(x: torch.Tensor) -> Any:
    lock = threading.Lock()
    with lock:
        y = x + 1
    return y, lock.locked()


def test_no_call_is_lost_between_threads() -> None:
    module = Counting(threading.Lock)
    called = jit(module, backend="eager")
    x = torch.ones(3)

    def work() -> None:
        for _ in range(40):
            called(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert module.calls == 160 and module.seen == list(range(1, 161))


test_all = make_test(__name__)
