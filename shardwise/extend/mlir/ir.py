"""jax.extend.mlir.ir: the names of jaxlib's module."""

from shardwise.base._jaxlib import mlir_ir
from shardwise.extend.mlir.forward_names import forward_names

__all__: list[str] = []

forward_names(__name__, mlir_ir)
