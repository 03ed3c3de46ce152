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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.shape.constants import Full
from shardwise.compiler.ops.shape.movement import Transpose
from shardwise.compiler.partition.fused_expressions import FusedExpressions, Reads, Root, is_complete_per_row
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.shardings.mesh import AbstractMesh

_LOOKBACK = 64  # the number of preceding kernels that an equation may join


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

    @cached_property
    def bytes_accessed(self) -> int:
        """The bytes of memory traffic, once all equations are known."""
        return sum(self.reads.values()) + sum(self.writes.values())


@final
@dataclass(frozen=True, eq=False)
class KernelGroups:
    """The kernels of a program.

    Attributes:
        expressions: the expressions that the kernels compute.
    """

    expressions: FusedExpressions

    @property
    def program(self) -> Program:
        """The program."""
        return self.expressions.program

    @cached_property
    def kernels(self) -> Sequence[Kernel]:
        """The kernels in order. A control op is a kernel; its programs are grouped on their own."""
        return _Grouping(self.expressions).kernels()

    @property
    def storage(self) -> Mapping[Value, Value]:
        """For each value that shares the memory of another, that other value."""
        return self.expressions.storage

    def rewritten(self, program: Program) -> "KernelGroups":
        """Return the kernels of a program with some equations of this one: faster than `group_kernels`, and equal."""
        return KernelGroups(self.expressions.rewritten(program))

    @cached_property
    def unstored(self) -> frozenset[Value]:
        """The values that are never in memory.

        These are intermediate values of kernels, and values such as masks that are cheap to compute from constants,
        which every consumer recomputes.
        """
        equations, outputs = self.program.equations, set(self.program.outputs)
        written = {value for kernel in self.kernels for value in kernel.writes}
        constant: set[Value] = set()
        uniform: set[Value] = set()  # constants of equal elements, which XLA creates in loops
        for equation in equations:
            if isinstance(equation.op, Full) or (equation.inputs and uniform.issuperset(equation.inputs)):
                uniform.update(equation.outputs)
            if equation.op.cheap_to_recompute and constant.issuperset(equation.inputs):
                constant.update(equation.outputs)
        for equation in equations:
            if self.expressions.platform == "cpu" and equation.op.programs and equation.op.trip_count != 1:
                constant.difference_update(value for value in equation.inputs if value not in uniform)
            if equation.op.is_contraction:  # its library reads constants from memory, too
                constant.difference_update(self.storage.get(value, value) for value in equation.inputs)
            elif equation.op.fusion.stores_updated and not self._is_added(equation):
                constant.discard(self.storage.get(equation.inputs[0], equation.inputs[0]))
        constant -= self.expressions.reduced
        results = {value for equation in equations for value in equation.outputs}
        return frozenset((results - written | constant) - self.storage.keys() - outputs)

    def _is_added(self, equation: Equation) -> bool:
        """Return whether a result is only added to another value. XLA then scatters into that value."""
        if self.expressions.platform == "cpu":
            return equation.outputs[0] in self.expressions.fused
        uses = self.expressions.uses.get(equation.outputs[0], [])
        return len(uses) == 1 and uses[0].op.name == "add" and equation.outputs[0] not in self.program.outputs


def group_kernels(program: Program, mesh: AbstractMesh, platform: str = "", chip: Chip | None = None) -> KernelGroups:
    """Return the kernels of a program that runs on each device of a mesh.

    Args:
        program: the program.
        mesh: the mesh.
        platform: "cpu" or "gpu" for the values that XLA stores there. By default, kernels are those of the model of
            memory traffic, with which the fractions of chips were fitted.
        chip: the GPU, if XLA may compute products with kernels of its own (`triton_chip`).
    """
    return KernelGroups(FusedExpressions.from_program(program, mesh, platform, chip))


