"""Functions close to the ops."""

from shardwise.api.placement import with_sharding_constraint

__all__ = ["with_sharding_constraint"]
