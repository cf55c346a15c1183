"""Strings."""

from __future__ import annotations

import json
import re
import textwrap
from typing import Any

import torch

from ...breaks import GraphBreak
from ...interpreter.callees import Args, Kwargs, builtin
from ...interpreter.constant_folding import fold_deep
from ...polyfills.texts import sub, subn
from ...values import Interpreter, NotConstant, SequenceIterator, Value, const, unsupported
from .iteration import is_iterable, iterate
from .symbolic_text import formatted, is_made_of_numbers, separated, text


@builtin(str.join)
def str_join(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if not is_iterable(interp, args[1]):
        raise interp.throw(TypeError, "can only join an iterable")
    parts = [part.whole_plain_part(interp) for part in iterate(interp, args[1])]
    if args[0].is_constant and all(p.is_constant for p in parts):
        try:
            return const(args[0].value.join([p.value for p in parts]))  # type: ignore[attr-defined]
        except TypeError as error:
            raise interp.raise_real(error) from None
    if args[0].cls is str and all(p.cls is str for p in parts):
        return text(interp, separated, args[0], *parts)
    raise unsupported(args[0], ".join() of computed strings")


@builtin(str.format)
def str_format(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:

    if args[0].plain is not None:
        plain = args[0].plain.as_known(interp)
        if plain.is_constant and not {"{", "}"} & {*plain.value}:
            return args[0]  # itself, where there is nothing to replace
        args = [plain, *args[1:]]
    if any(map(is_made_of_numbers, (*args, *kwargs.values()))):
        return text(interp, formatted(tuple(kwargs)), *args, *kwargs.values())
    template, *rest = (a.formatted(interp) for a in args)
    try:
        return const(template.format(*rest, **{k: v.formatted(interp) for k, v in kwargs.items()}))
    except Exception as error:
        raise interp.raise_real(error) from None


@builtin(int.__format__, float.__format__, complex.__format__, str.__format__)
def number_format(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    """The number's format, for `format()` of a tensor."""
    if args[0].is_boxed and len(args) == 2:
        if args[1].literal == "":
            from .builtin_functions import to_str

            return to_str(interp, args[0])
        args = [args[0].whole_plain_part(interp), args[1]]
    return text(interp, format, *args)


def _string_test(name: str) -> Any:
    def handler(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        try:
            return const(getattr(args[0].constant(interp), name)(*(a.constant(interp) for a in args[1:])))
        except TypeError as error:
            raise interp.raise_real(error) from None

    return handler


for _name in ("startswith", "endswith"):
    builtin(getattr(str, _name))(_string_test(_name))


@builtin(torch.torch_version.TorchVersion._cmp_wrapper)
def compare_versions(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    """A comparison of torch's version, which takes texts apart in Python, and does nothing but compute."""
    own = args[0].whole_plain_part(interp)
    if not own.is_constant:
        raise unsupported(args[0], "a comparison of versions")
    version = torch.torch_version.TorchVersion(own.value)
    return interp.context.const_object(version._cmp_wrapper(*(a.whole_plain_part(interp).constant(interp)
                                                              for a in args[1:])))


# -- text of constants ----------------------------------------------------------------------------------------


def _folded(function: Any, body: Any = None) -> Any:
    """A library function in Python that does nothing but compute; `body` does it where arguments are no constants."""

    def handler(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        folded = fold_deep(interp, function, args, kwargs)
        if folded is None and body is not None:
            return interp.call(interp.context.const_object(body), args, kwargs)
        if folded is None:
            raise GraphBreak("unsupported_call", f"{function.__module__}.{function.__name__} of what is not constant")
        return folded

    return handler


@builtin(re.Pattern.finditer)
def pattern_finditer(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    try:
        pattern, *rest = (a.folded(interp) for a in args)
        named = {name: a.folded(interp) for name, a in kwargs.items()}
    except NotConstant:
        raise GraphBreak("unsupported_call", "finditer of what is not constant") from None
    try:
        matches = pattern.finditer(*rest, **named)
    except Exception as error:
        raise interp.raise_real(error) from None
    return SequenceIterator([interp.context.const_object(match) for match in matches], type(matches))


for _function in (re.compile, re.match, re.search, re.fullmatch, re.split, re.findall, re.escape,
                  json.dumps, json.loads, textwrap.dedent, textwrap.indent, textwrap.fill, textwrap.wrap):
    builtin(_function)(_folded(_function))
builtin(re.sub)(_folded(re.sub, sub))
builtin(re.subn)(_folded(re.subn, subn))
