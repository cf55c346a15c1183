"""Statements of one line: assignments, and writes to tensors, containers, objects, classes, modules and globals."""

from __future__ import annotations

from .expressions import Expressions


class Writes(Expressions):
    """Each method draws one statement, or a few that belong together."""

    def assign(self, scope: dict[str, str]) -> list[str]:
        kind = self.one("TTTTSIIFBXLVDOKNMEWWQGP")
        value = self.expr(scope, kind, 3)
        name = self.name(kind.lower())
        scope[name] = kind
        self.own.add(name)
        if kind == "I" and self.chance(15):
            other = self.name("i")
            scope[other] = "I"
            self.own.add(other)
            return [f"{name}, *_, {other} = [{value}, *{self.expr(scope, 'L')}, 4]"]
        return [f"{name} = {value}"]

    def rebind(self, scope: dict[str, str]) -> list[str]:
        kind = self.one("TTIFLVBONEWWQGPX")
        name = self.assignable(scope, kind)
        return [f"{name} = {self.expr(scope, kind, 3)}"] if name else self.assign(scope)

    def augment(self, scope: dict[str, str]) -> list[str]:
        kind = self.one("TTIFLX")
        name = self.assignable(scope, kind)
        if name is None:
            return self.assign(scope)
        if kind == "I":
            return [f"{name} {self.one(['+=', '-=', '%=', '//='])} {self.expr(scope, 'I')}"]
        operand = self.expr(scope, self.one("TFS") if kind == "T" else kind)
        return [f"{name} {self.one(['+=', '*=']) if kind == 'T' else '+='} {operand}"]

    def tensor_write(self, scope: dict[str, str]) -> list[str]:
        t, v = self.expr(scope, "T", 1), self.expr(scope, "T", 1)
        return [str(self.one([
            lambda: f"{t}.mul_({self.expr(scope, 'F', 1)})", lambda: f"{t}.add_({self.expr(scope, 'I', 1)})",
            lambda: f"{t}[{self.risky(self.expr(scope, 'I', 1), '0')}] = {self.expr(scope, 'F', 1)}",
            lambda: f"{t}.copy_({v})",
            lambda: f"{t}[1:] += {self.expr(scope, 'F', 1)}", lambda: f"{t}[:2] = {v}[:2]",
            lambda: f"{t}.add_({v}, alpha=0.5)", lambda: f"torch.sin({t}, out={t})", lambda: f"{t}.zero_()",
            lambda: f"{t}[{t} > 0.5] = {self.expr(scope, 'F', 1)}",
            lambda: f"{t}.view(-1)[0] = {self.expr(scope, 'F', 1)}",
            lambda: f"{t}[::2].add_({self.expr(scope, 'F', 1)})", lambda: f"{t}.unsqueeze(0)[0].sub_({v})",
            lambda: f"{t}.data.add_({self.expr(scope, 'F', 1)})",
            lambda: f"{t}.detach().mul_({self.expr(scope, 'F', 1)})",
            lambda: f"{t}.masked_fill_({self.expr(scope, 'M', 1)}, {self.expr(scope, 'F', 1)})",
            lambda: f"torch.add({t}, {v}, out={self.expr(scope, 'T', 1)})",
            lambda: f"{t}.fill_({self.expr(scope, 'S', 1)})",
            lambda: f"{t}.requires_grad_()", lambda: f"{t}[1:].copy_({t}[:-1])",
            lambda: f"{t}.clamp_({self.expr(scope, 'F', 1)})",
            lambda: f"{t}[{self.risky(self.expr(scope, 'I', 1), '-1')}] += {self.expr(scope, 'S', 1)}",
        ])())]

    def tensors_write(self, scope: dict[str, str]) -> list[str]:
        """Integer tensors, and dicts of tensors."""
        if self.chance(40):
            n, i = self.expr(scope, "N", 1), self.expr(scope, "I", 1)
            return [str(self.one([
                lambda: f"{n}.add_({i})", lambda: f"{n}[{i}] = {i}", lambda: f"{n}[{n} > {i}] = {i}",
                lambda: f"{n}[1:].mul_({i})", lambda: f"{n}.copy_({self.expr(scope, 'T', 1)})",
            ])())]
        d, key, t = self.expr(scope, "E", 1), self.expr(scope, "X", 1), self.expr(scope, "T", 2)
        return list(self.one([
            lambda: [f"{d}[{key}] = {t}"], lambda: [f"{d}[{key}].add_({self.expr(scope, 'F', 1)})"],
            lambda: [f"{d}.pop({key}, None)"], lambda: [f"{d}.update({self.expr(scope, 'E', 1)})"],
            lambda: [f"{d}.setdefault({key}, {t}).mul_({self.expr(scope, 'F', 1)})"], lambda: [f"del {d}[{key}]"],
            lambda: [f"for v in list({d}.values()):", f"    v.add_({self.expr(scope, 'I', 1)})"],
            lambda: [f"{d}[{key}] += {self.expr(scope, 'S', 1)}"],
        ])())

    def class_write(self, scope: dict[str, str]) -> list[str]:
        """Attributes of classes, and nested ones of objects."""
        o, value = self.expr(scope, "O", 1), self.expr(scope, "I")
        return list(self.one([
            lambda: [f"type({o}).limit = {value}"], lambda: [f"Deep.limit = {value}"],
            lambda: [f"Box.limit -= {value}"],
            lambda: [f"{o}.limit += {value}"], lambda: ["if 'limit' in vars(Deep):", "    del Deep.limit"],
            lambda: [f"below({o}).total += {value}"], lambda: [f"{o}.child = {self.expr(scope, 'O')}"],
            lambda: [f"{o}.child.total = {value}"],
            lambda: [f"{o}.named[{self.expr(scope, 'X', 1)}] = {self.expr(scope, 'T')}"],
            lambda: [f"{o}.grid[0][{self.expr(scope, 'I', 1)}] += {value}"], lambda: [f"{o}.grid[1].append({value})"],
            lambda: [f"del {o}.extra"], lambda: [f"{o}.__class__ = {self.one(['Box', 'Deep'])}"],
            lambda: [f"{o}.extra[{value}] = {self.expr(scope, 'I', 1)}"],
            lambda: [f"remember({self.expr(scope, 'X')})"],
        ])())

    def net_write(self, scope: dict[str, str]) -> list[str]:
        return [str(self.one([
            lambda: f"net.calls += {self.expr(scope, 'I')}", lambda: f"net.gain = {self.expr(scope, 'F')}",
            lambda: f"net.train({self.expr(scope, 'B')})", lambda: "net.eval()",
            lambda: f"net.seen.add_({self.expr(scope, 'F', 1)})", lambda: f"net.seen = {self.expr(scope, 'S')}",
            lambda: f"net.extra = {self.expr(scope, self.one('TIVE'))}",
            lambda: f"net.w.data.mul_({self.expr(scope, 'F', 1)})",
            lambda: f"net.w.requires_grad_({self.expr(scope, 'B')})",
            lambda: f"net.forward = lambda t: t - {self.draw(0, 3)}", lambda: "vars(net).pop('forward', None)",
        ])())]

    def list_write(self, scope: dict[str, str]) -> list[str]:
        if self.chance(35):
            target, item = self.expr(scope, "V", 1), self.expr(scope, "T")
        else:
            target, item = self.expr(scope, "L", 1), self.expr(scope, "I")
        return [str(self.one([
            lambda: f"{target}.append({item})", lambda: f"{target}.insert(0, {item})", lambda: f"{target}.pop()",
            lambda: f"{target}[0] = {item}", lambda: f"{target}[1:2] = [{item}]", lambda: f"del {target}[0]",
            lambda: f"{target}.reverse()", lambda: f"{target}.extend([{item}])", lambda: f"{target}.clear()",
        ])())]

    def dict_write(self, scope: dict[str, str]) -> list[str]:
        d, key, value = self.expr(scope, "D", 1), self.expr(scope, "X", 1), self.expr(scope, "I")
        return [str(self.one([
            lambda: f"{d}[{key}] = {value}", lambda: f"{d}.setdefault({key}, {value})", lambda: f"del {d}[{key}]",
            lambda: f"{d}.update({self.expr(scope, 'D', 1)})", lambda: f"{d}.pop({key}, None)",
            lambda: f"{d}[{key}] = {d}.get({key}, 0) + {value}", lambda: f"{d}.popitem()",
        ])())]

    def object_write(self, scope: dict[str, str]) -> list[str]:
        o, value = self.expr(scope, "O", 1), self.expr(scope, "I")
        return [str(self.one([
            lambda: f"{o}.total = {value}", lambda: f"{o}.total += {value}", lambda: f"{o}.double = {value}",
            lambda: f"{o}.add({value})", lambda: f"{o}.weight = {self.expr(scope, 'F')}",
            lambda: f"Box.made = {value}", lambda: f"Box.log.append({value})", lambda: f"{o}.items.append({value})",
            lambda: f"{o}.extra = {self.expr(scope, self.one('TILO'))}", lambda: f"setattr({o}, 'total', {value})",
            lambda: f"{o}.scaled = lambda t, by=None: t - {value}", lambda: f"vars({o})['total'] = {value}",
        ])())]

    def global_write(self, scope: dict[str, str]) -> list[str]:
        if self.functions:  # they are declared in the outermost one only
            return [f"shared.append({self.expr(scope, 'I')})"]
        return [str(self.one([
            lambda: f"counter += {self.expr(scope, 'I', 1)}", lambda: f"counter = {self.expr(scope, 'I')} % 50",
            lambda: f"shared.append({self.expr(scope, 'I')})", lambda: f"shared = {self.expr(scope, 'L')}",
            lambda: f"scale = {self.expr(scope, 'F')} / 2",
            lambda: f"helper = lambda v, *r: v - {self.expr(scope, 'I', 1)}",
            lambda: "helper = plus",
        ])())]

    def odd(self, scope: dict[str, str]) -> list[str]:
        return list(self.one([
            lambda: [f"print({self.expr(scope, 'I')}, {self.expr(scope, 'X')})"], lambda: ["jitpy.graph_break()"],
            lambda: [f"assert {self.expr(scope, 'B')}, 'no'"],
            lambda: [f"if {self.expr(scope, 'B')}:", f"    return {self.result(scope)}"],
            lambda: [f"if {self.expr(scope, 'B')}:", f"    raise {self.exception(scope)}"],
            lambda: [f"print({self.expr(scope, 'F')} > 100, {self.expr(scope, 'B')})"],
            lambda: [f"if {self.expr(scope, 'B')}:", f"    {self.leave(scope)}"],
            lambda: [self.impossible(scope)],
        ])())

    def leave(self, scope: dict[str, str]) -> str:
        return str(self.one(["break", "continue"])) if self.in_loop else f"return {self.result(scope)}"

    def impossible(self, scope: dict[str, str]) -> str:
        """An operation on tensors that raises, nearly always."""
        t = self.expr(scope, "T", 1)
        return str(self.one([
            f"{t} + torch.ones(17)", f"{t}.view(9, 9)", f"{t}[99]", f"torch.cat([{t}, 'a'])",
            f"{t}.mul_(torch.ones(2, 3))",
            f"{t} @ torch.ones(8, 8)", f"{t}.missing", f"torch.ones(3).item() + {t}", f"int({t}.new_ones(3))",
        ]))

    def exception(self, scope: dict[str, str]) -> str:
        return str(self.one([
            lambda: f"ValueError({self.expr(scope, 'I')})", lambda: f"Halt({self.expr(scope, 'I')}, 'late')",
            lambda: f"KeyError({self.expr(scope, 'X')})", lambda: "StopIteration",
            lambda: f"Halt({self.expr(scope, 'I')}) from ValueError('cause')",
        ])())

    def matrix_write(self, scope: dict[str, str]) -> list[str]:
        """Tensors of two axes, through views of both."""
        w, v, f = self.expr(scope, "W", 1), self.expr(scope, "W", 1), self.expr(scope, "F", 1)
        t, i = self.expr(scope, "T", 1), self.risky(self.expr(scope, "I", 1), "0")
        return [str(self.one([
            f"{w}[:, {i}] = {f}", f"{w}[:, {i}].mul_({f})", f"{w}.t()[{i}].copy_({t})", f"{w}[0] = {w}[-1]",
            f"{w}.add_({v})", f"{w}[{i}, 1] += {f}", f"{w}.view(-1)[::2].zero_()", f"{w}[{w} > {f}] = {f}",
            f"{w}[{t} > {f}] *= {f}", f"{w}.transpose(0, 1).mul_({f})",
            f"{w}.index_fill_(0, {self.expr(scope, 'N', 1)}, {f})",
            f"{w}.unbind(1)[1].add_({t})", f"{w}.diagonal().fill_({f})", f"{w}[:, :1] += {w}[:, 1:]", f"{w}.t_().t_()",
            f"{w}.scatter_(1, {self.expr(scope, 'N', 1)}.abs()[:, None] % 2, {f})", f"{w}.select(1, {i}).sin_()",
            f"{w}[..., 0] -= {t}", f"{w}[None, :, 1].add_({f})",
            f"{w}.index_add_(0, {self.expr(scope, 'N', 1)} * 0, {v})",
        ]))]

    def queue_write(self, scope: dict[str, str]) -> list[str]:
        q, i = self.expr(scope, "Q", 1), self.expr(scope, "I")
        return [str(self.one([
            f"{q}.append({i})", f"{q}.appendleft({i})", f"{q}.popleft()", f"{q}.rotate({i})",
            f"{q}.extend({self.expr(scope, 'L', 1)})",
            f"{q}.clear()", f"{q}[0] = {i}", f"{q}.extendleft([{i}, 1])", f"{q}.remove({i})", f"{q}.reverse()",
            f"del {q}[0]",
            f"{q}.insert(1, {i})",
        ]))]

    def vec_write(self, scope: dict[str, str]) -> list[str]:
        g, i, t = self.expr(scope, "G", 1), self.expr(scope, "I"), self.expr(scope, "T", 1)
        name = self.assignable(scope, "G")
        forms = [[f"{g}.n = {i}"], [f"{g}.t = {t}"], [f"{g}.log = {i}"], [f"{g}.n += {i}"],
                 [f"{g}.t.add_({i})"], [f"del {g}.log"],
                 [f"Vec.__call__ = lambda self, t, **k: t + {i}"], [f"{g}.t += {t}"], [f"{g}.half.mul_(0.5)"],
                 [f"{g}.__dict__['_n'] = {i}"],
                 [f"Vec.extra = property(lambda self: self.n + {i})"], [f"vec.t = {t}", "vec.t.mul_(2)"],
                 ["vec.t = vec.t * 0.5"]]
        if name is not None:
            forms += [[f"{name} += {i}"], [f"{name} += {i}"]]
        return list(self.one(forms))

    def model_write(self, scope: dict[str, str]) -> list[str]:
        f, i, t = self.expr(scope, "F", 1), self.expr(scope, "I", 1), self.expr(scope, "T", 1)
        return list(self.one([
            [f"model.train({self.expr(scope, 'B')})"], ["model.eval()"], ["model.norm.eval()"],
            [f"model.drop.p = abs({f}) % 1"], [f"model.gain = {f}"],
            [f"model.last = {t}"], [f"model.steps.add_({i})"], [f"model.steps = torch.tensor({i})"],
            ["model.layers[1] = torch.nn.Identity()"],
            ["model.layers.append(torch.nn.Tanh())", "del model.layers[3:]"], [f"model.norm.momentum = abs({f}) % 1"],
            ["model.norm.running_mean.zero_()"],
            ["handle = model.register_forward_hook(lambda m, a, r: r * 0.5)", f"h = model(w).sum() * {f}",
             "handle.remove()"],
            ["if len(net._forward_pre_hooks) < 2:", f"    net.register_forward_pre_hook(lambda m, a: (a[0] + {i},))"],
            ["net._forward_pre_hooks.clear()"],
            [f"model.layers[0].weight.requires_grad_({self.expr(scope, 'B')})"],
            ["model.layers[0].weight.data.mul_(0.5)"], ["model.zero_grad()"],
            [f"model.register_buffer('extra', {t})"], ["model.half_w = model.layers[0].weight * 0.5"],
            ["model.load_state_dict(model.state_dict())"],
            ["model.requires_grad_(False)"], ["model.requires_grad_()"],
            ["model.apply(lambda m: setattr(m, 'seen_by', 1))"],
            ["for name, p in model.named_parameters():", "    if p.requires_grad and 'bias' in name:",
             f"        p.data.add_({f})"],
        ]))

    def training(self, scope: dict[str, str]) -> list[str]:
        """Backward passes and steps inside the function."""
        loss = self.one([f"model({self.expr(scope, 'W', 1)}).sum()", f"net({self.expr(scope, 'T', 1)}).sum()",
                         self.expr(scope, "S"),
                         f"(model({self.expr(scope, 'W', 1)}) * {self.expr(scope, 'F', 1)}).pow(2).mean()"])
        return list(self.one([
            [f"({loss}).backward()"], ["opt.zero_grad()", f"({loss}).backward()", "opt.step()"],
            [f"if ({loss}).requires_grad:", "    model.zero_grad(set_to_none=False)"],
            [f"loss = {loss}", "if loss.requires_grad:", "    loss.backward()",
             f"    shared.append({self.expr(scope, 'I', 1)})"],
            ["opt.step()"], ["opt.zero_grad()"], [f"opt.param_groups[0]['lr'] = abs({self.expr(scope, 'F', 1)})"],
            [f"loss = {loss}", "if loss.requires_grad:",
             "    gs = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)",
             "    shared.append(sum(g is not None for g in gs))"],
            ["with torch.no_grad():", "    for p in model.parameters():", "        if p.grad is not None:",
             "            p -= 0.125 * p.grad",
             "            p.grad = None"],
            [f"loss = {loss}", "if loss.requires_grad:", "    loss.backward(retain_graph=True)", "    loss.backward()"],
            ["x.grad = None"], ["if x.grad is not None:", "    x.grad.zero_()"],
            ["torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)"],
        ]))

    def odd_torch(self, scope: dict[str, str]) -> list[str]:
        """What programs do to tensors beside arithmetic, and to torch's state."""
        t, f, i = self.expr(scope, "T", 1), self.expr(scope, "F", 1), self.expr(scope, "I", 1)
        return list(self.one([
            [f"torch.manual_seed({i} % 9)"], [f"random.seed({i})"],
            [f"if {t}.requires_grad:", f"    {t}.register_hook(lambda g: g * {f})"],
            [f"{t}.tag = {i}"], [f"{t}.data = {t}.data * {f}"], ["x.requires_grad_(False)"],
            [f"h = {t} * 2", "if h.requires_grad:", "    h.retain_grad()", "    h.sum().backward()",
             "    shared.append(h.grad is None)"],
            [f"torch.set_grad_enabled({self.expr(scope, 'B')})"], [f"y.set_({t})"],
            [f"h = {t}", "if h.numel() > 1:", "    h.resize_(2)"],  # what it adds is memory with anything in it
            [f"{t}.unsqueeze_(0).squeeze_(0)"], [f"{t}.detach_()"],
            [f"h = {t}.clone()", "h.t = 3", "shared.append(h.t)"], [f"torch._assert({t}.shape[0] > 1, 'short')"],
            [f"h = {t}.expand(2, -1)", f"h[0] = {f}"], [f"h = {t}[:2]", f"{t}.mul_({f})", f"h.add_({i})"],
            [f"h = {t}.view(-1)", f"h[1:] *= {f}", f"{t}[:1] = h[-1:]"],
            [f"h = {t}.unbind(0)", "if h:", f"    {t}.add_(h[0])"], [f"vecs.append({t}[1:])", f"{t}.mul_({f})"],
            [f"named['v'] = {t}", f"named['v'][:1].add_({f})"],
            ["h = torch.empty(3)", f"h[:] = {f}", f"h[1:] = h[:-1] * {f}", "vecs.append(h)"],
            [f"h = [{t}] * 2", f"h[0].add_({f})", "vecs.extend(h)"],
            [f"a, b = {t}, {t}.clone()", "a, b = b, a", f"a += {f}"],
        ]))

    def unpack(self, scope: dict[str, str]) -> list[str]:
        """Unpacking into several names, swaps, chains."""
        a, b = self.name("i"), self.name("i")
        c, d = self.name("t"), self.name("t")
        ints, tensors = {a: "I", b: "I"}, {c: "T", d: "T"}
        lines, made = self.one([
            lambda: ([f"{a} = {b} = {self.expr(scope, 'I')}"], ints),
            lambda: ([f"({a}, *_), {b} = [{self.expr(scope, 'I')}, 2], {self.expr(scope, 'I')}"], ints),
            lambda: ([f"{c}, {d} = {self.expr(scope, 'T')}, {self.expr(scope, 'T')}", f"{c}, {d} = {d}, {c}"], tensors),
            lambda: ([f"{c}, {d} = {self.expr(scope, 'W')}.unbind(1)"], tensors),
            lambda: ([f"{c} = {d} = {self.expr(scope, 'T')}", f"{c} += {self.expr(scope, 'F', 1)}"], tensors),
            lambda: ([f"{c}, {a} = {self.expr(scope, 'G')}"], {c: "T", a: "I"}),
            lambda: ([f"{a}, {b} = divmod({self.expr(scope, 'I')}, 4)"], ints),
            lambda: ([f"{c}, {a} = Named({self.expr(scope, 'T')}, {self.expr(scope, 'I')})._replace(k=3)"],
                     {c: "T", a: "I"}),
            lambda: ([f"{c}, {d} = {self.expr(scope, 'T')}.max(0, keepdim=True)"], {c: "T", d: "N"}),
            lambda: ([f"{a}: int = {self.expr(scope, 'I')}", f"{b} = ({a} := {a} + 1)"], ints),
            lambda: ([f"{c}, {d} = torch.sort({self.expr(scope, 'T')})"], {c: "T", d: "N"}),
        ])()
        scope.update(made)
        self.own |= set(made)
        return list(lines)

    def delete(self, scope: dict[str, str]) -> list[str]:
        """`del` of a name; what is left of it shows in what shares its memory."""
        names = [name for name in self.own & set(scope) if name[-1:].isdigit()]
        if not names or self.functions or self.in_loop:
            return self.assign(scope)
        name = self.one(sorted(names))
        kind = scope[name]
        other = self.name("d")
        value = self.expr({k: v for k, v in scope.items() if k != name}, kind)
        return [f"kept.extra = {name}" if self.chance(50) else "pass", f"{other} = {value}", f"del {name}",
                f"{name} = {other}"]
