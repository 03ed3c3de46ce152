"""Products over named axes: pdot, and xeinsum, an einsum whose terms name axes in braces (`"n{b,k},{k,m}->n{b,m}"`)."""

import operator
import re
from collections.abc import Sequence
from typing import Any, final

from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ops.collective.named_dot import NamedDot
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.movement import permute
from shardwise.lax.collectives import psum, split_by_tracking
from shardwise.lax.dot_products import mixed_dtype_dot
from shardwise.lax.manual_axes import AxisNames, bound_axis_sizes
from shardwise.lax.precision import PrecisionLike, precisions
from shardwise.typing import ArrayLike


def pdot(
    x: ArrayLike,
    y: ArrayLike,
    axis_name: AxisNames,
    pos_contract: tuple[Sequence[int], Sequence[int]] = ((), ()),
    pos_batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
    precision: PrecisionLike = None,
) -> Array:
    """Multiply two arrays, and sum over contracting dims and over all members of named axes.

    It is `psum(dot_general(x, y, ...), axis_name)`. Under `vmap` and `xmap` the named axes are contracted like dims, so
    the product of each member is never formed.

    Args:
        x: the left array.
        y: the right array.
        axis_name: the name of an axis that `vmap`, `xmap`, `pmap` or `shard_map` binds, or a sequence of names.
        pos_contract: a pair of the contracting dims of `x` and of `y`.
        pos_batch: a pair of the batch dims of `x` and of `y`.
        precision: a `Precision` for both operands or a pair of them, or a name such as "highest". None means the
            default of the configuration.

    Returns:
        An array with the batch dims, then the other dims of `x`, then those of `y`.

    Raises:
        UnboundAxisError: if an axis name is not bound.
        ValueError: if an axis name repeats, or `precision` is unknown.
        TypeError: if the dims do not agree, or the dtypes have no common dtype.

    Example:
        >>> jax.vmap(lambda x, y: lax.pdot(x, y, "i"), axis_name="i")(jnp.arange(3), jnp.arange(3))
        Array([5, 5, 5], dtype=int32)
    """
    axes = bound_axis_sizes("pdot", tuple(axis_name) if isinstance(axis_name, list) else axis_name)
    contract, batch = (tuple(tuple(map(operator.index, dims)) for dims in pair) for pair in (pos_contract, pos_batch))
    names = {is_tracked: group for group, is_tracked in split_by_tracking(axes)}
    dot = Dot(contract, batch, precision=precisions("pdot", precision))  # type: ignore[arg-type]
    op = NamedDot(names[False], dot.contract, dot.batch, dot.precision) if False in names else dot
    product = mixed_dtype_dot(x, y, op=op, dtype=None)
    return psum(product, names[True]) if True in names else product


def xeinsum(spec: str, *operands: ArrayLike) -> Array:
    """Evaluate an einsum over dims and named axes.

    Args:
        spec: the equation, with an explicit result. A term has a letter for each dim and, in braces, names of axes that
            `vmap`, `xmap` or `shard_map` binds: "n{b,k},{k,m}->n{b,m}". Names that are not in the result are summed.
            The order of names has no meaning.
        *operands: the arrays.

    Returns:
        An array with the dims of the result, which varies along its names.

    Raises:
        ValueError: if the equation is malformed, does not match the operands, or has a letter or a name in the result
            that no operand has.
        UnboundAxisError: if an axis name is not bound.
        TypeError: if the sizes of dims do not agree, or the dtypes have no common dtype.

    Example:
        >>> lax.xeinsum("ij,j->i", jnp.array([[1, 2], [3, 4]]), jnp.array([10, 1]))
        Array([12, 34], dtype=int32)
        >>> jax.vmap(lambda x: lax.xeinsum("{i},{i}->{}", x, x), axis_name="i")(jnp.arange(3))
        Array([5, 5, 5], dtype=int32)
    """
    terms, result = _parse(spec)
    if len(terms) != len(operands):
        raise ValueError(
            f"xeinsum: {spec!r} has {len(terms)} terms before `->`, but there are {len(operands)} operands"
        )
    arrays = [as_operand(x, "xeinsum") for x in operands]
    for term, x in zip(terms, arrays, strict=True):
        if len(term.letters) != x.type.ndim:
            raise ValueError(
                f"xeinsum: {spec!r} names {len(term.letters)} dims of {x.type}, which has rank {x.type.ndim}"
            )
    array, term = arrays[0], terms[0]
    for index in range(1, len(arrays)):
        array, term = _multiply(array, term, arrays[index], terms[index], [result, *terms[index + 1 :]])
    array, term = _reduce(array, term, [result])
    return permute(array, tuple(map(term.letters.index, result.letters)))


