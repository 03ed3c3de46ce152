"""crop_pads: replace a slice of a padded array by a pad with less padding.

Stencils are often written with both: `padded = pad(x, 1)`, then `padded[2:]` and `padded[:-2]` are the neighbours of
`x`. If the dim is sharded, the padded array has uneven shards that differ from the shards of `x` and of the slices, so
each op exchanges windows between devices and masks the ends of shards. The slice of the pad is `x` shifted by one, with
even shards and one exchange. Values with Explicit shardings are not rewritten, because their types determine every
reshard.
"""

from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.shape.slicing import Pad, Slice


@verifies_result
def crop_pads(program: Program) -> Program:
    """Crop the pads of a program, including nested programs.

    Returns:
        The new program, with unused pads; `program` itself if no padded array is sliced.
    """
    producers = program.producers()
    unpadded: dict[Value, Value] = {}  # slice that drops all padding → the unpadded value
    equations: list[Equation] = []
    changed = False
    for original in program.equations:
        equation = original
        if not unpadded.keys().isdisjoint(equation.inputs):
            equation = equation.replace(inputs=[unpadded.get(value, value) for value in equation.inputs])
        if isinstance(equation.op, Control):
            nested = equation.op.map_programs(crop_pads)
            equation = equation if nested is equation.op else equation.replace(op=nested)
        elif isinstance(equation.op, Slice):
            equation = _cropped(equation, producers.get(equation.inputs[0]))
        changed |= equation is not original
        if equation is not original and isinstance(equation.op, Pad):
            producers[equation.outputs[0]] = equation  # a slice of the result can be cropped further
            if _is_identity(equation):
                unpadded[equation.outputs[0]] = equation.inputs[0]
                continue
        equations.append(equation)
    if not changed:
        return program
    return program.with_equations(equations, (unpadded.get(value, value) for value in program.outputs))


def _cropped(equation: Equation, pad: Equation | None) -> Equation:
    """Return a slice of a padded array as a pad; the same equation if that is impossible."""
    op = equation.op
    if pad is None or not isinstance(pad.op, Pad) or not isinstance(op, Slice):
        return equation
    if any(pad.op.interior) or set(op.stride) - {1}:
        return equation
    x = pad.inputs[0].type
    if x.explicit is not None or equation.outputs[0].type.explicit is not None:
        return equation
    low = tuple(low - start for low, start in zip(pad.op.low, op.start, strict=True))
    dropped = (size - limit for size, limit in zip(pad.outputs[0].type.shape, op.limit, strict=True))
    high = tuple(high - count for high, count in zip(pad.op.high, dropped, strict=True))
    # A slice without any element of `x` would crop more than all of `x`.
    if any(min(bounds) < -size for *bounds, size in zip(low, high, x.shape, strict=True)):
        return equation
    return equation.replace(op=Pad(low, high, pad.op.interior), inputs=pad.inputs)


def _is_identity(pad: Equation) -> bool:
    """Return whether a cropped pad equals its operand, in its type too: a weakly typed operand is not replaced."""
    return pad.inputs[0].type == pad.outputs[0].type and not any((*pad.op.low, *pad.op.high))  # type: ignore[attr-defined]
