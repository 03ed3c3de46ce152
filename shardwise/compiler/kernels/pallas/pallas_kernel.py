"""PallasKernel: a kernel of `pallas_call` as an op: Triton on NVIDIA GPUs, and a loop over its grid elsewhere."""

import math
import re
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, NamedTuple, final

from shardwise.base.caches import registered_cache
from shardwise.compiler.control.make_varying import cast_to_varying, make_varying
from shardwise.compiler.ir.op import BatchAxis, LocalContext, varying
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.kernel import KernelOp, Launch, plain_program
from shardwise.compiler.kernels.pallas.access_order import AccessRecord, reads_first, unordered
from shardwise.compiler.kernels.pallas.memory_ops import OpenBlock
from shardwise.compiler.kernels.pallas.shapes import full_tile
from shardwise.compiler.kernels.pallas.tile import OutsideSubset, Range, Tile
from shardwise.compiler.kernels.pallas.translate import Translator, stored_type
from shardwise.compiler.kernels.triton_ir import I32, I64, Block, Pointer, TritonBuilder, has_blocks
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.transforms.replay import replay
from shardwise.compiler.transforms.vmap import vmap

_MOST_ELEMENTS = 2**31
_LARGEST_TILE = 2**16  # of kernels that are not written for Triton
_LARGEST_TRITON_TILE = 2**20  # Triton has no larger ones
_WIDE_TILE = 2**14


@final
class Batch(NamedTuple):
    """A dim that vmap added: its size, and for each operand whether it has the dim. All results do."""

    size: int
    has_dim: tuple[bool, ...]


@final
class Translation(NamedTuple):
    """A kernel in Triton IR, or the reason why there is none.

    Attributes:
        obstacle: the reason; "" if there is none.
        name: the name of the function.
        module: the module.
        warps: the number of warps of a program.
        repeated: the operands that are passed again, because a result overwrites a copy of them.
        written: pairs (result, index among the operands and the repeated ones).
    """

    obstacle: str
    name: str = ""
    module: str = ""
    warps: int = 4
    repeated: tuple[int, ...] = ()
    written: tuple[tuple[int, int], ...] = ()


@final
@record
class PallasKernel(KernelOp):
    """A kernel of `pallas_call`.

    Attributes:
        title: its name.
        body: the program of one step: indices of the grid → tokens.
        interpreted: the program of all steps: operands → results.
        grid: the number of steps along each axis, of which the first one is the fastest on a GPU.
        aliases: pairs (result, operand whose values it starts with).
        warps: the number of warps of a step; None for a choice.
        stages: the number of stages of pipelined loops.
        is_triton: whether it was written for Triton, whose steps run at the same time.
        batch: the dims that vmap added, outermost first. They are the first dims of the operands that have them.
    """

    name = "pallas_call"
    title: str
    body: Program = field(repr=False)
    interpreted: Program = field(repr=False)
    grid: tuple[int, ...]
    aliases: tuple[tuple[int, int], ...] = ()
    warps: int | None = None
    stages: int = 3
    is_triton: bool = False
    batch: tuple[Batch, ...] = ()

    @property
    def label(self) -> str:
        return self.title

    def in_types(self) -> tuple[ArrayType, ...]:
        """Return the types of the operands, with batch dims."""
        return tuple(
            type.with_shape((*(batch.size for batch in self.batch if batch.has_dim[index]), *type.shape))
            for index, type in enumerate(self.interpreted.in_types)
        )

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        expected = self.in_types()
        if tuple(type.plain.strong() for type in types) != expected:
            raise TypeError(f"pallas_call: {self.title} takes {expected}, not {types}")
        sizes = tuple(batch.size for batch in self.batch)
        return tuple(type.with_shape((*sizes, *type.shape)) for type in self.interpreted.out_types)

    def factors(self, *types: ArrayType) -> FactorRule:
        """Only batch dims can be sharded: what a step reads is not known."""
        sizes = [batch.size for batch in self.batch]

        def dims(leading: Sequence[int], type: ArrayType) -> tuple[tuple[int, ...], ...]:
            first = len(sizes)
            sizes.extend(type.shape)
            return (*((factor,) for factor in leading), *((factor,) for factor in range(first, len(sizes))))

        every = range(len(self.batch))
        operands = tuple(
            dims([number for number in every if self.batch[number].has_dim[index]], type)
            for index, type in enumerate(self.interpreted.in_types)
        )
        results = tuple(dims(every, type) for type in self.interpreted.out_types)
        fixed = frozenset(range(len(self.batch), len(sizes)))
        return FactorRule(operands, results, tuple(sizes), need_replication=fixed)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        shape = context.out_shapes[0]
        local = tuple(batch._replace(size=shape[number]) for number, batch in enumerate(self.batch))
        return replace(self, batch=local)(*operands)

    def fused_bytes(self, operands: Sequence[ArrayType], results: Sequence[ArrayType]) -> float:
        return sum(type.nbytes for type in (*operands, *results))

    def plain(self, *operands: Any) -> list[Any]:
        axes = varying([x.type for x in operands])  # the program is of replicated arrays
        operands = tuple(cast_to_varying(x, axes) for x in operands)
        if not self.batch:
            return list(replay(make_varying(self.interpreted, axes) if axes else self.interpreted, operands))
        outer, *inner = self.batch
        one = replace(self, batch=tuple(inner))
        dims = [0 if has else None for has in outer.has_dim]
        types = tuple(type.with_varying(axes) for type in one.in_types())
        results, out_dims = vmap(plain_program(one, types), BatchAxis(outer.size), operands, dims)
        return [batch_dim_at(x, dim, 0, outer.size) for x, dim in zip(results, out_dims, strict=True)]

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        overwritten = {operand for _, operand in self.aliases}
        has_dim = tuple(dim is not None or index in overwritten for index, dim in enumerate(dims))
        leading = [
            batch_dim_at(x, dim, 0, axis.size) if has else x
            for x, dim, has in zip(operands, dims, has_dim, strict=True)
        ]
        results = replace(self, batch=(Batch(axis.size, has_dim), *self.batch))(*leading)
        return results, (0,) * len(results)

    def obstacle(self, *types: ArrayType) -> str:
        return translation(self).obstacle

    def kernel_launch(self, *types: ArrayType) -> Launch:
        found = translation(self)
        programs = math.prod(self.grid) * math.prod(batch.size for batch in self.batch)
        results = self.out_types(*types)
        return Launch(
            programs, found.warps, results, stages=self.stages, written=found.written, repeated=found.repeated
        )

    def triton_ir(self, launch: Launch, *types: ArrayType) -> tuple[str, str]:
        found = translation(self)
        return found.name, found.module


