"""Programs of the tensors kind about views: whose memory they show, and what autograd says of writes to them. What went
wrong is said at each."""

from __future__ import annotations

import textwrap

import pytest

from tests.fuzz.tensors import TensorProgram, check, statements

_PROGRAMS: dict[str, TensorProgram] = {}


def _finding(name: str, lines: str, result: str, alias: int = 0, after: tuple[str, ...] = (),
             then: int | None = None) -> None:
    names = tuple(part.strip() for part in result.split(","))
    _PROGRAMS[name] = TensorProgram(tuple(statements(textwrap.dedent(lines))), names, alias, after, then)


# What was told to require grad showed an argument that had been written to; a view of it had memory of its own.
_finding("detached_from_what_was_told_to_require_grad", """
    with torch.no_grad():
        s.mul_(s)
    t2 = s.detach()
    t2.requires_grad_()
    t4 = t2.detach()
    """, "t4", alias=8)

# Which error comes first was tried on a tensor that is a view of no leaf: the leaf was none from outside.
_finding("view_of_what_was_told_to_require_grad_is_written", """
    s.requires_grad_()
    t2 = s.unsqueeze(0)
    try:
        t2.scatter_(0, t2, 1.0)
    except (RuntimeError, IndexError, TypeError) as error:
        log.append(str(error))
    """, "v", alias=4)

# A view counted as looked at behind the graph's writes, where eager had looked before them: an error of its history.
for _view in ("select(1, 0)", "flatten()", "unsqueeze(0)"):
    _finding(f"one_of_several_views_is_looked_at_and_then_written_{_view}", f"""
        t2 = h.{_view}
        with torch.no_grad():
            t2.mul_(2)
        t3 = w[..., ::2]
        """, "t3", alias=15)

# A copy was left out whose result had no conjugation pending.
_finding("copy_of_a_pending_conjugation", """
    c += c
    t2 = c.conj().clone()
    t3 = (c * 2).conj().imag.clone()
    t4 = torch.empty_like(c)
    t4.copy_((c * 3).conj())
    """, "t2, t3, t4", alias=12)

# A view of a written view had strides, along axes of size 1, of the value that was written.
_finding("view_of_a_written_view_of_one_row", """
    t1 = torch.sin(y)
    t4 = t1[:, 0][..., ::2]
    t4.mul_(2)
    t5 = t4[..., None]
    """, "t5")

# A write that autograd does not record leaves a view as it was made: as one of several.
_finding("unrecorded_write_to_one_of_several_views", """
    t2 = z.squeeze(-1)
    t3 = t2.chunk(2, -1)[0]
    t3.add_(2)
    t2.add_(g)
    """, "t3", alias=4)
_finding("one_of_several_written_and_told_to_require_grad", """
    t1 = z.chunk(2, -1)[0]
    t1.uniform_()
    with torch.no_grad():
        t1.requires_grad_()
    t1.index_fill_(0, torch.tensor([0]), 1.5)
    """, "y", alias=8)

# What is told to require grad stays a view, one of several: which error comes first was tried on an ordinary one.
_finding("part_of_one_of_several_told_to_require_grad", """
    t1 = s.unsqueeze(0)
    t2 = t1.chunk(2, -1)[0]
    with torch.no_grad():
        t2.requires_grad_()
    try:
        t2[..., 0] = t2[..., -1]
    except (RuntimeError, IndexError, TypeError) as error:
        log.append(str(error))
    """, "c", alias=14)

# An error's text was kept for another leaf that is a view.
_finding("error_about_a_leaf_that_is_a_view", """
    try:
        v.scatter_(0, v, 1.0)
    except (RuntimeError, IndexError, TypeError) as error:
        log.append(str(error))
    """, "x", alias=4, then=14)

# A view of what was written to a view began at the start of the memory: eager's error about the overlap was missed.
_finding("data_of_a_written_view_of_a_view", """
    t3 = z.unbind(0)[-1]
    t5 = t3.unsqueeze(0)
    t5[...] = 0.5
    t5.data.mul_(t3)
    """, "t3")
_finding("offsets_of_views_of_a_written_view", """
    t2 = h.detach()[1]
    t3 = t2[1:]
    t3[...] = 0.5
    t4 = t3[1:]
    t5 = t3.data
    log.append((t4.storage_offset(), t5.storage_offset(), t3.split(1)[1].storage_offset()))
    t6 = torch.as_strided(t4, (1,), (1,))
    """, "t3, t4, t5, t6")


@pytest.mark.parametrize("name", _PROGRAMS)
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_finding(name: str, backend: str) -> None:
    assert check(_PROGRAMS[name], backend) is None
