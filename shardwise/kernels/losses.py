"""cross_entropy, the loss of a classifier."""

from typing import Any

from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_inexact, as_operand, as_strong, compiled_list_function
from shardwise.compiler.kernels.cross_entropy import CrossEntropy
from shardwise.kernels.integer_operands import as_int32, check_integers
from shardwise.typing import ArrayLike


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
    check_integers(targets, "cross_entropy", "targets")
    return _cross_entropy(as_strong(as_inexact(logits, "cross_entropy")), targets)[0]  # type: ignore[no-any-return]


@compiled_list_function
def _cross_entropy(logits: Array, targets: Any) -> list[Any]:
    picked, logsumexp = CrossEntropy()(logits, as_int32(as_operand(targets)))
    return [logsumexp - picked]
