"""Liveness: the bytes that one device holds while each kernel of a local program runs, as XLA assigns them.

XLA allocates the arguments and the results of a program before it runs. A donated argument and the result that reuses
its buffer are one allocation. All other values are temporaries, with the live ranges of `live_ranges.py`. A temporary
uses an allocation of a result or of a donated argument, if that is large enough and free during its live range; XLA
assigns the largest temporaries first. The others are in one heap, whose size is the most bytes that are live at once,
and the gaps between them.
Values in host memory are not counted.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple, final

import numpy as np

from shardwise.compiler.ir.program import NOWHERE, Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.partition.heap import Block, heap_bytes
from shardwise.compiler.partition.live_ranges import Buffer, Frame, Held, LiveRanges
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.partition.platform_memory import CPU, GPU, operand_copies, workspace_bytes
from shardwise.compiler.partition.product_options import triton_chip
from shardwise.compiler.plan.chip import Chip


class Level(NamedTuple):
    """A program, the position of its running equation, and the values that the program itself holds at that point.

    Attributes:
        program: the program.
        place: the position of the equation.
        live: the values.
        copied: the bytes of copies of values, for libraries, which are also among `live`.
    """

    program: Program
    place: int
    live: Mapping[Value, Held]
    copied: Mapping[Value, int] = MappingProxyType({})


def peak(local: LocalProgram, donated: Collection[int] = (), chip: Chip | None = None) -> tuple[int, list[Level]]:
    """Return the peak bytes of a device, and the stack of nested programs that run at the peak.

    The programs are those of `local`, so that a caller can rewrite them, and not those that XLA makes of them.

    Args:
        local: the program of one device.
        donated: the inputs whose buffers are reused for outputs.
        chip: the hardware, whose libraries need workspaces; None for none.
    """
    levels = Liveness.from_program(local, donated, chip, as_written=True).at_peak()
    return peak_bytes(local, donated, chip), levels


def peak_bytes(local: LocalProgram, donated: Collection[int] = (), chip: Chip | None = None) -> int:
    """Return the peak bytes of a device; cached.

    Args:
        local: the program of one device.
        donated: the inputs whose buffers are reused for outputs.
        chip: the hardware, whose libraries need workspaces; None for none.
    """
    key = chip, frozenset(donated)
    if key not in local.known_peaks:
        local.known_peaks[key] = Liveness.from_program(local, donated, chip).peak_bytes
    return local.known_peaks[key]


def live_value_bytes(local: LocalProgram, donated: Collection[int] = ()) -> int:
    """Return the most bytes of values that are live at once, in program order, as if all freed memory were used again.

    This depends neither on the platform nor on the allocation that XLA assigns to a value, so it is better suited to
    compare similar programs than `peak_bytes`.

    Args:
        local: the program of one device.
        donated: the inputs whose buffers are reused after their last use.
    """
    ranges = LiveRanges(local, _unnamed_inputs(local.program), values_on_host(local.program))
    mortal = {local.program.inputs[index] for index in donated}
    kept = sum(buffer.held.bytes for value, buffer in ranges.arguments.items() if value not in mortal)
    values = [
        buffer
        for buffer in ranges.buffers
        if buffer.shared_with is None and (not buffer.is_argument or buffer.value in mortal)
    ]
    return max(_live_bytes(ranges, values, kept), default=sum(buffer.held.bytes for buffer in ranges.buffers))


def _unnamed_inputs(program: Program) -> dict[Value, Held]:
    return {value: Held("input", "", value.type.nbytes, NOWHERE) for value in program.inputs}


def _live_bytes(ranges: LiveRanges, buffers: Iterable[Buffer], fixed: int) -> list[int]:
    """Return, for each kernel, the bytes of these buffers that are live while it runs, and `fixed`."""
    changes = [0] * (ranges.end + 2)
    for buffer in buffers:
        for first, last in buffer.intervals:
            changes[first] += buffer.held.bytes
            changes[last + 1] -= buffer.held.bytes
    return list(accumulate(changes, initial=fixed))[1::2][: len(ranges.frames)]


def total_bytes(program: Program, chip: Chip | None = None) -> int:
    """Return the bytes of all values, in nested programs too. This is an upper bound of the live bytes."""
    return _total_bytes(program) + _most_workspace(program, chip)


def fits_in_memory(local: LocalProgram, limit: int, donated: Collection[int], chip: Chip) -> bool:
    """Return whether a device holds at most `limit` bytes. Upper bounds are tried before the liveness analysis.

    Args:
        local: the program of one device.
        limit: the limit in bytes.
        donated: the inputs whose buffers are reused for outputs.
        chip: the hardware, whose libraries need workspaces.
    """
    if local.known_bounds.get(chip, limit + 1) <= limit:
        return True
    if chip.platform != CPU:  # there, copies in wider dtypes may exceed the bytes of all values
        program = _compiled(local, chip)
        total = _total_bytes(program)
        if total <= limit and total + _most_workspace(program, chip) <= limit:
            return True
    if chip.platform == GPU and stored_bytes(local, chip) <= limit:
        return True
    return peak_bytes(local, donated, chip) <= limit


def stored_bytes(local: LocalProgram, chip: Chip) -> int:
    """Return the bytes of all values that XLA may store on a GPU, in nested programs too.

    Cached. This is an upper bound of the live bytes, closer than `total_bytes`: kernels compute most values inside.
    """
    if chip not in local.known_bounds:
        program = _compiled(local, chip)
        stored = _stored_bytes(local, program, chip.platform, triton_chip(local, chip))
        local.known_bounds[chip] = _most_workspace(program, chip) + stored
    return local.known_bounds[chip]


def _compiled(local: LocalProgram, chip: Chip) -> Program:
    return local.program_on_gpu(triton_chip(local, chip)) if chip.platform == GPU else local.program


def _most_workspace(program: Program, chip: Chip | None) -> int:
    return max([workspace_bytes(equation, chip, all_in_library=True) for equation in program.walk()], default=0)


def _stored_bytes(local: LocalProgram, program: Program, platform: str, chip: Chip | None) -> int:
    groups = local.kernel_groups(program, platform, chip)
    uses = groups.expressions.uses
    stored = sum([value.type.nbytes for value in (*program.inputs, *program.outputs)])
    for equation in groups.expressions.roots:
        stored += sum([value.type.nbytes for value in equation.outputs if uses.get(value)])
        stored += sum([copy.bytes for copy in operand_copies((equation,), groups.expressions, platform).values()])
        stored += sum([_stored_bytes(local, inner, platform, chip) for inner in equation.op.programs])
    return stored


def _total_bytes(program: Program) -> int:
    """Return the bytes of all values, without workspaces. An output may be a copy of another value."""
    return sum([value.type.nbytes for value in program.outputs]) + _value_bytes(program)


def _value_bytes(program: Program) -> int:
    inner = sum([_value_bytes(inner) for equation in program.equations for inner in equation.op.programs])
    results = sum([value.type.nbytes for equation in program.equations for value in equation.outputs])
    return inner + results + sum(value.type.nbytes for value in program.inputs)


def values_on_host(program: Program) -> frozenset[Value]:
    """Return the values in host memory: inputs that ops copy to the device, and results that ops copied to the host."""
    on_host: set[Value] = set()

    def passes_on(equation: Equation) -> bool:
        return equation.op.fusion.is_barrier and not on_host.isdisjoint((*equation.inputs, *equation.outputs))

    for equation in reversed(program.equations):
        if equation.op.reads_host_memory or passes_on(equation):
            on_host.update(equation.inputs)
    for equation in program.equations:
        if equation.op.writes_host_memory or passes_on(equation):
            on_host.update(equation.outputs)
    return frozenset(on_host)


def output_aliases(program: Program, donated: Collection[int], on_host: frozenset[Value]) -> dict[int, int]:
    """Return, for each donated input, the output that reuses its buffer.

    This is the first output of the same type and in the same memory that is not aliased yet, else the first of the same
    size in bytes.
    """
    free = dict(enumerate(program.outputs))
    aliases: dict[int, int] = {}

    def is_same_type(a: ArrayType, b: ArrayType) -> bool:
        return a.strong() is b.strong()

    def has_same_size(a: ArrayType, b: ArrayType) -> bool:
        return (a.size, a.dtype.itemsize) == (b.size, b.dtype.itemsize)

    for fits in (is_same_type, has_same_size):
        for index, value in enumerate(program.inputs):
            if index in donated and index not in aliases:
                match = next(
                    (
                        k
                        for k, out in free.items()
                        if fits(out.type, value.type) and (out in on_host) == (value in on_host)
                    ),
                    None,
                )
                if match is not None:
                    aliases[index] = match
                    del free[match]
    return aliases


@final
@dataclass(eq=False)
class _Allocation:
    """Memory of a result, or of a donated argument, and the intervals of time in which it is in use."""

    bytes: int
    used: list[tuple[int, int]] = field(default_factory=list)

    def is_free(self, intervals: Sequence[tuple[int, int]]) -> bool:
        return all(end < first or last < start for first, last in self.used for start, end in intervals)


@final
class Liveness:
    """The memory of one device while each kernel of a local program runs.

    Attributes:
        ranges: the live ranges of all buffers.
        live_bytes: for each kernel, the bytes that are live while it runs.
        peak_bytes: the most bytes that are live at once, and the gaps of the heap.
        peak: the index of the kernel at the peak.
    """

    def __init__(
        self,
        local: LocalProgram,
        inputs: Mapping[Value, Held],
        aliases: Mapping[int, int],
        chip: Chip | None = None,
        as_written: bool = False,
    ):
        """Assign the buffers of a program.

        Args:
            local: the program of one device.
            inputs: a description of each input.
            aliases: for each donated input, the output that reuses its buffer.
            chip: the hardware, whose libraries need workspaces; None for none.
            as_written: whether to keep the ops of the program that XLA rewrites.
        """
        self.ranges = LiveRanges(local, inputs, values_on_host(local.program), chip, as_written)
        self._allocations: list[_Allocation] = []  # that temporaries may use, the smallest first
        self._reserved: dict[Value, Held] = {}  # the allocations of results, and the gaps of the heap
        assigned = self._allocate_results(aliases)
        temporaries = [
            buffer
            for buffer in self.ranges.buffers
            if buffer.shared_with is None and not buffer.is_argument and buffer not in assigned
        ]
        temporaries.sort(key=lambda buffer: -buffer.held.bytes)
        self._heap = [buffer for buffer in temporaries if not self._is_allocated(buffer)]
        fixed = sum(buffer.held.bytes for buffer in self.ranges.arguments.values())
        fixed += sum(held.bytes for held in self._reserved.values())
        self.live_bytes = _live_bytes(self.ranges, self._heap, fixed)
        self.peak_bytes = most = max(self.live_bytes, default=fixed)
        self.peak = self.live_bytes.index(most) if self.live_bytes else 0
        if self.ranges.platform in (CPU, GPU):
            self.peak_bytes = max(most, fixed + heap_bytes(_blocks(self._heap), most - fixed))
            if self.peak_bytes > most:
                gaps = ArrayType((self.peak_bytes - most,), np.dtype(np.uint8))
                self._reserved[Value(gaps)] = Held("gaps between temporaries", "", gaps.nbytes, NOWHERE)

    @staticmethod
    def from_program(
        local: LocalProgram, donated: Collection[int], chip: Chip | None = None, as_written: bool = False
    ) -> "Liveness":
        """Return the memory of a program whose inputs have no names. `donated` are the inputs that results reuse."""
        aliases = output_aliases(local.program, donated, values_on_host(local.program))
        return Liveness(local, _unnamed_inputs(local.program), aliases, chip, as_written)

    def at_peak(self) -> list[Level]:
        """Return the live values at the peak, for each of the nested programs that run there, the outermost first."""
        inputs = {buffer.value: buffer.held for buffer in self.ranges.arguments.values()}
        outermost = {**inputs, **self._reserved}
        if not self.ranges.frames:
            return [Level(self.ranges.program, 0, outermost)]
        frames: list[Frame] = []
        frame: Frame | None = self.ranges.frames[self.peak]
        while frame is not None:
            frames.append(frame)
            frame = frame.outer
        live: dict[int, dict[Value, Held]] = {id(frame.outer): {} for frame in frames}
        live[id(None)].update(outermost)
        copied: Counter[Value] = Counter()
        time = 2 * self.peak
        for buffer in self._heap:
            if any(start <= time <= end for start, end in buffer.intervals):
                live[id(buffer.outer)][buffer.value] = buffer.held
                if buffer.copy_of is not None:
                    copied[buffer.copy_of.value] += buffer.held.bytes
        return [Level(frame.program, frame.place, live[id(frame.outer)], copied) for frame in reversed(frames)]

    def _allocate_results(self, aliases: Mapping[int, int]) -> set[Buffer]:
        """Allocate the donated arguments and the results. Return the buffers that these allocations hold."""
        assigned: set[Buffer] = set()
        program, ranges = self.ranges.program, self.ranges
        donors = {output: ranges.arguments.get(program.inputs[number]) for number, output in aliases.items()}
        copied = dict(ranges.copied_arguments)
        for number, buffer in enumerate(ranges.outputs):
            value = program.outputs[number]
            if value in ranges.on_host:
                continue
            donor = donors.get(number)
            owner = None if buffer is None else buffer.owner
            if ranges.platform == CPU and donor is not None and owner is not None and not owner.is_argument:
                self._copy_if_read_later(donor, owner)
            is_held = owner is not None and not owner.is_argument and owner not in assigned
            is_held &= not ranges.is_column_major(value)
            updates = ranges.updates_in_place(owner) if owner is not None and is_held else []
            if updates and updates[0] in copied and donor is not None and ranges.can_replace(donor, updates[0]):
                del copied[updates[0]]
            elif updates and updates[0] in copied:
                updates[0].start = copied[updates[0]]
            if donor is None:
                allocation = _Allocation(value.type.nbytes)
                self._reserved[Value(value.type)] = Held("a result", str(value.type), value.type.nbytes, NOWHERE)
            else:
                allocation = _Allocation(donor.held.bytes, [(0, donor.end)])
            if owner is not None and is_held:
                first = updates[0]
                if donor is None or donor.end < first.start:
                    allocation.used += [(first.start, owner.start), *owner.intervals]
                    assigned.update(updates)
                elif donor.end == first.start and ranges.can_replace(donor, first):
                    allocation.used = [(0, owner.end)]
                    assigned.update(updates)
                else:  # copied at the end
                    allocation.used.append((ranges.end, ranges.end))
            elif owner is donor and donor is not None:
                allocation.used = [(0, ranges.end)]
            else:
                allocation.used.append((ranges.end, ranges.end))
            insort(self._allocations, allocation, key=_bytes)
        for buffer, time in copied.items():
            buffer.start = time
        return assigned

    def _copy_if_read_later(self, donor: Buffer, result: Buffer) -> None:
        """Copy a donated argument when the program starts, if kernels read it that the result does not depend on.

        XLA does so before it orders kernels. The result then reuses the argument's allocation, and the kernels read the
        copy.
        """
        if donor.end > 0 and not self.ranges.depends_on_reads(result, donor):
            held = replace(donor.held, what=f"a copy of {donor.held.what}")
            self.ranges.buffers.append(Buffer(Value(donor.value.type), held, None, 0, donor.end))
            donor.end = -1  # before the first kernel

    def _is_allocated(self, buffer: Buffer) -> bool:
        """Assign a temporary to the smallest allocation that is free for it; return whether there is one."""
        first = bisect_left(self._allocations, buffer.held.bytes, key=_bytes)
        for allocation in self._allocations[first:]:
            if allocation.is_free(buffer.intervals):
                allocation.used += buffer.intervals
                return True
        return False


def _blocks(buffers: Collection[Buffer]) -> list[Block]:
    """Return the blocks of a heap with these buffers: those that replace each other in place have one."""
    ranges: dict[Buffer, list[tuple[int, int]]] = {}
    firsts: dict[Buffer, Buffer] = {}
    members = set(buffers)
    for buffer in sorted(buffers, key=lambda buffer: buffer.start):
        first = firsts.get(buffer.replaces, buffer) if buffer.replaces in members else buffer
        firsts[buffer] = first
        ranges.setdefault(first, []).extend(buffer.intervals)
    return [Block(first.held.bytes, tuple(times)) for first, times in ranges.items() if first.held.bytes]


def _bytes(allocation: _Allocation) -> int:
    return allocation.bytes
