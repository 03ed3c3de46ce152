"""when and loop: control flow in kernels."""

from collections.abc import Callable
from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.arrays.methods import Array
from shardwise.experimental.pallas.sizes import cdiv
from shardwise.typing import ArrayLike


def when(condition: ArrayLike, /) -> Callable[[Callable[[], None]], None]:
    """Run a function, which may write Refs, if a condition holds.

    Args:
        condition: a boolean, which may be traced.

    Returns:
        A decorator that runs the function at once.

    Raises:
        TypeError: if `condition` is not a boolean or a number.

    Example:
        >>> def kernel(out_ref):
        ...     @pallas.when(pallas.program_id(0) == 1)
        ...     def _():
        ...         out_ref[...] = jnp.ones(2)
        >>> pallas.pallas_call(kernel, jax.ShapeDtypeStruct((2,), jnp.float32), grid=(3,))()
        Array([1., 1.], dtype=float32)
    """

    def run(function: Callable[[], None]) -> None:
        if not isinstance(condition, (bool, np.bool_)):
            lax.cond(condition, function, lambda: None)
        elif condition:
            function()

    return run


def loop(
    lower: int | Array,
    upper: int | Array,
    *,
    init_carry: object = None,
    step: int | Array = 1,
    unroll: int | bool | None = None,
) -> Callable[[Callable[..., Any]], Any]:
    """Run a function, which may write Refs, for the integers from `lower` to `upper`.

    Args:
        lower: the first integer, which may be traced.
        upper: the end, which is not included.
        init_carry: the first carry of the function, a pytree of arrays; None if it has none.
        step: the distance between the integers.
        unroll: as of `lax.fori_loop`.

    Returns:
        A decorator that runs the function of the integer, or of the integer and the carry, and returns the last carry.

    Raises:
        TypeError: if a bound is not an integer.

    Example:
        >>> def kernel(out_ref):
        ...     @pallas.loop(0, 4, step=2)
        ...     def _(i):
        ...         out_ref[i] = i
        >>> pallas.pallas_call(kernel, jnp.zeros(4, jnp.int32), input_output_aliases={})()[2]
        Array(2, dtype=int32)
    """
    first: Any = 0
    if not all(isinstance(bound, (int, np.integer)) for bound in (lower, upper, step)):
        dtype = jnp.result_type(lower, upper, step)
        first, lower, upper, step = (jnp.asarray(bound, dtype) for bound in (0, lower, upper, step))

    def run(body: Callable[..., Any]) -> Any:
        def iterate(number: Any, carry: Any) -> Any:
            index = lower + number * step
            return body(index) if init_carry is None else body(index, carry)

        return lax.fori_loop(first, cdiv(upper - lower, step), iterate, init_carry, unroll=unroll)

    return run
