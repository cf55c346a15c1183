"""Sizes that come to 0 or 1 in some calls, where that decides whose memory a result is; strides and lengths of results
whose sizes are computed."""

import torch

import jitpy

from .harness import case, make_test

ROWS = tuple(lambda n=n: (torch.arange(n * 4.0).view(n, 4),) for n in (6, 5, 7, 4, 3, 8, 4))
MASKS = tuple(lambda m=m: (torch.tensor(m),) for m in ([3, 1, 2], [2, 2, 4], [1, 0, 5], [1, 3, 0], [0, 0, 0]))


@case(*ROWS)
def columns_of_the_last_rows_made_contiguous(x):
    columns = (x * 2)[3:].T
    y = columns.contiguous()
    y.add_(1)
    return columns, y, columns.is_contiguous(), y is columns


@case(*ROWS)
def branch_on_the_layout_of_the_last_rows(x):
    part = (x * 2)[3:, :2]
    return part.view(-1) if part.is_contiguous() else part + 1


@case(*ROWS)
def rows_made_of_a_quotient(x):
    columns = torch.zeros(x.shape[0] // 3, 4).T
    y = columns.to(memory_format=torch.contiguous_format)
    y.add_(1)
    return columns, y, y is columns, y.stride(), columns.ravel()


@case(*ROWS)
def images_with_one_channel(x):
    images = torch.ones(4, x.shape[0] - 3, 3, 2)
    y = images.contiguous(memory_format=torch.channels_last)
    y.add_(1)
    return images.sum(), y is images, images.is_contiguous(memory_format=torch.channels_last), y.sum()


@case(*MASKS)
def chosen_rows_made_contiguous(mask):
    rows = torch.arange(12.0).view(3, 4)[mask > 1]
    columns = rows.T
    y = columns.contiguous()
    y.add_(1)
    return rows, columns, y, columns.is_contiguous(), y is columns


@case(*MASKS)
def branch_on_the_layout_of_chosen_rows(mask):
    columns = torch.arange(12.0).view(3, 4)[mask > 1].T
    return columns.view(-1) if columns.is_contiguous() else columns + 1


@case(*MASKS)
def strides_of_a_computed_number_of_rows(mask):
    n = mask[0].item()
    return torch.arange(n * 4).view(n, 4).T.contiguous().stride()


@case(*MASKS)
def ranges_up_to_floats(mask):
    total, first = mask.sum().item(), mask[0].item()
    return (
        torch.arange(total * 2.0),
        torch.arange(float(first * 4)),
        torch.arange(0, first / 2),
        torch.arange(0.5, total * 1.5, step=0.5),
        torch.arange(0, total * 1.0, dtype=torch.int64),
        torch.linspace(0, first, 4),
    )


@case(*MASKS)
def ranges_with_steps_that_are_computed(mask):
    return torch.arange(0, 5, mask[0].item() + 0.5), torch.arange(mask[1].item() * 1.0, 9), torch.arange(mask[2] / 2)


WITH_GRADIENTS = tuple(lambda n=n: (torch.linspace(-1, 1, n * 4).view(n, 4).requires_grad_(),) for n in (3, 5, 4))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@case(*WITH_GRADIENTS, fullgraph=True)
def a_size_by_data_beside_a_gradient_of_its_own(x):
    positive = x.detach()[x.detach() > 0]
    return Doubled.apply(x) + positive.view(-1, positive.shape[0]).sum(), positive.contiguous()


@case(*ROWS)
def repeated_sizes(x):
    size = x[3:].shape
    return size * 2, 2 * size, (size + (1,)) * 0, type(True * size[1:]), (1,) * 2


@case(lambda: (torch.tensor([[0, 1, 2], [2, 1, 0]]),), lambda: (torch.tensor([[1, 0], [3, 3]]),))
def classes_that_lie_across(classes):
    hot = torch.nn.functional.one_hot(classes.T, 4)
    flat = hot.view(-1)
    flat.add_(1)
    return hot, flat, torch.nn.functional.one_hot(classes[None].permute(2, 0, 1))


def test_strides_of_a_row_reshaped_to_its_own_shape():
    """Eager computes them anew. The row of a column, of what was computed of it, and of what a call returned."""
    def fn(column, weights):
        drawn = torch.multinomial(weights, 1).T
        return column.T.reshape(1, 4), (column.T * 2).reshape(1, 4), drawn.reshape(1, 4), drawn.view(1, 4) + 1

    args = torch.rand(4, 1), torch.rand(4, 5)
    for found, wanted in zip(jitpy.jit(fn)(*args), fn(*args), strict=True):
        assert found.stride() == wanted.stride()


test_all = make_test(__name__)
