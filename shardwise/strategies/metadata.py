"""Shardings from the partitioning metadata of Flax: variables of NNX, and boxes of Linen."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from shardwise import tree_util
from shardwise.compiler.shardings.mesh import Mesh
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.errors import StrategyError
from shardwise.strategies.leaves import is_array, leaf_name
from shardwise.strategies.parameters import Rules
from shardwise.strategies.specs import checked_sharding, spec_of_dims
from shardwise.tree_util import KeyPath

_WHO = "partition_metadata"
_KEYS = ("out_sharding", "sharding_names", "sharding")  # of NNX; the first one since Flax 0.12


def partition_metadata(params: object, mesh: Mesh, rules: Rules = (), *, allow_uneven: bool = False) -> Any:
    """Return the shardings that the partitioning metadata of Flax asks for.

    A variable of NNX has metadata with the name `out_sharding` (before Flax 0.12, `sharding`), as
    `nnx.with_partitioning` sets. A parameter of Linen is in a box with `names`, as `nn.with_partitioning` makes. Flax
    is not imported: an object with these attributes is enough. Parameters without metadata are replicated.

    Args:
        params: a pytree of variables, boxes, arrays or `ShapeDtypeStruct`s, such as `nnx.state(model)`.
        mesh: the mesh.
        rules: the mesh axis, a tuple of them, or None for each logical name. Names without a rule are mesh axes.
        allow_uneven: whether devices may have shards of different sizes.

    Returns:
        A pytree like `params` with a sharding in each variable or box; None for leaves that are not arrays.

    Raises:
        StrategyError: if a name is no mesh axis and has no rule, or if a spec does not fit its parameter.

    Example:
        >>> mesh = jax.make_mesh((2, 4), ("data", "model"))
        >>> jax.strategies.partition_metadata({"scale": jnp.ones(8)}, mesh)["scale"].spec
        P()
    """
    table = dict(rules)

    def choose(path: KeyPath, node: object) -> object:
        value = _value(node)
        if not is_array(value):
            return None
        name = leaf_name(path)
        dims = [_mesh_axes(entry, table, mesh, name) for entry in _names(node)]
        sharding = checked_sharding(mesh, name, tuple(value.shape), spec_of_dims(dims), _WHO, allow_uneven)
        return _replaced(node, sharding)

    return tree_util.tree_map_with_path(choose, params, is_leaf=_has_metadata)


def _has_metadata(node: object) -> bool:
    return hasattr(node, "get_metadata") or hasattr(node, "replace_boxed")


def _value(node: Any) -> Any:
    if not _has_metadata(node):
        return node
    return node.get_value() if hasattr(node, "get_value") else node.value  # the latter is deprecated since Flax 0.12


def _names(node: Any) -> tuple[Any, ...]:
    """Return the name, or the names, of each dim of a parameter."""
    if not _has_metadata(node):
        return ()
    if hasattr(node, "replace_boxed"):
        return tuple(getattr(node, "names", None) or ())
    metadata: Mapping[str, Any] = node.get_metadata()
    names = next((metadata[key] for key in _KEYS if metadata.get(key)), ())
    return tuple(names.spec if isinstance(names, NamedSharding) else names)


def _mesh_axes(entry: str | Sequence[str] | None, table: Mapping[str, Any], mesh: Mesh, name: str) -> tuple[str, ...]:
    axes: list[str] = []
    for each in () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry):
        mapped = table.get(each, each)
        axes += () if mapped is None else (mapped,) if isinstance(mapped, str) else tuple(mapped)
    for axis in axes:
        if axis not in mesh.axis_names:
            known = [*table, *mesh.axis_names]
            near = get_close_matches(axis, known, 1)
            raise StrategyError(
                f"{_WHO}: a dim of {name!r} is called {axis!r}, which is neither a mesh axis nor a name with a rule; "
                f"these are {', '.join(map(repr, known))}.{f' Did you mean {near[0]!r}?' if near else ''}"
            )
    return tuple(axes)


def _replaced(node: Any, sharding: NamedSharding) -> object:
    if not _has_metadata(node):
        return sharding
    return node.replace_boxed(sharding) if hasattr(node, "replace_boxed") else node.replace(sharding)
