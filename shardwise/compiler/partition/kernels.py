"""kernels: group the equations of a program into kernels as XLA's fusion does, to count the memory traffic.

A matrix product, a collective or an indexed op is a kernel of its own; collectives of one launch are one kernel.
Elementwise ops, reductions and data movement are fused:

- A value with one consumer is computed inside that consumer, and one whose consumers all end in the same elementwise op
  inside that. Values that are cheaper to recompute than to store, such as broadcasts and casts, are computed inside
  each of their consumers.
- Any other result joins the kernel that computed one of its operands, or one that reads the same operand, if both loop
  over the same shape. The kernel then has several results.
- A reduction along the minor dims may be used by the same kernel, because one thread block has the entire row. A
  reduction along other dims is complete only after its kernel.

A kernel reads each of its operands once and writes the results that are used outside it. Reshapes share the memory of
their operand, as do transposes that only products read, and collectives along axes of size one.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import final

from shardwise.compiler.dtypes import is_float
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.shardings.mesh import AbstractMesh

_MAX_OPERANDS = 16  # of a fused expression; if it has more, an intermediate result is stored
_MAX_MEETING = 32  # the number of equations in which the consumers of a value must meet
_LOOKBACK = 64  # the number of preceding kernels that an equation may join

Reads = Mapping[Value, int]  # values in memory → bytes read


@final
@dataclass(eq=False)
class Kernel:
    """Equations that run as one kernel.

    Attributes:
        root: the equation that names the kernel: the last one that is not computed inside another.
        equations: all its equations.
        reads: the values that it reads from memory, with their bytes.
        writes: the values that it writes to memory, with their bytes.
    """

    root: Equation
    equations: list[Equation]
    reads: dict[Value, int]
    writes: dict[Value, int]

    @property
    def bytes_accessed(self) -> int:
        """The bytes of memory traffic."""
        return sum(self.reads.values()) + sum(self.writes.values())


@final
@dataclass(frozen=True, eq=False)
class KernelGroups:
    """The kernels of a program.

    Attributes:
        program: the program.
        kernels: the kernels in order. A control op is a kernel; its programs are grouped on their own.
        storage: for each value that shares the memory of another, that other value.
        reduced: on CPU, values that are stored because the library of reductions reads them.
    """

    program: Program
    kernels: Sequence[Kernel]
    storage: Mapping[Value, Value]
    reduced: Set[Value]

    @cached_property
    def unstored(self) -> frozenset[Value]:
        """The values that are never in memory.

        These are intermediate values of kernels, and values such as masks that are cheap to compute from constants,
        which every consumer recomputes.
        """
        equations, outputs = self.program.equations, set(self.program.outputs)
        written = {value for kernel in self.kernels for value in kernel.writes}
        constant: set[Value] = set()
        for equation in equations:
            if equation.op.cheap_to_recompute and constant.issuperset(equation.inputs):
                constant.update(equation.outputs)
        for equation in equations:
            if equation.op.is_contraction:  # its library reads constants from memory, too
                constant.difference_update(self.storage.get(value, value) for value in equation.inputs)
        constant -= self.reduced
        results = {value for equation in equations for value in equation.outputs}
        return frozenset((results - written | constant) - self.storage.keys() - outputs)


def group_kernels(program: Program, mesh: AbstractMesh, platform: str = "") -> KernelGroups:
    """Return the kernels of a program that runs on each device of a mesh.

    Args:
        program: the program.
        mesh: the mesh.
        platform: "cpu" or "gpu" for the values that XLA stores there. By default, kernels are those of the model of
            memory traffic, with which the fractions of chips were fitted.
    """
    grouping = _Grouping(program, mesh, platform)
    return KernelGroups(program, grouping.kernels(), grouping.storage, grouping.reduced)


@final
class _Grouping:
    """One pass over a program.

    Attributes:
        storage: for views, the value whose memory they share.
        fused: for values that are never stored, the memory reads of their computation.
        members: for values that are never stored, the equations that compute them.
        producer: for stored values, the index of their kernel.
        complete: results that are available only after their kernel.
        loops: for each kernel, the shape that it loops over; None if no equation can join it.
        reduced: on CPU, values that are stored because the library of reductions reads them.
        rows: for reductions of rows, also broadcast again, the value whose rows are reduced.
    """

    def __init__(self, program: Program, mesh: AbstractMesh, platform: str):
        self.platform = platform
        self.program = program
        self.mesh = mesh
        self.storage: dict[Value, Value] = {}
        self.fused: dict[Value, Reads] = {}
        self.members: dict[Value, list[Equation]] = {}
        self.producer: dict[Value, int] = {}
        self.complete: set[Value] = set()
        self.grouped: list[Kernel] = []
        self.loops: list[tuple[int, ...] | None] = []
        self.reduced: set[Value] = set()
        self.rows: dict[Value, Value] = {}
        self.outputs = set(program.outputs)
        self.uses: dict[Value, list[Equation]] = defaultdict(list)
        uses = self.uses
        for equation in program.equations:
            inputs = equation.inputs
            for value in inputs if len(inputs) <= 1 else dict.fromkeys(inputs):
                uses[value].append(equation)

    @cached_property
    def positions(self) -> dict[Equation, int]:
        """The position of each equation in the program."""
        return {equation: number for number, equation in enumerate(self.program.equations)}

    def kernels(self) -> list[Kernel]:
        for equation in self.program.equations:
            self._add(equation)
        stored = {value for kernel in self.grouped for value in kernel.reads}
        stored.update([self.storage.get(value, value) for value in self.outputs])
        fused = self.fused
        for kernel in self.grouped:
            writes = kernel.writes
            for equation in kernel.equations:
                for value in equation.outputs:
                    if value in stored and value not in fused:
                        writes[value] = _bytes_written(equation, value)
        return self.grouped

    def _add(self, equation: Equation) -> None:
        op = equation.op
        if self.platform:
            self._add_rows(equation)
        if op.is_constant and self._is_literal(equation):
            self.fused[equation.outputs[0]], self.members[equation.outputs[0]] = {}, [equation]
        elif op.fusion.is_barrier:
            self._share_storage(equation)
            self.complete.update(equation.outputs)
        elif self._is_view(equation):
            self._share_storage(equation)
        elif self._fuses(equation) and len(equation.outputs) == 1:
            self._fuse(equation)
        elif op.launch is not None and self.grouped and self.grouped[-1].root.op.launch == op.launch:
            self._join_launch(equation)
        else:
            self._start(equation, [equation], self._reads(equation), None)

    def _add_rows(self, equation: Equation) -> None:
        """Record the rows of a reduction, or of an equation that broadcasts the results of one again."""
        op, inputs = equation.op, equation.inputs
        if op.reduced_dims is not None and _is_complete_per_row(equation):
            self.rows[equation.outputs[0]] = inputs[0]
        elif len(inputs) == 1 and inputs[0] in self.rows and (op.only_moves or op.fusion.is_view):
            self.rows[equation.outputs[0]] = self.rows[inputs[0]]

    def _fuses(self, equation: Equation) -> bool:
        fusion = equation.op.fusion
        return fusion.fuses or (bool(self.platform) and fusion.is_indexed)

    def _is_view(self, equation: Equation) -> bool:
        fusion = equation.op.fusion
        if not (fusion.is_view or fusion.is_view_in_products or equation.op.removed_on_one_device):  # most equations
            return False
        if equation.inputs and equation.inputs[0] in self.fused:
            return False
        if fusion.is_view_in_products:
            uses = self.uses.get(equation.outputs[0], [])
            return bool(uses) and all(use.op.is_contraction for use in uses)
        return fusion.is_view or self._is_removed(equation)

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

    def _share_storage(self, equation: Equation) -> None:
        for operand, result in zip(equation.inputs, equation.outputs, strict=True):
            self.storage[result] = self.storage.get(operand, operand)

    def _fuse(self, equation: Equation) -> None:
        reads = self._reads(equation)
        inner = [self.members[value] for value in equation.inputs if value in self.members]
        if len(inner) > 1:
            members = [*dict.fromkeys(chain.from_iterable(inner)), equation]
        else:
            members = [*inner[0], equation] if inner else [equation]
        (result,) = equation.outputs
        if len(reads) <= _MAX_OPERANDS and self._is_inlined(equation, reads, members):
            self.fused[result], self.members[result] = reads, members
            return
        loop = _loop_shape(equation)
        number = None if self.platform == "cpu" else self._kernel_to_join(equation, reads, loop)
        if number is None:
            self._start(equation, members, reads, loop)
            return
        kernel = self.grouped[number]
        kernel.root = equation
        known = set(kernel.equations)
        kernel.equations += [member for member in members if member not in known]
        for value, count in reads.items():
            if self.producer.get(value) != number:
                kernel.reads[value] = max(count, kernel.reads.get(value, 0))
        self._record(equation, number)

    def _start(self, root: Equation, members: list[Equation], reads: Reads, loop: tuple[int, ...] | None) -> None:
        self.grouped.append(Kernel(root, members, dict(reads), {}))
        self.loops.append(loop)
        self._record(root, len(self.grouped) - 1)

    def _join_launch(self, equation: Equation) -> None:
        kernel = self.grouped[-1]
        kernel.equations.append(equation)
        kernel.reads.update(self._reads(equation))
        self._record(equation, len(self.grouped) - 1)

    def _record(self, root: Equation, number: int) -> None:
        self.producer.update(dict.fromkeys(root.outputs, number))
        if not _is_complete_per_row(root):
            self.complete.update(root.outputs)

    def _reads(self, equation: Equation) -> Reads:
        """Return the values that an equation reads from memory, through fused expressions and views."""
        reads: dict[Value, int] = {}
        storage = self.storage
        fusion = equation.op.fusion
        for position, value in enumerate(equation.inputs):
            operands = self.fused.get(value)
            if operands is None:
                home, count = storage.get(value, value), _bytes_read(equation, position)
                if count >= reads.get(home, 0):
                    reads[home] = count
            elif position == 0 and fusion.reads_part:
                most = _bytes_read(equation, position)
                for home, nbytes in operands.items():
                    count = min(nbytes, most)
                    if count >= reads.get(home, 0):
                        reads[home] = count
            elif reads:
                for home, count in operands.items():
                    if count >= reads.get(home, 0):
                        reads[home] = count
            else:
                reads.update(operands)
        return reads

    def _is_inlined(self, equation: Equation, reads: Reads, members: Sequence[Equation]) -> bool:
        """Return whether a result is computed inside its consumers and never stored."""
        (value,) = equation.outputs
        if equation.op.reduced_dims is not None:
            return False
        if self.platform and self._is_normalized(equation) and len(self.uses.get(value, ())) > 1:
            return False
        uses = self._consumers(value)
        if not uses:
            return False
        if self.platform == "cpu" and self._is_read_by_library(equation, uses):
            self.reduced.add(value)
            return False
        for use in uses:
            if not self._fuses(use) and not (self.platform == "gpu" and _fuses_update(use, value)):
                return False
        if len(uses) == 1 or equation.op.fusion.duplicates == "always" or self._meet(uses):
            return True
        if self.platform == "cpu" and is_float(value.type.dtype) and value.type.dtype.itemsize == 2:
            return False  # XLA computes narrow floats as f32, and rounds them once
        rereads = sum(count for count in reads.values() if count >= value.type.nbytes / 8)
        are_cheap = all(
            member.op.fusion.duplicates in ("cheap", "always", "on GPUs" if self.platform == "gpu" else "cheap")
            for member in members
            # Ops of few elements are cheap: they are computed once per row.
            if not self.platform or member.outputs[0].type.size >= value.type.size / 8
        )
        return are_cheap and rereads <= value.type.nbytes

    def _is_read_by_library(self, equation: Equation, uses: Sequence[Equation]) -> bool:
        """Return whether the kernel of a reduction on CPU reads the result of this equation from memory.

        The library of reductions computes arithmetic of floats itself. It reads values that are selected, compared or
        indexed, and constants that several kernels use.
        """
        if equation.op.is_constant and equation.outputs[0].type.size > 1:
            arithmetic = [use.outputs[0] for use in uses if _is_arithmetic(use)]
            return len(uses) > 1 and any(self._is_reduced(self._consumers(value)) for value in arithmetic)
        return (len(uses) > 1 or not _is_arithmetic(equation)) and self._is_reduced(uses)

    def _is_reduced(self, uses: Sequence[Equation]) -> bool:
        """Return whether one of these equations reduces a value, or passes it through arithmetic to a reduction."""
        pending = list(uses)
        for _ in range(_MAX_MEETING):
            if not pending:
                return False
            use = pending.pop()
            if use.op.reduced_dims is not None:
                return True
            if use.op.is_elementwise and _is_arithmetic(use):
                further = self._consumers(use.outputs[0])
                pending += further if len(further) == 1 else []
        return False

    def _meet(self, uses: Sequence[Equation]) -> bool:
        """Return whether elementwise equations lead from all of these to one equation, so that one kernel has them all.

        The gradient of an activation is an example: it uses an exponential twice, and multiplies a cotangent.
        """
        paths = {self.positions[use]: use for use in uses}
        for _ in range(_MAX_MEETING):
            equation = paths.pop(min(paths))
            if not equation.op.is_elementwise:
                return False
            if not paths:
                return True
            following = self._consumers(equation.outputs[0])
            if not following:
                return False
            paths.update((self.positions[use], use) for use in following)
        return False

    def _is_normalized(self, equation: Equation) -> bool:
        """Return whether an equation combines rows with their own reductions, as a softmax does.

        XLA computes it in a kernel with the reductions, and stores the result.
        """
        if len(equation.inputs) != 2:
            return False
        x, y = equation.inputs
        return self.rows.get(x) is y or self.rows.get(y) is x

    def _consumers(self, value: Value) -> list[Equation]:
        """Return the consumers of a value and its views; empty if the value or a view is a program output."""
        uses = [] if value in self.outputs else self.uses.get(value, [])
        if len(uses) == 1 and not uses[0].op.fusion.is_view:  # most values
            return uses
        consumers: list[Equation] = []
        for use in uses:
            if not use.op.fusion.is_view:
                consumers.append(use)
            elif further := self._consumers(use.outputs[0]):
                consumers += further
            else:
                return []
        return consumers

    def _kernel_to_join(self, equation: Equation, reads: Reads, loop: tuple[int, ...]) -> int | None:
        """Return the index of the latest kernel that an equation can join."""
        ready = max([self.producer.get(value, -1) for value in reads], default=-1)
        is_complete = not self.complete.isdisjoint((*reads, *equation.inputs))
        loops, shareable = self.loops, {value for value in reads if _without_ones(value.type.shape) == loop}
        for index in range(len(loops) - 1, max(ready, 0, len(loops) - _LOOKBACK) - 1, -1):
            if loops[index] != loop:
                continue
            if index == ready:
                if not is_complete:
                    return index
            elif not shareable.isdisjoint(self.grouped[index].reads):
                return index
        return None


def _is_arithmetic(equation: Equation) -> bool:
    """Return whether an equation is arithmetic of floats, or moves values."""
    values = (*equation.inputs, *equation.outputs)
    is_float_op = equation.op.is_elementwise and all(is_float(value.type.dtype) for value in values)
    return is_float_op or equation.op.only_moves or equation.op.fusion.is_view or equation.outputs[0].type.size == 1


def _fuses_update(use: Equation, value: Value) -> bool:
    """Return whether an equation that writes an update in place can compute it in its own kernel."""
    fusion = use.op.fusion
    return fusion.fuses_updates and [p for p, x in enumerate(use.inputs) if x is value] == [fusion.updates]


def _bytes_read(equation: Equation, position: int) -> int:
    """Return the bytes of an operand that an equation reads."""
    nbytes, fusion = equation.inputs[position].type.nbytes, equation.op.fusion
    if position == 0 and fusion.reads_part:
        return min(nbytes, equation.outputs[0].type.nbytes)
    return 0 if position == 0 and fusion.updates is not None else nbytes


def _bytes_written(equation: Equation, value: Value) -> int:
    updates = equation.op.fusion.updates
    return value.type.nbytes if updates is None else equation.inputs[updates].type.nbytes


def _loop_shape(equation: Equation) -> tuple[int, ...]:
    """Return the shape that the kernel of an equation loops over, without dims of size one."""
    value = equation.outputs[0] if equation.op.reduced_dims is None else equation.inputs[0]
    return _without_ones(value.type.shape)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([size for size in shape if size != 1]) if 1 in shape else shape


def _is_complete_per_row(equation: Equation) -> bool:
    """Return whether each row of the results is complete in its kernel: reductions are along the minor dims only."""
    dims = equation.op.reduced_dims
    if dims is None:
        return True
    rank = equation.inputs[0].type.ndim
    return sorted(dims) == list(range(rank - len(dims), rank))
