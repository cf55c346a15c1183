"""What carriers of several topics use."""

import functools

import jitpy


def pause():
    """Programs have their own."""


class Carried(Exception):
    def __init__(self, v, *rest):
        super().__init__(v, *rest)
        self.v = v


class CarriedOn(Carried):
    pass


@jitpy.disable
def uncaptured(log):
    log.append(7)


class AsDecorator:
    def __init__(self, fn):
        self.fn = fn
        self.calls = 0

    def __call__(self, v):
        self.calls += 1
        pause()
        return self.fn(v)

    def __get__(self, obj, owner=None):
        return self if obj is None else functools.partial(self, obj)


def same(v):
    pause()
    return v
