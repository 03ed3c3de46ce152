"""translate: a kernel's body, a Program with memory ops, as Triton IR.

In: the body, whose inputs are the indices of a step of the grid, and the types of the arrays. Out: the module, and
which results are written by several steps. What is not translated raises OutsideSubset.
"""

from collections.abc import Callable, Container, Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any, TypeAlias, final

import numpy as np

from shardwise.compiler.control.call import CallLike
from shardwise.compiler.control.cond import Cond
from shardwise.compiler.control.scan import Scan
from shardwise.compiler.control.while_loop import While
from shardwise.compiler.dtypes import is_float
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.pallas.access_order import AccessRecord, access_spans
from shardwise.compiler.kernels.pallas.elementwise import emit_elementwise
from shardwise.compiler.kernels.pallas.loops import Counter, counter_step, counting_loop
from shardwise.compiler.kernels.pallas.memory import Address, AddressBuilder, Memory
from shardwise.compiler.kernels.pallas.memory_ops import TOKEN, Access, AtomicUpdate, Load, OpenBlock, Store
from shardwise.compiler.kernels.pallas.ranges import pinned_axes, result_range
from shardwise.compiler.kernels.pallas.shapes import SHAPE_RULES
from shardwise.compiler.kernels.pallas.tile import OutsideSubset, Range, Tile, check_size, padded_shape
from shardwise.compiler.kernels.triton_ir import I1, I8, Block, Pointer, TritonBuilder, has_blocks
from shardwise.compiler.ops.elementwise.base import Elementwise

Entry: TypeAlias = Tile | Memory


def stored_type(type: ArrayType) -> ArrayType:
    """Return the type of an array as a kernel's parameter: booleans are bytes."""
    return type.with_dtype(I8) if type.dtype == I1 else type


