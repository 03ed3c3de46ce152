"""Collectives over named axes in two parts: the start returns a future, and `done` of the future the result.

The program has the plain collective where it starts, and an optimization barrier where its result is needed. XLA's
scheduler decides when the collective runs between the two; `experimental.overlap.program_order` keeps it between them.
"""

from collections.abc import Sequence
from typing import Any, final

from shardwise import tree
from shardwise.base.docstrings import documented
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.dtypes import DType
from shardwise.compiler.ops.elementwise.identities import CollectiveDone
from shardwise.lax.collectives import (
    COLLECTIVE,
    EXCHANGE,
    GATHER,
    PERMUTE,
    SCATTER,
    all_gather,
    all_to_all,
    ppermute,
    psum,
    psum_scatter,
)
from shardwise.lax.manual_axes import AxisNames

_FUTURES = "A pytree like `x` of futures. The method `done()` of each returns the result."


@final
class CollectiveFuture:
    """The result of a collective that was started. It is no array: `done()` returns the array.

    A future is a leaf of pytrees. It stays in the function that starts the collective.
    """

    __slots__ = ("_name", "_result")

    def __init__(self, name: str, result: Array):
        self._name = name
        self._result = result

    def done(self) -> Array:
        """Wait for the collective, and return its result."""
        return CollectiveDone()(self._result)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return self._result.shape

    @property
    def dtype(self) -> DType:
        """The dtype of the result."""
        return self._result.dtype

    @property
    def ndim(self) -> int:
        """The number of dims of the result."""
        return self._result.ndim

    @property
    def size(self) -> int:
        """The number of elements of the result."""
        return self._result.size

    def __repr__(self) -> str:
        return f"<{self._name} in flight, {self._result.type}: `done()` returns its result>"


def _started(name: str, results: Any) -> Any:
    return tree.map(lambda result: CollectiveFuture(name, as_operand(result, name)), results)


@documented(COLLECTIVE, returns=_FUTURES)
def psum_start(x: Any, axis_name: AxisNames, *, axis_index_groups: Sequence[Sequence[int]] | None = None) -> Any:
    """Start a sum over all members of a named axis (all-reduce).

    Example:
        >>> jax.vmap(lambda x: lax.psum_start(x, "i").done(), axis_name="i")(jnp.array([5, 6, 7]))
        Array([18, 18, 18], dtype=int32)
    """
    return _started("psum", psum(x, axis_name, axis_index_groups=axis_index_groups))


@documented(GATHER, returns=_FUTURES)
def all_gather_start(
    x: Any,
    axis_name: AxisNames,
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    axis: int = 0,
    tiled: bool = False,
    to: str = "varying",
) -> Any:
    """Start to gather the values of all members of a named axis.

    Example:
        >>> jax.vmap(lambda x: lax.all_gather_start(x, "i").done(), axis_name="i")(jnp.array([5, 6]))
        Array([[5, 6],
               [5, 6]], dtype=int32)
    """
    gathered = all_gather(x, axis_name, axis_index_groups=axis_index_groups, axis=axis, tiled=tiled, to=to)
    return _started("all_gather", gathered)


@documented(SCATTER, returns=_FUTURES)
def psum_scatter_start(
    x: Any,
    axis_name: AxisNames,
    *,
    scatter_dimension: int = 0,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    tiled: bool = False,
) -> Any:
    """Start a sum over all members of a named axis that is scattered among them (reduce-scatter).

    JAX has `tiled=True` only.

    Example:
        >>> scatter = lambda x: lax.psum_scatter_start(x, "i", tiled=True).done()
        >>> jax.vmap(scatter, axis_name="i")(jnp.arange(4).reshape(2, 2))
        Array([[2],
               [4]], dtype=int32)
    """
    scattered = psum_scatter(
        x, axis_name, scatter_dimension=scatter_dimension, axis_index_groups=axis_index_groups, tiled=tiled
    )
    return _started("psum_scatter", scattered)


@documented(EXCHANGE, returns=_FUTURES)
def all_to_all_start(
    x: Any,
    axis_name: AxisNames,
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    tiled: bool = False,
) -> Any:
    """Start to exchange slices between all members of a named axis: member j gets slice j of each member.

    Example:
        >>> jax.vmap(lambda x: lax.all_to_all_start(x, "i", 0, 0).done(), axis_name="i")(jnp.arange(4).reshape(2, 2))
        Array([[0, 2],
               [1, 3]], dtype=int32)
    """
    received = all_to_all(x, axis_name, split_axis, concat_axis, axis_index_groups=axis_index_groups, tiled=tiled)
    return _started("all_to_all", received)


@documented(PERMUTE, returns=_FUTURES)
def ppermute_start(x: Any, axis_name: AxisNames, perm: Sequence[tuple[int, int]]) -> Any:
    """Start to send values between members of a named axis (collective-permute).

    Example:
        >>> jax.vmap(lambda x: lax.ppermute_start(x, "i", [(0, 1), (1, 0)]).done(), axis_name="i")(jnp.array([5, 6]))
        Array([6, 5], dtype=int32)
    """
    return _started("ppermute", ppermute(x, axis_name, perm))
