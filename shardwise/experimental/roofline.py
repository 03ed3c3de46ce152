"""jax.experimental.roofline: estimates of flops, memory traffic and time.

It is not supported yet: the names exist, and using one is an error.
"""

from shardwise.base.unsupported import set_unsupported_names

set_unsupported_names(
    __name__,
    [
        "RooflineResult",
        "RooflineRuleContext",
        "RooflineShape",
        "register_roofline",
        "register_standard_roofline",
        "roofline",
        "roofline_and_grad",
    ],
    "`explain` and `simulate` show the flops, bytes and predicted times of a program.",
)
