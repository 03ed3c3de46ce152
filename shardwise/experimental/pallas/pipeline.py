"""emit_pipeline: a loop over blocks of Refs inside a kernel."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shardwise import tree
from shardwise.api.ref import Ref
from shardwise.errors import UnsupportedError
from shardwise.experimental.pallas.block_spec import BlockSpec
from shardwise.experimental.pallas.blocks import BlockMapping
from shardwise.experimental.pallas.grid_context import current_context
from shardwise.experimental.pallas.grid_loop import BlockOperand, run_grid
from shardwise.experimental.pallas.grid_spec import GridSpec


def emit_pipeline(
    body: Callable[..., None],
    *,
    grid: object,
    in_specs: object = (),
    out_specs: object = (),
    tiling: object = None,
    core_axis: object = None,
    core_axis_name: object = None,
    dimension_semantics: object = None,
    trace_scopes: bool = True,
    no_pipelining: bool = False,
    _explicit_indices: bool = False,
) -> Callable[..., None]:
    """Make a function of Refs that calls a body for their blocks, for every step of a grid.

    Args:
        body: a function of the Refs of the blocks. `program_id` in it refers to this grid.
        grid: the number of steps along each axis.
        in_specs: the blocks of the Refs that are read.
        out_specs: the blocks of the Refs that are written.
        tiling, dimension_semantics, trace_scopes, no_pipelining: accepted and ignored: blocks are copied one by one.
        core_axis, core_axis_name: must be None: kernels run on one core.
        _explicit_indices: whether the body's first argument are the indices of the step.

    Returns:
        A function of the Refs, and optionally of `scratches`, a tuple of Refs that the body gets last.

    Raises:
        ValueError: when it is called, if no kernel is being traced, or if the specs do not fit the Refs.
        UnsupportedError: if the grid is divided between cores, or the function is called with buffers.

    Example:
        >>> def kernel(x_ref, out_ref):
        ...     def double(x_block, out_block):
        ...         out_block[...] = 2 * x_block[...]
        ...     block = pallas.BlockSpec((2,), lambda i: (i,))
        ...     pallas.tpu.emit_pipeline(double, grid=(2,), in_specs=[block], out_specs=[block])(x_ref, out_ref)
        >>> pallas.pallas_call(kernel, jnp.zeros(4))(jnp.arange(4.0))
        Array([0., 2., 4., 6.], dtype=float32)
    """
    if core_axis is not None or core_axis_name is not None:
        raise UnsupportedError("emit_pipeline: kernels run on one core. Leave out core_axis and core_axis_name.")
    specs = [*_as_specs(in_specs), *_as_specs(out_specs)]
    sizes = GridSpec(grid).grid

    def run(*refs: Any, scratches: Any = (), allocations: object = None) -> None:
        if allocations is not None:
            raise UnsupportedError(
                "emit_pipeline: buffers that are allocated outside are not supported. Call it without `allocations`."
            )
        leaves = tree.leaves(refs, is_leaf=lambda node: hasattr(node, "addupdate"))
        if len(leaves) != len(specs):
            raise ValueError(
                f"emit_pipeline: there are {len(specs)} specs for {len(leaves)} Refs. Write one BlockSpec for each "
                "Ref: those that are read in in_specs, and those that are written in out_specs."
            )
        mappings = [
            BlockMapping.from_spec(spec, tuple(ref.shape), f"emit_pipeline, block spec {number}")
            for number, (spec, ref) in enumerate(zip(specs, leaves, strict=True))
        ]
        arrays = [
            Ref(mapping.pad(ref[...])) if mapping.is_padded else ref
            for mapping, ref in zip(mappings, leaves, strict=True)
        ]
        initial = [array[...] for array in arrays]

        def step(*blocks: Any) -> None:
            leading = (current_context("emit_pipeline").indices,) if _explicit_indices else ()
            body(*leading, *blocks, *scratches)

        operands = [BlockOperand(mapping, array) for mapping, array in zip(mappings, arrays, strict=True)]
        run_grid(step, operands, (), replace(current_context("emit_pipeline"), sizes=sizes))
        for mapping, array, ref, before in zip(mappings, arrays, leaves, initial, strict=True):
            if mapping.is_padded and array[...] is not before:
                ref[...] = mapping.unpad(array[...])

    return run


def _as_specs(specs: object) -> list[BlockSpec]:
    return [spec for spec in tree.leaves(specs) if isinstance(spec, BlockSpec)]
