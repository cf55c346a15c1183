"""What `__build_class__` and `type` do around the parts that the tracer does itself."""

from __future__ import annotations

import builtins

from .registry import give_up, substitute


@substitute(builtins.__build_class__)
def build_class(body, name, /, *bases, **keywords):
    resolved = resolve(bases)
    if "metaclass" in keywords:
        meta = keywords.pop("metaclass")
        if isinstance(meta, type):
            meta = most_derived(meta, resolved)
    else:
        meta = most_derived(type(resolved[0]) if resolved else type, resolved)
    namespace = prepare(meta, name, resolved, keywords)
    run_class_body(body, namespace)
    if resolved is not bases:
        namespace["__orig_bases__"] = bases
    return meta(name, resolved, namespace, **keywords)


def resolve(bases):
    """`types.resolve_bases`: what is no class says which classes it stands for."""
    for base in bases:
        if not isinstance(base, type):
            break
    else:
        return bases
    resolved = []
    for base in bases:
        if isinstance(base, type) or not hasattr(base, "__mro_entries__"):
            resolved.append(base)
        else:
            resolved.extend(base.__mro_entries__(bases))
    return tuple(resolved)


def most_derived(meta, bases):
    """The metaclass of a class: the most derived one of those of its bases."""
    for base in bases:
        other = type(base)
        if issubclass(meta, other):
            continue
        if not issubclass(other, meta):
            raise TypeError("metaclass conflict: the metaclass of a derived class must be a (non-strict) subclass of "
                            "the metaclasses of all its bases")
        meta = other
    return meta


def make_type(name, bases, namespace, /, **keywords):
    """`type(name, bases, namespace)`."""
    meta = most_derived(type, bases)
    if meta is not type:
        return meta(name, bases, namespace, **keywords)
    return new_type(type, name, bases, namespace, **keywords)


def call_type(meta, name, bases, namespace, /, **keywords):
    """`meta(name, bases, namespace)` for a metaclass that has no `__new__` of its own."""
    made = new_type(meta, name, bases, namespace, **keywords)
    type(made).__init__(made, name, bases, namespace, **keywords)
    return made


def new_type(meta, name, bases, namespace, /, **keywords):
    """`type.__new__`."""
    if most_derived(meta, bases) is not meta:
        give_up("type.__new__ of a metaclass that is not the most derived one")
    made = make_class(meta, name, bases, namespace)
    for hook, key in set_name_hooks(made):
        try:
            hook(made, key)
        except Exception:
            give_up("a __set_name__ that raises")
    super(made, made).__init_subclass__(**keywords)
    return made


# The parts that the tracer does.


def prepare(meta, name, bases, keywords, /):
    """`meta.__prepare__(name, bases, **keywords)`, or a new dict."""
    raise NotImplementedError


def run_class_body(body, namespace, /):
    """Run the body of a class statement in a namespace."""
    raise NotImplementedError


def make_class(meta, name, bases, namespace, /):
    """`type.__new__` without the hooks that it calls at the end."""
    raise NotImplementedError


def set_name_hooks(cls, /):
    """(`__set_name__`, key) of each attribute that wants to know its name, in order."""
    raise NotImplementedError
