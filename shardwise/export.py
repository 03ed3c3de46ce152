"""jax.export: serialized programs.

It is not supported yet: the names exist, and using one is an error.
"""

from shardwise.base.unsupported import set_unsupported_names

set_unsupported_names(
    __name__,
    [
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
    ],
    "`jit(f).lower(...).as_text()` is the StableHLO of a program; `experimental.serialize_executable` keeps a binary.",
)
