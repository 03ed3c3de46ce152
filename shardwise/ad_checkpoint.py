"""`checkpoint`, `checkpoint_name` and `checkpoint_policies` under the module name of JAX."""

from shardwise.api.transformations.remat import checkpoint, checkpoint_name, checkpoint_policies
from shardwise.base.lazy import set_public_names

__all__ = ["checkpoint", "checkpoint_name", "checkpoint_policies"]

set_public_names(__name__, __all__)
