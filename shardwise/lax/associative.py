"""associative_scan: all prefixes at once, by combining neighbours."""

from collections.abc import Callable
from typing import Any

from shardwise import tree
from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Concatenate, Reverse, slice_along

Combine = Callable[[list[Any], list[Any]], list[Any]]


def associative_scan(fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """Element i of the result is `fn` over elements 0 to i of `elems`, along `axis`; from the end where `reverse`.

    `elems` is a tree of arrays whose sizes along `axis` agree. `fn(earlier, later)` combines two such trees element
    by element along `axis` and gives a third of the same types. It need not commute. Of n elements it takes about
    2 log2(n) rounds, in which 2n pairs are combined.

    >>> lax.associative_scan(jnp.add, jnp.arange(5))
    Array([ 0,  1,  3,  6, 10], dtype=int32)
    """
    if not callable(fn):
        raise TypeError(f"associative_scan: fn must be a function of two trees, not {fn!r}")
    leaves, structure = tree.flatten(elems)
    if not leaves:
        raise ValueError("associative_scan: elems has no arrays")
    operands = [as_operand(leaf, "associative_scan") for leaf in leaves]
    dim = canonical_axis("associative_scan", axis, operands[0].type.ndim)
    if len({x.type.shape[dim : dim + 1] for x in operands}) != 1:
        types = ", ".join(str(x.type) for x in operands)
        raise ValueError(f"associative_scan: all arrays must have one size along axis {axis}, not {types}")

    def combine(earlier: list[Any], later: list[Any]) -> list[Any]:
        combined = fn(structure.unflatten(earlier), structure.unflatten(later))
        found, found_structure = tree.flatten(combined)
        if found_structure != structure:
            raise TypeError(
                f"associative_scan: fn must return a tree like its arguments, {structure}, not {combined!r}"
            )
        results = [as_operand(x, "associative_scan") for x in found]
        for x, given in zip(results, earlier, strict=True):
            if x.type.strong() != given.type.strong():
                raise TypeError(
                    f"associative_scan: fn must return arrays like its arguments: {given.type}, not {x.type}"
                )
        return results

    if reverse:
        operands = [Reverse((dim,))(x) for x in operands]
    scanned = _scanned(combine, operands, dim)
    if reverse:
        scanned = [Reverse((dim,))(x) for x in scanned]
    return structure.unflatten(scanned)


def _scanned(combine: Combine, elems: list[Any], dim: int) -> list[Any]:
    """The prefixes of `elems`: those of pairs of neighbours, and between them those that end inside a pair.

    elements       a  b  c  d  e
    pairs          ab    cd
    their scan     ab    abcd
    inside         a     ab·c  abcd·e
    """
    count = elems[0].type.shape[dim]
    if count < 2:
        return elems
    firsts = [slice_along(x, dim, 0, count - 1, 2) for x in elems]
    seconds = [slice_along(x, dim, 1, count, 2) for x in elems]
    ends = _scanned(combine, combine(firsts, seconds), dim)
    inside = [slice_along(x, dim, 0, 1) for x in elems]
    if count > 2:
        before = [slice_along(x, dim, 0, (count - 1) // 2) for x in ends]
        rest = combine(before, [slice_along(x, dim, 2, count, 2) for x in elems])
        inside = [Concatenate(dim)(first, more) for first, more in zip(inside, rest, strict=True)]
    return [_interleaved(even, odd, dim) for even, odd in zip(inside, ends, strict=True)]


def _interleaved(even: Any, odd: Any, dim: int) -> Any:
    """Elements of `even` and `odd` in turn along `dim`. `even` has as many, or one more, which comes last."""
    count = odd.type.shape[dim]
    before, after = odd.type.shape[:dim], odd.type.shape[dim + 1 :]
    apart = Reshape((*before, count, 1, *after))
    pairs = Concatenate(dim + 1)(apart(slice_along(even, dim, 0, count)), apart(odd))
    together = Reshape((*before, 2 * count, *after))(pairs)
    if even.type.shape[dim] == count:
        return together
    return Concatenate(dim)(together, slice_along(even, dim, count, count + 1))
