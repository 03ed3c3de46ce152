"""row_independence: prove that a loop body computes each row of its carry from this row alone.

Rows are dim 0 of every leaf of the carry. The factor rules of all ops say which dims of operands and results belong
together. If every op passes the rows on, and none reduces, exchanges, splits or needs all of them, a batch may be
divided into microbatches. The body is a function, which is traced again for a microbatch and may read the number of
rows, so the programs for both numbers are compared, too.
"""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import final

from shardwise.compiler.candidates.unfold import unfold
from shardwise.compiler.control.scan import Scan
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.transforms.inline import inline
from shardwise.parallel.rows import Rows


def has_independent_rows(op: Scan) -> bool:
    """Return whether a scan computes each row of its carry from the same row of its first carry.

    Args:
        op: the scan. One with stacked results, or whose iterations read other arrays with rows, has no independent
            rows.
    """
    program = inline(op.program)
    carry = _carry(op, program)
    if len(program.outputs) > op.carried or program.effect or not carry:
        return False
    if not all(value.type.ndim for value in carry) or len({value.type.shape[0] for value in carry}) > 1:
        return False
    unfolded = unfold(program)
    rows = Rows.from_values(carry, unfolded.equations)
    others = [value for value in program.inputs if value not in carry]
    if any(rows.dims(value) for value in others) or any(
        rows.dims(value) != [0] for value in (*carry, *program.outputs)
    ):
        return False
    return not unfolded.manual and all(rows.pass_through(equation) for equation in unfolded.equations)


def computes_same_rows(op: Scan, other: Scan) -> bool:
    """Return whether two scans over different numbers of rows compute the same function of each row.

    Their programs are equal up to the sizes of dims with rows. Another result is that of a body that reads the number
    of rows, such as one that divides by it.

    Args:
        op: a scan with independent rows.
        other: the scan of the same body over another number of rows.
    """
    if (op.consts, op.carried) != (other.consts, other.carried):
        return False
    program, compared = inline(op.program), inline(other.program)
    rows = Rows.from_values(_carry(op, program), unfold(program).equations)
    return Comparison(rows, _carry(other, compared)[0].type.shape[0]).are_equal(program, compared)


def _carry(op: Scan, program: Program) -> Sequence[Value]:
    return program.inputs[op.consts : op.consts + op.carried]


@final
class Comparison:
    """Compares programs for two numbers of rows.

    Args:
        rows: the rows of the first program.
        count: the number of rows of the second program.
        up_to_broadcasts: whether programs are equal if they differ only in broadcasts and reshapes, which depend on
            whether a dim has size 1, and in ops that read no rows.
    """

    def __init__(self, rows: Rows, count: int, up_to_broadcasts: bool = False):
        self._rows = rows
        self._count = count
        self._up_to_broadcasts = up_to_broadcasts

    def are_equal(self, x: Program, y: Program) -> bool:
        """Return whether two programs are equal up to the sizes of dims with rows."""
        if self._up_to_broadcasts:
            return not self.differences(x, y)
        if len(x.inputs) != len(y.inputs) or len(x.equations) != len(y.equations):
            return False
        equal = dict(zip(x.inputs, y.inputs, strict=True))
        for one, other in zip(x.equations, y.equations, strict=True):
            if [equal[value] for value in one.inputs] != list(other.inputs) or not self.match(one.op, other.op):
                return False
            equal.update(zip(one.outputs, other.outputs, strict=True))
        return [equal[value] for value in x.outputs] == list(y.outputs) and all(
            self._scaled(value) == other.type for value, other in equal.items()
        )

    def differences(self, x: Program, y: Program) -> list[Equation]:
        """Return the equations that compute other rows than those of the other program, up to broadcasts."""
        ones, others = (
            [each for each in program.equations if not isinstance(each.op, (Broadcast, Reshape))] for program in (x, y)
        )
        shorter, longer = sorted((ones, others), key=len)
        pairs = zip(ones, others, strict=False)
        found = [one for one, other in pairs if not self._rows_match(one, other)] + longer[len(shorter) :]
        results = {
            value for value, other in zip(x.outputs, y.outputs, strict=True) if not self._has_scaled_rows(value, other)
        }
        return found + [each for each in x.equations if not results.isdisjoint(each.outputs)]

    def _rows_match(self, x: Equation, y: Equation) -> bool:
        """Return whether two equations compute the same rows."""
        reads_rows = any(self._rows.dims(value) for value in x.inputs)
        return (self.match(x.op, y.op) if reads_rows else type(x.op) is type(y.op)) and all(
            self._has_scaled_rows(value, other) for value, other in zip(x.outputs, y.outputs, strict=True)
        )

    def _has_scaled_rows(self, value: Value, other: Value) -> bool:
        return not self._rows.dims(value) or self._scaled(value) == other.type

    def _scaled(self, value: Value) -> ArrayType:
        """Return the type of a value with the other number of rows."""
        dims = self._rows.dims(value)
        shape = value.type.shape
        scaled = (size // self._rows.count * self._count if dim in dims else size for dim, size in enumerate(shape))
        return value.type.with_shape(tuple(scaled))

    def match(self, x: object, y: object) -> bool:
        """Return whether two ops, or fields of them, are equal up to the sizes of dims with rows."""
        if type(x) is not type(y):
            return False
        if isinstance(x, Program) and isinstance(y, Program):
            return self.are_equal(x, y)
        if isinstance(x, tuple) and isinstance(y, tuple):  # perhaps a shape, in which the rows are an element
            return len(x) == len(y) and all(map(self._elements_match, x, y))
        if is_dataclass(x) and fields(x):
            return all(self.match(getattr(x, field.name), getattr(y, field.name)) for field in fields(x))
        return bool(x == y)

    def _elements_match(self, x: object, y: object) -> bool:
        if isinstance(x, int) and isinstance(y, int):
            return x == y or x * self._count == y * self._rows.count
        return self.match(x, y)
