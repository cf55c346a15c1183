"""The lowerings, by family. Importing this package registers them."""

from . import casts, indexing, nn, pointwise, reductions, views  # noqa: F401
