"""Strategies for parameters: functions from a tree of parameters and a mesh to a tree of shardings."""

import math
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from shardwise import tree_util
from shardwise.base.docstrings import Family, documented
from shardwise.compiler.shardings.mesh import Mesh
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.errors import StrategyError
from shardwise.strategies.leaves import (
    array_shapes,
    arrays_with_shardings,
    leaf_name,
    leaves_with_shardings,
    map_arrays,
)
from shardwise.strategies.specs import check_axis, check_mesh, checked_sharding, dims_of, spec_of_dims
from shardwise.tree_util import KeyPath

Rules = Mapping[str, Any] | Sequence[tuple[str, Any]]


_SHARDINGS = Family(
    {
        "params": "a pytree of arrays or of `ShapeDtypeStruct`s.",
        "mesh": "the mesh.",
        "axis": "the mesh axis.",
        "base": "a pytree of shardings like `params` to refine, such as those of `tensor_parallel`; by default, all\n"
        "parameters are replicated.",
    },
    returns="A pytree of shardings like `params`; None for leaves that are not arrays.",
)


@documented(_SHARDINGS)
def data_parallel(params: object, mesh: Mesh) -> Any:
    """Replicate all parameters: every device has all of them, and a part of each batch.

    Args:
        params: a pytree of arrays or of `ShapeDtypeStruct`s: a dict, a Flax state, an Equinox module.

    Raises:
        ValueError: if the keys of a dict in `params` cannot be sorted.

    Example:
        >>> mesh = jax.make_mesh((8,), ("data",))
        >>> jax.strategies.data_parallel({"w": jnp.ones((16, 4))}, mesh)["w"].spec
        P()
    """
    return map_arrays(lambda name, shape: NamedSharding(mesh, PartitionSpec()), params)


@documented(_SHARDINGS)
def tensor_parallel(params: object, mesh: Mesh, rules: Rules, *, allow_uneven: bool = False) -> Any:
    """Shard parameters by rules on their names. Parameters that no rule matches are replicated.

    Args:
        rules: pairs of a regular expression and a spec, or a dict of these. The first one that matches a part of the
            name, such as `layers/0/attention/query/kernel`, counts.
        allow_uneven: whether devices may have shards of different sizes.

    Raises:
        StrategyError: if a rule matches no parameter, or if its spec does not fit one: an unknown mesh axis, too many
            dims, or a size that is not divisible.

    Example:
        >>> mesh = jax.make_mesh((2, 4), ("data", "model"))
        >>> params = {"up": jnp.ones((16, 64)), "down": jnp.ones((64, 16)), "scale": jnp.ones(16)}
        >>> rules = {"up": P(None, "model"), "down": P("model", None)}
        >>> jax.strategies.tensor_parallel(params, mesh, rules)["down"].spec
        P('model', None)
    """
    pairs = list(rules.items()) if isinstance(rules, Mapping) else list(rules)
    names = list(array_shapes(params))
    for pattern, _ in pairs:
        _check_pattern("tensor_parallel", pattern)
    unknown = [pattern for pattern, _ in pairs if not any(re.search(pattern, name) for name in names)]
    if unknown:
        texts = [f"the rule {pattern!r} matches no parameter. {_hint(pattern, names)}" for pattern in unknown]
        raise StrategyError("tensor_parallel: " + "\n  ".join(texts))

    def choose(name: str, shape: tuple[int, ...]) -> NamedSharding:
        spec = next((spec for pattern, spec in pairs if re.search(pattern, name)), PartitionSpec())
        return checked_sharding(mesh, name, shape, spec, "tensor_parallel", allow_uneven)

    return map_arrays(choose, params)


