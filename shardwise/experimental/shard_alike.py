"""jax.experimental.shard_alike: ask the planner for equal shardings of two values."""

from typing import Any

from shardwise import tree
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ops.placement.shard_alike import ShardAlike


def shard_alike(x: object, y: object) -> tuple[Any, Any]:
    """Shard the arrays of two pytrees alike, without a choice of the sharding.

    Args:
        x: a pytree of arrays.
        y: a pytree of the same structure, of arrays of the same shapes.

    Returns:
        Pytrees equal to `x` and `y`.

    Raises:
        ValueError: if the structures or shapes differ.
        TypeError: if a leaf is not an array.

    Example:
        >>> x = jax.device_put(jnp.arange(8), jax.NamedSharding(jax.make_mesh((4,), ("x",)), P("x")))
        >>> _, zeros = jax.jit(lambda x: jax.experimental.shard_alike.shard_alike(x, jnp.zeros(8)))(x)
        >>> zeros.sharding.spec
        P('x')
    """
    (x_leaves, x_structure), (y_leaves, y_structure) = tree.flatten(x), tree.flatten(y)
    if x_structure != y_structure:
        raise ValueError(f"shard_alike: the structures of x and y differ: {x_structure} and {y_structure}")
    xs, ys = ([as_operand(leaf, "shard_alike") for leaf in leaves] for leaves in (x_leaves, y_leaves))
    for one, other in zip(xs, ys, strict=True):
        if one.type.shape != other.type.shape:
            raise ValueError(f"shard_alike: the shapes of {one.type} and {other.type} differ")
    alike, pairs = ShardAlike(), list(zip(xs, ys, strict=True))
    return (
        x_structure.unflatten([alike(one, other) for one, other in pairs]),
        y_structure.unflatten([alike(other, one) for one, other in pairs]),
    )


publish(__name__)
