"""jax.extend.mlir.ir: jaxlib's module of this name."""

from shardwise.base._jaxlib import mlir_namespace

__getattr__, __dir__ = mlir_namespace("ir")
