"""Expressions, drawn by the kind of their value."""

from __future__ import annotations

from collections.abc import Callable

from .carriers import carriers
from .drawing import Drawing


class Expressions(Drawing):
    """One method a kind: `_T(scope, e)` is an expression of kind T, whose operands `e(kind)` draws."""

    def expr(self, scope: dict[str, str], kind: str, depth: int = 2) -> str:
        if depth <= 0 or self.chance(35):
            name = self.variable(scope, kind)
            if name is not None:
                return name
        if depth <= 0:
            return self.constant(kind)
        if self.chance(7):
            carrier = self.one(carriers())
            self.carriers.add(carrier)
            return f"{carrier}({self.expr(scope, kind, depth - 1)})"
        return getattr(self, f"_{kind}")(scope, lambda k: self.expr(scope, k, depth - 1))

    def constant(self, kind: str) -> str:
        constants = {
            "T": ["torch.arange(3.0)", "torch.ones(3)"], "S": ["torch.tensor(0.75)"], "I": ["0", "1", "2", "7", "-3"],
            "F": ["0.5", "-1.25", "2.0"], "B": ["True", "False"], "X": ["'a'", "'bc'"], "L": ["[1, 2, 3]", "[]"],
            "V": ["[]"], "D": ["{'a': 1}", "{}"], "O": ["kept", "Box(1, 0.5)", "Deep(2, 1.5)"],
            "K": ["{1, 2}", "set()"], "E": ["{}"], "N": ["torch.arange(3)"],
            "M": ["(x > 0.25)", "torch.ones(3, dtype=torch.bool)"], "W": ["torch.ones(3, 2)", "w"],
            "Q": ["collections.deque([3, 1], maxlen=4)", "collections.deque()"], "G": ["vec", "Vec(x, 2)"],
            "P": ["net", "torch.sin", "vec", "(lambda v: v + 1)"],
        }
        return str(self.one(constants[kind]))

    def _T(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        if self.chance(14):
            return self._resized(e)
        forms: list[Callable[[], str]] = [
            lambda: f"({e('T')} + {e('T')})", lambda: f"({e('T')} * {e('F')})", lambda: f"({e('T')} - {e('I')})",
            lambda: f"({e('I')} - {e('T')})", lambda: f"torch.sin({e('T')})", lambda: f"{e('T')}.tanh()",
            lambda: f"torch.where({e('T')} > {e('F')}, {e('T')}, {e('T')})",
            lambda: f"({e('T')} / ({e('T')}.abs() + 1))", lambda: f"({e('T')} * {e('S')}.sin())",
            lambda: f"{e('O')}.scaled({e('T')})", lambda: f"{e('O')}.scaled({e('T')}, by={e('F')})",
            lambda: f"sum({e('V')}, {e('T')})",
            lambda: self.risky(f"{e('V')}[{e('I')}]", f"first({e('V')}[{e('I')}:], {e('T')})"),
            lambda: f"({e('T')} if {e('B')} else {e('T')})", lambda: f"(lambda v, w=2: v * w - {e('I')})({e('T')})",
            lambda: f"torch.stack([{e('T')}, {e('T')}]).mean(0)", lambda: f"{e('T')}.clone()",
            lambda: f"{e('T')}.detach()", lambda: f"{e('T')}.flip(0)", lambda: f"{e('T')}[:]",
            lambda: f"{e('T')}.view(-1)", lambda: f"torch.cat([{e('T')}, {e('T')}])[::2]",
            lambda: f"first({e('V')}, {e('T')})", lambda: f"functools.reduce(torch.add, {e('V')}, {e('T')})",
            lambda: f"({e('T')} * {e('T')}.shape[0] / 7)", lambda: f"net({e('T')})", lambda: f"({e('N')} / 4)",
            lambda: (lambda t: f"{t}.masked_fill({self.risky(e('M'), f'{t} > ' + e('F'))}, {e('F')})")(e("T")),
            lambda: f"{e('E')}.get({e('X')}, {e('T')})",
            lambda: self.risky(f"{e('E')}[{e('X')}]", f"first({e('E')}.values(), {e('T')})"),
            lambda: f"next(walk({e('V')}), {e('T')})", lambda: f"{e('T')}[{e('N')}.clamp(0, 0)]",
            lambda: f"torch.rand_like({e('T')})", lambda: f"{e('T')}.unsqueeze(0).expand(2, -1)[1]",
            lambda: f"({e('T')} + x)", lambda: f"Named({e('T')}, {e('I')}).t", lambda: f"Pair({e('T')}, {e('I')}).left",
            lambda: f"Slim({e('I')}, {e('T')}).t", lambda: f"torch.nn.functional.dropout({e('T')}, 0.5, {e('B')})",
            lambda: f"{e('W')}[:, {self.risky(e('I'), '1')}]", lambda: f"({e('W')} @ torch.ones(2))",
            lambda: f"{e('W')}.amax(1)", lambda: f"{e('W')}.mean(dim=-1)", lambda: f"{e('W')}.unbind(1)[0]",
            lambda: f"{e('P')}({e('T')})", lambda: f"{e('P')}({e('T')})", lambda: f"{e('G')}.t",
            lambda: f"{e('G')}.half", lambda: f"next(iter({e('G')}))",
            lambda: f"mean_of({e('T')}, *{e('V')}, **{e('E')})", lambda: f"mean_of({e('T')}, {e('T')}, by=torch.add)",
            lambda: f"shifted({e('T')}, {e('I')})", lambda: f"shifted({e('T')}, by={e('F')})",
            lambda: f"Twice.apply({e('T')})",
            lambda: f"torch.utils.checkpoint.checkpoint({e('P')}, {e('T')}, use_reentrant=False)",
            lambda: f"torch.bernoulli({e('T')}.sigmoid())", lambda: f"{e('T')}.double().sin().float()",
            lambda: f"{e('T')}.to(torch.float64)", lambda: f"{e('T')}.half().float()",
            lambda: f"{e('T')}.sort(descending={e('B')})[0]", lambda: f"{e('T')}.softmax(0)",
            lambda: f"{e('T')}.cumsum(0)", lambda: f"{e('T')}.roll({e('I')}, 0)",
            lambda: f"{e('T')}.index_select(0, {e('N')}.clamp(0, 0))",
            lambda: f"{e('T')}.gather(0, {e('N')}.abs() % 2)", lambda: f"torch.einsum('ij->i', {e('W')})",
            lambda: f"{e('T')}.clamp(max={e('F')})", lambda: f"torch.lerp({e('T')}, {e('T')}, {e('F')})",
            lambda: f"torch.ones_like({e('T')}, requires_grad={e('B')})", lambda: f"{e('T')}.contiguous()",
            lambda: f"copy.copy({e('T')})", lambda: f"({e('T')} ** 2)", lambda: f"({e('F')} / ({e('T')}.abs() + 1))",
            lambda: f"torch.func.grad(lambda v: v.sin().sum())({e('T')})",
            lambda: f"torch.vmap(lambda v: v * {e('F')})({e('T')})",
            lambda: f"(x.grad if x.grad is not None else {e('T')})",
            lambda: f"getattr({e('O')}, 'hook', torch.sin)({e('T')})",
            lambda: f"(hooks[-1] if hooks else torch.neg)({e('T')})", lambda: f"torch.autograd.grad({e('S')}, [x])[0]",
            lambda: f"Record({e('I')}, t={e('T')}).t", lambda: f"operator.attrgetter('t')({e('G')})",
            lambda: f"adder({e('T')})", lambda: f"adder({e('T')}, {e('F')})", lambda: f"({e('T')} * level)",
            lambda: f"elsewhere.tuned({e('T')})", lambda: f"elsewhere.fn({e('T')})",
            lambda: f"({e('T')} + elsewhere.rate)",
        ]
        if self.exact:
            forms += [lambda: f"torch.tensor({e('T')}.tolist())", lambda: f"{e('T')}[{e('T')}.argsort()]"]
        return str(self.one(forms)())

    def _resized(self, e: Callable[[str], str]) -> str:
        """Tensors of another size than most: what is combined with them raises, if nobody takes care."""
        forms: list[Callable[[], str]] = [
            lambda: f"torch.zeros({e('I')} % 5)", lambda: f"{e('T')}[{e('I')}:]",
            lambda: (lambda t: f"{t}[{self.risky(e('M'), f'{t} > ' + e('F'))}]")(e("T")),
            lambda: f"torch.rand({e('I')} % 4)", lambda: f"{e('T')}[::2]",
            lambda: f"{e('T')}.split(2)[{self.risky(e('I'), '0')}]", lambda: f"{e('T')}.narrow(0, 0, {e('I')} % 3)",
            lambda: f"torch.full(({e('I')} % 4,), {e('F')})", lambda: f"{e('W')}.sum({self.risky(e('I'), '1')})",
            lambda: f"{e('W')}.t()[0]", lambda: f"torch.randn({e('I')} % 4)", lambda: f"{e('T')}.repeat(2)[{e('I')}:]",
            lambda: f"torch.nn.functional.pad({e('T')}, (0, {e('I')} % 3))",
            lambda: f"torch.masked_select({e('T')}, {e('M')})", lambda: f"{e('T')}.new_zeros({e('I')} % 4)",
            lambda: f"torch.tensor([{e('F')}, {e('F')}, {e('F')}])", lambda: f"{e('T')}.as_strided((2,), (1,))",
        ]
        if self.exact:
            forms += [
                lambda: f"torch.zeros(int({e('S')}.abs().item() * 2) % 5)",
                lambda: f"{e('T')}[:{e('N')}.sum().item() % 5]", lambda: f"(torch.nonzero({e('M')}).flatten() / 3)",
                lambda: f"(torch.unique({e('N')}) * 0.5)",
            ]
        return str(self.one(forms)())

    def _N(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"torch.arange({e('I')} % 5)", lambda: f"({e('T')} > {e('F')}).long()",
            lambda: f"({e('N')} + {e('I')})", lambda: f"({e('N')} * {e('N')} % 13)", lambda: f"{e('N')}.cumsum(0)",
            lambda: f"torch.tensor({e('L')}, dtype=torch.int64)", lambda: f"{e('N')}.flip(0)",
            lambda: f"{e('N')}[{e('I')}:]", lambda: f"({e('N')} // {e('I')})", lambda: f"{e('N')}[{e('M')}]",
            lambda: f"torch.where({e('M')}, {e('N')}, {e('I')})", lambda: f"({e('N')} % {e('I')})",
            lambda: f"{e('T')}.sign().long()", lambda: f"torch.nonzero({e('M')})[:, 0]", lambda: f"{e('M')}.cumsum(0)",
            lambda: f"torch.tensor([{e('I')}, {e('I')}])", lambda: f"{e('W')}.argmax(1)",
            lambda: f"({e('N')} ** 2 % 7)",
            lambda: f"torch.randint(0, 5, ({e('I')} % 4,))", lambda: f"torch.bincount({e('N')}.abs())",
            lambda: f"{e('N')}.int()",
        ])())

    def _M(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"({e('T')} > {e('F')})", lambda: f"({e('N')} == {e('I')})", lambda: f"~{e('M')}",
            lambda: f"torch.isnan({e('T')})", lambda: f"({e('T')}.sort()[0] == {e('T')})",
            lambda: f"{e('M')}.logical_xor({e('M')})",
            lambda: f"({e('M')} & {e('M')})", lambda: f"({e('N')} > {e('N')})", lambda: f"({e('T')} < {e('T')})",
        ])())

    def _E(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"{{{e('X')}: {e('T')}}}", lambda: f"dict({e('E')})", lambda: f"{{**{e('E')}, 'q': {e('T')}}}",
            lambda: f"{{k: v * 2 for k, v in {e('E')}.items()}}", lambda: f"dict(zip('pqr', {e('V')}))",
            lambda: f"{e('O')}.named", lambda: f"dict.fromkeys([{e('X')}, {e('X')}], {e('T')})",
            lambda: f"collections.OrderedDict(sorted({e('E')}.items()))",
            lambda: f"collections.ChainMap({e('E')}, {e('E')})",
            lambda: f"dict(filter(lambda kv: kv[0] != {e('X')}, {e('E')}.items()))",
        ])())

    def _S(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"{e('T')}.sum()", lambda: f"{e('T')}.mean()", lambda: f"({e('S')} + {e('F')})",
            lambda: f"{e('T')}[{e('I')}]", lambda: f"({e('S')} * {e('S')}).cos()", lambda: f"torch.tensor({e('F')})",
            lambda: f"{e('T')}.norm()", lambda: f"{e('W')}.sum()", lambda: f"({e('T')} * {e('T')}).sum().sqrt()",
            lambda: f"{e('W')}[0, {self.risky(e('I'), '0')}]", lambda: f"torch.dot({e('T')}, x)",
            lambda: f"torch.nn.functional.mse_loss({e('T')}, {e('T')})", lambda: f"{e('T')}.max()",
            lambda: "next(model.parameters()).sum()",
            lambda: f"torch.as_tensor({e('F')})", lambda: f"{e('T')}.prod()", lambda: f"{e('T')}[0].detach()",
        ])())

    def _I(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        forms: list[Callable[[], str]] = [
            lambda: f"({e('I')} + {e('I')})", lambda: f"({e('I')} * {e('I')} % 97)",
            lambda: f"({e('I')} - {e('I')})",
            lambda: f"({e('I')} {self.one(['//', '%'])} {self.risky(e('I'), 'max(' + e('I') + ', 2)')})",
            lambda: f"len({e(self.one(['L', 'V', 'D', 'K', 'X', 'O']))})", lambda: f"{e('T')}.shape[0]",
            lambda: f"{e('T')}.dim()", lambda: f"{e('O')}.total", lambda: f"{e('O')}.double", lambda: f"sum({e('L')})",
            lambda: f"max({e('I')}, {e('I')})", lambda: f"abs({e('I')})", lambda: f"int({e('B')})",
            lambda: f"{e('D')}.get({e('X')}, {e('I')})",
            lambda: self.risky(f"{e('D')}[{e('X')}]", f"first({e('D')}.values(), {e('I')})"),
            lambda: f"({e('I')} if {e('B')} else {e('I')})",
            lambda: self.risky(f"{e('L')}[{e('I')}]", f"first({e('L')}[{e('I')}:], 4)"), lambda: "counter",
            lambda: f"plus({e('I')})", lambda: f"plus({e('I')}, {e('I')}, *{e('L')}, k={e('I')})",
            lambda: self.risky(f"plus(*[{e('I')}, {e('I')}], **{e('D')})", f"plus(1, 2, 3, **{{'z': {e('I')}}})"),
            lambda: "kept.total", lambda: "Box.made",
            lambda: f"kept.{self.one(['abc', 'missing', 'total', 'x'])}", lambda: f"(shared[-1] + {e('I')})",
            lambda: f"min({e('K')}, default={e('I')})", lambda: f"{e('L')}.count({e('I')})",
            lambda: f"first(evens({e('L')}), {e('I')})", lambda: f"sum(chained({e('L')}))",
            lambda: f"sum(i * {e('I')} for i in {e('L')} if i != {e('I')})",
            lambda: f"next(iter({e('L')}), 5)", lambda: f"({e('I')} ^ {e('I')})",
            lambda: f"((got := {e('I')}) + got)", lambda: f"round({e('F')})",
        ]
        forms += [
            lambda: f"{e('N')}.numel()", lambda: f"remember({e('I')})", lambda: "net.calls",
            lambda: f"below({e('O')}).total",
            lambda: f"{e('O')}.limit", lambda: f"Named(1, {e('I')}).k", lambda: f"len({e('E')})",
            lambda: f"{e('O')}.grid[0][{e('I')}]",
            lambda: self.risky(f"{e('Q')}[{e('I')}]", f"first({e('Q')}, 3)"),
            lambda: self.risky(f"{e('Q')}.pop()", f"sum({e('Q')})"), lambda: f"len({e('Q')})",
            lambda: f"{e('G')}.n", lambda: f"operator.index({e('G')})", lambda: f"[5, 6, 7][{e('G')}]",
            lambda: f"kind_of({e('T')})",
            lambda: f"kind_of({e('I')})", lambda: f"len(countdown({e('I')} % 6))",
            lambda: f"{e('W')}.size({self.risky(e('I'), '0')})",
            lambda: f"divmod({e('I')}, {self.risky(e('I'), '5')})[0]", lambda: f"({e('I')} << ({e('I')} % 5))",
            lambda: f"(-{e('I')} // 3)",
            lambda: f"({e('I')} * 10 ** 25 % 1009)", lambda: f"int({e('F')} * 4)", lambda: f"math.floor({e('F')})",
            lambda: f"~{e('I')}",
            lambda: f"max({e('L')}, key=lambda v: -v, default={e('I')})",
            lambda: f"collections.Counter({e('X')})[{e('X')}]",
            lambda: f"{e('X')}.find({e('X')})", lambda: "Color.RED.value",
            lambda: f"Color({e('I')} % 2 + 1).other.value",
            lambda: f"Record({e('I')}).tags[0]", lambda: f"dataclasses.replace(Record(3), k={e('I')}).k",
            lambda: "len(model.sizes)",
            lambda: f"operator.itemgetter(0)([{e('I')}, 2])", lambda: f"math.prod({e('L')}) % 50",
            lambda: f"len(list(itertools.pairwise({e('L')})))",
            lambda: f"{e('I')}.bit_length()", lambda: f"helper({e('I')})",
            lambda: f"sum(1 for _ in itertools.takewhile(bool, {e('L')}))",
            lambda: f"math.isqrt(abs({e('I')}))", lambda: f"(yes if (yes := {e('I')}) > 2 else {e('I')})",
            lambda: f"{e('T')}.numel()",
            lambda: f"{e('T')}.stride(0)", lambda: f"{e('T')}.storage_offset()", lambda: "len(hooks)",
            lambda: f"hash({e('G')})", lambda: "level", lambda: "len(elsewhere.items)",
            lambda: f"len(Box({e('I')}, 1))", lambda: f"abs({e('I')} - 3)",
        ]
        if self.exact:
            forms += [lambda: f"int({e('S')}.item() * 2)", lambda: f"({e('N')}.sum().item() % 11)",
                      lambda: f"{e('M')}.sum().item()", lambda: f"int({e('N')}[{e('I')}])",
                      lambda: f"sum({e('N')}.tolist())", lambda: f"int({e('T')}.argmax())", lambda: "int(model.steps)",
                      lambda: f"torch.nonzero({e('M')}).shape[0]", lambda: f"{e('T')}[{e('M')}].numel()",
                      lambda: "random.randint(0, 5)"]
        return str(self.one(forms)())

    def _F(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"({e('F')} + {e('F')})", lambda: f"({e('F')} * 0.5)", lambda: f"float({e('I')})",
            lambda: f"math.sin({e('F')})", lambda: f"({e('I')} / 4)", lambda: f"{e('O')}.weight", lambda: "scale",
            lambda: f"({e('F')} if {e('B')} else {e('F')})", lambda: f"{e('S')}.item()",
            lambda: f"max({e('F')}, {e('F')})", lambda: f"abs({e('F')})", lambda: f"math.sqrt(abs({e('F')}))",
            lambda: f"float('{self.one(['inf', '-0.0', '1e-3'])}')",
            lambda: f"({e('F')} % 1.5)", lambda: f"({e('F')} ** 2 % 9)", lambda: f"min({e('F')}, {e('I')})",
            lambda: f"float(f'{{{e('F')}:.1f}}')",
            lambda: f"math.fmod({e('F')}, 3)", lambda: "opt.param_groups[0]['lr']", lambda: "model.gain",
            lambda: f"math.hypot({e('F')}, 1.0)",
        ])())

    def _B(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"({e('I')} {self.one(['<', '>', '==', '!=', '<='])} {e('I')})", lambda: f"(not {e('B')})",
            lambda: f"({e('B')} and {e('B')})", lambda: f"({e('B')} or {e('B')})",
            lambda: f"({e('I')} in {e(self.one(['L', 'K']))})", lambda: f"({e('X')} in {e('D')})",
            lambda: f"({e('I')} < {e('I')} <= {e('I')})", lambda: f"({e('T')} is {e('T')})",
            lambda: f"({e('O')} is kept)", lambda: f"({e('O')} == {e('O')})", lambda: f"isinstance({e('O')}, Deep)",
            lambda: f"bool({e(self.one(['L', 'D', 'K', 'X', 'O']))})", lambda: f"{e('T')}.requires_grad",
            lambda: f"bool({e('S')} > 0.1237)", lambda: f"({e('F')} < {e('F')})",
            lambda: f"any(i > {e('I')} for i in {e('L')})", lambda: f"all({e('L')})",
            lambda: f"({e('L')} == {e('L')})", lambda: f"(len({e('V')}) > 1)",
            lambda: f"bool({e('M')}.any())", lambda: "net.training", lambda: f"({e('X')} in {e('E')})",
            lambda: f"hasattr({e('O')}, 'extra')", lambda: f"{e('T')}.is_contiguous()",
            lambda: f"bool({e('G')})", lambda: f"({e('I')} in {e('G')})", lambda: f"({e('G')} < {e('G')})",
            lambda: f"callable({e('P')})",
            lambda: f"({e('I')} in {e('Q')})", lambda: f"({e('F')} == {e('F')})", lambda: "model.training",
            lambda: f"{e('X')}.startswith({e('X')})",
            lambda: f"(Record({e('I')}) < Record({e('I')}))", lambda: f"({e('X')} < {e('X')})",
            lambda: f"(Color({e('I')} % 2 + 1) is Color.RED)",
            lambda: f"({e('K')} <= {e('K')})", lambda: f"({e('D')} == {e('D')})", lambda: "torch.is_grad_enabled()",
            lambda: f"({e('T')}.grad_fn is None)",
            lambda: f"{e('T')}.is_leaf", lambda: f"({e('T')}.shape == {e('T')}.shape)",
            lambda: f"isinstance({e('T')}, torch.Tensor)",
            lambda: f"torch.equal({e('T')}, {e('T')})", lambda: f"({e('T')}.dtype is torch.float32)",
            lambda: f"math.isclose({e('F')}, {e('F')})",
            lambda: f"hasattr({e('G')}, {e('X')})", lambda: "x.grad is None",
            lambda: f"torch.allclose({e('T')}, {e('T')})",
            lambda: f"not (yes := {e('B')}) or yes", lambda: f"({e('O')} in [kept, {e('O')}])",
            lambda: f"({e('V')} is {e('V')})", lambda: f"any(v is x for v in {e('V')})",
            lambda: f"({e('L')} is {e('L')})", lambda: f"({e('G')} is not {e('G')})", lambda: f"({e('E')} is {e('E')})",
            lambda: "(x.data_ptr() == y.data_ptr())", lambda: f"({e('P')} is {e('P')})",
        ])())

    def _X(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"f'{{{e('I')}}}'", lambda: f"({e('X')} + {e('X')})", lambda: f"{e('X')}.upper()",
            lambda: f"','.join(str(i) for i in {e('L')})", lambda: f"first({e('D')}, {e('X')})",
            lambda: f"type({e('O')}).__name__", lambda: f"'%s-%d' % ({e('X')}, {e('I')})", lambda: f"({e('X')} * 2)",
            lambda: f"{e('X')}[-1:]", lambda: f"f'{{{e('F')}:.2f}}|{{{e('I')}:>4}}'",
            lambda: f"f'{{{e('G')}:>3}}{{{e('I')}!r}}'",
            lambda: f"{e('X')}.replace('a', {e('X')})", lambda: f"'-'.join(sorted({e('D')}))",
            lambda: f"'{{}}:{{n}}'.format({e('X')}, n={e('I')})",
            lambda: f"str({e('L')})", lambda: f"repr({e('F')})", lambda: f"{e('X')}.split(',')[0]",
            lambda: f"{e('X')}.zfill(4).strip('0')",
            lambda: f"Color({e('I')} % 2 + 1).name", lambda: f"str({e('T')}.dtype)", lambda: f"repr(Record({e('I')}))",
            lambda: f"str({e('T')}.shape)",
            lambda: f"f'{{Color.RED}} {{tuple({e('L')})}}'", lambda: f"max({e('X')}, {e('X')}, key=len)",
            lambda: f"{e('X')}.title().swapcase()",
        ])())

    def _L(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"[{e('I')}, {e('I')}]", lambda: f"[i + {e('I')} for i in {e('L')}]", lambda: f"list({e('L')})",
            lambda: f"({e('L')} + {e('L')})", lambda: f"sorted({e('L')}, key=lambda i: -i)", lambda: f"{e('O')}.items",
            lambda: f"list(range({e('I')} % 5))", lambda: f"{e('L')}[{e('I')}:]", lambda: f"list({e('D')}.values())",
            lambda: f"[a * b for a, b in zip({e('L')}, {e('L')})]", lambda: f"[*{e('L')}, {e('I')}]",
            lambda: f"list(map(lambda i: i % 5, {e('L')}))", lambda: "shared", lambda: f"sorted({e('K')})",
            lambda: f"list(evens({e('L')}))",
            lambda: f"list(careful({e('L')}))", lambda: f"({e('L')} if {e('B')} else {e('L')})",
            lambda: f"list(itertools.accumulate({e('L')}))", lambda: f"list(reversed({e('L')}))",
            lambda: f"list({e('Q')})", lambda: f"countdown({e('I')} % 4)",
            lambda: f"[*itertools.chain({e('L')}, {e('Q')})]",
            lambda: f"[got for v in {e('L')} if (got := v * 2) > {e('I')}]", lambda: f"{e('L')}[::-1]",
            lambda: f"{e('L')}[-2:]", lambda: f"[len(list(g)) for _, g in itertools.groupby({e('L')})]",
            lambda: f"[sum(c) for c in itertools.combinations({e('L')}[:4], 2)]", lambda: f"copy.deepcopy({e('L')})",
            lambda: f"list({e('T')}.shape)",
            lambda: f"list(filter(None, {e('L')}))", lambda: f"[a for a, *_ in zip({e('L')}, {e('L')}, 'abc')]",
            lambda: f"list(collections.Counter({e('L')}).values())",
            lambda: f"[v.n for v in sorted([{e('G')}, {e('G')}])]", lambda: f"[*{{*{e('L')}}}]",
            lambda: f"(lambda *a, **k: [*a, len(k)])(*{e('L')}, **{e('D')})",
            lambda: f"[i for row in [{e('L')}, {e('L')}] for i in row][:6]",
        ])())

    def _V(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"[{e('T')}, {e('T')}]", lambda: f"[v * 2 for v in {e('V')}]", lambda: f"list({e('V')})",
            lambda: f"({e('V')} + [{e('T')}])", lambda: f"{e('V')}[{e('I')}:]", lambda: f"{e('V')}[::-1]",
            lambda: f"[v for i, v in enumerate({e('V')}) if i != {e('I')}]",
            lambda: f"list({e('E')}.values())", lambda: f"list(walk({e('V')}))", lambda: f"list({e('T')}.split(2))",
            lambda: f"list(map(torch.sin, {e('V')}))", lambda: f"list({e('W')}.unbind(1))",
            lambda: f"list({e('T')}.chunk(2))",
            lambda: f"[{e('P')}(v) for v in {e('V')}]", lambda: f"list({e('E')}.values())",
            lambda: f"copy.copy({e('V')})",
            lambda: f"sorted({e('V')}, key=lambda v: -v.shape[0])",
            lambda: f"list(torch.broadcast_tensors({e('T')}, {e('S')}))",
        ])())

    def _D(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"{{{e('X')}: {e('I')}}}", lambda: f"dict({e('D')})", lambda: f"{{**{e('D')}, 'z': {e('I')}}}",
            lambda: f"{{str(i): i for i in {e('L')}}}", lambda: f"({e('D')} | {e('D')})",
            lambda: f"dict(zip('abc', {e('L')}))", lambda: f"collections.OrderedDict({e('D')})",
            lambda: f"collections.Counter({e('X')})",
            lambda: f"collections.defaultdict(int, {e('D')})",
            lambda: f"{{k: v for v, k in enumerate(reversed(list({e('D')})))}}",
            lambda: f"copy.deepcopy({e('D')})", lambda: f"collections.ChainMap({e('D')}, {e('D')})",
            lambda: f"dict(sorted({e('D')}.items(), key=lambda kv: kv[1]))",
        ])())

    def _O(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"Box({e('I')}, {e('F')})", lambda: f"Deep({e('I')}, {e('F')})", lambda: f"{e('O')}.add({e('I')})",
            lambda: f"({e('O')} + {e('O')})", lambda: f"({e('O')} + {e('I')})", lambda: "kept",
            lambda: f"below({e('O')})",
        ])())

    def _K(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"set({e('L')})", lambda: f"({e('K')} | {e('K')})", lambda: f"({e('K')} & {e('K')})",
            lambda: f"{{i % 3 for i in {e('L')}}}", lambda: f"({e('K')} - {{{e('I')}}})",
        ])())

    def _W(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"({e('W')} + {e('W')})", lambda: f"({e('W')} * {e('F')})",
            lambda: f"torch.stack([{e('T')}, {e('T')}], 1)",
            lambda: f"model({e('W')})", lambda: f"model.layers[0]({e('W')})", lambda: f"({e('W')} @ torch.ones(2, 2))",
            lambda: f"{e('W')}.softmax(-1)", lambda: f"({e('W')} * {e('T')}[:, None])", lambda: f"{e('W')}[{e('I')}:]",
            lambda: f"{e('W')}.flip(1)", lambda: f"{e('W')}.t().contiguous().t()",
            lambda: f"{e('W')}.view(-1).view(-1, 2)",
            lambda: f"{e('T')}.unsqueeze(1).expand(-1, 2)", lambda: f"{e('W')}[{e('M')}]",
            lambda: f"{e('W')}[{e('N')}.clamp(0, 0)]",
            lambda: f"torch.nn.functional.layer_norm({e('W')}, (2,))", lambda: f"torch.cat([{e('W')}, {e('W')}])[::2]",
            lambda: f"{e('W')}.transpose(0, 1).transpose(0, 1)", lambda: f"{e('W')}.clone()",
            lambda: f"{e('W')}.reshape(-1, 2)",
            lambda: f"torch.zeros({e('I')} % 4, 2)",
            lambda: f"torch.nn.functional.linear({e('W')}, model.layers[0].weight)",
            lambda: f"torch.addmm(torch.ones(2), {e('W')}, torch.ones(2, 2))",
            lambda: f"torch.einsum('ij,jk->ik', {e('W')}, torch.eye(2))",
            lambda: f"torch.nn.functional.embedding({e('N')}.clamp(0, 1), torch.eye(2))", lambda: f"{e('W')}.tanh()",
            lambda: f"torch.nn.functional.gelu({e('W')})",
            lambda: f"{e('W')}.masked_fill({e('W')} > {e('F')}, {e('F')})",
        ])())

    def _Q(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"collections.deque({e('L')})", lambda: f"collections.deque({e('L')}, maxlen=3)",
            lambda: f"{e('Q')}.copy()",
            lambda: f"collections.deque(reversed({e('Q')}))", lambda: f"({e('Q')} + {e('Q')})", lambda: "model.sizes",
        ])())

    def _G(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"Vec({e('T')}, {e('I')})", lambda: f"Vec.of({e('T')}, *{e('L')})",
            lambda: f"({e('G')} + {e('G')})", lambda: f"({e('F')} * {e('G')})",
            lambda: f"(-{e('G')})", lambda: f"({e('G')} + {e('F')})", lambda: f"Vec.join({e('G')}, {e('G')})",
            lambda: f"({e('F')} - {e('G')})", lambda: "vec",
            lambda: f"copy.copy({e('G')})", lambda: f"({e('G')} if {e('B')} else {e('G')})",
        ])())

    def _P(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"(lambda v, k={e('I')}: v * k)", lambda: f"(lambda v: v + {e('T')})",
            lambda: f"functools.partial(torch.mul, other={e('F')})", lambda: "net",
            lambda: f"{e('O')}.scaled", lambda: f"{e('G')}", lambda: f"halving({e('P')})",
            lambda: f"functools.partial(shifted, by={e('I')})", lambda: "torch.tanh",
            lambda: f"[torch.sin, torch.cos][{e('I')} % 2]", lambda: "torch.nn.ReLU()",
            lambda: f"operator.methodcaller('mul', {e('F')})", lambda: f"({e('P')} if {e('B')} else {e('P')})",
            lambda: "torch.nn.Sequential(net, torch.nn.Tanh())", lambda: "torch.no_grad()(torch.sin)",
            lambda: "Twice.apply",
        ])())

    def result(self, scope: dict[str, str]) -> str:
        """What the function returns: tensors, then what else is at hand, in a container of some kind."""
        kinds = ["T", *(self.one("TSIFBXLVDOKNMEWQGP") for _ in range(self.draw(0, 3)))]
        parts = [self.expr(scope, kind) for kind in kinds]
        if self.chance(6):
            parts.append(self.one([f"evens({self.expr(scope, 'L')})", f"map(abs, {self.expr(scope, 'L')})",
                                   f"(i * 2 for i in {self.expr(scope, 'L')})", f"zip({self.expr(scope, 'L')}, 'abc')",
                                   "(lambda: counter)", f"functools.partial(plus, {self.expr(scope, 'I')})"]))
        joined = ", ".join(parts)
        return str(self.one([f"({joined},)", f"[{joined}]", f"{{'r': [{joined}]}}", parts[0]]))
