"""live_ranges: the buffers of a local program, each with the interval of kernels during which it is live.

A buffer holds one stored value, or several that share memory: a value and its views, the carry of a loop with its
initial value, a result that a kernel writes over an operand. Time counts kernels, in nested programs too. A loop's
body occurs once. The intervals are those of XLA:

- A kernel's operands are live until the kernel ends, and all its results from its start. An elementwise result, or the
  result of an update, reuses the buffer of an operand of the same size whose last use it is.
- The carry of a loop is one buffer. The initial value is copied to it if it is read later or belongs to the caller. The
  new carry is written to it directly, if the body does not read the old carry afterwards. On CPU, other values use the
  buffer between the last read of the old carry and the new carry.
- A copy of an operand that a library needs (`platform_memory.py`) is made once. If nothing else reads the operand, the
  kernel that computes it writes the copy.
- A stack is written in place. A slice that only the stack reads is written to it directly, if a fused kernel computes
  it. A slice of a stack that the body reads is stored only for kernels that cannot fuse the slicing.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, final

from shardwise.compiler.dtypes import is_bfloat16
from shardwise.compiler.ir.control import Binding, Control
from shardwise.compiler.ir.program import Equation, Program, Source, Value
from shardwise.compiler.ops.contract.conv import Conv
from shardwise.compiler.ops.indexing.gather import Gather
from shardwise.compiler.ops.linalg.batched import BatchedMatrixOp
from shardwise.compiler.partition.cpu_program import cpu_program
from shardwise.compiler.partition.kernels import Kernel, KernelGroups
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.partition.memory_schedule import ModuleSchedule
from shardwise.compiler.partition.platform_memory import (
    CPU,
    GPU,
    OperandCopy,
    execution_order,
    is_loop,
    operand_copies,
    workspace_bytes,
)
from shardwise.compiler.partition.product_options import triton_chip
from shardwise.compiler.partition.product_shape import is_outer_product, product_shape
from shardwise.compiler.plan.chip import Chip

_PASSED = "passed on in the loop"


@final
@dataclass(frozen=True)
class Held:
    """A value in memory: the op that computed it (`what`), the type of its shard, and the user's source line."""

    what: str
    type: str
    bytes: int
    source: Source


class Frame(NamedTuple):
    """A program, the position of its running equation, and the frame of the program that encloses it."""

    program: Program
    place: int
    outer: "Frame | None"


@final
@dataclass(eq=False)
class Buffer:
    """Memory of one value, or of several that share it.

    Times are twice the index of a kernel; a buffer that another one replaces in place ends just before that kernel.

    Attributes:
        value: the first value that is stored in it.
        held: its description.
        outer: the frame that encloses the program of the value; None for values of the outermost program.
        start, end: the first and the last time at which it is live.
        is_argument: whether it is an argument of the call.
        shared_with: the buffer whose memory this one uses; None if it has its own.
        replaces: the buffer that this one overwrites in place.
        complete: the time at which the loop that computes it ends; 0 for other buffers.
        free: the first and the last time at which a carry is not live: between its last read and the new carry.
        copy_of: the buffer of which it is a copy, for a library; None for other buffers.
    """

    value: Value
    held: Held
    outer: Frame | None
    start: int
    end: int
    is_argument: bool = False
    shared_with: "Buffer | None" = None
    replaces: "Buffer | None" = None
    complete: int = 0
    free: tuple[int, int] | None = None
    copy_of: "Buffer | None" = None

    def use(self, time: int) -> None:
        self.end = max(self.end, time)

    @property
    def intervals(self) -> list[tuple[int, int]]:
        """The first and the last times at which it is live."""
        if self.free is None:
            return [(self.start, self.end)]
        first, last = self.free
        return [(self.start, first - 1), (last + 1, self.end)]

    @property
    def owner(self) -> "Buffer":
        """The buffer whose memory this one uses."""
        buffer = self
        while buffer.shared_with is not None:
            buffer = buffer.shared_with
        return buffer