@final
class Translator:
    """Translates the body of one kernel.

    Args:
        kernel: the builder.
        grid: the number of steps along each axis.
        arrays: the types of the operands and results, without batch dims.
        operands: the number of operands among them, which come first.
        pointers: the addresses of their first elements.
        limit: the number of elements of the largest tile.

    Attributes:
        grid: the number of steps along each axis, then those of the loops so far, whose iterations are axes too.
        accesses: for each array, its loads and stores in order.
        shared: for each array that is written, the axes of the grid along which several steps may write an element.
        overlapping: for each array, the axes of the grid along which the blocks of several steps may overlap.
        largest: the number of elements of the largest tile so far.
    """

    def __init__(
        self,
        kernel: TritonBuilder,
        grid: Sequence[int],
        arrays: Sequence[ArrayType],
        operands: int,
        pointers: Sequence[Pointer],
        limit: int,
    ):
        self.kernel = kernel
        self.grid = [*grid]
        self._grid_axes = {axis for axis, size in enumerate(grid) if size > 1}
        self.arrays = arrays
        self.operands = operands
        self.pointers = pointers
        self.limit = limit
        self.addresses = AddressBuilder(kernel, self.grid)
        self.accesses: dict[int, list[AccessRecord]] = {}
        self.shared: dict[int, set[int]] = {}
        self.overlapping: dict[int, set[int]] = {}
        self.largest = 1
        self._guards: list[frozenset[int]] = []
        self._loops: list[int | None] = []
        self._count = 0

    @property
    def loaded(self) -> set[int]:
        """The arrays that are read."""
        return {array for array, records in self.accesses.items() if not all(record.writes for record in records)}

    def run(self, program: Program, inputs: Sequence[Entry]) -> list[Any]:
        """Emit a program, and return its outputs."""
        env: dict[Value, Any] = dict(zip(program.inputs, inputs, strict=True))
        for equation in program.equations:
            operands = [env[value] for value in equation.inputs]
            try:
                results = self._equation(equation, operands)
            except OutsideSubset as reason:
                if equation.source.file and not getattr(reason, "is_placed", False):
                    placed = OutsideSubset(f"{reason} ({equation.source.place})")
                    placed.is_placed = True  # type: ignore[attr-defined]
                    raise placed from None
                raise
            env.update(zip(equation.outputs, results, strict=True))
        return [env[value] for value in program.outputs]

    def _equation(self, equation: Equation, operands: list[Any]) -> Sequence[Entry]:
        op: Any = equation.op
        rule: Callable[..., Sequence[Entry]] | None = _CONTROL.get(type(op))
        if rule is not None:
            return rule(self, op, operands, equation)
        if isinstance(op, CallLike):
            return self.run(op.inlined_program, operands)
        if any(isinstance(x, Memory) for x in operands):
            raise OutsideSubset(f"the op {op.name} of a Ref")
        (out,) = equation.outputs
        if not has_blocks(out.type.dtype):
            raise OutsideSubset(f"a value of type {out.type}")
        check_size(out.type.shape, self.limit, f"a value of type {out.type}")
        self.largest = max(self.largest, int(np.prod(padded_shape(out.type.shape))))
        if op.name in SHAPE_RULES:
            return [SHAPE_RULES[op.name](self.kernel, op, operands, out.type)]
        if not isinstance(op, Elementwise):
            raise OutsideSubset(f"the op {op.name}")
        is_integer = out.type.dtype.kind in "iu"
        divides = op.name in ("div", "rem") and is_integer and self._is_positive(operands[1])
        block = emit_elementwise(self.kernel, op, [x.block for x in operands], out.type.dtype, divides)
        known = result_range(op, operands, self.grid, out.type.dtype) if is_integer else None
        pinned = pinned_axes(op, operands) if out.type.dtype == I1 or op.name == "convert" else frozenset()
        return [Tile(block, out.type.shape, known, pinned)]

    def _is_positive(self, x: Tile) -> bool:
        return x.range is not None and x.range.over(self.grid).low > 0

    # Memory.

    def _open(self, op: OpenBlock, operands: list[Any], equation: Equation) -> Sequence[Entry]:
        type = self.arrays[op.array]
        starts = []
        for start, size, block in zip(operands, type.shape, op.sizes, strict=True):
            last = 0 if not block else -(-size // block) * block - block
            starts.append(self.addresses.clamped(start, max(0, last)))
        blocks = [
            start.range and start.range.plus(Range(0, size - 1)) for start, size in zip(starts, op.sizes, strict=True)
        ]
        self.overlapping[op.array] = self._grid_axes - self._apart(blocks, self._grid_axes)
        return [Memory(op.array, self.pointers[op.array], type, tuple(starts), op.sizes, op.squeezed)]

    def _access(self, op: Access, operands: list[Any]) -> tuple[Memory, Address, list[Any]]:
        """Return the memory, the address, and the operands between the indices and the mask."""
        memory, *rest = operands
        assert isinstance(memory, Memory)
        check_size(op.shape, self.limit, f"an access of shape {op.shape}")
        self.largest = max(self.largest, int(np.prod(padded_shape(op.shape))))
        mask = rest.pop() if op.masked else None
        indices, values = rest[: len(op.dims)], rest[len(op.dims) :]
        writes = not isinstance(op, Load)
        if writes and memory.array < self.operands:
            raise OutsideSubset(f"the kernel writes to operand {memory.array}")
        self._count += 1
        spans = access_spans(op, [index.range for index in indices], memory.visible_sizes)
        address = self.addresses.address(memory, op, indices, mask)
        collides = isinstance(op, Store) and bool(op.shape) and None in spans and self._may_collide(address, mask)
        record = AccessRecord(self._count, writes, spans, not op.shape, bool(self._loops), collides)
        self.accesses.setdefault(memory.array, []).append(record)
        return memory, address, values

    def _load(self, op: Load, operands: list[Any], equation: Equation) -> Sequence[Entry]:
        _, address, (other,) = self._access(op, operands)
        filled = other.block.to(stored_type(op.elements).dtype)
        block = self.kernel.load(address.pointer, address.offsets, address.mask, filled, op.eviction)
        return [Tile(block.to(op.dtype), op.shape)]

    def _store(self, op: Store, operands: list[Any], equation: Equation) -> Sequence[Entry]:
        memory, address, (value,) = self._access(op, operands)
        self.kernel.store(address.pointer, address.offsets, value.block, address.mask)
        self._note_write(memory, address, op, operands[-1] if op.masked else None)
        return [memory]

    def _update(self, op: AtomicUpdate, operands: list[Any], equation: Equation) -> Sequence[Entry]:
        memory, address, values = self._access(op, operands)
        self.shared.setdefault(memory.array, set())
        kind = op.kind
        if op.kind == "cas":
            expected, value = values
            if op.shape:
                raise OutsideSubset("atomic_cas of an array")
            place = address.pointer.advance(address.offsets)
            return [Tile(self.kernel.compare_and_swap(place, expected.block, value.block), ()), memory]
        if is_float(op.dtype):
            if kind not in ("add", "exch"):
                raise OutsideSubset(f"an atomic {kind} of {op.dtype}")
            kind = "fadd" if kind == "add" else kind
        elif op.dtype.kind == "u" and kind in ("max", "min"):
            kind = f"u{kind}"
        if op.dtype.itemsize < 4 and not (is_float(op.dtype) and op.dtype.itemsize == 2 and kind == "fadd"):
            raise OutsideSubset(f"an atomic update of {op.dtype}")
        block = self.kernel.atomic(kind, address.pointer, address.offsets, values[0].block, address.mask)
        return [Tile(block, op.shape), memory]

    def _note_write(self, memory: Memory, address: Address, op: Access, mask: Tile | None) -> None:
        """Record the axes of the grid along which this write may reach elements that other steps write too."""
        apart = self._apart(address.ranges, self._grid_axes).union(*self._guards, _pinned(mask))
        self.shared.setdefault(memory.array, set()).update(self._grid_axes - apart)

    def _apart(self, ranges: Sequence[Range | None], axes: Set[int]) -> set[int]:
        """Return those of `axes` along which the sets of indices of different steps are disjoint.

        The position along other axes may be any in both steps.
        """
        apart = set()
        for range in ranges:
            own = range.over(self.grid, axes) if range is not None else None
            if own is not None and len(own.factors) == 1:
                ((axis, factor),) = own.factors
                if abs(factor) > own.high - own.low:
                    apart.add(axis)
        return apart

    def _may_collide(self, address: Address, mask: Tile | None) -> bool:
        """Return whether an address may have an element in two iterations of the loops around it."""
        once = frozenset[int]().union(*self._guards, _pinned(mask))
        open = {axis for axis in self._loops if axis is not None} - once
        fixed = self._grid_axes | once  # axes whose position is the same in both iterations
        if None in self._loops:
            return True
        while open:
            found = {axis for axis in open if self._apart([_without(range, fixed) for range in address.ranges], {axis})}
            if not found:
                return True
            open, fixed = open - found, fixed | found
        return False

    # Control flow.

    def _scan(self, op: Scan, operands: list[Any], equation: Equation) -> Sequence[Entry]:
        if len(op.program.inputs) > op.consts + op.carried or len(op.program.outputs) > op.carried:
            raise OutsideSubset("a scan over slices of an array")
        consts, start = operands[: op.consts], operands[op.consts :]
        steps = {}
        for number, first in enumerate(start):
            step = counter_step(op.program, op.consts + number, number)
            if step is not None and first.range is not None:
                steps[number] = step

        axis = self._loop_axis(op.length)

        def counted(number: int, index: Block | int, position: Range) -> Tile:
            first, step = start[number], steps[number]
            offset = position.times(step)
            known = offset and first.range.plus(offset)
            if isinstance(index, int):
                return Tile(first.block + index * step, (), known)
            scaled = index if step == 1 else index * step
            return Tile(scaled if first.range == Range(0, 0) else first.block + scaled, (), known)

        def body(index: Block, carries: list[Any]) -> list[Any]:
            for number in steps:
                carries[number] = counted(number, index, Range(0, 0, ((axis, 1),)))
            return self.run(op.program, [*consts, *carries])

        results = self._for_loop(op.length, 0, start, body, set(steps), axis)
        for number in steps:
            results[number] = counted(number, op.length, Range(op.length, op.length))
        return results

    def _for_loop(
        self,
        limit: Block | int,
        first: Block | int,
        start: list[Any],
        body: Callable[[Block, list[Any]], list[Any]],
        counters: Container[int],
        axis: int | None,
    ) -> list[Any]:
        """Emit a loop, which carries neither memory nor the carries that count iterations along `axis`."""
        carried = [number for number, x in enumerate(start) if isinstance(x, Tile) and number not in counters]

        def run(index: Block, *blocks: Block) -> list[Block]:
            return self._checked(start, carried, body(index, self._entries(start, carried, blocks)))

        with self._repeated(axis):
            results = self.kernel.loop(limit, 1, self._blocks(start, carried), run, first)
        return self._entries(start, carried, results)

    @contextmanager
    def _repeated(self, axis: int | None) -> Iterator[None]:
        """Record that accesses inside a `with` block are in a loop. `axis` is its axis, None if unknown."""
        self._loops.append(axis)
        yield
        self._loops.pop()

    def _loop_axis(self, length: int) -> int:
        """Return a new axis for the iterations of a loop."""
        self.grid.append(max(1, length))
        return len(self.grid) - 1

    def _blocks(self, entries: list[Any], carried: Sequence[int]) -> list[Block]:
        return [entries[number].block for number in carried]

    def _entries(self, like: list[Any], carried: Sequence[int], blocks: Sequence[Block]) -> list[Any]:
        """Return entries like the given ones, with other blocks for the carried ones."""
        entries = list(like)
        for number, block in zip(carried, blocks, strict=True):
            entries[number] = Tile(block, like[number].shape)
        return entries

    def _checked(self, like: list[Any], carried: Sequence[int], results: list[Any]) -> list[Block]:
        """Return the blocks of results, of which the memory must be that of `like`."""
        for before, after in zip(like, results, strict=True):
            if isinstance(before, Memory) and after is not before:
                raise OutsideSubset("control flow that exchanges Refs")
        return self._blocks(results, carried)

    def _while(self, op: While, operands: list[Any], equation: Equation) -> Sequence[Entry]:
        of_cond, of_body = operands[: op.cond_consts], operands[op.cond_consts :][: op.body_consts]
        start = operands[op.cond_consts + op.body_consts :]
        counter = counting_loop(op)
        if counter is not None:
            return self._counting(op, counter, of_cond, of_body, start)
        carried = [number for number, x in enumerate(start) if isinstance(x, Tile)]

        def condition(*blocks: Block) -> Block:
            (holds,) = self.run(op.cond, [*of_cond, *self._entries(start, carried, blocks)])
            return holds.block  # type: ignore[no-any-return]

        def body(*blocks: Block) -> list[Block]:
            results = self.run(op.body, [*of_body, *self._entries(start, carried, blocks)])
            return self._checked(start, carried, results)

        with self._repeated(None):
            results = self.kernel.repeat(self._blocks(start, carried), condition, body)
        return self._entries(start, carried, results)

    def _counting(
        self, op: While, counter: Counter, of_cond: list[Any], of_body: list[Any], start: list[Any]
    ) -> list[Any]:
        """Emit a while loop whose carry `counter.carry` counts up to a bound, as a loop that Triton can pipeline."""
        bound = of_cond[counter.stop_const] if counter.stop_const is not None else start[counter.stop_carry or 0]
        first = start[counter.carry]
        known = axis = None
        if first.range is not None and bound.range is not None:
            low, high = first.range.over(self.grid).low, bound.range.over(self.grid).high - 1
            known = Range(low, max(low, high))
            if first.range == Range(low, low):
                axis = self._loop_axis(high - low + 1)
                known = Range(low, low, ((axis, 1),))

        def body(index: Block, carries: list[Any]) -> list[Any]:
            carries[counter.carry] = Tile(index, (), known)
            return self.run(op.body, [*of_body, *carries])

        results = self._for_loop(bound.block, first.block, start, body, {counter.carry}, axis)
        last = self.kernel.arithmetic("maxs", first.block, bound.block)
        results[counter.carry] = Tile(last, ())
        return results

    def _cond(self, op: Cond, operands: list[Any], equation: Equation) -> Sequence[Entry]:
        index, *rest = operands
        return self._choose(index, list(op.branches), 0, rest)

    def _choose(self, index: Tile, branches: list[Program], number: int, operands: list[Any]) -> list[Any]:
        """Emit the branches from `number` on."""
        if number == len(branches) - 1:
            return self.run(branches[number], operands)
        memories: dict[int, Memory] = {}

        def emit(run: Callable[[], list[Any]], pinned: frozenset[int]) -> list[Block]:
            self._guards.append(pinned)
            results = run()
            self._guards.pop()
            for position, entry in enumerate(results):
                if isinstance(entry, Memory) and memories.setdefault(position, entry) is not entry:
                    raise OutsideSubset("control flow that exchanges Refs")
            return [entry.block for entry in results if isinstance(entry, Tile)]

        types = branches[number].out_types
        blocks = iter(
            self.kernel.choose(
                self.kernel.compare("eq", index.block, number),
                [(padded_shape(type.shape), type.dtype) for type in types if type != TOKEN],
                lambda: emit(lambda: self.run(branches[number], operands), frozenset()),
                lambda: emit(lambda: self._choose(index, branches, number + 1, operands), index.pinned),
            )
        )
        return [
            memories[position] if type == TOKEN else Tile(next(blocks), type.shape)
            for position, type in enumerate(types)
        ]


_CONTROL: dict[Any, Callable[..., Sequence[Entry]]] = {
    OpenBlock: Translator._open,
    Load: Translator._load,
    Store: Translator._store,
    AtomicUpdate: Translator._update,
    Scan: Translator._scan,
    While: Translator._while,
    Cond: Translator._cond,
}


def _pinned(mask: Tile | None) -> frozenset[int]:
    return frozenset() if mask is None else mask.pinned


def _without(range: Range | None, axes: Set[int]) -> Range | None:
    """Return the range relative to a position along axes."""
    if range is None:
        return None
    return Range(range.low, range.high, tuple(pair for pair in range.factors if pair[0] not in axes))
