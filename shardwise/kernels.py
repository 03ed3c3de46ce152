"""Functions that are one kernel of our own on NVIDIA GPUs, and a program of other ops elsewhere.

XLA fuses most of a program well. These functions are those where it passes over memory more often than needed. They are
ops like any other: they are differentiated, vmapped, sharded and explained. The setting `own_kernels` turns the kernels
off, and the functions compute the same with other ops.
"""

from typing import Any, overload

from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_inexact, as_strong, compiled_list_function, type_of
from shardwise.compiler.dtypes import is_integer
from shardwise.compiler.kernels.cross_entropy import CrossEntropy
from shardwise.compiler.kernels.norm import Norm
from shardwise.compiler.kernels.triton_ir import I32
from shardwise.compiler.ops.elementwise.convert import Convert
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


def cross_entropy(logits: ArrayLike, targets: ArrayLike) -> Array:
    """Compute the cross entropy of each row of logits and a target: `logsumexp(logits) - logits[target]`.

    It is computed in float32, for float64 in float64, without a copy of the logits of that dtype.

    Args:
        logits: an array [..., V].
        targets: integers [...]. The logit of a target that is not in [0, V) is 0.

    Returns:
        An array [...], of float32 for narrower logits.

    Raises:
        TypeError: if `targets` does not hold integers, or has another shape.

    Example:
        >>> jax.kernels.cross_entropy(jnp.zeros((2, 4)), jnp.array([0, 3]))
        Array([1.386294..., 1.386294...], dtype=float32)
    """
    if not is_integer(type_of(targets, "cross_entropy").dtype):
        raise TypeError(f"cross_entropy: targets must be integers, not {type_of(targets)}")
    return _cross_entropy(as_strong(as_inexact(logits, "cross_entropy")), targets)[0]  # type: ignore[no-any-return]


@compiled_list_function
def _cross_entropy(logits: Array, targets: Any) -> list[Any]:
    picked, logsumexp = CrossEntropy()(logits, targets if targets.type.dtype == I32 else Convert(I32)(targets))
    return [logsumexp - picked]


publish(__name__)
