"""The products that experts are written in terms of: rows of tokens with the matrix of each row's expert."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, final

import shardwise.numpy as jnp
from shardwise import lax, nn
from shardwise.compiler.arrays.methods import Array
from shardwise.parallel.grouped_dot import grouped_dot


class Product(Protocol):
    """A product of rows with the matrix of each row's expert."""

    def __call__(self, rows: Array, matrices: Array) -> Array: ...

    def select(self, vectors: Array) -> Array:
        """Return the vector of each row's expert."""
        ...


@final
@dataclass(frozen=True)
class BatchedProduct:
    """Products of rows in equal numbers per expert: [experts, rows, features]."""

    def __call__(self, rows: Array, matrices: Array) -> Array:
        return lax.dot_general(rows, matrices, (((2,), (1,)), ((0,), (0,))))

    def select(self, vectors: Array) -> Array:
        """Return the vector of each row's expert."""
        return vectors[:, None]


@final
@dataclass(frozen=True, eq=False)
class GroupedProduct:
    """Products of rows that are sorted by expert: [rows, features].

    Attributes:
        sizes: the number of rows of each expert.
        rows: the number of all rows, which may be more.
        block: the rows of a block.
    """

    sizes: Array
    rows: int
    block: int

    def __call__(self, rows: Array, matrices: Array) -> Array:
        return grouped_dot(rows, matrices, self.sizes, self.block)

    def select(self, vectors: Array) -> Array:
        """Return the vector of each row's expert. Rows after the last expert have its vector."""
        expert = jnp.searchsorted(jnp.cumsum(self.sizes), jnp.arange(self.rows), side="right")
        return vectors[jnp.minimum(expert, vectors.shape[0] - 1)]


def gated_mlp(weights: Mapping[str, Array], rows: Array, product: Product) -> Array:
    """Apply gated MLPs: the product of `down` with `silu(gate) * up`."""
    hidden = nn.silu(product(rows, weights["gate"])) * product(rows, weights["up"])
    return product(hidden, weights["down"])
