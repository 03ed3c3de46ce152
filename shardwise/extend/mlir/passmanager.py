"""jax.extend.mlir.passmanager: the names of jaxlib's module."""

from shardwise.base._jaxlib import mlir_passmanager
from shardwise.extend.mlir.forward_names import forward_names

__all__: list[str] = []

forward_names(__name__, mlir_passmanager)
