"""Meshes and array placement: make_mesh, device_put, device_get, reshard, with_sharding_constraint."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, overload

import numpy as np

from shardwise import tree
from shardwise.api.jit import jit
from shardwise.api.meshes.constrain import constrain
from shardwise.api.process_data import check_equal, digest
from shardwise.api.transformations.float0 import is_float0
from shardwise.base._jaxlib import Device
from shardwise.base.caches import registered_cache
from shardwise.base.config import config
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, type_of
from shardwise.compiler.dtypes import is_key
from shardwise.compiler.ir import dispatch
from shardwise.compiler.ir.dispatch import is_staging
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.placement.memory_space import DEVICE, InMemory
from shardwise.compiler.shardings.mesh import AbsentDevice, AbstractMesh, AxisType, Mesh, device_grid, mesh_context
from shardwise.compiler.shardings.named_sharding import NamedSharding, traced_sharding
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.compiler.trace.tracer import Tracer
from shardwise.errors import ShardingError, ShardingTypeError
from shardwise.execute.executor import as_array
from shardwise.execute.transfer import transfer, transfer_to_memory
from shardwise.memory import Space
from shardwise.runtime.array import ArrayImpl, array_signature, deleted_error, place, wait
from shardwise.runtime.client import devices as all_devices
from shardwise.runtime.client import process_count
from shardwise.runtime.memory_layout import Format, sharding_of_format
from shardwise.runtime.sharding import SingleDeviceSharding, is_scoped, mesh_of, resolve_sharding
from shardwise.runtime.torus_order import is_in_torus, splits_by_default, torus_grid
from shardwise.runtime.transfer_guard import check_transfer
from shardwise.typing import ArrayLike, Placement

_T = TypeVar("_T")


@overload
def make_mesh(
    axis_shapes: Sequence[int],
    axis_names: Sequence[str],
    axis_types: AxisType | Sequence[AxisType] | None = None,
    *,
    devices: Sequence[Any] | None = None,
) -> Mesh: ...


@overload
def make_mesh(
    *,
    axis_sizes: Sequence[int],
    axis_names: Sequence[str],
    axis_types: AxisType | Sequence[AxisType] | None = None,
    devices: Sequence[Any] | None = None,
) -> Mesh: ...


def make_mesh(
    axis_shapes: Sequence[int] | None = None,
    axis_names: Sequence[str] | None = None,
    axis_types: AxisType | Sequence[AxisType] | None = None,
    *,
    devices: Sequence[Any] | None = None,
    axis_sizes: Sequence[int] | None = None,
) -> Mesh:
    """Create a mesh of devices with named axes.

    TPUs are ordered by their coordinates, as `experimental.mesh_utils.create_device_mesh` does: each axis of the mesh
    is one or several axes of their torus. Other devices keep their order.

    Args:
        axis_shapes: the size of each axis.
        axis_names: the name of each axis, or a single name.
        axis_types: an `AxisType` for all axes, or one per axis; by default `AxisType.Auto`, or `AxisType.Explicit` if
            the setting `mesh_axis_types` is "explicit".
        devices: the devices to use, in mesh order unless they are TPUs; by default the first of all devices.
        axis_sizes: another name for `axis_shapes`, which JAX uses from 0.11.1 on.

    Returns:
        The mesh.

    Raises:
        ShardingError: if there are fewer devices than the mesh needs, if sizes and names differ in number, if a name
            repeats, if a size is not an integer, or if the sizes do not fit the torus of TPUs.
        TypeError: if `axis_types` holds something else, or if sizes or names are not passed, or sizes twice.

    Example:
        >>> mesh = jax.make_mesh((4, 2), ("data", "model"))
        >>> mesh
        Mesh(data=4, model=2)
    """
    requested = axis_sizes if axis_shapes is None else axis_shapes
    if requested is None or axis_names is None or (axis_shapes is not None and axis_sizes is not None):
        raise TypeError("make_mesh needs the sizes of the axes, as axis_shapes or axis_sizes, and axis_names")
    names = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)
    sizes = AbstractMesh(requested, names).axis_sizes  # checks sizes and names before devices are counted
    count = math.prod(sizes)
    available = list(all_devices() if devices is None else devices)
    if count > len(available):
        raise ShardingError(
            f"make_mesh{(sizes, names)} needs {count} devices, but there are only {len(available)}. For "
            "more virtual CPU devices, call config.update('num_cpu_devices', …) before the first use of a device."
        )
    if axis_types is None:
        axis_types = AxisType(config.mesh_axis_types)
    return Mesh(_ordered_grid(available[:count], sizes), names, axis_types)


def _ordered_grid(devices: list[Any], sizes: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Arrange the devices of a mesh: TPUs by their coordinates, others in their order."""
    if not is_in_torus(devices):
        return device_grid(devices, sizes)
    if len({getattr(device, "slice_index", 0) for device in devices}) > 1:
        raise ShardingError(
            "make_mesh: the devices are in several slices, between which there are no fast links. Arrange them with "
            "`experimental.mesh_utils.create_hybrid_device_mesh`, and pass the array to `Mesh`."
        )
    return torus_grid(sizes, devices, split_axes=splits_by_default(devices))


