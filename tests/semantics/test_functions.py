"""Functions: closures, arguments, decorators, recursion. PYTEST_DONT_REWRITE: cases run as they are written."""

from __future__ import annotations

import functools
from typing import Any

import torch

from tests.semantics.harness import Keywords, case, make_test


def vec(*sizes: int) -> torch.Tensor:
    return torch.randn(*(sizes or (4,)))


def two() -> tuple[Any, ...]:
    return vec(), vec()


@case(lambda: (vec(),), lambda: (vec(6),), fullgraph=True)
def straight_line(x):
    y = x * 2
    z = y + x
    return z - 1


@case(two, fullgraph=True)
def several_results(x, y):
    return x + y, [x - y], {"p": x * y, "q": (y, x)}


@case(lambda: (vec(),), fullgraph=True)
def returns_nothing(x):
    x + 1


@case(lambda: (), fullgraph=True)
def no_arguments():
    return torch.ones(3) + torch.arange(3)


@case(lambda: (1, 2.5, "s"), lambda: (2, 2.5, "s"), lambda: (3, 1.5, "t"))
def no_tensors(a, b, c):
    return a + b, c * a, (a, b, c)


@case(lambda: (vec(),), factory=True, fullgraph=True)
def closure_read():
    scale = torch.tensor([1.0, 2.0, 3.0, 4.0])
    shift = 3

    def fn(x):
        return x * scale + shift

    return fn


@case(lambda: (vec(),), factory=True)
def closure_counter():
    calls = 0

    def fn(x):
        nonlocal calls
        calls += 1
        return x + calls, calls

    return fn, fn.__closure__


@case(lambda: (vec(),), factory=True, fullgraph=True)
def closure_tensor_replaced():
    total = torch.zeros(4)

    def fn(x):
        nonlocal total
        total = total + x
        return total * 2

    return fn, fn.__closure__


@case(lambda: (vec(),), fullgraph=True)
def inner_function(x):
    def inner(y, factor=2):
        return y * factor + x

    return inner(x) + inner(x, 3) + inner(factor=4, y=x)


@case(lambda: (vec(),), fullgraph=True)
def inner_nonlocal(x):
    count = 0

    def bump():
        nonlocal count
        count += 1
        return x * count

    a = bump()
    b = bump()
    return a, b, count


@case(lambda: (vec(),))
def returns_closure(x):
    y = x + 1

    def later(z):
        return y + z

    return later, y


@case(lambda: (vec(),), fullgraph=True)
def closures_made_in_a_loop(x):
    fns = []
    for i in range(3):
        fns.append(lambda t: t * i)  # the late binding is the point
    return [f(x) for f in fns]


@case(lambda: (vec(),), fullgraph=True)
def closures_with_default_in_a_loop(x):
    fns = [lambda t, i=i: t * i for i in range(3)]
    return [f(x) for f in fns]


@case(lambda: (vec(),), fullgraph=True)
def lambda_immediately(x):
    return (lambda a, *b, k=1, **c: (a * k, b, c))(x, 2, x, k=3, z=x)


@case(lambda: (vec(), 1, 2), lambda: (vec(), 1), lambda: (vec(), 1, 2, 3))
def var_args(x, *rest):
    return x + len(rest), rest, rest[0]


@case(
    lambda: (vec(), Keywords(a=1, b=vec())),
    lambda: (vec(), Keywords(b=vec(), a=1)),
    lambda: (vec(), Keywords(b=vec())),
)
def var_keywords(x, **options):
    return x * options.get("a", 5) + options["b"], list(options), options


@case(lambda: (vec(), Keywords(k=2.0)), lambda: (vec(), Keywords(k=3.0)), lambda: (vec(),))
def keyword_only(x, *, k=1.0):
    return x * k


@case(lambda: (vec(), vec()), lambda: (vec(), vec(), 3))
def positional_only(x, y, /, n=2, *, flag=True):
    return (x + y) * n if flag else x


@case(lambda: (vec(), [1, 2], {"c": 3}), fullgraph=True)
def star_calls(x, args, kwargs):
    def target(x, a, b, c=0, *rest, **more):
        return x * a + b * c, rest, more

    return target(x, *args, **kwargs), target(*[x, 1, 2, 3], *(4, 5), **{"z": 6}, **{"y": x})


@case(lambda: (vec(), ((1, 2), [3, (4, 5)])), fullgraph=True)
def unpacking(x, nested):
    (a, b), [c, (d, e)] = nested
    first, *middle, last = range(5)
    *init, tail = [a, b, c]
    return x * a + b - c * d / e, first, middle, last, init, tail


@case(lambda: (vec(),), lambda: (vec(3),))
def unpack_tensor(x):
    a, b, *rest = x
    return a + b, rest


@case(lambda: (vec(2), [1, 2, 3]))
def wrong_unpacking(x, items):
    a, b = items
    return x * a * b


@case(lambda: (vec(), 1))
def wrong_argument_count(x, n):
    def takes_two(a, b):
        return a

    return takes_two(x, n, 3)


@case(lambda: (vec(), 1))
def missing_keyword(x, n):
    def wants(a, *, key):
        return a

    return wants(x)


@case(lambda: (vec(),), fullgraph=True)
def mutable_default(x):
    def collect(item, into=[]):  # the default is the point
        into.append(item)
        return into

    collect(x)
    return collect(x + 1)


@case(lambda: (vec(), 5), lambda: (vec(), 3), fullgraph=True)
def recursion(x, n):
    def power(t, k):
        return t if k <= 1 else t * power(t, k - 1)

    return power(x, n)