@final
@dataclass(eq=False)
class _Launch:
    """A kernel that runs at a time.

    Attributes:
        time: the time.
        kernel: the kernel.
        reads, writes: the buffers that it reads and writes.
        start: when the program of the kernel starts.
        in_place: the operands that it reads in place; None if that is not known yet.
    """

    time: int
    kernel: Kernel
    reads: list[tuple[Value, Buffer]]
    writes: list[Buffer]
    start: int
    in_place: frozenset[Value] | None = None


class _Slice(NamedTuple):
    """A slice of a stack that a loop reads, and the name of the loop. It is not stored yet."""

    stack: Buffer
    loop: str


class _NewCarry(NamedTuple):
    """A carry and its new value that a body computes; when the body reads the old one last, and when the loop ends."""

    carry: Buffer
    new: Buffer
    last_read: int
    last: int


@final
class LiveRanges:
    """The live ranges of all buffers of a local program.

    Attributes:
        buffers: the buffers.
        arguments: the buffer of each input of the program that is in the memory of the device.
        program: the program, as XLA rewrites it.
        outputs: the buffer of each output; None if it is a constant or in host memory.
        frames: for each kernel, where it runs.
        end: the time after the last kernel.
        copied_arguments: for each update of an argument, when XLA copies the argument, unless it is donated.
    """

    def __init__(
        self,
        local: LocalProgram,
        inputs: Mapping[Value, Held],
        on_host: frozenset[Value],
        chip: Chip | None = None,
        as_written: bool = False,
    ):
        """Find the live ranges.

        Args:
            local: the program of one device.
            inputs: a description of each input.
            on_host: the values in host memory, which are not counted.
            chip: the hardware, whose libraries need workspaces; None for none.
            as_written: whether to keep the ops of the program that XLA rewrites.
        """
        self.chip = chip
        self.platform = "" if chip is None else chip.platform
        self.local = local
        self.program = local.program if as_written else _as_compiled(local, chip)
        self.on_host = on_host
        self.frames: list[Frame] = []
        self._launches: list[_Launch] = []
        self._launch_of: dict[Buffer, _Launch] = {}  # of buffers that a kernel computes
        self._consumed: dict[Buffer, tuple[list[int], int]] = {}  # the times of kernels, and the index of a consumer
        self._copied: dict[Buffer, dict[_Launch, int]] = {}  # when an operand is copied for updates
        self._readers: dict[Buffer, list[_Launch]] = {}  # of buffers that an update may overwrite on CPU
        self._times: list[list[int]] = []  # of the kernels of the current program, and of those that enclose it
        self._starts: list[int] = []  # when the current program, and those that enclose it, started
        self._copies: dict[tuple[Buffer, OperandCopy, Frame | None], Buffer] = {}
        self._stack_copies: list[Buffer] = []  # that loops read
        self._stored_shapes: dict[Value, tuple[int, ...]] = {}  # of results of products and gathers on CPU
        self._copied_again: set[Buffer] = set()  # results that are computed again for their copies
        self._of_libraries: set[Buffer] = set()  # results of a GPU's libraries, which XLA does not overwrite in place
        self.copied_arguments: dict[Buffer, int] = {}
        self._known_dependencies: dict[Program, dict[Kernel, int]] = {}
        self._stacked: list[tuple[Buffer, Buffer, int]] = []  # slices, their stacks, and the last kernels of loops
        self._new_carries: list[_NewCarry] = []
        self._initial: list[tuple[Buffer, Buffer, int]] = []
        self._schedule = None
        self._triton_chip = triton_chip(local, chip)
        self._known_groups: dict[int, KernelGroups] = {}  # by programs that `program` contains, which keeps them alive
        if self.platform == GPU:
            self._schedule = ModuleSchedule(self.program, self._groups, self._workspace)
        self.arguments = {
            value: Buffer(value, held, None, 0, 0, is_argument=True)
            for value, held in inputs.items()
            if value not in on_host
        }
        self.buffers = list(self.arguments.values())
        values: dict[Value, Buffer | _Slice] = dict(self.arguments)
        self._program(self.program, values, None)
        self.end = self._time
        outermost = Frame(self.program, 0, None)
        self.outputs = [self._stored(value, values, outermost) for value in self.program.outputs]
        for buffer in self.outputs:
            if buffer is not None and not buffer.is_argument:
                buffer.use(self.end)
        self._share()

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels in order."""
        return [launch.kernel for launch in self._launches]

    def _groups(self, program: Program) -> KernelGroups:
        """Return the kernels of the program, or of one that it contains; cached by its identity, without a hash."""
        groups = self._known_groups.get(id(program))
        if groups is None:
            groups = self.local.kernel_groups(program, self.platform, self._triton_chip)
            self._known_groups[id(program)] = groups
        return groups

    def _workspace(self, kernel: Kernel) -> int:
        """Return the bytes that only a kernel needs."""
        return workspace_bytes(_computed_by_library(kernel), self.chip, all_in_library=self._triton_chip is None)

    @property
    def _time(self) -> int:
        return 2 * len(self._launches)

    def _new(self, value: Value, what: str, source: Source, outer: Frame | None, start: int) -> Buffer:
        return self._add(value, what, str(value.type), value.type.nbytes, source, outer, start)

    def _add(
        self, value: Value, what: str, type: str, nbytes: int, source: Source, outer: Frame | None, start: int
    ) -> Buffer:
        buffer = Buffer(value, Held(what, type, nbytes, source), outer, start, start)
        self.buffers.append(buffer)
        return buffer

    def _program(self, program: Program, values: dict[Value, "Buffer | _Slice"], outer: Frame | None) -> None:
        """Add the kernels of a program. `values` has the buffers of its inputs, and receives those of its values."""
        groups = self._groups(program)
        self._starts.append(self._time)
        places = {equation: place for place, equation in enumerate(program.equations)}
        is_body = outer is not None and is_loop(outer.program.equations[outer.place].op)
        if self._schedule is None:
            order, ready = execution_order(groups, self.platform, program.inputs, is_body)
        else:
            order, ready = self._schedule.kernels(program), ()
        times: list[int] = []  # of the kernels in order
        self._times.append(times)
        for number, kernel in enumerate(order):
            times.append(self._time)
            frame = Frame(program, places[kernel.root], outer)
            if isinstance(kernel.root.op, Control):
                self._control(kernel, kernel.root.op, values, frame)
                continue
            time = self._time
            copies = operand_copies(kernel.equations, groups.expressions, self.platform)
            constant = None if self._schedule is None else self._schedule.copied_constant(program, kernel)
            reads = [
                (value, self._read(value, values, kernel, outer, time, copies.get(value)))
                for value in kernel.reads
                if value in values and value is not constant
            ]
            widened = groups.expressions.widened
            workspace = 0 if any(v in widened for v in kernel.root.outputs) else self._workspace(kernel)
            if workspace:
                name = f"the workspace of {kernel.root.op.name}"
                self._add(Value(kernel.root.outputs[0].type), name, "", workspace, kernel.root.source, outer, time)
            writes = []
            for equation in kernel.equations:
                for value in equation.outputs:
                    if value in kernel.writes and value not in groups.unstored and value not in self.on_host:
                        stored = widened.get(value, value)
                        # XLA fills the results of a loop with zeros as soon as the program starts.
                        is_early = self.platform == CPU and _loops_over_batch(equation)
                        start = self._starts[-1] if is_early else time
                        if constant is not None:
                            start = self._fill_time(program, kernel, 0, time)
                        writes.append(self._new(stored, equation.op.name, equation.source, outer, start))
                        values[value] = writes[-1]
                        if groups.expressions.is_copied_again(value):
                            self._copied_again.add(writes[-1])
                        if self.platform == CPU and (shape := _stored_shape(equation)) is not None:
                            self._stored_shapes[value] = self._stored_shapes[stored] = shape
                        contraction = _computed_by_library(kernel).op
                        if (
                            self.platform == GPU
                            and contraction.is_contraction
                            and (workspace or not contraction.is_product)
                        ):
                            self._of_libraries.add(writes[-1])
            self._launches.append(launch := _Launch(time, kernel, reads, writes, self._starts[-1]))
            self._launch_of.update(dict.fromkeys(writes, launch))
            if ready:
                self._consumed.update(dict.fromkeys(writes, (times, ready[number])))
            self.frames.append(frame)
        self._starts.pop()
        self._times.pop()

    def _copy(self, equation: Equation, buffer: Buffer, needed: OperandCopy, outer: Frame | None, time: int) -> Buffer:
        """Return the copy of an operand that a library reads.

        The first call in a program that needs it makes it; on CPU, it is made as soon as the operand is there.

        Args:
            equation: the call.
            buffer: the operand.
            needed: the copy.
            outer: the frame that encloses the program of the call.
            time: when the call runs.
        """
        copy = self._copies.get((buffer, needed, outer))
        if copy is None:
            name, held = f"a copy for {equation.op.name}", buffer.held
            is_recomputed = buffer in self._copied_again and not needed.is_separate
            start = self._copy_time(buffer, self._starts[-1], time, is_recomputed) if self.platform == CPU else time
            copy = self._add(Value(buffer.value.type), name, held.type, needed.bytes, equation.source, outer, start)
            copy.copy_of = buffer
            self._copies[buffer, needed, outer] = copy
        copy.use(time)
        return copy

    def _copy_time(self, buffer: Buffer, first: int, last: int, is_recomputed: bool = False) -> int:
        """Return when XLA copies a buffer on CPU: once it is complete, after the kernels that are ready before.

        Args:
            buffer: the buffer.
            first: the start of the program that copies it.
            last: when the copy is read.
            is_recomputed: whether the kernel that copies it computes it again.
        """
        if is_recomputed:  # from the same operands
            return min(last, buffer.start + 2)
        times, index = self._consumed.get(buffer, ([first], 0))
        ready = times[index] if index < len(times) else last
        return min(last, max(first, ready, buffer.complete))

    def _read(
        self,
        value: Value,
        values: dict[Value, "Buffer | _Slice"],
        kernel: Kernel,
        outer: Frame | None,
        time: int,
        copied: OperandCopy | None,
    ) -> Buffer:
        """Return the buffer that a kernel reads for a value.

        A slice of a stack is stored if it cannot be fused. `copied` is the copy that the kernel reads instead, if it
        needs one.
        """
        buffer = values[value]
        if isinstance(buffer, _Slice):
            if kernel.root.op.fusion.fuses:
                buffer.stack.use(time)
                return buffer.stack
            if copied is not None and self.platform == GPU:
                # A slice has the layout of its stack, which XLA copies before the loop.
                stack = buffer.stack
                needed = OperandCopy(stack.held.bytes // value.type.nbytes * copied.bytes, (), ())
                copy = self._copy(kernel.root, stack, needed, stack.outer, self._starts[-1])
                self._stack_copies.append(copy)
                return copy
            # On CPU, the slices of a body are ready, and therefore run, before its other kernels. On GPUs, they are
            # copies that run beside other kernels, and start as early as they can.
            start = self._starts[-1] if self.platform else time
            buffer = values[value] = self._new(value, f"a slice for {buffer.loop}", kernel.root.source, outer, start)
        if copied is not None:
            return self._copy(kernel.root, buffer, copied, outer, time)
        buffer.use(time)
        return buffer

    def _control(self, kernel: Kernel, op: Control, values: dict[Value, "Buffer | _Slice"], frame: Frame) -> None:
        """Add the kernels of the programs of a control op."""
        start, equation = self._time, kernel.root
        operands = [self._stored(value, values, frame) for value in equation.inputs]
        inner: list[dict[Value, Buffer | _Slice]] = [{} for _ in op.programs]
        results: dict[int, Buffer] = {}
        for binding in op.bindings:
            self._enter(kernel, op, binding, operands, results, inner, frame)
        for program, own in zip(op.programs, inner, strict=True):
            self._program(program, own, frame)
        for binding in op.bindings:
            self._leave(op, binding, operands, results, inner, frame, start)
        last = max(start, self._time - 2)
        for copy in self._stack_copies:
            if copy.copy_of in operands:
                copy.use(last)
        for buffer in results.values():
            buffer.use(last)
            buffer.complete = last
        values.update((equation.outputs[number], buffer) for number, buffer in results.items())

    def _enter(
        self,
        kernel: Kernel,
        op: Control,
        binding: Binding,
        operands: list[Buffer | None],
        results: dict[int, Buffer],
        inner: Sequence[dict[Value, "Buffer | _Slice"]],
        frame: Frame,
    ) -> None:
        """Set the buffers of a binding's program inputs, and of its result if that exists before the programs run."""
        start, equation = self._time, kernel.root
        source = binding.sources[0]
        operand = operands[source.number] if source.kind == "operand" else None
        for end in binding.targets:
            if end.kind == "result" and not _is_returned(op):
                value = equation.outputs[end.number]
                if value not in self.on_host:
                    # On CPU, XLA fills stacks with zeros as soon as the program starts.
                    is_early = self.platform == CPU and operand is None
                    time = self._starts[-1] if is_early else self._fill_time(frame.program, kernel, end.number, start)
                    results[end.number] = self._new(value, op.name, equation.source, frame.outer, time)
        carry = next((results.get(end.number) for end in binding.targets if end.kind == "result"), None)
        for end in binding.targets:
            if end.kind != "entry":
                continue
            value, own = op.programs[end.program].inputs[end.number], inner[end.program]
            if source.kind == "exit":
                own[value] = self._new(value, _PASSED, equation.source, frame, start)
            elif binding.boundary.leading and operand is not None:
                if self.platform == CPU and is_bfloat16(value.type.dtype):
                    # XLA converts slices in bf16 to f32, all of them as soon as the stack is complete.
                    operand = self._copy(
                        equation,
                        operand,
                        OperandCopy(2 * operand.held.bytes, (), ()),
                        frame.outer,
                        operand.complete,
                    )
                    operands[source.number] = operand
                own[value] = _Slice(operand, op.name)
            elif carry is not None:
                own[value] = carry
            elif operand is not None:
                own[value] = operand

    def _fill_time(self, program: Program, kernel: Kernel, result: int, start: int) -> int:
        """Return when a result of a loop or an update is allocated: on GPUs before, if it is filled with a constant."""
        index = None if self._schedule is None else self._schedule.fill_index(program, kernel, result)
        return start if index is None else self._times[-1][index]

    def _leave(
        self,
        op: Control,
        binding: Binding,
        operands: Sequence[Buffer | None],
        results: dict[int, Buffer],
        inner: Sequence[dict[Value, "Buffer | _Slice"]],
        frame: Frame,
        start: int,
    ) -> None:
        """End the live ranges of a binding of a control op whose programs have been added."""
        last = max(start, self._time - 2)
        number = next((end.number for end in binding.targets if end.kind == "result"), None)
        result = None if number is None else results.get(number)
        is_carry = any(end.kind == "operand" for end in binding.sources) and result is not None
        for end in binding.targets:
            if end.kind == "entry" and binding.sources[0].kind == "exit":
                passed = inner[end.program][op.programs[end.program].inputs[end.number]]
                assert isinstance(passed, Buffer)
                passed.use(last)
        for end in binding.sources:
            if end.kind == "operand":
                operand = operands[end.number]
                if operand is None:
                    continue
                if is_carry:
                    assert result is not None
                    operand.use(start - 1)  # before the first kernel of the loop
                    self._initial.append((operand, result, start))
                else:
                    operand.use(last)
                continue
            program = op.programs[end.program]
            new = self._stored(program.outputs[end.number], inner[end.program], Frame(program, 0, frame))
            if new is None or new.outer is not frame:  # a constant, or a value from outside
                if number is not None and _is_returned(op) and new is not None:
                    results[number] = new
            elif _is_returned(op):
                if number is not None:
                    new.outer = frame.outer
                    results[number] = new
            elif result is None:
                if binding.targets:
                    new.held = replace(new.held, what=_PASSED)
                    new.use(last)
            elif binding.boundary.leading:
                self._stacked.append((new, result, last))
            else:
                self._new_carries.append(_NewCarry(result, new, result.end if is_carry else start - 1, last))

    def _stored(self, value: Value, values: Mapping[Value, "Buffer | _Slice"], frame: Frame) -> Buffer | None:
        """Return the buffer of a value of the program of a frame; None if it is not stored."""
        buffer = values.get(self._groups(frame.program).storage.get(value, value))
        return buffer.stack if isinstance(buffer, _Slice) else buffer

    def _share(self) -> None:
        """Let values share buffers: carries, slices of stacks, and results that replace an operand."""
        for (buffer, needed, _), copy in self._copies.items():
            if self._is_fused(buffer) and not needed.is_separate:
                buffer.shared_with = copy
                copy.start = buffer.start
            elif buffer in self._copied_again and not needed.is_separate:
                launch = self._launch_of.get(buffer)
                for _, operand in launch.reads if launch is not None else ():
                    operand.use(copy.start)
            else:
                buffer.use(copy.start)
        for new, stack, last in self._stacked:
            if self._is_fused(new):
                new.shared_with = stack
            elif self.platform == GPU:  # a copy that runs beside other kernels, and ends as late as it can
                new.use(last)
        counts = Counter([carry for carry, *_ in self._new_carries])  # several for the branches of a conditional
        for old, new, last_read, last in self._new_carries:
            if new.shared_with is not None or new is old:
                continue
            if last_read < new.start or (last_read == new.start and self.can_replace(old, new)):
                new.shared_with = old
                if self.platform == CPU and last_read < new.start and counts[old] == 1:
                    old.free = last_read + 1, new.start - 1
            else:
                new.use(last)
        for initial, carry, start in self._initial:
            owner = initial.owner
            if owner.end < start and not owner.is_argument and owner is not carry and owner.held.bytes:
                owner.shared_with = carry
                carry.start = min(carry.start, owner.start)
        if self.platform == CPU:
            for launch in self._launches:
                for _, operand in launch.reads:
                    self._readers.setdefault(operand.owner, []).append(launch)
        for launch in self._launches:
            for buffer in launch.writes:
                if buffer.shared_with is None and buffer.start == launch.time:
                    self._replace_operand(launch, buffer)
        for updated, copied in self._copied.items():  # kernels that read a copy
            readers = self._readers[updated]
            if updated.end == max(launch.time for launch in readers):
                updated.end = max(copied.get(launch, launch.time) for launch in readers)

    def _replace_operand(self, launch: _Launch, buffer: Buffer) -> None:
        """Let a kernel overwrite an operand that it reads last.

        An update overwrites its first operand on CPU if it depends on all other kernels that read it. Otherwise, XLA
        copies the operand as soon as it is there, and updates the copy.
        """
        updated = self._updated(launch) if self.platform == CPU else None
        for _, operand in launch.reads:
            owner = operand.owner
            if owner.is_argument or owner.end != launch.time or not self.can_replace(owner, buffer):
                continue
            if owner is updated and not all(self._depends(launch, other) for other in self._readers[owner]):
                continue
            owner.end = launch.time - 1
            buffer.replaces = owner
            return
        if updated is not None:
            time = self._copy_time(updated, launch.start, launch.time)
            if updated.is_argument:
                self.copied_arguments[buffer] = time
            else:
                buffer.start = time
                self._copied.setdefault(updated, {})[launch] = time

    def is_column_major(self, result: Value) -> bool:
        """Return whether LAPACK stores a result of the program column by column, so that XLA copies it at the end."""
        return result in self._groups(self.program).expressions.column_major

    def updates_in_place(self, buffer: Buffer) -> list[Buffer]:
        """Return the buffers of the updates that lead to a buffer, itself included: they share one allocation."""
        updates = [buffer]
        while (previous := updates[-1].replaces) is not None:
            if self._updated(self._launch_of[updates[-1]]) is not previous:
                break
            updates.append(previous)
        return updates[::-1]

    def _updated(self, launch: _Launch) -> Buffer | None:
        """Return the buffer of the operand that a kernel updates; None for kernels that are no updates."""
        groups = self._groups(self.frames[launch.time // 2].program)
        value = groups.expressions.updated(launch.kernel.root)
        if value is None:
            return None
        home = groups.storage.get(value, value)
        return next((buffer.owner for value, buffer in launch.reads if value is home), None)

    def _is_fused(self, buffer: Buffer) -> bool:
        """Return whether no kernel reads a buffer, and its kernel can write it elsewhere: to a copy or a stack."""
        launch = self._launch_of.get(buffer)
        if launch is None or buffer.end != buffer.start:
            return False
        root = launch.kernel.root
        if self.platform != CPU:
            return root.op.fusion.fuses
        groups = self._groups(self.frames[launch.time // 2].program)
        return groups.expressions.roots[root].fuses

    def can_replace(self, old: Buffer, new: Buffer) -> bool:
        """Return whether the kernel that computes `new` can write it over `old`, which it reads."""
        launch = self._launch_of.get(new)
        if launch is None or old is new or old.held.bytes != new.held.bytes:
            return False
        if old in self._of_libraries:
            return False
        groups = self._groups(self.frames[launch.time // 2].program)
        if self.platform == CPU and old.value.type.dtype != new.value.type.dtype:
            return False
        if self.platform == CPU and groups.expressions.is_scattered(new.value):
            return False
        column_major = groups.expressions.column_major
        if column_major and old.value in column_major and new.value not in column_major:
            return False
        if launch.in_place is None:
            launch.in_place = _read_in_place(launch.kernel, groups.storage, self.platform)
        reads = [value for value, buffer in launch.reads if buffer.owner is old.owner]
        is_fused = groups.expressions.roots[launch.kernel.root].fuses
        if self.platform == CPU and is_fused and not self._has_one_shape(launch, new.value, reads):
            return False
        return bool(reads) and all(value in launch.in_place for value in reads)

    def depends_on_reads(self, result: Buffer, argument: Buffer) -> bool:
        """Return whether a result of the program depends on all kernels that read an argument, or overwrites it."""
        kernels = self._groups(self.program).kernels
        dependencies = self._dependencies(self.program)
        root = next((kernel for kernel in kernels if result.value in kernel.writes), None)
        if root is None:
            return True
        readers = [kernel for kernel in kernels if argument.value in kernel.reads]
        if not all(dependencies[root] & dependencies[reader] == dependencies[reader] for reader in readers):
            return False
        return root not in readers or self.can_replace(argument, result)

    def _depends(self, launch: _Launch, other: _Launch) -> bool:
        """Return whether a kernel depends on another one, or is it. Kernels of different programs run in order."""
        program = self.frames[launch.time // 2].program
        if self.frames[other.time // 2].program is not program:
            return True
        dependencies = self._dependencies(program)
        bits = dependencies[other.kernel]
        return dependencies[launch.kernel] & bits == bits

    def _dependencies(self, program: Program) -> dict[Kernel, int]:
        """Return, for each kernel of a program, the set of kernels that it depends on, and itself, as bits."""
        if program in self._known_dependencies:
            return self._known_dependencies[program]
        producers: dict[Value, int] = {}
        dependencies: dict[Kernel, int] = {}
        for number, kernel in enumerate(self._groups(program).kernels):
            bits = 1 << number
            for value in kernel.reads:
                bits |= producers.get(value, 0)
            dependencies[kernel] = bits
            producers.update(dict.fromkeys(kernel.writes, bits))
        self._known_dependencies[program] = dependencies
        return dependencies

    def _has_one_shape(self, launch: _Launch, new: Value, reads: Sequence[Value]) -> bool:
        """Return whether XLA computes a result in the shape of these operands, and not of a view of them.

        A kernel of views of one shape runs on that shape, with the view behind it.
        """
        shapes = {self._stored_shape(value) for value, _ in launch.reads if value.type.size == new.type.size}
        others = [value for value, _ in launch.reads if 1 < value.type.size != new.type.size]
        is_flattened = self._groups(self.frames[launch.time // 2].program).expressions.is_flattened(new)
        if len(shapes) == 1 and not others:
            return not is_flattened or shapes != {new.type.shape}
        if is_flattened:
            return False
        return {self._stored_shape(value) for value in reads} == {new.type.shape}

    def _stored_shape(self, value: Value) -> tuple[int, ...]:
        """Return the shape of a value in memory."""
        return self._stored_shapes.get(value, value.type.shape)


def _as_compiled(local: LocalProgram, chip: Chip | None) -> Program:
    """Return the program of a device as XLA rewrites it for its platform."""
    if chip is not None and chip.platform == CPU:
        return cpu_program(local.program)
    if chip is not None and chip.platform == GPU:
        return local.program_on_gpu(triton_chip(local, chip))
    return local.program


def _computed_by_library(kernel: Kernel) -> Equation:
    """Return the equation for which a kernel may call a library: its root, or a convolution to which the root adds."""
    return next((equation for equation in kernel.equations if isinstance(equation.op, Conv)), kernel.root)


def _stored_shape(equation: Equation) -> tuple[int, ...] | None:
    """Return the shape in which XLA stores a result on CPU: that of matrices, or of windows; None for other results."""
    if isinstance(equation.op, Gather):
        _, indices = equation.inputs
        return (math.prod(indices.type.shape[:-1]), *equation.op.sizes)
    return _matrix_shape(equation) if equation.op.is_product and not is_outer_product(equation) else None


def _matrix_shape(equation: Equation) -> tuple[int, ...]:
    """Return the shape of a product's result as matrices, with one dim for the rows and one for the columns."""
    _, rows, columns, _ = product_shape(equation.op, tuple(value.type for value in equation.inputs))
    (result,) = equation.outputs
    batch: tuple[int, ...] = ()
    while math.prod(batch) * rows * columns < result.type.size:
        batch = result.type.shape[: len(batch) + 1]
    return (*batch, rows, columns)


def _loops_over_batch(equation: Equation) -> bool:
    """Return whether a loop calls LAPACK on CPU, for a part of the batch at a time."""
    op = equation.op
    return isinstance(op, BatchedMatrixOp) and op.loops_on_cpu(*[value.type for value in equation.inputs])


def _is_returned(op: Control) -> bool:
    """Return whether the results of a control op are the outputs of its only program, which runs once."""
    return len(op.programs) == 1 and op.trip_count == 1 and not any(binding.boundary.leading for binding in op.bindings)


def _read_in_place(kernel: Kernel, storage: Mapping[Value, Value], platform: str) -> frozenset[Value]:
    """Return the operands of a kernel that it reads element by element as it writes its results.

    An operand that is also reduced, broadcast or moved is read after other elements were written.

    Args:
        kernel: the kernel.
        storage: for views, the value whose memory they share.
        platform: the platform.
    """
    if platform == GPU and isinstance(_computed_by_library(kernel).op, Conv):
        return frozenset()
    scattered: set[Value] = set()
    read: set[Value] = set()
    for equation in reversed(kernel.equations):
        is_in_place = equation.op.is_elementwise or equation.op.fusion.is_view
        is_in_place |= bool(platform) and equation.op.fusion.overwrites
        updated = 0 if equation.op.fusion.updates is not None else None
        if platform == CPU and isinstance(equation.op, BatchedMatrixOp) and not _loops_over_batch(equation):
            updated = equation.op.overwritten
        for position, value in enumerate(equation.inputs):
            home = storage.get(value, value)
            read.add(home)
            if (not is_in_place and position != updated) or not scattered.isdisjoint(equation.outputs):
                scattered.update((value, home))
    return frozenset(read - scattered)