def device_put(
    x: object, device: object = None, *, src: object = None, donate: object = False, may_alias: object = None
) -> Any:
    """Put the arrays of a pytree on devices.

    The results are committed to their devices. Under `jit` it is a sharding constraint. Along the unreduced axes of a
    sharding, the first device gets the value and the others zeros.

    Args:
        x: a pytree of arrays and numbers.
        device: a `Sharding`, a device, a PartitionSpec on the current mesh, a `Format` with the default layout, a
            `memory.Space`, which changes the memory only, or a tree prefix of these. None leaves arrays where they are,
            and puts numbers and numpy arrays on the default device.
        src: ignored: arrays know their devices.
        donate: whether to delete the arrays of `x` whose sharding changes; a bool, or a tree prefix of bools.
        may_alias: False if the results must not share memory with `x`; a bool, None, or a tree prefix of these.

    Returns:
        A pytree like `x` of arrays.

    Raises:
        ValueError: if both `donate` and `may_alias` are true for an array, or if `device` holds something else.
        TypeError: if a leaf of `x` is not an array or a number, or if a bare PartitionSpec is passed and no mesh is
            set.
        ShardingError: if `device` is not a tree prefix of `x`, if a sharding does not match the rank of an array, or
            if it has UNCONSTRAINED dims.
        RuntimeError: if an array was deleted or donated.
        NotImplementedError: if a `Format` has a layout in memory that is not the default one.

    Example:
        >>> rows = jax.NamedSharding(jax.make_mesh((4,), ("rows",)), P("rows"))
        >>> x = jax.device_put(np.arange(8), rows)
        >>> [shard.data.tolist() for shard in x.addressable_shards]
        [[0, 1], [2, 3], [4, 5], [6, 7]]
    """
    leaves, structure = tree.flatten(x)
    targets = broadcast_shardings("device_put", "device", device, x)
    donated, aliased = (
        [flag] * len(leaves)
        if flag is None or isinstance(flag, bool)
        else broadcast_shardings("device_put", name, flag, x)
        for name, flag in (("donate", donate), ("may_alias", may_alias))
    )
    if any(is_donated and may_share for is_donated, may_share in zip(donated, aliased, strict=True)):
        raise ValueError("device_put: donated memory cannot be shared: pass donate=True or may_alias=True, not both")
    out: list[Any] = []
    for leaf, target, is_donated, may_share in zip(leaves, targets, donated, aliased, strict=True):
        if is_float0(leaf):  # it has no elements
            out.append(leaf)
            continue
        is_format = isinstance(target, Format)
        where = sharding_of_format("device_put", target, np.ndim(leaf)) if is_format else target
        is_memory = isinstance(where, Space)
        result = _put_in_memory(leaf, where) if is_memory else _put(leaf, as_sharding("device_put", where))
        if isinstance(leaf, ArrayImpl) and isinstance(result, ArrayImpl):
            is_deleted = is_donated and not _is_same_placement(leaf, result)
            if may_share is False or (is_deleted and _share_memory(leaf, result)):
                result = _copy(result).with_signature(result.signature)
            if is_deleted:
                leaf.delete()
        out.append(result)
    return structure.unflatten(out)


