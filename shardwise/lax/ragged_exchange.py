"""ragged_all_to_all: an all-to-all of slices whose sizes the program computes."""

from collections.abc import Sequence

import numpy as np

from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, type_of
from shardwise.compiler.dtypes import is_integer
from shardwise.compiler.ops.collective.ragged_exchange import NamedRaggedAllToAll
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.lax.collectives import check_groups
from shardwise.lax.manual_axes import AxisNames, bound_axis_sizes, check_no_sums, make_varying
from shardwise.typing import ArrayLike


def ragged_all_to_all(
    operand: ArrayLike,
    output: ArrayLike,
    input_offsets: ArrayLike,
    send_sizes: ArrayLike,
    output_offsets: ArrayLike,
    recv_sizes: ArrayLike,
    *,
    axis_name: AxisNames,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
) -> Array:
    """Exchange slices of rows between all members of a named axis; their sizes may differ.

    Of k slices and n members, slices 0 to k/n - 1 are sent to member 0, the next k/n to member 1, and so on. A member
    writes the slices that it receives into its `output`: the slice `operand[input_offsets[i]:][:send_sizes[i]]` begins
    at row `output_offsets[i]` of the receiver. Rows outside of `operand` or of `output` are not sent. Differentiation
    needs slices of `operand` that do not overlap, and that are inside of both arrays.

    Args:
        operand: the rows to send, [n, ...].
        output: the array that received rows replace, [m, ...].
        input_offsets: the first row of each slice, integers [k].
        send_sizes: the number of rows of each slice, integers [k].
        output_offsets: the row of the receiver's `output` at which each slice begins, integers [k].
        recv_sizes: the number of rows of each slice that this member receives, ordered by sender, integers [k]. They
            must be the senders' `send_sizes`: `all_to_all(send_sizes, axis_name, 0, 0, tiled=True)`.
        axis_name: the name of an axis that `shard_map` or `pmap` binds, or a tuple of names. `vmap` may bind it if it
            is the only one.
        axis_index_groups: lists of members, all of the same size, that together contain each member once. The
            collective works within each group.

    Returns:
        `output` with the received rows.

    Raises:
        UnboundAxisError: if an axis name is not bound.
        ValueError: if offsets or sizes are not integers of rank 1, or the axis names or groups are invalid.
        TypeError: if the types of operands do not agree, or the number of slices is not a multiple of that of members.
        NotImplementedError: if `vmap` binds one of several axes, or an axis with groups.

    Example:
        >>> rows = jnp.array([[1, 2, 2], [3, 4, 0]])
        >>> starts, sizes = jnp.array([[0, 1], [0, 1]]), jnp.array([[1, 2], [1, 1]])
        >>> places, received = jnp.array([[0, 0], [1, 2]]), jnp.array([[1, 1], [2, 1]])
        >>> exchange = lambda *slices: lax.ragged_all_to_all(*slices, axis_name="i")
        >>> jax.vmap(exchange, axis_name="i")(rows, jnp.zeros((2, 4), int), starts, sizes, places, received)
        Array([[1, 3, 0, 0],
               [2, 2, 4, 0]], dtype=int32)
    """
    name = "ragged_all_to_all"
    axes = bound_axis_sizes(name, axis_name)
    groups = check_groups(name, axes, axis_index_groups)
    slices = {
        "input_offsets": input_offsets,
        "send_sizes": send_sizes,
        "output_offsets": output_offsets,
        "recv_sizes": recv_sizes,
    }
    for label, value in slices.items():
        type = type_of(value, name)
        if not is_integer(type.dtype) or type.ndim != 1:
            raise ValueError(f"{name}: {label} must be integers of rank 1, one per slice, not {type}")
    operands = [as_operand(operand, name), as_operand(output, name)]
    operands += [Convert(np.dtype(np.int32))(as_operand(value, name)) for value in slices.values()]
    for value in operands:
        check_no_sums(name, value, axes)
    op = NamedRaggedAllToAll(tuple(axes), tuple(axes.values()), groups)
    return op(*(make_varying(value, axes) for value in operands))
