"""ZeRO: which of optimizer state, gradients and parameters are sharded over the data axis."""

from typing import Any, NamedTuple

from shardwise.compiler.shardings.mesh import Mesh
from shardwise.errors import StrategyError
from shardwise.strategies.parameters import data_parallel, fsdp, like_parameters


class Zero(NamedTuple):
    """The shardings of a training step.

    Attributes:
        params: the shardings of the parameters.
        gradients: those of the gradients.
        state: those of the optimizer's state.
    """

    params: Any
    gradients: Any
    state: Any


def zero(
    params: object,
    state: object,
    mesh: Mesh,
    stage: int,
    axis: str = "data",
    *,
    base: object = None,
    min_size: int = 1024,
) -> Zero:
    """Shard the optimizer's state (stage 1), also the gradients (stage 2), also the parameters (stage 3, FSDP).

    Pin the gradients of a step with `with_sharding_constraint`, and pass the others as `in_shardings` and
    `out_shardings`, or put the arrays so.

    Args:
        params: a pytree of arrays or of `ShapeDtypeStruct`s.
        state: the optimizer's state.
        mesh: the mesh.
        stage: 1, 2 or 3.
        axis: the mesh axis.
        base: the shardings of parameters to begin with, such as those of `tensor_parallel`; by default, replicated.
        min_size: arrays with fewer elements are not sharded over the axis.

    Returns:
        The shardings of parameters, gradients and state.

    Raises:
        StrategyError: if `stage` is not 1, 2 or 3, or if the mesh has no such axis.

    Example:
        >>> mesh = jax.make_mesh((8,), ("data",))
        >>> params = {"w": jnp.ones((16, 128))}
        >>> chosen = jax.strategies.zero(params, {"mu": params}, mesh, stage=1)
        >>> chosen.params["w"].spec, chosen.state["mu"]["w"].spec
        (P(), P(None, 'data'))
    """
    if stage not in (1, 2, 3):
        raise StrategyError(f"zero: stage must be 1, 2 or 3, not {stage!r}")
    whole = data_parallel(params, mesh) if base is None else base
    sharded = fsdp(params, mesh, axis, base=base, min_size=min_size)
    return Zero(
        params=sharded if stage == 3 else whole,
        gradients=sharded if stage >= 2 else whole,
        state=like_parameters(state, params, sharded),
    )
