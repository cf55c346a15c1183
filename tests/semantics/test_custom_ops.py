"""Custom operators, torch.ops and scripted functions. PYTEST_DONT_REWRITE: cases run as they are written."""

from __future__ import annotations

import torch
import torch.ao.quantization.fx._decomposed  # (it defines the operators quantized_decomposed)

import jitpy
from tests.semantics.harness import case, make_test

_LIB = torch.library.Library("jitpysem", "DEF")
_LIB.define("plus(Tensor a, Scalar b) -> Tensor")
_LIB.define("fill_one_(Tensor(a!) a) -> Tensor(a!)")
_LIB.define("no_rule(Tensor a) -> Tensor")
_LIB.define("several(Tensor a, int n) -> Tensor[]")
_LIB.define("shape_only(Tensor a) -> int")
_LIB.impl("plus", lambda a, b: a + b, "CompositeImplicitAutograd")
_LIB.impl("fill_one_", lambda a: a.fill_(1), "CPU")
_LIB.impl("no_rule", lambda a: a.clone() * 3, "CPU")
_LIB.impl("several", lambda a, n: [a * i for i in range(n)], "CompositeExplicitAutograd")
_LIB.impl("shape_only", lambda a: a.shape[0] * 2, "CompositeExplicitAutograd")

CALLS: list[str] = []


