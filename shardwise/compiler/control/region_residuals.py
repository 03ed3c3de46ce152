"""Residuals of a linearized manual region, which leave the forward region and enter the linear one."""

from collections.abc import Collection, Sequence
from typing import Any, final

from shardwise.compiler.control.call import Call
from shardwise.compiler.control.region_boundary import ShardSpec
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.shardings.explicit import Axes
from shardwise.compiler.trace.build import rewrite


@final
class Residual:
    """A residual of a linearized region: an operand, or a further result of the forward region.

    A residual that varies over axes becomes a result with a new leading dim, which these axes shard.

    Attributes:
        value: the residual inside the forward program.
        operand: the index of the operand, or None.
        spec: how the values inside the region form the residual outside.
        reshape: the equation that adds the leading dim, or None.
    """

    def __init__(self, value: Value, operand: int | None, spec: ShardSpec, reshape: Equation | None):
        self.value = value
        self.operand = operand
        self.spec = spec
        self.reshape = reshape

    @staticmethod
    def from_output(
        forward: Program, value: Value, in_specs: Sequence[ShardSpec], axes: Axes, varying: Collection[str]
    ) -> "Residual":
        """Return the residual for an output of the forward program.

        Args:
            forward: the forward program.
            value: its output.
            in_specs: the specs of the operands of the region.
            axes: the axes of the region.
            varying: the axes over which the value may vary.
        """
        if value in forward.inputs:
            number = forward.inputs.index(value)
            return Residual(value, number, in_specs[number], None)
        sharding = tuple(axis for axis in axes if axis in varying)
        sums = (value.type.explicit.unreduced, value.type.explicit.reduced) if value.type.explicit else ((), ())
        unreduced, reduced = (tuple(axis for axis in of if axis in axes) for of in sums)
        unsharded: tuple[Axes, ...] = ((),) * value.type.ndim
        if not sharding:
            return Residual(value, None, ShardSpec(unsharded, unreduced, reduced), None)
        saved = value.type.with_dim(0, 1)
        reshape = Equation(Reshape(saved.shape), [value], [Value(saved)])
        return Residual(value, None, ShardSpec((sharding, *unsharded), unreduced, reduced), reshape)

    @property
    def saved_value(self) -> Value:
        """The value that the forward region returns."""
        return self.reshape.outputs[0] if self.reshape else self.value


def linear_program(linear: Program, residuals: Sequence[Residual]) -> Program:
    """Return `linear` with the saved residuals as its first inputs; they may have a leading dim of size 1."""

    def body(*args: Operand) -> Sequence[Any]:
        values = [
            Reshape(residual.value.type.shape)(x) if residual.reshape else x
            for residual, x in zip(residuals, args, strict=False)
        ]
        return Call(linear)(*values, *args[len(residuals) :])  # type: ignore[no-any-return]

    types = [*(residual.saved_value.type for residual in residuals), *linear.in_types[len(residuals) :]]
    return rewrite(linear.name, types, body)
