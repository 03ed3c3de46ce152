"""Mixed precision: the dtypes of parameters, of the computation and of results."""

from collections.abc import Callable
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar

import shardwise.numpy as jnp
from shardwise.errors import StrategyError
from shardwise.strategies.leaves import map_dtype
from shardwise.typing import DTypeLike

_P = ParamSpec("_P")
_T = TypeVar("_T")


class PrecisionPolicy(NamedTuple):
    """The dtypes of a training step.

    Attributes:
        params: the dtype in which parameters and the optimizer's state are stored.
        compute: the dtype of the computation.
        output: the dtype of results, such as the loss.

    Example:
        >>> policy = jax.strategies.PrecisionPolicy(compute=jnp.float16)
        >>> policy.cast_to_compute({"step": 3, "w": jnp.ones(2)})
        {'step': 3, 'w': Array([1., 1.], dtype=float16)}
    """

    params: DTypeLike = jnp.float32
    compute: DTypeLike = jnp.bfloat16
    output: DTypeLike = jnp.float32

    def cast_to_params(self, tree: _T) -> _T:
        """Return a pytree with its floating-point arrays in the dtype of parameters."""
        return _cast(tree, self.params)

    def cast_to_compute(self, tree: _T) -> _T:
        """Return a pytree with its floating-point arrays in the dtype of the computation."""
        return _cast(tree, self.compute)

    def cast_to_output(self, tree: _T) -> _T:
        """Return a pytree with its floating-point arrays in the dtype of results."""
        return _cast(tree, self.output)


def mixed_precision(function: Callable[_P, _T], policy: PrecisionPolicy | None = None) -> Callable[_P, _T]:
    """Return a function that computes in another dtype than that of its arguments and results.

    Each floating-point array among the arguments is cast once, where the function begins. Under FSDP the cast comes
    before the all-gather, and in a loop over microbatches before the loop. Gradients have the dtype of the arguments.
    Reductions such as a softmax or a mean over many elements should be computed in float32 inside the function.

    Args:
        function: a function of pytrees of arrays, such as a loss.
        policy: the dtypes; by default, float32 parameters and results, and bfloat16 for the computation.

    Returns:
        A function with the same arguments.

    Raises:
        StrategyError: if a dtype of the policy is not a floating-point dtype.

    Example:
        >>> loss = jax.strategies.mixed_precision(lambda w, x: (x @ w).sum())
        >>> jax.value_and_grad(loss)(jnp.ones(2), jnp.ones((3, 2)))
        (Array(6., dtype=float32), Array([3., 3.], dtype=float32))
    """
    chosen = PrecisionPolicy() if policy is None else policy
    for name, dtype in chosen._asdict().items():
        if not jnp.issubdtype(dtype, jnp.floating):
            raise StrategyError(f"mixed_precision: {name} must be a floating-point dtype, not {dtype}")

    @wraps(function)
    def call(*args: _P.args, **keywords: _P.kwargs) -> _T:
        args, keywords = chosen.cast_to_compute((args, keywords))
        return chosen.cast_to_output(function(*args, **keywords))

    return call


def _cast(tree: _T, dtype: DTypeLike) -> _T:
    return map_dtype(lambda x: x.astype(dtype), tree, jnp.floating)
