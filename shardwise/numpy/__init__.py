"""numpy's functions on arrays that may lie on many devices. Semantics follow JAX's: promotion, weak types, 32 bits."""

from typing import NoReturn

from ml_dtypes import bfloat16
from numpy import (
    bool_,
    complex64,
    complex128,
    dtype,
    float16,
    float32,
    float64,
    inf,
    int8,
    int16,
    int32,
    int64,
    nan,
    pi,
    uint8,
    uint16,
    uint32,
    uint64,
)

from shardwise.compiler.ops.methods import ArrayMethods as ndarray
from shardwise.compiler.ops.methods import add, divide, dot, exp, matmul, maximum, multiply, negative, subtract, where
from shardwise.errors import not_here
from shardwise.numpy.creation import arange, array, asarray, eye, full, full_like, ones, ones_like, zeros, zeros_like
from shardwise.numpy.functions import (
    broadcast_to,
    equal,
    greater,
    greater_equal,
    less,
    less_equal,
    mean,
    not_equal,
    reshape,
    square,
    sum,
    transpose,
)

true_divide = divide

__all__ = [
    "add",
    "arange",
    "array",
    "asarray",
    "bfloat16",
    "bool_",
    "broadcast_to",
    "complex64",
    "complex128",
    "divide",
    "dot",
    "dtype",
    "equal",
    "exp",
    "eye",
    "float16",
    "float32",
    "float64",
    "full",
    "full_like",
    "greater",
    "greater_equal",
    "inf",
    "int8",
    "int16",
    "int32",
    "int64",
    "less",
    "less_equal",
    "matmul",
    "maximum",
    "mean",
    "multiply",
    "nan",
    "ndarray",
    "negative",
    "not_equal",
    "ones",
    "ones_like",
    "pi",
    "reshape",
    "square",
    "subtract",
    "sum",
    "transpose",
    "true_divide",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "where",
    "zeros",
    "zeros_like",
]


def __getattr__(name: str) -> NoReturn:
    raise not_here("shardwise.numpy", name, __all__)
