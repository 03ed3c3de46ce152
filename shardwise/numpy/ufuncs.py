"""The functions of two elements that are also run along dims: `add.reduce`, `maximum.accumulate`, `multiply.at`.

Called, each is the function of elements itself. Along a dim, each is the reduction or the running total that is an op,
or is applied to halves (its order of application does not matter): where a dim is cut, devices work side by side.
"""

from typing import Any

import numpy as np

from shardwise.compiler.ops import methods, numeric
from shardwise.compiler.ops.along_axes import reduced_dims
from shardwise.compiler.ops.indexing import dim_of
from shardwise.lax.associative import associative_scan
from shardwise.lax.cumulative import cummax, cummin
from shardwise.lax.fold import reduce as fold
from shardwise.numpy import elementwise, floats, functions, ordering
from shardwise.numpy.creation import asarray, full_like
from shardwise.numpy.dtypes import bool_
from shardwise.numpy.vectorized import Function, ufunc


def _at(method: str) -> Function:
    """Places of an array updated by one of the methods of `x.at[...]`."""

    def at(a: Any, indices: Any, b: Any) -> Any:
        return getattr(asarray(a).at[indices], method)(b)

    return at


def _reduction(find: Function) -> Function:
    """One of numpy's reductions that has no `dtype`."""

    def reduce(a: Any, *, axis: Any, dtype: Any, keepdims: bool, initial: Any, where: Any) -> Any:
        return find(asarray(a, dtype), axis=axis, keepdims=keepdims, initial=initial, where=where)

    return reduce


def _running(find: Function) -> Function:
    """A running extreme, which counts dims from 0."""

    def accumulate(a: Any, *, axis: int, dtype: Any) -> Any:
        x = asarray(a, dtype)
        return find(x, axis=dim_of("accumulate", axis, x.type.ndim))

    return accumulate


def _folded(name: str, function: Function, identity: Any, ready: Function) -> ufunc:
    """A function that may be applied in any order, to what `ready` makes of arrays."""

    def reduce(a: Any, *, axis: Any, dtype: Any, keepdims: bool, initial: Any, where: Any) -> Any:
        x = ready(asarray(a, dtype))
        if where is not None:
            x = methods.where(methods.broadcast_to(where, shape=x.type.shape), x, full_like(x, identity))
        dims = reduced_dims(name, axis, x.type)
        start = asarray(identity if initial is None else initial, x.type.dtype)
        found = fold(x, start, function, dims)
        kept = tuple(1 if dim in dims else size for dim, size in enumerate(x.type.shape))
        return found.reshape(kept) if keepdims else found

    def accumulate(a: Any, *, axis: int, dtype: Any) -> Any:
        return associative_scan(function, ready(asarray(a, dtype)), axis=axis)

    def at(a: Any, indices: Any, b: Any) -> Any:
        return one_by_one.at(ready(asarray(a)), indices, b, inplace=False)

    def reduceat(a: Any, indices: Any, *, axis: int, dtype: Any) -> Any:
        return one_by_one.reduceat(ready(asarray(a, dtype)), indices, axis)

    one_by_one = ufunc(function, 2, 1, name=name, call=function)
    return ufunc(
        function,
        2,
        1,
        name=name,
        identity=identity,
        call=function,
        reduce=reduce,
        accumulate=accumulate,
        at=at,
        reduceat=reduceat,
    )


def _float(x: Any) -> Any:
    return elementwise.floats("logaddexp", x)[0]


def _truth(x: Any) -> Any:
    return methods.astype(x, dtype=bool_)


def _same(x: Any) -> Any:
    return x


add = ufunc(
    numeric.add,
    2,
    1,
    identity=0,
    call=numeric.add,
    reduce=functions.sum,
    accumulate=ordering.cumsum,
    at=_at("add"),
)
multiply = ufunc(
    numeric.multiply,
    2,
    1,
    identity=1,
    call=numeric.multiply,
    reduce=functions.prod,
    accumulate=ordering.cumprod,
    at=_at("multiply"),
)
subtract = ufunc(numeric.subtract, 2, 1, call=numeric.subtract, at=_at("subtract"))
negative = ufunc(numeric.negative, 1, 1, call=numeric.negative)
maximum = ufunc(
    numeric.maximum,
    2,
    1,
    call=numeric.maximum,
    reduce=_reduction(functions.max),
    accumulate=_running(cummax),
    at=_at("max"),
)
minimum = ufunc(
    numeric.minimum,
    2,
    1,
    call=numeric.minimum,
    reduce=_reduction(functions.min),
    accumulate=_running(cummin),
    at=_at("min"),
)
bitwise_and = _folded("bitwise_and", numeric.bitwise_and, -1, _same)
bitwise_or = _folded("bitwise_or", numeric.bitwise_or, 0, _same)
bitwise_xor = _folded("bitwise_xor", numeric.bitwise_xor, 0, _same)
logical_and = _folded("logical_and", elementwise.logical_and, True, _truth)
logical_or = _folded("logical_or", elementwise.logical_or, False, _truth)
logical_xor = _folded("logical_xor", elementwise.logical_xor, False, _truth)
logaddexp = _folded("logaddexp", elementwise.logaddexp, -np.inf, _float)
logaddexp2 = _folded("logaddexp2", floats.logaddexp2, -np.inf, _float)
