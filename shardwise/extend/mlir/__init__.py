"""jax.extend.mlir: conversions between forms of modules, and jaxlib's bindings of MLIR.

`ir`, `passmanager` and `dialects` are jaxlib's modules, which are loaded at their first use.
"""

from shardwise.base._jaxlib import (
    deserialize_portable_artifact,
    hlo_to_stablehlo,
    refine_polymorphic_shapes,
    serialize_portable_artifact,
)
from shardwise.base.unsupported import set_unsupported_names
from shardwise.extend.mlir import dialects, ir, passmanager

__all__ = [
    "deserialize_portable_artifact",
    "dialects",
    "hlo_to_stablehlo",
    "ir",
    "passmanager",
    "refine_polymorphic_shapes",
    "serialize_portable_artifact",
]

set_unsupported_names(
    __name__, ["lower_with_sharding_in_types"], "Ops are lowered by `Op.lower`, as docs/own-ops.md shows.", __all__
)
