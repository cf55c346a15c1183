"""The facts about one operator. The table itself is in `jitpy/ir/ops/`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from .spec import Spec

if TYPE_CHECKING:
    from .ops.functional import InPlace

Rule = Callable[..., Any]
F = TypeVar("F", bound=Rule)


class Draws(NamedTuple):
    """The kind of a random tensor's numbers, and whether two bounds, or mean and deviation, are operands."""

    kind: Literal["uniform", "normal"]
    bounded: bool = False


class Convolution(NamedTuple):
    """A convolution of (input, weight, bias, ...): the position of `groups`, and whether it is transposed, or the
    position that says so."""

    groups: int
    transposed: bool | int = False

    def reads(self, args: Sequence[Any]) -> tuple[int, bool]:
        """`groups`, and whether it is transposed, of a call with these arguments."""
        groups = args[self.groups] if len(args) > self.groups else 1
        return groups, self.transposed if isinstance(self.transposed, bool) else args[self.transposed] is not False


@dataclass(slots=True, eq=False)
class Op:
    """One operator, with every fact that jitpy has of it. A rule that is None is derived from torch, or not there.

    Rules take the arguments of the node: Specs where tensors go, Python constants, and sizes.

    name        `aten.add.Tensor`, or `ir.*` / `py.*` for jitpy's own
    target      the eager call, with the same positional and keyword arguments as the node
    kind        'pointwise' | 'reduction' | 'view' | 'factory' | 'matmul' | 'host' | 'other': what the scheduler may do
    infer       shape rule `(env: SizeEnv, *args, **kwargs) -> Spec`; raises `NotCovered` for what it does not handle
    """

    name: str
    target: Callable[..., Any]
    kind: str = "other"
    infer: Callable[..., Spec] | None = None

    # how results are computed
    #: pointwise body `(e, *operands) -> expression`, `e` a `ScalarBuilder` of the schedule
    scalar: Rule | None = None
    #: how many leading arguments `scalar` takes as expressions
    operands: int = 0
    #: `(*args, **kwargs) -> dtypes` that those operands are converted to
    compute: Rule | None = None
    #: the operand that eager does not round to the common dtype where it is a number
    exact_number: int | None = None
    #: whether eager rounds an exponent to the common dtype of 16 bits
    small_exponent: bool = False
    #: `(b, *args)`: simpler nodes, built through a `Builder`
    decompose: Rule | None = None
    #: `(index, x, *args)`: the place in the input that an element of the result comes from
    index: Rule | None = None
    #: `(*args)`: the result's axes as numbers of the operand's, for the gradients of transpositions
    order: Rule | None = None
    #: `(*args) -> Reduction`
    reduction: Rule | None = None
    #: `(*args) -> Reduction`, along one axis
    scan: Rule | None = None
    #: `(*args)`: the value that every element has
    fill: Rule | None = None
    #: `(e, index, *args)`: an element from its index
    element: Rule | None = None

    # memory
    is_view: bool = False
    #: `(env, *args) -> 'view' | 'copy' | 'self'`, for ops whose schema does not say
    aliasing: Rule | None = None
    #: how an op that writes to copies writes to its arguments themselves
    in_place: InPlace | None = None
    #: the call that puts elements into the first operand itself, of ops that put them into a copy
    in_place_call: Callable[..., Any] | None = None
    #: the call that writes the result to memory that it is given as `out`
    out_call: Callable[..., Any] | None = None
    #: whether the results of eager's kernel are always row-major
    is_row_major: bool = False
    #: whether a composite op's result is new memory whatever the arguments, without a rule that says so
    is_new: bool = False
    #: whether the result may be the argument, although the schema says new memory
    may_return_argument: bool = False
    #: whether the op may write to an argument without saying so
    hides_writes: bool = False
    #: batch norms (input, weight, bias, running_mean, running_var, training, ...): write to running statistics
    writes_statistics: bool = False
    #: whether a view reads memory as it lies: torch refuses it while a conjugation or negation is pending
    reads_memory: bool = False
    #: whether a view op has several results, each a part of the operand along an axis
    is_split: bool = False
    #: whether as many elements are made as numbers among the arguments say
    numbers_are_sizes: bool = False
    #: whether nothing is written to the memory that the op makes
    is_uninitialised: bool = False
    #: whether the op copies all the memory that its first operand is in, and lays the result out alike
    copies_memory: bool = False
    #: whether results depend on how operands lie in memory
    asks_for_layout: bool = False
    #: whether the result's shape says all of a view of the same elements in the same order
    is_reshape: bool = False
    #: whether the result has the first operand's elements at the same places, perhaps as another dtype
    is_copy: bool = False
    #: whether kernels compute the op with floats of 8 bits, beside copies and views
    takes_float8: bool = False
    #: the position of an operand of which only sizes are read
    sizes_only: int | None = None
    #: whether a result's size depends on data; or which arguments make it so
    sizes_by_data: bool | Rule = False
    #: operands (by position) and results that follow each other's order of axes; a result None is the only one
    axes: tuple[tuple[int, ...], tuple[int | None, ...]] | None = None

    # values
    is_random: bool = False
    is_pure: bool = True
    draws: Draws | None = None
    commutes: bool = False
    #: whether floats that differ in their last bits may give results that differ much
    has_steps: bool = False
    #: types of devices on which the op costs about as much as reading its operands
    cheap_on: tuple[str, ...] = ()
    #: which of its arguments' values make the op raise: see `ir/failures.py`
    failure: Literal["values", "division", "power", "comparison", "never"] | None = None
    #: whether the op's GPU kernel waits for its own result
    waits: bool = False
    #: whether its kernels take integers only, but its shape rule floats, too
    only_integers: bool = False
    #: the operands that may be on the CPU beside others on a GPU, except for single elements of element by element ops:
    #: any, or all but the first and the third
    from_cpu: Literal["any", "places"] | None = None
    #: whether a question about a flag or counter may be made of it; arithmetic would ask others as a counter goes on
    is_question: bool = False
    #: for convolutions whose images may be channels-last: the position of `groups`
    groups: int | None = None
    #: for convolutions forwards, of any number of axes
    convolution: Convolution | None = None
    is_batch_norm: bool = False
    softmax: Literal["softmax", "log_softmax"] | None = None

    # autograd
    #: False where eager's result never requires grad (comparisons, argmax, detach, ...); by result where they differ
    differentiable: bool | tuple[bool, ...] = True
    #: the target does more where autograd records it: it is called with grad mode off where none does
    is_recordable: bool = False
    #: the name of the grad_fn of an op of which eager's autograd keeps all operands and results
    keeps_all: str | None = None
    #: the gradient rule of an op that is made for one node
    vjp: Rule | None = None
    #: whether results are in the memory of the first argument's nodes
    passes_on: bool = False
    #: whether the backward pass needs an input, or the result; where False, nobody asks
    keeps_input: bool = True
    keeps_result: bool = True
    #: False for functional forms without derivative, of ops in place that have one: zeros for what was there before
    has_derivative: bool = True
    #: results are sums of terms, each a product of factors: positions of arguments; see `ir/linear.py`
    terms: tuple[tuple[int, ...], ...] | None = None
    #: whether the first argument is a list of tensors, each of which is a term
    joins: bool = False

    @property
    def is_elementwise(self) -> bool:
        return self.kind == "pointwise" or self.scalar is not None

    def __repr__(self) -> str:
        return self.name

    def __str__(self) -> str:
        return self.name


