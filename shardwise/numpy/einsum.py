"""einsum: an equation is parsed and evaluated as a sequence of pairwise products.

Each product of two operands is one `Dot`: shared names that a later step needs are its batch dims, the other shared
names are contracted. A product without contracted names is a multiplication. `opt_einsum` chooses the order of the
products. Only the last product may need a transpose, if its dims are not in the order of the equation. On a mesh these
are ordinary products: contracting a sharded dim leaves a partial sum.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, final

import numpy as np

from shardwise.api.meshes.out_sharding import check_sums, constrain_sharding, decided_by
from shardwise.base.caches import registered_cache
from shardwise.base.lazy import lazy_module
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, astype_weak, compiled_function, reject_out, type_of
from shardwise.compiler.arrays.promotion import promote_dtypes, requested_dtype
from shardwise.compiler.arrays.reductions import sum
from shardwise.compiler.dtypes import DType
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.elementwise.arithmetic import Mul
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import And
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape, permute
from shardwise.lax.dot_products import dot_general, mixed_dtype_dot
from shardwise.lax.named_einsum import xeinsum
from shardwise.lax.precision import PrecisionLike, precisions
from shardwise.typing import ArrayLike, DTypeLike, OutSharding

opt_einsum = lazy_module("opt_einsum")  # 12 ms

Names = tuple[str, ...]
Path = tuple[tuple[int, ...], ...]


def einsum(
    subscripts: Any,
    /,
    *operands: ArrayLike,
    out: None = None,
    optimize: Any = "auto",
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    _dot_general: Callable[..., Any] = dot_general,
    out_sharding: OutSharding = None,
) -> Array:
    """Evaluate an Einstein summation.

    The equation names the dims of each operand and of the result: `"ij,jk->ik"` is a matrix product. Elements with
    equal indices are multiplied, and names that the result lacks are summed over. A name that repeats within an operand
    selects its diagonal, and `...` stands for dims that broadcast. Without `->`, the result has the names that occur
    once, in alphabetical order.

    Args:
        subscripts: the equation. A term may name axes that `vmap`, `xmap` or `shard_map` binds, in braces, as in
            `lax.xeinsum`: "n{b,k},{k,m}->n{b,m}". In the alternative form the first operand stands here; each operand
            is then followed by a list of integers that name its dims, and the last list, if it is left over, names
            those of the result.
        *operands: the arrays, with their lists in the alternative form.
        out: not supported, must be None.
        optimize: how `opt_einsum` chooses the order of the products: a strategy such as "greedy", True for "optimal",
            False for left to right, or a path as `einsum_path` returns it.
        precision: the precision of the products, as in `lax.dot_general`.
        preferred_element_type: the dtype of the accumulation and of the result.
        _dot_general: a function to use for the products instead of `lax.dot_general`.
        out_sharding: the sharding to constrain the result to.

    Returns:
        The result, in the promoted dtype of the operands unless `preferred_element_type` is given.

    Raises:
        ValueError: if the equation is malformed or does not match the ranks of the operands, or if dims with the same
            name have different sizes (other than 1).
        NotImplementedError: if `out` is given.

    Example:
        >>> jnp.einsum("ij,j->i", jnp.array([[1, 2], [3, 4]]), jnp.array([10, 1]))
        Array([12, 34], dtype=int32)
    """
    reject_out("einsum", out)
    if isinstance(subscripts, str) and "{" in subscripts:
        return constrain_sharding(xeinsum(subscripts, *operands), out_sharding)
    equation, arrays = _parse("einsum", subscripts, operands)
    path = _path(equation, tuple(type_of(x).shape for x in arrays), _as_static(optimize))
    names = dict.fromkeys(name for term in equation.terms for name in term if name not in equation.result)
    summed = [[(n, term.index(name)) for n, term in enumerate(equation.terms) if name in term] for name in names]
    check_sums("einsum", out_sharding, arrays, summed)
    with decided_by(out_sharding):
        result = contract(
            *arrays,
            terms=tuple(map(tuple, equation.terms)),
            result=tuple(equation.result),
            path=path,
            precision=precisions("einsum", precision),
            dtype=None if preferred_element_type is None else requested_dtype("einsum", preferred_element_type),
            general=None if _dot_general is dot_general else _GeneralProduct(_dot_general, precision),
        )
    return constrain_sharding(result, out_sharding)


def einsum_path(subscripts: Any, /, *operands: ArrayLike, optimize: Any = "auto") -> tuple[list[tuple[int, ...]], Any]:
    """Return the order in which `einsum` contracts its operands.

    Args:
        subscripts: the equation, as in `einsum`.
        *operands: the arrays, as in `einsum`.
        optimize: the strategy of `opt_einsum`, as in `einsum`.

    Returns:
        The path, a list of the positions of the operands that each step contracts, and the `PathInfo` of `opt_einsum`
        with the costs.

    Raises:
        ValueError: if the equation is malformed or does not match the operands.

    Example:
        >>> x = jnp.ones((2, 3))
        >>> jnp.einsum_path("ij,kj,kl->il", x, x, jnp.ones((2, 5)))[0]
        [(0, 1), (0, 1)]
    """
    equation, arrays = _parse("einsum_path", subscripts, operands)
    strategy = "optimal" if optimize is True else optimize
    shapes = [type_of(x).shape for x in arrays]
    path, info = opt_einsum.contract_path(str(equation), *shapes, shapes=True, optimize=strategy)
    return list(path), info


@final
@record
class _Equation:
    """The names of the dims of each operand and of the result, one letter per dim."""

    terms: tuple[str, ...]
    result: str

    def __str__(self) -> str:
        return f"{','.join(self.terms)}->{self.result}"


def _parse(name: str, subscripts: Any, operands: Sequence[Any]) -> tuple[_Equation, list[Any]]:
    """Return the equation with implicit names made explicit, and the arrays."""
    if isinstance(subscripts, str):
        arrays = list(operands)
        types = [type_of(x, name) for x in arrays]
        parser_input: list[Any] = [subscripts, *(type.shape for type in types)]
        if not arrays:
            raise ValueError(f"{name}: the equation {subscripts!r} needs at least one operand")
    else:
        args = [subscripts, *operands]
        arrays = args[: len(args) // 2 * 2 : 2]
        types = [type_of(x, name) for x in arrays]
        parser_input = list(args)
        parser_input[: len(args) // 2 * 2 : 2] = [type.shape for type in types]
    try:
        names, result, _ = opt_einsum.parser.parse_einsum_input(parser_input, shapes=True)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name}: invalid equation {subscripts!r} for {_join(types)}: {error}") from None
    equation = _Equation(tuple(names.split(",")), result)
    _check(name, equation, types)
    return equation, arrays


def _join(types: Sequence[ArrayType]) -> str:
    return ", ".join(map(str, types))


def _check(name: str, equation: _Equation, types: Sequence[ArrayType]) -> None:
    for term, type in zip(equation.terms, types, strict=True):
        if len(term) != type.ndim:
            raise ValueError(f"{name}: {equation} names {len(term)} dims of {type}, which has rank {type.ndim}")
    sizes: dict[str, int] = {}
    for term, type in zip(equation.terms, types, strict=True):
        for letter, size in zip(term, type.shape, strict=True):
            if size != 1 and sizes.setdefault(letter, size) != size:
                raise ValueError(
                    f"{name}: dims {letter!r} of {equation} have sizes {sizes[letter]} and {size} in {_join(types)}"
                )


def _as_static(optimize: Any) -> Any:
    """Return `optimize` in a hashable form."""
    if isinstance(optimize, (list, tuple)):
        return tuple(tuple(step) for step in optimize if not isinstance(step, str))
    return "optimal" if optimize is True else optimize


@registered_cache(maxsize=1024)
def _path(equation: _Equation, shapes: tuple[tuple[int, ...], ...], optimize: Any) -> Path:
    if len(shapes) <= 2 and isinstance(optimize, (str, bool)):
        return (tuple(range(len(shapes))),)
    strategy = list(optimize) if isinstance(optimize, tuple) else optimize
    path, _ = opt_einsum.contract_path(str(equation), *shapes, shapes=True, optimize=strategy)
    return tuple(map(tuple, path))


@final
@record
class _GeneralProduct:
    """A function that computes products instead of `lax.dot_general`, and the precision as the user wrote it."""

    function: Callable[..., Any]
    precision: PrecisionLike

    def __call__(self, x: Any, y: Any, dims: Any, dtype: DType) -> Any:
        return self.function(x, y, dims, precision=self.precision, preferred_element_type=dtype)


@final
@dataclass(frozen=True, eq=False)
class _Term:
    """An array with named dims."""

    array: Any
    names: Names


@compiled_function
def contract(
    *operands: ArrayLike,
    terms: tuple[Names, ...],
    result: Names,
    path: Path,
    precision: tuple[str, str] = ("DEFAULT", "DEFAULT"),
    dtype: DType | None = None,
    general: _GeneralProduct | None = None,
) -> Any:
    """Contract operands with named dims over all names that are not in `result`.

    Args:
        *operands: the arrays.
        terms: the names of the dims of each operand.
        result: the names of the dims of the result.
        path: the operands that each step contracts, as positions among those that are left.
        precision: the precision of the products.
        dtype: the dtype of the accumulation and the result; the promoted dtype of the operands if None.
        general: computes the products instead of `Dot`, in `dtype` or, if that is None, in the promoted dtype.
    """
    common, weak = promote_dtypes("einsum", [type_of(x, "einsum") for x in operands])
    contraction = _Contraction(precision, dtype, common, general)
    arrays = [astype_weak(as_operand(x), common, weak) for x in operands]
    sizes: dict[str, int] = {}
    for array, names in zip(arrays, terms, strict=True):
        for name, size in zip(names, array.type.shape, strict=True):
            sizes[name] = size if sizes.get(name, 1) == 1 else sizes[name]
    remaining = [_with_unique_names(_Term(array, names), sizes) for array, names in zip(arrays, terms, strict=True)]
    for step in path:
        chosen = [remaining[number] for number in sorted(step)]
        remaining = [term for number, term in enumerate(remaining) if number not in step]
        is_last_step = not remaining
        needed_later = set(result).union(*(term.names for term in remaining))
        term = chosen[0]
        for number, other in enumerate(chosen[1:], 1):
            needed = needed_later.union(*(later.names for later in chosen[number + 1 :]))
            is_last = is_last_step and number == len(chosen) - 1
            term = contraction.product(term, other, needed, result if is_last else None)
        remaining.append(contraction.sum_unneeded(term, needed_later))
    (term,) = remaining
    ordered = _transposed(term, result)
    return astype_weak(ordered, common if dtype is None else dtype, weak and dtype is None)


def _with_unique_names(term: _Term, sizes: dict[str, int]) -> _Term:
    """Drop dims that broadcast from size 1, and take the diagonal of dims with equal names."""
    kept = [
        dim
        for dim, (name, size) in enumerate(zip(term.names, term.array.type.shape, strict=True))
        if size == sizes[name]
    ]
    names = tuple(term.names[dim] for dim in kept)
    shape = tuple(term.array.type.shape[dim] for dim in kept)
    x = term.array if len(shape) == term.array.type.ndim else Reshape(shape)(term.array)
    repeated = tuple(dim for dim, name in enumerate(names) if name in names[:dim])
    if not repeated:
        return _Term(x, names)
    # Mask off-diagonal elements with 0 and sum: unlike a gather, this needs no elements of other devices.
    index = [Iota(shape, dim, np.dtype(np.int32))() for dim in range(len(shape))]
    pairs = [(a, b) for a, b in combinations(range(len(shape)), 2) if names[a] == names[b]]
    is_diagonal = Compare("EQ")(*(index[dim] for dim in pairs[0]))
    for a, b in pairs[1:]:
        is_diagonal = And()(is_diagonal, Compare("EQ")(index[a], index[b]))
    unique_names = tuple(name for dim, name in enumerate(names) if dim not in repeated)
    diagonal = sum(Select()(is_diagonal, x, full_like(x, 0)), axis=repeated, dtype=x.type.dtype)
    return _Term(diagonal, unique_names)


def _transposed(term: _Term, names: Names) -> Any:
    """Return the array with its dims in the order of `names`."""
    return permute(term.array, tuple(term.names.index(name) for name in names))


@final
@record
class _Contraction:
    """Products and sums of terms, with the options of `contract`."""

    precision: tuple[str, str]
    dtype: DType | None
    common: DType
    general: _GeneralProduct | None

    def sum_unneeded(self, term: _Term, needed: set[str]) -> _Term:
        """Sum over the names that are not in `needed`."""
        summed = tuple(dim for dim, name in enumerate(term.names) if name not in needed)
        if not summed:
            return term
        dtype = term.array.type.dtype if self.dtype is None else self.dtype
        return _Term(sum(term.array, axis=summed, dtype=dtype), tuple(name for name in term.names if name in needed))

    def product(self, x: _Term, y: _Term, needed: set[str], order: Names | None) -> _Term:
        """Multiply two terms and contract the names that are not in `needed`.

        The dims of the result are in `order` if swapping the operands or sorting the batch dims achieves it.
        """
        x, y = self.sum_unneeded(x, needed.union(y.names)), self.sum_unneeded(y, needed.union(x.names))
        shared = [name for name in x.names if name in y.names]
        inner = [name for name in shared if name not in needed]
        if not inner and self.general is None:
            return self._multiply(x, y, order)
        batch = [name for name in shared if name in needed]
        if order is not None:
            batch.sort(key=order.index)
            if self._names(x, y, batch, inner) != order and self._names(y, x, batch, inner) == order:
                x, y = y, x
        contract_dims, batch_dims = (
            (tuple(map(x.names.index, names)), tuple(map(y.names.index, names))) for names in (inner, batch)
        )
        if self.general is None:
            op = Dot(contract_dims, batch_dims, precision=self.precision)
            array = mixed_dtype_dot(x.array, y.array, op=op, dtype=self.dtype)
        else:
            dtype = self.common if self.dtype is None else self.dtype
            array = self.general(x.array, y.array, (contract_dims, batch_dims), dtype)
        return _Term(array, self._names(x, y, batch, inner))

    @staticmethod
    def _names(x: _Term, y: _Term, batch: Sequence[str], inner: Sequence[str]) -> Names:
        """Return the names of the dims of a `Dot`."""
        return (*batch, *(name for term in (x, y) for name in term.names if name not in batch and name not in inner))

    def _multiply(self, x: _Term, y: _Term, order: Names | None) -> _Term:
        """Multiply two terms element by element, broadcast to all of their names."""
        names = (*x.names, *(name for name in y.names if name not in x.names)) if order is None else order
        sizes = {name: size for term in (x, y) for name, size in zip(term.names, term.array.type.shape, strict=True)}
        shape = tuple(sizes[name] for name in names)
        factors = []
        for term in (x, y):
            own = tuple(name for name in names if name in term.names)
            array = _transposed(term, own)
            if self.dtype is not None:
                array = astype_weak(array, self.dtype, False)
            factors.append(Broadcast(shape, tuple(names.index(name) for name in own))(array) if own != names else array)
        return _Term(self._promote_and_multiply(*factors), names)

    @staticmethod
    def _promote_and_multiply(x: Array, y: Array) -> Any:
        if x.type.dtype != y.type.dtype:  # `sum_unneeded` may have widened one of them
            dtype, _ = promote_dtypes("einsum", (x.type, y.type))
            x, y = (astype_weak(z, dtype, False) for z in (x, y))
        return Mul()(x, y)
