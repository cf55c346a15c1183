"""Programs of the tensors kind in which autograd makes a view's history anew, of what its memory is at that moment."""

from __future__ import annotations

import textwrap

import pytest

from tests.fuzz.tensors import TensorProgram, check, statements

_PROGRAMS: dict[str, TensorProgram] = {}


def _finding(name: str, lines: str, result: str, alias: int = 0, after: tuple[str, ...] = ()) -> None:
    names = tuple(part.strip() for part in result.split(","))
    _PROGRAMS[name] = TensorProgram(tuple(statements(textwrap.dedent(lines))), names, alias, after)


# Tracing asked the view behind the break whether it is a leaf: its base had the strides of the old memory still.
_finding("base_whose_data_is_swapped_behind_a_write", """
    t1 = h.tensor_split(2, -1)[-1]
    with torch.no_grad():
        with torch.enable_grad():
            h.lerp_(h * 2, 0.5)
        y.data, h.data = h.data, y.data
    """, "t1", alias=6)

# ... and the view had the strides of other memory for a while.
_finding("view_that_shows_other_memory_for_a_while", """
    t1 = h[..., ::2]
    with torch.no_grad():
        t2 = z + g
        t1.index_put_((torch.tensor([0]),), torch.tensor(2.0))
    if True:
        kept = t1.data
        t1.data = t1.data + 1
        t1.data = kept
    t5 = t1 * 0.5
    """, "t5", alias=8)

# ... in the memory of its base, so that nobody can tell; and where it is used without grad mode nobody asks either.
_finding("view_that_shows_another_part_for_a_while", """
    t1 = h[:, :2]
    t2 = h.t()[1:]
    with torch.no_grad():
        h.mul_(2)
    if True:
        kept = t1.data
        t1.data = t2.data
        torch._C._is_tracing()
        with torch.no_grad():
            log.append((t1 * 2).shape)
            t3 = torch.nn.functional.gelu(t1)
        torch._C._is_tracing()
        t1.data = kept
    t4 = t1 * 0.5
    """, "t4, t3")


# A write to a tensor makes the histories of its former views anew, though it has got other memory.
_finding("write_to_a_base_that_got_other_memory", """
    t1 = h.expand(1, 2, 3)[0][:, :2]
    y.data, h.data = h.data, y.data
    with torch.no_grad():
        h.mul_(2)
    t2 = t1 * 0.5
    """, "t2", alias=6)

# A view that is older than the history of what it shows is a leaf to eager until somebody asks: no operation in place.
_finding("list_of_a_view_older_than_the_history", """
    with torch.no_grad():
        with torch.enable_grad():
            y[0] = v
        t2 = z.new_ones(z.shape)
    t3 = t2.tensor_split(2, -1)[-1]
    t2 += v
    torch._foreach_mul_([t3, t3], 0.5)
    """, "t3", alias=4)
_finding("view_of_an_argument_older_than_the_history", """
    t3 = z[1:]
    z += v
    t3.mul_(0.5)
    """, "t3")
_finding("view_older_than_the_history_that_leaves", """
    t2 = z.new_ones(z.shape)
    t3 = t2[1:]
    t2 += v
    """, "t3", after=("out[0].mul_(2)",))
_finding("rows_filled_one_after_the_other", """
    t2 = x.new_zeros(2, 3)
    t3 = t2[0]
    t4 = t2[1]
    t3.copy_(v)
    t4.copy_(v)
    """, "t2, t3")
# ... what comes between asks, but for nothing and a break
for between in ("pass", "torch._C._is_tracing()", "t4 = t3 * 2", "t4 = t3[0]", "log.append(t3.is_leaf)",
                "t4 = t3.sum()"):
    _finding(f"view_older_than_the_history_then_{between}", f"""
    t2 = z.new_ones(z.shape)
    t3 = t2[1:]
    t2 += v
    {between}
    t3.mul_(0.5)
    """, "t3")


@pytest.mark.parametrize("name", _PROGRAMS)
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_finding(name: str, backend: str) -> None:
    assert check(_PROGRAMS[name], backend) is None
