"""inspect_array_sharding: report a value's sharding, also that of an intermediate value of a compiled function.

Under `jit` the call records an op without results. When the program has been planned, a compiler pass calls each such
op's callback with the planned layout of its operand, before XLA compiles the program.
"""

from collections.abc import Callable
from typing import Any

from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ops.placement.inspect_sharding import Inspect
from shardwise.runtime.array import ArrayImpl
from shardwise.typing import ArrayLike


def inspect_array_sharding(value: ArrayLike, *, callback: Callable[[Any], None] = print) -> None:
    """Call a function with the sharding of a value.

    Under `jit` the sharding is the one that the planner chose, and `callback` is called once per compilation. For a
    value that is partial (a sum that awaits its all-reduce), it is the sharding of the partial terms.

    Args:
        value: an array or a number, which can be traced.
        callback: the function to call with the `Sharding`.

    Raises:
        TypeError: if `callback` is not callable, or `value` is neither an array nor a number.

    Example:
        >>> x = jax.device_put(jnp.arange(8), jax.NamedSharding(jax.make_mesh((4,), ("rows",)), P("rows")))
        >>> jax.debug.inspect_array_sharding(x, callback=lambda sharding: print(sharding.spec))
        P('rows')
    """
    if not callable(callback):
        raise TypeError(f"inspect_array_sharding: callback must be a function, not {callback!r}")
    operand = as_operand(value, "inspect_array_sharding")
    if isinstance(operand, ArrayImpl):
        callback(operand.sharding)
    else:
        Inspect(callback)(operand)
