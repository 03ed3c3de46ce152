"""pallas_call: run a kernel, a function of Refs to blocks of arrays, for every step of a grid."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import shardwise.numpy as jnp
from shardwise import tree
from shardwise.api.arguments import function_name
from shardwise.api.jit import jit
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.trace.provenance import named_scope
from shardwise.experimental.pallas.block_spec import BlockSpec, no_block_spec
from shardwise.experimental.pallas.blocks import BlockMapping
from shardwise.experimental.pallas.compiled import CompileOptions, run_kernel
from shardwise.experimental.pallas.grid_spec import GridSpec, PrefetchScalarGridSpec
from shardwise.experimental.pallas.kernel_call import KernelCall
from shardwise.experimental.pallas.memory import MemoryRef
from shardwise.lax.manual_axes import make_varying


def pallas_call(
    kernel: Callable[..., None],
    out_shape: object,
    *,
    grid_spec: GridSpec | None = None,
    grid: object = (),
    in_specs: object = no_block_spec,
    out_specs: object = no_block_spec,
    scratch_shapes: object = (),
    input_output_aliases: Mapping[int, int] | None = None,
    debug: bool = False,
    interpret: object = False,
    name: str | None = None,
    compiler_params: object = None,
    cost_estimate: object = None,
    metadata: Mapping[str, str] | None = None,
) -> Callable[..., Any]:
    """Make a function of arrays from a kernel, a function that reads and writes Refs of blocks of them.

    On NVIDIA GPUs, the kernel is compiled by Triton if all of it can be: its steps run at the same time. Elsewhere it
    is interpreted: the function is a loop over the steps of the grid, in row-major order. `explain` says why a kernel
    is interpreted on a GPU. The function works under `jit`, `grad`, `vmap` and `shard_map` as any other one.

    Args:
        kernel: a function of the Refs of the operands, of the results, and of the scratch buffers, which returns
            nothing.
        out_shape: a pytree of `ShapeDtypeStruct`s or other types: the results.
        grid_spec: the grid and the blocks, instead of the next four parameters.
        grid: the number of steps along each axis of the grid; an integer for one axis. Sizes may be traced.
        in_specs: the blocks of the operands, with their structure; by default each step sees all of every operand.
        out_specs: the blocks of the results, with the structure of `out_shape`.
        scratch_shapes: the types of the scratch buffers, which keep their values from step to step; a dict passes them
            by keyword.
        input_output_aliases: the index of the result that starts with the values of an operand, by the operand's index.
            Both are counted in the flattened arguments and results.
        interpret: whether to interpret the kernel on GPUs too.
        compiler_params: `pallas.triton.CompilerParams` has the number of warps and stages on GPUs, and says that steps
            may run at the same time. Without it, a kernel is compiled if it is clear that no step writes what another
            one reads or writes. Kernels with the parameters of other compilers are interpreted.
        debug, cost_estimate, metadata: accepted and ignored.
        name: the name of the kernel in reports and errors; by default that of the function.

    Returns:
        A function of the operands that returns the results. Elements that no step writes are undefined.

    Raises:
        TypeError: if an argument is of a wrong type, or the kernel returns a value.
        ValueError: if the specs do not have the structure of the operands or results, if a block shape has another rank
            than its array, if an index map returns a wrong number of indices, or if an alias does not fit.
        KernelError: when the function is compiled for a GPU, if XLA rejects the kernel.

    Example:
        >>> def add(x_ref, y_ref, out_ref):
        ...     out_ref[...] = x_ref[...] + y_ref[...]
        >>> block = pallas.BlockSpec((2,), lambda i: (i,))
        >>> x = jnp.arange(4.0)
        >>> pallas.pallas_call(add, x, grid=(2,), in_specs=[block, block], out_specs=block)(x, x)
        Array([0., 2., 4., 6.], dtype=float32)
    """
    if not callable(kernel):
        raise TypeError(f"pallas_call: the kernel must be a function of Refs, not {kernel!r}")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"pallas_call: name must be a string, not {name!r}")
    title = name or function_name(kernel)
    if grid_spec is None:
        grid_spec = GridSpec(grid, in_specs, out_specs, scratch_shapes)
    elif not isinstance(grid_spec, GridSpec):
        raise TypeError(f"pallas_call of {title!r}: grid_spec must be a GridSpec, not {grid_spec!r}")
    else:
        separate = {"grid": grid, "scratch_shapes": scratch_shapes}
        repeated = [parameter for parameter, value in separate.items() if value not in ((), [])]
        specs = {"in_specs": in_specs, "out_specs": out_specs}
        repeated += [parameter for parameter, value in specs.items() if value is not no_block_spec]
        if repeated:
            raise ValueError(
                f"pallas_call of {title!r}: {', '.join(repeated)} and grid_spec are both given: write them in grid_spec"
            )
    results = tuple(out_shape) if isinstance(out_shape, list) else out_shape
    options = CompileOptions(bool(interpret), compiler_params)
    run = partial(_run, kernel, title, grid_spec, results, dict(input_output_aliases or {}), options)

    def call(*operands: Any) -> Any:
        with named_scope(title):
            return run(*operands)

    call.__name__ = call.__qualname__ = title
    return jit(call, inline=True)


def _run(
    kernel: Callable[..., Any],
    title: str,
    spec: GridSpec,
    out_shape: object,
    aliases: dict[int, int],
    options: CompileOptions,
    *operands: Any,
) -> Any:
    """Run a kernel for every step of its grid, and return the results."""
    prefetched = spec.num_scalar_prefetch if isinstance(spec, PrefetchScalarGridSpec) else 0
    if len(operands) < prefetched:
        raise ValueError(
            f"pallas_call of {title!r}: num_scalar_prefetch is {prefetched}, and there are {len(operands)} operands: "
            "pass the scalar prefetch operands first"
        )
    leaves, structure = tree.flatten(operands)
    arrays = [as_operand(leaf, f"pallas_call of {title!r}") for leaf in leaves]
    varying = tuple({axis: None for array in arrays for axis in array.type.varying})
    arrays = [make_varying(array, varying) for array in arrays]
    out_types = _result_types(title, out_shape)
    _check_aliases(title, aliases, arrays, out_types)
    by_operand = structure.unflatten(arrays)
    call = KernelCall(
        kernel,
        title,
        spec,
        structure,
        prefetched,
        out_shape,
        tuple(out_types),
        tuple((result, operand) for operand, result in sorted(aliases.items())),
        tuple(_block_mappings(title, "in_specs", "operands", spec.in_specs, by_operand[prefetched:])),
        tuple(_block_mappings(title, "out_specs", "results", spec.out_specs, out_shape)),
    )
    return tree.structure(out_shape).unflatten(run_kernel(call, options, arrays, varying))


def _result_types(title: str, out_shape: object) -> list[MemoryRef | Any]:
    types = tree.leaves(out_shape)
    for type in types:
        if not (hasattr(type, "shape") and hasattr(type, "dtype")):
            raise TypeError(
                f"pallas_call of {title!r}: out_shape has {type!r}, which has no shape and dtype. Use "
                "`ShapeDtypeStruct(shape, dtype)`."
            )
    return types


def _block_mappings(title: str, parameter: str, kind: str, specs: object, values: object) -> list[BlockMapping]:
    """Return the block mapping of each array. `parameter` is the name of the specs, `kind` what they describe."""
    leaves = tree.leaves(values)
    if specs is no_block_spec:
        found: Sequence[Any] = [BlockSpec()] * len(leaves)
    else:
        found = tree.leaves(specs)
        if tree.structure(specs) != tree.structure(values):
            raise ValueError(
                f"pallas_call of {title!r}: {parameter} has the structure {tree.structure(specs)}, and the {kind} have "
                f"{tree.structure(values)}. Write one BlockSpec for each of the {kind}."
            )
    mappings = []
    for path, spec, value in zip(tree.leaf_names(values, kind), found, leaves, strict=True):
        where = f"pallas_call of {title!r}, {parameter} for {path}"
        block_spec = BlockSpec() if spec is no_block_spec else spec
        if not isinstance(block_spec, BlockSpec):
            raise TypeError(f"{where}: {spec!r} is not a BlockSpec: use `BlockSpec(block_shape, index_map)`")
        mappings.append(BlockMapping.from_spec(block_spec, tuple(value.shape), where))
    return mappings


def _check_aliases(title: str, aliases: dict[int, int], arrays: Sequence[Any], types: Sequence[Any]) -> None:
    for operand, result in aliases.items():
        where = f"pallas_call of {title!r}: input_output_aliases has {operand!r}: {result!r}"
        if not (isinstance(operand, int) and isinstance(result, int)):
            raise TypeError(f"{where}. Write the index of the operand, and that of the result.")
        if not (0 <= operand < len(arrays) and 0 <= result < len(types)):
            raise ValueError(
                f"{where}, and there are {len(arrays)} operands and {len(types)} results, counted from 0 in the "
                "flattened arguments, scalar prefetch operands included"
            )
        array, type = arrays[operand].type, types[result]
        if array.shape != tuple(type.shape) or array.dtype != jnp.dtype(type.dtype):
            raise ValueError(
                f"{where}, but the operand is {array} and the result has shape {tuple(type.shape)} and dtype "
                f"{jnp.dtype(type.dtype)}. Alias only arrays of the same type."
            )