def _is_same_placement(before: ArrayImpl, after: ArrayImpl) -> bool:
    """Return whether two arrays have the same shards on the same devices, in the same order."""
    old, new = before.sharding, after.sharding
    return old.devices == new.devices and old.is_equivalent_to(new, before.type.ndim)


def _share_memory(before: ArrayImpl, after: ArrayImpl) -> bool:
    """Return whether the result of `device_put` has a buffer of its argument."""
    old, new = before.sharding, after.sharding
    if old.nondefault_memory != new.nondefault_memory or old.device_set.isdisjoint(new.device_set):
        return False
    if before.buffers is after.buffers:
        return True
    pointers = [
        {
            data.unsafe_buffer_pointer()
            for shard in x.addressable_shards
            if (data := shard.data) is not None and data.size
        }
        for x in (before, after)
    ]
    return not pointers[0].isdisjoint(pointers[1])


def _copy(array: ArrayImpl) -> ArrayImpl:
    """Return a copy with the same sharding: the result of a compiled identity has its own memory."""
    if array.sharding.nondefault_memory:
        return transfer_to_memory(array, array.sharding, copied=True)
    (copy,) = dispatch.executor.run(Convert(array.type.dtype, array.type.weak), (array,))
    return copy


def with_sharding_constraint(x: _T, shardings: object) -> _T:
    """Pin the arrays of a pytree to shardings, which the planner never overrides.

    Outside `jit`, arrays that have another sharding are resharded.

    Args:
        x: a pytree of arrays and numbers.
        shardings: a `Sharding`, a PartitionSpec on the current mesh, or a tree prefix of these. The planner decides the
            sharding of dims with `PartitionSpec.UNCONSTRAINED`.

    Returns:
        A pytree like `x` of arrays with these shardings.

    Raises:
        TypeError: if `shardings` holds something else, if a bare PartitionSpec is passed and no mesh is set, or if a
            leaf of `x` is not an array or a number.
        ShardingError: if `shardings` is not a tree prefix of `x`, if a sharding does not match the rank of an array, or
            if it uses a manual axis of an enclosing `shard_map`.

    Example:
        >>> mesh = jax.make_mesh((1,), ("x",))
        >>> lax.with_sharding_constraint(jnp.arange(3), jax.NamedSharding(mesh, jax.P("x")))
        Array([0, 1, 2], dtype=int32)
    """
    name = "with_sharding_constraint"
    leaves, structure = tree.flatten(x)
    out = []
    for leaf, target in zip(leaves, broadcast_shardings(name, "shardings", shardings, x), strict=True):
        sharding = resolve_sharding(target, name)
        if not isinstance(sharding, Sharding):
            raise ShardingTypeError(f"{name} needs shardings, such as NamedSharding(mesh, spec), not {sharding!r}")
        _check_shape(name, leaf, sharding, may_be_uneven=is_staging())
        operand = as_operand(leaf)
        sharding = _with_typed_axes(operand, sharding)
        _check_explicit(name, operand, sharding)
        if isinstance(operand, ArrayImpl) and not (operand.committed or is_staging() or _is_unconstrained(sharding)):
            out.append(_put(operand, sharding))  # a compiled constraint would first replicate it on all devices
        else:
            out.append(constrain(operand, sharding))
    return structure.unflatten(out)


def _with_typed_axes(operand: Array, sharding: Sharding) -> Sharding:
    """Return a sharding that names Auto axes alone with the Explicit axes of the operand's type before them."""
    if not isinstance(sharding, NamedSharding) or operand.type.explicit is None:
        return sharding
    pin = sharding.pin(operand.type.shape)
    planned = sharding.mesh_shape.auto_axes
    if not planned or not set(pin.layout.axes) <= set(planned):
        return sharding
    entries: list[Any] = [
        PartitionSpec.UNCONSTRAINED if dim in pin.open_dims and not typed else (*typed, *auto)
        for dim, (typed, auto) in enumerate(zip(operand.type.explicit.dims, pin.layout.dims, strict=True))
    ]
    explicit = operand.type.explicit
    return sharding.update(spec=PartitionSpec(*entries, unreduced=explicit.unreduced, reduced=explicit.reduced))


