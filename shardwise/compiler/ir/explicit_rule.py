"""The result shardings of an op along Explicit mesh axes: one rule for all ops, derived from factor rules.

1. A factor gets the axes of the operand dims that have it. If some of these dims are sharded and others unsharded, the
   factor is sharded; two different shardings are a conflict.
2. Along a reduced factor, the result of a reduction (sum, max) is replicated. In a contraction, a factor that both
   operands shard is ambiguous: the result may be replicated, scattered or unreduced.
3. An axis shards only one dim of a result.
4. An unreduced operand needs an op that is linear in it.

Inference is total: the first operand decides a conflict, an ambiguous sum is replicated, and a replicated operand mixed
with an unreduced one becomes one of its terms. If a user's op needs such a decision, it is an error. Derivatives and
functions with `out_sharding` rely on these decisions, and reshard the result. Types only constrain results: the planner
finds the cheapest way to compute a result in the sharding of its type.

If the setting `jax_compatibility` is "exact", results have the shardings that JAX infers: `Op.check_as_jax` raises an
error where JAX does, `Op.types_as_jax` leaves out operands that JAX gathers, and merged dims may both be sharded.
"""

from collections.abc import Mapping, Sequence

from shardwise.base.config import config
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.explicit import Axes, ExplicitSharding
from shardwise.compiler.shardings.factors import Dims, FactorRule
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh, AxisType, Mesh
from shardwise.errors import ShardingTypeError

LinearSets = tuple[tuple[int, ...], ...]  # as `Op.linear_in` returns them


def with_result_shardings(
    op_name: str,
    rule: FactorRule,
    linear_in: LinearSets,
    types: Sequence[ArrayType],
    results: Sequence[ArrayType],
    is_contraction: bool = False,
    strict: bool = False,
) -> tuple[ArrayType, ...]:
    """Return the result types of an op with their shardings along Explicit axes.

    Args:
        op_name: the name of the op, for messages.
        rule: its factor rule.
        linear_in: the sets of operands in which it is jointly linear.
        types: the types of its operands; at least one has a sharding.
        results: the types of its results, without shardings.
        is_contraction: whether the op sums products of its operands.
        strict: whether a conflict or an ambiguous sum is an error.

    Raises:
        ShardingTypeError: if operands are on different meshes; with `strict`, also if they conflict, a sum is
            ambiguous, a dim cannot stay sharded, or the op is not linear in an unreduced operand.
    """
    mesh = _common_mesh(op_name, types, strict)
    scoped = any([type.explicit is not None and type.explicit.scoped for type in types])
    factor_axes = _axes_of_factors(op_name, rule, types, mesh.abstract, is_contraction, strict)
    unreduced = _unreduced_axes(op_name, linear_in, types, strict)
    reduced = [axis for axis in _reduced_axes(types) if axis not in unreduced]
    typed = []
    for dims, type in zip(rule.results, results, strict=True):
        axes = _axes_of_dims(op_name, dims, factor_axes, types, strict)
        used = {axis for of_dim in axes for axis in of_dim}
        copies = [axis for axis in reduced if axis not in used]
        sharding = ExplicitSharding.from_dims(mesh, axes, unreduced, copies, scoped)
        typed.append(type.with_explicit(sharding))
    return tuple(typed)


