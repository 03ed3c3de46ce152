"""1-D convolution and cross-correlation."""

from typing import Any

import numpy as np

from shardwise.base.docstrings import Family, documented
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, astype_weak, compiled_function, type_of
from shardwise.compiler.arrays.promotion import inexact_dtype, promote_dtypes, requested_dtype
from shardwise.compiler.ops.contract.conv import Conv
from shardwise.compiler.ops.elementwise.complex_parts import Conj
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Reverse
from shardwise.lax.precision import PrecisionLike, precisions
from shardwise.typing import ArrayLike, DTypeLike

_CONVOLUTION = Family(
    {
        "a, v": "1-D arrays with at least one element.",
        "precision": "the precision of the products, as in `lax.conv_general_dilated`.",
        "preferred_element_type": "the dtype of the accumulation and of the result.",
    },
    returns="A 1-D array.",
    raises=["ValueError: if an operand is empty or not 1-D, or if `mode` is unknown."],
)


@documented(_CONVOLUTION)
def convolve(
    a: ArrayLike,
    v: ArrayLike,
    mode: str = "full",
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Convolve two 1-D arrays.

    Element k of the result is the sum of `a[i] * v[j]` over all i + j = k. Integers become floats, unless
    `preferred_element_type` is given.

    Args:
        mode: which elements are returned: "full" all, "same" the centre, as many as the longer operand has, "valid"
            only those where the operands overlap completely.

    Example:
        >>> jnp.convolve(jnp.array([1, 2, 3]), jnp.array([1, 1]))
        Array([1., 3., 5., 3.], dtype=float32)
    """
    _check("convolve", a, v, mode)
    precision_pair = precisions("convolve", precision)
    return _convolve(
        a,
        v,
        name="convolve",
        mode=mode,
        precision=precision_pair,
        dtype=requested_dtype("convolve", preferred_element_type),
    )


@documented(_CONVOLUTION)
def correlate(
    a: ArrayLike,
    v: ArrayLike,
    mode: str = "valid",
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Compute the cross-correlation of two 1-D arrays.

    Element k of the result is the sum of `a[i + k] * conj(v[i])` over all i. Integers become floats, unless
    `preferred_element_type` is given.

    Args:
        mode: which elements are returned: "full", "same" or "valid", as in `convolve`.

    Example:
        >>> jnp.correlate(jnp.array([1, 2, 3]), jnp.array([1, 1]))
        Array([3., 5.], dtype=float32)
    """
    _check("correlate", a, v, mode)
    precision_pair = precisions("correlate", precision)
    return _convolve(
        a,
        v,
        name="correlate",
        mode=mode,
        precision=precision_pair,
        dtype=requested_dtype("correlate", preferred_element_type),
    )


def _check(name: str, a: ArrayLike, v: ArrayLike, mode: str) -> None:
    types = [type_of(x, name) for x in (a, v)]
    if any(type.ndim != 1 for type in types):
        raise ValueError(f"{name}: needs two arrays of rank 1, not {types[0]} and {types[1]}")
    if not all(type.size for type in types):
        raise ValueError(f"{name}: an operand is empty: {types[0]} and {types[1]}")
    if mode not in ("full", "same", "valid"):
        raise ValueError(f"{name}: mode must be 'full', 'same' or 'valid', not {mode!r}")


@compiled_function
def _convolve(
    a: ArrayLike, v: ArrayLike, *, name: str, mode: str, precision: tuple[str, str], dtype: np.dtype[Any]
) -> Any:
    common, weak = promote_dtypes(name, [type_of(x, name) for x in (a, v)])
    if dtype is None:
        common = inexact_dtype(common)
    signal, kernel = (astype_weak(as_operand(x, name), common, weak) for x in (a, v))
    is_convolution = name == "convolve"
    if not is_convolution and common.kind == "c":
        kernel = Conj()(kernel)
    is_swapped = signal.type.size < kernel.type.size  # the kernel is the shorter operand
    if is_swapped:
        signal, kernel = kernel, signal
    size = kernel.type.size
    low, high = {"full": (size - 1, size - 1), "same": (size // 2, size - size // 2 - 1), "valid": (0, 0)}[mode]
    if is_convolution:
        kernel = Reverse((0,))(kernel)
    out_dtype = common if dtype is None else dtype
    op = Conv("bi0", "oi0", "bo0", (1,), (low,), (high,), (1,), (1,), out_dtype, precision)
    result = op(Reshape((1, 1, signal.type.size))(signal), Reshape((1, 1, size))(kernel))
    result = Reshape(result.type.shape[2:])(result)
    return Reverse((0,))(result) if is_swapped and not is_convolution else result
