"""What exceptions hold besides their arguments, and what attribute errors are told of the lookup."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

import torch

import jitpy
from tests.semantics.harness import case, make_test

STATE = ("name", "obj", "msg", "path", "code", "errno", "strerror", "filename", "filename2", "lineno", "offset", "text",
         "encoding", "object", "start", "end", "reason", "value")


def facts(error: BaseException) -> Any:
    return type(error).__name__, str(error), repr(error), error.args, [getattr(error, n, "-") for n in STATE]


class OwnOSError(OSError):
    pass


class InitialisedOSError(OSError):
    def __init__(self, number: int, text: str) -> None:
        super().__init__(number, text)
        self.extra = number


class MadeOSError(OSError):
    def __new__(cls, number: int, text: str) -> MadeOSError:
        return super().__new__(cls, number, text)


class NamedError(AttributeError):
    def __init__(self, text: str, name: str) -> None:
        super().__init__(text, name=name)


class NamedImportError(ImportError):
    def __init__(self, name: str) -> None:
        super().__init__("no", name=name, path="p")
        self.extra = name


class DecodeError(UnicodeDecodeError):
    def __init__(self, *args: Any) -> None:
        super().__init__("utf8", b"a", 0, 1, "own")
        self.extra = args


class Told(KeyError):
    def __str__(self) -> str:
        return "told"


MAKERS: dict[str, Callable[[], BaseException]] = {
    "attribute": lambda: AttributeError("x", name="q", obj=3),
    "attribute_plain": lambda: AttributeError("x"),
    "name": lambda: NameError("x", name="q"),
    "import": lambda: ImportError("m", name="n", path="p"),
    "import_one": lambda: ImportError("m"),
    "import_two": lambda: ImportError("a", "b"),
    "module_not_found": lambda: ModuleNotFoundError("m", name="z"),
    "os_text": lambda: OSError("x"),
    "os_mapped": lambda: OSError(2, "no"),
    "os_file": lambda: OSError(2, "no", "f"),
    "os_files": lambda: OSError(2, "a", "f", None, "g"),
    "file_not_found": lambda: FileNotFoundError(2, "q", "f"),
    "permission": lambda: PermissionError(13, "x", "f"),
    "timeout": lambda: TimeoutError("x"),
    "own_os": lambda: OwnOSError(2, "x"),
    "initialised_os": lambda: InitialisedOSError(2, "b"),
    "made_os": lambda: MadeOSError(5, "c"),
    "named": lambda: NamedError("a", "b"),
    "named_import": lambda: NamedImportError("z"),
    "told": lambda: Told("z"),
    "key": lambda: KeyError("a"),
    "system_exit": lambda: SystemExit(3),
    "system_exit_two": lambda: SystemExit(1, 2),
    "stop_iteration": lambda: StopIteration(4),
    "stop_iteration_empty": lambda: StopIteration(),
    "decode": lambda: UnicodeDecodeError("utf8", b"a", 0, 1, "r"),
    "encode": lambda: UnicodeEncodeError("utf8", "a", 0, 1, "r"),
    "own_decode": lambda: DecodeError(3),
    "syntax": lambda: SyntaxError("a"),
    "syntax_place": lambda: SyntaxError("a", ("f", 1, 2, "t")),
    "refused_keyword": lambda: ValueError(a=1),  # type: ignore[call-arg]
    "unknown_keyword": lambda: AttributeError(zz=1),  # type: ignore[call-arg]
    "too_few": lambda: UnicodeDecodeError("a"),  # type: ignore[call-arg]
}


def _cases(name: str, make: Callable[[], BaseException]) -> None:
    def raised(x: torch.Tensor) -> Any:
        try:
            raise make()
        except BaseException as error:
            return x + 1, facts(error), error

    def changed(x: torch.Tensor) -> Any:
        error = make()
        found: Any = [facts(error)]
        try:
            error.name = "zz"  # type: ignore[attr-defined]
            error.errno, error.code, error.msg = 9, 8, "u"  # type: ignore[attr-defined]
            error.args = (1,)
        except TypeError as other:
            found.append(str(other))
        return x + 1, facts(error), found, error

    raised.__name__, changed.__name__ = f"raised_{name}", f"changed_{name}"
    whole = None if name in ("refused_keyword", "unknown_keyword", "too_few") else True
    case(lambda: (torch.ones(2),), fullgraph=True)(raised)
    case(lambda: (torch.ones(2),), fullgraph=whole)(changed)


for _name, _make in MAKERS.items():
    _cases(_name, _make)


@case(lambda: (torch.ones(2),), fullgraph=True)
def raised_by_c(x: torch.Tensor) -> Any:
    try:
        b"\xff".decode()
    except UnicodeDecodeError as error:
        return x + 1, error.start, error.reason, str(error), error.object


@case(lambda: (torch.ones(2),), fullgraph=True)
def holding_a_tensor(x: torch.Tensor) -> Any:
    return OSError(2, x).strerror is x, SystemExit(x).code is x, ImportError("a", path=x)


@case(lambda: (torch.ones(2),), factory=True)
def from_outside() -> Any:
    errors = [OSError(2, "z", "f"), SystemExit(4), ImportError("a", name="q"), AttributeError("u", name="w")]

    def fn(x: torch.Tensor) -> Any:
        return x + 1, [facts(error) for error in errors]

    return fn, errors


@case(lambda: (torch.ones(2),), factory=True, fullgraph=True)
def made_by_an_own_new() -> Any:
    log: list[str] = []

    class Logged(Exception):
        def __new__(cls, *args: Any) -> Logged:
            log.append("new")
            return super().__new__(cls, *args)

        def __init__(self, *args: Any) -> None:
            log.append("init")
            super().__init__(*args[:1])

    def fn(x: torch.Tensor) -> Any:
        error = Logged(1, 2)
        return error, error.args, x + 1

    return fn, log


# -- what was looked up -----------------------------------------------------------------------------------------------


class Hooked:
    @property
    def raises(self) -> Any:
        raise AttributeError("x", name="q")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class Plain:
    @property
    def raises(self) -> Any:
        raise AttributeError("x")

    @property
    def through(self) -> Any:
        return self.raises

    @property
    def of_another(self) -> Any:
        return Hooked().missing

    @property
    def says_no_name(self) -> Any:
        raise AttributeError("x", name=None)

    @property
    def says_object(self) -> Any:
        raise AttributeError("x", obj=3)


class Derived(Plain):
    def inherited(self) -> Any:
        return super().raises

    def missing_above(self) -> Any:
        return super().nope  # type: ignore[misc]


class Slotted:
    __slots__ = ("s",)


class Meta(type):
    def __getattr__(cls, name: str) -> Any:
        raise AttributeError("meta")


class Described(metaclass=Meta):
    pass


class Asked:
    def __getattribute__(self, name: str) -> Any:
        if name == "x":
            raise AttributeError("asked")
        return object.__getattribute__(self, name)


LOOKUPS: dict[str, Callable[[], Any]] = {
    "hook": lambda: Hooked().foo,
    "hook_in_front_of_a_call": lambda: Hooked().foo(),
    "hook_called_as_a_function": lambda: Hooked().__getattr__("u"),
    "property_and_hook": lambda: Hooked().raises,
    "property": lambda: Plain().raises,
    "property_in_front_of_a_call": lambda: Plain().raises(),
    "property_of_a_property": lambda: Plain().through,
    "property_of_another": lambda: Plain().of_another,
    "name_given": lambda: Plain().says_no_name,
    "object_given": lambda: Plain().says_object,
    "inherited": lambda: Derived().inherited(),
    "missing_above": lambda: Derived().missing_above(),
    "slot": lambda: Slotted().s,  # type: ignore[attr-defined]
    "store": lambda: setattr(Slotted(), "q", 1),
    "delete_slot": lambda: delattr(Slotted(), "s"),
    "delete": lambda: delattr(Plain(), "zz"),
    "store_property": lambda: setattr(Plain(), "raises", 1),
    "metaclass": lambda: Described.zz,
    "getattr": lambda: getattr(Described, "z" + "z"),
    "getattribute": lambda: Asked().x,
    "getattribute_in_front_of_a_call": lambda: Asked().x(),
    "lookup_of_object": lambda: object.__getattribute__(Plain(), "zz"),
    "of_a_module": lambda: sys.foo,  # type: ignore[attr-defined]
    "of_a_torch_module": lambda: torch.nn.ReLU().foo,
    "of_a_tensor": lambda: torch.ones(2).foo,  # type: ignore[attr-defined]
    "of_a_number": lambda: (1).foo,  # type: ignore[attr-defined]
    "of_a_list": lambda: [].foo(),  # type: ignore[attr-defined]
    "property_by_name": lambda: getattr(Plain(), "raises"),
    "getattribute_by_name": lambda: getattr(Asked(), "x"),
}

#: From 3.12 on the interpreter no longer says what was looked up once it has specialized the instruction that did it
SAID_AT_FIRST = {"property", "property_in_front_of_a_call", "property_of_a_property", "property_of_another",
                 "inherited", "property_and_hook", "name_given", "object_given", "getattribute",
                 "getattribute_in_front_of_a_call"}


def _lookup_case(name: str, lookup: Callable[[], Any]) -> None:
    def fn(x: torch.Tensor) -> Any:
        try:
            lookup()
        except AttributeError as error:
            return x + 1, str(error), error.name, getattr(error.obj, "__name__", type(error.obj).__name__)

    fn.__name__ = f"lookup_{name}"
    case(lambda: (torch.ones(2),), fullgraph=True)(fn)


for _name, _look in LOOKUPS.items():
    if sys.version_info < (3, 12) or _name not in SAID_AT_FIRST:
        _lookup_case(_name, _look)


@case(lambda: (torch.ones(2),), factory=True)
def one_error_raised_by_two_objects() -> Any:
    errors = [AttributeError("u")]

    class Holder:
        @property
        def held(self) -> Any:
            raise errors[0]

    def fn(x: torch.Tensor) -> Any:
        try:
            Holder().held
        except AttributeError as error:
            return x + 1, error.name, type(error.obj).__name__, error is errors[0]

    return fn


class Broken:
    """Its lookups raise behind a graph break of their own."""

    inner: Any = None

    @property
    def said(self) -> Any:
        jitpy.graph_break()
        raise AttributeError("said")

    @property
    def called(self) -> Any:
        return missing_in_c(jitpy.graph_break)

    @property
    def twice(self) -> Any:
        for _ in range(2):
            jitpy.graph_break()
        return self.inner.said

    @property
    def known(self) -> Any:
        jitpy.graph_break()
        raise AttributeError("known", name="k", obj=3)

    @property
    def renamed(self) -> Any:
        jitpy.graph_break()
        raise Renamed("renamed")

    @property
    def other(self) -> Any:
        jitpy.graph_break()
        raise KeyError("other")

    @property
    def there(self) -> Any:
        jitpy.graph_break()
        return torch.ones(2)


class BrokenHook(Broken):
    def __getattr__(self, name: str) -> Any:
        jitpy.graph_break()
        raise AttributeError("hook " + name)


class BrokenLookup:
    def __getattribute__(self, name: str) -> Any:
        jitpy.graph_break()
        raise AttributeError("lookup " + name)


class Renamed(AttributeError):
    pass


def missing_in_c(function: Any) -> Any:
    function()
    return operator.attrgetter("gone")(object())


NAMES = ("said", "called", "known", "renamed", "other", "there", "nowhere")
#: later ones forget what was looked up once they have specialised a lookup that a property answers
FORGETS = sys.version_info >= (3, 12)
if not FORGETS:
    NAMES += ("twice",)


def a_broken(kind: Any) -> Any:
    made = kind()
    if kind is not BrokenLookup:
        made.inner = Broken()
    return made


@case(*(lambda kind=kind, name=name: (torch.ones(2), a_broken(kind), name)
        for kind in (Broken, BrokenHook, BrokenLookup) for name in NAMES))
def lookups_with_a_graph_break(x: torch.Tensor, o: Any, name: str) -> Any:
    y = x + 1
    try:
        return y, getattr(o, name) + y
    except AttributeError as error:
        return y * 2, str(error), error.name, error.obj is o, type(error.obj).__name__
    except KeyError as error:
        return y * 3, str(error)


@case(lambda: (torch.ones(2), a_broken(Broken)), lambda: (torch.ones(2), a_broken(BrokenHook)))
def calls_of_what_a_lookup_with_a_graph_break_finds(x: torch.Tensor, o: Any) -> Any:
    y = x + 1
    try:
        o.said()
    except AttributeError as error:
        return y * 2, str(error), FORGETS or (error.name, error.obj is o)


@case(lambda: (torch.ones(2), a_broken(Broken)), lambda: (torch.ones(2), a_broken(BrokenLookup)))
def lookups_with_a_graph_break_that_nobody_catches(x: torch.Tensor, o: Any) -> Any:
    y = x + 1
    return o.said + y


def test_lookup_that_nobody_catches() -> None:
    from tests.semantics.harness import jit

    hooked = Hooked()

    @jit
    def fn(x: torch.Tensor) -> Any:
        x = x + 1
        return hooked.foo

    for _ in range(3):
        try:
            fn(torch.ones(2))
        except AttributeError as error:
            assert error.name == "foo" and error.obj is hooked
        else:
            raise AssertionError("nothing was raised")


test_all = make_test(__name__)