@final
@record
class _Term:
    """A term of an equation: a letter for each dim, and the names of axes."""

    letters: str
    names: tuple[str, ...]

    def dims(self, letters: Sequence[str]) -> tuple[int, ...]:
        return tuple(map(self.letters.index, letters))


def _parse(spec: str) -> tuple[list[_Term], _Term]:
    """Return the terms of the operands and of the result."""
    inputs, arrow, output = spec.replace(" ", "").partition("->")
    texts = [*re.split(r",(?![^{]*})", inputs), output]
    terms = []
    for text in texts:
        match = re.fullmatch(r"([A-Za-z]*)(?:\{([^{}]*)\})?", text)
        if match is None or not arrow:
            raise ValueError(f"xeinsum: {spec!r} is not an equation such as 'n{{b,k}},{{k,m}}->n{{b,m}}'")
        names = tuple(name for name in (match[2] or "").split(",") if name)
        for entries in (match[1], names):
            if len(set(entries)) != len(entries):
                raise ValueError(f"xeinsum: an entry repeats in the term {text!r} of {spec!r}")
        terms.append(_Term(match[1], names))
    *operands, result = terms
    if missing := [
        *(letter for letter in result.letters if all(letter not in term.letters for term in operands)),
        *(name for name in result.names if all(name not in term.names for term in operands)),
    ]:
        raise ValueError(f"xeinsum: the result of {spec!r} has {missing[0]!r}, which no operand has")
    return operands, result


def _reduce(x: Array, term: _Term, others: Sequence[_Term]) -> tuple[Any, _Term]:
    """Sum over the letters and names that none of the other terms has."""
    letters = [letter for letter in term.letters if all(letter not in other.letters for other in others)]
    names = tuple(name for name in term.names if all(name not in other.names for other in others))
    x = Sum(term.dims(letters))(x) if letters else x
    kept = "".join(letter for letter in term.letters if letter not in letters)
    return psum(x, names) if names else x, _Term(kept, tuple(name for name in term.names if name not in names))


def _multiply(x: Array, x_term: _Term, y: Array, y_term: _Term, later: Sequence[_Term]) -> tuple[Any, _Term]:
    """Multiply two operands, and sum over the letters and names that no later term has."""
    x, x_term = _reduce(x, x_term, [y_term, *later])
    y, y_term = _reduce(y, y_term, [x_term, *later])
    shared = [letter for letter in x_term.letters if letter in y_term.letters]
    batch = [letter for letter in shared if any(letter in term.letters for term in later)]
    contract = [letter for letter in shared if letter not in batch]
    names = [name for name in x_term.names if name in y_term.names and all(name not in term.names for term in later)]
    contracting_dims, batch_dims = ((x_term.dims(letters), y_term.dims(letters)) for letters in (contract, batch))
    product = pdot(x, y, names, contracting_dims, batch_dims)
    free = [letter for term in (x_term, y_term) for letter in term.letters if letter not in shared]
    kept = tuple(dict.fromkeys(name for name in (*x_term.names, *y_term.names) if name not in names))
    return product, _Term("".join([*batch, *free]), kept)
