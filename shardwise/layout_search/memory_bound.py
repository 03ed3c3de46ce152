"""MemoryBound: the least bytes that a device holds, whatever the plan.

A scan over layers stacks the activations that its backward pass reads. While the backward pass runs, the devices hold
all these stacks, the gradients that it stacks, and the state that the step updates afterwards. No plan shards a stack
into more shards than there are devices. Layouts, or the entire variant of a step, need not be searched if this bound
exceeds the memory limit.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple, final

from shardwise.compiler.control.scan import Scan
from shardwise.compiler.ir.program import Program, Value
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh


@final
class MemoryBound(NamedTuple):
    """The arrays that are live while the scan with the largest ones runs.

    Attributes:
        arguments: the bytes of each input, all of which are live at the start.
        inputs: the inputs that are live while the scan runs.
        stacked_bytes: the bytes of the stacks that are live while the scan runs.
    """

    arguments: tuple[int, ...]
    inputs: tuple[int, ...] = ()
    stacked_bytes: int = 0

    @classmethod
    def from_program(cls, program: Program, donated: Collection[int] = ()) -> "MemoryBound":
        """Return the bound of a program.

        Args:
            program: the program.
            donated: the inputs that are not kept after their last use.
        """
        arguments = tuple(type.nbytes for type in program.in_types)
        last_reads = _last_reads(program)
        bounds = [cls(arguments)]
        for place, stacked_bytes in _live_stacks(program, last_reads):
            # An input that only the scan itself reads may be its carry, whose buffer is reused.
            live = [
                index
                for index, value in enumerate(program.inputs)
                if index not in donated or last_reads.get(value, -1) > place
            ]
            bounds.append(cls(arguments, tuple(live), stacked_bytes))
        return max(bounds, key=lambda bound: bound.bytes_on(1))

    def bytes_on(self, devices: int) -> float:
        """Return the least bytes per device, with any layouts of the inputs."""
        return self._largest([nbytes / devices for nbytes in self.arguments], devices)

    def bytes_with(self, mesh: AbstractMesh, layouts: Sequence[Layout]) -> float:
        """Return the least bytes per device, with these layouts of the inputs."""
        shards = [nbytes / mesh.extent(layout.axes) for nbytes, layout in zip(self.arguments, layouts, strict=True)]
        return self._largest(shards, mesh.device_count)

    def _largest(self, shards: Sequence[float], devices: int) -> float:
        """Return the larger of the bytes at the start and while the scan runs."""
        return max(sum(shards), sum(shards[index] for index in self.inputs) + self.stacked_bytes / devices)


def _last_reads(program: Program) -> dict[Value, int]:
    """Return the position of the last equation that reads each value; that after the last one for outputs."""
    last_reads = {value: place for place, equation in enumerate(program.equations) for value in equation.inputs}
    return {**last_reads, **dict.fromkeys(program.outputs, len(program.equations))}


def _live_stacks(program: Program, last_reads: dict[Value, int]) -> list[tuple[int, int]]:
    """Return the positions of the equations with nested programs, with the bytes of the stacks live while they run.

    Stacks are the results of earlier scans, of the equation itself, and of scans in the nested programs.
    """
    live: dict[Value, int] = {}  # the bytes of each stack
    rows = []
    for place, equation in enumerate(program.equations):
        live = {value: nbytes for value, nbytes in live.items() if last_reads.get(value, -1) >= place}
        if equation.op.programs:
            inner = max(
                (nbytes for body in equation.op.programs for _, nbytes in _live_stacks(body, _last_reads(body))),
                default=0,
            )
        if isinstance(equation.op, Scan) and equation.op.length > 1:  # its stacks are written in place
            live.update((value, value.type.nbytes) for value in equation.outputs[equation.op.carried :])
        if equation.op.programs:
            rows.append((place, inner + sum(live.values())))
    return rows