def _check_pattern(who: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise StrategyError(f"{who}: {pattern!r} is not a regular expression: {error}") from None


def _hint(pattern: str, names: Sequence[str]) -> str:
    near = get_close_matches(pattern, names, 3, cutoff=0.3) or list(names[:3])
    return f"Names of parameters are such as {', '.join(map(repr, near))}." if near else "There are no parameters."


@documented(_SHARDINGS)
def expert_parallel(params: object, mesh: Mesh, pattern: str, axis: str = "expert", *, base: object = None) -> Any:
    """Shard the weights of experts, which are stacked along their first dim, over a mesh axis.

    Args:
        pattern: a regular expression that matches a part of the names of these weights, such as `layers/0/experts/up`.

    Raises:
        StrategyError: if the mesh has no such axis, if the pattern matches no parameter, if a parameter that it matches
            has no first dim or one that the axis does not divide, or if `base` shards that dim or uses the axis.

    Example:
        >>> mesh = jax.make_mesh((2, 4), ("data", "expert"))
        >>> params = {"router": jnp.ones((16, 8)), "experts": {"up": jnp.ones((8, 16, 64))}}
        >>> jax.strategies.expert_parallel(params, mesh, "experts")["experts"]["up"].spec
        P('expert')
    """
    check_axis(mesh, axis, "expert_parallel")
    known = arrays_with_shardings(params, data_parallel(params, mesh) if base is None else base)
    _check_pattern("expert_parallel", pattern)
    if not any(re.search(pattern, name) for name in known):
        raise StrategyError(f"expert_parallel: {pattern!r} matches no parameter. {_hint(pattern, list(known))}")

    def choose(name: str, shape: tuple[int, ...]) -> NamedSharding:
        _, sharding = known[name]
        if not re.search(pattern, name):
            return sharding
        dims = dims_of(sharding.spec, len(shape))
        if not dims or dims[0] or any(axis in axes for axes in dims):
            raise StrategyError(
                f"expert_parallel: {name!r}, of shape {shape} and with {sharding.spec}, must have experts along its "
                f"first dim, which `base` leaves unsharded, and no other dim over {axis!r}."
            )
        spec = spec_of_dims([(axis,), *dims[1:]])
        return checked_sharding(mesh, name, shape, spec, "expert_parallel")

    return map_arrays(choose, params)


@documented(_SHARDINGS, returns="A pytree of shardings.")
def logical_axes(axes: object, mesh: Mesh, rules: Rules) -> Any:
    """Return shardings for parameters whose dims have logical names, such as `("embed", "mlp")`.

    Args:
        axes: a pytree whose leaves are tuples or specs of logical names, or None; one for each parameter.
        rules: the mesh axis, or tuple of mesh axes, of each logical name; None replicates it.

    Raises:
        StrategyError: if a logical name has no rule, or if a rule names an unknown mesh axis.

    Example:
        >>> mesh = jax.make_mesh((2, 4), ("data", "model"))
        >>> rules = {"embed": None, "mlp": "model"}
        >>> jax.strategies.logical_axes({"up": ("embed", "mlp")}, mesh, rules)["up"].spec
        P(None, 'model')
    """
    check_mesh(mesh, "logical_axes")
    table = dict(rules)

    def choose(path: KeyPath, names: Sequence[str | None] | None) -> NamedSharding:
        dims = []
        for name in names or ():
            if name is not None and name not in table:
                raise StrategyError(
                    f"logical_axes: {leaf_name(path)!r} has a dim called {name!r}, for which there is no rule. There "
                    f"are rules for {', '.join(map(repr, table))}."
                )
            axes = None if name is None else table[name]
            dims.append(() if axes is None else (axes,) if isinstance(axes, str) else tuple(axes))
            for axis in dims[-1]:
                check_axis(mesh, axis, f"logical_axes: the rule for {name!r}")
        return NamedSharding(mesh, spec_of_dims(dims))

    def is_names(node: object) -> bool:
        return node is None or (isinstance(node, tuple) and all(x is None or isinstance(x, str) for x in node))

    return tree_util.tree_map_with_path(choose, axes, is_leaf=is_names)


@documented(_SHARDINGS, raises=["StrategyError: if the mesh has no such axis."])
def fsdp(params: object, mesh: Mesh, axis: str = "data", *, base: object = None, min_size: int = 1024) -> Any:
    """Shard every parameter over a mesh axis, so that each device stores a part of all of them.

    Each parameter is sharded along its largest dim that the axis divides and that `base` leaves unsharded. A compiled
    function gathers it where it is used. Parameters without such a dim, and small ones, stay as in `base`.

    Args:
        min_size: parameters with fewer elements are not sharded.

    Example:
        >>> mesh = jax.make_mesh((4, 2), ("data", "model"))
        >>> params = {"up": jnp.ones((64, 256)), "scale": jnp.ones(64)}
        >>> base = jax.strategies.tensor_parallel(params, mesh, {"up": P(None, "model")})
        >>> jax.strategies.fsdp(params, mesh, base=base)["up"].spec
        P('data', 'model')
    """
    count = check_axis(mesh, axis, "fsdp")
    known = arrays_with_shardings(params, data_parallel(params, mesh) if base is None else base)

    def choose(name: str, shape: tuple[int, ...]) -> NamedSharding:
        _, sharding = known[name]
        dims = dims_of(sharding.spec, len(shape))
        free = [dim for dim, axes in enumerate(dims) if not axes and shape[dim] and shape[dim] % count == 0]
        if not free or math.prod(shape) < min_size or any(axis in axes for axes in dims):
            return sharding
        largest = max(free, key=lambda dim: shape[dim])
        dims[largest] = (axis,)
        return NamedSharding(mesh, spec_of_dims(dims))

    return map_arrays(choose, params)


def like_parameters(state: object, params: object, shardings: object) -> Any:
    """Return shardings for an optimizer's state: every array in it that belongs to a parameter is sharded like it.

    An array belongs to a parameter if its name ends with the parameter's name, and it has the same shape. Others, such
    as step counts, are replicated.

    Args:
        state: the optimizer's state, of arrays or `ShapeDtypeStruct`s.
        params: the parameters.
        shardings: a pytree of shardings like `params`.

    Returns:
        A pytree of shardings like `state`; None for leaves that are not arrays.

    Raises:
        StrategyError: if there is no parameter.

    Example:
        >>> mesh = jax.make_mesh((8,), ("data",))
        >>> params = {"w": jnp.ones((16, 128))}
        >>> state = {"count": jnp.zeros((), int), "mu": params, "nu": params}
        >>> chosen = jax.strategies.like_parameters(state, params, jax.strategies.fsdp(params, mesh))
        >>> chosen["mu"]["w"].spec, chosen["count"].spec
        (P(None, 'data'), P())
    """
    known = arrays_with_shardings(params, shardings)
    if not known:
        raise StrategyError("like_parameters: there is no parameter")
    mesh = next(iter(known.values()))[1].mesh

    def choose(name: str, shape: tuple[int, ...]) -> NamedSharding:
        keys = name.split("/")
        for start in range(len(keys)):
            found = known.get("/".join(keys[start:]))
            if found is not None and found[0] == shape:
                return found[1]
        return NamedSharding(mesh, PartitionSpec())

    return map_arrays(choose, state)


def count_bytes(tree: object, shardings: object) -> int:
    """Return the bytes of a tree of arrays on one device, by its shardings.

    Args:
        tree: a pytree of arrays or of `ShapeDtypeStruct`s.
        shardings: a pytree of shardings like it.

    Returns:
        The bytes of the largest shards of all arrays.

    Raises:
        ShardingError: if a sharding does not fit its array.

    Example:
        >>> mesh = jax.make_mesh((8,), ("data",))
        >>> params = {"w": jnp.ones((16, 128))}
        >>> jax.strategies.count_bytes(params, jax.strategies.fsdp(params, mesh))
        1024
    """
    return sum(
        math.prod(sharding.shard_shape(tuple(leaf.shape))) * leaf.dtype.itemsize
        for _, leaf, sharding in leaves_with_shardings(tree, shardings)
    )
