"""jax.tools.jax_to_ir: a program as a file of HLO or TensorFlow.

It is not supported yet: the names exist, and using one is an error.
"""

from shardwise.base.unsupported import set_unsupported_names

set_unsupported_names(
    __name__,
    [
        "jax_to_ir",
        "main",
        "parse_shape_str",
        "set_up_flags",
        "tf_wrap_with_input_names",
    ],
    "`jit(f).lower(...).as_text()` is the StableHLO of a program, and `as_text('hlo')` its HLO.",
)
