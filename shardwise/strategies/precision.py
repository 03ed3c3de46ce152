"""Mixed precision: the dtypes of parameters, of the computation and of results."""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar, overload

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

    def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that `mixed_precision` returns."""
        for name, dtype in self._asdict().items():
            if not jnp.issubdtype(dtype, jnp.floating):
                raise StrategyError(f"mixed_precision: {name} must be a floating-point dtype, not {dtype}")

        @wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            args, keywords = self.cast_to_compute((args, keywords))
            return self.cast_to_output(function(*args, **keywords))

        return call

    def cast_to_params(self, tree: _T) -> _T:
        """Return a pytree with its floating-point arrays in the dtype of parameters."""
        return _cast(tree, self.params)

    def cast_to_compute(self, tree: _T) -> _T:
        """Return a pytree with its floating-point arrays in the dtype of the computation."""
        return _cast(tree, self.compute)

    def cast_to_output(self, tree: _T) -> _T:
        """Return a pytree with its floating-point arrays in the dtype of results."""
        return _cast(tree, self.output)


class Policy(Protocol):
    """How a function is computed: a `PrecisionPolicy` or an `FP8Policy`."""

    def transform(self, function: Callable[..., Any]) -> Callable[..., Any]: ...


@overload
def mixed_precision(function: Callable[_P, _T], policy: PrecisionPolicy | None = None) -> Callable[_P, _T]: ...
@overload
def mixed_precision(function: Callable[..., _T], policy: Policy) -> Callable[..., _T]: ...
def mixed_precision(function: Callable[..., Any], policy: Policy | None = None) -> Callable[..., Any]:
    """Return a function that computes in another dtype than that of its arguments and results.

    Each floating-point array among the arguments is cast once, where the function begins. Under FSDP the cast comes
    before the all-gather, and in a loop over microbatches before the loop. Gradients have the dtype of the arguments.
    Reductions such as a softmax or a mean over many elements should be computed in float32 inside the function.

    With an `FP8Policy`, products with weights are computed with float8 numbers too. Their scales are the second
    argument of the function, and the cotangent of these has the magnitudes that `FP8Scales.update` reads.

    Args:
        function: a function of pytrees of arrays, such as a loss.
        policy: the dtypes; by default, float32 parameters and results, and bfloat16 for the computation. Or an
            `FP8Policy`.

    Returns:
        A function with the same arguments; with an `FP8Policy`, the second one is an `FP8Scales`.

    Raises:
        StrategyError: if `policy` is not a policy, or a dtype of it is not a floating-point dtype. With an
            `FP8Policy`, when it is called, if the scales were created for another function.

    Example:
        >>> loss = jax.strategies.mixed_precision(lambda w, x: (x @ w).sum())
        >>> jax.value_and_grad(loss)(jnp.ones(2), jnp.ones((3, 2)))
        (Array(6., dtype=float32), Array([3., 3.], dtype=float32))
    """
    chosen = PrecisionPolicy() if policy is None else policy
    if isinstance(chosen, type) or not hasattr(chosen, "transform"):
        raise StrategyError(
            "mixed_precision: the second argument must be a PrecisionPolicy or an FP8Policy, such as "
            f"`PrecisionPolicy(compute=jnp.bfloat16)`, not {policy!r}"
        )
    return chosen.transform(function)


def _cast(tree: _T, dtype: DTypeLike) -> _T:
    return map_dtype(lambda x: x.astype(dtype), tree, jnp.floating)
