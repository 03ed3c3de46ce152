"""einsum: products of arrays whose dims have names, summed over the names that the result has not.

An equation comes in, one `Dot` for each pair of operands comes out: names of both that are still needed are its batch
dims, names of both that are not are contracted. A product that contracts nothing is a multiplication. `opt_einsum`
says in which order; nothing is transposed but the last product, and that only where its dims come in another order
than the equation's. On a mesh these are ordinary products: a name that is cut and contracted leaves a partial sum.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.types import ArrayType, DType
from shardwise.compiler.ops.along_axes import sum
from shardwise.compiler.ops.bitwise import And
from shardwise.compiler.ops.dot import Dot
from shardwise.compiler.ops.elementwise import Compare, Mul, Select, like
from shardwise.compiler.ops.operands import as_operand, astype_weak, composed, no_out, type_of
from shardwise.compiler.ops.promote import canonical_dtype, meet
from shardwise.compiler.ops.shape import Broadcast, Iota, Reshape, permuted
from shardwise.lax.precision import precisions
from shardwise.lax.product import dot_general, product
from shardwise.lax.shape import laid_out
from shardwise.lazy import module

opt_einsum = module("opt_einsum")

Names = tuple[str, ...]
Path = tuple[tuple[int, ...], ...]


def einsum(
    subscripts: Any,
    /,
    *operands: Any,
    out: None = None,
    optimize: Any = "auto",
    precision: Any = None,
    preferred_element_type: Any = None,
    _dot_general: Callable[..., Any] = dot_general,
    out_sharding: Any = None,
) -> Any:
    """The products of elements whose dims have one name, summed over names that the result has not.

    An equation names the dims of each operand, and those of the result: `"ij,jk->ik"` is a product of matrices. A name
    that an operand has twice is its diagonal, `...` are dims that broadcast. Without `->`, the result has the names
    that occur once, in order. Instead of an equation, each operand may be followed by a list of integers as its names,
    and the last of them by the result's. `optimize` is how `opt_einsum` finds the order of products, or that order.

    >>> jnp.einsum("ij,j->i", jnp.array([[1, 2], [3, 4]]), jnp.array([10, 1]))
    Array([12, 34], dtype=int32)
    """
    no_out("einsum", out)
    equation, arrays = _equation("einsum", subscripts, operands)
    path = _path(equation, tuple(type_of(x).shape for x in arrays), _as_static(optimize))
    found = contracted(
        *arrays,
        terms=tuple(map(tuple, equation.terms)),
        result=tuple(equation.result),
        path=path,
        precision=precisions("einsum", precision),
        dtype=None if preferred_element_type is None else canonical_dtype(preferred_element_type),
        general=None if _dot_general is dot_general else _dot_general,
    )
    return laid_out(found, out_sharding)


def einsum_path(subscripts: Any, /, *operands: Any, optimize: Any = "auto") -> tuple[list[tuple[int, ...]], Any]:
    """The order in which `einsum` makes its products, and what `opt_einsum` knows of their cost.

    >>> x = jnp.ones((2, 3))
    >>> jnp.einsum_path("ij,kj,kl->il", x, x, jnp.ones((2, 5)))[0]
    [(0, 1), (0, 1)]
    """
    equation, arrays = _equation("einsum_path", subscripts, operands)
    how = "optimal" if optimize is True else optimize
    shapes = [type_of(x).shape for x in arrays]
    path, info = opt_einsum.contract_path(str(equation), *shapes, shapes=True, optimize=how)
    return list(path), info


@final
@dataclass(frozen=True)
class _Equation:
    """The names of each operand's dims, and of the result's: one letter each."""

    terms: tuple[str, ...]
    result: str

    def __str__(self) -> str:
        return f"{','.join(self.terms)}->{self.result}"


def _equation(name: str, subscripts: Any, operands: Sequence[Any]) -> tuple[_Equation, list[Any]]:
    """The equation with every name spelt out, and the operands."""
    if isinstance(subscripts, str):
        arrays = list(operands)
        kinds = [type_of(x, name) for x in arrays]
        given: list[Any] = [subscripts, *(kind.shape for kind in kinds)]
        if not arrays:
            raise ValueError(f"{name}: the equation {subscripts!r} needs at least one operand")
    else:
        parts = [subscripts, *operands]
        arrays = parts[: len(parts) // 2 * 2 : 2]
        kinds = [type_of(x, name) for x in arrays]
        given = list(parts)
        given[: len(parts) // 2 * 2 : 2] = [kind.shape for kind in kinds]
    try:
        names, result, _ = opt_einsum.parser.parse_einsum_input(given, shapes=True)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name}: {subscripts!r} is no equation for {_listed(kinds)}: {error}") from None
    found = _Equation(tuple(names.split(",")), result)
    _check(name, found, kinds)
    return found, arrays


def _listed(kinds: Sequence[ArrayType]) -> str:
    return ", ".join(map(str, kinds))


def _check(name: str, equation: _Equation, kinds: Sequence[ArrayType]) -> None:
    for term, kind in zip(equation.terms, kinds, strict=True):
        if len(term) != kind.ndim:
            raise ValueError(f"{name}: {equation} names {len(term)} dims of {kind}, which has rank {kind.ndim}")
    if len(set(equation.result)) != len(equation.result):
        raise ValueError(f"{name}: a name repeats in the result of {equation}")
    sizes: dict[str, int] = {}
    for term, kind in zip(equation.terms, kinds, strict=True):
        for letter, size in zip(term, kind.shape, strict=True):
            if size != 1 and sizes.setdefault(letter, size) != size:
                raise ValueError(
                    f"{name}: dims {letter!r} of {equation} have sizes {sizes[letter]} and {size} in {_listed(kinds)}"
                )


def _as_static(optimize: Any) -> Any:
    """A path as something that can be looked up."""
    if isinstance(optimize, (list, tuple)):
        return tuple(tuple(step) for step in optimize if not isinstance(step, str))
    return "optimal" if optimize is True else optimize


@lru_cache(maxsize=1024)
def _path(equation: _Equation, shapes: tuple[tuple[int, ...], ...], optimize: Any) -> Path:
    if len(shapes) <= 2 and isinstance(optimize, (str, bool)):
        return (tuple(range(len(shapes))),)
    how = list(optimize) if isinstance(optimize, tuple) else optimize
    path, _ = opt_einsum.contract_path(str(equation), *shapes, shapes=True, optimize=how)
    return tuple(map(tuple, path))


@final
@dataclass(frozen=True, eq=False)
class _Term:
    """An array whose dims have names."""

    array: Any
    names: Names


@composed
def contracted(
    *operands: Any,
    terms: tuple[Names, ...],
    result: Names,
    path: Path,
    precision: tuple[str, str] = ("DEFAULT", "DEFAULT"),
    dtype: DType | None = None,
    general: Callable[..., Any] | None = None,
) -> Any:
    """The product of operands whose dims have names, summed over those that are not in `result`.

    Sums are made in `dtype`, where there is one. `general` makes products in place of `Dot`.
    """
    common, weak = meet("einsum", [type_of(x, "einsum") for x in operands])
    made = _Products(precision, dtype, general)
    arrays = [astype_weak(as_operand(x), common, weak) for x in operands]
    sizes: dict[str, int] = {}
    for array, names in zip(arrays, terms, strict=True):
        for name, size in zip(names, array.type.shape, strict=True):
            sizes[name] = size if sizes.get(name, 1) == 1 else sizes[name]
    left = [_simple(_Term(array, names), sizes) for array, names in zip(arrays, terms, strict=True)]
    for step in path:
        chosen = [left[number] for number in sorted(step)]
        left = [term for number, term in enumerate(left) if number not in step]
        is_last = not left
        outside = set(result).union(*(term.names for term in left))
        term = chosen[0]
        for number, other in enumerate(chosen[1:], 1):
            needed = outside.union(*(later.names for later in chosen[number + 1 :]))
            last = is_last and number == len(chosen) - 1
            term = made.product(term, other, needed, result if last else None)
        left.append(made.summed(term, outside))
    (term,) = left
    found = _ordered(term, result)
    return astype_weak(found, common if dtype is None else dtype, weak and dtype is None)


def _simple(term: _Term, sizes: dict[str, int]) -> _Term:
    """Without dims that only broadcast, and with each name once: of equal names, the diagonal."""
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
    # What lies beside the diagonal counts as 0: sums need no element of another device.
    index = [Iota(shape, dim, np.dtype(np.int32))() for dim in range(len(shape))]
    pairs = [(a, b) for a, b in combinations(range(len(shape)), 2) if names[a] == names[b]]
    on = Compare("EQ")(*(index[dim] for dim in pairs[0]))
    for a, b in pairs[1:]:
        on = And()(on, Compare("EQ")(index[a], index[b]))
    kept_dims = tuple(name for dim, name in enumerate(names) if dim not in repeated)
    found = sum(Select()(on, x, like(x, 0)), axis=repeated, dtype=x.type.dtype)
    return _Term(found, kept_dims)


def _ordered(term: _Term, names: Names) -> Any:
    return permuted(term.array, tuple(term.names.index(name) for name in names))


@final
@dataclass(frozen=True)
class _Products:
    """How products and sums are made."""

    precision: tuple[str, str]
    dtype: DType | None
    general: Callable[..., Any] | None

    def summed(self, term: _Term, needed: set[str]) -> _Term:
        """Without the names that nobody needs."""
        gone = tuple(dim for dim, name in enumerate(term.names) if name not in needed)
        if not gone:
            return term
        dtype = term.array.type.dtype if self.dtype is None else self.dtype
        return _Term(sum(term.array, axis=gone, dtype=dtype), tuple(name for name in term.names if name in needed))

    def product(self, x: _Term, y: _Term, needed: set[str], order: Names | None) -> _Term:
        """The product of two, with its dims in `order` where that comes for nothing."""
        x, y = self.summed(x, needed.union(y.names)), self.summed(y, needed.union(x.names))
        shared = [name for name in x.names if name in y.names]
        inner = [name for name in shared if name not in needed]
        if not inner and self.general is None:
            return self._multiplied(x, y, order)
        batch = [name for name in shared if name in needed]
        if order is not None:
            batch.sort(key=order.index)
            if self._names(x, y, batch, inner) != order and self._names(y, x, batch, inner) == order:
                x, y = y, x
        contract, batches = (
            (tuple(map(x.names.index, names)), tuple(map(y.names.index, names))) for names in (inner, batch)
        )
        if self.general is None:
            op = Dot(contract, batches, precision=self.precision)
            found = product(x.array, y.array, op=op, dtype=self.dtype)
        else:
            found = self.general(
                x.array, y.array, (contract, batches), precision=self.precision, preferred_element_type=self.dtype
            )
        return _Term(found, self._names(x, y, batch, inner))

    @staticmethod
    def _names(x: _Term, y: _Term, batch: Sequence[str], inner: Sequence[str]) -> Names:
        """Those of a product's dims."""
        return (*batch, *(name for term in (x, y) for name in term.names if name not in batch and name not in inner))

    def _multiplied(self, x: _Term, y: _Term, order: Names | None) -> _Term:
        names = (*x.names, *(name for name in y.names if name not in x.names)) if order is None else order
        sizes = {name: size for term in (x, y) for name, size in zip(term.names, term.array.type.shape, strict=True)}
        shape = tuple(sizes[name] for name in names)
        found = []
        for term in (x, y):
            mine = tuple(name for name in names if name in term.names)
            array = _ordered(term, mine)
            if self.dtype is not None:
                array = astype_weak(array, self.dtype, False)
            found.append(Broadcast(shape, tuple(names.index(name) for name in mine))(array) if mine != names else array)
        return _Term(self._times(*found), names)

    @staticmethod
    def _times(x: Any, y: Any) -> Any:
        if x.type.dtype != y.type.dtype:  # a sum was made in a wider dtype
            dtype, _ = meet("einsum", (x.type, y.type))
            x, y = (astype_weak(z, dtype, False) for z in (x, y))
        return Mul()(x, y)
