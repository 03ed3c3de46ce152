"""sparsify: transform a function of dense arrays so that it accepts sparse ones, and keeps them sparse.

    function  --make_jaxpr-->  jaxpr  --_evaluate-->  results

The function is traced with dense arguments of the same shapes. Then its jaxpr is evaluated: primitives with sparse
operands by the rules of `transform_rules`, loops and branches with sparse arrays as pytrees, and all others as they
are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, final

from shardwise import lax, tree
from shardwise.api.ahead_of_time.inspect import make_jaxpr
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.api.arguments import check_function
from shardwise.api.jaxprs.jaxpr import ClosedJaxpr, JaxprEqn, interpret_jaxpr
from shardwise.compiler.ir.types import ArrayType
from shardwise.experimental.sparse.base import JAXSparse
from shardwise.experimental.sparse.bcoo import BCOO
from shardwise.experimental.sparse.transform_rules import Broadcasted, Params, apply_rule, as_dense


def sparsify(f: Callable[..., Any], use_tracer: bool = False) -> Callable[..., Any]:
    """Transform a function of dense arrays so that it accepts sparse ones, and keeps them sparse.

    It supports products and contractions, sums and differences, functions with f(0) = 0, sums along dims, indexing,
    concatenation, convolution, functions that change the shape, and control flow. Sparse arrays of other formats are
    converted to BCOO.

    Args:
        f: the function. Its keyword arguments are static.
        use_tracer: accepted as in JAX; both ways have the same results.

    Returns:
        A function with the arguments of `f`, of which positional ones may contain sparse arrays. Its results are sparse
        where the rules keep them sparse.

    Raises:
        TypeError: if `f` is not callable.
        NotImplementedError: when called, if `f` applies an operation to a sparse array whose result would be dense.

    Example:
        >>> @jax.experimental.sparse.sparsify
        ... def model(matrix, vector):
        ...     return 2 * jnp.square(matrix) @ vector
        >>> model(jax.experimental.sparse.eye(2), jnp.ones(2))
        Array([2., 2.], dtype=float32)
    """
    check_function("sparsify", f)

    @wraps(f)
    def transformed(*args: Any, **keywords: Any) -> Any:
        leaves, structure = tree.flatten(args, is_leaf=_is_sparse)
        leaves = [leaf.to_bcoo() if _is_sparse(leaf) else leaf for leaf in leaves]
        out_structure: list[Any] = []

        def flat(*inputs: Any) -> list[Any]:
            results, result_structure = tree.flatten(f(*structure.unflatten(inputs), **keywords))
            out_structure[:] = [result_structure]
            return results

        stand_ins = [ShapeDtypeStruct(leaf.shape, leaf.dtype) if _is_sparse(leaf) else leaf for leaf in leaves]
        results = _call(make_jaxpr(flat)(*stand_ins), *leaves)
        return out_structure[0].unflatten(results)

    return transformed


def _is_sparse(x: Any) -> bool:
    return isinstance(x, JAXSparse)


@final
@dataclass(frozen=True)
class _Sparse:
    """A sparse array as a value of a jaxpr; `type` is that of the dense array."""

    array: BCOO
    type: ArrayType


def _call(closed: ClosedJaxpr, *args: Any) -> list[Any]:
    """Evaluate a jaxpr with arguments that may be BCOO arrays, and return the list of its results."""
    values = [
        _Sparse(x, var.aval) if isinstance(x, BCOO) else x for x, var in zip(args, closed.jaxpr.invars, strict=True)
    ]
    return [_unwrapped(x) for x in interpret_jaxpr(closed.jaxpr, closed.consts, values, _results)]


def _unwrapped(x: Any) -> Any:
    return x.array if isinstance(x, _Sparse) else as_dense(x)


def _results(eqn: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
    """Return the results of an equation, with sparse ones as `_Sparse`."""
    name, params = eqn.primitive.name, eqn.params
    if not any(isinstance(x, _Sparse) for x in operands):
        if name == "broadcast_in_dim":
            (var,) = eqn.outvars
            return [Broadcasted(as_dense(operands[0]), params["shape"], params["broadcast_dimensions"], var.aval)]
        return eqn.bind([as_dense(x) for x in operands])
    if name in _NESTED:
        results: Sequence[Any] = _NESTED[name]([_unwrapped(x) for x in operands], params)
    else:
        results = [apply_rule(name, [x.array if isinstance(x, _Sparse) else x for x in operands], params)]
    return [_Sparse(x, var.aval) if isinstance(x, BCOO) else x for x, var in zip(results, eqn.outvars, strict=True)]


def _inline(operands: list[Any], params: Params) -> list[Any]:
    """Evaluate the jaxpr of a call. Derivatives that the user has defined are those of dense arguments."""
    inner = next(params[name] for name in ("jaxpr", "call_jaxpr", "call") if name in params)
    return _call(inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ()), *operands)


def _cond(operands: list[Any], params: Params) -> list[Any]:
    index, *rest = operands
    branches = [partial(_call_with_plain_results, branch) for branch in params["branches"]]
    return lax.switch(index, branches, *rest)


def _while(operands: list[Any], params: Params) -> list[Any]:
    first, after = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    condition, body = params["cond_jaxpr"], params["body_jaxpr"]
    return lax.while_loop(
        lambda carried: _call(condition, *operands[:first], *carried)[0],
        lambda carried: _call_with_plain_results(body, *operands[first:after], *carried),
        list(map(_plain, operands[after:])),
    )


def _scan(operands: list[Any], params: Params) -> list[Any]:
    first, after = params["num_consts"], params["num_consts"] + params["num_carry"]

    def body(carried: Any, slices: Any) -> Any:
        results = _call_with_plain_results(params["jaxpr"], *operands[:first], *carried, *slices)
        return results[: params["num_carry"]], results[params["num_carry"] :]

    start = list(map(_plain, operands[first:after]))
    carried, stacked = lax.scan(body, start, operands[after:], params["length"], params["reverse"], params["unroll"])
    return [*carried, *stacked]


def _call_with_plain_results(closed: ClosedJaxpr, *args: Any) -> list[Any]:
    return list(map(_plain, _call(closed, *args)))


def _plain(x: Any) -> Any:
    """Return a sparse array without assumptions about its coordinates: they must be the same in every iteration."""
    return BCOO((x.data, x.indices), shape=x.shape) if isinstance(x, BCOO) else x


_NESTED: dict[str, Callable[[list[Any], Params], list[Any]]] = {
    **dict.fromkeys(("jit", "custom_jvp_call", "custom_vjp_call", "custom_vmap_call", "checkpoint"), _inline),
    "cond": _cond,
    "scan": _scan,
    "while": _while,
}