@torch.library.custom_op("jitpysem::twice", mutates_args=())
def twice(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    CALLS.append("twice")
    return x * scale


@twice.register_fake
def _(x, scale=2.0):
    return torch.empty_like(x)


def _twice_setup(ctx, inputs, output):
    ctx.scale = inputs[1]


def _twice_backward(ctx, grad):
    return grad * ctx.scale, None


twice.register_autograd(_twice_backward, setup_context=_twice_setup)


@torch.library.custom_op("jitpysem::split_sum", mutates_args=())
def split_sum(x: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return x[:n].clone(), x.sum()


@split_sum.register_fake
def _(x, n):
    return x.new_empty(n), x.new_empty(())


@torch.library.custom_op("jitpysem::accumulate", mutates_args=("out",))
def accumulate(out: torch.Tensor, x: torch.Tensor) -> None:
    out += x


@accumulate.register_fake
def _(out, x):
    return None


@torch.library.custom_op("jitpysem::without_fake", mutates_args=())
def without_fake(x: torch.Tensor) -> torch.Tensor:
    return x.flip(0)


@torch.library.custom_op("jitpysem::raises", mutates_args=())
def raises(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("from the kernel")


@raises.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("jitpysem::count_positive", mutates_args=())
def count_positive(x: torch.Tensor) -> int:
    return int((x > 0).sum())


@torch.library.custom_op("jitpysem::picky", mutates_args=())
def picky(x: torch.Tensor) -> torch.Tensor:
    if bool(x.sum() < 0):
        raise ValueError("negative")
    return x * 2


@picky.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("jitpysem::numbered", mutates_args=())
def numbered(x: torch.Tensor) -> torch.Tensor:
    CALLS.append(str(len(CALLS)))
    return x + len(CALLS)


@numbered.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("jitpysem::quantize_rows", mutates_args=())
def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round().to(torch.int8), scale


@quantize_rows.register_fake
def _(x):
    return torch.empty_like(x, dtype=torch.int8), x.new_empty((*x.shape[:-1], 1))


@torch.library.custom_op("jitpysem::optional", mutates_args=())
def optional(x: torch.Tensor, y: torch.Tensor | None, words: str, sizes: list[int]) -> list[torch.Tensor]:
    return [x.reshape(sizes).clone() if words == "reshape" else x.clone(), x + 1 if y is None else x + y]


@optional.register_fake
def _(x, y, words, sizes):
    return [x.new_empty(sizes) if words == "reshape" else torch.empty_like(x), torch.empty_like(x)]


@torch.jit.script
def scripted(x, n: int):
    for _ in range(n):
        x = x + 1
    if bool(x.sum() > 0):
        return x
    return -x


@torch.jit.script
def scripted_bucket(x, size: int, top: int):
    sign = torch.sign(x)
    middle = size // 2
    near = torch.where((x < middle) & (x > -middle), torch.tensor(middle - 1).type_as(x), torch.abs(x))
    log = torch.ceil(torch.log(near / middle) / torch.log(torch.tensor((top - 1) / middle)) * (middle - 1)) + middle
    return torch.where(near <= middle, x.type_as(log), log * sign)


@torch.jit.script
def scripted_expand(x, y):
    return x.expand([y.size(0), y.size(1), x.size(-1)])


@torch.jit.script
def scripted_asks(x):
    if torch.jit.is_scripting():
        return x + 1
    return x + 2


def helper_of_scripts(x):
    return x + 1


@torch.jit.script
def scripted_helped(x):
    return helper_of_scripts(x) * 2


@torch.jit.script
def scripted_power(x, n: int):
    return x * (n ** 2)


@torch.jit.script
def scripted_divisions(x, n: int, m: int):
    return x * (n // m) + n % m - n / m


@torch.jit.script
def scripted_product(x, n: int):
    return x + n * n


@torch.jit.script
def scripted_default(x, scale: float = 0.5, bias: torch.Tensor | None = None):
    left, right = (x * scale).chunk(2)
    if bias is not None:
        left = left + bias
    return torch.cat([right, left]), x.shape[0], left.dtype == torch.float32


@torch.jit.script
def scripted_dtypes(x):
    a = x.to(torch.bfloat16).to(torch.float64) + torch.zeros(x.shape[1], dtype=torch.float32)
    b = torch.ones_like(x, dtype=torch.int32, memory_format=torch.contiguous_format) + torch.tensor(2, dtype=x.dtype)
    return a, b, x[:, 1:].sum(dtype=torch.half)


@torch.jit.script
def scripted_in_place(x):
    x.mul_(2)
    y = torch.zeros_like(x)
    y += x
    return y[0]


@torch.jit.script
def scripted_loop(x, n: int):
    for i in range(n):
        if i % 2 == 1:
            x = x + i
        elif x.dim() > 1:
            return x * 2
    while n > 0:
        x = x - n
        n -= 1
    return x


@torch.jit.script
def scripted_list(x):
    kept = [x]
    kept.append(x + 1)
    return kept


@torch.jit.script
def scripted_raises(x, n: int):
    if n > 1:
        raise ValueError("too many")
    return x * n


traced = torch.jit.trace(lambda x: x * 2 + 1, torch.ones(4))


def vec(*sizes: int) -> torch.Tensor:
    return torch.randn(*(sizes or (4,)))


def one():
    return (vec(),)


@case(one, lambda: (vec(6),), fullgraph=True, globals={"CALLS": list})
def custom_op(x):
    return twice(x + 1) - 1


@case(one, globals={"CALLS": list})
def custom_op_twice_on_the_same(x):
    return numbered(x) * 2 - numbered(x)


@case(one, fullgraph=True)
def custom_op_keyword(x):
    return twice(x, scale=3.0)


@case(lambda: (vec().requires_grad_(),), fullgraph=True)
def custom_op_gradient(x):
    return twice(x * 2).sin()


@case(one, fullgraph=True)
def custom_op_several_results(x):
    a, b = split_sum(x, 2)
    return a * b


@case(lambda: (vec(3, 8),), lambda: (vec(5, 8),), fullgraph=True)
def custom_op_named_like_quantisation(x):
    numbers, scale = quantize_rows(x * 2)
    return numbers.float() * scale, numbers


@case(one, fullgraph=True)
def quantisation_to_plain_numbers(x):
    return torch.ops.quantized_decomposed.quantize_per_tensor(x * 2, 0.1, 0, -128, 127, torch.int8) + 1


@case(one, lambda: (vec(5),), lambda: (vec(7),))
def custom_op_changing_sizes(x):
    return split_sum(x, 2)


@case(lambda: (vec(), vec()))
def custom_op_mutates(out, x):
    accumulate(out, x * 2)
    return out + 1


@case(one)
def custom_op_mutates_local(x):
    out = torch.zeros(4)
    view = out[:2]
    accumulate(out, x)
    accumulate(out, x)
    return out, view


@case(one)
def custom_op_without_fake(x):
    return without_fake(x + 1) * 2


@case(one)
def custom_op_raises(x):
    try:
        return raises(x)
    except ValueError as error:
        return str(error)


LIBRARY = torch.library.Library("jitpysem_library", "DEF")
LIBRARY.define("above_two(Tensor x) -> Tensor")
LIBRARY.impl("above_two", lambda x: torch.from_numpy(x.numpy()[x.numpy() > 2]), "CPU")
LIBRARY.define("first_used_inside(Tensor x) -> Tensor")
LIBRARY.impl("first_used_inside", lambda x: x * 2, "CPU")
LIBRARY.impl("first_used_inside", torch.empty_like, "Meta")


@torch.library.register_fake("jitpysem_library::above_two")
def _(x):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


@case(lambda: (torch.arange(6.0),), lambda: (torch.arange(4.0),), lambda: (torch.arange(9.0),))
def custom_op_whose_sizes_depend_on_data(x):
    """For zeros and for ones its result is empty."""
    found = torch.ops.jitpysem_library.above_two(x)
    return found, found + 1, x[found.long()[:1]]


@case(one)
def custom_op_first_used_inside(x):
    return torch.ops.jitpysem_library.first_used_inside(x) + 1


def test_names_of_operators_are_looked_up_once() -> None:
    """The first use of an operator's name changes `torch.ops`; it is captured all the same."""
    library = torch.library.Library("jitpysem_names", "DEF")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: x * 2, "CompositeImplicitAutograd")
    assert "double" not in vars(torch.ops.jitpysem_names)
    report = jitpy.explain(lambda x: torch.ops.jitpysem_names.double(x) + 1)(torch.ones(3))
    assert report.result.tolist() == [3.0] * 3 and report.graph_break_count == 0


def positive():
    return (vec().abs(),)


def negative():
    return (-vec().abs(),)


@case(positive, negative, positive, fullgraph=True, handles_errors=True)
def custom_op_raises_for_some(x):
    log = []
    try:
        log.append("tried")
        y = picky(x + 0.0) + 1
        log.append("passed")
    except ValueError as error:
        y, log = x.sin(), [*log, str(error)]
    finally:
        log.append("left")
    return y, log


@case(lambda: (vec().abs(), vec()), lambda: (vec().abs(), vec(3)))
def custom_op_writes_in_try(out, x):
    try:
        accumulate(out, x)
        return picky(out.abs())
    except RuntimeError:
        return out + 1


@case(one)
def custom_op_host_result(x):
    return x * count_positive(x)


@case(one)
def custom_op_all_kinds(x):
    return optional(x, None, "reshape", [2, 2]), optional(x, x, "same", [])


@case(one)
def custom_op_wrong_arguments(x):
    try:
        return twice(x, 1, 2, 3)
    except Exception as error:
        return type(error).__name__


@case(one, fullgraph=True)
def custom_op_by_name(x):
    return torch.ops.jitpysem.twice(x) + torch.ops.jitpysem.twice.default(x, 0.5)


@case(one)
def custom_op_under_vmap(x):
    return torch.vmap(lambda t: t * 2)(x) + twice(x)


@case(one, fullgraph=True)
def library_composite(x):
    return torch.ops.jitpysem.plus(x, 2)


@case(one)
def library_writes(x):
    y = x.clone()
    out = torch.ops.jitpysem.fill_one_(y)
    return out is y, y


@case(one)
def library_no_rule(x):
    return torch.ops.jitpysem.no_rule(x) + 1


@case(one)
def library_list(x):
    return torch.ops.jitpysem.several(x, 3)


@case(one)
def library_number(x):
    return x * torch.ops.jitpysem.shape_only(x)


@case(one, fullgraph=True)
def aten_overloads(x):
    y = torch.ops.aten.add.Tensor(x, x, alpha=2)
    z = torch.ops.aten.mul(y, 3)
    return torch.ops.aten.sum.dim_IntList(torch.ops.aten.view(z, [2, 2]), [1])


@case(one)
def aten_out(x):
    out = torch.empty(4)
    torch.ops.aten.add.out(x, x, out=out)
    return out


@case(one, fullgraph=True)
def prims_op(x):
    return torch.ops.prims.sin(x)


@case(one)
def op_attributes(x):
    op = torch.ops.aten.add
    return x + len(op.overloads()), op.Tensor._schema.name, str(op.Tensor)


@case(one)
def script_function(x):
    return scripted(x * 2, 2) + 1


@case(lambda: (torch.arange(-40, 40),), fullgraph=True)
def script_function_of_numbers(x):
    return scripted_bucket(x, 16, 64) + 1


@case(
    lambda: (torch.randn(3), torch.randn(2, 4, 1)),
    lambda: (torch.randn(3), torch.randn(4, 5, 1)),
    lambda: (torch.randn(3), torch.randn(6, 7, 1)),
    fullgraph=True,
)
def script_function_of_sizes(x, y):
    return scripted_expand(x, y) * 2


@case(one)
def script_function_that_asks(x):
    return scripted_asks(x) * 2


@case(one)
def script_function_that_raises(x):
    first = scripted_raises(x, 1)
    try:
        return scripted_raises(x, 2)
    except Exception as error:
        return first, type(error).__name__


@case(one, fullgraph=True, globals={"helper_of_scripts": lambda: torch.neg})
def script_function_of_a_helper_that_was_replaced(x):
    return scripted_helped(x) - 1


@case(lambda: (torch.arange(4),), lambda: (torch.randn(4),))
def script_function_with_a_power(x):
    return scripted_power(x, 3)


@case(one, lambda: (torch.arange(4),), fullgraph=True)
def script_function_that_divides(x):
    return [scripted_divisions(x, n, m) for n in (-7, 7, 0) for m in (-3, 3)]


@case(one)
def script_function_that_divides_by_zero(x):
    try:
        return scripted_divisions(x, 1, 0)
    except Exception as error:
        return type(error).__name__


@case(
    lambda: (torch.arange(4), 2), lambda: (torch.arange(4), 3), lambda: (torch.arange(4), 4),
    lambda: (torch.arange(4), 2**33 + 1), lambda: (torch.arange(4), -(2**63)), lambda: (torch.arange(4), 5),
)
def script_function_whose_ints_overflow(x, n):
    return scripted_product(x, n)


@case(one, lambda: (torch.arange(6),), fullgraph=True)
def script_function_with_defaults(x):
    return scripted_default(x), scripted_default(x, bias=x[:1]), scripted_default(x, scale=2.0)


@case(one)
def script_function_with_an_int_for_a_float(x):
    return scripted_default(x, 2), scripted_default(x, True)


@case(lambda: (torch.randn(3, 4),), lambda: (torch.arange(12).reshape(3, 4),), fullgraph=True)
def script_function_of_dtypes(x):
    return scripted_dtypes(x)


@case(lambda: (torch.randn(3, 4),), fullgraph=True)
def script_function_that_writes(x):
    row = scripted_in_place(x)
    row += 1
    return row, x


@case(one, lambda: (torch.randn(3, 4),), fullgraph=True)
def script_function_with_loops(x):
    return scripted_loop(x, 3), scripted_loop(x, 0), scripted_loop(x, -2)


@case(one)
def script_function_of_lists(x):
    return scripted_list(x)


@case(one)
def script_function_with_another_type(x):
    try:
        return scripted(x, 1.5)
    except Exception as error:
        return type(error).__name__


@case(one, lambda: (torch.randn(4, requires_grad=True),))
def traced_function(x):
    return traced(x) - 1


@case(one, factory=True)
def script_module():
    torch.manual_seed(0)
    model = torch.jit.script(torch.nn.Linear(4, 3))

    def fn(x):
        return model(x + 1) * 2

    return fn


test_all = make_test(__name__)
