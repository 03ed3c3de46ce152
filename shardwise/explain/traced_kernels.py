"""The kernels of one run in a profile, each with its work: a product, attention, a collective, or memory traffic.

The time of a kernel is from its start to the start of the next, so that the times of a run without collectives add up
to the time of the run. Kernels of collectives run beside the others; their times are their durations, and idle time
beside them belongs to no kernel.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import final

from shardwise.compiler.plan.chip import Chip
from shardwise.explain.device_trace import DeviceEvent, DeviceRun, ProgramTrace
from shardwise.explain.hlo_kernels import HloKernels, Work
from shardwise.explain.hlo_module import WITHOUT_FORMULA, Collective
from shardwise.explain.kernel_attribution import Launch, attribute
from shardwise.runtime.hlo_instructions import is_collective_opcode


@final
@dataclass(frozen=True)
class TracedKernel:
    """The kernels of one execution of an HLO instruction.

    Attributes:
        name: the name of the instruction; if it is unknown, that of the kernel.
        start: seconds from an arbitrary time.
        busy: the time from the start of the first kernel to the end of the last.
        seconds: `busy`, and the idle time that follows, unless a collective runs meanwhile.
        launch: the instruction; None if it is unknown.
        work: what it computes.
        collective: the collective that it is; None if it is none, or sends nothing.
    """

    name: str
    start: float
    busy: float
    seconds: float
    launch: Launch | None = field(repr=False)
    work: Work
    collective: Collective | None = None

    @property
    def end(self) -> float:
        """The time of its end."""
        return self.start + self.busy

    @property
    def is_collective(self) -> bool:
        """Whether it is a collective, also one that sends nothing."""
        return self.launch is not None and is_collective_opcode(self.launch.instruction.opcode)

    def predicted_seconds(self, chip: Chip) -> float:
        """Return its time by the cost model of a chip; 0 if the instruction is unknown."""
        if self.collective is not None:
            return chip.ring_of(self.collective.devices).time(self.collective.traffic)
        return 0.0 if self.is_collective else self.work.seconds(chip)


def traced_kernels(program: ProgramTrace, run: DeviceRun, chip: Chip) -> list[TracedKernel]:
    """Return the kernels of a run, by start. `chip` is any chip: no time depends on it."""
    reader = HloKernels(program.module.computations, chip)
    kernels = []
    for launch, events in _executions(program, run):
        start, end = events[0].start, max(event.end for event in events)
        name = events[0].kernel if launch is None else launch.instruction.name
        work = Work() if launch is None else reader.work(launch.instruction, launch.scope)
        collective = None if launch is None else _collective(program, launch)
        kernels.append(TracedKernel(name, start, end - start, end - start, launch, work, collective))
    communication = [(kernel.start, kernel.end) for kernel in kernels if kernel.is_collective]
    computing = [index for index, kernel in enumerate(kernels) if not kernel.is_collective]
    for index, following in pairwise(computing):
        kernel, next_start = kernels[index], kernels[following].start
        if not any(start < next_start and end > kernel.end for start, end in communication):
            kernels[index] = replace(kernel, seconds=next_start - kernel.start)
    return kernels


def _collective(program: ProgramTrace, launch: Launch) -> Collective | None:
    """Return the collective that an instruction is; None if it is none, or if there is no formula for its bytes."""
    if launch.instruction.opcode.removesuffix("-start") in WITHOUT_FORMULA:
        return None
    return program.module.collective(launch.instruction)


def _executions(program: ProgramTrace, run: DeviceRun) -> Iterator[tuple[Launch | None, list[DeviceEvent]]]:
    """Yield the instructions of a run with the events of one execution, in which a kernel occurs once."""
    before: Launch | None = None
    events: list[DeviceEvent] = []
    kernels: set[tuple[int, str]] = set()
    for event, launch in zip(run.events, attribute(run.events, program.module), strict=True):
        kernel = event.node, event.kernel
        if events and (launch is None or launch != before or kernel in kernels):
            yield before, events
            events, kernels = [], set()
        before = launch
        events.append(event)
        kernels.add(kernel)
    yield before, events
