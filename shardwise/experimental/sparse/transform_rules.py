"""The rules of `sparsify`: what each primitive computes if some of its operands are sparse.

A rule receives the operands and the parameters of the primitive. Sparse operands are BCOO arrays. Dense ones are
arrays, or a `Broadcasted` array, which is not computed until a rule needs it: a product with a sparse array does not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.api.jaxprs.jaxpr_forms import primitive_named
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.ir.types import ArrayType
from shardwise.experimental.sparse.bcoo import BCOO
from shardwise.experimental.sparse.bcoo_arithmetic import (
    bcoo_divide_dense,
    bcoo_multiply_dense,
    bcoo_multiply_sparse,
    bcoo_reduce_sum,
)
from shardwise.experimental.sparse.bcoo_convolution import convolve
from shardwise.experimental.sparse.bcoo_dot import bcoo_dot_general
from shardwise.experimental.sparse.bcoo_gather import gather_slices
from shardwise.experimental.sparse.bcoo_layout import bcoo_sum_duplicates
from shardwise.experimental.sparse.bcoo_shape import (
    bcoo_broadcast_in_dim,
    bcoo_concatenate,
    bcoo_reshape,
    bcoo_rev,
    bcoo_squeeze,
    bcoo_transpose,
)
from shardwise.experimental.sparse.bcoo_slice import bcoo_dynamic_slice, bcoo_slice

Params = dict[str, Any]


@final
@dataclass(frozen=True)
class Broadcasted:
    """A dense array that is broadcast to a shape: dim `i` of `array` is dim `dims[i]` of the shape."""

    array: Array
    shape: tuple[int, ...]
    dims: tuple[int, ...]
    type: ArrayType

    def compute(self) -> Array:
        """Return the dense array of the shape."""
        return lax.broadcast_in_dim(self.array, self.shape, self.dims)

    def with_unit_dims(self) -> Array:
        """Return an array of the same rank as the shape, with size 1 along the dims that are broadcast."""
        sizes = dict(zip(self.dims, self.array.shape, strict=True))
        return self.array.reshape([sizes.get(dim, 1) for dim in range(len(self.shape))])


Operand = BCOO | Array | Broadcasted
Rule = Callable[[Sequence[Any], Params], BCOO | Array]


def as_dense(x: Array | Broadcasted) -> Array:
    """Return a dense operand as an array."""
    return x.compute() if isinstance(x, Broadcasted) else x


def _compact(x: Array | Broadcasted) -> Array:
    """Return a dense operand as an array that broadcasts to its shape."""
    return x.with_unit_dims() if isinstance(x, Broadcasted) else x


# Functions with f(0) = 0. Those of the first set are additive, so that elements with the same coordinates may stay
# apart.
ADDITIVE = {"neg", "real", "imag", "conj", "stop_gradient"}
ZERO_PRESERVING = {
    *(
        "abs",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "bessel_i1e",
        "cbrt",
        "ceil",
        "erf",
        "erf_inv",
        "expm1",
        "floor",
        "log1p",
    ),
    *("relu", "round", "sign", "sin", "sinh", "sqrt", "square", "tan", "tanh"),
}


def _apply(name: str, mat: BCOO, params: Params) -> BCOO:
    return mat.with_data(primitive_named(name).bind(mat.data, **params))


def _additive(name: str) -> Rule:
    return lambda operands, params: _apply(name, operands[0], params)


def _zero_preserving(name: str) -> Rule:
    return lambda operands, params: _apply(name, _merged(operands[0]), params)


def _merged(mat: BCOO) -> BCOO:
    """Return an array without duplicates, which stores as many elements."""
    return mat if mat.unique_indices else bcoo_sum_duplicates(mat, nse=mat.nse)


def _convert(operands: Sequence[Any], params: Params) -> BCOO:
    """Convert the elements. Duplicates are added first if the conversion rounds: it is not additive then."""
    mat, dtype = operands[0], params["new_dtype"]
    is_exact = jnp.promote_types(mat.dtype, dtype) == dtype
    mat = mat if is_exact else _merged(mat)
    return _apply("convert_element_type", mat, params)


def _integer_pow(operands: Sequence[Any], params: Params) -> BCOO:
    if params["y"] <= 0:
        raise NotImplementedError(f"sparsify: the result of `x ** {params['y']}` is dense{_ADVICE}")
    return _apply("integer_pow", _merged(operands[0]), params)


def _add(operands: Sequence[Any], params: Params) -> BCOO | Array:
    x, y = operands
    if not isinstance(x, BCOO) or not isinstance(y, BCOO):
        mat, dense = (x, y) if isinstance(x, BCOO) else (y, x)
        return _densified("sum", mat, dense) + dense
    if (x.shape, x.n_batch, x.n_dense) != (y.shape, y.n_batch, y.n_dense):
        raise NotImplementedError(f"sparsify: the sum of {x} and {y} needs equal shapes, batch dims and dense dims")
    x, y = x.expand_batch(), y.expand_batch()
    if x.indices is y.indices:
        return x.with_data(x.data + y.data)
    data = jnp.concatenate([x.data, y.data], x.n_batch)
    return BCOO((data, jnp.concatenate([x.indices, y.indices], x.n_batch)), shape=x.shape)


def _densified(operation: str, mat: BCOO, dense: Array | Broadcasted) -> Array:
    """Return a sparse operand as a dense one, if the other operand is already as large as the result."""
    if isinstance(dense, Broadcasted) or dense.shape != mat.shape:
        raise NotImplementedError(
            f"sparsify: the {operation} of {mat} and a dense operand with fewer elements is dense{_ADVICE}"
        )
    return mat.todense()


def _subtract(operands: Sequence[Any], params: Params) -> BCOO | Array:
    x, y = operands
    if isinstance(x, BCOO) and isinstance(y, BCOO):
        return _add([x, y.with_data(-y.data)], {})
    if isinstance(x, BCOO):
        return _densified("difference", x, y) - y
    return x - _densified("difference", y, x)


def _multiply(operands: Sequence[Any], params: Params) -> BCOO:
    x, y = operands
    if isinstance(x, BCOO) and isinstance(y, BCOO):
        return bcoo_multiply_sparse(x, y)
    mat, dense = (x, y) if isinstance(x, BCOO) else (y, x)
    return mat.with_data(bcoo_multiply_dense(mat, _compact(dense)))


def _divide(operands: Sequence[Any], params: Params) -> BCOO:
    x, y = operands
    if isinstance(y, BCOO):
        raise NotImplementedError(f"sparsify: division by a sparse array divides by zeros{_ADVICE}")
    return x.with_data(bcoo_divide_dense(x, _compact(y)))


def _dot_general(operands: Sequence[Any], params: Params) -> BCOO | Array:
    left, right = (x if isinstance(x, BCOO) else as_dense(x) for x in operands)
    return bcoo_dot_general(
        left,
        right,
        dimension_numbers=params["dimension_numbers"],
        preferred_element_type=params["preferred_element_type"],
    )


def _reduce_sum(operands: Sequence[Any], params: Params) -> BCOO | Array:
    result = bcoo_reduce_sum(operands[0], axes=params["axes"])
    return result if result.shape else result.todense()


def _reshape(operands: Sequence[Any], params: Params) -> BCOO:
    """Reshape; a reshape that only removes and adds dims of size 1 may do so among dims of any kind."""
    (mat,), shape = operands, tuple(params["new_sizes"])
    removed, kept = _unit_dim_changes(mat.shape, shape)
    if removed is None:
        return bcoo_reshape(mat, new_sizes=shape)
    return bcoo_broadcast_in_dim(bcoo_squeeze(mat, dimensions=removed), shape=shape, broadcast_dimensions=kept)


def _unit_dim_changes(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[list[int] | None, list[int]]:
    """Return the dims of size 1 to remove, and the new positions of the others; (None, []) if others change."""
    removed, kept, position = [], list[int](), 0
    for dim, size in enumerate(old):
        while position < len(new) and new[position] == 1 != size:
            position += 1
        if position < len(new) and new[position] == size:
            kept.append(position)
            position += 1
        elif size == 1:
            removed.append(dim)
        else:
            return None, []
    return (removed, kept) if all(size == 1 for size in new[position:]) else (None, [])


def _concatenate(operands: Sequence[Any], params: Params) -> BCOO:
    if not all(isinstance(x, BCOO) for x in operands):
        raise NotImplementedError(f"sparsify: sparse and dense arrays cannot be concatenated{_ADVICE}")
    return bcoo_concatenate(operands, dimension=params["dimension"])


def _gather(operands: Sequence[Any], params: Params) -> BCOO:
    mat, starts = operands
    if not isinstance(mat, BCOO) or isinstance(starts, BCOO):
        raise NotImplementedError(f"sparsify: indices must be dense{_ADVICE}")
    if params["batch"]:
        raise NotImplementedError(
            "sparsify: a batched gather from a sparse array is not supported; index its batch dims"
        )
    return gather_slices(
        mat, as_dense(starts), params["mapped"], params["collapsed"], params["window"], params["sizes"], fills=False
    )


def _roll(operands: Sequence[Any], params: Params) -> BCOO:
    (mat,), dim = operands, params["dim"]
    middle = mat.shape[dim] - params["by"]
    ends = [(middle, mat.shape[dim]), (0, middle)]
    parts = [
        bcoo_slice(
            mat,
            start_indices=[start if each == dim else 0 for each in range(mat.ndim)],
            limit_indices=[stop if each == dim else size for each, size in enumerate(mat.shape)],
        )
        for start, stop in ends
    ]
    return bcoo_concatenate(parts, dimension=dim)


def _convolve(operands: Sequence[Any], params: Params) -> BCOO:
    left, right = (x if isinstance(x, BCOO) else as_dense(x) for x in operands)
    return convolve(
        left,
        right,
        (params["lhs"], params["rhs"], params["out"]),
        params["strides"],
        params["low"],
        params["high"],
        params["lhs_dilation"],
        params["rhs_dilation"],
        params["dtype"],
    )


_ADVICE = "; use `sparse.todense(x)` if this is intended"

RULES: dict[str, Rule] = {
    **{name: _additive(name) for name in ADDITIVE},
    **{name: _zero_preserving(name) for name in ZERO_PRESERVING},
    "add": _add,
    "broadcast_in_dim": lambda operands, params: bcoo_broadcast_in_dim(
        operands[0], shape=params["shape"], broadcast_dimensions=params["broadcast_dimensions"]
    ),
    "concatenate": _concatenate,
    "conv": _convolve,
    "convert_element_type": _convert,
    "div": _divide,
    "dot_general": _dot_general,
    "dynamic_slice": lambda operands, params: bcoo_dynamic_slice(
        operands[0], list(map(as_dense, operands[1:])), params["slice_sizes"]
    ),
    "gather": _gather,
    "integer_pow": _integer_pow,
    "mul": _multiply,
    "reduce_sum": _reduce_sum,
    "reshape": _reshape,
    "rev": lambda operands, params: bcoo_rev(operands[0], params["dimensions"]),
    "roll": _roll,
    "slice": lambda operands, params: bcoo_slice(operands[0], **params),
    "sub": _subtract,
    "todense": lambda operands, params: operands[0].todense(),
    "transpose": lambda operands, params: bcoo_transpose(operands[0], permutation=params["permutation"]),
}


def apply_rule(name: str, operands: Sequence[Operand], params: Params) -> BCOO | Array:
    """Return the result of a primitive with sparse operands.

    Raises:
        NotImplementedError: if there is no rule for the primitive.
    """
    if name not in RULES:
        raise NotImplementedError(
            f"sparsify: {name!r} of a sparse array is not supported: its result is dense, or it has no rule{_ADVICE}"
        )
    return RULES[name](operands, params)
