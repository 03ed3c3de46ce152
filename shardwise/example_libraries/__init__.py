"""jax.example_libraries: optimizers and layers of neural networks as tuples of functions."""

from shardwise.base.lazy import set_public_names
from shardwise.example_libraries import optimizers, stax

__all__ = ["optimizers", "stax"]

set_public_names(__name__, __all__)
