"""The manual region of a pipeline: its arguments, their types, and the checks of their sizes.

Called from `jit`, a pipeline opens a region over its axis alone; the planner shards along the other mesh axes. Inside a
`shard_map` that is manual over the axis, it runs in that region.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import shardwise.numpy as jnp
from shardwise import lax, tree_util
from shardwise.api.ahead_of_time.inspect import eval_shape
from shardwise.api.meshes.current_mesh import get_abstract_mesh
from shardwise.api.meshes.shard_map import shard_map
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.ir.dispatch import bound_axes
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.errors import StrategyError
from shardwise.parallel.pipeline_forward import Stage, take
from shardwise.tree_util import KeyPath
from shardwise.typing import ArrayLike

_T = TypeVar("_T")
_Params = TypeVar("_Params")


def split_rows(batch: _T, microbatches: int, name: str) -> _T:
    """Return the microbatches of a batch, stacked along dim 0. Microbatch `k` of `m` has the rows `k`, `k + m`, ….

    So a batch whose rows are sharded over another mesh axis becomes microbatches whose rows are.
    """

    def split(path: KeyPath, rows: ArrayLike) -> Array:
        shape = jnp.shape(rows)
        if not shape or shape[0] % microbatches:
            leaf = f"{tree_util.keystr(path)} of {name}" if path else name
            raise StrategyError(
                f"pipeline: {leaf}, of shape {shape}, is not divisible into {microbatches} microbatches along dim 0: "
                "change the size of the batch, or `microbatches`."
            )
        return jnp.moveaxis(jnp.reshape(rows, (shape[0] // microbatches, microbatches, *shape[1:])), 1, 0)

    return tree_util.tree_map_with_path(split, batch)


def check_equal_rows(**batches: object) -> None:
    """Check that the leaves of microbatches, such as those of a batch and of its targets, have equally many rows.

    Raises:
        StrategyError: if they do not.
    """
    counts = {
        f"{name}{tree_util.keystr(path)}": leaf.shape[0] * leaf.shape[1]
        for name, batch in batches.items()
        for path, leaf in tree_util.tree_leaves_with_path(batch)
    }
    if len(set(counts.values())) > 1:
        texts = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise StrategyError(f"pipeline: all arrays of a batch and its targets need equally many rows, but {texts}")


def join_rows(stacked: _T) -> _T:
    """Return the batch of microbatches that are stacked along dim 0."""
    return tree_util.tree_map(lambda x: jnp.moveaxis(x, 0, 1).reshape(-1, *x.shape[2:]), stacked)


def call_in_region(
    axis: str,
    mesh: Mesh | AbstractMesh | None,
    chunks: int,
    run: Callable[..., Any],
    stage_params: object,
    arguments: tuple[object, ...],
) -> Any:
    """Run a function on every device along an axis, and return the sum of its results.

    Args:
        axis: the name of the mesh axis.
        mesh: the mesh, if the function runs in a region of its own; by default the current one.
        chunks: the number of stages on each device.
        run: a function of the number of devices, of the parameters of a device's stages, stacked along dim 0 by chunk,
            and of `arguments`. Its results are zero on all devices but one.
        stage_params: the parameters of all stages; in a region, those of this device's stages.
        arguments: pytrees of which every device gets all.
    """
    if axis not in bound_axes():
        return _call_in_new_region(axis, _find_mesh(axis, mesh), chunks, run, stage_params, arguments)
    devices = lax.axis_size(axis)
    if axis not in varying_axes(lax.axis_index(axis)):
        raise StrategyError(
            f"pipeline: the types of values do not tell whether they vary over {axis!r}, which a vmap, a pmap or a "
            "shard_map with check_vma=False binds: use a shard_map with check_vma=True, or call the pipeline from jit."
        )
    _check_axis_types(get_abstract_mesh())
    _check_stages(stage_params, devices, chunks, in_region=True)
    results = run(devices, _stack_chunks(stage_params, chunks), *arguments)
    return tree_util.tree_map(lambda x: _sum_like(lambda y: lax.psum(y, axis), x), results)


def _call_in_new_region(
    axis: str,
    mesh: Mesh | AbstractMesh,
    chunks: int,
    run: Callable[..., Any],
    stage_params: object,
    arguments: tuple[object, ...],
) -> Any:
    _check_axis_types(mesh)
    devices = mesh.shape[axis]
    _check_stages(stage_params, devices, chunks, in_region=False)

    def run_device(stage_params: object, arguments: tuple[object, ...]) -> Any:
        own = tree_util.tree_map(lambda x: x.reshape(x.shape[1:]), arguments)
        results = run(devices, _stack_chunks(stage_params, chunks), *own)
        return tree_util.tree_map(lambda x: x[None], results)

    # A copy of the arguments for each device, and a term of the result from each: the planner places the sum over the
    # devices, also that of the derivative.
    stage_spec = PartitionSpec(None, axis) if chunks > 1 else PartitionSpec(axis)
    copies = tree_util.tree_map(lambda x: jnp.broadcast_to(x, (devices, *jnp.shape(x))), arguments)
    specs = (stage_spec, PartitionSpec(axis))
    region = shard_map(run_device, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(axis), axis_names={axis})
    terms = region(stage_params, copies)
    return tree_util.tree_map(lambda x: _sum_like(lambda y: y.sum(0), x), terms)


def _stack_chunks(stage_params: _T, chunks: int) -> _T:
    """Return the parameters of a device's stages, stacked along dim 0 by chunk."""
    if chunks == 1:
        return stage_params
    return tree_util.tree_map(lambda x: x.reshape(chunks, *x.shape[2:]), stage_params)


