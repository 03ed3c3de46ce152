"""Families of numpy's functions: the parameters, results and errors that their docstrings share.

Families of a single module are defined there.
"""

from shardwise.base.docstrings import Family, Parameter

NOT_AN_ARRAY = "TypeError: if {} is not an array or a number."
NOT_REAL = "TypeError: if {} is not an array or a number, or is complex."
NOT_AN_INTEGER = "TypeError: if {} is not an integer."
TRACED_WITHOUT_SIZE = "ConcretizationTypeError: if called under `jit` without {}."
OUT_OF_BOUNDS = "ValueError: if {} is out of bounds."
NOT_BROADCASTABLE = "TypeError: if an operand is not an array or a number, or if the shapes do not broadcast."

ARRAY = Parameter("the array.", NOT_AN_ARRAY)

# Functions of one or several arrays, with the parameters that have the same meaning everywhere.
ARRAYS = Family(
    {
        "a": ARRAY,
        "x": ARRAY,
        "arr": ARRAY,
        "ary": ARRAY,
        "out": Parameter("not supported, must be None.", "NotImplementedError: if {} is given."),
        "keepdims": "whether reduced dims stay, with size 1.",
        "out_sharding": "the sharding of the result, or None to let the partitioner choose it.",
    }
)
ONE_AXIS = ARRAYS.extended({"axis": Parameter(error=OUT_OF_BOUNDS)})
REDUCTION = ARRAYS.extended(
    {
        "axis": Parameter(
            "the axis or axes to reduce; all if None.", "ValueError: if an axis is out of bounds or repeats."
        ),
        "where": "a boolean mask of the elements to include, broadcast against `a`.",
    }
)

ELEMENTWISE = ARRAYS.extended(returns="An array of the shape of `x`.")
SAME_TYPE = ARRAYS.extended(returns="An array of the shape and dtype of `x`.")
PREDICATE = ARRAYS.extended(returns="A boolean array of the shape of `x`.")
TO_FLOAT = ELEMENTWISE.extended(
    {"x": Parameter("the array. Integers and booleans are converted to floats.", NOT_AN_ARRAY)}
)
REAL_TO_FLOAT = ELEMENTWISE.extended(
    {"x": Parameter("the array, real. Integers and booleans are converted to floats.", NOT_REAL)}
)
ROUNDING = SAME_TYPE.extended(
    {"x": Parameter("the array, real. Integers and booleans are returned unchanged.", NOT_REAL)}
)

BINARY = Family(
    {"x, y": "the arrays; they broadcast."},
    "An array of the broadcast shape.",
    [NOT_BROADCASTABLE],
)
COMPARISON = BINARY.extended(returns="A boolean array of the broadcast shape.")
REAL_BINARY = Family(
    BINARY.args,
    BINARY.returns,
    [
        "TypeError: if an operand is not an array or a number, or is complex, or if the shapes do not broadcast.",
    ],
)

PRODUCT = Family(
    {
        "a, b": "the operands.",
        "precision": Parameter(
            "the precision of the product: None, a `lax.Precision` or its name, or a pair with one per operand.",
            "ValueError: if {} is unknown.",
        ),
        "preferred_element_type": "the dtype of the result, which sums are accumulated in if it is wider.\n"
        "None promotes the operands' dtypes.",
        "out_sharding": ARRAYS.args["out_sharding"],
    }
)
NARROW_FLOAT = "TypeError: if {} has a float dtype of 16 bits or less."
MATRICES = Family(
    {
        "a": Parameter("the matrices, in the last two dims.", NARROW_FLOAT),
        "x": Parameter("the matrices, in the last two dims.", NARROW_FLOAT),
        "hermitian": "a promise that `a` is Hermitian; then the cheaper eigendecomposition is used.",
    }
)
SQUARE_MATRICES = MATRICES.extended(raises=["ValueError: if `a` does not hold square matrices."])
