"""Where arrays live: make_mesh, set_mesh, device_put, with_sharding_constraint."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, final

import numpy as np

from shardwise import tree
from shardwise._jaxlib import Device, RuntimeFailure
from shardwise.api.jit import constrain, jit
from shardwise.caches import registered_cache
from shardwise.compiler.arrays.operands import as_operand, type_of
from shardwise.compiler.dtypes import is_key
from shardwise.compiler.ir.dispatch import installed, is_staging
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.shardings.mesh import AbstractMesh, AxisType, Mesh, device_grid, mesh_context
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.compiler.trace.tracer import Tracer
from shardwise.errors import ShardingError
from shardwise.execute.executor import as_array
from shardwise.execute.transfer import transfer, transfer_to_memory
from shardwise.runtime.array import Array, array_signature, deleted_error, place, wait
from shardwise.runtime.client import devices as all_devices
from shardwise.runtime.out_of_memory import check_memory
from shardwise.runtime.sharding import ONE_DEVICE, NamedSharding, Sharding, SingleDeviceSharding, sharding_in_force
from shardwise.runtime.transfer_guard import check_transfer


def make_mesh(
    axis_shapes: Sequence[int],
    axis_names: Sequence[str],
    axis_types: AxisType | Sequence[AxisType] | None = None,
    *,
    devices: Sequence[Any] | None = None,
) -> Mesh:
    """A mesh of these sizes and names over the first devices (or over `devices`).

    >>> mesh = jax.make_mesh((4, 2), ("data", "model"))
    >>> mesh
    Mesh(data=4, model=2)
    """
    sizes = AbstractMesh(axis_shapes, axis_names).axis_sizes  # sizes and names that do not fit are an error here
    count = math.prod(sizes)
    found = list(all_devices() if devices is None else devices)
    if count > len(found):
        raise ShardingError(
            f"make_mesh{(sizes, tuple(axis_names))} needs {count} devices, and there are {len(found)}. "
            "More virtual CPU devices: config.update('num_cpu_devices', …) before the first use of a device."
        )
    return Mesh(device_grid(found[:count], sizes), tuple(axis_names), axis_types)


@final
class set_mesh:
    """Make `mesh` the one that bare PartitionSpecs are meant for, in this thread, from now on; or inside `with`.

    >>> with jax.set_mesh(jax.make_mesh((4,), ("rows",))):
    ...     x = jax.device_put(jnp.arange(8), P("rows"))
    >>> len(x.addressable_shards)
    4
    """

    def __init__(self, mesh: Mesh):
        if not isinstance(mesh, Mesh):
            raise TypeError(f"set_mesh needs a Mesh, not {mesh!r}")
        if is_staging():
            raise ValueError("set_mesh inside a function that is being traced: set the mesh where you call it")
        self._before = mesh_context.mesh
        mesh_context.mesh = mesh

    def __enter__(self) -> Mesh | None:
        return mesh_context.mesh

    def __exit__(self, *exception: object) -> None:
        mesh_context.mesh = self._before


@contextmanager
def use_mesh(mesh: Mesh) -> Iterator[Mesh]:
    """`with use_mesh(mesh):` is `with mesh:`.

    >>> with jax.sharding.use_mesh(jax.make_mesh((4,), ("rows",))) as mesh:
    ...     x = jax.device_put(jnp.arange(8), P("rows"))
    >>> x.sharding.mesh == mesh
    True
    """
    if not isinstance(mesh, Mesh):
        raise TypeError(f"use_mesh needs a Mesh, not {mesh!r}")
    with mesh:
        yield mesh


def get_abstract_mesh() -> AbstractMesh:
    """The mesh in force in this thread, without its devices; without axes where there is none. Inside of shard_map, the
    axes that it looks after are Manual.

    >>> with jax.set_mesh(jax.make_mesh((4,), ("rows",))):
    ...     print(jax.sharding.get_abstract_mesh().axis_names)
    ('rows',)
    """
    if mesh_context.mesh is None:
        return ONE_DEVICE
    mesh = mesh_context.mesh.abstract
    if not mesh_context.manual_axes:
        return mesh
    kinds = [
        AxisType.Manual if axis in mesh_context.manual_axes else kind
        for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
    ]
    return AbstractMesh(mesh.axis_sizes, mesh.axis_names, kinds)


def get_mesh() -> Mesh:
    """The mesh in force in this thread.

    >>> with jax.set_mesh(jax.make_mesh((4,), ("rows",))):
    ...     print(jax.sharding.get_mesh().size)
    4
    """
    if mesh_context.mesh is None:
        raise ShardingError("get_mesh: no mesh is in force here: set one, with `with mesh:` or `set_mesh(mesh)`")
    return mesh_context.mesh


def device_put(
    x: Any, device: Any = None, *, src: Any = None, donate: bool = False, may_alias: bool | None = None
) -> Any:
    """The arrays of a tree, moved to `device`: a Sharding, a device, a tree prefix of these, or None for any device.

    A PartitionSpec is for the mesh in force. With `may_alias=False` the results never share memory with `x`. With
    `donate` the memory of `x` is given up where it is not part of a result. `src` is where `x` is; arrays know it.

    >>> rows = jax.NamedSharding(jax.make_mesh((4,), ("rows",)), P("rows"))
    >>> x = jax.device_put(np.arange(8), rows)
    >>> [shard.data.tolist() for shard in x.addressable_shards]
    [[0, 1], [2, 3], [4, 5], [6, 7]]
    """
    if donate and may_alias:
        raise ValueError("device_put: memory that is donated cannot be shared: give donate or may_alias, not both")
    leaves, structure = tree.flatten(x)
    out = []
    for leaf, where in zip(leaves, _spread("device_put", "device", device, x), strict=True):
        made = _put(leaf, _sharding("device_put", where))
        if isinstance(leaf, Array) and may_alias is False:
            made = Array.of(_own_memory(made).buffers, made.signature)
        if isinstance(leaf, Array) and donate and _apart(leaf.sharding, made.sharding):
            leaf.delete()
        out.append(made)
    return structure.unflatten(out)


def _apart(before: Sharding, after: Sharding) -> bool:
    """Whether arrays that lie so can share no memory."""
    return before.kind != after.kind or before.device_set.isdisjoint(after.device_set)


def _own_memory(array: Array) -> Array:
    """A copy on the same devices: a compiled identity gives memory of its own."""
    if array.sharding.kind:
        return transfer_to_memory(array, array.sharding, copied=True)
    (copy,) = installed.executor.run(Convert(array.type.dtype, array.type.weak), (array,))
    return copy  # type: ignore[no-any-return]


def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """The arrays of a tree, pinned to shardings (a tree prefix): the planner never overrules them.

    >>> mesh = jax.make_mesh((1,), ("x",))
    >>> lax.with_sharding_constraint(jnp.arange(3), jax.NamedSharding(mesh, jax.P("x")))
    Array([0, 1, 2], dtype=int32)
    """
    leaves, structure = tree.flatten(x)
    out = []
    for leaf, given in zip(leaves, _spread("with_sharding_constraint", "shardings", shardings, x), strict=True):
        where = sharding_in_force(given, "with_sharding_constraint") if isinstance(given, PartitionSpec) else given
        if not isinstance(where, Sharding):
            raise TypeError(
                f"with_sharding_constraint needs shardings, such as NamedSharding(mesh, spec), not {where!r}"
            )
        _check("with_sharding_constraint", leaf, where)
        operand = as_operand(leaf)
        if isinstance(operand, Array) and not (operand.committed or is_staging() or _leaves_open(where)):
            out.append(_put(operand, where))  # straight to where it is wanted, and not whole to every device first
        else:
            out.append(constrain(operand, where))
    return structure.unflatten(out)


def _spread(name: str, parameter: str, given: Any, x: Any) -> list[Any]:
    def is_leaf(node: Any) -> bool:
        return node is None or isinstance(node, (Sharding, Device, PartitionSpec))

    try:
        return tree.broadcast_prefix(given, x, is_leaf)
    except tree.TreeMismatch as mismatch:
        where = tree.keystr(mismatch.difference.path)
        text = mismatch.difference.of_prefix(parameter + where, f"x{where}")
        raise ShardingError(f"{name}: `{parameter}` is no tree prefix of x.\n  {text}") from None


def _sharding(name: str, where: Any) -> Sharding | None:
    if where is None or isinstance(where, Sharding):
        return where
    if isinstance(where, Device):
        return SingleDeviceSharding(where)
    if isinstance(where, PartitionSpec):
        return sharding_in_force(where, name)
    raise TypeError(f"{name} needs a Sharding or a device, not {where!r}")


def _leaves_open(where: Sharding) -> bool:
    return isinstance(where, NamedSharding) and any(entry is PartitionSpec.UNCONSTRAINED for entry in where.spec)


def _check(name: str, leaf: Any, where: Sharding) -> None:
    kind = type_of(leaf, name)
    try:
        where.pin(kind.shape)
    except ShardingError as error:
        raise ShardingError(f"{name}: cannot lay out {kind}.\n  {error}") from None


def _put(leaf: Any, where: Sharding | None) -> Any:
    if where is None:
        return leaf if isinstance(leaf, Tracer) else as_array(leaf, "device_put", explicit=True)
    _check("device_put", leaf, where)
    if isinstance(leaf, Tracer):
        return constrain(leaf, where)
    if _leaves_open(where):
        raise ShardingError(f"device_put: {where} leaves dims open, and only a planner can close them")
    if isinstance(leaf, Array):
        if leaf.is_deleted():
            raise deleted_error(leaf.type, "an array that is moved")
        if leaf.sharding != where:
            check_transfer("device_to_device", leaf.type, explicit=True)
        there = transfer(leaf, where)
        return Array.of(there.buffers, array_signature(there.type, where, True))
    kind = type_of(leaf, "device_put")
    check_transfer("host_to_device", kind, explicit=True)
    return place(np.asarray(leaf), kind, where, committed=True)


def created(function: Callable[..., Any], args: tuple[Any, ...], device: Any, name: str) -> Any:
    """What `function` makes of `args`, which are known now, on `device`: each device makes its own piece."""
    where = _sharding(name, device)
    if where is None:
        return function(*args)
    if is_staging():
        return constrain(function(*args), where)
    return _maker(function, args, repr(args), where)()


@registered_cache(maxsize=1024)
def _maker(function: Callable[..., Any], args: tuple[Any, ...], text: str, where: Sharding) -> Any:
    """The compiled function; `text` tells arguments apart that are equal but not the same, such as 0.0 and -0.0."""
    return jit(partial(function, *args), out_shardings=where)


def device_get(x: Any) -> Any:
    """The arrays of a tree as numpy arrays on the host; other leaves as they are.

    >>> jax.device_get({"x": jnp.arange(3), "y": 2})
    {'x': array([0, 1, 2], dtype=int32), 'y': 2}
    """

    def got(leaf: Any) -> Any:
        if not isinstance(leaf, Array) or is_key(leaf.type.dtype):
            return leaf
        check_transfer("device_to_host", leaf.type, explicit=True)
        return leaf.numpy()

    return tree.map(got, x)


def block_until_ready(x: Any) -> Any:
    """`x`, once the elements of all its arrays are there.

    >>> jax.block_until_ready(jnp.arange(3) + 1)
    Array([1, 2, 3], dtype=int32)
    """
    try:
        wait([leaf for leaf in tree.leaves(x) if isinstance(leaf, Array)])
    except RuntimeFailure as error:
        check_memory(error, "a program that makes what is waited for")
        raise
    return x
