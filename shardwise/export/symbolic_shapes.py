"""Symbolic shapes, as users write them: `symbolic_shape("b, 3")`."""

from collections.abc import Sequence
from typing import Any

from shardwise import tree
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct, leaf_type
from shardwise.base.symbolic_dim import Dim, SymbolicScope, is_symbolic_dim, parse_dim


def symbolic_shape(
    shape_spec: str | None,
    *,
    constraints: Sequence[str] = (),
    scope: SymbolicScope | None = None,
    like: Sequence[int | None] | None = None,
) -> tuple[Dim, ...]:
    """Return a shape with symbolic dims.

    Args:
        shape_spec: the sizes, separated by commas, such as `"b, 2*s, 128"`: integers, variables, `+`, `-`, `*`, and
            the functions `floordiv`, `mod`, `max` and `min`. `_` is the size in `like`, and `...` the rest of `like`.
            None stands for `"..."`.
        constraints: constraints on the variables, such as `"s <= 512"`. Every variable is at least 1.
        scope: the scope of the variables; by default a new one with these constraints.
        like: the shape that fills in `_` and `...`.

    Returns:
        The sizes: integers and symbolic dims.

    Raises:
        ValueError: if the syntax is another, if both a scope and constraints are passed, or if `like` does not match.

    Example:
        >>> jax.export.symbolic_shape("b, 2*b + 1, 3")
        (b, 2*b + 1, 3)
    """
    if scope is not None and constraints:
        raise ValueError("symbolic_shape: pass either a scope or constraints; a scope has its own")
    if shape_spec is not None and not isinstance(shape_spec, str):
        raise ValueError(f"symbolic_shape: the shape must be a string or None, not {shape_spec!r}")
    scope = scope or SymbolicScope(constraints)
    entries = _entries("..." if shape_spec is None else shape_spec)
    if "..." in entries:
        if entries[-1] != "..." or entries.count("...") > 1 or like is None or len(like) < len(entries) - 1:
            raise ValueError(f"symbolic_shape: '...' in {shape_spec!r} must be last, and needs a shape `like`")
        entries = [*entries[:-1], *["_"] * (len(like) - len(entries) + 1)]
    if like is not None and len(like) != len(entries):
        raise ValueError(f"symbolic_shape: {shape_spec!r} has {len(entries)} dims, but `like` has {len(like)}")
    return tuple(
        _dim(entry, shape_spec, None if like is None else like[index], scope) for index, entry in enumerate(entries)
    )


def _entries(text: str) -> list[str]:
    """Split a shape at its commas, outside of parentheses."""
    text = text.strip()
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    entries, depth = [""], 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            entries.append("")
        else:
            entries[-1] += character
    stripped = [entry.strip() for entry in entries]
    return stripped[:-1] if not stripped[-1] else stripped  # a trailing comma, or no dims


def _dim(entry: str, spec: str | None, like: int | None, scope: SymbolicScope) -> Dim:
    if entry == "_":
        if like is None:
            raise ValueError(f"symbolic_shape: '_' in {spec!r} needs a size in `like`")
        return like
    dim = parse_dim(entry, scope)
    if not is_symbolic_dim(dim) and like is not None and dim != like:
        raise ValueError(f"symbolic_shape: {spec!r} has a dim of size {dim}, but `like` has {like}")
    return dim


def symbolic_args_specs(
    args: Any, shapes_specs: Any, constraints: Sequence[str] = (), scope: SymbolicScope | None = None
) -> Any:
    """Return `ShapeDtypeStruct`s with symbolic shapes, for `export`.

    Args:
        args: a pytree of arrays or `ShapeDtypeStruct`s, whose dtypes are used.
        shapes_specs: a tree prefix of `args` with the shapes, as in `symbolic_shape`. None keeps the shape of an array.
        constraints: constraints on the variables.
        scope: the scope of the variables; by default a new one with these constraints.

    Returns:
        A pytree like `args`.

    Raises:
        ValueError: if a shape is not valid, or does not match the array, or if both a scope and constraints are passed.

    Example:
        >>> jax.export.symbolic_args_specs((jnp.ones((8, 3)),), ("b, _",))[0].shape
        (b, 3)
    """
    if scope is not None and constraints:
        raise ValueError("symbolic_args_specs: pass either a scope or constraints; a scope has its own")
    scope = scope or SymbolicScope(constraints)
    leaves, structure = tree.flatten(args)
    specs = tree.broadcast_prefix(shapes_specs, args, is_leaf=lambda x: x is None)
    return structure.unflatten(
        [
            ShapeDtypeStruct(symbolic_shape(spec, scope=scope, like=leaf_type(leaf, "args").shape), leaf.dtype)
            for leaf, spec in zip(leaves, specs, strict=True)
        ]
    )
