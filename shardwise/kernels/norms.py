"""rms_norm and layer_norm, with the addition of a residual before."""

from typing import Any, overload

from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_inexact, as_strong, compiled_list_function
from shardwise.compiler.kernels.norm import Norm
from shardwise.typing import ArrayLike


@overload
def rms_norm(x: ArrayLike, scale: ArrayLike, *, residual: None = None, epsilon: float = 1e-6) -> Array: ...
@overload
def rms_norm(x: ArrayLike, scale: ArrayLike, *, residual: ArrayLike, epsilon: float = 1e-6) -> tuple[Array, Array]: ...
def rms_norm(x: ArrayLike, scale: ArrayLike, *, residual: ArrayLike | None = None, epsilon: float = 1e-6) -> Any:
    """Divide each row by the root of its mean square, and multiply it by a scale.

    The mean square is computed in float32, for float64 in float64.

    Args:
        x: rows, an array [..., D].
        scale: the scale, an array [D].
        residual: an array of the type of `x`; if given, the rows are `x + residual`.
        epsilon: the number that is added to the mean square.

    Returns:
        An array of the type of `x`; with `residual`, the tuple of `x + residual` and that array.

    Raises:
        TypeError: if the shapes or dtypes do not match.

    Example:
        >>> jax.kernels.rms_norm(jnp.array([3.0, 4.0]), jnp.ones(2))
        Array([0.848528..., 1.131370...], dtype=float32)
    """
    return _norm("rms_norm", False, epsilon, x, residual, scale)


@overload
def layer_norm(
    x: ArrayLike, scale: ArrayLike, bias: ArrayLike, *, residual: None = None, epsilon: float = 1e-5
) -> Array: ...
@overload
def layer_norm(
    x: ArrayLike, scale: ArrayLike, bias: ArrayLike, *, residual: ArrayLike, epsilon: float = 1e-5
) -> tuple[Array, Array]: ...
def layer_norm(
    x: ArrayLike, scale: ArrayLike, bias: ArrayLike, *, residual: ArrayLike | None = None, epsilon: float = 1e-5
) -> Any:
    """Subtract its mean from each row, divide it by its standard deviation, multiply by a scale and add a bias.

    Mean and variance are computed in float32, for float64 in float64.

    Args:
        x: rows, an array [..., D].
        scale: the scale, an array [D].
        bias: the bias, an array [D].
        residual: an array of the type of `x`; if given, the rows are `x + residual`.
        epsilon: the number that is added to the variance.

    Returns:
        An array of the type of `x`; with `residual`, the tuple of `x + residual` and that array.

    Raises:
        TypeError: if the shapes or dtypes do not match.

    Example:
        >>> jax.kernels.layer_norm(jnp.array([1.0, 3.0]), jnp.ones(2), jnp.zeros(2))
        Array([-0.99999...,  0.99999...], dtype=float32)
    """
    return _norm("layer_norm", True, epsilon, x, residual, scale, bias)


def _norm(
    name: str, centred: bool, epsilon: float, x: ArrayLike, residual: ArrayLike | None, *parameters: ArrayLike
) -> Any:
    op = Norm(centred, float(epsilon), residual is not None, centred)
    operands = [x, *([] if residual is None else [residual]), *parameters]
    results = _apply_norm(*(as_strong(as_inexact(operand, name)) for operand in operands), op=op)
    return results[0] if residual is None else tuple(results)


@compiled_list_function
def _apply_norm(*operands: Array, op: Norm) -> Any:
    return list(op(*operands))
