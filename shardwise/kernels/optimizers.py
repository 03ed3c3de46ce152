"""adam: an optimizer with one kernel per array, which also writes the copy that the next step computes with."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import shardwise.numpy as jnp
from shardwise import tree
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, type_of
from shardwise.compiler.dtypes import DType, DTypeLike, is_float, is_integer, numpy_carrier
from shardwise.compiler.kernels import adam as adam_kernel
from shardwise.typing import ArrayLike

Rate = ArrayLike | Callable[[Any], ArrayLike]


class AdamState(NamedTuple):
    """The state of `kernels.adam`. The first three fields have Optax's names.

    Attributes:
        count: the number of updates.
        mu: the means of gradients, a pytree like the parameters.
        nu: the means of their squares.
        compute: the parameters in `compute_dtype`; None without one.
    """

    count: Any
    mu: Any
    nu: Any
    compute: Any


class FusedAdam(NamedTuple):
    """An optimizer.

    Attributes:
        init: parameters → state.
        apply: gradients, state, parameters → new parameters, new state.
    """

    init: Callable[[Any], AdamState]
    apply: Callable[[Any, AdamState, Any], tuple[Any, AdamState]]


def adam(
    learning_rate: Rate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    *,
    weight_decay: float = 0.0,
    compute_dtype: DTypeLike | None = None,
) -> FusedAdam:
    """Make an Adam whose update reads and writes each array once.

    The numbers are those of Optax's `adam` and `apply_updates`, with `weight_decay` those of `adamw`. Parameters, means
    and squares are updated in place: donate them. With `compute_dtype`, the update also writes the parameters of that
    dtype: compute the loss and its gradients with `state.compute`, so that no step converts parameters.

    Args:
        learning_rate: the learning rate, or a function of the number of updates.
        b1: the decay of the means of gradients.
        b2: the decay of the means of their squares.
        eps: the number that is added to the roots of the squares.
        weight_decay: the decay of parameters, relative to the learning rate.
        compute_dtype: the dtype of `state.compute`.

    Returns:
        `init(params)`, which returns the state, and `apply(grads, state, params)`, which returns parameters and state.

    Raises:
        TypeError: if `compute_dtype` is not a floating-point dtype, or the learning rate is not a number; by `apply`,
            if parameters are not floats, gradients have other shapes, or the state is not an `AdamState`.

    Example:
        >>> optimizer = jax.kernels.adam(0.1, compute_dtype=jnp.bfloat16)
        >>> params = {"w": jnp.ones(2)}
        >>> state = optimizer.init(params)
        >>> grads = jax.grad(lambda p: (p["w"] ** 2).sum())(state.compute)
        >>> params, state = optimizer.apply(grads, state, params)
        >>> params["w"], state.compute["w"].dtype
        (Array([0.90000..., 0.90000...], dtype=float32), dtype(bfloat16))
    """
    dtype: DType | None = None if compute_dtype is None else jnp.dtype(compute_dtype)
    if dtype is not None and not is_float(dtype):
        raise TypeError(f"adam: compute_dtype must be a floating-point dtype, not {dtype}")
    if not callable(learning_rate):
        _rate(learning_rate)
    op = adam_kernel.Adam(float(b1), float(b2), float(eps), float(weight_decay), dtype)

    def init(params: Any) -> AdamState:
        mu, nu = (tree.map(jnp.zeros_like, params) for _ in range(2))
        compute = None if dtype is None else tree.map(lambda x: jnp.asarray(x, dtype), params)
        return AdamState(jnp.zeros((), np.int32), mu, nu, compute)

    def apply(grads: Any, state: AdamState, params: Any) -> tuple[Any, AdamState]:
        if not isinstance(state, AdamState):
            raise TypeError(
                f"adam: the second argument of `apply` must be the state that `init` returns, not {state!r:.80}"
            )
        rate = _rate(learning_rate(state.count) if callable(learning_rate) else learning_rate)
        count = state.count + 1
        step = count.astype(rate.dtype)
        corrections = [1 / (1 - rate.dtype.type(decay) ** step) for decay in (b1, b2)]
        scalars = jnp.stack([rate, *corrections])
        leaves, structure = tree.flatten(params)
        rows = zip(*(structure.flatten_up_to(x) for x in (grads, state.mu, state.nu)), strict=True)
        updated: list[list[Any]] = [[] for _ in range(3 if dtype is None else 4)]
        for leaf, row in zip(leaves, rows, strict=True):
            arrays = [as_operand(x, "adam") for x in (leaf, *row)]
            results = op(scalars.astype(numpy_carrier(arrays[0].type.dtype)), *arrays)
            for column, result in zip(updated, results, strict=True):
                column.append(result)
        columns = [structure.unflatten(column) for column in updated]
        new_params, mu, nu = columns[:3]
        return new_params, AdamState(count, mu, nu, columns[3] if dtype is not None else None)

    return FusedAdam(init, apply)


def _rate(rate: ArrayLike) -> Array:
    """Return the learning rate as a scalar of the widest float dtype that is enabled."""
    type = type_of(rate, "adam: learning_rate")
    if type.ndim or not (is_float(type.dtype) or is_integer(type.dtype)):
        raise TypeError(f"adam: learning_rate must be a real number or a function that returns one, not {type}")
    return jnp.asarray(rate, jnp.result_type(float))