def _common_mesh(op_name: str, types: Sequence[ArrayType], strict: bool) -> Mesh | AbstractMesh:
    """Return the mesh of the operands; the concrete one, if others are abstract.

    If an axis has different types in the operands, it is Auto if it is Auto in one of them.
    """
    meshes = list(dict.fromkeys(type.explicit.mesh for type in types if type.explicit))
    if len(meshes) == 1:
        return meshes[0]
    concrete = [mesh for mesh in meshes if isinstance(mesh, Mesh)]
    if len({mesh.abstract.shape_tuple for mesh in meshes}) > 1 or len({mesh.flat_devices for mesh in concrete}) > 1:
        raise ShardingTypeError(
            f"{op_name}: the operands {_listed(types)} are on different meshes: {' and '.join(map(str, meshes))}. "
            "Move one of them with `device_put`, or with `reshard` if only names or sizes of axes differ."
        )
    if len({mesh.abstract for mesh in meshes}) == 1:
        return concrete[0]
    if strict:
        raise ShardingTypeError(
            f"{op_name}: the meshes of the operands {_listed(types)} have different axis types: "
            f"{' and '.join(map(str, meshes))}. Pass sharded operands as arguments to the function that `auto_axes` or "
            "`explicit_axes` wraps, or reshard them inside it: `reshard(x, P(...))`."
        )
    types_of_axes = {axis: AxisType.Auto for mesh in meshes for axis in mesh.auto_axes}
    types_of_axes.update({axis: AxisType.Manual for mesh in meshes for axis in mesh.manual_axes})
    axes = meshes[0].abstract.update_axis_types(types_of_axes)
    return concrete[0].with_axes(axes) if concrete and not axes.manual_axes else axes


def _axes_of_factors(
    op_name: str,
    rule: FactorRule,
    types: Sequence[ArrayType],
    mesh: AbstractMesh,
    is_contraction: bool,
    strict: bool,
) -> dict[int, Axes]:
    """Return the axes of each factor that remains sharded in the results."""
    of_operand: dict[int, dict[int, Axes]] = {}  # for each factor, the axes in each operand that has it
    for index, (dims, type) in enumerate(zip(rule.operands, types, strict=True)):
        divided = _divide_dims(op_name, rule, dims, type, mesh, strict)
        for factors, of_factors in zip(dims, divided, strict=True):
            for factor, axes in zip(factors, of_factors, strict=True):
                of_operand.setdefault(factor, {})[index] = axes
    kept = {factor for dims in rule.results for factors in dims for factor in factors}
    factor_axes: dict[int, Axes] = {}
    for factor, by_operand in of_operand.items():
        named = list(dict.fromkeys(axes for axes in by_operand.values() if axes))
        if not named:
            continue
        if len(named) > 1 and strict:
            raise ShardingTypeError(_conflict_message(op_name, rule, factor, by_operand, types))
        if factor not in rule.reduce or factor in kept:
            factor_axes[factor] = named[0]
        elif is_contraction and len(by_operand) > 1 and all(by_operand.values()) and strict:
            loose = _axes_of_factors(op_name, rule, types, mesh, is_contraction, strict=False)
            raise ShardingTypeError(_ambiguous_message(op_name, rule, named[0], types, loose))
    for factor, source in rule.typed_as.items():
        sharded = [axes for axes in of_operand.get(source, {}).values() if axes]
        if sharded:
            factor_axes[factor] = sharded[0]
    return factor_axes


def _divide_dims(
    op_name: str, rule: FactorRule, dims: Dims, type: ArrayType, mesh: AbstractMesh, strict: bool
) -> list[list[Axes]]:
    """Return, for each dim of an operand, the axes that shard each of its factors."""
    if type.explicit is None:
        return [[()] * len(factors) for factors in dims]
    divided = [
        _divide(op_name, rule, factors, axes, type, dim, mesh, strict)
        for dim, (factors, axes) in enumerate(zip(dims, type.explicit.dims, strict=True))
    ]
    counts = {
        factor: mesh.extent(axes)
        for factors, of_factors in zip(dims, divided, strict=True)
        for factor, axes in zip(factors, of_factors, strict=True)
        if axes
    }
    is_merge = all(len(factors) <= 1 for factors in dims)
    if rule.allows_sharding(counts) or (is_merge and config.is_exact):  # JAX moves the shards of merged dims
        return divided
    # The shards of compound dims are not contiguous, so replicate all factors of these dims.
    compound = [dim for dim, factors in enumerate(dims) if not rule.compound.isdisjoint(factors) and any(divided[dim])]
    if strict:
        dim = compound[-1]
        axes = type.explicit.dims[dim]
        raise ShardingTypeError(
            f"{op_name}: dim {dim} of {type} is sharded along {_and(axes)}, and its shards are not contiguous in the "
            f"result. Say how the result is sharded, `out_sharding=P(...)`, or reshard the operand first: "
            f"`reshard(x, {_with_axes(type, dim, ())})`."
        )
    return [[()] * len(factors) if dim in compound else divided[dim] for dim, factors in enumerate(dims)]


