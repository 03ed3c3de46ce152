"""local_updates (DiLoCo, local SGD): groups of devices that train on their own and exchange outer gradients."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import shardwise.numpy as jnp
from shardwise import tree_util
from shardwise.api.control import scan
from shardwise.api.meshes.placement import with_sharding_constraint
from shardwise.api.transformations.vmap import vmap
from shardwise.compiler.arrays.methods import Array
from shardwise.errors import StrategyError
from shardwise.sharding import Mesh, NamedSharding, PartitionSpec
from shardwise.strategies.leaves import is_array, leaf_name
from shardwise.strategies.outer_momentum import OuterMomentum
from shardwise.strategies.specs import check_axis
from shardwise.tree_util import KeyPath

_NAME = "local_updates"


@final
@tree_util.register_dataclass
@dataclass(frozen=True)
class LocalState:
    """The state of training with `local_updates`: a pytree.

    Attributes:
        outer: the parameters after the last exchange, the same for all groups.
        velocity: the velocity of the outer optimizer, like `outer`.
        params: the parameters of each group, stacked along a first dim, which is sharded over the axis of the groups.
        state: the state of each group's own optimizer, stacked too.
    """

    outer: Any
    velocity: Any
    params: Any
    state: Any


@final
@dataclass(frozen=True)
class LocalUpdates:
    """What `local_updates` returns: pure functions of a `LocalState`, which `jit` compiles.

    Attributes:
        function: the training step of one group.
        mesh: the mesh.
        axis: the mesh axis of the groups.
        outer: the optimizer of outer gradients.
    """

    function: Callable[..., Any]
    mesh: Mesh
    axis: str
    outer: OuterMomentum

    @property
    def groups(self) -> int:
        """The number of groups."""
        return int(self.mesh.shape[self.axis])

    def create(self, params: object, state: object) -> LocalState:
        """Return the state before the first step: every group has the same parameters and optimizer state.

        Raises:
            StrategyError: if a parameter is not a floating-point array.
        """
        velocity = self.outer.create(params)
        return LocalState(params, velocity, self._copies(params), self._copies(state))

    def step(self, state: LocalState, batch: object) -> tuple[LocalState, Any]:
        """Let every group train on its rows of a batch. Nothing is exchanged between groups.

        Args:
            state: the state.
            batch: a pytree of arrays with the rows along the first dim, sharded over the axis of the groups first.

        Returns:
            The next state, and the third results of all groups, stacked along a first dim.

        Raises:
            StrategyError: if the number of groups does not divide the rows of an array.
        """
        rows = tree_util.tree_map_with_path(self._split, batch)
        train = vmap(self.function, spmd_axis_name=self.axis)
        params, inner, results = train(state.params, state.state, rows)
        return LocalState(state.outer, state.velocity, self._pin(params), self._pin(inner)), results

    def exchange(self, state: LocalState) -> LocalState:
        """Update the outer parameters with the mean of the groups, which continue from them.

        The optimizer state of each group stays.
        """
        gradients = tree_util.tree_map(
            lambda p, v, stacked: p.astype(v.dtype) - jnp.mean(stacked.astype(v.dtype), 0),
            state.outer,
            state.velocity,
            state.params,
        )
        outer, velocity = self.outer.update(state.outer, state.velocity, gradients)
        return LocalState(outer, velocity, self._copies(outer), state.state)

    def round(self, state: LocalState, batches: object) -> tuple[LocalState, Any]:
        """Take a step for each of some batches, stacked along a first dim, then exchange.

        Returns:
            The next state, and the results of the steps, stacked: [step, group, ...].
        """
        state, results = scan(self.step, state, batches)
        return self.exchange(state), results

    def _copies(self, tree: object) -> Any:
        """Return a copy of each array for every group."""
        return self._pin(
            tree_util.tree_map(lambda x: jnp.broadcast_to(jnp.asarray(x), (self.groups, *jnp.shape(x))), tree)
        )

    def _pin(self, tree: object) -> Any:
        """Shard the first dim of all arrays over the axis of the groups."""
        open_dim = PartitionSpec.UNCONSTRAINED

        def pin(x: Any) -> Any:
            spec = PartitionSpec(self.axis, *[open_dim] * (x.ndim - 1))
            return with_sharding_constraint(x, NamedSharding(self.mesh, spec))

        return tree_util.tree_map(pin, tree)

    def _split(self, path: KeyPath, x: Any) -> Array:
        """Return the rows of each group, stacked."""
        where = f"the batch{' at ' + repr(leaf_name(path)) if path else ''}"
        shape = tuple(x.shape) if is_array(x) else ()
        if not shape:
            raise StrategyError(f"{_NAME}: {where} is {x!r:.80}, which has no rows")
        if shape[0] % self.groups:
            raise StrategyError(
                f"{_NAME}: {where} has {shape[0]} rows, which {self.groups} groups along {self.axis!r} do not "
                f"divide. Use {-(-shape[0] // self.groups) * self.groups} rows, or another mesh."
            )
        stacked: Array = self._pin(jnp.reshape(x, (self.groups, shape[0] // self.groups, *shape[1:])))
        return stacked


def local_updates(
    function: Callable[..., Any],
    mesh: Mesh,
    axis: str,
    *,
    outer: OuterMomentum | None = None,
) -> LocalUpdates:
    """Let groups of devices train on their own, and exchange outer gradients only now and then (DiLoCo, local SGD).

    Each index of a mesh axis is a group, with parameters and an optimizer state of its own, which the other mesh axes
    may shard. `step` communicates within groups only. `exchange` averages what the groups have learned: after every H
    steps, groups send each other 1/H of the bytes of synchronous data parallelism.

    Args:
        function: the training step of a group, without a mean over groups: a function from the parameters, the state of
            its optimizer, and the group's rows of a batch, to the new parameters, the new state, and further results.
        mesh: the mesh.
        axis: the mesh axis of the groups.
        outer: the optimizer of outer gradients; by default, that of DiLoCo, Nesterov's momentum.

    Returns:
        The functions `create`, `step`, `exchange` and `round`, for `jit`.

    Raises:
        StrategyError: if the mesh has no such axis.

    Example:
        >>> mesh = jax.make_mesh((4, 2), ("group", "data"))
        >>> def train(w, state, x):
        ...     value, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - 1) ** 2))(w)
        ...     return w - 0.1 * gradient, state, value
        >>> local = jax.strategies.local_updates(train, mesh, "group")
        >>> state = jax.jit(local.create)(jnp.zeros(2), ())
        >>> x = jax.device_put(jnp.ones((8, 2)), jax.NamedSharding(mesh, P(("group", "data"))))
        >>> state, losses = jax.jit(local.step)(state, x)
        >>> state = jax.jit(local.exchange)(state)
        >>> losses.shape, state.outer.shape, state.params.shape
        ((4,), (2,), (4, 2))
    """
    check_axis(mesh, axis, _NAME)
    return LocalUpdates(function, mesh, axis, OuterMomentum() if outer is None else outer)
