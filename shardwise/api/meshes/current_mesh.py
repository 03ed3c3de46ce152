"""The current mesh of a thread: set_mesh, use_mesh, use_abstract_mesh, get_mesh, get_abstract_mesh."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from shardwise.compiler.ir.dispatch import is_staging, open_frames
from shardwise.compiler.shardings.mesh import (
    ONE_DEVICE,
    AbstractMesh,
    AxisType,
    Mesh,
    mesh_context,
    mesh_of_types,
)
from shardwise.errors import ShardingError


@final
class set_mesh:
    """Set the current mesh of this thread, on which bare PartitionSpecs are interpreted.

    As a statement it sets the mesh from now on; in `with set_mesh(mesh):`, until the block ends. Functions without
    committed arguments run on the mesh, and arrays that are created without a sharding are replicated on it.

    Args:
        mesh: the mesh; None or an empty mesh if there is no current mesh from now on.

    Raises:
        TypeError: if `mesh` is not a `Mesh`.
        ValueError: inside a function that is being traced, or if the mesh has Manual axes.

    Example:
        >>> with jax.set_mesh(jax.make_mesh((4,), ("rows",))):
        ...     x = jax.device_put(jnp.arange(8), P("rows"))
        >>> len(x.addressable_shards)
        4
    """

    def __init__(self, mesh: Mesh | None):
        if mesh is not None and not isinstance(mesh, Mesh):
            raise TypeError(f"set_mesh needs a Mesh, not {mesh!r}")
        if mesh is not None and mesh.manual_axes:
            raise ShardingError(
                f"set_mesh: {mesh!r} has Manual axes, {', '.join(map(repr, mesh.manual_axes))}, which exist inside "
                "shard_map only: make them Auto or Explicit"
            )
        if is_staging():
            raise ValueError(
                "set_mesh cannot be used inside a function that is being traced: set the mesh before the call"
            )
        self._mesh = mesh
        self._before = mesh_context.state
        current = None if mesh is None or mesh.empty else mesh
        mesh_context.state = current, False, current is not None

    def __enter__(self) -> Mesh | None:
        return self._mesh

    def __exit__(self, *exception: object) -> None:
        mesh_context.state = self._before


@contextmanager
def use_mesh(mesh: Mesh) -> Iterator[Mesh]:
    """Set the current mesh of this thread inside a `with` block, as `with set_mesh(mesh):` does.

    Args:
        mesh: the mesh.

    Yields:
        `mesh`.

    Raises:
        TypeError: if `mesh` is not a `Mesh`.

    Example:
        >>> with jax.sharding.use_mesh(jax.make_mesh((4,), ("rows",))) as mesh:
        ...     x = jax.device_put(jnp.arange(8), P("rows"))
        >>> x.sharding.mesh == mesh
        True
    """
    if not isinstance(mesh, Mesh):
        raise TypeError(f"use_mesh needs a Mesh, not {mesh!r}")
    with mesh:
        mesh_context.runs_programs = True
        yield mesh


@contextmanager
def use_abstract_mesh(mesh: AbstractMesh) -> Iterator[AbstractMesh]:
    """Replace the axes of the current mesh inside a `with` block, in traced functions too.

    The names, sizes and types of axes may change; the devices and their order do not. A bare PartitionSpec in the block
    refers to these axes. Values from outside keep their types until `reshard` changes them.

    Without a current mesh, functions can be traced, planned and lowered in the block, but not run.

    Args:
        mesh: the axes.

    Yields:
        `mesh`.

    Raises:
        TypeError: if `mesh` is not an `AbstractMesh`.
        ValueError: if `mesh` has another number of devices than the current mesh.

    Example:
        >>> mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
        >>> @jax.jit
        ... def f(x):
        ...     with jax.sharding.use_abstract_mesh(mesh.abstract_mesh.update((2, 4), ("a", "b"))):
        ...         return jax.sharding.reshard(x, P("b"))
        >>> with jax.set_mesh(mesh):
        ...     jax.typeof(f(jnp.arange(8)))
        i32[8@b]
    """
    if not isinstance(mesh, AbstractMesh):
        raise TypeError(f"use_abstract_mesh needs an AbstractMesh, not {mesh!r}")
    current = mesh_context.mesh
    if current is not None and current.device_count != mesh.device_count:
        raise ValueError(
            f"use_abstract_mesh cannot change the size of the current mesh: {current.abstract} has "
            f"{current.device_count} devices, but {mesh} needs {mesh.device_count}"
        )
    with enter_axes(mesh):
        yield mesh


@contextmanager
def enter_axes(axes: AbstractMesh, devices: Mesh | AbstractMesh | None = None) -> Iterator[None]:
    """Replace the axes of a mesh in a `with` block, and make it the current mesh.

    Args:
        axes: the axes.
        devices: the mesh; by default the current mesh.
    """
    mesh = mesh_context.mesh if devices is None else devices
    if isinstance(mesh, Mesh):  # its manual axes are those of the enclosing regions
        mesh = mesh.with_axes(axes.update_axis_types(dict.fromkeys(axes.manual_axes, AxisType.Auto)))
    scoped = mesh_context.scoped or bool(open_frames())  # else the whole program of every call has these axes
    with mesh_context.entered(mesh if isinstance(mesh, Mesh) else axes, scoped):
        yield


def get_abstract_mesh() -> AbstractMesh:
    """Return the axes of this thread's current mesh.

    Inside `shard_map`, its manual axes have the type `AxisType.Manual`. Inside `auto_axes` and `explicit_axes`, axes
    have the types that these functions set.

    Returns:
        The abstract mesh; it has no axes if no mesh is set.

    Example:
        >>> with jax.set_mesh(jax.make_mesh((4,), ("rows",))):
        ...     print(jax.sharding.get_abstract_mesh().axis_names)
        ('rows',)
    """
    mesh = mesh_context.region_mesh or mesh_context.mesh
    return ONE_DEVICE if mesh is None else mesh_of_types(mesh).abstract


def get_mesh() -> Mesh:
    """Return this thread's current mesh.

    Returns:
        The mesh that `set_mesh` or `with mesh:` has set; an empty mesh if there is none.

    Raises:
        ValueError: inside a function that is being traced, which may run on other devices: use `get_abstract_mesh`.

    Example:
        >>> with jax.set_mesh(jax.make_mesh((4,), ("rows",))):
        ...     print(jax.sharding.get_mesh().size)
        4
    """
    if is_staging():
        raise ValueError(
            "get_mesh cannot be used inside a function that is being traced, which may run on other devices: use "
            "`get_abstract_mesh()`"
        )
    return mesh_context.concrete
