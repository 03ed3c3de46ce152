"""memory_schedule: the orders of kernels that XLA's scheduler for GPUs tries.

XLA schedules a module three times, and keeps the schedule with which the fewest bytes are live at once:

- "list": of the kernels that are ready, the one that frees most bytes, less those that it allocates. A library's call
  allocates its workspace, too, so products run late.
- "depth-first": operands before their consumer, first those with most readers, and then those that most bytes lead to.
- "postorder": operands before their consumer, in the order in which it has them.

All three see an instruction for each kernel, input, barrier, and element of a kernel's results, if it has several.
"""

import heapq
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.program import Program, Value
from shardwise.compiler.ops.shape.constants import Full
from shardwise.compiler.partition.kernels import Kernel, KernelGroups
from shardwise.compiler.partition.platform_memory import is_loop

ORDERS = "list", "depth-first", "postorder"  # of two that need as much memory, XLA keeps the first

Workspace = Callable[[Kernel], int]  # the bytes that a library needs only while a kernel runs


@final
@dataclass(eq=False)
class _Instruction:
    """A node of the graph that is scheduled.

    Attributes:
        kernel: the kernel; None for inputs, barriers and elements of results.
        operands: the instructions that it waits for.
        reads: the buffers of these.
        sizes: the bytes of the buffers that it allocates, by their indices.
        passed: the bytes of operands of a loop, which are elements of its results, too.
        is_scalar: whether its result has one element.
        users: the instructions that wait for it.
        rank: the index of the kernel; of other instructions, the largest of those that they wait for.
    """

    kernel: Kernel | None = None
    operands: list["_Instruction"] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)
    passed: int = 0
    is_scalar: bool = False
    users: list["_Instruction"] = field(default_factory=list)
    rank: int = -1


