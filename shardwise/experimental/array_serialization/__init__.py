"""jax.experimental.array_serialization: write arrays to TensorStore and read them, in JAX's formats.

These functions have neither checksums nor a commit of all arrays together; `shardwise.checkpoints` has both.
"""

from shardwise.base.lazy import set_public_names
from shardwise.experimental.array_serialization import serialization, tensorstore_impl

__all__ = ["serialization", "tensorstore_impl"]

set_public_names(__name__, __all__)
