"""jax.experimental.layout: how the elements of an array are ordered in the memory of a device."""

from typing import Any

from shardwise import tree
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.operands import as_operand
from shardwise.runtime.memory_layout import Format, Layout, check_row_major

__all__ = ["Format", "Layout", "with_layout_constraint"]


def with_layout_constraint(x: object, layouts: object) -> Any:
    """Constrain the layout in memory of the arrays of a pytree. All arrays are row-major here.

    Args:
        x: a pytree of arrays.
        layouts: a `Layout`, or a tree prefix of these.

    Returns:
        A pytree equal to `x`.

    Raises:
        ValueError: if `layouts` holds something else, is not a tree prefix, or does not match the rank of an array.
        NotImplementedError: if a layout is not row-major.

    Example:
        >>> from shardwise.experimental.layout import Layout, with_layout_constraint
        >>> jax.jit(lambda x: with_layout_constraint(2 * x, Layout((0, 1))))(jnp.ones((1, 2)))
        Array([[2., 2.]], dtype=float32)
    """
    leaves, structure = tree.flatten(x)
    operands = [as_operand(leaf, "with_layout_constraint") for leaf in leaves]
    try:
        flat_layouts = tree.broadcast_prefix(layouts, x, lambda node: node is None or isinstance(node, Layout))
    except tree.TreeMismatch as mismatch:
        raise ValueError(f"with_layout_constraint: layouts is not a tree prefix of x: {mismatch}") from None
    for operand, layout in zip(operands, flat_layouts, strict=True):
        if not isinstance(layout, Layout):
            raise ValueError(f"with_layout_constraint: layouts must hold Layouts, not {layout!r}")
        if len(layout.major_to_minor) != operand.type.ndim:
            raise ValueError(f"with_layout_constraint: {layout} does not match the rank of {operand.type}")
        check_row_major("with_layout_constraint", layout, operand.type.ndim)
    return structure.unflatten(operands)


set_public_names(__name__, __all__)
