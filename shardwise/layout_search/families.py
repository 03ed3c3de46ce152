"""Families of layouts, derived from the program: data and expert parallelism, ZeRO, and fully sharded parameters.

The batch is sharded along the first dim of each batch argument whose dim group contains no parameter's dim. State is
sharded along its largest dims.
"""

from collections.abc import Collection, Mapping, Sequence

from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.layout_search.step import BATCH, PARAMETER, STATE, Step

_PADDING = 1 / 8  # the largest fraction of a dim that may be padding
_SMALL = 1e-3  # an array with less than this fraction of the largest array's bytes is not sharded


def pinned_layouts(step: Step) -> list[Layout]:
    """Return the layouts that the user pinned, and replicated layouts for all other inputs."""
    layouts = []
    for type, traced, sharding in zip(step.types, step.request.program.in_types, step.pins, strict=True):
        dims = () if sharding is None else sharding.pin(traced.shape).layout.dims
        layouts.append(Layout((*dims, *((),) * (type.ndim - len(dims)))))  # the words of keys are not sharded
    return layouts


def with_batch(step: Step, mesh: AbstractMesh, layouts: Sequence[Layout], axes: Sequence[str]) -> tuple[Layout, ...]:
    """Return the layouts with batch arguments sharded along their batch dim, over as many of `axes` as divide it."""
    sharded = list(layouts)
    for index, role in enumerate(step.roles):
        if role == BATCH:
            shape = step.types[index].shape
            sharded[index] = _add_axes(sharded[index], shape, step.batch_dims(index)[:1], axes, mesh)
    return tuple(sharded)


def with_sequences(step: Step, mesh: AbstractMesh, layouts: Sequence[Layout], axis: str) -> tuple[Layout, ...]:
    """Return the layouts with batch arguments sharded along the dim after their batch dim."""
    sharded = list(layouts)
    for index, role in enumerate(step.roles):
        if role == BATCH:
            shape = step.types[index].shape
            sharded[index] = _add_axes(sharded[index], shape, step.batch_dims(index)[1:2], [axis], mesh)
    return tuple(sharded)


def with_axis_on_dims(
    step: Step, mesh: AbstractMesh, layouts: Sequence[Layout], axis: str, dims: Mapping[int, int | None]
) -> tuple[Layout, ...]:
    """Return the layouts with inputs sharded over an axis along these dims, which may be sharded over others too."""
    sharded = list(layouts)
    for index, dim in dims.items():
        if dim is not None:
            sharded[index] = _add_axes(sharded[index], step.types[index].shape, [dim], [axis], mesh)
    return tuple(sharded)


def with_stages(step: Step, mesh: AbstractMesh, layouts: Sequence[Layout], axis: str) -> tuple[Layout, ...]:
    """Return the layouts with arguments sharded over the pipeline axis, along the dims that its region splits."""
    groups = {
        step.groups.find(value, dim)
        for equation in step.unfolded.equations
        if equation.op.is_boundary and (pin := equation.op.operand_pin or equation.op.result_pin)
        for value in (*equation.inputs, *equation.outputs)
        for dim, axes in enumerate(pin.layout.dims)
        if axis in axes
    }
    sharded = list(layouts)
    for index, role in enumerate(step.roles):
        if role in (PARAMETER, STATE):
            value = step.program.inputs[index]
            dims = [dim for dim in range(value.type.ndim) if step.groups.find(value, dim) in groups]
            sharded[index] = _add_axes(sharded[index], value.type.shape, dims, [axis], mesh)
    return tuple(sharded)


def with_experts(step: Step, mesh: AbstractMesh, layouts: Sequence[Layout], axis: str) -> tuple[Layout, ...] | None:
    """Return the layouts with the weights of experts, and their optimizer's state, sharded over `axis` by expert.

    Returns:
        None if there are no experts, or if the axis does not divide their number.
    """
    sharded = list(layouts)
    for index in _large_inputs(step, (PARAMETER, STATE)):
        value = step.program.inputs[index]
        dim = next((dim for dim in step.dims(index) if step.groups.find(value, dim) in step.expert_groups), None)
        if dim is not None:
            if value.type.shape[dim] % mesh.shape[axis]:
                return None
            sharded[index] = sharded[index].with_dim(dim, (axis,))
    return tuple(sharded) if sharded != list(layouts) else None


def with_sharded_state(
    step: Step,
    mesh: AbstractMesh,
    layouts: Sequence[Layout],
    axes: Sequence[str],
    roles: Collection[str] = (PARAMETER, STATE),
) -> tuple[Layout, ...]:
    """Return the layouts with state of these roles sharded over `axes`.

    An axis shards the largest unsharded dim that it divides evenly, else a dim that other axes shard, else a dim with
    padding. Small arrays keep their layout: gathering them would cost more time than sharding saves memory.
    """
    sharded = list(layouts)
    for index in _large_inputs(step, roles):
        shape = step.types[index].shape
        layout = sharded[index]
        dims = sorted(step.dims(index), key=lambda dim: (bool(layout.dims[dim]), -shape[dim], dim))
        sharded[index] = _add_axes(layout, shape, dims, axes, mesh)
    return tuple(sharded)


def _large_inputs(step: Step, roles: Collection[str]) -> list[int]:
    """Return the inputs of these roles that are not small in comparison with the largest one."""
    inputs = [index for index, role in enumerate(step.roles) if role in roles]
    largest = max((step.types[index].nbytes for index in inputs), default=0)
    return [index for index in inputs if step.types[index].nbytes >= _SMALL * largest]


def _add_axes(
    layout: Layout, shape: Sequence[int], dims: Sequence[int], axes: Sequence[str], mesh: AbstractMesh
) -> Layout:
    """Return the layout with each axis added to the first of `dims` that it divides evenly, else with padding."""
    for axis in axes:
        if axis in layout.axes:
            continue
        extents = {dim: mesh.extent((*layout.dims[dim], axis)) for dim in dims}
        allowed = [dim for dim in dims if may_be_divided(shape[dim], extents[dim])]
        dim = min(allowed, key=lambda dim: shape[dim] % extents[dim] != 0, default=None)
        if dim is not None:
            layout = layout.with_dim(dim, (*layout.dims[dim], axis))
    return layout


def may_be_divided(size: int, count: int) -> bool:
    """Return whether a dim can be sharded, evenly or with padding of at most an eighth of it."""
    return size > 0 and -size % count <= _PADDING * size
