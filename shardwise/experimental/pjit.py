"""pjit, the former name of jit, which follows the mesh of `with mesh:`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shardwise import tree
from shardwise.api.arguments import REPLICATED_ON_CURRENT_MESH
from shardwise.api.jit import Jitted, jit
from shardwise.base.lazy import publish
from shardwise.base.unspecified import UNSPECIFIED
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.shardings.spec import PartitionSpec


def pjit(
    fun: Callable[..., Any] | None = None,
    in_shardings: object = UNSPECIFIED,
    out_shardings: object = UNSPECIFIED,
    **options: Any,
) -> Any:
    """Compile a function like `jit`, for programs written before `jit` had shardings.

    It differs from `jit` where a mesh is set: calls without committed arguments run on the mesh of `with mesh:` too,
    and None in `in_shardings` and `out_shardings` means replicated on the current mesh.

    Args:
        fun: a function of pytrees of arrays. Without it, the result is a decorator.
        in_shardings: shardings of the positional arguments, as a tree prefix.
        out_shardings: shardings of the results, as a tree prefix.
        options: the other options of `jit`.

    Returns:
        A function like `fun`, as `jit` returns it.

    Raises:
        TypeError: as `jit` does.
        ValueError: as `jit` does.

    Example:
        >>> with jax.sharding.Mesh(np.array(jax.devices()[:4]), "rows"):
        ...     jax.experimental.pjit.pjit(lambda x: 2 * x, out_shardings=None)(jnp.arange(8)).sharding.spec
        P()
    """
    if fun is None:
        return lambda function: pjit(function, in_shardings, out_shardings, **options)
    shardings = [_explicit_none(given) for given in (in_shardings, out_shardings)]
    jitted = jit(fun, in_shardings=shardings[0], out_shardings=shardings[1], **options)
    return Jitted(fun, replace(jitted.options, follows_with_mesh=True))


def _explicit_none(shardings: object) -> Any:
    """Return shardings with None, which the user wrote, as replicated on the current mesh."""
    if shardings is UNSPECIFIED:
        return None

    def is_leaf(x: object) -> bool:
        return x is None or isinstance(x, (Sharding, PartitionSpec))

    return tree.map(lambda x: REPLICATED_ON_CURRENT_MESH if x is None else x, shardings, is_leaf=is_leaf)


publish(__name__)
