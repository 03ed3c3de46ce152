"""inspect_array_sharding: how a value lies, told outside a compiled function at once, and inside while it is compiled.

Inside, an op without results stands where the call was. Once the plan is there, `tell` hands each of them the layout in
which the plan makes its value, before XLA gets the program.
"""

from collections.abc import Callable
from typing import Any

from shardwise.api.request import Target
from shardwise.compiler.ops.inspect import Inspect
from shardwise.compiler.ops.operands import as_operand
from shardwise.compiler.pipeline import Partitioned
from shardwise.compiler.shardings.layout import Layout
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


def tell(compiled: Partitioned, target: Target) -> None:
    """Tell those who want to know how the plan lays out a value."""
    sharded, plan = compiled.sharded, compiled.plan
    if not sharded.mesh.axis_names:
        for equation in sharded.program.walk():
            if isinstance(equation.op, Inspect):
                equation.op.look(target.sharding(Layout.replicated(equation.inputs[0].type.ndim)))
        return
    looking = [equation for equation in sharded.unfolded.equations if isinstance(equation.op, Inspect)]
    if not looking:
        return
    made = {
        value: plan.choices[equation].results[number]
        for equation in sharded.unfolded.equations
        if equation in plan.choices
        for number, value in enumerate(equation.outputs)
    }
    for equation in looking:
        (value,) = equation.inputs
        pin = sharded.pinned.get(value)
        layout = pin.layout if pin else made.get(value, Layout.replicated(value.type.ndim))
        equation.op.look(target.sharding(Layout(layout.dims)))  # type: ignore[attr-defined]
