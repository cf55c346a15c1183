"""Programs of the tensors kind that the fuzzer found and made small; what went wrong is said at each."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest
import torch

import jitpy
from tests.fuzz.tensors import TensorProgram, check, statements

_PROGRAMS: dict[str, TensorProgram] = {}


def _finding(name: str, lines: str, result: str, alias: int = 0, after: tuple[str, ...] = ()) -> None:
    names = tuple(part.strip() for part in result.split(","))
    _PROGRAMS[name] = TensorProgram(tuple(statements(textwrap.dedent(lines))), names, alias, after)


# Compiled for a caller under no_grad, which the function left: a view made behind that was one made under no_grad.
_finding("view_made_behind_no_grad", """
    t2 = torch.sin(h.mean(0))
    with torch.no_grad():
        t4 = torch.empty_like(x).copy_(s)
        t2.zero_()
    log.append(s.requires_grad)
    t5 = t4.split(1)[0]
    t4[0].add_(v)
    """, "t2", alias=3)

# The compiled backward pass read an argument again that eager keeps for another result only: a false version error.
_finding("argument_kept_for_another_result", """
    t1 = torch.nn.functional.gelu(g)
    t2 = g.masked_fill(g > 0.5, 1.0)
    with torch.no_grad():
        g.mul_(z)
    t5 = t2 / 2
    """, "t5", alias=3)

# A write to a part of a tensor with an offset made a result with that offset, in a copy of all the memory around it.
_finding("offset_of_a_written_copy", """
    y[0] += 1
    t1 = y.clone()
    t2 = z * z
    t1[0].add_(t2)
    """, "t1")

# as_strided() looks at the memory of all of a tensor, and forgot that it went through `.data`.
_finding("as_strided_of_data", """
    t5 = h.data
    t6 = t5.as_strided((2, 2), (1, 2))
    """, "t6")

# What is copied over all of a tensor took the tensor out of the history: eager runs its backward pass with zeros.
_finding("copied_over_a_result", """
    t1 = h * z
    t1.copy_(h)
    """, "t1", after=("args['z'].mul_(2)",))
_finding("copied_over_a_result_through_a_view", """
    t1 = v * 2
    t1.view(-1).copy_(w[0])
    """, "t1")

# Each result had a `.data` of its own: a write to a view of one, which makes it require grad, missed the other.
_finding("views_of_one_data", """
    t1 = h.data
    t3 = h.view_as(h)
    h.add_(t3)
    t1[0].add_(g)
    """, "t1")

# Which of the two texts eager's error has was found out on a tensor that is no view.
_finding("write_to_a_leaf_that_is_a_view", """
    x.requires_grad_()
    try:
        x.clamp_(-1, 1)
    except RuntimeError as error:
        log.append(str(error))
    """, "x", alias=4)

# A view of the same shape gave way to what it shows, which is then the base of the other views.
_finding("view_of_the_same_shape_beside_others", """
    t1 = z.data
    t2 = t1.flatten()
    t3 = t2[:1]
    t4 = t1.view_as(t1)
    with torch.no_grad():
        t4[t4 > 0] = 0.125
        t4.requires_grad_()
    t3.mul_(t3)
    """, "t1", alias=5)

# A gradient of zeros did not depend on the gradient of the result: it was there where that is undefined.
_finding("zeros_as_the_gradient_of_another_result", """
    t1 = torch.exp(g * 0.25)
    try:
        g.zero_()
    except RuntimeError as error:
        log.append(str(error))
    with torch.no_grad():
        t2 = z / 2
    t4 = w.sum()
    t5 = t2 * t1
    t5.fill_(0.5)
    with torch.no_grad():
        t2.mul_(t2)
        t6 = g.sum(-1)
    """, "t4", alias=5)


# Strides of axes of size 1 are what they are: of a base that was written through a view, and of an empty tensor.
_finding("strides_of_a_base_written_through_a_view", """
    t4 = torch.softmax(y.split(1)[0], -1)
    t5 = t4.t()
    with torch.no_grad():
        t5.index_fill_(0, torch.tensor([0]), 1.5)
        t5.mul_(t5)
    """, "t4", alias=1)
_finding("strides_of_copy_into_a_part_of_a_diagonal", """
    t3 = y.diagonal()[:1]
    t7 = torch.empty_like(t3).copy_(s)
    """, "t7")
_finding("strides_of_copy_into_expanded_row", """
    t2 = z.expand(2, 3)[:1]
    t6 = torch.empty_like(t2).copy_(2)
    """, "t6")

# What eager keeps of a value that was written into an argument changes with the argument's `.data`, which eager does
# not notice: the graph had another copy.
_finding("data_of_an_argument_written_with_a_history", """
    t1 = h.data
    h.tanh_()
    t1.mul_(t1)
    """, "t1", alias=1)

_finding("data_taken_behind_the_write", """
    h.tanh_()
    h.data.mul_(z)
    t1 = x * 2
    """, "t1", alias=1)
_finding("data_returned_behind_the_write", """
    h.tanh_()
    t1 = h.data
    """, "t1", after=("out[0].mul_(0.5)",))

# Of two arguments that were changed since, eager names the one that it looks at first: `other` before `self`.
_finding("which_of_two_changed_arguments", """
    t3 = h * g
    g.clamp_(-1, 1)
    """, "t3", alias=5)


# The memory of an imaginary part whose negation is pending does not hold its values, and a kernel was to read it.
_finding("imaginary_part_of_a_conjugate", """
    t5 = torch.complex(z, z * 2).conj().imag
    t6 = t5 + 0.5
    t7 = t5[1:].sum() * t5
    """, "t5, t6, t7")


# A view that was written to was made anew in front of that write. A hook on a view from before a write ends the
# process, in torch itself, until somebody has looked at its `grad_fn`.
_finding("hook_on_a_view_that_was_written", """
    t1 = g[:1]
    t2 = t1 / 2
    t1.index_fill_(0, torch.tensor([0]), 1.5)
    """, "t2, t1", alias=3, after=("out[1].register_hook(lambda grad: grad * 3)",))


# What was computed from an argument, or a view of one, that was written to came from the value that the graph wrote: a
# hook on the argument missed its gradient.
_finding("result_of_a_written_argument", """
    h.copy_(h)
    t1 = h + g
    """, "t1", alias=2, after=("args['h'].register_hook(lambda grad: grad * 3)",))
_finding("result_of_a_written_view", """
    t1 = g[..., 1:]
    t1[0].add_(s)
    t4 = t1 * t1
    """, "t1, t4", alias=3, after=("out[0].retain_grad(); watched.append(out[0])",))
_finding("result_of_a_written_view_of_a_result", """
    t1 = (w * 2)[0]
    t1.mul_(t1 + 1)
    t4 = t1.sin()
    """, "t1, t4", after=("out[0].register_hook(lambda grad: grad * 3)",))

# A part of the graph kept what a later one wrote into an argument, and did not notice a change of that.
_finding("kept_by_one_part_written_by_another", """
    with torch.no_grad():
        s.copy_(s)
        t1 = h.sum(-1)
    t2 = g.narrow(-1, 0, 1)
    t4 = w * s
    t5 = t2 / 2
    s.clamp_(-1, 1)
    """, "t4", alias=4)

# torch has no gradient of slice_scatter for complex numbers.
_finding("copied_over_a_complex_result", """
    t1 = torch.view_as_real(torch.complex(h, h * 2))
    t3 = torch.where(t1 > 0, t1, s)
    t1.copy_(t3)
    """, "t1", alias=3)

# Eager's gradient of as_strided() stays within the view that it was called on, which shows a part of the memory.
_finding("as_strided_of_a_part", """
    t1 = h[..., 1:]
    t3 = t1.as_strided((2, 2), (1, 2))
    """, "t3", alias=1)
_finding("as_strided_of_a_part_of_a_result", """
    t1 = (w * 2)[..., 1:]
    t3 = t1.as_strided((2, 2), (1, 2))
    """, "t3")
_finding("as_strided_of_an_overlapping_part", """
    t1 = (w * 2).as_strided((3, 2), (1, 1))
    t3 = t1.as_strided((2, 2), (1, 4))
    """, "t3")
_finding("as_strided_of_another_shape_of_all", """
    t1 = (w * 2).t().unsqueeze(0)
    t3 = t1.as_strided((2, 2), (1, 4))
    """, "t3")
_finding("as_strided_of_an_expanded_part", """
    t1 = (w * 2)[0].expand(2, 3)
    t3 = t1.as_strided((2, 2), (1, 2))
    """, "t3")

# A copy laid out as another tensor was returned as the view that it was computed through, made under no_grad.
_finding("copy_laid_out_as_another_is_no_view", """
    with torch.no_grad():
        t3 = torch.empty_like(x).copy_(y)
    y.data.mul_(w)
    t3[0] = v
    """, "t3", alias=6)

# A reshape that copies is no view of the copy.
_finding("detached_in_place_behind_a_reshape_that_copies", """
    t2 = x.reshape(-1)
    t2.detach_()
    """, "t2", alias=6)
_finding("detached_in_place_behind_a_reshape_that_copies_a_result", """
    t2 = (x * w).t().reshape(-1)
    t2.detach_()
    """, "t2")
_finding("detached_in_place_behind_a_copy_laid_out_as_another", """
    t2 = torch.empty_like(x).copy_(w)
    t2.detach_()
    """, "t2", alias=6)

# Nodes of results were taken for reads by the program, where a leaf that gave way in between had shortened the list:
# the results were views of a copy of the argument.
_finding("view_of_an_argument_beside_a_leaf_that_is_read_again", """
    g += g
    t2 = g[0]
    t3 = w.view_as(w)
    with torch.no_grad():
        t5 = t3 * g
        t3.zero_()
    t6 = w * w
    """, "t2")
_finding("view_of_a_leaf_that_was_changed_as_data", """
    t2 = torch.where(w > 0, w, g)
    w.data.mul_(2)
    t5 = w[..., 1:]
    """, "t2, t5", alias=5)
_finding("view_of_a_leaf_written_under_no_grad_and_behind", """
    t2 = v[..., 1:]
    with torch.no_grad():
        with torch.enable_grad():
            t4 = torch.softmax(t2, -1)
        t2.mul_(t2)
    t2[0] += 1
    """, "t4", alias=4)

# A view made between two writes, the first of which gave the argument a history, was made in front of both.
_finding("view_made_behind_the_write_of_a_history", """
    x[0] = g
    t1 = x[..., 1:]
    t2 = x.flatten()
    t2.sigmoid_()
    t1.index_put_((torch.tensor([0]),), torch.tensor(2.0))
    """, "t1")

# Views require grad since what they show does.
_finding("view_of_what_is_told_to_require_grad", """
    t1 = torch.empty_like(g).copy_(0.5)
    t3 = t1.unsqueeze(0)
    t1.requires_grad_()
    """, "t3", alias=4)
_finding("view_of_what_is_told_to_require_grad_is_asked", """
    t1 = torch.empty_like(g).copy_(0.5)
    t3 = t1.unsqueeze(0)
    t4 = t1.detach()[:1]
    t1.requires_grad_()
    log.append((t3.requires_grad, t3.is_leaf, t4.requires_grad))
    t5 = t3 * 2
    """, "t4, t5")

# Which error eager raises was found out on tensors that did not require grad.
_finding("out_of_computed_views_whose_elements_share_memory", """
    t2 = h.masked_fill(h > 0.5, 1.0).split(1)[0]
    t4 = t2.expand(2, 1, 3)
    try:
        torch.mul(t4, 2, out=t4)
    except RuntimeError as error:
        log.append(str(error))
    """, "t2", alias=6)

# A view made under no_grad was taken to take a value with a history; the error came from within the graph, and left
# grad mode off.
_finding("history_written_to_a_view_made_under_no_grad_before_a_break", """
    with torch.no_grad():
        t3 = torch.view_as_real(torch.complex(v, v * 2))
        z.mul_(2)
    t3 += h.sum(-1)
    """, "t3", alias=7)

# The graph got the argument's `.data` in place of the argument, and the result was a view of that.
_finding("view_under_no_grad_of_what_is_written_as_data", """
    with torch.no_grad():
        t2 = v.view_as(v)
        t2.data.mul_(t2)
    """, "t2")

# The `.data` that the program got has the version counter that the backward pass looks at, and no other has.
_finding("data_that_is_kept_and_written_later", """
    t1 = s.data
    t2 = t1.unsqueeze(0)
    s.copy_(t1)
    t3 = v * t1
    """, "t2, t1, t3", alias=1, after=("out[1].detach().add_(1)",))
_finding("data_of_the_same_tensor_as_the_one_that_is_kept", """
    t1 = z.data
    t2 = z.data
    t3 = v * t1
    """, "t2, t3", after=("out[0].add_(1)",))
_finding("data_of_a_result_beside_the_result_that_is_kept", """
    t1 = w * 2
    t2 = t1.data
    t3 = t1 * v
    """, "t1, t2, t3", after=("out[1].add_(1)",))
_finding("data_of_a_result_that_is_kept", """
    t1 = (w * 2).data
    t3 = t1[0] * v
    """, "t1, t3", after=("out[0].add_(1)",))


# Bounds of clamp() that are numbers are no operands of its loop, and have no say in its strides.
_finding("strides_of_clamp", """
    t1 = g.unsqueeze(0).clone().mT
    t2 = t1.clamp(-1, 1)
    """, "t2")

# The error of a call was found out on a tensor without a history: an error that comes first was not seen.
_finding("which_of_two_errors_of_out", """
    t1 = (w * 2).split(1)[0].expand(2, 1, 3)
    try:
        torch.mul(t1, 2, out=t1)
    except RuntimeError as error:
        log.append(str(error))
    """, "w")

# Autograd refuses to read one of several views once its memory was written to, and says so in other words.
_finding("kept_part_of_several_views_is_written", """
    t1 = h.split(1)[0]
    t4 = t1.clamp(-1, 1)
    """, "t4", after=("args['h'][:1].detach().mul_(0.5)",))

# A copy that has to be no view is one with the strides that it was given, on axes of size 1, too.
_finding("copy_laid_out_as_a_part_with_an_axis_of_one_element", """
    t1 = torch.empty_like(x[:, :1].t()).copy_(w[:, :1].t())
    t2 = torch.empty_like(x[:1].t()).copy_(w[:1].t())
    t3 = torch.empty_like(x[:, :1].unsqueeze(0)).copy_(w[:, :1].unsqueeze(0))
    """, "t1, t2, t3", alias=6)

# Views of a copy that has to be no view were views of what that was computed through.
_finding("view_of_a_written_result_beside_it", """
    t1 = torch.nn.functional.gelu(z)
    t2 = t1.unsqueeze(0)
    with torch.no_grad():
        t2[0].add_(g)
    t1.sub_(g)
    """, "t2", alias=6)
_finding("views_of_a_copy_laid_out_as_another", """
    t1 = torch.empty_like(x).copy_(y)
    t2 = t1[0]
    t3 = torch.empty_like(x).copy_(w)
    t4 = t3[0]
    torch._C._is_tracing()
    """, "t1, t2, t3, t4", alias=6, after=("out[0].mul_(args['w'])", "out[3].mul_(2)"))

# as_strided() counts elements, of which the memory may have others than the view.
_finding("as_strided_of_complex_numbers_as_real_ones", """
    t2 = torch.view_as_real(torch.complex(y, y * 2))
    t3 = t2.as_strided((2, 2), (1, 2))
    """, "t3")


# The memory of real and imaginary parts holds complex numbers: that is what as_strided() looked at.
_finding("as_strided_of_real_and_imaginary_parts", """
    t1 = torch.view_as_real(torch.complex(y, y * 2)).as_strided((2, 2), (1, 2))
    """, "t1")

# Eager refuses to write to one of several views before it looks at the number.
_finding("which_of_two_errors_of_several_views", """
    t1 = h.split(1)[0]
    try:
        t1.masked_fill_(t1 > 0, 1j)
    except RuntimeError as error:
        log.append(str(error))
    """, "h", alias=6)

# Lists of tensors whose negation is pending are no operands of operations in place.
_finding("list_with_a_pending_negation", """
    t1 = torch.complex(z, z).conj().imag
    torch._foreach_mul_([t1, z], 0.5)
    """, "t1")

# A graph that starts under no_grad, behind a break, ends outside, and raises: grad mode stayed off.
_finding("error_behind_no_grad_behind_a_break", """
    with torch.no_grad():
        t1 = torch.view_as_real(torch.complex(v, v * 2))
        z.index_fill_(0, torch.tensor([0]), 1.5)
    t1 += h.sum(-1)[0]
    """, "y", alias=7)

# A view that was written through has the history of what owns the memory: a hook on the argument between the two does
# not see its gradient.
_finding("hook_on_an_argument_written_through_its_view", """
    t3 = g[0]
    t3 *= 2
    """, "t3, g", after=("out[1].grad_fn; out[1].register_hook(lambda grad: grad * 3)",))
_finding("hook_on_an_argument_that_got_a_history_through_its_view", """
    t1 = y[0]
    t2 = y[1:]
    t1.mul_(g)
    t2.mul_(2)
    """, "t1, t2", after=("args['y'].grad_fn; args['y'].register_hook(lambda grad: grad * 3)",))
_finding("hook_on_an_argument_with_a_view_between_two_writes", """
    y.mul_(v)
    t1 = y[0]
    y.mul_(2)
    """, "t1", after=("args['y'].grad_fn; args['y'].register_hook(lambda grad: grad * 3)",))

# Eager refuses to write to a view of a leaf before it looks at the number: the error was found out on a view of another
# tensor.
_finding("which_of_two_errors_of_a_view_of_a_leaf", """
    t1 = v.narrow(-1, 0, 1)
    try:
        t1.masked_fill_(t1 > 0, 1j)
    except RuntimeError as error:
        log.append(str(error))
    t2 = w[0][1:]
    try:
        t2.fill_(torch.ones(2))
    except RuntimeError as error:
        log.append(str(error))
    t3 = h[0]
    try:
        t3.fill_(1j)
    except RuntimeError as error:
        log.append(str(error))
    """, "v")

# A complex number was taken for one that a real tensor can hold: the error came out of the graph, behind the handler.
_finding("complex_numbers_for_real_tensors", """
    t1 = w * 2
    for call in (
        lambda: t1.fill_(1j), lambda: torch.full_like(x, 1j), lambda: x.new_full((2,), 1j), lambda: torch.fill(x, 1j),
        lambda: torch.full((2,), 1j, dtype=torch.float32), lambda: t1.fill_(torch.ones(2)), lambda: t1.lerp_(x, 1j),
        lambda: torch.lerp(x, y, 1j), lambda: x.addcmul(y, y, value=1j), lambda: torch.fill(x, torch.ones(1)),
    ):
        try:
            call()
        except RuntimeError as error:
            log.append(str(error))
    t2 = torch.empty_like(x).copy_(1j)
    t3 = x * 1j
    t4 = torch.full((2,), 1j) + (x == 1j).sum()
    """, "t1, t2, t3, t4")


# Autograd connects all tensors of a list with what they were before the first is written.
_finding("list_with_one_tensor_twice", """
    torch._foreach_mul_([h, h], 0.5)
    """, "h")
_finding("list_with_one_result_twice", """
    t1 = v.sin()
    torch._foreach_mul_([t1, t1], 0.5)
    """, "t1", alias=7)
_finding("list_of_views_of_one_result", """
    t1 = w * 2
    torch._foreach_sin_([t1[:, :2], t1[:, 1:]])
    """, "t1")
_finding("lists_that_read_what_they_write", """
    t1 = w * 2
    t2 = v + t1
    torch._foreach_add_([t1, t2], [t2, t1])
    """, "t1, t2")
_finding("overload_for_a_list_with_one_tensor_twice", """
    t1 = w * 2
    torch.ops.aten._foreach_mul_.Scalar([t1, t1], 0.5)
    torch._foreach_mul_(self=[t1, t1], scalar=0.5)
    """, "t1")
_finding("lists_that_share_memory_without_gradients", """
    torch._foreach_add_([x, x[0], x], [y, z, y])
    torch._foreach_copy_([x[:, :2], z], [x[:, 1:], x[0]])
    torch._foreach_copy_([x, y], [y, x])
    """, "x", alias=2)

# Eager has no derivative of these.
_finding("copied_list_with_gradients", """
    torch._foreach_copy_([x, y], [h, w])
    """, "x")
_finding("maximum_of_a_list_with_gradients", """
    t1 = w * 2
    torch._foreach_maximum_([t1, x], 0.5)
    """, "t1")

# The tensors of a list before the one that is refused are written, but for refusals of autograd.
_finding("list_with_one_that_is_refused", """
    try:
        torch._foreach_add_([x, z, y], [y, s.new_ones(2), x])
    except RuntimeError as error:
        log.append(str(error))
    t1 = x * w
    """, "t1")
_finding("list_with_one_leaf", """
    try:
        torch._foreach_mul_([x, w], 0.5)
    except RuntimeError as error:
        log.append(str(error))
    t1 = x * w
    """, "t1")
# Of results in the same memory, of the same shape, the first was the base of the others.
_finding("detached_in_place_behind_a_break", """
    t2 = s * 2
    t3 = t2.view_as(t2)
    t3.detach_()
    """, "t2", alias=5)
_finding("base_behind_its_view", """
    t2 = z * 2
    t3 = t2.view_as(t2)
    torch._C._is_tracing()
    t2.detach_()
    """, "t3, t2", alias=5)


# What torch refuses at the call was recorded, and raised when the graph ran: behind the program's own handler.
_finding("fill_with_a_tensor_that_is_no_number", """
    for t in (x, g, h[0]):
        try:
            t.fill_(y[0])
        except RuntimeError as error:
            log.append(str(error))
    t1 = x * 2
    """, "t1")
_finding("fill_with_a_tensor_that_is_no_number_before_another_error", """
    try:
        s.fill_(x[0])
    except RuntimeError as error:
        log.append(str(error))
    w.masked_fill_(w > 0, 0.25)
    """, "s", alias=6)
_finding("fill_behind_out_with_gradients", """
    t1 = torch.zeros_like(x)
    try:
        torch.cat([w], out=t1)
    except RuntimeError as error:
        log.append(str(error))
    t4 = x * g
    try:
        t4.fill_(t4)
    except RuntimeError as error:
        log.append(str(error))
    """, "t1", alias=6)
_finding("complex_numbers_written_to_real_ones", """
    for write in (lambda: x.fill_(1j), lambda: i.fill_(1j), lambda: x.masked_fill_(x > 0, torch.tensor(1j)),
                  lambda: x.fill_diagonal_(1j), lambda: x.mul_(1j),
                  lambda: v.narrow(-1, 0, 1).masked_fill_(m[0, :1], 1j)):
        try:
            write()
        except RuntimeError as error:
            log.append(str(error))
    x.copy_(c.abs() * 2)
    t1 = x * 2
    """, "t1")
_finding("writes_of_dtypes_that_a_kernel_refuses", """
    t1 = i > 0
    for write in (lambda: c.clamp_(0, 1), lambda: c.abs_(), lambda: c.floor_(), lambda: c.atan2_(x), lambda: t1.abs_(),
                  lambda: t1.ceil_(), lambda: t1.cumsum_(0), lambda: c.bitwise_and_(i), lambda: c.sub_(m),
                  lambda: c.addmm_(x.new_ones(2, 2), x), lambda: x.heaviside_(m), lambda: c.sign_(), lambda: c.erf_(),
                  lambda: x.gcd_(y), lambda: x.heaviside_(y.double())):
        try:
            write()
        except RuntimeError as error:
            log.append(str(error))
    """, "t1")

# A result that is a view of what was written hid from the backward pass what it shows.
_finding("write_behind_a_view_of_what_was_written", """
    t1 = h * 2
    t2 = t1[0]
    t2.tanh_()
    """, "t2", after=("out[0].detach().add_(1)",))
_finding("write_behind_a_negated_view", """
    t1 = torch.complex(h, h).conj().imag
    t1.tanh_()
    """, "t1", after=("out[0].detach().add_(1)",))
for place in range(2):  # what owns the memory of a transposed value is no view, and had a version of its own
    _finding(f"write_behind_a_transposed_view_{place}", """
        t1 = h * 2
        t2 = t1.t()
        t2.tanh_()
        """, "t2, t1" if place else "t1, t2", after=("out[0].detach().add_(1)",))

# What an in-place operation overwrites it keeps as a copy, also where that is a copy looked at in another shape.
_finding("write_to_a_copy_in_another_shape", """
    t1 = h.transpose(0, 1).ravel()
    t1.clamp_(-1, 1)
    """, "t1", after=("out[0].mul_(2)",))
_finding("write_to_a_view_of_a_copy_in_another_shape", """
    t1 = h.transpose(0, 1).ravel()
    t1.view(-1).clamp_(-1, 1)
    """, "t1", after=("out[0].mul_(2)",))

# A view that one operation on lists has written twice: its history is not that of the memory, to which autograd adds.
_finding("write_to_a_view_that_a_list_had_twice", """
    t1 = g.flatten()
    torch._foreach_mul_([g, g], 0.5)
    t1.sub_(s)
    """, "t1")


# Numbers for memory with gaps were read as if the copy that has them had the gaps, too.
_finding("random_numbers_for_memory_with_gaps", """
    t2 = z[..., ::2]
    t2.uniform_()
    t3 = torch.complex(g, g).imag.detach()
    t3.uniform_()
    t4 = torch.zeros(40, 5)[:, 1:3]
    t4.normal_()
    """, "t2, t3, t4", alias=6)

# What torch refuses of a pending conjugation was made all the same, or raised before the writes in front of it.
_finding("real_view_of_a_pending_conjugation", """
    v.data.sigmoid_()
    t1 = c.conj()
    torch.view_as_real(t1).add_(1)
    """, "t1", alias=2)
_finding("unread_real_view_of_a_pending_conjugation", """
    t1 = c.conj()
    torch.view_as_real(t1)
    """, "t1")

# The check of an index that no result depends on, since all elements are the same.
_finding("index_into_one_element", """
    t1 = s.unsqueeze(0)
    t3 = t1[i % 2]
    t4 = torch.ones(2)[i * 2]
    """, "t4", alias=6)
_finding("unread_index_into_one_element", """
    t1 = s.unsqueeze(0)
    t3 = t1[i % 2]
    t4 = i.sum()
    """, "t4")

# A view of a leaf, made before the graph began: eager says that first.
_finding("refused_write_to_an_argument_that_shows_a_leaf", """
    t1 = w[..., None]
    t2 = w[:, 0]
    torch._C._is_tracing()
    for write in (lambda: t1.scatter_(0, t1, 1.0), lambda: t2.add_(torch.ones(2, 5, 1, 7))):
        try:
            write()
        except RuntimeError as error:
            log.append(str(error))
    """, "t1")


# A view of what came to require grad counts as a leaf until something is computed of it, be it that nobody reads it.
_finding("view_of_a_written_tensor_that_nobody_reads", """
    x[0].add_(v)
    t4 = torch.stack([z, z * 2], -1)
    t6 = x * 2
    """, "t6", alias=1, after=("args['z'].mul_(2)",))

# Autograd cannot make the history of a view anew in inference mode, where tracing asked for it.
_finding("view_written_in_inference_mode", """
    t1 = torch.view_as_real(torch.complex(g, g * 2))
    t5 = t1[..., 1:]
    with torch.inference_mode():
        t6 = t5.mul_(2)
    """, "t5", alias=8)


# Errors of bounds, and of dtypes that a kernel refuses, were raised when the graph ran, or with an unread result never.
_finding("bounds_of_random_numbers", """
    for write in (lambda: x.uniform_(2, 1), lambda: x.random_(5, 2), lambda: x.normal_(0, -1), lambda: x.geometric_(2),
                  lambda: i.random_(3, 3), lambda: i.uniform_(0, 1), lambda: x.uniform_(0, 1)):
        try:
            write()
        except RuntimeError as error:
            log.append(str(error))
    t1 = x * 2
    """, "t1")
for number, unread in enumerate(("c.floor()", "m.abs()", "torch.gcd(x, y)", "torch.heaviside(x, m)", "c < c",
                                 "c.sort()", "m.median()", "torch.hypot(i, i)", "torch.cross(x, y.double(), dim=1)",
                                 "torch.polar(x, y.double())", "torch.heaviside(x, y.double())", "torch.cdist(x, c)",
                                 "torch.cdist(x.half(), y.half())", "torch.linalg.cross(x, y.bfloat16())",
                                 "torch.nn.functional.layer_norm(x, (3,), z.double())", "torch.mm(x, c.mT)",
                                 "torch.nn.functional.group_norm(x, 1, z.double())", "x.gcd(y)",
                                 "torch.nn.functional.conv1d(x, torch.ones(1, 2, 3, dtype=torch.double))")):
    _finding(f"unread_result_of_a_refused_dtype_{number}", f"""
        try:
            {unread}
        except RuntimeError as error:
            log.append(str(error))
        t1 = x * 2
        """, "t1")


# A view of the copy, which autograd does not detach in place.
_finding("raveled_copy", """
    t1 = h.mT.ravel()
    t2 = y.mT.ravel()
    for view in (t1, t2):
        try:
            view.detach_()
        except RuntimeError as error:
            log.append(str(error))
    t1.add_(1)
    """, "t1, t2")

# What the program sees as the owner of the memory was made of the value that later operations had read: gradients came
# past it.
_RETAINED = ("out[0].grad_fn; out[0].retain_grad(); watched.append(out[0])",)
_finding("gradient_of_a_written_view_through_another_result", """
    t1 = torch.view_as_real(torch.complex(w, w * 2))
    t1.tanh_()
    t2 = t1 * 3
    """, "t1, t2", after=_RETAINED)
_finding("gradient_of_what_is_written_through_a_transposed_view", """
    t1 = h * 2
    t1.t().tanh_()
    t2 = t1 * 3
    """, "t1, t2", after=_RETAINED)
_finding("gradient_of_a_copy_laid_out_as_another", """
    t1 = torch.empty_like(x).copy_(w)
    t2 = t1 * 3
    """, "t1, t2", alias=6, after=_RETAINED)

# A write gives each view a history of its own, from what owns the memory, also where one was made of another.
_finding("hook_on_a_view_beside_a_written_view_of_it", """
    t1 = torch.view_as_real(torch.complex(v, v * 2))
    t2 = t1.t()
    t2 *= 2
    """, "t2, t1", after=("out[1].grad_fn; out[1].register_hook(lambda grad: grad * 3)",))
_finding("gradient_of_a_view_of_an_argument_beside_a_written_view_of_it", """
    t1 = h.view_as(h)
    t2 = t1[..., 1:]
    t3 = torch.sin(t1)
    t2.mul_(2)
    t4 = t2[0]
    """, "t1, t2, t3, t4", after=_RETAINED)
for place in range(4):
    _finding(f"hook_on_one_of_several_views_{place}", """
        t0 = h * 2
        t1 = t0.view_as(t0)
        t2 = t1[..., 1:]
        t3 = t2[0]
        t2.mul_(2)
        t4 = t2[:1]
        t5 = t4 * 2
        """, "t1, t2, t3, t4, t5",
             after=(f"out[{place}].grad_fn; out[{place}].register_hook(lambda grad: grad * 3)",))

# A view that the graph returned, of a tensor that no longer requires grad, was a view of another one.
_finding("view_of_what_does_not_require_grad_any_more_behind_a_break", """
    w.requires_grad = False
    t1 = w[0]
    torch._C._is_tracing()
    t1.add_(g)
    t2 = w * 2
    """, "t2")
_finding("view_of_what_does_not_require_grad_any_more_as_a_result", """
    w.requires_grad_(False)
    t1 = w[0]
    """, "t1", after=("out[0].mul_(args['g'])",))

# What autograd keeps of an op was not known where values tell the size of its result.
_finding("index_of_a_result_whose_size_depends_on_data_is_written", """
    m.fill_(1)
    t2 = w[m].sum()
    m.masked_fill_(m, False)
    """, "t2")
for number, index in enumerate(("m", "i % 2", "i % 2, i")):
    _finding(f"index_is_written_later_{number}", f"""
        i.mul_(1)
        m.logical_not_()
        t1 = w[{index}]
        t2 = m, i
        """, "t1", after=("args['m'].zero_()", "args['i'].zero_()"))
_finding("mask_of_selected_elements_is_written_later", """
    m.logical_not_()
    t1 = w.masked_select(m)
    """, "t1", after=("args['m'].zero_()",))


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", _PROGRAMS)
def test_finding(name: str, backend: str) -> None:
    problem = check(_PROGRAMS[name], backend)
    assert problem is None, f"{problem}\n{_PROGRAMS[name].text()}"


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_hook_on_an_argument_that_is_a_view_at_the_next_call(backend: str) -> None:
    def fn(h: torch.Tensor) -> torch.Tensor:
        part = h[0]
        part.mul_(2)
        return part

    def gradient(function: Callable[[torch.Tensor], torch.Tensor], of_part: bool) -> torch.Tensor:
        w = torch.arange(6.0).reshape(2, 3).requires_grad_()
        h = (w * 2)[:] if of_part else w * 2
        part = function(h)
        assert h.grad_fn is not None
        h.register_hook(lambda grad: grad * 3)
        (h * 5).sum().add(part.sum()).backward()
        return w.grad

    jitted = jitpy.jit(fn, backend=backend)
    for of_part in (False, False, True, True, False):
        assert torch.equal(gradient(jitted, of_part), gradient(fn, of_part)), of_part


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_which_results_are_views(backend: str) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = x * 2, x * 3
        hidden = x * 4
        return a.view_as(a), a, b, b.view_as(b), hidden.view_as(hidden), hidden.view_as(hidden)

    jitted = jitpy.jit(fn, backend=backend)
    for _ in range(2):
        results = jitted(torch.ones(3))
        assert [result._base is not None for result in results] == [True, False, False, True, True, True]
        assert results[0]._base is results[1]
        assert results[3]._base is results[2]
        results[4].add_(1)
        assert torch.equal(results[5], torch.full((3,), 5.0))