def _divide(
    op_name: str,
    rule: FactorRule,
    factors: tuple[int, ...],
    axes: Axes,
    type: ArrayType,
    dim: int,
    mesh: AbstractMesh,
    strict: bool,
) -> list[Axes]:
    """Distribute the axes that shard a dim over its factors."""
    if not axes or not factors:  # a dim of size 1 may have no factor
        return [()] * len(factors)
    if rule.need_replication.isdisjoint(factors):
        return rule.assign_axes(factors, axes, mesh.shape)
    if strict and rule.replicated_in_results:
        raise ShardingTypeError(
            f"{op_name}: dim {dim} of {type} is sharded along {_and(axes)}, and the result cannot keep that. Reshard "
            f"the operand first, `reshard(x, {_with_axes(type, dim, ())})`, or pass `out_sharding=` if the function "
            "has it."
        )
    return [()] * len(factors)


def _axes_of_dims(
    op_name: str, dims: Dims, factor_axes: Mapping[int, Axes], types: Sequence[ArrayType], strict: bool
) -> list[Axes]:
    """Return the axes of each dim of a result."""
    used: dict[str, int] = {}
    result: list[Axes] = []
    for dim, factors in enumerate(dims):
        axes = [axis for factor in factors for axis in factor_axes.get(factor, ())]
        if (twice := [axis for axis in axes if axis in used]) and strict:
            raise ShardingTypeError(
                f"{op_name}: axis {twice[0]!r} would shard dims {used[twice[0]]} and {dim} of the result of "
                f"{_listed(types)}. Reshard one operand, {_without_axis(types, twice[0])}, or pass "
                "`out_sharding=P(...)` if the function has it."
            )
        axes = [axis for axis in axes if axis not in used]
        used.update(dict.fromkeys(axes, dim))
        result.append(tuple(axes))
    return result


def _unreduced_axes(op_name: str, linear_in: LinearSets, types: Sequence[ArrayType], strict: bool) -> tuple[str, ...]:
    """Return the axes over which the results are unreduced."""
    terms = {
        number: type.explicit.unreduced
        for number, type in enumerate(types)
        if type.explicit and type.explicit.unreduced
    }
    if not terms:
        return ()
    axes = tuple(dict.fromkeys(axis for of_operand in terms.values() for axis in of_operand))
    sharding = [axis for type in types if type.explicit for dim in type.explicit.dims for axis in dim if axis in axes]
    for linear in linear_in:
        others = set(linear) - set(terms)
        # The scalar that pads an array is one of the terms.
        agree = not strict or all(types[number].ndim == 0 < types[min(terms)].ndim for number in others)
        if agree and set(linear) >= set(terms) and len(set(terms.values())) == 1 and not sharding:
            return axes
    if not strict:
        return ()
    number = next(iter(terms))
    if not any(number in linear for linear in linear_in):
        reason = "the op is not linear in it"
    elif sharding:
        reason = f"{sharding[0]!r} shards another operand: {_listed(types)}"
    else:
        reason = f"the other operands are not: {_listed(types)}"
    raise ShardingTypeError(
        f"{op_name}: operand {number} of type {types[number]} is unreduced over {_and(terms[number])}, and {reason}. "
        f"Reduce it first: `{_reducing_call(types[number], terms[number])}`."
    )


