"""FusedExpressions: which results of a program XLA computes inside their consumers, and what the other equations read.

This does not depend on the order of equations. So after a rewrite that moves equations and replaces a few, only these,
and the equations whose operands or consumers changed, are analyzed again.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, final

import numpy as np

from shardwise.compiler.dtypes import is_bfloat16, is_float
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.contract.conv import Conv
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.indexing.scatter import Scatter
from shardwise.compiler.ops.linalg.batched import BatchedMatrixOp
from shardwise.compiler.ops.reduce.argminmax import ArgExtremum
from shardwise.compiler.ops.shape.constants import Full
from shardwise.compiler.ops.shape.movement import Reshape, Transpose
from shardwise.compiler.ops.shape.slicing import Concatenate, Pad, Reverse
from shardwise.compiler.partition.code_duplication import emitted_members
from shardwise.compiler.partition.library_fusion import concatenation_of, library_calls
from shardwise.compiler.partition.product_shape import is_matrix, is_outer_product
from shardwise.compiler.partition.triton_products import is_triton_product
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.mesh import AbstractMesh

_MAX_OPERANDS = 16  # of a fused expression; if it has more, an intermediate result is stored
_MAX_CONCATENATED = 8  # operands of a concatenation that is fused on CPU
_LONG_ROW = 128  # elements of the rows that a concatenation of its own copies on CPU
_MAX_MEETING = 32  # the number of equations in which the consumers of a value must meet

Reads = Mapping[Value, int]  # values in memory → bytes read


class Root(NamedTuple):
    """What an equation whose results may be stored computes.

    Attributes:
        reads: the values that it reads from memory, through fused expressions and views, with their bytes.
        members: the equations that are computed inside it, and the equation itself, in topological order.
        fuses: whether it may be in a kernel with other roots.
    """

    reads: Reads
    members: list[Equation]
    fuses: bool


@final
class FusedExpressions:
    """The expressions of a program.

    Attributes:
        program: the program.
        roots: the equations whose results may be stored.
        storage: for views, the value whose memory they share.
        fused: for values that are never stored, the memory reads of their computation.
        members: for values that are never stored, the equations that compute them.
        prologues: for stored values that products of XLA compute again, the memory reads of that.
        calls: on CPU, the equations in calls of the library of reductions, with the last equation of the call.
        reduced: on CPU, values that are stored because the library of reductions reads them.
        duplicated: on CPU, equations that XLA computes again in consumers that fuse, and stores for the others.
        split: on CPU, reductions along the dim of a concatenation, which XLA splits, with the concatenation.
        folded: on CPU, transposes that only products read: they are part of these before XLA fuses ops.
        accumulations: on CPU, additions of a scatter into zeros, with the value into which XLA scatters instead.
        recomputed: on CPU, equations that XLA computes in each of their consumers, and never stores.
        widened: on CPU, narrow results of contractions that are only converted to f32, with a result of that.
        reshaped: on CPU, operands that XLA computes again as matrices, by the product.
        column_major: on CPU, matrices that LAPACK stores column by column, unless a loop calls it.
        rows: for reductions of rows, also broadcast again, the value whose rows are reduced.
        chip: the GPU, if XLA may compute products with kernels of its own.
        uses: the equations that read each value.
        examiners: for each value, other values whose storage depends on its uses.
    """

    def __init__(self, program: Program, mesh: AbstractMesh, platform: str, chip: Chip | None = None):
        self.program = program
        self.mesh = mesh
        self.platform = platform
        self.chip = chip
        self.outputs = set(program.outputs)
        self.roots: dict[Equation, Root] = {}
        self.storage: dict[Value, Value] = {}
        self.fused: dict[Value, Reads] = {}
        self.members: dict[Value, list[Equation]] = {}
        self.prologues: dict[Value, Reads] = {}
        self.calls: dict[Equation, Equation] = {}
        self.reduced: set[Value] = set()
        self._known_consumers: dict[Value, list[Equation]] = {}
        self.duplicated: set[Equation] = set()
        self.recomputed: set[Equation] = set()
        self.column_major: set[Value] = set()
        self.split: dict[Equation, Equation] = {}
        self.accumulations: dict[Equation, Value] = {}
        self.folded: set[Equation] = set()
        self.widened: dict[Value, Value] = {}
        self.reshaped: dict[Equation, list[Value]] = {}
        self.rows: dict[Value, Value] = {}
        self.uses: dict[Value, list[Equation]] = {}
        self.examiners: dict[Value, tuple[Value, ...]] = {}

    @staticmethod
    def from_program(
        program: Program, mesh: AbstractMesh, platform: str, chip: Chip | None = None
    ) -> "FusedExpressions":
        """Return the expressions of a program that runs on each device of a mesh. See `group_kernels`."""
        expressions = FusedExpressions(program, mesh, platform, chip)
        uses = defaultdict(list)
        for equation in program.equations:
            inputs = equation.inputs
            for value in inputs if len(inputs) <= 1 else dict.fromkeys(inputs):
                uses[value].append(equation)
        expressions.uses = dict(uses)
        if platform == "cpu":
            for equation in program.equations:
                if (concatenation := concatenation_of(equation, expressions._producers)) is not None:
                    expressions.split[equation] = concatenation
            expressions.folded = {
                equation
                for equation in program.equations
                if equation.op.fusion.is_view_in_products and expressions._is_read_by_libraries(equation)
            }
            expressions.accumulations = expressions._find_accumulations()
            expressions.calls = library_calls(program, uses)
            expressions.duplicated = {e for e in program.equations if expressions._is_duplicated(e)}
            expressions.recomputed = {e for e in program.equations if expressions._is_recomputed(e)}
            expressions.widened = expressions._find_widened()
            expressions.reshaped = expressions._find_reshaped()
            expressions.column_major = expressions._find_column_major()
        for equation in program.equations:
            expressions._add(equation)
        if platform == "cpu":
            expressions._store_duplicated_code()
        return expressions

    def rewritten(self, program: Program) -> "FusedExpressions":
        """Return the expressions of another program. Equations of this one are analyzed again only where they changed.

        Args:
            program: a program with some equations of this one, in any order.
        """
        new = [equation for equation in program.equations if equation not in self._positions]
        if self.platform == "cpu" or 2 * len(new) > len(program.equations):
            return FusedExpressions.from_program(program, self.mesh, self.platform, self.chip)
        expressions = FusedExpressions(program, self.mesh, self.platform, self.chip)
        dropped = self._positions.keys() - expressions._positions.keys()
        changed_uses = expressions._update(self, new, dropped)
        changed: set[Value] = set()  # values that are stored or computed in another way
        for equation in program.equations:
            if not changed_uses.isdisjoint(equation.outputs) or not changed.isdisjoint(equation.inputs):
                expressions._forget(equation)
                expressions._add(equation)
                changed.update([value for value in equation.outputs if expressions._how(value) != self._how(value)])
            elif not equation.outputs and equation not in self._positions:
                expressions._add(equation)
        return expressions

    def _update(self, previous: "FusedExpressions", new: Sequence[Equation], dropped: set[Equation]) -> set[Value]:
        """Copy the expressions of a program that has `dropped` instead of `new` equations, with the uses of this one.

        Returns:
            The values whose storage may differ, because their uses changed, or those of a value that decides with them.
        """
        self.roots, self.storage, self.fused = dict(previous.roots), dict(previous.storage), dict(previous.fused)
        self.members, self.rows = dict(previous.members), dict(previous.rows)
        self.prologues = dict(previous.prologues)
        self.uses, self.examiners = dict(previous.uses), dict(previous.examiners)
        for equation in dropped:
            self._forget(equation)
        changed = self.outputs ^ previous.outputs
        for equation in chain(new, dropped):
            changed.update(equation.inputs, equation.outputs)
        for value in changed:
            self.uses[value] = [use for use in self.uses.get(value, ()) if use not in dropped]
        for equation in new:
            for value in dict.fromkeys(equation.inputs):
                self.uses[value].append(equation)
        pending = list(changed)
        while pending:
            examiners = set(self.examiners.get(pending.pop(), ())) - changed
            changed |= examiners
            pending += examiners
        return changed

    def _forget(self, equation: Equation) -> None:
        """Remove all that is known about the results of an equation."""
        self.roots.pop(equation, None)
        for value in equation.outputs:
            for known in (self.storage, self.fused, self.members, self.rows, self.prologues):
                known.pop(value, None)

    def _how(self, value: Value) -> tuple[Any, ...]:
        """Return how a value is stored or computed, as far as its consumers depend on it."""
        known = self.fused.get(value), self.members.get(value), self.storage.get(value), self.rows.get(value)
        return *known, self.prologues.get(self.storage.get(value, value))

    @cached_property
    def _positions(self) -> dict[Equation, int]:
        """The position of each equation in the program."""
        return {equation: number for number, equation in enumerate(self.program.equations)}

    def _add(self, equation: Equation) -> None:
        op = equation.op
        if self.platform:
            self._add_rows(equation)
        if op.is_constant and self._is_literal(equation):
            self.fused[equation.outputs[0]], self.members[equation.outputs[0]] = {}, [equation]
        elif op.fusion.is_barrier or self._is_view(equation):
            for operand, result in zip(equation.inputs, equation.outputs, strict=True):
                self.storage[result] = self.storage.get(operand, operand)
        elif equation in self.duplicated:
            (value,) = equation.outputs
            self.roots[equation] = Root(self._reads(equation), self._members(equation), fuses=True)
            self.fused[value], self.members[value] = self.roots[equation].reads, self.roots[equation].members
        elif equation in self.accumulations or self._is_added_to_convolution(equation):
            self.roots[equation] = Root(self._reads(equation), self._members(equation), fuses=False)
        elif self._is_added_by_library(equation):
            (value,) = equation.outputs
            self.fused[value], self.members[value] = self._reads(equation), [equation]
        elif self._is_scattered_later(equation):
            (value,) = equation.outputs
            self.fused[value], self.members[value] = self._reads(equation), self._members(equation)
        elif equation in self.calls or (self._fuses(equation) and len(equation.outputs) == 1):
            self._fuse(equation)
        else:
            self.roots[equation] = Root(self._reads(equation), [equation], fuses=False)

    def _store_duplicated_code(self) -> None:
        """Store values whose code CPU kernels would contain too often (`code_duplication.py`)."""
        for equation in reversed(self.program.equations):
            root = self.roots.get(equation)
            if root is None or not root.fuses or equation in self.calls:
                continue
            members = emitted_members(root.members)
            if len(members) == len(root.members):
                continue
            computed = {value for member in members for value in member.outputs}
            reads: dict[Value, int] = {}
            for value in dict.fromkeys(chain.from_iterable(member.inputs for member in members)):
                if value not in computed:
                    home = self.storage.get(value, value)
                    reads[home] = root.reads.get(home, value.type.nbytes)
                    producer = self._producers.get(home)
                    if producer is not None and producer not in self.roots:
                        self.roots[producer] = Root(self.fused[home], self.members[home], fuses=True)
            self.roots[equation] = root._replace(reads=reads, members=members)

    def _add_rows(self, equation: Equation) -> None:
        """Record the rows of a reduction, or of an equation that broadcasts the results of one again."""
        op, inputs = equation.op, equation.inputs
        if op.reduced_dims is not None and is_complete_per_row(equation):
            self.rows[equation.outputs[0]] = inputs[0]
        elif len(inputs) == 1 and inputs[0] in self.rows and (op.only_moves or op.fusion.is_view):
            self.rows[equation.outputs[0]] = self.rows[inputs[0]]

    def updated(self, equation: Equation) -> Value | None:
        """Return the operand that an equation updates in place, if it is not read later; None for other equations."""
        if equation.op.fusion.updates is not None:
            return equation.inputs[0]
        return self.accumulations.get(equation)

    def _fuses(self, equation: Equation) -> bool:
        if equation in self.accumulations or equation in self.folded or self._is_added_to_convolution(equation):
            return False
        fusion = equation.op.fusion
        if self.platform == "cpu" and isinstance(equation.op, Concatenate):
            return _is_fused_concatenation(equation)
        if self.platform == "cpu" and fusion.duplicates == "on CPU":
            return True
        if self.platform == "gpu" and isinstance(equation.op, ArgExtremum):
            return True
        return fusion.fuses or (bool(self.platform) and (fusion.is_indexed or is_outer_product(equation)))

    def _is_added_by_library(self, equation: Equation) -> bool:
        """Return whether cuDNN adds an array, or a bias, to the result of a convolution before it writes that."""
        if not self._is_forward_convolution(equation):
            return False
        (value,) = equation.outputs
        uses = self.uses.get(value, ())
        if len(uses) != 1 or uses[0].op.name != "add" or value in self.outputs:
            return False
        first = uses[0].inputs[0]
        other = self._producers.get(first)
        return first is value or other is None or not self._is_forward_convolution(other)

    def _computes_operand(self, use: Equation, value: Value) -> bool:
        """Return whether an update computes a value that it writes, or cuDNN reads a bias for each channel instead."""
        if _fuses_update(use, value):
            return True
        producer = self._producers[value]
        is_bias = producer.op.name == "broadcast" and producer.inputs[0].type.size == value.type.shape[-1]
        return is_bias and self._is_added_to_convolution(use)

    def _is_forward_convolution(self, equation: Equation) -> bool:
        """Return whether an equation is a convolution on a GPU, without groups of channels, and no gradient."""
        op = equation.op
        if self.platform != "gpu" or not isinstance(op, Conv) or op.out[0] != op.lhs[0]:
            return False
        has_groups = any(letter in op.rhs and letter in op.out and not letter.isdigit() for letter in op.lhs)
        return not has_groups and not self.is_reversed(equation.inputs[1])

    def _is_added_to_convolution(self, equation: Equation) -> bool:
        """Return whether an equation adds to the result of a convolution, so that cuDNN reads the other operand."""
        if self.platform != "gpu" or equation.op.name != "add":
            return False
        producers = [self._producers.get(value) for value in equation.inputs]
        return any(producer is not None and self._is_added_by_library(producer) for producer in producers)

    def _is_view(self, equation: Equation) -> bool:
        fusion = equation.op.fusion
        if self.widened and equation.inputs and equation.inputs[0] in self.widened:
            return True
        if not (fusion.is_view or fusion.is_view_in_products or equation.op.removed_on_one_device):  # most equations
            return False
        if equation.inputs and equation.inputs[0] in self.fused:
            return False
        if fusion.is_view_in_products:
            return self._is_read_by_libraries(equation)
        return fusion.is_view or self._is_removed(equation)

    def _is_read_by_libraries(self, equation: Equation) -> bool:
        """Return whether only contractions read the result of a transpose, or LAPACK, which reads columns."""
        uses = self.uses.get(equation.outputs[0], [])
        is_column_major = self.platform == "cpu" and _swaps_matrix_dims(equation)
        return bool(uses) and all(
            use.op.is_contraction or (is_column_major and isinstance(use.op, BatchedMatrixOp)) for use in uses
        )

    def _is_removed(self, equation: Equation) -> bool:
        """Return whether an equation is a collective that sends nothing, as along axes of size one: it is removed."""
        op = equation.op
        if not op.removed_on_one_device or len(equation.inputs) != 1:
            return False
        (operand,), (result,) = equation.inputs, equation.outputs
        return operand.type == result.type and not op.bytes_sent(operand.type, self.mesh)

    def _is_literal(self, equation: Equation) -> bool:
        """Return whether a constant is a scalar, which is an immediate in its consumers and not in memory."""
        return equation.outputs[0].type.size == 1 and equation.outputs[0] not in self.outputs

    def _fuse(self, equation: Equation) -> None:
        reads, members = self._reads(equation), self._members(equation)
        if len(reads) <= _MAX_OPERANDS and self._is_inlined(equation, reads, members):
            self.fused[equation.outputs[0]], self.members[equation.outputs[0]] = reads, members
        else:
            self.roots[equation] = Root(reads, members, fuses=True)
            if self.chip is not None and self._is_prologue(equation.outputs[0], reads, members):
                self.prologues[equation.outputs[0]] = reads

    def _prologue(self, equation: Equation, value: Value) -> Reads | None:
        """Return what a product of XLA reads to compute a stored operand again; None if it reads the operand."""
        found = self.prologues.get(self.storage.get(value, value)) if self.prologues else None
        if found is None or self.chip is None or not is_triton_product(equation, self.chip):
            return None
        return found

    def _members(self, equation: Equation) -> list[Equation]:
        """Return the equations that a kernel with an equation computes, in topological order."""
        inner = [self.members[value] for value in equation.inputs if self._computes(equation, value)]
        if len(inner) > 1:
            return [*dict.fromkeys(chain.from_iterable(inner)), equation]
        return [*inner[0], equation] if inner else [equation]

    def _computes(self, equation: Equation, value: Value) -> bool:
        """Return whether an equation computes an operand, and does not read it from memory."""
        if value not in self.fused:
            return False
        if not self.duplicated:
            return True
        return self._producers.get(value) not in self.duplicated or self._fuses_on_cpu(equation)

    def _reads(self, equation: Equation) -> Reads:
        """Return the values that an equation reads from memory, through fused expressions and views."""
        fused, storage, fusion = self.fused, self.storage, equation.op.fusion
        reads: dict[Value, int] = {}
        for position, value in enumerate(equation.inputs):
            operands = fused.get(value) if self._computes(equation, value) else None
            if operands is None:
                operands = self._prologue(equation, value)
            if operands is None and equation in self.split:
                operands = self.roots[self.split[equation]].reads
            is_part = position == 0 and (fusion.reads_part or fusion.updates is not None)
            if operands is None:
                home = storage.get(value, value)
                count = _bytes_of_part(equation) if is_part else value.type.nbytes
                if count >= reads.get(home, 0):
                    reads[home] = count
            elif is_part and fusion.reads_part:
                most = _bytes_of_part(equation)
                reads = {home: min(nbytes, most) for home, nbytes in operands.items()}
            elif reads:
                for home, count in operands.items():
                    if count >= reads.get(home, 0):
                        reads[home] = count
            elif operands:
                reads = dict(operands)
        return reads

    def _is_inlined(self, equation: Equation, reads: Reads, members: Sequence[Equation]) -> bool:
        """Return whether a result is computed inside its consumers and never stored."""
        (value,) = equation.outputs
        if equation in self.calls:
            return self.calls[equation] is not equation
        if equation.op.reduced_dims is not None or isinstance(equation.op, ArgExtremum):
            return False
        is_in_row_kernel = self.platform == "gpu" and (self._is_normalized(equation) or self._is_standardized(equation))
        if is_in_row_kernel and len(self.uses.get(value, ())) > 1:
            return False
        uses = self._consumers(value, value)
        if not uses:
            return False
        if self.calls and not self.calls.keys().isdisjoint(uses):
            self.reduced.add(value)
            return False
        if self.platform == "cpu" and self._is_stored_for_orders(equation) and self._is_permuted(value):
            return False
        if self.chip is not None and self._is_prologue(value, reads, members):
            # Products of XLA compute the operand before other ops are fused.
            uses = [use for use in uses if not is_triton_product(use, self.chip)]
            if not uses:
                return True
        for use in uses:
            if not self._fuses(use) and not (self.platform == "gpu" and self._computes_operand(use, value)):
                return False
        is_always = equation.op.fusion.duplicates == "always" and not self._is_rounding(equation)
        if len(uses) == 1 or is_always or self._meet(uses, value):
            return True
        if self.platform == "cpu":
            return equation in self.recomputed
        if self.platform == "gpu" and reads and any(self._transposes(use) for use in uses):
            return False  # a kernel reads memory in two orders, but does not compute values in two
        rereads = sum(count for count in reads.values() if count >= value.type.nbytes / 8)
        are_cheap = all(
            member.op.fusion.duplicates in ("cheap", "always", "on GPUs" if self.platform == "gpu" else "cheap")
            or (self.platform == "gpu" and self._divides_rows(member))
            for member in members
            # Ops of few elements are cheap: they are computed once per row.
            if not self.platform or member.outputs[0].type.size >= value.type.size / 8
        )
        return are_cheap and rereads <= value.type.nbytes

    def _is_rounding(self, equation: Equation) -> bool:
        """Return whether an equation rounds f32 to bf16, which XLA does once for all consumers on CPU."""
        if self.platform != "cpu" or not isinstance(equation.op, Convert):
            return False
        return equation.inputs[0].type.dtype == np.float32 and is_bfloat16(equation.op.dtype)

    def _transposes(self, equation: Equation) -> bool:
        """Return whether an equation is a transpose that is no view."""
        return isinstance(equation.op, Transpose) and not self._is_read_by_libraries(equation)

    def _divides_rows(self, equation: Equation) -> bool:
        """Return whether an equation divides rows by a value for each."""
        divisor = self._producers.get(equation.inputs[1]) if equation.op.name == "div" else None
        return divisor is not None and divisor.op.name == "broadcast"

    def _is_prologue(self, value: Value, reads: Reads, members: Sequence[Equation]) -> bool:
        """Return whether products of XLA compute an operand: elementwise ops that read one array each do, and views.

        Others, such as a value times its own sigmoid, read more than they write.
        """
        if sum([size for size in reads.values() if size >= value.type.nbytes / 8]) > value.type.nbytes:
            return False
        return all(
            self._is_broadcast(member.outputs[0])
            or member.op.fusion.is_view
            or (member.op.is_elementwise and sum([not self._is_broadcast(x) for x in member.inputs]) <= 1)
            for member in members
        )

    def _meet(self, uses: Sequence[Equation], examiner: Value) -> bool:
        """Return whether elementwise equations lead from all of these to one equation, so that one kernel has them all.

        The gradient of an activation is an example: it uses an exponential twice, and multiplies a cotangent.
        """
        paths = {self._positions[use]: use for use in uses}
        for _ in range(_MAX_MEETING):
            equation = paths.pop(min(paths))
            if not equation.op.is_elementwise:
                return False
            if not paths:
                return True
            following = self._consumers(equation.outputs[0], examiner)
            if not following:
                return False
            paths.update((self._positions[use], use) for use in following)
        return False

    def _is_normalized(self, equation: Equation) -> bool:
        """Return whether an equation combines rows with their own reductions, as a softmax does.

        XLA computes it in a kernel with the reductions, and stores the result.
        """
        if len(equation.inputs) != 2:
            return False
        x, y = equation.inputs
        return self.rows.get(x) is y or self.rows.get(y) is x

    def _is_standardized(self, equation: Equation) -> bool:
        """Return whether an equation multiplies centered rows by a reduction of theirs, as layer normalization does.

        XLA computes it in a kernel with the reductions on GPUs, and stores the result, unless a library reads
        elementwise results of it, which are stored instead.
        """
        if not equation.op.is_elementwise or len(equation.inputs) != 2:
            return False
        (value,) = equation.outputs
        for rows, scale in (equation.inputs, equation.inputs[::-1]):
            center = self._producers.get(rows)
            if center is None or len(center.inputs) != 2 or self._reduced_rows(scale, value) is not rows:
                continue
            for x, y in (center.inputs, center.inputs[::-1]):
                if self._reduced_rows(x, value) is self._row_source(y, value):
                    return not any(self._is_read_by_library(use.outputs[0], value) for use in self.uses.get(value, ()))
        return False

    def _reduced_rows(self, value: Value, examiner: Value) -> Value | None:
        """Return the rows of whose reductions elementwise ops of one operand compute a value; None if there are none.

        Args:
            value: the value.
            examiner: the value whose storage depends on this.
        """
        while (producer := self._producers.get(value)) is not None:
            if producer.op.reduced_dims is not None:
                is_row = len(producer.op.reduced_dims) == 1 and is_complete_per_row(producer)
                return self._row_source(producer.inputs[0], examiner) if is_row else None
            operand = producer.inputs[0] if producer.op.only_moves else self._only_operand(producer)
            if operand is None:
                return None
            value = operand
        return None

    def _row_source(self, value: Value, examiner: Value) -> Value:
        """Return the value of which elementwise ops of one operand compute a value, and nothing else.

        Args:
            value: the value.
            examiner: the value whose storage depends on this.
        """
        while (producer := self._producers.get(value)) is not None:
            self._add_examiner(value, examiner)
            operand = self._only_operand(producer)
            if operand is None or len(self.uses.get(value, ())) > 1:
                break
            value = operand
        return value

    def _only_operand(self, equation: Equation) -> Value | None:
        """Return the only operand of an elementwise equation or a view, apart from equal elements; else None."""
        if not (equation.op.is_elementwise or equation.op.fusion.is_view):
            return None
        operands = {value for value in equation.inputs if not self._has_equal_elements(value)}
        return operands.pop() if len(operands) == 1 else None

    def _has_equal_elements(self, value: Value) -> bool:
        """Return whether a value is a constant, or a scalar that is broadcast."""
        producer = self._producers.get(value)
        if producer is not None and producer.op.name == "broadcast":
            value = producer.inputs[0]
        return value.type.size == 1 or (producer is not None and isinstance(producer.op, Full))

    def _is_read_by_library(self, value: Value, examiner: Value) -> bool:
        """Return whether a library reads a value, or an elementwise result of it."""
        for use in self._consumers(value, examiner):
            if self._only_operand(use) is value:
                if self._is_read_by_library(use.outputs[0], examiner):
                    return True
            elif not self._fuses(use) and not (self.chip is not None and is_triton_product(use, self.chip)):
                return True
        return False

    def _consumers(self, value: Value, examiner: Value) -> list[Equation]:
        """Return the consumers of a value and its views; empty if the value or a view is a program output.

        Args:
            value: the value.
            examiner: the value whose storage depends on this.
        """
        if value is not examiner:
            self._add_examiner(value, examiner)
        if self.platform == "cpu":
            return [] if value in self.outputs else self._consumers_on_cpu(value)
        uses = [] if value in self.outputs else self.uses.get(value, [])
        if len(uses) == 1 and not uses[0].op.fusion.is_view:  # most values
            return uses
        consumers: list[Equation] = []
        for use in uses:
            if not use.op.fusion.is_view:
                consumers.append(use)
            elif further := self._consumers(use.outputs[0], examiner):
                consumers += further
            else:
                return []
        return consumers

    def _consumers_on_cpu(self, value: Value) -> list[Equation]:
        """Return the consumers of a value, and those of the consumers that are computed again in their own consumers.

        XLA computes a view of a fused expression in a kernel of its own, so views are consumers.
        """
        if value in self._known_consumers:
            return self._known_consumers[value]
        uses = self.uses.get(value, [])
        consumers = dict.fromkeys(use for use in uses if use not in self.recomputed)
        for use in uses:
            if use in self.recomputed:
                consumers.update(dict.fromkeys(self._consumers_on_cpu(use.outputs[0])))
            elif use in self.duplicated:
                again = self._consumers_on_cpu(use.outputs[0])
                consumers.update(dict.fromkeys(other for other in again if self._fuses_on_cpu(other)))
        self._known_consumers[value] = list(consumers)[: _MAX_MEETING + 1]
        return self._known_consumers[value]

    def _is_stored_for_orders(self, equation: Equation) -> bool:
        """Return whether XLA stores a result that one kernel reads in several orders, and does not compute it for each.

        It does so with padded arrays, and with expensive ops that read more elements than their result has.
        """
        return not self._is_cheap(equation) and (isinstance(equation.op, Pad) or not self._reads_few(equation))

    def _is_permuted(self, value: Value) -> bool:
        """Return whether consumers read a value in several orders, such as two slices of it."""
        uses = self.uses.get(value, ())
        if len(uses) > 1:
            return any(self._is_moved(use) for use in uses)
        return len(uses) == 1 and uses[0] in self.recomputed and self._is_permuted(uses[0].outputs[0])

    def _is_moved(self, equation: Equation) -> bool:
        """Return whether the consumers that compute an equation read its operand in another order than its own."""
        if equation not in self.recomputed:
            return False
        moves = equation.op.only_moves and not equation.op.fusion.is_view
        return moves or any(self._is_moved(use) for use in self.uses[equation.outputs[0]])

    def _fuses_on_cpu(self, equation: Equation) -> bool:
        return equation not in self.calls and self._fuses(equation)

    def _is_broadcast(self, value: Value) -> bool:
        producer = self._producers.get(value)
        if producer is None or producer in self.calls:
            return False
        return producer.op.is_constant or producer.op.name in ("broadcast", "iota")

    def _find_accumulations(self) -> dict[Equation, Value]:
        """Return the additions whose other operand XLA updates, unless that is the result of a scatter, too."""
        accumulations: dict[Equation, Value] = {}
        scattered: set[Value] = set()
        for equation in self.program.equations:
            if isinstance(equation.op, Scatter):
                scattered.update(equation.outputs)
            if equation.op.name == "add":
                for value, other in (equation.inputs, equation.inputs[::-1]):
                    if other not in scattered and value is not other and self._is_accumulated(value):
                        accumulations[equation] = other
                        scattered.update(equation.outputs)
                        break
        return accumulations

    @cached_property
    def accumulated(self) -> frozenset[Equation]:
        """The scatters into zeros that XLA computes as scatters into the value to which their result is added."""
        additions = self._find_accumulations().items()
        return frozenset(
            self._producers[value] for equation, other in additions for value in equation.inputs if value is not other
        )

    def _is_scattered_later(self, equation: Equation) -> bool:
        """Return whether an equation scatters into zeros, and XLA scatters into the value to which they are added."""
        if not self.accumulations or not isinstance(equation.op, Scatter):
            return False
        (value,) = equation.outputs
        return any(self.accumulations.get(use, value) is not value for use in self.uses.get(value, ()))

    def _is_accumulated(self, value: Value) -> bool:
        """Return whether a value is scattered into zeros by addition, and read once."""
        scatter = self._producers.get(value)
        if scatter is None or not isinstance(scatter.op, Scatter) or scatter.op.combine is not SUM:
            return False
        zeros = self._producers.get(scatter.inputs[0])
        is_zero = zeros is not None and isinstance(zeros.op, Full) and zeros.op.is_zero
        return is_zero and len(self.uses.get(value, ())) == 1 and value not in self.outputs

    def _find_widened(self) -> dict[Value, Value]:
        """Return the narrow results of contractions that XLA computes in f32 and does not round. See `widened`."""
        widened = {}
        for equation in self.program.equations:
            for value in equation.outputs if equation.op.is_contraction and equation not in self.calls else ():
                results = [use.outputs[0] for use in self.uses.get(value, ()) if use.op.name == "convert"]
                is_only_converted = results and len(results) == len(self.uses[value]) and value not in self.outputs
                if _is_narrow(value) and is_only_converted and all(x.type.dtype == np.float32 for x in results):
                    widened[value] = results[0]
        return widened

    def _find_reshaped(self) -> dict[Equation, list[Value]]:
        """Return the operands that XLA computes again as matrices, and stores for other consumers. See `reshaped`."""
        reshaped: dict[Equation, list[Value]] = {}
        for equation in self.program.equations:
            if not equation.op.is_product or equation in self.calls or is_outer_product(equation):
                continue
            for side, value in enumerate(equation.inputs):
                producer = self._producers.get(value)
                if producer is None or not self._recomputes(producer) or is_matrix(equation, side):
                    continue
                if any(not self._is_product(use) and not self._fuses_on_cpu(use) for use in self.uses[value]):
                    reshaped.setdefault(equation, []).append(value)
        return reshaped

    def is_copied_again(self, value: Value) -> bool:
        """Return whether XLA computes a value again for each copy that a product reads, instead of copying it."""
        producer = self._producers.get(value) if self.platform == "cpu" else None
        if producer is None or value in self.outputs or not self._is_cheap(producer):
            return False
        uses = self.uses.get(value, [])
        return self._recomputes(producer) or all(self._is_product(use) or self._fuses_on_cpu(use) for use in uses)

    def _is_product(self, equation: Equation) -> bool:
        """Return whether an equation is a product, or a transpose that only products read."""
        return equation.op.is_product or equation in self.folded

    def is_column_major(self, value: Value) -> bool:
        """Return whether LAPACK can read a value as it is stored on CPU: its matrices are stored column by column."""
        if value in self.column_major or min(value.type.shape[-2:]) == 1:
            return True
        producer = self._producers.get(value)
        return producer is not None and value in self.storage and _swaps_matrix_dims(producer)

    def is_reversed(self, value: Value) -> bool:
        """Return whether an equation reverses a value, which may be transposed then."""
        producer = self._producers.get(value)
        if producer is not None and isinstance(producer.op, (Transpose, Reshape)):
            return self.is_reversed(producer.inputs[0])
        return producer is not None and isinstance(producer.op, Reverse)

    def is_scattered(self, value: Value) -> bool:
        """Return whether a scatter reads a value as updates. On CPU, XLA computes them in the shape of the windows."""
        return any(
            self.is_scattered(use.outputs[0]) if use.op.fusion.is_view else _fuses_update(use, value)
            for use in self.uses.get(value, ())
        )

    def is_flattened(self, value: Value) -> bool:
        """Return whether only products read a value from memory, as matrices of another shape. CPUs store those."""
        is_computed_again = self._producers.get(value) in self.duplicated
        uses = [use for use in self.uses.get(value, ()) if not (is_computed_again and self._fuses_on_cpu(use))]
        return (
            bool(uses)
            and value not in self.outputs
            and all(use.op.is_product and not is_matrix(use, use.inputs.index(value)) for use in uses)
        )

    @cached_property
    def _producers(self) -> dict[Value, Equation]:
        return {value: equation for equation in self.program.equations for value in equation.outputs}

    def _find_column_major(self) -> set[Value]:
        """Return results of LAPACK, their views, and elementwise results of these that LAPACK reads."""
        values: set[Value] = set()
        for equation in self.program.equations:
            op = equation.op
            if isinstance(op, BatchedMatrixOp):
                if not op.loops_on_cpu(*[value.type for value in equation.inputs]):
                    values.update([value for value in equation.outputs if _true_rank(value) > 1])
            elif (op.is_elementwise or op.fusion.is_view) and not values.isdisjoint(equation.inputs):
                (value,) = equation.outputs
                uses = self.uses.get(value, ())
                if op.fusion.is_view or any(isinstance(use.op, BatchedMatrixOp) for use in uses):
                    values.add(value)
        return values

    def _is_duplicated(self, equation: Equation) -> bool:
        """Return whether XLA computes a result again in the consumers that fuse, and stores it for the others.

        It does so for constants, and for cheap ops if that reads no more elements.
        """
        is_constant = equation.op.is_constant and equation.outputs[0].type.size > 1
        if not is_constant and not self._recomputes(equation):
            return False
        (value,) = equation.outputs
        fusing = [self._fuses_on_cpu(use) for use in self.uses.get(value, [])]
        return any(fusing) and not (all(fusing) and value not in self.outputs)

    def _is_recomputed(self, equation: Equation) -> bool:
        """Return whether an equation is cheap, and XLA computes it in each of its consumers.

        If that reads more elements than the result has, all paths to the consumers must be fused, too.
        """
        uses = self.uses.get(equation.outputs[0], ()) if len(equation.outputs) == 1 else ()
        if not uses or equation.outputs[0] in self.outputs or not self._is_cheap(equation):
            return False
        if not all(self._fuses_on_cpu(use) for use in uses):
            return False
        if self._recomputes(equation):
            return True
        bit = 1 << self._positions[equation]
        return not any(self._separated[use] & bit for use in uses)

    @cached_property
    def _separated(self) -> dict[Equation, int]:
        """For each equation, the set of those from which some path to it is not fused, as bits."""
        ancestors: dict[Equation, int] = {}
        separated: dict[Equation, int] = {}
        for position, equation in enumerate(self.program.equations):
            all_bits, bits, fuses = 1 << position, 0, self._fuses_on_cpu(equation)
            for value in equation.inputs:
                producer = self._producers.get(value)
                if producer is not None:
                    is_fused = fuses and self._fuses_on_cpu(producer)
                    bits |= separated[producer] if is_fused else ancestors[producer]
                    all_bits |= ancestors[producer]
            ancestors[equation], separated[equation] = all_bits, bits
        return separated

    def _is_cheap(self, equation: Equation) -> bool:
        """Return whether an equation can be fused, and XLA computes it again for several consumers."""
        op, (value, *rest) = equation.op, equation.outputs
        if rest or op.is_constant or not self._fuses_on_cpu(equation):
            return False
        if _is_narrow(value):  # rounding is expensive
            return False
        if op.name == "div" and self._is_broadcast(equation.inputs[1]):
            return True  # a multiplication, if the divisor is a constant
        return op.fusion.duplicates in ("cheap", "on CPU", "always") or (op.is_product and is_outer_product(equation))

    def _recomputes(self, equation: Equation) -> bool:
        """Return whether an op is cheap, and computing it again reads no more elements than its result has."""
        return self._is_cheap(equation) and self._reads_few(equation)

    def _reads_few(self, equation: Equation) -> bool:
        """Return whether an equation reads no more elements than its result has, or one large operand."""
        (value,) = equation.outputs
        rank = _true_rank(value)
        large = [x for x in equation.inputs if _true_rank(x) >= rank and not self._is_broadcast(x)]
        return len(large) <= 1 or sum(x.type.size for x in set(equation.inputs)) <= value.type.size

    def _add_examiner(self, value: Value, examiner: Value) -> None:
        known = self.examiners.get(value, ())
        if examiner not in known:
            self.examiners[value] = (*known, examiner)


def _is_narrow(value: Value) -> bool:
    return is_float(value.type.dtype) and value.type.dtype.itemsize == 2


def _true_rank(value: Value) -> int:
    """Return the number of dims that are larger than one."""
    return sum(size > 1 for size in value.type.shape)


def _swaps_matrix_dims(equation: Equation) -> bool:
    """Return whether an equation transposes matrices in the last two dims."""
    if not isinstance(equation.op, Transpose):
        return False
    *batch, row, column = equation.op.permutation
    return [*batch, column, row] == list(range(len(equation.op.permutation)))


def _is_fused_concatenation(equation: Equation) -> bool:
    """Return whether XLA fuses a concatenation on CPU.

    It copies many operands, and rows that are concatenated in the innermost loop, with a kernel of their own.
    """
    (result,) = equation.outputs
    is_minor = equation.op == Concatenate(result.type.ndim - 1)
    return len(equation.inputs) <= _MAX_CONCATENATED and not (is_minor and result.type.shape[-1] >= _LONG_ROW)


def _fuses_update(use: Equation, value: Value) -> bool:
    """Return whether an equation that writes an update in place can compute it in its own kernel."""
    fusion = use.op.fusion
    return fusion.fuses_updates and [p for p, x in enumerate(use.inputs) if x is value] == [fusion.updates]


def _bytes_of_part(equation: Equation) -> int:
    """Return the bytes that an equation reads of an operand of which it reads a part, or which it updates."""
    if equation.op.fusion.reads_part:
        return min(equation.inputs[0].type.nbytes, equation.outputs[0].type.nbytes)
    return 0


def is_complete_per_row(equation: Equation) -> bool:
    """Return whether each row of the results is complete in its kernel: reductions are along the minor dims only."""
    dims = equation.op.reduced_dims
    if dims is None:
        return True
    rank = equation.inputs[0].type.ndim
    return sorted(dims) == list(range(rank - len(dims), rank))