class OpRules(dict[str, Any]):
    """The rules that one part of jitpy has for ops, by full name. Each is registered where it is written."""

    def of(self, *names: str) -> Callable[[F], F]:
        """Register the rule of ops; see `full_name`."""

        def register(rule: F) -> F:
            for name in map(full_name, names):
                assert name not in self, name
                self[name] = rule
            return rule

        return register


def full_name(name: str) -> str:
    """`aten.add.Tensor` for `add.Tensor`, `aten.relu.default` for `relu`; other full names as they are."""
    if name.count(".") > 1 or name.startswith("ir."):
        return name
    return f"aten.{name}" if "." in name else f"aten.{name}.default"


class Signal(BaseException):
    """Signals inside of tracing: where to break, to start again, to give up, which exception the traced program raises.

    No `Exception`: what evaluates for the program, and raises in the program what that raises, must not take it for
    the program's own.
    """


class Uncapturable(Signal):
    """The call cannot be part of a graph: the interpreter breaks the graph here and lets Python run it.

    `reason_id` names an entry of the registry of break reasons; `detail` is a sentence for the report.
    """

    def __init__(self, reason_id: str, detail: str) -> None:
        super().__init__(f"{reason_id}: {detail}")
        self.reason_id = reason_id
        self.detail = detail


class NotCovered(Exception):
    """A hand-written rule does not handle these arguments: use the one derived from torch."""