def _check_explicit(name: str, operand: Array, sharding: Sharding) -> None:
    """Check that a value has a sharding along Explicit axes, where its type and not the planner decides.

    If `jax_compatibility` is "exact", the errors have the classes of JAX's, and the mesh must be the current mesh.
    """
    if not isinstance(sharding, NamedSharding) or not sharding.mesh_shape.explicit_axes:
        return
    explicit = set(sharding.mesh_shape.explicit_axes)
    if (
        config.is_exact
        and mesh_context.mesh is None
        and explicit.intersection(sharding.pin(operand.type.shape).layout.axes)
    ):
        raise ShardingError(
            f"{name}: {sharding.spec} names Explicit axes of the mesh {sharding.mesh_shape}, which is not the current "
            f"mesh. Use `reshard(x, {sharding.spec})`, or `set_mesh`. The setting jax_compatibility is 'exact'."
        )
    wanted = operand.type.with_explicit(traced_sharding(sharding, operand.type.shape, is_scoped(sharding)))
    if operand.type is not wanted and not (isinstance(operand, ArrayImpl) and not operand.committed):
        raise (AssertionError if config.is_exact else ShardingTypeError)(
            f"{name}: the value has type {operand.type}, and {sharding.spec} means {wanted}. Along Explicit axes a "
            f"constraint only checks the type: change it with `reshard(x, {sharding.spec})`."
        )


def reshard(xs: object, out_shardings: object) -> Any:
    """Change the shardings of the arrays of a pytree along Explicit mesh axes.

    Inside traced functions too, it is differentiable: the cotangent has the sharding that belongs to the type of `xs`.

    Args:
        xs: a pytree of arrays and numbers.
        out_shardings: a `NamedSharding`, a PartitionSpec on the current mesh, or a tree prefix of these.

    Returns:
        A pytree like `xs` of arrays with these shardings.

    Raises:
        TypeError: if `out_shardings` holds something else, or if a bare PartitionSpec is passed and no mesh is set.
        ShardingError: if `out_shardings` is not a tree prefix of `xs`, if a sharding does not match the rank of an
            array, or if it names axes of a mesh without Explicit axes.

    Example:
        >>> mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
        >>> jax.typeof(jax.sharding.reshard(jnp.arange(8), jax.NamedSharding(mesh, jax.P("x"))))
        i32[8@x]
    """
    return reshard_leaves("reshard", "out_shardings", xs, out_shardings)


def reshard_leaves(name: str, parameter: str, x: object, shardings: object) -> Any:
    """Reshard as `reshard` does, for the public function `name`, whose parameter holds the shardings."""
    leaves, structure = tree.flatten(x)
    out = []
    for leaf, target in zip(leaves, broadcast_shardings(name, parameter, shardings, x), strict=True):
        sharding = resolve_sharding(target, name)
        if not isinstance(sharding, NamedSharding):
            raise TypeError(f"{name} needs a PartitionSpec or a NamedSharding, not {sharding!r}")
        _reject_auto_axes(name, sharding)
        is_typed = bool(sharding.mesh_shape.explicit_axes) or is_scoped(sharding)
        if not is_typed and _named_axes(sharding):
            raise ShardingError(
                f"{name}: the mesh {sharding.mesh_shape} has no Explicit axes. Use `with_sharding_constraint` in "
                "traced functions, or `device_put`."
            )
        _check_shape(name, leaf, sharding)
        operand = as_operand(leaf)
        is_elsewhere = isinstance(operand, ArrayImpl) and not (
            operand.committed and mesh_of(operand.sharding) == sharding.grid
        )
        if is_elsewhere and not is_staging() and not isinstance(sharding.grid.flat_devices[0], AbsentDevice):
            out.append(_put(operand, sharding))
        else:
            out.append(constrain(operand, sharding, pins_auto=False) if is_typed else operand)
    return structure.unflatten(out)


def _named_axes(sharding: NamedSharding) -> tuple[str, ...]:
    """Return the mesh axes that the spec of a sharding names."""
    return sharding.pin((1,) * len(sharding.spec)).layout.axes


