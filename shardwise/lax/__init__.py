"""Functions close to the ops."""

from shardwise.api.placement import with_sharding_constraint
from shardwise.lax.gradient import stop_gradient

__all__ = ["stop_gradient", "with_sharding_constraint"]