@final
class MemorySchedule:
    """The instructions of one program, and their orders.

    Attributes:
        program: the program.
        copied_constants: for each kernel that updates a copy of a constant, the constant.
    """

    def __init__(self, groups: KernelGroups, workspace: Workspace, is_entry: bool = True):
        self.program = groups.program
        self._sizes: dict[int, int] = {}
        self._instructions: list[_Instruction] = []
        self._outputs = _Instruction()
        self._constants = {
            equation.outputs[0]: equation.op for equation in self.program.equations if isinstance(equation.op, Full)
        }
        self._fill_of: dict[Hashable, _Instruction] = {}  # by the type and the constant
        self._fills: dict[tuple[Kernel, int], _Instruction] = {}  # of results of loops
        self._filled: dict[Kernel, list[int]] = {}  # the buffers that are filled for a loop
        self._sources: dict[Value, tuple[_Instruction, list[int]]] = {}  # who provides a value, and in which buffers
        for value in self.program.inputs:
            self._sources[value] = self._new(is_scalar=False), []
        self._kernels = {kernel: self._new(kernel) for kernel in groups.kernels}
        for rank, instruction in enumerate(self._kernels.values()):
            instruction.rank = rank
        self.copied_constants = self._find_copied_constants(groups) if is_entry else {}
        self._add_results(groups, workspace)
        self._add_views(groups)
        for kernel in groups.kernels:
            behind_barriers = [value for member in kernel.equations for value in member.inputs]
            copied = self.copied_constants.get(kernel)
            reads = [value for value in (*kernel.reads, *behind_barriers) if value is not copied]
            self._connect(self._kernels[kernel], reads)
        for instruction in self._instructions:
            for operand in instruction.operands:
                operand.users.append(instruction)
        self._connect(self._outputs, self.program.outputs)
        self._known: dict[str, tuple[list[Kernel], dict[_Instruction, int]]] = {}

    def kernels(self, order: str) -> list[Kernel]:
        """Return the kernels in one of `ORDERS`."""
        return self._schedule(order)[0]

    def fill_index(self, order: str, kernel: Kernel, result: int) -> int | None:
        """Return the index of the kernel before which a result is filled with its initial constant, or that fills it.

        None if it has another initial value. The result is that of a loop, or of an update of a copied constant.
        """
        fill = self._fills.get((kernel, result))
        return None if fill is None else self._schedule(order)[1][fill]

    def _schedule(self, order: str) -> tuple[list[Kernel], dict[_Instruction, int]]:
        """Return the kernels in an order, and for each fill the index of the next kernel."""
        if order not in self._known:
            schedule = {"list": self._list, "depth-first": self._depth_first, "postorder": self._postorder}[order]()
            kernels: list[Kernel] = []
            indices: dict[_Instruction, int] = {}
            fills = set(self._fills.values())
            for instruction in schedule:
                if instruction in fills:
                    indices[instruction] = len(kernels)
                if instruction.kernel is not None:
                    kernels.append(instruction.kernel)
            self._known[order] = kernels, indices
        return self._known[order]

    def live_bytes(self, order: str, nested: Mapping[Kernel, int]) -> int:
        """Return the most bytes that are live at once. `nested` are those that the programs of a kernel need."""
        kernels = self.kernels(order)
        last: dict[int, int] = dict.fromkeys(self._outputs.reads, len(kernels))
        for time in reversed(range(len(kernels))):
            for buffer in self._kernels[kernels[time]].reads:
                last.setdefault(buffer, time)
        ends = [0] * (len(kernels) + 1)
        live = most = 0
        filled: dict[int, list[_Instruction]] = {}
        for fill, index in self._schedule(order)[1].items():
            if fill.kernel is None:
                filled.setdefault(index, []).append(fill)
        for time, kernel in enumerate(kernels):
            instruction = self._kernels[kernel]
            for allocating in (*filled.get(time, ()), instruction):
                for buffer, size in allocating.sizes.items():
                    live += size
                    ends[last.get(buffer, time)] += size
            # The results of a loop, and of updates, are in the memory of initial values.
            shared = sum([self._sizes[buffer] for buffer in self._filled.get(kernel, ())])
            most = max(most, live - shared + nested.get(kernel, 0))
            live -= ends[time]
        return most

    def _new(
        self, kernel: Kernel | None = None, operands: Iterable[_Instruction] = (), is_scalar: bool = False
    ) -> _Instruction:
        instruction = _Instruction(kernel, list(operands), is_scalar=is_scalar)
        self._instructions.append(instruction)
        return instruction

    def _allocate(self, instruction: _Instruction, size: int) -> int:
        index = len(self._sizes)
        self._sizes[index] = instruction.sizes[index] = size
        return index

    def _add_results(self, groups: KernelGroups, workspace: Workspace) -> None:
        """Add the buffers of the results of kernels, and an instruction for each result of several."""
        for kernel, instruction in self._kernels.items():
            results = [value for value in kernel.writes if value not in groups.unstored]
            size = workspace(kernel)
            if is_loop(kernel.root.op):
                instruction.passed = sum([value.type.nbytes for value in kernel.root.inputs])
                self._add_fills(kernel, instruction)
            if kernel in self.copied_constants:
                self._add_copy(kernel, instruction)
            buffers = [self._allocate(instruction, value.type.nbytes) for value in results]
            if len(results) == 1 and not size and not instruction.passed:
                instruction.is_scalar = results[0].type.size == 1
                self._sources[results[0]] = instruction, buffers
                continue
            if size:
                self._allocate(instruction, size)
            for value, buffer in zip(results, buffers, strict=True):
                element = self._new(None, [instruction], value.type.size == 1)
                element.rank = instruction.rank
                element.reads = list(instruction.sizes)
                self._sources[value] = element, [buffer]

    def _find_copied_constants(self, groups: KernelGroups) -> dict[Kernel, Value]:
        """Return the kernels that update a copy of a constant, with the constant.

        XLA merges equal constants. An update overwrites the constant itself if it depends on all its other readers.
        The kernel that fills the constant writes all copies.
        """
        producers = {value: kernel for kernel in groups.kernels for value in kernel.writes}
        stored = [value for value in self._constants if value in producers and value not in groups.unstored]
        if not stored:
            return {}
        readers: dict[Value, list[Kernel]] = {value: [] for value in stored}
        ancestors: dict[Kernel, int] = {}  # the ranks of all kernels that a kernel depends on, and its own, as bits
        updates: list[tuple[Kernel, Value]] = []
        for rank, kernel in enumerate(groups.kernels):
            bits = 1 << rank
            for value in kernel.reads:
                if value in producers:
                    bits |= ancestors.get(producers[value], 0)
                if value in readers and kernel.root not in groups.expressions.accumulated:
                    readers[value].append(kernel)
            ancestors[kernel] = bits
            updated = groups.expressions.updated(kernel.root)
            if updated in readers and kernel in readers[updated]:
                updates.append((kernel, updated))
        outputs = {groups.storage.get(value, value) for value in self.program.outputs}
        return {
            kernel: value
            for kernel, value in updates
            if value in outputs or any(ancestors[other] & ~ancestors[kernel] for other in readers[value])
        }

    def _add_copy(self, kernel: Kernel, instruction: _Instruction) -> None:
        """Add the copy of a constant that a kernel updates to the kernel that fills the constant."""
        constant = self.copied_constants[kernel]
        source, _ = self._sources[constant]
        fill = source if source.kernel is not None else source.operands[0]
        self._fills[kernel, 0] = fill
        buffer = self._allocate(fill, constant.type.nbytes)
        instruction.operands.append(fill)
        instruction.reads.append(buffer)
        self._filled.setdefault(kernel, []).append(buffer)

    def _add_fills(self, kernel: Kernel, instruction: _Instruction) -> None:
        """Add the instructions that fill the results of a loop with zeros, or with a constant initial value.

        XLA merges equal constants. It needs a copy for each loop, and computes all copies in one kernel.
        """
        op, inputs, outputs = kernel.root.op, kernel.root.inputs, kernel.root.outputs
        assert isinstance(op, Control)
        for binding in op.bindings:
            source = binding.sources[0]
            constant: Hashable = 0
            if source.kind == "operand":
                fill_op = self._constants.get(inputs[source.number])
                if fill_op is None:
                    continue
                constant = fill_op.value.array.item()
            for end in binding.targets:
                if end.kind == "result":
                    type = outputs[end.number].type
                    key = type.shape, type.dtype, constant
                    fill = self._fill_of.setdefault(key, self._new())
                    self._fills[kernel, end.number] = fill
                    buffer = self._allocate(fill, type.nbytes)
                    instruction.operands.append(fill)
                    instruction.reads.append(buffer)
                    self._filled.setdefault(kernel, []).append(buffer)

    def _add_views(self, groups: KernelGroups) -> None:
        """Add barriers, and let views have the buffers of their operands. Adjacent barriers are one instruction."""
        barrier: _Instruction | None = None
        launch = None
        for equation in self.program.equations:
            op = equation.op
            if not op.fusion.is_barrier:
                barrier = None
            elif barrier is None or op.launch != launch:
                barrier, launch = self._new(), op.launch
            if barrier is not None:
                self._connect(barrier, equation.inputs)
                barrier.rank = max([operand.rank for operand in barrier.operands], default=-1)
            elif groups.storage.keys().isdisjoint(equation.outputs):
                continue
            for operand, result in zip(equation.inputs, equation.outputs, strict=False):
                if operand in self._sources:
                    source, buffers = self._sources[operand]
                    self._sources[result] = barrier or source, buffers

    def _connect(self, instruction: _Instruction, values: Iterable[Value]) -> None:
        """Let an instruction read the values that have a source."""
        operands: dict[_Instruction, None] = dict.fromkeys(instruction.operands)
        reads: dict[int, None] = dict.fromkeys(instruction.reads)
        for value in values:
            source = self._sources.get(value)
            # A kernel that reads its own result behind a barrier would wait for itself.
            if source is None or (instruction.kernel is not None and source[0].rank >= instruction.rank):
                continue
            operands[source[0]] = None
            reads.update(dict.fromkeys(source[1]))
        instruction.operands, instruction.reads = list(operands), list(reads)

    def _list(self) -> list[_Instruction]:
        """Return the instructions in the order "list". Of equal ones, the one that became ready last comes first."""
        unread = dict.fromkeys(self._sizes, 0)  # for each buffer, the reads that are not scheduled yet
        for instruction in (*self._instructions, self._outputs):
            for buffer in instruction.reads:
                unread[buffer] += 1

        def priority(instruction: _Instruction) -> tuple[bool, int, int]:
            freed = sum([self._sizes[buffer] for buffer in instruction.reads if unread[buffer] == 1])
            allocated = instruction.passed + sum(instruction.sizes.values())
            return instruction.is_scalar, freed - allocated, len(instruction.users)

        missing = {instruction: len(instruction.operands) for instruction in self._instructions}
        current: dict[_Instruction, tuple[bool, int, int]] = {}  # the priorities of those that are ready
        queue: list[tuple[bool, int, int, int, _Instruction]] = []
        count = 0

        def push(instruction: _Instruction) -> None:
            nonlocal count
            count += 1
            current[instruction] = is_scalar, freed, users = priority(instruction)
            heapq.heappush(queue, (not is_scalar, -freed, -users, -count, instruction))

        for instruction in self._instructions:
            if not missing[instruction]:
                push(instruction)
        schedule = []
        while queue:
            is_array, freed, users, _, best = heapq.heappop(queue)
            if current.get(best) != (not is_array, -freed, -users):
                continue  # it has another priority by now, or is scheduled
            del current[best]
            schedule.append(best)
            is_last = False  # whether some buffer has only one read left
            for buffer in best.reads:
                unread[buffer] -= 1
                is_last |= unread[buffer] == 1
            for user in best.users:
                missing[user] -= 1
                if not missing[user]:
                    push(user)
            if is_last:
                for user in {user: None for operand in best.operands for user in operand.users}:
                    if user in current and current[user] != priority(user):
                        push(user)
        return schedule

    def _depth_first(self) -> list[_Instruction]:
        readers: dict[_Instruction, int] = {}
        sizes: dict[_Instruction, int] = {}
        total = 0
        for instruction in self._postorder():
            own = sum(instruction.sizes.values())
            total += own
            count = max(0, len(instruction.users) - 1) + sum([readers[operand] for operand in instruction.operands])
            readers[instruction] = min(count, len(self._instructions))
            sizes[instruction] = min(total, own + sum([sizes[operand] for operand in instruction.operands]))
        return self._postorder(lambda instruction: (-readers[instruction], -sizes[instruction]))

    def _postorder(self, key: Callable[[_Instruction], tuple[int, int]] | None = None) -> list[_Instruction]:
        schedule: list[_Instruction] = []
        seen: set[_Instruction] = set()

        def operands(instruction: _Instruction) -> Sequence[_Instruction]:
            return instruction.operands if key is None else sorted(instruction.operands, key=key)

        ends = [instruction for instruction in self._instructions if not instruction.users]
        for start in (*operands(self._outputs), *ends):
            if start in seen:
                continue
            seen.add(start)
            stack = [(start, iter(operands(start)))]
            while stack:
                instruction, pending = stack[-1]
                for operand in pending:
                    if operand not in seen:
                        seen.add(operand)
                        stack.append((operand, iter(operands(operand))))
                        break
                else:
                    stack.pop()
                    schedule.append(instruction)
        return schedule