def _reject_auto_axes(name: str, sharding: NamedSharding) -> None:
    """Raise an error if a spec for types names an Auto axis of a mesh that has Explicit ones too."""
    mesh = sharding.mesh_shape
    is_typed = bool(mesh.explicit_axes) or is_scoped(sharding)
    if is_typed and (auto := [axis for axis in _named_axes(sharding) if axis in mesh.auto_axes]):
        raise ShardingTypeError(
            f"{name}: {sharding.spec} names {', '.join(map(repr, auto))}, an Auto axis of the mesh {mesh}, and types "
            f"have Explicit axes only. Name Explicit axes here, and constrain the sharding along Auto axes with "
            f"`with_sharding_constraint(x, {sharding.spec})`."
        )


def broadcast_shardings(name: str, parameter: str, prefix: object, x: object, full_tree: str = "x") -> list[Any]:
    """Broadcast a tree prefix of shardings or devices to the leaves of `x`, which errors call `full_tree`."""

    def is_leaf(node: object) -> bool:
        return node is None or isinstance(node, (Sharding, Device, PartitionSpec))

    try:
        return tree.broadcast_prefix(prefix, x, is_leaf)
    except tree.TreeMismatch as mismatch:
        path = tree.keystr(mismatch.difference.path)
        text = mismatch.difference.of_prefix(parameter + path, full_tree + path)
        raise ShardingError(f"{name}: {parameter} must be a tree prefix of {full_tree}.\n  {text}") from None


def as_sharding(name: str, target: object) -> Sharding | None:
    """Return a sharding, a bare spec on the current mesh, or a device as a sharding; None stays None."""
    if isinstance(target, Device):
        return SingleDeviceSharding(target)
    if target is None or isinstance(target, (Sharding, PartitionSpec)):
        return resolve_sharding(target, name)
    hint = f"; write `jax.devices({target!r})[0]`" if isinstance(target, str) else ""
    raise ValueError(f"{name} needs a Sharding or a device, not {target!r}{hint}")


def _is_unconstrained(sharding: Sharding) -> bool:
    """Return whether a sharding leaves a dim to the planner."""
    return isinstance(sharding, NamedSharding) and any(entry is PartitionSpec.UNCONSTRAINED for entry in sharding.spec)


def _check_shape(name: str, leaf: ArrayLike, sharding: Sharding, may_be_uneven: bool = False) -> None:
    """Raise ShardingError if a sharding does not fit an array."""
    type = type_of(leaf, name)
    try:
        sharding.check_compatible_aval(type.shape)
        if not may_be_uneven:
            sharding.check_even(type.shape)
    except ShardingError as error:
        raise ShardingError(f"{name}: cannot shard {type}.\n  {error}") from None


def _put(leaf: ArrayLike, sharding: Sharding | None) -> Array:
    if sharding is None:
        return leaf if isinstance(leaf, Tracer) else as_array(leaf, "device_put", explicit=True, may_be_donated=True)
    _check_shape("device_put", leaf, sharding)
    if isinstance(leaf, Tracer) or is_staging():
        return constrain(as_operand(leaf, "device_put"), sharding)
    if _is_unconstrained(sharding):
        raise ShardingError(
            f"device_put: {sharding} has UNCONSTRAINED dims, which only the planner of a compiled function can decide: "
            "name their mesh axes, or use None"
        )
    if isinstance(leaf, ArrayImpl):
        if leaf.is_deleted():
            raise deleted_error(leaf, "the operand of device_put")
        if leaf.committed and leaf.sharding == sharding:
            return leaf
        _check_on_processes(leaf, sharding)
        if leaf.sharding.device_set != sharding.device_set:  # on the same devices, it is resharded by a program
            check_transfer("device_to_device", leaf.type, explicit=True)
        result = transfer(leaf, sharding)
        return result.with_signature(array_signature(result.type, sharding, True))
    type = type_of(leaf, "device_put")
    check_transfer("host_to_device", type, explicit=True)
    host = np.asarray(leaf)
    if not sharding.is_fully_addressable:
        _check_host_value(host, type, sharding)
    return place(host, type, sharding, committed=True)


def _put_in_memory(leaf: ArrayLike, space: Space) -> Array:
    """Put an array in a memory of the devices that it is on."""
    if space is Space.Any:
        return _put(leaf, None)
    kind = "pinned_host" if space is Space.Host else None  # None is the memory of the device
    if isinstance(leaf, Tracer) or is_staging():
        operand = as_operand(leaf, "device_put")
        if kind is None and not config.is_exact:  # ops read their operands into device memory
            return operand
        return InMemory(kind or DEVICE)(operand)
    array = _put(leaf, None)
    return _put(array, array.sharding.with_memory_kind(kind))