def _reducing_call(type: ArrayType, axes: Axes) -> str:
    """Return the call that reduces an unreduced value, for messages."""
    manual = tuple(axis for axis in axes if axis in type.mat.unreduced)
    if manual:
        return f"lax.psum(x, {manual[0]!r})" if len(manual) == 1 else f"lax.psum(x, {manual})"
    return f"reshard(x, {_spec_text(type)})"


def _reduced_axes(types: Sequence[ArrayType]) -> tuple[str, ...]:
    """Return the axes along which an operand is reduced and none is sharded. The results are reduced along them."""
    shardings = [type.explicit for type in types if type.explicit]
    sharded = {axis for sharding in shardings for axes in sharding.dims for axis in axes}
    reduced = dict.fromkeys(axis for sharding in shardings for axis in sharding.reduced)
    return tuple(axis for axis in reduced if axis not in sharded)


def _conflict_message(
    op_name: str, rule: FactorRule, factor: int, by_operand: Mapping[int, Axes], types: Sequence[ArrayType]
) -> str:
    sharded = [(number, axes) for number, axes in by_operand.items() if axes]
    parts = [
        f"dim {_dim_with(rule.operands[number], factor)} of operand {number}, {types[number]}, along {_and(axes)}"
        for number, axes in sharded
    ]
    number, _ = sharded[-1]
    dims = _with_axes(types[number], _dim_with(rule.operands[number], factor), sharded[0][1])
    return (
        f"{op_name}: operands are sharded differently along the same dim: {' and '.join(parts)}. Reshard one of them, "
        f"for example operand {number}: `reshard(x, {dims})`."
    )


def _ambiguous_message(
    op_name: str, rule: FactorRule, axes: Axes, types: Sequence[ArrayType], factor_axes: Mapping[int, Axes]
) -> str:
    dims = _axes_of_dims(op_name, rule.results[0], factor_axes, types, strict=False)
    choices = [f"`out_sharding={Layout(tuple(dims))}` replicates it along {_and(axes)} (one all-reduce)"]
    free = next((dim for dim, of_dim in enumerate(dims) if not of_dim), None)
    if free is not None:
        scattered = (*dims[:free], axes, *dims[free + 1 :])
        choices.append(f"`out_sharding={Layout(scattered)}` scatters it (one reduce-scatter)")
    entries = "".join(f"{entry}, " for entry in str(Layout(tuple(dims)))[2:-1].split(", ") if entry)
    unreduced = f"P({entries}unreduced={{{', '.join(map(repr, axes))}}})"
    choices.append(f"`out_sharding={unreduced}` leaves it unreduced")
    return (
        f"{op_name}: both operands, {_listed(types)}, shard the contracted dim along {_and(axes)}, so the sharding of "
        f"the result is ambiguous. Pass `out_sharding=`:\n  " + ";\n  ".join(choices) + "."
    )


def _without_axis(types: Sequence[ArrayType], axis: str) -> str:
    """Return the call that replicates, along an axis, the last operand that the axis shards."""
    number, sharding = next(
        (number, type.explicit)
        for number, type in reversed(list(enumerate(types)))
        if type.explicit and any(axis in axes for axes in type.explicit.dims)
    )
    dims = tuple(tuple(name for name in axes if name != axis) for axes in sharding.dims)
    return f"for example operand {number}: `reshard(x, {Layout(dims)})`"


def _dim_with(dims: Dims, factor: int) -> int:
    return next(dim for dim, factors in enumerate(dims) if factor in factors)


def _with_axes(type: ArrayType, dim: int, axes: Axes) -> str:
    dims = list(type.explicit.dims if type.explicit else [()] * type.ndim)
    dims[dim] = axes
    return str(Layout(tuple(dims)))


def _spec_text(type: ArrayType) -> str:
    return str(Layout(type.explicit.dims if type.explicit else ((),) * type.ndim))


def _and(axes: Axes) -> str:
    return " and ".join(map(repr, axes))


def _listed(types: Sequence[ArrayType]) -> str:
    return " and ".join(map(str, types))