@final
class ModuleSchedule:
    """The order of the kernels of a program, and of all programs that it contains.

    Attributes:
        order: which of `ORDERS` XLA selects.
    """

    def __init__(self, program: Program, groups: Callable[[Program], KernelGroups], workspace: Workspace):
        self._program = program
        self._groups, self._workspace = groups, workspace
        self._schedules: dict[KernelGroups, MemorySchedule] = {}
        least: dict[str, int] = {order: self._live_bytes(program, order) for order in ORDERS}
        self.order = min(ORDERS, key=least.__getitem__)

    def kernels(self, program: Program) -> list[Kernel]:
        """Return the kernels of the program, or of one that it contains, in the selected order."""
        return self._schedule(program).kernels(self.order)

    def copied_constant(self, program: Program, kernel: Kernel) -> Value | None:
        """Return the constant of which a kernel updates a copy; None for other kernels."""
        return self._schedule(program).copied_constants.get(kernel)

    def fill_index(self, program: Program, kernel: Kernel, result: int) -> int | None:
        """See `MemorySchedule.fill_index`."""
        return self._schedule(program).fill_index(self.order, kernel, result)

    def _schedule(self, program: Program) -> MemorySchedule:
        groups = self._groups(program)
        if groups not in self._schedules:
            self._schedules[groups] = MemorySchedule(groups, self._workspace, program is self._program)
        return self._schedules[groups]

    def _live_bytes(self, program: Program, order: str) -> int:
        schedule = self._schedule(program)
        nested = {
            kernel: max([self._live_bytes(inner, order) for inner in kernel.root.op.programs])
            for kernel in schedule.kernels(order)
            if kernel.root.op.programs
        }
        return schedule.live_bytes(order, nested)
