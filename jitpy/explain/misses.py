"""Why no compiled variant fits a call: what changed, each thing once."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: how guards say that something is another one, with what it is about, what it was and what it is
_FORMS = tuple(re.compile(form) for form in (
    r"^constants_equal\((?P<what>.+), (?P<was>.+)\), but found (?P<now>.+?)(?P<why>  # .*)?$",
    r"^length\((?P<what>.+)\) == (?P<was>\d+), but found length (?P<now>\d+)(?P<why>  # .*)?$",
    r"^alive\((?P<was>.+), (?P<what>(?:type\()?[^,]+?\)?)\), but found (?P<now>.+?)(?P<why>  # .*)?$",
    r"^(?P<what>.+?) is (?P<was>.+), but found (?P<now>.+?)(?P<why>  # .*)?$",
))
#: how guards print objects
_ADDRESS = re.compile(r"^(\S+) object at 0x[0-9a-f]+$")
_FUNCTION = re.compile(r"^(?:function|builtin_function_or_method) (?:_VariableFunctionsClass\.)?(\S+)$")
#: of a tensor, several facts in one sentence
_TENSOR = re.compile(r"^(?P<what>[^:]+): (?P<facts>.+? (?:is|has) .+?, expected .+?)(?P<why>  # .*)?$")
_CELL = re.compile(r"<cell (\w+)>\.cell_contents")
_DIMENSIONS = re.compile(r"^it has (\d+) dimensions, expected (\d+)$")
_FACT = re.compile(r"^(?P<fact>.+?) (?:is|has) (?P<now>.+), expected (?P<was>.+)$")


def _changes(text: str) -> list[tuple[str, str, str]]:
    """(what, what it was, what it is) of a guard's sentence; ('', '', sentence) for those of other forms."""
    for form in _FORMS:
        found = form.match(text)
        if found is not None:
            what = f"len({found['what']})" if text.startswith("length(") else found["what"]
            was, now = (_FUNCTION.sub(r"\1", _ADDRESS.sub(r"some \1", found[key])) for key in ("was", "now"))
            if was == now:
                now = f"another {now.removeprefix('some ')}"
            return [(what + (found["why"] or ""), was, now)]
    found = _TENSOR.match(text)
    said = found["facts"].split("; ") if found is not None else []
    facts = [_FACT.match(_DIMENSIONS.sub(r"dimensions is \1, expected \2", fact)) for fact in said]
    if found is None or None in facts:
        return [("", "", text)]
    return [(f"{found['what']}: {fact['fact']}" + (found["why"] or ""), fact["was"], fact["now"])
            for fact in facts if fact is not None]


def grouped(misses: Sequence[Sequence[str]]) -> list[str]:
    """One line for each thing that differs from the variants (each a list of failing guards): those of the variant that
    comes closest first, then those of the others with their numbers."""
    if not misses:
        return []
    closest = min(range(len(misses)), key=lambda number: (len(misses[number]), -number))
    seen: dict[tuple[str, str], dict[str, list[int]]] = {}
    for number in (closest, *(k for k in range(len(misses)) if k != closest)):
        for text in misses[number]:
            for what, was, now in _changes(text):
                seen.setdefault((what, now), {}).setdefault(was, []).append(number)
    lines = []
    for (what, now), before in seen.items():
        numbers = sorted({number for found in before.values() for number in found})
        near = closest in numbers
        was = ", ".join(before)
        name, _, why = _CELL.sub(r"\1", what).partition("  # ")
        line = f"{name}: {was} -> {now}" if what else now
        if not near and len(misses) > 1:
            line += f" (variant{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))})"
        lines.append(line + (f"  # {why}" if why else ""))
    return lines