@final
class _Grouping:
    """One pass over a program, which groups its roots.

    Attributes:
        producer: for stored values, the index of their kernel.
        complete: results that are available only after their kernel.
        grouped: the kernels so far.
        added: the roots so far.
        joinable: the indices of kernels that an equation may join, by the shape that they loop over.
    """

    def __init__(self, expressions: FusedExpressions):
        self.expressions = expressions
        self.producer: dict[Value, int] = {}
        self.complete: set[Value] = set()
        self.grouped: list[Kernel] = []
        self.added: list[Equation] = []
        self.joinable: dict[tuple[int, ...], list[int]] = {}

    def kernels(self) -> list[Kernel]:
        program, roots = self.expressions.program, self.expressions.roots
        for equation in program.equations:
            root = roots.get(equation)
            if root is not None:
                self._add(equation, root)
            elif equation.op.fusion.is_barrier:
                self.complete.update(equation.outputs)
        storage = self.expressions.storage
        stored = {storage.get(value, value) for value in program.outputs}
        stored.update(*[kernel.reads for kernel in self.grouped])
        for equation in self.added:
            # XLA sorts all operands in memory on CPU, also those whose order nothing reads.
            stores_all = self.expressions.platform == "cpu" and equation.op.fusion.overwrites
            for value in equation.outputs:
                if value in stored or stores_all:
                    self.grouped[self.producer[value]].writes[value] = _bytes_written(equation, value)
        return self.grouped

    def _add(self, equation: Equation, root: Root) -> None:
        launch = equation.op.launch
        if root.fuses:
            self._fuse(equation, root)
        elif launch is not None and self.grouped and self.grouped[-1].root.op.launch == launch:
            kernel = self.grouped[-1]
            kernel.equations.append(equation)
            kernel.reads.update(root.reads)
            self._record(equation, len(self.grouped) - 1)
        else:
            self._start(equation, root)

    def _fuse(self, equation: Equation, root: Root) -> None:
        loop = _loop_shape(equation)
        number = None if self.expressions.platform == "cpu" else self._kernel_to_join(equation, root.reads, loop)
        if number is not None and self.expressions.platform == "gpu" and self._transposes_result(root, number):
            number = None
        if number is None:
            self.joinable.setdefault(loop, []).append(len(self.grouped))
            self._start(equation, root)
            return
        kernel = self.grouped[number]
        kernel.root = equation
        known = set(kernel.equations)
        kernel.equations += [member for member in root.members if member not in known]
        for value, count in root.reads.items():
            if self.producer.get(value) != number:
                kernel.reads[value] = max(count, kernel.reads.get(value, 0))
        self._record(equation, number)

    def _transposes_result(self, root: Root, number: int) -> bool:
        """Return whether an expression reads a result of a kernel in another order, for which that must be stored."""
        return any(
            isinstance(member.op, Transpose) and self.producer.get(member.inputs[0]) == number
            for member in root.members
        )

    def _start(self, equation: Equation, root: Root) -> None:
        self.grouped.append(Kernel(equation, list(root.members), dict(root.reads), {}))
        self._record(equation, len(self.grouped) - 1)

    def _record(self, equation: Equation, number: int) -> None:
        self.added.append(equation)
        for value in equation.outputs:
            self.producer[value] = number
        if not is_complete_per_row(equation):
            self.complete.update(equation.outputs)

    def _kernel_to_join(self, equation: Equation, reads: Reads, loop: tuple[int, ...]) -> int | None:
        """Return the index of the latest kernel that an equation can join."""
        candidates = self.joinable.get(loop)
        if candidates is None:
            return None
        ready = max([self.producer.get(value, -1) for value in reads], default=-1)
        first = max(ready, len(self.grouped) - _LOOKBACK)
        shareable: set[Value] | None = None
        for index in reversed(candidates):
            if index < first:
                return None
            if index == ready:
                if self.complete.isdisjoint(reads) and self.complete.isdisjoint(equation.inputs):
                    return index
            else:
                if shareable is None:
                    shareable = {value for value in reads if _without_ones(value.type.shape) == loop}
                if not shareable.isdisjoint(self.grouped[index].reads):
                    return index
        return None


def _bytes_written(equation: Equation, value: Value) -> int:
    updates = equation.op.fusion.updates
    return value.type.nbytes if updates is None else equation.inputs[updates].type.nbytes


def _loop_shape(equation: Equation) -> tuple[int, ...]:
    """Return the shape that the kernel of an equation loops over, without dims of size one."""
    value = equation.outputs[0] if equation.op.reduced_dims is None else equation.inputs[0]
    return _without_ones(value.type.shape)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([size for size in shape if size != 1]) if 1 in shape else shape
