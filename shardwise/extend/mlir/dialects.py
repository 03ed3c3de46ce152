"""jax.extend.mlir.dialects: jaxlib's bindings of MLIR's dialects, such as `stablehlo` and `sdy`."""

from types import SimpleNamespace

from shardwise.base._jaxlib import mlir_dialects
from shardwise.extend.mlir.forward_names import forward_names

__all__: list[str] = []

forward_names(__name__, SimpleNamespace(**mlir_dialects))
