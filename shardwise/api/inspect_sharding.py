"""inspect_array_sharding: how a value lies, told outside a compiled function at once, and inside while it is compiled.

Inside, an op without results stands where the call was. Once the plan is there, `tell` hands each of them the layout in
which the plan makes its value, before XLA gets the program.
"""

from collections.abc import Callable
from typing import Any

from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ops.placement.inspect_sharding import Inspect
from shardwise.runtime.array import Array


def inspect_array_sharding(value: Any, *, callback: Callable[[Any], None] = print) -> None:
    """Call `callback` with the sharding of `value`; inside a compiled function, with the one that the planner chose.

    There it is called once for each compilation. A value that is a sum still to be completed lies as its terms do.

    >>> x = jax.device_put(jnp.arange(8), jax.NamedSharding(jax.make_mesh((4,), ("rows",)), P("rows")))
    >>> jax.debug.inspect_array_sharding(x, callback=lambda sharding: print(sharding.spec))
    P('rows')
    """
    if not callable(callback):
        raise TypeError(f"inspect_array_sharding: callback should be a function, not {callback!r}")
    operand = as_operand(value, "inspect_array_sharding")
    if isinstance(operand, Array):
        callback(operand.sharding)
    else:
        Inspect(callback)(operand)
