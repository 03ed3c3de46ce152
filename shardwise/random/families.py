"""Families of the functions of `random`: the parameters, results and errors that their docstrings share."""

from shardwise.base.docstrings import Family

NOT_BROADCASTABLE = (
    "TypeError: if `key` is not a PRNG key, or if the shapes of the parameters and `shape` do not broadcast."
)

SAMPLES = Family(
    {
        "key": "the PRNG key, as `key` or `PRNGKey` returns it.",
        "shape": "the shape of the result.",
        "out_sharding": "the sharding of the result.",
    },
    raises=["TypeError: if `key` is not a PRNG key, or if `shape` does not consist of integers."],
)
FLOATS = SAMPLES.extended(
    {"dtype": "the floating-point dtype of the result; by default the default float dtype."},
    returns="An array of floats.",
    raises=[
        "ValueError: if `key` is an array of keys, if a size in `shape` is negative, or if `dtype` is not a\n"
        "floating-point dtype."
    ],
)
# Distributions with parameters, which are arrays.
PARAMETRIC = Family(
    {**FLOATS.args, "shape": "the shape of the result; by default the shape that the parameters broadcast to."},
    FLOATS.returns,
    [
        "TypeError: if `key` is not a PRNG key, if the shapes of the parameters and `shape` do not broadcast, or if a\n"
        "parameter has a wider dtype than `dtype`.",
        "ValueError: if `key` is an array of keys, if `dtype` is not a floating-point dtype, or if the parameters\n"
        "broadcast to a larger shape than `shape`.",
    ],
)
