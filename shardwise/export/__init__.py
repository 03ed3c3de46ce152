"""Exported functions: StableHLO modules in files that Shardwise and JAX load.

exported = export.export(jit(f))(x)          # x: an array, or a ShapeDtypeStruct
blob = exported.serialize(vjp_order=1)
y = export.deserialize(blob).call(x)         # planned for the devices of x
"""

from shardwise.base.lazy import set_public_names
from shardwise.base.symbolic_dim import SymbolicScope, is_symbolic_dim
from shardwise.export.export_function import default_export_platform, export
from shardwise.export.exported import Exported, deserialize
from shardwise.export.module_function import (
    maximum_supported_calling_convention_version,
    minimum_supported_calling_convention_version,
)
from shardwise.export.safety_checks import DisabledSafetyCheck
from shardwise.export.symbolic_shapes import symbolic_args_specs, symbolic_shape
from shardwise.export.tree_format import register_namedtuple_serialization, register_pytree_node_serialization

__all__ = [
    "DisabledSafetyCheck",
    "Exported",
    "SymbolicScope",
    "default_export_platform",
    "deserialize",
    "export",
    "is_symbolic_dim",
    "maximum_supported_calling_convention_version",
    "minimum_supported_calling_convention_version",
    "register_namedtuple_serialization",
    "register_pytree_node_serialization",
    "symbolic_args_specs",
    "symbolic_shape",
]

set_public_names(__name__, __all__)
