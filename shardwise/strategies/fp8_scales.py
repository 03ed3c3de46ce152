"""The state of FP8 training: the scales of products, and the magnitudes from which they are computed."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Self, final

import numpy as np

import shardwise.numpy as jnp
from shardwise import lax, tree_util
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.kernels.fp8_products import parameter_names
from shardwise.errors import StrategyError
from shardwise.strategies.leaves import leaf_name
from shardwise.tree_util import KeyPath

_EXPONENTS = 100  # scales are powers of two between 2**-100 and 2**100


@final
@tree_util.register_dataclass
@dataclass(frozen=True)
class FP8Scales:
    """The scales of the products of a function: a pytree, part of the state of training. `FP8Policy.create` returns it.

    A product has three scales: of its input, of its weight and of the cotangent of its result. Differentiate the loss
    with respect to this state too: that cotangent has the largest magnitudes of this step, which `update` reads. It is
    replicated: all devices agree.

    Attributes:
        scales: the scales by the name of the product, arrays [3], or [layers, 3] in a loop over layers.
        history: the largest magnitudes of the last steps, an array [all scales, steps], the latest first.
        limits: the largest numbers of the float8 dtypes of inputs, weights and cotangents.
        margin: how many powers of two a scale is above the least one.

    Example:
        >>> loss = lambda w, x: jnp.mean((x @ w) ** 2)
        >>> policy = jax.strategies.FP8Policy()
        >>> w, x = jnp.ones((16, 16)), jnp.ones((4, 16))
        >>> scales = policy.create(loss, w, x)
        >>> _, (_, maxima) = jax.value_and_grad(jax.strategies.mixed_precision(loss, policy), (0, 1))(w, scales, x)
        >>> scales.update(maxima).history[:2, 0]
        Array([1., 1.], dtype=float32)
    """

    scales: dict[str, Array]
    history: Array
    limits: tuple[float, float, float] = field(metadata={"static": True})
    margin: int = field(default=0, metadata={"static": True})

    def update(self, maxima: Self, params: object = None) -> Self:
        """Return the state for the next step.

        A scale is the least power of two for which the largest magnitude of the last steps is in the range of the
        dtype, times `2**margin`. It stays if all magnitudes were zero. Along sharded dims, the maxima of all products
        are reduced together, in one all-reduce.

        Args:
            maxima: the cotangent of this state.
            params: the parameters of the next step. With them, the scale of a weight is that of its parameter's largest
                magnitude, over all layers of a stacked parameter (current scaling). So no weight exceeds its scale.

        Raises:
            StrategyError: if `maxima` is not the cotangent of this state, or `params` does not have the parameter of a
                product.
        """
        self._check(maxima)
        names = list(self.scales)
        parts = [jnp.reshape(maxima.scales[name], -1) for name in names]
        weights = [] if params is None else _largest_magnitudes(names, params)
        # Without a barrier, XLA concatenates again for each element of the history: 0.35 ms for 144 products.
        reduced = lax.optimization_barrier(jnp.concatenate([*parts, *weights]))
        latest = reduced[: len(reduced) - len(weights)]
        history = jnp.concatenate([latest[:, None], self.history[:, :-1]], 1)
        largest = jnp.max(history, 1)
        if weights:
            rows = [self.scales[name].size // 3 for name in names]
            of_weight = jnp.repeat(reduced[len(latest) :], np.array(rows), total_repeat_length=sum(rows))
            largest = jnp.reshape(jnp.reshape(largest, (-1, 3)).at[:, 1].set(of_weight), -1)
        before = jnp.concatenate([jnp.reshape(self.scales[name], -1) for name in names])
        limits = jnp.tile(jnp.asarray(self.limits, jnp.float32), len(before) // 3)
        scales = _power_of_two(largest / limits, before, self.margin)
        parts = lax.split(scales, [self.scales[name].size for name in names])
        shaped = {name: jnp.reshape(part, self.scales[name].shape) for name, part in zip(names, parts, strict=True)}
        return replace(self, scales=shaped, history=history)

    def _check(self, maxima: object) -> None:
        """Raise StrategyError if `maxima` is not a cotangent of this state."""
        if not isinstance(maxima, FP8Scales):
            raise StrategyError(
                "FP8Scales.update: maxima must be the cotangent of these scales, such as that of `jax.grad(loss, 1)`, "
                f"not {maxima!r:.80}"
            )
        own, shapes = ({name: np.shape(array) for name, array in state.scales.items()} for state in (self, maxima))
        if wrong := sorted({name for name, _ in own.items() ^ shapes.items()}):
            raise StrategyError(
                f"FP8Scales.update: maxima are those of the scales of another function: {', '.join(wrong[:8])} differ"
            )

    def join(self, other: Self) -> Self:
        """Return the larger ones of two states of maxima, such as the cotangents of two microbatches."""
        joined: Self = tree_util.tree_map(jnp.maximum, self, other)
        return joined


def parameter_name(path: KeyPath) -> str:
    """Return the name of a parameter: its path, or `params` if there is one parameter without a path."""
    return leaf_name(path) or "params"


def _largest_magnitudes(names: Sequence[str], params: object) -> list[Array]:
    """Return the largest finite magnitude of the parameters of each product, as arrays of one element."""
    found = {parameter_name(path): leaf for path, leaf in tree_util.tree_leaves_with_path(params)}
    largest = {}

    def magnitude(product: str, name: str) -> Array:
        if name not in found:
            raise StrategyError(
                f"FP8Scales.update: the product {product!r} is one of the parameter {name!r}, and `params` has only "
                f"{', '.join(sorted(found))}. Pass the parameters that the loss receives."
            )
        if name not in largest:
            magnitudes = jnp.abs(jnp.asarray(found[name], jnp.float32))
            largest[name] = jnp.max(jnp.where(magnitudes < jnp.inf, magnitudes, 0))
        return largest[name]

    def own_names(product: str) -> list[str]:
        return [product] if product in found else parameter_names(product)

    return [
        jnp.reshape(reduce(jnp.maximum, (magnitude(product, name) for name in own_names(product))), 1)
        for product in names
    ]


def _power_of_two(ratios: Array, before: Array, margin: int) -> Array:
    """Return the least powers of two that are not below `ratios`, times `2**margin`; `before` where a ratio is 0."""
    mantissa, exponent = jnp.frexp(ratios)
    power = jnp.clip(exponent - (mantissa == 0.5) + margin, -_EXPONENTS, _EXPONENTS)
    bits = lax.shift_left(power.astype(jnp.int32) + 127, jnp.full_like(power, 23, jnp.int32))
    return jnp.where(ratios > 0, lax.bitcast_convert_type(bits, jnp.float32), before)
