"""OuterMomentum: the optimizer of outer gradients, the differences of parameters that groups of devices exchange."""

import math
from dataclasses import dataclass
from typing import Any, TypeVar, final

import shardwise.numpy as jnp
from shardwise import tree_util
from shardwise.errors import StrategyError
from shardwise.strategies.leaves import has_dtype, leaf_name

_T = TypeVar("_T")


@final
@dataclass(frozen=True)
class OuterMomentum:
    """Gradient descent with momentum on outer gradients, by default Nesterov's as in DiLoCo.

    An outer gradient is the old parameters minus the mean of those that the groups have trained. With a rate of 1 and
    without momentum, the new parameters are this mean: local SGD.

    Attributes:
        rate: the learning rate.
        momentum: the share of the velocity that stays.
        nesterov: whether the momentum is Nesterov's.

    Raises:
        StrategyError: if the rate is not positive, or the momentum is not in [0, 1).

    Example:
        >>> outer = jax.strategies.OuterMomentum(rate=0.5, momentum=0.5)
        >>> velocity = outer.create({"w": jnp.ones(2)})
        >>> outer.update({"w": jnp.ones(2)}, velocity, {"w": jnp.full(2, 0.5)})
        ({'w': Array([0.625, 0.625], dtype=float32)}, {'w': Array([0.5, 0.5], dtype=float32)})
    """

    rate: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True

    def __post_init__(self) -> None:
        if not (0 < self.rate < math.inf and 0 <= self.momentum < 1):
            raise StrategyError(
                f"OuterMomentum: rate must be positive and momentum at least 0 and less than 1, not rate={self.rate}, "
                f"momentum={self.momentum}"
            )

    def create(self, params: object) -> Any:
        """Return the velocity before the first update: zeros in float32 at least.

        Raises:
            StrategyError: if a leaf is not a floating-point array.
        """
        for path, leaf in tree_util.tree_leaves_with_path(params):
            if not has_dtype(leaf, jnp.floating):
                raise StrategyError(
                    f"OuterMomentum: the parameter {leaf_name(path)!r} is {leaf!r:.80}, not a floating-point array, so "
                    "it has no outer gradient. Keep it in the optimizer's state."
                )
        return tree_util.tree_map(lambda x: jnp.zeros_like(x, dtype=jnp.promote_types(x.dtype, jnp.float32)), params)

    def update(self, params: _T, velocity: Any, gradients: Any) -> tuple[_T, Any]:
        """Return the next parameters and velocity."""
        velocity = tree_util.tree_map(lambda v, g: self.momentum * v + g.astype(v.dtype), velocity, gradients)

        def descend(p: Any, v: Any, g: Any) -> Any:
            direction = g.astype(v.dtype) + self.momentum * v if self.nesterov else v
            return (p.astype(v.dtype) - self.rate * direction).astype(p.dtype)

        return tree_util.tree_map(descend, params, velocity, gradients), velocity
