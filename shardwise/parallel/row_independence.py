"""row_independence: prove that a loop body computes each row of its carry from this row alone.

Rows are dim 0 of every leaf of the carry. The factor rules of all ops say which dims of operands and results belong
together. If every op passes the rows on, and none reduces, exchanges or needs all of them, a batch may be divided into
microbatches.
"""

from shardwise.compiler.candidates.dim_groups import DimGroups, dim_groups
from shardwise.compiler.candidates.unfold import unfold
from shardwise.compiler.control.scan import Scan
from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import Full
from shardwise.compiler.transforms.inline import inline


def has_independent_rows(op: Scan) -> bool:
    """Return whether a scan computes each row of its carry from the same row of its first carry.

    Args:
        op: the scan. One with stacked results, or whose iterations read other arrays with rows, has no independent
            rows.
    """
    program = inline(op.program)
    carry = program.inputs[op.consts : op.consts + op.carried]
    if len(program.outputs) > op.carried or program.effect or not carry:
        return False
    if not all(value.type.ndim for value in carry) or len({value.type.shape[0] for value in carry}) > 1:
        return False
    unfolded = unfold(program)
    groups = dim_groups(unfolded.equations)
    for value in carry[1:]:
        groups.join((value, 0), (carry[0], 0))
    rows = _Rows(groups, groups.find(carry[0], 0))
    others = [value for value in program.inputs if value not in carry]
    if any(rows.dims(value) for value in others) or any(
        rows.dims(value) != [0] for value in (*carry, *program.outputs)
    ):
        return False
    return not unfolded.manual and all(rows.pass_through(equation) for equation in unfolded.equations)


class _Rows:
    """The dims of values that are rows."""

    def __init__(self, groups: DimGroups, group: int):
        self._groups = groups
        self._group = group

    def dims(self, value: Value) -> list[int]:
        """Return the dims of a value that are rows, or products of rows and other dims."""
        return [dim for dim in range(value.type.ndim) if self._groups.find(value, dim) == self._group]

    def pass_through(self, equation: Equation) -> bool:
        """Return whether an op computes each row of its results from the same row of its operands."""
        op = equation.op
        read = [self.dims(value) for value in equation.inputs]
        written = [self.dims(value) for value in equation.outputs]
        if not any(read):  # rows that are not computed from rows must be equal
            return not any(written) or isinstance(op, (Broadcast, Full))
        if op.user_mesh is not None or any(len(dims) > 1 for dims in read) or any(len(dims) != 1 for dims in written):
            return False
        rule = factor_rule(op, tuple([value.type for value in equation.inputs]))
        pairs = [*zip(rule.operands, read, strict=True), *zip(rule.results, written, strict=True)]
        factors = {factors[dims[0]][0] for factors, dims in pairs if dims and factors[dims[0]]}
        if len(factors) != 1 or any(dims and not factors[dims[0]] for factors, dims in pairs):
            return False
        return factors.isdisjoint({*rule.need_replication, *rule.exchange, *rule.reduce})
