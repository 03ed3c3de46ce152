"""run_kernel: run a kernel as an op, which NVIDIA GPUs compile with Triton, or interpret it in the caller's program."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import shardwise.numpy as jnp
from shardwise import tree
from shardwise.api.ref import Ref
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.pallas.memory_ops import OpenBlock
from shardwise.compiler.kernels.pallas.pallas_kernel import PallasKernel
from shardwise.compiler.kernels.pallas.tile import OutsideSubset
from shardwise.compiler.ops.elementwise.identities import InterpretedKernel
from shardwise.compiler.trace.build import build
from shardwise.experimental.pallas.block_spec import BlockSpec, BoundedSlice, Element
from shardwise.experimental.pallas.blocks import BlockMapping
from shardwise.experimental.pallas.compiler_params import TritonCompilerParams
from shardwise.experimental.pallas.grid_context import GridContext, grid_context
from shardwise.experimental.pallas.kernel_call import KernelCall
from shardwise.experimental.pallas.kernel_ref import KernelRef
from shardwise.experimental.pallas.memory import MemorySpace

_INDEX = ArrayType((), jnp.dtype(jnp.int32))


@final
@dataclass(frozen=True)
class CompileOptions:
    """What the user says about the compilation of a kernel.

    Attributes:
        interpret: whether to interpret it everywhere.
        parameters: the parameters of a compiler; None for none.
    """

    interpret: bool
    parameters: Any


def run_kernel(
    call: KernelCall, options: CompileOptions, arrays: Sequence[Any], varying: Sequence[Any]
) -> Sequence[Any]:
    """Return the results of a kernel.

    A kernel that can be compiled for GPUs becomes one op. Another one is interpreted in the caller's program, which
    notes the reason for `explain`.

    Args:
        call: the kernel.
        options: what the user says about its compilation.
        arrays: the operands.
        varying: the Manual axes over which they vary.
    """
    try:
        op = _compiled(call, options, [x.type.plain.strong() for x in arrays])
    except OutsideSubset as reason:
        results = call.interpret(arrays, varying)
        return [InterpretedKernel(call.title, str(reason))(x) if not number else x for number, x in enumerate(results)]
    return op(*arrays)  # type: ignore[no-any-return]


def _compiled(call: KernelCall, options: CompileOptions, types: Sequence[ArrayType]) -> PallasKernel:
    """Return the op of a kernel. Raises OutsideSubset if it cannot be compiled for GPUs."""
    grid = _static_grid(call, options)
    interpreted, captured = build(lambda *arrays: call.interpret(arrays), types, call.title)
    if captured:
        raise OutsideSubset("the kernel uses arrays that are not operands")
    if interpreted.effect:
        raise OutsideSubset("the kernel has side effects besides its Refs")
    try:
        body, captured = build(lambda *indices: _tokens(call, types, indices), [_INDEX] * len(grid), call.title)
    except (TypeError, ValueError, IndexError, AttributeError, NotImplementedError) as error:
        # It was interpreted without an error, so it uses a Ref in a way that a GPU's Refs do not support.
        raise OutsideSubset(f"its Refs are used in a way that is not supported: {error}") from None
    if captured:
        raise OutsideSubset("the kernel uses arrays that are not operands")
    parameters = options.parameters
    is_triton = isinstance(parameters, TritonCompilerParams)
    warps = parameters.num_warps if is_triton else None
    stages = parameters.num_stages if is_triton else None
    op = PallasKernel(
        call.title, body, interpreted, grid, call.aliases, warps, 3 if stages is None else stages, is_triton
    )
    if obstacle := op.obstacle(*types):
        raise OutsideSubset(obstacle)
    return op


def _static_grid(call: KernelCall, options: CompileOptions) -> tuple[int, ...]:
    """Return the grid. Raises OutsideSubset if it is clear from the arguments that a kernel is to be interpreted."""
    parameters = options.parameters
    if options.interpret:
        raise OutsideSubset("interpret=True")
    if parameters is not None and not isinstance(parameters, TritonCompilerParams):
        raise OutsideSubset(
            f"its compiler_params are {type(parameters).__name__}, and not pallas.triton.CompilerParams"
        )
    if tree.leaves(call.spec.scratch_shapes):
        raise OutsideSubset("it has scratch buffers, which steps of a grid on a GPU do not share")
    grid = call.spec.grid
    if not all(isinstance(size, int) for size in grid):
        raise OutsideSubset("the size of its grid is traced")
    if not math.prod(grid) or not call.out_types:
        raise OutsideSubset("it has no steps or no results")
    for mapping in (*call.inputs, *call.outputs):
        if mapping.memory_space not in (None, MemorySpace.ANY, MemorySpace.DEFAULT):
            raise OutsideSubset(f"{mapping.where}: {mapping.memory_space} is not a memory space of GPUs")
        if any(
            isinstance(dim, BoundedSlice) or (isinstance(dim, Element) and any(dim.padding)) for dim in mapping.dims
        ):
            raise OutsideSubset(f"{mapping.where}: a block dim is a BoundedSlice, or an Element with padding")
    return grid


def _tokens(call: KernelCall, types: Sequence[ArrayType], indices: Sequence[Any]) -> list[Any]:
    """Trace a step of a kernel, and return the tokens of its memory."""
    operands = call.structure.unflatten(types)[: call.prefetched]
    results = [ArrayType(tuple(type.shape), jnp.dtype(type.dtype)) for type in call.out_types]
    arrays = [*types, *results]
    with grid_context(
        GridContext(tuple(indices), call.spec.grid, Ref(jnp.zeros(2, jnp.uint32)), (), is_interpreted=False)
    ):
        prefetched = [
            _opened(BlockMapping.from_spec(BlockSpec(), type.shape, call.title), number, type, (), ())
            for number, type in enumerate(tree.leaves(operands))
        ]
        scalars = tree.structure(operands).unflatten(prefetched)
        refs = [
            _opened(mapping, number, arrays[number], indices, scalars)
            for number, mapping in enumerate((*call.inputs, *call.outputs), len(prefetched))
        ]
        call.step(scalars, refs, ())
    return [ref.token for ref in refs]


def _opened(
    mapping: BlockMapping, number: int, type: ArrayType, indices: Sequence[Any], scalars: Sequence[Any]
) -> KernelRef:
    """Return a Ref to a block of array `number`, of the given type."""
    starts = [jnp.asarray(start, jnp.int32) for start in mapping.starts(indices, scalars)]
    token = OpenBlock(number, mapping.sizes, mapping.squeezed)(*starts)
    shape = tuple(size for dim, size in enumerate(mapping.sizes) if dim not in mapping.squeezed)
    return KernelRef(ArrayType(shape, type.dtype), token)