@registered_cache(maxsize=1024)
def translation(op: PallasKernel) -> Translation:
    """Return a kernel in Triton IR, or why it is not translated."""
    try:
        return _translation(op)
    except OutsideSubset as reason:
        return Translation(str(reason))


def _translation(op: PallasKernel) -> Translation:
    inputs, outputs = op.in_types(), op.out_types(*op.in_types())
    arrays = [*op.interpreted.in_types, *op.interpreted.out_types]
    for type in (*inputs, *outputs):
        if not has_blocks(type.dtype):
            raise OutsideSubset(f"{type} has a dtype that Triton kernels do not have")
        if not type.size:
            raise OutsideSubset(f"{type} is empty")
    for type in arrays:
        if type.size >= _MOST_ELEMENTS:
            raise OutsideSubset(f"offsets of 32 bits do not reach all elements of {type}")
    programs = math.prod(op.grid) * math.prod(batch.size for batch in op.batch)
    if not 0 < programs < _MOST_ELEMENTS:
        raise OutsideSubset(f"a grid of {programs} steps")

    # The pointers are those of the operands, of repeated ones, and of the results. Which ones are repeated is known
    # after the translation, so all that may be are parameters of a first one.
    places = _in_place(op)
    repeated = tuple(operand for result, operand in op.aliases if result not in places)
    name = re.sub(r"\W", "_", op.title, flags=re.ASCII) or "kernel"
    parameters = [*inputs, *(inputs[index] for index in repeated), *outputs]
    kernel = TritonBuilder(name, [stored_type(type) for type in parameters])
    translator = _translate(op, kernel, arrays, len(repeated))
    if not op.is_triton:
        _check_steps(op, translator, len(inputs))
    warps = op.warps or (8 if translator.largest > _WIDE_TILE else 4)
    copies = iter(range(len(inputs), len(inputs) + len(repeated)))
    written = tuple((result, operand if result in places else next(copies)) for result, operand in op.aliases)
    return Translation("", name, kernel.text(), warps, repeated, written)


def _translate(op: PallasKernel, kernel: TritonBuilder, arrays: Sequence[ArrayType], repeated: int) -> Translator:
    """Emit the kernel."""
    steps, batch = _indices(op, kernel)
    count = len(op.interpreted.in_types)
    own = [*kernel.pointers[:count], *kernel.pointers[count + repeated :]]
    pointers = [
        _batch_pointer(pointer, [index for index, has in batch if has(number)], type, op)
        for number, (pointer, type) in enumerate(zip(own, arrays, strict=True))
    ]
    limit = _LARGEST_TRITON_TILE if op.is_triton else _LARGEST_TILE
    translator = Translator(kernel, op.grid, arrays, count, pointers, limit)
    translator.run(op.body, steps)
    return translator


