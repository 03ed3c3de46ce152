"""`checkpoint_name` and its company, under the module name that JAX programs import them from."""

from shardwise.api.remat import checkpoint, checkpoint_name, checkpoint_policies

__all__ = ["checkpoint", "checkpoint_name", "checkpoint_policies"]
