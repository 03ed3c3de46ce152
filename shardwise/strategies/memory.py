"""Strategies for memory: rematerialization by the name of a policy, and state in host memory."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from shardwise import tree_util
from shardwise.api.transformations.remat import checkpoint, checkpoint_policies
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.errors import StrategyError

_T = TypeVar("_T")

_POLICIES: dict[str, Callable[..., Any]] = {
    "nothing": checkpoint_policies.nothing_saveable,
    "dots": checkpoint_policies.dots_saveable,
    "dots_with_no_batch_dims": checkpoint_policies.dots_with_no_batch_dims_saveable,
    "everything": checkpoint_policies.everything_saveable,
}


def remat(
    function: Callable[..., Any], save: str = "nothing", *, names: Sequence[str] = (), offload: Sequence[str] = ()
) -> Callable[..., Any]:
    """Return a function that saves few values for the backward pass, and computes the others again.

    It is `checkpoint` with a policy by name, for settings of training runs. Apply it to one layer.

    Args:
        function: a function of pytrees of arrays.
        save: which values are saved: "nothing", the results of "dots", those of "dots_with_no_batch_dims" (products
            with weights), or "everything".
        names: the names of values that are saved too, which `checkpoint_name` sets.
        offload: the names of values that are saved in pinned host memory until the backward pass.

    Returns:
        A function with the same arguments and results.

    Raises:
        StrategyError: if there is no policy with this name, or if a name is in both `names` and `offload`.

    Example:
        >>> layer = jax.strategies.remat(lambda w, x: jnp.sin(x @ w), "dots")
        >>> jax.grad(lambda w: layer(w, jnp.ones(2)).sum())(jnp.zeros((2, 2)))
        Array([[1., 1.],
               [1., 1.]], dtype=float32)
    """
    if save not in _POLICIES:
        raise StrategyError(f"remat: save must be one of {', '.join(map(repr, _POLICIES))}, not {save!r}")
    if both := sorted({*names} & {*offload}):
        raise StrategyError(f"remat: {both} are in both names and offload")
    named = checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=names,
        names_which_can_be_offloaded=offload,
        offload_src="device",
        offload_dst="pinned_host",
    )
    return checkpoint(function, policy=checkpoint_policies.save_from_both_policies(named, _POLICIES[save]))


def offload(shardings: _T, kind: str = "pinned_host") -> _T:
    """Return shardings that keep arrays in host memory, such as an optimizer's state between its updates.

    A compiled function accepts arguments in any memory, reads them into the memory of the devices, and leaves results
    in the memory that `out_shardings` names.

    Args:
        shardings: a pytree of shardings; None for leaves that are not arrays.
        kind: the memory, "pinned_host" or "unpinned_host".

    Returns:
        A pytree of shardings with this memory kind.

    Raises:
        ShardingError: if the devices have no such memory.

    Example:
        >>> mesh = jax.make_mesh((8,), ("data",))
        >>> state = {"mu": jnp.ones((16, 128))}
        >>> host = jax.strategies.offload(jax.strategies.fsdp(state, mesh))
        >>> jax.device_put(state, host)["mu"].sharding.memory_kind
        'pinned_host'
    """

    def move(sharding: object) -> object:
        return sharding.with_memory_kind(kind) if isinstance(sharding, Sharding) else sharding

    moved: _T = tree_util.tree_map(move, shardings)
    return moved
