"""KernelGraph: the dependency graph of a program's kernels, with the times that the passes of the schedule read."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import final

from shardwise.compiler.ir.issue_groups import issue_groups
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.partition.kernels import Kernel, KernelGroups
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.report.kernel_times import kernel_seconds


@final
@dataclass(frozen=True, eq=False)
class KernelGraph:
    """The kernels of a program in program order.

    Times are seconds of compute from the start of the program, in which no kernel waits for a collective.

    Attributes:
        local: the program of one device, which contains `program`.
        program: the program.
        chip: the hardware that prices kernels.
        kernel_groups: the kernels, and what they compute.
        starts: the time at which each kernel starts, and the time of the end.
        kernel_index: the index of the first kernel of each equation: some are computed in several.
        collectives: the collectives of the program itself.
        movable: the equations of short kernels, without effects, that could run earlier.
        seconds_alone: the times of collectives that were computed so far, for this graph and those rewritten from it.
        known: whether an equation is a collective, or movable; else it is neither. It is shared as `seconds_alone` is.
    """

    local: LocalProgram
    program: Program
    chip: Chip
    kernel_groups: KernelGroups
    starts: Sequence[float]
    kernel_index: Mapping[Equation, int]
    collectives: Sequence[Equation]
    movable: frozenset[Equation]
    seconds_alone: dict[Equation, float]
    known: dict[Equation, str]

    @classmethod
    def from_program(cls, local: LocalProgram, program: Program, chip: Chip) -> "KernelGraph":
        """Return the graph of a program that `local` contains."""
        return cls._from_kernels(local, program, chip, local.kernel_groups(program), {}, {})

    @classmethod
    def _from_kernels(
        cls,
        local: LocalProgram,
        program: Program,
        chip: Chip,
        groups: KernelGroups,
        seconds_alone: dict[Equation, float],
        known: dict[Equation, str],
    ) -> "KernelGraph":
        seconds = (_compute_seconds(local, kernel, chip) for kernel in groups.kernels)
        kernels = list(enumerate(groups.kernels))
        indices = {equation: index for index, kernel in reversed(kernels) for equation in kernel.equations}
        collectives, movable = [], []
        for equation in program.equations:
            kind = known.get(equation)
            if kind is None:
                kind = "collective" if local.bytes_sent(equation) else "movable" if _is_short(equation) else "other"
                known[equation] = kind
            if kind == "movable":
                movable.append(equation)
            elif kind == "collective":
                collectives.append(equation)
        starts = list(accumulate(seconds, initial=0.0))
        return cls(local, program, chip, groups, starts, indices, collectives, frozenset(movable), seconds_alone, known)

    def rewritten(self, program: Program) -> "KernelGraph":
        """Return the graph of the program that a pass returned for this one; this graph if the pass changed nothing."""
        if program is self.program:
            return self
        groups = self.local.kernel_groups(program)
        return self._from_kernels(self.local, program, self.chip, groups, self.seconds_alone, self.known)

    def with_moved_views(self, program: Program) -> "KernelGraph":
        """Return the graph of the same equations in another order, in which only views have moved."""
        return self if program is self.program else replace(self, program=program)

    @property
    def kernels(self) -> Sequence[Kernel]:
        """The kernels."""
        return self.kernel_groups.kernels

    @property
    def uses(self) -> Mapping[Value, Sequence[Equation]]:
        """The equations that read each value."""
        return self.kernel_groups.expressions.uses

    @property
    def seconds(self) -> float:
        """The time of all kernels."""
        return self.starts[-1]

    @cached_property
    def ready_time(self) -> dict[Value, float]:
        """The time at which each value is ready in program order.

        Short kernels that depend only on arguments, such as the cast of a weight, could run at any time. A barrier
        waits for all its operands.
        """
        times = dict.fromkeys(self.program.inputs, 0.0)
        hoisted = set(self.program.inputs)  # arguments, and what short kernels compute from them
        movable, kernel_index, starts = self.movable, self.kernel_index, self.starts
        for group in self.groups:
            ready: float | None = None  # most equations are in kernels, whose times are known
            for equation in group:
                if equation in movable and hoisted.issuperset(equation.inputs):
                    hoisted.update(equation.outputs)
                    index = None
                else:
                    index = kernel_index.get(equation)
                if index is not None:
                    time = starts[index + 1]
                else:
                    if ready is None:
                        ready = max([times[value] for value in _inputs(group)], default=0.0)
                    time = ready
                for value in equation.outputs:
                    times[value] = time
        return times

    @cached_property
    def asap(self) -> dict[Value, float]:
        """The time at which each value is ready, if short kernels and collectives run as soon as possible."""
        bits, movable = self.bits, self.movable
        times = dict.fromkeys(self.program.inputs, 0.0)
        for group in self.groups:
            ready = max([times[value] for value in _inputs(group)], default=0.0)
            for equation in group:
                if equation in movable:
                    time = ready
                elif equation in bits:
                    time = ready + self.collective_seconds(equation)
                else:
                    time = self.starts[self.kernel_index[equation] + 1]
                for value in equation.outputs:
                    times[value] = time
        return times

    @cached_property
    def first_use(self) -> dict[Value, float]:
        """The time at which a kernel first reads each value; outputs of the program are used at its end."""
        end, kernel_index, starts = self.seconds, self.kernel_index, self.starts
        times = dict.fromkeys(self.program.values(), end)
        for group in reversed(self.groups):
            passed_on: float | None = None  # most equations are in kernels, whose times are known
            for equation in group:
                index = kernel_index.get(equation)
                if index is not None:
                    time = starts[index]
                else:
                    if passed_on is None:
                        passed_on = min([times[value] for value in _outputs(group)], default=end)
                    time = passed_on
                for value in equation.inputs:
                    times[value] = min(times[value], time)
        return times

    @cached_property
    def alap(self) -> dict[Value, float]:
        """The time at which each value must be ready, if short kernels and collectives run as late as possible."""
        end, bits, movable = self.seconds, self.bits, self.movable
        times = dict.fromkeys(self.program.values(), end)
        for group in reversed(self.groups):
            passed_on = min([times[value] for value in _outputs(group)], default=end)
            for equation in group:
                if equation in movable:
                    time = passed_on
                elif equation in bits:
                    time = passed_on - self.collective_seconds(equation)
                else:
                    time = self.starts[self.kernel_index[equation]]
                for value in equation.inputs:
                    times[value] = min(times[value], time)
        return times

    def start_of(self, equation: Equation) -> float:
        """Return when the kernel of an equation starts; infinity if it is in none, such as a view."""
        index = self.kernel_index.get(equation)
        return math.inf if index is None else self.starts[index]

    def seconds_of(self, equation: Equation) -> float:
        """Return the time of the kernel of an equation."""
        index = self.kernel_index[equation]
        return self.starts[index + 1] - self.starts[index]

    def collective_seconds(self, equation: Equation) -> float:
        """Return the time of a collective that runs once."""
        seconds = self.seconds_alone.get(equation)
        if seconds is None:
            seconds = self.seconds_alone[equation] = self.local.collective_seconds(equation, self.chip)
        return seconds

    def launch_seconds(self, launch: Sequence[Equation]) -> float:
        """Return the time of one launch of collectives."""
        if len(launch) == 1:
            return self.collective_seconds(launch[0])
        return self.local.launch_seconds(launch, self.chip)

    @cached_property
    def groups(self) -> list[list[Equation]]:
        """The equations that XLA receives as one op."""
        return list(issue_groups(self.program))

    @cached_property
    def bits(self) -> dict[Equation, int]:
        """The bit of each collective in a set of collectives."""
        return {equation: 1 << index for index, equation in enumerate(self.collectives)}

    @cached_property
    def ancestors(self) -> dict[Equation, int]:
        """The collectives that each collective depends on, directly or not, as a set of bits."""
        of_value = ancestor_bits(self.program, self.bits)
        return {collective: of_value[collective.outputs[0]] ^ bit for collective, bit in self.bits.items()}

    @cached_property
    def critical_collectives(self) -> list[Equation]:
        """The collectives without slack: they take longer than the time from their ready operands to the first use."""
        return [equation for equation in self.collectives if self._is_critical(equation)]

    @cached_property
    def critical_times(self) -> list[float]:
        """The times of the critical collectives."""
        return [self.starts[self.kernel_index[equation]] for equation in self.critical_collectives]

    def _is_critical(self, equation: Equation) -> bool:
        ready = max(self.ready_time[value] for value in equation.inputs)
        deadline = min(self.first_use[value] for value in equation.outputs)
        return deadline - ready < self.collective_seconds(equation)

    def longest_gap(self, start: float, end: float) -> float:
        """Return the longest time without a critical collective, between two times."""
        inside = self.critical_times[bisect_right(self.critical_times, start) : bisect_left(self.critical_times, end)]
        return max(after - before for before, after in pairwise((start, *inside, end)))


def ancestor_bits(program: Program, bits: Mapping[Equation, int]) -> dict[Value, int]:
    """Return which of the equations that have a bit each value depends on, directly or not, as a set of bits."""
    of_value = dict.fromkeys(program.inputs, 0)
    for group in issue_groups(program):
        of_group = 0
        for value in _inputs(group):
            of_group |= of_value[value]
        for equation in group:
            of_result = of_group | bits.get(equation, 0)
            for value in equation.outputs:
                of_value[value] = of_result
    return of_value


def _compute_seconds(local: LocalProgram, kernel: Kernel, chip: Chip) -> float:
    """Return the seconds of all runs of a kernel, without collectives."""
    op = kernel.root.op
    if op.programs:
        times = [
            sum(_compute_seconds(local, inner, chip) for inner in local.kernel_groups(program).kernels)
            for program in op.programs
        ]
        inner = max(times) if op.runs_one_program else sum(times)
        return inner * (1 if op.trip_count is None else op.trip_count)
    if not kernel.bytes_accessed or op.reads_host_memory or op.writes_host_memory or local.bytes_sent(kernel.root):
        return 0.0
    return kernel_seconds(local, kernel, chip)


def is_movable(local: LocalProgram, equation: Equation) -> bool:
    """Return whether an equation is part of a short kernel, without effects, that could run earlier."""
    return _is_short(equation) and not local.bytes_sent(equation)


def _is_short(equation: Equation) -> bool:
    op = equation.op
    return not (op.is_contraction or op.programs or op.effect)


def _inputs(group: Sequence[Equation]) -> Sequence[Value]:
    return group[0].inputs if len(group) == 1 else [value for equation in group for value in equation.inputs]


def _outputs(group: Sequence[Equation]) -> Sequence[Value]:
    return group[0].outputs if len(group) == 1 else [value for equation in group for value in equation.outputs]