def _sum_like(total: Callable[[Array], Array], x: Array) -> Array:
    """Return the sum of values of which all but one are zero."""
    return total(x.astype(jnp.int32)) != 0 if x.dtype == jnp.bool_ else total(x)


def _find_mesh(axis: str, mesh: Mesh | AbstractMesh | None) -> Mesh | AbstractMesh:
    current = mesh if mesh is not None else get_abstract_mesh()
    if axis in current.axis_names:
        return current
    if not current.axis_names:
        raise StrategyError(
            f"pipeline: there is no mesh with an axis {axis!r} here: pass `mesh`, or call the pipeline in `with "
            f"set_mesh(mesh):` or in a shard_map that is manual over {axis!r}."
        )
    names = ", ".join(map(repr, current.axis_names))
    raise StrategyError(f"pipeline: the mesh has no axis {axis!r}; it has {names}")


def _check_axis_types(mesh: Mesh | AbstractMesh) -> None:
    if axes := mesh.abstract.explicit_axes:
        names = ", ".join(map(repr, axes))
        raise StrategyError(
            f"pipeline: the mesh has Explicit axes, {names}, which a pipeline does not support: make them Auto, with "
            "`axis_types` of `make_mesh`, or call the pipeline in a function of `sharding.auto_axes`."
        )


def _check_stages(stage_params: object, devices: int, chunks: int, in_region: bool) -> None:
    """Check that every leaf has a leading dim of stages, or with chunks two; in a region, those of one device."""
    local = 1 if in_region else devices
    expected = (chunks, local) if chunks > 1 else (local,)
    text = f"{devices} devices × {chunks} chunks" if chunks > 1 else f"{devices} devices with one stage each"
    leaves = tree_util.tree_leaves_with_path(stage_params)
    if not leaves:
        raise StrategyError("pipeline: stage_params has no leaves: every stage needs at least one parameter")
    for path, leaf in leaves:
        shape = jnp.shape(leaf)
        if shape[: len(expected)] == expected:
            continue
        name = f"stage_params{tree_util.keystr(path)}"
        if chunks > 1 and shape[:1] == (chunks * devices,) and not in_region:
            remedy = f"pass {name}.reshape({chunks}, {devices}, …), so that [c, d] is stage c·{devices} + d."
        elif in_region:
            spec = f"P(None, axis), and {chunks}" if chunks > 1 else "P(axis), and one"
            remedy = f"shard the dim of stages with in_specs {spec} per device."
        else:
            remedy = "stack the parameters of so many stages, or change the mesh; several layers can form one stage."
        raise StrategyError(
            f"pipeline: {name} has shape {shape}, but {text} need leading dims {expected}"
            f"{' on each device' if in_region else ''}: {remedy}"
        )


def cast_to_activation(
    stage: Stage, axis: str, embed: Callable[..., Any] | None, params: _Params, batch: _T, shared: tuple[object, ...]
) -> tuple[_Params, _T, tuple[object, ...]]:
    """Cast the arguments of a pipeline to varying over the axes along which the values between stages vary.

    The sums over these axes, in the derivatives of the casts, then come after the loop over microbatches.

    Args:
        stage: the function of one stage.
        axis: the name of the mesh axis of the pipeline.
        embed: the function from a microbatch and `shared` to the input of the first stage, if there is one.
        params: the parameters of this device's stages, stacked along dim 0 by chunk.
        batch: the microbatches, stacked along dim 0.
        shared: further arguments of `embed`.

    Returns:
        `params`, `batch` and `shared`.

    Raises:
        StrategyError: if the result of `stage` has another type than its input.
    """
    axes = varying_axes(batch) | {axis}
    while True:
        params, batch, shared = cast_to_varying((params, batch, shared), axes)
        reached = _activation_axes(stage, embed, take(params, 0), take(batch, 0), shared)
        if reached <= axes:
            return params, batch, shared
        axes |= reached


def varying_axes(tree: object) -> frozenset[str]:
    """Return the axes along which a leaf of a tree of arrays varies."""
    return frozenset().union(*(type_of(leaf).vma for leaf in tree_util.tree_leaves(tree)))


def cast_to_varying(tree: _T, axes: Iterable[str]) -> _T:
    """Cast the leaves of a tree to varying over these axes."""
    return lax.pcast(tree, tuple(sorted(axes)), to="varying")


def _activation_axes(
    stage: Stage, embed: Callable[..., Any] | None, params: object, rows: object, shared: tuple[object, ...]
) -> frozenset[str]:
    """Return the axes along which the input of a stage or its result varies.

    Raises:
        StrategyError: if the result does not have the shapes and dtypes of the input.
    """
    axes: list[frozenset[str]] = []

    def record(params: object, rows: object, shared: tuple[object, ...]) -> tuple[object, object]:
        x = rows if embed is None else embed(rows, *shared)
        y = stage(params, x)
        axes.append(varying_axes((x, y)))
        return x, y

    before, after = map(_leaf_texts, eval_shape(record, params, rows, shared))
    if before != after:
        name = getattr(stage, "__name__", "stage")
        changed = [
            f"{path or 'the input'}: {before.get(path, 'nothing')} → {after.get(path, 'nothing')}"
            for path in {**before, **after}
            if before.get(path) != after.get(path)
        ]
        raise StrategyError(
            f"pipeline: the result of `{name}` is the input of the next stage, so it must have the type of its own "
            f"input, a microbatch; it changes {'; '.join(changed)}. Move layers of other types, such as an embedding, "
            "out of the pipeline; cast the result to the dtype of the input."
        )
    return axes[0]


def _leaf_texts(tree: object) -> dict[str, str]:
    """Return the shape and dtype of each leaf, by path."""
    leaves = tree_util.tree_leaves_with_path(tree)
    return {tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}
