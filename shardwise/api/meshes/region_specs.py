"""`in_specs` and `out_specs` of manual regions: checks, and the errors for results that do not agree with them."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeGuard

from shardwise import tree
from shardwise.compiler.control.region_boundary import ShardSpec
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.spec import PartitionSpec, spec_of
from shardwise.compiler.trace.tracer import Tracer
from shardwise.errors import ShardingError, ShardingTypeError

Function = Callable[..., Any]


def is_spec(x: object) -> TypeGuard[PartitionSpec]:
    """Return whether `x` is a PartitionSpec."""
    return isinstance(x, PartitionSpec)


def spec_text(spec: ShardSpec) -> str:
    """Return a spec as text, for messages."""
    entries = [None if not axes else axes[0] if len(axes) == 1 else axes for axes in spec.dims]
    return str(PartitionSpec(*entries, unreduced=spec.unreduced, reduced=spec.reduced))


def check_specs(label: str, parameter: str, specs: object) -> None:
    """Raise TypeError if a leaf of `in_specs` or `out_specs` is not a PartitionSpec."""
    for spec in tree.leaves(specs, is_spec):
        if not is_spec(spec):
            hint = f" Write P({spec!r})." if isinstance(spec, str) else ""
            raise TypeError(f"{label}: {parameter} must hold PartitionSpecs, not {spec!r}.{hint}")


def split_unmapped(f: Function, specs: Sequence[PartitionSpec | None], args: tuple[Any, ...]) -> tuple[Function, Any]:
    """Return the function of the arguments that have a spec, and these arguments; None stands for the others.

    Args:
        f: the function.
        specs: the spec of each leaf of `args`. A leaf with the spec None is any object, and `f` gets it unchanged.
        args: the arguments of `f`.
    """
    if None not in specs:
        return f, args
    leaves, structure = tree.flatten(args)
    unmapped = [(leaf,) if spec is None else () for leaf, spec in zip(leaves, specs, strict=True)]

    @wraps(f)
    def call(*mapped: object) -> Any:
        rest = iter(tree.leaves(mapped))
        return f(*structure.unflatten([kept[0] if kept else next(rest) for kept in unmapped]))

    return call, structure.unflatten([None if kept else leaf for kept, leaf in zip(unmapped, leaves, strict=True)])


def sums_error(label: str, x: Tracer, spec: ShardSpec, name: str) -> ShardingTypeError:
    """Return the error for a result whose unreduced or reduced axes are not those of its spec."""
    mat = x.type.mat
    fixes = []
    if terms := mat.unreduced - set(spec.unreduced):
        axis = sorted(terms)[0]
        fixes.append(f"reduce it with `lax.psum(x, {axis!r})`, or name {axis!r} in `P(..., unreduced=...)`")
    if copies := mat.reduced - set(spec.reduced):
        fixes.append(f"name {sorted(copies)[0]!r} in `P(..., reduced=...)`")
    if terms := frozenset(spec.unreduced) - mat.unreduced - mat.varying:
        fixes.append(f"only a value that varies along {sorted(terms)[0]!r} can become unreduced along it")
    if copies := frozenset(spec.reduced) - mat.reduced:
        fixes.append(f"cast a replicated result with `lax.pcast(x, {sorted(copies)[0]!r}, to='reduced')`")
    return ShardingTypeError(
        f"{label}: out_specs={spec_text(spec)} does not agree with result {name}, which has type {x.type}, "
        f"computed at {x.source}: {'; '.join(fixes)}."
    )


def replication_error(label: str, x: Tracer, spec: ShardSpec, name: str, axes: Sequence[str]) -> ShardingError:
    """Return the error for a result that varies over axes which its spec does not use."""
    axis_argument = repr(axes[0]) if len(axes) == 1 else repr(tuple(axes))
    fixes = [f"reduce it, for example with `lax.psum(…, {axis_argument})`"]
    if x.type.ndim:
        longer = spec_of(Layout(((*spec.dims[0], *axes), *spec.dims[1:])))
        fixes.append(f"or concatenate the shards with out_specs={longer}")
    return ShardingError(
        f"{label}: out_specs={spec_of(Layout(spec.dims))} requires result {name} to be replicated along "
        f"{', '.join(map(repr, axes))}, but it may vary there: it is {x.type}, computed at {x.source}.\n"
        f"  To fix it, {', '.join(fixes)}. If the result is replicated although this cannot be inferred, "
        "check_vma=False turns the check off."
    )
