"""State that programs change under the feet of compiled code: what functions, classes, modules and globals hold."""

from __future__ import annotations

from .writes import Writes


class Patches(Writes):
    """`patch` draws one change."""

    def patch(self, scope: dict[str, str]) -> list[str]:
        table = self.one([self.function_patch, self.class_patch, self.class_patch, self.module_patch, self.net_patch])
        i, f = self.expr(scope, "I", 1), self.expr(scope, "F", 1)
        return list(self.one(table(i, f)))

    def function_patch(self, i: str, f: str) -> list[list[str]]:
        """Defaults, code, globals, variables around."""
        return [
            [f"adder.__defaults__ = ({f},)"], [f"adder.__kwdefaults__ = {{'more': {i}}}"],
            ["adder.__code__ = (lambda t, by=1, *, more=2: t - more * by).__code__"], ["adder.__defaults__ = None"],
            [f"adder.scale = {f}", "shared.append(len(vars(adder)))"], [f"remember.__defaults__[0].append({i})"],
            ["remember.__defaults__ = ([],)"], [f"globals()['counter'] = {i} % 50"], [f"globals().update(scale={f})"],
            [f"globals()['abs'] = lambda v: v + {self.draw(0, 2)}"], ["globals().pop('abs', None)"],
            ["helper = adder"], [f"hooks.append(lambda t: t * level - {self.draw(0, 3)})", "del hooks[:-2]"],
            *([] if self.functions else [[f"level = {i} % 9"], ["level += 1"]]),
        ]

    def module_patch(self, i: str, f: str) -> list[list[str]]:
        """What another module holds."""
        return [
            [f"elsewhere.rate = {f}"], ["elsewhere.rate *= 2"], [f"elsewhere.items.append({i})"],
            ["elsewhere.items = []"], ["elsewhere.fn = torch.sin"], [f"elsewhere.fn = lambda t: t - {self.draw(0, 3)}"],
            ["elsewhere.fn = net"], ["elsewhere.fn = adder"], [f"setattr(elsewhere, 'rate', {i})"],
            [f"vars(elsewhere)['rate'] = {f}"], ["elsewhere.rate = torch.tensor(0.25)"],
            ["elsewhere.len = lambda v: 4"], ["vars(elsewhere).pop('len', None)"],
        ]

    def class_patch(self, i: str, f: str) -> list[list[str]]:
        """Methods, bases, special methods, descriptors."""
        which = self.one(["Box", "Deep"])
        bodies = {"__len__": "lambda self: 2", "__bool__": "lambda self: self.total > 3",
                  "__eq__": "lambda self, other: True", "__getattr__": "lambda self, name: 4",
                  "__add__": "lambda self, other: self"}
        special = self.one(list(bodies))
        return [
            [f"{which}.scaled = lambda self, t, by=1: t - {self.draw(0, 3)} * by"],
            [f"{which}.add = lambda self, value: (setattr(self, 'total', value), self)[1]"],
            ["if 'add' in vars(Deep):", "    del Deep.add"], ["if 'scaled' in vars(Deep):", "    del Deep.scaled"],
            [f"{which}.double = property(lambda self: self.total + {self.draw(0, 3)})"], [f"{which}.double = {i}"],
            [f"{which}.{special} = {bodies[special]}"],
            [f"if {special!r} in vars(Deep):", f"    del Deep.{special}"],
            ["Deep.__bases__ = (Mixin, Box)"], ["Deep.__bases__ = (Box,)"], [f"Mixin.limit = {i}"],
            [f"{which}.__setattr__ = lambda self, k, v: (shared.append(k), object.__setattr__(self, k, v))[1]"],
            ["if '__setattr__' in vars(Deep):", "    del Deep.__setattr__"],
            ["kept.__class__ = Box"], ["kept.__class__ = Deep"], ["kept.__dict__ = dict(vars(kept))"],
            [f"vars(kept).update(total={i}, weight={f})"], ["kept.scaled = Box.scaled.__get__(kept)"],
            ["vars(kept).pop('scaled', None)"], ["Box.log = []"], ["Vec.made = [*Vec.made, 1]"],
            ["Vec.half = property(lambda self: self.t * 0.25)"], ["Vec.__call__ = lambda self, t, **k: t + self.n"],
            ["Vec.__rmul__ = lambda self, other: NotImplemented"], ["Vec.__iter__ = lambda self: iter([self.t, 1])"],
            [f"Vec.__index__ = lambda self: {self.draw(0, 2)}"], ["type(vec).__format__ = lambda self, spec: spec"],
            ["Vec.__lt__ = lambda self, other: self.n > other.n"], [f"vec.n = {i}"],
            [f"vars(vec)['half'] = vec.t * {f}"],
        ]

    def net_patch(self, i: str, f: str) -> list[list[str]]:
        """Modules: flags, hooks, parts, methods."""
        return [
            [f"Net.forward = lambda self, t: t * {f} + self.w"], ["Net.gain = 2.0", "vars(net).pop('gain', None)"],
            ["net.training = not net.training"], ["model.train(not model.training)"], ["net.gain += 0.25"],
            ["if len(net._forward_hooks) < 2:",
             f"    net.register_forward_hook(lambda m, a, r: r + {self.draw(0, 3)})"],
            ["net._forward_hooks.clear()"], ["net._forward_pre_hooks.clear()"], ["net.seen = torch.ones(())"],
            ["net.register_buffer('seen', torch.tensor(0.5))"], ["net.w = torch.nn.Parameter(torch.tensor(1.5))"],
            ["model.layers[0] = torch.nn.Linear(2, 2)"], ["model.norm = torch.nn.Identity()"],
            ["model.drop = torch.nn.Identity()"], ["model.layers[0].bias = None"],
            ["model.sizes = collections.deque()"],
            ["model.layers[0].forward = lambda t: t * 2"], ["vars(model.layers[0]).pop('forward', None)"],
            ["if not model._forward_pre_hooks:", "    model.register_forward_pre_hook(lambda m, a: (a[0] + 1,))"],
            ["model._forward_pre_hooks.clear()"], ["del model.layers[1:]"], ["model.extra_part = net"],
            ["net.w.grad = None"], ["net.w.requires_grad_(not net.w.requires_grad)"], ["model.steps += 2"],
        ]
