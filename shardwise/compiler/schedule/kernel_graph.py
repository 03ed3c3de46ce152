"""KernelGraph: the kernels of one program with their times and dependencies, as the schedule reads them."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import accumulate, pairwise
from operator import or_
from typing import final

from shardwise.compiler.ir.issue_groups import issue_groups
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.partition.kernels import Kernel
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
    """

    local: LocalProgram
    program: Program
    chip: Chip

    @cached_property
    def kernels(self) -> Sequence[Kernel]:
        return self.local.kernel_groups(self.program).kernels

    @cached_property
    def starts(self) -> list[float]:
        """The time at which each kernel starts, and the time of the end."""
        return list(accumulate((self._compute_seconds(kernel) for kernel in self.kernels), initial=0.0))

    @property
    def seconds(self) -> float:
        """The time of all kernels."""
        return self.starts[-1]

    @cached_property
    def number_of(self) -> dict[Equation, int]:
        """The number of the first kernel of each equation: some are computed in several."""
        numbers: dict[Equation, int] = {}
        for number, kernel in enumerate(self.kernels):
            for equation in kernel.equations:
                numbers.setdefault(equation, number)
        return numbers

    @cached_property
    def available(self) -> dict[Value, float]:
        """The time at which each value could exist.

        Short kernels that need only arguments, as the cast of a weight does, could run at any time; other kernels run
        in program order. A value that passes through a barrier waits for all that passes through it.
        """
        times = dict.fromkeys(self.program.inputs, 0.0)
        moved = set(self.program.inputs)  # arguments, and what short kernels compute of them
        for group in self.groups:
            ready = max((times[value] for equation in group for value in equation.inputs), default=0.0)
            for equation in group:
                is_moved = equation in self.movable and moved.issuperset(equation.inputs)
                if is_moved:
                    moved.update(equation.outputs)
                has_place = not is_moved and equation in self.number_of
                time = self.starts[self.number_of[equation] + 1] if has_place else ready
                times.update(dict.fromkeys(equation.outputs, time))
        return times

    @cached_property
    def earliest(self) -> dict[Value, float]:
        """The time at which each value could exist, if short kernels and collectives ran as soon as they can."""
        times = dict.fromkeys(self.program.inputs, 0.0)
        for group in self.groups:
            ready = max((times[value] for equation in group for value in equation.inputs), default=0.0)
            for equation in group:
                if equation in self.movable:
                    time = ready
                elif equation in self.bits:
                    time = ready + self.local.collective_seconds(equation, self.chip)
                else:
                    time = self.starts[self.number_of[equation] + 1]
                times.update(dict.fromkeys(equation.outputs, time))
        return times

    @cached_property
    def needed(self) -> dict[Value, float]:
        """The time at which each value is first read by a kernel; results of the program are needed at its end."""
        times = {value: self.seconds for value in self.program.values()}
        for group in reversed(self.groups):
            passed_on = min((times[value] for equation in group for value in equation.outputs), default=self.seconds)
            for equation in group:
                number = self.number_of.get(equation)
                time = passed_on if number is None else self.starts[number]
                for value in equation.inputs:
                    times[value] = min(times[value], time)
        return times

    @cached_property
    def latest(self) -> dict[Value, float]:
        """The time at which each value must exist, if short kernels and collectives ran as late as they can."""
        times = {value: self.seconds for value in self.program.values()}
        for group in reversed(self.groups):
            passed_on = min((times[value] for equation in group for value in equation.outputs), default=self.seconds)
            for equation in group:
                if equation in self.bits:
                    time = passed_on - self.local.collective_seconds(equation, self.chip)
                elif equation in self.movable:
                    time = passed_on
                else:
                    time = self.starts[self.number_of[equation]]
                for value in equation.inputs:
                    times[value] = min(times[value], time)
        return times

    def start_of(self, equation: Equation) -> float:
        """Return when the kernel of an equation starts; infinity if it is in none, such as a view."""
        number = self.number_of.get(equation)
        return math.inf if number is None else self.starts[number]

    def seconds_of(self, equation: Equation) -> float:
        """Return the time of the kernel of an equation."""
        number = self.number_of[equation]
        return self.starts[number + 1] - self.starts[number]

    @cached_property
    def collectives(self) -> list[Equation]:
        """The collectives of the program itself."""
        return [equation for equation in self.program.equations if self.local.bytes_sent(equation)]

    @cached_property
    def groups(self) -> list[list[Equation]]:
        """The equations that XLA receives as one op."""
        return list(issue_groups(self.program))

    @cached_property
    def movable(self) -> frozenset[Equation]:
        """The equations of short kernels, without effects, that could run earlier."""
        return frozenset(equation for equation in self.program.equations if is_movable(self.local, equation))

    @cached_property
    def bits(self) -> dict[Equation, int]:
        """The bit of each collective in a set of collectives."""
        return {equation: 1 << number for number, equation in enumerate(self.collectives)}

    @cached_property
    def needs(self) -> dict[Equation, int]:
        """The collectives that each collective needs, directly or not, as a set of bits."""
        behind = dict.fromkeys(self.program.inputs, 0)
        needs: dict[Equation, int] = {}
        for group in self.groups:
            needed = reduce(or_, (behind[value] for equation in group for value in equation.inputs), 0)
            for equation in group:
                if equation in self.bits:
                    needs[equation] = needed
                behind.update(dict.fromkeys(equation.outputs, needed | self.bits.get(equation, 0)))
        return needs

    @cached_property
    def urgent_equations(self) -> list[Equation]:
        """The collectives that are needed as soon as their operands are ready: others must not delay them."""
        return [equation for equation in self.collectives if self._is_urgent(equation)]

    @cached_property
    def urgent(self) -> list[float]:
        """The times of the urgent collectives."""
        return [self.starts[self.number_of[equation]] for equation in self.urgent_equations]

    def _is_urgent(self, equation: Equation) -> bool:
        ready = max(self.available[value] for value in equation.inputs)
        need = min(self.needed[value] for value in equation.outputs)
        return need - ready < self.local.collective_seconds(equation, self.chip)

    def longest_gap(self, start: float, end: float) -> float:
        """Return the longest time without an urgent collective, between two times."""
        inside = self.urgent[bisect_right(self.urgent, start) : bisect_left(self.urgent, end)]
        return max(after - before for before, after in pairwise((start, *inside, end)))

    def _compute_seconds(self, kernel: Kernel) -> float:
        """Return the seconds of all runs of a kernel, without collectives."""
        op = kernel.root.op
        if op.programs:
            inner = sum(KernelGraph(self.local, program, self.chip).seconds for program in op.programs)
            return inner * (1 if op.trip_count is None else op.trip_count)
        is_copy = op.reads_host_memory or op.writes_host_memory
        if self.local.bytes_sent(kernel.root) or not kernel.bytes_accessed or is_copy:
            return 0.0
        return kernel_seconds(self.local, kernel, self.chip)


def is_movable(local: LocalProgram, equation: Equation) -> bool:
    """Return whether an equation is part of a short kernel, without effects, that could run earlier."""
    op = equation.op
    return not (op.is_contraction or op.programs or op.effect or local.bytes_sent(equation))