def scaled(factor):
    def decorate(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            return fn(*args, **kwargs) * factor

        return wrapper

    return decorate


@scaled(3)
def decorated_helper(x, k=1):
    """Doc."""
    return x + k


@case(lambda: (vec(),), fullgraph=True)
def calls_decorated(x):
    return decorated_helper(x, k=2), decorated_helper.__name__, decorated_helper.__doc__


@case(lambda: (vec(),), fullgraph=True)
def decorates_inside(x):
    @scaled(2)
    def local(y):
        return y - 1

    return local(x)


@case(lambda: (vec(),), fullgraph=True)
def function_attributes(x):
    def fn(y):
        fn.calls += 1
        return y * fn.calls

    fn.calls = 0
    return fn(x) + fn(x), fn.calls, fn.__name__, fn.__defaults__


@case(lambda: (vec(), torch.sin), lambda: (vec(), torch.cos), lambda: (vec(), lambda t: t + 1))
def function_argument(x, fn):
    return fn(x) * 2


@case(lambda: (vec(), None), lambda: (vec(), vec()), lambda: (vec(), None))
def optional_argument(x, mask=None):
    if mask is None:
        mask = torch.ones_like(x)
    return x * mask


@case(lambda: (vec(),), fullgraph=True)
def walrus(x):
    if (n := x.shape[0]) > 2:
        return x[:2] * n, [last := i for i in range(3)], last
    return x, n


@case(lambda: (vec(),), fullgraph=True)
def conditional_expressions(x):
    a = x if x.dim() == 1 else x.flatten()
    b = 1 if not a.shape else 2
    return a * b, b and None or 5, 1 < b < 3, not a.shape, (0 or "x"), (a is x and b == 2)


@case(lambda: (vec(), 3))
def deleted_local(x, n):
    y = x * n
    del y
    return y  # noqa: F821 - the error is the point


@case(lambda: (vec(), True), lambda: (vec(), False))
def unbound_local(x, flag):
    if flag:
        y = x
    return y + 1


@case(lambda: (vec(),))
def undefined_global(x):
    return x + not_defined_anywhere  # noqa: F821 - the error is the point


@case(lambda: (vec(),), factory=True)
def deleted_cell():
    y = 5

    def fn(x):
        nonlocal y
        value = x * y
        del y
        return value

    return fn


@case(lambda: (vec(),), fullgraph=True)
def comprehension_scopes(x):
    i = 10
    squares = [i * i for i in range(3)]
    pairs = {(a, b): a * b for a in range(2) for b in range(2) if a != b}
    kept = {v % 2 for v in squares}
    total = sum(v for v in squares)
    nested = [[x * j + k for j in range(2)] for k in range(2)]
    return i, squares, pairs, kept, total, nested


@case(lambda: (vec(),), fullgraph=True)
def method_references(x):
    add = x.add
    append = (items := []).append
    append(add(1))
    append(add(2))
    upper = "abc".upper
    return items, upper()


@case(lambda: (vec(),), fullgraph=True)
def assert_statements(x):
    assert x.dim() == 1
    assert x.shape[0] > 1, "message"
    return x + 1


@case(lambda: (vec(),))
def failing_assert(x):
    assert x.dim() == 2, f"wanted 2, got {x.dim()}"
    return x


@case(lambda: (vec(), vec()), fullgraph=True)
def swap(x, y):
    x, y = y, x
    a = b = x + y
    a += 1
    return x, y, a, b


@case(lambda: (vec(),), fullgraph=True)
def star_expression_results(x):
    parts = [x, x + 1]
    return *parts, *(1, 2), {**{"a": x}, "b": 2}, {*(3, 4)}


@case(lambda: (vec(),), fullgraph=True)
def annotations_and_pass(x):
    y: torch.Tensor = x * 2
    n: int  # noqa: F842
    if True:
        pass
    return y


@case(lambda: (vec(),))
def looks_at_locals(x):
    y = x + 1
    return sorted(locals()), y


@case(lambda: (vec(), 2), lambda: (vec(), 3), lambda: (vec(), 4), lambda: (vec(), 2))
def int_argument_changes(x, n):
    return x * n + n


@case(lambda: (vec(), "a"), lambda: (vec(), "b"), lambda: (vec(), "a"))
def string_argument(x, mode):
    if mode == "a":
        return x + 1
    return x - 1, mode + "!"


@case(lambda: (vec(), True), lambda: (vec(), False), lambda: (vec(), 1), lambda: (vec(), 0))
def bool_or_int(x, flag):
    return x * 2 if flag is True else x * 3 if flag else (x, flag)


@case(lambda: (vec(), 1), lambda: (vec(), 1.0), lambda: (vec(), True))
def equal_arguments_of_other_types(x, n):
    return x * n, n, type(n).__name__


@case(lambda: (vec(),), lambda: (vec().double(),), lambda: (torch.arange(4),), lambda: (vec(2, 3),))
def dtype_and_rank_change(x):
    return x * 2 + 1, x.dtype, x.dim()


@case(lambda: (vec(3, 4),), lambda: (vec(4, 3).t(),), lambda: (vec(3, 8)[:, ::2],))
def stride_changes(x):
    return x + 1, x.is_contiguous(), x.stride()


@case(lambda: (vec(),), lambda: ([vec()],), lambda: (vec(),), lambda: (3,))
def argument_kind_changes(x):
    return x[0] if isinstance(x, list) else x * 2


test_cases = make_test(__name__)
