"""`associative_scan`: a parallel prefix scan in O(log n) rounds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from shardwise import tree
from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Concatenate, slice_along

Combine = Callable[[list[Any], list[Any]], list[Any]]


def associative_scan(fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """Compute all prefixes of an array under an associative function, in parallel.

    Element i of the result combines the elements 0 to i along `axis`. For n elements, `fn` is called about 2 log2(n)
    times and combines at most 2n pairs of elements.

    Args:
        fn: an associative function `fn(earlier, later)` of two pytrees like `elems`. It combines them element by
            element along `axis` and returns leaves of the same types in the same order; as in JAX, their pytree may
            have another structure, such as a tuple for a named tuple. It need not commute.
        elems: a pytree of arrays that have the same size along `axis`.
        reverse: scan from the last element to the first.
        axis: the axis to scan along.

    Returns:
        A pytree of the structure and types of `elems`.

    Raises:
        TypeError: if `fn` is not callable, or returns another number of arrays, shape or dtype than it is given.
        ValueError: if `elems` has no arrays, `axis` does not exist, or the sizes along `axis` differ.

    Example:
        >>> lax.associative_scan(jnp.add, jnp.arange(5))
        Array([ 0,  1,  3,  6, 10], dtype=int32)
    """
    if not callable(fn):
        raise TypeError(f"associative_scan: fn must be a function of two pytrees, not {fn!r}")
    leaves, structure = tree.flatten(elems)
    if not leaves:
        raise ValueError("associative_scan: elems has no arrays")
    operands = [as_operand(leaf, "associative_scan") for leaf in leaves]
    dim = canonical_axis("associative_scan", axis, operands[0].type.ndim)
    if len({x.type.shape[dim : dim + 1] for x in operands}) != 1:
        types = ", ".join(str(x.type) for x in operands)
        raise ValueError(f"associative_scan: all arrays must have the same size along axis {axis}, not {types}")

    def combine(earlier: list[Any], later: list[Any]) -> list[Any]:
        combined = fn(structure.unflatten(earlier), structure.unflatten(later))
        combined_leaves = tree.leaves(combined)
        if len(combined_leaves) != len(leaves):
            raise TypeError(
                f"associative_scan: fn must return a pytree of the structure of its arguments, {structure}, "
                f"not {combined!r}"
            )
        results = [as_operand(x, "associative_scan") for x in combined_leaves]
        for x, argument in zip(results, earlier, strict=True):
            if x.type.strong() != argument.type.strong():
                raise TypeError(
                    f"associative_scan: fn must return arrays of the types of its arguments: {argument.type}, "
                    f"not {x.type}"
                )
        return results

    return structure.unflatten(_Scan(combine, dim, reverse).prefixes(operands))


@final
@dataclass(frozen=True)
class _Scan:
    """A prefix scan along `dim`, from the last element to the first with `reverse`.

    Positions count in the order of the scan, and arrays are stored in their own order: nothing is reversed, which would
    move every element to another device if the dim is sharded.
    """

    combine: Combine
    dim: int
    reverse: bool

    def prefixes(self, elems: list[Any]) -> list[Any]:
        """Compute the prefixes of `elems`: recursively those of pairs of neighbours, and from them those that end
        within a pair.

        elements            a  b  c  d  e
        pairs               ab    cd
        scan of the pairs   ab    abcd
        within a pair       a     ab·c  abcd·e
        """
        count = elems[0].type.shape[self.dim]
        if count < 2:
            return elems
        firsts = [self._take(x, 0, count - 1, 2) for x in elems]
        seconds = [self._take(x, 1, count, 2) for x in elems]
        odd_prefixes = self.prefixes(self.combine(firsts, seconds))
        even_prefixes = [self._take(x, 0, 1) for x in elems]
        if count > 2:
            before = [self._take(x, 0, (count - 1) // 2) for x in odd_prefixes]
            rest = self.combine(before, [self._take(x, 2, count, 2) for x in elems])
            even_prefixes = [self._concatenate(first, more) for first, more in zip(even_prefixes, rest, strict=True)]
        return [self._interleave(even, odd) for even, odd in zip(even_prefixes, odd_prefixes, strict=True)]

    def _take(self, x: Any, start: int, limit: int, stride: int = 1) -> Any:
        """Slice `x` at positions of the scan."""
        if self.reverse:
            size, last = x.type.shape[self.dim], start + (limit - 1 - start) // stride * stride
            start, limit = size - 1 - last, size - start
        return slice_along(x, self.dim, start, limit, stride)

    def _concatenate(self, first: Any, second: Any) -> Any:
        """Concatenate in the order of the scan."""
        return Concatenate(self.dim)(*self._ordered(first, second))

    def _ordered(self, first: Any, second: Any) -> tuple[Any, Any]:
        return (second, first) if self.reverse else (first, second)

    def _interleave(self, even: Any, odd: Any) -> Any:
        """Interleave `even` and `odd`. `even` has as many elements as `odd`, or one more, which comes last."""
        dim, count = self.dim, odd.type.shape[self.dim]
        before, after = odd.type.shape[:dim], odd.type.shape[dim + 1 :]
        expand = Reshape((*before, count, 1, *after))
        pairs = Concatenate(dim + 1)(*map(expand, self._ordered(self._take(even, 0, count), odd)))
        interleaved = Reshape((*before, 2 * count, *after))(pairs)
        if even.type.shape[dim] == count:
            return interleaved
        return self._concatenate(interleaved, self._take(even, count, count + 1))
