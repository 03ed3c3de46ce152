"""jax.custom_batching: functions with batching rules of the user."""

from shardwise.api.transformations.custom_batching import custom_vmap, sequential_vmap
from shardwise.base.lazy import set_public_names

__all__ = ["custom_vmap", "sequential_vmap"]

set_public_names(__name__, __all__)