def _indices(op: PallasKernel, kernel: TritonBuilder) -> tuple[list[Tile], list[Any]]:
    """Return the indices of a program along the axes of the grid, and along batch dims.

    A batch dim is a pair: its index and size, and a function that says whether an array, by its index, has the dim.
    """
    sizes = [*op.grid, *(batch.size for batch in reversed(op.batch))]
    rest: Block | None = None
    blocks: list[Block | None] = []
    for number, size in enumerate(sizes):
        if size == 1:
            blocks.append(None)
            continue
        rest = kernel.program_id() if rest is None else rest
        is_last = all(other == 1 for other in sizes[number + 1 :])
        blocks.append(rest if is_last else rest % size)
        rest = rest if is_last else rest // size
    steps = [
        full_tile(kernel, (), 0, I32) if block is None else Tile(block, (), Range(0, 0, ((axis, 1),)))
        for axis, block in enumerate(blocks[: len(op.grid)])
    ]
    count = len(op.interpreted.in_types)
    batch = []
    for dim, block in zip(reversed(op.batch), blocks[len(op.grid) :], strict=True):
        batch.append(((block, dim.size), lambda number, dim=dim: number >= count or dim.has_dim[number]))
    return steps, batch


def _batch_pointer(
    pointer: Pointer, dims: Sequence[tuple[Block | None, int]], type: ArrayType, op: PallasKernel
) -> Pointer:
    """Return the address of the array of one example.

    `dims` has the index and the size of batch dims, innermost first.
    """
    total = type.size * math.prod(size for _, size in dims)
    stride = type.size
    for index, size in dims:
        if index is not None:
            wide = index.to(I64) if total >= _MOST_ELEMENTS else index
            pointer = pointer.advance(wide * stride)
        stride *= size
    return pointer


def _in_place(op: PallasKernel) -> frozenset[int]:
    """Return the results that overwrite the operand that they start with, not a copy.

    No thread may read an element of the operand that another one has overwritten: the operand is not read, or every
    step sees the same block of both, no blocks overlap, and a step reads all elements before it writes the same ones.
    """
    if not op.aliases:
        return frozenset()
    arrays = [*op.interpreted.in_types, *op.interpreted.out_types]
    draft = TritonBuilder("draft", [stored_type(type) for type in (*op.in_types(), *op.out_types(*op.in_types()))])
    translator = _translate(op, draft, arrays, 0)
    count = len(op.interpreted.in_types)
    return frozenset(
        result
        for result, operand in op.aliases
        if operand not in translator.loaded
        or (
            not translator.overlapping.get(count + result, {0})
            and _block_expression(op.body, operand) == _block_expression(op.body, count + result)
            and reads_first(translator.accesses[operand], _writes(translator, count + result))
        )
    )


def _writes(translator: Translator, array: int) -> list[AccessRecord]:
    return [access for access in translator.accesses.get(array, []) if access.writes]


def _block_expression(body: Program, array: int) -> Any:
    """Return the sizes of the blocks of an array, and their first elements, as expressions of the inputs."""
    producers = body.producers()

    def expression(value: Value) -> Any:
        equation = producers.get(value)
        return value if equation is None else _applied(equation, [expression(x) for x in equation.inputs])

    for equation in body.equations:
        if isinstance(equation.op, OpenBlock) and equation.op.array == array:
            return equation.op.sizes, equation.op.squeezed, tuple(map(expression, equation.inputs))
    return None


def _applied(equation: Equation, operands: Sequence[Any]) -> Any:
    return (equation.op, *operands)


def _check_steps(op: PallasKernel, translator: Translator, count: int) -> None:
    """Raise OutsideSubset if a step may depend on another one, in a kernel that was not written for Triton."""
    advice = "pass compiler_params=pallas.triton.CompilerParams() if they may run at the same time"
    for array, axes in translator.shared.items():
        if axes:
            raise OutsideSubset(
                f"steps along axis {min(axes)} of the grid may write the same elements of result {array - count}; "
                f"{advice}"
            )
        if array in translator.loaded and translator.overlapping[array]:
            raise OutsideSubset(f"a step may read what another one wrote to result {array - count}; {advice}")
        if obstacle := unordered(translator.accesses[array]):
            raise OutsideSubset(
                f"a step {obstacle} of result {array - count}, and its threads do not wait for each other: keep the "
                "elements in a variable, and write each of them once"
            )
