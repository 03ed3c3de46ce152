"""Dynamic loss scaling: keep the gradients of float16 computations in its range, and skip steps that overflow."""

from dataclasses import dataclass, field, replace
from typing import Self, TypedDict, TypeVar, Unpack, final

import shardwise.numpy as jnp
from shardwise import tree_util
from shardwise.compiler.arrays.methods import Array
from shardwise.errors import StrategyError
from shardwise.strategies.leaves import has_dtype, map_dtype
from shardwise.typing import ArrayLike

_T = TypeVar("_T")


class _Options(TypedDict, total=False):
    """The options of `LossScale.create`, for type checkers."""

    growth_interval: int
    growth: float
    minimum: float
    maximum: float


@final
@tree_util.register_dataclass
@dataclass(frozen=True)
class LossScale:
    """A factor of the loss that adapts to the range of gradients: a pytree, part of the state of training.

    Multiply the loss by it with `scale`, divide the gradients with `unscale`, check them with `all_finite`, and call
    `update`. A step whose gradients are not finite halves the factor, and is skipped with `select`. After
    `growth_interval` finite steps in a row the factor doubles. It is replicated: all devices agree.

    Attributes:
        factor: the current factor, a float32 scalar.
        finite_steps: the number of finite steps since it changed, an int32 scalar.
        growth_interval: after how many finite steps it grows.
        growth: by what it is multiplied or divided.
        minimum: the least factor.
        maximum: the largest factor.

    Example:
        >>> scale = jax.strategies.LossScale.create(1024.0, growth_interval=2)
        >>> scale = scale.update(jnp.array(False))
        >>> scale.factor, scale.update(jnp.array(True)).update(jnp.array(True)).factor
        (Array(512., dtype=float32), Array(1024., dtype=float32))
    """

    factor: Array
    finite_steps: Array
    growth_interval: int = field(default=2000, metadata={"static": True})
    growth: float = field(default=2.0, metadata={"static": True})
    minimum: float = field(default=1.0, metadata={"static": True})
    maximum: float = field(default=2.0**24, metadata={"static": True})

    @classmethod
    def create(cls, factor: float = 2.0**15, **options: Unpack[_Options]) -> Self:
        """Return the state before the first step.

        Args:
            factor: the first factor.
            options: `growth_interval`, `growth`, `minimum` and `maximum`.

        Raises:
            StrategyError: if these contradict each other.
        """
        scale = cls(jnp.float32(factor), jnp.int32(0), **options)
        if scale.growth_interval < 1 or scale.growth <= 1 or not 0 < scale.minimum <= factor <= scale.maximum:
            raise StrategyError(
                f"LossScale: growth_interval ({scale.growth_interval}) must be at least 1, growth ({scale.growth}) "
                f"more than 1, and factor ({factor}) between minimum ({scale.minimum}) and maximum ({scale.maximum})"
            )
        return scale

    def scale(self, loss: _T) -> _T:
        """Return the loss times the factor, in float32 at least."""

        def multiply(x: Array) -> Array:
            return x.astype(jnp.promote_types(x.dtype, jnp.float32)) * self.factor

        return map_dtype(multiply, loss, jnp.inexact)

    def unscale(self, tree: _T) -> _T:
        """Return gradients, or a loss, divided by the factor."""

        def divide(x: Array) -> Array:
            return (x.astype(jnp.promote_types(x.dtype, jnp.float32)) / self.factor).astype(x.dtype)

        return map_dtype(divide, tree, jnp.inexact)

    def update(self, is_finite: ArrayLike) -> Self:
        """Return the state for the next step. `is_finite` says whether all gradients of this one were finite."""
        steps = self.finite_steps + 1
        grows = steps >= self.growth_interval
        larger = jnp.where(grows, jnp.minimum(self.factor * self.growth, self.maximum), self.factor)
        smaller = jnp.maximum(self.factor / self.growth, self.minimum)
        return replace(
            self,
            factor=jnp.where(is_finite, larger, smaller),
            finite_steps=jnp.where(is_finite & ~grows, steps, 0),
        )


def all_finite(tree: object) -> Array:
    """Return whether all floating-point elements of a pytree are finite.

    The number of other elements is summed over all arrays first, so there is one all-reduce for all of them.

    Args:
        tree: a pytree of arrays, such as gradients.

    Returns:
        A boolean scalar, the same on all devices.

    Raises:
        StrategyError: if there is no floating-point array.

    Example:
        >>> jax.strategies.all_finite({"a": jnp.ones(2), "b": jnp.array([0.0, jnp.inf])})
        Array(False, dtype=bool)
    """
    counts = [
        jnp.sum(~jnp.isfinite(leaf), dtype=jnp.int32)
        for leaf in tree_util.tree_leaves(tree)
        if has_dtype(leaf, jnp.inexact)
    ]
    if not counts:
        raise StrategyError("all_finite: there is no floating-point array")
    return sum(counts[1:], counts[0]) == 0


def select(condition: ArrayLike, on_true: _T, on_false: _T) -> _T:
    """Return one of two pytrees, by a boolean scalar that may be traced: the updated state, or that before a bad step.

    Args:
        condition: a boolean scalar.
        on_true: a pytree of arrays.
        on_false: a pytree of the same structure and types.

    Returns:
        A pytree like both.

    Raises:
        ValueError: if their structures differ.

    Example:
        >>> jax.strategies.select(jnp.array(False), {"w": jnp.ones(2)}, {"w": jnp.zeros(2)})
        {'w': Array([0., 0.], dtype=float32)}
    """
    selected: _T = tree_util.tree_map(lambda new, old: jnp.where(condition, new, old), on_true, on_false)
    return selected
