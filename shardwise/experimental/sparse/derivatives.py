"""Derivatives with respect to the stored elements of sparse arrays, as sparse arrays with the same coordinates."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import shardwise.numpy as jnp
from shardwise import tree
from shardwise.api.arguments import check_function
from shardwise.api.transformations import differentiate
from shardwise.base.docstrings import Family, documented
from shardwise.experimental.sparse.base import JAXSparse
from shardwise.experimental.sparse.bcoo import BCOO

Function = Callable[..., Any]

_DERIVATIVE = Family(
    {
        "fun": "the function. Its arguments may contain sparse arrays.",
        "argnums": "the position of the argument to differentiate with respect to, or several.",
        "has_aux": "whether `fun` returns a pair (value, aux) of which only the value is differentiated.",
        "**kwargs": "further keyword arguments of the function of `jax` with the same name.",
    },
    raises=["TypeError: if `fun` is not callable, or there is no argument with a number in `argnums`."],
)


@documented(_DERIVATIVE)
def grad(fun: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False, **kwargs: Any) -> Function:
    """Create a function that computes the gradient with respect to arguments that may be sparse.

    Returns:
        A function that returns the gradient; with `has_aux` (gradient, aux). The gradient with respect to a sparse
        array is one with the same coordinates.

    Example:
        >>> X = jax.experimental.sparse.BCOO.fromdense(jnp.arange(6.0))
        >>> jax.experimental.sparse.grad(lambda X, y: X @ y)(X, jnp.ones(6))
        BCOO(float32[6], nse=5)
    """
    both = value_and_grad(fun, argnums, has_aux, **kwargs)

    @wraps(fun)
    def call(*args: Any, **keywords: Any) -> Any:
        value, gradient = both(*args, **keywords)
        return (gradient, value[1]) if has_aux else gradient

    return call


@documented(_DERIVATIVE)
def value_and_grad(fun: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False, **kwargs: Any) -> Function:
    """Create a function that computes the value and the gradient with respect to arguments that may be sparse.

    Returns:
        A function that returns (value, gradient); with `has_aux` ((value, aux), gradient). The gradient with respect
        to a sparse array is one with the same coordinates.

    Example:
        >>> X = jax.experimental.sparse.BCOO.fromdense(jnp.arange(6.0))
        >>> jax.experimental.sparse.value_and_grad(lambda X, y: X @ y)(X, jnp.ones(6))
        (Array(15., dtype=float32), BCOO(float32[6], nse=5))
    """
    check_function("value_and_grad", fun)

    @wraps(fun)
    def call(*args: Any, **keywords: Any) -> Any:
        elements = _Elements(fun, argnums, has_aux, args)
        derivative = differentiate.value_and_grad(elements.function, argnums, has_aux, **kwargs)
        value, gradient = derivative(*elements.args, **keywords)
        return value, elements.sparse_gradient(gradient)

    return call


@documented(_DERIVATIVE)
def jacfwd(fun: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False, **kwargs: Any) -> Function:
    """Create a function that computes Jacobians with respect to arguments that may be sparse, in forward mode.

    Returns:
        A function that returns the Jacobian; with `has_aux` (Jacobian, aux). That with respect to a sparse array is a
        BCOO array whose leading batch dims are the dims of the value, which must be dense.

    Example:
        >>> X = jax.experimental.sparse.BCOO.fromdense(jnp.eye(3))
        >>> jax.experimental.sparse.jacfwd(lambda X, y: X @ y)(X, jnp.ones(3))
        BCOO(float32[3, 3, 3], nse=3, n_batch=1)
    """
    return _jacobian(differentiate.jacfwd, fun, argnums, has_aux, kwargs)


@documented(_DERIVATIVE)
def jacrev(fun: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False, **kwargs: Any) -> Function:
    """Create a function that computes Jacobians with respect to arguments that may be sparse, in reverse mode.

    Returns:
        A function that returns the Jacobian; with `has_aux` (Jacobian, aux). That with respect to a sparse array is a
        BCOO array whose leading batch dims are the dims of the value, which must be dense.

    Example:
        >>> X = jax.experimental.sparse.BCOO.fromdense(jnp.eye(3))
        >>> jax.experimental.sparse.jacrev(lambda X, y: X @ y)(X, jnp.ones(3))
        BCOO(float32[3, 3, 3], nse=3, n_batch=1)
    """
    return _jacobian(differentiate.jacrev, fun, argnums, has_aux, kwargs)


jacobian = jacrev


def _jacobian(
    transform: Function, fun: Function, argnums: int | Sequence[int], has_aux: bool, options: Any
) -> Function:
    check_function(transform.__name__, fun)

    @wraps(fun)
    def call(*args: Any, **keywords: Any) -> Any:
        elements = _Elements(fun, argnums, has_aux, args)
        result = transform(elements.function, argnums, has_aux, **options)(*elements.args, **keywords)
        if has_aux:
            return elements.sparse_jacobian(result[0]), result[1]
        return elements.sparse_jacobian(result)

    return call


class _Elements:
    """A function of the stored elements of its sparse arguments, and the conversion of its derivatives.

    Attributes:
        args: the arguments, with the elements in place of the sparse arrays to differentiate with respect to.
    """

    def __init__(self, fun: Function, argnums: int | Sequence[int], has_aux: bool, args: tuple[Any, ...]) -> None:
        positions = [argnums] if isinstance(argnums, int) else list(argnums)
        if any(not -len(args) <= position < len(args) for position in positions):
            raise TypeError(f"argnums={argnums}, but there are {len(args)} positional arguments")
        self._fun, self._has_aux = fun, has_aux
        self._positions = [position % len(args) for position in positions]
        leaves, self._structure = tree.flatten([args[position] for position in self._positions], is_leaf=_is_sparse)
        self._leaves = leaves
        self.args = self._with_active(args, [leaf.data if _is_sparse(leaf) else leaf for leaf in leaves])

    def _with_active(self, args: Sequence[Any], leaves: Sequence[Any]) -> tuple[Any, ...]:
        """Return arguments in which the active ones have other leaves."""
        replaced = dict(zip(self._positions, self._structure.unflatten(leaves), strict=True))
        return tuple(replaced.get(position, arg) for position, arg in enumerate(args))

    def function(self, *args: Any, **keywords: Any) -> Any:
        """Call the function with sparse arrays that have these elements. Its value must be dense."""
        data = tree.leaves([args[position] for position in self._positions])
        leaves = [_with_data(leaf, x) if _is_sparse(leaf) else x for leaf, x in zip(self._leaves, data, strict=True)]
        value = self._fun(*self._with_active(args, leaves), **keywords)
        if any(map(_is_sparse, tree.leaves(value[0] if self._has_aux else value, is_leaf=_is_sparse))):
            raise NotImplementedError("derivatives of sparse values are not supported: return `sparse.todense(value)`")
        return value

    def sparse_gradient(self, gradient: Any) -> Any:
        """Return a gradient with respect to the elements with sparse arrays in their places."""
        leaves, structure = tree.flatten(gradient)
        return structure.unflatten(
            [_with_data(leaf, x) if _is_sparse(leaf) else x for leaf, x in zip(self._leaves, leaves, strict=True)]
        )

    def sparse_jacobian(self, jacobian: Any) -> Any:
        """Return a Jacobian with sparse arrays in the places of elements. It has one leaf per result and argument."""
        leaves, structure = tree.flatten(jacobian)
        count = len(self._leaves)
        return structure.unflatten(
            [_jacobian_block(self._leaves[index % count], block) for index, block in enumerate(leaves)]
        )


def _is_sparse(x: Any) -> bool:
    return isinstance(x, JAXSparse)


def _with_data(mat: JAXSparse, data: Any) -> JAXSparse:
    """Return a sparse array with other elements: they are the first leaf of every format."""
    leaves, structure = tree.flatten(mat)
    return structure.unflatten([data, *leaves[1:]])


def _jacobian_block(leaf: Any, block: Any) -> Any:
    """Return the derivative of one result with respect to one argument, whose dims are batch dims of a BCOO."""
    if not _is_sparse(leaf):
        return block
    mat = leaf.to_bcoo().expand_batch()
    out_shape = block.shape[: block.ndim - leaf.data.ndim]
    indices = jnp.broadcast_to(mat.indices, (*(1,) * len(out_shape), *mat.indices.shape))
    return BCOO(
        (block, indices),
        shape=(*out_shape, *mat.shape),
        indices_sorted=mat.indices_sorted,
        unique_indices=mat.unique_indices,
    )
