"""`checkpoint`, `checkpoint_name` and `checkpoint_policies` under the module name of JAX."""

from shardwise.api.remat import checkpoint, checkpoint_name, checkpoint_policies

__all__ = ["checkpoint", "checkpoint_name", "checkpoint_policies"]
