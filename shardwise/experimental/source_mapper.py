"""jax.experimental.source_mapper: maps from lines of a program to those of its compiled forms.

It is not supported yet: the names exist, and using one is an error.
"""

from shardwise.base.unsupported import set_unsupported_names

set_unsupported_names(
    __name__,
    [
        "MappingsGenerator",
        "Pass",
        "SourceMap",
        "SourceMapDump",
        "all_passes",
        "canonicalize_filename",
        "compile_with_env",
        "create_mlir_sourcemap",
        "filter_passes",
        "generate_sourcemaps",
        "register_pass",
    ],
    "The text of every stage has the source lines: `jit(f).lower(...).as_text('local')`, `shardwise explain --stages`.",
)
