"""auto_axes and explicit_axes: change the types of mesh axes inside a function.

The arguments get types on the mesh with the new axis types, and the results types on the mesh outside. In a traced
function, both are `reshard` ops; outside, arrays are put on a mesh of the same devices.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

from shardwise import tree
from shardwise.api.arguments import check_function
from shardwise.api.meshes.current_mesh import enter_axes
from shardwise.api.meshes.placement import device_put, reshard_leaves
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.ops.placement.reshard import reshard_to
from shardwise.compiler.shardings.explicit import ExplicitSharding
from shardwise.compiler.shardings.mesh import AbstractMesh, AxisType, Mesh, mesh_context, mesh_of_types
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.errors import ShardingError, ShardingTypeError
from shardwise.runtime.array import ArrayImpl

_T = TypeVar("_T")


def auto_axes(
    f: Callable[..., Any] | None = None,
    /,
    *,
    axes: str | Sequence[str] | None = None,
    out_sharding: object = None,
) -> Callable[..., Any]:
    """Let the planner decide along Explicit mesh axes inside a function.

    Inside, the axes are Auto: types do not show them, and no op needs `out_sharding` along them. A value that the
    function closes over must be replicated along them: pass others as arguments.

    Args:
        f: a function of pytrees of arrays. Without it, the result is a decorator.
        axes: the names of the axes; by default all axes of the current mesh. Without a current mesh, the mesh is that
            of `out_sharding` or of the arguments.
        out_sharding: the shardings of the results outside, as a tree prefix: `NamedSharding`s, or PartitionSpecs on the
            current mesh. It can also be passed to the returned function.

    Returns:
        A function like `f`, with the additional keyword argument `out_sharding`. If no axis changes its type, it is
        `f`.

    Raises:
        TypeError: if `f` is not callable; when called, if there is no `out_sharding`.
        ShardingError: when called, if the mesh has no such axis, or if `out_sharding` is not a tree prefix of the
            results or does not fit one of them.
        ShardingTypeError: when called, if an argument is unreduced over one of the axes.
        NotImplementedError: when called, if one of the axes is a manual axis of an enclosing `shard_map`.

    Example:
        >>> @jax.sharding.auto_axes(out_sharding=P("x", None))
        ... def product(x, y):
        ...     return x @ y
        >>> with jax.set_mesh(jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))):
        ...     x = jnp.ones((8, 4), out_sharding=P(None, "x"))
        ...     jax.typeof(product(x, x.T))  # `x @ x.T` would be ambiguous
        f32[8@x,8]
    """
    if f is None:
        return lambda function: auto_axes(function, axes=axes, out_sharding=out_sharding)
    check_function("auto_axes", f)
    given = out_sharding

    @wraps(f)
    def call(*args: object, out_sharding: object = None, **keywords: object) -> Any:
        specs = given if out_sharding is None else out_sharding
        if specs is None:
            raise TypeError("auto_axes: missing keyword argument 'out_sharding': the shardings of the results")
        meshes = _meshes("auto_axes", specs, (args, keywords), axes, AxisType.Auto)
        if meshes is None:
            return f(*args, **keywords)
        mesh, inside = meshes
        with enter_axes(inside, mesh):
            args, keywords = _cast((args, keywords), inside)
            results = f(*args, **keywords)
        with mesh_context.entered(mesh, mesh_context.scoped):
            return reshard_leaves("auto_axes", "out_sharding", results, specs)

    return call


def explicit_axes(
    f: Callable[..., Any] | None = None,
    /,
    *,
    axes: str | Sequence[str] | None = None,
    in_sharding: object = None,
) -> Callable[..., Any]:
    """Put the sharding along Auto mesh axes into types inside a function.

    Inside, the axes are Explicit: types show them, and follow from the types of the arguments. Outside, the planner
    decides again along them.

    Args:
        f: a function of pytrees of arrays. Without it, the result is a decorator.
        axes: the names of the axes; by default all axes of the current mesh. Without a current mesh, the mesh is that
            of `in_sharding` or of the arguments.
        in_sharding: the shardings of the positional arguments inside, as a tree prefix of their tuple:
            `NamedSharding`s, or PartitionSpecs on the current mesh. It can also be passed to the returned function.

    Returns:
        A function like `f`, with the additional keyword argument `in_sharding`. If no axis changes its type, it is `f`.

    Raises:
        TypeError: if `f` is not callable; when called, if there is no `in_sharding`.
        ShardingError: when called, if the mesh has no such axis, or if `in_sharding` is not a tree prefix of the
            arguments or does not fit one of them.
        ShardingTypeError: when called, if a result is unreduced over one of the axes.
        NotImplementedError: when called, if one of the axes is a manual axis of an enclosing `shard_map`.

    Example:
        >>> @jax.sharding.explicit_axes(in_sharding=P("x", None))
        ... def double(x):
        ...     print(jax.typeof(x))
        ...     return 2 * x
        >>> with jax.set_mesh(jax.make_mesh((4,), ("x",))):
        ...     y = double(jnp.ones((8, 4)))
        f32[8@x,4]
    """
    if f is None:
        return lambda function: explicit_axes(function, axes=axes, in_sharding=in_sharding)
    check_function("explicit_axes", f)
    given = in_sharding

    @wraps(f)
    def call(*args: object, in_sharding: object = None, **keywords: object) -> Any:
        specs = given if in_sharding is None else in_sharding
        if specs is None:
            raise TypeError("explicit_axes: missing keyword argument 'in_sharding': the shardings of the arguments")
        meshes = _meshes("explicit_axes", specs, (args, keywords), axes, AxisType.Explicit)
        if meshes is None:
            return f(*args, **keywords)
        mesh, inside = meshes
        specs = tuple(specs) if isinstance(specs, list) else specs
        with enter_axes(inside, mesh):
            args = reshard_leaves("explicit_axes", "in_sharding", args, specs)
            results = f(*args, **_cast(keywords, inside))
        with mesh_context.entered(mesh, mesh_context.scoped):
            return _cast(results, mesh.abstract)

    return call


def _meshes(
    name: str, shardings: object, arguments: object, axes: str | Sequence[str] | None, axis_type: AxisType
) -> tuple[Mesh | AbstractMesh, AbstractMesh] | None:
    """Return the mesh outside, and its axes inside; None if no axis changes its type."""
    mesh = _mesh_of(shardings, arguments)
    inside = None if mesh is None else _with_axis_type(name, mesh.abstract, axes, axis_type)
    return None if mesh is None or inside is None else (mesh, inside)


def _mesh_of(shardings: object, arguments: object) -> Mesh | AbstractMesh | None:
    """Return the current mesh; without one, the mesh of the shardings or of the arguments."""
    if mesh_context.mesh is not None:
        return mesh_context.mesh
    found: list[Mesh | AbstractMesh] = [
        leaf.mesh for leaf in tree.leaves(shardings, _is_sharding) if isinstance(leaf, NamedSharding)
    ]
    for leaf in tree.leaves(arguments):
        if isinstance(leaf, ArrayImpl) and isinstance(leaf.sharding, NamedSharding):
            found.append(leaf.sharding.mesh)
        elif isinstance(leaf, Array) and leaf.type.explicit is not None:
            found.append(leaf.type.explicit.mesh)
    return next((mesh for mesh in found if isinstance(mesh, Mesh)), next(iter(found), None))


def _is_sharding(x: object) -> bool:
    return isinstance(x, (Sharding, PartitionSpec))


def _with_axis_type(
    name: str, mesh: AbstractMesh, axes: str | Sequence[str] | None, kind: AxisType
) -> AbstractMesh | None:
    """Return the mesh with another type of its axes `axes`; None if they have it already."""
    names = mesh.axis_names if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
    for axis in names:
        if axis not in mesh.axis_names:
            raise ShardingError(f"{name}: {mesh.unknown_axis_message(axis)}")
    manual = [axis for axis in names if axis in mesh_context.manual_axes or axis in mesh.manual_axes]
    if manual:
        raise NotImplementedError(
            f"{name}: {', '.join(map(repr, manual))} is a manual axis of the enclosing shard_map: values inside are "
            f"shards along it, so it cannot be an {kind.name} axis there. Pass `axes=` without the manual axes."
        )
    changed = mesh.update_axis_types(dict.fromkeys(names, kind))
    return None if changed == mesh else changed


def _cast(x: _T, axes: AbstractMesh) -> _T:
    """Return the arrays of a pytree on the current mesh, sharded as their types say along its Explicit axes `axes`."""
    return tree.map(lambda leaf: _cast_array(leaf, axes) if isinstance(leaf, Array) else leaf, x)


def _cast_array(x: Array, axes: AbstractMesh) -> Any:
    sharding = x.type.explicit
    if sharding and (planned := [axis for axis in sharding.unreduced if axis not in axes.explicit_axes]):
        raise ShardingTypeError(
            f"{x.type} is unreduced over {', '.join(map(repr, planned))}, and only values along Explicit axes can be: "
            "reduce it first, `reshard(x, P(...))`"
        )
    if isinstance(x, ArrayImpl):
        if not isinstance(x.sharding, NamedSharding) or x.sharding.mesh_shape.shape_tuple != axes.shape_tuple:
            return x
        old = x.sharding.spec
        spec = PartitionSpec(*old, unreduced=old.unreduced, reduced=old.reduced & set(axes.explicit_axes))
        return device_put(x, NamedSharding(x.sharding.grid.with_axes(axes), spec))
    assert mesh_context.mesh is not None
    mesh, scoped = mesh_of_types(mesh_context.mesh), mesh_context.scoped
    dims = sharding.dims if sharding else ((),) * x.type.ndim
    sums, copies = (sharding.unreduced, sharding.reduced) if sharding else ((), ())
    return reshard_to(x, ExplicitSharding.from_dims(mesh, dims, sums, copies, scoped))
