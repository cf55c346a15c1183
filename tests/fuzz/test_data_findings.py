"""Programs of the tensors kind about `.data` and what inference mode leaves; what went wrong is said at each."""

from __future__ import annotations

import textwrap

import pytest

from tests.fuzz.tensors import TensorProgram, check, statements

_PROGRAMS: dict[str, TensorProgram] = {}


def _finding(name: str, lines: str, result: str, alias: int = 0, after: tuple[str, ...] = ()) -> None:
    names = tuple(part.strip() for part in result.split(","))
    _PROGRAMS[name] = TensorProgram(tuple(statements(textwrap.dedent(lines))), names, alias, after)


# `.data` was assigned to an argument; eager's node keeps that, with its version counter.
_finding("kept_where_data_was_assigned", """
    t1 = g.new_ones(g.shape)
    z.data = t1
    z.addcmul_(z * 2, g * z)
    """, "t1", alias=8)

# A view of a tensor whose `.data` was assigned was one of the memory that it got.
_finding("view_of_a_tensor_with_assigned_data", """
    t1 = h.clone()
    y.data = w.data
    t4 = y[:, 0]
    try:
        y[...] = t1
    except (RuntimeError, IndexError, TypeError) as error:
        log.append(str(error))
    """, "t4", alias=2)

_finding("refused_write_to_a_leaf_with_assigned_data", """
    v.data = g * 2
    try:
        v.add_(torch.ones(2, 5, 1, 7))
    except (RuntimeError, IndexError, TypeError) as error:
        log.append(str(error))
    """, "v")

# What is detached of an inference tensor outside inference mode is none.
_finding("detached_inference_tensor", """
    with torch.inference_mode():
        t1 = g * 2
    t1.detach().add_(1)
    t2 = t1.data
    t2.mul_(2)
    """, "t1, t2", after=("out[1].mul_(2)",))
_finding("returned_detached_inference_tensor", """
    with torch.inference_mode():
        t1 = z * 2
    t2 = t1.detach()
    """, "t2", after=("out[0].mul_(2)",))

# What was written to an argument, and is kept, is in the argument's memory when that changes through `.data`.
_finding("data_of_a_written_argument_that_is_kept", """
    z *= 2
    t1 = z * w
    z.data.clamp_(-0.1, 0.1)
    """, "t1", alias=6)

# A view whose `.data` was replaced shows other memory than its base, by which autograd tells what a write changes.
_finding("data_of_views_swapped", """
    v.data, g.data = g.data, v.data
    g.sub_(z)
    """, "g", alias=8)

# The functional form of `normal_` has no derivative.
_finding("normal_under_autograd", """
    t1 = x * w
    t1.normal_()
    t2 = w * 2
    t2.bernoulli_(0.5)
    """, "t1, t2")

# The backward pass kept what a view had shown of a leaf before its `.data` was replaced.
_finding("view_of_a_leaf_whose_data_is_replaced", """
    t1 = v.view_as(v)
    v.data = z.data
    t5 = torch.addcmul(g, g, t1 * g)
    """, "t5", alias=6)

# A view that is older than a write to its base is a leaf to autograd, which looks before it writes the list.
_finding("foreach_writes_a_view_behind_a_write_to_its_base", """
    t1 = z.tensor_split(2, -1)[-1]
    z.copy_(g)
    torch._foreach_mul_([t1, h], 0.5)
    """, "t1", alias=8)

# What inference mode had made got the keys of an ordinary tensor, and eager refuses views of it: a write behind one was
# made first.
_finding("view_of_an_inference_tensor_with_assigned_data", """
    with torch.inference_mode():
        t1 = h * 2
    t1.data = t1.data * 0.9 + y.data
    t3 = t1.expand(2, *t1.shape)
    i.bitwise_xor_(i)
    """, "i", alias=6)

# Views made in inference mode of what has a history were made again under no_grad.
_finding("write_to_part_of_a_view_made_in_inference_mode", """
    t1 = torch.sin(h)
    with torch.inference_mode():
        t2 = t1[None]
    t3 = t1.masked_fill(t1 > 0.5, 1.0)
    t2[0] = t3
    """, "t1", alias=3)
_finding("write_behind_a_view_made_in_inference_mode", """
    t1 = torch.softmax(w, -1)
    with torch.inference_mode():
        t3 = t1[None]
    """, "t3, t1", alias=3, after=("out[1].mul_(2)",))
_finding("view_made_in_inference_mode_given_to_out", """
    t2 = v @ v
    with torch.inference_mode():
        t4 = t2[None]
    t5 = t2.unsqueeze(0)
    with torch.no_grad():
        torch.add(t4, t5, out=t4)
    t8 = torch.nn.functional.gelu(t4)
    """, "t5")

# What was written to an argument was kept apart for the backward pass, which read it where that shows other data.
_finding("argument_is_written_and_then_shows_other_data", """
    s.abs_()
    t2 = h * s
    s.data = s.data * 0.9
    t4 = t2.nan_to_num()
    """, "t4", alias=0)


@pytest.mark.parametrize("name", _PROGRAMS)
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_finding(name: str, backend: str) -> None:
    assert check(_PROGRAMS[name], backend) is None
