"""Families of lax functions: the parameters, results and errors that their docstrings share.

Families of a single module are defined there.
"""

from shardwise.base.docstrings import Family, Parameter

# Functions of one array.
ARRAY = Family(
    {
        "operand": "an array.",
        "x": "an array.",
        "array": "an array.",
        "out_sharding": Parameter(
            "the sharding to pin the result to.", "ShardingError: if {} does not fit the shape of the result."
        ),
    }
)
