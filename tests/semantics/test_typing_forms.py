"""Forms of `typing` and of builtin classes, as annotations of inner functions and arguments of `cast` make them."""

from __future__ import annotations

import typing
from typing import (
    Annotated,
    Any,
    Callable,
    Dict,
    Generic,
    Iterator,
    List,
    Literal,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
    Union,
)

import torch

from tests.semantics.harness import case, make_test

# ruff: noqa: UP006, UP007, UP035, UP045

T = torch.Tensor
U = TypeVar("U")


class Box(Generic[U]):
    pass


def one():
    return (torch.randn(3),)


@case(one, fullgraph=True)
def argument_of_cast(x):
    return typing.cast(Union[T, Tuple[T, ...]], x * 2) + 1


@case(one, fullgraph=True)
def nested_forms(x):
    forms = (Optional[Dict[str, List[int]]], Callable[[T], Tuple[int, ...]], Callable[..., T], Tuple[()], Type[U],
             Iterator["T"], Annotated[T, "m"], Literal["a", 1, None], List[U][int], Box[int], Sequence[Optional[T]])
    return x * 2, [str(form) for form in forms]


@case(one, fullgraph=True)
def forms_in_builtin_classes(x):
    return x * 2, str(list[Optional[T]] | None), str(dict[str, Optional[int]]), str(Optional[list[int]])


@case(one, fullgraph=True)
def parts_of_a_form(x):
    return x + len(typing.get_args(Optional[T])), typing.get_origin(List[int]) is list, Optional[T] == Union[T, None]


@case(lambda: (torch.ones(3), Optional), lambda: (torch.ones(3), List), lambda: (torch.ones(3), Optional))
def a_form_that_changes(x, form):
    return x + 1, str(form[int])


@case(lambda: (torch.ones(3), int), lambda: (torch.ones(3), Optional[int]), lambda: (torch.ones(3), List[int]),
      lambda: (torch.ones(3), list[int]), lambda: (torch.ones(3), "T"))
def a_parameter_that_changes(x, parameter):
    return x + 1, str(Union[parameter, float])


@case(one, fullgraph=True)
def refused_parameters(x):
    said = []
    for parameters in ((int, str), ()):
        try:
            Optional[parameters]
        except TypeError as error:
            said.append(str(error))
    return x + 1, said


def annotated(x: Any) -> Any:
    space: dict[str, Any] = {"T": T, "Union": Union, "Tuple": Tuple, "Optional": Optional}
    exec("def make(x):\n"
         "    def inner(a: Union[T, Tuple[T, ...]], b: Optional[int] = None) -> Optional[T]:\n"
         "        return a * x\n"
         "    return inner\n", space)
    return space["make"]


make = annotated(None)


@case(one, fullgraph=True)
def evaluated_annotations(x):
    inner = make(x)
    return inner(x + 1), str(inner.__annotations__)


test_all = make_test(__name__)