def _check_on_processes(array: ArrayImpl, sharding: Sharding) -> None:
    """Check that all processes call `device_put` with the same array, if it gets shards on other processes.

    If some process has no device in either sharding, the others cannot know whether it takes part, and nothing is
    checked.
    """
    if array.sharding.is_fully_addressable and sharding.is_fully_addressable:
        return
    if not array.committed and array.is_readable:
        _check_host_value(array.words.numpy(), array.type, sharding)
    elif len({*array.sharding.processes, *sharding.processes}) == process_count():
        check_equal(
            digest(f"{array.type} {_placement_text(array.sharding)} {_placement_text(sharding)}".encode()),
            lambda: (
                f"device_put: the devices of this {array.type} in {array.sharding}, or those of {sharding}, are not "
                "the same on each process. device_put accepts an array that all processes have in common: a local "
                "array becomes one with `make_array_from_process_local_data`."
            ),
            ValueError,
        )


def _placement_text(sharding: Sharding) -> str:
    return f"{sharding} {[device.id for device in sharding.devices]}"


def _check_host_value(value: np.ndarray[Any, Any], type: ArrayType, sharding: Sharding) -> None:
    """Check that all processes put the same value on a mesh of all processes."""
    if len(sharding.processes) == process_count():
        check_equal(
            digest(f"{type}".encode(), value),
            lambda: (
                f"device_put: the value passed to device_put is not the same on each process: {type} in {sharding}. "
                "Pass the same value on each process; or make an array of different data with "
                "`make_array_from_process_local_data`."
            ),
            AssertionError,
        )


def create_on_device(function: Callable[..., Any], args: tuple[Any, ...], device: Placement, name: str) -> Any:
    """Compute `function(*args)` on a device or a sharding, where each device computes only its own shard.

    `args` are concrete and hashable. `name` is the public function that was called, for messages.
    """
    sharding = as_sharding(name, device)
    if sharding is None:
        return function(*args)
    if is_staging():
        return constrain(function(*args), sharding)
    shortest = sharding.without_trailing_nones  # the spec may be longer than the rank, as in JAX
    array = _jit_with_out_sharding(function, args, repr(args), shortest)()
    return array if shortest is sharding else array.with_signature(array_signature(array.type, sharding, True))


@registered_cache(maxsize=1024)
def _jit_with_out_sharding(
    function: Callable[..., Any], args: tuple[Any, ...], args_repr: str, sharding: Sharding
) -> Any:
    """Return the jitted function; `args_repr` distinguishes arguments that compare equal, such as 0.0 and -0.0."""
    return jit(partial(function, *args), out_shardings=sharding)


def device_get(x: object) -> Any:
    """Copy the arrays of a pytree to the host.

    Args:
        x: a pytree.

    Returns:
        A pytree like `x` with numpy arrays in place of arrays. Other leaves, and arrays of random keys, are unchanged.

    Raises:
        RuntimeError: if an array was deleted or donated.
        TransferError: if `transfer_guard` disallows explicit transfers.

    Example:
        >>> jax.device_get({"x": jnp.arange(3), "y": 2})
        {'x': array([0, 1, 2], dtype=int32), 'y': 2}
    """

    def get(leaf: object) -> Any:
        if not isinstance(leaf, ArrayImpl) or is_key(leaf.type.dtype):
            return leaf
        check_transfer("device_to_host", leaf.type, explicit=True)
        return leaf.numpy()

    return tree.map(get, x)


def block_until_ready(x: _T) -> _T:
    """Wait until all arrays of a pytree have been computed.

    Args:
        x: a pytree. Leaves that are not arrays are ignored.

    Returns:
        `x`.

    Raises:
        RuntimeError: if an array was deleted or donated, or if the program that computes it fails.

    Example:
        >>> jax.block_until_ready(jnp.arange(3) + 1)
        Array([1, 2, 3], dtype=int32)
    """
    arrays = [leaf for leaf in tree.leaves(x) if isinstance(leaf, ArrayImpl)]
    for array in arrays:
        if array.is_deleted():
            raise deleted_error(array, "block_until_ready: the array")
    wait(arrays)
    return x
